"""A part that is made when it is first used, and imported then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class OnDemand(Generic[T]):
    """Call it for the part; `made` is the part to look at, None as long as it was not needed."""

    __slots__ = ("_listeners", "_make", "made")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Final = make
        self._listeners: Final[list[Callable[[T], object]]] = []
        self.made: T | None = None

    def __call__(self) -> T:
        if self.made is None:
            self.made = self._make()
            for listener in self._listeners:
                listener(self.made)
        return self.made

    def on_made(self, listener: Callable[[T], object]) -> None:
        """Call `listener` with the part once it is made."""
        self._listeners.append(listener)
