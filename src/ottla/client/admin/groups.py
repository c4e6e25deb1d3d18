"""Groups of all types: list and describe them, read, alter and delete their offsets, remove members, delete
groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

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
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.alter_share_records import (
    AlterShareRecordsRequest,
    AlterShareRecordsRequestPartition,
    AlterShareRecordsRequestRange,
    AlterShareRecordsRequestTopic,
    AlterShareRecordsResponse,
    AlterShareRecordsResponsePartition,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)
from ottla.protocol.messages.describe_share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsRequestPartition,
    DescribeShareRecordsRequestTopic,
    DescribeShareRecordsResponse,
    DescribeShareRecordsResponsePartition,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.read_share_group_state import PartitionData as ReadStatePartition
from ottla.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateData,
)
from ottla.protocol.names import SharePartitionKey, TopicPartition
from ottla.protocol.schema import Request

G = TypeVar(
    "G",
    consumer_groups.ConsumerGroupDescribeResponse,
    classic_groups.DescribeGroupsResponse,
    share_groups.ShareGroupDescribeResponse,
    streams_groups.StreamsGroupDescribeResponse,
)

CONSUMER = "consumer"
SHARE = "share"
STREAMS = "streams"
_DELIVERY_STATES = {0: "available", 2: "acknowledged", 3: "archiving", 4: "archived"}
_IN_DELIVERY = {0: "available", 1: "held", 3: "dead", 16: "waiting"}
_RANGES_AT_A_TIME = 500
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
    have `tasks` as `0_1`, by "active", "standby" and "warmup", in place of an assignment, the same as they
    are to be (`target_tasks`), and the `process` that they belong to.
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
    target_tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    process: str = ""
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class StreamsSubtopology:
    """A part of the topology of a streams group: what it reads, and the topics that belong to it."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[str, ...]


class StreamsNode(NamedTuple):
    """A part of a streams application, as it describes itself: `kind` is "source", "processor" or "sink". A
    node of a global store is in no subtopology.
    """

    subtopology_id: str | None
    name: str
    kind: str
    source_topics: tuple[str, ...]
    sink_topic: str | None
    stores: tuple[str, ...]
    successors: tuple[str, ...]


class DeliveredRange(NamedTuple):
    """Records that were delivered; `state` is "available", "acknowledged" or "archived"."""

    first_offset: int
    last_offset: int
    state: str
    delivery_count: int


class ShareRecords(NamedTuple):
    """Records that a share group has in delivery: "held" by a member for `age_ms`, "waiting" so long for a
    retry, "available" again, or "dead", for a dead letter that is not written yet. `left_ms` is when the lock
    or the wait ends. None where there is no such time.
    """

    partition: TopicPartition
    first_offset: int
    last_offset: int
    state: str
    delivery_count: int
    member_id: str | None = None
    age_ms: int | None = None
    left_ms: int | None = None

    @property
    def size(self) -> int:
        return self.last_offset - self.first_offset + 1


@dataclass(slots=True)
class ShareRecordsPage:
    """Some of the records that a share group has in delivery. `next` has the offsets from which on there may
    be more. The counts are of whole partitions, and `problems` says why dead letters of a partition wait.
    """

    records: list[ShareRecords] = field(default_factory=list)
    next: dict[TopicPartition, int] = field(default_factory=dict)
    held: dict[TopicPartition, int] = field(default_factory=dict)
    waiting: dict[TopicPartition, int] = field(default_factory=dict)
    dead: dict[TopicPartition, int] = field(default_factory=dict)
    problems: dict[TopicPartition, str] = field(default_factory=dict)
    errors: dict[TopicPartition, KafkaError] = field(default_factory=dict)


class ShareRecordsAction(IntEnum):
    """What an operator does with records in delivery: they are archived, made available, or archived with a
    dead letter where the group has a topic for them.
    """

    SKIP = 0
    RELEASE = 2
    REJECT = 3


class SharePartitionOffsetInfo(NamedTuple):
    """Where a share group is in a partition: all records before `start_offset` are done, and `lag` records
    are not, of those from there on. None where that is not known: before a member has read the partition, and
    the lag with brokers before Kafka 4.2.
    """

    start_offset: int | None
    lag: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`type` is "classic", "consumer", "share" or "streams"; `assignor` names the assignor that was used. A
    streams group has the epoch of its topology, and its `subtopologies`.
    """

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int
    members: tuple[MemberDescription, ...]
    assignment_epoch: int = -1
    topology_epoch: int = -1
    subtopologies: tuple[StreamsSubtopology, ...] = ()


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
        answers = await self._requests.every_broker(
            request, ListGroupsResponse, lambda answer: answer.error_code, "list groups"
        )
        found: dict[str, ListedGroup] = {}
        for answer in answers:
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
        for describe in (self.describe_share, self.describe_streams):
            try:
                return await describe(group_id)
            except KafkaError as error:
                if error.code not in _NOT_OF_THIS_KIND:
                    raise
        raise missing

    async def _describe(self, group_id: str, request: Request, response: type[G]) -> G:
        """Ask for one group; its error is raised."""
        answer = await self._coordinator(group_id).call(
            request, response, lambda answer: [group.error_code for group in answer.groups]
        )
        _check(group_id, answer.groups[0].error_code, answer.groups[0].error_message)
        return answer

    async def _describe_consumer(self, group_id: str) -> GroupInfo:
        answer = await self._describe(
            group_id,
            consumer_groups.ConsumerGroupDescribeRequest(group_ids=[group_id]),
            consumer_groups.ConsumerGroupDescribeResponse,
        )
        group = answer.groups[0]
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
                    _assigned(member.assignment),
                    member.member_epoch,
                    member.rack_id,
                    tuple(member.subscribed_topic_names or ()),
                )
                for member in group.members
            ),
        )

    async def describe_share(self, group_id: str) -> GroupInfo:
        """A share group with its members; GROUP_ID_NOT_FOUND if there is none with this name."""
        answer = await self._describe(
            group_id,
            share_groups.ShareGroupDescribeRequest(group_ids=[group_id]),
            share_groups.ShareGroupDescribeResponse,
        )
        group = answer.groups[0]
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
                    _assigned(member.assignment),
                    member.member_epoch,
                    member.rack_id,
                    tuple(member.subscribed_topic_names),
                )
                for member in group.members
            ),
            group.assignment_epoch,
        )

    async def describe_streams(self, group_id: str) -> GroupInfo:
        """A streams group with its topology, members and tasks; GROUP_ID_NOT_FOUND if there is none with this
        name.
        """
        answer = await self._describe(
            group_id,
            streams_groups.StreamsGroupDescribeRequest(group_ids=[group_id]),
            streams_groups.StreamsGroupDescribeResponse,
        )
        group = answer.groups[0]
        return GroupInfo(
            group_id,
            STREAMS,
            STREAMS,
            group.group_state,
            group.assignor_name or "",
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
                    tasks=_tasks(member.assignment),
                    target_tasks=_tasks(member.target_assignment),
                    process=member.process_id,
                    endpoint=None
                    if member.user_endpoint is None
                    else f"{member.user_endpoint.host}:{member.user_endpoint.port}",
                )
                for member in group.members
            ),
            group.assignment_epoch,
            -1 if group.topology is None else group.topology.epoch,
            () if group.topology is None else tuple(map(_subtopology, group.topology.subtopologies or ())),
        )

    async def streams_nodes(self, group_id: str) -> tuple[StreamsNode, ...] | None:
        """What a streams application does, node by node; None as long as no member has told its broker.
        UNSUPPORTED_VERSION from brokers before Kafka 4.4.
        """
        request = streams_groups.StreamsGroupDescribeRequest(
            group_ids=[group_id], include_topology_description=True
        )
        answer = await self._describe(group_id, request, streams_groups.StreamsGroupDescribeResponse)
        description = answer.groups[0].topology_description
        if description is None:
            return None
        found = [(each.subtopology_id, node) for each in description.subtopologies for node in each.nodes]
        stores = [node for each in description.global_stores for node in (each.source, each.processor)]
        return tuple(
            StreamsNode(
                subtopology_id,
                node.name,
                _NODE_KINDS.get(node.node_type, "unknown"),
                tuple(node.source_topics),
                node.sink_topic,
                tuple(node.stores),
                tuple(node.successors),
            )
            for subtopology_id, node in (*found, *((None, node) for node in stores))
        )

    async def _describe_classic(self, group_id: str) -> GroupInfo:
        answer = await self._describe(
            group_id,
            classic_groups.DescribeGroupsRequest(groups=[group_id]),
            classic_groups.DescribeGroupsResponse,
        )
        group = answer.groups[0]
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

    async def share_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, SharePartitionOffsetInfo | KafkaError]:
        """Where a share group is, in these partitions or in all that it reads; the error where that cannot be
        read.
        """
        answer = await self._coordinator(group_id).call(
            DescribeShareGroupOffsetsRequest(
                groups=[
                    DescribeShareGroupOffsetsRequestGroup(
                        group_id=group_id,
                        topics=None
                        if partitions is None
                        else [
                            DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=indexes)
                            for topic, indexes in by_topic(partitions).items()
                        ],
                    )
                ]
            ),
            DescribeShareGroupOffsetsResponse,
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = answer.groups[0]
        _check(group_id, group.error_code, group.error_message)
        return {
            partition: _error(entry.error_code, f"group {group_id!r}, {partition}", entry.error_message)
            or SharePartitionOffsetInfo(
                entry.start_offset if entry.start_offset >= 0 else None,
                entry.lag if entry.lag >= 0 else None,
                entry.leader_epoch,
            )
            for topic in group.topics
            for entry in topic.partitions
            for partition in [TopicPartition(topic.topic_name, entry.partition_index)]
        }

    async def share_records(
        self,
        group_id: str,
        starts: Mapping[TopicPartition, int],
        *,
        states: Iterable[str] = (),
        at_most: int = 1_000,
    ) -> ShareRecordsPage:
        """The records of partitions that a share group has in delivery, from these offsets on, as the leaders
        know them: a page of ranges. Needs brokers that are Ottla's.
        """
        codes = [code for code, name in _IN_DELIVERY.items() if name in frozenset(states)]
        page = ShareRecordsPage()

        async def ask(
            node_id: int, owned: list[TopicPartition]
        ) -> dict[TopicPartition, DescribeShareRecordsResponsePartition | KafkaError]:
            request = DescribeShareRecordsRequest(
                group_id=group_id,
                states=codes,
                max_ranges=at_most,
                topics=[
                    DescribeShareRecordsRequestTopic(
                        name=topic,
                        partitions=[
                            DescribeShareRecordsRequestPartition(
                                partition_index=index, start_offset=starts[TopicPartition(topic, index)]
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(owned).items()
                ],
            )
            answer = await self._requests.cluster.request(node_id, request, DescribeShareRecordsResponse)
            self._requests.raise_error(answer, f"group {group_id!r}")
            return {
                partition: self._requests.error_of(result, str(partition)) or result
                for topic in answer.topics
                for result in topic.partitions
                for partition in [TopicPartition(topic.name, result.partition_index)]
            }

        found = await self._requests.by_leader(starts, ask, "DescribeShareRecords")
        for partition, result in sorted(found.items()):
            if isinstance(result, KafkaError):
                page.errors[partition] = result
                continue
            if result.next_offset >= 0:
                page.next[partition] = result.next_offset
            if result.held >= 0:
                page.held[partition] = result.held
                page.waiting[partition] = result.waiting
                page.dead[partition] = result.dead
            if result.dead_letter_problem is not None:
                page.problems[partition] = result.dead_letter_problem
            page.records += [
                ShareRecords(
                    partition,
                    each.first_offset,
                    each.last_offset,
                    _IN_DELIVERY.get(each.state, f"state {each.state}"),
                    each.delivery_count,
                    each.member_id,
                    None if each.age_ms < 0 else each.age_ms,
                    None if each.left_ms < 0 else each.left_ms,
                )
                for each in result.ranges
            ]
        return page

    async def alter_share_records(
        self, group_id: str, action: ShareRecordsAction, records: Iterable[ShareRecords]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Release, reject or skip records in delivery, held or not; how many were changed, by
        partition. Records that were delivered once more than they say, or are done, stay as they are. Needs
        brokers that are Ottla's.
        """
        left: dict[TopicPartition, list[ShareRecords]] = {}
        for each in sorted(records):
            left.setdefault(each.partition, []).append(each)
        done: dict[TopicPartition, int | KafkaError] = dict.fromkeys(left, 0)

        async def ask(
            node_id: int, owned: list[TopicPartition]
        ) -> dict[TopicPartition, AlterShareRecordsResponsePartition | KafkaError]:
            request = AlterShareRecordsRequest(
                group_id=group_id,
                acknowledge_type=int(action),
                topics=[
                    AlterShareRecordsRequestTopic(
                        name=topic,
                        partitions=[
                            AlterShareRecordsRequestPartition(
                                partition_index=index,
                                ranges=[
                                    AlterShareRecordsRequestRange(
                                        first_offset=each.first_offset,
                                        last_offset=each.last_offset,
                                        delivery_count=each.delivery_count,
                                    )
                                    for each in left[TopicPartition(topic, index)][:_RANGES_AT_A_TIME]
                                ],
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(owned).items()
                ],
            )
            answer = await self._requests.cluster.request(node_id, request, AlterShareRecordsResponse)
            self._requests.raise_error(answer, f"group {group_id!r}")
            return {
                partition: self._requests.error_of(result, str(partition)) or result
                for topic in answer.topics
                for result in topic.partitions
                for partition in [TopicPartition(topic.name, result.partition_index)]
            }

        while left:
            found = await self._requests.by_leader(left, ask, "AlterShareRecords")
            for partition, result in found.items():
                if isinstance(result, KafkaError):
                    done[partition] = result
                    del left[partition]
                    continue
                so_far = done[partition]
                assert isinstance(so_far, int), so_far
                done[partition] = so_far + result.records
                rest = left[partition][_RANGES_AT_A_TIME:]
                if result.next_offset >= 0:
                    rest = [
                        each._replace(first_offset=max(each.first_offset, result.next_offset))
                        for each in left[partition]
                        if each.last_offset >= result.next_offset
                    ]
                if rest:
                    left[partition] = rest
                else:
                    del left[partition]
        return done

    async def share_deliveries(
        self, group_id: str, partition: TopicPartition
    ) -> tuple[DeliveredRange, ...] | KafkaError:
        """The records of a partition that a share group has had and is not past yet, by ranges, as the share
        coordinator has them: those that are released and wait for the next delivery, and those that are done
        after others that are not. What members hold right now, only the leader knows. Needs the right to act
        as a broker (CLUSTER_ACTION).
        """
        found = (await self.share_offsets(group_id, [partition])).get(partition)
        view = await self._requests.cluster.refresh(topics=[partition.topic])
        topic = view.topics.get(partition.topic)
        if isinstance(found, KafkaError):
            return found
        if found is None or found.start_offset is None or topic is None or topic.topic_id is None:
            return ()
        key = SharePartitionKey(group_id, topic.topic_id, partition.partition)
        coordinator = CoordinatorClient(
            self._requests.cluster,
            CoordinatorType.SHARE,
            key.coordinator_key,
            timeout_ms=self._requests.timeout_ms,
        )
        answer = await coordinator.call(
            ReadShareGroupStateRequest(
                group_id=group_id,
                topics=[
                    ReadStateData(
                        topic_id=topic.topic_id,
                        # A newer epoch than the one that is known would fence the leader.
                        partitions=[
                            ReadStatePartition(partition=partition.partition, leader_epoch=found.leader_epoch)
                        ],
                    )
                ],
            ),
            ReadShareGroupStateResponse,
            lambda answer: [entry.error_code for topic in answer.results for entry in topic.partitions],
        )
        entry = answer.results[0].partitions[0]
        error = _error(entry.error_code, f"group {group_id!r}, {partition}", entry.error_message)
        if error is not None:
            return error
        return tuple(
            DeliveredRange(
                batch.first_offset,
                batch.last_offset,
                _DELIVERY_STATES.get(batch.delivery_state, str(batch.delivery_state)),
                batch.delivery_count,
            )
            for batch in entry.state_batches
        )

    async def alter_share_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have a share group begin at these offsets; refused while it has members. What was in delivery is
        forgotten, with its delivery counts.

        As in Kafka the offsets are not checked: beyond the log the group begins where the log does, and at -1
        as `share.auto.offset.reset` says.
        """
        topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
        for partition, offset in offsets.items():
            topic = topics.get(partition.topic)
            if topic is None:
                topic = AlterShareGroupOffsetsRequestTopic(topic_name=partition.topic)
                topics[partition.topic] = topic
            topic.partitions.append(
                AlterShareGroupOffsetsRequestPartition(
                    partition_index=partition.partition, start_offset=offset
                )
            )
        if not topics:
            return {}
        answer = await self._coordinator(group_id).call(
            AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values())),
            AlterShareGroupOffsetsResponse,
            lambda answer: [answer.error_code],
        )
        _check(group_id, answer.error_code, answer.error_message)
        return {
            partition: _error(entry.error_code, f"group {group_id!r}, {partition}", entry.error_message)
            for result in answer.responses
            for entry in result.partitions
            for partition in [TopicPartition(result.topic_name, entry.partition_index)]
        }

    async def delete_share_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, KafkaError | None]:
        """Have a share group forget topics, where it was and what was in delivery; refused while it has
        members. A member that subscribes to one again begins as `share.auto.offset.reset` says.
        """
        answer = await self._coordinator(group_id).call(
            DeleteShareGroupOffsetsRequest(
                group_id=group_id,
                topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
            ),
            DeleteShareGroupOffsetsResponse,
            lambda answer: [answer.error_code],
        )
        _check(group_id, answer.error_code, answer.error_message)
        return {
            result.topic_name: _error(
                result.error_code, f"group {group_id!r}, topic {result.topic_name!r}", result.error_message
            )
            for result in answer.responses
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
            results[group_id] = _error(
                answer.results[0].error_code, f"group {group_id!r}", answer.results[0].error_message
            )
        return results


def active_group_message(info: GroupInfo) -> str | None:
    """Why a change that only a group without members allows is refused; None if it has none. The broker
    refuses without their names.
    """
    if not info.members:
        return None
    shown = ", ".join(f"{member.client_id} at {member.host.lstrip('/')}" for member in info.members[:5])
    more = ", …" if len(info.members) > 5 else ""
    count, them = (f"{len(info.members)} members", "them") if len(info.members) > 1 else ("1 member", "it")
    return (
        f"group {info.group_id} is {info.state} with {count} ({shown}{more}); stop {them} first. A member "
        "that was killed is gone when its session times out, after 45 s by default."
    )


def _assigned(
    assignment: consumer_groups.Assignment | share_groups.Assignment,
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


_NODE_KINDS = {1: "source", 2: "processor", 3: "sink"}


def _task_names(tasks: Iterable[streams_groups.TaskIds]) -> tuple[str, ...]:
    return tuple(f"{task.subtopology_id}_{index}" for task in tasks for index in task.partitions)


def _tasks(assignment: streams_groups.Assignment) -> dict[str, tuple[str, ...]]:
    return {
        "active": _task_names(assignment.active_tasks),
        "standby": _task_names(assignment.standby_tasks),
        "warmup": _task_names(assignment.warmup_tasks),
    }


def _subtopology(found: streams_groups.Subtopology) -> StreamsSubtopology:
    return StreamsSubtopology(
        found.subtopology_id,
        tuple(found.source_topics),
        tuple(topic.name for topic in found.repartition_source_topics),
        tuple(found.repartition_sink_topics),
        tuple(topic.name for topic in found.state_changelog_topics),
    )


def _classic_assignment(protocol_type: str, data: bytes) -> tuple[TopicPartition, ...]:
    """Return the assignment of a member of a consumer group. Other kinds of groups have their own formats."""
    if protocol_type != CONSUMER or not data:
        return ()
    try:
        assigned = decode_assignment(data).assigned_partitions
    except KafkaError:
        return ()
    return tuple(TopicPartition(topic.topic, index) for topic in assigned for index in topic.partitions)


def _error(code: int, subject: str, message: str | None = None) -> KafkaError | None:
    return (
        KafkaError(ErrorCode.of(code), f"{subject}: {message or ErrorCode.of(code).text}") if code else None
    )


def _check(group_id: str, code: int, message: str | None) -> None:
    if code:
        raise KafkaError(ErrorCode.of(code), f"group {group_id!r}: {message or ErrorCode.of(code).text}")
