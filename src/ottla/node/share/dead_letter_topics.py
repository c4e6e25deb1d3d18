"""The dead-letter topics of share groups: which one a group may use, and what a writer asks of its leader.

Only one writer at a time writes the dead letters of a share partition: a marker raises the epoch of its
producer id in the partition of the dead-letter topic, and from then on that partition refuses what an earlier
writer has sent and that is still on its way. The marker ends no transaction, and consumers pass over it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import WriteMarkers
from ottla.log.config.log_config import LogConfig
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER, ConfigResource, ConfigResourceType
from ottla.node.cluster.internal_topic import InternalTopic
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.definitions.topic import DEAD_LETTER_ENABLE
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.share import DeadLetterPlace
from ottla.records.batch import iter_batches, read_records
from ottla.records.cost import likely_bytes, walk_cost
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.runtime import Runtime

OFFSET_HEADER: Final = "__dlq.errors.offset"

_DESCRIBE_PRODUCERS_VERSION: Final = 0
_LIST_OFFSETS_VERSION: Final = 6
_TIMEOUT_MS: Final = 30_000
_NO_SEQUENCE: Final = -1
# From this version on a marker is refused whose epoch is not higher than the one that is known.
_MARKER_VERSION: Final = 2
# A record or a batch whose content takes more than this when it is decompressed is not looked into.
MAX_PLAIN_BYTES: Final = 32 * 1024 * 1024
_MAX_DIGITS: Final = 19
# Topics that are kept open; the one that was used the longest ago makes room.
_OPEN_TOPICS: Final = 16


class LeaderMarkers(Protocol):
    """Has the leaders of partitions write a marker; gives a code for each."""

    def write(
        self, marker: WriteMarkers, partitions: frozenset[TopicPartition], /
    ) -> Mapping[TopicPartition, ErrorCode] | Awaitable[Mapping[TopicPartition, ErrorCode]]: ...


class ProducerMark(NamedTuple):
    """What the leader of a partition knows of a producer id: its epoch, and an offset that is not behind its
    last batch, if that is known.
    """

    epoch: int
    last_batch_offset: int | None


class DeadLetterTarget(NamedTuple):
    """The partition that dead letters go to."""

    topic: str
    topic_id: bytes
    partition: int
    max_message_bytes: int


class DeadLetterTopics:
    """`topic_config` gives the settings of a topic's logs; `create_topic` has one created."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        log_flushes: LogFlushScheduler,
        heavy_work: HeavyWork,
        *,
        markers: Callable[[], LeaderMarkers],
        topic_config: Callable[[str], LogConfig],
        create_topic: Callable[[str, Mapping[str, str]], Awaitable[object]],
    ) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self._broker_id: Final = config.current.node_id
        self._metadata: Final = metadata
        self._peers: Final = peers
        self._replicas: Final = replicas
        self._log_flushes: Final = log_flushes
        self._heavy_work: Final = heavy_work
        self._markers: Final = markers
        self._topic_config: Final = topic_config
        self._create_topic: Final = create_topic
        self._channel: Final = peers.peer_channel("dead-letters")
        self._open: Final[dict[str, InternalTopic]] = {}

    async def close(self) -> None:
        for topic in list(self._open.values()):
            await topic.close()
        self._open.clear()
        self._channel.close()

    async def target(self, group_id: str, name: str, source_partition: int) -> DeadLetterTarget:
        """Find the partition for the dead letters of a partition; KafkaError if the topic is not there, or
        may not have them.
        """
        config, image = self._config.current, self._metadata.image
        prefix = config.text("errors.deadletterqueue.topic.name.prefix")
        group = f"share group {group_id!r}: errors.deadletterqueue.topic.name={name}"
        if name.startswith("__"):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{group} is the name of an internal topic; choose one that does not begin with __",
            )
        if not name.startswith(prefix):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{group} does not begin with {prefix!r}, as errors.deadletterqueue.topic.name.prefix of the "
                "brokers wants it; change one of them",
            )
        topic = image.topics.by_name.get(name)
        if topic is None:
            if config.flag("errors.deadletterqueue.auto.create.topics.enable"):
                await self._create_topic(name, {DEAD_LETTER_ENABLE: "true"})
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{group} is being created")
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{group} does not exist; create it with {DEAD_LETTER_ENABLE}=true",
            )
        settings = image.config(ConfigResource(ConfigResourceType.TOPIC, name))
        if settings.get(DEAD_LETTER_ENABLE, "false").strip().lower() != "true":
            raise KafkaError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"{group} may not have dead letters; set {DEAD_LETTER_ENABLE}=true of the topic",
            )
        partition = source_partition % len(topic.partitions)
        return DeadLetterTarget(name, topic.id, partition, self._topic_config(name).max_message_bytes)

    def former(self, place: DeadLetterPlace) -> DeadLetterTarget | None:
        """A partition that was the target before; None if its topic was deleted, with what was written."""
        topic = self._metadata.image.topics.by_id.get(place.topic_id)
        if topic is None:
            return None
        return DeadLetterTarget(topic.name, place.topic_id, place.partition, max_message_bytes=0)

    async def _topic(self, name: str) -> InternalTopic:
        known = self._open.pop(name, None)
        if known is None:
            known = InternalTopic(
                name,
                self._runtime,
                self._broker_id,
                self._metadata,
                self._peers,
                self._replicas,
                self._log_flushes,
                lambda name: self._create_topic(name, {}),
            )
        self._open[name] = known
        while len(self._open) > _OPEN_TOPICS:
            await self._open.pop(next(iter(self._open))).close()
        return known

    def _leader(self, target: DeadLetterTarget) -> int:
        registration = self._metadata.image.topics.partition(target.topic_id, target.partition)
        if registration is None or registration.leader == NO_LEADER:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"partition {target.partition} of dead-letter topic {target.topic!r} has no leader now",
            )
        return registration.leader

    async def producer(self, target: DeadLetterTarget, producer_id: int) -> ProducerMark:
        """Ask the leader what it knows of a producer id; its epoch is -1 if that is nothing."""
        leader, tp = self._leader(target), TopicPartition(target.topic, target.partition)
        if leader == self._broker_id:
            partition = self._replicas.partition(tp)
            partition.check_leader()
            entry = partition.log.producer_state_manager.active_producers.get(producer_id)
            if entry is None:
                return ProducerMark(-1, None)
            begin = entry.last_data_offset - entry.last_offset_delta if entry.batches else None
            return ProducerMark(entry.producer_epoch, begin)
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=target.topic, partition_indexes=[target.partition])]
        )
        response = await self._channel.request(
            leader, request, _DESCRIBE_PRODUCERS_VERSION, timeout_ms=_TIMEOUT_MS
        )
        assert isinstance(response, DescribeProducersResponse)
        part = response.topics[0].partitions[0]
        if part.error_code:
            raise KafkaError(ErrorCode.of(part.error_code), f"{tp}: {part.error_message or 'not described'}")
        for each in part.active_producers:
            if each.producer_id == producer_id:
                begin = None
                if each.last_sequence != _NO_SEQUENCE:
                    begin = await self._offset_at(leader, tp, each.last_timestamp)
                return ProducerMark(each.producer_epoch, begin)
        return ProducerMark(-1, None)

    async def _offset_at(self, leader: int, tp: TopicPartition, timestamp: int) -> int | None:
        asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=tp.topic, partitions=[asked])])
        response = await self._channel.request(leader, request, _LIST_OFFSETS_VERSION, timeout_ms=_TIMEOUT_MS)
        assert isinstance(response, ListOffsetsResponse)
        answer = response.topics[0].partitions[0]
        return None if answer.error_code or answer.offset < 0 else answer.offset

    async def fence(self, target: DeadLetterTarget, producer_id: int, epoch: int) -> None:
        """Have the partition refuse what was sent with an epoch below this one. Once it returns, all that was
        accepted before is committed.
        """
        tp = TopicPartition(target.topic, target.partition)
        marker = WriteMarkers(
            transactional_id="",
            writer=ProducerIdAndEpoch(producer_id, epoch),
            commit=False,
            partitions=frozenset((tp,)),
            coordinator_epoch=0,
            client_version=_MARKER_VERSION,
        )
        codes = self._markers().write(marker, frozenset((tp,)))
        if not isinstance(codes, Mapping):
            codes = await codes
        if codes[tp] is not ErrorCode.NONE:
            raise KafkaError(codes[tp], f"{tp}: dead letters cannot be written now: {codes[tp].text}")

    async def append(self, target: DeadLetterTarget, batch: bytes) -> None:
        """Append a batch; it is committed then."""
        self._leader(target)
        await (await self._topic(target.topic)).append_batch(target.partition, batch)

    async def committed_end(self, target: DeadLetterTarget) -> int:
        self._leader(target)
        return await (await self._topic(target.topic)).committed_end(target.partition)

    async def written(
        self, target: DeadLetterTarget, producer_ids: frozenset[int], begin: int, end: int
    ) -> set[int]:
        """Read the partition between two offsets: which records of its share partition the producer ids have
        written there.
        """
        topic, found = await self._topic(target.topic), set[int]()
        offset = begin
        while offset < end:
            read = await topic.read(target.partition, offset, waits=False)
            if offset < read.log_start_offset:
                offset = read.log_start_offset
                continue
            for position, header in iter_batches(read.records):
                offset = max(offset, header.last_offset + 1)
                if header.producer_id in producer_ids and not header.is_control:
                    plain = likely_bytes(header)
                    found |= await self._heavy_work.run(
                        topic.name,
                        walk_cost(header, plain),
                        letter_offsets,
                        read.records,
                        position,
                        memory_bytes=plain,
                    )
            if not read.records and offset < min(end, read.high_watermark):
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"{target.topic}-{target.partition} cannot be read at offset {offset}",
                )
            if read.high_watermark <= offset < end:
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"{target.topic}-{target.partition} ends at {read.high_watermark}, and had {end}",
                )
        return found


def letter_offsets(records: bytes, position: int) -> set[int]:
    """The offsets whose dead letters a batch has, in a thread: a client that may write to the topic can claim
    any producer id, and write what inflates or names no offset.
    """
    found = set()
    for record in read_records(records, position, max_decompressed_bytes=MAX_PLAIN_BYTES):
        for name, value in reversed(record.headers or ()):
            if name == OFFSET_HEADER:
                if (
                    value is not None
                    and (text := bytes(value)[: _MAX_DIGITS + 1]).isdigit()
                    and len(text) <= _MAX_DIGITS
                ):
                    found.add(int(text))
                break
    return found
