"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the rebalance that they drive.

Each request is checked against the group's state in the order in which Kafka checks it, since clients act on
the first error.

EMPTY and STABLE groups move to PREPARING_REBALANCE when a member joins, leaves or changes. That ends when all
members have joined again, or when the longest rebalance timeout has passed; members that have not joined by
then are removed. In COMPLETING_REBALANCE the leader assigns; its SyncGroup makes the group STABLE. The first
rebalance of an empty group waits for `group.initial.rebalance.delay.ms`, and longer while more members come.
"""

from __future__ import annotations

from functools import partial

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import (
    NO_GENERATION,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
    Protocols,
    unknown_member,
)
from ottla.coordinator.group.config import MOST_PENDING_IDS, NEW_MEMBER_JOIN_TIMEOUT_MS
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager
from ottla.coordinator.group.requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from ottla.coordinator.runtime.effects import Effects, EventTime, ReplyTo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

_FIRST_VERSION_WITH_KNOWN_IDS = 4
_FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9

EMPTY = ClassicGroupState.EMPTY
PREPARING = ClassicGroupState.PREPARING_REBALANCE
COMPLETING = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE


def requires_known_member_id(request: JoinGroup) -> bool:
    """Whether a new member first gets an id, with which it has to join again (KIP-394)."""
    body = request.body
    return (
        not body.member_id
        and body.group_instance_id is None
        and request.version >= _FIRST_VERSION_WITH_KNOWN_IDS
    )


def member_protocols(body: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols)


def rebalance_timeout_ms(body: JoinGroupRequest) -> int:
    """The rebalance timeout of a member; version 0 has only the session timeout."""
    return body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(code), generation_id=NO_GENERATION, member_id=member_id, protocol_name=None
    )


def rebalance_in_progress(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group_id} is rebalancing; join again")


def _no_memory(group_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"group {group_id}: the metadata of the members of all groups take too much memory; join again later",
    )


class ClassicGroupManager:
    __slots__ = ("_metadata",)

    def __init__(self, metadata: GroupMetadataManager) -> None:
        self._metadata = metadata

    # JoinGroup

    def join_group(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        request: JoinGroup,
        group: ClassicGroup | None,
        now: EventTime,
    ) -> Effects:
        body = request.body
        if group is None:
            if body.member_id:
                raise unknown_member(body.group_id, body.member_id)
            value = ClassicGroup(body.group_id, state_timestamp_ms=now.wall_ms).to_value()
            return Effects(
                records=[records.group_metadata(body.group_id, value)],
                on_applied=partial(self._join_created, to, request),
                on_failed=lambda error, _: Effects().reply(to, error),
            )
        if not self._accept_joining_member(group, body.member_id):
            effects = Effects()
            member = group.members.get(body.member_id)
            if member is not None:
                self._remove_member(group, member, effects)
            self._remove_pending_member(group, body.member_id)
            effects.reply(to, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return effects.extend(self._maybe_complete_join_phase(group, now))
        if not group.supports(body.protocol_type, (protocol.name for protocol in body.protocols)):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {body.group_id} ({group.protocol_type}) and this member ({body.protocol_type}) "
                "have no protocol in common",
            )
        if not body.member_id:
            return self._join_new_member(to, request, group, now)
        return self._join_existing_member(to, request, group, now)

    def _join_created(
        self, to: ReplyTo[JoinGroupResponse] | None, request: JoinGroup, now: EventTime
    ) -> Effects:
        group = self._metadata.groups[request.body.group_id]
        assert isinstance(group, ClassicGroup)
        try:
            return self.join_group(to, request, group, now)
        except KafkaError as error:
            return Effects().reply(to, error)

    def _accept_joining_member(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._metadata.settings.node.group_max_size
        member = group.members.get(member_id)
        if group.state is EMPTY:
            return True
        if group.state is PREPARING:
            # In a group over its size, only the members that join again first stay.
            return (member is not None and member.is_awaiting_join) or len(group.joined) < limit
        return member is not None or len(group.members) < limit

    def _join_new_member(
        self, to: ReplyTo[JoinGroupResponse] | None, request: JoinGroup, group: ClassicGroup, now: EventTime
    ) -> Effects:
        body = request.body
        instance_id = body.group_instance_id
        member_id = (
            f"{instance_id if instance_id is not None else request.client_id}-{self._metadata.new_id()}"
        )
        if requires_known_member_id(request):
            if len(group.pending) >= MOST_PENDING_IDS:
                self._remove_pending_member(group, next(iter(group.pending)))
            group.pending[member_id] = None
            self._schedule_heartbeat(group, member_id, body.session_timeout_ms, now)
            return Effects().reply(to, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        old_id = group.static.get(instance_id) if instance_id is not None else None
        if old_id is not None:
            return self._replace_static_member(to, request, group, old_id, member_id, now)
        return self._add_member_then_rebalance(to, request, group, member_id, now)

    def _add_member_then_rebalance(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        request: JoinGroup,
        group: ClassicGroup,
        member_id: str,
        now: EventTime,
    ) -> Effects:
        body = request.body
        memory = self._metadata.settings.member_memory
        if not memory.may_hold(member_protocols(body)):
            raise _no_memory(body.group_id)
        member = ClassicGroupMember(
            member_id,
            body.group_instance_id,
            request.client_id,
            request.client_host,
            rebalance_timeout_ms(body),
            body.session_timeout_ms,
            body.protocol_type,
            member_protocols(body),
            is_new=True,
            awaiting_join=to,
        )
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member)
        memory.hold(member)
        self._schedule_heartbeat(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now)
        return self._prepare_rebalance_or_complete_join(group, now)

    def _join_existing_member(
        self, to: ReplyTo[JoinGroupResponse] | None, request: JoinGroup, group: ClassicGroup, now: EventTime
    ) -> Effects:
        body = request.body
        if body.member_id in group.pending and body.group_instance_id is None:
            return self._add_member_then_rebalance(to, request, group, body.member_id, now)
        group.check_member(body.member_id, body.group_instance_id)
        member = group.members[body.member_id]
        if not self._metadata.settings.member_memory.may_hold(member_protocols(body), member):
            raise _no_memory(body.group_id)
        unchanged = member.protocols == member_protocols(body)
        is_leader = group.leader_id == member.member_id
        if group.state is COMPLETING and unchanged:
            # It may not have got the reply to its last JoinGroup.
            return Effects().reply(to, self._join_response(group, member))
        if group.state is STABLE and unchanged and not is_leader:
            return Effects().reply(to, self._join_response(group, member))
        effects = self._update_member(to, request, group, member)
        return effects.extend(self._prepare_rebalance_or_complete_join(group, now))

    def _update_member(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        request: JoinGroup,
        group: ClassicGroup,
        member: ClassicGroupMember,
    ) -> Effects:
        """Update a member from its JoinGroup; an earlier JoinGroup of the member that waits is failed."""
        body = request.body
        effects = Effects()
        effects.reply(member.awaiting_join, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        group.change_protocols(member, member_protocols(body))
        self._metadata.settings.member_memory.hold(member)
        member.rebalance_timeout_ms = rebalance_timeout_ms(body)
        member.session_timeout_ms = body.session_timeout_ms
        group.await_join(member, to)
        return effects

    # Static members

    def _replace_static_member(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        request: JoinGroup,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        now: EventTime,
    ) -> Effects:
        """Give a static member that is back without its id a new one; the holder of the old id is fenced."""
        old = group.members[old_id]
        if not self._metadata.settings.member_memory.may_hold(member_protocols(request.body), old):
            raise _no_memory(group.group_id)
        effects = Effects()
        effects.reply(old.awaiting_join, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
        effects.reply(
            old.awaiting_sync, SyncGroupResponse(error_code=int(ErrorCode.FENCED_INSTANCE_ID), assignment=b"")
        )
        old.awaiting_join = old.awaiting_sync = None
        old_leader = group.leader_id
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = group.replace_static_member(old_id, new_id)
        if old_id in group.pending_sync:
            group.pending_sync.discard(old_id)
            group.pending_sync.add(new_id)
        self._cancel_heartbeat(group, old_id)
        self._update_member(to, request, group, member)
        self.reschedule_heartbeat(group, member, now)
        if group.state is STABLE and group.select_protocol() == group.protocol:
            group.end_join(member)
            group.state_timestamp_ms = now.wall_ms
            effects.records.append(records.group_metadata(group.group_id, group.to_value()))
            effects.reply(to, self._rejoin_response(request, group, member, old_leader))
            effects.on_failed = partial(self._revert_static_member, group, old_id, new_id, before)
            return effects
        if group.state is PREPARING:
            return effects.extend(self._maybe_complete_join_phase(group, now))
        return effects.extend(self.prepare_rebalance(group, now))

    def _rejoin_response(
        self,
        request: JoinGroup,
        group: ClassicGroup,
        member: ClassicGroupMember,
        old_leader: str | None,
    ) -> JoinGroupResponse:
        """The reply to a static member that is back. A leader that can skip the assignment gets the members;
        one that cannot gets its former id as the leader, so that it does not assign.
        """
        response = self._join_response(group, member)
        if request.version >= _FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
            response.skip_assignment = group.leader_id == member.member_id
        else:
            response.leader = old_leader or ""
            response.members = []
        return response

    def _revert_static_member(
        self,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        before: tuple[Protocols, int, int],
        error: KafkaError,
        now: EventTime,
    ) -> Effects:
        if new_id in group.members:
            member = group.replace_static_member(new_id, old_id)
            protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
            group.change_protocols(member, protocols)
            self._cancel_heartbeat(group, new_id)
            self.reschedule_heartbeat(group, member, now)
        return Effects()

    # SyncGroup

    def sync_group(
        self, to: ReplyTo[SyncGroupResponse] | None, request: SyncGroup, group: ClassicGroup, now: EventTime
    ) -> Effects:
        body = request.body
        group.check_member(body.member_id, body.group_instance_id)
        self._check_generation(group, body.generation_id)
        if (body.protocol_type is not None and body.protocol_type != group.protocol_type) or (
            body.protocol_name is not None and body.protocol_name != group.protocol
        ):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {body.group_id} uses {group.protocol_type}/{group.protocol}, not "
                f"{body.protocol_type}/{body.protocol_name}",
            )
        member = group.members[body.member_id]
        if group.state is PREPARING:
            raise rebalance_in_progress(group.group_id)
        if group.state is STABLE:
            self._remove_pending_sync_member(group, member.member_id)
            self.reschedule_heartbeat(group, member, now)
            return Effects().reply(to, self._sync_response(group, member.assignment))
        effects = Effects()
        effects.reply(
            member.awaiting_sync,
            SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS), assignment=b""),
        )
        member.awaiting_sync = to
        self._remove_pending_sync_member(group, member.member_id)
        if group.leader_id == member.member_id:
            given = {entry.member_id: bytes(entry.assignment) for entry in body.assignments}
            effects.extend(self._store_assignment(group, given, now))
        return effects

    # Heartbeat

    def heartbeat(
        self, to: ReplyTo[HeartbeatResponse] | None, request: Heartbeat, group: ClassicGroup, now: EventTime
    ) -> Effects:
        body = request.body
        group.check_member(body.member_id, body.group_instance_id)
        self._check_generation(group, body.generation_id)
        self.reschedule_heartbeat(group, group.members[body.member_id], now)
        if group.state is PREPARING:
            raise rebalance_in_progress(group.group_id)
        return Effects().reply(to, HeartbeatResponse())

    def _check_generation(self, group: ClassicGroup, generation: int) -> None:
        if generation != group.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"group {group.group_id} is in generation {group.generation}, not {generation}; join again",
            )

    # LeaveGroup

    def leave_group(
        self, to: ReplyTo[LeaveGroupResponse] | None, request: LeaveGroup, group: ClassicGroup, now: EventTime
    ) -> Effects:
        body = request.body
        effects = Effects()
        response = LeaveGroupResponse()
        left = False
        for identity in body.members:
            code = self._leave_member(group, identity, effects)
            left = left or code is ErrorCode.NONE
            response.members.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(code),
                )
            )
        effects.reply(to, response)
        return effects.extend(self._rebalance_after_removal(group, now)) if left else effects

    def _leave_member(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> ErrorCode:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            # An operator removes a static member by its instance id alone.
            owner = group.static.get(instance_id) if instance_id is not None else None
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = owner
        elif member_id in group.pending:
            self._remove_pending_member(group, member_id)
            return ErrorCode.NONE
        try:
            group.check_member(member_id, instance_id)
        except KafkaError as error:
            return error.code
        self._remove_member(group, group.members[member_id], effects)
        return ErrorCode.NONE

    # After loading

    def on_loaded(self, group: ClassicGroup, now: EventTime) -> Effects:
        for member in group.members.values():
            self.reschedule_heartbeat(group, member, now)
        if len(group.members) > self._metadata.settings.node.group_max_size:
            return self.prepare_rebalance(group, now)
        return Effects()

    # Heartbeats and removal

    def _schedule_heartbeat(
        self, group: ClassicGroup, member_id: str, timeout_ms: int, now: EventTime
    ) -> None:
        """Remove the member unless it sends a request within the timeout."""
        self._metadata.timer.schedule(
            (group.group_id, "session", member_id),
            now.tick_ms + timeout_ms,
            partial(self._expire_heartbeat, group, member_id),
        )

    def reschedule_heartbeat(self, group: ClassicGroup, member: ClassicGroupMember, now: EventTime) -> None:
        self._schedule_heartbeat(group, member.member_id, member.session_timeout_ms, now)

    def _cancel_heartbeat(self, group: ClassicGroup, member_id: str) -> None:
        self._metadata.timer.cancel((group.group_id, "session", member_id))

    def _remove_pending_member(self, group: ClassicGroup, member_id: str) -> None:
        """Forget an id that was given out and has not come back; a member that has it stays."""
        if member_id in group.pending:
            del group.pending[member_id]
            self._cancel_heartbeat(group, member_id)

    def _expire_heartbeat(self, group: ClassicGroup, member_id: str, now: EventTime) -> Effects:
        if self._metadata.groups.get(group.group_id) is not group:
            return Effects()
        if member_id in group.pending:
            del group.pending[member_id]
            return self._maybe_complete_join_phase(group, now) if group.state is PREPARING else Effects()
        member = group.members.get(member_id)
        if member is None:
            return Effects()
        if not member.is_new and (member.is_awaiting_join or member.is_awaiting_sync):
            return Effects()  # a member that waits for the coordinator is not late
        effects = Effects()
        self._remove_member(group, member, effects)
        return effects.extend(self._rebalance_after_removal(group, now))

    def _remove_member(self, group: ClassicGroup, member: ClassicGroupMember, effects: Effects) -> None:
        """Remove a member; a request of it that waits fails with UNKNOWN_MEMBER_ID, so it joins again."""
        self._cancel_heartbeat(group, member.member_id)
        effects.reply(member.awaiting_join, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        effects.reply(
            member.awaiting_sync,
            SyncGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID), assignment=b""),
        )
        member.awaiting_join = member.awaiting_sync = None
        group.remove(member.member_id)

    def _rebalance_after_removal(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Rebalance after members were removed, or complete the join phase if it waited for them alone."""
        if group.state in (STABLE, COMPLETING):
            return self.prepare_rebalance(group, now)
        if group.state is PREPARING:
            return self._maybe_complete_join_phase(group, now)
        return Effects()

    # Rebalance: the join phase

    def _prepare_rebalance_or_complete_join(self, group: ClassicGroup, now: EventTime) -> Effects:
        return (
            self._maybe_complete_join_phase(group, now)
            if group.state is PREPARING
            else self.prepare_rebalance(group, now)
        )

    def prepare_rebalance(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Begin a rebalance."""
        effects = Effects()
        if group.state is COMPLETING:
            self._fail_awaiting_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, effects, now)
        group.pending_sync.clear()
        self._metadata.timer.cancel((group.group_id, "sync"))
        is_first = group.state is EMPTY
        group.transition_to(PREPARING, now.wall_ms)
        if is_first:
            delay_ms = self._metadata.settings.node.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._schedule_initial_rebalance(group, delay_ms, remaining_ms, now)
            return effects
        if group.all_joined:
            return effects.extend(self._complete_join_phase(group, now))
        self._schedule_join_timeout(group, now)
        return effects

    def _schedule_join_timeout(self, group: ClassicGroup, now: EventTime) -> None:
        self._metadata.timer.schedule(
            (group.group_id, "join"),
            now.tick_ms + group.rebalance_timeout_ms,
            partial(self._on_join_timeout, group),
        )

    def _on_join_timeout(self, group: ClassicGroup, now: EventTime) -> Effects:
        return self._complete_join_phase(group, now) if group.state is PREPARING else Effects()

    def _schedule_initial_rebalance(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: EventTime
    ) -> None:
        self._metadata.timer.schedule(
            (group.group_id, "join"),
            now.tick_ms + delay_ms,
            partial(self._try_complete_initial_rebalance, group, delay_ms, remaining_ms),
        )

    def _try_complete_initial_rebalance(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: EventTime
    ) -> Effects:
        if group.state is not PREPARING:
            return Effects()
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_delay_ms = min(self._metadata.settings.node.group_initial_rebalance_delay_ms, remaining_ms)
            self._schedule_initial_rebalance(group, next_delay_ms, max(remaining_ms - delay_ms, 0), now)
            return Effects()
        return self._complete_join_phase(group, now)

    def _maybe_complete_join_phase(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Complete the join phase if all members have joined (Kafka's `tryCompleteJoin`); the first rebalance
        waits for its delay.
        """
        if group.state is PREPARING and group.previous_state is not EMPTY and group.all_joined:
            return self._complete_join_phase(group, now)
        return Effects()

    def _complete_join_phase(self, group: ClassicGroup, now: EventTime) -> Effects:
        """End the join phase: begin a new generation with the members that have joined."""
        self._metadata.timer.cancel((group.group_id, "join"))
        group.new_member_added = False
        effects = Effects()
        for member in list(group.members.values()):
            if not member.is_awaiting_join and not member.is_static:
                self._remove_member(group, member, effects)
        if group.members and not group.elect_joined_leader():
            # Only static members that are away remain: wait until they return or their sessions end.
            self._schedule_join_timeout(group, now)
            return effects
        group.init_next_generation(now.wall_ms)
        if not group.members:
            effects.records.append(records.group_metadata(group.group_id, group.to_value()))
            return effects
        self._metadata.timer.schedule(
            (group.group_id, "sync"),
            now.tick_ms + group.rebalance_timeout_ms,
            partial(self._expire_pending_sync, group, group.generation),
        )
        for member in group.members.values():
            effects.reply(member.awaiting_join, self._join_response(group, member))
            group.end_join(member)
            member.is_new = False
            self.reschedule_heartbeat(group, member, now)
            group.pending_sync.add(member.member_id)
        return effects

    def _join_response(self, group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupResponse:
        is_leader = group.leader_id == member.member_id
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol or "",
            leader=group.leader_id or "",
            member_id=member.member_id,
            members=self._members_for_leader(group) if is_leader else [],
        )

    def _members_for_leader(self, group: ClassicGroup) -> list[JoinGroupResponseMember]:
        """The members with their subscriptions, which the leader needs to assign."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol),
            )
            for member in group.members.values()
        ]

    # Rebalance: the assignment

    def _remove_pending_sync_member(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._metadata.timer.cancel((group.group_id, "sync"))

    def _expire_pending_sync(self, group: ClassicGroup, generation: int, now: EventTime) -> Effects:
        if (
            generation != group.generation
            or group.state not in (COMPLETING, STABLE)
            or not group.pending_sync
        ):
            return Effects()
        effects = Effects()
        for member_id in sorted(group.pending_sync):
            member = group.members.get(member_id)
            if member is not None:
                self._remove_member(group, member, effects)
        return effects.extend(self.prepare_rebalance(group, now))

    def _store_assignment(
        self, group: ClassicGroup, assignments: dict[str, bytes], now: EventTime
    ) -> Effects:
        """Write the generation with the leader's assignment, and reply to the members that wait for it."""
        assignments = {id: assignments.get(id, b"") for id in group.members}
        group.state_timestamp_ms = now.wall_ms
        effects = Effects(
            records=[records.group_metadata(group.group_id, group.to_value(assignments))],
            on_applied=partial(self._on_assignment_stored, group),
            on_failed=partial(self._on_assignment_failed, group),
        )
        for member in group.members.values():
            effects.reply(member.awaiting_sync, self._sync_response(group, assignments[member.member_id]))
        return effects

    def _sync_response(self, group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
        )

    def _on_assignment_stored(self, group: ClassicGroup, now: EventTime) -> None:
        for member in group.members.values():
            if member.is_awaiting_sync:
                member.awaiting_sync = None
                self.reschedule_heartbeat(group, member, now)

    def _on_assignment_failed(self, group: ClassicGroup, error: Exception, now: EventTime) -> Effects:
        # The members that wait have got the error of the write.
        for member in group.members.values():
            member.awaiting_sync = None
        return self.prepare_rebalance(group, now)

    def _fail_awaiting_syncs(
        self, group: ClassicGroup, code: ErrorCode, effects: Effects, now: EventTime
    ) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.is_awaiting_sync:
                effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=int(code), assignment=b""))
                member.awaiting_sync = None
                self.reschedule_heartbeat(group, member, now)
