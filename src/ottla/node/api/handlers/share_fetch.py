"""ShareFetch: acquire records for a member of a share group, and acknowledge those that it got before.

Epoch 0 begins a share session, -1 ends it, and the others continue it. The partitions of the session are
fetched; those with acknowledgements are named in the request. Acknowledging begins first, and the response
has its results, each with an error of its own, once they are persisted. A request that renews locks
(`is_renew_ack`) fetches nothing.

Records are acquired from the leader's log up to the high watermark or, with `share.isolation.level` =
`read_committed`, up to the last stable offset, without those of aborted transactions. A response has the
batches of the log, and the ranges of offsets in them that the member has acquired: it may not process others.

Without `min_bytes` of records the request waits up to `max_wait_ms`, as a Fetch does. A client that has
exceeded a quota gets a response without records, and what was acquired for it is available again. A broker
that has as many share sessions as it may have refuses to begin one, after `max_wait_ms`.

Version 2 has the acquire mode (KIP-1206) and renewals (KIP-1222).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import LEADER_CHANGED, CurrentLeaders
from ottla.node.api.share_requests import Acknowledgements, AcknowledgeResults, ReadableTopics, session_key
from ottla.node.fetch.session import FINAL_EPOCH
from ottla.node.share.share_fetch import ShareFetch, ShareFetchTerms
from ottla.node.share.share_session import (
    ShareFetchContext,
    ShareResults,
    ShareSession,
    ShareSessionContext,
    ShareSessionKey,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.share import ShareAcquireMode
from ottla.runtime.turns import Turns

# What is around the records of a response, around those of a partition, and what an acquired range takes.
_RESPONSE_BYTES: Final = 16
_PARTITION_BYTES: Final = 30
_RANGE_BYTES: Final = 18
# A request that names more partitions changes its session in turns.
_NAMED_AT_ONCE: Final = 1000
_NOT_WITH_RENEWALS: Final = (
    ("maxBytes", "max_bytes"),
    ("minBytes", "min_bytes"),
    ("maxRecords", "max_records"),
    ("maxWaitMs", "max_wait_ms"),
)


async def handle(context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    key = session_key(context, request.group_id, request.member_id)
    if request.is_renew_ack:
        _check_renewal(request)
    try:
        mode = ShareAcquireMode(request.share_acquire_mode)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"There is no share acquire mode {request.share_acquire_mode}."
        ) from None
    manager = context.broker.share_partitions
    acknowledges = any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)
    growth = sum(len(topic.partitions) for topic in request.topics)
    forgotten = sum(len(topic.partitions) for topic in request.forgotten_topics_data)
    are_many = growth + forgotten > _NAMED_AT_ONCE
    try:
        session = manager.sessions.new_context(
            key,
            request.share_session_epoch,
            {} if are_many else dict.fromkeys(_named(request)),
            () if are_many else _forgotten(request),
            context.connection,
            acknowledges=acknowledges,
            growth=growth if are_many else 0,
        )
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await asyncio.sleep(request.max_wait_ms / 1000)
        raise
    if are_many and isinstance(session, ShareSessionContext):
        turns = Turns(manager.clock, check_every=8)
        await manager.sessions.update_in_turns(session, _named(request), _forgotten(request), turns)
    readable = ReadableTopics(context)
    acknowledgements = None
    if acknowledges:
        acknowledgements = await Acknowledgements.begin(
            context, manager, key, request.topics, readable, is_renew_ack=request.is_renew_ack
        )
    fetch = _fetch_of(context, request, mode, session.session, readable)
    results = {} if fetch is None else await fetch.fetch_messages()
    acknowledged = {} if acknowledgements is None else await acknowledgements.results()
    response = _build_response(context, key, session, fetch, results)
    _add_acknowledged(response, acknowledged)
    if request.share_session_epoch == FINAL_EPOCH:
        manager.release_session(key)
    return response


def _named(request: ShareFetchRequest) -> Iterator[TopicIdPartition]:
    for topic in request.topics:
        topic_id = bytes(topic.topic_id)
        for part in topic.partitions:
            yield TopicIdPartition(topic_id, part.partition_index)


def _forgotten(request: ShareFetchRequest) -> Iterator[TopicIdPartition]:
    for topic in request.forgotten_topics_data:
        topic_id = bytes(topic.topic_id)
        for index in topic.partitions:
            yield TopicIdPartition(topic_id, index)


def _check_renewal(request: ShareFetchRequest) -> None:
    wrong = [name for name, field in _NOT_WITH_RENEWALS if getattr(request, field) != 0]
    if wrong:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "".join(f"{name} must be set to 0, " for name in wrong) + "if isRenewAck is true.",
        )


def _fetch_of(
    context: RequestContext,
    request: ShareFetchRequest,
    mode: ShareAcquireMode,
    session: ShareSession | None,
    readable: ReadableTopics,
) -> ShareFetch | None:
    if request.is_renew_ack or session is None:
        return None
    max_bytes = min(request.max_bytes, context.config.number("fetch.max.bytes"))
    if context.meter is not None:
        max_bytes = min(max_bytes, context.meter.most_fetch_bytes())
    terms = ShareFetchTerms(
        mode,
        request.max_wait_ms,
        min(request.min_bytes, max_bytes),
        max_bytes,
        request.max_records,
        request.batch_size,
        readable.terms,
    )
    return ShareFetch(context.broker.share_partitions, terms, session, readable.problem, context.pending)


def _build_response(
    context: RequestContext,
    key: ShareSessionKey,
    session: ShareFetchContext,
    fetch: ShareFetch | None,
    results: ShareResults,
) -> ShareFetchResponse:
    error = session.error
    throttled = context.meter is not None and context.meter.throttles_fetch(_size(results))
    if fetch is not None and (throttled or error):
        fetch.release_undelivered()
    included = {} if throttled else session.update_and_generate_response_data(results)
    if error:
        context.count_error(int(error))
    settings = context.broker.share_partitions.settings(key.group_id)
    response = ShareFetchResponse(
        error_code=int(error), acquisition_lock_timeout_ms=settings.record_lock_duration_ms
    )
    leaders: CurrentLeaders | None = None
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for partition, data in included.items():
        if data.error_code:
            context.count_error(data.error_code)
            if data.error_code in LEADER_CHANGED:
                leaders = leaders or CurrentLeaders(context)
                leader = leaders.current_leader(*partition)
                if leader is not None:
                    data.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = ShareFetchableTopicResponse(topic_id=partition.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    if leaders is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in leaders.addresses.values()
        ]
    return response


def _size(results: ShareResults) -> int:
    """The size of the response with these results, nearly."""
    return _RESPONSE_BYTES + sum(
        _PARTITION_BYTES + len(data.records) + _RANGE_BYTES * len(data.acquired_records)
        for data in results.values()
        if data.records
    )


def _add_acknowledged(response: ShareFetchResponse, acknowledged: AcknowledgeResults) -> None:
    """Add the results of acknowledgements, also of partitions that have nothing else to say."""
    if not acknowledged:
        return
    topics = {topic.topic_id: topic for topic in response.responses}
    known = {
        TopicIdPartition(topic.topic_id, part.partition_index): part
        for topic in response.responses
        for part in topic.partitions
    }
    for partition, error in acknowledged.items():
        data = known.get(partition)
        if data is None:
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = ShareFetchableTopicResponse(topic_id=partition.topic_id)
                response.responses.append(topic)
            data = PartitionData(partition_index=partition.partition, records=b"")
            topic.partitions.append(data)
        if error is not None:
            data.acknowledge_error_code = int(error.code)
            data.acknowledge_error_message = error.message
