"""Loggers: the form of their lines, and their levels as Kafka's tools show and set them.

A line is one event, as `key=value` pairs that people can read and programs can parse:

    time=2026-11-15T09:11:06.265Z level=warn logger=node.network.connection msg="closed the connection ..."

A traceback follows its line, indented. Kafka's tools name a logger and one of the levels of log4j.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

START_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
"""The levels that `ottla start --log-level` takes."""
_NAMES: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "fatal",
}
ROOT: Final = "root"
LOG4J_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
_OURS: Final = "ottla"


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
    root.setLevel(START_LEVELS[level])


def logger_levels() -> dict[str, str]:
    """Give the level in force for the root logger and for each logger of Ottla."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == _OURS]
    levels = {ROOT: _log4j_name(logging.root.getEffectiveLevel())}
    return levels | {name: _log4j_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def set_level(name: str, level: str | None) -> None:
    """Give a logger a level; None removes its own level, so that it has the level of its parent."""
    logger = logging.getLogger(None if name == ROOT else name)
    logger.setLevel(logging.NOTSET if level is None else LOG4J_LEVELS[level])


def _log4j_name(level: int) -> str:
    return next((name for name, number in LOG4J_LEVELS.items() if level >= number), "TRACE")
