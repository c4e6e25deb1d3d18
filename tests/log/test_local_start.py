"""The producers of records that are in remote storage only: where a log begins on its disk, a snapshot alone
tells of them, so it is there for good before these records leave the disk.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from ottla.log.producers.snapshot import decode_snapshot
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import write_file
from ottla.sim.disk import SimCrash
from tests.log.test_remote_log import REMOTE
from tests.support.log_harness import LogHarness

PRODUCER = 7
CONFIG = replace(REMOTE, segment_bytes=400)


def send(lab: LogHarness, sequence: int = 0, producer_id: int = PRODUCER) -> None:
    batch = build_batch(
        [(lab.now_ms, None, b"v" * 50)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    lab.log.append_as_leader(bytearray(batch), 0, now_ms=lab.now_ms)


def abort(lab: LogHarness) -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0),
        producer_id=PRODUCER,
        producer_epoch=0,
        timestamp=lab.now_ms,
    )
    lab.log.append_as_leader(
        bytearray(marker), 0, now_ms=lab.now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=1
    )


def lab_with_open_transaction(seed: int = 0) -> LogHarness:
    """A log of several segments; the transaction of its first record is still open."""
    lab = LogHarness(CONFIG, seed=seed)
    send(lab)
    lab.fill(12, size=50)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert len(lab.log.segments) > 3
    return lab


def copy(lab: LogHarness, segments: int = 2) -> None:
    """Have the first segments in remote storage, so that retention takes them off the disk."""
    lab.log.update_highest_offset_in_remote_storage(lab.log.segments[segments].base_offset - 1)
    assert lab.log.delete_old_segments(lab.now_ms) == segments


def check_transaction_is_known(lab: LogHarness) -> None:
    log = lab.log
    assert not log.lacks_producers
    assert log.first_unstable_offset == log.last_stable_offset == 0
    abort(lab)
    indexed = log.collect_aborted_transactions(log.segments[0].base_offset, log.log_end_offset)
    assert [(txn.producer_id, txn.first_offset) for txn in indexed] == [(PRODUCER, 0)]


@pytest.mark.parametrize("seed", range(8))
def test_what_a_recovery_has_written_is_durable_before_records_leave_the_disk(seed: int) -> None:
    lab = lab_with_open_transaction(seed)
    # The process is killed before it has synced anything, and the next one recovers all segments.
    lab.sim_disk.kill()
    lab.reload()
    copy(lab)
    lab.checkpoint()
    lab.crash()
    assert lab.log.segments[0].base_offset > 0
    check_transaction_is_known(lab)


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_at_the_recovery_point_may_be_newer_than_the_flush(seed: int) -> None:
    lab = LogHarness(CONFIG, seed=seed)
    send(lab)
    lab.log.flush()
    lab.checkpoint()
    lab.log.roll(lab.now_ms)
    lab.sim_disk.kill()
    lab.reload()
    lab.fill(1)
    copy(lab, 1)
    lab.log.flush()
    lab.checkpoint()
    lab.crash()
    check_transaction_is_known(lab)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_written_below_the_recovery_point_is_durable_at_once(seed: int) -> None:
    """A log that was found damaged before is recovered from its start on, and no flush comes there again."""
    lab = lab_with_open_transaction(seed)
    lab.log.flush()
    lab.checkpoint()
    base = lab.log.segments[2].base_offset
    lab.directory.disk.open(f"{lab.log.dir}/damage-report", create=True).close()
    lab.reload()
    assert lab.log.recovery_point == lab.log.log_end_offset
    assert lab.log.producer_snapshots.is_durable(base)
    assert decode_snapshot(lab.sim_disk.durable_contents()[lab.log.producer_snapshots.path(base)])


def test_a_snapshot_that_is_missing_is_made_before_records_leave_the_disk() -> None:
    lab = lab_with_open_transaction()
    lab.log.flush()
    lab.checkpoint()
    lab.log.producer_snapshots.delete_all()
    copy(lab)
    first = lab.log.segments[0].base_offset
    durable = lab.sim_disk.durable_contents()[lab.log.producer_snapshots.path(first)]
    assert [entry.producer_id for entry in decode_snapshot(durable)] == [PRODUCER]
    lab.crash()
    check_transaction_is_known(lab)


def test_a_damaged_snapshot_is_replaced_before_records_leave_the_disk() -> None:
    lab = lab_with_open_transaction()
    lab.log.flush()
    path = lab.log.producer_snapshots.path(lab.log.segments[2].base_offset)
    lab.disk.open(path).pwrite(b"\xff", 12)
    copy(lab)
    lab.checkpoint()
    lab.crash()
    check_transaction_is_known(lab)


def test_without_room_for_the_snapshot_the_records_stay() -> None:
    lab = lab_with_open_transaction()
    lab.log.flush()
    lab.log.producer_snapshots.delete_all()
    lab.log.update_highest_offset_in_remote_storage(lab.log.segments[2].base_offset - 1)
    fault = lab.sim_disk.fail(errno.ENOSPC, ops=["write"], times=None)
    with pytest.raises(KafkaError, match="no room"):
        lab.log.delete_old_segments(lab.now_ms)
    assert lab.log.segments[0].base_offset == 0
    lab.sim_disk.heal(fault)
    assert lab.log.delete_old_segments(lab.now_ms) == 2
    check_transaction_is_known(lab)


def test_a_truncation_with_an_old_high_watermark_keeps_the_producers() -> None:
    lab = lab_with_open_transaction()
    copy(lab)
    lab.checkpoint()
    lab.crash()
    # A follower learns the high watermark with its next fetch; until then it knows that of its checkpoint.
    lab.log.update_high_watermark(0)
    lab.log.truncate_to(lab.log.log_end_offset - 1)
    assert lab.log.high_watermark == 0
    lab.log.update_high_watermark(lab.log.log_end_offset)
    check_transaction_is_known(lab)


def test_a_log_start_that_is_not_durable_does_not_cost_the_producers_below_it() -> None:
    lab = lab_with_open_transaction()
    copy(lab)
    lab.log.flush()
    lab.checkpoint()
    lab.log.maybe_increment_log_start_offset(lab.log.segments[0].base_offset + 1, "a test")
    lab.log.truncate_to(lab.log.log_end_offset - 1)
    lab.crash()
    assert lab.log.log_start_offset == 0
    check_transaction_is_known(lab)


def test_a_segment_that_a_crash_brings_back_has_its_aborted_transactions() -> None:
    back = 0
    for seed in range(300):
        lab = LogHarness(CONFIG, seed=seed)
        send(lab)
        abort(lab)
        lab.fill(12, size=50)
        lab.log.flush()
        lab.checkpoint()
        lab.log.update_high_watermark(lab.log.log_end_offset)
        lab.log.update_highest_offset_in_remote_storage(lab.log.segments[1].base_offset - 1)
        lab.sim_disk.crash_after(8 + seed % 5)
        try:
            lab.log.delete_old_segments(lab.now_ms)
        except SimCrash:
            lab.crash()
            if lab.log.segments[0].base_offset == 0:
                back += 1
                assert [txn.first_offset for txn in lab.log.segments[0].txn_index.entries] == [0]
    assert back > 10


def test_a_log_that_has_lost_its_producers_says_so_and_takes_them_from_remote_storage() -> None:
    lab = lab_with_open_transaction()
    copy(lab)
    first = lab.log.segments[0].base_offset
    known = lab.log.producer_snapshot_at(first)
    lab.log.flush()
    lab.checkpoint()
    lab.log.producer_snapshots.delete_all()
    lab.disk.sync_dir(lab.log.dir)
    for clean in (True, False):
        lab.reload(clean=clean)
        log = lab.log
        assert log.lacks_producers
        assert log.last_stable_offset == log.log_start_offset == 0
        with pytest.raises(KafkaError) as refused:
            send(lab, sequence=1)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            abort(lab)
        lab.put(b"a record without a producer id")
        # Nothing is written that would pass for what was lost.
        log.roll(lab.now_ms)
        assert log.producer_snapshots.offsets == ()
        log.update_high_watermark(log.log_end_offset)
        assert not log.remove_copied_segment(log.segments[0])
        log.flush()
        lab.checkpoint()
    assert lab.log.begin_restoring_producers(known).finish()
    lab.crash()
    check_transaction_is_known(lab)


def test_an_end_that_may_not_be_replicated_is_not_shown_without_the_snapshot_before_it() -> None:
    """The newest snapshot knows nothing of it, and what was open before it is known by the damaged one."""
    lab = lab_with_open_transaction()
    copy(lab)
    first, end = lab.log.segments[0].base_offset, lab.log.log_end_offset
    known = lab.log.producer_snapshot_at(first)
    abort(lab)
    lab.close()
    for offset in lab.log.producer_snapshots.offsets[:-1]:
        write_file(lab.disk, lab.log.producer_snapshots.path(offset), b"rotten")
    log = lab.reload(clean=True, high_watermark=end)
    assert log.last_stable_offset == log.log_start_offset == 0
    assert log.lacks_producers
    assert log.begin_restoring_producers(known).finish()
    assert log.first_unstable_offset == log.last_stable_offset == 0
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset


def test_a_truncation_below_the_disk_lacks_the_producers_before() -> None:
    lab = lab_with_open_transaction()
    copy(lab)
    lab.log.truncate_to(1)
    for log in (lab.log, lab.crash()):
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)
        assert log.lacks_producers
