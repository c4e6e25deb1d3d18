"""What compaction keeps and what it drops, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.log.cleaner.cleaner import CleanerConfig
from ottla.log.cleaner.compaction import Compaction, CompactionPlan, MeasuredSegment
from ottla.records.batch import read_records
from ottla.records.compaction import OffsetMap
from ottla.records.types import Codec
from tests.support.compaction_harness import CONFIG, CompactionHarness


@pytest.fixture
def lab() -> CompactionHarness:
    return CompactionHarness()


def offsets(lab: CompactionHarness) -> list[int]:
    return sorted(lab.records())


def checked(lab: CompactionHarness) -> CompactionHarness:
    lab.check_nothing_invented()
    lab.check_order()
    lab.check_reads()
    return lab


def test_the_newest_record_of_each_key_stays_at_its_offset(lab: CompactionHarness) -> None:
    for key, value in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "2")]:
        lab.put(key, value)
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [2, 3, 4]
    assert lab.values() == {"a": "2", "b": "2", "c": "1"}
    assert lab.log.log_start_offset == 0
    assert lab.clean_until == 5


def test_the_active_segment_is_left_alone(lab: CompactionHarness) -> None:
    lab.put("a", "1")
    lab.put("a", "2")
    assert not lab.clean()
    lab.roll()
    lab.put("a", "3")
    lab.put("a", "4")
    assert lab.clean()
    assert offsets(checked(lab)) == [1, 2, 3], "the record at 1 is superseded only by the active segment"


@pytest.mark.parametrize("codec", list(Codec))
def test_records_go_out_of_the_middle_of_a_batch_of_any_codec(lab: CompactionHarness, codec: Codec) -> None:
    lab.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), codec=codec)
    lab.append((b"c", b"2"), (b"d", b"1"), codec=codec)
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2, 4, 5]
    first, _ = lab.batches()[0]
    assert (first.base_offset, first.last_offset, first.count, first.codec) == (0, 3, 2, codec)


def test_records_without_a_key_go(lab: CompactionHarness) -> None:
    lab.with_config(cleanup_policy=frozenset({"delete"}))
    lab.append((b"a", b"1"), (None, b"x"))
    lab.append((None, b"y"))
    lab.append((b"b", b"1"))
    lab.with_config(cleanup_policy=frozenset({"compact"}))
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [0, 3]


def test_the_last_batch_of_the_range_stays_even_if_it_is_empty(lab: CompactionHarness) -> None:
    lab.with_config(cleanup_policy=frozenset({"delete"}))
    lab.put("a", "1")
    lab.append((None, b"y"), (None, b"z"))
    lab.with_config(cleanup_policy=frozenset({"compact"}))
    assert lab.roll_and_clean()
    last, data = lab.batches()[-1]
    assert (last.base_offset, last.last_offset, last.count) == (1, 2, 0)
    assert read_records(data) == []


# Tombstones


def test_a_tombstone_outlives_its_key_by_delete_retention(lab: CompactionHarness) -> None:
    lab.put("a", "1")
    lab.put("a", None)
    lab.put("z", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2]
    header, _ = lab.batches()[0]
    assert header.delete_horizon_ms == lab.now_ms + lab.config.delete_retention_ms
    assert header.max_timestamp == lab.appended[1].timestamp
    lab.pass_time(lab.config.delete_retention_ms - 1)
    lab.put("y", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2, 3]
    lab.pass_time(1)
    lab.put("x", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [2, 3, 4]
    assert lab.values() == {"z": "1", "y": "1", "x": "1"}


def test_the_horizon_counts_from_the_first_cleaning_not_from_the_write(lab: CompactionHarness) -> None:
    lab.put("a", None)
    lab.put("z", "1")
    lab.pass_time(10 * lab.config.delete_retention_ms)
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [0, 1]


def test_a_tombstone_that_is_superseded_goes_at_once(lab: CompactionHarness) -> None:
    lab.put("a", None)
    lab.put("a", "2")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1]


def test_a_record_of_the_same_batch_stays_when_the_tombstone_goes(lab: CompactionHarness) -> None:
    lab.append((b"a", None), (b"b", b"1"), codec=Codec.LZ4)
    lab.put("z", "1")
    assert lab.roll_and_clean()
    lab.pass_time(lab.config.delete_retention_ms)
    lab.put("y", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2, 3]
    header, _ = lab.batches()[0]
    assert (header.base_offset, header.last_offset, header.count) == (0, 1, 1)


# Transactions


def test_aborted_records_go_and_committed_ones_stay(lab: CompactionHarness) -> None:
    lab.put("a", "committed", producer_id=1, transactional=True)
    lab.end(1, commit=True)
    lab.put("a", "aborted", producer_id=2, transactional=True)
    lab.put("b", "aborted", producer_id=2, transactional=True)
    lab.end(2, commit=False)
    lab.put("z", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [0, 5]
    assert lab.values() == {"a": "committed", "z": "1"}


def test_an_open_transaction_stops_the_cleaning_in_front_of_it(lab: CompactionHarness) -> None:
    lab.put("a", "1")
    lab.put("a", "2")
    lab.roll()
    lab.put("a", "3", producer_id=1, transactional=True)
    lab.put("b", "1")
    lab.put("b", "2")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2, 3, 4]
    assert lab.clean_until == 2
    assert not lab.clean()
    lab.end(1, commit=True)
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [2, 4]


def test_a_marker_stays_until_its_records_are_gone_and_then_for_delete_retention(
    lab: CompactionHarness,
) -> None:
    lab.put("a", "1", producer_id=1, transactional=True)
    lab.end(1, commit=True)
    lab.put("z", "1")

    def markers() -> list[tuple[int, int, int | None]]:
        return [
            (header.base_offset, header.count, header.delete_horizon_ms)
            for header, _ in lab.batches()
            if header.is_control
        ]

    assert lab.roll_and_clean()
    assert markers() == [(1, 1, None)], "its record is still there"
    lab.put("a", "2")
    lab.roll_and_clean()
    assert markers() == [(1, 1, None)], "the record went in this very round"
    lab.put("y", "1")
    lab.roll_and_clean()
    horizon = lab.now_ms + lab.config.delete_retention_ms
    assert markers() == [(1, 1, horizon)]
    lab.pass_time(lab.config.delete_retention_ms - 1)
    lab.put("w", "1")
    lab.roll_and_clean()
    assert markers() == [(1, 1, horizon)], "a reader that began before may still need it"
    lab.pass_time(1)
    lab.put("x", "1")
    lab.roll_and_clean()
    assert markers() == [(1, 0, None)], "empty, but kept: it is the last that tells of the producer's epoch"
    lab.put("p", "1", producer_id=1)
    lab.put("q", "1")
    lab.roll_and_clean()
    assert markers() == []


def test_an_abort_marker_keeps_its_index_entry_as_long_as_it_may_be_needed(lab: CompactionHarness) -> None:
    lab.put("a", "1", producer_id=1, transactional=True)
    lab.roll()
    marker = lab.end(1, commit=False)
    lab.put("z", "1")
    assert lab.roll_and_clean()
    aborted = lab.log.collect_aborted_transactions(0, lab.log.log_end_offset)
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted] == [(1, 0, marker)]
    lab.put("y", "1")
    assert lab.roll_and_clean()
    assert lab.log.collect_aborted_transactions(0, lab.log.log_end_offset) == []
    assert lab.values() == {"z": "1", "y": "1"}


def test_an_aborted_transaction_does_not_swallow_the_next_one_of_its_producer(lab: CompactionHarness) -> None:
    lab.put("a", "aborted", producer_id=1, transactional=True)
    lab.end(1, commit=False)
    lab.roll()
    lab.put("a", "kept", producer_id=1, transactional=True)
    lab.roll()
    lab.end(1, commit=True)
    lab.put("z", "1")
    assert lab.roll_and_clean()
    assert lab.values() == {"a": "kept", "z": "1"}
    lab.put("y", "1")
    assert lab.roll_and_clean()
    assert checked(lab).values() == {"a": "kept", "z": "1", "y": "1"}


# Producers


def test_the_last_batch_of_a_producer_stays_empty_when_its_records_go(lab: CompactionHarness) -> None:
    lab.put("a", "1", producer_id=7)
    lab.put("a", "2", producer_id=7)
    lab.put("a", "3")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [2]
    empties = [header for header, _ in lab.batches() if header.count == 0]
    assert [(header.base_offset, header.producer_id, header.last_sequence) for header in empties] == [
        (1, 7, 1)
    ]
    before = lab.producer_states()
    lab.log.producer_snapshots.delete_all()
    lab.disk.sync_all()
    lab.directory.write_recovery_points({})
    lab.reload(clean=False)
    assert lab.producer_states() == before
    lab.producers[7].sequence = 2
    lab.put("b", "1", producer_id=7)


def test_the_batch_of_a_producer_that_has_expired_goes(lab: CompactionHarness) -> None:
    lab.put("a", "1", producer_id=7)
    lab.put("a", "2")
    lab.pass_time(31 * 86_400_000)
    lab.log.remove_expired_producers(lab.now_ms)
    assert lab.roll_and_clean()
    assert [header.producer_id for header, _ in lab.batches()] == [-1]


# The map


def test_a_map_that_is_too_small_cleans_in_several_rounds() -> None:
    # 1 MiB holds 43690 slots, of which the load factor leaves one in ten thousand.
    config = CleanerConfig(dedupe_buffer_size=1024 * 1024, io_buffer_load_factor=4 / 43690)
    lab = CompactionHarness(cleaner_config=config)
    for round in range(3):
        for key in "abcdefgh":
            lab.put(key, f"{key}{round}")
    lab.put("z", "1")
    lab.roll()
    cleanings = 0
    while lab.clean():
        cleanings += 1
        checked(lab)
        assert lab.values() == {key: f"{key}2" for key in "abcdefgh"} | {"z": "1"}
    assert cleanings > 2
    assert lab.clean_until == 25
    assert offsets(lab) == list(range(16, 25))


# Segments


def test_small_neighbours_become_one_segment(lab: CompactionHarness) -> None:
    for index in range(10):
        lab.put(f"key{index}", "value")
        lab.roll()
    assert len(lab.log.segments) == 11
    assert lab.clean()
    assert [segment.base_offset for segment in checked(lab).log.segments] == [0, 10]
    assert offsets(lab) == list(range(10))


def test_the_new_segment_is_as_old_as_the_last_one_it_replaces(lab: CompactionHarness) -> None:
    lab.put("a", "1")
    lab.roll()
    lab.pass_time(5000)
    lab.put("b", "1")
    lab.roll()
    written_ms = lab.log.segments[1].mtime_ms
    lab.pass_time(5000)
    assert lab.clean()
    assert lab.log.segments[0].mtime_ms == written_ms


def test_a_batch_larger_than_the_buffer_is_read_whole() -> None:
    lab = CompactionHarness(
        config=replace(CONFIG, segment_bytes=1 << 20), cleaner_config=CleanerConfig(io_buffer_size=1000)
    )
    lab.append((b"a", b"x" * 5000), (b"a", b"y" * 5000))
    lab.put("b", "1")
    assert lab.roll_and_clean()
    assert offsets(checked(lab)) == [1, 2]
    assert lab.records()[1][2] == b"y" * 5000


def test_a_gap_at_the_end_of_the_range_is_clean_too(lab: CompactionHarness) -> None:
    lab.put("a", "1")
    lab.put("a", "2")
    lab.roll()
    segment = lab.log.segments[0]
    plan = CompactionPlan(
        dir=lab.log.dir,
        config=lab.config,
        segments=(MeasuredSegment(segment, segment.size, 0, 0),),
        first_dirty_offset=0,
        first_uncleanable_offset=10,
        first_dirty_position=0,
        aborted=(),
        last_records={},
        now_ms=lab.now_ms,
        max_group_bytes=1000,
    )
    work = Compaction(plan, lab.directory.handles, OffsetMap(1000), io_buffer_bytes=1000)
    progress = work.advance(10**6)
    assert progress.cleaned is not None
    assert progress.cleaned.old == (segment,)
    assert work.end_offset == 10
    assert work.advance(10**6).is_done
    work.discard()
    assert not [path for path in lab.disk.contents() if path.endswith(".cleaned")]


def test_only_the_segments_that_the_map_covers_are_rewritten() -> None:
    config = CleanerConfig(dedupe_buffer_size=1024 * 1024, io_buffer_load_factor=2.5 / 43690)
    lab = CompactionHarness(config=replace(CONFIG, segment_bytes=100), cleaner_config=config)
    for key in "abcdefgh":
        lab.put(key, "1")
    lab.roll()
    before = lab.log.segments
    assert lab.clean()
    assert lab.clean_until == 2
    assert [new is old for new, old in zip(lab.log.segments, before, strict=True)] == [False] * 2 + [True] * 7
