"""The sink's decision log on the brokers: append records, and read them into a `DecisionState` per scope.

One topic serves all sinks of a cluster. A scope lives in one partition of it, chosen by key as Kafka does. A
reader sees a record as soon as it is committed, so a process that has appended one with acks=all can read
everything before it. The state of a scope is kept by process: the next read continues where the last ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from ottla.client.admin.configs import ConfigsAdmin, ResourceType
from ottla.client.admin.requests import AdminRequests
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.network_client import NetworkClient
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import Record, partition_for
from ottla.records.batch import iter_batches, read_records
from ottla.spark.sink.decision_state import CommitDecision, DecisionRecord, DecisionState
from ottla.spark.sink.fetch import fetch

log = logging.getLogger(__name__)

PARTITIONS = 16
# Of a new decision log, where there are as many brokers. More if the data have more.
MIN_REPLICAS = 3
MAX_RECORD_BYTES = 16 * 1024 * 1024
CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments that are cleaned soon: a new process reads its whole partition.
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(6 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    # Records of concurrent drivers of one query stay uncompacted for this long.
    "min.compaction.lag.ms": str(10 * 60 * 1000),
    "max.message.bytes": str(MAX_RECORD_BYTES),
}
LINEAGE_CONFIGS = {"retention.ms": str(30 * 24 * 3600 * 1000), "max.message.bytes": str(MAX_RECORD_BYTES)}
MAX_STATES = 64
MAX_SCOPES = 1024
FETCH_BYTES = 8 * 1024 * 1024
_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class DecisionLogTruncated(KafkaError):
    """The decision log has lost records, or was deleted and created again under a running query."""

    def __init__(self, partition: TopicPartition, offset: int, end: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the sink's decision log {partition} ends at {end}, but {offset} had been read: it was "
            "truncated or deleted. It is not known any more what this query has committed; look at the "
            "target topics, then start the query with a new checkpoint",
        )


class DecisionLogMoved(KafkaError):
    """Partitions were added to the decision topic under a running query."""

    def __init__(self, scope: str, partition: TopicPartition, former: int) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"{scope}: partitions have been added to the decision topic {partition.topic!r}, which tells "
            f"records by their keys: those of this query are in partition {former}, and would be looked for "
            f"in partition {partition.partition} from now on, so that a repeated batch would be written "
            "twice. Start the query with a new checkpoint whose startingOffsets follow on what is in the "
            "topic. If the last batch is known to be complete, onUnsafeRestart=continue starts all the same",
        )


class DecisionLog:
    """The decision log of one process and event loop. `timeout_ms` bounds every call.

    `data_topic` is the topic that all rows go to, if there is one: a new decision log is at least as
    replicated.
    """

    def __init__(
        self, cluster: NetworkClient, topic: str, *, timeout_ms: int, data_topic: str | None = None
    ) -> None:
        self.topic = topic
        self._data_topic = data_topic
        self._checked: set[str] = set()  # topics that are not replicated better than the decision log
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._producer: Producer | None = None
        self._states: dict[str, DecisionState] = {}
        self._partitions: dict[str, int] = {}  # by scope; a key's partition must not change
        self._known_topics: set[str] = set()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close(timeout_ms=1_000)

    async def partition(self, scope: str) -> TopicPartition:
        """The partition of the scope. Creates the topic if it does not exist. Raises DecisionLogMoved if the
        partition was another one before.
        """
        found = TopicPartition(self.topic, partition_for(scope.encode(), await self._partition_count()))
        former = self._partitions.setdefault(scope, found.partition)
        if former != found.partition:
            raise DecisionLogMoved(scope, found, former)
        if len(self._partitions) > MAX_SCOPES:
            self._partitions.pop(next(iter(self._partitions)))
        return found

    async def _partition_count(self) -> int:
        info = self._cluster.metadata.topics.get(self.topic)
        if info is None or info.error or not info.partitions:
            await self._ensure_topic()
            info = await self._cluster.topic(self.topic, timeout_ms=self._timeout_ms)
        return len(info.partitions)

    async def _ensure_topic(self) -> None:
        caller = AdminRequests(self._cluster, self._timeout_ms)
        if await self.exists():
            await self._check_compacted(caller)
            return
        try:
            await self._create(caller, self.topic, PARTITIONS, CONFIGS)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    error.code,
                    f"cannot create the topic of the sink's decision log ({error.message}); create "
                    f"{self.topic!r} with cleanup.policy=compact, or name another with decisionTopic",
                ) from None

    async def _create(
        self, caller: AdminRequests, topic: str, partitions: int, configs: Mapping[str, str]
    ) -> None:
        """Create a topic of the sink's own, as replicated as the data."""
        replicas, min_isr = await self._replication_of_data(caller)
        view = self._cluster.metadata if self._cluster.metadata.brokers else await self._cluster.refresh()
        replicas = max(replicas, min(MIN_REPLICAS, len(view.brokers)))
        await TopicsAdmin(caller).create(
            topic,
            partitions=partitions,
            replication_factor=replicas,
            configs={**configs, "min.insync.replicas": str(max(min_isr, replicas - 1, 1))},
        )
        log.info("created %r for the sink, with %d replicas", topic, replicas)

    async def _replication_of_data(self, caller: AdminRequests) -> tuple[int, int]:
        """The number of replicas and `min.insync.replicas` of the data; (0, 0) where they are not known."""
        if self._data_topic is None:
            return 0, 0
        name = "min.insync.replicas"
        try:
            replicas = max(await self._replica_counts(self._data_topic))
            configs = await ConfigsAdmin(caller).describe(ResourceType.TOPIC, self._data_topic, keys=[name])
            return replicas, int(configs[name].value or "0")
        except (KafkaError, KeyError, ValueError) as error:
            log.info("cannot read how %r is replicated: %s", self._data_topic, error)
            return 0, 0

    async def _warn_of_few_replicas(self, caller: AdminRequests, topic: str) -> None:
        """Warn of a topic that has fewer replicas than the data: while it is away, nothing is committed."""
        wanted, _ = await self._replication_of_data(caller)
        found = min(await self._replica_counts(topic))
        if found < wanted:
            log.warning("%r has %s, but %r has %d", topic, _replicas(found), self._data_topic, wanted)

    async def _replica_counts(self, topic: str) -> list[int]:
        info = await self._cluster.topic(topic, timeout_ms=self._timeout_ms)
        return [len(each.replicas) for each in info.partitions]

    async def check_replication(self, topics: Iterable[str]) -> None:
        """Check that the loss of a disk that the data survive does not lose decisions about them."""
        unchecked = sorted(set(topics) - self._checked)
        if not unchecked:
            return
        own = min(await self._replica_counts(self.topic))
        data = {each: max(await self._replica_counts(each)) for each in unchecked}
        check_replication(self.topic, own, data)
        self._checked.update(unchecked)

    async def _check_compacted(self, caller: AdminRequests) -> None:
        """Refuse a topic that deletes by age: it would lose decisions, and a batch could be written twice."""
        name = "cleanup.policy"
        try:
            configs = await ConfigsAdmin(caller).describe(ResourceType.TOPIC, self.topic, keys=[name])
        except KafkaError as error:
            log.info("cannot check whether %r is compacted: %s", self.topic, error)
            return
        policy = configs[name].value if name in configs else None
        if policy is not None and policy.strip() != "compact":
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the topic of the sink's decision log, {self.topic!r}, has {name}={policy}: it would lose "
                f"decisions. Set {name}=compact, or name another topic with decisionTopic",
            )

    async def exists(self) -> bool:
        """Ask without automatic topic creation, which would give the topic unsuitable settings."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False
        )
        answer = await self._cluster.retrying(
            lambda: self._cluster.request_any(request, MetadataResponse),
            timeout_ms=self._timeout_ms,
            what="metadata of the sink's decision log",
        )
        return answer.topics[0].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # Appending.

    async def append(self, record: DecisionRecord) -> int:
        """Append a record; its offset. If this fails, it is not known whether the record was appended."""
        offset = await self._send(record.scope, record.key, record.encode())
        state = self._states.get(record.scope)
        if state is not None and offset < state.position:
            raise DecisionLogTruncated(await self.partition(record.scope), state.position, offset + 1)
        if state is not None and offset == state.position:
            state.apply(offset, record)  # no other record is between: there is nothing to read
            state.position = offset + 1
        return offset

    async def append_tombstones(self, scope: str, keys: Iterable[str]) -> None:
        """Delete records that are not needed any more."""
        await asyncio.gather(*(self._send(scope, key, None) for key in keys))

    async def append_copy(self, topic: str, key: str, record: DecisionRecord) -> None:
        """Append a record to another topic, which deletes by age; it is created if it does not exist."""
        if topic not in self._known_topics:
            caller = AdminRequests(self._cluster, self._timeout_ms)
            try:
                await self._create(caller, topic, 1, LINEAGE_CONFIGS)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                await self._warn_of_few_replicas(caller, topic)
            self._known_topics.add(topic)
        producer = await self._started_producer()
        await producer.send(topic, record.encode(), key=key.encode())

    async def _send(self, scope: str, key: str, value: bytes | None) -> int:
        partition = await self.partition(scope)
        producer = await self._started_producer()
        sent = await producer.send(self.topic, value, key=key.encode(), partition=partition.partition)
        return sent.offset

    async def _started_producer(self) -> Producer:
        if self._producer is None:
            producer = Producer(
                cluster=self._cluster,
                client_id=self._cluster.config.client_id,
                bootstrap_servers=self._cluster.config.bootstrap_servers,
                acks="all",
                linger_ms=0,
                compression_type="gzip",
                max_request_size=MAX_RECORD_BYTES,
                request_timeout_ms=min(30_000, self._timeout_ms),
                delivery_timeout_ms=self._timeout_ms,
                max_block_ms=self._timeout_ms,
            )
            await producer.start()
            self._producer = producer
        return self._producer

    # Reading.

    async def read(self, scope: str, *, through: int | None = None) -> DecisionState:
        """The state of the scope through this offset at least, or through what is committed now."""
        partition = await self.partition(scope)
        known = self._states.get(scope)
        if known is not None and through is not None and known.position > through:
            return known
        through = -1 if through is None else through
        state = self._states.pop(scope, None) or DecisionState(scope)
        while len(self._states) >= MAX_STATES:
            self._states.pop(next(iter(self._states)))
        records, position = await self._read(partition, state.position, through, to_end=True)
        _apply(state, records)
        state.position = position
        self._states[scope] = state
        return state

    async def read_range(self, scope: str, start: int, through: int) -> list[tuple[int, DecisionRecord]]:
        """The scope's records from one offset through another."""
        records, _ = await self._read(await self.partition(scope), start, through, to_end=False)
        return [
            (record.offset, DecisionRecord.decode(bytes(record.value)))
            for record in records
            if record.value is not None and _scope_of(record) == scope and record.offset <= through
        ]

    async def find_abandoned_writes(self, before_ms: int) -> list[tuple[str, str, CommitDecision]]:
        """(scope, run, decision) of batch writes that were decided before this time and are not finished.

        The driver deletes the records of a batch write when it has committed all its transactions.
        """
        found: list[tuple[str, str, CommitDecision]] = []
        for index in range(await self._partition_count()):
            records, _ = await self._read(TopicPartition(self.topic, index), 0, -1, to_end=True)
            scopes: dict[str, dict[bytes, Record]] = {}  # the last record of each key, as compaction keeps it
            for record in records:
                scopes.setdefault(_scope_of(record), {})[bytes(record.key or b"")] = record
            for scope, by_key in scopes.items():
                left = [each for each in by_key.values() if each.value is not None]
                # Only streaming queries claim: most records need not be decoded.
                if left and not any(_is_claim(each) for each in by_key.values()):
                    found += _unfinished_write(scope, left, before_ms)
        return found

    async def _read(
        self, partition: TopicPartition, position: int, through: int, *, to_end: bool
    ) -> tuple[list[Record], int]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        backoff = self._cluster.new_backoff()
        found: list[Record] = []
        while True:
            try:
                records, position, end = await self._fetch(partition, position, wait=position <= through)
                found += records
                if position > through and (position >= end or not to_end):
                    return found, position
                if records:
                    continue
                error = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{partition}: offset {through} cannot be read yet; the log ends at {end}",
                )
            except KafkaError as failure:
                if not failure.retriable:
                    raise
                error = failure
            wait = backoff.next_ms() / 1000
            if loop.time() + wait >= deadline:
                raise error
            await asyncio.sleep(wait)
            if error.code in _STALE_METADATA:
                await self._cluster.refresh(topics=[self.topic])

    async def _fetch(
        self, partition: TopicPartition, position: int, *, wait: bool
    ) -> tuple[list[Record], int, int]:
        """Records from `position` on, the position after them, and the high watermark."""
        data = await fetch(
            self._cluster, partition, position, max_wait_ms=500 if wait else 0, max_bytes=FETCH_BYTES
        )
        code = ErrorCode.of(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise DecisionLogTruncated(partition, position, data.high_watermark)
        if code:
            raise KafkaError(code, f"cannot read the sink's decision log {partition}: {code.text}")
        records: list[Record] = []
        raw = data.records or b""
        for at, header in iter_batches(raw):
            if not header.is_control:
                records += [each for each in read_records(raw, at) if each.offset >= position]
            position = max(position, header.next_offset)
        return records, position, data.high_watermark


def check_replication(topic: str, replicas: int, data: Mapping[str, int]) -> None:
    """Refuse a decision log with fewer replicas than the topics that are written."""
    for name, count in data.items():
        if replicas < count:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the topic of the sink's decision log, {topic!r}, has {_replicas(replicas)}, but {name!r} "
                f"has {count}: if the decisions were lost, batches would be written twice. Raise the number "
                f"of replicas of {topic!r} by a reassignment (and its min.insync.replicas), or name another "
                "topic with decisionTopic when the query is started with a new checkpoint",
            )


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _apply(state: DecisionState, records: Iterable[Record]) -> None:
    """Apply the records of the state's scope; records of other scopes are skipped."""
    for record in records:
        if _scope_of(record) != state.scope:
            continue
        if record.value is None:
            state.apply_tombstone(bytes(record.key or b"").decode())
        else:
            state.apply(record.offset, DecisionRecord.decode(bytes(record.value)))


def _unfinished_write(
    scope: str, records: Iterable[Record], before_ms: int
) -> list[tuple[str, str, CommitDecision]]:
    """The decision of a batch write that was made before this time; none for records of another kind."""
    state = DecisionState(scope)
    ordered = sorted(records, key=lambda each: each.offset)
    try:
        _apply(state, ordered)
        decoded = ((each.timestamp, DecisionRecord.decode(bytes(each.value or b""))) for each in ordered)
        run = next(each.run for time_ms, each in decoded if each.is_batch_write and time_ms < before_ms)
    except (ValueError, StopIteration):  # not written by the sink, or no decision
        return []
    latest = state.latest_decision()
    return [] if latest is None else [(scope, run, latest[1])]


def _is_claim(record: Record) -> bool:
    return b"@" in bytes(record.key or b"").rpartition(b"/")[2]


def _scope_of(record: Record) -> str:
    """The scope in the key, `SCOPE/RUN`: most records are of other scopes, and need not be decoded."""
    return bytes(record.key or b"").decode(errors="replace").rpartition("/")[0]
