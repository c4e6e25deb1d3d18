"""The transactions of one partition of `__transaction_state`: the shard of the transaction coordinator.

It is Kafka's `TransactionCoordinator` and `TransactionStateManager` in one: the durable state is one
`TransactionMetadata` for each transactional id, and only `replay` changes it. A decision to commit or abort
is a record; once that is committed, the markers go out (`WriteMarkers`), and when all are confirmed
(`MarkersWritten`) another record completes the transaction. After a load, the markers of every transaction
that was decided and not completed go out again.

InitProducerId: a new producer takes over the transactional id. The coordinator bumps the epoch, so requests
of the previous producer are fenced. If the previous producer left a transaction open, the coordinator aborts
it first, and the new producer has to repeat its request; with `keep_prepared` the transaction stays open, and
the new producer commits or aborts it. A producer that continues after an error sends its producer id and
epoch, and is refused if it has been replaced in the meantime. One difference from Kafka: a producer that
sends an old epoch is fenced at once; Kafka first aborts the open transaction of the producer that has
replaced it.

EndTxn: `end_txn_rules` says what it means in which state. With transaction version 2 the markers carry the
next epoch, and the client goes on with it; when its epochs are used up, it goes on with a fresh producer id.

Timeouts go by the wall clock, since the start of a transaction outlives the coordinator that noted it. The
clock of the next coordinator may be behind: a transaction that began in its future counts from when it was
first seen there, by ticks, so that a transaction does not stay open for as long as two clocks differ.

New producer ids come from the controller, which takes a while. So an operation that needs one and has none
gets the reply `MissingInput.PRODUCER_ID`, changes nothing, and is repeated with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.runtime.effects import (
    CoordinatorOperation,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
    ReplyTo,
)
from ottla.coordinator.runtime.timers import CoordinatorTimer
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS, TransactionConfig, TransactionSettings
from ottla.coordinator.transaction.end_txn_rules import (
    Outcome,
    check_client,
    check_not_prepared,
    check_outcome,
    fenced_error,
    outcome_of_end,
)
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    Initialized,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    MissingInput,
    NewTransactionSettings,
    ProducerIdWanted,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.coordinator.transaction.transaction_log import tombstone, transaction_of, transaction_record
from ottla.coordinator.transaction.transaction_metadata import (
    FIRST_VERSION_OF_EPOCH_BUMPS,
    NO_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.protocol.transaction_state_records import TransactionLogKey, TransactionLogValue
from ottla.runtime import invariants

_TIMEOUTS: Final = "timeouts"
_EXPIRY: Final = "expiry"
_RETRY_MS: Final = 100


class TransactionCoordinator:
    __slots__ = (
        "_coordinator_epoch",
        "_future_starts",
        "_handlers",
        "_ongoing",
        "_replaced_epochs",
        "_settings",
        "_timer",
        "transactions",
    )

    def __init__(self, settings: TransactionSettings, coordinator_epoch: int) -> None:
        self._settings = settings
        self._coordinator_epoch: Final = coordinator_epoch
        # What the log holds. The producer epoch of a producer id never goes back.
        self.transactions: Final[dict[str, TransactionMetadata]] = {}
        # The transactional ids whose transaction is open, which may time out.
        self._ongoing: Final[set[str]] = set()
        # Of ids that are EMPTY: the epoch that the last InitProducerId named and replaced. Not durable: a
        # producer that repeats that request to another coordinator is fenced, as in Kafka.
        self._replaced_epochs: Final[dict[str, int]] = {}
        # Of transactions that began in the future: when that was, and the tick at which it was noticed.
        self._future_starts: Final[dict[str, tuple[int, int]]] = {}
        self._timer: Final[CoordinatorTimer[Callable[[EventTime], Effects]]] = CoordinatorTimer()
        self._handlers: Final[dict[type, Callable[[Any, Any, EventTime], Effects]]] = {
            InitProducerId: self._init_producer_id,
            AddPartitions: self._add_partitions,
            VerifyPartitions: self._verify_partitions,
            EndTransaction: self._end_transaction,
            MarkersWritten: self._complete_transaction,
            AbortTimedOut: self._abort_timed_out,
            DescribeTransaction: self._describe_transaction,
            ListTransactions: self._list_transactions,
            NewTransactionSettings: self._new_settings,
        }

    # Events

    def handle(
        self, to: ReplyTo[Any] | None, operation: CoordinatorOperation[Any], now: EventTime
    ) -> Effects:
        return self._handlers[type(operation)](to, operation, now)

    def on_timer(self, now: EventTime) -> Effects:
        due = self._timer.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self._timer.next_deadline_ms()

    def on_loaded(self, now: EventTime) -> Effects:
        self._schedule(now)
        return Effects(
            sends=[self._markers_of(each) for each in self.transactions.values() if each.state.is_prepared]
        )

    def on_unloaded(self) -> None:
        self._timer.clear()

    def _new_settings(
        self, _to: ReplyTo[None] | None, event: NewTransactionSettings, now: EventTime
    ) -> Effects:
        self._settings = event.settings
        self._schedule(now)
        return Effects()

    # The state

    @property
    def _config(self) -> TransactionConfig:
        return self._settings.config

    @property
    def _bumps_epochs(self) -> bool:
        """Whether the cluster has agreed on transactions of version 2."""
        return self._settings.transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS

    def _is_exhausted(self, epoch: int) -> bool:
        """Whether a client must not be given the epoch after this one: that is kept for fencing it."""
        return epoch >= self._config.max_epoch - 1

    def _require_transaction(self, transactional_id: str) -> TransactionMetadata:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"there is no producer with the transactional id {transactional_id!r}, or it has expired",
            )
        return transaction

    def _write(self, transaction: TransactionMetadata) -> Effects:
        return Effects([transaction_record(transaction, self._settings.transaction_version)])

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
        if invariants.thorough:
            before = self.transactions.get(transactional_id)
            assert (
                before is None
                or before.producer_id != transaction.producer_id
                or before.producer_epoch <= transaction.producer_epoch
            ), (before, transaction)
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)

    def replay_end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        """Do nothing: no record of this topic is part of a transaction, so it has no markers."""

    # InitProducerId

    def _init_producer_id(
        self, to: ReplyTo[Initialized | MissingInput] | None, request: InitProducerId, now: EventTime
    ) -> Effects:
        timeout_ms = self._check_init(request)
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            if request.fresh_id is None:
                return Effects().reply(to, MissingInput.PRODUCER_ID)
            created = TransactionMetadata(request.transactional_id, request.fresh_id, NO_EPOCH, timeout_ms)
            return self._begin(to, created.with_epoch(0, timeout_ms, now.wall_ms))
        check_not_prepared(transaction)
        if transaction.state is TransactionState.ONGOING:
            return self._init_while_ongoing(to, request, transaction, now)
        return self._init_while_idle(to, request, transaction, timeout_ms, now)

    def _check_init(self, request: InitProducerId) -> int:
        """Return the timeout that applies; raise if the request is refused in any state."""
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

    def _init_while_ongoing(
        self,
        to: ReplyTo[Initialized | MissingInput] | None,
        request: InitProducerId,
        transaction: TransactionMetadata,
        now: EventTime,
    ) -> Effects:
        client = transaction.client
        if request.expected is not None and request.expected != client:
            raise fenced_error(transaction, request.expected)
        if request.keep_prepared:
            if not self._is_exhausted(client.epoch):
                client = ProducerIdAndEpoch(client.id, client.epoch + 1)
            elif request.fresh_id is not None:
                client = ProducerIdAndEpoch(request.fresh_id, 0)
            else:
                return Effects().reply(to, MissingInput.PRODUCER_ID)
            kept = transaction.with_new_client(client, now.wall_ms)
            return self._write(kept).reply(to, Initialized(client, transaction.writer))
        effects = self._abort(transaction, request.fresh_id, now)
        if effects is None:
            return Effects().reply(to, MissingInput.PRODUCER_ID)
        # Once the abort is complete, the repeated request finds an idle id and gets its epoch.
        return effects.reply(
            to,
            KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{request.transactional_id!r}: the transaction of the producer before is being aborted; "
                "try again",
            ),
        )

    def _init_while_idle(
        self,
        to: ReplyTo[Initialized | MissingInput] | None,
        request: InitProducerId,
        transaction: TransactionMetadata,
        timeout_ms: int,
        now: EventTime,
    ) -> Effects:
        expected = request.expected
        epoch = transaction.producer_epoch
        if expected is not None and expected != transaction.client:
            if not self._is_replaced(transaction, expected):
                raise fenced_error(transaction, expected)
            again = transaction.with_epoch(epoch, timeout_ms, now.wall_ms)
            return self._begin(to, again, replaced=expected.epoch)
        replaced = None if expected is None else expected.epoch
        if self._is_exhausted(epoch):
            if request.fresh_id is None:
                return Effects().reply(to, MissingInput.PRODUCER_ID)
            rotated = transaction.with_producer_id(request.fresh_id, timeout_ms, now.wall_ms)
            return self._begin(to, rotated, replaced=replaced)
        bumped = transaction.with_epoch(epoch + 1, timeout_ms, now.wall_ms)
        return self._begin(to, bumped, replaced=replaced)

    def _is_replaced(self, transaction: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
        """Whether the present identity is the reply to a request of `expected`, which repeats it because the
        reply was lost, or the reply to the end of its transaction.
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

    def _begin(
        self,
        to: ReplyTo[Initialized | MissingInput] | None,
        transaction: TransactionMetadata,
        *,
        replaced: int | None = None,
    ) -> Effects:
        effects = self._write(transaction).reply(to, Initialized(transaction.client))
        transactional_id = transaction.transactional_id

        def remember(_now: EventTime) -> None:
            if replaced is not None:
                self._replaced_epochs[transactional_id] = replaced

        effects.on_applied = remember
        return effects

    # AddPartitionsToTxn and AddOffsetsToTxn

    def _add_partitions(self, to: ReplyTo[None] | None, request: AddPartitions, now: EventTime) -> Effects:
        transaction = self._require_transaction(request.transactional_id)
        # First, as the client may already use the identity that the end under way will give it.
        check_not_prepared(transaction)
        check_client(transaction, request.producer)
        _check_not_taken_over(transaction)
        if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
            return Effects().reply(to, None)
        added = transaction.with_partitions(request.partitions, request.client_version, now.wall_ms)
        return self._write(added).reply(to, None)

    def _verify_partitions(
        self,
        to: ReplyTo[dict[TopicPartition, ErrorCode]] | None,
        request: VerifyPartitions,
        _now: EventTime,
    ) -> Effects:
        transaction = self._require_transaction(request.transactional_id)
        check_client(transaction, request.producer)
        check_not_prepared(transaction)
        _check_not_taken_over(transaction)
        return Effects().reply(
            to,
            {
                partition: ErrorCode.NONE
                if partition in transaction.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for partition in sorted(request.partitions)
            },
        )

    # EndTxn

    def _end_transaction(
        self, to: ReplyTo[ProducerIdAndEpoch | MissingInput] | None, request: EndTransaction, now: EventTime
    ) -> Effects:
        transaction = self._require_transaction(request.transactional_id)
        outcome = outcome_of_end(
            transaction,
            request.producer,
            commit=request.commit,
            client_version=request.client_version,
            max_epoch=self._config.max_epoch,
        )
        check_outcome(outcome, transaction, request.producer, commit=request.commit)
        if outcome is Outcome.DONE:
            return Effects().reply(to, transaction.client)
        if request.client_version >= FIRST_VERSION_OF_EPOCH_BUMPS:
            decided = self._decide(transaction, commit=request.commit, fresh_id=request.fresh_id, now=now)
            if decided is None:
                return Effects().reply(to, MissingInput.PRODUCER_ID)
        else:
            decided = transaction.prepare(
                commit=request.commit,
                client_version=0,
                epoch=transaction.producer_epoch,
                next_client=None,
                wall_ms=now.wall_ms,
            )
        return self._prepare(decided).reply(to, decided.after_completion)

    def _abort(
        self, transaction: TransactionMetadata, fresh_id: int | None, now: EventTime
    ) -> Effects | None:
        """Abort an open transaction against its producer, which is fenced; None if that needs a fresh id."""
        if self._bumps_epochs or transaction.is_taken_over:
            decided = self._decide(transaction, commit=False, fresh_id=fresh_id, now=now)
            return None if decided is None else self._prepare(decided)
        return self._prepare(
            transaction.prepare(
                commit=False,
                client_version=0,
                epoch=min(transaction.producer_epoch + 1, self._config.max_epoch),
                next_client=None,
                wall_ms=now.wall_ms,
            )
        )

    def _decide(
        self, transaction: TransactionMetadata, *, commit: bool, fresh_id: int | None, now: EventTime
    ) -> TransactionMetadata | None:
        """The end of a transaction of version 2; None if the client's epochs are used up and there is no
        fresh id.
        """
        client = transaction.client
        next_client: ProducerIdAndEpoch | None = None
        if self._is_exhausted(client.epoch):
            if fresh_id is None:
                return None
            next_client = ProducerIdAndEpoch(fresh_id, 0)
        elif transaction.is_taken_over:
            next_client = ProducerIdAndEpoch(client.id, client.epoch + 1)
        return transaction.prepare(
            commit=commit,
            client_version=FIRST_VERSION_OF_EPOCH_BUMPS,
            epoch=min(transaction.producer_epoch + 1, self._config.max_epoch),
            next_client=next_client,
            wall_ms=now.wall_ms,
        )

    def _prepare(self, decided: TransactionMetadata) -> Effects:
        """Write a decision; its markers go out once that is committed."""
        effects = self._write(decided)
        effects.sends.append(self._markers_of(decided))
        return effects

    def _markers_of(self, transaction: TransactionMetadata) -> WriteMarkers:
        return WriteMarkers(
            transaction.transactional_id,
            transaction.writer,
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            self._coordinator_epoch,
            transaction.client_version,
            max(0, transaction.last_update_ms - transaction.start_ms) if transaction.start_ms >= 0 else 0,
        )

    def _complete_transaction(
        self, _to: ReplyTo[None] | None, event: MarkersWritten, now: EventTime
    ) -> Effects:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None or not transaction.state.is_prepared or transaction.writer != event.writer:
            return Effects()  # of an earlier end, which another run of the markers has completed
        effects = self._write(transaction.complete(now.wall_ms))

        def try_again(_error: KafkaError, then: EventTime) -> Effects:
            self._timer.schedule(
                event, then.tick_ms + _RETRY_MS, lambda later: self._complete_transaction(None, event, later)
            )
            return Effects()

        effects.on_failed = try_again
        return effects

    # Timeouts and expiry

    def _schedule(self, now: EventTime) -> None:
        config = self._config
        self._timer.schedule(
            _TIMEOUTS, now.tick_ms + config.abort_timed_out_interval_ms, self._abort_timed_out_transactions
        )
        self._timer.schedule(
            _EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._remove_expired_transactional_ids
        )

    def _abort_timed_out_transactions(self, now: EventTime) -> Effects:
        interval_ms = self._config.abort_timed_out_interval_ms
        self._timer.schedule(_TIMEOUTS, now.tick_ms + interval_ms, self._abort_timed_out_transactions)
        ongoing = [self.transactions[each] for each in sorted(self._ongoing)]
        self._note_future_starts(ongoing, now)
        effects = Effects(atomic=False)
        for transaction in [each for each in ongoing if self._is_timed_out(each, now)]:
            aborted = self._abort(transaction, None, now)
            if aborted is None:
                effects.sends.append(ProducerIdWanted(transaction.transactional_id, transaction.writer))
            else:
                effects.extend(aborted)
        return effects

    def _note_future_starts(self, ongoing: list[TransactionMetadata], now: EventTime) -> None:
        future = {each.transactional_id: each.start_ms for each in ongoing if each.start_ms > now.wall_ms}
        for transactional_id, (start_ms, _) in list(self._future_starts.items()):
            if future.get(transactional_id) != start_ms:
                del self._future_starts[transactional_id]
        for transactional_id, start_ms in future.items():
            self._future_starts.setdefault(transactional_id, (start_ms, now.tick_ms))

    def _is_timed_out(self, transaction: TransactionMetadata, now: EventTime) -> bool:
        start_ms, tick_ms = self._future_starts.get(transaction.transactional_id, (None, 0))
        if start_ms == transaction.start_ms and start_ms > now.wall_ms:
            # As if it had begun by this clock at that tick.
            return transaction.is_timed_out(start_ms + now.tick_ms - tick_ms)
        return transaction.is_timed_out(now.wall_ms)

    def _abort_timed_out(self, _to: ReplyTo[None] | None, event: AbortTimedOut, now: EventTime) -> Effects:
        transaction = self.transactions.get(event.transactional_id)
        if transaction is None or transaction.writer != event.writer:
            return Effects()
        if not self._is_timed_out(transaction, now):
            return Effects()
        return self._abort(transaction, event.fresh_id, now) or Effects()

    def _remove_expired_transactional_ids(self, now: EventTime) -> Effects:
        config = self._config
        self._timer.schedule(
            _EXPIRY, now.tick_ms + config.remove_expired_interval_ms, self._remove_expired_transactional_ids
        )
        return Effects(
            [
                tombstone(transactional_id)
                for transactional_id, transaction in self.transactions.items()
                if transaction.is_expired(now.wall_ms, config.transactional_id_expiration_ms)
            ],
            atomic=False,
        )

    # DescribeTransactions and ListTransactions

    def _describe_transaction(
        self, to: ReplyTo[TransactionMetadata] | None, request: DescribeTransaction, _now: EventTime
    ) -> Effects:
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                f"there is no transactional id {request.transactional_id!r}",
            )
        return Effects().reply(to, transaction)

    def _list_transactions(
        self, to: ReplyTo[list[TransactionMetadata]] | None, request: ListTransactions, now: EventTime
    ) -> Effects:
        def is_wanted(transaction: TransactionMetadata) -> bool:
            return (
                (request.states is None or transaction.state in request.states)
                and (not request.producer_ids or transaction.producer_id in request.producer_ids)
                and (request.duration_ms < 0 or now.wall_ms - transaction.start_ms > request.duration_ms)
                and (request.matches is None or request.matches(transaction.transactional_id))
            )

        return Effects().reply(to, [each for each in self.transactions.values() if is_wanted(each)])


def _check_not_taken_over(transaction: TransactionMetadata) -> None:
    if transaction.is_taken_over:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{transaction.transactional_id!r} holds a prepared transaction that was kept: it can only be "
            "committed or aborted",
        )
