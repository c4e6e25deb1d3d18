"""Apache Kafka's own command-line tools show and do on Ottla what they show and do on Apache Kafka.

Each command is run twice, against the two brokers in the same state, and what it prints is compared after
ids, times and addresses are masked. A refusal is compared by its exit status: its words are each broker's
own.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode
from tests.support import java
from tests.support.apache_kafka import TWIN_SETTINGS, ApacheKafka
from tests.support.java_driver import JavaDriver, Message

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"

MASKS = [
    (re.compile(r"TopicId: \S+"), "TopicId: ID"),
    (re.compile(r'"log_dirs":\["[^"]*"\]'), "DIRECTORIES"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"Epoch: \d+$", re.MULTILINE), "Epoch: N"),
    (re.compile(r"\d{13}"), "TIME"),
    # What Kafka 4.4 has added.
    (re.compile(r"^  errors\.deadletterqueue\..*\n", re.MULTILINE), ""),
]


@dataclass(frozen=True, slots=True)
class Both:
    """The two brokers and one JVM to run tools in."""

    addresses: tuple[str, str]
    driver: JavaDriver
    kafka: ApacheKafka

    def outcomes(self, main: str, *args: str) -> list[java.ToolResult]:
        self.kafka.settle()  # what the one before has changed
        return [
            self.driver.tool(main, "--bootstrap-server", address, *args, check=False)
            for address in self.addresses
        ]

    def same(self, main: str, *args: str) -> str:
        """What the tool prints on both; it must succeed, and print the same."""
        theirs, ours = self.outcomes(main, *args)
        assert (theirs.exit_code, ours.exit_code) == (0, 0), ours.text[-4000:] + theirs.text[-4000:]
        assert masked(ours.out) == masked(theirs.out)
        return masked(ours.out)

    def listed(self, main: str, name: str, *args: str) -> bool:
        """Whether both list the name; other tests may have left other names on the shared broker."""
        theirs, ours = self.outcomes(main, *args)
        assert (theirs.exit_code, ours.exit_code) == (0, 0), ours.text[-4000:] + theirs.text[-4000:]
        assert (name in ours.out.split()) == (name in theirs.out.split())
        return name in ours.out.split()

    def refused(self, main: str, *args: str) -> str:
        """What Ottla says where both refuse."""
        theirs, ours = self.outcomes(main, *args)
        assert theirs.exit_code != 0, theirs.text[-4000:]
        assert ours.exit_code == theirs.exit_code, ours.text[-4000:]
        return ours.text


def masked(text: str) -> str:
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


@pytest.fixture(scope="module")
def ottla() -> Iterator[LocalNode]:
    with LocalNode(TWIN_SETTINGS) as node:
        yield node


@pytest.fixture(scope="module")
def both(apache_kafka: ApacheKafka, ottla: LocalNode, java_driver: JavaDriver) -> Both:
    return Both((apache_kafka.bootstrap, ottla.bootstrap_servers), java_driver, apache_kafka)


@pytest.fixture
def topic(both: Both) -> str:
    name = f"tools-{uuid.uuid4().hex[:12]}"
    kept = "retention.ms=999999999999"  # the records are from 2023
    both.same(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", kept)
    return name


def fill(both: Both, topic: str, count: int = 10) -> None:
    """The same records in partition 0 of both, ten to a batch."""
    for address in both.addresses:
        with both.driver.producer(address) as producer:
            producer.send(
                [Message(topic, b"%d" % n, timestamp=1_700_000_000_000 + n) for n in range(count)],
                flush_every=10,
            )


def test_topics_are_created_listed_described_altered_and_deleted(both: Both, topic: str) -> None:
    described = both.same(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described
    assert "retention.ms=999999999999" in described
    assert both.same(TOPICS, "--list", "--topic", topic).split() == [topic]
    both.same(TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    assert "Partition: 2\tLeader: 1" in both.same(TOPICS, "--describe", "--topic", topic)
    both.same(TOPICS, "--describe", "--topic", topic, "--under-replicated-partitions")
    both.same(TOPICS, "--delete", "--topic", topic)
    assert both.same(TOPICS, "--list", "--topic", topic).split() == []
    assert topic in both.refused(TOPICS, "--describe", "--topic", topic)


def test_topics_that_cannot_be_are_refused(both: Both, topic: str) -> None:
    create = ("--create", "--topic")
    assert topic in both.refused(TOPICS, *create, topic)
    assert "replication factor" in both.refused(TOPICS, *create, "r", "--replication-factor", "2").lower()
    assert "retention.ms" in both.refused(TOPICS, *create, "c", "--config", "retention.ms=soon")
    assert "frobnicate" in both.refused(TOPICS, *create, "c", "--config", "frobnicate=1")
    both.refused(TOPICS, *create, "p", "--partitions", "0")
    both.refused(TOPICS, *create, "a name with blanks")
    both.refused(TOPICS, "--alter", "--topic", topic, "--partitions", "1")
    both.refused(TOPICS, "--delete", "--topic", f"{topic}-missing")


def test_settings_of_topics(both: Both, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    both.same(CONFIGS, "--alter", *entity, "--add-config", "cleanup.policy=[compact,delete],segment.ms=5000")
    described = both.same(CONFIGS, "--describe", *entity)
    assert "cleanup.policy=compact,delete" in described
    both.same(CONFIGS, "--alter", *entity, "--delete-config", "segment.ms")
    assert "segment.ms" not in both.same(CONFIGS, "--describe", *entity)
    assert "max.message.bytes=1048588" in both.same(CONFIGS, "--describe", "--all", *entity)
    both.refused(CONFIGS, "--alter", *entity, "--add-config", "segment.bytes=1")
    both.refused(CONFIGS, "--alter", *entity, "--add-config", "frobnicate=1")


def test_settings_of_brokers(both: Both) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    every = ("--entity-type", "brokers", "--entity-default")
    both.same(CONFIGS, "--alter", *one, "--add-config", "log.retention.ms=77777777")
    both.same(CONFIGS, "--alter", *every, "--add-config", "log.cleaner.threads=2")
    try:
        assert "log.retention.ms=77777777" in both.same(CONFIGS, "--describe", *one)
        assert "log.cleaner.threads=2" in both.same(CONFIGS, "--describe", *every)
        both.refused(CONFIGS, "--alter", *one, "--add-config", "node.id=7")
        both.refused(CONFIGS, "--alter", *one, "--add-config", "log.cleaner.threads=-1")
    finally:
        both.same(CONFIGS, "--alter", *one, "--delete-config", "log.retention.ms")
        both.same(CONFIGS, "--alter", *every, "--delete-config", "log.cleaner.threads")


def test_settings_of_a_broker_have_kafkas_names(both: Both) -> None:
    outcomes = both.outcomes(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    names = [set(re.findall(r"^  ([a-z0-9.]+)=", outcome.out, re.MULTILINE)) for outcome in outcomes]
    assert names[0] - names[1] == set()
    own = {
        name
        for name in names[1] - names[0]
        if not name.startswith(("log.scrub.", "errors.deadletterqueue."))  # those are of Kafka 4.4
    }
    assert own == {"log.durability"}
    assert len(names[1]) > 200


def test_offsets_by_time(both: Both, topic: str) -> None:
    fill(both, topic, 30)
    for time in ("-1", "-2", "-3", "-4", "-5", "1700000000015", "1900000000000"):
        both.same(OFFSETS, "--topic", topic, "--time", time)


def test_records_are_deleted(both: Both, topic: str, tmp_path: Path) -> None:
    fill(both, topic)
    plan = {"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    tool = "org.apache.kafka.tools.DeleteRecordsCommand"
    assert "low_watermark: 4" in both.same(tool, "--offset-json-file", str(tmp_path / "plan.json"))
    assert f"{topic}:0:4" in both.same(OFFSETS, "--topic", topic, "--time", "earliest")
    plan["partitions"][0]["offset"] = 99  # type: ignore[index]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    theirs, ours = both.outcomes(tool, "--offset-json-file", str(tmp_path / "plan.json"))
    assert ours.exit_code == theirs.exit_code
    assert "OffsetOutOfRange" in theirs.text
    assert "OffsetOutOfRange" in ours.text


def test_log_directories_are_described(both: Both, topic: str) -> None:
    fill(both, topic)
    seen = []
    for outcome in both.outcomes(
        "org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic
    ):
        answer = json.loads(outcome.out.splitlines()[-1])
        (directory,) = answer["brokers"][0]["logDirs"]
        assert directory["error"] is None
        seen.append(
            sorted((each["partition"], each["size"], each["offsetLag"]) for each in directory["partitions"])
        )
    assert seen[0] == seen[1]
    assert [name for name, _, _ in seen[1]] == [f"{topic}-0", f"{topic}-1"]


def test_the_quorum_is_described(both: Both) -> None:
    hide = re.compile(r"(HighWatermark|LeaderEpoch|ClusterId): +\S+")
    statuses = [hide.sub(r"\1", outcome.out) for outcome in both.outcomes(QUORUM, "describe", "--status")]
    endpoint = re.compile(r', "endpoints": \[[^]]*\]')
    assert statuses[1] == endpoint.sub("", statuses[0])
    for outcome in both.outcomes(QUORUM, "describe", "--replication"):
        assert re.search(r"^1 +\t.*\tLeader", outcome.out, re.MULTILINE), outcome.text


def test_features_are_described_and_their_change_is_checked(both: Both) -> None:
    # Ottla knows the levels of Kafka 4.4, too.
    newest = re.compile(r"(Feature: (?:metadata|share)\.version).*(?=FinalizedVersionLevel)")
    theirs, ours = (newest.sub(r"\1", masked(outcome.out)) for outcome in both.outcomes(FEATURES, "describe"))
    assert ours == theirs
    assert "metadata.version" in ours
    both.refused(FEATURES, "downgrade", "--feature", "group.version=7")
    both.refused(FEATURES, "upgrade", "--feature", "frobnicate.version=1")
    both.refused(FEATURES, "upgrade", "--feature", "transaction.version=1")
    both.same(FEATURES, "upgrade", "--feature", "transaction.version=2", "--dry-run")


def test_leaders_are_elected_and_reassignments_listed(both: Both, topic: str, tmp_path: Path) -> None:
    both.same(ELECTION, "--election-type", "preferred", "--topic", topic, "--partition", "0")
    both.same(REASSIGN, "--list")
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    file = ("--reassignment-json-file", str(tmp_path / "plan.json"))
    both.same(REASSIGN, "--execute", *file)
    assert "complete" in both.same(REASSIGN, "--verify", *file)
    plan["partitions"][0]["replicas"] = [7]  # type: ignore[index]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    both.refused(REASSIGN, "--execute", *file)


def test_a_producer_and_a_consumer_are_measured(ottla: LocalNode, both: Both, topic: str) -> None:
    address = ottla.bootstrap_servers
    measured = java_tool(
        both,
        "ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--record-size",
        "200",
        "--throughput",
        "-1",
        "--command-property",
        f"bootstrap.servers={address}",
        "acks=all",
    )
    assert "20000 records sent" in measured
    measured = java_tool(
        both,
        "ConsumerPerformance",
        "--bootstrap-server",
        address,
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--timeout",
        "60000",
    )
    assert ", 20000, " in measured


def java_tool(both: Both, name: str, *args: str) -> str:
    return both.driver.tool(f"org.apache.kafka.tools.{name}", *args).out


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_verifiable_producer_and_consumer_agree(
    ottla: LocalNode, both: Both, topic: str, protocol: str
) -> None:
    bootstrap = ("--bootstrap-server", ottla.bootstrap_servers)
    address = (*bootstrap, "--topic", topic, "--max-messages", "500")
    out = java.run_tool("org.apache.kafka.tools.VerifiableProducer", *address).out
    assert json.loads(out.splitlines()[-1])["acked"] == 500
    out = java.run_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *(*address, "--group-id", topic, "--group-protocol", protocol, "--reset-policy", "earliest"),
    ).out
    consumed = [
        event["count"] for event in map(json.loads, out.splitlines()) if event["name"] == "records_consumed"
    ]
    assert sum(consumed) == 500
    assert '"name":"offsets_committed"' in out
    assert '"name":"shutdown_complete"' in out

    def groups(*args: str) -> str:
        return both.driver.tool(GROUPS, *bootstrap, *args).text

    described = groups("--describe", "--group", topic)
    lines = [line.split() for line in described.splitlines() if line.startswith(topic)]
    assert sum(int(line[3]) for line in lines) == sum(int(line[4]) for line in lines) == 500, described
    assert {line[5] for line in lines} == {"0"}, described
    assert "Empty" in groups("--describe", "--group", topic, "--state")
    reset = groups("--reset-offsets", "--to-earliest", "--topic", topic, "--group", topic, "--execute")
    assert [line.split()[-1] for line in reset.splitlines() if topic in line] == ["0", "0"]
    assert groups("--delete-offsets", "--group", topic, "--topic", topic).count("Successful") == 2
    assert "successful" in groups("--delete", "--group", topic)


def test_the_cluster_tool_shows_the_cluster(ottla: LocalNode) -> None:
    tool, address = "org.apache.kafka.tools.ClusterTool", ("--bootstrap-server", ottla.bootstrap_servers)
    properties = (Path(ottla.data_dir) / "meta.properties").read_text()
    out = java.run_tool(tool, "cluster-id", *address).out
    assert f"cluster.id={out.split()[-1]}\n" in properties
    assert ottla.bootstrap_servers.rpartition(":")[2] in java.run_tool(tool, "list-endpoints", *address).out


def test_every_version_that_the_tools_use_is_usable(ottla: LocalNode, both: Both) -> None:
    out = java_tool(both, "BrokerApiVersionsCommand", "--bootstrap-server", ottla.bootstrap_servers)
    assert "Produce(0): 0 to 13 [usable: 13]" in out
    assert "Fetch(1): 4 to 18 [usable: 18]" in out
    assert "NONE]" not in out


def test_groups_are_listed_described_reset_and_deleted(both: Both, topic: str) -> None:
    fill(both, topic, 20)
    group = f"group-{topic}"
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    both.same(GROUPS, *reset, "--to-offset", "5", "--execute")
    described = both.same(GROUPS, "--describe", "--group", group)
    assert re.search(rf"{group}\s+{topic}\s+0\s+5\s+20\s+15", described)
    assert both.listed(GROUPS, group, "--list")
    both.same(GROUPS, *reset, "--to-earliest", "--dry-run")
    both.same(GROUPS, *reset, "--shift-by", "2", "--execute")
    assert "Empty" in both.same(GROUPS, "--describe", "--group", group, "--state")
    both.same(GROUPS, "--describe", "--group", group, "--members")
    both.same(GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    both.same(GROUPS, "--delete", "--group", group)
    assert not both.listed(GROUPS, group, "--list")


def test_transactions_are_listed_described_and_aborted(both: Both, topic: str) -> None:
    name = f"txn-{topic}"
    producers = []
    for address in both.addresses:
        producer = both.driver.producer(address, transactional_id=name, transaction_timeout_ms="600000")
        producer.init_transactions()
        producer.begin()
        producer.send([Message(topic, b"open")])
        producers.append(producer)
    hide = re.compile(r"\b\d+\b")
    for arguments in (
        ("list",),
        ("describe", "--transactional-id", name),
        ("describe-producers", "--topic", topic, "--partition", "0"),
    ):
        theirs, ours = both.outcomes(TRANSACTIONS, *arguments)
        assert (theirs.exit_code, ours.exit_code) == (0, 0), ours.text
        pick = re.compile(rf"^.*({name}|Transaction|ProducerId).*$", re.MULTILINE)
        assert [hide.sub("N", line.group()).split() for line in pick.finditer(ours.out)] == [
            hide.sub("N", line.group()).split() for line in pick.finditer(theirs.out)
        ]
    both.same(TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    for producer in producers:
        producer.close(timeout_ms=0)
    for address in both.addresses:
        found = both.driver.consume(address, topic, isolation_level="read_committed")
        assert (found.records, found.end_offset) == ((), 2)


def test_quotas_are_set_described_and_removed(both: Both) -> None:
    """The values are so large that no client is throttled."""
    name = f"quotas-{uuid.uuid4().hex[:12]}"
    entities = [
        ("--entity-type", "clients", "--entity-name", name),
        ("--entity-type", "users", "--entity-name", name),
        ("--entity-type", "users", "--entity-name", name, "--entity-type", "clients", "--entity-default"),
        ("--entity-type", "clients", "--entity-default"),
    ]
    quotas = {"producer_byte_rate": "100000000000", "request_percentage": "1000000000"}
    for entity in entities:
        both.same(
            CONFIGS, "--alter", *entity, "--add-config", ",".join(f"{k}={v}" for k, v in quotas.items())
        )
        described = both.same(CONFIGS, "--describe", *entity)
        assert "producer_byte_rate=1.0E11" in described
        assert "request_percentage=1.0E9" in described
    ip = ("--entity-type", "ips", "--entity-name", "192.0.2.77")
    both.same(CONFIGS, "--alter", *ip, "--add-config", "connection_creation_rate=100000")
    assert "connection_creation_rate=100000.0" in both.same(CONFIGS, "--describe", *ip)
    both.refused(CONFIGS, "--alter", *ip, "--add-config", "producer_byte_rate=1")
    for entity in entities:
        both.same(CONFIGS, "--alter", *entity, "--delete-config", ",".join(quotas))
        assert "producer_byte_rate" not in both.same(CONFIGS, "--describe", *entity)
    both.same(CONFIGS, "--alter", *ip, "--delete-config", "connection_creation_rate")


@pytest.mark.exhaustive  # most of half a minute is spent waiting
def test_javas_clients_are_throttled_alike(both: Both, topic: str) -> None:
    """2.4 MB at 200 kB/s: the quota of ten seconds goes at once, and the rest has to wait."""
    client = f"perf-{uuid.uuid4().hex[:12]}"
    entity = ("--entity-type", "clients", "--entity-name", client)
    both.same(
        CONFIGS, "--alter", *entity, "--add-config", "producer_byte_rate=200000,consumer_byte_rate=200000"
    )
    both.kafka.settle()
    produced, fetched = [], []
    for address in both.addresses:
        props = (f"bootstrap.servers={address}", f"client.id={client}", "batch.size=1", "linger.ms=0")
        ran = both.driver.tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", "24", "--record-size", "100000", "--throughput", "-1"),
            *("--print-metrics", "--producer-props", *props),
        )
        produced.append(metric(ran.out, "produce-throttle-time-max"))
        ran = both.driver.tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", address, "--topic", topic, "--num-records", "24", "--print-metrics"),
            *("--command-property", f"client.id={client}", "--command-property", "fetch.max.bytes=500000"),
        )
        fetched.append(metric(ran.out, "fetch-throttle-time-max"))
    for theirs, ours in (produced, fetched):
        assert ours > 0
        assert theirs / 4 < ours < theirs * 4, (produced, fetched)
    both.same(CONFIGS, "--alter", *entity, "--delete-config", "producer_byte_rate,consumer_byte_rate")


def metric(text: str, name: str) -> float:
    found = re.search(rf"{name}\S*\s*:\s*([0-9.]+)", text)
    assert found, text[-4000:]
    return float(found.group(1))
