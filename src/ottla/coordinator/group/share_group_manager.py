"""Share groups: members join, stay, change and leave with heartbeats, and the coordinator assigns.

A ShareGroupHeartbeat does four things, each written as records: it creates or updates the member, and the
group epoch grows if subscriptions, topics or initialized partitions have changed; it computes a new target if
the group epoch is ahead of it; it takes the member to its target; and it has the states of partitions made
that are subscribed and have none. A partition is assigned once the share coordinator has its state.

The shard cannot wait for the share coordinator: it sends `ShareStatesToInitialize` out, and
`ShareStatesInitialized` brings the result back. A request whose result never comes, as the broker has
stopped, is repeated by the heartbeats of a later coordinator, or of this one after
`group.share.initialize.retry.interval.ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Final

from ottla.coordinator.group.consumer.subscriptions import metadata_hash, topic_ids
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager
from ottla.coordinator.group.heartbeat_interval import heartbeat_interval_ms
from ottla.coordinator.group.requests import (
    AlteredShareGroupOffsets,
    AlterShareGroupOffsets,
    CompleteDeleteShareGroupOffsets,
    DeletedShareGroupOffsets,
    DeleteShareGroupOffsets,
    ShareGroupHeartbeat,
    ShareStatesInitialized,
    ShareStatesToInitialize,
)
from ottla.coordinator.group.share import share_records as records
from ottla.coordinator.group.share.share_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Partitions,
    ShareGroup,
    ShareGroupMember,
    SharePartitions,
    StatePartitionMetadata,
    add_partitions,
    remove_partitions,
)
from ottla.coordinator.group.share.simple_assignor import SIMPLE_ASSIGNOR, assign
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_group_describe
from ottla.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponseTopic
from ottla.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.names import TopicIdPartition

_RETRY_MS: Final = 500
_INITIALIZE_BACKOFF_MS: Final = 1_000
"""How long the group waits after states could not be initialized, before it requests them again."""


class ShareGroupManager:
    __slots__ = ("_metadata",)

    def __init__(self, metadata: GroupMetadataManager) -> None:
        self._metadata = metadata

    # Heartbeats

    def share_group_heartbeat(
        self, to: ReplyTo[ShareGroupHeartbeatResponse] | None, request: ShareGroupHeartbeat, now: EventTime
    ) -> Effects:
        body = request.body
        _check_heartbeat(body)
        if body.member_epoch == LEAVE_EPOCH:
            return self._share_group_leave(to, body)
        group = self._metadata.groups.get(body.group_id)
        if isinstance(group, ShareGroup) and self._is_unchanged(group, request):
            self._schedule_session_timeout(body.group_id, body.member_id, now)
            return Effects().reply(to, self._response(group, group.members[body.member_id], now))
        draft = self._get_or_create_group(body)
        self._check_size(draft, body.member_id)
        is_joining = body.member_epoch == JOIN_EPOCH
        member = draft.members.get(body.member_id)
        if member is None:
            member = ShareGroupMember(body.member_id) if is_joining else draft.member(body.member_id)
        _check_member_epoch(member, body.member_epoch)
        effects = Effects()
        updated = replace(
            member,
            rack_id=body.rack_id if body.rack_id is not None else member.rack_id,
            topics=frozenset(body.subscribed_topic_names)
            if body.subscribed_topic_names is not None
            else member.topics,
            client_id=request.client_id,
            client_host=request.client_host,
        )
        moved = self._advance(draft, member, updated, effects.records, now)
        self._initialize_states(draft, effects, now)
        effects.extend(Effects(on_applied=partial(self._on_heartbeat_applied, body.group_id, body.member_id)))
        if effects.records:
            draft.changed_ms = now.tick_ms
            effects.extend(Effects(on_applied=partial(self._on_changed, body.group_id)))
        elif isinstance(group, ShareGroup):
            self._note_quiet(group, now)
        response = self._response(draft, moved, now)
        if is_joining or body.subscribed_topic_names is not None or moved.assigned != member.assigned:
            response.assignment = _assignment_of(moved)
        return effects.reply(to, response)

    def _is_unchanged(self, group: ShareGroup, request: ShareGroupHeartbeat) -> bool:
        """Whether a heartbeat changes nothing and there is nothing to tell the member, which holds for nearly
        all heartbeats: then no draft is needed.
        """
        body = request.body
        member = group.members.get(body.member_id)
        return (
            member is not None
            and body.member_epoch == member.epoch
            and body.subscribed_topic_names is None
            and body.rack_id is None
            and member.client_id == request.client_id
            and member.client_host == request.client_host
            and member.is_reconciled_to(group.target_epoch)
            and group.quiet is not None
            and group.quiet[0] == group.updates
            and group.quiet[1] is self._metadata.image.topics
        )

    def _note_quiet(self, group: ShareGroup, now: EventTime) -> None:
        """Note that nothing is to be done until the group or the topics change, if that is so."""
        after_ms = group.initialize_after_ms
        if after_ms is not None and now.tick_ms < after_ms:
            return
        topics = self._metadata.image.topics
        if group.seen_topics is topics and group.is_settled(topics.by_id):
            group.quiet = (group.updates, topics)

    def _response(
        self, group: ShareGroup, member: ShareGroupMember, now: EventTime
    ) -> ShareGroupHeartbeatResponse:
        # A group that is known to be quiet is settled; this spares the walk over its members.
        is_settled = group.quiet is not None and group.quiet[0] == group.updates
        return ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=heartbeat_interval_ms(
                self._metadata.settings.share_heartbeat_interval_ms(group.group_id),
                members=len(group.members),
                is_settled=is_settled or group.is_settled(self._metadata.image.topics.by_id),
                since_change_ms=None if group.changed_ms is None else now.tick_ms - group.changed_ms,
            ),
        )

    def _get_or_create_group(self, body: ShareGroupHeartbeatRequest) -> ShareGroup:
        """A draft of the group."""
        group = self._metadata.groups.get(body.group_id)
        if isinstance(group, ShareGroup):
            return group.draft()
        if group is not None:
            raise _not_a_share_group(body.group_id)
        if body.member_epoch != JOIN_EPOCH:
            raise _not_found(body.group_id)
        return ShareGroup(body.group_id)

    def _check_size(self, group: ShareGroup, member_id: str) -> None:
        limit = self._metadata.settings.node.share_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {limit} members "
                "(group.share.max.size).",
            )

    def _on_heartbeat_applied(self, group_id: str, member_id: str, now: EventTime) -> None:
        self._schedule_session_timeout(group_id, member_id, now)

    def _on_changed(self, group_id: str, now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if isinstance(group, ShareGroup):
            group.changed_ms = now.tick_ms

    # Updates of the group by a member

    def _advance(
        self,
        draft: ShareGroup,
        member: ShareGroupMember,
        updated: ShareGroupMember,
        out: list[CoordinatorRecord],
        now: EventTime,
    ) -> ShareGroupMember:
        """Update the group and the member, and take it to its target; the updated member."""
        group_id = draft.group_id
        if updated != member or member.member_id not in draft.members:
            out.append(records.member_subscription(group_id, updated))
        bump = updated.topics != member.topics
        if draft.epoch <= draft.target_epoch:
            bump = bump or self._is_assignment_pending(draft)
        draft.members[updated.member_id] = updated
        if bump or draft.seen_topics is not self._metadata.image.topics:
            bump = self._maybe_bump_group_epoch(draft, bump, out)
        self._update_target_assignment(draft, out, now)
        target = draft.target.get(updated.member_id, {})
        if updated.is_reconciled_to(draft.target_epoch) and not bump:
            return updated
        subscribed = topic_ids(updated.topics, self._metadata.image)
        assigned = {topic_id: target[topic_id] for topic_id in target if topic_id in subscribed}
        if updated.epoch != draft.target_epoch:
            moved = replace(
                updated, epoch=draft.target_epoch, previous_epoch=updated.epoch, state=0, assigned=assigned
            )
        else:
            moved = replace(updated, assigned=assigned)
        if moved != updated:
            out.append(records.current_assignment(group_id, moved))
            draft.members[moved.member_id] = moved
        return moved

    def _is_assignment_pending(self, draft: ShareGroup) -> bool:
        """Whether partitions have become assignable that the target does not have, or have ceased to be.

        Members are walked once for each target: a change of a subscription raises the group's epoch, and then
        there is another target.
        """
        epoch, states, topics = draft.target_epoch, draft.states, self._metadata.image.topics
        known = draft.not_pending
        if known is not None and known[0] == epoch and known[1] is states and known[2] is topics:
            return False
        if draft.is_assignment_pending(self._assignable(draft)):
            return True
        group = self._metadata.groups.get(draft.group_id)
        if isinstance(group, ShareGroup):
            group.not_pending = (epoch, states, topics)
        return False

    def _maybe_bump_group_epoch(self, draft: ShareGroup, bump: bool, out: list[CoordinatorRecord]) -> bool:
        image = self._metadata.image
        digest = metadata_hash(draft.subscribed_topics, image)
        if bump or digest != draft.metadata_hash:
            draft.epoch += 1
            draft.metadata_hash = digest
            out.append(records.group_epoch(draft.group_id, draft.epoch, digest))
            return True
        # Nothing to write: the group itself notes that the hash was compared with these topics.
        group = self._metadata.groups.get(draft.group_id)
        if isinstance(group, ShareGroup):
            group.seen_topics = image.topics
        return False

    def _update_target_assignment(
        self, draft: ShareGroup, out: list[CoordinatorRecord], now: EventTime
    ) -> None:
        """Compute a new target if the group epoch is ahead of the target's and the last one is old enough."""
        if draft.epoch <= draft.target_epoch or not self._may_compute_target(draft, now):
            return
        image = self._metadata.image
        ids = {topics: topic_ids(topics, image) for topics in draft.subscriptions}
        subscriptions = {member_id: ids[member.topics] for member_id, member in draft.members.items()}
        before = draft.target
        changed = {
            member_id: target
            for member_id, target in assign(subscriptions, self._assignable(draft), before).items()
            if before.get(member_id) != target
        }
        out += records.target_assignments(draft.group_id, changed)
        draft.target.update(changed)
        out.append(records.target_epoch(draft.group_id, draft.epoch, now.wall_ms))
        draft.target_epoch = draft.epoch
        draft.target_timestamp_ms = now.wall_ms

    def _assignable(self, group: ShareGroup) -> Partitions:
        """The partitions that exist and whose state was initialized."""
        by_id = self._metadata.image.topics.by_id
        return {
            topic_id: topic.partitions.intersection(by_id[topic_id].partitions)
            for topic_id, topic in group.states.initialized.items()
            if topic_id in by_id
        }

    def _may_compute_target(self, group: ShareGroup, now: EventTime) -> bool:
        """Whether the last target is old enough; nothing waits for one that assigned nothing, as the first,
        which precedes the states of its partitions.
        """
        if group.target_timestamp_ms < 0 or not group.has_target:
            return True
        since_ms = now.wall_ms - group.target_timestamp_ms
        return not 0 <= since_ms < self._metadata.settings.share_assignment_interval_ms(group.group_id)

    # The states of partitions

    def _initialize_states(self, draft: ShareGroup, effects: Effects, now: EventTime) -> None:
        """Request the states of subscribed partitions that have none."""
        if draft.initialize_after_ms is not None and now.tick_ms < draft.initialize_after_ms:
            return
        missing = self._partitions_without_state(draft, now)
        if not missing:
            return
        deleting = {id: name for id, name in draft.states.deleting.items() if id not in missing}
        draft.states = StatePartitionMetadata(
            add_partitions(draft.states.initializing, missing), draft.states.initialized, deleting
        )
        effects.records.append(records.state_partition_metadata(draft.group_id, draft.states))
        effects.sends.append(
            ShareStatesToInitialize(draft.group_id, draft.epoch, _topic_id_partitions(missing))
        )
        effects.extend(Effects(on_applied=partial(self._on_states_requested, draft.group_id)))

    def _partitions_without_state(self, draft: ShareGroup, now: EventTime) -> dict[bytes, SharePartitions]:
        states, image = draft.states, self._metadata.image
        since_ms = draft.initializing_since_ms
        retry_ms = self._metadata.settings.node.share_initialize_retry_interval_ms
        awaited: Mapping[bytes, SharePartitions] = (
            states.initializing if since_ms is not None and now.tick_ms - since_ms < retry_ms else {}
        )
        missing: dict[bytes, SharePartitions] = {}
        for name in sorted(draft.subscribed_topics):
            topic = image.topics.by_name.get(name)
            if topic is None:
                continue
            partitions = frozenset(topic.partitions)
            for known in (states.initialized, awaited):
                if topic.id in known:
                    partitions -= known[topic.id].partitions
            if partitions:
                missing[topic.id] = SharePartitions(name, partitions)
        return missing

    def _on_states_requested(self, group_id: str, now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if isinstance(group, ShareGroup):
            group.initializing_since_ms = now.tick_ms
            group.initialize_after_ms = None

    def states_initialized(
        self,
        to: ReplyTo[tuple[TopicIdPartition, ...]] | None,
        result: ShareStatesInitialized,
        _now: EventTime,
    ) -> Effects:
        """Note which states the share coordinator has made; the reply names those that are not needed.

        These are the states of a group that was deleted in the meantime. The states of a deleted topic are
        removed by the share coordinator itself.
        """
        group = self._metadata.groups.get(result.group_id)
        if not isinstance(group, ShareGroup):
            return Effects().reply(to, result.initialized)
        by_id = self._metadata.image.topics.by_id
        done = _by_topic(result.initialized)
        settled = _by_topic((*result.initialized, *result.failed))
        made = {
            topic_id: SharePartitions(by_id[topic_id].name, partitions)
            for topic_id, partitions in done.items()
            if topic_id in by_id
        }
        states = StatePartitionMetadata(
            remove_partitions(group.states.initializing, settled),
            add_partitions(group.states.initialized, made),
            {id: name for id, name in group.states.deleting.items() if id not in made},
        )
        effects = Effects().reply(to, ())
        if states != group.states:
            effects.records.append(records.state_partition_metadata(result.group_id, states))
        has_failed = bool(result.failed)
        return effects.extend(
            Effects(on_applied=partial(self._on_states_settled, result.group_id, has_failed))
        )

    def _on_states_settled(self, group_id: str, has_failed: bool, now: EventTime) -> None:
        group = self._metadata.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return
        if has_failed:
            group.initialize_after_ms = now.tick_ms + _INITIALIZE_BACKOFF_MS
        else:
            group.changed_ms = now.tick_ms

    def initialized_partitions(
        self, to: ReplyTo[tuple[TopicIdPartition, ...]] | None, group_id: str
    ) -> Effects:
        """The partitions whose state was initialized; none of a group that does not exist."""
        group = self._metadata.groups.get(group_id)
        states = group.states.initialized if isinstance(group, ShareGroup) else {}
        return Effects().reply(to, _topic_id_partitions(states))

    def on_topics_deleted(self, deleted: frozenset[bytes]) -> Effects:
        """Forget the states of topics that were deleted; the share coordinator deletes them by itself.

        This is tried again if it cannot be written: no later event would do it.
        """

        def schedule_retry(_error: KafkaError, then: EventTime) -> Effects:
            key = ("", "deleted topics", deleted)
            again = partial(self._on_topics_deleted_earlier, deleted)
            self._metadata.timer.schedule(key, then.tick_ms + _RETRY_MS, again)
            return Effects()

        effects = Effects(atomic=False, on_failed=schedule_retry)
        for group in self._metadata.share_groups.values():
            if not group.states.has_any_of(deleted):
                continue
            states = group.states
            effects.records.append(
                records.state_partition_metadata(
                    group.group_id,
                    StatePartitionMetadata(
                        {id: each for id, each in states.initializing.items() if id not in deleted},
                        {id: each for id, each in states.initialized.items() if id not in deleted},
                        {id: name for id, name in states.deleting.items() if id not in deleted},
                    ),
                )
            )
        return effects

    def _on_topics_deleted_earlier(self, deleted: frozenset[bytes], _now: EventTime) -> Effects:
        return self.on_topics_deleted(deleted)

    # Deadlines

    def _schedule_session_timeout(self, group_id: str, member_id: str, now: EventTime) -> None:
        key = (group_id, "session", member_id)
        timeout_ms = self._metadata.settings.share_session_timeout_ms(group_id)
        self._metadata.timer.schedule(key, now.tick_ms + timeout_ms, partial(self._on_session_timeout, key))

    def _on_session_timeout(self, key: tuple[str, str, str], now: EventTime) -> Effects:
        """Fence a member whose session timed out. If that cannot be written it is tried again, since nothing
        else would remove the member.
        """
        group_id, _, member_id = key
        group = self._metadata.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ShareGroup) else None
        if not isinstance(group, ShareGroup) or not isinstance(member, ShareGroupMember):
            return Effects()

        def schedule_retry(_error: KafkaError, then: EventTime) -> Effects:
            self._metadata.timer.schedule(
                key, then.tick_ms + _RETRY_MS, partial(self._on_session_timeout, key)
            )
            return Effects()

        return self._fence_member(group, member).extend(Effects(on_failed=schedule_retry))

    def on_loaded(self, group: ShareGroup, now: EventTime) -> None:
        if not group.is_settled(self._metadata.image.topics.by_id):
            group.changed_ms = now.tick_ms
        for member_id in group.members:
            self._schedule_session_timeout(group.group_id, member_id, now)

    # Leaving

    def _share_group_leave(
        self, to: ReplyTo[ShareGroupHeartbeatResponse] | None, body: ShareGroupHeartbeatRequest
    ) -> Effects:
        group = self.share_group(body.group_id)
        effects = self._fence_member(group, group.member(body.member_id))
        return effects.reply(
            to, ShareGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        )

    def _fence_member(self, group: ShareGroup, member: ShareGroupMember) -> Effects:
        """Remove a member and raise the group epoch."""
        effects = Effects()
        draft = group.draft()
        records.member_tombstones(group.group_id, member.member_id, effects.records)
        del draft.members[member.member_id]
        self._maybe_bump_group_epoch(draft, True, effects.records)
        return effects.extend(
            Effects(on_applied=partial(self._on_member_removed, group.group_id, member.member_id))
        )

    def _on_member_removed(self, group_id: str, member_id: str, now: EventTime) -> None:
        self._metadata.timer.cancel((group_id, "session", member_id))
        self._on_changed(group_id, now)

    # Describing

    def share_group(self, group_id: str) -> ShareGroup:
        group = self._metadata.groups.get(group_id)
        if group is None:
            # The lookup of any kind of group says this in Kafka, not that of a share group.
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ShareGroup):
            raise _not_a_share_group(group_id)
        return group

    def describe_share_group(
        self, to: ReplyTo[share_group_describe.DescribedGroup] | None, group_id: str
    ) -> Effects:
        group = self.share_group(group_id)
        by_id = self._metadata.image.topics.by_id
        described = share_group_describe.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=SIMPLE_ASSIGNOR,
            members=[
                share_group_describe.Member(
                    member_id=member.member_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.topics),
                    assignment=share_group_describe.Assignment(
                        topic_partitions=[
                            share_group_describe.TopicPartitions(
                                topic_id=topic_id,
                                topic_name=by_id[topic_id].name,
                                partitions=sorted(partitions),
                            )
                            for topic_id, partitions in sorted(member.assigned.items())
                            if topic_id in by_id
                        ]
                    ),
                )
                for member in group.members.values()
            ],
        )
        return Effects().reply(to, described)

    # Offsets

    def alter_offsets(
        self, to: ReplyTo[AlteredShareGroupOffsets] | None, request: AlterShareGroupOffsets, _now: EventTime
    ) -> Effects:
        """Have the states of partitions begin again at other offsets; only while the group has no members."""
        group_id = request.group_id
        group = self._metadata.groups.get(group_id)
        if group is None:
            draft = ShareGroup(group_id)
        elif isinstance(group, ShareGroup):
            draft = group.draft()
        else:
            raise _not_a_share_group(group_id)
        _check_empty(draft)
        altered: dict[bytes, SharePartitions] = {}
        for name, partitions in request.topics.items():
            known = self._metadata.image.topics.by_name.get(name)
            accepted = frozenset() if known is None else partitions.intersection(known.partitions)
            if known is not None and accepted:
                altered[known.id] = SharePartitions(name, accepted)
        effects = Effects()
        if altered:
            states = draft.states
            states = StatePartitionMetadata(
                add_partitions(states.initializing, altered),
                states.initialized,
                {id: name for id, name in states.deleting.items() if id not in altered},
            )
            effects.records.append(records.state_partition_metadata(group_id, states))
            effects.on_applied = partial(self._on_states_requested, group_id)
        return effects.reply(to, AlteredShareGroupOffsets(draft.epoch, altered))

    def delete_offsets(
        self, to: ReplyTo[DeletedShareGroupOffsets] | None, request: DeleteShareGroupOffsets, _now: EventTime
    ) -> Effects:
        """Begin to delete the states of topics; only while the group has no members."""
        body = request.body
        group = self.share_group(body.group_id)
        _check_empty(group)
        states = group.states
        initialized = dict(states.initialized)
        deleting = dict(states.deleting)
        partitions: dict[bytes, SharePartitions] = {}
        refused: list[DeleteShareGroupOffsetsResponseTopic] = []
        for topic in body.topics:
            known = self._metadata.image.topics.by_name.get(topic.topic_name)
            if known is None:
                message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.text
                refused.append(_refused_topic(topic.topic_name, message))
            elif known.id in initialized:
                partitions[known.id] = SharePartitions(known.name, initialized.pop(known.id).partitions)
                deleting[known.id] = known.name
            elif known.id in deleting:
                # An earlier attempt did not come to its end.
                partitions[known.id] = SharePartitions(known.name, frozenset(known.partitions))
            else:
                refused.append(_refused_topic(topic.topic_name, "There is no offset information to delete."))
        effects = Effects()
        if partitions:
            after = StatePartitionMetadata(states.initializing, initialized, deleting)
            effects.records.append(records.state_partition_metadata(body.group_id, after))
        return effects.reply(to, DeletedShareGroupOffsets(_topic_id_partitions(partitions), tuple(refused)))

    def complete_delete_offsets(
        self, to: ReplyTo[None] | None, request: CompleteDeleteShareGroupOffsets, _now: EventTime
    ) -> Effects:
        """Forget topics whose states were deleted."""
        group = self._metadata.groups.get(request.group_id)
        effects = Effects()
        if isinstance(group, ShareGroup) and any(id in group.states.deleting for id in request.topic_ids):
            rest = {id: name for id, name in group.states.deleting.items() if id not in request.topic_ids}
            effects.records.append(
                records.state_partition_metadata(request.group_id, replace(group.states, deleting=rest))
            )
        return effects.reply(to, None)

    # Deletion

    def delete_states(self, to: ReplyTo[tuple[TopicIdPartition, ...]] | None, group: ShareGroup) -> Effects:
        """Begin to delete all states of a group that has no members; the reply names their partitions."""
        states, by_id = group.states, self._metadata.image.topics.by_id
        partitions = add_partitions(states.initialized, states.initializing)
        # Of earlier attempts it is not known how far they came: deleting a state again is no error.
        again = {
            topic_id: SharePartitions(by_id[topic_id].name, frozenset(by_id[topic_id].partitions))
            for topic_id in states.deleting
            if topic_id in by_id
        }
        # The share coordinator knows no topics that were deleted, and has removed their states.
        partitions = {
            topic_id: topic
            for topic_id, topic in add_partitions(partitions, again).items()
            if topic_id in by_id
        }
        deleting = StatePartitionMetadata({}, {}, {id: topic.name for id, topic in partitions.items()})
        effects = Effects(records=[records.state_partition_metadata(group.group_id, deleting)])
        return effects.reply(to, _topic_id_partitions(partitions))


def _check_heartbeat(body: ShareGroupHeartbeatRequest) -> None:
    """Raise unless the heartbeat is well formed."""
    if not body.member_id:
        raise _invalid("MemberId can't be empty.")
    if body.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if body.member_epoch == JOIN_EPOCH:
        if not body.subscribed_topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif body.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _check_member_epoch(member: ShareGroupMember, epoch: int) -> None:
    if epoch in (JOIN_EPOCH, member.epoch) or (epoch < member.epoch and epoch == member.previous_epoch):
        return
    than = "smaller" if epoch < member.epoch else "greater"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {than} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


def _assignment_of(member: ShareGroupMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assigned.items())
        ]
    )


def _refused_topic(name: str, message: str) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), error_message=message
    )


def _topic_id_partitions(topics: Mapping[bytes, SharePartitions]) -> tuple[TopicIdPartition, ...]:
    # A group may have tens of thousands of them.
    return tuple(
        chain.from_iterable(
            map(TopicIdPartition._make, zip(repeat(topic_id), sorted(topic.partitions), strict=False))
            for topic_id, topic in sorted(topics.items(), key=itemgetter(0))
        )
    )


def _by_topic(partitions: tuple[TopicIdPartition, ...]) -> Partitions:
    topics: dict[bytes, set[int]] = {}
    for each in partitions:
        topics.setdefault(each.topic_id, set()).add(each.partition)
    return {topic_id: frozenset(ids) for topic_id, ids in topics.items()}


def _not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")


def _not_a_share_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
