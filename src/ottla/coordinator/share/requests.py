"""The operations of the share coordinator with their replies, and the work that it sends out.

An operation is on share partitions that live in the same partition of `__share_group_state`; the reply has a
result for each, in the same order. Only writes may be of several groups, and name a share partition more than
once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.share.persister import (
    InitialState,
    PersisterResult,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.protocol.names import SharePartitionKey, TopicIdPartition


@dataclass(frozen=True, slots=True)
class InitializeSharePartitions(CoordinatorOperation[list[PersisterResult]]):
    group_id: str
    partitions: list[tuple[TopicIdPartition, InitialState]]


@dataclass(frozen=True, slots=True)
class ReadSharePartitions(CoordinatorOperation[list[ShareState]]):
    """Read the state of share partitions as their leader in a leader epoch."""

    group_id: str
    partitions: list[tuple[TopicIdPartition, int]]


@dataclass(frozen=True, slots=True)
class WriteSharePartitions(CoordinatorOperation[list[PersisterResult]]):
    """Write states; several writes of one share partition become one record."""

    writes: list[tuple[SharePartitionKey, WriteState]]


@dataclass(frozen=True, slots=True)
class DeleteSharePartitions(CoordinatorOperation[list[PersisterResult]]):
    group_id: str
    partitions: list[tuple[TopicIdPartition, None]]


@dataclass(frozen=True, slots=True)
class ReadSharePartitionSummaries(CoordinatorOperation[list[StateSummary]]):
    group_id: str
    partitions: list[tuple[TopicIdPartition, int]]


@dataclass(frozen=True, slots=True)
class TopicsDeleted(CoordinatorOperation[None]):
    """Topics were deleted; the state of their share partitions goes with them."""

    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NewShareCoordinatorConfig(CoordinatorOperation[None]):
    config: ShareCoordinatorConfig


@dataclass(frozen=True, slots=True)
class PruneRecords:
    """Work outside of the shard: the records below this offset are redundant and can be deleted."""

    offset: int
