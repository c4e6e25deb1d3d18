"""The prepare phase, in a task: write the rows in a transaction, flush it, and leave its end to the driver.

A transaction is opened late: when many rows are there, or all of them. A task without rows costs nothing, and
one whose few rows take long to compute does not hold readers back meanwhile. Before a task of a streaming
query opens one, it reads the decision log. If its run does not own the scope yet, it claims it; from then on
no driver of an earlier run can decide, and the transactions that earlier runs have left open are ended. If
its batch is decided, it writes nothing, and counts the rows: the driver compares them with the decision.

No two tasks that can be alive at once share a transactional id: the id contains the partition, the attempt,
and a *generation* that changes with each run, and within a run after each batch in which a task was retried.
So a superseded task that is still alive never disturbs the one that has replaced it.

The driver ends what a superseded attempt leaves open right after the batch, so it has to know of the attempt.
It always knows of a first attempt; a later one appends a record to the log before it initialises its id. Each
attempt reads the log again after it has initialised its id: either it finds the batch decided and writes
nothing, or the driver that decides later fences the id. That holds in whichever order attempts start, pause
and end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.client.producer import Producer, QueuedRows
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.sink.client import SinkClient, sink_client
from ottla.spark.sink.commit_messages import PreparedCommitMessage, TaskCommitMessage
from ottla.spark.sink.decision_state import DecisionRecord, DecisionRecordKind, TaskTransaction
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.recovery import take_over_scope
from ottla.spark.sink.transaction_end import transactional_id
from ottla.spark.sink.written_columns import check_timestamps, largest_field, rows_by_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.sink.options import SinkOptions


log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 64
HELD_BYTES = 4 * 1024 * 1024
MAX_CLAIMS = 20
ABORT_SECONDS = 10


class RunFenced(KafkaError):
    """Another run of the same query has taken the scope over."""

    def __init__(self, scope: str, run: str, owner: str | None) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED,
            f"{scope}: run {run} of this query has been replaced by run {owner}; nothing of this batch was "
            "committed here. Is the query running twice on one checkpoint, or a job twice with one txnAppId?",
        )


class RunEnded(KafkaError):
    """The driver has ended this batch without the task."""

    def __init__(self, scope: str, run: str) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED, f"{scope}: run {run} has ended while this task was about to write"
        )


class UnknownHistory(KafkaError):
    """The query has written before, and the decision log has no record of it."""

    def __init__(self, query: str, ids: Sequence[str], prefix: str, topic: str) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"query {query} has written before ({len(ids)} transactional ids, as {ids[0]!r}), but the "
            f"decision log {topic!r} has no record of it under transactionalIdPrefix={prefix!r}, so a "
            "repeated batch would be written twice. Has transactionalIdPrefix or decisionTopic been changed, "
            "has the decision topic been deleted, or have partitions been added to it? Set the options as "
            "they were, or start the query with a new checkpoint. If the last batch is known to be complete, "
            "onUnsafeRestart=continue starts all the same",
        )


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """One attempt of one task. `batch` is None for a batch write, which is alone in its scope."""

    scope: str
    run: str
    partition: int
    attempt: int
    batch: int | None = None


def write_at_least_once(
    options: SinkOptions, columns: tuple[str, ...], partition: int, batches: Iterable[pa.RecordBatch]
) -> TaskCommitMessage:
    """Write the rows without a transaction, and wait until the brokers have them."""
    client = sink_client(options)
    sender: _RowSender | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if sender is None:
            sender = _RowSender(client.call(client.plain_producer()))
        for topic, data in rows_by_topic(batch, columns, options.topic, options.traceparent):
            client.call(sender.send(topic, data))
    if sender is not None:
        client.call(sender.flush())
    return TaskCommitMessage(partition, sender.count if sender is not None else 0)


def write_transaction(
    options: SinkOptions,
    columns: tuple[str, ...],
    identity: TaskIdentity,
    batches: Iterable[pa.RecordBatch],
    listener: SinkListener,
) -> TaskCommitMessage:
    """Write the rows in a transaction and leave it prepared, for the driver to end."""
    client = sink_client(options)
    task = TransactionalTask(client, identity)
    try:
        for held in _hold_back(batches):
            if task.is_new:
                client.call(task.open())
                listener.on_transaction_opened()
            if task.decision_offset is not None:
                task.rows_not_written += sum(batch.num_rows for batch in held)
                continue
            for batch in held:
                for topic, data in rows_by_topic(batch, columns, options.topic, options.traceparent):
                    client.call(task.rows.send(topic, data))
        if task.is_new:
            return task.message_without_rows()
        listener.on_rows_sent()
        message = client.call(task.prepare())
        listener.on_transaction_prepared()
        return message
    except BaseException:
        client.call(task.abort())
        raise


def _hold_back(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows in lists; hold the first back until there are `HELD_BYTES`, or no more follow."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= HELD_BYTES:
            yield held
            held = []  # the size stays, so later rows are not held back
    if held:
        yield held


class _RowSender:
    """Sends rows through one producer, and notes where they were written."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._in_flight: deque[QueuedRows] = deque()
        self._ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self.count = 0

    async def send(self, topic: str, data: pa.RecordBatch) -> None:
        self._check_size(topic, data)
        check_timestamps(data)
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            await self._await_oldest()
        self._in_flight.append(await self._producer.queue_arrow(topic, data))

    async def flush(self) -> None:
        while self._in_flight:
            await self._await_oldest()

    def _check_size(self, topic: str, data: pa.RecordBatch) -> None:
        limit = self._producer.config.max_request_size
        size = largest_field(data)
        if size > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"topic {topic!r}: a key or value of {size} bytes is larger than "
                f"kafka.max.request.size={limit}; raise that, and max.message.bytes of the topic",
            )

    async def _await_oldest(self) -> None:
        try:
            sent = await self._in_flight.popleft().delivered()
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise KafkaError(
                error.code, f"{error.message} Raise it for the topic, or write smaller values."
            ) from None
        for topic, partition, offset, rows in sent:
            first, last = self._ranges.get((topic, partition), (offset, -1))
            self._ranges[topic, partition] = min(first, offset), max(last, offset + rows - 1)
            self.count += rows

    @property
    def written_ranges(self) -> tuple[tuple[str, int, int, int], ...]:
        return tuple((topic, index, *ends) for (topic, index), ends in sorted(self._ranges.items()))


class TransactionalTask:
    """The transaction of one task attempt, from the claim of its scope to its preparation."""

    def __init__(self, client: SinkClient, identity: TaskIdentity) -> None:
        self._client = client
        self._decision_log = client.decision_log
        self._identity = identity
        self._producer: Producer | None = None
        self._transactional_id = ""
        self._generation = 0
        self._claim_offset = self._log_partition = -1
        self._former_runs: tuple[str, ...] = ()
        self._claimed = False
        self.is_new = True
        self.decision_offset: int | None = None
        self.rows_not_written = 0  # as the batch is decided

    async def open(self) -> None:
        """Open a transaction, or set `decision_offset` if the batch is decided."""
        identity = self._identity
        self.is_new = False
        if identity.batch is not None:
            await self.claim()
            if self.decision_offset is not None:
                return
        self._transactional_id = transactional_id(
            identity.scope, self._generation, identity.partition, identity.attempt, identity.batch or 0
        )
        if identity.attempt and identity.batch is not None:
            token = self._transactional_id.removeprefix(identity.scope)
            await self._decision_log.append(
                DecisionRecord(DecisionRecordKind.ATTEMPT, identity.scope, identity.run, token=token)
            )
        producer = await self._client.transactional_producer(self._transactional_id)
        try:
            await self._recheck_decision_log()
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        if self.decision_offset is not None:
            await producer.close()
            return
        self._producer = producer
        producer.transactions.begin()
        self.rows = _RowSender(producer)

    async def _recheck_decision_log(self) -> None:
        """Check that the batch is not over before anything is written: no driver would end it then."""
        identity = self._identity
        state = await self._decision_log.read(identity.scope)
        if identity.batch is None:
            if state.has_ended:
                raise RunEnded(identity.scope, identity.run)
            return
        latest = state.latest_decision()
        if latest is not None and latest[1].batch >= identity.batch:
            self.decision_offset = latest[0]
        elif state.owner != identity.run:
            raise RunFenced(identity.scope, identity.run, state.owner)
        elif state.is_fenced(identity.run):
            raise RunEnded(identity.scope, identity.run)

    async def claim(self) -> None:
        """Make this run the owner of the scope, and see whether the batch is decided.

        A run that finds its batch decided claims the scope as well, as the run that has decided it may have
        died before it ended what superseded attempts had left open.
        """
        scope, run, batch = self._identity.scope, self._identity.run, self._identity.batch
        assert batch is not None, f"{scope}: a batch write claims nothing"
        decision_log = self._decision_log
        self._log_partition = (await decision_log.partition(scope)).partition
        state = await decision_log.read(scope)
        for _ in range(MAX_CLAIMS):
            latest = state.latest_decision()
            if latest is not None and latest[1].batch >= batch:
                self.decision_offset = latest[0]
            if state.is_replaced(run):
                break
            if state.is_fenced(run) and self.decision_offset is None:
                raise RunEnded(scope, run)
            if state.owner == run:
                self._claim_offset = state.claim_offset(run)
                self._generation, self._former_runs = state.generation_of(run), state.former_runs
                if self._claimed:
                    await take_over_scope(
                        decision_log, self._client.transactions, scope, run, self._generation
                    )
                return
            if not self._claimed and state.owner is None:
                await self._check_history()
            self._claimed = True
            claim = state.new_claim(run, _new_token())
            state = await decision_log.read(scope, through=await decision_log.append(claim))
            found = state.latest_decision()
            if found is not None and found[1] != claim.decision and state.owner == run:
                # Decided between the read and the claim: a claim has to carry the latest decision.
                claim = state.new_claim(run, _new_token())
                state = await decision_log.read(scope, through=await decision_log.append(claim))
        if self.decision_offset is None:
            raise RunFenced(scope, run, state.owner)

    async def _check_history(self) -> None:
        """Refuse to begin a scope without records whose query has written before: its decisions are elsewhere
        or lost, so a repeated batch could not be recognised.
        """
        options = self._client.options
        query = self._identity.scope.removeprefix(f"{options.prefix}-")
        known = await self._client.transactions.find_ids_of_query(query)
        if not known:
            return
        error = UnknownHistory(query, known, options.prefix, options.decision_topic)
        if options.fail_on_unsafe_restart:
            raise error
        log.warning("%s", error)

    def message_without_rows(self) -> TaskCommitMessage:
        """The message of a task without rows. In a streaming query it names the run, as the batch may be
        decided with rows; and a retry names itself, as the attempt before may have had rows.
        """
        identity = self._identity
        if not identity.attempt and identity.batch is None:
            return TaskCommitMessage(identity.partition)
        return PreparedCommitMessage(
            identity.partition, scope=identity.scope, run=identity.run, attempt=identity.attempt
        )

    async def prepare(self) -> PreparedCommitMessage:
        """Flush the transaction and leave it open; the message tells the driver how to end it."""
        identity = self._identity
        transaction = None
        if self._producer is not None:
            await self.rows.flush()
            prepared = await self._producer.transactions.prepare()
            transaction = TaskTransaction(
                self._transactional_id,
                prepared.producer_id,
                prepared.epoch,
                self.rows.count,
                self.rows.written_ranges,
            )
            await self._producer.close()
            if identity.batch is None:
                self._client.transactions.forget_coordinators([self._transactional_id])
        return PreparedCommitMessage(
            identity.partition,
            self.rows.count if transaction is not None else self.rows_not_written,
            scope=identity.scope,
            run=identity.run,
            claim_offset=self._claim_offset,
            generation=self._generation,
            former_runs=self._former_runs,
            claimed=self._claimed,
            attempt=identity.attempt,
            transaction=transaction,
            decision_offset=self.decision_offset,
            log_partition=self._log_partition,
        )

    async def abort(self) -> None:
        """Abort at once, so that no reader waits; if that fails, the driver or a timeout ends it."""
        if self._producer is None:
            return
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._producer.transactions.abort()
        except (KafkaError, TimeoutError) as error:
            log.warning("task could not abort its transaction %r: %s", self._transactional_id, error)
        finally:
            await self._producer.close(timeout_ms=0)


def _new_token() -> str:
    return uuid4().hex[:12]
