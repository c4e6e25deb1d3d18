"""What passes between a partition and those who use it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.names import TopicPartition

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

NO_EPOCH: Final = -1


class Isolation(Enum):
    """How far a fetch may read."""

    LOG_END = "log end"  # followers
    HIGH_WATERMARK = "high watermark"  # read_uncommitted
    COMMITTED = "last stable offset"  # read_committed


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """An epoch and the offset at which it ends in this log; (-1, -1) when nothing is known of it."""

    epoch: int
    end_offset: int

    @property
    def is_unknown(self) -> bool:
        return self.epoch < 0 or self.end_offset < 0


@dataclass(frozen=True, slots=True)
class FetchFrom:
    """The follower that fetches: its id, its log start, and the epoch under which it is registered."""

    broker_id: int
    log_start_offset: int
    broker_epoch: int = -1


class PartitionFetch(NamedTuple):
    """What a fetch of one partition gives. All offsets are from before the read."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    diverging_epoch: EpochEndOffset | None = None
    aborted: tuple[AbortedTxn, ...] | None = None  # None unless the isolation is COMMITTED


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An in-sync set that the leader asks the controller for (AlterPartition)."""

    partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # in step with isr; -1 where not known


class PartitionListener(Protocol):
    """Who is told what a partition does."""

    def partition_progressed(self, partition: Partition) -> None:
        """Its log end, high watermark, last stable offset or log start moved, or its leadership ended."""

    def isr_proposed(self, partition: Partition, proposal: IsrProposal) -> None:
        """The in-sync set should change; answer with ``isr_altered`` or ``isr_refused``."""

    def may_join_isr(self, broker: int, broker_epoch: int | None) -> bool:
        """Whether the image shows the broker active and, unless -1, with this epoch."""
