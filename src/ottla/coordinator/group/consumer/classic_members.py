"""Classic members of a consumer group: they join, sync and send heartbeats as they always did, and the
coordinator assigns for them.

A JoinGroup is a heartbeat that joins, its generation is the member's epoch, and a SyncGroup fetches what has
been assigned. A heartbeat is told REBALANCE_IN_PROGRESS when the member has to rejoin: the group has a new
epoch, the member has to give something up, or what it waited for is free. Each answer of that kind sets a
deadline by which the member must do its part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ottla.coordinator.group.classic.coordinator import (
    member_protocols,
    needs_known_id,
    rebalance_timeout_ms,
    rebalancing,
)
from ottla.coordinator.group.classic.group import CONSUMER_PROTOCOL_TYPE
from ottla.coordinator.group.classic.rebalance import join_error
from ottla.coordinator.group.consumer.coordinator import ConsumerCoordinator
from ottla.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember, MemberState
from ottla.coordinator.group.consumer.members import check_static, replace_member
from ottla.coordinator.group.migration import Migration, assignment_bytes
from ottla.coordinator.group.requests import GroupRequest
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import Effects, EventTime, ReplyTo
from ottla.protocol.consumer_offsets_records import ClassicMemberMetadata, ClassicProtocol
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.subscription import ConsumerProtocolSubscription, decode_subscription


class MixedCoordinator:
    __slots__ = ("_consumers", "_migration", "_state")

    def __init__(self, state: GroupState, consumers: ConsumerCoordinator, migration: Migration) -> None:
        self._state = state
        self._consumers = consumers
        self._migration = migration

    # JoinGroup

    def join(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body: JoinGroupRequest = request.body
        limit = self._state.settings.node.consumer_max_size
        if len(group.members) >= limit and body.member_id not in group.members:
            return Effects().reply(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, body.member_id))
        names = {protocol.name for protocol in body.protocols}
        if not group.supports_classic(body.protocol_type, names, body.member_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the classic members of consumer group {body.group_id} have no protocol in common with "
                f"{body.protocol_type} {sorted(names)}",
            )
        member_id = body.member_id or f"{request.client_id}-{self._state.new_id()}"
        if needs_known_id(request):
            return Effects().reply(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        subscription = _subscription(body)
        effects = Effects()
        draft = group.draft()
        known = draft.static_member(body.group_instance_id)
        downgrade = self._migration.may_downgrade_with(group, known)
        if body.group_instance_id is None:
            member = draft.members.get(member_id) or ConsumerMember(member_id)
        elif body.member_id:
            member = check_static(known, body.group_id, member_id, body.group_instance_id)
        elif known is None:
            member = ConsumerMember(member_id)
        else:
            member = replace_member(draft, known, member_id, effects.records)
        updated = replace(
            member,
            instance_id=body.group_instance_id,
            rack_id=subscription.rack_id if subscription.rack_id is not None else member.rack_id,
            rebalance_timeout_ms=rebalance_timeout_ms(body),
            topics=frozenset(subscription.topics),
            regex="",
            client_id=request.client_id,
            client_host=request.client_host,
            classic=ClassicMemberMetadata(
                session_timeout_ms=body.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata) for name, metadata in member_protocols(body)
                ],
            ),
        )
        if downgrade:
            changed = updated.topics != member.topics or bool(member.regex)
            return effects.extend(self._downgrade(token, draft, updated, changed, now))
        owned = self._owned(subscription)
        updated = self._consumers.advance(draft, member, updated, owned, request, effects.records, now)
        effects.reply(token, _join_response(updated))
        effects.extend(
            Effects(applied=partial(self._joined, body.group_id, member_id, body.session_timeout_ms))
        )
        return effects

    def _downgrade(
        self,
        token: ReplyTo[Any] | None,
        draft: ConsumerGroup,
        member: ConsumerMember,
        changed: bool,
        now: EventTime,
    ) -> Effects:
        member = replace(member, epoch=draft.epoch)
        draft.update(member)
        effects = self._migration.downgrade(draft, frozenset(), now, rebalance=changed)
        return effects.reply(token, _join_response(member))

    def _owned(self, subscription: ConsumerProtocolSubscription) -> dict[bytes, frozenset[int]]:
        by_name = self._state.image.topics.by_name
        return {
            by_name[topic.topic].id: frozenset(topic.partitions)
            for topic in subscription.owned_partitions
            if topic.topic in by_name
        }

    def _joined(self, group_id: str, member_id: str, session_timeout_ms: int, now: EventTime) -> None:
        self._state.timers.cancel((group_id, "join", member_id))
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and member_id in group.members:
            self._consumers.watch_session(group_id, member_id, session_timeout_ms, now)
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            self._deadline(group_id, "sync", member_id, timeout_ms, now)

    def _deadline(self, group_id: str, kind: str, member_id: str, timeout_ms: int, now: EventTime) -> None:
        key = (group_id, kind, member_id)
        self._state.timers.schedule(key, now.tick_ms + timeout_ms, partial(self._overdue, key))

    def _overdue(self, key: tuple[str, str, str], now: EventTime) -> Effects:
        group_id, _, member_id = key
        group = self._state.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if not isinstance(group, ConsumerGroup) or not isinstance(member, ConsumerMember):
            return Effects()
        return self._consumers.expel(group, member, key, partial(self._overdue, key), now)

    # SyncGroup

    def sync(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body: SyncGroupRequest = request.body
        member, classic = self._classic_member(group, body.member_id, body.group_instance_id)
        self._check_generation(group, member, body.generation_id)
        protocol = classic.supported_protocols[0]
        if (body.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)) or (
            body.protocol_name not in (None, protocol.name)
        ):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"member {member.member_id} joined with {protocol.name}, not {body.protocol_name}",
            )
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._must_join(group, member, now)
            raise rebalancing(group.group_id)
        self._state.timers.cancel((group.group_id, "sync", member.member_id))
        self._consumers.watch_session(group.group_id, member.member_id, classic.session_timeout_ms, now)
        return Effects().reply(
            token,
            SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol.name,
                assignment=assignment_bytes(member.assigned, bytes(protocol.metadata), self._state.image),
            ),
        )

    # Heartbeat

    def heartbeat(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body: HeartbeatRequest = request.body
        member, classic = self._classic_member(group, body.member_id, body.group_instance_id)
        self._check_generation(group, member, body.generation_id)
        self._consumers.watch_session(group.group_id, member.member_id, classic.session_timeout_ms, now)
        if (
            group.epoch > member.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_unreleased(member))
        ):
            self._must_join(group, member, now)
            raise rebalancing(group.group_id)
        return Effects().reply(token, HeartbeatResponse())

    def _must_join(self, group: ConsumerGroup, member: ConsumerMember, now: EventTime) -> None:
        if (group.group_id, "join", member.member_id) not in self._state.timers:
            self._deadline(group.group_id, "join", member.member_id, member.rebalance_timeout_ms, now)

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        if instance_id is not None:
            member = check_static(group.static_member(instance_id), group.group_id, member_id, instance_id)
        else:
            member = group.member(member_id)
        if member.classic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"member {member_id} of group {group.group_id} does not use the classic protocol",
            )
        return member, member.classic

    def _check_generation(self, group: ConsumerGroup, member: ConsumerMember, generation: int) -> None:
        if generation != member.epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"member {member.member_id} of group {group.group_id} is in epoch {member.epoch}, not in "
                f"generation {generation}",
            )

    # LeaveGroup

    def leave(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body: LeaveGroupRequest = request.body
        response = LeaveGroupResponse()
        leaving: dict[str, ConsumerMember] = {}
        for identity in body.members:
            code = ErrorCode.NONE
            try:
                member = self._leaver(group, identity)
                leaving[member.member_id] = member
            except KafkaError as error:
                code = error.code
            response.members.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(code),
                )
            )
        effects = self._consumers.remove(group, list(leaving.values()), now) if leaving else Effects()
        return effects.reply(token, response)

    def _leaver(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        instance_id = identity.group_instance_id
        if not identity.member_id and instance_id is not None:
            known = group.static_member(instance_id)
            return check_static(
                known, group.group_id, known.member_id if known is not None else "", instance_id
            )
        return self._classic_member(group, identity.member_id, instance_id)[0]


def _join_response(member: ConsumerMember) -> JoinGroupResponse:
    """Nobody leads: the members of such a group only ever fetch what was assigned."""
    assert member.classic is not None
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=member.classic.supported_protocols[0].name,
        leader="",
    )


def _subscription(body: JoinGroupRequest) -> ConsumerProtocolSubscription:
    try:
        return decode_subscription(bytes(body.protocols[0].metadata))
    except MalformedMessage as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the subscription cannot be read: {error}"
        ) from None
