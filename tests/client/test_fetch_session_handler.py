"""Fetch sessions on the consumer's side: what is sent again and what is not."""

from __future__ import annotations

from ottla.client.consumer.fetch_session_handler import FetchSessionHandler, Wanted
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.names import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER_ID = b"1" * 16, b"2" * 16


def want(offset: int, topic_id: bytes = ID) -> Wanted:
    return Wanted(topic_id, offset, 5, 1000)


def asked(
    session: FetchSessionHandler, **wanted: Wanted
) -> tuple[int, int, dict[int, int], list[tuple[bytes, int]]]:
    """(session, epoch, offsets by partition, what is forgotten) of the next request."""
    request = FetchRequest()
    session.fill(request, {TopicPartition("t", int(name[1:])): w for name, w in wanted.items()})
    offsets = {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}
    gone = [(topic.topic_id, p) for topic in request.forgotten_topics_data for p in topic.partitions]
    return request.session_id, request.session_epoch, offsets, gone


def test_after_the_first_request_only_changes_are_sent() -> None:
    session = FetchSessionHandler()
    assert asked(session, p0=want(0), p1=want(0)) == (0, 0, {0: 0, 1: 0}, [])
    assert session.handle_response(77, 0)
    assert asked(session, p0=want(5), p1=want(0)) == (77, 1, {0: 5}, [])
    assert session.handle_response(77, 0)
    assert asked(session, p1=want(0)) == (77, 2, {}, [(ID, 0)])
    assert session.handle_response(77, 0)
    assert asked(session, p0=want(5), p1=want(0)) == (77, 3, {0: 5}, [])


def test_a_recreated_topic_is_forgotten_and_requested() -> None:
    session = FetchSessionHandler()
    asked(session, p0=want(9))
    session.handle_response(77, 0)
    assert asked(session, p0=want(0, OTHER_ID)) == (77, 1, {0: 0}, [(ID, 0)])


def test_a_broker_without_sessions_gets_everything_each_time() -> None:
    session = FetchSessionHandler()
    for offset in (0, 5):
        assert asked(session, p0=want(offset), p1=want(0)) == (0, 0, {0: offset, 1: 0}, [])
        assert session.handle_response(0, 0)


def test_a_session_that_the_broker_does_not_know_begins_again() -> None:
    session = FetchSessionHandler()
    asked(session, p0=want(0))
    session.handle_response(77, 0)
    asked(session, p0=want(5))
    assert not session.handle_response(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert asked(session, p0=want(5)) == (0, 0, {0: 5}, [])


def test_after_a_lost_answer_the_old_session_is_ended_by_a_full_request() -> None:
    session = FetchSessionHandler()
    asked(session, p0=want(0))
    session.handle_response(77, 0)
    asked(session, p0=want(5))
    session.handle_error()
    assert asked(session, p0=want(5)) == (77, 0, {0: 5}, [])
