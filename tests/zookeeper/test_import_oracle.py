"""A cluster of Apache Kafka 3.9 on ZooKeeper, imported, and opened by Ottla and by Apache Kafka 4.

One broker with two log directories is filled by real clients, killed and imported, then started again,
stopped and imported. Each import is of a copy of the directories, so the broker can go on. What clients see
of the broker on ZooKeeper must be what they see afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.runtime.properties import parse_properties
from ottla.testing.cluster_plan import free_ports
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.zookeeper import ApacheZooKeeper, ZooKeeperKafka
from tests.support.zookeeper_import import (
    SCRAM,
    Imported,
    as_apache_kafka,
    as_ottla,
    check_that_it_goes_on,
    fill,
    import_copy,
    leads,
    moved_copy,
    observe,
    open_a_transaction,
    running,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@dataclass
class OldCluster:
    """The broker on ZooKeeper, which was filled."""

    root: Path
    zookeeper: ApacheZooKeeper
    kafka: ZooKeeperKafka
    sasl_bootstrap: str


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldCluster]:
    root = tmp_path_factory.mktemp("zookeeper-import")
    port, sasl_port = free_ports(2)
    sasl_bootstrap = f"127.0.0.1:{sasl_port}"
    with ApacheZooKeeper(root) as zookeeper:
        kafka = ZooKeeperKafka(
            root / "broker",
            f"{zookeeper.connect}/kafka",
            log_dirs=("data-a", "data-b"),
            port=port,
            properties={
                "listeners": f"SASL_PLAINTEXT://{sasl_bootstrap},PLAINTEXT://127.0.0.1:{port}",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": SCRAM,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM,
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": "User:ANONYMOUS",
                "delegation.token.secret.key": "a secret of tokens",
                "password.encoder.secret": "a secret of passwords",
                "log.roll.ms": "600000",
            },
        )
        with kafka:
            fill(kafka, sasl_bootstrap)
            yield OldCluster(root, zookeeper, kafka, sasl_bootstrap)


@pytest.fixture(scope="module")
def killed(old_cluster: OldCluster) -> Imported:
    """The import after the broker was killed, with a transaction open."""
    kafka, sasl = old_cluster.kafka, old_cluster.sasl_bootstrap
    producer = open_a_transaction(kafka.bootstrap)
    before = observe(kafka.bootstrap)
    refused = CommandLine("127.0.0.1:1")("zookeeper", "import", str(kafka.file), "--wait", "0")
    assert refused.status == 1
    assert "a broker runs there, or another import. Stop it first" in refused.err
    kafka.kill()
    del producer
    return import_copy(kafka, old_cluster.root / "killed", before, sasl)


@pytest.fixture(scope="module")
def stopped(killed: Imported, old_cluster: OldCluster) -> Imported:
    """The import after the broker was started again, and stopped."""
    kafka, sasl = old_cluster.kafka, old_cluster.sasl_bootstrap
    kafka.start()
    wait_until(lambda: leads(kafka.bootstrap), "the broker does not lead after its restart")
    before = observe(kafka.bootstrap)
    kafka.stop()
    return import_copy(kafka, old_cluster.root / "stopped", before, sasl)


@pytest.mark.parametrize(
    ("ended", "start"),
    [
        pytest.param("killed", as_ottla, id="killed-ottla"),
        pytest.param("killed", as_apache_kafka, id="killed-kafka", marks=pytest.mark.exhaustive),
        pytest.param("stopped", as_ottla, id="stopped-ottla", marks=pytest.mark.exhaustive),
    ],
)
def test_everything_is_there_after_an_import(
    request: pytest.FixtureRequest, ended: str, start: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    imported: Imported = request.getfixturevalue(ended)
    settings = moved_copy(imported.settings, tmp_path / "copy")
    with running(start(settings), imported, tmp_path / "node.log"):
        after = observe(imported.bootstrap)
        for what, value in imported.before.items():
            assert after[what] == value, what
        assert not list((tmp_path / "copy").rglob("*-stray"))
        check_that_it_goes_on(imported)


def test_the_report_says_what_comes_over(killed: Imported) -> None:
    report = killed.report
    assert report["problems"] == []
    assert report["left_behind"] == []
    assert report["counts"]["topics"] == 6
    assert report["counts"]["scram_credentials"] == 2
    assert report["counts"]["delegation_tokens"] == 1
    assert report["counts"]["acls"] == 3
    assert report["next_producer_id"] == 1000
    assert report["written"]
    settings = parse_properties(killed.settings.read_text())
    assert settings["process.roles"] == "broker,controller"
    assert not [name for name in settings if name.startswith(("zookeeper.", "broker.id", "password."))]
    assert os.stat(killed.settings).st_mode & 0o077 == 0, "it may have passwords"
