"""Fetch: read batches from partitions, waiting for `min_bytes` of them up to `max_wait_ms`.

A response holds at most `max_bytes` (and `fetch.max.bytes`) in all and `partition_max_bytes` of each
partition, but always the first batch of the first partition that has one, so that a reader never gets stuck.
It goes out at once where it has enough bytes, an error or a diverging epoch. Followers read to the end of the
log, consumers to the high watermark or, with read_committed, to the last stable offset.

A follower's fetch says how far its log has come, so it moves the high watermark; a follower that is throttled
and behind gets no records while the rate is exceeded. A consumer that names its rack may be sent to a replica
there (`replica.selector.class`), which then serves it up to the high watermark that the replica knows.

A consumer that has exceeded a quota gets an empty response, which says for how long it is throttled; it
fetches the same again.

Records are read only when the response can go out (`PendingRequest.wait_for_turn`), so a client that does not
read its responses, or that sends many requests at once, does not make the node hold many responses. The pool
loads what is not in memory first (`partition_reader`), so a client that reads old records does not make
others wait.

Version 5 has log start offsets (KIP-107).
Version 7 has sessions (KIP-227).
Version 9 has leader epochs (KIP-320).
Version 10 may return batches in zstd (KIP-110).
Version 11 has racks, to read from followers (KIP-392).
Version 12 is flexible (KIP-482), and finds diverging epochs (KIP-595).
Version 13 names topics by id (KIP-516).
Version 14 can return OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405).
Version 15 has the replica's epoch (KIP-903).
Version 16 names the new leader (KIP-951).
Version 17 has the replica's directory (KIP-853).
Version 18 has the high watermark that the replica knows (KIP-1166).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import LEADER_CHANGED, CurrentLeaders
from ottla.node.fetch.reader import FetchReader, replica_epoch, replica_id
from ottla.node.fetch.session import (
    FetchContext,
    FetchKey,
    FetchResults,
    ReadContext,
    SessionErrorContext,
)
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

# What is around the records of a response, and around those of a partition.
_RESPONSE_BYTES: Final = 16
_PARTITION_BYTES: Final = 42
# How long a request that names many partitions may wait: it takes much memory until it is answered.
_LONGEST_LARGE_WAIT_MS: Final = 5_000


def handle(context: RequestContext, request: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
    # Any client can say that it is a follower.
    replica = replica_id(request, context.version)
    may_follow = replica >= 0 and context.allowed(
        AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False
    )
    if (
        context.meter is not None
        and may_follow
        and context.broker.replicas.is_other_broker(replica, replica_epoch(request, context.version))
    ):
        context.meter.exempt()
    fetch = _fetch_context(context, request, may_follow=may_follow)
    if isinstance(fetch, SessionErrorContext):
        return _build_response(context, fetch, None)
    if context.meter is not None:
        request.max_bytes = min(request.max_bytes, context.meter.most_fetch_bytes())
    reader = FetchReader(
        request,
        context.version,
        fetch,
        context.broker,
        context,
        context.pending,
        context.listener.name,
    )
    if reader.read_now():
        return _build_response(context, fetch, reader)
    return _respond_later(context, fetch, reader)


async def _respond_later(context: RequestContext, fetch: ReadContext, reader: FetchReader) -> FetchResponse:
    try:
        await reader.read()
        return _build_response(context, fetch, reader)
    finally:
        reader.close()


def _fetch_context(context: RequestContext, request: FetchRequest, *, may_follow: bool) -> FetchContext:
    by_id = context.version >= 13
    requested: dict[FetchKey, FetchPartition] = {}
    for topic in request.topics:
        name = bytes(topic.topic_id) if by_id else topic.topic
        for part in topic.partitions:
            requested[name, part.partition] = part
    forgotten: list[FetchKey] = [
        (bytes(topic.topic_id) if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    sessions = context.broker.fetch_sessions
    fetch = sessions.new_context(
        request.session_id,
        request.session_epoch,
        requested,
        forgotten,
        by_id=by_id,
        privileged=may_follow,  # the sessions of followers replace those of others
        connection=context.connection,
    )
    size = sessions.requested_bytes(len(requested), fetch)
    if size:
        context.pending.count_decoded(size)
        request.max_wait_ms = min(request.max_wait_ms, _LONGEST_LARGE_WAIT_MS)
    return fetch


def _build_response(
    context: RequestContext, fetch: FetchContext, reader: FetchReader | None
) -> FetchResponse:
    results: FetchResults = {} if reader is None else reader.results
    if context.meter is not None and context.meter.throttles_fetch(_size(results)):
        # As if it had not been read: the session stays where it was.
        if reader is not None:
            reader.close()
        error, session_id = fetch.throttled_response_data()
        return FetchResponse(error_code=int(error), session_id=session_id)
    error, session_id, included = fetch.update_and_generate_response_data(results)
    if error:
        context.count_error(int(error))
    if reader is not None:
        reader.close(answered=error is ErrorCode.NONE)
    response = FetchResponse(error_code=int(error), session_id=session_id)
    by_id = context.version >= 13
    topic: FetchableTopicResponse | None = None
    current: bytes | str | None = None
    for (name, _), data in included.items():
        if topic is None or name != current:
            current = name
            topic = (
                FetchableTopicResponse(topic_id=name) if by_id else FetchableTopicResponse(topic=name)  # type: ignore[arg-type]
            )
            response.responses.append(topic)
        topic.partitions.append(data)
    if context.version >= 16:
        # Brokers know each other's addresses.
        with_addresses = reader is None or not reader.follower
        _add_current_leaders(context, response, included, with_addresses=with_addresses)
    return response


def _size(results: FetchResults) -> int:
    """The size of the response with these results, nearly: without the ids of topics."""
    return _RESPONSE_BYTES + sum(
        _PARTITION_BYTES + len(data.records) for data in results.values() if data.records
    )


def _add_current_leaders(
    context: RequestContext, response: FetchResponse, included: FetchResults, *, with_addresses: bool
) -> None:
    leaders: CurrentLeaders | None = None
    for (topic, index), data in included.items():
        if data.error_code in LEADER_CHANGED:
            leaders = leaders or CurrentLeaders(context)
            leader = leaders.current_leader(topic, index)
            if leader is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    if leaders is not None and with_addresses:
        response.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in leaders.addresses.values()
        ]


def failure_response(request: FetchRequest, code: int, _message: str | None) -> FetchResponse:
    """The first versions say it of each partition; those with topic ids only for the whole."""
    return FetchResponse(
        error_code=int(code),
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=part.partition, error_code=int(code), high_watermark=-1, records=b""
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.topic
        ],
    )
