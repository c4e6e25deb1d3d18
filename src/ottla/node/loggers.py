"""The node's loggers as Kafka's tools show and set them: by name, with the names of log4j's levels."""

from __future__ import annotations

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
_OURS: Final = "ottla"


def logger_levels() -> dict[str, str]:
    """The level in force for the root and for each logger of Ottla's."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == _OURS]
    levels = {ROOT: _name(logging.root.getEffectiveLevel())}
    return levels | {name: _name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def set_level(name: str, level: str | None) -> None:
    """Give a logger a level; None takes its own away, so that its parent's counts."""
    logger = logging.getLogger(None if name == ROOT else name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _name(level: int) -> str:
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")
