"""A log whose old segments are in remote storage: what stays on the disk, and what a start makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.contents import list_directory
from ottla.log.directory.dir_names import REMOTE_LOG_INDEX_CACHE
from ottla.log.log_repair import find_damage
from ottla.log.unified_log import RemoteLogAuxState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from tests.support.log_harness import PARTITION, LogHarness

REMOTE = LogConfig(
    segment_bytes=1000,
    remote_storage_enable=True,
    local_retention_bytes=0,
    local_retention_ms=-1,
    retention_ms=-1,
    file_delete_delay_ms=0,
)


def tiered_log(config: LogConfig = REMOTE, copied: int = 2) -> LogHarness:
    """A log of several segments, of which remote storage has the first ones."""
    lab = LogHarness(config)
    for epoch in range(3):
        lab.fill(8, epoch=epoch)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    lab.log.update_highest_offset_in_remote_storage(lab.log.segments[copied].base_offset - 1)
    return lab


def test_only_segments_that_remote_storage_has_leave_the_disk() -> None:
    lab = tiered_log()
    bases = [segment.base_offset for segment in lab.log.segments]
    assert lab.log.delete_old_segments(lab.now_ms) == 2
    assert [segment.base_offset for segment in lab.log.segments] == bases[2:]
    assert lab.log.log_start_offset == 0
    assert lab.log.local_log_start_offset == bases[2]
    assert lab.log.delete_old_segments(lab.now_ms) == 0


def test_without_a_copy_nothing_leaves_the_disk_whatever_the_limits_are() -> None:
    lab = tiered_log(replace(REMOTE, local_retention_ms=1, retention_ms=10, retention_bytes=10), copied=0)
    segments = lab.log.segments
    lab.clock.advance_ms(60_000)  # type: ignore[attr-defined]
    assert lab.log.delete_old_segments(lab.now_ms) == 0
    assert lab.log.segments == segments


def test_local_limits_that_are_not_set_are_those_of_the_log() -> None:
    config = replace(REMOTE, local_retention_bytes=-2, local_retention_ms=-2, retention_bytes=2000)
    assert (config.retention_bytes_here, config.retention_ms_here) == (2000, -1)
    lab = tiered_log(config, copied=3)
    assert lab.log.delete_old_segments(lab.now_ms) > 0
    assert lab.log.log_start_offset == 0


def test_where_copies_are_turned_off_the_limits_of_the_log_delete_for_good() -> None:
    config = replace(REMOTE, remote_log_copy_disable=True, retention_bytes=1500, local_retention_bytes=-2)
    lab = tiered_log(config, copied=0)
    assert lab.log.delete_old_segments(lab.now_ms) > 0
    assert lab.log.log_start_offset == lab.log.segments[0].base_offset > 0


def test_a_segment_below_the_log_start_needs_no_copy_to_go() -> None:
    lab = tiered_log(copied=0)
    start = lab.log.segments[2].base_offset + 1
    lab.log.maybe_increment_log_start_offset(start, "a test")
    assert lab.log.delete_old_segments(lab.now_ms) == 2
    assert lab.log.local_log_start_offset == lab.log.log_start_offset == start


def test_an_expired_active_segment_is_closed_so_that_it_can_be_copied() -> None:
    lab = tiered_log(replace(REMOTE, local_retention_ms=1000), copied=0)
    assert not lab.log.roll_if_expired(lab.now_ms)
    lab.clock.advance_ms(2000)  # type: ignore[attr-defined]
    assert lab.log.roll_if_expired(lab.now_ms)
    assert lab.log.active_segment.size == 0
    assert not lab.log.roll_if_expired(lab.now_ms)


def test_a_read_below_the_disk_says_that_the_offset_has_moved() -> None:
    lab = tiered_log()
    lab.log.delete_old_segments(lab.now_ms)
    local = lab.log.local_log_start_offset
    for offset in (0, local - 1):
        with pytest.raises(KafkaError) as refused:
            lab.log.read(offset, 1000)
        assert refused.value.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert lab.log.read(local, 1000).records
    lab.log.maybe_increment_log_start_offset(3, "a test")
    with pytest.raises(KafkaError) as refused:
        lab.log.read(2, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_keeps_the_log_start_and_all_leader_epochs(clean: bool) -> None:
    lab = tiered_log()
    lab.log.delete_old_segments(lab.now_ms)
    local, end = lab.log.local_log_start_offset, lab.log.log_end_offset
    epochs = lab.log.leader_epoch_cache.entries
    assert epochs[0].start_offset == 0
    if clean:
        lab.close()
    else:
        lab.log.flush()
    log = lab.reload(clean=clean) if clean else lab.crash()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, local, end)
    assert log.leader_epoch_cache.entries == epochs


def test_a_start_and_a_repair_do_not_take_what_is_in_remote_storage_for_lost() -> None:
    lab = tiered_log()
    lab.log.delete_old_segments(lab.now_ms)
    local = lab.log.local_log_start_offset
    lab.log.flush()
    lab.checkpoint()
    lab.directory.set_log_starts({PARTITION: 0})
    assert find_damage(lab.directory, PARTITION) is None
    # Remote storage was turned off meanwhile.
    lab.config = replace(REMOTE, remote_storage_enable=False)
    log = lab.crash()
    assert (log.log_start_offset, log.segments[0].base_offset) == (0, local)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_whose_start_was_lost_does_not_give_up_what_is_in_remote_storage(clean: bool) -> None:
    lab = tiered_log()
    lab.log.maybe_increment_log_start_offset(2, "a test")
    lab.log.delete_old_segments(lab.now_ms)
    local = lab.log.local_log_start_offset
    epochs = lab.log.leader_epoch_cache.entries
    if clean:
        lab.close()
    else:
        lab.log.flush()
    # As where the file is damaged, which then counts as empty.
    lab.directory.write_log_starts({})
    log = lab.reload(clean=clean)
    assert (log.log_start_offset, log.local_log_start_offset) == (2, local)
    assert log.leader_epoch_cache.entries == epochs
    assert not log.lacks_auxiliary_state


def test_a_segment_that_is_not_flushed_stays_until_it_is() -> None:
    lab = tiered_log()
    first = lab.log.segments[0]
    assert lab.log.recovery_point == 0
    assert not lab.log.remove_copied_segment(first)
    lab.log.flush()
    assert lab.log.remove_copied_segment(first)
    assert not lab.log.remove_copied_segment(lab.log.segments[-1])


def test_records_that_take_the_place_of_truncated_ones_are_not_in_remote_storage() -> None:
    lab = tiered_log(copied=3)
    end = lab.log.segments[1].base_offset
    lab.log.truncate_to(end)
    assert lab.log.highest_offset_in_remote_storage == end - 1
    for _ in range(3):
        lab.fill(8, epoch=5)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.delete_old_segments(lab.now_ms) == 1
    assert lab.log.local_log_start_offset == end
    lab.log.truncate_fully_and_start_at(end - 1)
    assert lab.log.highest_offset_in_remote_storage == end - 2


def test_a_truncation_below_the_disk_keeps_the_log_start() -> None:
    lab = tiered_log()
    lab.log.delete_old_segments(lab.now_ms)
    lab.log.truncate_to(3)
    log = lab.log
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 3, 3)
    assert [entry.epoch for entry in log.leader_epoch_cache.entries] == [0]
    assert lab.crash().log_end_offset == 3
    assert lab.log.log_start_offset == 0


def test_a_log_begins_behind_remote_storage_with_what_is_known_of_it() -> None:
    leader = tiered_log()
    batch = build_batch([(leader.now_ms, None, b"x")], producer_id=7, producer_epoch=1, base_sequence=0)
    leader.log.append_as_leader(bytearray(batch), 2, now_ms=leader.now_ms)
    snapshot = leader.log.producer_state_manager.snapshot()
    epochs = tuple(tuple(entry) for entry in leader.log.leader_epoch_cache.entries)
    end = leader.log.log_end_offset

    follower = LogHarness(REMOTE)
    follower.log.truncate_fully_and_start_at(end, 0, RemoteLogAuxState(epochs, snapshot))
    for log in (follower.log, follower.crash()):
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, end, end)
        assert log.high_watermark == end
        assert tuple(tuple(entry) for entry in log.leader_epoch_cache.entries) == epochs
        entry = log.producer_state_manager.last_entry(7)
        assert entry is not None
        assert entry.last_sequence == 0
        assert not log.lacks_auxiliary_state


def test_a_log_without_remote_storage_that_lost_its_first_segment_is_damaged_as_before() -> None:
    lab = LogHarness(LogConfig(segment_bytes=1000))
    lab.fill(20)
    lab.log.flush()
    lab.checkpoint()
    lab.directory.set_log_starts({PARTITION: 0})
    lab.sim_disk.unlink(lab.log.segments[0].path(".log"))
    with pytest.raises(KafkaError):
        lab.crash()


def test_the_cache_of_remote_segments_is_no_partition(caplog: pytest.LogCaptureFixture) -> None:
    lab = LogHarness()
    lab.disk.make_dirs(f"{lab.path}/{REMOTE_LOG_INDEX_CACHE}")
    contents = list_directory(lab.directory)
    assert [each.partition for each in contents.partitions] == [PARTITION]
    assert not caplog.records
