"""Restarts that are not those of the same query: other checkpoints, other options, a lost decision log.

Nothing is skipped or doubled silently: the query fails and says what to do, or goes on where an option says
so.
"""

from __future__ import annotations

import uuid

import pytest

from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Consumer
from ottla.client.consumer import ConsumerRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import partition_for
from ottla.spark.sink.commit_coordinator import UnexpectedBatch
from ottla.spark.sink.decision_log import DecisionLogMoved
from ottla.spark.sink.decision_state import CommitDecision, DecisionRecord, DecisionRecordKind
from ottla.spark.sink.task_writer import UnknownHistory
from ottla.testing.local_cluster import LocalCluster
from tests.support.spark_sink_harness import Query, committed_values
from tests.support.waiting import wait_until


@pytest.fixture
def query(bootstrap: str) -> Query:
    """A query that has committed the batches 0 and 1."""
    found = Query(bootstrap, new_topic(bootstrap), name=uuid.uuid4().hex[:8])
    found.batch("r1", 0, [["a"]])
    found.batch("r1", 1, [["b", "c"]])
    return found


def new_topic(bootstrap: str) -> str:
    topic = f"out-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.topics.create(topic)
    return topic


def add_partitions(admin: Admin, topic: str, count: int) -> None:
    """Add partitions, and wait until the broker knows of what the controller has decided."""
    admin.topics.add_partitions(topic, count)
    wait_until(
        lambda: len(admin.topics.describe(topic).partitions) == count, f"{topic} has no {count} partitions"
    )


def again(query: Query, topic: str | None = None, **options: str) -> Query:
    """The same query after a restart with other options."""
    settings = query.options
    servers = settings.settings["bootstrap.servers"]
    name = query.scope.removeprefix(f"{settings.prefix}-")
    return Query(servers, topic or settings.topic or "", name=name, **options)


def committed(query: Query, topic: str | None = None) -> list[str]:
    found = committed_values(query.options.settings["bootstrap.servers"], topic or query.options.topic or "")
    return sorted(value.decode() for value in found.elements())


@pytest.mark.parametrize("parts", [[["b", "c", "more"]], [["b"]], [["b"], ["c"], ["more"]]])
def test_a_repeated_batch_with_other_rows_fails(query: Query, parts: list[list[str]]) -> None:
    with pytest.raises(UnexpectedBatch, match="it had 2 rows then and has"):
        query.batch("r2", 1, parts)
    assert query.open_transactions() == []
    assert committed(query) == ["a", "b", "c"]


def test_a_repeated_batch_may_be_spread_over_other_tasks(query: Query) -> None:
    query.batch("r2", 1, [["c"], [], ["b"]])
    query.batch("r2", 2, [["d"]])
    assert committed(query) == ["a", "b", "c", "d"]


def test_a_batch_before_the_last_one_fails(query: Query) -> None:
    with pytest.raises(UnexpectedBatch, match="batch 1 is committed already"):
        query.batch("r2", 0, [["a"]])
    assert committed(query) == ["a", "b", "c"]


def test_a_failed_batch_can_be_aborted_and_the_right_one_follows(query: Query) -> None:
    messages = [query.task("r2", 1, 0, ["x"])]
    with pytest.raises(UnexpectedBatch):
        query.commit(messages, 1)
    query.abort(messages, 1)
    query.batch("r3", 1, [["b", "c"]])
    query.batch("r3", 2, [["d"]])
    assert committed(query) == ["a", "b", "c", "d"]


def test_a_checkpoint_that_was_copied_for_another_topic_fails(bootstrap: str, query: Query) -> None:
    other = again(query, topic=new_topic(bootstrap))
    with pytest.raises(UnexpectedBatch, match=f"it went to {query.options.topic}, not to"):
        other.batch("r2", 1, [["b", "c"]])
    assert committed(other) == []


def test_the_topic_may_change_between_batches(bootstrap: str, query: Query) -> None:
    other = again(query, topic=new_topic(bootstrap))
    other.batch("r2", 2, [["d"]])
    assert committed(other) == ["d"]
    assert committed(query) == ["a", "b", "c"]


@pytest.mark.parametrize("parts", [[["b", "c", "more"]], [["b"]]])
def test_other_rows_can_be_left_out(query: Query, parts: list[list[str]]) -> None:
    lenient = again(query, onUnsafeRestart="continue")
    lenient.batch("r2", 1, parts)
    lenient.batch("r2", 2, [["d"]])
    assert committed(query) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "option", [{"transactionalIdPrefix": "another"}, {"decisionTopic": "another-decision-log"}]
)
def test_an_option_that_hides_the_decisions_fails(query: Query, option: dict[str, str]) -> None:
    changed = again(query, **option)
    with pytest.raises(UnknownHistory, match="would be written twice"):
        changed.batch("r2", 1, [["b", "c"]])
    assert changed.open_transactions() == []
    assert committed(query) == ["a", "b", "c"]
    query.batch("r3", 2, [["d"]])  # as it was, it goes on
    assert committed(query) == ["a", "b", "c", "d"]


def test_an_option_that_hides_the_decisions_can_be_insisted_on(query: Query) -> None:
    changed = again(query, transactionalIdPrefix="insisted", onUnsafeRestart="continue")
    changed.batch("r2", 2, [["d"]])
    changed.batch("r2", 3, [["e"]])
    assert committed(query) == ["a", "b", "c", "d", "e"]


def test_partitions_that_were_added_to_the_decision_topic_are_noticed(bootstrap: str) -> None:
    decisions = f"decisions-{uuid.uuid4().hex[:8]}"
    topic = new_topic(bootstrap)
    with Admin(bootstrap) as admin:
        admin.topics.create(decisions, partitions=1, configs={"cleanup.policy": "compact"})
        queries = [
            Query(bootstrap, topic, name=uuid.uuid4().hex[:8], decisionTopic=decisions) for _ in range(6)
        ]
        for index, query in enumerate(queries):
            query.batch("r1", 0, [[f"{index}"]])
        add_partitions(admin, decisions, 7)
    failed = 0
    for index, query in enumerate(queries):
        fresh = again(query, decisionTopic=decisions, kafka__client__id="fresh")
        try:
            fresh.batch("r2", 0, [[f"{index}"]])
        except UnknownHistory:
            failed += 1
    assert failed > 0  # with overwhelming likelihood: one of six scopes belongs to another partition now
    assert committed(queries[0]) == [f"{index}" for index in range(len(queries))]


def test_partitions_that_are_added_under_a_live_query_are_noticed(bootstrap: str) -> None:
    """By the process that knows the query, and by a driver that gets messages of such a process."""
    decisions = f"decisions-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.topics.create(decisions, partitions=1, configs={"cleanup.policy": "compact"})
        query = Query(bootstrap, new_topic(bootstrap), name=moved_name(7), decisionTopic=decisions)
        query.batch("r1", 0, [["a"]])
        messages = [query.task("r1", 1, 0, ["b"])]
        add_partitions(admin, decisions, 7)
    elsewhere = again(query, decisionTopic=decisions, kafka__client__id="elsewhere")
    with pytest.raises(DecisionLogMoved, match="are in partition 0, and would be looked for in partition"):
        elsewhere.commit(messages, 1)
    query.client.call(query.client.cluster.refresh(topics=[decisions]))
    for call in (lambda: query.commit(messages, 1), lambda: query.task("r1", 1, 1, ["c"])):
        with pytest.raises(DecisionLogMoved, match="partitions have been added"):
            call()
    assert [each.offset for each in records_of(bootstrap, decisions, 7) if each.partition] == []


def moved_name(partitions: int) -> str:
    """The name of a query whose records are in another partition than 0 of this many."""
    names = (uuid.uuid4().hex[:8] for _ in range(1_000))
    return next(name for name in names if partition_for(f"ottla-spark-{name}".encode(), partitions))


def records_of(bootstrap: str, topic: str, partitions: int) -> list[ConsumerRecord[bytes, bytes]]:
    consumer: Consumer[bytes, bytes]
    found: list[ConsumerRecord[bytes, bytes]] = []
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(timeout_ms=200)
    return found


def replication_of(admin: Admin, topic: str) -> tuple[set[int], str | None]:
    """The replicas of a new topic and how many must be in sync, once the brokers that are asked know it."""
    found: list[tuple[set[int], str | None]] = []

    def is_known() -> bool:
        try:
            partitions = admin.topics.describe(topic).partitions
            configs = admin.configs.describe(ResourceType.TOPIC, topic)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return False
        found.append(({len(each.replicas) for each in partitions}, configs["min.insync.replicas"].value))
        return True

    wait_until(is_known, f"{topic} is not known")
    return found[0]


@pytest.mark.slow
def test_the_decision_log_is_as_replicated_as_the_data() -> None:
    settings = {"default.replication.factor": 1, "min.insync.replicas": 1}
    with LocalCluster(3, settings) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create("out", replication_factor=3, configs={"min.insync.replicas": "2"})
        admin.topics.create("weak", partitions=2, replication_factor=1, configs={"cleanup.policy": "compact"})
        query = Query(cluster.bootstrap_servers, "out", name="q")
        query.batch("r1", 0, [["a"]])
        assert replication_of(admin, query.options.decision_topic) == ({3}, "2")
        record = DecisionRecord(DecisionRecordKind.DECISION, "s", "r", decision=CommitDecision(0))
        query.client.call(query.client.decision_log.append_copy("lineage", "key", record))
        assert replication_of(admin, "lineage") == ({3}, "2")
        other = Query(cluster.bootstrap_servers, "out", name="q2", decisionTopic="weak")
        with pytest.raises(KafkaError, match="'weak', has 1 replica, but 'out' has 3"):
            other.batch("r1", 0, [["b"]])
        assert committed(query) == ["a"]
