"""The second phase, at the driver: decide once for the whole batch, then end all transactions accordingly.

The order is what makes it safe. Before the decision nothing is committed, and whoever comes next may abort
everything. The decision is one record of the log, and counts or does not by its place there. After it nothing
is aborted any more, by anybody: what is left to do is written down, and whoever comes next can do it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.sink.endings import Ended, OpenTransaction, transactional_id
from ottla.spark.sink.ledger import Decision, Entry, Kind, Ledger, Transaction, next_lane, without_ranges
from ottla.spark.sink.messages import Prepared
from ottla.spark.sink.process import Client
from ottla.spark.sink.recovery import end_unfinished, end_what_is_left, finish_abandoned_writes
from ottla.spark.sink.stops import Place, is_armed, stop_at
from ottla.spark.sink.task import Fenced

__all__ = ["LostTransactions", "abort", "abort_write", "commit"]

log = logging.getLogger(__name__)

SWEEP_SECONDS = 10.0
COURTESY_SECONDS = 300.0
GIVE_UP_SECONDS = 5.0
ABANDONED_AFTER_SECONDS = 30.0
NAMED_IN_A_MESSAGE = 20
# A transaction with less than this share of its time left is not decided upon: it could end meanwhile.
LEAST_TIME_LEFT = 0.1


class LostTransactions(KafkaError):
    """A batch was decided, and the brokers have aborted a part of it all the same."""

    def __init__(self, scope: str, batch: int, lost: Sequence[Transaction]) -> None:
        parts = "; ".join(map(_told, lost[:NAMED_IN_A_MESSAGE]))
        more = f"; and {len(lost) - NAMED_IN_A_MESSAGE} more" if len(lost) > NAMED_IN_A_MESSAGE else ""
        super().__init__(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"{scope}: batch {batch} is committed, but {len(lost)} of its transactions were aborted by the "
            f"brokers before they could be ended, so these rows are missing: {parts}{more}. Coming back took "
            "longer than transaction.timeout.ms: raise transaction.max.timeout.ms of the brokers, or allow "
            "two-phase commits. To go on without these rows, set onLostTransactions=report",
        )


async def commit(client: Client, messages: Iterable[object], batch: int, *, streaming: bool) -> None:
    """Commits what the tasks have prepared, all or nothing. Safe to repeat, and to be cut off anywhere."""
    prepared = [message for message in messages if isinstance(message, Prepared)]
    transactions = [each.transaction for each in prepared if each.transaction is not None]
    decided = [each for each in prepared if each.decided_at is not None]
    if decided:
        await _finish_decided(client, decided[0], batch)
        await client.endings.end_all(transactions, commit=False)
        return
    if not transactions:
        return
    await _check_open(client, prepared)
    stop_at(Place.BEFORE_DECISION)
    scope = prepared[0].scope
    if streaming:
        ledger = await _decide(client, prepared, Decision(batch, without_ranges(transactions)))
        stop_at(Place.COMPLETED)
        await _clean_up(client, prepared, batch, ledger)
        return
    if len(transactions) == 1:
        await _complete(client, scope, Decision(batch, tuple(transactions)))
    else:
        await _decide(client, prepared, Decision(batch, without_ranges(transactions)))
    stop_at(Place.COMPLETED)
    await _clean_up_write(client, scope, prepared[0].run, [each.id for each in transactions])


async def abort(client: Client, messages: Iterable[object], batch: int) -> None:
    """Gives the batch up, unless it is decided: Spark calls this, too, when a commit has failed half-way."""
    prepared = [message for message in messages if isinstance(message, Prepared)]
    transactions = [each.transaction for each in prepared if each.transaction is not None]
    if not transactions:
        return
    scope, run = prepared[0].scope, prepared[0].run
    # A decision may still be on its way: behind the fence it does not count any more.
    fence = await client.decisions.append(Entry(Kind.FENCE, scope, run))
    ledger = await client.decisions.read(scope, through=fence)
    decided = ledger.decided()
    if decided is not None and decided[1].batch >= batch:
        log.warning("%s: batch %d failed after it was decided; it stays committed", scope, batch)
        if decided[1].batch == batch:
            await _complete(client, scope, decided[1])
            kept = {each.identity for each in decided[1].transactions}
            transactions = [each for each in transactions if each.identity not in kept]
    # Those of a batch that another run has decided since are committed, and refuse an abort.
    await client.endings.end_all(transactions, commit=False)
    if ledger.owner in (run, None):  # otherwise its successor ends what is left
        await end_unfinished(client.endings, scope, lane=max(each.lane for each in prepared))


async def abort_write(client: Client, scope: str, run: str) -> None:
    """Gives up a batch write that was never to be committed: no task has told anything. Perhaps because there
    is no broker to be reached; then nothing is open, and nobody shall wait long for nothing.
    """
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            await client.decisions.forget(scope, [f"{scope}/{run}"])
            await end_unfinished(client.endings, scope)
    except (KafkaError, TimeoutError) as error:
        log.warning("%s: could not clean up; what is left open ends by its timeout: %s", scope, error)


async def _check_open(client: Client, prepared: Sequence[Prepared]) -> None:
    """All transactions wait for their end, and have the time to. Otherwise nothing has happened yet."""
    transactions = [each.transaction for each in prepared if each.transaction is not None]
    found = await client.endings.open_ones([each.id for each in transactions])
    now_ms = time.time() * 1000
    gone = []
    for each in transactions:
        known = found.get(each.id)
        if known is None or known.identity != each.identity:
            gone.append(f"{each.id} has been ended or taken over")
        elif _share_left(known, now_ms) < LEAST_TIME_LEFT:
            gone.append(f"{each.id} is about to time out (transaction.timeout.ms={known.timeout_ms})")
    if gone:
        raise KafkaError(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"the batch cannot be committed, and nothing of it was: {'; '.join(gone[:NAMED_IN_A_MESSAGE])}. "
            "Spark repeats the batch when the query is started again. If batches take that long, raise "
            "transaction.max.timeout.ms of the brokers, or write smaller ones",
        )


def _share_left(transaction: OpenTransaction, now_ms: float) -> float:
    if transaction.started_ms < 0:
        return 1.0
    return 1 - (now_ms - transaction.started_ms) / transaction.timeout_ms


async def _decide(client: Client, prepared: Sequence[Prepared], decision: Decision) -> Ledger:
    """The log through the decision."""
    scope, run = prepared[0].scope, prepared[0].run
    began = max(each.began for each in prepared)
    lane = max(each.lane for each in prepared)
    disturbed = any(each.attempt for each in prepared)
    former = next((each.former for each in prepared if each.began == began), ())
    entry = Entry(Kind.DECISION, scope, run, began, next_lane(lane) if disturbed else lane, former, decision)
    offset = await client.decisions.append(entry)
    ledger = await client.decisions.read(scope, through=offset)
    if not ledger.counts(offset, entry):
        raise Fenced(scope, run, ledger.owner)
    stop_at(Place.DECIDED)
    await _complete(client, scope, decision)
    return ledger


async def _finish_decided(client: Client, message: Prepared, batch: int) -> None:
    """The batch was decided by an earlier run: what that has left undone is done now."""
    assert message.decided_at is not None
    entries = await client.decisions.read_between(message.scope, message.decided_at, message.decided_at)
    decision = entries[0][1].decision if entries else None
    if decision is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{message.scope}: the decision at {message.decided_at} of {client.decisions.topic!r} is gone",
        )
    if decision.batch == batch:
        log.info("%s: batch %d had been decided; nothing is written again", message.scope, batch)
        await _complete(client, message.scope, decision)
    else:
        log.warning(
            "%s: batch %d is asked for, but %d has been decided: the checkpoint is older than the topics; "
            "nothing is written again",
            message.scope,
            batch,
            decision.batch,
        )


async def _complete(client: Client, scope: str, decision: Decision) -> None:
    """Commits every transaction of a decision, those that were committed before included."""
    left = list(decision.transactions)
    results = []
    if is_armed() and len(left) > 1:
        results = await client.endings.end_all(left[:1], commit=True)
        stop_at(Place.BETWEEN_ENDS)
    results += await client.endings.end_all(left[len(results) :], commit=True)
    gone = [each for each, result in zip(left, results) if result is Ended.GONE]
    lost = [each for each in gone if not await client.endings.was_committed(each)]
    if lost:
        error = LostTransactions(scope, decision.batch, lost)
        if client.options.fail_on_lost:
            raise error
        log.error("%s", error)


async def _clean_up(client: Client, prepared: Sequence[Prepared], batch: int, ledger: Ledger) -> None:
    """Aborts what attempts that lost have left open, and forgets runs that are over. All of it can wait."""
    scope, run = prepared[0].scope, prepared[0].run
    first = any(each.claimed for each in prepared)
    now = time.monotonic()
    try:
        await _end_lost_attempts(client, prepared, batch, ledger)
        if first or now - client.last_sweep > SWEEP_SECONDS:
            client.last_sweep = now
            await end_what_is_left(client.decisions, client.endings, scope, run)
        if first:
            ledger = await client.decisions.read(scope)
            if ledger.owner == run:
                await client.decisions.forget(scope, ledger.keys_but_of(run))
            await _finish_abandoned_writes(client, now)
    except KafkaError as error:
        client.last_sweep = float("-inf")
        log.warning("%s: could not clean up; the next batch tries again: %s", scope, error)


async def _end_lost_attempts(
    client: Client, prepared: Sequence[Prepared], batch: int, ledger: Ledger
) -> None:
    """Shuts out the attempts that Spark did not choose, alive or dead.

    The batch is complete, and the next begins when this has returned: nobody has a use for their ids, and
    whoever takes one over from here on looks at the log and finds the batch decided.
    """
    told = ledger.attempts_of(prepared[0].run)
    again = [each for each in prepared if each.attempt]
    if not told and not again:
        return
    scope, lane = prepared[0].scope, max(each.lane for each in prepared)
    chosen = {each.transaction.id for each in prepared if each.transaction is not None}
    lost = {transactional_id(scope, lane, each.partition, 0, batch) for each in again} | {*told.values()}
    await client.endings.fence(sorted(lost - chosen))
    await client.decisions.forget(scope, told)


async def _clean_up_write(client: Client, scope: str, run: str, ids: Sequence[str]) -> None:
    """The same for a batch write, after which nobody comes again. Tasks know by the log that it is over."""
    try:
        await client.decisions.forget(scope, [f"{scope}/{run}"])
        await end_unfinished(client.endings, scope)
        client.endings.forget(ids)
        await _finish_abandoned_writes(client, time.monotonic())
    except KafkaError as error:
        log.warning("%s: could not clean up; what is left open ends by its timeout: %s", scope, error)


async def _finish_abandoned_writes(client: Client, now: float) -> None:
    if now - client.last_courtesy > COURTESY_SECONDS:
        client.last_courtesy = now
        before_ms = int((time.time() - ABANDONED_AFTER_SECONDS) * 1000)
        await finish_abandoned_writes(client.decisions, client.endings, before_ms)


def _told(transaction: Transaction) -> str:
    where = ", ".join(
        f"{topic}-{partition} offsets {first} to {last}"
        for topic, partition, first, last in transaction.wrote[:8]
    )
    rest = " and others" if len(transaction.wrote) > 8 else ""
    return f"{transaction.rows} rows of {transaction.id} ({where or 'partitions not recorded'}{rest})"
