"""Places where a test can make the sink stop, to kill something exactly there.

With the variable OTTLA_SINK_STOPS naming a directory, whoever comes to a place for which the directory holds
a file of its name takes the file away (one process wins) by renaming it to `NAME.PID`, and waits until that
file is gone, or for ever. Without the variable this is one look into the environment.
"""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path

__all__ = ["Place", "is_armed", "stop_at"]

VARIABLE = "OTTLA_SINK_STOPS"
_LOOK_AGAIN_S = 0.02


class Place(Enum):
    OPENED = "task-opened"
    BEFORE_FLUSH = "task-before-flush"
    FLUSHED = "task-flushed"
    BEFORE_DECISION = "driver-before-decision"
    DECIDED = "driver-decided"
    BETWEEN_ENDS = "driver-between-ends"
    COMPLETED = "driver-completed"


def is_armed() -> bool:
    return VARIABLE in os.environ


def stop_at(place: Place) -> None:
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    taken = Path(directory) / f"{place.value}.{os.getpid()}"
    try:
        (Path(directory) / place.value).rename(taken)
    except FileNotFoundError:
        return
    while taken.exists():
        time.sleep(_LOOK_AGAIN_S)
