"""Choose the log to clean next and the range of it to clean, as Kafka's `LogCleanerManager` does.

A compacted log has a clean part, where the last cleaning has left one record of each key, and a dirty part
behind it, up to the first offset that must not be cleaned: the active segment, records that are not stable or
not durable, and records younger than `min.compaction.lag.ms`. Only whole segments are cleaned. The dirtiest
log comes first, measured by the share of dirty bytes, if that share is above `min.cleanable.dirty.ratio` or a
record has waited longer than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ottla.log.config.log_config import LONG_MAX, LogConfig

MAX_GROUP_OFFSETS = 0x7FFF_FFFF


class CleanableSegment(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...


S = TypeVar("S", bound=CleanableSegment)


class CleanableLog(Protocol):
    """The state of a log that the choice depends on."""

    @property
    def config(self) -> LogConfig: ...
    @property
    def segments(self) -> Sequence[CleanableSegment]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def recovery_point(self) -> int: ...


class OffsetsToClean(NamedTuple):
    """The dirty offsets that may be cleaned; `checkpoint_is_invalid` if the last cleaning ended outside of
    what the log now holds.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    checkpoint_is_invalid: bool


@dataclass(frozen=True, slots=True)
class LogToClean:
    """A log's range to clean, and how dirty it is. `first_uncleanable_offset` is the base offset of a
    segment.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    compaction_delay_ms: int

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if self.compaction_delay_ms > 0 and self.cleanable_bytes > 0:
            return True
        return self.cleanable_ratio > config.min_cleanable_dirty_ratio


def segments_between(segments: Sequence[S], start: int, end: int) -> Sequence[S]:
    """The segments that hold offsets of [`start`, `end`), from the one in which `start` lies."""
    if start >= end:
        return ()
    first = 0
    for index, segment in enumerate(segments):
        if segment.base_offset > start:
            break
        first = index
    last = first
    while last < len(segments) and segments[last].base_offset < end:
        last += 1
    return segments[first:last]


def cleanable_offsets(log: CleanableLog, checkpoint: int | None, now_ms: int) -> OffsetsToClean:
    """The range to clean, where the last cleaning ended at `checkpoint`."""
    start, end = log.log_start_offset, log.log_end_offset
    is_invalid = checkpoint is not None and not start <= checkpoint <= end
    first_dirty = start if checkpoint is None or is_invalid else checkpoint
    active = log.segments[-1]
    first_uncleanable = min(log.last_stable_offset, active.base_offset, log.recovery_point)
    if log.config.min_compaction_lag_ms > 0:
        oldest_ms = now_ms - log.config.min_compaction_lag_ms
        for segment in segments_between(log.segments, first_dirty, active.base_offset):
            if segment.largest_timestamp > oldest_ms:
                first_uncleanable = min(first_uncleanable, segment.base_offset)
                break
    return OffsetsToClean(first_dirty, max(first_dirty, first_uncleanable), is_invalid)


def assess(log: CleanableLog, cleaning: OffsetsToClean, now_ms: int) -> LogToClean:
    """Measure how dirty the log is in the range."""
    segments = log.segments
    first_dirty = cleaning.first_dirty_offset
    # The segment in which the first uncleanable offset lies is left alone as a whole.
    first_uncleanable = segments[0].base_offset
    for segment in segments:
        if segment.base_offset > cleaning.first_uncleanable_offset:
            break
        first_uncleanable = segment.base_offset
    dirty = segments_between(segments, min(first_dirty, first_uncleanable), first_uncleanable)
    return LogToClean(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=sum(segment.size for segment in segments if segment.base_offset < first_dirty),
        cleanable_bytes=sum(segment.size for segment in dirty),
        compaction_delay_ms=_compaction_delay_ms(log, first_dirty, now_ms),
    )


def _compaction_delay_ms(log: CleanableLog, first_dirty: int, now_ms: int) -> int:
    """Return for how long the oldest dirty record has waited beyond `max.compaction.lag.ms`."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return 0
    closed = segments_between(log.segments, first_dirty, log.segments[-1].base_offset)
    timestamps = [timestamp for segment in closed if (timestamp := segment.first_timestamp) > 0]
    return max(0, now_ms - lag_ms - min(timestamps)) if timestamps else 0


L = TypeVar("L")


def dirtiest(candidates: Iterable[tuple[L, LogToClean, LogConfig]]) -> tuple[L, LogToClean] | None:
    """The log with the greatest share of dirty bytes among those that are due."""
    best: tuple[L, LogToClean] | None = None
    for log, to_clean, config in candidates:
        is_dirtier = best is None or to_clean.cleanable_ratio > best[1].cleanable_ratio
        if to_clean.total_bytes > 0 and to_clean.is_due(config) and is_dirtier:
            best = (log, to_clean)
    return best


class GroupableSegment(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def time_index_bytes(self) -> int: ...


G = TypeVar("G", bound=GroupableSegment)


def group_segments(
    segments: Sequence[G], *, max_bytes: int, max_index_bytes: int, end_offset: int
) -> list[list[G]]:
    """Group adjacent segments that become one, so that repeated cleaning does not leave ever smaller
    segments.

    A group is no larger than a segment and its indexes may be, and spans no more offsets than an index can
    hold. The last group ends at `end_offset` at the latest.
    """
    groups: list[list[G]] = []
    size = index_bytes = time_index_bytes = 0
    for at, segment in enumerate(segments):
        end = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        fits = (
            bool(groups)
            and size + segment.size <= max_bytes
            and index_bytes + segment.index_bytes <= max_index_bytes
            and time_index_bytes + segment.time_index_bytes <= max_index_bytes
            and (segment.size == 0 or end - 1 - groups[-1][0].base_offset <= MAX_GROUP_OFFSETS)
        )
        if fits:
            groups[-1].append(segment)
            size += segment.size
            index_bytes += segment.index_bytes
            time_index_bytes += segment.time_index_bytes
        else:
            groups.append([segment])
            size, index_bytes, time_index_bytes = segment.size, segment.index_bytes, segment.time_index_bytes
    return groups
