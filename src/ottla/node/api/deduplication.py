"""Deduplicate the items of long requests that name the same thing more than once.

Apache Kafka describes a thing as often as the request names it. So does a node, except in a request of more
items than any client sends: a description may be thousands of times as large as the name that asks for it, so
there each distinct item is described once (decision 0013).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MAX_ITEMS_WITH_DUPLICATES: Final = 100


def _identity(item: T) -> T:
    return item


def deduplicate_long(items: Sequence[T], key: Callable[[T], Hashable] = _identity) -> Sequence[T]:
    """Return the items to answer: all of them, or in a long request the first of each key."""
    if len(items) <= MAX_ITEMS_WITH_DUPLICATES:
        return items
    first: dict[Hashable, T] = {}
    for item in items:
        first.setdefault(key(item), item)
    return list(first.values())
