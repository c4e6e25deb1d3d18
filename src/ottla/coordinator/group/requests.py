"""The operations of the group coordinator with the types of their replies, and the changes of metadata and
settings that its shards are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import consumer_group_describe, describe_groups
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

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
class DeleteGroup(CoordinatorOperation[ErrorCode]):
    group_id: str


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
