"""Which processes belong to a run of tests, and only those: what torments a run touches no other process.

A process belongs to the run if it descends from the run's first process, if it did when it was seen before,
or if its environment names the run: a node that was started by a command that has ended keeps that.

`python -m tests.support.steady.processes PID NAME` guards a run: it kills what is left of it when its input
ends, as it does when the tool has been killed, which then cannot have what it has paused go on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

# In the environment of all processes of a run: its directory, which no other run has.
RUN_VARIABLE = "OTTLA_STEADY_RUN"
END_SECONDS = 20.0
POLL_SECONDS = 0.05


class RunProcesses:
    """The processes of the run that `first` began. psutil compares the time of a process's start before it
    sends a signal, so that a process that got the number of one that has ended gets none.
    """

    def __init__(self, first: psutil.Process, name: str) -> None:
        self._first = first
        self._name = name
        # By process, whether it is one of the run's: of what lives, and was looked at.
        self._known: dict[psutil.Process, bool] = {first: True}

    def find(self) -> list[psutil.Process]:
        """All that live now, in the order of their numbers."""
        known: dict[psutil.Process, bool] = {}
        descend = _descend_from(self._first)
        for process in _all():
            known[process] = process in descend or (
                self._known[process] if process in self._known else self._is_named(process)
            )
        self._known = known
        return [process for process, is_ours in known.items() if is_ours and lives(process)]

    def end(self) -> list[str]:
        """Kill all that are left, also what they start meanwhile; return their commands."""
        ended: dict[psutil.Process, str] = {}
        deadline = time.monotonic() + END_SECONDS
        while (left := self.find()) and time.monotonic() < deadline:
            for process in left:
                try:
                    ended.setdefault(process, " ".join(process.cmdline()) or process.name())
                    process.kill()
                except psutil.Error:
                    continue
            time.sleep(POLL_SECONDS)
        return list(ended.values())

    def _is_named(self, process: psutil.Process) -> bool:
        try:
            if process.uids().real != os.getuid():
                return False
            return bool(process.environ().get(RUN_VARIABLE) == self._name)
        except (psutil.Error, OSError):
            return False


def _all() -> Iterator[psutil.Process]:
    """Not by `psutil.process_iter`, which may give a process that has ended for another with its number."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _descend_from(process: psutil.Process) -> set[psutil.Process]:
    try:
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def lives(process: psutil.Process) -> bool:
    """Whether it has not ended: one that was not waited for yet has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@contextlib.contextmanager
def guarded(first: psutil.Process, name: str) -> Iterator[None]:
    """A guard of the run as long as this process lives and is within."""
    command = [sys.executable, "-m", __name__, str(first.pid), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def main() -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        run = RunProcesses(psutil.Process(int(sys.argv[1])), sys.argv[2])
        sys.stdin.read()
        run.end()


if __name__ == "__main__":
    main()
