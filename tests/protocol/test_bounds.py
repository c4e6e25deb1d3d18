"""Limits of requests: a few bytes on the wire must not become gigabytes in memory."""

from __future__ import annotations

import struct

import pytest

from ottla.protocol.decoder import MAX_ELEMENTS, MAX_TAGS
from ottla.protocol.errors import KafkaError, TooManyElements
from ottla.protocol.headers import RequestHeader
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest


def names(count: int) -> bytes:
    return struct.pack(">i", count) + b"\0\0" * count


def test_a_request_holds_a_bounded_number_of_elements() -> None:
    topics = MetadataRequest.decode(names(MAX_ELEMENTS), 0).topics
    assert topics is not None
    assert len(topics) == MAX_ELEMENTS
    with pytest.raises(KafkaError, match=f"more than {MAX_ELEMENTS} elements"):
        MetadataRequest.decode(names(MAX_ELEMENTS + 1), 0)


def test_the_elements_of_all_arrays_count_together() -> None:
    partition = struct.pack(">iii", 0, 0, 0)
    inner = MAX_ELEMENTS // 4
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", inner) + partition * inner
    for topics, fits in ((3, True), (4, False)):
        body = struct.pack(">ii", -2, topics) + topic * topics
        if fits:
            assert len(OffsetForLeaderEpochRequest.decode(body, 3).topics) == topics
        else:
            with pytest.raises(KafkaError, match="elements"):
                OffsetForLeaderEpochRequest.decode(body, 3)


def test_a_response_may_be_as_large_as_it_is() -> None:
    count = MAX_ELEMENTS + 1
    broker = struct.pack(">ihi", 1, 0, 1)
    body = struct.pack(">i", count) + broker * count + struct.pack(">i", 0)
    assert len(MetadataResponse.decode(body, 0).brokers) == count


def test_tagged_fields_are_few_and_count_too() -> None:
    header = struct.pack(">hhih", 3, 12, 1, -1)
    tags = b"".join(bytes([0x80 | tag & 0x7F, tag >> 7, 0]) for tag in range(300))
    assert RequestHeader.decode(header + bytes([MAX_TAGS]) + tags[: 3 * MAX_TAGS], 2).unknown_tags
    with pytest.raises(KafkaError, match="tagged fields"):
        RequestHeader.decode(header + b"\xac\x02" + tags, 2)
    topic = b"\0" + bytes(16) + bytes([MAX_TAGS]) + tags[: 3 * MAX_TAGS]
    count = MAX_ELEMENTS // MAX_TAGS
    prefix = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7])
    with pytest.raises(KafkaError, match="tagged fields"):
        DeleteTopicsRequest.decode(prefix + topic * count + struct.pack(">i", 1) + b"\0", 6)


def test_a_caller_may_ask_for_fewer_elements() -> None:
    """Nothing of a longer list is decoded then."""
    data = names(1_001)
    with pytest.raises(TooManyElements):
        MetadataRequest.decode_from(data, 0, 0, 1_000)
    topics = MetadataRequest.decode_from(data, 0, 0, 1_001)[0].topics
    assert topics is not None
    assert len(topics) == 1_001
