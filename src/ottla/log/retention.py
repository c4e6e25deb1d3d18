"""Retention: which of the oldest segments are to be deleted, and why.

Three rules apply, in Kafka's order, each to what the rules before it have left: segments wholly below the
log start offset (whatever the cleanup policy), then as many as the log is larger than `retention.bytes`,
then those whose youngest record is older than `retention.ms`. Every rule takes segments from the front and
stops at the first that must stay, so the log never gets a hole; no rule takes a segment that reaches above
the high watermark, so the log start offset never passes it.

Where segments go to remote storage, the rules of size and time say what leaves this disk
(`local.retention.*`) and only take what is in remote storage; then the log keeps its start, and only its
first segment here is another.

The rules only decide. `UnifiedLog` executes: where even the active segment has expired it rolls an empty one
first, since a log always has a segment. An empty active segment is never deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar


class RetainedSegment(Protocol):
    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes of its log file."""
        ...

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of its records; where they have none, the modification time of its file."""
        ...


S = TypeVar("S", bound=RetainedSegment)


class DeletionReason(Enum):
    LOG_START_OFFSET = "log start offset breach"
    RETENTION_SIZE = "log retention size breach (retention.bytes)"
    RETENTION_TIME = "log retention time breach (retention.ms)"


@dataclass(frozen=True, slots=True)
class Deletion(Generic[S]):
    """Segments to delete for one reason, oldest first, and the offset at which the log starts without
    them.
    """

    reason: DeletionReason
    segments: tuple[S, ...]
    new_log_start_offset: int
    is_local: bool = False
    """True if the records stay in remote storage, and the log start where it is."""


def segments_to_delete(
    segments: Sequence[S],
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    delete_policy: bool,
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
    copied_below: int | None = None,
) -> list[Deletion[S]]:
    """Return the deletions that retention makes in `segments` (all of the log, oldest first) at `now_ms`; a
    negative limit is no limit. With `copied_below`, the limits are those of the local disk, and segments that
    are not in remote storage, which has everything below that offset, stay.

    If the last deletion ends with the active segment, the log has to roll before it deletes.
    """
    plan = _Plan(segments, log_end_offset, high_watermark)
    plan.take(
        DeletionReason.LOG_START_OFFSET,
        lambda segment, end: segment is not segments[-1] and end <= log_start_offset,
    )
    plan.copied_below = copied_below
    if delete_policy and retention_bytes >= 0:
        excess = sum(segment.size for segment in plan.remaining) - retention_bytes
        if excess >= 0:
            # A segment goes only if the log is still not smaller than the limit without it.
            budget = _Budget(excess)
            plan.take(DeletionReason.RETENTION_SIZE, lambda segment, _: budget.spend(segment.size))
    if delete_policy and retention_ms >= 0:
        plan.take(
            DeletionReason.RETENTION_TIME,
            lambda segment, _: now_ms - segment.largest_timestamp > retention_ms,
        )
    return plan.deletions


class _Budget:
    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, amount: int) -> bool:
        if amount > self.left:
            return False
        self.left -= amount
        return True


class _Plan(Generic[S]):
    def __init__(self, segments: Sequence[S], log_end_offset: int, high_watermark: int) -> None:
        self.remaining = list(segments)
        self.deletions: list[Deletion[S]] = []
        self._log_end_offset = log_end_offset
        self._high_watermark = high_watermark
        # Segments that end above are not in remote storage and stay; None where that is not asked.
        self.copied_below: int | None = None

    def take(self, reason: DeletionReason, is_deletable: Callable[[S, int], bool]) -> None:
        """Take segments from the front while the rule (given the segment and its end offset) says so."""
        count = 0
        end = 0
        for index, segment in enumerate(self.remaining):
            is_last = index == len(self.remaining) - 1
            segment_end = self._log_end_offset if is_last else self.remaining[index + 1].base_offset
            if (
                (is_last and segment.size == 0)
                or segment_end > self._high_watermark
                or (self.copied_below is not None and (is_last or segment_end > self.copied_below))
                or not is_deletable(segment, segment_end)
            ):
                break
            count, end = index + 1, segment_end
        if count:
            is_local = self.copied_below is not None
            self.deletions.append(Deletion(reason, tuple(self.remaining[:count]), end, is_local))
            del self.remaining[:count]
