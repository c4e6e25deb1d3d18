"""The rebalance of a classic group: from the first who wants in to the assignment of a new generation.

EMPTY and STABLE groups move to PREPARING_REBALANCE when somebody joins, leaves or changes; that ends when
all members have joined again, or when the longest rebalance timeout has passed, without those who have not.
In COMPLETING_REBALANCE the leader assigns; its SyncGroup makes the group STABLE. The first rebalance of an
empty group waits a little, and a little longer while more members come.
"""

from __future__ import annotations

from functools import partial

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.group import (
    NO_GENERATION,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from ottla.coordinator.group.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import Effects, EventTime
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.sync_group import SyncGroupResponse

EMPTY = ClassicState.EMPTY
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(code), generation_id=NO_GENERATION, member_id=member_id, protocol_name=None
    )


class ClassicRebalance:
    __slots__ = ("_state",)

    def __init__(self, state: GroupState) -> None:
        self._state = state

    # Sessions

    def watch(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: EventTime) -> None:
        """Expect a sign of life within the timeout."""
        self._state.timers.schedule(
            (group.group_id, "session", member_id),
            now.tick_ms + timeout_ms,
            partial(self._session_over, group, member_id),
        )

    def alive(self, group: ClassicGroup, member: ClassicMember, now: EventTime) -> None:
        self.watch(group, member.member_id, member.session_timeout_ms, now)

    def unwatch(self, group: ClassicGroup, member_id: str) -> None:
        self._state.timers.cancel((group.group_id, "session", member_id))

    def forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        """Nobody will be let in with this id; a member that has it is left alone."""
        if member_id in group.pending:
            del group.pending[member_id]
            self.unwatch(group, member_id)

    def _session_over(self, group: ClassicGroup, member_id: str, now: EventTime) -> Effects:
        if self._state.groups.get(group.group_id) is not group:
            return Effects()
        if member_id in group.pending:
            del group.pending[member_id]
            return self.joined(group, now) if group.state is PREPARING else Effects()
        member = group.members.get(member_id)
        if member is None:
            return Effects()
        if not member.is_new and (member.is_awaiting_join or member.is_awaiting_sync):
            return Effects()  # who waits for us is not overdue
        effects = Effects()
        self.drop_member(group, member, effects)
        return effects.extend(self.shrunk(group, now))

    def drop_member(self, group: ClassicGroup, member: ClassicMember, effects: Effects) -> None:
        """Remove a member; if it waits it is told that it is unknown, so that it joins anew."""
        self.unwatch(group, member.member_id)
        effects.reply(member.join_token, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        effects.reply(
            member.sync_token, SyncGroupResponse(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID), assignment=b"")
        )
        member.join_token = member.sync_token = None
        group.remove(member.member_id)

    def shrunk(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Members were removed: rebalance, or see whether that was the last one to wait for."""
        if group.state in (STABLE, COMPLETING):
            return self.prepare(group, now)
        if group.state is PREPARING:
            return self.joined(group, now)
        return Effects()

    # Joining

    def add_member(self, group: ClassicGroup, member: ClassicMember, now: EventTime) -> Effects:
        member.is_new = True
        if group.state is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member)
        self.watch(group, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now)
        return self.prepare_or_complete(group, now)

    def prepare_or_complete(self, group: ClassicGroup, now: EventTime) -> Effects:
        return self.joined(group, now) if group.state is PREPARING else self.prepare(group, now)

    def prepare(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Begin a rebalance."""
        effects = Effects()
        if group.state is COMPLETING:
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, effects, now)
        group.pending_sync.clear()
        self._state.timers.cancel((group.group_id, "sync"))
        is_first = group.state is EMPTY
        group.transition(PREPARING, now.wall_ms)
        if is_first:
            delay_ms = self._state.settings.node.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._delay_first(group, delay_ms, remaining_ms, now)
            return effects
        if group.all_joined:
            return effects.extend(self.complete(group, now))
        self._await_joins(group, now)
        return effects

    def _await_joins(self, group: ClassicGroup, now: EventTime) -> None:
        self._state.timers.schedule(
            (group.group_id, "join"),
            now.tick_ms + group.rebalance_timeout_ms,
            partial(self._join_over, group),
        )

    def _join_over(self, group: ClassicGroup, now: EventTime) -> Effects:
        return self.complete(group, now) if group.state is PREPARING else Effects()

    def _delay_first(self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: EventTime) -> None:
        self._state.timers.schedule(
            (group.group_id, "join"),
            now.tick_ms + delay_ms,
            partial(self._first_delay_over, group, delay_ms, remaining_ms),
        )

    def _first_delay_over(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: EventTime
    ) -> Effects:
        if group.state is not PREPARING:
            return Effects()
        if group.new_member_added and remaining_ms > 0:
            group.new_member_added = False
            next_delay_ms = min(self._state.settings.node.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay_first(group, next_delay_ms, max(remaining_ms - delay_ms, 0), now)
            return Effects()
        return self.complete(group, now)

    def joined(self, group: ClassicGroup, now: EventTime) -> Effects:
        """Complete if the one that came or went was the last; the first rebalance sits out its delay."""
        if group.state is PREPARING and group.previous_state is not EMPTY and group.all_joined:
            return self.complete(group, now)
        return Effects()

    def complete(self, group: ClassicGroup, now: EventTime) -> Effects:
        """End the join phase: a new generation of those who have joined."""
        self._state.timers.cancel((group.group_id, "join"))
        group.new_member_added = False
        effects = Effects()
        for member in list(group.members.values()):
            if not member.is_awaiting_join and not member.is_static:
                self.drop_member(group, member, effects)
        if group.members and not group.elect_joined_leader():
            # Only static members that are away are left: wait until they return or their sessions end.
            self._await_joins(group, now)
            return effects
        group.next_generation(now.wall_ms)
        if not group.members:
            effects.records.append(records.group_metadata(group.group_id, group.to_value()))
            return effects
        self._state.timers.schedule(
            (group.group_id, "sync"),
            now.tick_ms + group.rebalance_timeout_ms,
            partial(self._sync_over, group, group.generation),
        )
        for member in group.members.values():
            effects.reply(member.join_token, self.join_response(group, member))
            group.end_join(member)
            member.is_new = False
            self.alive(group, member, now)
            group.pending_sync.add(member.member_id)
        return effects

    def join_response(self, group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
        is_leader = group.leader_id == member.member_id
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol or "",
            leader=group.leader_id or "",
            member_id=member.member_id,
            members=self.roster(group) if is_leader else [],
        )

    def roster(self, group: ClassicGroup) -> list[JoinGroupResponseMember]:
        """What the leader has to know to assign."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol),
            )
            for member in group.members.values()
        ]

    # Syncing

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._state.timers.cancel((group.group_id, "sync"))

    def _sync_over(self, group: ClassicGroup, generation: int, now: EventTime) -> Effects:
        if (
            generation != group.generation
            or group.state not in (COMPLETING, STABLE)
            or not group.pending_sync
        ):
            return Effects()
        effects = Effects()
        for member_id in list(group.pending_sync):
            member = group.members.get(member_id)
            if member is not None:
                self.drop_member(group, member, effects)
        return effects.extend(self.prepare(group, now))

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], now: EventTime) -> Effects:
        """The leader has assigned: write the generation and give everybody who waits its part."""
        assignments = {id: assignments.get(id, b"") for id in group.members}
        group.state_timestamp_ms = now.wall_ms
        effects = Effects(
            records=[records.group_metadata(group.group_id, group.to_value(assignments))],
            applied=partial(self._assigned, group),
            failed=partial(self._not_assigned, group),
        )
        for member in group.members.values():
            effects.reply(member.sync_token, self.sync_response(group, assignments[member.member_id]))
        return effects

    def sync_response(self, group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
        )

    def _assigned(self, group: ClassicGroup, now: EventTime) -> None:
        for member in group.members.values():
            if member.is_awaiting_sync:
                member.sync_token = None
                self.alive(group, member, now)

    def _not_assigned(self, group: ClassicGroup, error: Exception, now: EventTime) -> Effects:
        # Those who wait have been told that the write failed.
        for member in group.members.values():
            member.sync_token = None
        return self.prepare(group, now)

    def _fail_syncs(self, group: ClassicGroup, code: ErrorCode, effects: Effects, now: EventTime) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.is_awaiting_sync:
                effects.reply(member.sync_token, SyncGroupResponse(error_code=int(code), assignment=b""))
                member.sync_token = None
                self.alive(group, member, now)
