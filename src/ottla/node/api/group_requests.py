"""Shared functions of the handlers of requests to a group coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from ottla.coordinator.group.requests import GroupRequest
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.metadata.features import SHARE_VERSION, STREAMS_VERSION
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import OffsetCommitRequestTopic
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequestTopic
from ottla.protocol.schema import Struct

# Each takes a coordinator some tens of microseconds.
_PARTITIONS_AT_ONCE: Final = 200

B = TypeVar("B")
R = TypeVar("R")
S = TypeVar("S", bound=Struct)
CommittedTopic = TypeVar("CommittedTopic", OffsetCommitRequestTopic, TxnOffsetCommitRequestTopic)


def submit(
    context: RequestContext,
    group_id: str,
    kind: type[GroupRequest[B, R]],
    body: B,
    *,
    guard: VerificationGuard = SENTINEL_GUARD,
) -> Ticket[R]:
    """Give a client's request to the coordinator of its group."""
    request = kind(
        body,
        context.version,
        context.client_id or "",
        f"/{context.client_host}",
        lambda topic: context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic, log_denied=False),
    )
    return context.broker.coordinators.groups.submit(group_id, request, guard=guard)


def check_share_groups(context: RequestContext) -> None:
    """Raise unless share groups are a feature of the cluster."""
    if context.image.features.levels.get(SHARE_VERSION, 0) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The version of API is not supported: the feature {SHARE_VERSION} is at level 0.",
        )


def check_group(context: RequestContext, group_id: str, operation: AclOperation = AclOperation.READ) -> None:
    if not context.allowed(operation, AclResourceType.GROUP, group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def check_streams_protocol(context: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION unless settings and feature levels enable streams groups."""
    if not context.broker.coordinators.groups.config.streams_protocol_enabled:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The version of API is not supported: "
            "group.coordinator.rebalance.protocols does not name streams.",
        )
    if context.image.features.levels.get(STREAMS_VERSION, 0) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"The version of API is not supported: the feature {STREAMS_VERSION} is not enabled.",
        )


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The configured groupId is invalid: it is empty.")


def check_committed_topic(
    context: RequestContext, topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic, *, by_id: bool
) -> ErrorCode:
    """Return why no offset of the topic may be committed, or NONE; a topic that is known by its id gets its
    name.
    """
    topics = context.image.topics
    if by_id:
        known = topics.by_id.get(topic.topic_id)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = known.name
    if not context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if topic.name in topics.by_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def existing(context: RequestContext, topic: CommittedTopic) -> tuple[CommittedTopic, CommittedTopic]:
    """Split a topic that exists into its partitions that exist and those that do not."""
    partitions = context.image.topics.by_name[topic.name].partitions
    if all(each.partition_index in partitions for each in topic.partitions):
        return topic, topic.replace(partitions=[])
    return (
        topic.replace(partitions=[each for each in topic.partitions if each.partition_index in partitions]),
        topic.replace(
            partitions=[each for each in topic.partitions if each.partition_index not in partitions]
        ),
    )


def parts_of(topics: Sequence[S], of_topic: str = "partitions") -> Iterator[list[S]]:
    """The topics of a long request in parts, each with so many partitions as a coordinator may answer at
    once: its state does not change in between. A topic with more is in several parts.
    """
    part: list[S] = []
    room = _PARTITIONS_AT_ONCE
    for topic in topics:
        named = getattr(topic, of_topic)
        at = 0
        while at < len(named) or not at:
            taken = named[at : at + room]
            part.append(topic.replace(**{of_topic: taken}))
            at += max(len(taken), 1)
            room -= max(len(taken), 1)
            if room <= 0:
                yield part
                part, room = [], _PARTITIONS_AT_ONCE
    if part:
        yield part


def add_part(topics: list[Any], part: Sequence[Any]) -> None:
    """Add the topics of the response to a part of a request to those of the parts before it."""
    for topic in part:
        if topics and _identity(topics[-1]) == _identity(topic):
            topics[-1].partitions += topic.partitions
        else:
            topics.append(topic)


def _identity(topic: Any) -> tuple[str, bytes]:
    return topic.name, getattr(topic, "topic_id", b"")


def merge(topics: list[Any], refused: list[Any]) -> None:
    """Add refused partitions to the topics of a response, and topics of which everything was refused."""
    answered = {topic.name: topic for topic in topics}
    for topic in refused:
        if topic.name and topic.name in answered:
            answered[topic.name].partitions += topic.partitions
        else:
            topics.append(topic)
