"""A shard of the share coordinator in a harness: a virtual clock, a log in memory, requests in one line each.

`ShareHarness` does what the runtime does, without asyncio: an event's records are encoded, kept as the log,
decoded and replayed, and its replies are collected. `reload` builds another shard from the log alone, from
its start on, which pruning moves.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.runtime.effects import Effects, EventTime, ReplayedRecord
from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.share.persister import (
    InitialState,
    PersisterResult,
    PersisterStateBatch,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.coordinator.share.requests import (
    DeleteSharePartitions,
    InitializeSharePartitions,
    PruneRecords,
    ReadSharePartitions,
    ReadSharePartitionSummaries,
    TopicsDeleted,
    WriteSharePartitions,
)
from ottla.coordinator.share.share_coordinator_shard import ShareCoordinatorShard
from ottla.metadata.image.entities import PartitionRegistration, TopicImage
from ottla.metadata.image.image import MetadataImage, TopicsImage
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.names import SharePartitionKey, TopicIdPartition
from ottla.protocol.schema import Message
from ottla.protocol.share_state_records import RECORDS

WALL_MS = 1_700_000_000_000
GROUP = "workers"
ORDERS = b"o" * 16
EVENTS = b"e" * 16
A = TopicIdPartition(ORDERS, 0)
B = TopicIdPartition(ORDERS, 1)
C = TopicIdPartition(EVENTS, 0)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


def batch(first: int, last: int, state: int = ACKNOWLEDGED, count: int = 1) -> PersisterStateBatch:
    return PersisterStateBatch(first, last, state, count)


def image_of(topics: dict[bytes, int]) -> MetadataImage:
    """Topics with as many partitions, led by broker 0."""
    registration = PartitionRegistration(
        replicas=(0,),
        directories=(bytes(15) + b"\x01",),
        isr=(0,),
        leader=0,
        leader_epoch=0,
        partition_epoch=0,
    )
    images = [
        TopicImage(topic_id.decode(), topic_id, dict.fromkeys(range(count), registration))
        for topic_id, count in topics.items()
    ]
    return MetadataImage(
        topics=TopicsImage({topic.id: topic for topic in images}, {topic.name: topic for topic in images})
    )


class ShareHarness:
    def __init__(self, config: ShareCoordinatorConfig | None = None) -> None:
        self.config = config or ShareCoordinatorConfig()
        self.image = image_of({ORDERS: 2, EVENTS: 1})
        self.now = EventTime(WALL_MS, 0)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.log_start = 0
        self.reload()

    # The runtime's part

    def reload(self) -> None:
        self.shard = ShareCoordinatorShard(self.config, lambda: self.image)
        for offset in range(self.log_start, len(self.log)):
            self._replay(offset)
        self._run(self.shard.on_loaded(self.now))

    def submit(self, request: Any) -> Any:
        token: Any = object()
        replies = self._run(self.shard.handle(token, request, self.now))
        return next((answer for to, answer in replies if to is token), None)

    def advance(self, ms: int) -> None:
        """Let time pass, and do what becomes due in it."""
        end = self.now.tick_ms + ms
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            passed = max(0, deadline - self.now.tick_ms)
            self.now = EventTime(self.now.wall_ms + passed, self.now.tick_ms + passed)
            self._run(self.shard.on_timer(self.now))
        passed = end - self.now.tick_ms
        self.now = EventTime(self.now.wall_ms + passed, end)

    def _run(self, effects: Effects) -> list[tuple[Any, Any]]:
        for record in effects.records:
            value = None if record.value is None else encode_value(record.value, record.version)
            self.log.append((encode_key(record.key), value))
            self._replay(len(self.log) - 1)
        for send in effects.sends:
            assert isinstance(send, PruneRecords)
            assert self.log_start <= send.offset <= len(self.log)
            self.log_start = send.offset
        return effects.replies

    def _replay(self, offset: int) -> None:
        key, value = RECORDS.decode(*self.log[offset])
        self.shard.replay(ReplayedRecord(key, value, offset, self.now.wall_ms))

    @property
    def records(self) -> list[tuple[Message, Message | None]]:
        """All that was written, also what is pruned."""
        return [RECORDS.decode(key, value) for key, value in self.log]

    def values(self) -> list[str]:
        """The kinds of the records: `snapshot`, `update`, `tombstone`."""
        return [
            "tombstone" if value is None else type(value).__name__.removesuffix("Value")[5:].lower()
            for _, value in self.records
        ]

    # Requests

    def initialize(
        self, tp: TopicIdPartition, *, state_epoch: int = 1, start: int = 0, group: str = GROUP
    ) -> PersisterResult:
        reply = self.submit(InitializeSharePartitions(group, [(tp, InitialState(state_epoch, start))]))
        return reply[0]  # type: ignore[no-any-return]

    def write(
        self,
        tp: TopicIdPartition,
        *batches: PersisterStateBatch,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        start: int = -1,
        complete: int = -1,
        group: str = GROUP,
    ) -> PersisterResult:
        write = WriteState(state_epoch, leader_epoch, start, complete, batches)
        return self.submit(WriteSharePartitions([(SharePartitionKey(group, *tp), write)]))[0]  # type: ignore[no-any-return]

    def read(self, tp: TopicIdPartition, *, leader_epoch: int = 0, group: str = GROUP) -> ShareState:
        return self.submit(ReadSharePartitions(group, [(tp, leader_epoch)]))[0]  # type: ignore[no-any-return]

    def delete(self, tp: TopicIdPartition, *, group: str = GROUP) -> PersisterResult:
        return self.submit(DeleteSharePartitions(group, [(tp, None)]))[0]  # type: ignore[no-any-return]

    def summary(self, tp: TopicIdPartition, *, leader_epoch: int = -1, group: str = GROUP) -> StateSummary:
        return self.submit(ReadSharePartitionSummaries(group, [(tp, leader_epoch)]))[0]  # type: ignore[no-any-return]

    def delete_topic(self, topic_id: bytes) -> None:
        topics = {
            id: len(topic.partitions) for id, topic in self.image.topics.by_id.items() if id != topic_id
        }
        self.image = image_of(topics)
        self.submit(TopicsDeleted((topic_id,)))
