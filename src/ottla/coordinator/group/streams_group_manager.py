"""Streams groups (KIP-1071): members send a topology and heartbeats, and the coordinator assigns their tasks.

A StreamsGroupHeartbeat creates or updates the member; compares the topology with the topics of the cluster;
raises the group epoch if the member, the topics or the settings of the assignment have changed; computes a
new target if the group epoch is ahead of it; and takes the member a step towards its target. All of it is
done on a draft of the group, and becomes the group when the records are replayed. What is not durable (the
configured topology, endpoints, a requested shutdown) is taken over from the draft once the records are
written.

The first target of an empty group waits for `group.streams.initial.rebalance.delay.ms`, so that the threads
of an application that starts are assigned at once. Topics of the topology that do not exist are no error but
a status in the response; the internal ones of them the broker creates, which is the work of the handler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import ClassicGroup
from ottla.coordinator.group.consumer.subscriptions import metadata_hash
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager
from ottla.coordinator.group.heartbeat_interval import heartbeat_interval_ms
from ottla.coordinator.group.requests import (
    DescribeStreamsGroup,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
)
from ottla.coordinator.group.streams import streams_records
from ottla.coordinator.group.streams.endpoints import endpoint_to_partitions
from ottla.coordinator.group.streams.internal_topic_manager import (
    ConfiguredTopology,
    StreamsStatus,
    configure_topics,
)
from ottla.coordinator.group.streams.sticky_task_assignor import ASSIGNOR_NAME, assign_tasks
from ottla.coordinator.group.streams.streams_group import (
    MemberTaskOffsets,
    StreamsGroup,
    StreamsGroupMember,
    StreamsMemberState,
    Tasks,
    TasksTuple,
    UserEndpoint,
)
from ottla.coordinator.group.streams.streams_topology import StreamsTopology, topology_value
from ottla.coordinator.group.streams.task_reconciliation import TaskReconciliation
from ottla.coordinator.group.streams.topology_description import TopologyDescriptionStatus
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import streams_group_describe as describe_messages
from ottla.protocol.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TaskOffset,
)
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
_RETRY_MS: Final = 500
_INITIAL_REBALANCE: Final = "initial rebalance"
_FIRST_VERSION_WITH_DESCRIPTIONS: Final = 1
# How often members tell the offsets of their tasks.
_TASK_OFFSET_INTERVAL_MS: Final = 60_000


class StreamsGroupManager:
    __slots__ = ("_metadata",)

    def __init__(self, metadata: GroupMetadataManager) -> None:
        self._metadata = metadata

    # Heartbeats

    def streams_group_heartbeat(
        self,
        to: ReplyTo[StreamsGroupHeartbeatResult] | None,
        request: StreamsGroupHeartbeat,
        now: EventTime,
    ) -> Effects:
        body = request.body
        _check_heartbeat(body, request.version)
        if body.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._streams_group_leave(to, body, now)
        group = self._metadata.groups.get(body.group_id)
        if isinstance(group, StreamsGroup) and self._is_unchanged(group, request):
            self._schedule_session_timeout(body.group_id, body.member_id, now)
            interval_ms = self._heartbeat_interval_ms(group, now)
            response = _response(group, body.member_id, body.member_epoch, interval_ms)
            _note_task_offsets(group, body)
            _complete(response, group, request.version, now)
            return Effects().reply(to, StreamsGroupHeartbeatResult(response))
        effects = Effects()
        out = effects.records
        draft, created = self._get_or_create_group(body, out)
        member = self._get_or_create_member(draft, body)
        updated = _updated_member(member, request)
        statuses: list[Status] = []
        if draft.topology is not None and updated.topology_epoch < draft.topology.epoch:
            statuses.append(
                _status(
                    StreamsStatus.STALE_TOPOLOGY,
                    f"The member's topology epoch {updated.topology_epoch} is behind the group's topology "
                    f"epoch {draft.topology.epoch}.",
                )
            )
        is_delayed = self._is_initial_rebalance_delayed(draft)
        self._update_group(draft, member, updated, body, out)
        delay_ms = self._update_target_assignment(draft, is_delayed, out, now)
        if delay_ms is not None:
            why = "initial rebalance delay" if is_delayed else "assignment interval"
            detail = f"Assignment delayed due to the configured {why}."
            statuses.append(_status(StreamsStatus.ASSIGNMENT_DELAYED, detail))
        target_epoch = draft.target_epoch
        target = TasksTuple() if is_delayed else draft.target_of(body.member_id)
        moved = self._maybe_reconcile(draft, updated, target_epoch, target, _owned_tasks(body), out)
        if body.shutdown_application and draft.shutdown_requested_by is None:
            draft.shutdown_requested_by = body.member_id
        if out:
            draft.changed_ms = now.tick_ms
        interval_ms = self._heartbeat_interval_ms(draft, now, delay_ms)
        response = self._heartbeat_response(draft, member, moved, body, created, statuses, interval_ms)
        if not created:
            _note_task_offsets(draft, body)
        _complete(response, draft, request.version, now, has_description=not created)
        if is_delayed:
            effects.extend(Effects(on_applied=partial(self._schedule_initial_rebalance, body.group_id)))
        effects.extend(Effects(on_applied=partial(self._on_heartbeat, draft, moved, created, bool(out))))
        if moved != updated:
            effects.extend(
                Effects(on_applied=partial(self._schedule_rebalance_timeout, body.group_id, moved))
            )
        configured = draft.configured
        assert configured is not None
        creatable = tuple(topic.creatable() for topic in configured.internal_topics_to_create)
        return effects.reply(to, StreamsGroupHeartbeatResult(response, creatable))

    def _is_unchanged(self, group: StreamsGroup, request: StreamsGroupHeartbeat) -> bool:
        """Whether a heartbeat changes nothing and there is nothing to tell the member, which holds for nearly
        all heartbeats: then no draft is needed.
        """
        body = request.body
        member = group.members.get(body.member_id)
        return (
            member is not None
            and _is_plain_heartbeat(member, request)
            and member.is_reconciled_to(group.target_epoch)
            and group.epoch == group.target_epoch
            and group.is_ready
            and group.configured is not None
            and group.seen_topics is self._metadata.image.topics
            and group.topology is not None
            and member.topology_epoch >= group.topology.epoch
            and group.endpoint_epoch == body.endpoint_information_epoch
            and group.shutdown_requested_by is None
            and group.assignment_configs == self._metadata.settings.streams_assignment_configs(group.group_id)
        )

    def _get_or_create_group(
        self, body: StreamsGroupHeartbeatRequest, out: list[CoordinatorRecord]
    ) -> tuple[StreamsGroup, bool]:
        """A draft of the group, and whether this heartbeat creates the group."""
        group = self._metadata.groups.get(body.group_id)
        joining = body.member_epoch == JOIN_EPOCH
        if isinstance(group, StreamsGroup):
            limit = self._metadata.settings.node.streams_max_size
            if joining and len(group.members) >= limit:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The streams group has reached its maximum capacity of {limit} members.",
                )
            return group.draft(), False
        if group is None and not joining:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {body.group_id} not found.")
        if group is not None:
            if not (joining and isinstance(group, ClassicGroup) and group.is_empty):
                raise not_a_streams_group(body.group_id)
            if not group.is_simple:
                out.append(records.group_metadata(body.group_id, None))
        return StreamsGroup(body.group_id), True

    def _get_or_create_member(
        self, draft: StreamsGroup, body: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupMember:
        if body.member_epoch == JOIN_EPOCH:
            return draft.members.get(body.member_id) or StreamsGroupMember(body.member_id)
        member = draft.member(body.member_id)
        _check_member_epoch(member, body)
        return member

    def _update_group(
        self,
        draft: StreamsGroup,
        member: StreamsGroupMember,
        updated: StreamsGroupMember,
        body: StreamsGroupHeartbeatRequest,
        out: list[CoordinatorRecord],
    ) -> None:
        """Update the member, the topology and its topics, and raise the group epoch if any has changed."""
        bump = updated != member
        if bump:
            out.append(streams_records.member_metadata(draft.group_id, updated))
        topology = self._maybe_update_topology(draft, body, out)
        image = self._metadata.image
        digest = draft.metadata_hash
        configured = draft.configured
        if configured is None or draft.seen_topics is not image.topics:
            digest = metadata_hash(topology.required_topics, image)
            if configured is None or configured.metadata_hash != digest:
                configured = configure_topics(topology, digest, image)
                draft.endpoints.clear()
            draft.configured, draft.seen_topics = configured, image.topics
        if configured.is_ready:
            _check_tasks(configured, body)
        validated = topology.epoch if configured.is_ready else -1
        configs = self._metadata.settings.streams_assignment_configs(draft.group_id)
        if updated != draft.members.get(updated.member_id):
            draft.update(updated)
        if (
            bump
            or digest != draft.metadata_hash
            or validated != draft.validated_topology_epoch
            or configs != draft.assignment_configs
        ):
            draft.epoch += 1
            draft.metadata_hash = digest
            draft.validated_topology_epoch = validated
            draft.assignment_configs = configs
            out.append(streams_records.group_metadata(draft))

    def _maybe_update_topology(
        self, draft: StreamsGroup, body: StreamsGroupHeartbeatRequest, out: list[CoordinatorRecord]
    ) -> StreamsTopology:
        known = draft.topology
        if body.topology is None:
            if known is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"Streams group {body.group_id} has lost its topology; join again with epoch 0.",
                )
            return known
        value = topology_value(body.topology)
        sent = StreamsTopology.of(value)
        if known is None:
            out.append(streams_records.topology(body.group_id, value))
            draft.topology = sent
            draft.configured = None
            return sent
        if known.epoch <= sent.epoch and not known.is_same(sent):
            raise _invalid("Topology updates are not supported yet.")
        return known

    # The target assignment

    def _is_initial_rebalance_delayed(self, group: StreamsGroup) -> bool:
        return (group.group_id, _INITIAL_REBALANCE) in self._metadata.timer or (
            group.is_empty and self._metadata.settings.streams_initial_rebalance_delay_ms(group.group_id) > 0
        )

    def _schedule_initial_rebalance(self, group_id: str, now: EventTime) -> None:
        key = (group_id, _INITIAL_REBALANCE)
        if key not in self._metadata.timer:
            delay_ms = self._metadata.settings.streams_initial_rebalance_delay_ms(group_id)
            self._metadata.timer.schedule(
                key, now.tick_ms + delay_ms, partial(self._on_initial_rebalance_due, group_id)
            )

    def _on_initial_rebalance_due(self, group_id: str, now: EventTime) -> Effects:
        group = self._metadata.groups.get(group_id)
        effects = Effects()
        if isinstance(group, StreamsGroup) and group.members and group.configured is not None:
            draft = group.draft()
            if self._update_target_assignment(draft, False, effects.records, now) is None and effects.records:
                effects.on_applied = partial(self._on_changed, group_id)
        return effects

    def _update_target_assignment(
        self, draft: StreamsGroup, is_delayed: bool, out: list[CoordinatorRecord], now: EventTime
    ) -> int | None:
        """Compute a new target if the group epoch is ahead of it, or return how long that is delayed."""
        if is_delayed:
            due_ms = self._metadata.timer.deadline_ms((draft.group_id, _INITIAL_REBALANCE))
            if due_ms is None:  # the delay begins with this heartbeat
                return self._metadata.settings.streams_initial_rebalance_delay_ms(draft.group_id)
            return max(due_ms - now.tick_ms, 0)
        if draft.target_epoch >= draft.epoch:
            return None
        delay_ms = self._next_target_assignment_in_ms(draft, now)
        if delay_ms == 0:
            self._compute_target_assignment(draft, out, now)
            return None
        return delay_ms

    def _next_target_assignment_in_ms(self, group: StreamsGroup, now: EventTime) -> int:
        """How long the next target has to wait. The first one with tasks never has to."""
        interval_ms = self._metadata.settings.streams_assignment_interval_ms(group.group_id)
        since_ms = now.wall_ms - group.target_timestamp_ms
        # A wall clock that was set back must not stop the assignments of a group.
        if not 0 <= since_ms < interval_ms or all(each.is_empty for each in group.target.values()):
            return 0
        return interval_ms - since_ms

    def _compute_target_assignment(
        self, draft: StreamsGroup, out: list[CoordinatorRecord], now: EventTime
    ) -> None:
        configured = draft.configured
        assert configured is not None
        targets: Mapping[str, TasksTuple] = {}
        if configured.is_ready:
            assert configured.subtopologies is not None
            targets = assign_tasks(
                {member_id: member.process_id for member_id, member in draft.members.items()},
                draft.target,
                configured.subtopologies,
                draft.assignment_configs,
            )
        for member_id in draft.members:
            target = targets.get(member_id) or TasksTuple()
            if draft.target.get(member_id) != target:
                out.append(streams_records.target_assignment(draft.group_id, member_id, target))
                draft.target[member_id] = target
        draft.target_epoch = draft.epoch
        draft.target_timestamp_ms = now.wall_ms
        out.append(streams_records.target_epoch(draft.group_id, draft.epoch, now.wall_ms))

    # The current assignment

    def _maybe_reconcile(
        self,
        draft: StreamsGroup,
        member: StreamsGroupMember,
        target_epoch: int,
        target: TasksTuple,
        owned: TasksTuple | None,
        out: list[CoordinatorRecord],
    ) -> StreamsGroupMember:
        """Take the member a step towards its target tasks."""
        if member.is_reconciled_to(target_epoch):
            return member
        moved = TaskReconciliation(draft, member, target_epoch, target, owned).build()
        if moved != member:
            out.append(streams_records.current_assignment(draft.group_id, moved))
            draft.update(moved)
        return moved

    def _heartbeat_response(
        self,
        draft: StreamsGroup,
        before: StreamsGroupMember,
        member: StreamsGroupMember,
        body: StreamsGroupHeartbeatRequest,
        created: bool,
        statuses: list[Status],
        interval_ms: int,
    ) -> StreamsGroupHeartbeatResponse:
        response = _response(draft, member.member_id, member.epoch, interval_ms)
        if body.member_epoch == JOIN_EPOCH or member.assigned != before.assigned:
            assigned = member.assigned
            response.active_tasks = _task_ids({id: frozenset(each) for id, each in assigned.active.items()})
            response.standby_tasks = _task_ids(assigned.standby)
            response.warmup_tasks = _task_ids(assigned.warmup)
            draft.endpoints.pop(member.member_id, None)
            if member.user_endpoint is not None:
                draft.endpoint_epoch += 1
        if draft.endpoint_epoch != body.endpoint_information_epoch:
            response.partitions_by_user_endpoint = endpoint_to_partitions(draft, self._metadata.image)
        response.endpoint_information_epoch = 0 if created else draft.endpoint_epoch
        configured = draft.configured
        assert configured is not None
        if configured.error is not None:
            statuses.append(_status(configured.error.status, configured.error.detail))
        if draft.shutdown_requested_by is not None:
            statuses.append(
                _status(
                    StreamsStatus.SHUTDOWN_APPLICATION,
                    f"Streams group member {draft.shutdown_requested_by} encountered a fatal error and "
                    "requested a shutdown for the entire application.",
                )
            )
        response.status = statuses
        return response

    def _heartbeat_interval_ms(self, group: StreamsGroup, now: EventTime, delay_ms: int | None = None) -> int:
        """When the member comes back. `delay_ms` is the time until the next target may be computed, if the
        group waits for that: sooner there is nothing for the member, and it logs a warning each time.
        """
        configured_ms = self._metadata.settings.streams_heartbeat_interval_ms(group.group_id)
        error = group.configured.error if group.configured is not None else None
        if error is not None and error.status is StreamsStatus.MISSING_SOURCE_TOPICS:
            # Kafka Streams gives up after two intervals without its source topics.
            return configured_ms
        interval_ms = heartbeat_interval_ms(
            configured_ms,
            members=len(group.members),
            is_settled=group.is_settled,
            since_change_ms=None if group.changed_ms is None else now.tick_ms - group.changed_ms,
        )
        if delay_ms is None or error is not None:
            return interval_ms
        return min(configured_ms, max(interval_ms, delay_ms))

    def _on_heartbeat(
        self, draft: StreamsGroup, member: StreamsGroupMember, created: bool, changed: bool, now: EventTime
    ) -> None:
        """Take over from the draft what is not durable, now that its records are written."""
        group = self._metadata.groups.get(draft.group_id)
        if not isinstance(group, StreamsGroup):
            return
        group.configured, group.seen_topics = draft.configured, draft.seen_topics
        group.endpoints = draft.endpoints
        group.shutdown_requested_by = draft.shutdown_requested_by
        if not created:
            group.endpoint_epoch = draft.endpoint_epoch
        if changed:
            group.changed_ms = now.tick_ms
        self._schedule_session_timeout(draft.group_id, member.member_id, now)

    def _on_changed(self, group_id: str, now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if isinstance(group, StreamsGroup):
            group.changed_ms = now.tick_ms

    # Deadlines

    def _schedule_session_timeout(self, group_id: str, member_id: str, now: EventTime) -> None:
        key = (group_id, "session", member_id)
        timeout_ms = self._metadata.settings.streams_session_timeout_ms(group_id)
        self._metadata.timer.schedule(key, now.tick_ms + timeout_ms, partial(self._on_timeout, key, None))

    def _schedule_rebalance_timeout(self, group_id: str, member: StreamsGroupMember, now: EventTime) -> None:
        """Fence a member that does not revoke tasks within its rebalance timeout. Called after the member is
        written: a failed write must neither set nor cancel its deadline.
        """
        key = (group_id, "revocation", member.member_id)
        if member.state is not StreamsMemberState.UNREVOKED_TASKS:
            self._metadata.timer.cancel(key)
        else:
            deadline_ms = now.tick_ms + max(member.rebalance_timeout_ms, 0)
            self._metadata.timer.schedule(key, deadline_ms, partial(self._on_timeout, key, member.epoch))

    def _on_timeout(self, key: tuple[str, str, str], epoch: int | None, now: EventTime) -> Effects:
        """Fence a member whose session timed out, or that has not revoked tasks in the epoch in which it was
        asked to. If that cannot be written it is tried again, since nothing else would remove the member.
        """
        group_id, _, member_id = key
        group = self._metadata.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, StreamsGroup) else None
        if not isinstance(group, StreamsGroup) or not isinstance(member, StreamsGroupMember):
            return Effects()
        if epoch is not None and member.epoch != epoch:
            return Effects()

        def schedule_retry(_error: KafkaError, then: EventTime) -> Effects:
            self._metadata.timer.schedule(
                key, then.tick_ms + _RETRY_MS, partial(self._on_timeout, key, epoch)
            )
            return Effects()

        return self._fence_member(group, member).extend(Effects(on_failed=schedule_retry))

    def on_loaded(self, group: StreamsGroup, now: EventTime) -> None:
        if group.members and not group.is_settled:
            group.changed_ms = now.tick_ms
        for member in group.members.values():
            self._schedule_session_timeout(group.group_id, member.member_id, now)
            if member.state is StreamsMemberState.UNREVOKED_TASKS:
                self._schedule_rebalance_timeout(group.group_id, member, now)

    # Leaving

    def _streams_group_leave(
        self,
        to: ReplyTo[StreamsGroupHeartbeatResult] | None,
        body: StreamsGroupHeartbeatRequest,
        now: EventTime,
    ) -> Effects:
        group = self._metadata.group(body.group_id)
        if not isinstance(group, StreamsGroup):
            raise not_a_streams_group(body.group_id)
        member = group.member(body.member_id)
        effects = self._fence_member(group, member)
        if body.shutdown_application:
            effects.extend(
                Effects(on_applied=partial(self._on_shutdown_requested, body.group_id, body.member_id))
            )
        response = StreamsGroupHeartbeatResponse(
            member_id=body.member_id, member_epoch=body.member_epoch, status=[]
        )
        return effects.reply(to, StreamsGroupHeartbeatResult(response))

    def _on_shutdown_requested(self, group_id: str, member_id: str, _now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if isinstance(group, StreamsGroup) and group.members and group.shutdown_requested_by is None:
            group.shutdown_requested_by = member_id

    def _fence_member(self, group: StreamsGroup, member: StreamsGroupMember) -> Effects:
        """Remove a member and raise the group epoch: it is fenced and its tasks are reassigned."""
        epoch_record = streams_records.group_metadata(replace(group, epoch=group.epoch + 1))
        return Effects(
            records=[*streams_records.member_tombstones(group.group_id, member.member_id), epoch_record],
            on_applied=partial(self._on_member_removed, group.group_id, member.member_id),
        )

    def _on_member_removed(self, group_id: str, member_id: str, now: EventTime) -> None:
        for kind in ("session", "revocation"):
            self._metadata.timer.cancel((group_id, kind, member_id))
        self._on_changed(group_id, now)

    # Describing

    def update_topology_description(
        self,
        to: ReplyTo[StreamsGroupTopologyDescriptionUpdateResponse] | None,
        body: StreamsGroupTopologyDescriptionUpdateRequest,
    ) -> Effects:
        group = self._metadata.group(body.group_id)
        if not isinstance(group, StreamsGroup):
            raise not_a_streams_group(body.group_id)
        group.member(body.member_id)
        epoch = -1 if group.topology is None else group.topology.epoch
        if body.topology_epoch != epoch:
            raise _invalid(
                f"Topology epoch {body.topology_epoch} does not match the group's current topology epoch "
                f"{epoch}."
            )
        group.description.put(body)
        return Effects().reply(to, StreamsGroupTopologyDescriptionUpdateResponse())

    def describe_streams_group(
        self, to: ReplyTo[describe_messages.DescribedGroup] | None, request: DescribeStreamsGroup
    ) -> Effects:
        group_id = request.group_id
        group = self._metadata.group(group_id)
        if not isinstance(group, StreamsGroup):
            raise not_a_streams_group(group_id)
        described = describe_messages.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            topology=self._described_topology(group),
            members=[_described_member(group, member) for member in group.members.values()],
            assignor_name=ASSIGNOR_NAME,
        )
        if request.include_topology_description:
            held = group.description
            is_current = group.topology is not None and held.epoch == group.topology.epoch
            described.topology_description = held.description if is_current else None
            described.topology_description_status = (
                TopologyDescriptionStatus.NOT_STORED
                if described.topology_description is None
                else TopologyDescriptionStatus.AVAILABLE
            )
        return Effects().reply(to, described)

    def _described_topology(self, group: StreamsGroup) -> describe_messages.Topology | None:
        topology, configured = group.topology, group.configured
        if topology is None:
            return None
        if configured is None:
            try:
                configured = configure_topics(topology, 0, self._metadata.image)
            except KafkaError:
                return topology.describe()
        return configured.describe() if configured.is_ready else topology.describe()


def _response(
    group: StreamsGroup, member_id: str, epoch: int, interval_ms: int
) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=interval_ms,
        status=[],
        endpoint_information_epoch=group.endpoint_epoch,
    )


def _complete(
    response: StreamsGroupHeartbeatResponse,
    group: StreamsGroup,
    version: int,
    now: EventTime,
    *,
    has_description: bool = True,
) -> None:
    """Add what only version 1 of a response has. A group that is new is asked with the next heartbeat."""
    if version < _FIRST_VERSION_WITH_DESCRIPTIONS:
        return
    response.task_offset_interval_ms = _TASK_OFFSET_INTERVAL_MS
    is_stale = any(each.status_code == StreamsStatus.STALE_TOPOLOGY for each in response.status or ())
    if has_description and group.topology is not None and not is_stale:
        response.topology_description_required = group.description.ask(group.topology.epoch, now.tick_ms)


def _note_task_offsets(group: StreamsGroup, body: StreamsGroupHeartbeatRequest) -> None:
    """Keep how far the tasks of a member are, as far as the topology has these tasks."""
    subtopologies = (group.configured.subtopologies if group.configured is not None else None) or {}
    if body.member_id not in group.members or (body.task_offsets is None and body.task_end_offsets is None):
        return

    def known(sent: list[TaskOffset] | None, before: Mapping[tuple[str, int], int]) -> Mapping[Any, int]:
        if sent is None:
            return before
        return {
            (each.subtopology_id, each.partition): each.offset
            for each in sent
            if each.subtopology_id in subtopologies
            and 0 <= each.partition < subtopologies[each.subtopology_id].tasks
        }

    before = group.task_offsets.get(body.member_id, MemberTaskOffsets({}, {}))
    group.task_offsets[body.member_id] = MemberTaskOffsets(
        known(body.task_offsets, before.offsets), known(body.task_end_offsets, before.end_offsets)
    )


def not_a_streams_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")


def _check_heartbeat(body: StreamsGroupHeartbeatRequest, version: int) -> None:
    """Raise unless the heartbeat is well formed and uses only what Kafka 4.3 supports, and offsets of tasks
    only in the version of Kafka 4.4.
    """
    has_offsets = version >= _FIRST_VERSION_WITH_DESCRIPTIONS
    _check(body.instance_id is None, "Static membership is not yet supported.")
    _check(has_offsets or body.task_offsets is None, "TaskOffsets are not supported yet.")
    _check(has_offsets or body.task_end_offsets is None, "TaskEndOffsets are not supported yet.")
    _check(not body.warmup_tasks, "WarmupTasks are not supported yet.")
    topology = body.topology
    _check(
        topology is None or not any(each.source_topic_regex for each in topology.subtopologies),
        "Regular expressions for source topics are not supported yet.",
    )
    _check(bool(body.member_id.strip()), "MemberId can't be empty.")
    _check(bool(body.group_id.strip()), "GroupId can't be empty.")
    _check(body.rack_id is None or bool(body.rack_id.strip()), "RackId can't be empty.")
    if body.member_epoch == JOIN_EPOCH:
        _check(body.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        _check(body.active_tasks == [], "ActiveTasks must be empty when (re-)joining.")
        _check(body.standby_tasks == [], "StandbyTasks must be empty when (re-)joining.")
        _check(body.warmup_tasks == [], "WarmupTasks must be empty when (re-)joining.")
        if topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
        for subtopology in topology.subtopologies:
            for topic in subtopology.state_changelog_topics:
                if topic.partitions != 0:
                    raise KafkaError(
                        ErrorCode.STREAMS_INVALID_TOPOLOGY,
                        f"Changelog topic {topic.name} must have an undefined partition count, but it is set "
                        f"to {topic.partitions}.",
                    )
        return
    if body.member_epoch == STATIC_LEAVE_EPOCH:
        raise _invalid("InstanceId can't be null.")
    _check(
        body.member_epoch >= STATIC_LEAVE_EPOCH,
        f"MemberEpoch is {body.member_epoch}, but must be greater than or equal to -2.",
    )
    owned = (body.active_tasks, body.standby_tasks, body.warmup_tasks)
    _check(
        all(tasks is None for tasks in owned) or all(tasks is not None for tasks in owned),
        "If one task-type is non-null, all must be non-null.",
    )
    _check(topology is None, "Topology can only be provided when (re-)joining.")


def _check(is_valid: bool, message: str) -> None:
    if not is_valid:
        raise _invalid(message)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _is_plain_heartbeat(member: StreamsGroupMember, request: StreamsGroupHeartbeat) -> bool:
    """Whether a heartbeat leaves the member as it is."""
    body = request.body
    return (
        body.member_epoch == member.epoch
        and body.member_epoch != JOIN_EPOCH
        and body.rack_id is None
        and body.rebalance_timeout_ms in (-1, member.rebalance_timeout_ms)
        and body.active_tasks is None
        and body.process_id is None
        and body.user_endpoint is None
        and body.client_tags is None
        and not body.shutdown_application
        and member.client_id == request.client_id
        and member.client_host == request.client_host
    )


def _updated_member(member: StreamsGroupMember, request: StreamsGroupHeartbeat) -> StreamsGroupMember:
    body = request.body
    endpoint, tags = body.user_endpoint, body.client_tags
    return replace(
        member,
        rack_id=body.rack_id if body.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms
        if body.rebalance_timeout_ms != -1
        else member.rebalance_timeout_ms,
        topology_epoch=body.topology.epoch if body.topology is not None else member.topology_epoch,
        client_id=request.client_id,
        client_host=request.client_host,
        process_id=body.process_id if body.process_id is not None else member.process_id,
        user_endpoint=UserEndpoint(endpoint.host, endpoint.port)
        if endpoint is not None
        else member.user_endpoint,
        client_tags={tag.key: tag.value for tag in tags} if tags is not None else member.client_tags,
    )


def _check_member_epoch(member: StreamsGroupMember, body: StreamsGroupHeartbeatRequest) -> None:
    epoch = body.member_epoch
    if epoch == member.epoch:
        return
    if epoch < member.epoch and epoch == member.previous_epoch:
        # The response with the new epoch may be lost; fine if the member owns only what it is assigned.
        assigned = member.assigned
        if (
            _are_contained(body.active_tasks, assigned.active)
            and _are_contained(body.standby_tasks, assigned.standby)
            and _are_contained(body.warmup_tasks, assigned.warmup)
        ):
            return
    than = "smaller" if epoch < member.epoch else "greater"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _are_contained(owned: list[TaskIds] | None, assigned: Mapping[str, Collection[int]]) -> bool:
    return owned is not None and all(
        each.subtopology_id in assigned
        and all(partition in assigned[each.subtopology_id] for partition in each.partitions)
        for each in owned
    )


def _check_tasks(configured: ConfiguredTopology, body: StreamsGroupHeartbeatRequest) -> None:
    """Raise if the member owns tasks that the topology does not have."""
    subtopologies = configured.subtopologies or {}
    for tasks in (body.active_tasks, body.standby_tasks, body.warmup_tasks):
        for each in tasks or ():
            subtopology = subtopologies.get(each.subtopology_id)
            if subtopology is None:
                raise _invalid(f"Subtopology {each.subtopology_id} does not exist in the topology.")
            for partition in each.partitions:
                if not 0 <= partition < subtopology.tasks:
                    raise _invalid(
                        f"Task {partition} for subtopology {each.subtopology_id} is invalid. Number of tasks "
                        f"for this subtopology: {subtopology.tasks}"
                    )


def _owned_tasks(body: StreamsGroupHeartbeatRequest) -> TasksTuple | None:
    active, standby, warmup = body.active_tasks, body.standby_tasks, body.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return TasksTuple(_tasks(active), _tasks(standby), _tasks(warmup))


def _tasks(ids: list[TaskIds]) -> Tasks:
    tasks: dict[str, frozenset[int]] = {}
    for each in ids:
        if each.partitions:
            tasks[each.subtopology_id] = tasks.get(each.subtopology_id, frozenset()) | set(each.partitions)
    return tasks


def _task_ids(tasks: Tasks) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=id, partitions=sorted(partitions)) for id, partitions in sorted(tasks.items())
    ]


def _status(status: StreamsStatus, detail: str) -> Status:
    return Status(status_code=int(status), status_detail=detail)


def _described_member(group: StreamsGroup, member: StreamsGroupMember) -> describe_messages.Member:
    endpoint = member.user_endpoint
    offsets = group.task_offsets.get(member.member_id, MemberTaskOffsets({}, {}))
    assigned, target = member.assigned, group.target_of(member.member_id)
    active = {id: frozenset(tasks) for id, tasks in assigned.active.items()}
    return describe_messages.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else describe_messages.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            describe_messages.KeyValue(key=key, value=value)
            for key, value in sorted(member.client_tags.items())
        ],
        task_offsets=_described_offsets(offsets.offsets),
        task_end_offsets=_described_offsets(offsets.end_offsets),
        assignment=_described_tasks(active, assigned.standby, assigned.warmup),
        target_assignment=_described_tasks(target.active, target.standby, target.warmup),
    )


def _described_offsets(offsets: Mapping[tuple[str, int], int]) -> list[describe_messages.TaskOffset]:
    return [
        describe_messages.TaskOffset(subtopology_id=id, partition=partition, offset=offset)
        for (id, partition), offset in sorted(offsets.items())
    ]


def _described_tasks(active: Tasks, standby: Tasks, warmup: Tasks) -> describe_messages.Assignment:
    def described(tasks: Tasks) -> list[describe_messages.TaskIds]:
        return [
            describe_messages.TaskIds(subtopology_id=id, partitions=sorted(partitions))
            for id, partitions in sorted(tasks.items())
        ]

    return describe_messages.Assignment(
        active_tasks=described(active), standby_tasks=described(standby), warmup_tasks=described(warmup)
    )
