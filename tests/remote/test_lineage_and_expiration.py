"""Which remote segments belong to a log, and which of them expire."""

from __future__ import annotations

from dataclasses import replace

from ottla.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.remote.expiration import RemoteExpiration, plan_expiration
from ottla.remote.log_lineage import (
    LogLineage,
    epoch_entries_between,
    find_highest_remote_offset,
    find_remote_log_start_offset,
    is_covered_by_others,
    without_empty_epochs,
)
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from ottla.runtime.steps import run_at_once
from tests.remote.test_metadata_cache import copied, segment

EPOCHS = LeaderEpochCache([(1, 0), (3, 100), (4, 200)])


def finished(
    start: int, end: int, epochs: dict[int, int] | None = None, **changes: int
) -> RemoteLogSegmentMetadata:
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return replace(segment(start, end, epochs or {1: start}), state=state, **changes)  # type: ignore[arg-type]


def is_within(metadata: RemoteLogSegmentMetadata, end: int = 1000) -> bool:
    return LogLineage(EPOCHS.entries, end).has(metadata)


def test_a_segment_is_of_the_lineage_if_its_epochs_are_those_of_the_log() -> None:
    assert is_within(segment(0, 99, {1: 0}))
    assert is_within(segment(50, 150, {1: 50, 3: 100}))
    assert is_within(segment(50, 250, {1: 50, 3: 100, 4: 200}))
    assert is_within(segment(300, 400, {4: 300}))


def test_a_segment_with_other_epochs_is_not() -> None:
    assert not is_within(segment(0, 100, {1: 0}))
    assert not is_within(segment(50, 150, {1: 50, 3: 90}))
    assert not is_within(segment(50, 150, {1: 50, 2: 100}))
    assert not is_within(segment(50, 250, {1: 50, 4: 200}))
    assert not is_within(segment(90, 150, {3: 90}))
    assert not is_within(segment(0, 10, {0: 0}))
    assert not is_within(segment(300, 400, {5: 300}))
    assert not is_within(segment(300, 400, {4: 300}), end=400)


def test_epochs_that_the_log_start_has_passed_do_not_count() -> None:
    moved = (EpochEntry(3, 150), EpochEntry(4, 200))
    assert LogLineage(moved, 1000).has(segment(50, 180, {1: 50, 3: 100}))
    assert not LogLineage(moved, 1000).has(segment(0, 99, {1: 0}))


def test_epochs_without_records_are_left_out() -> None:
    entries = [EpochEntry(1, 0), EpochEntry(2, 10), EpochEntry(3, 10), EpochEntry(4, 20)]
    assert [each.epoch for each in without_empty_epochs(entries)] == [1, 3, 4]


def test_the_epochs_of_a_segment() -> None:
    assert epoch_entries_between(EPOCHS, 50, 150) == (EpochEntry(1, 50), EpochEntry(3, 100))
    assert epoch_entries_between(EPOCHS, 100, 200) == (EpochEntry(3, 100),)
    assert epoch_entries_between(EPOCHS, 0, 1) == (EpochEntry(1, 0),)


def highest(cache: RemoteLogMetadataCache, local_start: int, end: int = 1000) -> int:
    return find_highest_remote_offset(EPOCHS, local_start, end, cache.remote_log_segment_metadata)


def test_what_may_leave_the_disk_is_what_is_there_without_a_gap() -> None:
    cache = RemoteLogMetadataCache()
    assert highest(cache, 0) == -1
    assert highest(cache, 50) == -1
    copied(cache, segment(0, 49, {1: 0}))
    assert highest(cache, 0) == 49
    assert highest(cache, 50) == 49
    assert highest(cache, 60) == -1
    copied(cache, segment(60, 150, {1: 60, 3: 100}))
    assert highest(cache, 0) == 49
    copied(cache, segment(50, 59, {1: 50}))
    assert highest(cache, 0) == 150
    assert highest(cache, 70) == 150
    assert highest(cache, 0, end=120) == 119
    # Of another lineage.
    copied(cache, segment(151, 250, {3: 151, 5: 180}))
    assert highest(cache, 0) == 179


def test_records_of_an_epoch_that_the_log_has_lost_do_not_count() -> None:
    cache = RemoteLogMetadataCache()
    # Epoch 1 had more records before an unclean election; the log has others there, of epoch 3.
    copied(cache, segment(0, 120, {1: 0}))
    assert highest(cache, 0) == 99
    assert not is_covered_by_others(
        segment(50, 110, {1: 50, 3: 100}), cache.remote_log_segment_metadata, EPOCHS
    )
    copied(cache, segment(50, 150, {1: 50, 3: 100}))
    assert highest(cache, 0) == 150


def test_the_log_start_in_remote_storage_is_that_of_the_oldest_segment() -> None:
    cache = RemoteLogMetadataCache()
    assert find_remote_log_start_offset(EPOCHS, cache.first_start_offset) is None
    copied(cache, segment(120, 150, {3: 120}), segment(200, 220, {4: 200}))
    assert find_remote_log_start_offset(EPOCHS, cache.first_start_offset) == 120


def test_an_unfinished_copy_is_covered_only_by_all_of_its_records() -> None:
    cache = RemoteLogMetadataCache()
    unfinished = segment(50, 150, {1: 50, 3: 100})
    cache.add_copy_in_progress_segment(unfinished)

    def is_covered() -> bool:
        return is_covered_by_others(unfinished, cache.remote_log_segment_metadata, EPOCHS)

    assert not is_covered()
    copied(cache, segment(0, 99, {1: 0}))
    assert not is_covered()
    copied(cache, segment(100, 149, {3: 100}))
    assert not is_covered()
    copied(cache, segment(150, 160, {3: 150}))
    assert is_covered()


def plan(segments: list[RemoteLogSegmentMetadata], **changes: int) -> RemoteExpiration:
    values = {
        "log_start_offset": 0,
        "log_end_offset": 1000,
        "local_only_bytes": 0,
        "retention_ms": -1,
        "retention_bytes": -1,
        "now_ms": 1_000_000,
        **changes,
    }
    return run_at_once(plan_expiration(segments, epochs=EPOCHS.entries, **values))  # type: ignore[arg-type]


OLD = finished(0, 9, max_timestamp_ms=1_000)
MIDDLE = finished(10, 19, max_timestamp_ms=500_000)
YOUNG = finished(20, 29, max_timestamp_ms=900_000)


def test_without_limits_nothing_expires() -> None:
    assert plan([OLD, MIDDLE, YOUNG]) == RemoteExpiration(())
    assert plan([]) == RemoteExpiration(())


def test_segments_expire_by_time_from_the_oldest_on() -> None:
    found = plan([OLD, MIDDLE, YOUNG], retention_ms=500_000)
    assert found.segments == (OLD, MIDDLE)
    assert found.new_log_start_offset == 20
    assert found.next_check_ms == 1_400_000
    # One that must stay keeps those behind it.
    assert plan([YOUNG, replace(OLD, start_offset=30, end_offset=39)], retention_ms=500_000).segments == ()


def test_segments_expire_by_the_size_of_the_whole_log() -> None:
    assert plan([OLD, MIDDLE, YOUNG], retention_bytes=300).segments == ()
    assert plan([OLD, MIDDLE, YOUNG], retention_bytes=201).segments == ()
    assert plan([OLD, MIDDLE, YOUNG], retention_bytes=200).segments == (OLD,)
    assert plan([OLD, MIDDLE, YOUNG], retention_bytes=300, local_only_bytes=250).segments == (OLD, MIDDLE)
    assert plan([OLD, MIDDLE, YOUNG], retention_bytes=0).new_log_start_offset == 30


def test_what_is_below_the_log_start_goes_and_does_not_count() -> None:
    found = plan([OLD, MIDDLE, YOUNG], log_start_offset=10)
    assert found.segments == (OLD,)
    assert found.new_log_start_offset is None


def test_begun_deletions_are_finished_and_copies_under_way_are_left_alone() -> None:
    deleting = replace(MIDDLE, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    copying = replace(YOUNG, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    assert plan([OLD, deleting, copying], retention_ms=0).segments == (OLD, deleting)
    assert plan([OLD, deleting, copying]).segments == (deleting,)


def test_segments_of_epochs_older_than_the_log_go_and_others_outside_of_it_stay() -> None:
    of_older_epoch = finished(0, 9, {0: 0})
    of_other_lineage = finished(90, 120, {2: 90}, max_timestamp_ms=0)
    found = plan([of_older_epoch, OLD, of_other_lineage], retention_ms=2_000_000)
    assert found.segments == (of_older_epoch,)
    assert plan([of_other_lineage], retention_ms=0).segments == ()


def test_a_log_that_does_not_know_its_first_epochs_keeps_their_segments() -> None:
    # As after damage to the file of leader epochs: the batches on the disk begin with epoch 3.
    segments = [finished(0, 99), finished(100, 199, {3: 100})]
    plan = run_at_once(
        plan_expiration(
            segments,
            epochs=[EpochEntry(3, 100)],
            log_start_offset=0,
            log_end_offset=1000,
            local_only_bytes=0,
            retention_ms=-1,
            retention_bytes=-1,
            now_ms=0,
        )
    )
    assert plan == RemoteExpiration(())
