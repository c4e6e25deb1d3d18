"""Superseded attempts leave no open transaction once the driver has committed or aborted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.blocking import Admin
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.sink import commit_coordinator
from ottla.spark.sink.client import SinkClient
from ottla.spark.sink.commit_coordinator import CommitCoordinator, UnexpectedBatch
from ottla.spark.sink.commit_messages import PreparedCommitMessage
from ottla.spark.sink.decision_log import DecisionLog
from ottla.spark.sink.decision_state import GENERATIONS, GENERATIONS_PER_RUN
from ottla.spark.sink.recovery import take_over_scope
from ottla.spark.sink.task_writer import RunEnded, TransactionalTask
from ottla.spark.sink.transaction_end import TransactionEnder, transactional_id
from tests.support.spark_sink_harness import Query, committed_values

RUNS_UNTIL_LANES_COME_AGAIN = GENERATIONS // GENERATIONS_PER_RUN


@pytest.fixture
def query(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query whose first batch is done, so that later batches need no claim, and that does not look for open
    transactions again only because some time has passed.
    """
    monkeypatch.setattr(commit_coordinator, "CLEAN_UP_INTERVAL_SECONDS", 3_600.0)
    topic = f"out-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.topics.create(topic, partitions=2)
    found = Query(bootstrap, topic, name=uuid.uuid4().hex[:8])
    found.batch("r1", 0, [["first"]])
    return found


def committed(query: Query) -> list[str]:
    found = committed_values(query.options.settings["bootstrap.servers"], query.options.topic or "", 2)
    return sorted(value.decode() for value in found.elements())


def elsewhere(query: Query) -> Query:
    """The same query with its own client, as the driver's process has it, while a task is in a call."""
    name = query.scope.removeprefix("ottla-spark-")
    servers, topic = query.options.settings["bootstrap.servers"], query.options.topic or ""
    return Query(servers, topic, name=name, kafka__client__id="elsewhere")


def attempts_of(query: Query, run: str) -> dict[str, str]:
    return query.client.call(query.client.decision_log.read(query.scope)).attempts_of(run)


def test_a_batch_without_lost_attempts_asks_for_nothing_more(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("no task was retried")

    for name in ("fence", "find_ids_in_use", "find_ongoing_in_scope"):
        monkeypatch.setattr(TransactionEnder, name, never)
    query.batch("r1", 1, [["a"], ["b"]])
    assert committed(query) == ["a", "b", "first"]


def test_a_later_attempt_that_loses_is_ended_with_the_batch(query: Query) -> None:
    chosen = query.task("r1", 1, 0, ["a"])
    query.task("r1", 1, 0, ["a"], attempt=1)
    assert len(attempts_of(query, "r1")) == 1
    query.commit([chosen], 1)
    assert query.open_transactions() == []
    assert attempts_of(query, "r1") == {}
    assert committed(query) == ["a", "first"]


def test_the_first_attempt_that_loses_is_ended_with_the_batch(query: Query) -> None:
    query.task("r1", 1, 0, ["a"])
    query.task("r1", 1, 0, ["a"], attempt=1)
    chosen = query.task("r1", 1, 0, ["a"], attempt=2)
    query.commit([chosen], 1)
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_a_first_attempt_is_ended_also_if_the_next_has_no_rows(query: Query) -> None:
    query.task("r1", 1, 0, ["a"])
    query.commit([query.task("r1", 1, 0, [], attempt=1), query.task("r1", 1, 1, ["b"])], 1)
    assert query.open_transactions() == []
    assert committed(query) == ["b", "first"]


def test_an_attempt_that_has_not_written_yet_can_no_more_once_the_batch_is_done(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = query.task("r1", 1, 0, ["a"])
    after_the_last_look(monkeypatch, lambda: elsewhere(query).commit([chosen], 1))
    with pytest.raises(KafkaError):
        query.task("r1", 1, 0, ["a"], attempt=1)
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def before_the_id_is_taken_over(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Pause the next task before it initialises its id, and run `then` meanwhile."""
    take_over = SinkClient.transactional_producer

    async def late(client: SinkClient, transactional_id: str) -> Producer:
        monkeypatch.setattr(SinkClient, "transactional_producer", take_over)
        await asyncio.to_thread(then)
        return await take_over(client, transactional_id)

    monkeypatch.setattr(SinkClient, "transactional_producer", late)


def after_the_last_look(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Pause the next task when it has read the log for the last time and not written yet, and run `then`
    meanwhile.
    """
    look = TransactionalTask._recheck_decision_log

    async def look_and_sleep(task: TransactionalTask) -> None:
        monkeypatch.setattr(TransactionalTask, "_recheck_decision_log", look)
        await look(task)
        await asyncio.to_thread(then)

    monkeypatch.setattr(TransactionalTask, "_recheck_decision_log", look_and_sleep)


def test_an_attempt_that_comes_after_the_batch_finds_it_decided(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = query.task("r1", 1, 0, ["a"])
    before_the_id_is_taken_over(monkeypatch, lambda: elsewhere(query).commit([chosen], 1))
    late = query.task("r1", 1, 0, ["a"], attempt=1)
    assert isinstance(late, PreparedCommitMessage)
    assert late.decision_offset is not None
    assert late.transaction is None
    assert query.open_transactions() == []
    query.batch("r1", 2, [["b"]])
    assert committed(query) == ["a", "b", "first"]


def test_what_a_task_wrote_of_a_batch_that_is_decided_without_it_is_aborted(query: Query) -> None:
    late = query.task("r1", 1, 1, ["late"])
    query.commit([query.task("r1", 1, 0, ["a"])], 1)
    repeated = query.task("r1", 1, 0, ["a"], attempt=1)
    with pytest.raises(UnexpectedBatch):
        query.commit([repeated, late], 1)
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_a_first_attempt_that_a_later_one_has_overtaken_writes_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced_meanwhile() -> None:
        driver = elsewhere(query)
        driver.commit([driver.task("r1", 1, 0, ["a"], attempt=1)], 1)

    before_the_id_is_taken_over(monkeypatch, replaced_meanwhile)
    late = query.task("r1", 1, 0, ["a"])
    assert isinstance(late, PreparedCommitMessage)
    assert late.transaction is None
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_a_task_of_a_replaced_run_that_has_not_written_yet_can_no_more(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_the_last_look(monkeypatch, lambda: elsewhere(query).batch("r2", 1, [["a"]]))
    with pytest.raises(KafkaError):
        query.task("r1", 1, 0, ["a"])
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_the_next_batch_is_not_touched_by_what_the_one_before_has_left(query: Query) -> None:
    chosen = query.task("r1", 1, 0, ["a"], attempt=1)
    query.commit([chosen], 1)
    for batch in (2, 101):  # whose second attempts share their ids with those of batch 1
        again = query.task("r1", batch, 0, [f"{batch}"], attempt=1)
        query.commit([again], batch)
    assert committed(query) == ["101", "2", "a", "first"]


class Died(BaseException):
    """Instead of SIGKILL: nothing is cleaned up."""


async def die(*_: object, **__: object) -> None:
    raise Died


@pytest.mark.parametrize("deaths", [1, 2])
def test_what_a_dead_attempt_left_is_ended_by_the_run_that_finds_the_batch_decided(
    query: Query, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    query.task("r1", 1, 0, ["a"])  # its worker is killed, and a second attempt is chosen
    chosen = query.task("r1", 1, 0, ["a"], attempt=1)
    with monkeypatch.context() as patch:
        patch.setattr(CommitCoordinator, "_clean_up", die)
        with pytest.raises(Died):
            query.commit([chosen], 1)
    if deaths == 2:  # the next run dies as well, before it has ended what is open
        with monkeypatch.context() as patch:
            patch.setattr("ottla.spark.sink.task_writer.take_over_scope", die)
            with pytest.raises(Died):
                query.task("r2", 1, 0, ["a"])
    query.batch("r3", 1, [["a"]])
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_what_a_task_could_not_end_is_ended_by_the_driver_that_finds_the_batch_decided(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        pass

    query.task("r1", 1, 0, ["a"])
    chosen = query.task("r1", 1, 0, ["a"], attempt=1)
    with monkeypatch.context() as patch:
        patch.setattr(CommitCoordinator, "_clean_up", die)
        with pytest.raises(Died):
            query.commit([chosen], 1)
        patch.setattr("ottla.spark.sink.task_writer.take_over_scope", nothing)
        message = query.task("r2", 1, 0, ["a"])
    assert len(query.open_transactions()) == 1
    query.commit([message], 1)
    assert query.open_transactions() == []


def test_a_clean_up_that_fails_is_done_by_the_next_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "on purpose")

    chosen = query.task("r1", 1, 0, ["a"])
    query.task("r1", 1, 0, ["a"], attempt=1)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionEnder, "fence", unreachable)
        query.commit([chosen], 1)
    assert len(query.open_transactions()) == 1
    query.batch("r1", 2, [["b"]])
    assert query.open_transactions() == []
    assert committed(query) == ["a", "b", "first"]


@pytest.mark.parametrize("what", ["fence", "find_ongoing_in_scope"])
def test_a_clean_up_that_fails_is_done_by_a_batch_without_rows(
    query: Query, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def unreachable(*_: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "on purpose")

    chosen = query.task("r1", 1, 0, ["a"])
    query.task("r1", 1, 1, ["a"])  # the driver does not know of it, as of a stage that was repeated
    query.task("r1", 1, 0, ["a"], attempt=1)
    query.client.last_clean_up = float("-inf")
    with monkeypatch.context() as patch:
        patch.setattr(TransactionEnder, what, unreachable)
        query.commit([chosen], 1)
    assert query.open_transactions() != []
    query.batch("r1", 2, [[]])
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


def test_a_run_whose_first_batch_has_no_rows_ends_what_is_open(query: Query) -> None:
    query.task("r1", 1, 0, ["a"])  # its driver is killed
    query.batch("r2", 1, [[], []])
    assert query.open_transactions() == []
    query.batch("r2", 2, [["b"]])
    assert committed(query) == ["b", "first"]


def test_a_decided_batch_is_completed_also_if_it_has_no_rows_when_it_is_repeated(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = query.task("r1", 1, 0, ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(CommitCoordinator, "_commit_transactions", die)
        with pytest.raises(Died):
            query.commit([chosen], 1)
    query.batch("r2", 1, [[], []])  # the code was changed: it drops all of them now
    assert query.open_transactions() == []
    query.batch("r2", 2, [["b"]])
    assert committed(query) == ["a", "b", "first"]


def test_later_batches_without_rows_ask_for_nothing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> Any:
        raise AssertionError("nothing to look for")

    monkeypatch.setattr(DecisionLog, "read", never)
    query.batch("r1", 1, [[], []])


def test_a_new_query_without_rows_creates_no_decision_topic(bootstrap: str) -> None:
    name = f"decisions-{uuid.uuid4().hex[:8]}"
    query = Query(bootstrap, "out", name=uuid.uuid4().hex[:8], decisionTopic=name)
    query.batch("r1", 0, [[]])
    with Admin(bootstrap) as admin:
        assert name not in {topic.name for topic in admin.topics.list()}


def test_a_run_does_not_fence_its_own_tasks_after_many_starts_without_a_decision(query: Query) -> None:
    for index in range(RUNS_UNTIL_LANES_COME_AGAIN):
        query.task(f"start-{index}", 1, 0, ["a"])
    mine = query.task("last", 1, 0, ["a"])
    assert isinstance(mine, PreparedCommitMessage)
    client = query.client
    # As a second task does that has claimed at the same time.
    client.call(
        take_over_scope(client.decision_log, client.transactions, query.scope, "last", mine.generation)
    )
    query.commit([mine], 1)
    assert committed(query) == ["a", "first"]


def test_an_abort_ends_what_dead_tasks_have_left(query: Query) -> None:
    message = query.task("r1", 1, 0, ["a"])
    query.task("r1", 1, 1, ["b"])
    query.task("r1", 1, 1, ["b"], attempt=1)
    query.abort([message, None], 1)
    assert query.open_transactions() == []
    with pytest.raises(RunEnded):
        query.task("r1", 1, 2, ["c"])
    query.batch("r2", 1, [["a", "b", "c"]])
    assert committed(query) == ["a", "b", "c", "first"]


def test_an_abort_shuts_out_a_task_that_has_not_written_yet(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = query.task("r1", 1, 0, ["a"])
    after_the_last_look(monkeypatch, lambda: elsewhere(query).abort([message, None], 1))
    with pytest.raises(KafkaError):
        query.task("r1", 1, 1, ["b"])
    assert query.open_transactions() == []
    assert committed(query) == ["first"]


@pytest.mark.parametrize("restarts", [1, RUNS_UNTIL_LANES_COME_AGAIN])
def test_an_abort_that_comes_late_spares_the_run_that_has_replaced_it(query: Query, restarts: int) -> None:
    message = query.task("r1", 1, 0, ["a"])
    for index in range(restarts):
        next_run = query.task(f"after-{index}", 1, 0, ["a"])
    query.abort([message], 1)
    query.commit([next_run], 1)
    assert committed(query) == ["a", "first"]


def test_attempts_of_runs_that_are_over_are_forgotten(query: Query) -> None:
    query.task("r1", 1, 0, ["a"], attempt=1)
    query.batch("r2", 1, [["a"]])
    assert attempts_of(query, "r1") == {}
    assert query.open_transactions() == []
    assert committed(query) == ["a", "first"]


# Batch writes.


def test_a_batch_write_leaves_no_attempt_behind(query: Query) -> None:
    chosen = [query.write_task("w", 0, ["a"]), query.write_task("w", 1, ["b"], attempt=1)]
    query.write_task("w", 0, ["a"], attempt=1)
    query.write_task("w", 1, ["b"])
    assert len(query.open_transactions("w")) == 4
    query.commit_write(chosen)
    assert query.open_transactions("w") == []
    assert committed(query) == ["a", "b", "first"]


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_attempt_that_comes_after_a_batch_write_finds_it_over(
    query: Query, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    chosen = [query.write_task("w", index, ["a"]) for index in range(tasks)]
    before_the_id_is_taken_over(monkeypatch, lambda: elsewhere(query).commit_write(chosen))
    with pytest.raises(RunEnded):
        query.write_task("w", 0, ["a"], attempt=1)
    assert query.open_transactions("w") == []
    assert committed(query) == ["a"] * tasks + ["first"]


def test_a_first_attempt_that_starts_after_a_batch_write_finds_it_over(query: Query) -> None:
    query.commit_write([query.write_task("w", 0, ["a"], attempt=1), query.write_task("w", 1, ["b"])])
    with pytest.raises(RunEnded):
        query.write_task("w", 0, ["a"])
    assert query.open_transactions("w") == []
    assert committed(query) == ["a", "b", "first"]


def test_an_aborted_batch_write_leaves_no_record(query: Query) -> None:
    message = query.write_task("w", 0, ["a"])
    query.client.call(query.coordinator.abort([message], 0))
    state = query.client.call(query.client.decision_log.read(f"{query.scope}-w"))
    assert not state.is_fenced("w")
    assert state.has_ended
    assert committed(query) == ["first"]


def test_a_batch_write_shuts_out_an_attempt_that_has_not_written_yet(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = query.write_task("w", 0, ["a"], attempt=1)
    after_the_last_look(monkeypatch, lambda: elsewhere(query).commit_write([chosen]))
    with pytest.raises(KafkaError):
        query.write_task("w", 0, ["a"])
    assert query.open_transactions("w") == []
    assert committed(query) == ["a", "first"]


def test_a_batch_write_whose_tasks_have_all_died_leaves_nothing_open(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in range(2):
        query.write_task("w", 0, ["a"], attempt=attempt)
    before_the_id_is_taken_over(monkeypatch, lambda: elsewhere(query).abort_batch_write("w"))
    with pytest.raises(RunEnded):
        query.write_task("w", 0, ["a"], attempt=2)
    assert query.open_transactions("w") == []
    assert committed(query) == ["first"]


def test_ids_of_later_attempts_differ() -> None:
    ids = {transactional_id("s", 16, 3, attempt, batch) for attempt in range(3) for batch in (1, 2)}
    assert len(ids) == 5
