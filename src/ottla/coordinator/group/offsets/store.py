"""Committed offsets: by group, topic and partition; and those of transactions that are still open.

What a transaction commits is kept apart until its marker comes: then it counts, unless something newer was
committed for the partition meanwhile, or it never did. Invariant: an offset is replaced only by one that
stands later in the log, also when it was written earlier and became visible later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.consumer_offsets_records import OffsetCommitKey, OffsetCommitValue


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    value: OffsetCommitValue
    record_offset: int
    """Where in the log it was written."""


TopicPartitionKey = tuple[str, int]


class OffsetStore:
    """The state that records of committed offsets build; it changes only by replay."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartitionKey, CommittedOffset]] = {}
        # By producer: what its open transaction has committed, by group.
        self._pending: dict[int, dict[str, dict[TopicPartitionKey, CommittedOffset]]] = {}

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        found = self._committed.get(group_id, {}).get((topic, partition))
        return None if found is None else found.value

    def of_group(self, group_id: str) -> Iterator[tuple[TopicPartitionKey, OffsetCommitValue]]:
        for key, committed in list(self._committed.get(group_id, {}).items()):
            yield key, committed.value

    def groups(self) -> list[str]:
        return list(self._committed)

    def has_offsets(self, group_id: str) -> bool:
        return bool(self._committed.get(group_id))

    def of_topics(self, topics: Collection[str]) -> list[tuple[str, TopicPartitionKey]]:
        """By group, what is committed for these topics, also in transactions that are still open."""
        return sorted(
            {
                (group_id, where)
                for groups in (self._committed, *self._pending.values())
                for group_id, offsets in groups.items()
                for where in offsets
                if where[0] in topics
            }
        )

    # Open transactions

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset for this partition."""
        return any((topic, partition) in groups.get(group_id, {}) for groups in self._pending.values())

    def pending_of_group(self, group_id: str) -> set[TopicPartitionKey]:
        return {key for groups in self._pending.values() for key in groups.get(group_id, {})}

    def pending_producers(self) -> list[int]:
        return sorted(self._pending)

    # Replay

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        offset: int,
        producer: ProducerIdAndEpoch | None,
    ) -> None:
        where = (key.topic, key.partition)
        if value is None:
            self._remove(key.group, where)
            # A deletion reaches what open transactions hold as well.
            for producer_id in list(self._pending):
                self._drop_pending(producer_id, key.group, where)
        elif producer is None:
            self._committed.setdefault(key.group, {})[where] = CommittedOffset(value, offset)
        else:
            groups = self._pending.setdefault(producer.id, {})
            groups.setdefault(key.group, {})[where] = CommittedOffset(value, offset)

    def end_transaction(self, producer_id: int, commit: bool) -> list[str]:
        """The transaction ended; the groups for which it had committed offsets."""
        groups = self._pending.pop(producer_id, {})
        if commit:
            for group_id, offsets in groups.items():
                for where, pending in offsets.items():
                    known = self._committed.get(group_id, {}).get(where)
                    if known is None or known.record_offset < pending.record_offset:
                        self._committed.setdefault(group_id, {})[where] = pending
        return list(groups)

    def _remove(self, group_id: str, where: TopicPartitionKey) -> None:
        offsets = self._committed.get(group_id)
        if offsets is not None and offsets.pop(where, None) is not None and not offsets:
            del self._committed[group_id]

    def _drop_pending(self, producer_id: int, group_id: str, where: TopicPartitionKey) -> None:
        groups = self._pending[producer_id]
        offsets = groups.get(group_id)
        if offsets is not None and offsets.pop(where, None) is not None and not offsets:
            del groups[group_id]
            if not groups:
                del self._pending[producer_id]
