"""Retention takes the oldest segments by log start, size and time, but none above the high watermark."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.retention import DeletionReason, segments_to_delete

NOW = 1_000_000


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size: int = 100
    largest_timestamp: int = NOW


def plan(
    segments: list[Segment],
    end: int,
    *,
    start: int = 0,
    high_watermark: int | None = None,
    delete: bool = True,
    retention_bytes: int = -1,
    retention_ms: int = -1,
) -> list[tuple[DeletionReason, list[int], int]]:
    deletions = segments_to_delete(
        segments,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=end if high_watermark is None else high_watermark,
        delete_policy=delete,
        retention_bytes=retention_bytes,
        retention_ms=retention_ms,
        now_ms=NOW,
    )
    return [(d.reason, [s.base_offset for s in d.segments], d.new_log_start_offset) for d in deletions]


LOG = [Segment(0), Segment(10), Segment(20), Segment(30)]


def test_nothing_goes_without_a_limit() -> None:
    assert plan(LOG, 40) == []


@pytest.mark.parametrize(
    ("start", "gone"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (40, [0, 10, 20])]
)
@pytest.mark.parametrize("delete", [True, False])
def test_segments_below_the_log_start_go_under_every_policy_but_the_active_one_stays(
    start: int, gone: list[int], delete: bool
) -> None:
    expected = [(DeletionReason.LOG_START_OFFSET, gone, gone[-1] + 10)] if gone else []
    assert plan(LOG, 40, start=start, delete=delete) == expected


@pytest.mark.parametrize(
    ("limit", "gone"),
    [(-1, 0), (1000, 0), (400, 0), (399, 0), (301, 0), (300, 1), (299, 1), (200, 2), (1, 3), (0, 4)],
)
def test_size_takes_segments_while_the_rest_is_not_below_the_limit(limit: int, gone: int) -> None:
    expected = [(DeletionReason.RETENTION_SIZE, [0, 10, 20, 30][:gone], gone * 10)] if gone else []
    assert plan(LOG, 40, retention_bytes=limit) == expected


def test_time_goes_by_the_youngest_record_of_a_segment_and_stops_at_the_first_that_stays() -> None:
    log = [
        Segment(0, largest_timestamp=NOW - 102),
        Segment(10, largest_timestamp=NOW - 101),
        Segment(20, largest_timestamp=NOW - 100),
        Segment(30, largest_timestamp=NOW - 500),
    ]
    assert plan(log, 40, retention_ms=100) == [(DeletionReason.RETENTION_TIME, [0, 10], 20)]


def test_an_expired_active_segment_goes_too_unless_it_is_empty() -> None:
    old = [Segment(0, largest_timestamp=0), Segment(10, largest_timestamp=0)]
    assert plan(old, 20, retention_ms=1) == [(DeletionReason.RETENTION_TIME, [0, 10], 20)]
    old[1] = Segment(10, size=0, largest_timestamp=0)
    assert plan(old, 10, retention_ms=1) == [(DeletionReason.RETENTION_TIME, [0], 10)]
    assert plan(old[1:], 10, retention_ms=1) == []


def test_a_record_from_the_future_keeps_its_segment() -> None:
    assert plan([Segment(0, largest_timestamp=NOW + 10_000), Segment(10)], 20, retention_ms=0) == []


@pytest.mark.parametrize(("high_watermark", "gone"), [(0, []), (19, [0]), (20, [0, 10]), (39, [0, 10, 20])])
def test_nothing_above_the_high_watermark_goes(high_watermark: int, gone: list[int]) -> None:
    old = [Segment(base, largest_timestamp=0) for base in (0, 10, 20, 30)]
    deletions = plan(old, 40, high_watermark=high_watermark, retention_ms=1)
    assert [base for _, bases, _ in deletions for base in bases] == gone


def test_compaction_without_deletion_ignores_size_and_time() -> None:
    old = [Segment(base, largest_timestamp=0) for base in (0, 10)]
    assert plan(old, 20, delete=False, retention_ms=1, retention_bytes=0) == []


def test_the_rules_apply_one_after_the_other() -> None:
    log = [
        Segment(0),
        Segment(10),
        Segment(20, largest_timestamp=0),
        Segment(30),
    ]
    assert plan(log, 40, start=10, retention_bytes=200, retention_ms=100) == [
        (DeletionReason.LOG_START_OFFSET, [0], 10),
        (DeletionReason.RETENTION_SIZE, [10], 20),
        (DeletionReason.RETENTION_TIME, [20], 30),
    ]


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    ages=st.lists(st.integers(-20, 100), min_size=8, max_size=8),
    start=st.integers(0, 90),
    high_watermark=st.integers(0, 90),
    retention_bytes=st.integers(-1, 200),
    retention_ms=st.integers(-1, 60),
)
def test_what_is_left_obeys_the_limits(
    sizes: list[int],
    ages: list[int],
    start: int,
    high_watermark: int,
    retention_bytes: int,
    retention_ms: int,
) -> None:
    log = [Segment(10 * i, size, NOW - ages[i]) for i, size in enumerate(sizes)]
    end = 10 * len(log)
    high_watermark = min(high_watermark, end)
    deletions = plan(
        log,
        end,
        start=min(start, high_watermark),
        high_watermark=high_watermark,
        retention_bytes=retention_bytes,
        retention_ms=retention_ms,
    )
    gone = [base for _, bases, _ in deletions for base in bases]
    assert gone == [segment.base_offset for segment in log[: len(gone)]], "a prefix, in order"
    assert all(new_start <= high_watermark for _, _, new_start in deletions)
    rest = log[len(gone) :]
    if not rest or (len(rest) > 1 and rest[1].base_offset > high_watermark) or high_watermark < 10:
        return
    first = rest[0]
    is_empty_active = len(rest) == 1 and first.size == 0
    if retention_ms >= 0 and not is_empty_active and (len(rest) > 1 or high_watermark == end):
        assert ages[len(gone)] <= retention_ms
    if retention_bytes >= 0 and len(rest) > 1:
        assert sum(segment.size for segment in rest) - retention_bytes < first.size
