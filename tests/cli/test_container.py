"""The variables of Apache Kafka's image make the same node: its documentation's rules and compose files."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from ottla.cli.container import (
    CLUSTER_ID,
    DATA,
    ContainerError,
    Directories,
    kafka_lines,
    setting_name,
    settings_of,
)
from ottla.node.config.node_config import NodeConfig, unknown_names
from ottla.testing.cluster_plan import free_ports
from tests.house.test_shown_commands import check_command

# What the compose files of Kafka's repository and Testcontainers have in common.
ALONE = {
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
}
SSL = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "kafka01.keystore.jks",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "kafka_keystore_creds",
    "KAFKA_SSL_KEY_CREDENTIALS": "kafka_ssl_key_creds",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "kafka.truststore.jks",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "kafka_truststore_creds",
    "KAFKA_SSL_CLIENT_AUTH": "required",
    "KAFKA_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": "",
}


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    found = Directories(tmp_path / "shared", tmp_path / "secrets")
    found.shared.mkdir()
    found.secrets.mkdir()
    return found


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_ABC_DEF", "abc.def"),
        ("KAFKA_ABC___DEF", "abc-def"),
        ("KAFKA_ABC__DEF", "abc_def"),
        ("KAFKA_A_B_C", "a.b.c"),
        ("KAFKA_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH", "listener.name.sasl_ssl.ssl.client.auth"),
        ("KAFKA_LISTENER_NAME_SSL___INTERNAL_SSL_CLIENT_AUTH", "listener.name.ssl-internal.ssl.client.auth"),
    ],
)
def test_underscores_stand_for_dots_underscores_and_dashes(variable: str, name: str) -> None:
    assert setting_name(variable) == name


def test_four_underscores_mean_nothing(directories: Directories) -> None:
    with pytest.raises(ContainerError, match="KAFKA_A____B: more than three underscores"):
        settings_of({"KAFKA_A____B": "1"}, directories)


def test_without_anything_a_node_serves_this_machine(directories: Directories) -> None:
    assert settings_of({"PATH": "/bin"}, directories) == {
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
        "log.dirs": DATA,
        "cluster.id": CLUSTER_ID,
    }


def test_a_formatted_directory_says_which_cluster_it_is(directories: Directories, tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\nnode.id=1\n")
    variables = {"KAFKA_LOG_DIRS": f"{tmp_path}/new,{tmp_path}"}
    assert "cluster.id" not in settings_of(variables, directories)
    named = settings_of({**variables, "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"}, directories)
    assert named["cluster.id"] == "4L6g3nShT-eMCtK--X86sw"


def test_variables_win_over_the_shared_file(directories: Directories) -> None:
    (directories.shared / "server.properties").write_text("num.partitions=3\nlog.retention.ms=5\n")
    settings = settings_of({"KAFKA_NUM_PARTITIONS": "7", "KAFKA_LOG_DIRS": "/data"}, directories)
    assert (settings["num.partitions"], settings["log.retention.ms"]) == ("7", "5")
    assert settings["log.dirs"] == "/data"


def test_what_is_advertised_is_listened_for_on_all_addresses(directories: Directories) -> None:
    advertised = "PLAINTEXT://broker:19092,HOST://[::1]:9092"
    settings = settings_of({"KAFKA_ADVERTISED_LISTENERS": advertised}, directories)
    assert settings["listeners"] == "PLAINTEXT://0.0.0.0:19092,HOST://0.0.0.0:9092"


def test_a_controller_advertises_nothing(directories: Directories) -> None:
    controller = {"KAFKA_PROCESS_ROLES": "controller", "KAFKA_LISTENERS": "CONTROLLER://:29092"}
    settings = settings_of({**controller, "KAFKA_ADVERTISED_LISTENERS": ""}, directories)
    assert settings["listeners"] == "CONTROLLER://:29092"
    assert "advertised.listeners" not in settings
    with pytest.raises(ContainerError, match="not supported on a KRaft controller"):
        settings_of({**controller, "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://a:1"}, directories)


def test_variables_of_java_and_of_kubernetes_are_no_settings(directories: Directories) -> None:
    others = (
        "HEAP_OPTS",
        "LOG4J_LOGGERS",
        "JMX_PORT",
        "SERVICE_HOST",
        "SERVICE_PORT_CLIENTS",
        "PORT_9092_TCP_ADDR",
    )
    settings = settings_of({f"KAFKA_{name}": "x" for name in (*others, "PORT")}, directories)
    assert settings == settings_of({}, directories)


def test_the_compose_file_with_tls(directories: Directories) -> None:
    variables = {
        **ALONE,
        **SSL,
        "KAFKA_NODE_ID": "4",
        "KAFKA_PROCESS_ROLES": "broker",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "SSL:SSL,CONTROLLER:PLAINTEXT,SSL-INTERNAL:SSL",
        "KAFKA_LISTENERS": "SSL-INTERNAL://:19093,SSL://:9093",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@controller-1:29092,2@controller-2:29092,3@controller-3:29092",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "SSL-INTERNAL",
        "KAFKA_SECURITY_PROTOCOL": "SSL",
        "KAFKA_ADVERTISED_LISTENERS": "SSL-INTERNAL://kafka-1:19093,SSL://localhost:29093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    }
    with pytest.raises(ContainerError, match=r"KAFKA_SSL_KEYSTORE_FILENAME: there is no file .*kafka01"):
        settings_of(variables, directories)
    for name in SSL.values():
        if "kafka" in name:
            (directories.secrets / name).write_text(f"password of {name}\n")
    settings = settings_of(variables, directories)
    assert settings["ssl.keystore.location"] == str(directories.secrets / "kafka01.keystore.jks")
    assert settings["ssl.keystore.password"] == "password of kafka_keystore_creds"
    assert settings["ssl.key.password"] == "password of kafka_ssl_key_creds"
    assert settings["ssl.truststore.location"] == str(directories.secrets / "kafka.truststore.jks")
    assert settings["ssl.truststore.password"] == "password of kafka_truststore_creds"
    assert settings["ssl.endpoint.identification.algorithm"] == ""
    assert settings["cluster.id"] == "4L6g3nShT-eMCtK--X86sw"
    # It is a client's setting, in Kafka's own file; brokers ignore it.
    (unknown,) = unknown_names(settings)
    assert "security.protocol" in unknown
    assert NodeConfig(settings).node_id == 4


def test_the_compose_file_with_logins(directories: Directories) -> None:
    logins = directories.secrets / "broker_jaas.conf"
    logins.write_text(
        "KafkaServer {\n  org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        '  username="admin" password="a;}secret" user_admin="a;}secret"; };\n\n'
        "KafkaClient { some.Other required; };\n"
    )
    settings = settings_of({"KAFKA_OPTS": f"-Xmx1g -Djava.security.auth.login.config={logins}"}, directories)
    assert settings["plain.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="admin" password="a;}secret" user_admin="a;}secret";'
    )
    logins.write_text("KafkaClient { };")
    with pytest.raises(ContainerError, match="no section KafkaServer"):
        settings_of({"KAFKA_OPTS": f"-Djava.security.auth.login.config={logins}"}, directories)


def test_the_lines_that_test_suites_wait_for() -> None:
    lines = "\n".join(kafka_lines(1, is_broker=True))
    for awaited in (
        r".*Transitioning from RECOVERY to RUNNING.*",
        r".*\[KafkaServer id=\d+\] started.*",
        r".*Kafka Server started.*",
    ):
        assert re.search(awaited, lines)
    assert "RUNNING" not in "\n".join(kafka_lines(1, is_broker=False))


@pytest.mark.slow
def test_a_node_as_testcontainers_starts_it(tmp_path: Path) -> None:
    """The variables of its Kafka module, other ports, and its start script's variable as an argument."""
    clients, brokers, controllers = free_ports(3)
    variables = {
        **ALONE,
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{clients},BROKER://:{brokers},CONTROLLER://:{controllers}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_NODE_ID": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
        "KAFKA_HTTP_LISTENER": "",
    }
    advertised = f"PLAINTEXT://127.0.0.1:{clients},BROKER://127.0.0.1:{brokers}"
    command = [sys.executable, "-m", "ottla.cli.container", f"KAFKA_ADVERTISED_LISTENERS={advertised}"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        try:
            lines = [next(node.stdout) for _ in range(4)]
        finally:
            node.send_signal(signal.SIGTERM)
            rest = node.stdout.read()
        assert node.wait(60) == 0, rest
    assert "is ready" in lines[0]
    assert "Transitioning from RECOVERY to RUNNING" in lines[1]
    assert "4L6g3nShT-eMCtK--X86sw" in (tmp_path / "data" / "meta.properties").read_text()


def test_the_compose_file_of_three_nodes(directories: Directories) -> None:
    file = Path(__file__).parents[2] / "packaging" / "image" / "compose.yaml"
    services = yaml.safe_load(file.read_text())["services"]
    for name in ("console", "spark"):
        command = services.pop(name)
        assert command["profiles"] == [name]
        check_command(command["command"][1:])
    for number, (name, service) in enumerate(services.items(), 1):
        variables = {variable: str(value) for variable, value in service["environment"].items()}
        config = NodeConfig(settings_of(variables, directories))
        assert (config.node_id, name) == (number, f"node{number}")
        assert config.is_broker
        assert f"{number}@{name}:9093" in config.names("controller.quorum.voters")
        assert service["volumes"] == [f"{name}:{DATA}"]
