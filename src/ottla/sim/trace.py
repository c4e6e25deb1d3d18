"""What happened in a run, in lines that a person can read, and its fingerprint."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections import deque
from collections.abc import Callable

from ottla.sim.loop import current_process

__all__ = ["Trace", "TraceHandler"]


class Trace:
    """The last lines; the fingerprint covers all of them. Two runs from one seed have equal fingerprints."""

    def __init__(self, now: Callable[[], float], *, limit: int = 20_000) -> None:
        self._now = now
        self._lines: deque[str] = deque(maxlen=limit)
        self._digest = hashlib.sha256()
        self.echo: Callable[[str], None] | None = None
        # Set when the run has come to its end: how it is cleared away is not part of it.
        self.is_over = False

    def add(self, who: str, text: str) -> None:
        if self.is_over:
            return
        line = f"{self._now():10.4f}  {who:10} {text}"
        self._lines.append(line)
        self._digest.update(line.encode() + b"\n")
        if self.echo is not None:
            self.echo(line)

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:16]

    def tail(self, count: int) -> list[str]:
        return list(self._lines)[-count:]


class TraceHandler(logging.Handler):
    """Takes the program's own log into the trace, under the process that wrote it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        # Who logged an exception, and what it was: code that says that it was surprised.
        self.surprises: list[tuple[str, str]] = []
        # Whether somebody may be surprised by this, right now.
        self.is_excused: Callable[[str, Exception], bool] = lambda _who, _error: False

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        who = "world" if process is None else process.name
        self._trace.add(who, record.getMessage())
        if record.exc_info is not None and isinstance(record.exc_info[1], Exception):
            told = "".join(traceback.format_exception(record.exc_info[1]))
            self._trace.add(who, told)
            if not self.is_excused(who, record.exc_info[1]):
                self.surprises.append((who, f"{record.getMessage()}\n{told}"))
