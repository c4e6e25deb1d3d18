"""Fill a broker on ZooKeeper by real clients, import a copy of its directories, and look at both.

What clients see of the broker on ZooKeeper must be what they see of the node that it becomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import Admin
from ottla.client.admin.acls import AclBinding
from ottla.client.admin.configs import ConfigSource, ResourceType
from ottla.protocol import names
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.errors import KafkaError, UnsupportedVersion
from ottla.testing.cluster_plan import free_ports
from tests.support import committing, java, kafka_libs
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperKafka

PASSWORD = "alice-secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
TOPICS = {"orders": 3, "compacted": 1, "transactions": 2}
LONG_TRANSACTION = {"transaction.timeout.ms": 900_000}


def confluent(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **{name.replace("_", "."): value for name, value in more.items()}}


# Filling it


def fill(kafka: ZooKeeperKafka, sasl_bootstrap: str) -> None:
    """Make topics of every kind, groups, transactions, users, ACLs, quotas and settings."""
    admin = AdminClient(confluent(kafka.bootstrap))
    new = [
        NewTopic("orders", 3, 1, config={"retention.ms": "-1", "segment.bytes": "1048576"}),
        NewTopic(
            "compacted", 1, 1, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        ),
        NewTopic("transactions", 2, 1),
        NewTopic("doomed", 1, 1),
    ]
    for future in admin.create_topics(new).values():
        future.result()
    producer = Producer(confluent(kafka.bootstrap, enable_idempotence=True, compression_type="lz4"))
    now_ms = int(time.time() * 1000)  # Apache Kafka forgets producers whose records are old
    for number in range(500):
        producer.produce(
            "orders", f"v{number}", f"k{number}", headers={"n": str(number)}, timestamp=now_ms + number
        )
    for number in range(100):
        producer.produce("compacted", f"v{number}", f"k{number % 7}")
    assert producer.flush(60) == 0
    one = Producer(confluent(kafka.bootstrap, transactional_id="closed"))
    one.init_transactions()
    for commits in (True, False, True):
        one.begin_transaction()
        for partition in (0, 1):
            one.produce("transactions", "committed" if commits else "aborted", partition=partition)
        one.flush()
        one.commit_transaction() if commits else one.abort_transaction()
    commit_offsets(kafka.bootstrap)
    asyncio.run(fill_security(kafka.bootstrap, sasl_bootstrap))


def open_a_transaction(bootstrap: str) -> Producer:
    producer = Producer(confluent(bootstrap, transactional_id="open") | LONG_TRANSACTION)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("transactions", "undecided", partition=0)
    assert producer.flush(60) == 0
    return producer


def commit_offsets(bootstrap: str) -> None:
    consumer = Consumer(confluent(bootstrap, group_id="readers", enable_auto_commit=False))
    committing.commit_offsets(consumer, [TopicPartition("orders", p, 10 + p) for p in range(3)])
    consumer.close()


async def fill_security(bootstrap: str, sasl_bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.users.set_password("alice", PASSWORD, mechanism="SCRAM-SHA-256")
        await admin.users.set_password("alice", PASSWORD, mechanism="SCRAM-SHA-512")
        await admin.acls.create(
            [
                AclBinding("User:alice", AclOperation.ALL, AclResourceType.TOPIC, "orders"),
                AclBinding("User:alice", AclOperation.READ, AclResourceType.GROUP, "*"),
                AclBinding(
                    "User:bob",
                    AclOperation.DESCRIBE_CONFIGS,
                    AclResourceType.TOPIC,
                    "or",
                    PatternType.PREFIXED,
                    AclPermissionType.DENY,
                    "10.0.0.1",
                ),
            ]
        )
        await admin.quotas.alter({"user": "CN=a b", "client-id": None}, set={"producer_byte_rate": 1e9})
        await admin.quotas.alter({"user": None}, set={"consumer_byte_rate": 2e9})
        await admin.quotas.alter({"ip": "10.1.2.3"}, set={"connection_creation_rate": 15.0})
        await admin.configs.alter(ResourceType.BROKER, "1", set={"log.cleaner.threads": "2"})
        await admin.configs.alter(ResourceType.BROKER, "", set={"message.max.bytes": "2000000"})
    login: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    async with Admin(sasl_bootstrap, **login) as admin:
        await admin.tokens.create(renewers=["User:renewer"])


# Looking at it


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[tuple[Any, ...]]:
    consumer = Consumer(
        confluent(bootstrap, group_id="observer", enable_partition_eof=True, isolation_level=isolation)
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(60)
        assert message is not None, f"{topic} cannot be read"
        if message.error() is not None:
            ends += 1
            continue
        found.append(
            (
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.headers(),
                message.timestamp(),
            )
        )
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def observe(bootstrap: str) -> dict[str, Any]:
    """What clients can see of a cluster, without what is the running broker's own."""
    seen: dict[str, Any] = {
        f"{isolation} {topic}": read_all(bootstrap, topic, partitions, isolation)
        for topic, partitions in TOPICS.items()
        for isolation in ("read_committed", "read_uncommitted")
    }
    return seen | asyncio.run(observe_cluster(bootstrap))


async def observe_cluster(bootstrap: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    dynamic = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER)
    async with Admin(bootstrap) as admin:
        topics = await admin.topics.list(include_internal=True)
        seen["topics"] = sorted((topic.name, topic.topic_id, len(topic.partitions)) for topic in topics)
        for topic in TOPICS:
            configs = await admin.configs.describe(ResourceType.TOPIC, topic)
            seen[f"configs of {topic}"] = {
                name: config.value for name, config in configs.items() if config.source in dynamic
            }
            seen[f"offsets of {topic}"] = (
                await admin.offsets.beginning(topic),
                await admin.offsets.end(topic),
                await admin.offsets.end(topic, read_committed=True),
            )
        for broker in ("1", ""):
            configs = await admin.configs.describe(ResourceType.BROKER, broker)
            seen[f"configs of broker {broker!r}"] = {
                name: config.value for name, config in configs.items() if config.source in dynamic
            }
        partitions = [names.TopicPartition("orders", p) for p in range(3)]
        seen["committed"] = await admin.groups.offsets("readers", partitions)
        seen["acls"] = sorted(acl.text for acl in await admin.acls.describe())
        seen["quotas"] = sorted((each.text, dict(each.quotas)) for each in await admin.quotas.describe())
        seen["users"] = [(user.name, dict(user.mechanisms)) for user in await admin.users.list()]
        producers = await admin.partitions.producers(
            [names.TopicPartition(topic, p) for topic, count in TOPICS.items() for p in range(count)]
        )
        seen["producers"] = {
            str(partition): states
            if isinstance(states, KafkaError)
            else sorted(
                (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
                for each in states
            )
            for partition, states in producers.items()
        }
        with contextlib.suppress(UnsupportedVersion):  # brokers list transactions since 3.0
            seen["transactions"] = sorted(
                (each.transactional_id, each.producer_id, each.state)
                for each in await admin.transactions.list()
            )
    return seen


# Importing it


@dataclass
class Imported:
    """A copy of the broker's directories after an import, and what clients saw before."""

    settings: Path
    before: dict[str, Any]
    report: dict[str, Any]
    bootstrap: str
    sasl_bootstrap: str


def copy_of(kafka: ZooKeeperKafka, directory: Path) -> Path:
    """Copy the directories of a broker that does not run, and its settings with their new places."""
    directory.mkdir()
    paths = []
    for log_dir in kafka.log_dirs:
        shutil.copytree(log_dir, directory / log_dir.name)
        paths.append(str(directory / log_dir.name))
    settings = kafka.settings | {"log.dirs": ",".join(paths)}
    file = directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


def import_copy(kafka: ZooKeeperKafka, directory: Path, before: dict[str, Any], sasl: str) -> Imported:
    file = copy_of(kafka, directory)
    ottla = CommandLine("127.0.0.1:1")
    (controller_port,) = free_ports(1)
    command = ("zookeeper", "import", str(file), "--controllers", f"1@127.0.0.1:{controller_port}", "--json")
    before_import = digest(directory)
    planned = ottla.ok(*command, "--dry-run").json
    assert digest(directory) == before_import, "a dry run changes nothing"
    report = ottla.ok(*command).json
    assert planned["pending"] == report["pending"]
    after_import = digest(directory)
    again = ottla.ok(*command).json
    assert again["pending"] == [], "a second run has nothing to do"
    assert digest(directory) == after_import
    logs = {
        name: data for name, data in after_import.items() if "/" in name and "cluster_metadata" not in name
    }
    assert {name: data for name, data in before_import.items() if name in logs} == {
        name: data for name, data in logs.items() if name in before_import
    } | {name: before_import[name] for name in before_import if name.endswith("/meta.properties")}
    return Imported(directory / "server-kraft.properties", before, report, kafka.bootstrap, sasl)


def digest(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def leads(bootstrap: str) -> bool:
    """Whether all partitions have a leader, for a client that has just come."""
    try:
        found = AdminClient(confluent(bootstrap)).list_topics(timeout=10)
    except KafkaException:
        return False
    return bool(found.brokers) and all(
        partition.leader >= 0 for topic in found.topics.values() for partition in topic.partitions.values()
    )


@contextlib.contextmanager
def running(command: list[str], imported: Imported, log: Path) -> Iterator[None]:
    """Run a node with the imported settings until the end of the block, and stop it as an operator does."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=java.die_with_parent(),
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, f"it ended:\n{log.read_text()[-6000:]}"
            return leads(imported.bootstrap)

        wait_until(ready, "the imported node is not ready", 180)
        yield
        java.end_process(process, timeout_s=60)
    finally:
        java.kill_process(process)


def as_ottla(settings: Path) -> list[str]:
    return [sys.executable, "-m", "ottla", "start", str(settings), "--set", "http.listener="]


def as_apache_kafka(settings: Path) -> list[str]:
    return java.command("kafka.Kafka", [str(settings)], bundle=kafka_libs.BROKER)


def moved_copy(settings: Path, directory: Path) -> Path:
    """Copy an imported cluster, so that several nodes can begin from it."""
    shutil.copytree(settings.parent, directory)
    text = settings.read_text().replace(str(settings.parent), str(directory))
    (directory / settings.name).write_text(text)
    return directory / settings.name


def check_that_it_goes_on(imported: Imported) -> None:
    """Log in, end the open transaction, produce and consume."""
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "alice",
        "sasl_password": PASSWORD,
    }
    as_alice = Producer(confluent(imported.sasl_bootstrap, **login))
    as_alice.produce("orders", "of alice")
    assert as_alice.flush(60) == 0
    before = asyncio.run(end_offset(imported.bootstrap))
    fenced = Producer(confluent(imported.bootstrap, transactional_id="open"))
    fenced.init_transactions()
    wait_until(
        lambda: asyncio.run(end_offset(imported.bootstrap)) > before, "the open transaction was not aborted"
    )
    known = {id for states in imported.before["producers"].values() for id, *_ in states}
    fresh = Producer(confluent(imported.bootstrap, transactional_id="fresh"))
    fresh.init_transactions()
    fresh.begin_transaction()
    fresh.produce("transactions", "new", partition=1)
    fresh.commit_transaction()
    seen = asyncio.run(observe_cluster(imported.bootstrap))
    ((_, new_id, _),) = [each for each in seen["transactions"] if each[0] == "fresh"]
    assert new_id > max(known), "no producer gets an id that was given out before"


async def end_offset(bootstrap: str) -> int:
    async with Admin(bootstrap) as admin:
        return (await admin.offsets.end("transactions", read_committed=True))[0]
