"""The pool of a simulated process: calls take their time, and nothing else runs meanwhile in them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["SimPool"]

T = TypeVar("T")


class SimPool:
    """A call happens at one moment between its beginning and its end; ``slowness_ms`` is how long that takes
    at most. A process that is killed before that moment has not called.
    """

    def __init__(self, seed: str, *, slowness_ms: float = 3.0) -> None:
        self._random = random.Random(f"{seed}/pool")
        self.slowness_ms = slowness_ms

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self._random.random() * self.slowness_ms / 1000)
        result = fn(*args)
        await asyncio.sleep(self._random.random() * self.slowness_ms / 1000)
        return result

    def close(self) -> None:
        """Nothing is kept."""
