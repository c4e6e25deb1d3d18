"""Convert the quorum's messages to and from Kafka's: one topic, one partition, and the cluster they are for.

A message for another cluster or another partition is refused here (INCONSISTENT_CLUSTER_ID,
INVALID_REQUEST), so the state machine sees only messages about the metadata log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from ottla.protocol import schema
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    add_raft_voter,
    api_versions,
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
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey
from ottla.runtime.address import Address

PARTITION: Final = 0
KRAFT_VERSION: Final = "kraft.version"

# The newest version of each API that the quorum uses.
VERSIONS: Final = {
    fetch.FetchRequest.API_KEY: 18,
    vote.VoteRequest.API_KEY: 2,
    begin_quorum_epoch.BeginQuorumEpochRequest.API_KEY: 1,
    end_quorum_epoch.EndQuorumEpochRequest.API_KEY: 1,
    fetch_snapshot.FetchSnapshotRequest.API_KEY: 1,
    add_raft_voter.AddRaftVoterRequest.API_KEY: 1,
    remove_raft_voter.RemoveRaftVoterRequest.API_KEY: 0,
    update_raft_voter.UpdateRaftVoterRequest.API_KEY: 0,
}

T = TypeVar("T")


# Requests: encode


def encode_request(request: m.Request, cluster_id: str) -> schema.Request:
    """Encode a request; `QueryVersions` is not among them, as the connection itself sends ApiVersions."""
    match request:
        case m.Vote():
            return _vote(request, cluster_id)
        case m.BeginEpoch():
            return _begin_epoch(request, cluster_id)
        case m.EndEpoch():
            return _end_epoch(request, cluster_id)
        case m.Fetch():
            return _fetch(request, cluster_id)
        case m.FetchSnapshot():
            return _fetch_snapshot(request, cluster_id)
        case m.AddVoter():
            return add_raft_voter.AddRaftVoterRequest(
                cluster_id=cluster_id,
                timeout_ms=request.timeout_ms,
                voter_id=request.voter.id,
                voter_directory_id=request.voter.directory_id,
                listeners=[
                    add_raft_voter.Listener(name=name, host=at.host, port=at.port)
                    for name, at in request.endpoints.items()
                ],
                ack_when_committed=request.ack_when_committed,
            )
        case m.RemoveVoter():
            return remove_raft_voter.RemoveRaftVoterRequest(
                cluster_id=cluster_id,
                voter_id=request.voter.id,
                voter_directory_id=request.voter.directory_id,
            )
        case m.UpdateVoter():
            return _update_voter(request, cluster_id)
        case _:
            raise TypeError(f"{request} cannot be sent as a message of the quorum")


def _vote(request: m.Vote, cluster_id: str) -> schema.Request:
    voter = request.voter or ReplicaKey(m.NO_LEADER_ID)
    partition = vote.VoteRequestPartitionData(
        partition_index=PARTITION,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=request.last.epoch,
        last_offset=request.last.offset,
        pre_vote=request.pre_vote,
    )
    topic = vote.VoteRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return vote.VoteRequest(cluster_id=cluster_id, voter_id=voter.id, topics=[topic])


def _begin_epoch(request: m.BeginEpoch, cluster_id: str) -> schema.Request:
    voter = request.voter or ReplicaKey(m.NO_LEADER_ID)
    partition = begin_quorum_epoch.BeginQuorumEpochRequestPartitionData(
        partition_index=PARTITION,
        voter_directory_id=voter.directory_id,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    topic = begin_quorum_epoch.BeginQuorumEpochRequestTopicData(
        topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition]
    )
    return begin_quorum_epoch.BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=voter.id,
        topics=[topic],
        leader_endpoints=[
            begin_quorum_epoch.LeaderEndpoint(name=name, host=at.host, port=at.port)
            for name, at in request.endpoints.items()
        ],
    )


def _end_epoch(request: m.EndEpoch, cluster_id: str) -> schema.Request:
    partition = end_quorum_epoch.EndQuorumEpochRequestPartitionData(
        partition_index=PARTITION,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[key.id for key in request.preferred],
        preferred_candidates=[
            end_quorum_epoch.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id)
            for key in request.preferred
        ],
    )
    topic = end_quorum_epoch.EndQuorumEpochRequestTopicData(
        topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition]
    )
    return end_quorum_epoch.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[topic],
        leader_endpoints=[
            end_quorum_epoch.LeaderEndpoint(name=name, host=at.host, port=at.port)
            for name, at in request.endpoints.items()
        ],
    )


def _fetch(request: m.Fetch, cluster_id: str) -> schema.Request:
    partition = fetch.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=request.epoch,
        fetch_offset=request.end.offset,
        last_fetched_epoch=request.end.epoch,
        log_start_offset=-1,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=[
            fetch.FetchTopic(
                topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[partition]
            )
        ],
    )


def _fetch_snapshot(request: m.FetchSnapshot, cluster_id: str) -> schema.Request:
    partition = fetch_snapshot.FetchSnapshotRequestPartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=request.epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=request.id.offset, epoch=request.id.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    topic = fetch_snapshot.FetchSnapshotRequestTopicSnapshot(
        name=CLUSTER_METADATA_TOPIC, partitions=[partition]
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=request.replica.id, max_bytes=request.max_bytes, topics=[topic]
    )


def _update_voter(request: m.UpdateVoter, cluster_id: str) -> schema.Request:
    return update_raft_voter.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=request.epoch,
        voter_id=request.voter.id,
        voter_directory_id=request.voter.directory_id,
        listeners=[
            update_raft_voter.Listener(name=name, host=at.host, port=at.port)
            for name, at in request.endpoints.items()
        ],
        kraft_version_feature=update_raft_voter.KRaftVersionFeature(
            min_supported_version=request.min_kraft_version, max_supported_version=request.max_kraft_version
        ),
    )


# Requests: decode


def decode_request(message: schema.Request, cluster_id: str) -> m.Request:
    """Decode a request; KafkaError with the code for the whole response if it is not for this quorum."""
    theirs = getattr(message, "cluster_id", None)
    if theirs is not None and theirs != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this is cluster {cluster_id}, not {theirs}; check the address",
        )
    match message:
        case vote.VoteRequest():
            v = _only_partition(message.topics, "topic_name")
            voter = (
                None if message.voter_id < 0 else ReplicaKey(message.voter_id, bytes(v.voter_directory_id))
            )
            return m.Vote(
                ReplicaKey(v.replica_id, bytes(v.replica_directory_id)),
                v.replica_epoch,
                m.OffsetAndEpoch(v.last_offset, v.last_offset_epoch),
                v.pre_vote,
                voter,
            )
        case begin_quorum_epoch.BeginQuorumEpochRequest():
            b = _only_partition(message.topics, "topic_name")
            voter = (
                None if message.voter_id < 0 else ReplicaKey(message.voter_id, bytes(b.voter_directory_id))
            )
            return m.BeginEpoch(b.leader_id, b.leader_epoch, _endpoints(message.leader_endpoints), voter)
        case end_quorum_epoch.EndQuorumEpochRequest():
            e = _only_partition(message.topics, "topic_name")
            preferred = [
                ReplicaKey(r.candidate_id, bytes(r.candidate_directory_id)) for r in e.preferred_candidates
            ]
            preferred = preferred or [ReplicaKey(id) for id in e.preferred_successors]
            endpoints = _endpoints(message.leader_endpoints)
            return m.EndEpoch(e.leader_id, e.leader_epoch, tuple(preferred), endpoints)
        case fetch.FetchRequest():
            return _read_fetch(message)
        case fetch_snapshot.FetchSnapshotRequest():
            s = _only_partition(message.topics, "name")
            return m.FetchSnapshot(
                ReplicaKey(message.replica_id, bytes(s.replica_directory_id)),
                s.current_leader_epoch,
                SnapshotId(s.snapshot_id.end_offset, s.snapshot_id.epoch),
                s.position,
                message.max_bytes,
            )
        case add_raft_voter.AddRaftVoterRequest():
            return m.AddVoter(
                ReplicaKey(message.voter_id, bytes(message.voter_directory_id)),
                _endpoints(message.listeners),
                message.timeout_ms,
                message.ack_when_committed,
            )
        case remove_raft_voter.RemoveRaftVoterRequest():
            return m.RemoveVoter(ReplicaKey(message.voter_id, bytes(message.voter_directory_id)))
        case update_raft_voter.UpdateRaftVoterRequest():
            return m.UpdateVoter(
                ReplicaKey(message.voter_id, bytes(message.voter_directory_id)),
                message.current_leader_epoch,
                _endpoints(message.listeners),
                message.kraft_version_feature.min_supported_version,
                message.kraft_version_feature.max_supported_version,
            )
        case _:
            raise TypeError(f"{type(message).__name__} is not a request to the quorum")


def _read_fetch(message: fetch.FetchRequest) -> m.Fetch:
    named = len(message.topics) == 1 and (
        message.topics[0].topic == CLUSTER_METADATA_TOPIC
        or bytes(message.topics[0].topic_id) == CLUSTER_METADATA_TOPIC_ID
    )
    if not named or len(message.topics[0].partitions) != 1 or message.topics[0].partitions[0].partition != 0:
        raise _not_the_metadata_partition()
    part = message.topics[0].partitions[0]
    replica_id = message.replica_state.replica_id
    if replica_id < 0:
        replica_id = message.replica_id
    return m.Fetch(
        ReplicaKey(replica_id, bytes(part.replica_directory_id)),
        part.current_leader_epoch,
        m.OffsetAndEpoch(part.fetch_offset, part.last_fetched_epoch),
        message.max_wait_ms,
        min(part.partition_max_bytes, message.max_bytes) if part.partition_max_bytes else message.max_bytes,
        part.high_watermark,
    )


def _only_partition(topics: list[Any], name: str) -> Any:
    """The one partition that a message contains; KafkaError if it contains anything else."""
    if (
        len(topics) != 1
        or getattr(topics[0], name) != CLUSTER_METADATA_TOPIC
        or len(topics[0].partitions) != 1
    ):
        raise _not_the_metadata_partition()
    partition = topics[0].partitions[0]
    index = next(
        getattr(partition, field)
        for field in ("partition_index", "partition", "index")
        if hasattr(partition, field)
    )
    if index != PARTITION:
        raise _not_the_metadata_partition()
    return partition


def _not_the_metadata_partition() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"only {CLUSTER_METADATA_TOPIC}-{PARTITION} is kept by a quorum"
    )


def _endpoints(listeners: Iterable[Any]) -> dict[str, Address]:
    return {listener.name: Address(listener.host, listener.port) for listener in listeners}


def supported_kraft_versions(message: api_versions.ApiVersionsResponse) -> tuple[int, int]:
    """The range of `kraft.version` that a node supports; (0, 0) if its response does not contain it."""
    for feature in message.supported_features:
        if feature.name == KRAFT_VERSION:
            return feature.min_version, feature.max_version
    return 0, 0


def error_reply(request: m.Request, error: ErrorCode, epoch: int) -> m.Reply | None:
    """The reply that stands for an error of a whole response; None if that counts as no response."""
    match request:
        case m.Vote():
            return m.VoteReply(epoch, m.NO_LEADER_ID, False, error)
        case m.QueryVersions():
            return m.VersionsReply(0, 0, error)
        case _:
            return None


# Replies: encode


def encode_reply(request: schema.Request, reply: m.Reply, listener: str) -> schema.Response:
    """Encode a reply to a request that came by a listener: it has the leader's endpoint of this listener
    only, as that of another may speak another protocol.
    """
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
                node_endpoints=_nodes(vote.NodeEndpoint, reply, listener),
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
                node_endpoints=_nodes(begin_quorum_epoch.NodeEndpoint, reply, listener),
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
                node_endpoints=_nodes(end_quorum_epoch.NodeEndpoint, reply, listener),
            )
        case m.FetchReply():
            return _fetch_response(reply, listener)
        case m.FetchSnapshotReply():
            return _snapshot_response(reply, listener)
        case m.VoterChangeReply():
            changed = (
                add_raft_voter.AddRaftVoterResponse
                if isinstance(request, add_raft_voter.AddRaftVoterRequest)
                else remove_raft_voter.RemoveRaftVoterResponse
            )
            return changed(error_code=reply.error, error_message=reply.message)
        case m.UpdateVoterReply():
            at = reply.endpoints.get(listener, Address("", 0))
            return update_raft_voter.UpdateRaftVoterResponse(
                error_code=reply.error,
                current_leader=update_raft_voter.CurrentLeader(
                    leader_id=reply.leader_id, leader_epoch=reply.epoch, host=at.host, port=at.port
                ),
            )
        case _:
            raise TypeError(f"{reply} cannot be sent as a message of the quorum")


def _fetch_response(reply: m.FetchReply, listener: str) -> schema.Response:
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
    return fetch.FetchResponse(responses=[topic], node_endpoints=_nodes(fetch.NodeEndpoint, reply, listener))


def _snapshot_response(reply: m.FetchSnapshotReply, listener: str) -> schema.Response:
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
        topics=[topic], node_endpoints=_nodes(fetch_snapshot.NodeEndpoint, reply, listener)
    )


def _nodes(node_class: type[T], reply: m.LeaderReply, listener: str) -> list[T]:
    at = reply.endpoints.get(listener)
    if at is None or reply.leader_id < 0:
        return []
    return [node_class(node_id=reply.leader_id, host=at.host, port=at.port)]  # type: ignore[call-arg]


# Replies: decode


def decode_reply(message: schema.Response, listener: str) -> m.Reply:
    """Decode a response of a node's listener; KafkaError if it is an error as a whole, or not about the
    metadata log.
    """
    code = getattr(message, "error_code", 0)
    match message:
        case add_raft_voter.AddRaftVoterResponse() | remove_raft_voter.RemoveRaftVoterResponse():
            return m.VoterChangeReply(_error(code), message.error_message)
        case update_raft_voter.UpdateRaftVoterResponse():
            leader = message.current_leader
            at = {listener: Address(leader.host, leader.port)} if leader.host else {}
            return m.UpdateVoterReply(leader.leader_epoch, leader.leader_id, _error(code), at)
    if code != ErrorCode.NONE:
        raise KafkaError(_error(code))
    match message:
        case vote.VoteResponse():
            v = _only_partition(message.topics, "topic_name")
            at = _leader_endpoints(message.node_endpoints, v.leader_id, listener)
            return m.VoteReply(v.leader_epoch, v.leader_id, v.vote_granted, _error(v.error_code), at)
        case begin_quorum_epoch.BeginQuorumEpochResponse():
            b = _only_partition(message.topics, "topic_name")
            at = _leader_endpoints(message.node_endpoints, b.leader_id, listener)
            return m.BeginEpochReply(b.leader_epoch, b.leader_id, _error(b.error_code), at)
        case end_quorum_epoch.EndQuorumEpochResponse():
            e = _only_partition(message.topics, "topic_name")
            at = _leader_endpoints(message.node_endpoints, e.leader_id, listener)
            return m.EndEpochReply(e.leader_epoch, e.leader_id, _error(e.error_code), at)
        case fetch.FetchResponse():
            return _read_fetch_response(message, listener)
        case fetch_snapshot.FetchSnapshotResponse():
            s = _only_partition(message.topics, "name")
            return m.FetchSnapshotReply(
                s.current_leader.leader_epoch,
                s.current_leader.leader_id,
                SnapshotId(s.snapshot_id.end_offset, s.snapshot_id.epoch),
                s.size,
                s.position,
                bytes(s.unaligned_records),
                _error(s.error_code),
                _leader_endpoints(message.node_endpoints, s.current_leader.leader_id, listener),
            )
        case _:
            raise TypeError(f"{type(message).__name__} is not an answer of the quorum")


def _read_fetch_response(message: fetch.FetchResponse, listener: str) -> m.FetchReply:
    if len(message.responses) != 1 or len(message.responses[0].partitions) != 1:
        raise _not_the_metadata_partition()
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
        _leader_endpoints(message.node_endpoints, leader.leader_id, listener),
    )


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _leader_endpoints(nodes: Iterable[Any], leader_id: int, listener: str) -> dict[str, Address]:
    leader = next((node for node in nodes if node.node_id == leader_id), None)
    return {} if leader is None else {listener: Address(leader.host, leader.port)}
