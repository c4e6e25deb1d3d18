"""The sink through Spark: written records, their partitions, and what is refused before any is written."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.records._kernel import partition_for
from tests.support.spark_sink_harness import await_markers, committed_values
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.local_node import LocalNode
    from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.slow

NewTopic = Callable[..., str]


@pytest.fixture
def write(node: LocalNode) -> Callable[..., None]:
    """`write(df, topic=…)` as a batch."""

    def go(df: DataFrame, **options: str) -> None:
        given = {"kafka.bootstrap.servers": node.bootstrap_servers, **dotted(options)}
        df.write.format("ottla").mode("append").options(**given).save()

    return go


def dotted(options: dict[str, str]) -> dict[str, str]:
    """`kafka__linger_ms` is `kafka.linger.ms`: dots are not allowed in keywords."""
    return {
        name.replace("__", ".").replace("_", ".") if name.startswith("kafka__") else name: value
        for name, value in options.items()
    }


def records_of(node: LocalNode, topic: str, partitions: int = 1) -> list[Any]:
    """All committed records in the order of their partitions."""
    await_markers(node.bootstrap_servers, topic)
    found: list[Any] = []
    consumer: Consumer[bytes, bytes]
    with Consumer(
        node.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([(topic, index) for index in range(partitions)])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(timeout_ms=200)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def await_none_open(admin: Admin, part: str = "ottla-spark-") -> None:
    """Wait until no transaction with this in its id is open, long before one would time out."""

    def still_open() -> list[str]:
        listed = admin.transactions.list(states=["Ongoing"])
        return [each.transactional_id for each in listed if part in each.transactional_id]

    wait_until(lambda: not still_open(), f"transactions of {part} are left open")


# Batch writes.


def test_the_context_of_a_trace_goes_through_source_and_sink(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    source, target = new_topic(), new_topic()
    first, second = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    with Producer(node.bootstrap_servers) as producer:
        producer.send(source, b"traced", headers={"a": b"1", "traceparent": first.encode()})
        producer.send(source, b"not")
    df = (
        spark.read.format("ottla")
        .options(**{"kafka.bootstrap.servers": node.bootstrap_servers, "includeHeaders": "true"})
        .options(subscribe=source, startingOffsets="earliest")
        .load()
        .select("value", "headers")
    )
    write(df, topic=target, traceparent=second)
    write(df.select("value"), topic=target, traceparent=second)
    found = [(record.value, list(record.headers)) for record in records_of(node, target)]
    added = ("traceparent", second.encode())
    assert found == [
        (b"traced", [("a", b"1"), ("traceparent", first.encode())]),
        (b"not", [added]),
        (b"traced", [added]),
        (b"not", [added]),
    ]


def test_all_columns_of_a_record_are_written(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic(partitions=3)
    df = spark.createDataFrame(
        [
            (
                bytearray(b"k0"),
                bytearray(b"v0"),
                topic,
                2,
                [("h", bytearray(b"1")), ("h", None)],
                "2024-01-02",
            ),
            (None, None, topic, 0, None, "2024-01-03"),
        ],
        "key binary, value binary, topic string, partition int, "
        "headers array<struct<key:string,value:binary>>, day string",
    ).selectExpr("*", "to_timestamp(day) AS timestamp")
    write(df)
    null, full = records_of(node, topic, 3)
    assert (full.partition, full.key, full.value) == (2, b"k0", b"v0")
    assert list(full.headers) == [("h", b"1"), ("h", None)]
    assert full.timestamp == 1_704_153_600_000
    assert (null.partition, null.key, null.value, list(null.headers)) == (0, None, None, [])


def test_text_is_written_as_utf8_and_keys_go_where_kafka_puts_them(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic(partitions=5)
    df = spark.range(0, 2_000, 1, 4).selectExpr("concat('schlüssel-', id) AS key", "string(id) AS value")
    write(df, topic=topic)
    records = records_of(node, topic, 5)
    assert len(records) == 2_000
    for record in records:
        assert record.key.decode() == f"schlüssel-{record.value.decode()}"
        assert record.partition == partition_for(record.key, 5)


def test_rows_without_keys_use_all_partitions_and_keep_nothing_open(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None], admin: Admin
) -> None:
    topic = new_topic(partitions=3)
    df = spark.range(0, 60_000, 1, 3).selectExpr("repeat(string(id), 20) AS value", "id AS ignored")
    # Small enough for dozens of batches, each with a newly chosen partition.
    write(df, topic=topic, kafka__max_request_size="100000", kafka__compression_type="lz4")
    records = records_of(node, topic, 3)
    assert len(records) == len({record.value for record in records}) == 60_000
    assert {record.partition for record in records} == {0, 1, 2}
    await_none_open(admin)


def test_rows_choose_their_topics_unless_the_option_does(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    one, other = new_topic(), new_topic()
    df = spark.createDataFrame([("a", one), ("b", other), ("c", one)], "value string, topic string")
    write(df.coalesce(1))
    assert [record.value for record in records_of(node, one)] == [b"a", b"c"]
    assert [record.value for record in records_of(node, other)] == [b"b"]
    write(df, topic=other)
    assert Counter(record.value for record in records_of(node, other)) == {b"a": 1, b"b": 2, b"c": 1}


def test_at_least_once_writes_without_transactions(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None], admin: Admin
) -> None:
    topic = new_topic()
    before = len(admin.transactions.list())
    write(spark.range(100).selectExpr("string(id) AS value"), topic=topic, delivery="at-least-once")
    assert committed_values(node.bootstrap_servers, topic) == {str(n).encode(): 1 for n in range(100)}
    assert len(admin.transactions.list()) == before


def test_an_empty_data_frame_writes_nothing(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    write(spark.range(0).selectExpr("string(id) AS value"), topic=topic)
    assert records_of(node, topic) == []


# All or nothing.


def test_a_task_that_fails_takes_the_whole_write_with_it(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None], admin: Admin
) -> None:
    topic = new_topic(partitions=2)

    def break_in_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 3:
            raise ValueError("broken on purpose")

    df = spark.range(0, 4_000, 1, 4).selectExpr("string(id) AS value")
    with pytest.raises(Exception, match="broken on purpose"):
        write(df.mapInArrow(break_in_the_last, "value string"), topic=topic)
    assert records_of(node, topic, 2) == []
    await_none_open(admin)


def test_a_task_that_is_tried_again_writes_its_rows_once(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None], admin: Admin
) -> None:
    topic = new_topic(partitions=2)

    def break_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() < 2 and context.partitionId() == 1:
            if context.attemptNumber():
                raise ValueError("broken on purpose")
            os._exit(1)  # without a word, as when the system kills it

    df = spark.range(0, 2_000, 1, 2).selectExpr("string(id) AS value")
    write(df.mapInArrow(break_at_first, "value string"), topic=topic)
    found = committed_values(node.bootstrap_servers, topic, 2)
    assert found == {str(n).encode(): 1 for n in range(2_000)}
    await_none_open(admin)


def test_a_null_topic_is_refused_and_nothing_is_written(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    df = spark.createDataFrame([("a", topic), ("b", None)], "value string, topic string")
    with pytest.raises(Exception, match="null topic present in the data"):
        write(df.coalesce(1))
    assert records_of(node, topic) == []


def test_a_value_that_is_too_large_is_refused_and_nothing_is_written(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    df = spark.range(0, 10, 1, 2).selectExpr("repeat('x', if(id = 7, 3000000, 10)) AS value")
    with pytest.raises(Exception, match=r"value of 3000000 bytes is larger than kafka\.max\.request\.size"):
        write(df, topic=topic)
    with pytest.raises(Exception, match=r"larger than max\.message\.bytes.*Raise it for the topic"):
        write(df, topic=topic, kafka__max_request_size="5000000")
    assert records_of(node, topic) == []


def test_a_partition_that_does_not_exist_is_refused(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    with pytest.raises(Exception, match="has partitions 0 to 1; there is no partition 5"):
        write(spark.sql("SELECT 'a' AS value, 5 AS partition"), topic=topic)
    assert records_of(node, topic, 2) == []


def test_a_broker_that_is_away_is_named(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'a' AS value")
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.max.block.ms": "1000", "topic": "t"}
    with pytest.raises(Exception, match=r"no broker can be reached.*127\.0\.0\.1:9"):
        df.write.format("ottla").mode("append").options(**options).save()


# Refused before anything is written.


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'a' AS v", {"topic": "t"}, "Required attribute 'value' not found"),
        ("'a' AS value", {}, "topic option required when no 'topic' attribute is present"),
        ("1 AS value", {"topic": "t"}, r"unsupported type int\. value must be a\(n\) string or binary"),
        ("1L AS key, 'a' AS value", {"topic": "t"}, "key attribute unsupported type bigint"),
        ("'a' AS value, 1 AS topic", {}, r"type int\. topic must be a\(n\) string"),
        ("'a' AS value, '1' AS partition", {"topic": "t"}, r"partition must be a\(n\) int"),
        ("'a' AS value, array('h') AS headers", {"topic": "t"}, "headers attribute unsupported type"),
        ("'a' AS value", {"topik": "t"}, "no option 'topik' for writing; did you mean topic"),
        ("'a' AS value", {"topic": "t", "kafka.key.serializer": "x"}, "convert the column `key`"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_reported_before_anything_is_written(
    spark: SparkSession, node: LocalNode, columns: str, options: dict[str, str], message: str
) -> None:
    given = {"kafka.bootstrap.servers": node.bootstrap_servers, **options}
    with pytest.raises(Exception, match=message):
        spark.sql(f"SELECT {columns}").write.format("ottla").mode("append").options(**given).save()


def test_a_topic_cannot_be_overwritten(spark: SparkSession, node: LocalNode) -> None:
    writer = spark.sql("SELECT 'a' AS value").write.format("ottla").mode("overwrite")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.options(**{"kafka.bootstrap.servers": node.bootstrap_servers, "topic": "t"}).save()


# Streams.


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Callable[[int, int], DataFrame]:
    """`files(3, 100)`: a stream of this many files with this many rows each, one file per batch."""
    directory = tmp_path / "input"

    def make(count: int, rows: int) -> DataFrame:
        for index in range(count):
            start = index * rows
            spark.range(start, start + rows, 1, 2).selectExpr("string(id) AS value").write.mode(
                "append"
            ).parquet(str(directory))
        stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2)
        return stream.parquet(str(directory))

    return make


def run_stream(df: DataFrame, servers: str, checkpoint: Path, *, mode: str = "append", **options: str) -> Any:
    given = {"kafka.bootstrap.servers": servers, **dotted(options)}
    writer = df.writeStream.format("ottla").outputMode(mode).options(**given)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(240), query.status
    return query


def test_a_stream_is_written_once_across_restarts(
    node: LocalNode, files: Callable[[int, int], DataFrame], tmp_path: Path
) -> None:
    stream_with_a_restart(node.bootstrap_servers, files, tmp_path)


@pytest.mark.kafka
def test_a_stream_to_apache_kafka_is_written_once_across_restarts(
    apache_kafka: ApacheKafka, files: Callable[[int, int], DataFrame], tmp_path: Path
) -> None:
    stream_with_a_restart(apache_kafka.bootstrap, files, tmp_path)


def stream_with_a_restart(servers: str, files: Callable[[int, int], DataFrame], tmp_path: Path) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    checkpoint = tmp_path / "checkpoint"
    with Admin(servers) as admin:
        admin.topics.create(topic, partitions=2)
        query = run_stream(files(3, 100), servers, checkpoint, topic=topic)
        assert committed_values(servers, topic, 2) == {str(n).encode(): 1 for n in range(300)}
        # As if the driver had died before Spark's checkpoint said that the last batch was done.
        last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        run_stream(files(0, 0), servers, checkpoint, topic=topic)
        assert committed_values(servers, topic, 2) == {str(n).encode(): 1 for n in range(300)}
        await_none_open(admin, query.id)


def test_the_inputs_tell_whether_a_repeated_batch_is_the_committed_one(
    spark: SparkSession, node: LocalNode, new_topic: NewTopic, tmp_path: Path
) -> None:
    servers, checkpoint, older = node.bootstrap_servers, tmp_path / "checkpoint", tmp_path / "older"
    source, target = new_topic(), new_topic()
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", servers)
    df = reader.option("subscribe", source).option("startingOffsets", "earliest").load().select("value")
    with Producer(servers) as producer:
        producer.send_many(source, [b"a", b"b"])
        run_stream(df, servers, checkpoint, topic=target)
        shutil.copytree(checkpoint, older)
        producer.send_many(source, [b"c", b"d", b"e"])
        run_stream(df, servers, checkpoint, topic=target)
        # Killed before Spark's checkpoint says that the last batch is done, then the code is edited.
        for condition in ("value != 'c'", "false"):
            for name in ("1", ".1.crc"):
                (checkpoint / "commits" / name).unlink(missing_ok=True)
            run_stream(df.where(condition), servers, checkpoint, topic=target)
        written = [record.value for record in records_of(node, target)]
        assert written == [b"a", b"b", b"c", b"d", b"e"]
        # An older checkpoint is restored: its batch of this number is another one.
        producer.send(source, b"f")
        with pytest.raises(Exception, match=r"it was made of .* 2\.\.5 then and is of .* 2\.\.6 now"):
            run_stream(df, servers, older, topic=target)
        assert [record.value for record in records_of(node, target)] == written


def test_an_aggregate_is_written_whole_in_complete_mode(
    spark: SparkSession,
    node: LocalNode,
    new_topic: NewTopic,
    files: Callable[[int, int], DataFrame],
    tmp_path: Path,
) -> None:
    topic = new_topic()
    counts = files(2, 10).selectExpr("value % 2 AS odd").groupBy("odd").count()
    rows = counts.selectExpr("string(odd) AS key", "string(count) AS value")
    run_stream(rows, node.bootstrap_servers, tmp_path / "checkpoint", mode="complete", topic=topic)
    latest = {record.key: record.value for record in records_of(node, topic)}
    assert {float(key): value for key, value in latest.items()} == {0.0: b"10", 1.0: b"10"}


def test_a_batch_of_a_stream_that_fails_is_repeated_whole(
    spark: SparkSession,
    node: LocalNode,
    new_topic: NewTopic,
    files: Callable[[int, int], DataFrame],
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=2)
    unknown = f"unknown-{uuid.uuid4().hex[:8]}"
    fuse = tmp_path / "fuse"
    fuse.touch()

    def break_while_there_is_a_fuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if fuse.exists() and context.partitionId() == 1:
            raise ValueError(f"broken on purpose, {unknown}")

    df = files(1, 1_000).mapInArrow(break_while_there_is_a_fuse, "value string")
    query = None
    with pytest.raises(Exception, match="broken on purpose"):
        query = run_stream(df, node.bootstrap_servers, tmp_path / "checkpoint", topic=topic)
    assert query is None
    assert committed_values(node.bootstrap_servers, topic, 2) == {}
    fuse.unlink()
    run_stream(df, node.bootstrap_servers, tmp_path / "checkpoint", topic=topic)
    assert committed_values(node.bootstrap_servers, topic, 2) == {str(n).encode(): 1 for n in range(1_000)}


def test_a_stream_with_at_least_once_needs_no_transactions(
    spark: SparkSession,
    node: LocalNode,
    new_topic: NewTopic,
    files: Callable[[int, int], DataFrame],
    tmp_path: Path,
) -> None:
    topic = new_topic()
    run_stream(
        files(1, 50), node.bootstrap_servers, tmp_path / "checkpoint", topic=topic, delivery="at-least-once"
    )
    assert committed_values(node.bootstrap_servers, topic) == {str(n).encode(): 1 for n in range(50)}
