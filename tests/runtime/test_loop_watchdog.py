"""The watchdog of the event loop: what holds the loop is found, and named, while it lasts."""

import asyncio
import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.runtime.disk import RealDisk
from ottla.runtime.loop import new_event_loop
from ottla.runtime.loop_watchdog import LoopStatistics, LoopWatchdog, _Blocked
from tests.support.waiting import wait_until

LOOPS = [new_event_loop, asyncio.new_event_loop]


def watched(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    work: Callable[[LoopWatchdog], Coroutine[Any, Any, None]],
) -> LoopStatistics:
    watchdog = LoopWatchdog(bound_ms=10)

    async def main() -> None:
        watchdog.start()
        try:
            await work(watchdog)
        finally:
            watchdog.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    return watchdog.statistics()


def hold_the_loop(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_callback_that_holds_the_loop_is_named(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    seen: LoopStatistics | None = None
    found: list[str] = []

    async def work(watchdog: LoopWatchdog) -> None:
        deadline = time.monotonic() + 60
        while watchdog.statistics().above_bound < 3:
            assert time.monotonic() < deadline
            hold_the_loop(0.2)
            await asyncio.sleep(0.05)

    def is_named() -> bool:
        """A loop of its own each time: a machine that stands still holds it longer than the callback does."""
        nonlocal seen, found
        caplog.clear()
        seen = watched(new_loop, work)
        found = [record.getMessage() for record in caplog.records if "hold_the_loop" in record.getMessage()]
        return bool(found) and "hold_the_loop" in seen.longest_culprit

    with caplog.at_level(logging.WARNING):
        wait_until(is_named)
    assert seen is not None
    assert seen.longest_ms >= 10
    assert "task 'Task-" in seen.longest_culprit
    (line, *_) = found
    assert "the event loop was held for" in line
    assert "where 10 ms are allowed" in line
    # One line for a culprit, not one for each time.
    assert len(found) <= 2


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_call_that_blocks_counts_too(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Such as an fsync: it takes no CPU time."""

    async def work(watchdog: LoopWatchdog) -> None:
        deadline = time.monotonic() + 30
        while not watchdog.statistics().above_bound:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # noqa: ASYNC251
            await asyncio.sleep(0.05)

    seen = watched(new_loop, work)
    assert seen.longest_ms >= 10
    assert sum(seen.histogram.values()) >= 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the CPU time of another thread is known on Linux only")
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_wait_for_the_disk_is_a_warning_that_names_who_waits(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is slow to open: a pipe, until another process writes to it."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def read_the_slow_disk() -> None:
        writer = subprocess.Popen(["sh", "-c", 'sleep 0.3; : > "$0"', pipe])
        RealDisk().open(pipe, writable=False).close()
        writer.wait()

    async def work(watchdog: LoopWatchdog) -> None:
        deadline = time.monotonic() + 60
        # On a busy machine the watchdog may see a part of the wait only.
        while watchdog.statistics().longest_blocked_ms < 100:
            assert time.monotonic() < deadline
            read_the_slow_disk()
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING):
        seen = watched(new_loop, work)
    assert 10 <= seen.longest_blocked_ms <= seen.longest_ms
    assert "read_the_slow_disk" in seen.longest_blocked_culprit
    assert seen.blocked_ms["open"] >= seen.longest_blocked_ms > seen.longest_cpu_ms
    assert any("read_the_slow_disk" in record.getMessage() for record in caplog.records)


def test_a_loop_that_was_late_without_doing_anything_is_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.runtime.loop_watchdog._LOG_AT_ONCE_S", 3600.0)  # the machine may stand still
    watchdog = LoopWatchdog(10)

    async def main() -> None:
        watchdog.start()
        deadline = time.monotonic() + 30
        while not watchdog.statistics().above_bound:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # noqa: ASYNC251 - as if other processes had the CPU
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    watchdog.stop()
    assert watchdog.statistics().above_bound >= 1
    found = [record for record in caplog.records if "the event loop was held for" in record.getMessage()]
    assert {record.levelno for record in found} == {logging.INFO}


def test_what_clients_do_not_notice_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(10, warn_ms=200)
    with caplog.at_level(logging.INFO):
        watchdog._log("task 'short': work (log/segment.py:7)", 11_000_000, 11_000_000, _Blocked())
        watchdog._log("task 'long': work (log/segment.py:8)", 200_000_000, 200_000_000, _Blocked())
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]


def test_a_machine_that_was_busy_does_not_hide_a_wait_for_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(10)
    watchdog._cpu_clock = 0
    callback, held_ns = "task 'writer': write (log/segment.py:7)", 20_000_000
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            watchdog._log(callback, held_ns, 0, _Blocked())
        for _ in range(2):
            watchdog._log(callback, held_ns, 0, _Blocked(held_ns, f"sync (runtime/disk.py:9) < {callback}"))
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]


def test_an_idle_loop_is_left_alone() -> None:
    calls = 0

    async def work(watchdog: LoopWatchdog) -> None:
        nonlocal calls
        on_turn = watchdog._on_turn

        def counting() -> None:
            nonlocal calls
            calls += 1
            on_turn()

        watchdog._on_turn = counting  # type: ignore[method-assign]
        deadline = time.monotonic() + 30
        while watchdog.statistics().looks < 20:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

    seen = watched(new_event_loop, work)
    assert calls < seen.looks / 2


def test_it_ends_with_its_loop() -> None:
    watchdog = LoopWatchdog()

    async def main() -> None:
        watchdog.start()
        await asyncio.sleep(0.02)
        hold_the_loop(0.03)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
    watchdog.stop()
    watchdog.stop()


def test_a_bound_is_needed() -> None:
    with pytest.raises(ValueError, match="above zero"):
        LoopWatchdog(0)


def test_loading_a_module_is_no_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens once for each module; an operator has nothing to look for."""
    (tmp_path / "slow_to_load.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    # The machine may stand still, also while something else is done.
    monkeypatch.setattr("ottla.runtime.loop_watchdog._LOG_LOADING_S", 3600.0)
    monkeypatch.setattr("ottla.runtime.loop_watchdog._LOG_EVERY_S", 0.0)

    def loadings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "a module is loaded" in record.getMessage()]

    async def work(watchdog: LoopWatchdog) -> None:
        deadline = time.monotonic() + 60
        while not loadings():
            assert time.monotonic() < deadline
            importlib.import_module("slow_to_load")
            del sys.modules["slow_to_load"]
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO):
        seen = watched(new_event_loop, work)
    assert seen.above_bound >= 1
    assert {record.levelno for record in loadings()} == {logging.INFO}


@pytest.mark.slow
def test_a_module_that_does_not_come_to_an_end_is_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for something, and a node that starts would do so without a word."""
    monkeypatch.setattr("ottla.runtime.loop_watchdog._LOG_LOADING_S", 0.5)
    # It ends when the warning is there.
    (tmp_path / "loads_for_ever.py").write_text(
        "import time\nuntil = time.monotonic() + 60\n"
        "import tests.runtime.test_loop_watchdog as by\n"
        "while not by.is_warned() and time.monotonic() < until: time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def is_warned() -> bool:
        return any(
            record.levelno == logging.WARNING and "a module is loaded" in record.getMessage()
            for record in caplog.records
        )

    async def work(watchdog: LoopWatchdog) -> None:
        await asyncio.sleep(0.05)
        importlib.import_module("loads_for_ever")

    monkeypatch.setattr(sys.modules[__name__], "is_warned", is_warned, raising=False)
    monkeypatch.setitem(sys.modules, "tests.runtime.test_loop_watchdog", sys.modules[__name__])
    with caplog.at_level(logging.INFO):
        watched(new_event_loop, work)
    assert is_warned()


# Collections come with almost every object that is made, and in the thread of the watchdog each lets the
# loop's thread go on, as one does that takes longer than the switch interval. Calls of many shapes follow
# each other on the stack of the loop's thread: what was the frame of one is in the middle of another then.
WATCHED_PROGRAM = """
import asyncio, gc, sys, time
from ottla.runtime.loop_watchdog import LoopWatchdog

sys.setswitchinterval(0.001)
calls = []
for size in range(1, 12):
    variables = " = ".join(f"v{number}" for number in range(size))
    scope = {}
    exec(
        f"def call(depth, turn):\\n"
        f"    {variables} = 3\\n"
        f"    return calls[(depth * 7 + turn) % len(calls)](depth - 1, turn) if depth else v0\\n",
        {"calls": calls}, scope,
    )
    calls.append(scope["call"])

def on_collection(phase, info):
    caller = sys._getframe().f_back
    if caller is not None and caller.f_code.co_filename.endswith("loop_watchdog.py"):
        time.sleep(0.0002)

async def main():
    watchdog = LoopWatchdog(bound_ms=0.2)
    watchdog.start()
    gc.callbacks.append(on_collection)
    gc.set_threshold(5)
    deadline = time.monotonic() + 120
    turn = 0
    while watchdog.statistics().looks < 100:
        assert time.monotonic() < deadline, watchdog.statistics()
        assert watchdog._thread is None or watchdog._thread.is_alive()
        turn += 1
        for depth in range(30):
            calls[turn % len(calls)](depth, turn)
        if turn % 50 == 0:
            await asyncio.sleep(0)
    watchdog.stop()

asyncio.run(main())
print("survived")
"""


@pytest.mark.slow
def test_a_collection_never_meets_a_frame_that_is_being_taken() -> None:
    """With CPython 3.11 the process would crash, or the watchdog's thread would end, within a few looks."""
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED_PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "survived\n"), ended.stderr[-2000:]
