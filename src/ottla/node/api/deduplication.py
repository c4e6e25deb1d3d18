"""Deduplicate the items of long requests that name the same thing more than once.

Apache Kafka describes a thing as often as the request names it. So does a node, except in a request of more
items than any client sends: a description may be thousands of times as large as the name that asks for it, so
there each distinct item is described once (decision 0013).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MAX_ITEMS_WITH_DUPLICATES: Final = 100


def _identity(item: T) -> T:
    return item


def deduplicate_long(items: Sequence[T], key: Callable[[T], Hashable] = _identity) -> Iterator[T]:
    """Return the items to answer, as they are needed: all of them, or in a long request the first of each
    key.
    """
    return iter(items) if len(items) <= MAX_ITEMS_WITH_DUPLICATES else _first_of_each(items, key)


def _first_of_each(items: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[T]:
    seen: set[Hashable] = set()
    for item in items:
        if (found := key(item)) not in seen:
            seen.add(found)
            yield item
