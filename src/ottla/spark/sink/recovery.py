"""End the transactions that earlier runs and superseded task attempts have left open.

A decided transaction is committed and any other is aborted, each by its exact producer id and epoch. Only the
owner of the scope may do that, and ownership can be lost at any moment; so the order matters: first list the
open transactions, then read the log. If the run still owns the scope by then, every transaction on the list
was opened before any later run could start, and only this run can decide about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ottla.protocol.errors import KafkaError
from ottla.spark.sink.decision_log import DecisionLog
from ottla.spark.sink.decision_state import TaskTransaction, belongs_to_run
from ottla.spark.sink.transaction_end import EndResult, OngoingTransaction, TransactionEnder, slot_of

log = logging.getLogger(__name__)


async def end_open_transactions(
    decision_log: DecisionLog,
    transactions: TransactionEnder,
    scope: str,
    run: str,
    *,
    except_generation: int | None = None,
) -> bool:
    """End all open transactions of the scope, except those of the run that has this generation.

    They only hold readers back, so a failure is logged and not raised: the next batch tries again. Returns
    whether there was none.
    """
    try:
        found = await transactions.find_ongoing_in_scope(scope)
        if except_generation is not None:
            found = [each for each in found if not belongs_to_run(except_generation, each.slot)]
        if not found:
            return True
        state = await decision_log.read(scope)
        if state.owner == run:
            decided = {
                each.identity for decision in state.valid_decisions() for each in decision.transactions
            }
            await _end_each(transactions, found, commit=decided)
        return True
    except KafkaError as error:
        log.warning("could not end the open transactions of %r: %s", scope, error)
        return False


async def take_over_scope(
    decision_log: DecisionLog, transactions: TransactionEnder, scope: str, run: str, generation: int
) -> None:
    """End what earlier runs have left open, after the claim of a run that has this generation, and fence
    their tasks that have initialised an id and not written yet: those would open a transaction later.

    A failure is logged and not raised, as above.
    """
    await end_open_transactions(decision_log, transactions, scope, run, except_generation=generation)
    try:
        ids = await transactions.find_ids_in_use(scope)
        state = await decision_log.read(scope)
        if state.owner == run:
            # Records of runs whose tasks were fenced before are deleted, so that none is fenced in each run.
            former = state.generations_of_other_runs(run)
            slots = {each: slot_of(each) for each in ids}
            await transactions.fence(
                [
                    name
                    for name, slot in slots.items()
                    # A former run may have had the same slots: they repeat if many runs decide nothing.
                    if not belongs_to_run(generation, slot)
                    and any(belongs_to_run(each, slot) for each in former)
                ]
            )
    except KafkaError as error:
        log.warning("could not fence the tasks of earlier runs of %r: %s", scope, error)


async def fence_writers(transactions: TransactionEnder, scope: str, *, generation: int | None = None) -> None:
    """Fence all producers of a scope, or of one run in it, none of whose transactions can be committed.

    The transactions of a valid decision must be committed before; they are not affected.
    """
    try:
        ids = await transactions.find_ids_in_use(scope)
        await transactions.fence(
            [each for each in ids if generation is None or belongs_to_run(generation, slot_of(each))]
        )
    except KafkaError as error:
        log.warning("could not end the open transactions of %r: %s", scope, error)


async def complete_abandoned_writes(
    decision_log: DecisionLog, transactions: TransactionEnder, before_ms: int
) -> None:
    """Commit the batch writes whose driver died between its decision and the last commit.

    Any later driver does this for others. Their transactions also have a timeout, so a failure is logged
    and not raised.
    """
    try:
        for scope, run, decision in await decision_log.find_abandoned_writes(before_ms):
            results = await transactions.end_all(decision.transactions, commit=True)
            lost = sum(result is EndResult.GONE for result in results)
            log.warning(
                "%s: completed a batch write that its driver had left; %d of %d transactions were gone",
                scope,
                lost,
                len(results),
            )
            await decision_log.append_tombstones(scope, [f"{scope}/{run}"])
    except (KafkaError, ValueError) as error:
        log.warning("could not look for unfinished batch writes: %s", error)


async def _end_each(
    transactions: TransactionEnder,
    found: Iterable[OngoingTransaction],
    *,
    commit: Iterable[tuple[str, int, int]] = (),
) -> None:
    """Commit the transactions with an identity of `commit`, and abort the others."""
    decided = set(commit)
    to_commit: list[TaskTransaction] = []
    to_abort: list[TaskTransaction] = []
    for each in found:
        (to_commit if each.identity in decided else to_abort).append(TaskTransaction(*each.identity))
    await transactions.end_all(to_commit, commit=True)
    await transactions.end_all(to_abort, commit=False)
    if to_commit or to_abort:
        log.info("of the open transactions, committed %d and aborted %d", len(to_commit), len(to_abort))
