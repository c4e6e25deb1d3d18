"""A follower whose leader has a part of the log in remote storage only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.log.config.log_config import LogConfig
from ottla.log.producers.snapshot import encode_snapshot
from ottla.log.producers.state_entry import ProducerStateEntry
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.schema import Request, Response
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from ottla.remote.storage_manager import IndexType
from ottla.replication.list_offsets import fetch_offset_for_timestamp
from ottla.replication.partition import FetchIsolation
from ottla.replication.replica_fetcher import ReplicaFetcher
from tests.replication.partition_harness import TOPIC_ID, TP, registration
from tests.replication.test_replica_fetcher import FOLLOWER, Lab

REMOTE = LogConfig(
    segment_bytes=300,
    remote_storage_enable=True,
    local_retention_bytes=0,
    local_retention_ms=-1,
    retention_ms=-1,
)


class Store:
    """The reader of remote storage: what the leader's log knew when its segments left the disk."""

    def __init__(self, log: UnifiedLog) -> None:
        self.log = log
        self.failures = 0
        self.deletions = 0
        self.asked: list[tuple[int, int]] = []
        self.epochs = b""
        self.snapshot = encode_snapshot(())

    async def fetch_segment(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        assert partition == TopicIdPartition(TOPIC_ID, TP.partition)
        self.asked.append((epoch, offset))
        if self.failures:
            self.failures -= 1
            raise RemoteStorageError("the store is away")
        if self.log.leader_epoch_cache.epoch_for_offset(offset) != epoch:
            return None
        id = RemoteLogSegmentId(TOPIC_ID, TP, bytes(16))
        return RemoteLogSegmentMetadata(id, 0, offset, 0, 0, 0, 1, {0: 0})

    async def fetch_producers(self, partition: TopicIdPartition, log: UnifiedLog) -> bytes:
        return self.snapshot

    async def fetch_index(self, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        if index_type is IndexType.PRODUCER_SNAPSHOT:
            if self.deletions:
                self.deletions -= 1
                raise RemoteResourceNotFound("the segment is being deleted")
            return self.snapshot
        assert index_type is IndexType.LEADER_EPOCH
        entries = self.log.leader_epoch_cache.entries
        lines = [b"0", b"%d" % len(entries), *(b"%d %d" % entry for entry in entries)]
        return b"\n".join(lines) + b"\n"


class TieredLab(Lab):
    def __init__(self) -> None:
        super().__init__(log_config=REMOTE)
        self.leader.log.update_config(REMOTE)
        self.store = Store(self.leader.log)
        self.follows = replace(self.follows, remote_log_reader=lambda: self.store)
        self.fetcher = ReplicaFetcher(0, self, self.follows)
        self.leader.partition.make_leader(
            registration(replicas=(0, FOLLOWER), isr=(0,), partition_epoch=1), self.leader.now_ms
        )

    def fill(self) -> None:
        """Have the leader write several segments, and keep the last ones only on its disk."""
        for _ in range(12):
            self.leader.produce(2, acks=1)
        log = self.leader.log
        log.update_high_watermark(log.log_end_offset)
        log.update_highest_offset_in_remote_storage(log.segments[3].base_offset - 1)
        assert log.delete_old_segments(self.leader.now_ms) == 3
        assert 0 == log.log_start_offset < log.local_log_start_offset < log.log_end_offset

    async def send_request(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        if isinstance(request, OffsetForLeaderEpochRequest):
            (asked,) = request.topics[0].partitions
            found = self.leader.partition.last_offset_for_leader_epoch(asked.leader_epoch)
            end = EpochEndOffset(leader_epoch=found.epoch, end_offset=found.end_offset)
            return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(partitions=[end])])
        return await super().send_request(request, newest_version, timeout_ms)

    def _bounds(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        (asked,) = request.topics[0].partitions
        found = fetch_offset_for_timestamp(
            self.leader.partition, asked.timestamp, isolation=FetchIsolation.LOG_END
        )
        assert found is not None
        answer = ListOffsetsPartitionResponse(offset=found.offset, leader_epoch=found.leader_epoch)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(partitions=[answer])])

    def check_follower(self) -> None:
        leader, follower = self.leader.log, self.partition.log
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.log_start_offset == leader.log_start_offset
        assert follower.segments[0].base_offset == leader.local_log_start_offset
        assert follower.leader_epoch_cache.entries == leader.leader_epoch_cache.entries
        start = leader.local_log_start_offset
        assert follower.read(start, 10_000).records == leader.read(start, 10_000).records


def follow_to_the_end(lab: TieredLab) -> None:
    async def part() -> None:
        lab.follow()
        await lab.until(lambda: lab.end == lab.leader.log.log_end_offset)

    lab.live(part)


def test_a_new_follower_begins_where_the_disk_of_its_leader_does() -> None:
    lab = TieredLab()
    lab.fill()
    follow_to_the_end(lab)
    lab.check_follower()
    assert lab.store.asked == [(0, lab.leader.log.local_log_start_offset - 1)]


def test_a_follower_does_not_begin_without_the_producers_of_a_segment_that_is_being_deleted() -> None:
    lab = TieredLab()
    lab.fill()
    lab.store.deletions = 1
    follow_to_the_end(lab)
    lab.check_follower()
    assert lab.store.asked == [(0, lab.leader.log.local_log_start_offset - 1)] * 2


def test_the_segment_is_asked_for_by_the_epoch_of_its_last_record() -> None:
    lab = TieredLab()
    lab.fill()
    # A later epoch begins exactly where the disk of the leader does.
    log = lab.leader.log
    log.update_highest_offset_in_remote_storage(log.log_end_offset - 1)
    log.roll(lab.leader.now_ms)
    told = registration(replicas=(0, FOLLOWER), isr=(0,), leader_epoch=3, partition_epoch=2)
    lab.leader.partition.make_leader(told, lab.leader.now_ms)
    lab.partition.make_follower(told)
    lab.leader.produce(2, acks=1)
    log.update_high_watermark(log.log_end_offset)
    log.delete_old_segments(lab.leader.now_ms)
    start = log.local_log_start_offset
    assert log.leader_epoch_cache.epoch_for_offset(start) == 3
    follow_to_the_end(lab)
    assert lab.store.asked == [(0, start - 1)]
    lab.check_follower()


def test_a_follower_goes_on_when_remote_storage_is_back() -> None:
    lab = TieredLab()
    lab.fill()
    lab.store.failures = 3
    follow_to_the_end(lab)
    assert len(lab.store.asked) == 4
    lab.check_follower()


def test_a_follower_that_was_interrupted_begins_again() -> None:
    lab = TieredLab()
    lab.fill()
    # The log begins behind remote storage, but does not know of what is there: a crash came between.
    lab.partition.log.truncate_fully_and_start_at(lab.leader.log.local_log_start_offset, 0)
    assert lab.partition.log.lacks_auxiliary_state
    follow_to_the_end(lab)
    lab.check_follower()


def test_a_follower_that_has_lost_its_producers_takes_them_from_remote_storage() -> None:
    lab = TieredLab()
    lab.fill()
    log = lab.partition.log

    async def part() -> None:
        lab.follow()
        await lab.until(lambda: lab.end == lab.leader.log.log_end_offset)
        lab.fetcher.remove(TOPIC_ID, TP.partition)
        # The file is lost; a truncation has the log read it again.
        log.producer_snapshots.delete_all()
        log.truncate_to(log.log_end_offset - 1)
        assert log.lacks_producers
        lab.store.snapshot = encode_snapshot([ProducerStateEntry(5)])
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == lab.leader.log.log_end_offset)

    lab.live(part)
    first = lab.leader.log.local_log_start_offset
    lab.check_follower()
    assert not log.lacks_producers
    # What it has on its disk it keeps.
    assert log.segments[0].base_offset == first
    assert log.producer_snapshots.is_durable(first)
    assert [each.producer_id for each in log.producer_snapshots.load(first)] == [5]


def test_a_follower_from_before_the_log_start_begins_behind_remote_storage() -> None:
    lab = TieredLab()
    lab.fill()
    lab.leader.log.maybe_increment_log_start_offset(3, "a test")
    follow_to_the_end(lab)
    assert lab.partition.log.log_start_offset == 3
    lab.check_follower()


def test_a_follower_that_is_behind_drops_what_it_has() -> None:
    lab = TieredLab()

    async def part() -> None:
        lab.leader.produce(2, acks=1)
        lab.follow()
        await lab.until(lambda: lab.end == 2)
        lab.fetcher.remove(TOPIC_ID, TP.partition)
        lab.fill()
        lab.follow()
        await lab.until(lambda: lab.end == lab.leader.log.log_end_offset)

    lab.live(part)
    lab.check_follower()


def test_a_leader_without_remote_storage_yet_is_asked_again(caplog: Any) -> None:
    """The settings of the topic may come later to this broker than to its leader."""
    lab = TieredLab()
    lab.fill()
    lab.partition.log.update_config(replace(REMOTE, remote_storage_enable=False))

    async def part() -> None:
        lab.follow()
        await lab.until(lambda: len(lab.asked) >= 3)
        assert lab.end == 0
        lab.partition.log.update_config(REMOTE)
        await lab.until(lambda: lab.end == lab.leader.log.log_end_offset)

    lab.live(part)
    lab.check_follower()


def test_a_new_follower_begins_behind_what_is_in_remote_storage_if_it_is_set_to() -> None:
    lab = TieredLab()
    lab.fill()
    log = lab.leader.log
    for _ in range(12):
        lab.leader.produce(2, acks=1)
    log.update_high_watermark(log.log_end_offset)
    log.update_highest_offset_in_remote_storage(log.segments[2].base_offset - 1)
    pending = log.highest_offset_in_remote_storage + 1
    assert log.local_log_start_offset < pending < log.log_end_offset
    lab.follows = replace(lab.follows, fetches_last_tiered_offset=lambda: True)
    lab.fetcher = ReplicaFetcher(0, lab, lab.follows)
    follow_to_the_end(lab)
    follower = lab.partition.log
    assert lab.store.asked == [(0, pending - 1)]
    assert follower.segments[0].base_offset == pending
    assert follower.log_start_offset == 0
    assert follower.read(pending, 10_000).records == log.read(pending, 10_000).records
