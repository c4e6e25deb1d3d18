"""The next step of one member towards its target.

A member first gives up what is no longer its own, staying in its epoch until it says that it has; then it
moves to the target's epoch and takes what is free; what others still have, it gets when they have given it
up. So a partition is never with two members at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ottla.coordinator.group.consumer.group import ConsumerMember, MemberState, Owned, Partitions
from ottla.protocol.errors import ErrorCode, KafkaError

_NONE: Owned = {}


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owner_of: Callable[[bytes, int], str | None],
    owned: Partitions | None,
    subscribed: frozenset[bytes],
    *,
    subscription_changed: bool,
) -> ConsumerMember:
    """`owned` is what the member says it has, None if it says nothing; `subscribed` are the ids of the topics
    that it subscribes to.
    """
    if member.state is MemberState.STABLE:
        if member.epoch != target_epoch:
            return _advance(member, member.epoch, target_epoch, target, owner_of, owned, subscribed)
        return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _holds(owned, member.revoking):
            return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
    elif member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"member {member.member_id} is in a state that this node does not know; give up all "
                "partitions and join again with epoch 0",
            )
        return _advance(member, target_epoch, target_epoch, target, owner_of, owned, subscribed)
    return _advance(member, member.epoch, target_epoch, target, owner_of, owned, subscribed)


def _holds(owned: Partitions | None, revoking: Mapping[bytes, Owned]) -> bool:
    """Whether the member may still have any of these."""
    if owned is None:
        return True
    return any(
        not partitions.isdisjoint(revoking.get(topic_id, _NONE)) for topic_id, partitions in owned.items()
    )


def _moved(
    member: ConsumerMember,
    state: MemberState,
    epoch: int,
    assigned: Mapping[bytes, Owned],
    revoking: Mapping[bytes, Owned],
) -> ConsumerMember:
    previous = member.epoch if epoch != member.epoch else member.previous_epoch
    return replace(
        member, state=state, epoch=epoch, previous_epoch=previous, assigned=assigned, revoking=revoking
    )


def _drop_unsubscribed(
    member: ConsumerMember, owned: Partitions | None, subscribed: frozenset[bytes]
) -> ConsumerMember:
    """The member no longer subscribes to some of its topics: that does not wait for the next target."""
    if all(topic_id in subscribed for topic_id in member.assigned):
        return member
    assigned = {id: partitions for id, partitions in member.assigned.items() if id in subscribed}
    revoking = dict(member.revoking)
    for topic_id, partitions in member.assigned.items():
        if topic_id not in subscribed:
            revoking[topic_id] = {**revoking.get(topic_id, _NONE), **partitions}
    if _holds(owned, revoking):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, assigned, revoking)
    return replace(member, assigned=assigned)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owner_of: Callable[[bytes, int], str | None],
    owned: Partitions | None,
    subscribed: frozenset[bytes],
) -> ConsumerMember:
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, Owned] = {}
    free: dict[bytes, list[int]] = {}
    unreleased = False
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, _NONE)
        kept = {partition: since for partition, since in current.items() if partition in wanted}
        given_up = {partition: since for partition, since in current.items() if partition not in wanted}
        for partition in wanted:
            if partition not in kept:
                owner = owner_of(topic_id, partition)
                if owner is None or owner == member.member_id:
                    free.setdefault(topic_id, []).append(partition)
                else:
                    unreleased = True
        if kept:
            assigned[topic_id] = kept
        if given_up:
            revoking[topic_id] = given_up
    if revoking and _holds(owned, revoking):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, epoch, assigned, revoking)
    for topic_id, partitions in free.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _moved(member, state, target_epoch, assigned, {})
