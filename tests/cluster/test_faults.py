"""A cluster's hard life, of twenty seconds or of ten minutes: nothing is lost, doubled or torn.

Three nodes are killed, paused and restarted, one after the other and all at once, while an idempotent
producer writes numbers to one topic and two processes copy them to another in transactions, consumed offsets
included: one with librdkafka, one with Kafka's Java client where there is Java. Afterwards every acknowledged
record is at the acknowledged offset, every number is in the output once, the checker of transactions finds
nothing in the whole history, and all replicas have the same bytes. `OTTLA_CLUSTER_FAULT_SECONDS` says how
long, `OTTLA_CLUSTER_FAULT_SEED` repeats the choice of faults (not the moment: these are real processes).
`OTTLA_CLUSTER_FAULT_SECURITY=SASL_SSL` has everything on: TLS and logins on all listeners, and clients that
are a user with just the ACLs needed. `OTTLA_CLUSTER_FAULT_ZOOKEEPER=own` is for the legacy mode: the metadata
are in a ZooKeeper of the test, which is killed and paused too; `HOST:PORT/PATH` instead of `own` is one that
runs, with a path that is new. `OTTLA_CLUSTER_FAULT_FEATURES=tiered,shared,tables` has the topics in remote
storage, members of a share group that read what is written, and a table of the output: each record is
accepted once it has been delivered, and the table has the rows of the topic.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from pyiceberg.exceptions import NoSuchTableError

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.protocol.errors import KafkaError
from ottla.tables.catalog import open_catalog
from ottla.tables.errors import TableError
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_cluster import LocalCluster
from tests.guarantees.transformer import DOOMED
from tests.support import kafka_libs
from tests.support.acknowledged_workload import Load
from tests.support.process_faults import Nemesis
from tests.support.replicas import replicas_of
from tests.support.tiered import tiered_settings
from tests.support.transaction_checker import TransactionOutcome, check
from tests.support.transform_workload import Copying, Worker, read
from tests.support.users import ScramUser, add_user, admin_of, copying_acls
from tests.support.waiting import wait_until
from tests.support.zookeeper import ApacheZooKeeper

SECONDS = float(os.environ.get("OTTLA_CLUSTER_FAULT_SECONDS", "20"))
SEED = int(os.environ.get("OTTLA_CLUSTER_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECURITY = os.environ.get("OTTLA_CLUSTER_FAULT_SECURITY") or None
ZOOKEEPER = os.environ.get("OTTLA_CLUSTER_FAULT_ZOOKEEPER") or None
FEATURES = frozenset(filter(None, os.environ.get("OTTLA_CLUSTER_FAULT_FEATURES", "").split(",")))
assert {"tiered", "shared", "tables"} >= FEATURES, FEATURES
SETTLE_S = 180.0
PER_SECOND = 300
SOURCE, TARGET, PARTITIONS = "source", "target", 3
SETTINGS = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    **({} if ZOOKEEPER is None else {"zookeeper.session.timeout.ms": 3_000}),
}
GROUP = "workers"
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "3000",
    "local.retention.ms": "5000",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
TABLE = {"table.format": "iceberg", "table.freshness.ms": "1000"}


def settings_of(directory: Path) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = dict(SETTINGS)
    if "tiered" in FEATURES:
        found |= tiered_settings(directory / "store")
    return found


def configs_of(topic: str) -> dict[str, str]:
    return (TIERED if "tiered" in FEATURES else {}) | (
        TABLE if "tables" in FEATURES and topic == TARGET else {}
    )


class Member:
    """A member of a share group that accepts what it gets, through everything."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._settings = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.client_settings}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.accepted: Counter[str] = Counter()
        self.failures: list[str] = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with blocking.ShareConsumer(self._settings, group_id=GROUP) as consumer:
                    consumer.subscribe(SOURCE)
                    while not self._stop.is_set():
                        for record in consumer.poll(timeout_ms=500):
                            self.accepted[(record.value or b"").decode()] += 1
            except KafkaError as error:  # no broker for a while: a worker comes back
                self.failures.append(str(error))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def rows_of(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    """The values in the table of a topic."""
    warehouse = str(Path(cluster.data_dir) / "tables")
    try:
        table = open_catalog(CatalogSettings(warehouse=warehouse)).load_table(("topics", topic))
    except (NoSuchTableError, TableError, FileNotFoundError):
        return Counter()
    return Counter(table.scan().to_arrow()["value"].to_pylist())


def clients() -> list[str]:
    return ["librdkafka"] if kafka_libs.missing_requirement() else ["librdkafka", "java"]


def copying_user(admin: blocking.Admin, directory: Path) -> ScramUser:
    """A user with just the ACLs that the processes need, and the readers of their results."""
    user = add_user(admin, "alice", directory / "cluster" / "security" / "ca.crt")
    groups = (f"{SOURCE}-to-{TARGET}", "reader-read_committed", "reader-read_uncommitted", "none")
    admin.acls.create(copying_acls(user, (SOURCE, TARGET), groups, "worker-"))
    return user


@contextmanager
def copied(copying: Copying, directory: Path) -> Iterator[list[Worker]]:
    """The processes that copy; those that give up are started again."""
    workers = [
        Worker(client, f"worker-{client}", copying, directory, protocol="classic") for client in clients()
    ]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 700)
def test_nothing_is_lost_doubled_or_torn(tmp_path: Path) -> None:
    print(f"repeat with OTTLA_CLUSTER_FAULT_SEED={SEED}")
    own = ApacheZooKeeper(tmp_path / "zookeeper") if ZOOKEEPER == "own" else None
    with (
        own or nullcontext(),
        LocalCluster(
            nodes=3,
            settings=settings_of(tmp_path),
            data_dir=str(tmp_path / "cluster"),
            security=SECURITY,
            zookeeper=ZOOKEEPER if own is None else own.connect,
        ) as cluster,
    ):
        bootstrap = cluster.bootstrap_servers
        with admin_of(cluster) as admin:
            for topic in (SOURCE, TARGET):
                admin.topics.create(
                    topic, partitions=PARTITIONS, replication_factor=3, configs=configs_of(topic)
                )
            if "shared" in FEATURES:
                admin.configs.alter(ResourceType.GROUP, GROUP, set={"share.auto.offset.reset": "earliest"})
            user = copying_user(admin, tmp_path) if SECURITY else None
        copying = Copying(
            bootstrap,
            SOURCE,
            TARGET,
            PARTITIONS,
            librdkafka=user.librdkafka if user else {},
            java=user.java if user else {},
        )
        load = Load(
            bootstrap, SOURCE, PARTITIONS, per_second=PER_SECOND, bare=True, settings=copying.librdkafka
        )
        member = Member(cluster) if "shared" in FEATURES else None
        with load, copied(copying, tmp_path) as workers, member or nullcontext():
            load.wait_for_more(PER_SECOND)

            def progress() -> None:
                for worker in workers:
                    worker.keep_alive()
                load.wait_for_more(20)

            nemesis = Nemesis(cluster, SEED, TARGET, progress, own)
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                nemesis.strike()
            load.finish()
            report = f"seed {SEED}, {dict(nemesis.strikes)}, {load.count} acknowledged"
            committed = read(copying, "read_committed")
            deadline = time.monotonic() + SETTLE_S
            while len(committed) < load.count:
                assert time.monotonic() < deadline, "\n".join(
                    [f"{len(committed)} in the output; {report}", *(each.last_words() for each in workers)]
                )
                for worker in workers:
                    worker.keep_alive()
                before, committed = len(committed), read(copying, "read_committed")
                if len(committed) > before:  # a busy machine takes its time to catch up
                    deadline = time.monotonic() + SETTLE_S
            if member is not None:
                wait_until(lambda: len(member.accepted) >= load.count, "a record was not delivered", SETTLE_S)
        if "tables" in FEATURES:
            values = Counter(seen.value.encode() for seen in committed)
            wait_until(lambda: rows_of(cluster, TARGET) == values, "the table differs", SETTLE_S)
        uncommitted = read(copying, "read_uncommitted")
        history = [transaction for worker in workers for transaction in worker.transactions()]
        load.check(bootstrap)
        cluster.wait_in_sync()
    report += f", {SECURITY}" if SECURITY else ""
    report += f", {','.join(sorted(FEATURES))}" if FEATURES else ""
    if member is not None:
        report += f", {sum(member.accepted.values())} deliveries"
    report += (
        f", {len(history)} transactions of {', '.join(clients())}, "
        f"slowest recovery {nemesis.slowest_recovery_s:.1f} s"
    )
    print(report)
    outputs = Counter(int(seen.value.split("|")[0]) for seen in committed)
    assert [number for number, times in outputs.items() if times != 1] == [], report
    assert sum(outputs.values()) == load.count, report
    assert not [seen for seen in committed if seen.value.endswith(DOOMED)], report
    assert {seen.value for seen in committed} <= {seen.value for seen in uncommitted}, report
    assert [str(anomaly) for anomaly in check(history, committed, [committed])] == [], report
    assert sum(each.outcome is TransactionOutcome.COMMITTED for each in history) > 5, report
    if "tiered" in FEATURES:  # what each has on its disk is its own affair
        assert list((tmp_path / "store").rglob("*.log")), report
        return
    for topic in (SOURCE, TARGET):
        for partition in range(PARTITIONS):
            held = replicas_of(cluster, topic, partition)
            assert len(set(held.values())) == 1, f"{topic}-{partition} differs; {report}"
