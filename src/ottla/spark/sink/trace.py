"""Find the batch that wrote a record, by the decisions that the sink keeps.

A record batch names the producer and its epoch, and so the transaction; a decision lists the transactions of
a batch, with what the batch was made of. The decision topic is compacted: of each query it has the last
decision of its last run for good, and others until they are compacted, which is hours. The claim of a run
repeats the last decision before it. A topic for lineage (option `lineageTopic`) has all of them for as long
as it retains records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_batches
from ottla.spark.sink.client import SinkClient
from ottla.spark.sink.decision_state import (
    CommitDecision,
    DecisionRecord,
    DecisionRecordKind,
    TaskTransaction,
)
from ottla.spark.sink.fetch import fetch

FETCH_BYTES = 1024 * 1024
_NO_PRODUCER = -1


class NotTraced(Exception):
    """The batch of a record cannot be found; the text says why."""


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """The batch that wrote a record. `scope` is the query across its restarts, `run` one start of it. Where
    only the claim of a later run tells of the decision, `run` is empty and `decided_ms` None.
    """

    partition: TopicPartition
    offset: int
    scope: str
    run: str
    transaction: TaskTransaction
    decision: CommitDecision
    decided_ms: int | None


def trace(client: SinkClient, partition: TopicPartition, offset: int, topics: Sequence[str]) -> TracedRecord:
    """Find the batch of a record, by the decisions in these topics. Raises NotTraced if there is none."""
    return client.call(_trace(client, partition, offset, topics))


async def _trace(
    client: SinkClient, partition: TopicPartition, offset: int, topics: Sequence[str]
) -> TracedRecord:
    producer_id, epoch = await _producer_of(client, partition, offset)
    best: TracedRecord | None = None
    for topic in topics:
        async with aclosing(_decisions(client, topic)) as decisions:
            async for timestamp, record in decisions:
                for each in _transactions_of(record):
                    if (each.producer_id, each.epoch) == (producer_id, epoch):
                        match = _match(each, partition, offset)
                        found = _traced(record, each, partition, offset, timestamp)
                        if match is _Match.EXACT and found.decided_ms is not None:
                            return found
                        if match is not _Match.NONE and (best is None or best.decided_ms is None):
                            best = found
    if best is not None:
        return best
    raise NotTraced(
        f"no decision names the transaction that wrote {partition}@{offset} (producer {producer_id}, epoch "
        f"{epoch}). Either it was not Spark's sink, or the decision is compacted away: "
        f"{' and '.join(topics)} were read. Set the sink's option lineageTopic to keep all decisions"
    )


async def _producer_of(client: SinkClient, partition: TopicPartition, offset: int) -> tuple[int, int]:
    """The producer and the epoch of the record batch with this offset."""
    await client.cluster.topic(partition.topic, timeout_ms=client.cluster.config.request_timeout_ms)
    data = await fetch(client.cluster, partition, offset, max_bytes=FETCH_BYTES)
    code = ErrorCode.of(data.error_code)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        offsets = OffsetsAdmin(AdminRequests(client.cluster, client.cluster.config.request_timeout_ms))
        begin = (await offsets.beginning(partition.topic))[partition.partition]
        end = (await offsets.end(partition.topic))[partition.partition]
        range_text = "it is empty" if begin == end else f"it has {begin} to {end - 1}"
        raise NotTraced(f"{partition} has no offset {offset}; {range_text}")
    if code:
        raise KafkaError(code, f"cannot read {partition}: {code.text}")
    for _, header in iter_batches(data.records or b""):
        if header.base_offset <= offset < header.next_offset:
            if header.is_control:
                raise NotTraced(f"{partition}@{offset} is the end of a transaction, not a record")
            if header.producer_id == _NO_PRODUCER or not header.is_transactional:
                raise NotTraced(f"{partition}@{offset} was written without a transaction")
            await _check_not_aborted(client, partition, offset, header.producer_id)
            return header.producer_id, header.producer_epoch
    raise NotTraced(f"{partition} has no record at {offset}; it may be compacted away, or not be there yet")


async def _check_not_aborted(
    client: SinkClient, partition: TopicPartition, offset: int, producer_id: int
) -> None:
    """Refuse a record of an aborted transaction, which a decision that is not valid may name."""
    data = await fetch(client.cluster, partition, offset, max_bytes=1, read_committed=True)
    aborted = data.aborted_transactions or ()
    if any(each.producer_id == producer_id and each.first_offset <= offset for each in aborted):
        raise NotTraced(
            f"{partition}@{offset} is of an aborted transaction: no batch has committed it, and readers of "
            "committed records do not see it"
        )


def _transactions_of(record: DecisionRecord) -> tuple[TaskTransaction, ...]:
    """The transactions of a record's decision; none if its bytes are something else."""
    assert record.decision is not None
    try:
        return record.decision.transactions
    except ValueError:
        return ()


class _Match(Enum):
    NONE = "it wrote other offsets"
    POSSIBLE = "its ranges are not all known"
    EXACT = "it wrote this offset"


def _match(transaction: TaskTransaction, partition: TopicPartition, offset: int) -> _Match:
    """Whether the transaction of this producer and epoch wrote the offset. A decision with very many ranges
    keeps one of each transaction (`trim_ranges`); the producer and epoch are those of one task's transaction.
    """
    ranges = transaction.written_ranges
    for topic, index, first, last in ranges:
        if (topic, index) == (partition.topic, partition.partition):
            return _Match.EXACT if first <= offset <= last else _Match.NONE
    return _Match.POSSIBLE if len(ranges) <= 1 else _Match.NONE


def _traced(
    record: DecisionRecord, transaction: TaskTransaction, partition: TopicPartition, offset: int, time_ms: int
) -> TracedRecord:
    decision = record.decision
    assert decision is not None
    if record.kind is DecisionRecordKind.CLAIM:
        # The decision is that of an earlier run: mostly the last one, but that may have decided nothing.
        return TracedRecord(partition, offset, record.scope, "", transaction, decision, None)
    return TracedRecord(partition, offset, record.scope, record.run, transaction, decision, time_ms)


async def _decisions(client: SinkClient, topic: str) -> AsyncGenerator[tuple[int, DecisionRecord], None]:
    """All decisions of a topic, with the times of their records; none if the topic does not exist."""
    from ottla.client.consumer import Consumer

    settings = {
        name: value
        for name, value in client.options.settings.items()
        if name == "bootstrap.servers" or name.startswith(("security.", "sasl.", "ssl."))
    }
    view = await client.cluster.refresh(all_topics=True)
    if topic not in view.topics:
        return
    reader: Consumer[bytes, bytes] = Consumer(settings, auto_offset_reset="earliest")
    async with reader as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for record in await consumer.poll(timeout_ms=500):
                found = _decoded(record.value)
                if found is not None and found.decision is not None:
                    yield record.timestamp, found


def _decoded(value: bytes | None) -> DecisionRecord | None:
    """The record, None if another program has written it."""
    try:
        return None if value is None else DecisionRecord.decode(bytes(value))
    except ValueError:
        return None
