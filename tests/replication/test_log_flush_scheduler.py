"""Flushes in the background: no append is left out, at whatever moment it comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.sim.clock import SimClock


async def test_an_append_right_after_the_end_of_a_flush_is_flushed_too() -> None:
    log: Any = SimpleNamespace(committable_offset=0, log_end_offset=1, recovery_point=0)
    loop = asyncio.get_running_loop()
    flushed = asyncio.Event()

    def on_flush(now_ms: int) -> None:
        if log.log_end_offset == 1:
            loop.call_soon(
                append
            )  # it runs after the last look of the flush, and before its task is cleaned up

    def append() -> None:
        log.log_end_offset = 2
        scheduler.flush_in_background(partition)

    class Logs:
        async def flush(self, log: Any) -> None:
            log.committable_offset = log.recovery_point = log.log_end_offset
            if log.recovery_point == 2:
                flushed.set()

    class Led:
        is_leader = True

        def __init__(self) -> None:
            self.log = log
            self.on_flush = on_flush

    partition: Any = Led()
    scheduler = LogFlushScheduler(Logs(), SimClock())  # type: ignore[arg-type]
    scheduler.flush_in_background(partition)
    async with asyncio.timeout(5):
        await flushed.wait()
