"""Waiting for a condition, with a deadline: no test sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 60.0
POLL_S = 0.01


def wait_until(
    condition: Callable[[], bool], otherwise: str, seconds: float = DEADLINE_S, *, poll_s: float = POLL_S
) -> None:
    """Return as soon as the condition holds; AssertionError with `otherwise` when time is up. A condition
    that takes long is to be asked less often (`poll_s`): the node may run in this process.
    """
    assert came_true(condition, seconds, poll_s=poll_s), f"{otherwise} after {seconds:.0f} s"


def came_true(condition: Callable[[], bool], seconds: float, *, poll_s: float = POLL_S) -> bool:
    """Whether the condition holds before time is up; return as soon as it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
