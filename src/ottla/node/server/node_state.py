"""How far a node is: it starts, serves, stops, or has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


class NodeState:
    """`phase` is what a node does that does not serve; `waits_for` says for what it waits, or nothing."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.waits_for: Callable[[], str] = str
        # Set once clients are served.
        self.ready: Final = asyncio.Event()
        # Why the node has given up; None as long as it has not.
        self.failure: str | None = None
        self._failed: Final = asyncio.Event()
        self._stopping = False

    def enter(self, phase: str, waits_for: Callable[[], str] = str) -> None:
        self.phase, self.waits_for = phase, waits_for

    def begin_stop(self) -> None:
        self._stopping = True
        self.enter("stopping")

    @property
    def is_serving(self) -> bool:
        """Whether the node has started, and has not begun to stop."""
        return self.ready.is_set() and not self._stopping

    def fail(self, reason: str) -> None:
        """Give up, and let `wait_until_failed` return the first reason."""
        if self.failure is None:
            self.failure = reason
            self._failed.set()

    async def wait_until_failed(self) -> str:
        """Return why the node has to give up, if that ever happens."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure
