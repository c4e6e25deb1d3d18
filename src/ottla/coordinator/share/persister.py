"""The interface to the durable state of share partitions (Kafka's `Persister`).

The group coordinator and the leaders of share partitions read and write this state through a `Persister`;
which broker coordinates a share partition, and how it is reached, is the matter of the implementation. A
share partition is a group and a partition of a topic, by the topic's id.

Every method answers for each partition that it was given, and never raises for one: an error, also that of a
coordinator that could not be reached within the implementation's attempts, is in that partition's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.share import DeadLetterPlace

UNINITIALIZED_START_OFFSET: Final = -1
"""The start offset of a share partition that has none yet; `share.auto.offset.reset` of the group decides."""
UNINITIALIZED_DELIVERY_COMPLETE_COUNT: Final = -1
"""The count of a state whose writer does not know it."""


class _StateBatch(NamedTuple):
    first_offset: int
    last_offset: int
    delivery_state: int
    """0: available, 2: acknowledged, 4: archived; acquired records are not persisted."""
    delivery_count: int


class PersisterStateBatch(_StateBatch):
    """Offsets of one delivery state and count, first and last included."""

    __slots__ = ()

    # With this it has all attributes of a `StateBatch` of the records, and can be encoded as one.
    unknown_tags: Final = None


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a share partition begins with: at first, or again after its offsets were altered."""

    state_epoch: int
    start_offset: int = UNINITIALIZED_START_OFFSET


@dataclass(frozen=True, slots=True)
class WriteState:
    """A change of a share partition's state: its batches are combined with those that are there, where the
    higher delivery count wins, and of equal ones the higher state.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    """The new start offset; -1 to leave it as it is."""
    delivery_complete_count: int = UNINITIALIZED_DELIVERY_COMPLETE_COUNT
    batches: tuple[PersisterStateBatch, ...] = ()
    dead_letter_place: DeadLetterPlace | None = None
    """Where dead letters are written from now on; None to leave it as it is."""


@dataclass(frozen=True, slots=True)
class PersisterResult:
    """The answer for a partition of which nothing is read."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareState:
    """The answer to a read: the whole state of a share partition, or an error.

    The count of completed deliveries follows from the batches; ReadShareGroupState does not have it either.
    """

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED_START_OFFSET
    batches: tuple[PersisterStateBatch, ...] = ()
    """In the order of offsets, without overlaps."""
    dead_letter_place: DeadLetterPlace | None = None
    """Where dead letters were written last; None if there was never one."""


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The answer to the read of a summary: a share partition's state without its batches, or an error."""

    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED_START_OFFSET
    delivery_complete_count: int = UNINITIALIZED_DELIVERY_COMPLETE_COUNT


class Persister(Protocol):
    """The durable state of share partitions."""

    async def initialize_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, InitialState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        """Create the state of partitions, or begin it again at a higher state epoch."""

    async def read_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, ShareState]:
        """Read the state of partitions as their leader in this epoch; leaders of older epochs are fenced."""

    async def write_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, WriteState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        """Change the state of partitions."""

    async def delete_state(
        self, group_id: str, partitions: Iterable[TopicIdPartition], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        """Delete the state of partitions; one without state is no error."""

    async def read_summary(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, StateSummary]:
        """Read the summaries of partitions; the leader epochs given may be -1, and fence nothing."""
