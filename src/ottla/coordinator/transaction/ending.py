"""Ends: by the client's EndTxn, and by the coordinator where a producer is replaced or too slow.

A decision is a record, and the order to write its markers goes out once that is committed. With version 2
the markers carry the next epoch, and the client goes on with it; when its epochs are used up, it goes on with
a fresh producer id.
"""

from __future__ import annotations

from ottla.coordinator.runtime.effects import Effects, Now, Producer, Token
from ottla.coordinator.transaction.end_rules import Outcome, check_outcome, outcome_of_end
from ottla.coordinator.transaction.requests import EndTransaction, Missing, WriteMarkers
from ottla.coordinator.transaction.state import TransactionState
from ottla.coordinator.transaction.table import TransactionTable
from ottla.coordinator.transaction.transaction import FIRST_VERSION_OF_EPOCH_BUMPS, Transaction


class Ending:
    __slots__ = ("_table",)

    def __init__(self, table: TransactionTable) -> None:
        self._table = table

    def end(self, token: Token, request: EndTransaction, now: Now) -> Effects:
        transaction = self._table.known(request.transactional_id)
        outcome = outcome_of_end(
            transaction,
            request.producer,
            commit=request.commit,
            client_version=request.client_version,
            max_epoch=self._table.config.max_epoch,
        )
        check_outcome(outcome, transaction, request.producer, commit=request.commit)
        if outcome is Outcome.DONE:
            return Effects().reply(token, transaction.client)
        if request.client_version >= FIRST_VERSION_OF_EPOCH_BUMPS:
            decided = self._decided(transaction, commit=request.commit, fresh_id=request.fresh_id, now=now)
            if decided is None:
                return Effects().reply(token, Missing.PRODUCER_ID)
        else:
            decided = transaction.prepared(
                commit=request.commit,
                client_version=0,
                epoch=transaction.producer_epoch,
                next_client=None,
                wall_ms=now.wall_ms,
            )
        return self._prepare(decided).reply(token, decided.after_completion)

    def abort(self, transaction: Transaction, fresh_id: int | None, now: Now) -> Effects | None:
        """Abort an open transaction against its producer, which is fenced; None if that needs a fresh id."""
        if self._table.bumps_epochs or transaction.is_taken_over:
            decided = self._decided(transaction, commit=False, fresh_id=fresh_id, now=now)
            return None if decided is None else self._prepare(decided)
        return self._prepare(
            transaction.prepared(
                commit=False,
                client_version=0,
                epoch=min(transaction.producer_epoch + 1, self._table.config.max_epoch),
                next_client=None,
                wall_ms=now.wall_ms,
            )
        )

    def _decided(
        self, transaction: Transaction, *, commit: bool, fresh_id: int | None, now: Now
    ) -> Transaction | None:
        """The end of a transaction of version 2; None if the client's epochs are used up and there is no
        fresh id.
        """
        client = transaction.client
        next_client: Producer | None = None
        if self._table.is_exhausted(client.epoch):
            if fresh_id is None:
                return None
            next_client = Producer(fresh_id, 0)
        elif transaction.is_taken_over:
            next_client = Producer(client.id, client.epoch + 1)
        return transaction.prepared(
            commit=commit,
            client_version=FIRST_VERSION_OF_EPOCH_BUMPS,
            epoch=min(transaction.producer_epoch + 1, self._table.config.max_epoch),
            next_client=next_client,
            wall_ms=now.wall_ms,
        )

    def _prepare(self, decided: Transaction) -> Effects:
        effects = self._table.write(decided)
        effects.sends.append(self.markers_of(decided))
        return effects

    def markers_of(self, transaction: Transaction) -> WriteMarkers:
        return WriteMarkers(
            transaction.transactional_id,
            transaction.writer,
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            self._table.coordinator_epoch,
            transaction.client_version,
        )
