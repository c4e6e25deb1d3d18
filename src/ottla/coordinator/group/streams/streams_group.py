"""A streams group: its topology, its members, their target tasks and their current tasks.

Members of a streams group are threads of Kafka Streams. The threads of one process share its local state, so
a process may hold a task once only, be it active, standby or warm-up, and the group knows for each task the
processes that hold it. Everything durable changes by replay; members are immutable. The epochs are those of
consumer groups: of the group, of its target assignment, of each member.

Invariants: an active task is held, assigned or still to be revoked, by one member at most; the epochs of the
group and of the target never go back, and the target's is never ahead of the group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from ottla.coordinator.group.streams.internal_topic_manager import ConfiguredTopology
from ottla.coordinator.group.streams.streams_topology import StreamsTopology
from ottla.coordinator.group.streams.topology_description import HeldTopologyDescription
from ottla.protocol.consumer_offsets_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberTaskIds,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_heartbeat import EndpointToPartitions
from ottla.runtime import invariants

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""By subtopology: the partitions of its tasks."""
TasksWithEpochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""By subtopology: the partitions of its tasks, each with the epoch in which it was assigned."""

FIRST_GROUP_EPOCH: Final = 1
"""The epoch of a group before its first member, and of its target, as Kafka 4.3 begins."""


class StreamsMemberState(Enum):
    """The progress of a member towards its target, with the numbers of the records."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """It has to give up tasks before it gets others."""
    UNRELEASED_TASKS = 3
    """It waits for tasks that other members or its own process still hold."""
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> StreamsMemberState:
        return _STATES.get(number, cls.UNKNOWN)


_STATES: Final = {state.value: state for state in StreamsMemberState}


class StreamsGroupState(Enum):
    """The states of the group by the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the topology are missing or have the wrong number of partitions."""
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class TasksTuple:
    """Tasks of a member by their roles. No subtopology has an empty set."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    @classmethod
    def of(cls, value: StreamsGroupTargetAssignmentMemberValue) -> TasksTuple:
        return cls(_tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks))


@dataclass(frozen=True, slots=True)
class TasksTupleWithEpochs:
    """Tasks that a member holds. Only an active task has the epoch of its assignment: it decides whether a
    commit of an older epoch is accepted.
    """

    active: TasksWithEpochs = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def has_any_of(self, tasks: TasksTuple) -> bool:
        """Whether any of these tasks is here in the same role."""
        return (
            any(not ids.isdisjoint(self.active.get(id, ())) for id, ids in tasks.active.items())
            or any(not ids.isdisjoint(self.standby.get(id, ())) for id, ids in tasks.standby.items())
            or any(not ids.isdisjoint(self.warmup.get(id, ())) for id, ids in tasks.warmup.items())
        )

    def merge(self, other: TasksTupleWithEpochs) -> TasksTupleWithEpochs:
        active = {id: dict(tasks) for id, tasks in self.active.items()}
        for id, tasks in other.active.items():
            active.setdefault(id, {}).update(tasks)
        return TasksTupleWithEpochs(
            active, _merged(self.standby, other.standby), _merged(self.warmup, other.warmup)
        )


NO_TASKS: Final = TasksTupleWithEpochs()


def _merged(tasks: Tasks, others: Tasks) -> Tasks:
    merged = dict(tasks)
    for id, partitions in others.items():
        merged[id] = merged.get(id, frozenset()) | partitions
    return merged


def _tasks(
    ids: Iterable[StreamsGroupTargetAssignmentMemberTaskIds | StreamsGroupCurrentMemberAssignmentTaskIds],
) -> Tasks:
    return {each.subtopology_id: frozenset(each.partitions) for each in ids if each.partitions}


def _active_tasks(
    ids: Iterable[StreamsGroupCurrentMemberAssignmentTaskIds], member_epoch: int
) -> TasksWithEpochs:
    """Active tasks of a record. Records from before Kafka 4.3 have no epoch for each task; the member epoch
    is safe in its place.
    """
    tasks: dict[str, Mapping[int, int]] = {}
    for each in ids:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [member_epoch] * len(each.partitions)
        if each.partitions:
            tasks[each.subtopology_id] = dict(zip(each.partitions, epochs, strict=True))
    return tasks


class UserEndpoint(NamedTuple):
    """Where a process answers interactive queries (`application.server`)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    assigned: TasksTupleWithEpochs = NO_TASKS
    revoking: TasksTupleWithEpochs = NO_TASKS

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is StreamsMemberState.STABLE and self.epoch == target_epoch

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> StreamsGroupMember:
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
            client_tags={tag.key: tag.value for tag in value.client_tags},
        )

    def with_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsGroupMember:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=StreamsMemberState.of(value.state),
            assigned=TasksTupleWithEpochs(
                _active_tasks(value.active_tasks, value.member_epoch),
                _tasks(value.standby_tasks),
                _tasks(value.warmup_tasks),
            ),
            revoking=TasksTupleWithEpochs(
                _active_tasks(value.active_tasks_pending_revocation, value.member_epoch),
                _tasks(value.standby_tasks_pending_revocation),
                _tasks(value.warmup_tasks_pending_revocation),
            ),
        )

    def without_assignment(self) -> StreamsGroupMember:
        return replace(
            self,
            epoch=-1,
            previous_epoch=-1,
            state=StreamsMemberState.STABLE,
            assigned=NO_TASKS,
            revoking=NO_TASKS,
        )


class MemberTaskOffsets(NamedTuple):
    """The offsets of the changelogs of a member's tasks, summed up by task, and where the changelogs end."""

    offsets: Mapping[tuple[str, int], int]
    end_offsets: Mapping[tuple[str, int], int]


@dataclass(slots=True, eq=False)
class StreamsGroup:
    group_id: str
    epoch: int = FIRST_GROUP_EPOCH
    metadata_hash: int = 0
    validated_topology_epoch: int = 0
    """The epoch of the topology whose topics were all there; -1 if some were not."""
    assignment_configs: Mapping[str, str] = field(default_factory=dict)
    """The settings of the group that the last assignment was computed with."""
    target_epoch: int = FIRST_GROUP_EPOCH
    target_timestamp_ms: int = 0
    topology: StreamsTopology | None = None
    members: dict[str, StreamsGroupMember] = field(default_factory=dict)
    target: dict[str, TasksTuple] = field(default_factory=dict)
    active_processes: dict[tuple[str, int], str] = field(default_factory=dict)
    """By task: the process that holds it as an active task."""
    other_processes: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """The tasks that processes hold as standby or warm-up tasks, and how often."""

    # What follows is not durable.
    configured: ConfiguredTopology | None = None
    """The topology with the topics of `seen_topics`."""
    seen_topics: object = None
    """The topics of the image for which the metadata hash was last compared."""
    shutdown_requested_by: str | None = None
    """The member that asked for the end of the whole application."""
    endpoint_epoch: int = 0
    """Grows with each change of the tasks of a member that has an endpoint."""
    endpoints: dict[str, EndpointToPartitions] = field(default_factory=dict)
    """By member: its endpoint with the partitions that it serves, computed when a member asks for it."""
    description: HeldTopologyDescription = field(default_factory=HeldTopologyDescription)
    """What a member says about the topology; a draft has that of its group."""
    task_offsets: dict[str, MemberTaskOffsets] = field(default_factory=dict)
    """By member: how far its tasks are. A draft has those of its group."""
    changed_ms: int | None = None
    """The tick of the last change of an epoch or assignment that this coordinator wrote."""
    _updates: int = 0
    """How often members were added, changed or removed."""
    _settled: tuple[int, int, int, bool] | None = None
    """The last result of `is_reconciled`, with the updates and the epochs that it holds for."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_ready(self) -> bool:
        return self.topology is not None and self.topology.epoch == self.validated_topology_epoch

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if not self.is_ready:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        return StreamsGroupState.STABLE if self.is_reconciled else StreamsGroupState.RECONCILING

    @property
    def is_reconciled(self) -> bool:
        """Whether all members have reached the target. The members are walked once for each change."""
        known = self._settled
        if known is not None and known[:3] == (self._updates, self.epoch, self.target_epoch):
            return known[3]
        settled = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        self._settled = self._updates, self.epoch, self.target_epoch, settled
        return settled

    @property
    def is_settled(self) -> bool:
        return self.is_ready and self.epoch == self.target_epoch and self.is_reconciled

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics that the members read; none if there are no members."""
        if not self.members or self.topology is None:
            return frozenset()
        return frozenset(self.topology.source_topics)

    def draft(self) -> StreamsGroup:
        """A copy on which changes are made before they are written."""
        return replace(
            self,
            members=dict(self.members),
            target=dict(self.target),
            active_processes=dict(self.active_processes),
            other_processes=dict(self.other_processes),
            endpoints=dict(self.endpoints),
        )

    # Records

    def adopt_metadata(self, _: StreamsGroupMetadataKey, value: StreamsGroupMetadataValue) -> None:
        if invariants.thorough:
            assert value.epoch >= self.epoch, (self.group_id, value.epoch, self.epoch)
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash
        self.validated_topology_epoch = value.validated_topology_epoch
        configs = value.last_assignment_configs or ()
        self.assignment_configs = {config.key: config.value for config in configs}

    def adopt_member(
        self, key: StreamsGroupMemberMetadataKey, value: StreamsGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            self.remove(key.member_id)
        else:
            member = self.members.get(key.member_id) or StreamsGroupMember(key.member_id)
            self.update(member.with_metadata(value))

    def adopt_topology(self, _: StreamsGroupTopologyKey, value: StreamsGroupTopologyValue | None) -> None:
        self.topology = None if value is None else StreamsTopology.of(value)
        self.configured = None

    def adopt_target_epoch(
        self,
        _: StreamsGroupTargetAssignmentMetadataKey,
        value: StreamsGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is None:
            self.target_epoch, self.target_timestamp_ms = -1, 0
        else:
            self.target_epoch, self.target_timestamp_ms = value.assignment_epoch, value.assignment_timestamp

    def adopt_target(
        self,
        key: StreamsGroupTargetAssignmentMemberKey,
        value: StreamsGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = TasksTuple.of(value)

    def adopt_assignment(
        self,
        key: StreamsGroupCurrentMemberAssignmentKey,
        value: StreamsGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        member = self.members.get(key.member_id)
        if value is not None:
            self.update((member or StreamsGroupMember(key.member_id)).with_assignment(value))
        elif member is not None:
            # A member without an assignment remains; mostly the tombstones of its other records follow.
            self.update(member.without_assignment())

    # Members

    def member(self, member_id: str) -> StreamsGroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def update(self, member: StreamsGroupMember) -> None:
        self._updates += 1
        old = self.members.get(member.member_id)
        if old is not None:
            self._release(old)
        self.members[member.member_id] = member
        self.endpoints.pop(member.member_id, None)
        for held in (member.assigned, member.revoking):
            for id, tasks in held.active.items():
                for partition in tasks:
                    self.active_processes[id, partition] = member.process_id
            for others in (held.standby, held.warmup):
                for id, partitions in others.items():
                    for partition in partitions:
                        key = (id, partition, member.process_id)
                        self.other_processes[key] = self.other_processes.get(key, 0) + 1

    def remove(self, member_id: str) -> None:
        self._updates += 1
        member = self.members.pop(member_id, None)
        self.endpoints.pop(member_id, None)
        self.task_offsets.pop(member_id, None)
        if member is not None:
            self._release(member)
        if not self.members:
            self.shutdown_requested_by = None

    def _release(self, member: StreamsGroupMember) -> None:
        for held in (member.assigned, member.revoking):
            for id, tasks in held.active.items():
                for partition in tasks:
                    if self.active_processes.get((id, partition)) == member.process_id:
                        del self.active_processes[id, partition]
            for others in (held.standby, held.warmup):
                for id, partitions in others.items():
                    for partition in partitions:
                        key = (id, partition, member.process_id)
                        count = self.other_processes.pop(key, 1) - 1
                        if count:
                            self.other_processes[key] = count

    # Tasks

    def target_of(self, member_id: str) -> TasksTuple:
        return self.target.get(member_id) or TasksTuple()

    def is_held_by_process(self, subtopology_id: str, partition: int, process_id: str) -> bool:
        """Whether a process holds a task as a standby or warm-up task."""
        return (subtopology_id, partition, process_id) in self.other_processes
