"""The metadata of remote segments follow their topic: late partitions too, and through failures."""

from __future__ import annotations

import asyncio

import pytest

from ottla.node.cluster.internal_topic import TopicRead
from ottla.node.remote.topic_based_metadata_manager import TopicBasedRemoteLogMetadataManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.records.builder import build_batch
from ottla.remote.metadata_manager import metadata_partition
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteStorageError,
    RemoteStorageNotReady,
    encode_event,
)
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop
from tests.support.loops import in_virtual_time

TOPIC_ID = b"orders-topic-id!"


class FakeTopic:
    """The partitions of the topic in memory. Its next operations may fail."""

    def __init__(self, partitions: int = 2) -> None:
        self.partition_count = 0
        self.topic_id: bytes | None = None
        self._partitions = partitions
        self.values: dict[int, list[bytes]] = {}
        # The leader epoch of what is appended, and of each value.
        self.leader_epoch = 0
        self.epochs: dict[int, list[int]] = {}
        self.failures = 0
        self.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.reads = 0
        # How many of the committed values a new leader does not know to be committed yet.
        self.lag = 0
        self._progress = asyncio.Event()

    async def create(self) -> None:
        await self._fail()
        self.partition_count = self._partitions
        self.topic_id = b"metadata-topic-%d" % self.leader_epoch

    def delete(self) -> None:
        self.partition_count, self.topic_id = 0, None
        self.leader_epoch += 1
        self.values.clear()
        self.epochs.clear()

    def truncate(self, partition: int, end: int) -> None:
        """Lose events, as an unclean election may do."""
        del self.values[partition][end:], self.epochs[partition][end:]
        self.leader_epoch += 1
        self._progress.set()

    async def append(self, partition: int, value: bytes) -> int:
        await self._fail()
        values = self.values.setdefault(partition, [])
        values.append(value)
        self.epochs.setdefault(partition, []).append(self.leader_epoch)
        self._progress.set()
        return len(values) - 1

    async def read(self, partition: int, offset: int, *, waits: bool, last_epoch: int = -1) -> TopicRead:
        await self._fail()
        self.reads += 1
        if not self.partition_count:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "there is no topic")
        values = self.values.setdefault(partition, [])
        epochs = self.epochs.setdefault(partition, [])
        is_other = 0 < offset <= len(epochs) and 0 <= last_epoch != epochs[offset - 1]
        if offset > len(values) or is_other:
            return TopicRead(b"", 0, len(values), is_truncated=True)
        while waits and offset >= len(values) - self.lag:
            self._progress.clear()
            await self._progress.wait()
        # A few at a time, so that a read does not bring all.
        end = len(values) - self.lag
        some = list(zip(values, epochs, strict=True))[offset : min(offset + 3, end)]
        data = b"".join(
            build_batch([(0, None, value)], base_offset=offset + number, leader_epoch=epoch)
            for number, (value, epoch) in enumerate(some)
        )
        return TopicRead(data, 0, end)

    async def committed_end(self, partition: int) -> int:
        await self._fail()
        if self.lag:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the high watermark is behind the epoch")
        return len(self.values[partition])

    async def _fail(self) -> None:
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            raise KafkaError(self.error, "the leader has moved, or does not allow it")

    async def close(self) -> None:
        """Nothing is held."""


def manager_of(topic: FakeTopic, **more: int) -> TopicBasedRemoteLogMetadataManager:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    clock = LoopClock(lambda: loop.now_ns)
    runtime = Runtime(clock, SeededRandom(1), None, InlinePool(), None)  # type: ignore[arg-type]
    tasks = TaskSupervisor(clock, lambda reason: None)
    return TopicBasedRemoteLogMetadataManager(runtime, tasks, topic, **more)  # type: ignore[arg-type]


def id_of(partition: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, partition)


def segment(partition: int, number: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        id=RemoteLogSegmentId(TOPIC_ID, TopicPartition("orders", partition), bytes([partition, number] * 8)),
        start_offset=number * 10,
        end_offset=number * 10 + 9,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=100,
        segment_leader_epochs={0: number * 10},
    )


async def copy(manager: TopicBasedRemoteLogMetadataManager, partition: int, number: int) -> None:
    metadata = segment(partition, number)
    await manager.add_remote_log_segment_metadata(metadata)
    await manager.update_remote_log_segment_metadata(
        RemoteLogSegmentMetadataUpdate(metadata.id, 0, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1)
    )


@in_virtual_time()
async def test_a_change_is_seen_when_it_returns() -> None:
    topic = FakeTopic()
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    with pytest.raises(RemoteStorageNotReady):
        manager.list_remote_log_segments(id_of(0))
    await manager.wait_until_ready(id_of(0))
    assert manager.list_remote_log_segments(id_of(0)) == []
    for number in range(5):
        await copy(manager, 0, number)
        found = manager.remote_log_segment_metadata(id_of(0), 0, number * 10 + 5)
        assert found is not None
        assert found.id == segment(0, number).id
    await manager.close()


@in_virtual_time()
async def test_a_partition_that_is_assigned_later_gets_all_of_its_events() -> None:
    topic = FakeTopic(1)
    writer = manager_of(topic)
    writer.assign_partitions([id_of(0), id_of(1)])
    for number in range(10):
        await copy(writer, 0, number)
        await copy(writer, 1, number)
    reader = manager_of(topic)
    seen: list[TopicIdPartition] = []
    reader.add_listener(seen.append)
    reader.assign_partitions([id_of(0)])
    await reader.wait_until_ready(id_of(0))
    assert set(seen) == {id_of(0)}
    reader.assign_partitions([id_of(1)])
    assert reader.is_ready(id_of(0))
    await reader.wait_until_ready(id_of(1))
    for partition in (0, 1):
        assert len(reader.list_remote_log_segments(id_of(partition))) == 10
    await copy(writer, 1, 10)
    await asyncio.sleep(1)
    assert reader.remote_log_segment_metadata(id_of(1), 0, 105) is not None
    reader.stop_partitions([id_of(0)])
    with pytest.raises(RemoteStorageNotReady):
        reader.list_remote_log_segments(id_of(0))
    assert len(reader.list_remote_log_segments(id_of(1))) == 11
    await writer.close()
    await reader.close()


@in_virtual_time()
async def test_a_leader_that_does_not_know_what_is_committed_makes_nothing_ready() -> None:
    """Segments whose events it does not show yet would be taken for lost, and the log begin behind them."""
    topic = FakeTopic(1)
    before = manager_of(topic)
    before.assign_partitions([id_of(0)])
    for number in range(3):
        await copy(before, 0, number)
    await before.close()
    for lag in (6, 2):
        topic.lag = lag
        manager = manager_of(topic)
        manager.assign_partitions([id_of(0)])
        await asyncio.sleep(60)
        assert not manager.is_ready(id_of(0))
        topic.lag = 0
        await manager.wait_until_ready(id_of(0))
        assert len(manager.list_remote_log_segments(id_of(0))) == 3
        await manager.close()


@in_virtual_time()
async def test_failures_are_tried_again() -> None:
    topic = FakeTopic()
    topic.failures = 7
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    topic.failures = 5
    await copy(manager, 0, 0)
    assert manager.remote_log_segment_metadata(id_of(0), 0, 5) is not None
    await manager.close()


@in_virtual_time()
async def test_a_broker_that_may_not_use_the_topic_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = FakeTopic()
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    topic.failures, topic.error = 5, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await copy(manager, 0, 0)
    await manager.close()
    (report,) = (each.getMessage() for each in caplog.records if "super.users" in each.getMessage())
    assert "needs the ACLs Read, Write and Describe on the topic __remote_log_metadata" in report


@in_virtual_time()
async def test_a_change_that_takes_too_long_fails() -> None:
    topic = FakeTopic()
    manager = manager_of(topic, consume_wait_ms=5_000)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    topic.failures = 1_000_000
    with pytest.raises(RemoteStorageError, match="within 5000 ms"):
        await copy(manager, 0, 0)
    await manager.close()


@in_virtual_time()
async def test_a_topic_that_has_lost_events_is_read_again() -> None:
    topic = FakeTopic(1)
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    for number in range(4):
        await copy(manager, 0, number)
    assert len(manager.list_remote_log_segments(id_of(0))) == 4
    index = metadata_partition(id_of(0), 1)
    # The reader waits at the old end; what is appended next is below.
    first = topic.values[index][0]
    topic.truncate(index, 3)
    await topic.append(index, first)
    manager.assign_partitions([id_of(1)])
    await manager.wait_until_ready(id_of(1))
    await manager.wait_until_ready(id_of(0))
    assert len(manager.list_remote_log_segments(id_of(0))) == 2
    await manager.close()


@in_virtual_time()
async def test_lost_events_are_noticed_though_the_topic_grew_past_them() -> None:
    topic = FakeTopic(1)
    manager = manager_of(topic)
    heard: list[tuple[TopicIdPartition, bool]] = []
    manager.add_listener(lambda id: heard.append((id, manager.is_ready(id))))
    manager.assign_partitions([id_of(0), id_of(1)])
    for number in range(4):
        await copy(manager, 0, number)
    topic.truncate(0, 3)
    heard.clear()
    # Before the reader comes to it, there are more events than it has read.
    for number in range(10, 14):
        topic.values[0].append(encode_event(segment(1, number)))
        topic.values[0].append(topic.values[0][0])
        topic.epochs[0] += [1, 1]
    await asyncio.sleep(60)
    assert (id_of(0), False) in heard
    assert heard.index((id_of(0), False)) < heard.index((id_of(0), True))
    assert [each.start_offset for each in manager.list_remote_log_segments(id_of(0))] == [0, 10]
    assert len(manager.list_remote_log_segments(id_of(1))) == 4
    await copy(manager, 0, 1)
    await manager.close()


@in_virtual_time()
async def test_a_change_whose_event_was_lost_fails() -> None:
    topic = FakeTopic(1)
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await copy(manager, 0, 0)
    append = topic.append

    async def append_and_lose(partition: int, value: bytes) -> int:
        offset = await append(partition, value)
        topic.truncate(partition, 0)
        return offset

    topic.append = append_and_lose  # type: ignore[method-assign]
    with pytest.raises(RemoteStorageNotReady):
        await copy(manager, 0, 1)
    await manager.close()


@in_virtual_time()
async def test_a_topic_that_was_deleted_is_created_again_and_all_is_read_from_it() -> None:
    topic = FakeTopic(2)
    manager = manager_of(topic)
    lost: list[TopicIdPartition] = []
    manager.add_listener(lambda id: None if manager.is_ready(id) else lost.append(id))
    manager.assign_partitions([id_of(0), id_of(1), id_of(2)])
    for partition in range(3):
        await copy(manager, partition, 0)
    manager.on_topic_changed()
    assert not lost
    topic.delete()
    manager.on_topic_changed()
    await asyncio.sleep(1)
    assert sorted(lost) == [id_of(0), id_of(1), id_of(2)]
    for partition in range(3):
        await manager.wait_until_ready(id_of(partition))
        assert manager.list_remote_log_segments(id_of(partition)) == []
        await copy(manager, partition, 1)
        assert len(manager.list_remote_log_segments(id_of(partition))) == 1
    await manager.close()


@in_virtual_time()
async def test_records_that_cannot_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    topic = FakeTopic(1)
    topic.values[0] = [b"", b"\x01\x63\x00", b"nonsense"]
    topic.epochs[0] = [0, 0, 0]
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    await copy(manager, 0, 0)
    assert manager.remote_log_segment_metadata(id_of(0), 0, 5) is not None
    await manager.close()
    assert "offset 1 is skipped" in caplog.text


@in_virtual_time()
async def test_a_reader_at_rest_reads_nothing() -> None:
    topic = FakeTopic()
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0)])
    await manager.wait_until_ready(id_of(0))
    await asyncio.sleep(1)
    reads = topic.reads
    await asyncio.sleep(3600)
    assert topic.reads == reads
    await manager.close()


@in_virtual_time()
async def test_what_waits_for_it_ends_when_it_is_closed() -> None:
    topic = FakeTopic()
    topic.failures = 1_000_000  # no leader answers
    manager = manager_of(topic)
    manager.assign_partitions([id_of(0), id_of(1)])
    waiting = [asyncio.ensure_future(manager.wait_until_ready(id_of(partition))) for partition in (0, 1)]
    await asyncio.sleep(60)
    assert not any(each.done() for each in waiting)
    await manager.close()
    for wait in (*waiting, manager.wait_until_ready(id_of(0)), copy(manager, 1, 0)):
        with pytest.raises(RemoteStorageNotReady):
            await asyncio.wait_for(wait, 1)
