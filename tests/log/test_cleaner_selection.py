"""The dirtiest log is cleaned first, up to the first offset that must not be cleaned."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.cleaner.selection import (
    LogToClean,
    assess,
    cleanable_offsets,
    dirtiest,
    group_segments,
    segments_between,
)
from ottla.log.config.log_config import LogConfig

NOW = 1_000_000


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size: int = 100
    largest_timestamp: int = 0
    first_timestamp: int = 0
    index_bytes: int = 0
    time_index_bytes: int = 0


@dataclass
class FakeLog:
    segments: list[Segment] = field(
        default_factory=lambda: [Segment(0), Segment(10), Segment(20), Segment(30)]
    )
    log_start_offset: int = 0
    log_end_offset: int = 40
    last_stable_offset: int = 40
    recovery_point: int = 40
    config: LogConfig = field(default_factory=LogConfig)


def test_a_new_log_is_dirty_from_its_start_to_its_active_segment() -> None:
    assert cleanable_offsets(FakeLog(log_start_offset=3), None, NOW) == (3, 30, False)


def test_the_checkpoint_divides_clean_from_dirty() -> None:
    assert cleanable_offsets(FakeLog(), 10, NOW) == (10, 30, False)
    assert cleanable_offsets(FakeLog(), 35, NOW) == (35, 35, False)


@pytest.mark.parametrize("checkpoint", [4, 41])
def test_a_checkpoint_outside_of_the_log_is_not_believed(checkpoint: int) -> None:
    assert cleanable_offsets(FakeLog(log_start_offset=5), checkpoint, NOW) == (5, 30, True)


def test_what_is_not_stable_or_not_durable_is_not_cleaned() -> None:
    assert cleanable_offsets(FakeLog(last_stable_offset=12), None, NOW) == (0, 12, False)
    assert cleanable_offsets(FakeLog(recovery_point=25), None, NOW) == (0, 25, False)


def test_records_younger_than_the_minimum_lag_wait() -> None:
    segments = [Segment(0, largest_timestamp=NOW - 200), Segment(10, largest_timestamp=NOW - 100)]
    segments += [Segment(20, largest_timestamp=NOW - 300), Segment(30)]
    config = LogConfig(min_compaction_lag_ms=100)
    assert cleanable_offsets(FakeLog(segments, config=config), None, NOW) == (0, 30, False)
    config = LogConfig(min_compaction_lag_ms=101)
    assert cleanable_offsets(FakeLog(segments, config=config), None, NOW) == (0, 10, False)
    assert cleanable_offsets(FakeLog(segments, config=config), 20, NOW) == (20, 30, False)


def test_cleaning_goes_by_whole_segments() -> None:
    log = FakeLog()
    to_clean = assess(log, cleanable_offsets(FakeLog(last_stable_offset=25), 10, NOW), NOW)
    assert (to_clean.first_dirty_offset, to_clean.first_uncleanable_offset) == (10, 20)
    assert (to_clean.clean_bytes, to_clean.cleanable_bytes) == (100, 100)
    assert to_clean.cleanable_ratio == 0.5


def test_a_segment_that_is_partly_clean_counts_on_both_sides() -> None:
    to_clean = assess(FakeLog(), cleanable_offsets(FakeLog(), 15, NOW), NOW)
    assert (to_clean.clean_bytes, to_clean.cleanable_bytes) == (200, 200)


def test_nothing_is_dirty_where_the_clean_part_reaches_the_active_segment() -> None:
    to_clean = assess(FakeLog(), cleanable_offsets(FakeLog(), 35, NOW), NOW)
    assert to_clean.cleanable_bytes == 0
    assert not to_clean.is_due(LogConfig(min_cleanable_dirty_ratio=0.0))


def test_a_record_that_waited_too_long_makes_the_log_due() -> None:
    segments = [Segment(0, size=10_000), Segment(10, size=1, first_timestamp=NOW - 500), Segment(20)]
    config = LogConfig(max_compaction_lag_ms=500)
    log = FakeLog(segments, log_end_offset=30, config=config)
    assert assess(log, cleanable_offsets(log, 10, NOW), NOW).compaction_delay_ms == 0
    late = assess(log, cleanable_offsets(log, 10, NOW), NOW + 7)
    assert late.compaction_delay_ms == 7
    assert late.cleanable_ratio < 0.01
    assert late.is_due(config)
    assert not assess(log, cleanable_offsets(log, 20, NOW), NOW + 7).is_due(config)


def to_clean(dirty: int, clean: int, delay_ms: int = 0) -> LogToClean:
    return LogToClean(0, 10, clean, dirty, delay_ms)


def test_the_dirtiest_of_those_that_are_due_is_chosen() -> None:
    config = LogConfig(min_cleanable_dirty_ratio=0.5)
    logs = [
        ("half", to_clean(50, 50), config),
        ("dirty", to_clean(60, 40), config),
        ("filthy", to_clean(70, 30), config),
        ("filthier, but not yet due", to_clean(80, 20), LogConfig(min_cleanable_dirty_ratio=0.9)),
        ("empty", to_clean(0, 0, 5), config),
    ]
    assert dirtiest(logs) == ("filthy", logs[2][1])
    assert dirtiest(logs[:1]) is None
    assert dirtiest([]) is None
    late = ("late", to_clean(1, 99, 5), config)
    assert dirtiest([late]) == ("late", late[1])


@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [
        (0, 40, [0, 10, 20, 30]),
        (0, 30, [0, 10, 20]),
        (10, 11, [10]),
        (15, 21, [10, 20]),
        (35, 36, [30]),
        (5, 5, []),
    ],
)
def test_segments_between_two_offsets(start: int, end: int, bases: list[int]) -> None:
    assert [segment.base_offset for segment in segments_between(FakeLog().segments, start, end)] == bases


# Groups


def groups(
    segments: list[Segment], *, max_bytes: int = 1000, max_index_bytes: int = 1000, end: int = 10**10
) -> list[list[int]]:
    grouped = group_segments(segments, max_bytes=max_bytes, max_index_bytes=max_index_bytes, end_offset=end)
    return [[segment.base_offset for segment in group] for group in grouped]


def test_neighbours_are_joined_up_to_the_size_of_a_segment() -> None:
    segments = [Segment(base, size=400) for base in (0, 10, 20, 30, 40)]
    assert groups(segments, end=50) == [[0, 10], [20, 30], [40]]
    assert groups(segments, max_bytes=399, end=50) == [[0], [10], [20], [30], [40]]
    assert groups(segments, max_bytes=2000, end=50) == [[0, 10, 20, 30, 40]]
    assert groups([]) == []


def test_neighbours_are_joined_up_to_the_size_of_an_index() -> None:
    by_offset = [Segment(base, size=1, index_bytes=500) for base in (0, 10, 20)]
    assert groups(by_offset, end=30) == [[0, 10], [20]]
    by_time = [Segment(base, size=1, time_index_bytes=500) for base in (0, 10, 20)]
    assert groups(by_time, end=30) == [[0, 10], [20]]


def test_a_group_spans_no_more_offsets_than_an_index_can_tell_apart() -> None:
    limit = 2**31 - 1
    assert groups([Segment(0), Segment(5)], end=limit + 1) == [[0, 5]]
    assert groups([Segment(0), Segment(5)], end=limit + 2) == [[0], [5]]
    assert groups([Segment(0), Segment(5), Segment(limit + 2)], end=limit + 3) == [[0], [5, limit + 2]]
    assert groups([Segment(0), Segment(limit + 5, size=0)], end=limit + 6) == [[0, limit + 5]]


@given(
    sizes=st.lists(st.integers(0, 500), max_size=12),
    index=st.integers(0, 400),
    max_bytes=st.integers(1, 1500),
)
def test_groups_keep_the_order_and_the_limits(sizes: list[int], index: int, max_bytes: int) -> None:
    segments = [Segment(10 * at, size=size, index_bytes=index) for at, size in enumerate(sizes)]
    grouped = group_segments(segments, max_bytes=max_bytes, max_index_bytes=1000, end_offset=10_000)
    assert [segment for group in grouped for segment in group] == segments
    for group in grouped:
        assert len(group) == 1 or sum(segment.size for segment in group) <= max_bytes
        assert len(group) == 1 or len(group) * index <= 1000
