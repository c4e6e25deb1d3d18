"""The operations of the group coordinator with the types of their replies, and the changes of metadata and
settings that its shards are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.share.share_group import SharePartitions
from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.messages import (
    consumer_group_describe,
    describe_groups,
    share_group_describe,
    streams_group_describe,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_topics import CreatableTopic
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.protocol.names import TopicIdPartition

B = TypeVar("B")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class GroupRequest(CoordinatorOperation[R], Generic[B, R]):
    """A request of the protocol, with what the coordinator has to know of its sender. There is a class for
    each API, which names the types of request and response.
    """

    body: B
    version: int
    client_id: str = ""
    client_host: str = ""
    sees_topic: Callable[[str], bool] | None = None
    """Whether the sender may see a topic that its regular expression matches; None: all."""


class JoinGroup(GroupRequest[JoinGroupRequest, JoinGroupResponse]):
    __slots__ = ()


class SyncGroup(GroupRequest[SyncGroupRequest, SyncGroupResponse]):
    __slots__ = ()


class Heartbeat(GroupRequest[HeartbeatRequest, HeartbeatResponse]):
    __slots__ = ()


class LeaveGroup(GroupRequest[LeaveGroupRequest, LeaveGroupResponse]):
    __slots__ = ()


class ConsumerGroupHeartbeat(GroupRequest[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StreamsGroupHeartbeatResult:
    """The response to a member of a streams group, and the internal topics that are missing."""

    response: StreamsGroupHeartbeatResponse
    creatable_topics: tuple[CreatableTopic, ...] = ()


class StreamsGroupHeartbeat(GroupRequest[StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResult]):
    __slots__ = ()


class UpdateTopologyDescription(
    GroupRequest[StreamsGroupTopologyDescriptionUpdateRequest, StreamsGroupTopologyDescriptionUpdateResponse]
):
    __slots__ = ()


class CommitOffsets(GroupRequest[OffsetCommitRequest, OffsetCommitResponse]):
    __slots__ = ()


class CommitTransactionalOffsets(GroupRequest[TxnOffsetCommitRequest, TxnOffsetCommitResponse]):
    __slots__ = ()


class DeleteOffsets(GroupRequest[OffsetDeleteRequest, OffsetDeleteResponse]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets(CoordinatorOperation[OffsetFetchResponseGroup]):
    """One group of an OffsetFetch request; topics by name, None for all."""

    group: OffsetFetchRequestGroup
    require_stable: bool


@dataclass(frozen=True, slots=True)
class DescribeClassicGroup(CoordinatorOperation[describe_groups.DescribedGroup]):
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup(CoordinatorOperation[consumer_group_describe.DescribedGroup]):
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribeStreamsGroup(CoordinatorOperation[streams_group_describe.DescribedGroup]):
    group_id: str
    include_topology_description: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup(CoordinatorOperation["tuple[TopicIdPartition, ...]"]):
    """Delete a group without members. The reply to the deletion of a share group that has share states names
    these: the group is deleted by a second operation, after them.
    """

    group_id: str
    states_deleted: bool = False


# Share groups


class ShareGroupHeartbeat(GroupRequest[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DescribeShareGroup(CoordinatorOperation[share_group_describe.DescribedGroup]):
    group_id: str


@dataclass(frozen=True, slots=True)
class ShareStatesToInitialize:
    """Work for the persister: the states of partitions that a group begins to read."""

    group_id: str
    state_epoch: int
    partitions: tuple[TopicIdPartition, ...]


@dataclass(frozen=True, slots=True)
class ShareStatesInitialized(CoordinatorOperation["tuple[TopicIdPartition, ...]"]):
    """The result of such work."""

    group_id: str
    initialized: tuple[TopicIdPartition, ...]
    failed: tuple[TopicIdPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class InitializedSharePartitions(CoordinatorOperation["tuple[TopicIdPartition, ...]"]):
    """The partitions of a group whose share states exist."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AlteredShareGroupOffsets:
    """The states that the persister has to begin again, by topic id: of the partitions that exist."""

    state_epoch: int
    topics: Mapping[bytes, SharePartitions]


@dataclass(frozen=True, slots=True)
class AlterShareGroupOffsets(CoordinatorOperation[AlteredShareGroupOffsets]):
    """Begin to alter the offsets of partitions, by the names of their topics."""

    group_id: str
    topics: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class DeletedShareGroupOffsets:
    """The states that the persister has to delete, and topics without any."""

    partitions: tuple[TopicIdPartition, ...]
    refused: tuple[DeleteShareGroupOffsetsResponseTopic, ...]


class DeleteShareGroupOffsets(GroupRequest[DeleteShareGroupOffsetsRequest, DeletedShareGroupOffsets]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CompleteDeleteShareGroupOffsets(CoordinatorOperation[None]):
    """The states of topics were deleted."""

    group_id: str
    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ListGroups(CoordinatorOperation[list[ListedGroup]]):
    states: frozenset[str]
    """In lower case; empty for all."""
    types: frozenset[str]


@dataclass(frozen=True, slots=True)
class NewMetadataImage(CoordinatorOperation[None]):
    """The metadata changed; the offsets committed for `deleted_topics` are deleted with them."""

    image: MetadataImage
    deleted_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NewGroupSettings(CoordinatorOperation[None]):
    """Settings of the node or of groups changed."""

    settings: GroupSettings
