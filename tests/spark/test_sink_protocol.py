"""The sink's protocol against a node, without Spark: each crash and each race as a sequence of calls."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from ottla.client.blocking import Admin, Producer
from ottla.protocol.errors import KafkaError
from ottla.spark.sink.commit_coordinator import LostTransactions
from ottla.spark.sink.commit_messages import PreparedCommitMessage, TaskCommitMessage
from ottla.spark.sink.decision_state import TaskTransaction
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.task_writer import RunFenced, TaskIdentity, write_transaction
from ottla.spark.sink.transaction_end import OngoingTransaction, TransactionEnder, transactional_id
from ottla.testing.local_node import LocalNode
from tests.support.spark_sink_harness import Query, committed_values
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def query(bootstrap: str, admin: Admin) -> Query:
    return new_query(bootstrap, admin)


def new_query(bootstrap: str, admin: Admin, **options: str) -> Query:
    topic = f"out-{uuid.uuid4().hex[:8]}"
    admin.topics.create(topic, partitions=2)
    return Query(bootstrap, topic, name=uuid.uuid4().hex[:8], **options)


@pytest.fixture
def committed(bootstrap: str, query: Query) -> Callable[[], list[str]]:
    def read() -> list[str]:
        found: Counter[bytes] = committed_values(bootstrap, query.options.topic or "", 2)
        return sorted(value.decode() for value in found.elements())

    return read


Committed = Callable[[], list[str]]


def transaction_of(message: TaskCommitMessage) -> TaskTransaction:
    assert isinstance(message, PreparedCommitMessage)
    assert message.transaction is not None
    return message.transaction


def test_nothing_is_seen_before_the_commit_and_all_of_it_afterwards(
    query: Query, committed: Committed
) -> None:
    messages = [query.task("r1", 0, 0, ["a", "b"]), query.task("r1", 0, 1, ["c"])]
    assert committed() == []
    query.commit(messages, 0)
    assert committed() == ["a", "b", "c"]
    assert query.open_transactions() == []


def test_batches_follow_each_other(query: Query, committed: Committed) -> None:
    for batch in range(3):
        query.batch("r1", batch, [[f"{batch}a"], [f"{batch}b"]])
    assert committed() == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_a_task_without_rows_opens_nothing(query: Query, committed: Committed) -> None:
    messages = [query.task("r1", 0, 0, []), query.task("r1", 0, 1, ["a"])]
    assert isinstance(messages[0], PreparedCommitMessage)
    assert (messages[0].transaction, messages[0].claim_offset) == (None, -1)
    query.commit(messages, 0)
    query.commit([query.task("r1", 1, 0, [])], 1)
    assert committed() == ["a"]


def test_a_batch_that_is_repeated_after_its_commit_is_recognised(query: Query, committed: Committed) -> None:
    query.batch("r1", 0, [["a"], ["b"]])
    repeated = query.batch("r2", 0, [["b"], [], ["a"]])
    assert all(getattr(message, "transaction", None) is None for message in repeated)
    assert committed() == ["a", "b"]
    query.batch("r2", 1, [["c"]])
    assert committed() == ["a", "b", "c"]


def test_a_driver_that_dies_before_the_decision_leaves_nothing(query: Query, committed: Committed) -> None:
    [query.task("r1", 0, index, [f"old{index}"]) for index in range(3)]
    query.task("r2", 0, 0, ["new"])
    # Open transactions end when the next run claims the scope, not with its first commit.
    assert len(query.open_transactions()) == 1
    assert committed() == []


def test_a_driver_that_dies_after_the_decision_is_finished_by_the_next(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [query.task("r1", 0, index, [f"v{index}"]) for index in range(3)]
    decide_and_die(query, messages, 0, monkeypatch)
    assert len(query.open_transactions()) == 3
    query.batch("r2", 0, [["v0", "v1", "v2"]])
    assert committed() == ["v0", "v1", "v2"]


def test_a_driver_that_dies_between_two_ends_is_finished_by_the_next(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [query.task("r1", 0, index, [f"v{index}"]) for index in range(3)]
    decide_and_die(query, messages, 0, monkeypatch)
    query.client.call(query.client.transactions.end(transaction_of(messages[1]), commit=True))
    query.batch("r2", 0, [["v0"], ["v1", "v2"]])
    query.batch("r2", 1, [["w"]])
    assert committed() == ["v0", "v1", "v2", "w"]


def test_an_abort_after_a_commit_that_failed_half_way_completes_it(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [query.task("r1", 0, index, [f"v{index}"]) for index in range(2)]
    decide_and_die(query, messages, 0, monkeypatch)
    query.abort(messages, 0)
    assert committed() == ["v0", "v1"]
    query.batch("r2", 0, [["v0", "v1"]])
    assert committed() == ["v0", "v1"]


def test_an_abort_before_the_decision_aborts(query: Query, committed: Committed) -> None:
    messages = [query.task("r1", 0, 0, ["a"]), None]
    query.abort(messages, 0)
    assert query.open_transactions() == []
    query.batch("r2", 0, [["a"]])
    assert committed() == ["a"]


def test_a_decision_that_arrives_after_the_abort_does_not_count(query: Query, committed: Committed) -> None:
    messages = [query.task("r1", 0, 0, ["a"]), query.task("r1", 0, 1, ["b"])]
    query.abort(messages, 0)
    with pytest.raises(KafkaError, match="nothing of it was"):
        query.commit(messages, 0)
    query.batch("r2", 0, [["a", "b"]])
    assert committed() == ["a", "b"]


def test_an_old_driver_cannot_decide_once_the_next_has_begun(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [query.task("r1", 0, 0, ["a"]), query.task("r1", 0, 1, ["b"])]
    new = [query.task("r2", 0, 0, ["a", "b"])]
    with pytest.raises(KafkaError, match="nothing of it was"):
        query.commit(old, 0)
    # Also if it had found its transactions open, a moment before they were ended:
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.sink.commit_coordinator.CommitCoordinator._check_open", nothing)
        with pytest.raises(RunFenced, match="replaced by run r2"):
            query.commit(old, 0)
    query.abort(old, 0)
    query.commit(new, 0)
    assert committed() == ["a", "b"]
    query.batch("r2", 1, [["c"]])
    assert committed() == ["a", "b", "c"]


def test_an_old_driver_that_wakes_up_two_batches_late_does_no_harm(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [query.task("r1", 0, 0, ["a"])]
    query.batch("r2", 0, [["a"]])
    query.batch("r2", 1, [["b"]])
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.sink.commit_coordinator.CommitCoordinator._check_open", nothing)
        with pytest.raises(RunFenced):
            query.commit(old, 0)
    query.abort(old, 0)
    # The run after finds the last decision, and not the late one.
    query.batch("r3", 1, [["b"]])
    query.batch("r3", 2, [["c"]])
    assert committed() == ["a", "b", "c"]


def test_an_abort_after_another_run_has_decided_ends_only_its_own(query: Query, committed: Committed) -> None:
    old = [query.task("r1", 0, 0, ["a"])]
    new = [query.task("r2", 0, 0, ["a"])]
    straggler = query.task("r1", 0, 1, [])
    late = PreparedCommitMessage(**{**vars(old[0]), "transaction": open_by_hand(query, "late")})
    query.commit(new, 0)
    query.abort([old[0], straggler, late], 0)
    assert query.open_transactions() == []
    assert committed() == ["a"]


def open_by_hand(query: Query, value: str) -> TaskTransaction:
    """A transaction of a generation that no run uses, as a task that paused for very long leaves it."""
    identity = TaskIdentity(query.scope, "asleep", 7, 0)
    rows = pa.record_batch({"value": pa.array([value], pa.string())})
    return transaction_of(write_transaction(query.options, ("value",), identity, [rows], SinkListener()))


def test_a_run_that_falls_asleep_while_it_cleans_up_spares_its_successor(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.task("r1", 0, 0, ["a"])
    prepared: list[TaskCommitMessage] = []
    listing = TransactionEnder.find_ongoing_in_scope

    async def sleep_over_it(transactions: TransactionEnder, scope: str) -> list[OngoingTransaction]:
        """The successor claims and writes after the log was read, and before transactions are listed."""
        monkeypatch.setattr(TransactionEnder, "find_ongoing_in_scope", listing)
        other = Query(
            query.options.settings["bootstrap.servers"],
            query.options.topic or "",
            name=query.scope.removeprefix("ottla-spark-"),
            kafka__client__id="successor",
        )
        prepared.append(await asyncio.to_thread(other.task, "r3", 0, 0, ["a"]))
        return await listing(transactions, scope)

    monkeypatch.setattr(TransactionEnder, "find_ongoing_in_scope", sleep_over_it)
    with pytest.raises(RunFenced):
        query.task("r2", 0, 0, ["a"])
    query.commit(prepared, 0)
    assert committed() == ["a"]


def test_a_late_task_of_an_old_run_writes_nothing(query: Query, committed: Committed) -> None:
    query.batch("r1", 0, [["a"]])
    query.task("r2", 1, 0, ["b"])
    with pytest.raises(RunFenced):
        query.task("r1", 1, 1, ["b"])
    query.batch("r2", 1, [["b"]])
    late = query.task("r1", 1, 0, ["b"])
    assert isinstance(late, PreparedCommitMessage)
    assert late.decision_offset is not None
    assert committed() == ["a", "b"]


def test_a_task_that_is_tried_again_leaves_nothing_behind(query: Query, committed: Committed) -> None:
    query.task("r1", 0, 0, ["a"])  # and its worker dies
    messages = [query.task("r1", 0, 0, ["a"], attempt=1), query.task("r1", 0, 1, ["b"])]
    query.commit(messages, 0)
    assert query.open_transactions() == []
    assert committed() == ["a", "b"]
    after = query.batch("r1", 1, [["c"]])
    # A worker that seemed dead may resume: no other task uses its ids.
    assert transaction_of(after[0]).id != transactional_id(query.scope, query_lane(messages), 0, 0, 0)
    assert committed() == ["a", "b", "c"]


def test_the_slower_of_two_attempts_does_not_hurt_the_faster(query: Query, committed: Committed) -> None:
    first = query.task("r1", 0, 0, ["a"])
    query.task("r1", 0, 0, ["a"], attempt=1)
    query.commit([first], 0)
    assert committed() == ["a"]
    assert query.open_transactions() == []


def test_fewer_tasks_than_before_leave_no_transaction_open(query: Query, committed: Committed) -> None:
    [query.task("r1", 0, index, [f"{index}"]) for index in range(6)]
    query.batch("r2", 0, [["0", "1", "2", "3", "4", "5"]])
    assert query.open_transactions() == []
    assert committed() == ["0", "1", "2", "3", "4", "5"]


def test_a_decided_transaction_that_the_broker_has_aborted_fails_the_query(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [query.task("r1", 7, index, [f"v{index}"]) for index in range(2)]
    decide_and_die(query, messages, 7, monkeypatch)
    lost = transaction_of(messages[1])
    query.client.call(query.client.transactions.end(lost, commit=False))  # as a timeout does
    repeated = [query.task("r2", 7, 0, ["v0", "v1"])]
    with pytest.raises(LostTransactions, match=rf"batch 7 .* 1 rows of {lost.id} .* offsets \d+ to \d+"):
        query.commit(repeated, 7)
    # The rows stay lost, and the query fails at every start.
    with pytest.raises(LostTransactions):
        query.commit(repeated, 7)
    assert committed() == ["v0"]


def test_what_was_lost_can_be_given_up(bootstrap: str, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    query = new_query(bootstrap, admin, onLostTransactions="report")
    messages = [query.task("r1", 0, index, [f"v{index}"]) for index in range(2)]
    decide_and_die(query, messages, 0, monkeypatch)
    query.client.call(query.client.transactions.end(transaction_of(messages[0]), commit=False))
    query.batch("r2", 0, [["v0", "v1"]])
    query.batch("r2", 1, [["w"]])
    found = committed_values(bootstrap, query.options.topic or "", 2)
    assert sorted(found.elements()) == [b"v1", b"w"]


def test_a_transaction_whose_id_is_forgotten_is_looked_up_in_the_partitions(
    query: Query, committed: Committed
) -> None:
    messages = query.batch("r1", 0, [["a"]])
    done = transaction_of(messages[0])
    assert committed() == ["a"]  # after the marker, which follows the answer to the commit
    forgotten = TaskTransaction("an-unknown-id", done.producer_id, done.epoch, 1, done.written_ranges)
    assert query.client.call(query.client.transactions.is_missing(forgotten)) is False
    aborted = transaction_of(query.task("r1", 1, 0, ["b"]))
    query.client.call(query.client.transactions.end(aborted, commit=False))
    query.client.call(wait_until_ended(query, aborted))
    assert query.client.call(query.client.transactions.is_missing(aborted)) is True


async def wait_until_ended(query: Query, transaction: TaskTransaction) -> None:
    """Ask again for the end, which is answered only when the markers are written."""
    await query.client.transactions.end(transaction, commit=False)


def test_two_phase_commits_are_used_where_they_are_allowed(
    query: Query, request: pytest.FixtureRequest
) -> None:
    message = transaction_of(query.task("r1", 0, 0, ["a"]))
    found = query.client.call(query.client.transactions.find_ongoing([message.id]))[message.id]
    two_phase = "two-phase" in request.node.callspec.id
    assert found.timeout_ms == (2**31 - 1 if two_phase else 900_000)
    query.client.call(query.client.transactions.end(message, commit=False))


def test_a_timeout_that_the_user_sets_counts_more(bootstrap: str, admin: Admin) -> None:
    query = new_query(bootstrap, admin, kafka__transaction__timeout__ms="65432")
    message = transaction_of(query.task("r1", 0, 0, ["a"]))
    found = query.client.call(query.client.transactions.find_ongoing([message.id]))[message.id]
    assert found.timeout_ms == 65_432
    query.client.call(query.client.transactions.end(message, commit=False))


def test_two_phase_commits_can_be_demanded(
    bootstrap: str, admin: Admin, request: pytest.FixtureRequest
) -> None:
    query = new_query(bootstrap, admin, twoPhaseCommit="true")
    if "two-phase" in request.node.callspec.id:
        query.batch("r1", 0, [["a"]])
    else:
        with pytest.raises(KafkaError, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED|brokers do not offer"):
            query.task("r1", 0, 0, ["a"])


def test_a_batch_write_is_one_decision_that_leaves_no_record(query: Query, committed: Committed) -> None:
    query.write_batch([["a"], ["b"]], run="w1")
    assert committed() == ["a", "b"]
    assert query.client.call(query.client.decision_log.find_abandoned_writes(2**62)) == []


def test_a_batch_write_that_its_driver_left_half_done_is_completed_by_the_next(
    query: Query, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.sink.commit_coordinator.CommitCoordinator._commit_transactions", die)
        with pytest.raises(Died):
            query.write_batch([["a"], ["b"]], run="w1")
    assert committed() == []
    monkeypatch.setattr("ottla.spark.sink.commit_coordinator.ABANDONED_AFTER_SECONDS", -60.0)
    query.client.last_abandoned_writes = float("-inf")
    query.write_batch([["c"], ["d"]], run="w2")
    assert committed() == ["a", "b", "c", "d"]
    assert query.client.call(query.client.decision_log.find_abandoned_writes(2**62)) == []


def test_a_decision_topic_that_forgets_is_refused(bootstrap: str, admin: Admin) -> None:
    admin.topics.create("forgetful", partitions=1, configs={"cleanup.policy": "delete"})
    query = new_query(bootstrap, admin, decisionTopic="forgetful")
    with pytest.raises(KafkaError, match=r"has cleanup\.policy=delete: it would lose decisions"):
        query.task("r1", 0, 0, ["a"])
    admin.topics.delete("forgetful")


def test_a_decision_topic_that_was_created_again_is_detected(bootstrap: str, admin: Admin) -> None:
    name = f"decisions-{uuid.uuid4().hex[:8]}"
    compact: dict[str, str | None] = {"cleanup.policy": "compact"}
    admin.topics.create(name, partitions=1, configs=compact)
    query = new_query(bootstrap, admin, decisionTopic=name, kafka__max__block__ms="60000")
    query.batch("r1", 0, [["a"]])
    admin.topics.delete(name)
    wait_until(lambda: name not in {each.name for each in admin.topics.list()}, f"{name} is still there")
    admin.topics.create(name, partitions=1, configs=compact)
    with pytest.raises(KafkaError, match="was truncated or deleted"):
        query.task("r1", 1, 0, ["b"])


def test_records_of_others_in_the_decision_topic_are_passed_over(
    bootstrap: str, query: Query, committed: Committed
) -> None:
    query.batch("r1", 0, [["a"]])
    partition = query.client.call(query.client.decision_log.partition(query.scope))
    with Producer(bootstrap) as producer:
        for key in (b"no slash", b"another/run", b"\xff/\xff"):
            producer.send(partition.topic, b"\xff{", key=key, partition=partition.partition)
        query.batch("r1", 1, [["b"]])
        assert committed() == ["a", "b"]
        key = f"{query.scope}/r1".encode()
        producer.send(partition.topic, b"\xff{", key=key, partition=partition.partition)
        with pytest.raises(ValueError, match="not a record of the sink's decision log"):
            query.task("r1", 2, 0, ["c"])
        producer.send(partition.topic, None, key=key, partition=partition.partition)


@pytest.mark.exhaustive  # it waits for as long as the client may
def test_a_topic_that_does_not_exist_is_named_and_nothing_stays_open() -> None:
    with LocalNode({"auto.create.topics.enable": False}) as node:
        with Admin(node.bootstrap_servers) as client:
            client.topics.create("somewhere", partitions=1)
        first = Query(node.bootstrap_servers, "somewhere", name="first")
        first.batch("r1", 0, [["a"]])  # the topics of the node are there: only this one is waited for
        first.client.close()
        query = Query(node.bootstrap_servers, "nowhere", name="q", kafka__max__block__ms="30000")
        with pytest.raises(KafkaError, match="topic 'nowhere'"):
            query.task("r1", 0, 0, ["a"])
        assert query.open_transactions() == []
        query.client.close()


@pytest.mark.exhaustive  # it waits for the timeout
def test_transactions_of_a_job_that_never_returns_end_by_themselves() -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with LocalNode(settings) as node:
        with Admin(node.bootstrap_servers) as client:
            client.topics.create("out", partitions=2)
        query = Query(node.bootstrap_servers, "out", name="q", kafka__transaction__timeout__ms="30000")
        message = query.task("r1", 0, 0, ["a"])
        wait_until(lambda: query.open_transactions() == [], "the transaction is still open", 240)
        with pytest.raises(KafkaError, match=r"nothing of it was: .* has been ended or taken over"):
            query.commit([message], 0)
        query.client.close()
        returned = Query(node.bootstrap_servers, "out", name="q")
        returned.batch("r2", 0, [["a"]])
        assert committed_values(node.bootstrap_servers, "out", 2) == {b"a": 1}
        returned.client.close()


def test_other_queries_are_left_alone(bootstrap: str, admin: Admin) -> None:
    one, other = new_query(bootstrap, admin), new_query(bootstrap, admin)
    mine = [one.task("r1", 0, 0, ["a"])]
    theirs = [other.task("r1", 0, 0, ["b"], attempt=1)]
    other.commit(theirs, 0)
    one.commit(mine, 0)
    assert committed_values(bootstrap, one.options.topic or "", 2) == {b"a": 1}
    assert committed_values(bootstrap, other.options.topic or "", 2) == {b"b": 1}


class Died(BaseException):
    """Instead of SIGKILL."""


def decide_and_die(
    query: Query, messages: list[TaskCommitMessage], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.sink.commit_coordinator.CommitCoordinator._commit_transactions", die)
        with pytest.raises(Died):
            query.commit(messages, batch)


async def die(*_: object) -> None:
    raise Died


async def nothing(*_: object) -> None:
    pass


def query_lane(messages: list[TaskCommitMessage]) -> int:
    first = messages[0]
    assert isinstance(first, PreparedCommitMessage)
    return first.generation
