"""Topics as tables: what their upkeep costs, and a batch of Spark's source from files and from brokers.

Upkeep is measured in CPU time, of the node and of its worker process, so that it does not depend on what else
the machine does. The reads are those of Spark's tasks, in this process and without Spark: the same rows, once
from the files of the table and once through the broker.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.harness import Row, compare, fewer, scaled
from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Producer
from ottla.spark.source.batch_reader import batch_reader
from ottla.spark.source.columns import COLUMNS, spark_schema
from ottla.tables.catalog import has_catalog, open_catalog
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_cluster import LocalCluster

TOPIC = "measured"
PARTITIONS = 4
SIZE = 100
_TICK = os.sysconf("SC_CLK_TCK")


def rows() -> Iterator[Row]:
    count = scaled(2_000_000, 200_000)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory,
        LocalCluster(nodes=1, data_dir=f"{directory}/cluster") as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        warehouse = f"{directory}/cluster/tables"
        admin.topics.create(TOPIC, partitions=PARTITIONS)
        admin.topics.create("first", partitions=1, configs=_table())
        with Producer(cluster.bootstrap_servers, linger_ms=20) as producer:
            # The worker has imported what it needs before the measurement begins.
            producer.send("first", b"x")
            _wait(warehouse, "first", 1)
            values = pa.array([os.urandom(SIZE // 2).hex().encode() for _ in range(10_000)], pa.binary())
            keys = pa.array([f"key-{n}".encode() for n in range(10_000)])
            batch = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
            for _ in range(count // 10_000):
                producer.send_arrow(TOPIC, batch)
            producer.flush()
        pid = cluster.nodes[0].pid
        assert pid is not None
        before_node, before_worker = _cpu(pid), _cpu(_worker(pid))
        admin.configs.alter(ResourceType.TOPIC, TOPIC, set=_table())
        _wait(warehouse, TOPIC, count)
        millions = count / 1_000_000
        worker, node = _cpu(_worker(pid)) - before_worker, _cpu(pid) - before_node
        what = f"table of {count:,} records of {SIZE} bytes"
        yield fewer(f"{what}: the worker", "CPU s per million", worker / millions, None, "–")
        yield fewer(f"{what}: the node", "CPU s per million", node / millions, None, "–")
        yield from _reads(cluster, count, pid)


def _reads(cluster: LocalCluster, count: int, pid: int) -> Iterator[Row]:
    spent = {"table": 0.0, "brokers": 0.0}
    own = dict.fromkeys(spent, 0.0)
    runs = dict.fromkeys(spent, 0)

    def read(source: str) -> None:
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": TOPIC,
            "readFrom": source,
        }
        before, own_before = _cpu(pid), time.process_time()
        reader: Any = batch_reader(given, spark_schema(COLUMNS[:-1]))
        found = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
        assert found == count, (source, found)
        spent[source] += _cpu(pid) - before
        own[source] += time.process_time() - own_before
        runs[source] += 1

    yield compare(
        "a task's read from the table",
        count,
        "records",
        lambda: read("table"),
        lambda: read("brokers"),
        peer_name="through the broker",
        target="≥ 2",
        rounds=scaled(7, 3),
    )
    for name, used in (("the reader's part in it", own), ("the broker's part in it", spent)):
        costs = {source: used[source] / runs[source] / (count / 1_000_000) for source in used}
        yield fewer(
            name, "CPU s per million", max(costs["table"], 0.001), costs["brokers"], "through the broker"
        )


def _table() -> dict[str, str]:
    return {"table.format": "iceberg", "table.freshness.ms": "500"}


def _wait(warehouse: str, topic: str, count: int) -> None:
    settings = CatalogSettings(warehouse=warehouse)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if has_catalog(settings):
            catalog = open_catalog(settings)
            if catalog.table_exists(("topics", topic)):
                snapshot = catalog.load_table(("topics", topic)).current_snapshot()
                summary = None if snapshot is None else snapshot.summary
                if summary is not None and int(summary["total-records"]) >= count:
                    return
    raise TimeoutError(f"the table of {topic} has not {count} rows")


def _worker(pid: int) -> int:
    """The worker process of a node."""
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                status = (each / "stat").read_text().rpartition(")")[2].split()
                if int(status[1]) == pid and "ottla.tables.worker" in (each / "cmdline").read_text():
                    return int(each.name)
            except OSError:
                continue
    raise RuntimeError("the node has no worker")


def _cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(status[11]) + int(status[12])) / _TICK
