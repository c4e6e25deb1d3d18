"""The quorum's messages through Kafka's, in every version that both ends may speak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.messages.fetch import FetchRequest, FetchTopic
from ottla.protocol.messages.vote import VoteResponse
from ottla.protocol.schema import drop_newer_fields
from ottla.raft import messages as m
from ottla.raft.driver import wire
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey
from ottla.runtime.address import Address

CLUSTER = "the-cluster"
ME, YOU = ReplicaKey(1, b"a" * 16), ReplicaKey(2, b"b" * 16)
AT = {"CONTROLLER": Address("host", 9093), "OTHER": Address("::1", 1)}
END = m.OffsetAndEpoch(10, 3)
SNAPSHOT = SnapshotId(7, 2)

REQUESTS = [
    m.Vote(ME, 5, END, True, YOU),
    m.Vote(ME, 5, END, False, YOU),
    m.BeginEpoch(1, 5, AT, YOU),
    m.EndEpoch(1, 5, (ME, YOU), AT),
    m.Fetch(ME, 5, END, 500, 1000, 9),
    m.FetchSnapshot(ME, 5, SNAPSHOT, 3, 100),
    m.AddVoter(YOU, AT, 100, False),
    m.RemoveVoter(YOU),
    m.UpdateVoter(YOU, 5, AT, 0, 1),
]
LISTENER = "CONTROLLER"
ENDPOINT = {LISTENER: Address("leader", 9093)}
REPLIES: list[tuple[m.Request, m.Reply]] = [
    (REQUESTS[0], m.VoteReply(5, 1, True, ErrorCode.NONE, ENDPOINT)),
    (REQUESTS[0], m.VoteReply(5, -1, False, ErrorCode.FENCED_LEADER_EPOCH)),
    (REQUESTS[2], m.BeginEpochReply(5, 1, ErrorCode.NONE, ENDPOINT)),
    (REQUESTS[3], m.EndEpochReply(5, 1, ErrorCode.NONE, ENDPOINT)),
    (REQUESTS[4], m.FetchReply(5, 1, 8, 2, b"records", None, None, ErrorCode.NONE, ENDPOINT)),
    (REQUESTS[4], m.FetchReply(5, 1, 8, 2, b"", END, None)),
    (REQUESTS[4], m.FetchReply(5, 1, 8, 2, b"", None, SNAPSHOT)),
    (REQUESTS[4], m.FetchReply(5, -1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    (REQUESTS[5], m.FetchSnapshotReply(5, 1, SNAPSHOT, 100, 3, b"piece", ErrorCode.NONE, ENDPOINT)),
    (REQUESTS[6], m.VoterChangeReply(ErrorCode.DUPLICATE_VOTER, "twice")),
    (REQUESTS[7], m.VoterChangeReply()),
    (REQUESTS[8], m.UpdateVoterReply(5, 1, ErrorCode.NONE, ENDPOINT)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests(request_: m.Request) -> None:
    message = wire.encode_request(request_, CLUSTER)
    version = wire.VERSIONS[message.API_KEY]
    decoded = type(message).decode(message.encode(version), version)
    assert wire.decode_request(decoded, CLUSTER) == request_


@pytest.mark.parametrize(("request_", "reply"), REPLIES, ids=lambda each: type(each).__name__)
def test_replies(request_: m.Request, reply: m.Reply) -> None:
    message = wire.encode_request(request_, CLUSTER)
    response = wire.encode_reply(message, reply, LISTENER)
    version = wire.VERSIONS[message.API_KEY]
    assert wire.decode_reply(type(response).decode(response.encode(version), version), LISTENER) == reply


@pytest.mark.parametrize(("request_", "reply"), REPLIES, ids=lambda each: type(each).__name__)
def test_replies_have_the_endpoint_of_the_listener_that_was_asked(
    request_: m.Request, reply: m.Reply
) -> None:
    """That of another listener may speak another protocol: a node that begins to use a secured listener would
    greet the plain one of the leader by TLS, and never reach it."""
    if not isinstance(reply, m.LeaderReply):
        return
    by_two = {LISTENER: Address("leader", 9093), "SECURED": Address("leader", 9095)}
    message = wire.encode_request(request_, CLUSTER)
    for listener, expected in [("SECURED", {"SECURED": by_two["SECURED"]}), ("OTHER", {})]:
        response = wire.encode_reply(message, replace(reply, leader_id=1, endpoints=by_two), listener)
        decoded = wire.decode_reply(response, listener)
        assert isinstance(decoded, m.LeaderReply)
        assert decoded.endpoints == expected


@pytest.mark.parametrize(("request_", "reply"), REPLIES, ids=lambda each: type(each).__name__)
def test_replies_fit_every_version(request_: m.Request, reply: m.Reply) -> None:
    message = wire.encode_request(request_, CLUSTER)
    for version in range(API[message.API_KEY].min_version, wire.VERSIONS[message.API_KEY] + 1):
        response = wire.encode_reply(message, reply, LISTENER)
        drop_newer_fields(response, version)
        told = type(response).decode(response.encode(version), version)
        assert getattr(told, "topics", None) == getattr(response, "topics", None)


def test_older_versions_know_less() -> None:
    vote = wire.encode_request(REQUESTS[1], CLUSTER)
    decoded = wire.decode_request(type(vote).decode(vote.encode(0), 0), CLUSTER)
    assert decoded == m.Vote(ReplicaKey(1), 5, END, False, None)
    with pytest.raises(UnsupportedVersion):
        wire.encode_request(REQUESTS[0], CLUSTER).encode(1)
    end = wire.encode_request(REQUESTS[3], CLUSTER)
    old = wire.decode_request(type(end).decode(end.encode(0), 0), CLUSTER)
    assert old == m.EndEpoch(1, 5, (ReplicaKey(1), ReplicaKey(2)), {})


def test_what_is_for_another_cluster_or_another_partition_is_refused() -> None:
    message = wire.encode_request(REQUESTS[4], CLUSTER)
    with pytest.raises(KafkaError) as refused:
        wire.decode_request(message, "another")
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert isinstance(message, FetchRequest)
    for topics in ([], [FetchTopic(topic="orders")], [*message.topics, *message.topics]):
        message.topics = topics
        with pytest.raises(KafkaError) as refused:
            wire.decode_request(message, CLUSTER)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    vote = wire.encode_request(replace(REQUESTS[0]), CLUSTER)
    vote.topics[0].partitions[0].partition_index = 1  # type: ignore[attr-defined]
    with pytest.raises(KafkaError):
        wire.decode_request(vote, CLUSTER)


def test_an_error_of_the_whole_response_is_raised() -> None:
    with pytest.raises(KafkaError) as error:
        wire.decode_reply(VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID), LISTENER)
    assert error.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    with pytest.raises(KafkaError):
        wire.decode_reply(VoteResponse(error_code=12345), LISTENER)
