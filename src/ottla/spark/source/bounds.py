"""Filters of a query as bounds on what is read: partitions that are left out, offsets, times.

Filters on topic, partition and offset are taken over whole. One on the timestamp only narrows the range, and
stays with Spark: a partition is ordered by offset, not by time. From below that is always right, as no record
before the first one that is young enough can be wanted. From above it is right only where the broker itself
sets the times (`message.timestamp.type=LogAppendTime`), so elsewhere it is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from ottla.spark.source.planning import Offsets, Planner

__all__ = ["Bounds", "bounds_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Half-open ranges; None where there is no bound. Times are milliseconds."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_from: int | None = None
    partition_to: int | None = None
    offset_from: int | None = None
    offset_to: int | None = None
    time_from: int | None = None
    time_to: int | None = None

    def keeps(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and (self.partition_from is None or partition >= self.partition_from)
            and (self.partition_to is None or partition < self.partition_to)
        )

    def applied(self, planner: Planner, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """The ranges that are left; partitions without any are left out of both."""
        start = {p: max(offset, self.offset_from or 0) for p, offset in start.items() if self.keeps(*p)}
        end = {
            p: offset if self.offset_to is None else min(offset, self.offset_to) for p, offset in end.items()
        }
        if self.time_from is not None:
            found = planner.offsets(dict.fromkeys(start, max(self.time_from, 0)))
            # Without an answer no record is that young: nothing to read.
            start = {
                p: max(offset, found[p]) if found.get(p, -1) >= 0 else end[p] for p, offset in start.items()
            }
        if self.time_to is not None:
            ordered = planner.topics_in_order_of_time({p.topic for p in start})
            found = planner.offsets(
                {p: max(self.time_to, 0) for p in start if p.topic in ordered and start[p] < end[p]}
            )
            end = {p: min(offset, found[p]) if found.get(p, -1) >= 0 else offset for p, offset in end.items()}
        return start, {p: end[p] for p in start}


def bounds_of(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """Bounds from what Spark offers, and the filters that it still has to apply."""
    bounds = Bounds()
    left = []
    for each in filters:
        narrowed, whole = _narrowed(bounds, each)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or not whole:
            left.append(each)
    return bounds, left


def _narrowed(bounds: Bounds, each: Filter) -> tuple[Bounds | None, bool]:
    """`bounds` with one filter more, None if it cannot be used, and whether that is all it says."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(each, IsNotNull):
        return (bounds if column in _NEVER_NULL else None), True
    if isinstance(each, In):
        values = list(each.value)
        if column == "topic" and all(isinstance(value, str) for value in values):
            return replace(bounds, topics=_both(bounds.topics, values)), True
        if column == "partition" and all(_is_int(value) for value in values):
            return replace(bounds, partitions=_both(bounds.partitions, values)), True
        if column == "offset" and values and all(_is_int(value) for value in values):
            return _ranged(bounds, "offset", min(values), max(values) + 1), False
        return None, False
    if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None, False
    value = each.value
    if column == "topic" and isinstance(each, EqualTo) and isinstance(value, str):
        return replace(bounds, topics=_both(bounds.topics, [value])), True
    if column in ("partition", "offset") and _is_int(value):
        low, high = _sides(each, value, value + 1)
        return _ranged(bounds, column, low, high), True
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        # Records have whole milliseconds; a bound between two of them is rounded outwards.
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        at = -(-micros // 1000) if isinstance(each, LessThan) else micros // 1000
        low, high = _sides(each, at, micros // 1000 + 1)
        return _ranged(bounds, "time", low, high), False
    return None, False


def _sides(each: Filter, at: int, after: int) -> tuple[int | None, int | None]:
    """The range that a comparison leaves, `at` being the value and `after` the next one."""
    sides: dict[type[Filter], tuple[int | None, int | None]] = {
        EqualTo: (at, after),
        GreaterThan: (after, None),
        GreaterThanOrEqual: (at, None),
        LessThan: (None, at),
        LessThanOrEqual: (None, after),
    }
    return sides[type(each)]


def _ranged(bounds: Bounds, what: str, low: int | None, high: int | None) -> Bounds:
    changes: dict[str, Any] = {}
    for name, value, narrower in ((f"{what}_from", low, max), (f"{what}_to", high, min)):
        choose: Callable[[int, int], int] = narrower
        known = getattr(bounds, name)
        if value is not None:
            changes[name] = value if known is None else choose(known, value)
    return replace(bounds, **changes)


def _both(known: frozenset[Any] | None, values: list[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known.intersection(values)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
