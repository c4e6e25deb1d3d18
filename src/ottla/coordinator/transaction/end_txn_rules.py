"""Decide the outcome of an EndTxn by the version of the transaction, its state, and the request.

With version 2 every end raises the epoch. So a request that carries the epoch before the present one repeats
an end that was decided, and one with the present epoch asks for the next end. With version 1 both carry the
same epoch, and only the state distinguishes them.

A commit with the epoch before that of an abort came too late: the coordinator has aborted the transaction on
its timeout, so the producer is fenced, as it would be with version 1, and can begin again with
InitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.transaction_metadata import (
    FIRST_VERSION_OF_EPOCH_BUMPS,
    TransactionMetadata,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode, KafkaError


class Outcome(Enum):
    END = "decide"
    DONE = "it was decided before"
    INVALID = "the state does not allow it"
    FENCED = "the producer has been replaced, or overtaken"


_COMMIT: Final = True
_ABORT: Final = False
_REPEATED: Final = True
_NEW: Final = False

_VERSION_1: Final[Mapping[tuple[TransactionState, bool], Outcome]] = {
    (TransactionState.EMPTY, _COMMIT): Outcome.INVALID,
    (TransactionState.EMPTY, _ABORT): Outcome.INVALID,
    (TransactionState.ONGOING, _COMMIT): Outcome.END,
    (TransactionState.ONGOING, _ABORT): Outcome.END,
    (TransactionState.COMPLETE_COMMIT, _COMMIT): Outcome.DONE,
    (TransactionState.COMPLETE_COMMIT, _ABORT): Outcome.INVALID,
    (TransactionState.COMPLETE_ABORT, _COMMIT): Outcome.INVALID,
    (TransactionState.COMPLETE_ABORT, _ABORT): Outcome.DONE,
}

_VERSION_2: Final[Mapping[tuple[TransactionState, bool, bool], Outcome]] = {
    (TransactionState.EMPTY, _COMMIT, _NEW): Outcome.INVALID,
    (TransactionState.EMPTY, _COMMIT, _REPEATED): Outcome.FENCED,
    (TransactionState.EMPTY, _ABORT, _NEW): Outcome.END,
    (TransactionState.EMPTY, _ABORT, _REPEATED): Outcome.FENCED,
    (TransactionState.ONGOING, _COMMIT, _NEW): Outcome.END,
    (TransactionState.ONGOING, _COMMIT, _REPEATED): Outcome.FENCED,
    (TransactionState.ONGOING, _ABORT, _NEW): Outcome.END,
    (TransactionState.ONGOING, _ABORT, _REPEATED): Outcome.FENCED,
    (TransactionState.COMPLETE_COMMIT, _COMMIT, _NEW): Outcome.INVALID,
    (TransactionState.COMPLETE_COMMIT, _COMMIT, _REPEATED): Outcome.DONE,
    (TransactionState.COMPLETE_COMMIT, _ABORT, _NEW): Outcome.END,
    (TransactionState.COMPLETE_COMMIT, _ABORT, _REPEATED): Outcome.INVALID,
    (TransactionState.COMPLETE_ABORT, _COMMIT, _NEW): Outcome.INVALID,
    (TransactionState.COMPLETE_ABORT, _COMMIT, _REPEATED): Outcome.FENCED,
    (TransactionState.COMPLETE_ABORT, _ABORT, _NEW): Outcome.END,
    (TransactionState.COMPLETE_ABORT, _ABORT, _REPEATED): Outcome.DONE,
}


def is_repeated_end(transaction: TransactionMetadata, producer: ProducerIdAndEpoch, max_epoch: int) -> bool:
    """Whether the producer carries the identity that it had before the last end of version 2."""
    known = transaction.client
    if producer.id == known.id:
        return producer.epoch + 1 == known.epoch
    return (
        transaction.state.is_idle
        and known.epoch == 0
        and producer == ProducerIdAndEpoch(transaction.previous_producer_id, max_epoch - 1)
    )


def outcome_of_end(
    transaction: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    *,
    commit: bool,
    client_version: int,
    max_epoch: int,
) -> Outcome:
    """Return the outcome of an EndTxn of this producer; raise the error that Kafka answers if it is
    refused.
    """
    if client_version < FIRST_VERSION_OF_EPOCH_BUMPS:
        check_client(transaction, producer)
        check_not_prepared(transaction)
        if transaction.is_taken_over:
            # Its end gives the client a new epoch, which an answer of version 1 cannot carry.
            return Outcome.INVALID
        return _VERSION_1[transaction.state, commit]
    # While an end is under way, the client may already use the identity that the end will give it.
    check_not_prepared(transaction)
    repeated = is_repeated_end(transaction, producer, max_epoch)
    if not repeated:
        check_client(transaction, producer)
    return _VERSION_2[transaction.state, commit, repeated]


def check_outcome(
    outcome: Outcome, transaction: TransactionMetadata, producer: ProducerIdAndEpoch, *, commit: bool
) -> None:
    if outcome is Outcome.INVALID:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{transaction.transactional_id!r} cannot be {'committed' if commit else 'aborted'} in the state "
            f"{transaction.state.title}",
        )
    if outcome is Outcome.FENCED:
        raise fenced_error(transaction, producer)


def check_not_prepared(transaction: TransactionMetadata) -> None:
    if transaction.state.is_prepared:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"{transaction.transactional_id!r}: the last transaction is still being ended; try again",
        )


def check_client(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    """Raise unless this is the producer that the transactional id belongs to now."""
    known = transaction.client
    if producer.id != known.id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{transaction.transactional_id!r} belongs to producer id {known.id}, not to {producer.id}",
        )
    if producer.epoch != known.epoch:
        raise fenced_error(transaction, producer)


def fenced_error(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"There is a newer producer with the same transactionalId {transaction.transactional_id!r} which "
        f"fences the current one: producer {producer.id} with epoch {producer.epoch} has been replaced by "
        f"{transaction.client.id} with epoch {transaction.client.epoch}, or its transaction has timed out; "
        "begin again with InitProducerId",
    )
