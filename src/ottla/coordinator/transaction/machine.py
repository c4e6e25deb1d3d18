"""The transactions of one partition of `__transaction_state`, as a machine of the coordinators' engine.

Its durable state is one `Transaction` for each transactional id. A decision to commit or abort is a record;
once that is committed, the markers go out (`WriteMarkers`), and when all are confirmed (`MarkersWritten`)
another record completes the transaction. After a load, whatever was decided and not completed goes out
again.

New producer ids come from the controller, which takes a while. So a request that needs one and has none is
answered with `Missing.PRODUCER_ID`, changes nothing, and is repeated with one.

One difference from Kafka: a producer that asks for a new epoch in the name of an old one is fenced at once;
Kafka first aborts the open transaction of the producer that has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.engine_effects import Effects, Now, Producer, ReplayedRecord, Token
from ottla.coordinator.engine_timers import Timers
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS, TransactionConfig
from ottla.coordinator.transaction.ending import (
    Outcome,
    check_client,
    check_not_prepared,
    check_outcome,
    fenced,
    outcome_of_end,
)
from ottla.coordinator.transaction.records import tombstone, transaction_of, transaction_record
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    Initialized,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    Missing,
    NewSettings,
    ProducerIdWanted,
    Settings,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.coordinator.transaction.state import TransactionState
from ottla.coordinator.transaction.transaction import (
    FIRST_VERSION_OF_EPOCH_BUMPS,
    NO_EPOCH,
    Transaction,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.transaction_state_records import TransactionLogKey, TransactionLogValue

_TIMEOUTS: Final = "timeouts"
_EXPIRY: Final = "expiry"
_RETRY_MS: Final = 100


class TransactionMachine:
    __slots__ = (
        "_coordinator_epoch",
        "_handlers",
        "_ongoing",
        "_replaced_epochs",
        "_settings",
        "_timers",
        "transactions",
    )

    def __init__(self, settings: Settings, coordinator_epoch: int) -> None:
        self._settings = settings
        self._coordinator_epoch: Final = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        # The ids whose transaction is open, which are looked at for timeouts.
        self._ongoing: set[str] = set()
        # Of ids that are EMPTY: the epoch that the last InitProducerId named and replaced. Not durable: who
        # repeats that request to another coordinator is fenced, as in Kafka.
        self._replaced_epochs: dict[str, int] = {}
        self._timers: Timers[Callable[[Now], Effects]] = Timers()
        self._handlers: Final[dict[type, Callable[[Token, Any, Now], Effects]]] = {
            InitProducerId: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._end,
            MarkersWritten: self._markers_written,
            AbortTimedOut: self._abort_timed_out,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
            NewSettings: self._new_settings,
        }

    @property
    def _config(self) -> TransactionConfig:
        return self._settings.config

    # Events

    def handle(self, token: Token, request: Any, now: Now) -> Effects:
        return self._handlers[type(request)](token, request, now)

    def on_timer(self, now: Now) -> Effects:
        due = self._timers.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def _new_settings(self, _token: Token, event: NewSettings, now: Now) -> Effects:
        self._settings = event.settings
        self._schedule(now)
        return Effects()

    def _write(self, transaction: Transaction) -> Effects:
        return Effects([transaction_record(transaction, self._settings.transaction_version)])

    # InitProducerId

    def _init(self, token: Token, request: InitProducerId, now: Now) -> Effects:
        timeout_ms = self._check_init(request)
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            if request.fresh_id is None:
                return Effects().reply(token, Missing.PRODUCER_ID)
            created = Transaction(request.transactional_id, request.fresh_id, NO_EPOCH, timeout_ms)
            return self._begin(token, created.with_epoch(0, timeout_ms, now.wall_ms))
        check_not_prepared(transaction)
        if transaction.state is TransactionState.ONGOING:
            return self._init_ongoing(token, request, transaction, now)
        return self._init_idle(token, request, transaction, timeout_ms, now)

    def _check_init(self, request: InitProducerId) -> int:
        """The timeout that counts; raises if the request is refused whatever the state."""
        config = self._config
        if request.enable_two_phase and not config.two_phase_commit_enabled:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "two-phase commits are not allowed here; set transaction.two.phase.commit.enable",
            )
        if request.keep_prepared and not self._bumps_epochs:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "a prepared transaction can be kept only with transaction.version 2 or higher",
            )
        if request.enable_two_phase:
            return NO_TIMEOUT_MS
        if not 0 < request.timeout_ms <= config.transaction_max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction timeout of {request.timeout_ms} ms is not between 1 and "
                f"transaction.max.timeout.ms, {config.transaction_max_timeout_ms}",
            )
        return request.timeout_ms

    def _init_ongoing(
        self, token: Token, request: InitProducerId, transaction: Transaction, now: Now
    ) -> Effects:
        client = transaction.client
        if request.expected is not None and request.expected != client:
            raise fenced(transaction, request.expected)
        if request.keep_prepared:
            if not self._is_exhausted(client.epoch):
                client = Producer(client.id, client.epoch + 1)
            elif request.fresh_id is not None:
                client = Producer(request.fresh_id, 0)
            else:
                return Effects().reply(token, Missing.PRODUCER_ID)
            kept = transaction.taken_over(client, now.wall_ms)
            return self._write(kept).reply(token, Initialized(client, transaction.writer))
        effects = self._abort(transaction, request.fresh_id, now)
        if effects is None:
            return Effects().reply(token, Missing.PRODUCER_ID)
        # Once the abort is complete, the repeated request finds an idle id and gets its epoch.
        return effects.reply(
            token,
            KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{request.transactional_id!r}: the transaction of the producer before is being aborted; "
                "ask again",
            ),
        )

    def _init_idle(
        self, token: Token, request: InitProducerId, transaction: Transaction, timeout_ms: int, now: Now
    ) -> Effects:
        expected = request.expected
        epoch = transaction.producer_epoch
        if expected is not None and expected != transaction.client:
            if not self._is_replaced(transaction, expected):
                raise fenced(transaction, expected)
            again = transaction.with_epoch(epoch, timeout_ms, now.wall_ms)
            return self._begin(token, again, replaced=expected.epoch)
        replaced = None if expected is None else expected.epoch
        if self._is_exhausted(epoch):
            if request.fresh_id is None:
                return Effects().reply(token, Missing.PRODUCER_ID)
            rotated = transaction.with_producer_id(request.fresh_id, timeout_ms, now.wall_ms)
            return self._begin(token, rotated, replaced=replaced)
        bumped = transaction.with_epoch(epoch + 1, timeout_ms, now.wall_ms)
        return self._begin(token, bumped, replaced=replaced)

    def _is_replaced(self, transaction: Transaction, expected: Producer) -> bool:
        """Whether the present identity is the answer to a request of `expected`, which is repeated as the
        answer was lost, or to the end of its transaction.
        """
        known = transaction.client
        if expected.id != known.id and not (
            expected.id == transaction.previous_producer_id and self._is_exhausted(expected.epoch)
        ):
            return False
        if transaction.state is TransactionState.EMPTY:
            return self._replaced_epochs.get(transaction.transactional_id) == expected.epoch
        if transaction.client_version < FIRST_VERSION_OF_EPOCH_BUMPS:
            return False
        last_epoch = self._config.max_epoch - 1 if expected.id != known.id else known.epoch - 1
        return expected.epoch == last_epoch and (expected.id == known.id or known.epoch == 0)

    def _begin(self, token: Token, transaction: Transaction, *, replaced: int | None = None) -> Effects:
        effects = self._write(transaction).reply(token, Initialized(transaction.client))
        transactional_id = transaction.transactional_id

        def remember(_now: Now) -> None:
            if replaced is not None:
                self._replaced_epochs[transactional_id] = replaced

        effects.applied = remember
        return effects

    # AddPartitionsToTxn and AddOffsetsToTxn

    def _add(self, token: Token, request: AddPartitions, now: Now) -> Effects:
        transaction = self._known(request.transactional_id)
        # First, as the client may already go by the identity that the end under way will give it.
        check_not_prepared(transaction)
        check_client(transaction, request.producer)
        _check_not_taken_over(transaction)
        if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
            return Effects().reply(token, None)
        added = transaction.with_partitions(request.partitions, request.client_version, now.wall_ms)
        return self._write(added).reply(token, None)

    def _verify(self, token: Token, request: VerifyPartitions, _now: Now) -> Effects:
        transaction = self._known(request.transactional_id)
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

    def _known(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"there is no producer with the transactional id {transactional_id!r}, or it has expired",
            )
        return transaction

    # EndTxn, and ends by the coordinator itself

    def _end(self, token: Token, request: EndTransaction, now: Now) -> Effects:
        transaction = self._known(request.transactional_id)
        outcome = outcome_of_end(
            transaction,
            request.producer,
            commit=request.commit,
            client_version=request.client_version,
            max_epoch=self._config.max_epoch,
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

    def _abort(self, transaction: Transaction, fresh_id: int | None, now: Now) -> Effects | None:
        """Abort an open transaction against its producer, which is fenced; None if that needs a fresh id."""
        if self._bumps_epochs or transaction.is_taken_over:
            decided = self._decided(transaction, commit=False, fresh_id=fresh_id, now=now)
            return None if decided is None else self._prepare(decided)
        return self._prepare(
            transaction.prepared(
                commit=False,
                client_version=0,
                epoch=min(transaction.producer_epoch + 1, self._config.max_epoch),
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
        if self._is_exhausted(client.epoch):
            if fresh_id is None:
                return None
            next_client = Producer(fresh_id, 0)
        elif transaction.is_taken_over:
            next_client = Producer(client.id, client.epoch + 1)
        return transaction.prepared(
            commit=commit,
            client_version=FIRST_VERSION_OF_EPOCH_BUMPS,
            epoch=min(transaction.producer_epoch + 1, self._config.max_epoch),
            next_client=next_client,
            wall_ms=now.wall_ms,
        )

    def _prepare(self, decided: Transaction) -> Effects:
        effects = self._write(decided)
        effects.sends.append(self._markers_of(decided))
        return effects

    def _markers_of(self, transaction: Transaction) -> WriteMarkers:
        return WriteMarkers(
            transaction.transactional_id,
            transaction.writer,
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            self._coordinator_epoch,
            transaction.client_version,
        )

    @property
    def _bumps_epochs(self) -> bool:
        return self._settings.transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS

    def _is_exhausted(self, epoch: int) -> bool:
        """Whether a client must not be given the epoch after this one: that is for fencing it."""
        return epoch >= self._config.max_epoch - 1

    def _markers_written(self, _token: Token, event: MarkersWritten, now: Now) -> Effects:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None or not transaction.state.is_prepared or transaction.writer != event.writer:
            return Effects()  # of an earlier end, which another run of the markers has completed
        effects = self._write(transaction.completed(now.wall_ms))

        def try_again(_error: KafkaError, then: Now) -> Effects:
            self._timers.schedule(
                event, then.tick_ms + _RETRY_MS, lambda later: self._markers_written(None, event, later)
            )
            return Effects()

        effects.failed = try_again
        return effects

    # Timeouts and expiry

    def _schedule(self, now: Now) -> None:
        config = self._config
        self._timers.schedule(
            _TIMEOUTS, now.tick_ms + config.abort_timed_out_interval_ms, self._abort_all_timed_out
        )
        self._timers.schedule(_EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._expire)

    def _abort_all_timed_out(self, now: Now) -> Effects:
        interval_ms = self._config.abort_timed_out_interval_ms
        self._timers.schedule(_TIMEOUTS, now.tick_ms + interval_ms, self._abort_all_timed_out)
        effects = Effects(atomic=False)
        for transactional_id in sorted(self._ongoing):
            transaction = self.transactions[transactional_id]
            if transaction.is_timed_out(now.wall_ms):
                aborted = self._abort(transaction, None, now)
                if aborted is None:
                    effects.sends.append(ProducerIdWanted(transactional_id, transaction.writer))
                else:
                    effects.extend(aborted)
        return effects

    def _abort_timed_out(self, _token: Token, event: AbortTimedOut, now: Now) -> Effects:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None or transaction.writer != event.writer:
            return Effects()
        if not transaction.is_timed_out(now.wall_ms):
            return Effects()
        return self._abort(transaction, event.fresh_id, now) or Effects()

    def _expire(self, now: Now) -> Effects:
        config = self._config
        self._timers.schedule(_EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._expire)
        return Effects(
            [
                tombstone(transactional_id)
                for transactional_id, transaction in self.transactions.items()
                if transaction.is_expired(now.wall_ms, config.transactional_id_expiration_ms)
            ],
            atomic=False,
        )

    # DescribeTransactions and ListTransactions

    def _describe(self, token: Token, request: DescribeTransaction, _now: Now) -> Effects:
        transaction = self.transactions.get(request.transactional_id)
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

        return Effects().reply(token, [each for each in self.transactions.values() if wanted(each)])

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        assert isinstance(record.key, TransactionLogKey)
        transactional_id = record.key.transactional_id
        self._ongoing.discard(transactional_id)
        self._replaced_epochs.pop(transactional_id, None)
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            return
        assert isinstance(record.value, TransactionLogValue)
        transaction = transaction_of(transactional_id, record.value)
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)

    def replay_end_transaction(self, producer: Producer, commit: bool) -> None:
        """There are no transactions in this topic; their state is not written within one."""

    def on_loaded(self, now: Now) -> Effects:
        self._schedule(now)
        return Effects(
            sends=[self._markers_of(each) for each in self.transactions.values() if each.state.is_prepared]
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
