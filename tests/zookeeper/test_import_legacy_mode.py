"""The way out of Ottla's legacy mode: a cluster with metadata.store=zookeeper becomes one with a quorum."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import SETTINGS
from tests.support import java
from tests.support.acknowledged_workload import Load
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.zookeeper import ApacheZooKeeper
from tests.support.zookeeper_import import leads

pytestmark = [pytest.mark.kafka, pytest.mark.exhaustive]


def facts(bootstrap: str) -> dict[str, Any]:
    """What has to be the same before and after."""
    with blocking.Admin(bootstrap) as admin:
        return {
            "topics": sorted(
                (topic.name, topic.topic_id) for topic in admin.topics.list(include_internal=True)
            ),
            "retention": admin.configs.describe(ResourceType.TOPIC, "orders")["retention.ms"].value,
            "users": [(user.name, dict(user.mechanisms)) for user in admin.users.list()],
            "quotas": [(each.text, dict(each.quotas)) for each in admin.quotas.describe()],
            "end of transactions": admin.offsets.end("transactions", read_committed=True),
        }


def are_ended(bootstrap: str) -> bool:
    """Whether all transactions have their markers, which follow the decision."""
    with blocking.Admin(bootstrap) as admin:
        ends = [admin.offsets.end("transactions", read_committed=each) for each in (True, False)]
    return ends[0] == ends[1]


def commits(consumer: Consumer) -> bool:
    """Commit offsets; False if that failed, as it may until another broker coordinates the group."""
    offsets = [TopicPartition("orders", partition, 10 + partition) for partition in range(3)]
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return False
    return True


def committed(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    found = consumer.committed([TopicPartition("orders", partition) for partition in range(3)], 60)
    consumer.close()
    return [each.offset for each in found]


def transact(bootstrap: str, id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": id})
    producer.init_transactions()
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce("transactions", b"committed" if commits else b"aborted", partition=0)
        producer.commit_transaction() if commits else producer.abort_transaction()


@contextlib.contextmanager
def running(files: list[Path], bootstrap: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        logs, processes = [file.parent / "quorum.log" for file in files], []
        for file, log in zip(files, logs, strict=True):
            process = subprocess.Popen(
                [sys.executable, "-m", "ottla", "start", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=java.die_with_parent(),
            )
            stack.callback(java.kill_process, process)
            processes.append(process)

        def ready() -> bool:
            output = "\n".join(log.read_text()[-3000:] for log in logs)
            assert all(process.poll() is None for process in processes), output
            return leads(bootstrap)

        wait_until(ready, "the imported cluster is not ready", 180)
        yield


def test_a_cluster_of_the_legacy_mode_goes_on_with_a_quorum(tmp_path: Path) -> None:
    settings = {**SETTINGS, "zookeeper.session.timeout.ms": 3_000}
    offline = CommandLine("127.0.0.1:1")
    with ApacheZooKeeper(tmp_path / "zookeeper") as zookeeper:
        legacy = LocalCluster(
            3, settings, data_dir=str(tmp_path / "cluster"), zookeeper=f"{zookeeper.connect}/kafka"
        )
        with legacy as cluster:
            bootstrap = cluster.bootstrap_servers
            files = [node.properties_file for node in cluster.plan.nodes]
            with blocking.Admin(bootstrap) as admin:
                admin.topics.create(
                    "orders", partitions=3, replication_factor=3, configs={"retention.ms": "-1"}
                )
                admin.topics.create("transactions", partitions=1, replication_factor=3)
                admin.users.set_password("alice", "secret", mechanism="SCRAM-SHA-512")
                admin.quotas.alter({"user": "alice"}, set={"producer_byte_rate": 1e6})
            with Load(bootstrap, "orders", 3, per_second=500) as load:
                load.wait_for_more(300)
                refused = offline("zookeeper", "import", *map(str, files), "--wait", "0")
                assert refused.status == 1
                assert "a broker runs there" in refused.err
                cluster.kill(3)
                load.wait_for_more(300)
                load.finish()
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
            wait_until(lambda: commits(consumer), "the group has no coordinator", 60)
            consumer.close()
            transact(bootstrap, "before")
            wait_until(lambda: are_ended(bootstrap), "the transactions have no markers", 60)
            before = facts(bootstrap)
        report = offline.ok("zookeeper", "import", *map(str, files), "--json").json
    assert report["problems"] == []
    assert [each.partition("@")[0] for each in report["controllers"]] == ["1", "2", "3"]
    # ZooKeeper is gone.
    with running([file.with_name("server-kraft.properties") for file in files], bootstrap):
        load.check(bootstrap)
        # A leader that starts together with its followers shows the last records when these have fetched.
        end = "end of transactions"
        wait_until(lambda: facts(bootstrap)[end] == before[end], "the end of the transactions is not seen")
        assert facts(bootstrap) == before
        assert committed(bootstrap) == [10, 11, 12]
        transact(bootstrap, "before")  # its next epoch
        transact(bootstrap, "after")
        assert not list(tmp_path.rglob("*-stray"))
    started = subprocess.run(
        [sys.executable, "-m", "ottla", "start", str(files[0])],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert started.returncode == 1
    assert "is the metadata log of a quorum" in started.stderr
