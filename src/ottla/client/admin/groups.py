"""Groups: list and describe them, read, alter and delete their offsets, remove members, delete groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.client.admin.offsets import by_topic
from ottla.client.admin.requests import AdminRequests
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.group_offsets import CommittedOffset, GroupOffsets
from ottla.client.network_client import CoordinatorType
from ottla.protocol.consumer_protocol import decode_assignment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import consumer_group_describe as consumer_groups
from ottla.protocol.messages import describe_groups as classic_groups
from ottla.protocol.messages import share_group_describe as share_groups
from ottla.protocol.messages import streams_group_describe as streams_groups
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.names import TopicPartition

__all__ = ["GroupInfo", "MemberDescription", "GroupsAdmin", "ListedGroupInfo"]

CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
_NOT_OF_THIS_KIND = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


class ListedGroupInfo(NamedTuple):
    """`state` and `type` are empty on brokers that do not report them."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`epoch` is -1 in classic groups, which have one generation for all members. Members of streams groups
    have `tasks` as `0_1`, by "active", "standby" and "warmup", in place of an assignment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int = -1
    rack: str | None = None
    subscription: tuple[str, ...] = ()
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`type` is "classic", "consumer", "share" or "streams"; `assignor` names the assignor that was used."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int
    members: tuple[MemberDescription, ...]


class GroupsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    def _coordinator(self, group_id: str) -> CoordinatorClient:
        return CoordinatorClient(
            self._requests.cluster, CoordinatorType.GROUP, group_id, timeout_ms=self._requests.timeout_ms
        )

    def _offsets(self, group_id: str) -> GroupOffsets:
        return GroupOffsets(self._requests.cluster, group_id, self._coordinator(group_id))

    async def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroupInfo]:
        """The groups of all brokers by name; only those in these states and of these types, if any
        are given.
        """
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        brokers = (await self._requests.cluster.refresh()).brokers
        answers = await asyncio.gather(
            *(self._requests.node(broker, request, ListGroupsResponse) for broker in sorted(brokers))
        )
        found: dict[str, ListedGroup] = {}
        for answer in answers:
            if answer.error_code:
                code = ErrorCode.of(answer.error_code)
                raise KafkaError(code, f"cannot list groups: {code.text}")
            found |= {group.group_id: group for group in answer.groups}
        return [
            ListedGroupInfo(name, found[name].protocol_type, found[name].group_state, found[name].group_type)
            for name in sorted(found)
        ]

    async def describe(self, group_id: str) -> GroupInfo:
        """A group with its members; GROUP_ID_NOT_FOUND if there is none with this name."""
        try:
            return await self._describe_consumer(group_id)
        except KafkaError as error:
            if error.code not in _NOT_OF_THIS_KIND:
                raise
        try:
            return await self._describe_classic(group_id)
        except KafkaError as error:
            if error.code not in _NOT_OF_THIS_KIND:
                raise
            missing = error
        for describe in (self._describe_share, self._describe_streams):
            try:
                return await describe(group_id)
            except KafkaError as error:
                if error.code not in _NOT_OF_THIS_KIND:
                    raise
        raise missing

    async def _describe_consumer(self, group_id: str) -> GroupInfo:
        answer = await self._coordinator(group_id).call(
            consumer_groups.ConsumerGroupDescribeRequest(group_ids=[group_id]),
            consumer_groups.ConsumerGroupDescribeResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        return GroupInfo(
            group_id,
            CONSUMER,
            CONSUMER,
            group.group_state,
            group.assignor_name,
            group.group_epoch,
            tuple(
                MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    tuple(
                        TopicPartition(topic.topic_name, index)
                        for topic in member.assignment.topic_partitions
                        for index in topic.partitions
                    ),
                    member.member_epoch,
                    member.rack_id,
                    tuple(member.subscribed_topic_names or ()),
                )
                for member in group.members
            ),
        )

    async def _describe_share(self, group_id: str) -> GroupInfo:
        answer = await self._coordinator(group_id).call(
            share_groups.ShareGroupDescribeRequest(group_ids=[group_id]),
            share_groups.ShareGroupDescribeResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        return GroupInfo(
            group_id,
            SHARE,
            SHARE,
            group.group_state,
            group.assignor_name,
            group.group_epoch,
            tuple(
                MemberDescription(
                    member.member_id,
                    None,
                    member.client_id,
                    member.client_host,
                    tuple(
                        TopicPartition(topic.topic_name, index)
                        for topic in member.assignment.topic_partitions
                        for index in topic.partitions
                    ),
                    member.member_epoch,
                    member.rack_id,
                    tuple(member.subscribed_topic_names),
                )
                for member in group.members
            ),
        )

    async def _describe_streams(self, group_id: str) -> GroupInfo:
        answer = await self._coordinator(group_id).call(
            streams_groups.StreamsGroupDescribeRequest(group_ids=[group_id]),
            streams_groups.StreamsGroupDescribeResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        return GroupInfo(
            group_id,
            STREAMS,
            STREAMS,
            group.group_state,
            "",
            group.group_epoch,
            tuple(
                MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    (),
                    member.member_epoch,
                    member.rack_id,
                    tasks={
                        "active": _task_names(member.assignment.active_tasks),
                        "standby": _task_names(member.assignment.standby_tasks),
                        "warmup": _task_names(member.assignment.warmup_tasks),
                    },
                )
                for member in group.members
            ),
        )

    async def _describe_classic(self, group_id: str) -> GroupInfo:
        answer = await self._coordinator(group_id).call(
            classic_groups.DescribeGroupsRequest(groups=[group_id]),
            classic_groups.DescribeGroupsResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        if group.group_state == "Dead":
            # Brokers before version 6 of the API report an unknown group so.
            _check(group_id, ErrorCode.GROUP_ID_NOT_FOUND, None)
        return GroupInfo(
            group_id,
            "classic",
            group.protocol_type,
            group.group_state,
            group.protocol_data,
            -1,
            tuple(
                MemberDescription(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    _classic_assignment(group.protocol_type, member.member_assignment),
                )
                for member in group.members
            ),
        )

    async def offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of the group, of these partitions or of all; partitions without a commit are
        left out.
        """
        return await self._offsets(group_id).fetch(partitions, require_stable=False)

    async def coordinator(self, group_id: str) -> int:
        """The broker that coordinates a group, whether the group exists or not."""
        address = await self._requests.retrying(
            lambda: self._requests.cluster.coordinator_address(CoordinatorType.GROUP, group_id),
            "FindCoordinator",
        )
        for broker in self._requests.cluster.metadata.brokers.values():
            if (broker.host, broker.port) == (address.host, address.port):
                return broker.node_id
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id!r}: no broker at {address}")

    async def share_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """The start offsets of a share group: what is before them was handled. Partitions that cannot be read
        are left out.
        """
        answer = await self._coordinator(group_id).call(
            DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]
            ),
            DescribeShareGroupOffsetsResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        return {
            TopicPartition(topic.topic_name, entry.partition_index): entry.start_offset
            for topic in group.topics
            for entry in topic.partitions
            if not entry.error_code and entry.start_offset >= 0
        }

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group; refused while it has members."""
        if not offsets:
            return {}
        await self._requests.cluster.refresh(topics={partition.topic for partition in offsets})
        return await self._offsets(group_id).commit({p: CommittedOffset(o) for p, o in offsets.items()})

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of a group; refused for topics to which a member is subscribed."""
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
                )
                for topic, indexes in by_topic(partitions).items()
            ],
        )
        answer = await self._coordinator(group_id).call(
            request, OffsetDeleteResponse, lambda answer: [answer.error_code]
        )
        _check(group_id, answer.error_code, None)
        return {
            partition: _error(
                entry.error_code, f"group {group_id!r}: cannot delete the offset of {partition}"
            )
            for topic in answer.topics
            for entry in topic.partitions
            for partition in [TopicPartition(topic.name, entry.partition_index)]
        }

    async def remove_members(
        self,
        group_id: str,
        member_ids: Iterable[str] = (),
        *,
        instance_ids: Iterable[str] = (),
        reason: str = "removed by an admin client",
    ) -> dict[str, KafkaError | None]:
        """Make members leave, by member id or, for static ones, by instance id; all if none is given. Returns
        the result of each, by the given name. A member that still runs joins again.
        """
        leaving = [MemberIdentity(member_id=name, reason=reason) for name in member_ids]
        leaving += [
            MemberIdentity(member_id="", group_instance_id=name, reason=reason) for name in instance_ids
        ]
        if not leaving:
            leaving = [
                MemberIdentity(member_id=m.member_id, group_instance_id=m.instance_id, reason=reason)
                for m in (await self.describe(group_id)).members
            ]
        if not leaving:
            return {}
        answer = await self._coordinator(group_id).call(
            LeaveGroupRequest(group_id=group_id, members=leaving),
            LeaveGroupResponse,
            lambda answer: [answer.error_code],
        )
        _check(group_id, answer.error_code, None)
        return {
            asked.member_id or asked.group_instance_id or "": _error(
                result.error_code,
                f"group {group_id!r}: member {asked.member_id or asked.group_instance_id!r}",
            )
            for asked, result in zip(leaving, answer.members, strict=True)
        }

    async def delete(self, *group_ids: str) -> None:
        """Delete groups without members; the first failure is raised after all were tried."""
        for error in (await self.delete_many(group_ids)).values():
            if error is not None:
                raise error

    async def delete_many(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete groups, and return the result of each."""
        results: dict[str, KafkaError | None] = {}
        for group_id in group_ids:
            answer = await self._coordinator(group_id).call(
                DeleteGroupsRequest(groups_names=[group_id]),
                DeleteGroupsResponse,
                lambda answer: [result.error_code for result in answer.results],
            )
            results[group_id] = _error(answer.results[0].error_code, f"group {group_id!r}")
        return results


def _task_names(tasks: Iterable[streams_groups.TaskIds]) -> tuple[str, ...]:
    return tuple(f"{task.subtopology_id}_{index}" for task in tasks for index in task.partitions)


def _classic_assignment(protocol_type: str, data: bytes) -> tuple[TopicPartition, ...]:
    """Return the assignment of a member of a consumer group. Other kinds of groups have their own formats."""
    if protocol_type != CONSUMER or not data:
        return ()
    try:
        assigned = decode_assignment(data).assigned_partitions
    except KafkaError:
        return ()
    return tuple(TopicPartition(topic.topic, index) for topic in assigned for index in topic.partitions)


def _error(code: int, subject: str) -> KafkaError | None:
    return KafkaError(ErrorCode.of(code), f"{subject}: {ErrorCode.of(code).text}") if code else None


def _check(group_id: str, code: int, message: str | None) -> None:
    if code:
        raise KafkaError(ErrorCode.of(code), f"group {group_id!r}: {message or ErrorCode.of(code).text}")
