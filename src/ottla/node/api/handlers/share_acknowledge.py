"""ShareAcknowledge: acknowledge records that a member of a share group has acquired.

Each range of offsets is accepted, released to other members, rejected for good, or marked as a gap in the log
(type 0), with one type for all of its offsets or one for each. The response has an error for each partition,
once what was acknowledged is persisted. The request continues the member's share session, or ends it with
epoch -1: then all that the member still holds is released. It cannot begin one.

Version 2 has renewals: with type 4, in a request that says so, the lock on a record begins again
  (KIP-1222).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import LEADER_CHANGED, CurrentLeaders
from ottla.node.api.share_requests import Acknowledgements, ReadableTopics, session_key
from ottla.node.fetch.session import FINAL_EPOCH
from ottla.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


async def handle(context: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    key = session_key(context, request.group_id, request.member_id)
    manager = context.broker.share_partitions
    manager.sessions.acknowledge_session_update(key, request.share_session_epoch)
    acknowledgements = await Acknowledgements.begin(
        context, manager, key, request.topics, ReadableTopics(context), is_renew_ack=request.is_renew_ack
    )
    results = await acknowledgements.results()
    if request.share_session_epoch == FINAL_EPOCH:
        manager.release_session(key)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=manager.settings(key.group_id).record_lock_duration_ms
    )
    leaders: CurrentLeaders | None = None
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for partition, error in results.items():
        data = PartitionData(partition_index=partition.partition)
        if error is not None:
            context.count_error(int(error.code))
            data.error_code, data.error_message = int(error.code), error.message
            if error.code in LEADER_CHANGED:
                leaders = leaders or CurrentLeaders(context)
                leader = leaders.current_leader(*partition)
                if leader is not None:
                    data.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = ShareAcknowledgeTopicResponse(topic_id=partition.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    if leaders is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in leaders.addresses.values()
        ]
    return response
