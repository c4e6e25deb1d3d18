"""The decision log on the brokers: append a record and learn its offset, read what was appended.

One topic serves all sinks of a cluster; a scope lives in one partition of it, chosen as Kafka chooses by key.
A record counts for the reader as soon as it is committed, so whoever appended one (acks=all) can read
everything before it. What was read is kept per process: the next read goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ottla.client.admin.caller import Caller
from ottla.client.admin.configs import ConfigsAdmin, ResourceType
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import Record
from ottla.records.batch import iter_batches, read_records
from ottla.records.partitioning import partition_for
from ottla.spark.sink.fetching import fetch
from ottla.spark.sink.ledger import Decision, Entry, Ledger, key_of

__all__ = ["DecisionLog", "LogTruncated"]

log = logging.getLogger(__name__)

PARTITIONS = 16
MAX_RECORD_BYTES = 16 * 1024 * 1024
CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments, cleaned soon: a process that starts reads all of its partition.
    "segment.bytes": str(8 * 1024 * 1024),
    "segment.ms": str(6 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    # What two drivers of one query write against each other within this time stays as it is.
    "min.compaction.lag.ms": str(10 * 60 * 1000),
    "max.message.bytes": str(MAX_RECORD_BYTES),
}
MOST_LEDGERS = 64
FETCH_BYTES = 8 * 1024 * 1024
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class LogTruncated(KafkaError):
    """The decision log has lost records, or was made anew under a running query."""

    def __init__(self, partition: TopicPartition, offset: int, end: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the sink's decision log {partition} ends at {end}, but {offset} had been read: it was cut off "
            "or deleted. What of this query was committed can no longer be told; look at the target topics, "
            "then start the query with a new checkpoint",
        )


class DecisionLog:
    """Belongs to one process and one event loop. `timeout_ms` bounds every call."""

    def __init__(self, cluster: Cluster, topic: str, *, timeout_ms: int) -> None:
        self.topic = topic
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._producer: Producer | None = None
        self._ledgers: dict[str, Ledger] = {}

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close(timeout_ms=1_000)

    async def partition(self, scope: str) -> TopicPartition:
        """Where the scope lives. The topic is created if it is not there."""
        info = self._cluster.view.topics.get(self.topic)
        if info is None or info.error or not info.partitions:
            await self._create()
            info = await self._cluster.topic(self.topic, timeout_ms=self._timeout_ms)
        return TopicPartition(self.topic, partition_for(scope.encode(), len(info.partitions)))

    async def _create(self) -> None:
        caller = Caller(self._cluster, self._timeout_ms)
        if await self._exists():
            await self._check_compacted(caller)
            return
        try:
            await TopicsAdmin(caller).create(self.topic, partitions=PARTITIONS, configs=CONFIGS)
            log.info("created %r, the topic of the sink's decisions", self.topic)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise KafkaError(
                    error.code,
                    f"cannot create the topic of the sink's decisions ({error.message}); create "
                    f"{self.topic!r} with cleanup.policy=compact, or name another with decisionTopic",
                ) from None

    async def _check_compacted(self, caller: Caller) -> None:
        """A topic that deletes by age would forget what was decided, and a batch be written twice."""
        name = "cleanup.policy"
        try:
            configs = await ConfigsAdmin(caller).describe(ResourceType.TOPIC, self.topic, keys=[name])
        except KafkaError as error:
            log.info("whether %r is compacted is not known: %s", self.topic, error)
            return
        policy = configs[name].value if name in configs else None
        if policy is not None and policy.strip() != "compact":
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the topic of the sink's decisions, {self.topic!r}, has {name}={policy}: it would forget "
                f"what was decided. Set {name}=compact, or name another topic with decisionTopic",
            )

    async def _exists(self) -> bool:
        """Asked so that the broker does not create it by the way, with settings that are no good for it."""
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

    async def append(self, entry: Entry) -> int:
        """The offset that the record got. If this fails, whether it was appended is not known."""
        offset = await self._send(entry.scope, key_of(entry), entry.encode())
        ledger = self._ledgers.get(entry.scope)
        if ledger is not None and offset < ledger.position:
            raise LogTruncated(await self.partition(entry.scope), ledger.position, offset + 1)
        if ledger is not None and offset == ledger.position:
            ledger.apply(offset, entry)  # nobody came between: there is nothing to read
            ledger.position = offset + 1
        return offset

    async def forget(self, scope: str, keys: Iterable[str]) -> None:
        """Tombstones for records that nobody needs any more."""
        await asyncio.gather(*(self._send(scope, key, None) for key in keys))

    async def _send(self, scope: str, key: str, value: bytes | None) -> int:
        partition = await self.partition(scope)
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
        sent = await self._producer.send(self.topic, value, key=key.encode(), partition=partition.partition)
        return sent.offset

    # Reading.

    async def read(self, scope: str, *, through: int | None = None) -> Ledger:
        """The scope's records through this offset at least, or as far as they are committed now."""
        partition = await self.partition(scope)
        known = self._ledgers.get(scope)
        if known is not None and through is not None and known.position > through:
            return known
        through = -1 if through is None else through
        ledger = self._ledgers.pop(scope, None) or Ledger(scope)
        while len(self._ledgers) >= MOST_LEDGERS:
            self._ledgers.pop(next(iter(self._ledgers)))
        records, position = await self._read(partition, ledger.position, through, to_end=True)
        apply(ledger, records)
        ledger.position = position
        self._ledgers[scope] = ledger
        return ledger

    async def read_between(self, scope: str, start: int, through: int) -> list[tuple[int, Entry]]:
        """The scope's records from one offset through another, without what was before."""
        records, _ = await self._read(await self.partition(scope), start, through, to_end=False)
        return [
            (record.offset, Entry.decode(bytes(record.value)))
            for record in records
            if record.value is not None and _scope_of(record) == scope and record.offset <= through
        ]

    async def abandoned(self, before_ms: int) -> list[tuple[str, str, Decision]]:
        """(scope, run, decision) of batch writes that were decided before this time and not finished: who has
        ended all transactions takes the records away.
        """
        await self.partition("")
        count = len(self._cluster.view.topics[self.topic].partitions)
        ledgers: dict[str, Ledger] = {}
        decided: dict[str, tuple[str, int]] = {}
        for index in range(count):
            records, _ = await self._read(TopicPartition(self.topic, index), 0, -1, to_end=True)
            for record in records:
                scope = _scope_of(record)
                apply(ledgers.setdefault(scope, Ledger(scope)), [record])
                run = bytes(record.key or b"").decode(errors="replace").rpartition("/")[2]
                if record.value is None:
                    decided.pop(scope, None)
                elif Entry.decode(bytes(record.value)).is_of_a_batch_write:
                    decided[scope] = run, record.timestamp
        return [
            (scope, run, found[1])
            for scope, (run, timestamp) in decided.items()
            if timestamp < before_ms and (found := ledgers[scope].decided()) is not None
        ]

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
                    f"{partition}: offset {through} is not readable; the log ends at {end}",
                )
            except KafkaError as failure:
                if not failure.retriable:
                    raise
                error = failure
            wait = backoff.next_ms() / 1000
            if loop.time() + wait >= deadline:
                raise error
            await asyncio.sleep(wait)
            if error.code in _MOVED:
                await self._cluster.refresh(topics=[self.topic])

    async def _fetch(
        self, partition: TopicPartition, position: int, *, wait: bool
    ) -> tuple[list[Record], int, int]:
        """Records from `position` on, the position behind them, and the end of what is committed."""
        data = await fetch(
            self._cluster, partition, position, max_wait_ms=500 if wait else 0, max_bytes=FETCH_BYTES
        )
        code = ErrorCode.of(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise LogTruncated(partition, position, data.high_watermark)
        if code:
            raise KafkaError(code, f"cannot read the sink's decision log {partition}: {code.text}")
        records: list[Record] = []
        raw = data.records or b""
        for at, header in iter_batches(raw):
            if not header.is_control:
                records += [each for each in read_records(raw, at) if each.offset >= position]
            position = max(position, header.next_offset)
        return records, position, data.high_watermark


def apply(ledger: Ledger, records: Iterable[Record]) -> None:
    """Puts the records of the ledger's scope into it; those of others are passed over."""
    for record in records:
        if _scope_of(record) != ledger.scope:
            continue
        if record.value is None:
            ledger.forget(bytes(record.key or b"").decode())
        else:
            ledger.apply(record.offset, Entry.decode(bytes(record.value)))


def _scope_of(record: Record) -> str:
    """From the key, `SCOPE/RUN`: most records are of other scopes, and not worth decoding."""
    return bytes(record.key or b"").decode(errors="replace").rpartition("/")[0]
