"""A group coordinator's shard in a harness: a virtual clock, a log in memory, and clients in one line each.

`GroupHarness` does what the runtime does, without asyncio: an event's records are encoded, kept as the log,
decoded and replayed, and its answers are collected. With `fail_writes` a write is refused as a full disk
would. `reload` builds another shard from the log alone, as after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ottla.coordinator.group.classic.classic_group import ClassicGroup
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroup
from ottla.coordinator.group.group_coordinator_shard import GroupCoordinatorShard
from ottla.coordinator.group.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerGroupHeartbeat,
    DeleteOffsets,
    DeleteShareGroupOffsets,
    FetchOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    NewMetadataImage,
    ShareGroupHeartbeat,
    StreamsGroupHeartbeat,
    SyncGroup,
    UpdateTopologyDescription,
)
from ottla.coordinator.group.share.share_group import ShareGroup
from ottla.coordinator.group.streams.streams_group import StreamsGroup
from ottla.coordinator.runtime.effects import Effects, EventTime, ProducerIdAndEpoch, ReplayedRecord
from ottla.metadata.image.delta import apply_records
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.coordinator_settings import group_config
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.consumer_offsets_records import RECORDS
from ottla.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    encode_subscription,
)
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    TaskIds,
    TaskOffset,
    Topology,
)
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.metadata_records import (
    FeatureLevelRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

GROUP = "readers"

KINDS: dict[type, type[GroupRequest[Any, Any]]] = {
    JoinGroupRequest: JoinGroup,
    SyncGroupRequest: SyncGroup,
    HeartbeatRequest: Heartbeat,
    LeaveGroupRequest: LeaveGroup,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeat,
    OffsetCommitRequest: CommitOffsets,
    TxnOffsetCommitRequest: CommitTransactionalOffsets,
    OffsetDeleteRequest: DeleteOffsets,
    ShareGroupHeartbeatRequest: ShareGroupHeartbeat,
    StreamsGroupTopologyDescriptionUpdateRequest: UpdateTopologyDescription,
    DeleteShareGroupOffsetsRequest: DeleteShareGroupOffsets,
}
"""The operation for the request of each API."""


class Answer:
    """The answer to a request that may still come."""

    def __init__(self) -> None:
        self.value: Any = None

    @property
    def done(self) -> bool:
        return self.value is not None

    @property
    def error(self) -> ErrorCode:
        assert self.done, "no answer yet"
        if isinstance(self.value, KafkaError):
            return self.value.code
        return ErrorCode.of(getattr(self.value, "error_code", 0))

    def ok(self) -> Any:
        assert self.error is ErrorCode.NONE, self.value
        return self.value


@dataclass(frozen=True)
class Entry:
    """A record of the log, or the end of a transaction."""

    key: bytes
    value: bytes | None
    producer: ProducerIdAndEpoch | None = None
    marker: bool | None = None


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\x01")


class GroupHarness:
    def __init__(self, topics: dict[str, int] | None = None, **config: Any) -> None:
        self.settings = GroupSettings(replace(group_config(NodeConfig()), **config))
        self.now = EventTime(1_700_000_000_000, 1_000)
        self.log: list[Entry] = []
        self.answers: list[Answer] = []
        self.fail_writes = False
        self.sent: list[Any] = []  # work outside of the shard
        self.ids = 0
        self.image = apply_records(
            MetadataImage.EMPTY, [FeatureLevelRecord(name="metadata.version", feature_level=30)]
        )
        for name, partitions in (topics or {}).items():
            self.image = _with_topic(self.image, name, partitions)
        self.shard = self._make_shard()
        self._carry_out(self.shard.on_loaded(self.now))

    def _make_shard(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self.settings, self.image, self._new_id)

    def _new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    # The runtime's part

    def send(self, body: Any, version: int = 9, client: str = "client") -> Answer:
        answer = Answer()
        request = (
            body if isinstance(body, FetchOffsets) else KINDS[type(body)](body, version, client, "/127.0.0.1")
        )
        return self.submit(request, answer)

    def submit(self, request: Any, answer: Answer | None = None) -> Answer:
        answer = answer or Answer()
        self.answers.append(answer)
        try:
            effects = self.shard.handle(answer, request, self.now)
        except KafkaError as error:
            effects = Effects().reply(answer, error)
        self._carry_out(effects)
        return answer

    def _carry_out(self, effects: Effects) -> None:
        if effects.records and self.fail_writes:
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the disk is full")
            for token, _ in effects.replies:
                assert isinstance(token, Answer)
                token.value = error
            if effects.on_failed is not None:
                then = effects.on_failed(error, self.now)
                assert not then.records
                self._carry_out(then)
            return
        for record in effects.records:
            value = None if record.value is None else encode_value(record.value, record.version)
            self._append(Entry(encode_key(record.key), value, effects.producer))
        self.sent += effects.sends
        for token, response in effects.replies:
            assert isinstance(token, Answer)
            assert token.value is None, "a request was answered twice"
            token.value = response
        if effects.on_applied is not None:
            then_or_none = effects.on_applied(self.now)
            if then_or_none is not None:
                self._carry_out(then_or_none)

    def _append(self, entry: Entry) -> None:
        self.log.append(entry)
        _replay(self.shard, len(self.log) - 1, entry, self.now)

    def end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        self._append(Entry(b"", None, producer, commit))

    def advance(self, ms: int) -> None:
        """Let time pass, with everything that becomes due."""
        end = self.now.tick_ms + ms
        while True:
            deadline = self.shard.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self._tick(max(deadline, self.now.tick_ms))
            self._carry_out(self.shard.on_timer(self.now))
        self._tick(end)

    def _tick(self, tick_ms: int) -> None:
        self.now = EventTime(self.now.wall_ms + tick_ms - self.now.tick_ms, tick_ms)

    def replayed(self, entries: list[Entry] | None = None) -> GroupCoordinatorShard:
        """The shard after a restart."""
        shard = self._make_shard()
        for offset, entry in enumerate(self.log if entries is None else entries):
            _replay(shard, offset, entry, self.now)
        return shard

    def reload(self) -> None:
        self.shard = self.replayed()
        self._carry_out(self.shard.on_loaded(self.now))

    def compacted(self) -> list[Entry]:
        """The log as compaction leaves it: of each key the last. Only for logs without transactions."""
        last = {entry.key: index for index, entry in enumerate(self.log)}
        return [entry for index, entry in enumerate(self.log) if last[entry.key] == index]

    # The topics

    def set_topic(self, name: str, partitions: int) -> None:
        self._new_image(_with_topic(self.image, name, partitions))

    def delete_topic(self, name: str) -> None:
        self._new_image(
            apply_records(self.image, [RemoveTopicRecord(topic_id=self.image.topics.by_name[name].id)]),
            frozenset({name}),
        )

    def _new_image(self, image: MetadataImage, deleted: frozenset[str] = frozenset()) -> None:
        self.image = image
        self._carry_out(self.shard.handle(None, NewMetadataImage(image, deleted), self.now))

    # Looking

    @property
    def classic(self) -> ClassicGroup:
        group = self.shard.metadata.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        return group

    @property
    def consumers(self) -> ConsumerGroup:
        group = self.shard.metadata.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    # Classic members

    def join(
        self,
        member_id: str = "",
        *,
        topics: tuple[str, ...] = ("logs",),
        protocols: tuple[str, ...] = ("range",),
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        version: int = 9,
        client: str = "client",
        group: str = GROUP,
        metadata: bytes | None = None,
        owned: dict[str, list[int]] | None = None,
    ) -> Answer:
        data = metadata if metadata is not None else subscription(topics, owned)
        return self.send(
            JoinGroupRequest(
                group_id=group,
                member_id=member_id,
                group_instance_id=instance,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name in protocols],
            ),
            version,
            client,
        )

    def member_id(self, **options: Any) -> str:
        """The id that a new dynamic member gets, with which it has to join again."""
        answer = self.join(**options)
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        assert isinstance(answer.value, JoinGroupResponse)
        return answer.value.member_id

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        group: str = GROUP,
    ) -> Answer:
        return self.send(
            SyncGroupRequest(
                group_id=group,
                member_id=member_id,
                generation_id=generation,
                group_instance_id=instance,
                protocol_type=protocol_type,
                protocol_name=protocol,
                assignments=[
                    SyncGroupRequestAssignment(member_id=id, assignment=data)
                    for id, data in (assignments or {}).items()
                ],
            ),
            5,
        )

    def heartbeat(
        self, member_id: str, generation: int, *, instance: str | None = None, group: str = GROUP
    ) -> Answer:
        return self.send(
            HeartbeatRequest(
                group_id=group, member_id=member_id, generation_id=generation, group_instance_id=instance
            ),
            4,
        )

    def leave(self, *members: tuple[str, str | None] | str, group: str = GROUP) -> list[ErrorCode]:
        identities = [
            MemberIdentity(member_id=member)
            if isinstance(member, str)
            else MemberIdentity(member_id=member[0], group_instance_id=member[1])
            for member in members
        ]
        answer = self.send(LeaveGroupRequest(group_id=group, members=identities), 5)
        return [ErrorCode.of(member.error_code) for member in answer.ok().members]

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """A stable group of new members; the leader comes first."""
        ids = [self.member_id(**options) for _ in range(count)]
        joins = [self.join(id, **options) for id in ids]
        self.advance(self.settings.node.group_initial_rebalance_delay_ms * (count + 1))
        first = joins[0].ok()
        syncs = [
            self.sync(
                id, first.generation_id, {id: f"of {id}".encode() for id in ids} if id == first.leader else {}
            )
            for id in ids
        ]
        assert [sync.ok().assignment for sync in syncs] == [f"of {id}".encode() for id in ids]
        return [first.leader, *(id for id in ids if id != first.leader)]

    # Members of consumer groups

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: tuple[str, ...] | None = None,
        regex: str | None = None,
        owned: dict[str, list[int]] | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int | None = None,
        version: int = 1,
        group: str = GROUP,
        sees_topic: Callable[[str], bool] | None = None,
    ) -> Answer:
        if epoch == 0:
            rebalance_ms = 30_000 if rebalance_ms is None else rebalance_ms
            owned = {} if owned is None else owned
            topics = ("logs",) if topics is None and regex is None else topics
        body = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=-1 if rebalance_ms is None else rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                TopicPartitions(topic_id=topic_id(name), partitions=partitions)
                for name, partitions in owned.items()
            ],
        )
        return self.submit(ConsumerGroupHeartbeat(body, version, "client", "/127.0.0.1", sees_topic))

    # Members of streams groups

    @property
    def streams(self) -> StreamsGroup:
        group = self.shard.metadata.groups[GROUP]
        assert isinstance(group, StreamsGroup)
        return group

    def streams_beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topology: Topology | None = None,
        active: dict[str, list[int]] | None = None,
        standby: dict[str, list[int]] | None = None,
        process: str | None = None,
        endpoint: tuple[str, int] | None = None,
        endpoint_epoch: int = 0,
        tags: dict[str, str] | None = None,
        rebalance_ms: int | None = None,
        shutdown: bool = False,
        offsets: list[TaskOffset] | None = None,
        version: int = 0,
        group: str = GROUP,
    ) -> Answer:
        """A heartbeat; one that joins owns nothing, and each member is a process of its own by default. The
        tasks that a member owns are sent if `active` is given.
        """
        if epoch == 0:
            rebalance_ms = 30_000 if rebalance_ms is None else rebalance_ms
            active = {} if active is None else active
            process = f"process of {member_id}" if process is None else process
        owned = [
            None
            if active is None
            else [TaskIds(subtopology_id=id, partitions=ids) for id, ids in (tasks or {}).items()]
            for tasks in (active, standby, {})
        ]
        body = StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            endpoint_information_epoch=endpoint_epoch,
            rebalance_timeout_ms=-1 if rebalance_ms is None else rebalance_ms,
            topology=topology,
            active_tasks=owned[0],
            standby_tasks=owned[1],
            warmup_tasks=owned[2],
            process_id=process,
            user_endpoint=None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1]),
            client_tags=None
            if tags is None
            else [KeyValue(key=key, value=value) for key, value in tags.items()],
            shutdown_application=shutdown,
            task_offsets=offsets,
            task_end_offsets=offsets,
        )
        return self.submit(StreamsGroupHeartbeat(body, version, "client", "/127.0.0.1"))

    # Offsets

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        member_id: str = "",
        epoch: int = -1,
        instance: str | None = None,
        metadata: str = "",
        version: int = 9,
        retention_ms: int = -1,
        by_id: bool = False,
        group: str = GROUP,
    ) -> Answer:
        return self.send(
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                group_instance_id=instance,
                retention_time_ms=retention_ms,
                topics=[
                    OffsetCommitRequestTopic(
                        name=topic,
                        topic_id=topic_id(topic) if by_id else bytes(16),
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=partition,
                                committed_offset=offset,
                                committed_metadata=metadata,
                            )
                        ],
                    )
                    for (topic, partition), offset in offsets.items()
                ],
            ),
            version,
        )

    def commit_codes(self, answer: Answer) -> list[ErrorCode]:
        return [
            ErrorCode.of(partition.error_code)
            for topic in answer.ok().topics
            for partition in topic.partitions
        ]

    def txn_commit(
        self,
        producer: ProducerIdAndEpoch,
        offsets: dict[tuple[str, int], int],
        *,
        member_id: str = "",
        epoch: int = -1,
        instance: str | None = None,
        group: str = GROUP,
    ) -> Answer:
        return self.send(
            TxnOffsetCommitRequest(
                transactional_id="txn",
                group_id=group,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                group_instance_id=instance,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=topic,
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=partition, committed_offset=offset, committed_metadata=""
                            )
                        ],
                    )
                    for (topic, partition), offset in offsets.items()
                ],
            ),
            5,
        )

    def fetch(
        self,
        *where: tuple[str, int],
        stable: bool = False,
        member_id: str | None = None,
        epoch: int = -1,
        group: str = GROUP,
        by_id: bytes | None = None,
    ) -> Answer:
        topics = [
            OffsetFetchRequestTopics(name=topic, topic_id=by_id or bytes(16), partition_indexes=[partition])
            for topic, partition in where
        ]
        return self.send(
            FetchOffsets(
                OffsetFetchRequestGroup(
                    group_id=group, member_id=member_id, member_epoch=epoch, topics=topics if where else None
                ),
                stable,
            )
        )

    def offsets(self, *where: tuple[str, int], **options: Any) -> dict[tuple[str, int], int]:
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in self.fetch(*where, **options).ok().topics
            for partition in topic.partitions
        }


def subscription(topics: tuple[str, ...], owned: dict[str, list[int]] | None = None) -> bytes:
    return encode_subscription(
        ConsumerProtocolSubscription(
            topics=list(topics),
            owned_partitions=[
                ConsumerProtocolTopicPartition(topic=name, partitions=partitions)
                for name, partitions in (owned or {}).items()
            ],
        )
    )


def assigned(response: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]]:
    """What a heartbeat's answer assigns, by topic; fails if it assigns nothing at all."""
    assert response.assignment is not None
    return {
        bytes(topic.topic_id).rstrip(b"\x01").decode(): topic.partitions
        for topic in response.assignment.topic_partitions
    }


def _replay(shard: GroupCoordinatorShard, offset: int, entry: Entry, now: EventTime) -> None:
    if entry.marker is not None:
        assert entry.producer is not None
        shard.replay_end_transaction(entry.producer, entry.marker)
        return
    key, value = RECORDS.decode(entry.key, entry.value)
    shard.replay(ReplayedRecord(key, value, offset, now.wall_ms, entry.producer))


def _with_topic(image: MetadataImage, name: str, partitions: int) -> MetadataImage:
    known = image.topics.by_name.get(name)
    id = topic_id(name) if known is None else known.id
    records: list[Any] = [] if known is not None else [TopicRecord(name=name, topic_id=id)]
    first = 0 if known is None else len(known.partitions)
    records += [
        PartitionRecord(
            partition_id=partition,
            topic_id=id,
            replicas=[1],
            isr=[1],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[bytes(15) + b"\x02"],
        )
        for partition in range(first, partitions)
    ]
    return apply_records(image, records)


def durable(shard: GroupCoordinatorShard) -> dict[str, Any]:
    """All durable state of a shard, to compare."""
    groups: dict[str, Any] = {}
    for group_id, group in shard.metadata.groups.items():
        if isinstance(group, ConsumerGroup):
            groups[group_id] = (
                "consumer",
                group.epoch,
                group.metadata_hash,
                group.target_epoch,
                dict(group.members),
                dict(group.static),
                dict(group.target),
                dict(group.regexes),
                dict(group.owners),
            )
        elif isinstance(group, ShareGroup):
            groups[group_id] = (
                "share",
                group.epoch,
                group.metadata_hash,
                group.target_epoch,
                dict(group.members),
                dict(group.target),
                group.states,
            )
        elif isinstance(group, StreamsGroup):
            groups[group_id] = (
                "streams",
                group.epoch,
                group.metadata_hash,
                group.validated_topology_epoch,
                dict(group.assignment_configs),
                group.target_epoch,
                group.target_timestamp_ms,
                group.topology,
                dict(group.members),
                dict(group.target),
                dict(group.active_processes),
                dict(group.other_processes),
            )
        else:
            groups[group_id] = ("classic",)
    offsets = {
        (group_id, key): each.value.offset
        for group_id, committed in shard.offsets._committed.items()
        for key, each in committed.items()
    }
    return {"groups": groups, "offsets": offsets, "pending": sorted(shard.offsets._pending)}
