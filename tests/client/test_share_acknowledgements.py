"""What a share consumer makes of a response, and what it sends back: no broker is needed."""

from __future__ import annotations

import random

import pytest

from ottla.client.share.acknowledgements import (
    AcknowledgedRange,
    acquired_slices,
    merge_ranges,
    ranges_of,
    without_gaps,
)
from ottla.client.share.config import ShareConsumerConfig
from ottla.client.share.share_completed_fetch import RecordDeserializationFailed, ShareCompletedFetch
from ottla.client.share.share_consumer import ShareConsumer
from ottla.client.share.share_session_handler import ShareSessionHandler
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.protocol.share import AcknowledgeType
from ottla.records.builder import build_batch

ACCEPT, RELEASE, GAP = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.GAP
TOPIC_ID = bytes(15) + b"\1"


def batch(base_offset: int, values: list[bytes]) -> bytes:
    return bytes(build_batch([(0, None, value) for value in values], base_offset=base_offset))


def fetch(data: bytes, *acquired: tuple[int, int, int]) -> ShareCompletedFetch:
    return ShareCompletedFetch(
        TopicPartition("jobs", 0),
        TopicIdPartition(TOPIC_ID, 0),
        1,
        data,
        acquired,
        deadline=0.0,
        check_crcs=True,
    )


def test_only_acquired_records_are_shown_with_their_deliveries() -> None:
    done = fetch(batch(10, [b"a", b"b", b"c", b"d"]) + batch(14, [b"e", b"f"]), (11, 12, 1), (14, 14, 3))
    found = done.take(100, None, None)
    assert [(record.offset, record.value, record.delivery_count) for record in found] == [
        (11, b"b", 1),
        (12, b"c", 1),
        (14, b"e", 3),
    ]
    assert done.is_empty
    assert not done.skipped
    assert done.taken_since(0) == [AcknowledgedRange(11, 12, ACCEPT), AcknowledgedRange(14, 14, ACCEPT)]


def test_an_offset_without_a_record_is_a_gap() -> None:
    # Compaction has removed 12 and 13, and what was after 15.
    done = fetch(batch(10, [b"a", b"b"]) + batch(14, [b"c"]), (10, 16, 1))
    assert [record.offset for record in done.take(100, None, None)] == [10, 11, 14]
    assert done.skipped == [AcknowledgedRange(12, 13, GAP), AcknowledgedRange(15, 16, GAP)]


def test_a_damaged_batch_is_released_and_the_others_are_read() -> None:
    damaged = bytearray(batch(12, [b"x" * 50, b"y" * 50]))
    damaged[-10] ^= 0xFF
    done = fetch(batch(10, [b"a", b"b"]) + bytes(damaged) + batch(14, [b"c"]), (10, 14, 2))
    assert [record.offset for record in done.take(100, None, None)] == [10, 11, 14]
    assert done.released == [AcknowledgedRange(12, 13, RELEASE)]
    assert not done.skipped
    error = done.take_damage()
    assert error is not None
    assert "12 to 13" in error.message
    assert done.take_damage() is None


def test_a_damaged_batch_is_released_where_columns_are_read() -> None:
    pytest.importorskip("pyarrow")
    damaged = bytearray(batch(12, [b"x" * 50, b"y" * 50]))
    damaged[-10] ^= 0xFF
    done = fetch(batch(10, [b"a", b"b"]) + bytes(damaged) + batch(14, [b"c"]), (11, 14, 2))
    (rows,) = done.decode_arrow(["value"])
    assert rows.batch.column("value").to_pylist() == [b"b", b"c"]
    assert rows.delivery_count == 2
    assert rows.offsets == ((11, 11), (14, 14))
    assert done.released == [AcknowledgedRange(12, 13, RELEASE)]


def test_a_record_that_cannot_be_deserialized_is_skipped_once_it_was_reported() -> None:
    done = fetch(batch(0, [b"1", b"two", b"3"]), (0, 2, 1))
    assert [record.value for record in done.take(100, None, int)] == [1]
    with pytest.raises(RecordDeserializationFailed, match="offset 1 cannot be deserialized") as caught:
        done.take(100, None, int)
    assert (caught.value.record.offset, caught.value.record.value) == (1, b"two")
    assert [record.value for record in done.take(100, None, int)] == [3]
    assert done.is_empty


def test_records_and_gaps_are_the_acquired_ranges_whatever_is_missing() -> None:
    chance = random.Random(18)
    for _ in range(500):
        offsets = sorted(chance.sample(range(60), chance.randrange(1, 40)))
        cuts = sorted(chance.sample(range(61), 2 * chance.randrange(1, 6)))
        acquired = [(low, high - 1, chance.randrange(1, 5)) for low, high in zip(cuts[::2], cuts[1::2])]
        for (low, high, count), part in zip(acquired, acquired_slices(offsets, acquired), strict=True):
            shown = offsets[part.begin : part.end]
            missing = [o for first, last in part.gaps for o in range(first, last + 1)]
            assert part.delivery_count == count
            assert sorted(shown + missing) == list(range(low, high + 1))
            accepted = [o for a, b in without_gaps(low, high, part.gaps) for o in range(a, b + 1)]
            assert accepted == shown


def test_offsets_are_sent_as_ranges_in_order() -> None:
    types = {5: ACCEPT, 3: ACCEPT, 4: ACCEPT, 6: RELEASE, 8: ACCEPT}
    expected = [
        AcknowledgedRange(3, 5, ACCEPT),
        AcknowledgedRange(6, 6, RELEASE),
        AcknowledgedRange(8, 8, ACCEPT),
    ]
    assert ranges_of(types) == expected
    assert merge_ranges(reversed(expected)) == expected


def test_a_session_sends_changes_only() -> None:
    a, b, c = (TopicIdPartition(TOPIC_ID, index) for index in range(3))
    session = ShareSessionHandler()
    assert session.is_new
    assert session.change_to([a, b]) == ([a, b], [])
    session.handle_response()
    assert (session.epoch, session.is_new) == (1, False)
    assert session.change_to([b, c]) == ([c], [a])
    session.handle_response()
    session.handle_error()
    assert session.is_new
    assert session.change_to([b, c]) == ([b, c], [])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group.id": "g", "auto.offset.reset": "earliest"}, "share.auto.offset.reset"),
        ({"group.id": "g", "enable_auto_commit": "true"}, "share.acknowledgement.mode"),
        ({"group.id": "g", "isolation.level": "read_committed"}, "share.isolation.level"),
        ({"group.id": "g", "group.instance.id": "a"}, "no static members"),
        ({"group.id": "g", "share.acquire.mode": "fast"}, "batch_optimized, record_limit"),
        ({"group.id": "g", "share.acknowledgement.mode": "auto"}, "implicit, explicit"),
        ({}, "needs a group.id"),
    ],
)
def test_settings_that_cannot_be_say_what_there_is_instead(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ShareConsumer(settings)


def test_settings_have_kafkas_names_and_defaults() -> None:
    config = ShareConsumerConfig(group_id="g")
    assert (config.share_acknowledgement_mode, config.share_acquire_mode) == ("implicit", "batch_optimized")
    assert (config.max_poll_records, config.fetch_max_wait_ms, config.fetch_max_bytes) == (
        500,
        500,
        52_428_800,
    )


def test_an_error_says_which_offsets_are_damaged() -> None:
    damaged = bytearray(batch(7, [b"x" * 50]))
    damaged[-10] ^= 0xFF
    done = fetch(bytes(damaged), (7, 7, 1))
    assert done.take(1, None, None) == []
    error = done.take_damage()
    assert isinstance(error, KafkaError)
    assert "jobs-0" in error.message
