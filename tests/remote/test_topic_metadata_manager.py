"""The metadata of remote segments follow their topic: late partitions too, and through failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ottla.node.remote.metadata_manager import TopicBasedRemoteLogMetadataManager
from ottla.node.remote.metadata_topic import MetadataRead
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
)
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop

TOPIC_ID = b"orders-topic-id!"


class FakeTopic:
    """The partitions of the topic in memory. Its next operations may fail."""

    def __init__(self, partitions: int = 2) -> None:
        self.partition_count = 0
        self._partitions = partitions
        self.values: dict[int, list[bytes]] = {}
        self.failures = 0
        self.reads = 0
        self._progress = asyncio.Event()

    async def create(self) -> None:
        await self._fail()
        self.partition_count = self._partitions

    async def append(self, partition: int, value: bytes) -> int:
        await self._fail()
        values = self.values.setdefault(partition, [])
        values.append(value)
        self._progress.set()
        return len(values) - 1

    async def read(self, partition: int, offset: int, *, waits: bool) -> MetadataRead:
        await self._fail()
        self.reads += 1
        values = self.values.setdefault(partition, [])
        if offset > len(values):
            return MetadataRead(b"", 0, len(values), is_truncated=True)
        while waits and offset >= len(values):
            self._progress.clear()
            await self._progress.wait()
        # A few at a time, so that a read does not bring all.
        some = values[offset : offset + 3]
        data = build_batch([(0, None, each) for each in some], base_offset=offset) if some else b""
        return MetadataRead(data, 0, len(values))

    async def _fail(self) -> None:
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader has moved")

    async def close(self) -> None:
        """Nothing is held."""


def run(test: Coroutine[Any, Any, None]) -> None:
    loop = SimLoop(1)  # type: ignore[abstract]
    loop.run_until_complete(test)


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


def test_a_change_is_seen_when_it_returns() -> None:
    async def test() -> None:
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

    run(test())


def test_a_partition_that_is_assigned_later_gets_all_of_its_events() -> None:
    async def test() -> None:
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

    run(test())


def test_failures_are_tried_again() -> None:
    async def test() -> None:
        topic = FakeTopic()
        topic.failures = 7
        manager = manager_of(topic)
        manager.assign_partitions([id_of(0)])
        await manager.wait_until_ready(id_of(0))
        topic.failures = 5
        await copy(manager, 0, 0)
        assert manager.remote_log_segment_metadata(id_of(0), 0, 5) is not None
        await manager.close()

    run(test())


def test_a_change_that_takes_too_long_fails() -> None:
    async def test() -> None:
        topic = FakeTopic()
        manager = manager_of(topic, consume_wait_ms=5_000)
        manager.assign_partitions([id_of(0)])
        await manager.wait_until_ready(id_of(0))
        topic.failures = 1_000_000
        with pytest.raises(RemoteStorageError, match="within 5000 ms"):
            await copy(manager, 0, 0)
        await manager.close()

    run(test())


def test_a_topic_that_has_lost_events_is_read_again() -> None:
    async def test() -> None:
        topic = FakeTopic(1)
        manager = manager_of(topic)
        manager.assign_partitions([id_of(0)])
        await manager.wait_until_ready(id_of(0))
        for number in range(4):
            await copy(manager, 0, number)
        assert len(manager.list_remote_log_segments(id_of(0))) == 4
        index = metadata_partition(id_of(0), 1)
        del topic.values[index][3:]
        # The reader waits at the old end; what is appended next is below.
        topic.values[index].append(topic.values[index][0])
        topic._progress.set()
        manager.assign_partitions([id_of(1)])
        await manager.wait_until_ready(id_of(1))
        await manager.wait_until_ready(id_of(0))
        assert len(manager.list_remote_log_segments(id_of(0))) == 2
        await manager.close()

    run(test())


def test_records_that_cannot_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        topic = FakeTopic(1)
        topic.values[0] = [b"", b"\x01\x63\x00", b"nonsense"]
        manager = manager_of(topic)
        manager.assign_partitions([id_of(0)])
        await manager.wait_until_ready(id_of(0))
        await copy(manager, 0, 0)
        assert manager.remote_log_segment_metadata(id_of(0), 0, 5) is not None
        await manager.close()

    run(test())
    assert "offset 1 is skipped" in caplog.text


def test_a_reader_at_rest_reads_nothing() -> None:
    async def test() -> None:
        topic = FakeTopic()
        manager = manager_of(topic)
        manager.assign_partitions([id_of(0)])
        await manager.wait_until_ready(id_of(0))
        await asyncio.sleep(1)
        reads = topic.reads
        await asyncio.sleep(3600)
        assert topic.reads == reads
        await manager.close()

    run(test())
