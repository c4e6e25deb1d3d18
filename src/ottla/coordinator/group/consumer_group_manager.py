"""Consumer groups: members join, stay, change and leave with heartbeats, and the coordinator assigns.

A ConsumerGroupHeartbeat does three things, each written as records: it creates or updates the member, and the
group epoch grows if subscriptions or topics have changed; it computes a new target assignment if the group
epoch is ahead of it; and it takes the member a step towards its target. All of it is done on a draft of the
group, and becomes the group when the records are replayed. A member is fenced when its session ends, when it
does not revoke partitions in time, and when it leaves.

Classic members of a consumer group join, sync and send heartbeats as before, and the coordinator assigns for
them: a JoinGroup is a heartbeat that joins, its generation is the member's epoch, and a SyncGroup fetches the
assignment. A Heartbeat gets REBALANCE_IN_PROGRESS when the member has to rejoin: the group has a new epoch,
the member has to give partitions up, or the ones it waited for are free. Each such reply sets a deadline by
which the member must rejoin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from ottla.coordinator.group.classic_group_manager import (
    join_error,
    member_protocols,
    rebalance_in_progress,
    rebalance_timeout_ms,
    requires_known_member_id,
)
from ottla.coordinator.group.consumer.consumer_group import (
    FIRST_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    Partitions,
    ResolvedRegex,
    partitions_of,
)
from ottla.coordinator.group.consumer.current_assignment_builder import CurrentAssignmentBuilder
from ottla.coordinator.group.consumer.subscriptions import (
    check_regex,
    matching_topics,
    metadata_hash,
    topic_ids,
)
from ottla.coordinator.group.consumer.target_assignment_builder import build_target_assignment
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager
from ottla.coordinator.group.heartbeat_interval import heartbeat_interval_ms
from ottla.coordinator.group.migration import GroupMigration, assignment_bytes
from ottla.coordinator.group.requests import (
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.protocol.consumer_offsets_records import ClassicMemberMetadata, ClassicProtocol
from ottla.protocol.consumer_protocol import ConsumerProtocolSubscription, decode_subscription
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

_RETRY_MS: Final = 500
# An assignment that a member has not reported is repeated: as late as a client of Apache Kafka's default
# interval gives up a heartbeat.
_REPEATED_AFTER_MS: Final = 5_000

_MemberRequest: TypeAlias = ConsumerGroupHeartbeat | JoinGroup


class ConsumerGroupManager:
    __slots__ = ("_metadata", "_migration")

    def __init__(self, metadata: GroupMetadataManager, migration: GroupMigration) -> None:
        self._metadata = metadata
        self._migration = migration

    # Heartbeats

    def consumer_group_heartbeat(
        self,
        to: ReplyTo[ConsumerGroupHeartbeatResponse] | None,
        request: ConsumerGroupHeartbeat,
        now: EventTime,
    ) -> Effects:
        body = request.body
        _check_heartbeat(request, self._metadata.settings.node.consumer_assignors)
        if body.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._consumer_group_leave(to, body, now)
        if self._is_unchanged(request, now):
            self._schedule_consumer_session_timeout(body.group_id, body.member_id, now)
            group = self._metadata.groups[body.group_id]
            assert isinstance(group, ConsumerGroup)
            return Effects().reply(to, self._response(group, body.member_id, body.member_epoch, now))
        effects = Effects()
        draft, changed = self._get_or_create_group(body, effects, now)
        limit = self._metadata.settings.node.consumer_max_size
        if len(draft.members) >= limit and body.member_id not in draft.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members "
                "(group.consumer.max.size).",
            )
        out: list[CoordinatorRecord] = effects.records
        member_id = body.member_id or self._metadata.new_id()
        member = self._get_or_subscribe_member(draft, member_id, body, out)
        updated = self._update_member(member, request)
        owned = _owned_partitions(body.topic_partitions)
        moved = self._advance(draft, member, updated, owned, request, out, now, created=changed)
        effects.extend(
            Effects(on_applied=partial(self._schedule_consumer_session_timeout, body.group_id, member_id))
        )
        if moved != updated:
            effects.extend(
                Effects(on_applied=partial(self._schedule_rebalance_timeout, body.group_id, moved))
            )
        full = (
            body.rebalance_timeout_ms != -1
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and body.topic_partitions is not None
        )
        if out:
            draft.changed_ms = now.tick_ms
            effects.extend(Effects(on_applied=partial(self._on_changed, body.group_id)))
        response = self._response(draft, member_id, moved.epoch, now)
        is_new = body.member_epoch == JOIN_EPOCH or full or moved.assigned != member.assigned
        _note_report(draft, moved, owned)
        if is_new or _is_unreported(draft, member_id, now):
            response.assignment = _assignment_of(moved)
            if moved.assigned or member.assigned:
                draft.unreported[member_id] = now.tick_ms
        return effects.reply(to, response)

    def _response(
        self, group: ConsumerGroup, member_id: str, epoch: int, now: EventTime
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=heartbeat_interval_ms(
                self._metadata.settings.heartbeat_interval_ms(group.group_id),
                members=len(group.members),
                is_settled=group.is_settled,
                since_change_ms=None if group.changed_ms is None else now.tick_ms - group.changed_ms,
            ),
        )

    def _on_changed(self, group_id: str, now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.changed_ms = now.tick_ms

    def _is_unchanged(self, request: ConsumerGroupHeartbeat, now: EventTime) -> bool:
        """Whether a heartbeat changes nothing and there is nothing to tell the member, which holds for nearly
        all heartbeats: then no draft is needed.
        """
        body = request.body
        group = self._metadata.groups.get(body.group_id)
        if not isinstance(group, ConsumerGroup) or group.regexes:
            return False
        member = group.members.get(body.member_id)
        return (
            member is not None
            and body.member_id not in group.unreported
            and _is_plain_heartbeat(member, request)
            and member.is_reconciled_to(group.target_epoch)
            and group.seen_topics is self._metadata.image.topics
            and (
                group.epoch == group.target_epoch
                or (
                    self._assignment_delay_ms(group, now) > 0
                    and (group.group_id, "target") in self._metadata.timer
                )
            )
        )

    def _get_or_create_group(
        self, body: ConsumerGroupHeartbeatRequest, effects: Effects, now: EventTime
    ) -> tuple[ConsumerGroup, bool]:
        """A draft of the group, and whether this heartbeat creates the group."""
        group = self._metadata.groups.get(body.group_id)
        if isinstance(group, ConsumerGroup):
            return group.draft(), False
        if group is not None and not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {body.group_id} is not a consumer group.")
        if body.member_epoch != JOIN_EPOCH:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Consumer group {body.group_id} not found; join with epoch 0",
            )
        if group is None:
            return ConsumerGroup(body.group_id), True
        if group.is_empty:
            if not group.is_simple:
                effects.records.append(records.group_metadata(body.group_id, None))
            return ConsumerGroup(body.group_id), True
        draft = self._migration.convert_to_consumer_group(group, effects, now)
        effects.extend(Effects(on_applied=partial(self._on_converted, body.group_id)))
        return draft, True

    def _on_converted(self, group_id: str, now: EventTime) -> None:
        group = self._metadata.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        self.on_loaded(group, now)

    def _get_or_subscribe_member(
        self,
        draft: ConsumerGroup,
        member_id: str,
        body: ConsumerGroupHeartbeatRequest,
        out: list[CoordinatorRecord],
    ) -> ConsumerGroupMember:
        joining = body.member_epoch == JOIN_EPOCH
        if body.instance_id is not None:
            known = draft.static_member(body.instance_id)
            if joining:
                if known is None:
                    return draft.members.get(member_id) or ConsumerGroupMember(member_id)
                if not known.is_classic and not known.has_left and known.member_id != member_id:
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {member_id} with instance id {body.instance_id} cannot join the "
                        f"group because the instance id is owned by member {known.member_id}.",
                    )
                return _replace_member(draft, known, member_id, out)
            _check_static_member(known, body.group_id, member_id, body.instance_id)
        elif joining and member_id not in draft.members:
            return ConsumerGroupMember(member_id)
        member = draft.member(member_id)
        _check_member_epoch(member, body)
        return member

    def _update_member(
        self, member: ConsumerGroupMember, request: ConsumerGroupHeartbeat
    ) -> ConsumerGroupMember:
        body = request.body
        names, regex = body.subscribed_topic_names, body.subscribed_topic_regex
        return replace(
            member,
            instance_id=body.instance_id if body.instance_id is not None else member.instance_id,
            rack_id=body.rack_id if body.rack_id is not None else member.rack_id,
            rebalance_timeout_ms=body.rebalance_timeout_ms
            if body.rebalance_timeout_ms != -1
            else member.rebalance_timeout_ms,
            server_assignor=body.server_assignor
            if body.server_assignor is not None
            else member.server_assignor,
            topics=frozenset(names) if names is not None else member.topics,
            regex=regex if regex is not None else member.regex,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=None,
        )

    # Updates of the group by a member

    def _advance(
        self,
        draft: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        owned: Partitions | None,
        request: _MemberRequest,
        out: list[CoordinatorRecord],
        now: EventTime,
        *,
        created: bool = False,
    ) -> ConsumerGroupMember:
        """Update the group and the member, up to its next step towards its target; the updated member."""
        group_id = draft.group_id
        if updated != member or member.member_id not in draft.members:
            out.append(records.member_subscription(group_id, updated))
        names_changed = updated.topics != member.topics
        regex_changed = updated.regex != member.regex
        is_new = member.member_id not in draft.members
        draft.update(updated)
        self._resolve_regular_expressions(draft, member, updated, request, out, now)
        subscription_changed = names_changed or regex_changed
        bump = created or draft.epoch == 0 or names_changed or regex_changed or is_new
        if bump or draft.seen_topics is not self._metadata.image.topics:
            self._maybe_bump_group_epoch(draft, bump, out)
        self._update_target_assignment(draft, out, now)
        return self._maybe_reconcile(draft, updated, owned, out, subscription_changed=subscription_changed)

    def _maybe_bump_group_epoch(self, draft: ConsumerGroup, bump: bool, out: list[CoordinatorRecord]) -> None:
        image = self._metadata.image
        digest = metadata_hash(draft.subscribed_topics, image)
        if bump or digest != draft.metadata_hash:
            draft.epoch = max(draft.epoch + 1, FIRST_EPOCH)
            draft.metadata_hash = digest
            out.append(records.group_epoch(draft.group_id, draft.epoch, digest))
            return
        # Nothing to write: the group itself notes that the hash was compared with these topics.
        group = self._metadata.groups.get(draft.group_id)
        if isinstance(group, ConsumerGroup):
            group.seen_topics = image.topics

    def _resolve_regular_expressions(
        self,
        draft: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        request: _MemberRequest,
        out: list[CoordinatorRecord],
        now: EventTime,
    ) -> None:
        """Resolve regular expressions that are new, or all of them if the topics may have changed."""
        if not (member.regex or updated.regex or draft.regexes):
            return
        subscribed = draft.subscribed_regexes
        if member.regex and member.regex not in subscribed and member.regex in draft.regexes:
            del draft.regexes[member.regex]
            out.append(records.regular_expression_tombstone(draft.group_id, member.regex))
        if not subscribed:
            return
        if updated.regex and updated.regex != member.regex:
            check_regex(updated.regex)
        image = self._metadata.image
        stale = draft.seen_topics is not image.topics
        oldest_ms = now.wall_ms - self._metadata.settings.node.consumer_regex_refresh_interval_ms
        for regex in sorted(subscribed):
            known = draft.regexes.get(regex)
            if known is not None and not stale and known.timestamp_ms > oldest_ms:
                continue
            topics = matching_topics(regex, image, request.sees_topic)
            if known is None or known.topics != topics or known.timestamp_ms <= oldest_ms:
                version = image.provenance.last_contained_offset
                draft.regexes[regex] = ResolvedRegex(topics, version, now.wall_ms)
                out.append(records.regular_expression(draft.group_id, regex, topics, version, now.wall_ms))
                draft.seen_topics = None

    def _update_target_assignment(
        self, draft: ConsumerGroup, out: list[CoordinatorRecord], now: EventTime
    ) -> None:
        """Compute a new target if the group epoch is ahead of the target's and the last one is old enough."""
        group_id = draft.group_id
        if draft.epoch <= draft.target_epoch:
            return
        delay_ms = self._assignment_delay_ms(draft, now)
        if delay_ms > 0:
            self._metadata.timer.schedule(
                (group_id, "target"), now.tick_ms + delay_ms, partial(self._on_assignment_due, group_id)
            )
            return
        assignor = draft.preferred_assignor or self._metadata.settings.node.consumer_assignors[0]
        for member_id, target in build_target_assignment(draft, assignor, self._metadata.image).items():
            if draft.target.get(member_id) != target:
                out.append(records.target_assignment(group_id, member_id, target))
                draft.target[member_id] = target
        out.append(records.target_epoch(group_id, draft.epoch, now.wall_ms))
        draft.target_epoch = draft.epoch
        draft.target_timestamp_ms = now.wall_ms
        self._metadata.timer.cancel((group_id, "target"))

    def _assignment_delay_ms(self, group: ConsumerGroup, now: EventTime) -> int:
        """How long a new target waits after the last one; the target of a single member never waits."""
        if group.target_timestamp_ms < 0 or len(group.members) <= 1:
            return 0
        interval_ms = self._metadata.settings.assignment_interval_ms(group.group_id)
        since_ms = now.wall_ms - group.target_timestamp_ms
        return interval_ms - since_ms if 0 <= since_ms < interval_ms else 0

    def _on_assignment_due(self, group_id: str, now: EventTime) -> Effects:
        group = self._metadata.groups.get(group_id)
        effects = Effects()
        if isinstance(group, ConsumerGroup) and group.members:
            self._update_target_assignment(group.draft(), effects.records, now)
            if effects.records:
                effects.on_applied = partial(self._on_changed, group_id)
        return effects

    def _maybe_reconcile(
        self,
        draft: ConsumerGroup,
        member: ConsumerGroupMember,
        owned: Partitions | None,
        out: list[CoordinatorRecord],
        *,
        subscription_changed: bool,
    ) -> ConsumerGroupMember:
        """Take the member a step towards its target assignment."""
        if member.is_reconciled_to(draft.target_epoch) and not subscription_changed:
            return member
        updated = CurrentAssignmentBuilder(
            member,
            draft.target_epoch,
            draft.target.get(member.member_id, {}),
            lambda topic_id, partition: draft.owners.get((topic_id, partition)),
            owned,
            topic_ids(draft.topics_of(member), self._metadata.image),
        ).build(subscription_changed=subscription_changed)
        if updated != member:
            out.append(records.current_assignment(draft.group_id, updated))
            draft.update(updated)
        return updated

    # Deadlines

    def _schedule_consumer_session_timeout(self, group_id: str, member_id: str, now: EventTime) -> None:
        self._schedule_session_timeout(
            group_id, member_id, self._metadata.settings.session_timeout_ms(group_id), now
        )

    def _schedule_session_timeout(
        self, group_id: str, member_id: str, timeout_ms: int, now: EventTime
    ) -> None:
        key = (group_id, "session", member_id)
        self._metadata.timer.schedule(key, now.tick_ms + timeout_ms, partial(self._on_timeout, key, None))

    def _schedule_rebalance_timeout(self, group_id: str, member: ConsumerGroupMember, now: EventTime) -> None:
        """Fence a member that does not revoke partitions within its rebalance timeout. Called after the
        member is written: a failed write must neither set nor cancel its deadline.
        """
        key = (group_id, "revocation", member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._metadata.timer.cancel(key)
        else:
            deadline_ms = now.tick_ms + max(member.rebalance_timeout_ms, 0)
            self._metadata.timer.schedule(key, deadline_ms, partial(self._on_timeout, key, member.epoch))

    def _on_timeout(self, key: tuple[str, str, str], epoch: int | None, now: EventTime) -> Effects:
        """Fence a member whose session timed out, or that has not revoked partitions in the epoch in which it
        was asked to.
        """
        group_id, _, member_id = key
        group = self._metadata.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return Effects()
        member = group.members.get(member_id)
        if member is None:
            return Effects()
        if epoch is not None and (
            member.epoch != epoch or member.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            return Effects()
        return self._fence_expired_member(group, member, key, partial(self._on_timeout, key, epoch), now)

    def _fence_expired_member(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        key: tuple[str, str, str],
        again: Callable[[EventTime], Effects],
        now: EventTime,
    ) -> Effects:
        """Fence a member whose deadline has passed. If that cannot be written it is tried again, since
        nothing else would remove the member.
        """

        def schedule_retry(_error: KafkaError, then: EventTime) -> Effects:
            self._metadata.timer.schedule(key, then.tick_ms + _RETRY_MS, again)
            return Effects()

        return self.fence_members(group, [member], now).extend(Effects(on_failed=schedule_retry))

    def on_loaded(self, group: ConsumerGroup, now: EventTime) -> None:
        if not group.is_settled:
            group.changed_ms = now.tick_ms
        for member in group.members.values():
            timeout_ms = (
                member.classic.session_timeout_ms
                if member.classic is not None
                else self._metadata.settings.session_timeout_ms(group.group_id)
            )
            self._schedule_session_timeout(group.group_id, member.member_id, timeout_ms, now)
            if not member.is_classic:
                self._schedule_rebalance_timeout(group.group_id, member, now)

    # Leaving

    def _consumer_group_leave(
        self,
        to: ReplyTo[ConsumerGroupHeartbeatResponse] | None,
        body: ConsumerGroupHeartbeatRequest,
        now: EventTime,
    ) -> Effects:
        group = self._metadata.groups.get(body.group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {body.group_id} not found.")
        response = ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        if body.instance_id is None:
            member = group.member(body.member_id)
        else:
            known = group.static_member(body.instance_id)
            member = _check_static_member(known, body.group_id, body.member_id, body.instance_id)
            if body.member_epoch == STATIC_LEAVE_EPOCH:
                away = replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})
                effects = Effects(records=[records.current_assignment(body.group_id, away)])
                return effects.reply(to, response)
        return self.fence_members(group, [member], now).reply(to, response)

    def fence_members(
        self, group: ConsumerGroup, leaving: list[ConsumerGroupMember], now: EventTime
    ) -> Effects:
        """Remove members and raise the group epoch: they are fenced and their partitions are reassigned. If
        only classic members remain, the group may become a classic one again.
        """
        ids = frozenset(member.member_id for member in leaving)
        if self._migration.allows_downgrade(group, ids):
            return self._migration.convert_to_classic_group(group, ids, now, rebalance=True)
        effects = Effects()
        draft = group.draft()
        for member in leaving:
            _member_tombstones(draft, member.member_id, effects.records)
            draft.remove(member.member_id)
            draft.target.pop(member.member_id, None)
            if (
                member.regex
                and member.regex not in draft.subscribed_regexes
                and member.regex in draft.regexes
            ):
                del draft.regexes[member.regex]
                effects.records.append(records.regular_expression_tombstone(group.group_id, member.regex))
        self._maybe_bump_group_epoch(draft, True, effects.records)
        return effects.extend(Effects(on_applied=partial(self._on_members_removed, group.group_id, ids)))

    def _on_members_removed(self, group_id: str, member_ids: frozenset[str], now: EventTime) -> None:
        for member_id in sorted(member_ids):
            for kind in ("session", "revocation", "join", "sync"):
                self._metadata.timer.cancel((group_id, kind, member_id))
        self._on_changed(group_id, now)

    # Classic members: JoinGroup

    def join_group(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        request: JoinGroup,
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body = request.body
        limit = self._metadata.settings.node.consumer_max_size
        if len(group.members) >= limit and body.member_id not in group.members:
            return Effects().reply(to, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, body.member_id))
        names = {protocol.name for protocol in body.protocols}
        if not group.supports_classic(body.protocol_type, names, body.member_id):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the classic members of consumer group {body.group_id} have no protocol in common with "
                f"{body.protocol_type} {sorted(names)}",
            )
        member_id = body.member_id or f"{request.client_id}-{self._metadata.new_id()}"
        if requires_known_member_id(request):
            return Effects().reply(to, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        subscription = _classic_subscription(body)
        effects = Effects()
        draft = group.draft()
        known = draft.static_member(body.group_instance_id)
        downgrade = self._migration.allows_downgrade_by(group, known)
        if body.group_instance_id is None:
            member = draft.members.get(member_id) or ConsumerGroupMember(member_id)
        elif body.member_id:
            member = _check_static_member(known, body.group_id, member_id, body.group_instance_id)
        elif known is None:
            member = ConsumerGroupMember(member_id)
        else:
            member = _replace_member(draft, known, member_id, effects.records)
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
            return effects.extend(self._join_and_downgrade(to, draft, updated, changed, now))
        owned = self._owned_by_classic_member(subscription)
        updated = self._advance(draft, member, updated, owned, request, effects.records, now)
        effects.reply(to, _classic_join_response(updated))
        effects.extend(
            Effects(
                on_applied=partial(
                    self._on_classic_member_joined, body.group_id, member_id, body.session_timeout_ms
                )
            )
        )
        return effects

    def _join_and_downgrade(
        self,
        to: ReplyTo[JoinGroupResponse] | None,
        draft: ConsumerGroup,
        member: ConsumerGroupMember,
        changed: bool,
        now: EventTime,
    ) -> Effects:
        member = replace(member, epoch=draft.epoch)
        draft.update(member)
        effects = self._migration.convert_to_classic_group(draft, frozenset(), now, rebalance=changed)
        return effects.reply(to, _classic_join_response(member))

    def _owned_by_classic_member(
        self, subscription: ConsumerProtocolSubscription
    ) -> dict[bytes, frozenset[int]]:
        by_name = self._metadata.image.topics.by_name
        return {
            by_name[topic.topic].id: frozenset(topic.partitions)
            for topic in subscription.owned_partitions
            if topic.topic in by_name
        }

    def _on_classic_member_joined(
        self, group_id: str, member_id: str, session_timeout_ms: int, now: EventTime
    ) -> None:
        self._metadata.timer.cancel((group_id, "join", member_id))
        self._on_changed(group_id, now)
        group = self._metadata.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and member_id in group.members:
            self._schedule_session_timeout(group_id, member_id, session_timeout_ms, now)
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            self._schedule_join_or_sync_timeout(group_id, "sync", member_id, timeout_ms, now)

    def _schedule_join_or_sync_timeout(
        self, group_id: str, kind: str, member_id: str, timeout_ms: int, now: EventTime
    ) -> None:
        key = (group_id, kind, member_id)
        self._metadata.timer.schedule(
            key, now.tick_ms + timeout_ms, partial(self._on_join_or_sync_timeout, key)
        )

    def _on_join_or_sync_timeout(self, key: tuple[str, str, str], now: EventTime) -> Effects:
        group_id, _, member_id = key
        group = self._metadata.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if not isinstance(group, ConsumerGroup) or not isinstance(member, ConsumerGroupMember):
            return Effects()
        return self._fence_expired_member(
            group, member, key, partial(self._on_join_or_sync_timeout, key), now
        )

    # Classic members: SyncGroup

    def sync_group(
        self,
        to: ReplyTo[SyncGroupResponse] | None,
        request: SyncGroup,
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body = request.body
        member, classic = self._classic_member(group, body.member_id, body.group_instance_id)
        self._check_classic_generation(group, member, body.generation_id)
        protocol = classic.supported_protocols[0]
        if (body.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)) or (
            body.protocol_name not in (None, protocol.name)
        ):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"member {member.member_id} joined with {protocol.name}, not {body.protocol_name}",
            )
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._schedule_join_timeout(group, member, now)
            raise rebalance_in_progress(group.group_id)
        self._metadata.timer.cancel((group.group_id, "sync", member.member_id))
        self._schedule_session_timeout(group.group_id, member.member_id, classic.session_timeout_ms, now)
        return Effects().reply(
            to,
            SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol.name,
                assignment=assignment_bytes(member.assigned, bytes(protocol.metadata), self._metadata.image),
            ),
        )

    # Classic members: Heartbeat

    def heartbeat(
        self,
        to: ReplyTo[HeartbeatResponse] | None,
        request: Heartbeat,
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body = request.body
        member, classic = self._classic_member(group, body.member_id, body.group_instance_id)
        self._check_classic_generation(group, member, body.generation_id)
        self._schedule_session_timeout(group.group_id, member.member_id, classic.session_timeout_ms, now)
        if (
            group.epoch > member.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_unreleased(member))
        ):
            self._schedule_join_timeout(group, member, now)
            raise rebalance_in_progress(group.group_id)
        return Effects().reply(to, HeartbeatResponse())

    def _schedule_join_timeout(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now: EventTime
    ) -> None:
        if (group.group_id, "join", member.member_id) not in self._metadata.timer:
            self._schedule_join_or_sync_timeout(
                group.group_id, "join", member.member_id, member.rebalance_timeout_ms, now
            )

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
        if instance_id is not None:
            member = _check_static_member(
                group.static_member(instance_id), group.group_id, member_id, instance_id
            )
        else:
            member = group.member(member_id)
        if member.classic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"member {member_id} of group {group.group_id} does not use the classic protocol",
            )
        return member, member.classic

    def _check_classic_generation(
        self, group: ConsumerGroup, member: ConsumerGroupMember, generation: int
    ) -> None:
        if generation != member.epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"member {member.member_id} of group {group.group_id} is in epoch {member.epoch}, not in "
                f"generation {generation}",
            )

    # Classic members: LeaveGroup

    def leave_group(
        self,
        to: ReplyTo[LeaveGroupResponse] | None,
        request: LeaveGroup,
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        body = request.body
        response = LeaveGroupResponse()
        leaving: dict[str, ConsumerGroupMember] = {}
        for identity in body.members:
            code = ErrorCode.NONE
            try:
                member = self._leaving_member(group, identity)
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
        effects = self.fence_members(group, list(leaving.values()), now) if leaving else Effects()
        return effects.reply(to, response)

    def _leaving_member(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
        instance_id = identity.group_instance_id
        if not identity.member_id and instance_id is not None:
            known = group.static_member(instance_id)
            return _check_static_member(
                known, group.group_id, known.member_id if known is not None else "", instance_id
            )
        return self._classic_member(group, identity.member_id, instance_id)[0]


def _check_heartbeat(request: ConsumerGroupHeartbeat, assignors: tuple[str, ...]) -> None:
    """Raise unless the heartbeat is well formed."""
    body = request.body
    epoch = body.member_epoch
    if not body.member_id and (request.version >= 1 or epoch != JOIN_EPOCH):
        raise _invalid("MemberId can't be empty.")
    if body.instance_id == "" or body.rack_id == "":
        raise _invalid("InstanceId and RackId are null or not empty")
    if epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"MemberEpoch {epoch} is none")
    if epoch == STATIC_LEAVE_EPOCH and body.instance_id is None:
        raise _invalid("MemberEpoch -2 is for static members; InstanceId is null")
    if epoch == JOIN_EPOCH:
        if body.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs is missing in the heartbeat that joins")
        if body.topic_partitions is None or body.topic_partitions:
            raise _invalid("TopicPartitions is not empty in the heartbeat that joins")
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            raise _invalid("a heartbeat that joins needs SubscribedTopicNames or SubscribedTopicRegex")
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"there is no assignor {body.server_assignor!r}, only {', '.join(assignors)}",
        )


def _is_plain_heartbeat(member: ConsumerGroupMember, request: ConsumerGroupHeartbeat) -> bool:
    """Whether a heartbeat leaves the member as it is, apart from the partitions that it says it owns."""
    body = request.body
    return (
        body.member_epoch == member.epoch
        and body.member_epoch != JOIN_EPOCH
        and body.subscribed_topic_names is None
        and body.subscribed_topic_regex is None
        and body.instance_id is None
        and body.rack_id is None
        and body.rebalance_timeout_ms == -1
        and body.server_assignor is None
        and member.classic is None
        and not member.regex
        and member.client_id == request.client_id
        and member.client_host == request.client_host
    )


def _check_static_member(
    known: ConsumerGroupMember | None, group_id: str, member_id: str, instance_id: str
) -> ConsumerGroupMember:
    if known is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown in group {group_id}."
        )
    if known.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{known.member_id} of group {group_id}",
        )
    return known


def _replace_member(
    draft: ConsumerGroup, old: ConsumerGroupMember, member_id: str, out: list[CoordinatorRecord]
) -> ConsumerGroupMember:
    """Give a static member that is back a new id; it takes the place and the assignment of the old one."""
    group_id = draft.group_id
    member = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    if member_id != old.member_id:
        _member_tombstones(draft, old.member_id, out)
    target = draft.target.pop(old.member_id, {})
    draft.remove(old.member_id)
    draft.update(member)
    draft.target[member_id] = target
    out.append(records.member_subscription(group_id, member))
    out.append(records.target_assignment(group_id, member_id, target))
    out.append(records.current_assignment(group_id, member))
    return member


def _member_tombstones(draft: ConsumerGroup, member_id: str, out: list[CoordinatorRecord]) -> None:
    out.append(records.current_assignment_tombstone(draft.group_id, member_id))
    out.append(records.target_assignment_tombstone(draft.group_id, member_id))
    out.append(records.member_subscription_tombstone(draft.group_id, member_id))


def _check_member_epoch(member: ConsumerGroupMember, body: ConsumerGroupHeartbeatRequest) -> None:
    epoch = body.member_epoch
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch:
        # The reply with the new epoch may have been lost; fine if the member owns only what it is assigned.
        owned = _owned_partitions(body.topic_partitions)
        assigned = partitions_of(member.assigned)
        if owned is not None and all(
            partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items()
        ):
            return
    than = "smaller" if epoch < member.epoch else "larger"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _owned_partitions(topics: list[TopicPartitions] | None) -> dict[bytes, frozenset[int]] | None:
    if topics is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


def _note_report(
    group: ConsumerGroup, member: ConsumerGroupMember, owned: Mapping[bytes, frozenset[int]] | None
) -> None:
    """Note that a member owns what it was assigned, and forget those that are gone."""
    if member.member_id in group.unreported and owned == partitions_of(member.assigned):
        del group.unreported[member.member_id]
    if len(group.unreported) > len(group.members):
        for gone in [each for each in group.unreported if each not in group.members]:
            del group.unreported[gone]


def _is_unreported(group: ConsumerGroup, member_id: str, now: EventTime) -> bool:
    """Whether a response had the member's assignment some time ago, and the member has not said since that it
    owns it: the response may be lost. Clients repeat the heartbeat then, but not all of them ask for the
    assignment again.
    """
    told_ms = group.unreported.get(member_id)
    return told_ms is not None and now.tick_ms - told_ms >= _REPEATED_AFTER_MS


def _assignment_of(member: ConsumerGroupMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assigned.items())
        ]
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _classic_join_response(member: ConsumerGroupMember) -> JoinGroupResponse:
    """The reply to a classic member. It names no leader: the coordinator assigns."""
    assert member.classic is not None
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=member.classic.supported_protocols[0].name,
        leader="",
    )


def _classic_subscription(body: JoinGroupRequest) -> ConsumerProtocolSubscription:
    try:
        return decode_subscription(bytes(body.protocols[0].metadata))
    except MalformedMessage as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the subscription cannot be read: {error}"
        ) from None
