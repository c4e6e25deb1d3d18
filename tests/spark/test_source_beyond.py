"""Features that only our source has: columns, filter pushdown, commits to a group, splits by bytes, topic
ids, and errors that say what to do.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ottla.client.blocking import Admin, Producer
from ottla.protocol.names import TopicPartition
from ottla.spark.source.offset_reader import OffsetReader
from ottla.spark.source.options import source_options
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode
from tests.spark.source_harness import Rec, SourceHarness, flat, recs_of, wait_for

T0 = 1_700_000_000_000


def tasks_of(frame: DataFrame) -> list[tuple[str, int, int]]:
    """The partition, the first and the last offset of each task of a frame."""
    rows = (
        frame.groupBy(f.spark_partition_id().alias("task"), "topic", "partition")
        .agg(f.min("offset").alias("low"), f.max("offset").alias("high"))
        .collect()
    )
    return sorted((f"{row.topic}-{row.partition}", row.low, row.high) for row in rows)


# Columns.


def test_only_the_columns_that_are_named_are_there(our_lab: SourceHarness) -> None:
    topic = our_lab.topic()
    our_lab.send(topic, [b"a", b"b"], key=b"k", headers=[("h", b"x")])
    frame = our_lab.load(subscribe=topic, columns="offset,value")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.collect()] == [(0, b"a"), (1, b"b")]
    [row, _] = our_lab.load(subscribe=topic, columns="topic,headers").collect()
    assert (row.topic, row.headers[0].key, bytes(row.headers[0].value)) == (topic, "h", b"x")
    assert our_lab.load(subscribe=topic, columns="partition").count() == 2


def test_a_schema_of_the_users_is_refused(our_lab: SourceHarness) -> None:
    reader = our_lab.spark.read.format("ottla").options(**our_lab.options({"subscribe": our_lab.topic()}))
    with pytest.raises(Exception, match="use the option columns"):
        reader.schema("value string").load().collect()


# Filters.


@pytest.fixture
def filled(our_lab: SourceHarness) -> str:
    topic = our_lab.topic(3)
    for partition in range(3):
        our_lab.send(topic, [b"%d" % at for at in range(20)], partition=partition, timestamp=T0)
    return topic


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        (lambda: f.col("partition") == 1, 20),
        (lambda: f.col("partition").isin(0, 2), 40),
        (lambda: (f.col("offset") >= 5) & (f.col("offset") < 8), 9),
        (lambda: f.col("timestamp") >= f.timestamp_millis(f.lit(T0 + 17_500)), 6),
        (lambda: f.col("timestamp") > f.timestamp_millis(f.lit(T0 + 99_000)), 0),
        # Records may be younger than later ones, so this does not change the range.
        (lambda: f.col("timestamp") < f.timestamp_millis(f.lit(T0 + 2_000)), 60),
    ],
    ids=["partition", "partitions", "offsets", "time from", "no time", "time to"],
)
def test_filters_become_ranges(
    our_lab: SourceHarness, filled: str, condition: Callable[[], Column], offsets: int
) -> None:
    where = condition()
    plain = our_lab.load(subscribe=filled).where(where)
    pushed = our_lab.load(subscribe=filled, pushdown=True).where(where)
    assert recs_of(pushed) == recs_of(plain)
    assert offsets_planned(our_lab, filled, where) == max(offsets, 1)


def test_times_from_above_count_where_the_broker_sets_them(our_lab: SourceHarness) -> None:
    topic = our_lab.topic(configs={"message.timestamp.type": "LogAppendTime"})
    our_lab.send(topic, [b"early"])
    [early] = our_lab.read(subscribe=topic)
    wait_for(lambda: time.time() * 1000 > early.timestamp_ms + 5, "the clock")
    our_lab.send(topic, [b"late"])
    until = f.col("timestamp") <= f.timestamp_millis(f.lit(early.timestamp_ms))
    assert recs_of(our_lab.load(subscribe=topic, pushdown=True).where(until)) == [early]
    assert offsets_planned(our_lab, topic, until) == 1


def offsets_planned(lab: SourceHarness, topic: str, where: Column) -> int:
    """How many offsets the tasks would read: one task for each, as a read without any has one, too."""
    frame = lab.load(subscribe=topic, pushdown=True, maxRecordsPerPartition=1).where(where)
    return frame.rdd.getNumPartitions()


# Tasks.


def test_tasks_are_cut_by_rows_and_by_bytes(our_lab: SourceHarness) -> None:
    topic = our_lab.topic(2)
    our_lab.send(topic, [b"x" * 2_000] * 40)
    our_lab.send(topic, [b"y"] * 40, partition=1)

    def tasks(**options: object) -> list[tuple[str, int, int]]:
        return tasks_of(our_lab.load(subscribe=topic, **options))

    assert tasks() == [(f"{topic}-0", 0, 39), (f"{topic}-1", 0, 39)]
    assert len(tasks(maxRecordsPerPartition=10)) == 8
    by_bytes = tasks(maxBytesPerPartition="25k")
    assert [name for name, _, _ in by_bytes].count(f"{topic}-1") == 1
    assert [name for name, _, _ in by_bytes].count(f"{topic}-0") == 4
    assert sorted(low for name, low, _ in by_bytes if name == f"{topic}-0") == [0, 10, 20, 30]


def test_many_partitions_take_few_requests(our_lab: SourceHarness) -> None:
    topic = our_lab.topic(200)
    our_lab.send(topic, [b"x"], partition=199)
    offset_reader = OffsetReader(source_options(our_lab.options({"subscribe": topic}), streaming=False))
    connection = offset_reader._client.call(offset_reader._client.cluster.any_connection())
    before = connection._next_correlation_id
    partitions = offset_reader.partitions()
    ends = offset_reader.offsets(dict.fromkeys(partitions.all, -1))
    assert len(ends) == 200
    assert ends[TopicPartition(topic, 199)] == 1
    assert connection._next_correlation_id - before <= 4


# Progress.


def committed(lab: SourceHarness, group: str) -> dict[TopicPartition, int]:
    return {p: entry.offset for p, entry in lab.admin.groups.offsets(group).items()}


def test_progress_shows_as_a_groups_offsets(our_lab: SourceHarness) -> None:
    topic, group = our_lab.topic(2), f"lag-{uuid.uuid4().hex[:8]}"
    our_lab.send(topic, [b"1", b"2", b"3"])
    our_lab.send(topic, [b"4"], partition=1)
    checkpoint = our_lab.checkpoint()
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "commitToGroup": group,
        "maxOffsetsPerTrigger": 2,
    }
    our_lab.run(checkpoint, **options)
    # The last batch too, though Spark never commits it to the reader.
    expected = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1}
    wait_for(lambda: committed(our_lab, group) == expected, f"the offsets {expected}")
    our_lab.send(topic, [b"5"])
    our_lab.run(checkpoint, **options)
    expected = {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 1}
    wait_for(lambda: committed(our_lab, group) == expected, f"the offsets {expected}")


@pytest.mark.exhaustive
def test_a_running_query_commits_each_batch_to_the_group(our_lab: SourceHarness) -> None:
    topic, group = our_lab.topic(), f"lag-{uuid.uuid4().hex[:8]}"
    batches: list[list[Rec]] = []
    with our_lab.running(batches, subscribe=topic, commitToGroup=group):
        our_lab.send(topic, [b"1", b"2"])
        wait_for(lambda: committed(our_lab, group) == {TopicPartition(topic, 0): 2}, "the group's offset")


# Topics that are deleted and created again.


@pytest.mark.exhaustive
def test_a_topic_that_was_created_again_fails_the_query(our_lab: SourceHarness) -> None:
    topic, checkpoint = our_lab.topic(), our_lab.checkpoint()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    our_lab.send(topic, [b"old1", b"old2"])
    our_lab.run(checkpoint, **options)
    our_lab.admin.topics.delete(topic)
    our_lab.admin.topics.create(topic, partitions=1, configs={"retention.ms": "-1"})
    new = our_lab.send(topic, [b"new1", b"new2", b"new3"])
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted and created again"):
        our_lab.run(checkpoint, **options)
    assert flat(our_lab.run(checkpoint, **options, failOnDataLoss=False)) == new


def test_a_topic_created_again_under_a_running_query_fails_it(our_lab: SourceHarness) -> None:
    topic = our_lab.topic()
    batches: list[list[Rec]] = []
    with our_lab.running(batches, subscribe=topic) as query:
        our_lab.send(topic, [b"old"])
        query.processAllAvailable()
        our_lab.admin.topics.delete(topic)
        our_lab.admin.topics.create(topic, partitions=1)
        our_lab.send(topic, [b"new", b"newer"])
        wait_for(lambda: not query.isActive, "the query to fail")
        # It may have asked between the two.
        message = str(query.exception())
        assert (
            f"topic '{topic}' was deleted and created again" in message
            or f"{topic}-0 no longer exist" in message
        )
    assert [rec.value for rec in flat(batches)] == [b"old"]


# Batches that are run again.


@pytest.mark.exhaustive
def test_the_first_batch_of_a_stream_from_the_end_can_be_run_again(
    our_lab: SourceHarness, tmp_path: Path
) -> None:
    """The start of the first batch is only in its own end offset: the end of the topic has moved."""
    topic, checkpoint = our_lab.topic(), our_lab.checkpoint()
    our_lab.send(topic, [b"before"])
    batches: list[list[Rec]] = []
    query = our_lab.start(checkpoint, batches, subscribe=topic)
    wait_for(lambda: Path(checkpoint, "commits", "0").exists(), "the first, empty batch")
    query.stop()
    shutil.rmtree(Path(checkpoint, "commits"))  # as if the driver had died in that batch
    missed = our_lab.send(topic, [b"meanwhile"])
    assert flat(our_lab.run(checkpoint, subscribe=topic)) == missed


def test_a_batch_run_again_has_the_same_rows(our_lab: SourceHarness) -> None:
    topic, checkpoint = our_lab.topic(2), our_lab.checkpoint()
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 6}
    our_lab.send(topic, [b"%d" % at for at in range(10)])
    our_lab.send(topic, [b"%d" % at for at in range(8)], partition=1)
    first = our_lab.run(checkpoint, **options)
    last = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    our_lab.send(topic, [b"more"])
    again = our_lab.run(checkpoint, **{**options, "maxOffsetsPerTrigger": 1_000})
    assert again[0] == first[-1]


# A broker that is down.


def test_a_broker_that_is_away_is_named(our_lab: SourceHarness) -> None:
    options = {"subscribe": "t", "kafka.default.api.timeout.ms": 1_000}
    away = replace(our_lab, servers="127.0.0.1:1")
    begin = time.monotonic()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1: connection refused"):
        away.read(**options)
    assert time.monotonic() - begin < 50, "by default it takes a minute"


def test_a_stream_outlives_its_broker(our_lab: SourceHarness) -> None:
    batches: list[list[Rec]] = []
    data = str(our_lab.folder / "node")
    (port,) = free_ports(1)  # not reused while the node is down
    with LocalNode(data_dir=data, port=port) as node, Admin(node.bootstrap_servers) as admin:
        admin.topics.create("orders", partitions=1, configs={"retention.ms": "-1"})
    with LocalNode(data_dir=data, port=port) as node:
        lab = replace(our_lab, servers=node.bootstrap_servers)
        query = lab.start(lab.checkpoint(), batches, subscribe="orders", startingOffsets="earliest")
        with Producer(lab.servers) as producer:
            one = lab.send("orders", [b"one"], producer=producer)
        wait_for(lambda: flat(batches) == one, "the first row")
    with LocalNode(data_dir=data, port=port), Producer(lab.servers) as producer:
        two = lab.send("orders", [b"two"], producer=producer)
        wait_for(lambda: flat(batches) == one + two, "the row that came after the broker's restart")
        assert query.isActive
        query.stop()


def test_a_missing_topic_and_a_missing_partition_are_named(our_lab: SourceHarness) -> None:
    with pytest.raises(Exception, match="topic 'no-such-topic' does not exist in the cluster"):
        our_lab.read(subscribe="no-such-topic")
    assert "no-such-topic" not in {info.name for info in our_lab.admin.topics.list()}
    topic = our_lab.topic(2)
    with pytest.raises(Exception, match=f"topic '{topic}' has no partition 2; it has 2, 0 to 1"):
        our_lab.read(assign=json.dumps({topic: [2]}))
    with pytest.raises(Exception, match="beyond the end of the log"):
        our_lab.read(subscribe=topic, endingOffsets=json.dumps({topic: {"0": 5, "1": 0}}))
