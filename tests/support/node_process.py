"""`ottla start` as a process of its own, to be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY = re.compile(
    r"ottla \S+ is ready: (?P<host>\S+):(?P<port>\d+), data in (?P<dir>.+), (?P<ms>\d+) ms"
    r"(, (?P<http>http\S+)|, no HTTP: \S+ is taken)?"
)
START_SECONDS = 120
STATUS = "ottla status: "


class NodeProcess:
    """A node in its own process; `with` kills it at the end if it still runs.

    Without a data directory and an address it goes by its file alone.
    """

    def __init__(self, data_dir: Path | None, *arguments: str, listen: str | None = "127.0.0.1:0") -> None:
        self._arguments = list(arguments)
        if data_dir is not None:
            self._arguments += ["--data-dir", str(data_dir)]
        if listen is not None:
            self._arguments += ["--listen", listen]
        self._process: subprocess.Popen[str] | None = None
        self.ready_line = ""
        self.port = 0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()

    def start(self) -> Self:
        self.launch()()
        return self

    def launch(self) -> Callable[[], None]:
        """Begin to start it; call what this gives to wait until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "start", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self._await_ready

    def _await_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline().strip()
        match = READY.fullmatch(self.ready_line)
        if match is None:
            self.kill()
            raise AssertionError(f"the node is not ready: {self.ready_line!r} {self.stderr()}")
        self.port = int(match["port"])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def read_status(self) -> Any:
        """The status that SIGUSR1 has it print, as JSON."""
        assert self._process is not None
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(STATUS):
            assert line, f"the node has ended: {self.stderr()}"
        return json.loads(line.removeprefix(STATUS))

    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; the exit status, and the seconds it took."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(START_SECONDS)
        self._close_pipes()
        return status, time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(START_SECONDS)
        self._close_pipes()

    def _close_pipes(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        if kind is not None:
            print(f"what the node logged:\n{self.stderr()[-8000:]}")
        self._errors.close()


def run_start(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`ottla start` with arguments that it is expected to refuse."""
    return subprocess.run(
        [sys.executable, "-m", "ottla", "start", *arguments],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
