"""`KafkaRaftLog` on a disk that loses what was not synced: epochs, durability, snapshots, retention."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import KafkaError
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog, KafkaRaftLogConfig, LogGap
from ottla.raft.log import Validity, truncation_offset, validate_offset_and_epoch
from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.builder import build_batch
from ottla.records.control import build_quorum_batch
from ottla.runtime.address import Address
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

VOTERS = VoterSet.of(Voter(ReplicaKey(1, b"d" * 16), {"CONTROLLER": Address("localhost", 9093)}))


class Lab:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.disk = SimDisk(3, clock=self.clock)
        self.disk.make_dirs("/data")
        self.disk.sync_all()
        self.log = self.open()

    def open(self, **config: int) -> KafkaRaftLog:
        options = KafkaRaftLogConfig(**{"max_retention_bytes": 0, **config})
        self.log = KafkaRaftLog.open(self.disk, self.clock, SeededRandom(1), "/data", options)
        return self.log

    def append(self, epoch: int, *values: bytes) -> None:
        base = self.log.end.offset
        batch = build_batch([(0, None, value) for value in values], base_offset=base, leader_epoch=epoch)
        self.log.append_as_leader(batch, epoch)

    def flush(self) -> None:
        plan = self.log.prepare_flush()
        if plan is not None:
            self.log.run_flush(plan)
            self.log.complete_flush(plan)

    def snapshot(self, offset: int, epoch: int) -> SnapshotId:
        id = SnapshotId(offset, epoch)
        self.log.snapshots.write(id, batches(epoch))
        return id


def batches(epoch: int, **options: object) -> list[bytes]:
    return list(
        encode_snapshot([b"s"], epoch=epoch, timestamp=1, last_contained_log_timestamp=1, **options)  # type: ignore[arg-type]
    )


def test_only_what_was_synced_counts_as_durable() -> None:
    lab = Lab()
    lab.append(1, b"a")
    assert (lab.log.end, lab.log.durable_end) == ((1, 1), 0)
    lab.flush()
    assert lab.log.durable_end == 1
    lab.append(2, b"b")
    lab.disk.crash()
    assert lab.open().end.offset in (1, 2)
    assert lab.log.durable_end == lab.log.end.offset, "what recovery found is synced before it is believed"


def test_after_a_truncation_the_flush_before_it_proves_nothing() -> None:
    lab = Lab()
    lab.append(1, b"a")
    lab.append(1, b"b")
    plan = lab.log.prepare_flush()
    assert plan is not None
    lab.log.truncate_to(1)
    lab.append(2, b"c")
    lab.log.run_flush(plan)
    lab.log.complete_flush(plan)
    assert lab.log.durable_end <= 1


def test_where_epochs_end() -> None:
    lab = Lab()
    lab.append(1, b"a", b"b")
    lab.append(3, b"c")
    for epoch, expected in ((0, (0, 0)), (1, (2, 1)), (2, (2, 1)), (3, (3, 3)), (9, (3, 3))):
        found = lab.log.end_offset_for_epoch(epoch)
        assert found.offset == expected[0]
        assert epoch == 0 or found.epoch == expected[1]


def test_validation_and_truncation() -> None:
    lab = Lab()
    lab.append(1, b"a", b"b")
    lab.append(3, b"c")
    assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(0, 0)).kind is Validity.VALID
    assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(2, 1)).kind is Validity.VALID
    assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(5, 1)) == (Validity.DIVERGING, (2, 1))
    assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(3, 2)) == (Validity.DIVERGING, (2, 1))
    assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(4, 3)) == (Validity.DIVERGING, (3, 3))
    assert truncation_offset(lab.log, OffsetAndEpoch(1, 1)) == 1
    assert truncation_offset(lab.log, OffsetAndEpoch(9, 2)) == 2


class TestSnapshots:
    def test_a_fetched_snapshot_replaces_the_log(self) -> None:
        lab = Lab()
        lab.append(1, b"a")
        id = SnapshotId(10, 4)
        data = b"".join(batches(4, kraft_version=1, voters=VOTERS))
        lab.log.begin_snapshot(id)
        for position in range(0, len(data), 50):
            lab.log.write_snapshot(id, position, data[position : position + 50])
        assert lab.log.finish_download(lab.log.take_download(id))
        content = lab.log.start_after_snapshot(id)
        assert (content.values, content.voters) == ([b"s"], VOTERS)
        assert (lab.log.start_offset, lab.log.end) == (10, (10, 4))
        lab.disk.crash()
        log = lab.open()
        history, snapshot = log.load(None)
        assert log.end == (10, 4)
        assert history.voters == VOTERS
        assert snapshot is not None
        assert snapshot.id == id

    def test_a_damaged_one_is_not_taken(self) -> None:
        lab = Lab()
        id = SnapshotId(10, 4)
        lab.log.begin_snapshot(id)
        lab.log.write_snapshot(id, 0, b"".join(batches(4))[:-3])
        assert not lab.log.finish_download(lab.log.take_download(id))
        assert [name for name in lab.disk.list_dir(lab.log.dir) if "checkpoint" in name] == []

    def test_a_snapshot_makes_room(self) -> None:
        lab = Lab()
        for number in range(6):
            lab.append(1, b"value%d" % number)
        lab.flush()
        lab.log.update_high_watermark(6)
        for offset in (2, 4):
            lab.log.on_snapshot_written(lab.snapshot(offset, 1))
        assert lab.log.start_offset == 4
        assert lab.log.snapshots.ids == [SnapshotId(4, 1)]
        assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(3, 1)) == (Validity.SNAPSHOT, (4, 1))
        assert validate_offset_and_epoch(lab.log, OffsetAndEpoch(4, 1)).kind is Validity.VALID

    def test_but_not_under_a_flush(self) -> None:
        """A flush that found its segment gone would take the directory offline."""
        lab = Lab()
        lab.append(1, b"a", b"b")
        lab.flush()
        lab.log.update_high_watermark(2)
        lab.log.on_snapshot_written(lab.snapshot(1, 1))
        lab.append(1, b"c")
        plan = lab.log.prepare_flush()
        assert plan is not None
        lab.log.on_snapshot_written(lab.snapshot(2, 1))
        lab.log.run_flush(plan)
        lab.log.complete_flush(plan)
        assert lab.log.snapshots.ids == [SnapshotId(2, 1)]

    def test_a_beginning_that_is_gone_without_a_snapshot_is_refused(self) -> None:
        lab = Lab()
        lab.append(1, b"a", b"b")
        lab.flush()
        lab.log.update_high_watermark(2)
        for offset in (1, 2):
            lab.log.on_snapshot_written(lab.snapshot(offset, 1))
        lab.disk.unlink(f"{lab.log.dir}/{SnapshotId(2, 1).file_name}")
        lab.log.close()
        with pytest.raises(LogGap, match="no usable snapshot"):
            lab.open().load(None)


def test_voters_are_read_from_the_log() -> None:
    lab = Lab()
    lab.log.append_as_leader(
        build_quorum_batch([VOTERS.to_record()], timestamp=1, leader_epoch=1, base_offset=0), 1
    )
    history, _ = lab.log.load(VOTERS)
    assert history.last_entry is None, "kraft.version is still 0"


def test_damaged_records_from_a_leader_are_not_appended() -> None:
    lab = Lab()
    batch = bytearray(build_batch([(0, None, b"value")], base_offset=0, leader_epoch=1))
    batch[-1] ^= 1
    with pytest.raises(KafkaError):
        lab.log.append_as_follower(bytes(batch), 1)
    assert lab.log.end == (0, 0)
