"""The requests of classic members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Each is checked against the group's state in the order in which Kafka checks it, since clients act on which
error comes first. What then happens to the group is in `classic_rebalance`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.group import (
    NO_GENERATION,
    ClassicGroup,
    ClassicMember,
    ClassicState,
    Protocols,
    unknown_member,
)
from ottla.coordinator.group.classic.rebalance import ClassicRebalance, join_error
from ottla.coordinator.group.config import MOST_PENDING_IDS
from ottla.coordinator.group.requests import GroupRequest
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import Effects, EventTime, ReplyTo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_KNOWN_IDS = 4
_FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9

EMPTY = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE


def needs_known_id(request: GroupRequest[Any, Any]) -> bool:
    """Whether a new member is first given an id to come back with."""
    body: JoinGroupRequest = request.body
    return (
        not body.member_id
        and body.group_instance_id is None
        and request.version >= _FIRST_VERSION_WITH_KNOWN_IDS
    )


def member_protocols(body: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols)


def rebalance_timeout_ms(body: JoinGroupRequest) -> int:
    """Version 0 knows only the session timeout."""
    return body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms


class ClassicCoordinator:
    __slots__ = ("_state", "rebalance")

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self.rebalance = ClassicRebalance(state)

    # JoinGroup

    def join(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ClassicGroup | None,
        now: EventTime,
    ) -> Effects:
        body: JoinGroupRequest = request.body
        if group is None:
            if body.member_id:
                raise unknown_member(body.group_id, body.member_id)
            value = ClassicGroup(body.group_id, state_timestamp_ms=now.wall_ms).to_value()
            return Effects(
                records=[records.group_metadata(body.group_id, value)],
                applied=partial(self._join_created, token, request),
                failed=lambda error, _: Effects().reply(token, error),
            )
        if not self._has_room(group, body.member_id):
            effects = Effects()
            member = group.members.get(body.member_id)
            if member is not None:
                self.rebalance.drop_member(group, member, effects)
            self.rebalance.forget_pending(group, body.member_id)
            effects.reply(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return effects.extend(self.rebalance.joined(group, now))
        if not group.supports(body.protocol_type, (protocol.name for protocol in body.protocols)):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {body.group_id} ({group.protocol_type}) and this member ({body.protocol_type}) "
                "have no protocol in common",
            )
        if not body.member_id:
            return self._join_new(token, request, group, now)
        return self._join_known(token, request, group, now)

    def _join_created(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime
    ) -> Effects:
        group = self._state.groups[request.body.group_id]
        assert isinstance(group, ClassicGroup)
        try:
            return self.join(token, request, group, now)
        except KafkaError as error:
            return Effects().reply(token, error)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._state.settings.node.group_max_size
        member = group.members.get(member_id)
        if group.state is EMPTY:
            return True
        if group.state is PREPARING:
            # Counting those who have joined lets the last ones go that come back to a group over its size.
            return (member is not None and member.is_awaiting_join) or len(group.joined) < limit
        return member is not None or len(group.members) < limit

    def _join_new(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], group: ClassicGroup, now: EventTime
    ) -> Effects:
        body: JoinGroupRequest = request.body
        instance_id = body.group_instance_id
        member_id = f"{instance_id if instance_id is not None else request.client_id}-{self._state.new_id()}"
        if needs_known_id(request):
            if len(group.pending) >= MOST_PENDING_IDS:
                self.rebalance.forget_pending(group, next(iter(group.pending)))
            group.pending[member_id] = None
            self.rebalance.watch(group, member_id, body.session_timeout_ms, now)
            return Effects().reply(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        old_id = group.static.get(instance_id) if instance_id is not None else None
        if old_id is not None:
            return self._replace_static(token, request, group, old_id, member_id, now)
        return self._add(token, request, group, member_id, now)

    def _add(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ClassicGroup,
        member_id: str,
        now: EventTime,
    ) -> Effects:
        body: JoinGroupRequest = request.body
        member = ClassicMember(
            member_id,
            body.group_instance_id,
            request.client_id,
            request.client_host,
            rebalance_timeout_ms(body),
            body.session_timeout_ms,
            body.protocol_type,
            member_protocols(body),
            join_token=token,
        )
        return self.rebalance.add_member(group, member, now)

    def _join_known(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], group: ClassicGroup, now: EventTime
    ) -> Effects:
        body: JoinGroupRequest = request.body
        if body.member_id in group.pending and body.group_instance_id is None:
            return self._add(token, request, group, body.member_id, now)
        group.check_member(body.member_id, body.group_instance_id)
        member = group.members[body.member_id]
        unchanged = member.protocols == member_protocols(body)
        is_leader = group.leader_id == member.member_id
        if group.state is COMPLETING and unchanged:
            # It may not have got the answer to its last JoinGroup.
            return Effects().reply(token, self.rebalance.join_response(group, member))
        if group.state is STABLE and unchanged and not is_leader:
            return Effects().reply(token, self.rebalance.join_response(group, member))
        effects = self._update(token, request, group, member)
        return effects.extend(self.rebalance.prepare_or_complete(group, now))

    def _update(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ClassicGroup,
        member: ClassicMember,
    ) -> Effects:
        """Take what the member says now; an earlier JoinGroup of its that waits is answered as lost."""
        body: JoinGroupRequest = request.body
        effects = Effects()
        effects.reply(member.join_token, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        group.change_protocols(member, member_protocols(body))
        member.rebalance_timeout_ms = rebalance_timeout_ms(body)
        member.session_timeout_ms = body.session_timeout_ms
        group.await_join(member, token)
        return effects

    # Static members

    def _replace_static(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        now: EventTime,
    ) -> Effects:
        """A static member is back without its id: it gets a new one, and who has the old one is fenced."""
        old = group.members[old_id]
        effects = Effects()
        effects.reply(old.join_token, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
        effects.reply(
            old.sync_token, SyncGroupResponse(error_code=int(ErrorCode.FENCED_INSTANCE_ID), assignment=b"")
        )
        old.join_token = old.sync_token = None
        old_leader = group.leader_id
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = group.replace_static(old_id, new_id)
        if old_id in group.pending_sync:
            group.pending_sync.discard(old_id)
            group.pending_sync.add(new_id)
        self.rebalance.unwatch(group, old_id)
        self._update(token, request, group, member)
        self.rebalance.alive(group, member, now)
        if group.state is STABLE and group.select_protocol() == group.protocol:
            group.end_join(member)
            group.state_timestamp_ms = now.wall_ms
            effects.records.append(records.group_metadata(group.group_id, group.to_value()))
            effects.reply(token, self._rejoined(request, group, member, old_leader))
            effects.failed = partial(self._revert_static, group, old_id, new_id, before)
            return effects
        if group.state is PREPARING:
            return effects.extend(self.rebalance.joined(group, now))
        return effects.extend(self.rebalance.prepare(group, now))

    def _rejoined(
        self,
        request: GroupRequest[Any, Any],
        group: ClassicGroup,
        member: ClassicMember,
        old_leader: str | None,
    ) -> JoinGroupResponse:
        """A leader that may skip the assignment is told who is in the group; one that cannot is told that
        its old self leads, so that it does not assign.
        """
        response = self.rebalance.join_response(group, member)
        if request.version >= _FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
            response.skip_assignment = group.leader_id == member.member_id
        else:
            response.leader = old_leader or ""
            response.members = []
        return response

    def _revert_static(
        self,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        before: tuple[Protocols, int, int],
        error: KafkaError,
        now: EventTime,
    ) -> Effects:
        if new_id in group.members:
            member = group.replace_static(new_id, old_id)
            protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
            group.change_protocols(member, protocols)
            self.rebalance.unwatch(group, new_id)
            self.rebalance.alive(group, member, now)
        return Effects()

    # SyncGroup

    def sync(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], group: ClassicGroup, now: EventTime
    ) -> Effects:
        body: SyncGroupRequest = request.body
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
            raise rebalancing(group.group_id)
        if group.state is STABLE:
            self.rebalance.synced(group, member.member_id)
            self.rebalance.alive(group, member, now)
            return Effects().reply(token, self.rebalance.sync_response(group, member.assignment))
        effects = Effects()
        effects.reply(
            member.sync_token,
            SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS), assignment=b""),
        )
        member.sync_token = token
        self.rebalance.synced(group, member.member_id)
        if group.leader_id == member.member_id:
            given = {entry.member_id: bytes(entry.assignment) for entry in body.assignments}
            effects.extend(self.rebalance.assign(group, given, now))
        return effects

    # Heartbeat

    def heartbeat(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], group: ClassicGroup, now: EventTime
    ) -> Effects:
        body: HeartbeatRequest = request.body
        group.check_member(body.member_id, body.group_instance_id)
        self._check_generation(group, body.generation_id)
        self.rebalance.alive(group, group.members[body.member_id], now)
        if group.state is PREPARING:
            raise rebalancing(group.group_id)
        return Effects().reply(token, HeartbeatResponse())

    def _check_generation(self, group: ClassicGroup, generation: int) -> None:
        if generation != group.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"group {group.group_id} is in generation {group.generation}, not {generation}; join again",
            )

    # LeaveGroup

    def leave(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], group: ClassicGroup, now: EventTime
    ) -> Effects:
        body: LeaveGroupRequest = request.body
        effects = Effects()
        response = LeaveGroupResponse()
        left = False
        for identity in body.members:
            code = self._leave_one(group, identity, effects)
            left = left or code is ErrorCode.NONE
            response.members.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(code),
                )
            )
        effects.reply(token, response)
        return effects.extend(self.rebalance.shrunk(group, now)) if left else effects

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, effects: Effects) -> ErrorCode:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            # An operator removes a static member by its instance id alone.
            owner = group.static.get(instance_id) if instance_id is not None else None
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = owner
        elif member_id in group.pending:
            self.rebalance.forget_pending(group, member_id)
            return ErrorCode.NONE
        try:
            group.check_member(member_id, instance_id)
        except KafkaError as error:
            return error.code
        self.rebalance.drop_member(group, group.members[member_id], effects)
        return ErrorCode.NONE

    # After a restart

    def loaded(self, group: ClassicGroup, now: EventTime) -> Effects:
        for member in group.members.values():
            self.rebalance.alive(group, member, now)
        if len(group.members) > self._state.settings.node.group_max_size:
            return self.rebalance.prepare(group, now)
        return Effects()


def rebalancing(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group_id} is rebalancing; join again")


__all__ = ["NO_GENERATION", "ClassicCoordinator", "member_protocols", "needs_known_id", "rebalancing"]
