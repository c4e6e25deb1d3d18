"""The processes of a cluster's nodes: start, signal and inspect them, from any process of this machine.

A node's `process.json` names the process that was started last for it. The process that starts the node
writes it; others read it: the test that made the cluster, `ottla cluster up` in one terminal, `ottla cluster
kill` in another. Systems reuse process ids, so a process counts as the node only while its command line names
the node's `server.properties`. So no process of another program is ever signalled.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ottla.testing.cluster_plan import NodePlan

STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
_READY: Final = b" is ready: "
_HTTP: Final = re.compile(rb" is ready: .*, [0-9]+ ms, (https?://\S+)\n")
STATUS: Final = b"ottla status: "
# In the stack of the main thread of `python -m ottla`, at its outer end.
_STACKS_END: Final = b"<frozen runpy>"

# The processes that this process has started, by pid: it has to wait for them when they end. The objects are
# kept, since a `Popen` that is collected while its process runs warns of it.
_children: dict[int, subprocess.Popen[bytes]] = {}


class ClusterError(RuntimeError):
    """A node did not do what was asked of it; the text contains the end of its log."""


class ProcessState(enum.StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DOWN = "down"


class _Started(NamedTuple):
    pid: int
    log_from: int
    """The position in the log file at which its output begins."""


class NodeProcess:
    """A node of the plan, and the process that runs it, if there is one."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self._file = plan.directory / "process.json"

    def start(
        self, *, log_level: str = "warning", prefix: Sequence[str] = (), options: Sequence[str] = ()
    ) -> None:
        """Start the process, and return at once. It does not end with this process.

        `prefix` is a command that runs it, `options` are options of `ottla start`.
        """
        if self.state() is not ProcessState.DOWN:
            raise ClusterError(f"node {self.plan.id} runs already, as process {self.pid()}")
        with self.plan.log_file.open("ab") as log:
            log_from = log.tell()
            child = subprocess.Popen(
                [
                    *(*prefix, sys.executable, "-m", "ottla", "start"),
                    *(str(self.plan.properties_file), "--log-level", log_level, *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches only the process in the foreground, which then stops the nodes cleanly.
                start_new_session=True,
            )
        _children[child.pid] = child
        unfinished = self._file.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"pid": child.pid, "log_from": log_from}))
        unfinished.replace(self._file)

    def pid(self) -> int | None:
        """The process that runs the node; None when it is down."""
        started = self._read_started()
        return (
            started.pid if started is not None and self._look(started.pid) is not ProcessState.DOWN else None
        )

    def state(self) -> ProcessState:
        started = self._read_started()
        return ProcessState.DOWN if started is None else self._look(started.pid)

    def exit_status(self) -> int | None:
        """The exit status of a process that is down, if this process had started it."""
        started = self._read_started()
        child = None if started is None else _children.get(started.pid)
        return None if child is None or self.state() is not ProcessState.DOWN else child.returncode

    def said_ready(self) -> bool:
        """Whether the process that was started last has logged that it is ready."""
        return _READY in self._own_log()

    def http_url(self) -> str | None:
        """Where the process that was started last answers HTTP; None if it does not, or is not ready."""
        found = _HTTP.search(self._own_log())
        return None if found is None else found[1].decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node's process; ClusterError if there is none."""
        pid = self.pid()
        if pid is None:
            raise ClusterError(f"node {self.plan.id} is down")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise ClusterError(f"node {self.plan.id} is down") from None

    def write_stacks(self, timeout_s: float) -> None:
        """Have the process write the stacks of its threads to its log, by SIGQUIT, and wait for them. A
        process that has only begun ends.
        """
        before = len(self._own_log())
        with contextlib.suppress(ClusterError):
            self.signal(signal.SIGQUIT)
        deadline = time.monotonic() + timeout_s
        # The innermost call of each thread comes first, and the main thread is the last one.
        while _STACKS_END not in self._own_log()[before:] and time.monotonic() < deadline:
            if self.state() is ProcessState.DOWN:
                return
            time.sleep(_POLL_SECONDS)

    def ask_status(self) -> int | None:
        """Have the process write its status to its log, by SIGUSR1; returns where in the log to look for it.
        None if the node is not ready: the signal would end a process that has only begun.
        """
        if self.state() is not ProcessState.RUNNING or not self.said_ready():
            return None
        try:
            position = self.plan.log_file.stat().st_size
            self.signal(signal.SIGUSR1)
        except (ClusterError, OSError):
            return None
        return position

    def read_status(self, position: int) -> dict[str, Any] | None:
        """The status that `ask_status` has asked for; None as long as it is not there."""
        with self.plan.log_file.open("rb") as log:
            log.seek(position)
            for line in log.read().splitlines(keepends=True):
                if line.startswith(STATUS) and line.endswith(b"\n"):
                    status: dict[str, Any] = json.loads(line[len(STATUS) :])
                    return status
        return None

    def wait_until_down(self, timeout_s: float = STOP_SECONDS) -> None:
        deadline = time.monotonic() + timeout_s
        while self.state() is not ProcessState.DOWN:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"node {self.plan.id} did not end within {timeout_s:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def log_tail(self, size: int = 4000) -> str:
        """The end of the output of the node's processes."""
        try:
            with self.plan.log_file.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - size, 0))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def resident_bytes(self) -> int | None:
        """Its resident memory, on Linux; None elsewhere."""
        pid = self.pid()
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _own_log(self) -> bytes:
        started = self._read_started()
        try:
            with self.plan.log_file.open("rb") as log:
                log.seek(started.log_from if started is not None else 0)
                return log.read()
        except FileNotFoundError:
            return b""

    def _read_started(self) -> _Started | None:
        try:
            document = json.loads(self._file.read_text())
            return _Started(int(document["pid"]), int(document["log_from"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _look(self, pid: int) -> ProcessState:
        child = _children.get(pid)
        found = inspect_process(pid)
        if child is not None:
            # A child keeps its pid until it is waited for, so it cannot be another process.
            if child.poll() is not None:
                return ProcessState.DOWN
        elif found is None or str(self.plan.properties_file) not in found.command:
            return ProcessState.DOWN
        return (
            ProcessState.PAUSED
            if found is not None and found.status.startswith("T")
            else ProcessState.RUNNING
        )


def stop_all(processes: Iterable[NodeProcess]) -> list[NodeProcess]:
    """Stop the processes that run, cleanly, and return them once they have ended.

    Brokers stop first: a controlled shutdown needs a controller.
    """
    running = [process for process in processes if process.state() is not ProcessState.DOWN]
    for of_controllers in (False, True):
        wave = [each for each in running if (each.plan.controller_port is not None) is of_controllers]
        for process in wave:
            with contextlib.suppress(ClusterError):
                process.signal(signal.SIGTERM)
                process.signal(signal.SIGCONT)
        for process in wave:
            process.wait_until_down()
    return running


class RunningProcess(NamedTuple):
    status: str
    """The state letter of the system: T is stopped by a signal, Z has ended and was not waited for."""
    command: str


def inspect_process(pid: int) -> RunningProcess | None:
    if sys.platform == "linux":
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            return None
        return RunningProcess(status, command)
    output = subprocess.run(
        ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    status, _, command = output.stdout.strip().partition(" ")
    return RunningProcess(status, command) if status else None
