"""What source.md, sink.md and migration.md show works as it stands, but for addresses and directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ottla.client.blocking import Admin, Producer
from ottla.testing.local_node import LocalNode
from tests.docs.blocks import DOCS, blocks

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

ORDERS = 30


@pytest.mark.parametrize("page", ["source.md", "sink.md", "migration.md"])
def test_the_blocks_of_a_page_run(page: str, spark: SparkSession, tmp_path: Path) -> None:
    with LocalNode() as node:
        servers = node.bootstrap_servers
        with Admin(servers) as admin:
            for topic in ("orders", "lines", "letters", "out", "counts"):
                admin.topics.create(topic, partitions=2)
        with Producer(servers) as producer:
            for topic in ("orders", "lines", "letters"):
                for number in range(ORDERS):
                    producer.send(topic, b"some words", key=b"%d" % number)
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", servers)
        orders = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
        query = orders.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "own")).start()
        query.processAllAvailable()
        names: dict[str, Any] = {
            "spark": spark,
            "F": F,
            "brokers": servers,
            "stream": orders.select("key", "value"),
            "query": query,
        }
        try:
            for number, block in enumerate(each for each in blocks(DOCS / "spark" / page) if each.runs_in):
                if block.language == "python":
                    code = block.text.replace("localhost:9092", servers).replace("broker:9092", servers)
                    exec(code.replace("/data/checkpoints", str(tmp_path / f"{number}")), names)
            for started in spark.streams.active:
                started.processAllAvailable()
        finally:
            for started in spark.streams.active:
                started.stop()
        written = spark.read.format("ottla").option("kafka.bootstrap.servers", servers)
        if page == "sink.md":
            assert written.option("subscribe", "out").load().count() == 1000 + 2 * ORDERS
        if page == "migration.md":
            counts = written.option("subscribe", "counts").load().selectExpr("cast(key AS string)").distinct()
            assert sorted(row.key for row in counts.collect()) == ["some", "words"]
        if page == "source.md":
            assert names["orders"].count() == ORDERS
