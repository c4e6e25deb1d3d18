"""Apache Kafka's tools on an Ottla quorum, and Apache Kafka's own nodes in one cluster with Ottla's."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support import java
from tests.support.apache_kafka import ApacheKafka
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until

from ottla.cli.main import main as ottla
from ottla.testing.cluster_plan import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DEADLINE_S = 120
# Eleven days: a node that starts without a leader waits for a random part of a sixteenth of it, at most.
# Kafka adds up to as much again, in an int.
NEVER_MS = 1_000_000_000
# A leader that pauses for less keeps its followers.
PAUSE_MS = "10000"


def properties(path: Path, **settings: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{name.replace('_', '.')}={value}\n" for name, value in settings.items())
    path.write_text("".join(lines))
    return path


def voters(text: str) -> list[int]:
    """The ids of the voters that `describe --replication` shows."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return sorted(int(row[0]) for row in rows if row and row[-1] in ("Leader", "Follower"))


def test_kafkas_tool_shows_a_dynamic_quorum_adds_a_controller_and_removes_one(tmp_path: Path) -> None:
    client, first, second = free_ports(3)
    servers = f"127.0.0.1:{first}"
    files = {
        11: properties(
            tmp_path / "11" / "server.properties",
            process_roles="controller",
            node_id="11",
            controller_quorum_bootstrap_servers=servers,
            listeners=f"CONTROLLER://127.0.0.1:{first}",
            controller_listener_names="CONTROLLER",
            log_dirs=str(tmp_path / "11" / "data"),
        ),
        12: properties(
            tmp_path / "12" / "server.properties",
            process_roles="controller",
            node_id="12",
            controller_quorum_bootstrap_servers=servers,
            listeners=f"CONTROLLER://127.0.0.1:{second}",
            controller_listener_names="CONTROLLER",
            log_dirs=str(tmp_path / "12" / "data"),
        ),
        1: properties(
            tmp_path / "1" / "server.properties",
            process_roles="broker",
            node_id="1",
            controller_quorum_bootstrap_servers=servers,
            listeners=f"PLAINTEXT://127.0.0.1:{client}",
            controller_listener_names="CONTROLLER",
            listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            log_dirs=str(tmp_path / "1" / "data"),
        ),
    }
    for id, file in files.items():
        begins = "--standalone" if id == 11 else "--no-initial-controllers"
        assert ottla(["storage", "format", "-c", str(file), "-t", CLUSTER_ID, begins]) == 0
    with contextlib.ExitStack() as stack:
        for file in files.values():
            stack.enter_context(NodeProcess(None, str(file), listen=None))
        by_broker = ("--bootstrap-server", f"127.0.0.1:{client}")
        status = java.run_tool(QUORUM, *by_broker, "describe", "--status").out
        assert re.search(r"LeaderId:\s+11$", status, re.MULTILINE), status
        assert voters(java.run_tool(QUORUM, *by_broker, "describe", "--replication").out) == [11]
        java.run_tool(QUORUM, *by_broker, "--command-config", str(files[12]), "add-controller")
        by_controller = ("--bootstrap-controller", f"127.0.0.1:{second}")
        shown = java.run_tool(QUORUM, *by_controller, "describe", "--replication").out
        assert voters(shown) == [11, 12]
        directory = next(line.split()[1] for line in shown.splitlines() if line.startswith("11"))
        java.run_tool(
            QUORUM,
            *by_broker,
            "remove-controller",
            "--controller-id",
            "11",
            "--controller-directory-id",
            directory,
        )

        def follows_the_other() -> bool:
            """Between the two leaders there may be no node that can answer."""
            told = java.run_tool(QUORUM, *by_broker, "describe", "--replication", check=False)
            return told.exit_code == 0 and voters(told.out) == [12]

        wait_until(follows_the_other, "the controller that is left does not lead", DEADLINE_S)


def test_kafkas_tools_speak_to_controllers_and_make_a_static_quorum_dynamic(tmp_path: Path) -> None:
    client, quorum, other = free_ports(3)
    shared = {
        "controller_quorum_voters": f"1@127.0.0.1:{quorum}",
        "controller_listener_names": "CONTROLLER",
        "listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "cluster_id": CLUSTER_ID,
    }
    both = properties(
        tmp_path / "1" / "server.properties",
        process_roles="broker,controller",
        node_id="1",
        listeners=f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{quorum}",
        log_dirs=str(tmp_path / "1" / "data"),
        **shared,
    )
    broker = properties(
        tmp_path / "2" / "server.properties",
        process_roles="broker",
        node_id="2",
        listeners=f"PLAINTEXT://127.0.0.1:{other}",
        log_dirs=str(tmp_path / "2" / "data"),
        **shared,
    )
    by_broker = ("--bootstrap-server", f"127.0.0.1:{other}")
    by_controller = ("--bootstrap-controller", f"127.0.0.1:{quorum}")
    with NodeProcess(None, str(both), listen=None), NodeProcess(None, str(broker), listen=None) as second:
        brokers = java.run_tool(CLUSTER, "list-endpoints", *by_broker).out
        assert re.findall(r"^(\d+)\s+127.0.0.1\s+(\d+)", brokers, re.MULTILINE) == [
            ("1", str(client)),
            ("2", str(other)),
        ]
        controllers = java.run_tool(CLUSTER, "list-endpoints", *by_controller).out
        assert re.findall(r"^(\d+)\s+127.0.0.1\s+(\d+)", controllers, re.MULTILINE) == [("1", str(quorum))]
        java.run_tool(FEATURES, *by_broker, "upgrade", "--feature", "kraft.version=1")
        # A broker that did not decide it knows it a moment later.
        level = r"kraft.version\s.*FinalizedVersionLevel: 1\b"
        for address in (by_broker, by_controller):
            describe = partial(java.run_tool, FEATURES, *address, "describe")
            wait_until(
                lambda ask=describe: re.search(level, ask().out) is not None,  # type: ignore[misc]
                f"{address} does not show the new version",
                DEADLINE_S,
            )
        change = ("--entity-type", "brokers", "--entity-default", "--alter")
        java.run_tool(CONFIGS, *by_controller, *change, "--add-config", "log.cleaner.threads=2")
        shown = partial(java.run_tool, CONFIGS, *by_broker, "--describe", *change[:3])
        wait_until(
            lambda: "log.cleaner.threads=2" in shown().out, "the broker has no new setting", DEADLINE_S
        )
        second.terminate()
        by_first = ("--bootstrap-server", f"127.0.0.1:{client}")
        java.run_tool(CLUSTER, "unregister", *by_first, "--id", "2")
        left = java.run_tool(CLUSTER, "list-endpoints", *by_first, "--include-fenced-brokers").out
        assert re.findall(r"^(\d+)\s+127.0.0.1", left, re.MULTILINE) == ["1"]


def create(bootstrap: str, topic: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, num_partitions=2, replication_factor=replicas)
    for created in admin.create_topics([wanted], operation_timeout=DEADLINE_S).values():
        created.result(DEADLINE_S)


def write_and_read(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failures: list[object] = []
    for n in range(100):
        producer.produce(
            topic,
            str(n),
            partition=n % 2,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failures == []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    found: list[bytes | None] = []

    def read() -> bool:
        found.extend(message.value() for message in consumer.consume(100, 1.0))
        return len(found) >= 100

    wait_until(read, f"{topic} has not all records", DEADLINE_S)
    consumer.close()
    assert sorted(int(value or b"-1") for value in found) == list(range(100))


def are_in_sync(bootstrap: str, topic: str, brokers: list[int]) -> bool:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, DEADLINE_S)
    found = [sorted(each.isrs) for each in metadata.topics[topic].partitions.values()]
    return found == [brokers] * 2


@pytest.mark.parametrize(
    ("role", "leader"),
    [
        ("broker", 1),
        pytest.param("broker,controller", 1, marks=pytest.mark.exhaustive),
        ("broker,controller", 2),
    ],
)
def test_a_kafka_node_and_an_ottla_node_are_one_cluster(tmp_path: Path, role: str, leader: int) -> None:
    """Ottla is node 1, Kafka node 2; the one that is not to lead never becomes a candidate."""
    waits = {id: str(NEVER_MS if id != leader else 500) for id in (1, 2)}
    client, quorum, kafka_client, kafka_quorum = free_ports(4)
    quorum_voters = f"1@127.0.0.1:{quorum}"
    if role != "broker":
        quorum_voters += f",2@127.0.0.1:{kafka_quorum}"
    file = properties(
        tmp_path / "ottla.properties",
        process_roles="broker,controller",
        node_id="1",
        controller_quorum_voters=quorum_voters,
        listeners=f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{quorum}",
        controller_listener_names="CONTROLLER",
        log_dirs=str(tmp_path / "ottla"),
        offsets_topic_replication_factor="1",
        controller_quorum_election_timeout_ms=waits[1],
        controller_quorum_fetch_timeout_ms=PAUSE_MS,
        broker_session_timeout_ms="60000",  # both brokers have to be there for the topics
        cluster_id=CLUSTER_ID,
    )
    listeners = f"PLAINTEXT://127.0.0.1:{kafka_client}"
    if role != "broker":
        listeners += f",CONTROLLER://127.0.0.1:{kafka_quorum}"
    kafka = ApacheKafka(
        tmp_path / "kafka",
        node_id=2,
        cluster_id=CLUSTER_ID,
        properties={
            "process.roles": role,
            "controller.quorum.voters": quorum_voters,
            "controller.quorum.election.timeout.ms": waits[2],
            "controller.quorum.fetch.timeout.ms": PAUSE_MS,
            "broker.session.timeout.ms": "60000",
            "listeners": listeners,
        },
    )
    kafka.port, kafka.controller_port = kafka_client, kafka_quorum
    node = NodeProcess(None, str(file), listen=None)
    with contextlib.ExitStack() as stack:
        # Neither of two voters is ready without the other.
        stack.callback(kafka.kill)
        stack.push(node)
        starting = node.launch()
        kafka.start()
        starting()
        status = java.run_tool(QUORUM, "--bootstrap-server", node.bootstrap, "describe", "--status").out
        assert re.search(rf"LeaderId:\s+{leader}$", status, re.MULTILINE), status
        both = f"{node.bootstrap},{kafka.bootstrap}"
        create(node.bootstrap, "by-ottla", 2)
        create(kafka.bootstrap, "by-kafka", 2)
        for topic in ("by-ottla", "by-kafka"):
            for bootstrap in (node.bootstrap, kafka.bootstrap):
                wait_until(
                    partial(are_in_sync, bootstrap, topic, [1, 2]),
                    f"{topic} is not on both by {bootstrap}",
                    DEADLINE_S,
                )
            write_and_read(both, topic)
        kafka.stop()
        if role == "broker":
            wait_until(
                partial(are_in_sync, node.bootstrap, "by-ottla", [1]), "Kafka is still in sync", DEADLINE_S
            )
