"""What is done to a run of tests, from a seed: pauses, fewer cores, busy cores, a slow disk.

Each torment has a beginning and an end, at most `MAX_SECONDS` later, and an end that undoes it whatever has
happened to the processes meanwhile. `Tormentor.end` ends all that have begun. A seed repeats the choices;
which process is struck, and in the midst of what, is up to the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from tests.support.steady import burden
from tests.support.steady.plugin import paused_by_a_test
from tests.support.steady.processes import RunProcesses

MIN_SECONDS: Final = 0.1
MEAN_SECONDS: Final = 1.5
MAX_SECONDS: Final = 5.0
# Loops that wait for all processes to be as they should be end after so many rounds.
MAX_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class Intensity:
    """`gap_s` is the mean time between two torments."""

    gap_s: float
    at_once: int


INTENSITIES: Final = {
    "low": Intensity(gap_s=4.0, at_once=1),
    "medium": Intensity(gap_s=1.5, at_once=3),
    "high": Intensity(gap_s=0.5, at_once=6),
}


class Torment(Protocol):
    def begin(self) -> Sequence[int]:
        """Return the processes that are struck; none if there is nothing to do."""

    def end(self) -> None: ...


class Pause:
    """Some processes stand still. What a test has paused is left alone, what it pauses meanwhile stays so."""

    def __init__(self, run: Path, processes: Sequence[psutil.Process]) -> None:
        self._run = run
        self._processes = processes
        self._paused: list[psutil.Process] = []

    def begin(self) -> Sequence[int]:
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                # A command may have ended a pause that a test has begun, which then is still noted.
                is_a_tests = paused_by_a_test(self._run, process.pid)
                if not is_a_tests and process.status() != psutil.STATUS_STOPPED:
                    self._paused.append(process)
                    process.suspend()
        return [process.pid for process in self._paused]

    def end(self) -> None:
        for process in self._paused:
            with contextlib.suppress(psutil.Error):
                self._resume(process)

    def _resume(self, process: psutil.Process) -> None:
        """A test notes its pause before it begins, and forgets it before it ends. So a note that is seen when
        the process stands still is followed by a signal that ends the pause, or the pause goes on.
        """
        for _ in range(MAX_ROUNDS):
            if paused_by_a_test(self._run, process.pid):
                return
            process.resume()
            if not paused_by_a_test(self._run, process.pid):
                return
            process.suspend()


class Confinement:
    """The whole run has one core."""

    def __init__(self, processes: RunProcesses, core: int) -> None:
        self._processes = processes
        self._core = core
        self._all = _own_cores()

    def begin(self) -> Sequence[int]:
        return self._move(self._all, {self._core})

    def end(self) -> None:
        self._move({self._core}, self._all)

    def _move(self, here: set[int], there: set[int]) -> list[int]:
        """Threads inherit the cores of those that start them: until a look finds none that was left."""
        moved: set[int] = set()
        for _ in range(MAX_ROUNDS):
            left = [
                (process.pid, thread)
                for process in self._processes.find()
                for thread in _threads(process.pid)
                if _cores(thread) == here
            ]
            if not left:
                break
            for pid, thread in left:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, there)
                    moved.add(pid)
        return sorted(moved)


class Busy:
    """A burden beside the run is at work."""

    def __init__(self, burden: Burden) -> None:
        self._burden = burden

    def begin(self) -> Sequence[int]:
        return [] if self._burden.is_on else self._burden.switch(True)

    def end(self) -> None:
        self._burden.switch(False)


class Burden:
    """Processes that keep the cores or the disk busy, while they are switched on."""

    def __init__(self, what: str, count: int, *arguments: str) -> None:
        command = [sys.executable, burden.__file__, what, *arguments]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) for _ in range(count)
        ]
        self.is_on = False

    def switch(self, on: bool) -> list[int]:
        self.is_on = on
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(b"on\n" if on else b"off\n")
                process.stdin.flush()
        return [process.pid for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()


class Tormentor:
    """Torments a run in steps: `step` does what is due, and returns the seconds until the next is due."""

    def __init__(self, run: Path, first: psutil.Process, seed: str, intensity: Intensity) -> None:
        self.processes = RunProcesses(first, str(run))
        self.counts: Counter[str] = Counter()
        self._run = run
        self._log = (run / "torments.jsonl").open("w")
        self._random = random.Random(seed)
        self._intensity = intensity
        self._active: list[tuple[float, Torment]] = []
        self._used: dict[psutil.Process, float] = {}
        self._next = time.monotonic() + self._gap()
        self._cpu = Burden("cpu", os.cpu_count() or 1)
        self._disk = Burden("disk", 1, tempfile.gettempdir())

    def step(self) -> float:
        now = time.monotonic()
        for due, torment in list(self._active):
            if due <= now:
                torment.end()
                self._active.remove((due, torment))
        if self._next <= now:
            self._next = now + self._gap()
            self._begin(now)
        due = min([self._next, *(due for due, _ in self._active)])
        return max(0.01, due - time.monotonic())

    def end(self) -> None:
        """Undo all that is done now, and end the burdens."""
        for _, torment in self._active:
            torment.end()
        self._active.clear()
        for each in (self._cpu, self._disk):
            each.end()
        self._log.close()

    def _begin(self, now: float) -> None:
        # All choices are made each time, so that they are the same in each run of a seed.
        name = self._random.choice(("pause",) * 6 + ("pause of all", "one core", "busy cores", "slow disk"))
        seconds = min(MAX_SECONDS, MIN_SECONDS + self._random.expovariate(1.0 / MEAN_SECONDS))
        place, core = self._random.random(), self._random.random()
        if len(self._active) >= self._intensity.at_once:
            return
        torment: Torment
        if name.startswith("pause"):
            found = self.processes.find()
            if not found:
                return
            at_work = self._at_work(found)
            struck = found if name == "pause of all" else [at_work[int(place * len(at_work))]]
            torment = Pause(self._run, struck)
        elif name == "one core":
            cores = sorted(_own_cores())
            if len(cores) < 2 or any(isinstance(each, Confinement) for _, each in self._active):
                return
            torment = Confinement(self.processes, cores[int(core * len(cores))])
        else:
            torment = Busy(self._cpu if name == "busy cores" else self._disk)
        self._active.append((now + seconds, torment))
        if pids := torment.begin():
            self.counts[name] += 1
            line = {"at": round(time.time(), 2), "torment": name, "seconds": round(seconds, 2), "pids": pids}
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()
        else:
            self._active.pop()

    def _at_work(self, found: list[psutil.Process]) -> list[psutil.Process]:
        """Those that have used a processor since the last look: a pause of a worker without tests is lost."""
        before, self._used = self._used, {process: _processor_seconds(process) for process in found}
        return [each for each in found if self._used[each] > before.get(each, 0.0)] or found

    def _gap(self) -> float:
        return self._random.expovariate(1.0 / self._intensity.gap_s)


def _processor_seconds(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system)


def _own_cores() -> set[int]:
    """None where a system has no way to choose them."""
    return _cores(0) if hasattr(os, "sched_getaffinity") else set()


def _cores(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()


def _threads(pid: int) -> list[int]:
    try:
        return [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
