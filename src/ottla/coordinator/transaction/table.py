"""The transactions of one partition, and what every request needs to know beside them."""

from __future__ import annotations

from typing import Final

from ottla.coordinator.runtime.effects import Effects, ReplayedRecord
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.records import transaction_of, transaction_record
from ottla.coordinator.transaction.requests import Settings
from ottla.coordinator.transaction.state import TransactionState
from ottla.coordinator.transaction.transaction import FIRST_VERSION_OF_EPOCH_BUMPS, Transaction
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.transaction_state_records import TransactionLogKey, TransactionLogValue


class TransactionTable:
    """Invariant: `transactions` is what the log holds; only `replay` changes it."""

    __slots__ = ("coordinator_epoch", "ongoing", "replaced_epochs", "settings", "transactions")

    def __init__(self, settings: Settings, coordinator_epoch: int) -> None:
        self.settings = settings
        self.coordinator_epoch: Final = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        # The ids whose transaction is open, which are looked at for timeouts.
        self.ongoing: set[str] = set()
        # Of ids that are EMPTY: the epoch that the last InitProducerId named and replaced. Not durable: who
        # repeats that request to another coordinator is fenced, as in Kafka.
        self.replaced_epochs: dict[str, int] = {}

    @property
    def config(self) -> TransactionConfig:
        return self.settings.config

    @property
    def bumps_epochs(self) -> bool:
        """Whether the cluster has agreed on transactions of version 2."""
        return self.settings.transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS

    def is_exhausted(self, epoch: int) -> bool:
        """Whether a client must not be given the epoch after this one: that is for fencing it."""
        return epoch >= self.config.max_epoch - 1

    def known(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"there is no producer with the transactional id {transactional_id!r}, or it has expired",
            )
        return transaction

    def write(self, transaction: Transaction) -> Effects:
        return Effects([transaction_record(transaction, self.settings.transaction_version)])

    def replay(self, record: ReplayedRecord) -> None:
        assert isinstance(record.key, TransactionLogKey)
        transactional_id = record.key.transactional_id
        self.ongoing.discard(transactional_id)
        self.replaced_epochs.pop(transactional_id, None)
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            return
        assert isinstance(record.value, TransactionLogValue)
        transaction = transaction_of(transactional_id, record.value)
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self.ongoing.add(transactional_id)
