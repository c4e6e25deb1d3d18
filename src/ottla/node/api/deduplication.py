"""What a request names more than once.

Apache Kafka describes a thing as often as it is named. So does a node, but not in a request of more items
than any client sends: a description may be thousands of times as large as the question, so there each is
given once (decision 0013).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MOST_WITH_REPEATS: Final = 100


def _itself(item: T) -> T:
    return item


def within_bounds(items: Sequence[T], key: Callable[[T], Hashable] = _itself) -> Sequence[T]:
    """The items to answer: all of them, or in a long request the first of each key."""
    if len(items) <= MOST_WITH_REPEATS:
        return items
    first: dict[Hashable, T] = {}
    for item in items:
        first.setdefault(key(item), item)
    return list(first.values())
