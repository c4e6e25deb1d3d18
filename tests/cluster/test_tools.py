"""Apache Kafka's own tools at work on a cluster: moving replicas and leaders, the quorum, groups, and readers
and writers that go on while leaders move. What they leave on disk is the same on every replica.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import MakeTopic
from tests.support import dump_log, java, kafka_libs
from tests.support.acknowledged_workload import Load
from tests.support.java_driver import JavaDriver, Message
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

TOPICS = "org.apache.kafka.tools.TopicCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DEADLINE_S = 120


class Tools:
    """Tools inside of one JVM, pointed at a cluster."""

    def __init__(self, driver: JavaDriver, cluster: LocalCluster) -> None:
        self.driver = driver
        self._bootstrap = cluster.bootstrap_servers

    def __call__(self, main: str, *args: str) -> str:
        return self.driver.tool(main, "--bootstrap-server", self._bootstrap, *args).out


@pytest.fixture
def tools(java_driver: JavaDriver, cluster: LocalCluster) -> Tools:
    return Tools(java_driver, cluster)


def test_replicas_are_reassigned_under_load(
    cluster: LocalCluster, tools: Tools, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = f"moved-{tmp_path.name[-8:]}"
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create(topic, assignments={0: [1, 2], 1: [2, 3]})
    moves = {0: [3, 1], 1: [1, 2, 3]}
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": number, "replicas": replicas}
                    for number, replicas in moves.items()
                ],
            }
        )
    )
    file = ("--reassignment-json-file", str(plan))
    with Load(cluster.bootstrap_servers, topic, 2, per_second=1000) as load:
        load.wait_for_more(500)
        assert "Successfully started partition reassignments" in tools(REASSIGN, *file, "--execute")
        wait_until(
            lambda: tools(REASSIGN, *file, "--verify").count("is completed") == 2,
            "the replicas did not move",
            DEADLINE_S,
        )
        wait_until(
            lambda: "No partition reassignments found" in tools(REASSIGN, "--list"), "the moves do not end"
        )
        load.wait_for_more(500)
        load.finish()
    for number, replicas in moves.items():
        found = cluster.partition(topic, number)
        assert found.replica_nodes == replicas
        assert sorted(found.isr_nodes) == sorted(replicas)
    load.check(cluster.bootstrap_servers)
    gone = Path(cluster.node(2).data_dir) / f"{topic}-0"
    wait_until(lambda: not gone.exists(), "the replica that was moved away is still there")


@pytest.mark.exhaustive
def test_leaders_return_to_the_preferred_replicas(
    cluster: LocalCluster, tools: Tools, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    preferred = {number: cluster.partition(topic, number).replica_nodes[0] for number in range(3)}
    away = preferred[0]
    cluster.restart(away)
    cluster.wait_in_sync()
    assert cluster.leader(topic) != away
    tools(ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    wait_until(
        lambda: {number: cluster.leader(topic, number) for number in range(3)} == preferred,
        "not all leaders are the preferred ones",
    )


def test_the_quorum_is_described_with_how_far_each_has_come(cluster: LocalCluster, tools: Tools) -> None:
    status = tools(QUORUM, "describe", "--status")
    leader = cluster.controller()
    assert re.search(rf"^LeaderId: +{leader}$", status, re.MULTILINE), status
    assert all(f'"id": {number}' in status for number in (1, 2, 3)), status
    assert re.search(r"^MaxFollowerLag: +\d+$", status, re.MULTILINE), status
    table = tools(QUORUM, "describe", "--replication").splitlines()
    roles = {int(line.split()[0]): line.split()[-1] for line in table[1:] if line.strip()}
    assert roles == {number: "Leader" if number == leader else "Follower" for number in (1, 2, 3)}


@pytest.mark.exhaustive
def test_replicas_out_of_sync_are_listed_until_they_are_back(
    cluster: LocalCluster, tools: Tools, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    listed = ("--describe", "--topic", topic, "--under-replicated-partitions")
    wait_until(lambda: topic not in tools(TOPICS, *listed), "all are in sync")
    cluster.kill(3)
    wait_until(lambda: tools(TOPICS, *listed).count(f"Topic: {topic}") == 2, "nothing is missed")
    assert topic not in tools(TOPICS, "--describe", "--topic", topic, "--unavailable-partitions")
    cluster.start(3)
    cluster.wait_in_sync()
    wait_until(lambda: topic not in tools(TOPICS, *listed), "all are in sync again")


@pytest.mark.exhaustive
def test_a_group_is_described_and_reset_wherever_its_coordinator_went(
    cluster: LocalCluster, tools: Tools, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    group = f"group-{topic}"
    with tools.driver.producer(cluster.bootstrap_servers) as producer:
        producer.send([Message(topic, b"%d" % n) for n in range(20)])
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    tools(GROUPS, *reset, "--to-offset", "5", "--execute")
    described = tools(GROUPS, "--describe", "--group", group, "--state")
    found = re.search(rf"{group}\s+127\.0\.0\.1:\d+\s+\((\d+)\)", described)
    assert found is not None, described
    cluster.kill(int(found[1]))
    described = tools(GROUPS, "--describe", "--group", group)
    assert re.search(rf"{group}\s+{topic}\s+0\s+5\s+20\s+15", described), described
    tools(GROUPS, *reset, "--to-offset", "7", "--execute")
    described = tools(GROUPS, "--describe", "--group", group)
    assert re.search(rf"{group}\s+{topic}\s+0\s+7\s+20\s+13", described), described


@contextmanager
def verifiable(name: str, directory: Path, *args: str) -> Iterator[Path]:
    """A verifiable client as a process of its own; the file that it writes its events to."""
    events = directory / f"{name}.events"
    with events.open("wb") as out, (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            java.command(f"org.apache.kafka.tools.{name}", args, bundle=kafka_libs.BROKER),
            stdout=out,
            stderr=log,
            start_new_session=True,
            preexec_fn=java.die_with_parent(),
        )
    try:
        yield events
    finally:
        java.end_process(process, timeout_s=60)


def read_events(file: Path) -> list[dict[str, Any]]:
    """The events so far; the last line may be half written."""
    lines = file.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


def count(file: Path, name: str) -> int:
    return sum(event["name"] == name for event in read_events(file))


def consumed(file: Path) -> int:
    return sum(event["count"] for event in read_events(file) if event["name"] == "records_consumed")


@pytest.mark.exhaustive
def test_a_verifiable_producer_and_consumer_agree_while_leaders_move(
    cluster: LocalCluster, java_driver: JavaDriver, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=3)
    wanted = 2000
    address = ("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic)
    patient = tmp_path / "producer.properties"  # by default it tries nothing again
    patient.write_text("retries=2147483647\nenable.idempotence=true\n")
    written = [*("--max-messages", str(wanted), "--throughput", "250", "--acks", "-1")]
    written += ["--command-config", str(patient)]
    with (
        verifiable("VerifiableConsumer", tmp_path, *address, "--group-id", topic) as reading,
        verifiable("VerifiableProducer", tmp_path, *address, *written) as writing,
    ):

        def acknowledged(number: int) -> None:
            wait_until(
                lambda: count(writing, "producer_send_success") >= number, f"no {number} records", DEADLINE_S
            )

        acknowledged(200)
        leader = cluster.leader(topic)
        cluster.kill(leader)
        acknowledged(600)
        cluster.start(leader)
        cluster.wait_in_sync()
        cluster.restart(cluster.leader(topic, 1))
        cluster.wait_in_sync()
        acknowledged(wanted)
        wait_until(lambda: consumed(reading) >= wanted, "not all was read", DEADLINE_S)
    assert count(writing, "producer_send_error") == 0
    cluster.wait_in_sync()
    values = []
    for partition in range(3):
        read = java_driver.consume(cluster.bootstrap_servers, topic, partition)
        values += [record.value for record in read.records]
    assert sorted(int(value or b"") for value in values) == list(range(wanted))

    # What the tool shows of each replica's files, but for where it is in the file.
    seen = 0
    for partition in range(3):
        shown = []
        for node in cluster.nodes:
            folder = Path(node.data_dir) / f"{topic}-{partition}"
            dumped = dump_log.dump(java_driver, sorted(folder.glob("*.log")), "--deep-iteration")
            assert dumped.complaints == []
            shown.append(
                [
                    (b.base_offset, b.last_offset, b.leader_epoch, b.producer_id, b.base_sequence, b.records)
                    for b in dumped.all_batches
                ]
            )
        assert shown[1:] == shown[:1] * 2
        seen += sum(last - first + 1 for first, last, *_ in shown[0])
    assert seen == wanted
