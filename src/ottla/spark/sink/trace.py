"""Find the batch that wrote a record, by the decisions that the sink keeps.

A record batch names the producer and its epoch, and so the transaction; a decision lists the transactions of
a batch, with what the batch was made of. The decision topic is compacted: it has the last decision of each
run for good, and earlier ones until they are compacted, which is hours. A topic for lineage (option
`lineageTopic`) has all of them for as long as it retains records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_batches
from ottla.spark.sink.client import SinkClient
from ottla.spark.sink.decision_state import CommitDecision, DecisionRecord, TaskTransaction
from ottla.spark.sink.fetch import fetch

__all__ = ["NotTraced", "TracedRecord", "trace"]

FETCH_BYTES = 1024 * 1024
_NO_PRODUCER = -1


class NotTraced(Exception):
    """The batch of a record cannot be found; the text says why."""


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """The batch that wrote a record. `scope` is the query across its restarts, `run` one start of it."""

    partition: TopicPartition
    offset: int
    scope: str
    run: str
    transaction: TaskTransaction
    decision: CommitDecision
    decided_ms: int


def trace(client: SinkClient, partition: TopicPartition, offset: int, topics: Sequence[str]) -> TracedRecord:
    """Find the batch of a record, by the decisions in these topics. Raises NotTraced if there is none."""
    return client.call(_trace(client, partition, offset, topics))


async def _trace(
    client: SinkClient, partition: TopicPartition, offset: int, topics: Sequence[str]
) -> TracedRecord:
    producer_id, epoch = await _producer_of(client, partition, offset)
    for topic in topics:
        async with aclosing(_decisions(client, topic)) as decisions:
            async for timestamp, record in decisions:
                decision = record.decision
                assert decision is not None
                for each in decision.transactions:
                    if _wrote(each, producer_id, epoch, partition, offset):
                        return TracedRecord(
                            partition, offset, record.scope, record.run, each, decision, timestamp
                        )
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
            return header.producer_id, header.producer_epoch
    raise NotTraced(f"{partition} has no record at {offset}; it may be compacted away, or not be there yet")


def _wrote(
    transaction: TaskTransaction, producer_id: int, epoch: int, partition: TopicPartition, offset: int
) -> bool:
    """Whether this transaction wrote the offset. Its ranges are left out of decisions with very many."""
    if (transaction.producer_id, transaction.epoch) != (producer_id, epoch):
        return False
    ranges = transaction.written_ranges
    return not ranges or any(
        (topic, index) == (partition.topic, partition.partition) and first <= offset <= last
        for topic, index, first, last in ranges
    )


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
                if record.value is not None:
                    found = DecisionRecord.decode(bytes(record.value))
                    if found.decision is not None:
                        yield record.timestamp, found
