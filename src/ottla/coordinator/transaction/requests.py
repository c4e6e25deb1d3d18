"""The operations of the transaction coordinator with their replies, and the work that it sends out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

from ottla.coordinator.runtime.effects import CoordinatorOperation, ProducerIdAndEpoch
from ottla.coordinator.transaction.config import TransactionSettings
from ottla.coordinator.transaction.transaction_metadata import TransactionMetadata
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition

R = TypeVar("R")


class MissingInput(Enum):
    """A reply that names what the operation lacks; the service repeats the operation with it."""

    PRODUCER_ID = "the operation is to be repeated with a fresh producer id"


class TransactionOperation(CoordinatorOperation[R], Generic[R]):
    """An operation on one transactional id."""

    __slots__ = ()

    transactional_id: str


class ProducerIdOperation(TransactionOperation[R | MissingInput], ABC, Generic[R]):
    """An operation that may need a fresh producer id."""

    __slots__ = ()

    @abstractmethod
    def with_fresh_id(self, fresh_id: int) -> ProducerIdOperation[R]:
        """The same operation with a producer id that it may use."""


@dataclass(frozen=True, slots=True)
class Initialized:
    """The reply to InitProducerId."""

    producer: ProducerIdAndEpoch
    ongoing: ProducerIdAndEpoch | None = None
    """The writer of a prepared transaction that was kept, and is to be committed or aborted."""


@dataclass(frozen=True, slots=True)
class InitProducerId(ProducerIdOperation[Initialized]):
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """The identity that the producer believes to have; None for a producer that begins."""
    enable_two_phase: bool = False
    keep_prepared: bool = False
    fresh_id: int | None = None

    def with_fresh_id(self, fresh_id: int) -> InitProducerId:
        return replace(self, fresh_id=fresh_id)


@dataclass(frozen=True, slots=True)
class AddPartitions(TransactionOperation[None]):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    client_version: int


@dataclass(frozen=True, slots=True)
class VerifyPartitions(TransactionOperation[dict[TopicPartition, ErrorCode]]):
    """Verify that partitions are part of the producer's transaction; the reply is an error code for each."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndTransaction(ProducerIdOperation[ProducerIdAndEpoch]):
    """End a transaction; the reply is the identity with which the client goes on."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    client_version: int
    fresh_id: int | None = None

    def with_fresh_id(self, fresh_id: int) -> EndTransaction:
        return replace(self, fresh_id=fresh_id)


@dataclass(frozen=True, slots=True)
class AbortTimedOut(TransactionOperation[None]):
    """Abort a transaction that is past its timeout, if it still is that of `writer`."""

    transactional_id: str
    writer: ProducerIdAndEpoch
    fresh_id: int


@dataclass(frozen=True, slots=True)
class MarkersWritten(TransactionOperation[None]):
    """Every partition has confirmed the marker that carries the id and epoch of `writer`."""

    transactional_id: str
    writer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class DescribeTransaction(TransactionOperation[TransactionMetadata]):
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions(CoordinatorOperation[list[TransactionMetadata]]):
    states: frozenset[int] | None
    """None for all."""
    producer_ids: frozenset[int]
    """Empty for all."""
    duration_ms: int
    """Only transactions that have been open for longer; negative for all."""
    matches: Callable[[str], bool] | None
    """Whether a transactional id is wanted; None for all."""


@dataclass(frozen=True, slots=True)
class NewTransactionSettings(CoordinatorOperation[None]):
    settings: TransactionSettings


# The work that the coordinator sends out


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a decided transaction, with retries, and then submit `MarkersWritten`."""

    transactional_id: str
    writer: ProducerIdAndEpoch
    commit: bool
    partitions: frozenset[TopicPartition]
    coordinator_epoch: int
    client_version: int
    open_ms: int = field(default=0, compare=False)
    """From the begin of the transaction to the decision."""


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """Get a fresh producer id, and then submit `AbortTimedOut`."""

    transactional_id: str
    writer: ProducerIdAndEpoch
