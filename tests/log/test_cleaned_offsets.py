"""Up to where a log is clean is forgotten with the log, before there is another one of its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ottla.log.cleaner.cleaner import LogCleaner
from ottla.log.config.log_config import LogConfig
from ottla.log.directory.checkpoints import read_offsets
from ottla.log.log_manager import LogManager, NewLog
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.batch import read_records
from ottla.records.builder import build_batch
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.turns import Turns
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimCrash, SimDisk
from tests.support.log_harness import all_batches

T = TypeVar("T")

A, B = "/disks/a", "/disks/b"
TP = TopicPartition("orders", 0)
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01, file_delete_delay_ms=0
)
OLD, NEW = bytes([1]) * 16, bytes([2]) * 16
KEYS = "abcd"
ROUNDS = 4


class Broker:
    """The logs of a broker and its cleaner."""

    def __init__(self, *dirs: str, disk: SimDisk | None = None, pool: InlinePool | None = None) -> None:
        self.clock = SimClock()
        self.disk = disk or SimDisk(1, clock=self.clock)
        self.pool = pool or InlinePool()
        self.logs = LogManager(
            dirs or (A,), disk=self.disk, clock=self.clock, random=SeededRandom(1), pool=self.pool
        )
        self.cleaner = LogCleaner(self.clock, SeededRandom(2), self.pool, self.logs.logs)

    async def start(self) -> Broker:
        await self.logs.start(lambda _: CONFIG)
        return self

    @property
    def log(self) -> UnifiedLog:
        log = self.logs.get_log(TP)
        assert log is not None
        return log

    def create(self, topic_id: bytes) -> None:
        self.logs.get_or_create_log(TP, CONFIG, topic_id=topic_id)

    async def delete(self) -> None:
        assert not await self.logs.delete_logs_in_turns([TP], Turns(self.clock))

    def fill(self, rounds: int = ROUNDS) -> None:
        """Write each key once a segment."""
        for number in range(rounds):
            for key in KEYS:
                batch = build_batch([(self.clock.wall_ms(), key.encode(), b"%d" % number)])
                self.log.append_as_leader(bytearray(batch), 0, now_ms=self.clock.wall_ms())
            self.log.roll(self.clock.wall_ms())
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.flush()

    async def clean(self) -> bool:
        return await self.cleaner.clean_filthiest_log()

    def keys(self) -> list[str]:
        found = [record.key or b"" for _, data in all_batches(self.log) for record in read_records(data)]
        return sorted(key.decode() for key in found)

    def checkpoint(self, directory: str = A) -> dict[TopicPartition, int]:
        return read_offsets(self.disk, f"{directory}/cleaner-offset-checkpoint")


async def cleaned() -> Broker:
    broker = await Broker().start()
    broker.create(OLD)
    broker.fill()
    assert await broker.clean()
    assert broker.checkpoint() == {TP: ROUNDS * len(KEYS)}
    return broker


async def _in_turns(broker: Broker) -> None:
    await broker.delete()


async def _at_once(broker: Broker) -> None:
    broker.logs.delete_log(TP)


async def _as_stray(broker: Broker) -> None:
    broker.logs.mark_stray(TP)


@pytest.mark.parametrize("go", [_in_turns, _at_once, _as_stray])
async def test_a_topic_that_is_created_again_between_two_rounds_is_cleaned(
    go: Callable[[Broker], Any],
) -> None:
    broker = await cleaned()
    await go(broker)
    assert broker.checkpoint() == {}
    broker.create(NEW)
    broker.fill()
    assert await broker.clean()
    assert broker.keys() == list(KEYS)


class InterruptedPool(InlinePool):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.interrupt: Callable[[], None] | None = None
        self.after = 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        result = await super().run(fn, *args)
        self.calls += 1
        if self.interrupt is not None and self.calls == self.after:
            self.interrupt()
        return result


def test_a_cleaning_that_is_under_way_leaves_no_trace_for_the_next_topic() -> None:
    """Whichever step of it the deletion and the creation meet."""

    async def test(after: int) -> bool:
        pool = InterruptedPool()
        broker = await Broker(pool=pool).start()
        broker.create(OLD)
        broker.fill()

        def replace_topic() -> None:
            pool.interrupt = None
            broker.logs.delete_log(TP)
            broker.create(NEW)
            broker.fill(ROUNDS + 2)

        pool.interrupt, pool.after = replace_topic, pool.calls + after
        await broker.clean()
        if pool.interrupt is not None:
            return False
        assert broker.log.topic_id == NEW
        assert broker.checkpoint() == {}
        assert await broker.clean()
        assert broker.keys() == list(KEYS)
        return True

    after = 1
    while asyncio.run(test(after)):
        after += 1
    assert after > 5


@pytest.mark.slow
@pytest.mark.parametrize("in_turns", [True, False])
def test_a_power_loss_at_any_step_lets_no_log_inherit_the_checkpoint(in_turns: bool) -> None:
    async def replace_topic(broker: Broker) -> None:
        if in_turns:
            await broker.delete()
            await broker.logs.create_logs([NewLog(TP, CONFIG, NEW, is_new=True)])
        else:
            broker.logs.delete_log(TP)
        broker.create(NEW)
        broker.fill(ROUNDS + 2)

    async def test(operations: int) -> bool:
        broker = await cleaned()
        broker.disk.crash_after(operations)
        has_crashed = True
        with suppress(SimCrash):
            await replace_topic(broker)
            has_crashed = False
        broker.disk.crash()
        broker = await Broker(disk=broker.disk).start()
        if broker.logs.get_log(TP) is None or broker.log.topic_id not in (NEW, None):
            # What the metadata ask for once more.
            broker.logs.delete_logs([TP])
            await broker.logs.create_logs([NewLog(TP, CONFIG, NEW, is_new=True)])
        broker.create(NEW)
        broker.fill(ROUNDS + 2)
        while await broker.clean():
            pass
        assert broker.keys() == list(KEYS), operations
        return has_crashed

    operations = 0
    while asyncio.run(test(operations)):
        operations += 1
    assert operations > 20


async def test_a_log_in_another_directory_is_dirty_from_its_start() -> None:
    broker = await Broker(A, B).start()
    broker.create(OLD)
    broker.fill()
    assert await broker.clean()
    here, other = (A, B) if broker.log.directory.path == A else (B, A)
    target = next(each for each in broker.logs.directories if each.path == other)
    target.directory_id = b"another-director"
    future = broker.logs.get_or_create_log(TP, CONFIG, directory_id=target.directory_id, future=True)
    for _, data in all_batches(broker.log):
        future.append_as_follower(data, 0, now_ms=broker.clock.wall_ms())
    broker.logs.replace_current_with_future_log(TP)
    assert broker.checkpoint(here) == {}
    assert broker.checkpoint(other) == {}
    broker.fill(1)
    assert await broker.clean()
    assert broker.keys() == list(KEYS)


@pytest.mark.parametrize("in_pool", [True, False])
async def test_what_is_truncated_is_dirty_again_also_after_a_crash(in_pool: bool) -> None:
    broker = await cleaned()
    broker.fill(1)
    kept = ROUNDS * len(KEYS) - 2
    if in_pool:
        truncation = broker.log.begin_truncation(kept)
        await truncation.run(broker.pool)
    else:
        broker.logs.truncate_to({TP: kept})
    assert broker.checkpoint() == {TP: kept}
    broker.fill()
    broker.disk.crash()
    broker = await Broker(disk=broker.disk).start()
    broker.log.update_high_watermark(broker.log.log_end_offset)
    broker.log.flush()
    assert broker.log.log_end_offset > kept + len(KEYS)
    assert await broker.clean()
    assert broker.keys() == list(KEYS)


async def test_a_log_that_is_no_longer_compacted_keeps_its_place() -> None:
    broker = await cleaned()
    broker.log.update_config(replace(CONFIG, cleanup_policy=frozenset({"delete"})))
    assert not await broker.clean()
    assert broker.checkpoint() == {TP: ROUNDS * len(KEYS)}
