"""A broker of Apache Kafka 2.8 on ZooKeeper, with settings and formats of its time, becomes one of Ottla.

It speaks the protocol of 2.7 with other brokers: its topics have no ids. One topic has messages from before
0.10, one from before 0.11. `OTTLA_OLDER_KAFKA_VERSION` tries another version.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from ottla import Admin
from ottla.runtime.properties import parse_properties
from ottla.testing.cluster_plan import free_ports
from tests.support import kafka_libs
from tests.support.command_line import CommandLine
from tests.support.zookeeper import ApacheZooKeeper, ZooKeeperKafka
from tests.support.zookeeper_import import (
    SCRAM,
    Imported,
    as_ottla,
    check_that_it_goes_on,
    confluent,
    fill,
    import_copy,
    observe,
    open_a_transaction,
    read_all,
    running,
)

pytestmark = [pytest.mark.kafka, pytest.mark.exhaustive]

IS_2 = kafka_libs.OLDER_KAFKA_VERSION.startswith("2.")
# By their topics. Apache Kafka 3.0 and later take these settings and go on with record batches.
OLD_FORMATS = {"ancient": "0.9.0", "old": "0.10.2"}
OLD_SETTINGS = {
    "inter.broker.protocol.version": "2.7",
    "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
    "delegation.token.master.key": "a secret of tokens",
}
LATER_SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "delegation.token.secret.key": "a secret of tokens",
}


@dataclass
class Older:
    imported: Imported
    old_records: dict[str, list[tuple[Any, ...]]]
    znodes: dict[str, Any]


def write_old_formats(bootstrap: str) -> dict[str, list[tuple[Any, ...]]]:
    admin = AdminClient(confluent(bootstrap))
    new = [
        NewTopic(topic, 1, 1, config={"message.format.version": version})
        for topic, version in OLD_FORMATS.items()
    ]
    for future in admin.create_topics(new).values():
        future.result()
    for compression in ("none", "gzip", "snappy", "lz4"):
        producer = Producer(confluent(bootstrap, compression_type=compression, linger_ms=20))
        for topic in OLD_FORMATS:
            for number in range(50):
                producer.produce(topic, f"{compression} {number}" * 3, f"k{number}")
        assert producer.flush(60) == 0
    return {topic: read_all(bootstrap, topic, 1, "read_uncommitted") for topic in OLD_FORMATS}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Older]:
    root = tmp_path_factory.mktemp("zookeeper-older")
    port, sasl_port = free_ports(2)
    sasl_bootstrap = f"127.0.0.1:{sasl_port}"
    bundle = kafka_libs.OLDER_KAFKA
    try:
        kafka_libs.classpath(bundle)
    except RuntimeError as error:  # one more version, which a repository of jars may not have
        pytest.skip(f"{kafka_libs.OLDER_KAFKA_SKIP}{error}")
    with ApacheZooKeeper(root, bundle=bundle, settings={"maxSessionTimeout": "60000"}) as zookeeper:
        kafka = ZooKeeperKafka(
            root / "broker",
            f"{zookeeper.connect}/kafka",
            log_dirs=("data-a", "data-b"),
            port=port,
            bundle=bundle,
            properties={
                "listeners": f"SASL_PLAINTEXT://{sasl_bootstrap},PLAINTEXT://127.0.0.1:{port}",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM,
                "super.users": "User:ANONYMOUS",
                # It is stopped cleanly: no session has to end by itself.
                "zookeeper.session.timeout.ms": "60000",
                "log.roll.ms": "600000",
                **(OLD_SETTINGS if IS_2 else LATER_SETTINGS),
            },
        )
        with kafka:
            fill(kafka, sasl_bootstrap)
            old_records = write_old_formats(kafka.bootstrap)
            producer = open_a_transaction(kafka.bootstrap)
            before = observe(kafka.bootstrap)
            kafka.stop()
            del producer
        client = KazooClient(f"{zookeeper.connect}/kafka")
        client.start()
        znodes = {
            path: json.loads(client.get(path)[0])
            for path in ("/brokers/topics/orders", "/brokers/topics/orders/partitions/0/state")
        }
        client.stop()
        client.close()
        yield Older(import_copy(kafka, root / "copy", before, sasl_bootstrap), old_records, znodes)


def test_an_older_broker_becomes_one_of_ottla(older: Older, tmp_path: Path) -> None:
    imported, report = older.imported, older.imported.report
    assert ("topic_id" in older.znodes["/brokers/topics/orders"]) is not IS_2
    assert report["problems"] == []
    assert any(line.startswith("message.format.version of ancient, old") for line in report["left_behind"])
    settings = parse_properties(imported.settings.read_text())
    assert settings["authorizer.class.name"].endswith("StandardAuthorizer")
    assert settings["delegation.token.secret.key"] == "a secret of tokens"
    old = [line for line in report["warnings"] if "in a format from before Kafka 0.11" in line]
    assert len(old) == IS_2, "later versions write record batches, whatever is set"
    upgraded = CommandLine("127.0.0.1:1").ok(
        "storage", "upgrade-format", "-c", str(imported.settings), "--apply", "--json"
    )
    assert sorted(each["records"] for each in upgraded.json) == ([200, 200] if IS_2 else [])
    with running(as_ottla(imported.settings), imported, tmp_path / "node.log"):
        after = observe(imported.bootstrap)
        for what, value in imported.before.items():
            if what == "topics" and IS_2:
                assert [(name, count) for name, _, count in after[what]] == [
                    (name, count) for name, _, count in value
                ]
                ids = asyncio.run(topic_ids(imported.bootstrap))
                assert len(set(ids.values())) == len(ids), "each topic has got an id"
                continue
            assert after[what] == value, what
        for topic, records in older.old_records.items():
            found = read_all(imported.bootstrap, topic, 1, "read_uncommitted")
            if topic == "ancient" and IS_2:
                # Such messages have no time; in a record batch that is -1.
                assert {timestamp for *_, timestamp in records} == {(TIMESTAMP_NOT_AVAILABLE, 0)}
                records = [(*each[:-1], (TIMESTAMP_CREATE_TIME, -1)) for each in records]
            assert found == records, topic
        assert not list(imported.settings.parent.rglob("*-stray"))
        check_that_it_goes_on(imported)


async def topic_ids(bootstrap: str) -> dict[str, Any]:
    async with Admin(bootstrap) as admin:
        return {topic.name: topic.topic_id for topic in await admin.topics.list(include_internal=True)}
