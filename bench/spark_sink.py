"""Writing from Spark: `format("ottla")` beside Spark's own connector, and exactly once beside at least once.

One session of Spark with two task slots does all of it. The rows are computed beforehand and kept in Spark's
memory. Batch writes go to topics of four partitions, without keys, ours all or nothing, Spark's own at least
once. Streams read files and run as many micro-batches as there are files. Micro-batches of ten rows, from a
topic to a topic, show the fixed cost of a batch that is written exactly once; Spark's own connector reads and
writes the same on Apache Kafka, at least once.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import kafka_libs

from bench.brokers import apache_kafka, ottla
from bench.harness import Row, compare, fewer, scaled
from ottla.client.blocking import Admin, Producer
from ottla.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
TASKS = 2
ROUNDS = 5
SIZES = {100: 1_000_000, 1_000: 200_000}
STREAM_FILES = 10
STREAM_ROWS = 100_000
TINY_BATCHES = 30
TINY_ROWS = 10
OWN = "Spark's own connector on Apache Kafka"
_serial = itertools.count()

Write = Callable[["DataFrame"], None]


def rows() -> Iterator[Row]:
    jars = ",".join(kafka_libs.jars(kafka_libs.SPARK_CONNECTOR))
    conf = {"spark.jars": jars, "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = session(f"local[{TASKS}]", name="ottla bench", conf=conf)
    try:
        with ottla() as ours, apache_kafka() as kafka:
            for size, most in SIZES.items():
                yield from batches(spark, ours.bootstrap, kafka.bootstrap, size, scaled(most, most // 4))
            yield streams(spark, ours.bootstrap, scaled(STREAM_ROWS, STREAM_ROWS // 4))
            yield tiny_batches(spark, [("ottla", ours.bootstrap), ("kafka", kafka.bootstrap)])
    finally:
        spark.stop()


def batches(spark: SparkSession, ours: str, kafka: str, size: int, count: int) -> Iterator[Row]:
    kind = f"{size} B" if size < 1000 else f"{size // 1000} kB"
    df = spark.range(0, count, 1, TASKS).selectExpr(
        f"cast(substr(repeat(sha2(string(id), 256), {size // 64 + 1}), 1, {size}) AS binary) AS value"
    )
    df.cache().count()
    unit = "rows/s"

    def with_(write: Callable[[str], Write], servers: str) -> Callable[[], None]:
        go = write(servers)
        return lambda: go(df)

    yield compare(
        f"batch write of {kind} rows, exactly once", count, unit, with_(sink, ours), with_(own, kafka),
        peer_name=OWN, target="≥ 1", rounds=scaled(ROUNDS, 3),
    )  # fmt: skip
    yield compare(
        f"batch write of {kind} rows, exactly once, to Apache Kafka", count, unit,
        with_(sink, kafka), with_(own, kafka), peer_name=OWN, target="≥ 1", rounds=scaled(ROUNDS, 3),
    )  # fmt: skip
    yield compare(
        f"batch write of {kind} rows, exactly once", count, unit,
        with_(sink, ours), with_(lambda at: sink(at, delivery="at-least-once"), ours),
        peer_name="ours, at least once", target="≥ 0.7", rounds=scaled(ROUNDS, 3),
    )  # fmt: skip
    df.unpersist()


def streams(spark: SparkSession, servers: str, count: int) -> Row:
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    try:
        data = spark.range(0, count * STREAM_FILES, 1, STREAM_FILES)
        data.selectExpr("cast(sha2(string(id), 256) AS binary) AS value").write.parquet(str(directory / "in"))

        def stream(delivery: str) -> None:
            source = spark.readStream.schema("value binary").option("maxFilesPerTrigger", TASKS)
            query = (
                source.parquet(str(directory / "in"))
                .writeStream.format("ottla")
                .option("kafka.bootstrap.servers", servers)
                .option("topic", new_topic(servers))
                .option("delivery", delivery)
                .option("checkpointLocation", str(directory / f"checkpoint-{next(_serial)}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        return compare(
            f"stream of 64 B rows, {STREAM_FILES // TASKS} micro-batches of {count * TASKS:,}",
            count * STREAM_FILES, "rows/s",
            lambda: stream("exactly-once"), lambda: stream("at-least-once"),
            peer_name="ours, at least once", target="≥ 0.7", rounds=scaled(ROUNDS, 3),
        )  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def tiny_batches(spark: SparkSession, sides: list[tuple[str, str]]) -> Row:
    """The median time of a trigger with a few rows, from a topic to a topic, once the workers run."""
    topics = {}
    for _, servers in sides:
        topics[servers] = new_topic(servers, partitions=1)
        with Producer(servers) as producer:
            producer.send_many(topics[servers], [b"%0100d" % n for n in range(TINY_BATCHES * TINY_ROWS)])

    def trigger_ms(side: tuple[str, str]) -> float:
        name, servers = side
        source = spark.readStream.format(name).option("kafka.bootstrap.servers", servers)
        source = source.option("subscribe", topics[servers]).option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", TINY_ROWS).load().select("value")
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format(name).option("kafka.bootstrap.servers", servers)
            writer = writer.option("topic", new_topic(servers)).option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            progress = list(query.recentProgress)
        took = [each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"]]
        return float(statistics.median(took[5:]))

    rounds = [[trigger_ms(side) for side in sides] for _ in range(3)]
    ours, theirs = (statistics.median(each) for each in zip(*rounds))
    name = f"a micro-batch of {TINY_ROWS} rows, exactly once; the peer's at least once"
    return fewer(name, "ms", ours, theirs, OWN)


def sink(servers: str, *, delivery: str = "exactly-once") -> Write:
    def write(df: DataFrame) -> None:
        options = {
            "kafka.bootstrap.servers": servers,
            "topic": new_topic(servers),
            "delivery": delivery,
        }
        df.write.format("ottla").mode("append").options(**options).save()

    return write


def own(servers: str) -> Write:
    def write(df: DataFrame) -> None:
        options = {"kafka.bootstrap.servers": servers, "topic": new_topic(servers)}
        df.write.format("kafka").options(**options).save()

    return write


def new_topic(servers: str, partitions: int = PARTITIONS) -> str:
    name = f"sink-{next(_serial)}"
    with Admin(servers) as admin:
        admin.topics.create(name, partitions=partitions)
    return name
