"""Log lines: one event each, as `key=value` pairs that people can read and programs can parse.

    time=2026-11-15T09:11:06.265Z level=warn logger=node.connection msg="closed the connection from ..."

A traceback follows its line, indented. Quiet by default: what an operator should look at, and no more.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_NAMES: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "fatal",
}


class LogfmtFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("ottla.")
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        level = _NAMES.get(record.levelno, record.levelname.lower())
        line = f"time={_utc(record.created)} level={level} logger={name} msg={message}"
        if record.exc_info:
            line += "\n" + "\n".join(
                "  " + text for text in self.formatException(record.exc_info).splitlines()
            )
        return line


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the lines of this level and above to the stream (standard error if None)."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
