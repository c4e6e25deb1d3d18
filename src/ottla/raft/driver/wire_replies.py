"""The answers of the quorum in and out of Kafka's messages; the questions are in `wire`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from ottla.protocol import schema
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    add_raft_voter,
    begin_quorum_epoch,
    end_quorum_epoch,
    fetch,
    fetch_snapshot,
    remove_raft_voter,
    update_raft_voter,
    vote,
)
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from ottla.raft import messages as m
from ottla.raft.driver.wire import PARTITION, not_ours, only_partition
from ottla.raft.snapshot import SnapshotId
from ottla.runtime.address import Address

T = TypeVar("T")


# Outwards


def encode_reply(request: schema.Request, reply: m.Reply) -> schema.Response:
    match reply:
        case m.VoteReply():
            part = vote.VoteResponsePartitionData(
                partition_index=PARTITION,
                error_code=reply.error,
                leader_id=reply.leader_id,
                leader_epoch=reply.epoch,
                vote_granted=reply.granted,
            )
            return vote.VoteResponse(
                topics=[vote.VoteResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[part])],
                node_endpoints=_nodes(vote.NodeEndpoint, reply),
            )
        case m.BeginEpochReply():
            begun = begin_quorum_epoch.BeginQuorumEpochResponsePartitionData(
                partition_index=PARTITION,
                error_code=reply.error,
                leader_id=reply.leader_id,
                leader_epoch=reply.epoch,
            )
            return begin_quorum_epoch.BeginQuorumEpochResponse(
                topics=[
                    begin_quorum_epoch.BeginQuorumEpochResponseTopicData(
                        topic_name=CLUSTER_METADATA_TOPIC, partitions=[begun]
                    )
                ],
                node_endpoints=_nodes(begin_quorum_epoch.NodeEndpoint, reply),
            )
        case m.EndEpochReply():
            ended = end_quorum_epoch.EndQuorumEpochResponsePartitionData(
                partition_index=PARTITION,
                error_code=reply.error,
                leader_id=reply.leader_id,
                leader_epoch=reply.epoch,
            )
            return end_quorum_epoch.EndQuorumEpochResponse(
                topics=[
                    end_quorum_epoch.EndQuorumEpochResponseTopicData(
                        topic_name=CLUSTER_METADATA_TOPIC, partitions=[ended]
                    )
                ],
                node_endpoints=_nodes(end_quorum_epoch.NodeEndpoint, reply),
            )
        case m.FetchReply():
            return _fetch_response(reply)
        case m.FetchSnapshotReply():
            return _snapshot_response(reply)
        case m.VoterChangeReply():
            changed = (
                add_raft_voter.AddRaftVoterResponse
                if isinstance(request, add_raft_voter.AddRaftVoterRequest)
                else remove_raft_voter.RemoveRaftVoterResponse
            )
            return changed(error_code=reply.error, error_message=reply.message)
        case m.UpdateVoterReply():
            at = reply.endpoint or Address("", 0)
            return update_raft_voter.UpdateRaftVoterResponse(
                error_code=reply.error,
                current_leader=update_raft_voter.CurrentLeader(
                    leader_id=reply.leader_id, leader_epoch=reply.epoch, host=at.host, port=at.port
                ),
            )
        case _:
            raise TypeError(f"{reply} is not sent as a message of the quorum")


def _fetch_response(reply: m.FetchReply) -> schema.Response:
    diverging = reply.diverging or m.OffsetAndEpoch(-1, -1)
    snapshot = reply.snapshot or SnapshotId(-1, -1)
    part = fetch.PartitionData(
        partition_index=PARTITION,
        error_code=reply.error,
        high_watermark=reply.high_watermark,
        log_start_offset=reply.log_start_offset,
        diverging_epoch=fetch.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.offset),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=reply.leader_id, leader_epoch=reply.epoch),
        snapshot_id=fetch.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        aborted_transactions=[],
        records=reply.records,
    )
    topic = fetch.FetchableTopicResponse(
        topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[part]
    )
    return fetch.FetchResponse(responses=[topic], node_endpoints=_nodes(fetch.NodeEndpoint, reply))


def _snapshot_response(reply: m.FetchSnapshotReply) -> schema.Response:
    part = fetch_snapshot.FetchSnapshotResponsePartitionSnapshot(
        index=PARTITION,
        error_code=reply.error,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=reply.id.offset, epoch=reply.id.epoch),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=reply.leader_id, leader_epoch=reply.epoch),
        size=reply.size,
        position=reply.position,
        unaligned_records=reply.data,
    )
    topic = fetch_snapshot.FetchSnapshotResponseTopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[part])
    return fetch_snapshot.FetchSnapshotResponse(
        topics=[topic], node_endpoints=_nodes(fetch_snapshot.NodeEndpoint, reply)
    )


def _nodes(node_class: type[T], reply: m.NewsReply) -> list[T]:
    if reply.endpoint is None or reply.leader_id < 0:
        return []
    return [node_class(node_id=reply.leader_id, host=reply.endpoint.host, port=reply.endpoint.port)]  # type: ignore[call-arg]


# Inwards


def decode_reply(message: schema.Response) -> m.Reply:
    """What a response says; KafkaError if it is an error as a whole, or not about the metadata log."""
    code = getattr(message, "error_code", 0)
    match message:
        case add_raft_voter.AddRaftVoterResponse() | remove_raft_voter.RemoveRaftVoterResponse():
            return m.VoterChangeReply(_error(code), message.error_message)
        case update_raft_voter.UpdateRaftVoterResponse():
            leader = message.current_leader
            at = Address(leader.host, leader.port) if leader.host else None
            return m.UpdateVoterReply(leader.leader_epoch, leader.leader_id, _error(code), at)
    if code != ErrorCode.NONE:
        raise KafkaError(_error(code))
    match message:
        case vote.VoteResponse():
            v = only_partition(message.topics, "topic_name")
            at = _endpoint(message.node_endpoints, v.leader_id)
            return m.VoteReply(v.leader_epoch, v.leader_id, v.vote_granted, _error(v.error_code), at)
        case begin_quorum_epoch.BeginQuorumEpochResponse():
            b = only_partition(message.topics, "topic_name")
            at = _endpoint(message.node_endpoints, b.leader_id)
            return m.BeginEpochReply(b.leader_epoch, b.leader_id, _error(b.error_code), at)
        case end_quorum_epoch.EndQuorumEpochResponse():
            e = only_partition(message.topics, "topic_name")
            at = _endpoint(message.node_endpoints, e.leader_id)
            return m.EndEpochReply(e.leader_epoch, e.leader_id, _error(e.error_code), at)
        case fetch.FetchResponse():
            return _read_fetch_response(message)
        case fetch_snapshot.FetchSnapshotResponse():
            s = only_partition(message.topics, "name")
            return m.FetchSnapshotReply(
                s.current_leader.leader_epoch,
                s.current_leader.leader_id,
                SnapshotId(s.snapshot_id.end_offset, s.snapshot_id.epoch),
                s.size,
                s.position,
                bytes(s.unaligned_records),
                _error(s.error_code),
                _endpoint(message.node_endpoints, s.current_leader.leader_id),
            )
        case _:
            raise TypeError(f"{type(message).__name__} is not an answer of the quorum")


def _read_fetch_response(message: fetch.FetchResponse) -> m.FetchReply:
    if len(message.responses) != 1 or len(message.responses[0].partitions) != 1:
        raise not_ours()
    part = message.responses[0].partitions[0]
    diverging, snapshot, leader = part.diverging_epoch, part.snapshot_id, part.current_leader
    return m.FetchReply(
        leader.leader_epoch,
        leader.leader_id,
        part.high_watermark,
        part.log_start_offset,
        b"" if part.records is None else bytes(part.records),
        m.OffsetAndEpoch(diverging.end_offset, diverging.epoch) if diverging.epoch >= 0 else None,
        SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 else None,
        _error(part.error_code),
        _endpoint(message.node_endpoints, leader.leader_id),
    )


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _endpoint(nodes: Iterable[Any], leader_id: int) -> Address | None:
    return next((Address(node.host, node.port) for node in nodes if node.node_id == leader_id), None)
