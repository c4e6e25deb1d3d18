"""The sink through Spark: written records, their partitions, and what is refused before any is written."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.records._kernel import partition_for
from tests.spark.conftest import SparkNode
from tests.support.spark_sink_harness import await_markers, committed_values
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


pytestmark = pytest.mark.slow

Files = Callable[[int, int], "DataFrame"]


@dataclass(frozen=True)
class Sink:
    """The session, and the node to which it writes."""

    spark: SparkSession
    servers: str
    admin: Admin
    new_topic: Callable[..., str]

    def write(self, df: DataFrame, **options: str) -> None:
        """Write as a batch."""
        df.write.format("ottla").mode("append").options(**given(self.servers, options)).save()

    def stream(self, df: DataFrame, checkpoint: Path, *, mode: str = "append", **options: str) -> Any:
        """Write all that a stream has now; returns the query, which has ended."""
        writer = df.writeStream.format("ottla").outputMode(mode).options(**given(self.servers, options))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(240), query.status
        return query

    def records(self, topic: str, partitions: int = 1) -> list[Any]:
        return records_of(self.servers, topic, partitions)

    def committed(self, topic: str, partitions: int = 1) -> Counter[bytes]:
        return committed_values(self.servers, topic, partitions)


@pytest.fixture
def sink(spark: SparkSession, node: SparkNode, admin: Admin, new_topic: Callable[..., str]) -> Sink:
    return Sink(spark, node.bootstrap_servers, admin, new_topic)


def given(servers: str, options: dict[str, str]) -> dict[str, str]:
    """All options. `kafka__linger_ms` is `kafka.linger.ms`: dots are not allowed in keywords."""
    return {
        "kafka.bootstrap.servers": servers,
        **{
            name.replace("__", ".").replace("_", ".") if name.startswith("kafka__") else name: value
            for name, value in options.items()
        },
    }


def records_of(servers: str, topic: str, partitions: int = 1) -> list[Any]:
    """All committed records in the order of their partitions."""
    await_markers(servers, topic)
    found: list[Any] = []
    consumer: Consumer[bytes, bytes]
    with Consumer(servers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
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


def test_the_context_of_a_trace_goes_through_source_and_sink(sink: Sink) -> None:
    source, target = sink.new_topic(), sink.new_topic()
    first, second = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    with Producer(sink.servers) as producer:
        producer.send(source, b"traced", headers={"a": b"1", "traceparent": first.encode()})
        producer.send(source, b"not")
    df = (
        sink.spark.read.format("ottla")
        .options(**{"kafka.bootstrap.servers": sink.servers, "includeHeaders": "true"})
        .options(subscribe=source, startingOffsets="earliest")
        .load()
        .select("value", "headers")
    )
    sink.write(df, topic=target, traceparent=second)
    sink.write(df.select("value"), topic=target, traceparent=second)
    found = [(record.value, list(record.headers)) for record in sink.records(target)]
    added = ("traceparent", second.encode())
    assert found == [
        (b"traced", [("a", b"1"), ("traceparent", first.encode())]),
        (b"not", [added]),
        (b"traced", [added]),
        (b"not", [added]),
    ]


def test_all_columns_of_a_record_are_written(sink: Sink) -> None:
    topic = sink.new_topic(partitions=3)
    df = sink.spark.createDataFrame(
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
    sink.write(df)
    null, full = sink.records(topic, 3)
    assert (full.partition, full.key, full.value) == (2, b"k0", b"v0")
    assert list(full.headers) == [("h", b"1"), ("h", None)]
    assert full.timestamp == 1_704_153_600_000
    assert (null.partition, null.key, null.value, list(null.headers)) == (0, None, None, [])


def test_text_is_written_as_utf8_and_keys_go_where_kafka_puts_them(sink: Sink) -> None:
    topic = sink.new_topic(partitions=5)
    df = sink.spark.range(0, 2_000, 1, 4).selectExpr("concat('schlüssel-', id) AS key", "string(id) AS value")
    sink.write(df, topic=topic)
    records = sink.records(topic, 5)
    assert len(records) == 2_000
    for record in records:
        assert record.key.decode() == f"schlüssel-{record.value.decode()}"
        assert record.partition == partition_for(record.key, 5)


def test_rows_without_keys_use_all_partitions_and_keep_nothing_open(sink: Sink) -> None:
    topic = sink.new_topic(partitions=3)
    df = sink.spark.range(0, 60_000, 1, 3).selectExpr("repeat(string(id), 20) AS value", "id AS ignored")
    # Small enough for dozens of batches, each with a newly chosen partition.
    sink.write(df, topic=topic, kafka__max_request_size="100000", kafka__compression_type="lz4")
    records = sink.records(topic, 3)
    assert len(records) == len({record.value for record in records}) == 60_000
    assert {record.partition for record in records} == {0, 1, 2}
    await_none_open(sink.admin)


def test_rows_choose_their_topics_unless_the_option_does(sink: Sink) -> None:
    one, other = sink.new_topic(), sink.new_topic()
    df = sink.spark.createDataFrame([("a", one), ("b", other), ("c", one)], "value string, topic string")
    sink.write(df.coalesce(1))
    assert [record.value for record in sink.records(one)] == [b"a", b"c"]
    assert [record.value for record in sink.records(other)] == [b"b"]
    sink.write(df, topic=other)
    assert Counter(record.value for record in sink.records(other)) == {b"a": 1, b"b": 2, b"c": 1}


def test_at_least_once_writes_without_transactions(sink: Sink) -> None:
    topic = sink.new_topic()
    before = len(sink.admin.transactions.list())
    sink.write(sink.spark.range(100).selectExpr("string(id) AS value"), topic=topic, delivery="at-least-once")
    assert sink.committed(topic) == {str(n).encode(): 1 for n in range(100)}
    assert len(sink.admin.transactions.list()) == before


def test_an_empty_data_frame_writes_nothing(sink: Sink) -> None:
    topic = sink.new_topic()
    sink.write(sink.spark.range(0).selectExpr("string(id) AS value"), topic=topic)
    assert sink.records(topic) == []


# All or nothing.


def test_a_task_that_fails_takes_the_whole_write_with_it(sink: Sink) -> None:
    topic = sink.new_topic(partitions=2)

    def break_in_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 3:
            raise ValueError("broken on purpose")

    df = sink.spark.range(0, 4_000, 1, 4).selectExpr("string(id) AS value")
    with pytest.raises(Exception, match="broken on purpose"):
        sink.write(df.mapInArrow(break_in_the_last, "value string"), topic=topic)
    assert sink.records(topic, 2) == []
    await_none_open(sink.admin)


def test_a_task_that_is_tried_again_writes_its_rows_once(sink: Sink) -> None:
    topic = sink.new_topic(partitions=2)

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

    df = sink.spark.range(0, 2_000, 1, 2).selectExpr("string(id) AS value")
    sink.write(df.mapInArrow(break_at_first, "value string"), topic=topic)
    found = sink.committed(topic, 2)
    assert found == {str(n).encode(): 1 for n in range(2_000)}
    await_none_open(sink.admin)


def test_a_null_topic_is_refused_and_nothing_is_written(sink: Sink) -> None:
    topic = sink.new_topic()
    df = sink.spark.createDataFrame([("a", topic), ("b", None)], "value string, topic string")
    with pytest.raises(Exception, match="null topic present in the data"):
        sink.write(df.coalesce(1))
    assert sink.records(topic) == []


def test_a_value_that_is_too_large_is_refused_and_nothing_is_written(sink: Sink) -> None:
    topic = sink.new_topic()
    df = sink.spark.range(0, 10, 1, 2).selectExpr("repeat('x', if(id = 7, 3000000, 10)) AS value")
    with pytest.raises(Exception, match=r"value of 3000000 bytes is larger than kafka\.max\.request\.size"):
        sink.write(df, topic=topic)
    with pytest.raises(Exception, match=r"larger than max\.message\.bytes.*Raise it for the topic"):
        sink.write(df, topic=topic, kafka__max_request_size="5000000")
    assert sink.records(topic) == []


def test_a_partition_that_does_not_exist_is_refused(sink: Sink) -> None:
    topic = sink.new_topic(partitions=2)
    with pytest.raises(Exception, match="has partitions 0 to 1; there is no partition 5"):
        sink.write(sink.spark.sql("SELECT 'a' AS value, 5 AS partition"), topic=topic)
    assert sink.records(topic, 2) == []


def test_a_broker_that_is_away_is_named(sink: Sink) -> None:
    df = sink.spark.sql("SELECT 'a' AS value")
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.max.block.ms": "1000", "topic": "t"}
    with pytest.raises(Exception, match=r"no broker can be reached.*127\.0\.0\.1:9"):
        df.write.format("ottla").mode("append").options(**options).save()


def test_a_time_before_1970_is_refused(sink: Sink) -> None:
    """As a record's time would be absent then, or the time of the write."""
    topic = sink.new_topic()
    rows = "SELECT 'a' AS value, timestamp_millis(t) AS timestamp FROM VALUES (0), (-1), (NULL) AS times(t)"
    with pytest.raises(Exception, match=r"1969-12-31.*a record has no time before 1970"):
        sink.write(sink.spark.sql(rows), topic=topic)
    assert sink.records(topic) == []
    sink.write(
        sink.spark.sql(rows).where("timestamp is null or timestamp >= timestamp_millis(0)"), topic=topic
    )
    assert len(sink.records(topic)) == 2


# A write that is repeated.


def test_a_job_that_is_tried_again_writes_its_day_once(sink: Sink) -> None:
    """As by a scheduler that has heard nothing of the first attempt."""
    topic = sink.new_topic(partitions=2)
    app = uuid.uuid4().hex[:8]
    day = sink.spark.range(0, 100, 1, 3).selectExpr("string(id) AS value")
    for _ in range(3):
        sink.write(day, topic=topic, txnAppId=app, txnVersion="20260131")
    once = {str(n).encode(): 1 for n in range(100)}
    assert sink.committed(topic, 2) == once
    with pytest.raises(Exception, match="it had 100 rows then and has 99 now"):
        sink.write(day.where("value != '7'"), topic=topic, txnAppId=app, txnVersion="20260131")
    sink.write(day.where("value = '7'"), topic=topic, txnAppId=app, txnVersion="20260201")
    sink.write(day.where("false"), topic=topic, txnAppId=app, txnVersion="20260202")
    assert sink.committed(topic, 2) == {**once, b"7": 2}
    with pytest.raises(Exception, match=r"is committed already.*txnVersion, which has to grow"):
        sink.write(day, topic=topic, txnAppId=app, txnVersion="20260130")
    sink.write(day, topic=topic, txnAppId=f"other-{app}", txnVersion="1")
    assert sink.committed(topic, 2).total() == 201
    await_none_open(sink.admin)


def test_a_batch_of_foreach_batch_that_fails_after_its_write_is_written_once(
    sink: Sink, tmp_path: Path
) -> None:
    topic, app = sink.new_topic(), uuid.uuid4().hex[:8]
    (tmp_path / "in").mkdir()
    fails_at = {1}

    def take(df: DataFrame, batch: int) -> None:
        sink.write(df, topic=topic, txnAppId=app, txnVersion=str(batch))
        if batch in fails_at:
            raise ValueError("broken on purpose")

    def run() -> None:
        lines = sink.spark.readStream.text(str(tmp_path / "in"))
        writer = lines.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "ck"))
        writer.trigger(availableNow=True).start().awaitTermination(240)

    (tmp_path / "in" / "1.txt").write_text("a\nb\n")
    run()
    (tmp_path / "in" / "2.txt").write_text("c\n")
    with pytest.raises(Exception, match="broken on purpose"):
        run()
    fails_at.clear()
    run()
    (tmp_path / "in" / "3.txt").write_text("d\n")
    run()
    assert sink.committed(topic) == {b"a": 1, b"b": 1, b"c": 1, b"d": 1}


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
    sink: Sink, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        sink.write(sink.spark.sql(f"SELECT {columns}"), **options)


def test_a_topic_cannot_be_overwritten(sink: Sink) -> None:
    writer = sink.spark.sql("SELECT 'a' AS value").write.format("ottla").mode("overwrite")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.options(**{"kafka.bootstrap.servers": sink.servers, "topic": "t"}).save()


# Streams.


@pytest.fixture
def files(sink: Sink, tmp_path: Path) -> Files:
    """`files(3, 100)`: a stream of this many files with this many rows each, one file per batch."""
    directory = str(tmp_path / "input")

    def make(count: int, rows: int) -> DataFrame:
        for start in range(0, count * rows, rows):
            some = sink.spark.range(start, start + rows, 1, 2).selectExpr("string(id) AS value")
            some.write.mode("append").parquet(directory)
        return sink.spark.readStream.schema("value string").option("maxFilesPerTrigger", 2).parquet(directory)

    return make


@pytest.mark.parametrize("broker", ["node", pytest.param("apache_kafka", marks=pytest.mark.kafka)])
def test_a_stream_is_written_once_across_restarts(
    sink: Sink, files: Files, tmp_path: Path, broker: str, request: pytest.FixtureRequest
) -> None:
    if broker == "apache_kafka":
        sink = replace(sink, servers=request.getfixturevalue("apache_kafka").bootstrap)
    topic, checkpoint = f"t-{uuid.uuid4().hex[:8]}", tmp_path / "checkpoint"
    expected = {str(n).encode(): 1 for n in range(300)}
    with Admin(sink.servers) as admin:
        admin.topics.create(topic, partitions=2)
        query = sink.stream(files(3, 100), checkpoint, topic=topic)
        assert sink.committed(topic, 2) == expected
        # As if the driver had died before Spark's checkpoint said that the last batch was done.
        last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        sink.stream(files(0, 1), checkpoint, topic=topic)
        assert sink.committed(topic, 2) == expected
        await_none_open(admin, query.id)


@pytest.mark.exhaustive
def test_the_inputs_tell_whether_a_repeated_batch_is_the_committed_one(sink: Sink, tmp_path: Path) -> None:
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    source, target = sink.new_topic(), sink.new_topic()
    reader = sink.spark.readStream.format("ottla").option("kafka.bootstrap.servers", sink.servers)
    df = reader.option("subscribe", source).option("startingOffsets", "earliest").load().select("value")
    with Producer(sink.servers) as producer:
        producer.send_many(source, [b"a", b"b"])
        sink.stream(df, checkpoint, topic=target)
        shutil.copytree(checkpoint, older)
        producer.send_many(source, [b"c", b"d", b"e"])
        sink.stream(df, checkpoint, topic=target)
        # Killed before Spark's checkpoint says that the last batch is done, then the code is edited.
        for condition in ("value != 'c'", "false"):
            for name in ("1", ".1.crc"):
                (checkpoint / "commits" / name).unlink(missing_ok=True)
            sink.stream(df.where(condition), checkpoint, topic=target)
        written = [record.value for record in sink.records(target)]
        assert written == [b"a", b"b", b"c", b"d", b"e"]
        # An older checkpoint is restored: its batch of this number is another one.
        producer.send(source, b"f")
        with pytest.raises(Exception, match=r"it was made of .* 2\.\.5 then and is of .* 2\.\.6 now"):
            sink.stream(df, older, topic=target)
        assert [record.value for record in sink.records(target)] == written


@pytest.mark.exhaustive
def test_an_aggregate_is_written_whole_in_complete_mode(sink: Sink, files: Files, tmp_path: Path) -> None:
    topic = sink.new_topic()
    counts = files(2, 10).selectExpr("value % 2 AS odd").groupBy("odd").count()
    rows = counts.selectExpr("string(odd) AS key", "string(count) AS value")
    sink.stream(rows, tmp_path / "checkpoint", mode="complete", topic=topic)
    latest = {record.key: record.value for record in sink.records(topic)}
    assert {float(key): value for key, value in latest.items()} == {0.0: b"10", 1.0: b"10"}


@pytest.mark.exhaustive
def test_a_batch_of_a_stream_that_fails_is_repeated_whole(sink: Sink, files: Files, tmp_path: Path) -> None:
    topic = sink.new_topic(partitions=2)
    fuse = tmp_path / "fuse"
    fuse.touch()

    def break_while_there_is_a_fuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if fuse.exists() and context.partitionId() == 1:
            raise ValueError("broken on purpose")

    df = files(1, 1_000).mapInArrow(break_while_there_is_a_fuse, "value string")
    with pytest.raises(Exception, match="broken on purpose"):
        sink.stream(df, tmp_path / "checkpoint", topic=topic)
    assert sink.committed(topic, 2) == {}
    fuse.unlink()
    sink.stream(df, tmp_path / "checkpoint", topic=topic)
    assert sink.committed(topic, 2) == {str(n).encode(): 1 for n in range(1_000)}


@pytest.mark.exhaustive
def test_a_stream_with_at_least_once_needs_no_transactions(sink: Sink, files: Files, tmp_path: Path) -> None:
    topic = sink.new_topic()
    sink.stream(files(1, 50), tmp_path / "checkpoint", topic=topic, delivery="at-least-once")
    assert sink.committed(topic) == {str(n).encode(): 1 for n in range(50)}
