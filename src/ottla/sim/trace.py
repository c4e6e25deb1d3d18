"""The trace of a run: readable lines, and a fingerprint over all of them."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections import deque
from collections.abc import Callable

from ottla.sim.loop import current_process


class Trace:
    """Keeps the last lines of a run; the fingerprint, equal for equal seeds, covers all of them."""

    def __init__(self, now: Callable[[], float], *, limit: int = 20_000) -> None:
        self._now = now
        self._lines: deque[str] = deque(maxlen=limit)
        self._digest = hashlib.sha256()
        self.echo: Callable[[str], None] | None = None
        # Set at the end of the run: the clean-up afterwards is not part of it.
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
    """Adds the log of the program to the trace, under the name of the process that logged."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        # (process, text) of every exception that was logged: the code under test did not expect it.
        self.unexpected: list[tuple[str, str]] = []
        # True while the coroutines of a killed process are closed: what they log then was never logged.
        self.is_muted = False
        # Whether a fault explains that this process logs this exception now.
        self.is_explained: Callable[[str, Exception], bool] = lambda _who, _error: False

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_muted:
            return
        process = current_process()
        who = "world" if process is None else process.name
        self._trace.add(who, record.getMessage())
        if record.exc_info is not None and isinstance(record.exc_info[1], Exception):
            text = "".join(traceback.format_exception(record.exc_info[1]))
            self._trace.add(who, text)
            if not self.is_explained(who, record.exc_info[1]):
                self.unexpected.append((who, f"{record.getMessage()}\n{text}"))
