"""The share coordinator of this broker: the partitions of `__share_group_state` that it leads.

A share partition lives in the partition that the hash of its key gives. The service is the `Persister` of the
share partitions that this broker coordinates, and answers NOT_COORDINATOR for others. Share partitions of one
request that live in the same partition of the topic are read and written together, as one batch of records;
so are the writes of single share partitions that come in the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, Ticket
from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.coordinator.runtime.partitioning import partition_for
from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.share.persister import (
    InitialState,
    PersisterResult,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.coordinator.share.requests import (
    DeleteSharePartitions,
    InitializeSharePartitions,
    NewShareCoordinatorConfig,
    PruneRecords,
    ReadSharePartitions,
    ReadSharePartitionSummaries,
    TopicsDeleted,
    WriteSharePartitions,
)
from ottla.coordinator.share.share_coordinator_shard import ShareCoordinatorShard
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import (
    SHARE_GROUP_STATE_TOPIC,
    SharePartitionKey,
    TopicIdPartition,
    TopicPartition,
)
from ottla.protocol.share_state_records import RECORDS
from ottla.records.types import Codec
from ottla.replication.partition import Partition
from ottla.runtime.metrics import Histogram
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

D = TypeVar("D")
R = TypeVar("R")

# Share partitions of one operation: a turn of the loop stays short, and a batch of records small.
_PARTITIONS_AT_A_TIME: Final = 50
_WRITE_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


class _GatheredWrites:
    """Writes of single share partitions that go to a shard together, in the next turn of the loop."""

    __slots__ = ("submitted", "writes")

    def __init__(self) -> None:
        self.writes: list[tuple[SharePartitionKey, WriteState]] = []
        self.submitted: Ticket[Ticket[list[PersisterResult]]] = Ticket()


class ShareCoordinatorService:
    def __init__(
        self,
        runtime: Runtime,
        config: ShareCoordinatorConfig,
        *,
        codec: Codec = Codec.NONE,
        commit_timeout_ms: int = 5_000,
        load_bytes: int = 5 * 1024 * 1024,
    ) -> None:
        self._clock: Final = runtime.clock
        self._config = config
        self._image = MetadataImage.EMPTY
        # Those that are loaded, by index: redundant records are deleted from them.
        self._led: Final[dict[int, Partition]] = {}
        self._gathered: Final[dict[int, _GatheredWrites]] = {}
        # The writes of leaders, counted by share partition, and how long requests took until committed.
        self.writes = 0
        self.write_times: Final = Histogram(_WRITE_BOUNDS_MS, scale=1e-3)
        self.runtime: Final[CoordinatorRuntime[ShareCoordinatorShard]] = CoordinatorRuntime(
            RECORDS,
            lambda _index, _epoch: ShareCoordinatorShard(self._config, lambda: self._image),
            runtime.clock,
            runtime.pool,
            on_sends=self._on_sends,
            codec=codec,
            commit_timeout_ms=commit_timeout_ms,
            load_bytes=load_bytes,
        )

    @property
    def config(self) -> ShareCoordinatorConfig:
        return self._config

    @property
    def share_partition_count(self) -> int:
        """The share partitions with state in the partitions that are loaded here."""
        count = 0
        for index in self.runtime.partitions:
            try:
                count += len(self.runtime.shard(index).partitions)
            except KafkaError:
                continue  # it is being loaded
        return count

    # Events of the broker

    def on_metadata_update(
        self,
        image: MetadataImage,
        *,
        leaders: Iterable[Partition] = (),
        followers: Iterable[Partition] = (),
        deleted_topics: Mapping[bytes, str] | None = None,
    ) -> None:
        """Follow a new metadata image: partitions that this broker leads or follows now, and the names of
        deleted topics by their ids.
        """
        self._image = image
        self.on_resignation(partition.topic_partition for partition in followers)
        if deleted_topics:
            if SHARE_GROUP_STATE_TOPIC in deleted_topics.values():
                self.on_resignation(
                    [TopicPartition(SHARE_GROUP_STATE_TOPIC, index) for index in self.runtime.partitions]
                )
            self.runtime.notify(TopicsDeleted(tuple(deleted_topics)))
        for partition in leaders:
            if partition.topic_partition.topic == SHARE_GROUP_STATE_TOPIC:
                self._led[partition.topic_partition.partition] = partition
                self.runtime.load(partition)

    def on_resignation(self, partitions: Iterable[TopicPartition]) -> None:
        """Unload partitions that this broker no longer leads, or cannot serve."""
        for partition in partitions:
            if partition.topic == SHARE_GROUP_STATE_TOPIC:
                self._led.pop(partition.partition, None)
                self.runtime.unload(partition.partition)

    def on_partition_progress(self, partition: Partition) -> None:
        """Give the replies that wait for the high watermark of a partition."""
        if partition.topic_partition.topic == SHARE_GROUP_STATE_TOPIC:
            self.runtime.on_partition_progress(partition.topic_partition.partition)

    def configure(self, config: ShareCoordinatorConfig) -> None:
        if config != self._config:
            self._config = config
            self.runtime.notify(NewShareCoordinatorConfig(config))

    async def close(self) -> None:
        self._led.clear()
        await self.runtime.close()

    # Redundant records

    def _on_sends(self, index: int, sends: list[Any]) -> None:
        """Called within an event of the shard; the work begins after it."""
        partition = self._led.get(index)
        for send in sends:
            assert isinstance(send, PruneRecords), send
            if partition is not None:
                asyncio.get_running_loop().call_soon(self._prune, index, partition, send.offset)

    def _prune(self, index: int, partition: Partition, offset: int) -> None:
        if self._led.get(index) is not partition:
            return
        try:
            partition.delete_records_on_leader(offset, "share state was pruned")
        except (KafkaError, OSError) as error:
            # They stay until the next time.
            _log.warning("%s: records below %d: %s", partition.topic_partition, offset, error)

    # Requests

    def partition_for(self, key: SharePartitionKey) -> int:
        """The partition of a share partition; COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        topic = self._image.topics.by_name.get(SHARE_GROUP_STATE_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{SHARE_GROUP_STATE_TOPIC} does not exist yet; try again",
            )
        return partition_for(key.coordinator_key, len(topic.partitions))

    async def initialize_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, InitialState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        return await self._run("initialize", group_id, partitions, InitializeSharePartitions, PersisterResult)

    async def read_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, ShareState]:
        return await self._run("read", group_id, partitions, ReadSharePartitions, ShareState)

    async def write_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, WriteState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        start_ns = self._clock.monotonic_ns()
        if len(partitions) == 1:
            ((tp, write),) = partitions.items()
            results = {tp: await self._gather_write(SharePartitionKey(group_id, *tp), write)}
        else:
            results = await self._run("write", group_id, partitions, _write_operation, PersisterResult)
        self.writes += len(partitions)
        self.write_times.observe((self._clock.monotonic_ns() - start_ns) / 1e6)
        return results

    async def _gather_write(self, key: SharePartitionKey, write: WriteState) -> PersisterResult:
        """Write the state of one share partition, with those that come in the same turn of the loop."""
        try:
            index = self.partition_for(key)
            gathered = self._gathered.get(index)
            if gathered is None or len(gathered.writes) >= _PARTITIONS_AT_A_TIME:
                gathered = self._gathered[index] = _GatheredWrites()
                asyncio.get_running_loop().call_soon(self._submit_gathered, index, gathered)
            position = len(gathered.writes)
            gathered.writes.append((key, write))
            ticket = await gathered.submitted
            replies = ticket.result() if ticket.done else await ticket
        except KafkaError as error:
            return PersisterResult(error.code, _unable("write", error))
        return replies[position]

    def _submit_gathered(self, index: int, gathered: _GatheredWrites) -> None:
        if self._gathered.get(index) is gathered:
            del self._gathered[index]
        gathered.submitted.resolve(self.runtime.submit(index, WriteSharePartitions(gathered.writes)))

    async def delete_state(
        self, group_id: str, partitions: Iterable[TopicIdPartition], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        wanted = dict.fromkeys(partitions)
        return await self._run("delete", group_id, wanted, DeleteSharePartitions, PersisterResult)

    async def read_summary(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, StateSummary]:
        return await self._run(
            "read the summary of", group_id, partitions, ReadSharePartitionSummaries, StateSummary
        )

    async def _run(
        self,
        verb: str,
        group_id: str,
        partitions: Mapping[TopicIdPartition, D],
        make_operation: Callable[[str, list[tuple[TopicIdPartition, D]]], CoordinatorOperation[list[R]]],
        failure: Callable[[ErrorCode, str], R],
    ) -> dict[TopicIdPartition, R]:
        """Give operations to the shards of share partitions, in turns, and gather their replies."""
        tickets: list[tuple[list[tuple[TopicIdPartition, D]], Ticket[list[R]]]] = []
        turns = Turns(self._clock) if len(partitions) > 1 else None
        for index, parts in (await self._by_shard(group_id, partitions, turns)).items():
            for start in range(0, len(parts), _PARTITIONS_AT_A_TIME):
                part = parts[start : start + _PARTITIONS_AT_A_TIME]
                tickets.append((part, self._submit(index, make_operation(group_id, part))))
                if turns is not None and turns.is_due():
                    await turns.pause()
        results: dict[TopicIdPartition, R] = {}
        for part, ticket in tickets:
            if turns is not None and turns.is_due():
                await turns.pause()
            try:
                replies = ticket.result() if ticket.done else await ticket
            except KafkaError as error:
                message = _unable(verb, error)
                results.update((tp, failure(error.code, message)) for tp, _ in part)
            else:
                results.update((tp, reply) for (tp, _), reply in zip(part, replies, strict=True))
        return results

    def _submit(self, index: int | KafkaError, operation: CoordinatorOperation[R]) -> Ticket[R]:
        if isinstance(index, KafkaError):
            return Ticket.failed(index)
        return self.runtime.submit(index, operation)

    async def _by_shard(
        self, group_id: str, partitions: Mapping[TopicIdPartition, D], turns: Turns | None
    ) -> dict[int | KafkaError, list[tuple[TopicIdPartition, D]]]:
        found: dict[int | KafkaError, list[tuple[TopicIdPartition, D]]] = {}
        try:
            for tp, data in partitions.items():
                index = self.partition_for(SharePartitionKey(group_id, *tp))
                found.setdefault(index, []).append((tp, data))
                if turns is not None and turns.is_due():
                    await turns.pause()
        except KafkaError as error:
            return {error: list(partitions.items())}
        return found


def _write_operation(group_id: str, part: list[tuple[TopicIdPartition, WriteState]]) -> WriteSharePartitions:
    return WriteSharePartitions([(SharePartitionKey(group_id, *tp), write) for tp, write in part])


def _unable(verb: str, error: KafkaError) -> str:
    return f"Unable to {verb} share group state: {error.message}"
