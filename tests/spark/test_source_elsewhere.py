"""A session of Spark reads tables and segments beside brokers: batches, streams, and what may go wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Producer
from ottla.protocol.names import TopicPartition
from ottla.spark.history import read_topic
from ottla.tables.catalog import open_catalog
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_node import LocalNode
from tests.spark.source_harness import finish
from tests.support.spark_sink_harness import await_markers
from tests.support.table_metrics import metric
from tests.support.tiered import SEGMENT_BYTES, tiered_settings, wait_until_tiered
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000
IN_TABLE = 2_000
# The times of records are ahead of the markers of transactions, which searches for a time find too.
AHEAD_MS = 600_000
COMMITTED = {"kafka.isolation.level": "read_committed"}


class Shop:
    """A topic with a table of two thirds of its records, and most of them in remote storage."""

    def __init__(self, spark: SparkSession, node: LocalNode, folder: Path, base_ms: int) -> None:
        self.spark = spark
        self.node = node
        self.folder = folder
        self.base_ms = base_ms

    def options(self, **options: Any) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.node.bootstrap_servers,
            "subscribe": "orders",
            "kafkaConsumer.pollTimeoutMs": "60000",
            "rsm.config.storage.url": f"file://{self.folder}/store",
            **{name: str(value) for name, value in options.items()},
        }

    def load(self, **options: Any) -> DataFrame:
        return self.spark.read.format("ottla").options(**self.options(**options)).load()

    def rows(self, **options: Any) -> list[tuple[Any, ...]]:
        return rows_of(self.load(**options))

    def run(self, checkpoint: Path, **options: Any) -> list[list[tuple[Any, ...]]]:
        """Run a stream over all that there is; its rows, by micro-batch."""
        batches: list[list[tuple[Any, ...]]] = []

        def take(frame: DataFrame, _: int) -> None:
            batches.append(rows_of(frame))

        frame = self.spark.readStream.format("ottla").options(**self.options(**options)).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        finish(writer.trigger(availableNow=True).start())
        return [batch for batch in batches if batch]

    def set(self, **configs: str) -> None:
        with Admin(self.node.bootstrap_servers) as admin:
            values = {name.replace("_", "."): value for name, value in configs.items()}
            admin.configs.alter(ResourceType.TOPIC, "orders", set=values)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    found = frame.selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp) at").collect()
    return sorted((row[0], row[1], bytes(row[2]), bytes(row[3]), row[4]) for row in found)


def send(producer: Producer, base_ms: int, numbers: range) -> None:
    for number in numbers:
        producer.send_nowait(
            "orders", b"%d" % number * 500, key=b"k", partition=0, timestamp=base_ms + number * 1000
        )
    producer.flush()


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    base_ms = int(time.time() * 1000) + AHEAD_MS
    settings = tiered_settings(folder / "store") | {"http.listener": "http://127.0.0.1:0"}
    with (
        LocalNode(settings, data_dir=str(folder / "data")) as node,
        Admin(node.bootstrap_servers) as admin,
        Producer(node.bootstrap_servers, transactional_id="t") as producer,
    ):
        configs = {
            "table.format": "iceberg",
            "table.freshness.ms": "100",
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": "-1",
            "local.retention.ms": "-1",
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "file.delete.delay.ms": "0",
        }
        admin.topics.create("orders", partitions=1, configs=configs)
        for begin in range(0, IN_TABLE, 500):
            with producer.transaction():
                send(producer, base_ms, range(begin, begin + 500))
            producer.begin_transaction()
            send(producer, base_ms, range(begin, begin + 50))
            producer.abort_transaction()
        wait_until(lambda: metric(node, "ottla_table_rows_total") == IN_TABLE, "it is behind", 200)
        shop = Shop(spark, node, folder, base_ms)
        shop.set(table_format="none")
        wait_until(lambda: metric(node, "ottla_table_rows_total") is None, "the table is kept", 240)
        for begin in range(IN_TABLE, ROWS, 500):
            with producer.transaction():
                send(producer, base_ms, range(begin, begin + 500))
        await_markers(node.bootstrap_servers, "orders")
        shop.set(local_retention_bytes=str(SEGMENT_BYTES))
        wait_until_tiered(node.bootstrap_servers, "orders")
        yield shop


@pytest.fixture(scope="module")
def expected(shop: Shop) -> list[tuple[Any, ...]]:
    found = shop.rows(**COMMITTED)
    assert len(found) == ROWS
    return found


@pytest.mark.parametrize("source", ["auto", "tier"])
def test_a_batch_has_each_record_once(shop: Shop, expected: list[Any], source: str) -> None:
    assert shop.rows(readFrom=source, maxBytesPerPartition="800k", **COMMITTED) == expected


@pytest.mark.parametrize(
    "limits",
    [
        {"startingTimestamp": 700_000, "endingTimestamp": 2_600_000},
        *(
            pytest.param(limits, marks=pytest.mark.exhaustive)
            for limits in ({}, {"endingTimestamp": 1_500_000}, {"startingTimestamp": 2_100_000})
        ),
    ],
)
def test_spark_reads_files_of_the_table_by_itself(
    shop: Shop, expected: list[Any], limits: dict[str, int]
) -> None:
    times = {name: shop.base_ms + after for name, after in limits.items()}
    begin = limits.get("startingTimestamp", 0) // 1000
    end = limits.get("endingTimestamp", ROWS * 1000) // 1000
    frame = read_topic(shop.spark, shop.options(includeHeaders="true", **times))
    assert frame.schema == shop.load(includeHeaders="true").schema
    assert rows_of(frame) == expected[begin:end]
    assert frame.where("headers is not null").count() == 0


def test_a_table_alone_has_what_it_has(shop: Shop, expected: list[Any]) -> None:
    assert shop.rows(readFrom="table") == expected[:IN_TABLE]
    values = shop.load(readFrom="table", columns="value")
    assert values.columns == ["value"]
    assert sorted(bytes(row[0]) for row in values.collect()) == sorted(row[3] for row in expected[:IN_TABLE])


@pytest.mark.parametrize("source", ["auto", "tier"])
def test_limits_hold_across_the_border(shop: Shop, expected: list[Any], source: str) -> None:
    times = {
        "startingTimestamp": shop.base_ms + 700_000,
        "endingTimestamp": shop.base_ms + (IN_TABLE + 600) * 1000,
    }
    assert shop.rows(readFrom=source, **times, **COMMITTED) == expected[700 : IN_TABLE + 600]
    first, last = expected[IN_TABLE - 3][1], expected[IN_TABLE + 2][1]
    offsets = {
        "startingOffsets": json.dumps({"orders": {"0": first}}),
        "endingOffsets": json.dumps({"orders": {"0": last}}),
    }
    assert shop.rows(readFrom=source, **offsets, **COMMITTED) == expected[IN_TABLE - 3 : IN_TABLE + 2]


def test_filters_limit_what_is_read_from_segments(shop: Shop, expected: list[Any]) -> None:
    middle = expected[1234][1]
    found = shop.load(readFrom="tier", pushdown="true", **COMMITTED).where(f"offset = {middle}")
    assert rows_of(found) == [expected[1234]]


@pytest.mark.parametrize("source", ["auto", pytest.param("tier", marks=pytest.mark.exhaustive)])
def test_a_stream_goes_on_from_its_checkpoint(
    shop: Shop, expected: list[Any], source: str, tmp_path: Path
) -> None:
    options = {"readFrom": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 800, **COMMITTED}
    batches = shop.run(tmp_path / "checkpoint", **options)
    assert len(batches) > 3
    assert [row for batch in batches for row in batch] == expected
    assert shop.run(tmp_path / "checkpoint", **options) == []


@pytest.mark.exhaustive
def test_an_old_checkpoint_is_repeated_from_the_table(
    shop: Shop, expected: list[Any], tmp_path: Path
) -> None:
    """One that was restored from a backup: its first batch is planned again, and ends where it did."""
    options = {"readFrom": "auto", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 800}
    checkpoint = tmp_path / "checkpoint"
    batches = shop.run(checkpoint, **options)
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            number = file.name.removeprefix(".").partition(".")[0]
            if number.isdigit() and int(number) > (0 if folder == "offsets" else -1):
                os.unlink(file)
    assert shop.run(checkpoint, **options) == batches
    assert [row for batch in batches for row in batch] == expected


def test_a_stream_does_not_read_a_table_alone(shop: Shop) -> None:
    reader = shop.spark.readStream.format("ottla").options(**shop.options(readFrom="table"))
    with pytest.raises(Exception, match="use auto"):
        reader.load().writeStream.format("noop").start().awaitTermination(60)


def test_files_that_go_during_a_read_are_an_error_and_not_a_gap(
    shop: Shop, expected: list[Any], tmp_path: Path
) -> None:
    """Last but two, as are the next: the table loses files, then its place, and the log its beginning."""
    planned = shop.load(readFrom="table")
    files = sorted((shop.folder / "data-tables").rglob("*.parquet"))
    assert files
    for number, file in enumerate(files):
        file.rename(tmp_path / str(number))
    with pytest.raises(Exception, match="of the table of orders is gone"):
        planned.collect()
    for number, file in enumerate(files):
        (tmp_path / str(number)).rename(file)
    assert rows_of(planned) == expected[:IN_TABLE]


def delete_a_third(shop: Shop, expected: list[Any]) -> None:
    with Admin(shop.node.bootstrap_servers) as admin:
        admin.offsets.delete_records({TopicPartition("orders", 0): expected[1000][1]})


def test_what_the_log_has_lost_comes_from_the_table(shop: Shop, expected: list[Any], tmp_path: Path) -> None:
    delete_a_third(shop, expected)
    assert shop.rows(readFrom="auto") == expected
    assert shop.rows(readFrom="tier", **COMMITTED) == expected[1000:]
    options = {"readFrom": "auto", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 1000}
    batches = shop.run(tmp_path / "checkpoint", **options)
    assert [row for batch in batches for row in batch] == expected


def test_a_table_that_is_dropped_leaves_all_to_others(shop: Shop, expected: list[Any]) -> None:
    delete_a_third(shop, expected)  # again, as the test before may have run in another process
    catalog = open_catalog(CatalogSettings(warehouse=str(shop.folder / "data-tables")))
    catalog.drop_table(("topics", "orders"))
    assert shop.rows(readFrom="auto") == expected[1000:]
    with pytest.raises(Exception, match="has no table"):
        shop.rows(readFrom="table")
