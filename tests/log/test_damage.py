"""Damage that no crash explains, in files that were closed cleanly: it is repaired where that can be done
from the batches, and otherwise raised to the caller that meets it, with the file and the position.
"""

from __future__ import annotations

import struct

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.log_loader import report_damage
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.segment.walk import CorruptBatch
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_offsets
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from tests.log.test_log_loader import FIRST, cut, damage
from tests.support.log_harness import PARTITION, LogHarness, check_log

EPOCHS = "/data/orders-3/leader-epoch-checkpoint"


# Batches


def with_a_wrong_length(length: int) -> tuple[LogHarness, int]:
    """Some segments, closed cleanly; in the first of them the third batch has a wrong length."""
    lab = LogHarness(LogConfig(segment_bytes=1000))
    for number in range(20):
        lab.put(b"x" * 100, timestamp=1000 + number)
    assert len(lab.log.segments) > 2
    position = [at for at, _ in lab.log.segments[0].headers()][2]
    lab.close()
    damage(lab, FIRST + ".log", position + 8, struct.pack(">i", length))
    lab.reload(clean=True)
    return lab, position


@pytest.mark.parametrize("length", [0, 48, 600, 1 << 20, 0x7FFF_FFFF])
def test_a_read_never_steps_over_a_batch_with_a_wrong_length(length: int) -> None:
    lab, position = with_a_wrong_length(length)
    with pytest.raises(CorruptBatch) as refused:
        lab.log.read(2, 10_000)
    assert refused.value.path == FIRST + ".log"
    assert refused.value.position == position
    # What lies before and after it can be read.
    for offset in (0, 1, 3, 4, 5):
        assert next(iter_offsets(lab.log.read(offset, 100).records))[2] == offset


@pytest.mark.parametrize("length", [0, 600, 1 << 20])
def test_a_lookup_never_steps_over_a_batch_with_a_wrong_length(length: int) -> None:
    lab, position = with_a_wrong_length(length)
    for timestamp in (1003, 1012):
        # Also the answer to the second might be among the records that cannot be read.
        with pytest.raises(CorruptBatch, match=f"position {position}"):
            lab.log.fetch_offset_by_timestamp(timestamp)
    with pytest.raises(CorruptBatch, match=f"position {position}"):
        lab.log.fetch_offset_of_max_timestamp()
    lab.log.maybe_increment_log_start_offset(5, "the damaged segment is given up")
    assert lab.log.fetch_offset_by_timestamp(1012) == (1012, 12, 0)
    assert lab.log.fetch_offset_of_max_timestamp() == (1019, 19, 0)
    # And its age is that of its file, so that retention deletes it in the end.
    assert lab.log.segments[0].largest_timestamp == lab.log.segments[0].mtime_ms


@pytest.mark.parametrize("extra", [1, 12, 60, 61, 500])
def test_nothing_is_appended_behind_bytes_that_are_no_batch(extra: int) -> None:
    lab = LogHarness()
    lab.fill(10)
    lab.close()
    cut(lab, FIRST + ".log", lab.log.size + extra)
    lab.reload(clean=True)
    with pytest.raises(KafkaError, match=f"{FIRST}.log|{lab.log.dir}"):
        lab.put(b"on")
    assert lab.log.log_end_offset == 10


@pytest.mark.parametrize("extra", [1, 61, 5000])
def test_without_its_checkpoint_a_log_with_a_bad_end_is_recovered(extra: int) -> None:
    lab = LogHarness()
    lab.fill(10)
    lab.close()
    lab.directory.forget([PARTITION])
    size = lab.log.size
    cut(lab, FIRST + ".log", size + extra)
    lab.reload(clean=True)
    assert (lab.log.log_end_offset, lab.log.size) == (10, size)
    assert lab.put(b"on") == 10
    check_log(lab.log)


def test_a_reader_gets_an_error_if_the_log_is_shorter_than_it_was() -> None:
    lab = LogHarness()
    lab.fill(10)
    lab.close()
    position = [at for at, _ in lab.log.segments[0].headers()][6]
    cut(lab, FIRST + ".log", position)
    lab.reload(clean=True)
    assert lab.log.read(5, 100).records
    with pytest.raises(
        KafkaError, match="ends at offset 6, but at its clean shutdown it ended at 10"
    ) as told:
        lab.log.read(6, 100)
    assert told.value.code is ErrorCode.KAFKA_STORAGE_ERROR


# Leader epochs


def two_epochs() -> LogHarness:
    lab = LogHarness(LogConfig(segment_bytes=600))
    lab.fill(10, epoch=3)
    lab.fill(10, epoch=5)
    return lab


@pytest.mark.parametrize("kind", ["empty", "missing", "garbage", "zeros"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_leader_epochs_are_read_from_the_batches(kind: str, clean: bool) -> None:
    lab = two_epochs()
    lab.close()
    if kind == "missing":
        lab.disk.unlink(EPOCHS)
    elif kind == "empty":
        cut(lab, EPOCHS, 0)
    else:
        damage(lab, EPOCHS, 0, b"garbage" if kind == "garbage" else bytes(20))
    lab.reload(clean=clean)
    assert lab.log.leader_epoch_cache.entries == ((3, 0), (5, 10))
    assert lab.log.end_offset_for_epoch(3) == (3, 10)
    check_log(lab.log)


@pytest.mark.parametrize("tail", [30, 4096])
def test_lost_leader_epochs_do_not_keep_a_torn_end_from_being_dropped(tail: int) -> None:
    lab = two_epochs()
    lab.log.flush()
    lab.checkpoint()
    damage(lab, EPOCHS, 0, b"garbage")
    active = lab.log.active_segment
    cut(lab, active.path(".log"), active.size + tail)
    lab.reload()
    assert lab.log.log_end_offset == 20
    check_log(lab.log)


# Transactions


def abort_one(lab: LogHarness, sequence: int) -> None:
    """A transaction with other batches between its beginning and its abort."""
    batch = build_batch(
        [(0, None, b"x" * 100)], producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    lab.log.append_as_leader(bytearray(batch), 0, now_ms=lab.now_ms)
    lab.fill(3)
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), producer_id=7, producer_epoch=0, timestamp=0
    )
    lab.log.append_as_leader(
        bytearray(marker), 0, now_ms=lab.now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=1
    )
    lab.log.update_high_watermark(lab.log.log_end_offset)


def with_aborted_transactions(seed: int = 0) -> tuple[LogHarness, list[AbortedTxn]]:
    """Aborted transactions that begin in one segment and end in the next."""
    lab = LogHarness(LogConfig(segment_bytes=500), seed=seed)
    for number in range(3):
        abort_one(lab, number)
    aborted = lab.log.collect_aborted_transactions(0, lab.log.log_end_offset)
    assert len(aborted) == 3
    return lab, aborted


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, b"\xff\xff"), (18, bytes(8)), (10, b"\x7f" + bytes(7))],
    ids=["version", "last offset", "first offset"],
)
def test_a_damaged_transaction_index_is_rebuilt(
    at: int, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lab, aborted = with_aborted_transactions()
    indexes = [path for segment in lab.log.segments[1:] if lab.disk.exists(path := segment.path(".txnindex"))]
    assert len(indexes) > 1
    lab.close()
    for path in indexes:
        damage(lab, path, at, data)
    lab.reload(clean=True)
    assert lab.log.collect_aborted_transactions(0, lab.log.log_end_offset) == aborted
    assert indexes[0] in caplog.text
    caplog.clear()
    lab.close()
    lab.reload(clean=True)
    assert lab.log.collect_aborted_transactions(0, lab.log.log_end_offset) == aborted
    assert not caplog.text


def test_what_a_check_of_the_whole_log_has_rebuilt_is_durable() -> None:
    """It rebuilds the indexes below the recovery point too, which no flush syncs any more."""
    for seed in range(20):
        lab, aborted = with_aborted_transactions(seed)
        lab.log.flush()
        lab.checkpoint()
        end = lab.log.log_end_offset
        assert report_damage(lab.directory, lab.log.dir, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test"))
        lab.crash()
        assert lab.log.recovery_point == end
        # The report is gone for good: the next recovery checks no more than usual.
        lab.disk.sync_dir(lab.log.dir)
        lab.crash()
        assert lab.log.collect_aborted_transactions(0, end) == aborted, seed
        check_log(lab.log)


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_a_damaged_transaction_index_does_not_stop_other_operations(change: str) -> None:
    lab, aborted = with_aborted_transactions()
    lab.close()
    for segment in lab.log.segments:
        if lab.disk.exists(segment.path(".txnindex")):
            damage(lab, segment.path(".txnindex"), 0, b"\xff\xff")
    lab.reload(clean=True)
    if change == "append":
        abort_one(lab, 3)
    else:
        lab.log.truncate_to(7)
    expected = aborted if change == "append" else aborted[:1]
    assert lab.log.collect_aborted_transactions(0, 15)[: len(expected)] == expected
    check_log(lab.log)
