"""The transactions of one partition of `__transaction_state`, as a machine of the coordinators' engine.

Its durable state is one `Transaction` for each transactional id. A decision to commit or abort is a record;
once that is committed, the markers go out (`WriteMarkers`), and when all are confirmed (`MarkersWritten`)
another record completes the transaction. After a load, whatever was decided and not completed goes out
again.

New producer ids come from the controller, which takes a while. So a request that needs one and has none is
answered with `Missing.PRODUCER_ID`, changes nothing, and is repeated with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.coordinator.runtime.effects import Effects, Now, Producer, ReplayedRecord, Token
from ottla.coordinator.runtime.timers import Timers
from ottla.coordinator.transaction.end_rules import check_client, check_not_prepared
from ottla.coordinator.transaction.ending import Ending
from ottla.coordinator.transaction.initialization import Initialization
from ottla.coordinator.transaction.overdue import Overdue
from ottla.coordinator.transaction.records import tombstone
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    NewSettings,
    ProducerIdWanted,
    Settings,
    VerifyPartitions,
)
from ottla.coordinator.transaction.state import TransactionState
from ottla.coordinator.transaction.table import TransactionTable
from ottla.coordinator.transaction.transaction import Transaction
from ottla.protocol.errors import ErrorCode, KafkaError

_TIMEOUTS: Final = "timeouts"
_EXPIRY: Final = "expiry"
_RETRY_MS: Final = 100


class TransactionMachine:
    __slots__ = ("_ending", "_handlers", "_overdue", "_table", "_timers")

    def __init__(self, settings: Settings, coordinator_epoch: int) -> None:
        self._table: Final = TransactionTable(settings, coordinator_epoch)
        self._ending: Final = Ending(self._table)
        self._overdue: Final = Overdue()
        self._timers: Timers[Callable[[Now], Effects]] = Timers()
        self._handlers: Final[dict[type, Callable[[Token, Any, Now], Effects]]] = {
            InitProducerId: Initialization(self._table, self._ending).init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._ending.end,
            MarkersWritten: self._markers_written,
            AbortTimedOut: self._abort_timed_out,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
            NewSettings: self._new_settings,
        }

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        return self._table.transactions

    # Events

    def handle(self, token: Token, request: Any, now: Now) -> Effects:
        return self._handlers[type(request)](token, request, now)

    def on_timer(self, now: Now) -> Effects:
        due = self._timers.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def _new_settings(self, _token: Token, event: NewSettings, now: Now) -> Effects:
        self._table.settings = event.settings
        self._schedule(now)
        return Effects()

    # AddPartitionsToTxn and AddOffsetsToTxn

    def _add(self, token: Token, request: AddPartitions, now: Now) -> Effects:
        transaction = self._table.known(request.transactional_id)
        # First, as the client may already go by the identity that the end under way will give it.
        check_not_prepared(transaction)
        check_client(transaction, request.producer)
        _check_not_taken_over(transaction)
        if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
            return Effects().reply(token, None)
        added = transaction.with_partitions(request.partitions, request.client_version, now.wall_ms)
        return self._table.write(added).reply(token, None)

    def _verify(self, token: Token, request: VerifyPartitions, _now: Now) -> Effects:
        transaction = self._table.known(request.transactional_id)
        check_client(transaction, request.producer)
        check_not_prepared(transaction)
        _check_not_taken_over(transaction)
        return Effects().reply(
            token,
            {
                partition: ErrorCode.NONE
                if partition in transaction.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for partition in request.partitions
            },
        )

    # Completion

    def _markers_written(self, _token: Token, event: MarkersWritten, now: Now) -> Effects:
        transaction = self._table.transactions.get(event.transactional_id)
        if transaction is None or not transaction.state.is_prepared or transaction.writer != event.writer:
            return Effects()  # of an earlier end, which another run of the markers has completed
        effects = self._table.write(transaction.completed(now.wall_ms))

        def try_again(_error: KafkaError, then: Now) -> Effects:
            self._timers.schedule(
                event, then.tick_ms + _RETRY_MS, lambda later: self._markers_written(None, event, later)
            )
            return Effects()

        effects.failed = try_again
        return effects

    # Timeouts and expiry

    def _schedule(self, now: Now) -> None:
        config = self._table.config
        self._timers.schedule(
            _TIMEOUTS, now.tick_ms + config.abort_timed_out_interval_ms, self._abort_all_timed_out
        )
        self._timers.schedule(_EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._expire)

    def _abort_all_timed_out(self, now: Now) -> Effects:
        interval_ms = self._table.config.abort_timed_out_interval_ms
        self._timers.schedule(_TIMEOUTS, now.tick_ms + interval_ms, self._abort_all_timed_out)
        effects = Effects(atomic=False)
        ongoing = [self._table.transactions[each] for each in sorted(self._table.ongoing)]
        for transaction in self._overdue.look(ongoing, now):
            aborted = self._ending.abort(transaction, None, now)
            if aborted is None:
                effects.sends.append(ProducerIdWanted(transaction.transactional_id, transaction.writer))
            else:
                effects.extend(aborted)
        return effects

    def _abort_timed_out(self, _token: Token, event: AbortTimedOut, now: Now) -> Effects:
        transaction = self._table.transactions.get(event.transactional_id)
        if transaction is None or transaction.writer != event.writer:
            return Effects()
        if not self._overdue.includes(transaction, now):
            return Effects()
        return self._ending.abort(transaction, event.fresh_id, now) or Effects()

    def _expire(self, now: Now) -> Effects:
        config = self._table.config
        self._timers.schedule(_EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._expire)
        return Effects(
            [
                tombstone(transactional_id)
                for transactional_id, transaction in self._table.transactions.items()
                if transaction.is_expired(now.wall_ms, config.transactional_id_expiration_ms)
            ],
            atomic=False,
        )

    # DescribeTransactions and ListTransactions

    def _describe(self, token: Token, request: DescribeTransaction, _now: Now) -> Effects:
        transaction = self._table.transactions.get(request.transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                f"there is no transactional id {request.transactional_id!r}",
            )
        return Effects().reply(token, transaction)

    def _list(self, token: Token, request: ListTransactions, now: Now) -> Effects:
        def wanted(transaction: Transaction) -> bool:
            return (
                (request.states is None or transaction.state in request.states)
                and (not request.producer_ids or transaction.producer_id in request.producer_ids)
                and (request.duration_ms < 0 or now.wall_ms - transaction.start_ms > request.duration_ms)
                and (request.matches is None or request.matches(transaction.transactional_id))
            )

        return Effects().reply(token, [each for each in self._table.transactions.values() if wanted(each)])

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        self._table.replay(record)

    def replay_end_transaction(self, producer: Producer, commit: bool) -> None:
        """There are no transactions in this topic; their state is not written within one."""

    def on_loaded(self, now: Now) -> Effects:
        self._schedule(now)
        return Effects(
            sends=[
                self._ending.markers_of(each)
                for each in self._table.transactions.values()
                if each.state.is_prepared
            ]
        )

    def on_unloaded(self) -> None:
        self._timers.clear()


def _check_not_taken_over(transaction: Transaction) -> None:
    if transaction.is_taken_over:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{transaction.transactional_id!r} holds a prepared transaction that was kept: it can only be "
            "committed or aborted",
        )
