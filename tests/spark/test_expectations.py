"""Expectations on the rows of a query: counted, dropped, failed, or written to another topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.blocking import Producer
from ottla.spark.expectations import (
    ExpectationAction,
    expect,
    expect_or_dead_letter,
    expect_or_drop,
    expect_or_fail,
    expectation_counts,
    source_record,
)
from tests.spark.test_sink import records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow


@pytest.fixture
def orders(
    spark: SparkSession, node: LocalNode, producer: Producer, new_topic: Callable[..., str]
) -> tuple[str, DataFrame]:
    """A topic with two orders and two records that are none, and a stream of it."""
    from pyspark.sql import functions as F

    topic = new_topic(partitions=1)
    for value in (b'{"n": 1, "cents": 500}', b"rubbish", b'{"n": 2, "cents": -5}', b'{"n": 3, "cents": 7}'):
        producer.send(topic, value, key=b"k")
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", node.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = F.from_json(F.col("value").cast("string"), "n long, cents long").alias("order")
    return topic, records.select(source_record(), parsed).select("source", "order", "order.*")


def run(
    rows: DataFrame, node: LocalNode, directory: Path, topic: str
) -> dict[tuple[str, ExpectationAction], tuple[int, int]]:
    """Write the rows to a topic, and return the counts of the last batch with rows."""
    query = (
        rows.selectExpr("*", "to_json(order) AS value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", node.bootstrap_servers)
        .option("topic", topic)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    return expectation_counts(json.loads(progress[-1].json)["observedMetrics"])


def test_rows_are_counted_dropped_and_set_aside_in_one_batch(
    node: LocalNode, orders: tuple[str, DataFrame], new_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, rows = orders
    good, dead = new_topic(), new_topic()

    @expect_or_dead_letter("is an order", "n is not null", topic=dead)
    @expect("is large", "cents > 100 or n is null")
    @expect_or_drop("costs something", "cents > 0 or n is null")
    def flow() -> DataFrame:
        return rows

    counts = run(flow(), node, tmp_path, good)
    assert counts == {
        ("costs something", ExpectationAction.DROP): (4, 1),
        ("is large", ExpectationAction.KEEP): (3, 1),
        ("is an order", ExpectationAction.DEAD_LETTER): (3, 1),
    }
    assert [json.loads(record.value)["n"] for record in records_of(node.bootstrap_servers, good)] == [1, 3]
    (letter,) = records_of(node.bootstrap_servers, dead)
    assert (letter.key, letter.value) == (b"k", b"rubbish")
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert headers.pop("ottla.source.timestamp")
    assert headers == {
        "ottla.expectation": "is an order",
        "ottla.rule": "n is not null",
        "ottla.source.topic": source,
        "ottla.source.partition": "0",
        "ottla.source.offset": "1",
    }


def test_a_row_that_must_not_be_fails_the_query_before_anything_is_committed(
    node: LocalNode, orders: tuple[str, DataFrame], new_topic: Callable[..., str], tmp_path: Path
) -> None:
    good = new_topic()
    _, rows = orders
    with pytest.raises(Exception, match=r"expectation 'costs something' \(cents > 0\) is not met by"):
        run(rows.transform(expect_or_fail("costs something", "cents > 0")), node, tmp_path, good)
    assert records_of(node.bootstrap_servers, good) == []
