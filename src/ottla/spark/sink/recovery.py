"""Ends what runs before this one, and attempts that lost, have left open.

What is decided is committed, everything else is aborted, each by its exact identity. That is right only for
whoever owns the scope, and ownership can be lost at any moment; so the order matters: first the open
transactions are listed, then the log is read. If the run still owns the scope by then, everything on the list
was opened before any later run could begin, and nobody but this run can decide about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ottla.protocol.errors import KafkaError
from ottla.spark.sink.decision_log import DecisionLog
from ottla.spark.sink.endings import Ended, Endings, OpenTransaction, slot_of
from ottla.spark.sink.ledger import Transaction, is_lane_of

__all__ = ["end_unfinished", "end_what_is_left", "finish_abandoned_writes"]

log = logging.getLogger(__name__)


async def end_what_is_left(
    decisions: DecisionLog, endings: Endings, scope: str, run: str, *, but_lane: int | None = None
) -> None:
    """Ends all open transactions of the scope, but for those of the run that has this lane.

    Only for the readers' sake, so a failure is no more than told: who comes next tries again.
    """
    try:
        found = await endings.open_in(scope)
        if but_lane is not None:
            found = [each for each in found if not is_lane_of(but_lane, each.slot)]
        if not found:
            return
        ledger = await decisions.read(scope)
        if ledger.owner == run:
            decided = {each.identity for decision in ledger.decisions() for each in decision.transactions}
            await _end_all_of(endings, found, commit=decided)
    except KafkaError as error:
        log.warning("transactions that were left open in %r could not be ended: %s", scope, error)


async def end_unfinished(endings: Endings, scope: str, *, lane: int | None = None) -> None:
    """Shuts out whoever writes in a scope, or in the lanes of one run in it, when nothing of theirs can be
    committed any more. What was decided must be complete; it is not touched.
    """
    try:
        ids = await endings.in_use(scope)
        await endings.fence([each for each in ids if lane is None or is_lane_of(lane, slot_of(each))])
    except KafkaError as error:
        log.warning("transactions that were left open in %r could not be ended: %s", scope, error)


async def finish_abandoned_writes(decisions: DecisionLog, endings: Endings, before_ms: int) -> None:
    """Batch writes whose driver died between the decision and the last end: whoever comes by completes them.

    Only a courtesy, as what they left open has a timeout; so a failure is no more than told.
    """
    try:
        for scope, run, decision in await decisions.abandoned(before_ms):
            results = await endings.end_all(decision.transactions, commit=True)
            lost = sum(result is Ended.GONE for result in results)
            log.warning(
                "%s: completed a batch write that its driver had left; %d of %d transactions were gone",
                scope,
                lost,
                len(results),
            )
            await decisions.forget(scope, [f"{scope}/{run}"])
    except (KafkaError, ValueError) as error:
        log.warning("could not look for batch writes that were left unfinished: %s", error)


async def _end_all_of(
    endings: Endings, found: Iterable[OpenTransaction], *, commit: Iterable[tuple[str, int, int]] = ()
) -> None:
    """Commits those with an identity of `commit`, and aborts the others."""
    decided = set(commit)
    right: list[Transaction] = []
    left: list[Transaction] = []
    for each in found:
        (right if each.identity in decided else left).append(Transaction(*each.identity))
    await endings.end_all(right, commit=True)
    await endings.end_all(left, commit=False)
    if right or left:
        log.info(
            "of what was left open, %d transactions were committed and %d aborted", len(right), len(left)
        )
