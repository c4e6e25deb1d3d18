"""What comes to a transaction machine, what it answers, and what it sends out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ottla.coordinator.runtime.effects import Producer
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.protocol.names import TopicPartition


class Missing(Enum):
    """An answer that asks for something first."""

    PRODUCER_ID = "the request is to be repeated with a fresh producer id"


@dataclass(frozen=True, slots=True)
class InitProducerId:
    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    """Who the producer thinks it is; None for one that begins."""
    enable_two_phase: bool = False
    keep_prepared: bool = False
    fresh_id: int | None = None


@dataclass(frozen=True, slots=True)
class Initialized:
    producer: Producer
    ongoing: Producer | None = None
    """The writer of a prepared transaction that was kept, and is to be committed or aborted."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    client_version: int


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """Are these partitions part of the producer's transaction? The answer is an error code for each."""

    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """The answer is the `Producer` as whom the client goes on."""

    transactional_id: str
    producer: Producer
    commit: bool
    client_version: int
    fresh_id: int | None = None


@dataclass(frozen=True, slots=True)
class AbortTimedOut:
    """Abort a transaction that is past its timeout, if it still is that of `writer`."""

    transactional_id: str
    writer: Producer
    fresh_id: int


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Every partition has confirmed the marker that was written in the name of `writer`."""

    transactional_id: str
    writer: Producer


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    states: frozenset[int] | None
    """None for all."""
    producer_ids: frozenset[int]
    """Empty for all."""
    duration_ms: int
    """Only what has been open for longer; negative for all."""
    matches: Callable[[str], bool] | None
    """Whether a transactional id is wanted; None for all."""


@dataclass(frozen=True, slots=True)
class Settings:
    config: TransactionConfig
    transaction_version: int
    """The cluster's finalised level of the feature, which counts for what no client asked for."""


@dataclass(frozen=True, slots=True)
class NewSettings:
    settings: Settings


# What is sent out


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a decided transaction, however often it takes, and then say `MarkersWritten`."""

    transactional_id: str
    writer: Producer
    commit: bool
    partitions: frozenset[TopicPartition]
    coordinator_epoch: int
    client_version: int


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """Get a fresh producer id, and then say `AbortTimedOut`."""

    transactional_id: str
    writer: Producer
