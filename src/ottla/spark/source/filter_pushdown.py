"""Push filters of a query down: leave out partitions, and narrow offsets and timestamps.

Filters on topic, partition and offset are applied completely. A filter on the timestamp only narrows the
range and Spark applies it again, as a partition is ordered by offset and not by time. A lower bound is always
right: no record before the first one that is young enough can match. An upper bound is right only where the
broker sets the timestamps (`message.timestamp.type=LogAppendTime`), so it is ignored elsewhere.
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
    from ottla.spark.source.offset_reader import OffsetReader, Offsets


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Half-open ranges of what is read; None where there is no bound. Times are in milliseconds."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_from: int | None = None
    partition_to: int | None = None
    offset_from: int | None = None
    offset_to: int | None = None
    time_from: int | None = None
    time_to: int | None = None

    def includes(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and (self.partition_from is None or partition >= self.partition_from)
            and (self.partition_to is None or partition < self.partition_to)
        )

    def apply(self, offset_reader: OffsetReader, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Narrow the ranges; partitions outside the bounds are left out of both maps."""
        start = {p: max(offset, self.offset_from or 0) for p, offset in start.items() if self.includes(*p)}
        end = {
            p: offset if self.offset_to is None else min(offset, self.offset_to) for p, offset in end.items()
        }
        if self.time_from is not None:
            found = offset_reader.offsets(dict.fromkeys(start, max(self.time_from, 0)))
            # Without an offset no record is that young: there is nothing to read.
            start = {
                p: max(offset, found[p]) if found.get(p, -1) >= 0 else end[p] for p, offset in start.items()
            }
        if self.time_to is not None:
            with_append_time = offset_reader.topics_with_log_append_time({p.topic for p in start})
            found = offset_reader.offsets(
                {p: max(self.time_to, 0) for p in start if p.topic in with_append_time and start[p] < end[p]}
            )
            end = {p: min(offset, found[p]) if found.get(p, -1) >= 0 else offset for p, offset in end.items()}
        return start, {p: end[p] for p in start}


def push_filters(filters: Iterable[Filter]) -> tuple[FilterBounds, list[Filter]]:
    """The bounds from these filters, and the filters that Spark still has to apply."""
    bounds = FilterBounds()
    remaining = []
    for each in filters:
        narrowed, is_complete = _narrow(bounds, each)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or not is_complete:
            remaining.append(each)
    return bounds, remaining


def _narrow(bounds: FilterBounds, each: Filter) -> tuple[FilterBounds | None, bool]:
    """`bounds` with one more filter, None if it cannot be used; and whether that covers the filter fully."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(each, IsNotNull):
        return (bounds if column in _NEVER_NULL else None), True
    if isinstance(each, In):
        values = list(each.value)
        if column == "topic" and all(isinstance(value, str) for value in values):
            return replace(bounds, topics=_intersect(bounds.topics, values)), True
        if column == "partition" and all(_is_int(value) for value in values):
            return replace(bounds, partitions=_intersect(bounds.partitions, values)), True
        if column == "offset" and values and all(_is_int(value) for value in values):
            return _intersect_range(bounds, "offset", min(values), max(values) + 1), False
        return None, False
    if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None, False
    value = each.value
    if column == "topic" and isinstance(each, EqualTo) and isinstance(value, str):
        return replace(bounds, topics=_intersect(bounds.topics, [value])), True
    if column in ("partition", "offset") and _is_int(value):
        low, high = _range_of(each, value, value + 1)
        return _intersect_range(bounds, column, low, high), True
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        # Timestamps have milliseconds; a bound between two of them is rounded outwards.
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        at = -(-micros // 1000) if isinstance(each, LessThan) else micros // 1000
        low, high = _range_of(each, at, micros // 1000 + 1)
        return _intersect_range(bounds, "time", low, high), False
    return None, False


def _range_of(each: Filter, at: int, after: int) -> tuple[int | None, int | None]:
    """The range that a comparison allows; `at` is the value and `after` the next one."""
    sides: dict[type[Filter], tuple[int | None, int | None]] = {
        EqualTo: (at, after),
        GreaterThan: (after, None),
        GreaterThanOrEqual: (at, None),
        LessThan: (None, at),
        LessThanOrEqual: (None, after),
    }
    return sides[type(each)]


def _intersect_range(bounds: FilterBounds, what: str, low: int | None, high: int | None) -> FilterBounds:
    changes: dict[str, Any] = {}
    for name, value, narrower in ((f"{what}_from", low, max), (f"{what}_to", high, min)):
        choose: Callable[[int, int], int] = narrower
        known = getattr(bounds, name)
        if value is not None:
            changes[name] = value if known is None else choose(known, value)
    return replace(bounds, **changes)


def _intersect(known: frozenset[Any] | None, values: list[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known.intersection(values)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
