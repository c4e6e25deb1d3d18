"""Members of consumer groups: what a heartbeat may say, and records that a member leaves or takes over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.coordinator.group import records
from ottla.coordinator.group.consumer.group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    partitions_of,
)
from ottla.coordinator.group.requests import GroupRequest
from ottla.coordinator.runtime.effects import CoordinatorRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)


def check_request(request: GroupRequest[Any, Any], assignors: tuple[str, ...]) -> None:
    """Raise unless the heartbeat is well formed."""
    body: ConsumerGroupHeartbeatRequest = request.body
    epoch = body.member_epoch
    if not body.member_id and (request.version >= 1 or epoch != JOIN_EPOCH):
        raise _invalid("MemberId is empty; the client chooses it")
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


def says_nothing_new(member: ConsumerMember, request: GroupRequest[Any, Any]) -> bool:
    """Whether a heartbeat leaves the member as it is; what it owns is for the coordinator to judge."""
    body: ConsumerGroupHeartbeatRequest = request.body
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


def check_static(
    known: ConsumerMember | None, group_id: str, member_id: str, instance_id: str
) -> ConsumerMember:
    if known is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no member with instance id {instance_id}"
        )
    if known.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"instance {instance_id} of group {group_id} is member {known.member_id} now, not {member_id}",
        )
    return known


def replace_member(
    draft: ConsumerGroup, old: ConsumerMember, member_id: str, out: list[CoordinatorRecord]
) -> ConsumerMember:
    """A static member is back under a new id: it takes the place of the old one, with all that it had."""
    group_id = draft.group_id
    member = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    if member_id != old.member_id:
        member_tombstones(draft, old.member_id, out)
    target = draft.target.pop(old.member_id, {})
    draft.remove(old.member_id)
    draft.update(member)
    draft.target[member_id] = target
    out.append(records.member_subscription(group_id, member))
    out.append(records.target_assignment(group_id, member_id, target))
    out.append(records.current_assignment(group_id, member))
    return member


def member_tombstones(draft: ConsumerGroup, member_id: str, out: list[CoordinatorRecord]) -> None:
    out.append(records.current_assignment_tombstone(draft.group_id, member_id))
    out.append(records.target_assignment_tombstone(draft.group_id, member_id))
    out.append(records.member_subscription_tombstone(draft.group_id, member_id))


def check_epoch(member: ConsumerMember, body: ConsumerGroupHeartbeatRequest) -> None:
    epoch = body.member_epoch
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch:
        # The answer with the new epoch may have been lost; fine if it has nothing that is not its own.
        owned = owned_partitions(body.topic_partitions)
        assigned = partitions_of(member.assigned)
        if owned is not None and all(
            partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items()
        ):
            return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member {member.member_id} of group {body.group_id} is in epoch {member.epoch}, not {epoch}; "
        "give up all partitions and join again with epoch 0",
    )


def owned_partitions(topics: list[TopicPartitions] | None) -> dict[bytes, frozenset[int]] | None:
    if topics is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


def assignment_of(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assigned.items())
        ]
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
