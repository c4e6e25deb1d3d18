"""The commit phase, in the driver: decide once for the whole batch, then end all transactions accordingly.

The sink's two-phase commit: each task prepares a transaction (`task_writer`), and the driver commits all of
them or none. The order of steps makes it safe. Before the decision no transaction is committed, and any later
run may abort all of them. The decision is one record of the decision log, and its position there makes it
valid or not (`decision_state`). After a valid decision no process aborts a transaction of it: the record
lists what is to be committed, and any later run can repeat that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.sink.client import SinkClient
from ottla.spark.sink.commit_messages import PreparedCommitMessage, TaskCommitMessage
from ottla.spark.sink.decision_log import DecisionLogMoved
from ottla.spark.sink.decision_state import (
    CommitDecision,
    DecisionRecord,
    DecisionRecordKind,
    DecisionState,
    TaskTransaction,
    next_generation,
    trim_ranges,
)
from ottla.spark.sink.lineage import LineageSource
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.recovery import complete_abandoned_writes, end_open_transactions, fence_writers
from ottla.spark.sink.task_writer import RunFenced, TaskIdentity, TransactionalTask
from ottla.spark.sink.transaction_end import EndResult, OngoingTransaction, run_concurrently, transactional_id

log = logging.getLogger(__name__)

CLEAN_UP_INTERVAL_SECONDS = 10.0
ABANDONED_WRITES_INTERVAL_SECONDS = 300.0
ABANDONED_AFTER_SECONDS = 30.0
ABORT_WRITE_SECONDS = 5.0
MAX_NAMES_IN_MESSAGE = 20
# A transaction with less than this share of its timeout left is not decided upon: it could end meanwhile.
MIN_TIMEOUT_SHARE_LEFT = 0.1


class LostTransactions(KafkaError):
    """The batch was decided, and the brokers have aborted a part of it nevertheless."""

    def __init__(self, scope: str, batch: int, lost: Sequence[TaskTransaction]) -> None:
        parts = "; ".join(map(_describe, lost[:MAX_NAMES_IN_MESSAGE]))
        more = f"; and {len(lost) - MAX_NAMES_IN_MESSAGE} more" if len(lost) > MAX_NAMES_IN_MESSAGE else ""
        super().__init__(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"{scope}: batch {batch} is committed, but {len(lost)} of its transactions were aborted by the "
            f"brokers before they could be ended, so these rows are missing: {parts}{more}. The driver came "
            "back later than transaction.timeout.ms allows: raise transaction.max.timeout.ms of the brokers, "
            "or allow two-phase commits. To continue without these rows, set onLostTransactions=report",
        )


class UnexpectedBatch(KafkaError):
    """Spark repeats a batch that is committed, but with other rows, or for another topic."""

    def __init__(self, scope: str, batch: int, difference: str) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"{scope}: batch {batch} is not the one that this query has committed under that number: "
            f"{difference}. Nothing of it was written. Has an older checkpoint been restored, or a "
            "checkpoint been copied? Restore the newest checkpoint, or start with a new one whose "
            "startingOffsets follow on what is in the topic. If the query is not deterministic, and the "
            "repeated batch may be left out, set onUnsafeRestart=continue. (In a batch write this is the "
            "write with that txnVersion, which has to grow with each write of its txnAppId.)",
        )


class CommitCoordinator:
    """Commits and aborts batches with the transactions that their tasks have prepared."""

    def __init__(
        self, client: SinkClient, listener: SinkListener, lineage: LineageSource | None = None
    ) -> None:
        self._client = client
        self._lineage = lineage
        self._decision_log = client.decision_log
        self._transactions = client.transactions
        self._listener = listener

    async def commit(self, messages: Iterable[object], batch: int, *, streaming: bool) -> None:
        """Commit what the tasks have prepared, all or nothing. Safe to repeat, and to die in anywhere."""
        messages = list(messages)
        prepared = [message for message in messages if isinstance(message, PreparedCommitMessage)]
        transactions = [each.transaction for each in prepared if each.transaction is not None]
        decided = [each for each in prepared if each.decision_offset is not None]
        if decided:
            decision = await self._complete_decided_batch(decided[0], batch)
            await self._transactions.end_all(transactions, commit=False)
            if any(each.claim_offset >= 0 for each in prepared):  # otherwise the owner cleans up
                state = await self._decision_log.read(prepared[0].scope)
                await self._clean_up(prepared, batch, state)
            rows = sum(each.rows for each in messages if isinstance(each, TaskCommitMessage))
            self._check_same_batch(prepared[0].scope, batch, rows, decision)
            return
        if not transactions:
            if streaming and prepared:
                await self._commit_without_rows(prepared, batch)
            return
        await self._check_open(transactions)
        await self._listener.on_commit_started()
        scope, run = prepared[0].scope, prepared[0].run
        if streaming:
            await self._check_partition(prepared)
            lineage = None if self._lineage is None else self._lineage.of_batch(batch)
            decision = CommitDecision(batch, trim_ranges(transactions), lineage)
            state = await self._decide(prepared, decision)
            await self._listener.on_batch_committed()
            await self._clean_up(prepared, batch, state)
            return
        if len(transactions) == 1:  # one transaction is atomic by itself
            await self._commit_transactions(scope, CommitDecision(batch, tuple(transactions)))
        else:
            await self._decide(prepared, CommitDecision(batch, trim_ranges(transactions)))
        await self._listener.on_batch_committed()
        await self._clean_up_write(scope, run, [each.id for each in transactions])

    async def abort(self, messages: Iterable[object], batch: int) -> None:
        """Abort the batch unless it is decided: Spark calls this also after a commit that has failed."""
        prepared = [message for message in messages if isinstance(message, PreparedCommitMessage)]
        transactions = [each.transaction for each in prepared if each.transaction is not None]
        if not transactions:
            return
        scope, run = prepared[0].scope, prepared[0].run
        await self._check_partition(prepared)
        # A decision may still be in flight: after the fence it is not valid any more.
        fence = await self._decision_log.append(DecisionRecord(DecisionRecordKind.FENCE, scope, run))
        state = await self._decision_log.read(scope, through=fence)
        latest = state.latest_decision()
        if latest is not None and latest[1].batch >= batch:
            log.warning("%s: batch %d failed after it was decided; it stays committed", scope, batch)
            if latest[1].batch == batch:
                await self._commit_transactions(scope, latest[1])
                kept = {each.identity for each in latest[1].transactions}
                transactions = [each for each in transactions if each.identity not in kept]
        # Transactions of a batch that another run has decided since are committed, and refuse an abort.
        await self._transactions.end_all(transactions, commit=False)
        if state.owner in (run, None):  # otherwise the owner ends what is left open
            generation = max(each.generation for each in prepared)
            await fence_writers(self._transactions, scope, generation=generation)
        if state.owner is None:
            # A batch write is alone in its scope, and has ended: its records are not needed any more. Every
            # transaction that a decision in flight could name is ended.
            await self._decision_log.append_tombstones(scope, [f"{scope}/{run}", f"{scope}/{run}!"])

    async def abort_batch_write(self, scope: str, run: str) -> None:
        """Abort a batch write of which no task has sent a message, so that it cannot be committed.

        The reason may be that no broker can be reached; then nothing is open, so the wait is short.
        """
        try:
            async with asyncio.timeout(ABORT_WRITE_SECONDS):
                await self._decision_log.append_tombstones(scope, [f"{scope}/{run}"])
                await fence_writers(self._transactions, scope)
        except (KafkaError, TimeoutError) as error:
            log.warning("%s: could not clean up; open transactions end by their timeout: %s", scope, error)

    async def _commit_without_rows(self, prepared: Sequence[PreparedCommitMessage], batch: int) -> None:
        """Do for a batch without rows what its tasks do otherwise: recognise a batch that is decided, as one
        may have no rows when it is repeated by other code, and end what earlier runs and attempts have left
        open. In the first batch of a run, and after a failed clean-up; otherwise there is nothing to do.
        """
        scope, run = prepared[0].scope, prepared[0].run
        client = self._client
        retried = any(each.attempt for each in prepared)
        if client.is_known_run(scope, run) and not (retried or client.clean_up_failed):
            return
        if await self._decision_log.exists() and (await self._decision_log.read(scope)).owner is not None:
            claimant = TransactionalTask(client, TaskIdentity(scope, run, prepared[0].partition, 0, batch))
            await claimant.claim()
            message = await claimant.prepare()
            if message.decision_offset is not None:
                # Whatever its inputs were then and are now: no row of this one is left out.
                await self._complete_decided_batch(message, batch)
            if message.claim_offset >= 0:
                state = await self._decision_log.read(scope)
                known = [replace(each, generation=message.generation) for each in prepared]
                await self._clean_up([message, *known], batch, state)
        client.note_run(scope, run)

    # Before the decision.

    async def _check_partition(self, prepared: Sequence[PreparedCommitMessage]) -> None:
        """Check that the tasks have read the partition of the log that this process writes to."""
        partition = await self._decision_log.partition(prepared[0].scope)
        for each in prepared:
            if each.log_partition not in (-1, partition.partition):
                raise DecisionLogMoved(each.scope, partition, each.log_partition)

    async def _check_open(self, transactions: Sequence[TaskTransaction]) -> None:
        """Check that all transactions are open, with enough time left. Otherwise nothing is committed."""
        found = await self._transactions.find_ongoing([each.id for each in transactions])
        now_ms = time.time() * 1000
        problems = []
        for each in transactions:
            ongoing = found.get(each.id)
            if ongoing is None or ongoing.identity != each.identity:
                problems.append(f"{each.id} has been ended or taken over")
            elif _timeout_share_left(ongoing, now_ms) < MIN_TIMEOUT_SHARE_LEFT:
                problems.append(
                    f"{each.id} is about to time out (transaction.timeout.ms={ongoing.timeout_ms})"
                )
        if problems:
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                "the batch cannot be committed, and nothing of it was: "
                f"{'; '.join(problems[:MAX_NAMES_IN_MESSAGE])}. Spark repeats the batch when the query is "
                "started again. If batches take that long, raise transaction.max.timeout.ms of the brokers, "
                "or write smaller ones",
            )

    # The decision, and the commits that follow from it.

    async def _decide(
        self, prepared: Sequence[PreparedCommitMessage], decision: CommitDecision
    ) -> DecisionState:
        """Write the decision and commit its transactions; the state of the log with the decision."""
        await self._decision_log.check_replication(decision.topics)
        scope, run = prepared[0].scope, prepared[0].run
        claim_offset = max(each.claim_offset for each in prepared)
        generation = max(each.generation for each in prepared)
        has_retries = any(each.attempt for each in prepared)
        former_runs = next((each.former_runs for each in prepared if each.claim_offset == claim_offset), ())
        record = DecisionRecord(
            DecisionRecordKind.DECISION,
            scope,
            run,
            claim_offset,
            next_generation(generation) if has_retries else generation,
            former_runs,
            decision,
        )
        offset = await self._decision_log.append(record)
        state = await self._decision_log.read(scope, through=offset)
        if not state.is_valid(offset, record):
            raise RunFenced(scope, run, state.owner)
        await self._listener.on_batch_decided()
        await self._keep_lineage(record)
        await self._commit_transactions(scope, decision)
        return state

    async def _complete_decided_batch(self, message: PreparedCommitMessage, batch: int) -> CommitDecision:
        """Commit what an earlier run has decided and not finished."""
        assert message.decision_offset is not None
        offset = message.decision_offset
        records = await self._decision_log.read_range(message.scope, offset, offset)
        decision = records[0][1].decision if records else None
        if decision is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{message.scope}: the decision at {offset} of {self._decision_log.topic!r} is gone",
            )
        if decision.batch == batch:
            log.info("%s: batch %d is decided already; its rows are not written again", message.scope, batch)
            await self._keep_lineage(records[0][1])
            await self._commit_transactions(message.scope, decision)
        return decision

    def _check_same_batch(self, scope: str, batch: int, rows: int, decision: CommitDecision) -> None:
        """Check that a batch that was not written is the one that the decision is about, as far as that can
        be known: otherwise its rows would be lost silently.
        """
        if decision.batch != batch:
            difference: str | None = f"batch {decision.batch} is committed already"
        else:
            difference = self._difference(scope, rows, decision)
        if difference is None:
            return
        error = UnexpectedBatch(scope, batch, difference)
        if self._client.options.fail_on_unsafe_restart:
            raise error
        log.warning("%s", error)

    def _difference(self, scope: str, rows: int, decision: CommitDecision) -> str | None:
        """How a repeated batch differs from the one that was decided, in its inputs, its topic and the number
        of its rows.

        Of the same inputs the committed rows are the result, also if the code gives others now: each input
        was processed once. The number of rows counts only where the inputs do not tell all.
        """
        then, now = decision.lineage, None
        if then is not None and self._lineage is not None:
            now = self._lineage.of_batch(decision.batch)
            found = then.difference_to(now)
            if found is not None:
                return found
        topic = self._client.options.topic
        if now is None and topic is not None and decision.topics and topic not in decision.topics:
            return f"it went to {', '.join(sorted(decision.topics))}, not to {topic}"
        if decision.rows == rows:
            return None
        if then is not None and now is not None and then.is_complete and now.is_complete:
            log.warning(
                "%s: batch %d is committed with %d rows, and the same inputs give %d now: the code was "
                "changed, or is not deterministic. The committed rows stay, and these are not written",
                scope,
                decision.batch,
                decision.rows,
                rows,
            )
            return None
        return f"it had {decision.rows} rows then and has {rows} now"

    async def _keep_lineage(self, record: DecisionRecord) -> None:
        """Keep a copy of the decision in the topic for lineage, if there is one. It comes before the commits:
        a batch that was committed can be traced, also if the driver dies in between and another run
        completes it, which appends the copy again.
        """
        if self._lineage is not None and self._lineage.topic and record.decision is not None:
            key = f"{record.scope}/{record.decision.batch}"
            await self._decision_log.append_copy(self._lineage.topic, key, record)

    async def _commit_transactions(self, scope: str, decision: CommitDecision) -> None:
        """Commit every transaction of a decision, including those that are committed already."""
        transactions = decision.transactions
        await self._transactions.find_coordinators([each.id for each in transactions])
        results = await run_concurrently(transactions, self._commit_transaction)
        gone = [each for each, result in zip(transactions, results) if result is EndResult.GONE]
        lost = [each for each in gone if await self._transactions.is_missing(each)]
        if lost:
            error = LostTransactions(scope, decision.batch, lost)
            if self._client.options.fail_on_lost:
                raise error
            log.error("%s", error)

    async def _commit_transaction(self, transaction: TaskTransaction) -> EndResult:
        await self._listener.on_transaction_committing(transaction)
        result = await self._transactions.end(transaction, commit=True)
        await self._listener.on_transaction_committed(transaction)
        return result

    # After the commit. All of this can wait for a later batch.

    async def _clean_up(
        self, prepared: Sequence[PreparedCommitMessage], batch: int, state: DecisionState
    ) -> None:
        """Abort what superseded attempts have left open, and delete the records of replaced runs."""
        scope, run = prepared[0].scope, prepared[0].run
        is_first = any(each.claimed for each in prepared)
        client = self._client
        client.note_run(scope, run)
        now = time.monotonic()
        try:
            await self._fence_superseded_attempts(prepared, batch, state)
            if is_first or now - client.last_clean_up > CLEAN_UP_INTERVAL_SECONDS:
                client.last_clean_up = now
                client.clean_up_failed = False
                if not await end_open_transactions(self._decision_log, self._transactions, scope, run):
                    client.note_failed_clean_up()
            if is_first:
                state = await self._decision_log.read(scope)
                if state.owner == run:
                    await self._decision_log.append_tombstones(scope, state.keys_of_other_runs(run))
                await self._complete_abandoned_writes(now)
        except KafkaError as error:
            client.note_failed_clean_up()
            log.warning("%s: could not clean up; the next batch tries again: %s", scope, error)

    async def _fence_superseded_attempts(
        self, prepared: Sequence[PreparedCommitMessage], batch: int, state: DecisionState
    ) -> None:
        """Fence the task attempts that Spark did not choose, alive or dead.

        The batch is complete, and the next one starts when this has returned: their ids are not needed, and
        an attempt that initialises one later reads the log and finds the batch decided.
        """
        recorded = state.attempts_of(prepared[0].run)
        retried = [each for each in prepared if each.attempt]
        if not recorded and not retried:
            return
        scope, generation = prepared[0].scope, max(each.generation for each in prepared)
        chosen = {each.transaction.id for each in prepared if each.transaction is not None}
        first_attempts = {transactional_id(scope, generation, each.partition, 0, batch) for each in retried}
        superseded = (first_attempts | {*recorded.values()}) - chosen
        await self._transactions.fence(sorted(superseded))
        await self._decision_log.append_tombstones(scope, recorded)

    async def _clean_up_write(self, scope: str, run: str, ids: Sequence[str]) -> None:
        """Clean up after a batch write. Its tombstone tells late tasks that it has ended."""
        try:
            await self._decision_log.append_tombstones(scope, [f"{scope}/{run}"])
            await fence_writers(self._transactions, scope)
            self._transactions.forget_coordinators(ids)
            await self._complete_abandoned_writes(time.monotonic())
        except KafkaError as error:
            log.warning("%s: could not clean up; open transactions end by their timeout: %s", scope, error)

    async def _complete_abandoned_writes(self, now: float) -> None:
        client = self._client
        if now - client.last_abandoned_writes > ABANDONED_WRITES_INTERVAL_SECONDS:
            client.last_abandoned_writes = now
            before_ms = int((time.time() - ABANDONED_AFTER_SECONDS) * 1000)
            await complete_abandoned_writes(self._decision_log, self._transactions, before_ms)


def _timeout_share_left(transaction: OngoingTransaction, now_ms: float) -> float:
    if transaction.started_ms < 0:
        return 1.0
    return 1 - (now_ms - transaction.started_ms) / transaction.timeout_ms


def _describe(transaction: TaskTransaction) -> str:
    where = ", ".join(
        f"{topic}-{partition} offsets {first} to {last}"
        for topic, partition, first, last in transaction.written_ranges[:8]
    )
    rest = " and others" if len(transaction.written_ranges) > 8 else ""
    return f"{transaction.rows} rows of {transaction.id} ({where or 'partitions not recorded'}{rest})"
