"""The watchdog of an event loop: a thread that finds out which code holds the loop for too long.

The watchdog looks at the loop's thread two hundred times a second, and less often while it is idle. Where it
finds it at work, it schedules a call on the loop. The time until that call runs is how long the loop was
held, by one callback or by all that were ready before. If the call has not run within the bound, the
watchdog takes the stack of the loop's thread, while the culprit is still on it, and logs it once the loop is
free.

What it measures is what a new event waits: the rest of a turn, and the events that were there before. So a
turn of more than one and a half bounds is never missed, and two that follow each other may count as one. It
costs the loop one callback for each look.

On a machine with too few cores a loop is late without doing anything. So the watchdog reports two parts of a
wait that are the loop's own doing: the CPU time of its thread, and how long it waited for the disk, as in an
fsync, which takes no CPU time. The second is the time between two looks that both find the thread in a call
of `runtime/disk.py`, less its CPU time and the time that it could have run and had no CPU. Other calls do not
count, as there a wait for the system looks like one for the interpreter, which threads of the pool hold.

Invariant: no garbage collection begins while the watchdog takes a frame of another thread. CPython 3.11 makes
a frame object at that moment, and a collection for its sake runs Python code (the callbacks of `gc`) that may
let the other thread go on. The other thread then leaves the call whose frame was being taken, and what
CPython returns or overwrites is memory of another call: the process crashes, or worse. From CPython 3.12 on
collections wait until the call has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final, NamedTuple

from ottla.runtime import disk
from ottla.runtime.garbage_collection import GarbageCollection
from ottla.runtime.metrics import Histogram

_log = logging.getLogger(__name__)

DEFAULT_BOUND_MS: Final = 10.0
# The upper ends of the classes of the histogram, in multiples of the bound; the last class has none.
_CLASSES: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0)
# Looks at an idle loop that pass before the pause between them grows, and by how much it may.
_IDLE_LOOKS: Final = 8
_IDLE_FACTOR: Final = 4
_MAX_FRAMES: Final = 12
# One line of the log for each culprit in this time, so that a bad loop does not fill the disk.
_LOG_EVERY_S: Final = 60.0
_MAX_CULPRITS: Final = 100
# In the stack of code that loads a module. Each is loaded once, so this passes by itself.
_LOADS_MODULE: Final = "_find_and_load"
_LOADING: Final = "a module is loaded, "
# A loop that is held for this long is logged while it lasts: it may never end.
_LOG_AT_ONCE_S: Final = 1.0
# For that long no module is loaded: its code, or what it waits for, holds the loop.
_LOG_LOADING_S: Final = 10.0
# Held by the watchdog that has put collections off: another one must not allow them meanwhile.
_no_collection: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """What the watchdog has seen since its start, in milliseconds."""

    bound_ms: float
    looks: int
    longest_ms: float
    longest_culprit: str
    longest_cpu_ms: float
    longest_cpu_culprit: str
    recent_cpu_ms: float
    """The longest by CPU time since the statistics before these."""
    recent_cpu_culprit: str
    longest_blocked_ms: float
    """The longest that the loop's thread waited for the disk within one wait."""
    longest_blocked_culprit: str
    recent_blocked_ms: float
    """The longest for the disk since the statistics before these."""
    recent_blocked_culprit: str
    blocked_ms: dict[str, float]
    """How long the loop's thread has waited for the disk in all, by the call: `sync`, `pread`, `open`."""
    above_bound: int
    above_bound_cpu: int
    """How often the loop's thread used more CPU time than the bound within one wait."""
    above_bound_blocked: int
    """How often the loop's thread waited for the disk for longer than the bound within one wait."""
    histogram: dict[str, int]
    """How many waits were shorter than each time; the last class has no upper end."""


class _Look(NamedTuple):
    """What the loop's thread does at one moment, and its clocks."""

    at_ns: int
    cpu_ns: int
    delayed_ns: int
    """The time that it could have run and had no CPU; 0 where the system does not say."""
    disk_call: str
    """The function of the disk that it is in; empty if in none."""


@dataclass(slots=True)
class _Blocked:
    """How long the loop's thread waited for the disk within one wait for the loop."""

    total_ns: int = 0
    culprit: str = ""


class LoopWatchdog:
    """Watches the loop that calls `start`, until `stop`. The thread is a daemon, and the only one that writes
    the figures.
    """

    def __init__(
        self,
        bound_ms: float = DEFAULT_BOUND_MS,
        collections: GarbageCollection | None = None,
        *,
        warn_ms: float = 0.0,
    ) -> None:
        """Watch with this bound. What held the loop for less than `warn_ms` is logged as information."""
        if bound_ms <= 0:
            raise ValueError(f"a bound above zero is needed, got {bound_ms}")
        self.bound_ms: Final = bound_ms
        self._warn_ns: Final = int(warn_ms * 1e6)
        self._bound_ns: Final = int(bound_ms * 1e6)
        self._collections: Final = collections
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._ident = 0
        # The clock of the CPU time of the loop's thread, where the system has one.
        self._cpu_clock: int | None = None
        # The scheduler's figures of the loop's thread, where the system has them.
        self._schedstat: int | None = None
        # The frame from which the loop was entered: while the loop waits, no other is on top of it.
        self._idle_frame: FrameType | None = None
        # When the scheduled call ran, by both clocks; 0 while it waits. Written by the loop's thread.
        self._ran_ns = 0
        self._ran_cpu_ns = 0
        self._looks = 0
        self._longest_ns = 0
        self._longest_culprit = ""
        self._longest_cpu_ns = 0
        self._longest_cpu_culprit = ""
        self._recent_cpu: tuple[int, str] = (0, "")
        self._longest_blocked = _Blocked()
        self._recent_blocked = _Blocked()
        self._blocked_ns: dict[str, int] = {}
        self._above_bound = 0
        self._above_bound_cpu = 0
        self._above_bound_blocked = 0
        self._limits_ns: Final = [int(share * self._bound_ns) for share in _CLASSES]
        self._counts: Final = [0] * (len(_CLASSES) + 1)
        self._held_ns = 0
        # When each callback was logged, and how often it was not since; by its place and the level.
        self._logged: dict[tuple[str, int], tuple[float, int]] = {}

    def start(self) -> None:
        """Begin to watch the running loop."""
        assert self._thread is None, "started twice"
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        if sys.platform == "linux":
            self._cpu_clock = time.pthread_getcpuclockid(self._ident)
            with contextlib.suppress(OSError):
                path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
                self._schedstat = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Start the thread from a plain callback, whose caller is the frame that runs the loop."""
        if self._stopped:
            return
        self._idle_frame = sys._getframe(1)
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Stopping twice is harmless."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._idle_frame = None
        schedstat, self._schedstat = self._schedstat, None
        if schedstat is not None:
            os.close(schedstat)

    def statistics(self) -> LoopStatistics:
        """What was seen so far. The recent figures begin again with each call."""
        (recent_ns, recent_culprit), self._recent_cpu = self._recent_cpu, (0, "")
        recent_blocked, self._recent_blocked = self._recent_blocked, _Blocked()
        names = [f"{share * self.bound_ms:g}" for share in _CLASSES]
        return LoopStatistics(
            bound_ms=self.bound_ms,
            looks=self._looks,
            longest_ms=self._longest_ns / 1e6,
            longest_culprit=self._longest_culprit,
            longest_cpu_ms=self._longest_cpu_ns / 1e6,
            longest_cpu_culprit=self._longest_cpu_culprit,
            recent_cpu_ms=recent_ns / 1e6,
            recent_cpu_culprit=recent_culprit,
            longest_blocked_ms=self._longest_blocked.total_ns / 1e6,
            longest_blocked_culprit=self._longest_blocked.culprit,
            recent_blocked_ms=recent_blocked.total_ns / 1e6,
            recent_blocked_culprit=recent_blocked.culprit,
            blocked_ms={call: blocked_ns / 1e6 for call, blocked_ns in self._blocked_ns.copy().items()},
            above_bound=self._above_bound,
            above_bound_cpu=self._above_bound_cpu,
            above_bound_blocked=self._above_bound_blocked,
            histogram=dict(zip([*names, "more"], self._counts, strict=True)),
        )

    def waits(self) -> Histogram:
        """The waits so far, in nanoseconds, as a histogram of seconds."""
        found = Histogram(self._limits_ns, scale=1e-9)
        found.counts[:] = self._counts
        found.sum = self._held_ns
        return found

    def blocked_seconds(self) -> dict[str, float]:
        """How long the loop's thread has waited for the disk, by the call."""
        return {call: blocked_ns / 1e9 for call, blocked_ns in self._blocked_ns.copy().items()}

    @property
    def longest_ms(self) -> float:
        return self._longest_ns / 1e6

    # The thread

    def _watch(self) -> None:
        pause_s = self.bound_ms / 2000
        idle_looks = 0
        while not self._stopped:
            self._looks += 1
            if self._is_idle(self._take_frame()):
                idle_looks += 1
                time.sleep(pause_s if idle_looks < _IDLE_LOOKS else pause_s * _IDLE_FACTOR)
                continue
            idle_looks = 0
            if not self._wait_for_turn(pause_s):
                return

    def _take_frame(self) -> FrameType | None:
        """The innermost call of the loop's thread."""
        with _without_collection():
            return sys._current_frames().get(self._ident)

    def _is_idle(self, frame: FrameType | None) -> bool:
        if frame is None or frame is self._idle_frame:
            return True
        # asyncio's own loop waits in a selector, which is Python.
        return frame.f_code.co_name == "select" and frame.f_code.co_filename.endswith("selectors.py")

    def _wait_for_turn(self, pause_s: float) -> bool:
        """Schedule a call on the loop and see how long it takes to run; False if the loop is closed."""
        self._ran_ns = 0
        collected_ms = 0.0 if self._collections is None else self._collections.total_ms
        first = last = self._look()
        began_ns, began_cpu_ns = first.at_ns, first.cpu_ns
        blocked = _Blocked()
        try:
            self._loop.call_soon_threadsafe(self._on_turn)
        except RuntimeError:
            return False
        culprit, logged = "", False
        while not self._ran_ns:
            if self._stopped or self._loop.is_closed():
                return False
            time.sleep(pause_s)
            if self._ran_ns:
                break
            before, last = last, self._look()
            self._note_blocked(before, last, blocked)
            held_ns = last.at_ns - began_ns
            if held_ns >= self._bound_ns and not culprit:
                culprit = self._culprit()
            at_once_s = _LOG_LOADING_S if _LOADING in culprit else _LOG_AT_ONCE_S
            if held_ns >= at_once_s * 1e9 and not logged:
                self._log(culprit, held_ns, last.cpu_ns - began_cpu_ns, blocked)
                logged = True
        held_ns, held_cpu_ns = self._ran_ns - began_ns, self._ran_cpu_ns - began_cpu_ns
        if held_ns >= self._bound_ns and self._collections is not None:
            collected_ms = self._collections.total_ms - collected_ms
            if collected_ms >= self.bound_ms / 2:
                culprit = f"garbage collection, {collected_ms:.0f} ms; {culprit}"
        self._count(
            held_ns, held_cpu_ns, blocked, culprit or "not seen, over before its stack could be taken"
        )
        if held_ns >= self._bound_ns and not logged:
            self._log(culprit, held_ns, held_cpu_ns, blocked)
        return True

    def _look(self) -> _Look:
        call = self._disk_call()
        return _Look(time.monotonic_ns(), self._cpu_ns(), self._delayed_ns(), call)

    def _disk_call(self) -> str:
        """The function of the disk that the loop's thread is in; empty if in none."""
        with _without_collection():
            frame = sys._current_frames().get(self._ident)
            # The innermost call, or the one that made it: `exists` and the like are functions of the library.
            for _ in range(2):
                if frame is not None:
                    if frame.f_code.co_filename == disk.__file__:
                        name = frame.f_code.co_name
                        # Those of Python itself, as of `waiting`, make no call of the system.
                        return "" if name.startswith("__") else name
                    frame = frame.f_back
        return ""

    def _note_blocked(self, before: _Look, look: _Look, blocked: _Blocked) -> None:
        """Count the time between two looks as a wait for the disk if both found one."""
        if not before.disk_call or not look.disk_call:
            return
        waited_ns = look.at_ns - before.at_ns
        waited_ns -= look.cpu_ns - before.cpu_ns + look.delayed_ns - before.delayed_ns
        if waited_ns > 0:
            call = look.disk_call
            self._blocked_ns[call] = self._blocked_ns.get(call, 0) + waited_ns
            blocked.total_ns += waited_ns
            if not blocked.culprit:
                blocked.culprit = self._culprit()

    def _delayed_ns(self) -> int:
        if self._schedstat is None:
            return 0
        try:
            # Time on a CPU, time in the queue for one, number of turns.
            return int(os.pread(self._schedstat, 100, 0).split()[1])
        except (OSError, IndexError):
            return 0

    def _cpu_ns(self) -> int:
        return 0 if self._cpu_clock is None else time.clock_gettime_ns(self._cpu_clock)

    def _on_turn(self) -> None:
        """Note when this call ran. Called on the loop."""
        self._ran_cpu_ns = self._cpu_ns()
        self._ran_ns = time.monotonic_ns()

    def _count(self, held_ns: int, held_cpu_ns: int, blocked: _Blocked, culprit: str) -> None:
        index = 0
        while index < len(self._limits_ns) and held_ns >= self._limits_ns[index]:
            index += 1
        self._counts[index] += 1
        self._held_ns += held_ns
        self._above_bound += held_ns >= self._bound_ns
        self._above_bound_cpu += held_cpu_ns >= self._bound_ns
        self._above_bound_blocked += blocked.total_ns >= self._bound_ns
        if held_ns > self._longest_ns:
            self._longest_ns = held_ns
            self._longest_culprit = culprit
        if held_cpu_ns > self._recent_cpu[0]:
            self._recent_cpu = (held_cpu_ns, culprit)
        if held_cpu_ns > self._longest_cpu_ns:
            self._longest_cpu_ns = held_cpu_ns
            self._longest_cpu_culprit = culprit
        if blocked.total_ns > self._recent_blocked.total_ns:
            self._recent_blocked = blocked
        if blocked.total_ns > self._longest_blocked.total_ns:
            self._longest_blocked = blocked

    def _culprit(self) -> str:
        """The task and the stack of the loop's thread, the innermost call first."""
        calls: list[str] = []
        loads_module = False
        with _without_collection():
            frame = sys._current_frames().get(self._ident)
            if self._is_idle(frame):
                return ""
            while frame is not None and frame is not self._idle_frame:
                code = frame.f_code
                loads_module |= code.co_name == _LOADS_MODULE
                calls.append(f"{code.co_name} ({_short(code.co_filename)}:{frame.f_lineno})")
                frame = frame.f_back
        if len(calls) > _MAX_FRAMES:
            half = _MAX_FRAMES // 2
            calls[half:-half] = ["..."]
        task = asyncio.current_task(self._loop)
        name = "a callback" if task is None else f"task {task.get_name()!r}"
        loading = _LOADING if loads_module else ""
        return f"{loading}{name}: {' < '.join(calls)}"

    def _log(self, culprit: str, held_ns: int, held_cpu_ns: int, blocked: _Blocked) -> None:
        """Log a wait, unless the same callback was logged a short while ago, at the same level: that the
        machine was busy must not hide what a callback does later.
        """
        now = time.monotonic()
        is_blocked = blocked.total_ns >= self._bound_ns / 2
        if is_blocked:
            culprit = blocked.culprit or culprit
        # Without a stack there is no culprit to look for, and where CPU and disk explain less than the
        # bound, the machine was busy with other work. A loop that is held for long is worth a look anyway.
        is_at_work = self._cpu_clock is None or held_cpu_ns + blocked.total_ns >= self._bound_ns
        is_worth_a_look = (
            held_ns >= _LOG_LOADING_S * 1e9
            if _LOADING in culprit
            else bool(culprit) and (is_at_work or held_ns >= _LOG_AT_ONCE_S * 1e9)
        )
        level = logging.WARNING if is_worth_a_look and held_ns >= self._warn_ns else logging.INFO
        place = culprit.rpartition(" < ")[2], level
        last, unlogged = self._logged.get(place, (-_LOG_EVERY_S, 0))
        if now - last < _LOG_EVERY_S:
            self._logged[place] = (last, unlogged + 1)
            return
        if len(self._logged) >= _MAX_CULPRITS:
            self._logged.clear()
        self._logged[place] = (now, 0)
        also = f" (and {unlogged} times since it was last logged)" if unlogged else ""
        _log.log(
            level,
            "the event loop was held for %.0f ms, %.0f ms of it on the CPU and %.0f ms waiting for the disk, "
            "where %g ms are allowed%s: %s",
            held_ns / 1e6,
            held_cpu_ns / 1e6,
            blocked.total_ns / 1e6,
            self.bound_ms,
            also,
            culprit or "the stack is not known",
        )


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Put automatic garbage collections off; for a moment only."""
    with _no_collection:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def _short(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.rsplit("/", 2)[-2:])
