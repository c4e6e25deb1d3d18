"""Waiting for a condition, with a deadline: no test sleeps and hopes.

What is not said in words when time is up is read off the condition: its source, and what the names in it mean
at that moment, which is the last state that the test saw.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import time
from collections.abc import Callable

DEADLINE_S = 60.0
POLL_S = 0.01
# Within an event loop, which has its turns meanwhile.
LOOP_POLL_S = 0.001


def wait_until(
    condition: Callable[[], bool],
    otherwise: str | None = None,
    seconds: float = DEADLINE_S,
    *,
    poll_s: float = POLL_S,
) -> None:
    """Return as soon as the condition holds; AssertionError with `otherwise` when time is up. A condition
    that takes long is to be asked less often (`poll_s`): the node may run in this process.
    """
    assert came_true(condition, seconds, poll_s=poll_s), _failure(condition, otherwise, seconds)


async def until(
    condition: Callable[[], bool],
    otherwise: str | None = None,
    seconds: float = DEADLINE_S,
    *,
    poll_s: float = LOOP_POLL_S,
) -> None:
    """As `wait_until`, by the clock of the event loop, whose other tasks go on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, _failure(condition, otherwise, seconds)
        await asyncio.sleep(poll_s)


def came_true(condition: Callable[[], bool], seconds: float, *, poll_s: float = POLL_S) -> bool:
    """Whether the condition holds before time is up; return as soon as it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def _failure(condition: Callable[[], bool], otherwise: str | None, seconds: float) -> str:
    said = otherwise or f"not true: {_source(condition)}"
    return f"{said} after {seconds:.0f} s{_state(condition)}"


def _source(condition: Callable[[], bool]) -> str:
    code = getattr(condition, "__code__", None)
    if code is None:
        return repr(condition)
    return linecache.getline(code.co_filename, code.co_firstlineno).strip() or code.co_name


def _state(condition: Callable[[], bool]) -> str:
    """What the condition's own names mean, as far as it is short."""
    if not inspect.isfunction(condition):
        return ""
    names = inspect.getclosurevars(condition).nonlocals
    shown = [f"{name} = {repr(value)[:400]}" for name, value in names.items() if not callable(value)]
    return "; " + ", ".join(shown) if shown else ""
