"""A task's reads and a stream's micro-batches against a node, without Spark."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.blocking import Admin, Producer
from ottla.client.cluster_metadata import ClusterMetadata
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Response
from ottla.spark.sink.options import DEFAULT_DECISION_TOPIC, OWN_TOPICS
from ottla.spark.source import micro_batch_stream, offset_reader, range_reader
from ottla.spark.source.client import SourceClient, source_client
from ottla.spark.source.columns import arrow_schema
from ottla.spark.source.data_loss import DataLoss
from ottla.spark.source.micro_batch_stream import MicroBatchStream
from ottla.spark.source.offset_ranges import OffsetRange, split
from ottla.spark.source.offset_reader import OffsetReader
from ottla.spark.source.offsets import LATEST, StreamOffset
from ottla.spark.source.options import SourceOptions, source_options
from tests.spark.conftest import SparkNode
from tests.support.fake_brokers import TOPIC, FakeCluster, FakePartition


@dataclass(frozen=True)
class SourceNode:
    """The node, and options that read from it."""

    servers: str
    admin: Admin
    producer: Producer
    new_topic: Callable[..., str]

    def options(self, topic: str, *, streaming: bool = False, **more: Any) -> SourceOptions:
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": topic}
        return source_options(
            {**given, **{name: str(value) for name, value in more.items()}}, streaming=streaming
        )


@pytest.fixture
def source(node: SparkNode, admin: Admin, producer: Producer, new_topic: Callable[..., str]) -> SourceNode:
    return SourceNode(node.bootstrap_servers, admin, producer, new_topic)


def whole(options: SourceOptions) -> list[OffsetRange]:
    offset_reader = OffsetReader(options)
    partitions = offset_reader.partitions()
    start, end = (
        offset_reader.start_of(options.start, partitions),
        offset_reader.end_of(options.end, partitions),
    )
    return [OffsetRange(p, partitions.ids.get(p.topic), start[p], end[p]) for p in partitions.all]


def batches_of(options: SourceOptions, *ranges: OffsetRange) -> list[pa.RecordBatch]:
    link = source_client(options.connection)
    return [batch for each in ranges for batch in range_reader.read_range(link, options, each)]


def values_of(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits that a test can reach."""
    monkeypatch.setattr(range_reader, "BATCH_ROWS", 50)
    monkeypatch.setattr(range_reader, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(range_reader, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(range_reader, "FIRST_FETCH_BYTES", 8_000)
    monkeypatch.setattr(range_reader, "MIN_FETCH_BYTES", 4_000)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_any_cut_of_a_partition_reads_each_record_once(source: SourceNode, codec: str) -> None:
    topic, seed = source.new_topic(), random.Random(7)
    values = [b"%d" % at * seed.randrange(1, 60) for at in range(3_000)]
    with Producer(source.servers, batch_size=3_000, compression_type=codec) as producer:
        producer.send_many(topic, values)
    read = source.options(topic)
    [everything] = whole(read)
    for parts in (1, 2, 7, 40):
        cuts = split([everything], min_partitions=parts)
        assert len(cuts) == parts
        batches = batches_of(read, *cuts)
        assert values_of(batches) == values
        assert all(batch.schema.equals(arrow_schema(read.columns)) for batch in batches)
        # A batch goes over a bound by one piece at most: some batches of 3,000 bytes.
        assert all(batch.num_rows <= 50 + 3_000 for batch in batches)


@pytest.mark.usefixtures("small_pieces")
def test_memory_is_bounded_by_pieces(source: SourceNode) -> None:
    topic = source.new_topic()
    with Producer(source.servers, batch_size=10_000, compression_type="zstd") as producer:
        producer.send_many(topic, [b"x" * 5_000] * 400)
    read = source.options(topic)
    batches = batches_of(read, *whole(read))
    assert sum(batch.num_rows for batch in batches) == 400
    assert len(batches) > 4, "two megabytes were not handed over at once"


def test_one_batch_larger_than_a_request_is_read(source: SourceNode) -> None:
    topic = source.new_topic()
    with Producer(source.servers, max_request_size=3_000_000, batch_size=1_000_000) as producer:
        producer.send_many(topic, [b"x" * 900_000, b"y"])
    read = source.options(topic, **{"kafka.max.partition.fetch.bytes": 1_000})
    assert [len(value) for value in values_of(batches_of(read, *whole(read)))] == [900_000, 1]


def test_records_that_go_while_a_task_runs_are_a_loss(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"%d" % at for at in range(10)])
    read = source.options(topic)
    [planned] = whole(read)
    source.admin.offsets.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(
        DataLoss, match=f"{topic}-0: offsets 0 to 5 are no longer in the log, which begins at 6"
    ):
        batches_of(read, planned)
    assert values_of(batches_of(replace(read, fail_on_data_loss=False), planned)) == [b"6", b"7", b"8", b"9"]
    gone = replace(planned, end=5)
    assert values_of(batches_of(replace(read, fail_on_data_loss=False), gone)) == []


def test_a_range_beyond_the_log_is_a_loss(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"0", b"1"])
    read = source.options(topic)
    [planned] = whole(read)
    beyond = replace(planned, start=5, end=9)
    with pytest.raises(DataLoss, match="offset 5 lies beyond the end of the log, 2"):
        batches_of(read, beyond)


def test_a_task_reads_only_the_topic_that_was_planned(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"old"])
    read = source.options(topic)
    [planned] = whole(read)
    source.admin.topics.delete(topic)
    source.admin.topics.create(topic, partitions=1)
    with pytest.raises(DataLoss, match=f"topic '{topic}' was deleted and created again"):
        batches_of(read, planned)
    assert values_of(batches_of(replace(read, fail_on_data_loss=False), planned)) == []


def test_a_task_has_a_timeout(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"0", b"1"])
    read = source.options(topic, **{"kafkaConsumer.pollTimeoutMs": 500, "kafka.fetch.max.wait.ms": 50})
    [planned] = whole(read)
    with pytest.raises(
        KafkaError, match=r"no records at offset [02] of the range that ends at 4, after 500 ms"
    ):
        batches_of(read, replace(planned, end=4))


def test_a_task_that_is_given_up_leaves_nothing_behind(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"x" * 1_000] * 2_000)
    read = source.options(topic)
    [planned] = whole(read)
    link = source_client(read.connection)
    reading: Iterator[pa.RecordBatch] = range_reader.read_range(link, read, planned)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert values_of(batches_of(read, replace(planned, end=2))) == [b"x" * 1_000] * 2


def test_clients_are_kept_and_bounded(source: SourceNode) -> None:
    config = source.options("t").connection
    assert source_client(config) is source_client(config)
    others = [source_client(replace(config, client_id=f"c{at}")) for at in range(10)]
    assert len({id(client) for client in others}) == 10
    assert not others[0]._thread.is_running, "the oldest client was closed"
    assert isinstance(source_client(config), SourceClient)


# Micro-batches of a stream.


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the cluster every time."""
    monkeypatch.setattr(micro_batch_stream, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(micro_batch_stream, "DISCOVERY_INTERVAL_S", 0.0)


@pytest.mark.usefixtures("unhurried")
def test_a_first_batch_says_where_it_begins(source: SourceNode) -> None:
    topic = source.new_topic(2)
    source.producer.send(topic, b"before", partition=0)
    stream = MicroBatchStream(source.options(topic, streaming=True))
    begin = stream.initial_offset()
    first = stream.latest_offset(begin, limited=False)
    assert first is not None
    assert first.begins == begin.positions
    assert stream.latest_offset(first, limited=False) is None
    source.producer.send(topic, b"after", partition=0)
    second = stream.latest_offset(first, limited=False)
    assert second is not None
    assert not second.begins
    # Repeated by a driver that finds another start of the log.
    later = MicroBatchStream(source.options(topic, streaming=True))
    assert later.initial_offset().positions[TopicPartition(topic, 0)] == 2
    assert later.plan_ranges(later.initial_offset(), first).ranges == []
    [again] = MicroBatchStream(source.options(topic, streaming=True)).plan_ranges(first, second).ranges
    assert (again.start, again.end) == (1, 2)


@pytest.mark.usefixtures("unhurried")
def test_a_new_partition_begins_where_its_batch_says(source: SourceNode) -> None:
    topic = source.new_topic()
    stream = MicroBatchStream(source.options(topic, streaming=True))
    first = stream.latest_offset(stream.initial_offset(), limited=False)
    assert first is not None
    source.admin.topics.add_partitions(topic, 2)
    with Producer(source.servers) as producer:
        producer.send(topic, b"x", partition=1)
    new = TopicPartition(topic, 1)
    second = stream.latest_offset(first, limited=False)
    assert second is not None
    assert second.begins == {new: 0}
    assert [each.partition for each in stream.plan_ranges(first, second).ranges] == [new]


@pytest.mark.usefixtures("unhurried")
def test_available_now_ends_where_the_topic_ended(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"%d" % at for at in range(5)])
    stream = MicroBatchStream(
        source.options(topic, streaming=True, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    )
    stream.prepare_for_trigger_available_now()
    at = stream.initial_offset()
    ends = []
    for _ in range(5):
        found = stream.latest_offset(at, limited=True)
        if found is None:
            break
        at = found
        ends.append(at.positions[TopicPartition(topic, 0)])
        source.producer.send(topic, b"more")
    assert ends == [3, 5]


@pytest.mark.usefixtures("unhurried")
def test_available_now_leaves_new_partitions_to_the_next_run(source: SourceNode) -> None:
    topic = source.new_topic()
    source.producer.send(topic, b"x")
    read = source.options(topic, streaming=True, startingOffsets="earliest")
    stream = MicroBatchStream(read)
    stream.prepare_for_trigger_available_now()
    first = stream.latest_offset(stream.initial_offset(), limited=True)
    assert first is not None
    source.admin.topics.add_partitions(topic, 2)
    assert stream.latest_offset(first, limited=True) is None
    next_run = MicroBatchStream(read).latest_offset(first, limited=True)
    assert next_run is not None
    assert next_run.begins == {TopicPartition(topic, 1): 0}


@pytest.mark.usefixtures("unhurried")
def test_a_batch_waits_for_more_rows_up_to_a_limit(source: SourceNode) -> None:
    topic = source.new_topic()
    clock = [1_000.0]
    stream = MicroBatchStream(
        source.options(
            topic, streaming=True, startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="10s"
        )
    )
    first = stream.latest_offset(stream.initial_offset(), limited=True, now=lambda: clock[0])
    assert first is not None
    source.producer.send_many(topic, [b"1", b"2"])
    assert stream.latest_offset(first, limited=True, now=lambda: clock[0]) is None
    clock[0] += 9.9
    assert stream.latest_offset(first, limited=True, now=lambda: clock[0]) is None
    clock[0] += 0.1
    second = stream.latest_offset(first, limited=True, now=lambda: clock[0])
    assert second is not None
    assert second.positions == {TopicPartition(topic, 0): 2}
    source.producer.send_many(topic, [b"3", b"4", b"5"])
    third = stream.latest_offset(second, limited=True, now=lambda: clock[0])
    assert third is not None
    assert third.positions == {TopicPartition(topic, 0): 5}


@pytest.mark.usefixtures("unhurried")
def test_a_topic_that_went_is_a_loss(source: SourceNode) -> None:
    stays, goes = source.new_topic(), source.new_topic()
    read = source.options(f"{stays},{goes}", streaming=True, startingOffsets="earliest")
    stream = MicroBatchStream(read)
    first = stream.latest_offset(stream.initial_offset(), limited=False)
    assert first is not None
    source.producer.send(stays, b"x")
    source.admin.topics.delete(goes)
    second = stream.latest_offset(first, limited=False)
    assert second is not None
    with pytest.raises(DataLoss, match=f"{goes}-0 no longer exist"):
        stream.plan_ranges(first, second)
    tolerant = MicroBatchStream(replace(read, fail_on_data_loss=False))
    assert [each.partition.topic for each in tolerant.plan_ranges(first, second).ranges] == [stays]


def test_while_nothing_comes_the_cluster_is_asked_at_a_decent_pace(source: SourceNode) -> None:
    read = source.options(source.new_topic(), streaming=True)
    stream = MicroBatchStream(read)
    first = stream.latest_offset(stream.initial_offset(), limited=False)
    assert first is not None
    assert stream.latest_offset(first, limited=False) is None
    link = source_client(read.connection)
    connection = link.call(link.cluster.any_connection())
    before = connection._next_correlation_id
    begin = time.monotonic()
    for _ in range(8):
        assert stream.latest_offset(first, limited=False) is None
    took = time.monotonic() - begin
    assert took >= 7 * micro_batch_stream.POLL_INTERVAL_S
    assert connection._next_correlation_id - before <= 8 + took / micro_batch_stream.DISCOVERY_INTERVAL_S + 1


def test_a_stream_offset_is_what_spark_will_compare(source: SourceNode) -> None:
    stream = MicroBatchStream(source.options(source.new_topic(3), streaming=True))
    found = stream.initial_offset()
    assert StreamOffset.from_json(found.to_json()) == found


def test_a_leader_that_does_not_know_its_partition_for_a_moment_loses_nothing(
    source: SourceNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = source.new_topic()
    source.producer.send_many(topic, [b"1", b"2"])
    partition = TopicPartition(topic, 0)
    ask = OffsetsAdmin.list
    answers = 0

    async def unknown_at_first(admin: OffsetsAdmin, wanted: Any, **more: Any) -> Any:
        nonlocal answers
        answers += 1
        if answers <= 3:
            return {partition: KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "on purpose")}
        return await ask(admin, wanted, **more)

    monkeypatch.setattr(OffsetsAdmin, "list", unknown_at_first)
    assert OffsetReader(source.options(topic)).offsets({partition: LATEST}) == {partition: 2}


def test_brokers_that_do_not_know_a_topic_for_a_moment_lose_nothing(
    source: SourceNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = source.new_topic()
    refresh = OffsetReader._refresh
    answers = 0

    async def empty_at_first(offset_reader: OffsetReader) -> ClusterMetadata:
        nonlocal answers
        answers += 1
        view = await refresh(offset_reader)
        return replace(view, topics={}) if answers <= 3 else view

    monkeypatch.setattr(OffsetReader, "_refresh", empty_at_first)
    found = OffsetReader(source.options(topic)).partitions(known=[topic])
    assert found.all == (TopicPartition(topic, 0),)


class TestStaleBrokers:
    """Two brokers, of which the first does not know the topic that the second leads."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offset_reader, "NEW_TOPIC_WAIT_S", 0.0)

    def cluster(self, *, known_by: set[int], until: int = 6) -> FakeCluster:
        """Brokers of which some know the topic, and all do once this many requests have been answered."""
        cluster = FakeCluster(partitions=[FakePartition(leader=2, end=5)])

        def metadata(node_id: int, request: MetadataRequest) -> MetadataResponse:
            answer = cluster.metadata(node_id, request)
            assert isinstance(answer, MetadataResponse)
            if node_id not in known_by and len(cluster.asked(MetadataRequest)) < until:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.topics = [MetadataResponseTopic(name=TOPIC, error_code=unknown)]
            return answer

        cluster.on(MetadataRequest, metadata)
        return cluster

    def reader(self, cluster: FakeCluster) -> OffsetReader:
        given = {"kafka.bootstrap.servers": cluster.servers, "subscribe": TOPIC}
        return OffsetReader(source_options(given, streaming=True))

    async def test_a_broker_that_lags_behind_does_not_delete_a_topic(self) -> None:
        async with self.cluster(known_by={2}) as cluster:
            found = await asyncio.to_thread(self.reader(cluster).partitions, known=[TOPIC])
            assert found.all == (TopicPartition(TOPIC, 0),)

    async def test_nor_does_a_leader_that_does_not_know_its_partition(self) -> None:
        cluster = self.cluster(known_by={2}, until=9)
        answered = 0

        def list_offsets(node_id: int, request: ListOffsetsRequest) -> Response:
            nonlocal answered
            answered += 1
            if answered > 3:
                return cluster._list_offsets(node_id, request)
            unknown = ListOffsetsPartitionResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[unknown])])

        cluster.on(ListOffsetsRequest, list_offsets)
        async with cluster:
            reader = self.reader(cluster)
            await asyncio.to_thread(reader.partitions, known=[TOPIC])
            partition = TopicPartition(TOPIC, 0)
            assert await asyncio.to_thread(reader.offsets, {partition: LATEST}) == {partition: 5}

    async def test_a_topic_that_no_broker_knows_is_deleted(self) -> None:
        async with self.cluster(known_by=set(), until=1_000) as cluster:
            found = await asyncio.to_thread(self.reader(cluster).partitions, known=[TOPIC])
            assert found.all == ()

    async def test_a_broker_that_does_not_answer_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offset_reader, "SILENT_BROKER_WAIT_S", 0.5)
        cluster = self.cluster(known_by=set(), until=1_000)
        async with cluster:
            reader = self.reader(cluster)
            begin = time.monotonic()
            cluster.stop(2)
            found = await asyncio.to_thread(reader.partitions, known=[TOPIC])
            assert found.all == ()
            assert time.monotonic() - begin >= 0.5


def test_a_pattern_leaves_the_topics_of_the_sink_out(source: SourceNode) -> None:
    topic = source.new_topic()
    lineage = source.new_topic(stem=f"{OWN_TOPICS}lineage")
    names = {each.name for each in source.admin.topics.list()}
    if DEFAULT_DECISION_TOPIC not in names:
        source.admin.topics.create(DEFAULT_DECISION_TOPIC, configs={"cleanup.policy": "compact"})
    given = {"kafka.bootstrap.servers": source.servers, "subscribePattern": ".*"}
    # Nor is one waited for that a stream has read before, when its name was not left out.
    found = OffsetReader(source_options(given, streaming=False)).partitions(known=[lineage])
    topics = {partition.topic for partition in found.all}
    assert topic in topics
    assert not {DEFAULT_DECISION_TOPIC, lineage} & topics
