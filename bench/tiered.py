"""Tiered storage: what it costs producers, what a read from the store costs, and Spark without brokers.

One node has two topics with the same records: one of them in a directory as remote storage but for its newest
segments, the other on its disk. Producers write to both in turns, several segments for each partition; copies
run while they write, and what is left of them is waited for between the rounds. Two more topics, with smaller
segments, are for readers: they read what the store has, in turns with the same offsets of the other topic,
through the broker, and by the tasks of Spark's source straight from the store and from the table of the other
topic. The last rows are whole batches of a session of Spark.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.harness import Row, compare, fewer, scaled
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.offsets import OffsetSpec
from ottla.client.blocking import Admin, Producer
from ottla.spark.history import read_topic
from ottla.spark.source.batch_reader import batch_reader
from ottla.spark.source.columns import COLUMNS, spark_schema
from ottla.tables.catalog import has_catalog, open_catalog
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
SIZE = 100
CHUNK_ROWS = 10_000
SEGMENT_BYTES = 8 * 1024 * 1024
WRITTEN_SEGMENT_BYTES = 32 * 1024 * 1024
TASKS = 2
SOURCES = (("segments", "read-tiered", "tier"), ("the table", "read-local", "table"))
WAIT_S = 600.0
_TICK = os.sysconf("SC_CLK_TCK")


def rows() -> Iterator[Row]:
    count = scaled(20_000_000, 4_000_000)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        store = f"{directory}/store"
        settings = {
            "remote.log.storage.system.enable": "true",
            "rsm.config.storage.url": f"file://{store}",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "log.retention.check.interval.ms": "2000",
            "table.catalog.warehouse": f"{directory}/tables",
        }
        with (
            LocalCluster(nodes=1, settings=settings, data_dir=f"{directory}/cluster") as cluster,
            Admin(cluster.bootstrap_servers) as admin,
        ):
            bench = TieredBench(cluster, admin, directory, count)
            yield from bench.produce()
            bench.fill()
            yield from bench.read_through_the_broker()
            yield from bench.tasks()
            yield from bench.batches()


class TieredBench:
    def __init__(self, cluster: LocalCluster, admin: Admin, directory: str, count: int) -> None:
        self.servers = cluster.bootstrap_servers
        self.admin = admin
        self.directory = directory
        self.count = count
        pid = cluster.nodes[0].pid
        assert pid is not None
        self.pid = pid
        for prefix, size in (("written", WRITTEN_SEGMENT_BYTES), ("read", SEGMENT_BYTES)):
            common = {"segment.bytes": str(size), "file.delete.delay.ms": "0"}
            tiered = {"remote.storage.enable": "true", "local.retention.bytes": str(size)}
            admin.topics.create(f"{prefix}-local", partitions=PARTITIONS, configs=common)
            admin.topics.create(f"{prefix}-tiered", partitions=PARTITIONS, configs=common | tiered)
        values = pa.array([os.urandom(SIZE // 2).hex().encode() for _ in range(CHUNK_ROWS)], pa.binary())
        keys = pa.array([f"key-{n}".encode() for n in range(CHUNK_ROWS)])
        self.chunk = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])

    # Producing

    def produce(self) -> Iterator[Row]:
        count = scaled(6_000_000, 3_000_000)
        for topic in ("written-local", "written-tiered"):
            self._send(topic, count)
        self._wait_for_copies("written-tiered")

        spent = {"written-tiered": 0.0, "written-local": 0.0}
        rounds = scaled(9, 7)

        def send(topic: str) -> None:
            """Copies are part of the node's cost, also those that are made after the last record."""
            before = _cpu(self.pid)
            self._send(topic, count)
            spent[topic] += _cpu(self.pid) - before

        def wait() -> None:
            before = _cpu(self.pid)
            self._wait_for_copies("written-tiered")
            spent["written-tiered"] += _cpu(self.pid) - before

        name = "produce with remote storage"
        peer = "a topic on the disk alone"
        yield compare(
            name,
            count,
            "records/s",
            lambda: send("written-tiered"),
            lambda: send("written-local"),
            after_ours=wait,
            peer_name=peer,
            target="≥ 0.95",
            rounds=rounds,
        )
        millions = (rounds + 1) * count / 1_000_000
        costs = {topic: used / millions for topic, used in spent.items()}
        yield fewer(
            f"{name}: the node, with all copies",
            "CPU s per million",
            costs["written-tiered"],
            costs["written-local"],
            peer,
        )
        for topic in spent:
            self.admin.topics.delete(topic)

    def _send(self, topic: str, count: int) -> None:
        with Producer(self.servers, linger_ms=5) as producer:
            for _ in range(count // CHUNK_ROWS):
                producer.send_arrow(topic, self.chunk)
            producer.flush()

    def _wait_for_copies(self, topic: str) -> None:
        """Wait until each partition has its closed segments in the store, and no more on the disk."""
        deadline = time.monotonic() + WAIT_S
        before: Any = None
        while time.monotonic() < deadline:
            now = [
                sorted((p, found.offset) for p, found in self.admin.offsets.of_topic(topic, spec).items())
                for spec in (OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST_TIERED)
            ]
            is_there = all(local <= tiered + 1 and local > 0 for (_, local), (_, tiered) in zip(*now))
            if is_there and now == before:
                return
            before = now
            time.sleep(1.5)
        raise TimeoutError(f"{topic} does not leave the disk")

    # Reading

    def fill(self) -> None:
        """Write what is read: one topic to the store, the other to the disk and to a table."""
        for topic in ("read-local", "read-tiered"):
            self._send(topic, self.count)
        self._wait_for_copies("read-tiered")
        self._keep_table()

    def _keep_table(self) -> None:
        configs = {"table.format": "iceberg", "table.freshness.ms": "500"}
        self.admin.configs.alter(ResourceType.TOPIC, "read-local", set=configs)
        ends = self.admin.offsets.end("read-local")
        settings = CatalogSettings(warehouse=f"{self.directory}/tables")
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            time.sleep(0.5)
            if has_catalog(settings):
                catalog = open_catalog(settings)
                name = ("topics", "read_local")
                snapshot = catalog.load_table(name).current_snapshot() if catalog.table_exists(name) else None
                summary = None if snapshot is None else snapshot.summary
                if summary is not None and int(summary["total-records"]) >= sum(ends.values()):
                    # Its upkeep is measured elsewhere.
                    off = {"table.format": "none"}
                    self.admin.configs.alter(ResourceType.TOPIC, "read-local", set=off)
                    return
        raise TimeoutError("the table is behind")

    def _limits(self) -> tuple[dict[str, int], int]:
        """The end of what both the store and the other topic have, by partition, and the records below it."""
        tiered = self.admin.offsets.of_topic("read-tiered", OffsetSpec.LATEST_TIERED)
        local = self.admin.offsets.end("read-local")
        limits = {str(p): min(found.offset + 1, local[p]) for p, found in sorted(tiered.items())}
        return limits, sum(limits.values())

    def _options(self, topic: str, source: str) -> dict[str, str]:
        limits, _ = self._limits()
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
            "endingOffsets": json.dumps({topic: limits}),
            "readFrom": source,
            "maxBytesPerPartition": "16m",
            **({"rsm.config.storage.url": f"file://{self.directory}/store"} if source == "tier" else {}),
        }

    def _read(self, topic: str, source: str) -> Callable[[], None]:
        options = self._options(topic, source)
        _, wanted = self._limits()

        def work() -> None:
            reader: Any = batch_reader(options, spark_schema(COLUMNS[:-1]))
            found = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
            assert found == wanted, (topic, source, found, wanted)

        return work

    def read_through_the_broker(self) -> Iterator[Row]:
        _, count = self._limits()
        yield compare(
            "read from remote storage through the broker",
            count,
            "records/s",
            self._read("read-tiered", "brokers"),
            self._read("read-local", "brokers"),
            peer_name="from the broker's disk",
            target="≥ 0.5",
            rounds=scaled(7, 3),
        )

    def tasks(self) -> Iterator[Row]:
        """One process reads task after task; the broker works beside it, on another core."""
        _, count = self._limits()
        for name, topic, source in SOURCES:
            yield from self._with_costs(
                f"a task's read from {name}",
                count,
                self._read(topic, source),
                self._read("read-local", "brokers"),
            )

    def batches(self) -> Iterator[Row]:
        """Whole batches of Spark: all cores are busy, and a broker takes its part of them."""
        from ottla.spark.session import session

        conf = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
        spark = session(f"local[{TASKS}]", name="ottla bench", conf=conf)
        try:
            _, count = self._limits()
            for name, topic, source in SOURCES:
                for what, columns in (("", {}), (", the value alone", {"columns": "value"})):
                    yield from self._with_costs(
                        f"a batch of Spark from {name}{what}",
                        count,
                        self._batch(spark, topic, source, columns),
                        self._batch(spark, "read-local", "brokers", columns),
                    )
            for what, columns in (("", {}), (", the value alone", {"columns": "value"})):
                yield from self._with_costs(
                    f"a batch of Spark by read_topic{what}",
                    count,
                    self._read_topic(spark, columns),
                    self._batch(spark, "read-local", "brokers", columns),
                )
        finally:
            spark.stop()

    def _batch(
        self, spark: SparkSession, topic: str, source: str, more: dict[str, str]
    ) -> Callable[[], None]:
        reader = spark.read.format("ottla").options(**self._options(topic, source), **more)
        return lambda: reader.load().write.format("noop").mode("overwrite").save()

    def _read_topic(self, spark: SparkSession, more: dict[str, str]) -> Callable[[], None]:
        options = self._options("read-local", "table") | more
        return lambda: read_topic(spark, options).write.format("noop").mode("overwrite").save()

    def _with_costs(
        self, name: str, count: int, ours: Callable[[], None], peer: Callable[[], None]
    ) -> Iterator[Row]:
        """The speeds, and the broker's CPU time."""
        spent = {"ours": 0.0, "peer": 0.0}
        runs = dict.fromkeys(spent, 0)

        def counted(key: str, work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                before = _cpu(self.pid)
                work()
                spent[key] += _cpu(self.pid) - before
                runs[key] += 1

            return run

        yield compare(
            name,
            count,
            "records/s",
            counted("ours", ours),
            counted("peer", peer),
            peer_name="through the broker",
            target="≥ 2",
            rounds=scaled(7, 3),
        )
        costs = {key: spent[key] / runs[key] / (count / 1_000_000) for key in spent}
        yield fewer(
            f"{name}: the broker's part",
            "CPU s per million",
            max(costs["ours"], 0.001),
            costs["peer"],
            "through the broker",
        )


def _cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(status[11]) + int(status[12])) / _TICK
