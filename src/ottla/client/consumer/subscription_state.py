"""The partitions that a consumer reads and their positions: one `TopicPartitionState` for each.

`position` is the offset of the next record that the user gets; everything fetched beyond it waits in
`fetches`. It is None until `OffsetFetcher` has found where to begin, and nothing is fetched before. `seeks`
counts the seeks: a response to a fetch that was sent before a seek is discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ottla.client.consumer.config import ResetPolicy
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition

if TYPE_CHECKING:
    from ottla.client.consumer.completed_fetch import CompletedFetch


NO_EPOCH = -1


class TopicPartitionState:
    __slots__ = (
        "error",
        "fetches",
        "fetching",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "paused",
        "position",
        "position_epoch",
        "preferred_replica",
        "preferred_until",
        "reset",
        "revoking",
        "seeks",
        "validated_epoch",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.position: int | None = None
        # The leader epoch of the record before `position`, -1 if it is not known.
        self.position_epoch = NO_EPOCH
        # The leader epoch for which `position` was last validated.
        self.validated_epoch = NO_EPOCH
        # How to find `position`, by an end of the log or by time, while it has to be found that way.
        self.reset: ResetPolicy | None = None
        self.seeks = 0
        self.paused = False
        self.revoking = False
        self.fetching = False
        self.fetches: deque[CompletedFetch] = deque()
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.preferred_replica = -1
        self.preferred_until = 0.0
        # The error that stops this partition until it is raised to the user.
        self.error: KafkaError | None = None

    def seek(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        self.forget_fetched()
        self.position, self.position_epoch, self.validated_epoch = offset, leader_epoch, NO_EPOCH
        self.reset = None
        self.error = None

    def seek_by(self, reset: ResetPolicy | None) -> None:
        """Discard the position, to be found by a policy; None begins with the committed offset."""
        self.forget_fetched()
        self.position, self.position_epoch = None, NO_EPOCH
        self.reset = reset
        self.error = None

    def forget_fetched(self) -> None:
        self.seeks += 1
        for fetch in self.fetches:
            fetch.dropped = True
        self.fetches.clear()

    @property
    def fetch_offset(self) -> int:
        """The offset at which the next fetch begins."""
        if self.fetches:
            return self.fetches[-1].next_offset
        assert self.position is not None, f"{self.partition} has no position yet"
        return self.position


class SubscriptionState:
    """The partitions that a consumer reads now, in the order of their assignment."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[TopicPartition, TopicPartitionState] = {}

    def __iter__(self) -> Iterator[TopicPartitionState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def get(self, partition: TopicPartition) -> TopicPartitionState | None:
        return self._states.get(partition)

    def of(self, partition: TopicPartition) -> TopicPartitionState:
        state = self._states.get(partition)
        if state is None:
            raise ValueError(f"{partition} is not assigned to this consumer")
        return state

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._states)

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; a partition that stays keeps its state."""
        old = self._states
        self._states = {
            partition: old.get(partition) or TopicPartitionState(partition) for partition in partitions
        }
        for partition, state in old.items():
            if partition not in self._states:
                state.forget_fetched()

    def take_error(self) -> KafkaError | None:
        """Return an error that was not raised yet; its partition is then tried again."""
        for state in self._states.values():
            if state.error is not None:
                error, state.error = state.error, None
                return error
        return None
