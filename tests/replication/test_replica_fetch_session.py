"""The follower's side of a fetch session against the leader's: both always agree on the partitions."""

from __future__ import annotations

import random

from ottla.node.fetch.session import FetchSessionCache, SessionErrorContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from ottla.replication.replica_fetch_session import Key, ReplicaFetchSession
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock


class LeadersSide:
    """The session cache of a node, asked as its Fetch handler asks it."""

    def __init__(self, slots: int = 10) -> None:
        self.cache = FetchSessionCache(slots, SeededRandom(3), SimClock())

    def answer(self, request: FetchRequest) -> tuple[FetchResponse, dict[Key, int]]:
        asked = {
            (bytes(topic.topic_id), each.partition): each
            for topic in request.topics
            for each in topic.partitions
        }
        forgotten = [
            (bytes(topic.topic_id), each)
            for topic in request.forgotten_topics_data
            for each in topic.partitions
        ]
        context = self.cache.new_context(
            request.session_id, request.session_epoch, asked, forgotten, by_id=True, privileged=True
        )
        known = {} if isinstance(context, SessionErrorContext) else context.session.partitions
        wanted = {key: each.requested.fetch_offset for key, each in known.items()}
        results = {key: PartitionData(partition_index=key[1]) for key in wanted}
        error, session, _ = context.update_and_generate_response_data(results)
        return FetchResponse(error_code=error, session_id=session), wanted


def partition(index: int, offset: int) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000)


def build(session: ReplicaFetchSession, wanted: dict[Key, FetchPartition]) -> FetchRequest:
    """A request after which the session has exactly the partitions that are wanted."""
    request = FetchRequest()
    named = {key: asked for key, asked in wanted.items() if session.known.get(key) != asked}
    session.build(request, named, [key for key in session.known if key not in wanted])
    return request


def test_the_leader_always_knows_what_is_wanted() -> None:
    chance = random.Random(7)
    leader, session = LeadersSide(), ReplicaFetchSession()
    topics = [bytes([n]) * 16 for n in range(3)]
    named = 0
    for _ in range(300):
        wanted = {
            (topic, index): partition(index, chance.randrange(3))
            for topic in topics
            for index in range(3)
            if chance.random() < 0.7
        }
        if chance.random() < 0.05:
            leader = LeadersSide()  # restarted
        request = build(session, wanted)
        named += sum(len(topic.partitions) for topic in request.topics)
        response, known = leader.answer(request)
        if session.handle_response(response):
            assert known == {key: each.fetch_offset for key, each in wanted.items()}
        else:
            assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            session.reset()
    assert named < 300 * 9 * 0.7


def test_without_a_place_for_a_session_everything_is_named_every_time() -> None:
    leader, session = LeadersSide(slots=0), ReplicaFetchSession()
    wanted = {(bytes(16), index): partition(index, 5) for index in range(4)}
    for _ in range(3):
        response, known = leader.answer(build(session, wanted))
        assert session.handle_response(response)
        assert len(known) == 4
        assert not session.is_incremental
        assert sorted(session.reset()) == sorted(wanted)


def test_a_session_that_begins_again_ends_the_former_one_at_the_leader() -> None:
    leader, session = LeadersSide(), ReplicaFetchSession()
    wanted = {(bytes(16), 0): partition(0, 5)}
    for _ in range(3):
        response, _ = leader.answer(build(session, wanted))
        assert session.handle_response(response)
        assert len(leader.cache) == 1
        session.reset()
        build(session, wanted)  # this request is lost
        session.reset()


def test_a_session_may_grow_request_by_request() -> None:
    leader, session = LeadersSide(), ReplicaFetchSession()
    wanted: dict[Key, FetchPartition] = {}
    for index in range(10):
        wanted[bytes(16), index] = partition(index, 0)
        response, known = leader.answer(build(session, wanted))
        assert session.handle_response(response)
        assert known.keys() == wanted.keys()


def test_a_session_that_the_leader_ends_has_its_answer_and_begins_again() -> None:
    leader, session = LeadersSide(), ReplicaFetchSession()
    wanted = {(bytes(16), 0): partition(0, 5)}
    response, _ = leader.answer(build(session, wanted))
    assert session.handle_response(response)
    response, _ = leader.answer(build(session, {}))
    assert (response.error_code, response.session_id) == (ErrorCode.NONE, 0)
    assert session.handle_response(response)
    assert not session.is_incremental
