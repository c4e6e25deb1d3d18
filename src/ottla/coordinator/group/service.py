"""The group coordinator of this broker: the partitions of `__consumer_offsets` that it leads.

The broker passes metadata updates on to the service, and handlers give it the requests of clients; a reply is
there at once or can be awaited. A group lives in the partition that the hash of its id gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from ottla.coordinator.group.config import GroupCoordinatorConfig, GroupSettings
from ottla.coordinator.group.group_coordinator_shard import GroupCoordinatorShard
from ottla.coordinator.group.requests import ListGroups, NewGroupSettings, NewMetadataImage
from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, Ticket
from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.coordinator.runtime.partitioning import partition_for
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.metadata.image.entities import ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import RECORDS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from ottla.records.types import Codec
from ottla.replication.partition import Partition
from ottla.runtime.runtime import Runtime

R = TypeVar("R")


class GroupCoordinatorService:
    """`on_sends` is given the work of share groups for the persister, as `ShareStatesToInitialize`."""

    def __init__(
        self,
        runtime: Runtime,
        config: GroupCoordinatorConfig,
        *,
        on_sends: Callable[[int, list[Any]], None] | None = None,
        codec: Codec = Codec.NONE,
        commit_timeout_ms: int = 5_000,
        load_bytes: int = 5 * 1024 * 1024,
    ) -> None:
        self._random: Final = runtime.random
        self._settings = GroupSettings(config)
        self._image = MetadataImage.EMPTY
        self.runtime: Final[CoordinatorRuntime[GroupCoordinatorShard]] = CoordinatorRuntime(
            RECORDS,
            lambda _index, _epoch: GroupCoordinatorShard(self._settings, self._image, self._new_id),
            runtime.clock,
            runtime.pool,
            on_sends=on_sends,
            codec=codec,
            commit_timeout_ms=commit_timeout_ms,
            load_bytes=load_bytes,
        )

    @property
    def config(self) -> GroupCoordinatorConfig:
        return self._settings.node

    def streams_heartbeat_interval_ms(self, group_id: str) -> int:
        """The configured heartbeat interval of a streams group."""
        return self._settings.streams_heartbeat_interval_ms(group_id)

    def _new_id(self) -> str:
        """A uuid in the usual form."""
        text = self._random.uuid().hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # Events of the broker

    def on_metadata_update(
        self,
        image: MetadataImage,
        *,
        leaders: Iterable[Partition] = (),
        followers: Iterable[Partition] = (),
        deleted_topics: Iterable[str] = (),
    ) -> None:
        """Follow a new metadata image: partitions that this broker leads or follows now, deleted topics."""
        before, self._image = self._image, image
        for partition in followers:
            if partition.topic_partition.topic == CONSUMER_OFFSETS_TOPIC:
                self.runtime.unload(partition.topic_partition.partition)
        if before.configs is not image.configs:
            self.configure(self._settings.node)
        deleted = frozenset(deleted_topics)
        if CONSUMER_OFFSETS_TOPIC in deleted:
            for index in self.runtime.partitions:
                self.runtime.unload(index)
        if before.topics is not image.topics or deleted:
            self.runtime.notify(NewMetadataImage(image, deleted))
        for partition in leaders:
            if partition.topic_partition.topic == CONSUMER_OFFSETS_TOPIC:
                self.runtime.load(partition)

    def on_resignation(self, partitions: Iterable[TopicPartition]) -> None:
        """Unload partitions that this broker no longer leads, or cannot serve."""
        for partition in partitions:
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                self.runtime.unload(partition.partition)

    def on_partition_progress(self, partition: Partition) -> None:
        """Give the replies that wait for the high watermark of a partition."""
        if partition.topic_partition.topic == CONSUMER_OFFSETS_TOPIC:
            self.runtime.on_partition_progress(partition.topic_partition.partition)

    def configure(self, config: GroupCoordinatorConfig) -> None:
        """Apply settings: those of the node, and those that the metadata image has for single groups."""
        overrides: Mapping[str, Mapping[str, str]] = {
            resource.name: values
            for resource, values in self._image.configs.items()
            if resource.type == ConfigResourceType.GROUP
        }
        self._settings = GroupSettings(config, overrides)
        self.runtime.notify(NewGroupSettings(self._settings))

    async def close(self) -> None:
        await self.runtime.close()

    # Requests

    def partition_for(self, group_id: str) -> int:
        """The partition of a group; COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        topic = self._image.topics.by_name.get(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS_TOPIC} does not exist yet; try again"
            )
        return partition_for(group_id, len(topic.partitions))

    def submit(
        self, group_id: str, operation: CoordinatorOperation[R], *, guard: VerificationGuard = SENTINEL_GUARD
    ) -> Ticket[R]:
        """Give an operation to the shard of a group."""
        try:
            index = self.partition_for(group_id)
        except KafkaError as error:
            return Ticket.failed(error)
        return self.runtime.submit(index, operation, guard=guard)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> Awaitable[list[ListedGroup]]:
        """The groups of all partitions that this broker leads; an error while one of them is loaded."""
        wanted = {state.lower() for state in states}
        if "not_ready" in wanted:  # what Kafka's brokers know; its clients send NotReady
            wanted.add("notready")
        request = ListGroups(frozenset(wanted), frozenset(name.lower() for name in types))
        return _all_groups(self.runtime.submit_all(request))


async def _all_groups(tickets: list[Ticket[list[ListedGroup]]]) -> list[ListedGroup]:
    found: list[ListedGroup] = []
    for ticket in tickets:
        found += await ticket
    return found
