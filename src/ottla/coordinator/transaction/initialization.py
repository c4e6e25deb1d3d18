"""InitProducerId: who a transactional id belongs to from now on.

A producer that begins takes the id over: the epoch moves on, and with it all messages of the producer before
are refused. If that one left a transaction open, it is aborted first, and the new producer asks again; or it
is kept, to be decided by the new one. A producer that goes on after an error names itself, and is refused
if it has been replaced meanwhile.

One difference from Kafka: a producer that names itself by an old epoch is fenced at once; Kafka first aborts
the open transaction of the producer that has replaced it.
"""

from __future__ import annotations

from ottla.coordinator.runtime.effects import Effects, Now, Producer, Token
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS
from ottla.coordinator.transaction.end_rules import check_not_prepared, fenced
from ottla.coordinator.transaction.ending import Ending
from ottla.coordinator.transaction.requests import Initialized, InitProducerId, Missing
from ottla.coordinator.transaction.state import TransactionState
from ottla.coordinator.transaction.table import TransactionTable
from ottla.coordinator.transaction.transaction import FIRST_VERSION_OF_EPOCH_BUMPS, NO_EPOCH, Transaction
from ottla.protocol.errors import ErrorCode, KafkaError


class Initialization:
    __slots__ = ("_ending", "_table")

    def __init__(self, table: TransactionTable, ending: Ending) -> None:
        self._table = table
        self._ending = ending

    def init(self, token: Token, request: InitProducerId, now: Now) -> Effects:
        timeout_ms = self._check(request)
        transaction = self._table.transactions.get(request.transactional_id)
        if transaction is None:
            if request.fresh_id is None:
                return Effects().reply(token, Missing.PRODUCER_ID)
            created = Transaction(request.transactional_id, request.fresh_id, NO_EPOCH, timeout_ms)
            return self._begin(token, created.with_epoch(0, timeout_ms, now.wall_ms))
        check_not_prepared(transaction)
        if transaction.state is TransactionState.ONGOING:
            return self._ongoing(token, request, transaction, now)
        return self._idle(token, request, transaction, timeout_ms, now)

    def _check(self, request: InitProducerId) -> int:
        """The timeout that counts; raises if the request is refused whatever the state."""
        config = self._table.config
        if request.enable_two_phase and not config.two_phase_commit_enabled:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "two-phase commits are not allowed here; set transaction.two.phase.commit.enable",
            )
        if request.keep_prepared and not self._table.bumps_epochs:
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

    def _ongoing(self, token: Token, request: InitProducerId, transaction: Transaction, now: Now) -> Effects:
        client = transaction.client
        if request.expected is not None and request.expected != client:
            raise fenced(transaction, request.expected)
        if request.keep_prepared:
            if not self._table.is_exhausted(client.epoch):
                client = Producer(client.id, client.epoch + 1)
            elif request.fresh_id is not None:
                client = Producer(request.fresh_id, 0)
            else:
                return Effects().reply(token, Missing.PRODUCER_ID)
            kept = transaction.taken_over(client, now.wall_ms)
            return self._table.write(kept).reply(token, Initialized(client, transaction.writer))
        effects = self._ending.abort(transaction, request.fresh_id, now)
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

    def _idle(
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
        if self._table.is_exhausted(epoch):
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
            expected.id == transaction.previous_producer_id and self._table.is_exhausted(expected.epoch)
        ):
            return False
        if transaction.state is TransactionState.EMPTY:
            return self._table.replaced_epochs.get(transaction.transactional_id) == expected.epoch
        if transaction.client_version < FIRST_VERSION_OF_EPOCH_BUMPS:
            return False
        last_epoch = self._table.config.max_epoch - 1 if expected.id != known.id else known.epoch - 1
        return expected.epoch == last_epoch and (expected.id == known.id or known.epoch == 0)

    def _begin(self, token: Token, transaction: Transaction, *, replaced: int | None = None) -> Effects:
        effects = self._table.write(transaction).reply(token, Initialized(transaction.client))
        transactional_id = transaction.transactional_id

        def remember(_now: Now) -> None:
            if replaced is not None:
                self._table.replaced_epochs[transactional_id] = replaced

        effects.applied = remember
        return effects
