"""The settings of the legacy mode: what it needs and refuses. Nothing of it is loaded unless asked for."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.node_config import NodeConfig, unknown_names
from ottla.runtime.disk import RealDisk
from ottla.runtime.zookeeper import ZooKeeperLogin, ZooKeeperSettings, _kazoo_options
from ottla.security.zookeeper_login import ZooKeeperSettingsError, load_login, load_tls
from ottla.testing.cluster_plan import OWN_ZOOKEEPER, ClusterPlan

LEGACY = {
    "metadata.store": "zookeeper",
    "zookeeper.connect": "127.0.0.1:2181/kafka",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "log.dirs": "/data",
}


def test_the_metadata_are_in_a_quorum_unless_a_setting_says_zookeeper() -> None:
    assert not NodeConfig({"log.dirs": "/data"}).uses_zookeeper
    legacy = NodeConfig(LEGACY)
    assert legacy.uses_zookeeper
    assert not legacy.alone, "others may join by ZooKeeper"
    assert legacy.number("offsets.topic.replication.factor") == 3


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"zookeeper.connect": ""}, r"metadata.store=zookeeper needs zookeeper.connect"),
        (
            {"listeners": "PLAINTEXT://:9092"},
            r"needs a listener for the controller.*set listeners .*,CONTROLLER://localhost:9093.*cluster.id",
        ),
        ({"log.dirs": "/a,/b"}, "one directory in log.dirs"),
        ({"controller.quorum.voters": "1@127.0.0.1:9093"}, "has no quorum, but controller.quorum.voters"),
        ({"metadata.store": "etcd"}, "String must be one of: quorum, zookeeper"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl is true, but there is no login"),
        (
            {"zookeeper.set.acl": "true", "zookeeper.ssl.client.enable": "true"},
            "zookeeper.set.acl is true, but there is no login",
        ),
        ({"zookeeper.login.scheme": "plain"}, "allowed are digest, sasl-digest and kerberos"),
        ({"zookeeper.session.timeout.ms": "soon"}, "zookeeper.session.timeout.ms"),
    ],
)
def test_settings_that_contradict_the_mode_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        NodeConfig({**LEGACY, **settings})


def test_settings_of_zookeeper_are_told_of_where_they_mean_nothing() -> None:
    (line,) = unknown_names(["zookeeper.connect", "node.id"])
    assert "Apache Kafka dropped it in 4.0" in line
    assert unknown_names(["metadata.store", "zookeeper.connect", "zookeeper.session.timeout.ms"]) == []


def test_what_a_migration_left_in_a_file_does_not_stop_a_start() -> None:
    left = {
        "zookeeper.connect": "",
        "zookeeper.session.timeout.ms": "${ZK_TIMEOUT}",
        "zookeeper.set.acl": "yes",
        "zookeeper.ssl.client.enable": "",
        "zookeeper.login.scheme": "plain",
        "zookeeper.max.in.flight.requests": "many",
    }
    for store in ({}, {"metadata.store": "quorum"}):
        config = NodeConfig({**left, **store, "process.roles": "broker,controller", "log.dirs": "/data"})
        assert not config.uses_zookeeper
        assert config.number("zookeeper.session.timeout.ms") == 18_000


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"login.user": "kafka"}, "zookeeper.login.user needs zookeeper.login.scheme"),
        ({"login.scheme": "digest", "login.user": "kafka"}, "needs zookeeper.login.user and zookeeper.login"),
        ({"login.scheme": "digest", "jaas.file": "/jaas"}, "give one login"),
        ({"jaas.file": "/none"}, "cannot read /none: No such file or directory"),
        ({"ssl.client.enable": "true", "ssl.crl.enable": "true"}, "ssl.crl.enable=true is not supported"),
        (
            {"ssl.client.enable": "true", "clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"},
            "has no TLS, and zookeeper.ssl.client.enable is true",
        ),
        (
            {"ssl.client.enable": "true", "ssl.truststore.location": "/none"},
            r"TLS of ZooKeeper .*ssl.truststore.location: /none cannot be read",
        ),
        ({"ssl.client.enable": "true", "ssl.keystore.type": "BKS"}, "ssl.keystore.type: BKS is not supp"),
    ],
)
def test_logins_and_tls_that_cannot_be_used_are_said(settings: dict[str, str], problem: str) -> None:
    given = {f"zookeeper.{name}": value for name, value in settings.items()}
    load = load_tls if "ssl.client.enable" in settings else load_login
    with pytest.raises(ZooKeeperSettingsError, match=problem):
        load(given, RealDisk())


def test_a_login_is_that_of_the_settings_or_of_a_section_of_a_jaas_file(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    file.write_text(
        f'KafkaServer {{ x.Y required password="no"; }};\nClient {{\n  {module} required\n'
        '  username="kafka" password="of the file";\n};\n'
        'Other { com.sun.security.auth.module.Krb5LoginModule required principal="kafka/a@B"; };\n'
    )
    given = {"zookeeper.jaas.file": str(file)}
    assert load_login(given, RealDisk()) == ZooKeeperLogin("sasl-digest", "kafka", "of the file")
    given["zookeeper.sasl.clientconfig"] = "Other"
    assert load_login(given, RealDisk()) == ZooKeeperLogin("kerberos", "kafka/a@B")
    login = {"scheme": "digest", "user": "kafka", "password": "secret"}
    given = {f"zookeeper.login.{name}": value for name, value in login.items()}
    assert load_login(given, RealDisk()) == ZooKeeperLogin("digest", "kafka", "secret")
    assert load_login({}, RealDisk()) is None
    assert load_tls({}, RealDisk()) is None


def test_requests_to_zookeeper_with_passwords_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    settings = ZooKeeperSettings("127.0.0.1:2181", login=ZooKeeperLogin("digest", "kafka", "secret"))
    options = _kazoo_options(settings)
    logger = options["logger"]
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.debug("Sending request(xid=%s): %s", -4, options["auth_data"])
        logger.info("Zookeeper connection lost")
    assert caplog.messages == ["Zookeeper connection lost"]
    assert "secret" not in repr(settings)


def test_a_planned_cluster_may_have_a_zookeeper_of_its_own(tmp_path: Path) -> None:
    plan = ClusterPlan.make(tmp_path / "cluster", brokers=2, zookeeper=OWN_ZOOKEEPER)
    plan.write()
    assert ClusterPlan.read(tmp_path / "cluster") == plan
    settings = plan.properties(plan.nodes[0])
    assert settings["zookeeper.connect"] == plan.zookeeper == f"127.0.0.1:{plan.zookeeper_port}"
    assert settings["metadata.store"] == "zookeeper"
    assert "controller.quorum.voters" not in settings
    assert len({plan.zookeeper_port, *(node.port for node in plan.nodes)}) == 3


@pytest.mark.slow
def test_a_node_with_a_quorum_loads_nothing_of_zookeeper() -> None:
    code = (
        "import sys; from ottla.testing.local_node import LocalNode\n"
        "with LocalNode(): pass\n"
        "print([m for m in sys.modules if 'kazoo' in m or m.startswith('ottla.zookeeper')"
        " or m in ('ottla.runtime.zookeeper', 'ottla.node.cluster.zookeeper_member')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
