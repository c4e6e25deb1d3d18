"""Reading into Spark: `format("ottla")` on Ottla beside Spark's own connector on Apache Kafka.

One session of Spark with two task slots does all of it. Both brokers hold the same records, in topics of four
partitions; rows go to `noop`, which discards them. Streams run over the same topics
with Trigger.AvailableNow. Batches of ten rows show the fixed cost of a micro-batch.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
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
SIZES = {100: 4_000_000, 1_000: 1_000_000}
CHUNK_ROWS = 50_000
STREAM_BATCHES = 8
TINY_BATCHES = 30
TINY_ROWS = 10
OWN = "Spark's own connector on Apache Kafka"


def rows() -> Iterator[Row]:
    jars = ",".join(kafka_libs.jars(kafka_libs.SPARK_CONNECTOR))
    conf = {"spark.jars": jars, "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = session(f"local[{TASKS}]", name="ottla bench", conf=conf)
    try:
        with ottla() as ours, apache_kafka() as kafka:
            sides = [("ottla", ours.bootstrap), ("kafka", kafka.bootstrap)]
            for size, most in SIZES.items():
                yield from of_size(spark, sides, size, scaled(most, most // 4))
            yield tiny_batches(spark, sides)
    finally:
        spark.stop()


def of_size(spark: SparkSession, sides: list[tuple[str, str]], size: int, count: int) -> Iterator[Row]:
    kind = f"{size} B" if size < 1000 else f"{size // 1000} kB"
    topic = f"read-{size}"
    for _, servers in sides:
        fill(servers, topic, size, count, PARTITIONS)

    def batch(side: tuple[str, str], select: str = "*", **options: str) -> Callable[[], None]:
        name, servers = side
        reader = spark.read.format(name).options(**wanted(servers, topic), **options)
        return lambda: reader.load().select(select).write.format("noop").mode("overwrite").save()

    ours, kafka = sides
    unit = "rows/s"
    yield compare(
        f"batch read {kind}", count, unit, batch(ours), batch(kafka),
        peer_name=OWN, target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"batch read {kind}, the value alone", count, unit,
        batch(ours, "value", columns="value"), batch(kafka, "value"),
        peer_name=OWN, target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    yield sustained(spark, sides, topic, kind, count)


def sustained(spark: SparkSession, sides: list[tuple[str, str]], topic: str, kind: str, count: int) -> Row:
    """Rows per second of a running stream, without its first batch, which starts the workers."""

    def speed(side: tuple[str, str]) -> float:
        name, servers = side
        options = wanted(servers, topic, maxOffsetsPerTrigger=str(count // STREAM_BATCHES))
        progress = run(spark.readStream.format(name).options(**options).load())
        later = [each for each in progress if each["numInputRows"]][1:]
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in later)
        return float(sum(each["numInputRows"] for each in later) / took_ms * 1000)

    rounds = [[speed(side) for side in sides] for _ in range(3)]
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    ours, theirs = (statistics.median(each) for each in zip(*rounds))
    name = f"stream {kind}, batches of {count // STREAM_BATCHES:,} rows"
    return Row(name, "rows/s", ours, theirs, OWN, statistics.median(ratios), ratios[0], ratios[-1], "")


def tiny_batches(spark: SparkSession, sides: list[tuple[str, str]]) -> Row:
    """The median time of a trigger with a few rows, once the workers run."""
    for _, servers in sides:
        fill(servers, "tiny", 100, TINY_BATCHES * TINY_ROWS, 1)

    def trigger_ms(side: tuple[str, str]) -> float:
        name, servers = side
        options = wanted(servers, "tiny", maxOffsetsPerTrigger=str(TINY_ROWS))
        progress = run(spark.readStream.format(name).options(**options).load())
        took = [each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"]]
        return float(statistics.median(took[5:]))

    rounds = [[trigger_ms(side) for side in sides] for _ in range(3)]
    ours, theirs = (statistics.median(each) for each in zip(*rounds))
    return fewer(f"a micro-batch of {TINY_ROWS} rows", "ms", ours, theirs, OWN)


def run(frame: DataFrame) -> list[Any]:
    """Run a stream over all existing records; Spark's progress of its batches."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return list(query.recentProgress)


def wanted(servers: str, topic: str, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }


def fill(servers: str, topic: str, size: int, count: int, partitions: int) -> None:
    """Values of `size` bytes, no two alike, and short keys."""
    with Admin(servers) as admin:
        admin.topics.create(topic, partitions=partitions)
    with Producer(servers) as producer:
        for start in range(0, count, CHUNK_ROWS):
            numbers = range(start, min(start + CHUNK_ROWS, count))
            rest = os.urandom(size - 8)
            values = pa.array([number.to_bytes(8, "big") + rest for number in numbers], pa.binary())
            keys = pa.array([b"%d" % number for number in numbers], pa.binary())
            producer.send_arrow(topic, pa.table({"key": keys, "value": values}))
