"""Random runs of a query whose drivers die, pause and resume too late, several of them at once.

Each run of the query is a thread with connections of its own. Wherever the sink talks to the brokers it may
die or fall asleep for a while; meanwhile another run is started, as by an operator who thinks it dead.
What Spark does around the sink is played: its checkpoint, the repetition of a batch, the abort after a failed
commit. At the end every row must be there once.

Meanwhile the waits of readers are measured. A transaction that is open when a run begins a batch, or when its
driver begins to commit it, is committed or aborted when the driver has returned, whatever process had left
it: no reader waits for an orphan longer than that.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ottla.client.blocking import Admin
from ottla.protocol.errors import KafkaError
from ottla.spark.sink.client import SinkClient
from ottla.spark.sink.commit_messages import PreparedCommitMessage, TaskCommitMessage
from ottla.spark.sink.decision_log import DecisionLog
from ottla.spark.sink.task_writer import TransactionalTask
from ottla.spark.sink.transaction_end import OngoingTransaction, TransactionEnder
from ottla.testing.local_node import LocalNode
from tests.support.spark_sink_harness import Query, committed_values

BATCHES = 25
ROWS = 6
# Each seed is a life of the query, with all its runs.
LIVES = int(os.environ.get("SPARK_RACES", "2"))
FIRST_SEED = int(os.environ.get("SPARK_RACES_SEED", "0"))
LOST_WORKERS = 0.15
DEATHS = float(os.environ.get("SPARK_RACES_DEATHS", "0.08"))

Identity = tuple[str, int, int]
# As they are before the test makes them die: the test uses them to look.
read_log = DecisionLog.read
find_ongoing = TransactionEnder.find_ongoing


async def list_open(transactions: TransactionEnder, scope: str) -> list[OngoingTransaction]:
    ids = await transactions._list_ids(scope, ["Ongoing"])
    return list((await find_ongoing(transactions, ids)).values())


class Died(BaseException):
    """Instead of SIGKILL: nothing is cleaned up, and no other process is informed."""


class Chaos:
    """Decides, from a seed, which call dies and which one sleeps for how long."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self.is_over = False
        self.deaths = 0

    async def strike(self) -> None:
        with self._lock:
            fate = 1.0 if self.is_over else self._dice.random()
            nap = self._dice.uniform(0.0, 0.12)
        if fate < DEATHS:
            self.deaths += 1
            raise Died
        if fate < DEATHS + 0.1:
            await asyncio.sleep(nap)

    def around(
        self, call: Callable[..., Awaitable[Any]], *, afterwards: bool = True
    ) -> Callable[..., Awaitable[Any]]:
        async def struck(*args: Any, **keywords: Any) -> Any:
            await self.strike()
            result = await call(*args, **keywords)
            if afterwards:
                await self.strike()
            return result

        return struck

    def loses_a_worker(self) -> bool:
        """Whether a worker dies after its task has written everything, so that Spark runs the task again."""
        with self._lock:
            return not self.is_over and self._dice.random() < LOST_WORKERS

    def integer(self, least: int, most: int) -> int:
        with self._lock:
            return self._dice.randint(least, most)


class Spark:
    """Plays Spark: keeps the checkpoint, and starts the runs."""

    def __init__(self, bootstrap: str, chaos: Chaos) -> None:
        self._bootstrap = bootstrap
        self._chaos = chaos
        self._batches = BATCHES
        self._done = -1
        self._runs = 0
        self.failures: list[BaseException] = []
        self.refusals: list[str] = []
        # Transactions that were open and not of the batch that was committed; those that were still open
        # afterwards; and the longest time from when a run could see one until its driver had returned.
        self.orphans: set[Identity] = set()
        self.left_open: list[str] = []
        self.longest_wait = 0.0

    @property
    def is_done(self) -> bool:
        return self._done >= self._batches - 1

    def new_run(self) -> threading.Thread:
        self._runs += 1
        thread = threading.Thread(target=self._life, args=(f"run{self._runs}",))
        thread.start()
        return thread

    @property
    def runs(self) -> int:
        return self._runs

    def _life(self, run: str, max_block_ms: int = 15_000) -> None:
        block = f"{max_block_ms}"
        query = Query(self._bootstrap, "out", name="q", kafka__client__id=run, kafka__max__block__ms=block)
        try:
            while not self.is_done:
                batch = self._done + 1
                self._batch(query, run, batch)
                self._done = max(self._done, batch)
        except Died:
            pass  # the operator starts the query again
        except KafkaError as error:
            self.refusals.append(str(error))
        except BaseException as error:
            self.failures.append(error)
        finally:
            query.client.close()

    def quiet_run(self) -> None:
        """Start the query once more, undisturbed: its predecessor may have died in its last sweep."""
        self._batches += 1
        self._life(f"run{self._runs + 1}", max_block_ms=120_000)

    def _batch(self, query: Query, run: str, batch: int) -> None:
        begin, before = time.monotonic(), self._open_transactions(query)
        tasks: list[list[str]] = [[] for _ in range(self._chaos.integer(1, 4))]
        for row in range(ROWS):
            tasks[self._chaos.integer(0, len(tasks) - 1)].append(f"{batch}-{row}")
        messages: list[TaskCommitMessage | None] = [None] * len(tasks)
        for partition, rows in enumerate(tasks):
            for attempt in range(2):
                try:
                    message = query.task(run, batch, partition, rows, attempt=attempt)
                    if attempt or not self._chaos.loses_a_worker():
                        messages[partition] = message
                        break
                except Died:
                    if attempt:
                        raise  # the whole driver; before, it was a worker
        try:
            before |= self._open_transactions(query)
            query.commit(messages, batch)
        except KafkaError:
            query.abort(messages, batch)
            raise
        prepared = [each for each in messages if isinstance(each, PreparedCommitMessage)]
        chosen = {each.transaction.identity for each in prepared if each.transaction is not None}
        if orphans := before - chosen:
            self.orphans |= orphans
            self.longest_wait = max(self.longest_wait, time.monotonic() - begin)
        left = before & self._open_transactions(query)
        state = query.client.call(read_log(query.client.decision_log, query.scope))
        if left and state.owner == run:  # otherwise the next owner ends them
            self.left_open.append(f"{run}, batch {batch}: {sorted(left)}")

    def _open_transactions(self, query: Query) -> set[Identity]:
        return {
            each.identity for each in query.client.call(list_open(query.client.transactions, query.scope))
        }


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with LocalNode() as node:
        with Admin(node.bootstrap_servers) as admin:
            admin.topics.create("out", partitions=2)
        yield node.bootstrap_servers


async def leave_open(task: TransactionalTask) -> None:
    """Leave the transaction open, as a killed task does."""
    if task._producer is not None:
        await task._producer.close(timeout_ms=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [FIRST_SEED, *(pytest.param(FIRST_SEED + n, marks=pytest.mark.exhaustive) for n in range(1, LIVES))],
)
def test_every_row_is_there_once_whichever_process_sleeps_or_dies(
    bootstrap: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos = Chaos(seed)
    for owner, name in (
        (DecisionLog, "append"),
        (DecisionLog, "read"),
        (DecisionLog, "append_tombstones"),
        (TransactionEnder, "end"),
        (TransactionEnder, "fence"),
        (TransactionEnder, "find_ids_in_use"),
        (TransactionEnder, "find_ongoing"),
        (TransactionalTask, "prepare"),
    ):
        monkeypatch.setattr(owner, name, chaos.around(getattr(owner, name)))
    opening = chaos.around(SinkClient.transactional_producer, afterwards=False)
    monkeypatch.setattr(SinkClient, "transactional_producer", opening)
    monkeypatch.setattr(TransactionalTask, "abort", leave_open)
    spark = Spark(bootstrap, chaos)
    alive: list[threading.Thread] = []
    while not spark.is_done:
        alive = [thread for thread in alive if thread.is_alive()]
        # At the end no new run disturbs the last one, so that a slow machine finishes, too.
        if not alive or (not chaos.is_over and len(alive) < 3 and chaos.integer(0, 9) == 0):
            alive.append(spark.new_run())
        chaos.is_over = spark.runs > 60
        assert spark.runs < 90, spark.refusals[-3:]
        alive[0].join(0.15)
    for thread in alive:
        thread.join(120)
        assert not thread.is_alive()
    chaos.is_over = True
    spark.quiet_run()
    assert spark.failures == []
    expected = {f"{batch}-{row}".encode(): 1 for batch in range(BATCHES + 1) for row in range(ROWS)}
    # No reader waits for a transaction that a dead or superseded attempt has left.
    assert spark.left_open == []
    assert Query(bootstrap, "out", name="q", kafka__client__id="reader").open_transactions() == []
    assert committed_values(bootstrap, "out", 2) == expected
    assert spark.runs > 2
    print(
        f"seed {seed}: {spark.runs} runs, {chaos.deaths} deaths, {len(spark.orphans)} orphans, "
        f"longest wait {spark.longest_wait:.2f} s"
    )
