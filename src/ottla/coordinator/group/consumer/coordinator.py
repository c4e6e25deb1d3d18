"""ConsumerGroupHeartbeat: members join, stay, change and leave, and the coordinator assigns.

A heartbeat does three things, each written as records: it creates or updates the member, and the group's
epoch grows if subscriptions or topics have changed; it computes a new target if the epoch is ahead of it;
and it takes the member a step towards its target. All of it is worked out on a draft of the group, and
becomes the group when the records are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ottla.coordinator.group import records
from ottla.coordinator.group.consumer.group import (
    FIRST_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    ResolvedRegex,
)
from ottla.coordinator.group.consumer.members import (
    assignment_of,
    check_epoch,
    check_request,
    check_static,
    member_tombstones,
    owned_partitions,
    replace_member,
    says_nothing_new,
)
from ottla.coordinator.group.consumer.reconciliation import reconcile
from ottla.coordinator.group.consumer.subscriptions import (
    check_regex,
    matching_topics,
    metadata_hash,
    topic_ids,
)
from ottla.coordinator.group.consumer.target_assignment import new_target
from ottla.coordinator.group.migration import Migration
from ottla.coordinator.group.requests import GroupRequest
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_RETRY_MS: Final = 500


class ConsumerCoordinator:
    __slots__ = ("_migration", "_state")

    def __init__(self, state: GroupState, migration: Migration) -> None:
        self._state = state
        self._migration = migration

    # Heartbeats

    def heartbeat(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime
    ) -> Effects:
        body: ConsumerGroupHeartbeatRequest = request.body
        check_request(request, self._state.settings.node.consumer_assignors)
        if body.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(token, body, now)
        if self._is_quiet(request, now):
            self._watch(body.group_id, body.member_id, now)
            return Effects().reply(token, self._response(body, body.member_id, body.member_epoch))
        effects = Effects()
        draft, changed = self._group_of(body, effects, now)
        limit = self._state.settings.node.consumer_max_size
        if len(draft.members) >= limit and body.member_id not in draft.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {body.group_id} has its {limit} members (group.consumer.max.size)",
            )
        out: list[CoordinatorRecord] = effects.records
        member_id = body.member_id or self._state.new_id()
        member = self._member_of(draft, member_id, body, out)
        updated = self._updated(member, request)
        owned = owned_partitions(body.topic_partitions)
        moved = self.advance(draft, member, updated, owned, request, out, now, created=changed)
        effects.extend(Effects(applied=partial(self._watch, body.group_id, member_id)))
        if moved != updated:
            effects.extend(Effects(applied=partial(self._watch_revocation, body.group_id, moved)))
        full = (
            body.rebalance_timeout_ms != -1
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and body.topic_partitions is not None
        )
        response = self._response(body, member_id, moved.epoch)
        if body.member_epoch == JOIN_EPOCH or full or moved.assigned != member.assigned:
            response.assignment = assignment_of(moved)
        return effects.reply(token, response)

    def _response(
        self, body: ConsumerGroupHeartbeatRequest, member_id: str, epoch: int
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=self._state.settings.heartbeat_interval_ms(body.group_id),
        )

    def _is_quiet(self, request: GroupRequest[Any, Any], now: EventTime) -> bool:
        """Whether the member says nothing new and there is nothing to tell it, which holds for nearly all
        heartbeats: then no draft is needed to know that nothing changes.
        """
        body: ConsumerGroupHeartbeatRequest = request.body
        group = self._state.groups.get(body.group_id)
        if not isinstance(group, ConsumerGroup) or group.regexes:
            return False
        member = group.members.get(body.member_id)
        return (
            member is not None
            and says_nothing_new(member, request)
            and member.is_reconciled_to(group.target_epoch)
            and group.seen_topics is self._state.image.topics
            and (
                group.epoch == group.target_epoch
                or (
                    self._target_delay_ms(group, now) > 0 and (group.group_id, "target") in self._state.timers
                )
            )
        )

    def _group_of(
        self, body: ConsumerGroupHeartbeatRequest, effects: Effects, now: EventTime
    ) -> tuple[ConsumerGroup, bool]:
        """A draft of the group, and whether this heartbeat makes it."""
        group = self._state.groups.get(body.group_id)
        if isinstance(group, ConsumerGroup):
            return group.draft(), False
        if body.member_epoch != JOIN_EPOCH:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"there is no consumer group {body.group_id!r}; join with epoch 0",
            )
        if group is None:
            return ConsumerGroup(body.group_id), True
        if group.is_empty:
            if not group.is_simple:
                effects.records.append(records.group_metadata(body.group_id, None))
            return ConsumerGroup(body.group_id), True
        draft = self._migration.upgrade(group, effects, now)
        effects.extend(Effects(applied=partial(self._watch_all, body.group_id)))
        return draft, True

    def _watch_all(self, group_id: str, now: EventTime) -> None:
        group = self._state.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        self.loaded(group, now)

    def _member_of(
        self,
        draft: ConsumerGroup,
        member_id: str,
        body: ConsumerGroupHeartbeatRequest,
        out: list[CoordinatorRecord],
    ) -> ConsumerMember:
        joining = body.member_epoch == JOIN_EPOCH
        if body.instance_id is not None:
            known = draft.static_member(body.instance_id)
            if joining:
                if known is None:
                    return draft.members.get(member_id) or ConsumerMember(member_id)
                if not known.is_classic and not known.has_left and known.member_id != member_id:
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"instance {body.instance_id} of group {body.group_id} is member {known.member_id}, "
                        "which has not left",
                    )
                return replace_member(draft, known, member_id, out)
            check_static(known, body.group_id, member_id, body.instance_id)
        elif joining and member_id not in draft.members:
            return ConsumerMember(member_id)
        member = draft.member(member_id)
        check_epoch(member, body)
        return member

    def _updated(self, member: ConsumerMember, request: GroupRequest[Any, Any]) -> ConsumerMember:
        body: ConsumerGroupHeartbeatRequest = request.body
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

    # What a member's change does to its group

    def advance(
        self,
        draft: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: Partitions | None,
        request: GroupRequest[Any, Any],
        out: list[CoordinatorRecord],
        now: EventTime,
        *,
        created: bool = False,
    ) -> ConsumerMember:
        """Bring group and member up to date; the member as it then is."""
        group_id = draft.group_id
        if updated != member or member.member_id not in draft.members:
            out.append(records.member_subscription(group_id, updated))
        names_changed = updated.topics != member.topics
        regex_changed = updated.regex != member.regex
        is_new = member.member_id not in draft.members
        draft.update(updated)
        self._resolve(draft, member, updated, request, out, now)
        subscription_changed = names_changed or regex_changed
        bump = created or draft.epoch == 0 or names_changed or regex_changed or is_new
        if bump or draft.seen_topics is not self._state.image.topics:
            self._refresh(draft, bump, out)
        self.retarget(draft, out, now, updated)
        return self._step(draft, updated, owned, out, subscription_changed=subscription_changed)

    def _refresh(self, draft: ConsumerGroup, bump: bool, out: list[CoordinatorRecord]) -> None:
        image = self._state.image
        digest = metadata_hash(draft.subscribed_topics, image)
        if bump or digest != draft.metadata_hash:
            draft.epoch = max(draft.epoch + 1, FIRST_EPOCH)
            draft.metadata_hash = digest
            out.append(records.group_epoch(draft.group_id, draft.epoch, digest))
            return
        # Nothing to write: the group itself may remember that it was compared.
        group = self._state.groups.get(draft.group_id)
        if isinstance(group, ConsumerGroup):
            group.seen_topics = image.topics

    def _resolve(
        self,
        draft: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        request: GroupRequest[Any, Any],
        out: list[CoordinatorRecord],
        now: EventTime,
    ) -> None:
        """Match regular expressions that are new, or all of them if there may be other topics now."""
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
        image = self._state.image
        stale = draft.seen_topics is not image.topics
        oldest_ms = now.wall_ms - self._state.settings.node.consumer_regex_refresh_interval_ms
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

    def retarget(
        self,
        draft: ConsumerGroup,
        out: list[CoordinatorRecord],
        now: EventTime,
        member: ConsumerMember | None = None,
    ) -> None:
        """Compute a new target if the group is ahead of the one it has and the last is old enough."""
        group_id = draft.group_id
        if draft.epoch <= draft.target_epoch:
            return
        delay_ms = self._target_delay_ms(draft, now)
        if delay_ms > 0:
            self._state.timers.schedule(
                (group_id, "target"), now.tick_ms + delay_ms, partial(self._target_due, group_id)
            )
            return
        assignor = draft.preferred_assignor or self._state.settings.node.consumer_assignors[0]
        for member_id, target in new_target(draft, assignor, self._state.image).items():
            if draft.target.get(member_id) != target:
                out.append(records.target_assignment(group_id, member_id, target))
                draft.target[member_id] = target
        out.append(records.target_epoch(group_id, draft.epoch, now.wall_ms))
        draft.target_epoch = draft.epoch
        draft.target_timestamp_ms = now.wall_ms
        self._state.timers.cancel((group_id, "target"))

    def _target_delay_ms(self, group: ConsumerGroup, now: EventTime) -> int:
        """How long a new target has to wait, as the last one is so young; one for a single member never."""
        if group.target_timestamp_ms < 0 or len(group.members) <= 1:
            return 0
        interval_ms = self._state.settings.assignment_interval_ms(group.group_id)
        since_ms = now.wall_ms - group.target_timestamp_ms
        return interval_ms - since_ms if 0 <= since_ms < interval_ms else 0

    def _target_due(self, group_id: str, now: EventTime) -> Effects:
        group = self._state.groups.get(group_id)
        effects = Effects()
        if isinstance(group, ConsumerGroup) and group.members:
            self.retarget(group.draft(), effects.records, now)
        return effects

    def _step(
        self,
        draft: ConsumerGroup,
        member: ConsumerMember,
        owned: Partitions | None,
        out: list[CoordinatorRecord],
        *,
        subscription_changed: bool,
    ) -> ConsumerMember:
        """Take the member a step towards its target."""
        if member.is_reconciled_to(draft.target_epoch) and not subscription_changed:
            return member
        updated = reconcile(
            member,
            draft.target_epoch,
            draft.target.get(member.member_id, {}),
            lambda topic_id, partition: draft.owners.get((topic_id, partition)),
            owned,
            topic_ids(draft.topics_of(member), self._state.image),
            subscription_changed=subscription_changed,
        )
        if updated != member:
            out.append(records.current_assignment(draft.group_id, updated))
            draft.update(updated)
        return updated

    # Deadlines

    def _watch(self, group_id: str, member_id: str, now: EventTime) -> None:
        self.watch_session(group_id, member_id, self._state.settings.session_timeout_ms(group_id), now)

    def watch_session(self, group_id: str, member_id: str, timeout_ms: int, now: EventTime) -> None:
        key = (group_id, "session", member_id)
        self._state.timers.schedule(key, now.tick_ms + timeout_ms, partial(self._overdue, key, None))

    def _watch_revocation(self, group_id: str, member: ConsumerMember, now: EventTime) -> None:
        """Give a member that has just been asked to revoke its time for that. Called once the member is
        written: a deadline that a failed write had cancelled or set would not be that of the member.
        """
        key = (group_id, "revocation", member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._state.timers.cancel(key)
        else:
            deadline_ms = now.tick_ms + max(member.rebalance_timeout_ms, 0)
            self._state.timers.schedule(key, deadline_ms, partial(self._overdue, key, member.epoch))

    def _overdue(self, key: tuple[str, str, str], epoch: int | None, now: EventTime) -> Effects:
        """A session is over, or a revocation was not confirmed in the epoch in which it was asked for."""
        group_id, _, member_id = key
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return Effects()
        member = group.members.get(member_id)
        if member is None:
            return Effects()
        if epoch is not None and (
            member.epoch != epoch or member.state is not MemberState.UNREVOKED_PARTITIONS
        ):
            return Effects()
        return self.expel(group, member, key, partial(self._overdue, key, epoch), now)

    def expel(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        key: tuple[str, str, str],
        again: Callable[[EventTime], Effects],
        now: EventTime,
    ) -> Effects:
        """Remove a member whose time is up. If that cannot be written it is tried again: its deadline has
        passed, and nobody else would do it.
        """

        def later(_error: KafkaError, then: EventTime) -> Effects:
            self._state.timers.schedule(key, then.tick_ms + _RETRY_MS, again)
            return Effects()

        return self.remove(group, [member], now).extend(Effects(failed=later))

    def loaded(self, group: ConsumerGroup, now: EventTime) -> None:
        for member in group.members.values():
            timeout_ms = (
                member.classic.session_timeout_ms
                if member.classic is not None
                else self._state.settings.session_timeout_ms(group.group_id)
            )
            self.watch_session(group.group_id, member.member_id, timeout_ms, now)
            if not member.is_classic:
                self._watch_revocation(group.group_id, member, now)

    # Leaving

    def _leave(
        self, token: ReplyTo[Any] | None, body: ConsumerGroupHeartbeatRequest, now: EventTime
    ) -> Effects:
        group = self._state.groups.get(body.group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {body.group_id!r}")
        response = ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        if body.instance_id is None:
            member = group.member(body.member_id)
        else:
            known = group.static_member(body.instance_id)
            member = check_static(known, body.group_id, body.member_id, body.instance_id)
            if body.member_epoch == STATIC_LEAVE_EPOCH:
                away = replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})
                effects = Effects(records=[records.current_assignment(body.group_id, away)])
                return effects.reply(token, response)
        return self.remove(group, [member], now).reply(token, response)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerMember], now: EventTime) -> Effects:
        """Remove members; if only classic ones stay, the group may become a classic one again."""
        ids = frozenset(member.member_id for member in leaving)
        if self._migration.may_downgrade(group, ids):
            return self._migration.downgrade(group, ids, now, rebalance=True)
        effects = Effects()
        draft = group.draft()
        for member in leaving:
            member_tombstones(draft, member.member_id, effects.records)
            draft.remove(member.member_id)
            draft.target.pop(member.member_id, None)
            if (
                member.regex
                and member.regex not in draft.subscribed_regexes
                and member.regex in draft.regexes
            ):
                del draft.regexes[member.regex]
                effects.records.append(records.regular_expression_tombstone(group.group_id, member.regex))
        self._refresh(draft, True, effects.records)
        return effects.extend(Effects(applied=partial(self._watch_no_more, group.group_id, ids)))

    def _watch_no_more(self, group_id: str, member_ids: frozenset[str], _now: EventTime) -> None:
        for member_id in member_ids:
            for kind in ("session", "revocation", "join", "sync"):
                self._state.timers.cancel((group_id, kind, member_id))
