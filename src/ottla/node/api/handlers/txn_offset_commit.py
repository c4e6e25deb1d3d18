"""TxnOffsetCommit: commit offsets of a group as part of a producer's transaction.

Until the transaction ends, a consumer that requires stable offsets gets UNSTABLE_OFFSET_COMMIT. An error of
the whole request is the error of every partition.

Version 2 has leader epochs (KIP-320).
Version 3 is flexible (KIP-482), and names the member, so that one that was replaced cannot commit (KIP-447).
Version 4 can return TRANSACTION_ABORTABLE (KIP-890).
Version 5 also adds the partition of the offsets to the transaction (KIP-890).
Version 6 names topics by id, and knows GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-1319).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import CommitTransactionalOffsets
from ottla.log.producers.state_entry import VerificationGuard
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import (
    add_part,
    check_committed_topic,
    check_group,
    check_group_id,
    existing,
    merge,
    parts_of,
    submit,
)
from ottla.node.api.response_errors import error_for_each_part
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from ottla.runtime.turns import Turns

_FIRST_VERSION_BY_ID = 6


def handle(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    if not context.allowed(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    return _answer_in_parts(context, request) if context.is_long else _answer(context, request)


async def _answer_in_parts(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Commit many offsets, some at a time; each has a result of its own."""
    response, turns = TxnOffsetCommitResponse(), Turns(context.broker.runtime.clock)
    for part in parts_of(request.topics):
        answer = _answer(context, request.replace(topics=part))
        if not isinstance(answer, TxnOffsetCommitResponse):
            answer = await answer
        add_part(response.topics, answer.topics)
        await turns.pause_if_due()
    return response


def _answer(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    refused: list[TxnOffsetCommitResponseTopic] = []
    accepted: list[TxnOffsetCommitRequestTopic] = []
    for topic in request.topics:
        code = check_committed_topic(context, topic, by_id=context.version >= _FIRST_VERSION_BY_ID)
        if code is not ErrorCode.NONE:
            refused.append(_error(topic, code))
            continue
        known, unknown = existing(context, topic)
        if known.partitions:
            accepted.append(known)
        if unknown.partitions:
            refused.append(_error(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if not accepted:
        return TxnOffsetCommitResponse(topics=refused)
    request.topics = accepted
    index = context.broker.coordinators.groups.partition_for(request.group_id)
    offsets = TopicPartition(CONSUMER_OFFSETS_TOPIC, index)
    guard = context.broker.coordinators.transactions.add_partitions.verify_offsets(
        request, context.version, offsets
    )
    return _commit_when_verified(context, request, refused, guard)


async def _commit_when_verified(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    refused: list[TxnOffsetCommitResponseTopic],
    guard: Awaitable[VerificationGuard],
) -> TxnOffsetCommitResponse:
    try:
        response = _commit(context, request, refused, await guard)
        return response if isinstance(response, TxnOffsetCommitResponse) else await response
    except KafkaError as error:
        # What was refused keeps its own errors.
        failed: TxnOffsetCommitResponse = error_for_each_part(request, error.code, None)
        merge(failed.topics, refused)
        return failed


def _commit(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    refused: list[TxnOffsetCommitResponseTopic],
    guard: VerificationGuard,
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    def complete(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        merge(response.topics, refused)
        return response

    ticket = submit(context, request.group_id, CommitTransactionalOffsets, request, guard=guard)
    return ticket.then(complete)


def _error(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=int(code))
            for partition in topic.partitions
        ],
    )
