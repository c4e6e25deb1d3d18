"""The comparison that the differential tests rely on: it finds what differs and overlooks what must."""

from __future__ import annotations

import pytest

from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.schema import Response
from tests.kafka.scripts.kit import batch_of
from tests.support.differential import Entry, Session, compare, render
from tests.support.wire import CLOSED, Closed


def transcript(*answers: Response | Closed) -> list[Entry]:
    session = Session("127.0.0.1:1")
    for answer in answers:
        session.note("ask", 1, answer)
    return session.entries


def differences(expected: list[Entry], actual: list[Entry]) -> list[str]:
    return [str(each) for each in compare(expected, actual)]


def metadata(*topics: MetadataResponseTopic, port: int = 9092) -> MetadataResponse:
    broker = MetadataResponseBroker(node_id=1, host="localhost", port=port)
    return MetadataResponse(brokers=[broker], cluster_id="some", topics=list(topics))


def topic(name: str, topic_id: bytes, error_code: int = 0) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(partition_index=0, leader_id=1)
    return MetadataResponseTopic(name=name, topic_id=topic_id, error_code=error_code, partitions=[partition])


A, B = bytes([1] * 16), bytes([2] * 16)


def test_a_field_that_differs_is_named() -> None:
    assert differences(transcript(metadata(topic("t", A))), transcript(metadata(topic("t", A, 3)))) == [
        "ask v1.MetadataResponse.topics[t].error_code: expected 'NONE', got 'UNKNOWN_TOPIC_OR_PARTITION'"
    ]


def test_ports_and_the_order_of_topics_do_not_count() -> None:
    expected = transcript(metadata(topic("a", A), topic("b", B)))
    assert differences(expected, transcript(metadata(topic("b", B), topic("a", A), port=1))) == []


def test_ids_count_only_by_being_equal_or_not() -> None:
    expected = transcript(metadata(topic("t", A)), metadata(topic("t", A)))
    assert differences(expected, transcript(metadata(topic("t", B)), metadata(topic("t", B)))) == []
    assert differences(expected, transcript(metadata(topic("t", B)), metadata(topic("t", A)))) == [
        "ask v1.MetadataResponse.topics[t].topic_id: expected '<topic_id 1>', got '<topic_id 2>'"
    ]


def test_an_element_that_is_missing_is_named_alone() -> None:
    expected = transcript(metadata(topic("a", A), topic("b", B), topic("c", B)))
    found = compare(expected, transcript(metadata(topic("a", A), topic("c", B))))
    assert [each.where for each in found] == ["ask v1.MetadataResponse.topics[b]"]


def test_a_closed_connection_is_an_answer() -> None:
    assert differences(transcript(CLOSED), transcript(CLOSED)) == []
    assert len(differences(transcript(CLOSED), transcript(metadata()))) == 1


def test_a_transcript_that_is_shorter_differs() -> None:
    assert len(differences(transcript(CLOSED, CLOSED), transcript(CLOSED))) == 1


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [("a text", "another text", True), ("a text", None, False), (None, "more than was asked", True)],
)
def test_an_error_is_explained_where_kafka_explains_it(
    expected: str | None, actual: str | None, equal: bool
) -> None:
    def refused(message: str | None) -> ProduceResponse:
        result = PartitionProduceResponse(index=0, error_code=2, error_message=message)
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[result])])

    assert (differences(transcript(refused(expected)), transcript(refused(actual))) == []) is equal


def fetched(records: bytes) -> FetchResponse:
    data = PartitionData(partition_index=0, high_watermark=1, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def test_records_count_but_not_the_part_of_a_batch_behind_them() -> None:
    batch = batch_of(b"value")
    assert differences(transcript(fetched(batch)), transcript(fetched(batch + batch[:20]))) == []
    other = differences(transcript(fetched(batch)), transcript(fetched(batch_of(b"other"))))
    assert any("records[0].records" in each for each in other)
    assert differences(transcript(fetched(batch)), transcript(fetched(b""))) != []


def test_what_is_allowed_is_left_out() -> None:
    expected, actual = transcript(metadata(topic("t", A))), transcript(metadata(topic("t", A, 3)))
    assert compare(expected, actual, allowed=["ask v*.MetadataResponse.topics*.error_code"]) == []


def test_a_transcript_can_be_read() -> None:
    text = render(transcript(metadata(topic("t", A)), CLOSED))
    assert "== ask v1\n" in text
    assert "- error_code: 'NONE'\n" in text
