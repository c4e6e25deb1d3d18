"""The offset index and the time index, against lists."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.segment.handles import FileHandles
from ottla.log.segment.offset_index import OffsetIndex, OffsetPosition
from ottla.log.segment.sparse_index import BLOCK_ENTRIES, CorruptIndex
from ottla.log.segment.time_index import TimeIndex, TimestampOffset
from ottla.runtime.disk import write_file
from ottla.sim.disk import SimDisk

BASE = 1000
MAX_BYTES = 1 << 20

Entries = list[tuple[int, int]]


def ascending(first: st.SearchStrategy[int], second: st.SearchStrategy[int]) -> st.SearchStrategy[Entries]:
    """Pairs of which both fields ascend strictly."""

    def add(steps: Entries) -> Entries:
        a = b = 0
        result = []
        for step_a, step_b in steps:
            a, b = a + step_a, b + step_b
            result.append((a, b))
        return result

    return st.lists(st.tuples(first, second), max_size=30).map(add)


ENTRIES = ascending(st.integers(1, 50), st.integers(1, 5000))


def offset_index(entries: Entries, flushes: set[int] = frozenset()) -> tuple[SimDisk, OffsetIndex]:
    disk = SimDisk(0)
    index = OffsetIndex(FileHandles(disk), "/0.index", BASE, MAX_BYTES, new=True)
    for number, (relative, position) in enumerate(entries):
        index.append(BASE + relative, position)
        if number in flushes:
            index.flush()
    return disk, index


def time_index(entries: Entries) -> tuple[SimDisk, TimeIndex]:
    disk = SimDisk(0)
    index = TimeIndex(FileHandles(disk), "/0.timeindex", BASE, MAX_BYTES, new=True)
    for timestamp, relative in entries:
        index.maybe_append(timestamp, BASE + relative)
    return disk, index


@given(ENTRIES, st.sets(st.integers(0, 30)), st.integers(0, 1500))
def test_a_lookup_finds_the_last_entry_at_or_below_the_offset(
    entries: Entries, flushes: set[int], relative: int
) -> None:
    _, index = offset_index(entries, flushes)
    at = bisect_right([each for each, _ in entries], relative)
    expected = (BASE + entries[at - 1][0], entries[at - 1][1]) if at else (BASE, 0)
    assert index.lookup(BASE + relative) == OffsetPosition(*expected)


@given(ENTRIES, st.sets(st.integers(0, 30)), st.integers(0, 1500))
def test_truncation_removes_the_entries_from_the_offset_on(
    entries: Entries, flushes: set[int], relative: int
) -> None:
    disk, index = offset_index(entries, flushes)
    index.truncate_to(BASE + relative)
    left = [OffsetPosition(BASE + a, b) for a, b in entries if a < relative]
    assert [index.entry(n) for n in range(index.entries)] == left
    assert index.last_entry == (left[-1] if left else OffsetPosition(BASE, 0))
    index.trim()
    reopened = OffsetIndex(FileHandles(disk), "/0.index", BASE, MAX_BYTES)
    assert [reopened.entry(n) for n in range(reopened.entries)] == left


@given(ENTRIES, st.integers(0, 1500))
def test_a_timestamp_is_found_by_the_last_entry_that_is_not_younger(entries: Entries, timestamp: int) -> None:
    _, index = time_index(entries)
    at = bisect_right([each for each, _ in entries], timestamp)
    expected = (entries[at - 1][0], BASE + entries[at - 1][1]) if at else (-1, BASE)
    assert index.lookup(timestamp) == TimestampOffset(*expected)


@given(ENTRIES, st.integers(0, 150_000))
def test_the_time_index_is_truncated_by_offset(entries: Entries, relative: int) -> None:
    _, index = time_index(entries)
    index.truncate_to(BASE + relative)
    left = [TimestampOffset(a, BASE + b) for a, b in entries if b < relative]
    assert [index.entry(n) for n in range(index.entries)] == left


@settings(max_examples=20)
@given(st.integers(0, 5 * BLOCK_ENTRIES), st.integers(0, 20 * BLOCK_ENTRIES))
def test_a_long_index_is_searched_in_the_file(count: int, relative: int) -> None:
    disk, index = offset_index([(3 * n, 100 * n) for n in range(1, count + 1)])
    index.flush()
    at = min(relative // 3, count)
    assert index.lookup(BASE + relative) == OffsetPosition(BASE + 3 * at, 100 * at)
    reads = [each for each in disk.trace.entries() if each.op == "read"]
    assert sum(each.size for each in reads) <= 8 * (BLOCK_ENTRIES + 32)


def test_the_files_are_kafkas() -> None:
    disk, index = offset_index([(5, 100), (9, 4300)])
    index.flush()
    assert disk.contents()["/0.index"] == bytes.fromhex("00000005 00000064 00000009 000010cc")
    disk, times = time_index([(1000, 5), (2000, 9)])
    times.flush()
    assert disk.contents()["/0.timeindex"] == bytes.fromhex(
        "00000000000003e8 00000005 00000000000007d0 00000009"
    )


def test_an_entry_must_follow_the_last_one() -> None:
    _, index = offset_index([(5, 100)])
    for offset, position in [(BASE + 5, 200), (BASE + 6, 100), (BASE - 1, 200), (BASE + 2**31, 200)]:
        with pytest.raises(ValueError, match="does not follow"):
            index.append(offset, position)
    index.append(BASE + 2**31 - 1, 200)


def test_the_time_index_ignores_what_is_not_younger() -> None:
    _, index = time_index([(1000, 5)])
    index.maybe_append(1000, BASE + 9)
    index.maybe_append(900, BASE + 9)
    assert index.entries == 1
    with pytest.raises(ValueError, match="does not follow"):
        index.maybe_append(2000, BASE + 4)


def test_a_full_time_index_keeps_a_slot_for_the_last_entry() -> None:
    disk = SimDisk(0)
    offsets = OffsetIndex(FileHandles(disk), "/0.index", 0, 24, new=True)
    times = TimeIndex(FileHandles(disk), "/0.timeindex", 0, 24, new=True)
    offsets.append(1, 1)
    times.maybe_append(1, 1)
    assert (offsets.is_full, times.is_full) == (False, True)
    offsets.append(2, 2)
    offsets.append(3, 3)
    assert offsets.is_full


@pytest.mark.parametrize("entries", [0, 1, 2, 7])
def test_the_zeros_behind_the_entries_of_a_crashed_kafka_are_not_entries(entries: int) -> None:
    disk, index = offset_index([(3 * n, 100 * n) for n in range(1, entries + 1)])
    index.flush()
    write_file(disk, "/0.index", disk.contents()["/0.index"] + bytes(8 * 1000))
    padded = OffsetIndex(FileHandles(disk), "/0.index", BASE, MAX_BYTES)
    assert padded.entries == entries
    padded.append(BASE + 500, 90_000)
    padded.trim()
    assert len(disk.contents()["/0.index"]) == 8 * (entries + 1)


def test_a_file_that_is_no_index_is_reported() -> None:
    disk = SimDisk(0)
    write_file(disk, "/0.index", bytes(12))
    with pytest.raises(CorruptIndex, match="no multiple of 8"):
        OffsetIndex(FileHandles(disk), "/0.index", BASE, MAX_BYTES)
    write_file(disk, "/0.index", bytes.fromhex("00000005 00001000"))
    index = OffsetIndex(FileHandles(disk), "/0.index", BASE, MAX_BYTES)
    index.sanity_check(5000)
    with pytest.raises(CorruptIndex, match="outside a log of 4096 bytes"):
        index.sanity_check(4096)
    write_file(disk, "/0.timeindex", bytes.fromhex("00000000000003e8 00000005 00000000000003e7 00000009"))
    with pytest.raises(CorruptIndex, match="older than the first"):
        TimeIndex(FileHandles(disk), "/0.timeindex", BASE, MAX_BYTES).sanity_check()
