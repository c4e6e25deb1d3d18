"""The partitions of a topic that brokers keep state in: appended to and read at their leaders, here or
elsewhere.

Only leaders are read: a follower may not have a record yet that is committed, and who decides by what it
has read would decide wrongly, as a broker that deletes a segment because it has not seen that its copy was
finished. Reads of partitions with the same leader travel in one request, which waits at the leader until
one of them has something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.cluster.peers import PeerBrokers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.validation import AppendOrigin
from ottla.replication.list_offsets import fetch_offset_for_timestamp
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.partition import NO_EPOCH, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.rpc.request_batcher import RequestBatcher
from ottla.runtime.runtime import Runtime

_FETCH_VERSION: Final = 17
_PRODUCE_VERSION: Final = 13
_LIST_OFFSETS_VERSION: Final = 6
_EARLIEST: Final = -2
_LATEST: Final = -1
_READ_BYTES: Final = 1024 * 1024
_FETCH_BYTES: Final = 16 * 1024 * 1024
# How long a fetch waits at a leader. The fetches of other partitions of that leader wait for it here, and go
# together in the next one: a copy goes on when its events were read, so that is to be soon.
_FETCH_WAIT_MS: Final = 200
_TIMEOUT_MS: Final = 30_000


class TopicRead(NamedTuple):
    """What a read of a metadata partition returned."""

    records: bytes
    """Batches; the first may begin below the offset that was asked for."""
    log_start_offset: int
    high_watermark: int
    is_truncated: bool = False
    """True if what the reader has read below the offset is no longer in the partition: events are lost."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    partition: int
    offset: int
    epoch: int
    topic_id: bytes
    waits: bool


class _Wakeup:
    """Waits for the progress of a partition that this broker leads."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def on_partition_progress(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return


class InternalTopic:
    """`create_topic` has an internal topic created; `fetch_wait_ms` is how long a fetch waits at a leader."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        broker_id: int,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        log_flushes: LogFlushScheduler,
        create_topic: Callable[[str], Awaitable[object]],
        *,
        fetch_wait_ms: int = _FETCH_WAIT_MS,
    ) -> None:
        self.name: Final = name
        self._fetch_wait_ms: Final = fetch_wait_ms
        self._clock: Final = runtime.clock
        self._pool: Final = runtime.pool
        self._broker_id: Final = broker_id
        self._metadata: Final = metadata
        self._replicas: Final = replicas
        self._log_flushes: Final = log_flushes
        self._create_topic: Final = create_topic
        self._fetch_channel: Final = peers.peer_channel(f"{name.strip('_')}-fetch")
        self._produce_channel: Final = peers.peer_channel(name.strip("_"))
        self._fetches: Final = RequestBatcher(self._send_fetch, lambda each: each.partition)

    async def close(self) -> None:
        await self._fetches.close()
        self._fetch_channel.close()
        self._produce_channel.close()

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic; None while there is none. Another one if it was deleted and created again."""
        topic = self._metadata.image.topics.by_name.get(self.name)
        return None if topic is None else topic.id

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while there is none."""
        topic = self._metadata.image.topics.by_name.get(self.name)
        return 0 if topic is None else len(topic.partitions)

    async def create(self) -> None:
        """Have the topic created. That it exists by now is no error, and where it fails it is tried again."""
        await self._create_topic(self.name)

    def led_here(self) -> dict[int, tuple[bytes, int]]:
        """The partitions that this broker leads, each with the id of the topic and its leader epoch."""
        topic = self._metadata.image.topics.by_name.get(self.name)
        if topic is None:
            return {}
        return {
            index: (topic.id, registration.leader_epoch)
            for index, registration in topic.partitions.items()
            if registration.leader == self._broker_id
        }

    def _leader(self, partition: int) -> tuple[int, bytes]:
        """The leader of a partition and the id of the topic; LEADER_NOT_AVAILABLE if there is none now."""
        topic = self._metadata.image.topics.by_name.get(self.name)
        registration = None if topic is None else topic.partitions.get(partition)
        if topic is None or registration is None or registration.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self.name}-{partition} has no leader now")
        return registration.leader, topic.id

    # Appends

    async def append(self, partition: int, value: bytes) -> int:
        """Append a record, and return its offset once it is committed. KafkaError or OSError if that is not
        known; then it may be there nevertheless.
        """
        batch = build_batch([(self._clock.wall_ms(), None, value)])
        return await self.append_batch(partition, batch, AppendOrigin.COORDINATOR)

    async def append_batch(
        self, partition: int, batch: bytes, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> int:
        """Append a batch, and return the offset of its first record once it is committed, as `append`. One
        with sequences that is there already has its offset. At another broker the origin is a client.
        """
        leader, topic_id = self._leader(partition)
        now_ms = self._clock.wall_ms()
        if leader == self._broker_id:
            return await self._append_here(partition, batch, now_ms, origin)
        response = await self._produce_channel.request(
            leader,
            ProduceRequest(
                acks=-1,
                timeout_ms=_TIMEOUT_MS,
                topic_data=[
                    TopicProduceData(
                        name=self.name,
                        topic_id=topic_id,
                        partition_data=[PartitionProduceData(index=partition, records=batch)],
                    )
                ],
            ),
            _PRODUCE_VERSION,
            timeout_ms=_TIMEOUT_MS,
        )
        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode.of(answer.error_code), f"{answer.error_message or 'not appended'}")
        return answer.base_offset

    async def _append_here(self, index: int, batch: bytes, now_ms: int, origin: AppendOrigin) -> int:
        tp = TopicPartition(self.name, index)
        partition = self._replicas.partition(tp)
        try:
            info = partition.append_records_to_leader(bytearray(batch), now_ms=now_ms, origin=origin)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp}: {error}") from error
        if info.rolled:
            self._log_flushes.flush_closed_segments(partition.log)
        end = info.last_offset + 1
        await self._replicas.purgatory.try_complete_else_watch(
            [tp], lambda: partition.check_enough_replicas_reach_offset(end) is not None, _TIMEOUT_MS
        )
        outcome = partition.check_enough_replicas_reach_offset(end)
        if outcome is not ErrorCode.NONE:
            raise KafkaError(
                outcome or ErrorCode.REQUEST_TIMED_OUT, f"{tp}: the record at {end - 1} is not committed yet"
            )
        return info.first_offset

    # Reads

    async def read(
        self, partition: int, offset: int, *, waits: bool, last_epoch: int = NO_EPOCH
    ) -> TopicRead:
        """Read what is committed from `offset` on. If that is nothing, and it `waits`, return once there is
        something, or after some time. `last_epoch` is the leader epoch of the last event that the reader has:
        where the partition does not have that event before `offset` any more, it `is_truncated`, also if it
        has grown past the offset again.
        """
        leader, topic_id = self._leader(partition)
        if leader == self._broker_id:
            return await self._read_here(partition, offset, last_epoch, waits)
        found = await self._fetches.submit(leader, _Fetch(partition, offset, last_epoch, topic_id, waits))
        if isinstance(found, KafkaError) and found.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = [await self._offset_at(leader, partition, at) for at in (_EARLIEST, _LATEST)]
            # Within the log, it is the epoch that the leader does not have.
            is_truncated = offset > end or (last_epoch != NO_EPOCH and offset >= start)
            return TopicRead(b"", start, end, is_truncated)
        if isinstance(found, KafkaError):
            raise found
        return found

    async def committed_end(self, partition: int) -> int:
        """The offset below which everything is committed that was committed before now; OFFSET_NOT_AVAILABLE
        while a new leader does not know yet.
        """
        leader, _ = self._leader(partition)
        if leader != self._broker_id:
            return await self._offset_at(leader, partition, _LATEST)
        here = self._replicas.partition(TopicPartition(self.name, partition))
        found = fetch_offset_for_timestamp(here, _LATEST)
        assert found is not None
        return found.offset

    async def _read_here(self, index: int, offset: int, last_epoch: int, waits: bool) -> TopicRead:
        partition = self._replicas.partition(TopicPartition(self.name, index))
        partition.check_leader()
        log = partition.log
        if waits and offset >= log.high_watermark and not _has_diverged(log, offset, last_epoch):
            await self._wait_for_progress(partition, offset)
            partition.check_leader()
        start, high_watermark = log.log_start_offset, log.high_watermark
        if _has_diverged(log, offset, last_epoch):
            return TopicRead(b"", start, high_watermark, is_truncated=True)
        if not start <= offset < high_watermark:
            return TopicRead(b"", start, high_watermark)
        truncations = log.truncation_count
        found = await self._pool.run(
            lambda: log.read(offset, _READ_BYTES, upper_offset=high_watermark, min_one_batch=True)
        )
        if log.truncation_count != truncations:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{log.topic_partition} was truncated while it was read"
            )
        return TopicRead(found.records, start, high_watermark)

    async def _wait_for_progress(self, partition: Partition, offset: int) -> None:
        wakeup = _Wakeup()
        partition.watch(wakeup)
        try:
            if offset >= partition.log.high_watermark:
                await wakeup.wait(_TIMEOUT_MS)
        finally:
            partition.unwatch(wakeup)

    async def _send_fetch(self, broker: int, fetches: Sequence[_Fetch]) -> Sequence[TopicRead | KafkaError]:
        topics: dict[bytes, list[FetchPartition]] = {}
        for each in fetches:
            topics.setdefault(each.topic_id, []).append(
                FetchPartition(
                    partition=each.partition,
                    fetch_offset=each.offset,
                    last_fetched_epoch=each.epoch,
                    partition_max_bytes=_READ_BYTES,
                )
            )
        response = await self._fetch_channel.request(
            broker,
            FetchRequest(
                max_wait_ms=self._fetch_wait_ms if all(each.waits for each in fetches) else 0,
                min_bytes=1,
                max_bytes=_FETCH_BYTES,
                topics=[
                    FetchTopic(topic=self.name, topic_id=topic_id, partitions=partitions)
                    for topic_id, partitions in topics.items()
                ],
            ),
            _FETCH_VERSION,
            timeout_ms=_TIMEOUT_MS,
        )
        assert isinstance(response, FetchResponse)
        found: dict[int, TopicRead | KafkaError] = {}
        for topic in response.responses:
            for data in topic.partitions:
                code = ErrorCode.of(data.error_code or response.error_code)
                found[data.partition_index] = (
                    TopicRead(
                        bytes(data.records or b""),
                        data.log_start_offset,
                        data.high_watermark,
                        is_truncated=data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0,
                    )
                    if code is ErrorCode.NONE
                    else KafkaError(code, f"{self.name}-{data.partition_index}: {code.text}")
                )
        missing = KafkaError(ErrorCode.of(response.error_code), f"broker {broker} sent nothing")
        return [found.get(each.partition, missing) for each in fetches]

    async def _offset_at(self, broker: int, partition: int, timestamp: int) -> int:
        """Ask the leader where the partition begins or ends."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topic = ListOffsetsTopic(name=self.name, partitions=[asked])
        response = await self._produce_channel.request(
            broker, ListOffsetsRequest(topics=[topic]), _LIST_OFFSETS_VERSION, timeout_ms=_TIMEOUT_MS
        )
        assert isinstance(response, ListOffsetsResponse)
        answer = response.topics[0].partitions[0]
        if answer.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode.of(answer.error_code), "the offsets could not be listed")
        return answer.offset


def _has_diverged(log: UnifiedLog, offset: int, last_epoch: int) -> bool:
    """Whether the log does not have the event before `offset` that the leader of `last_epoch` wrote."""
    if offset > log.log_end_offset:
        return True
    if last_epoch == NO_EPOCH or offset <= log.log_start_offset:
        return False
    epoch, end = log.end_offset_for_epoch(last_epoch)
    return epoch != last_epoch or end < offset
