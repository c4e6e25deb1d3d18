"""What requests to the leaders of share partitions have in common: who may send them, what they acknowledge,
and how much of the records in delivery one of them looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, Self, TypeAlias

from ottla.metadata.features import SHARE_VERSION
from ottla.node.api.context import RequestContext
from ottla.node.share.share_partition import AcknowledgedOffsets
from ottla.node.share.share_partition_manager import (
    MANY_ACKNOWLEDGED,
    PendingAcknowledgements,
    SharePartitionManager,
)
from ottla.node.share.share_session import ShareSessionKey
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.share import AcknowledgeType
from ottla.runtime.turns import Turns

_MAX_MEMBER_ID: Final = 36
_RENEWAL_SINCE: Final = 2
# What a type takes as it is decoded, and how many are worth counting.
_TYPE_BYTES: Final = 8
_COUNT_FROM: Final = 10_000
# Ranges of records in delivery that a request of an operator looks at, and in one turn.
_MAX_LOOKS: Final = 10_000
_LOOKS_AT_A_TIME: Final = 1_000

AcknowledgeResults: TypeAlias = dict[TopicIdPartition, KafkaError | None]
"""The error of each partition; None where there is none."""


class _AcknowledgedPartition(Protocol):
    @property
    def partition_index(self) -> int: ...

    @property
    def acknowledgement_batches(self) -> Sequence[AcknowledgedOffsets]: ...


class _AcknowledgedTopic(Protocol):
    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> Sequence[_AcknowledgedPartition]: ...


def session_key(context: RequestContext, group_id: str | None, member_id: str | None) -> ShareSessionKey:
    """The session of a request; KafkaError unless its client may be a member of the group."""
    if context.image.features.levels.get(SHARE_VERSION, 0) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not context.allowed(AclOperation.READ, AclResourceType.GROUP, group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not member_id or len(member_id) > _MAX_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return ShareSessionKey(group_id, member_id)


class ReadableTopics:
    """The partitions that a client may read; each topic is looked at once."""

    __slots__ = ("_allowed", "_context")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._allowed: dict[str, bool] = {}

    @property
    def terms(self) -> object:
        """On what depends which topics may be read, besides the topics that there are."""
        authorizer = self._context.broker.authorizer
        if authorizer is None:
            return None
        return authorizer.version, self._context.principal, self._context.client_host

    def problem(self, partition: TopicIdPartition) -> ErrorCode | None:
        """Why a partition cannot be read; None if it can, as far as this broker's metadata say."""
        topic = self._context.image.topics.by_id.get(partition.topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        allowed = self._allowed.get(topic.name)
        if allowed is None:
            allowed = self._context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic.name)
            self._allowed[topic.name] = allowed
        if not allowed:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return None if partition.partition in topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Acknowledgements:
    """The acknowledgements of a request: they begin first, and `results` has them when all is persisted."""

    __slots__ = ("_errors", "_nothing", "_pending")

    def __init__(self, pending: PendingAcknowledgements) -> None:
        self._errors: AcknowledgeResults = {}
        self._nothing: AcknowledgeResults = {}
        self._pending = pending

    @classmethod
    async def begin(
        cls,
        context: RequestContext,
        manager: SharePartitionManager,
        key: ShareSessionKey,
        topics: Sequence[_AcknowledgedTopic],
        readable: ReadableTopics,
        *,
        is_renew_ack: bool,
    ) -> Self:
        """Begin to acknowledge; where very many partitions are concerned, in turns."""
        begun = cls(PendingAcknowledgements(manager, key))
        types = sum(
            len(batch.acknowledge_types)
            for topic in topics
            for part in topic.partitions
            for batch in part.acknowledgement_batches
        )
        if types >= _COUNT_FROM:
            context.pending.count_decoded(types * _TYPE_BYTES)
        most = AcknowledgeType.RENEW if context.version >= _RENEWAL_SINCE else AcknowledgeType.REJECT
        partitions = sum(len(topic.partitions) for topic in topics)
        turns = Turns(manager.clock, check_every=4) if partitions > MANY_ACKNOWLEDGED else None
        for topic in topics:
            for part in topic.partitions:
                partition = TopicIdPartition(bytes(topic.topic_id), part.partition_index)
                batches = part.acknowledgement_batches
                problem = readable.problem(partition)
                if problem is not ErrorCode.UNKNOWN_TOPIC_ID and not _are_valid(
                    batches, most, is_renew_ack=is_renew_ack
                ):
                    problem = ErrorCode.INVALID_REQUEST
                if problem is not None:
                    begun._errors[partition] = KafkaError(problem)
                elif batches:
                    begun._pending.begin(partition, batches)
                else:
                    begun._nothing[partition] = None
                if turns is not None and turns.is_due():
                    await turns.pause()
        return begun

    async def results(self) -> AcknowledgeResults:
        if not self._pending:
            # As Apache Kafka answers: partitions without batches are named beside others that have some.
            return self._errors
        return {**await self._pending.results(), **self._errors, **self._nothing}


class LooksLeft:
    """How many ranges of records a request of an operator may still look at, in turns."""

    __slots__ = ("_left", "_turns")

    def __init__(self, context: RequestContext) -> None:
        self._left = _MAX_LOOKS
        self._turns = Turns(context.broker.runtime.clock)

    @property
    def most(self) -> int:
        """How many it may look at now."""
        return min(self._left, _LOOKS_AT_A_TIME)

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def count(self, looks: int) -> None:
        self._left -= max(1, looks)

    async def pause_if_due(self) -> None:
        await self._turns.pause_if_due()


def share_records_partition(
    context: RequestContext, topic: str, index: int, operation: AclOperation
) -> TopicIdPartition:
    """The partition whose records in delivery an operator asks for; KafkaError if that may not be."""
    if not context.allowed(operation, AclResourceType.TOPIC, topic):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    known = context.image.topics.by_name.get(topic)
    if known is None or index not in known.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return TopicIdPartition(known.id, index)


def _are_valid(batches: Iterable[AcknowledgedOffsets], most: int, *, is_renew_ack: bool) -> bool:
    """Whether ranges are in order, each with a type for all or for each of its offsets; only a request that
    says so may renew locks.
    """
    previous = -1
    for batch in batches:
        types, size = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if size < 1 or batch.first_offset < previous or len(types) not in (1, size):
            return False
        if min(types) < 0 or max(types) > most:
            return False
        if not is_renew_ack and AcknowledgeType.RENEW in types:
            return False
        previous = batch.last_offset
    return True
