"""The stop of a node: what it has started is stopped in the opposite order.

A part starts after all parts that it uses, also one that starts late, as the first client asks for it. So a
part stops before those that it uses, and none waits for one that is gone. Each step has a limit. What has not
ended by then is reported with the place where it waits, cancelled and left behind, and the stop goes on: a
node that is asked to stop always ends, and leaves its place in the cluster to others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

_log = logging.getLogger(__name__)

Action = Callable[[], Awaitable[None]]

# Longer than any wait of a part for another node, a store or a request: those have their own limits.
STEP_SECONDS: Final = 45.0
# How long a step has to end once it is cancelled.
_CANCELLATION_SECONDS: Final = 1.0


class StopSequence:
    """`add` what stops a part when the part has started, and `run` them once."""

    def __init__(self) -> None:
        # The last one is the first to run.
        self._steps: Final[list[tuple[Action, float]]] = []
        # The steps that have not ended in time.
        self.left_behind: Final[list[str]] = []

    def add(self, action: Action, *, limit_seconds: float = STEP_SECONDS) -> None:
        self._steps.append((action, limit_seconds))

    async def run(self) -> None:
        """Run the steps, also those that are added meanwhile. Running twice is harmless."""
        while self._steps:
            await self._run_step(*self._steps.pop())

    async def _run_step(self, action: Action, limit_seconds: float) -> None:
        name = getattr(action, "__qualname__", repr(action))
        step = asyncio.ensure_future(action())
        try:
            await asyncio.wait((step,), timeout=limit_seconds)
            if not step.done():
                self.left_behind.append(name)
                _log.error(
                    "%s has not ended within %.0f s; the stop of the node goes on",
                    name,
                    limit_seconds,
                    exc_info=TimeoutError(f"it waits at {_place(step)}"),
                )
                step.cancel()
                await asyncio.wait((step,), timeout=_CANCELLATION_SECONDS)
        finally:
            step.cancel()
        if step.done() and not step.cancelled() and (error := step.exception()) is not None:
            _log.error("a part of the node did not stop cleanly: %s", name, exc_info=error)


def _place(step: asyncio.Future[None]) -> str:
    """Where the coroutines of a step stand, from the outermost to what the innermost one waits for."""
    waiting: Any = step.get_coro() if isinstance(step, asyncio.Task) else step
    places = []
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{waiting.__qualname__}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return " > ".join([*places, type(waiting).__name__])
