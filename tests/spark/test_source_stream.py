"""Streaming reads: the same rows in the same batches from `format("ottla")` on Ottla and on Apache Kafka, and
from Spark's own `format("kafka")` on Ottla.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ottla.client.blocking import Producer
from ottla.protocol.names import TopicPartition
from ottla.spark.lag import behind_latest
from tests.spark.source_harness import Rec, SourceHarness, beside_kafka, every_way, finish, flat, wait_for


@every_way
def test_what_is_there_is_read_once_and_a_restart_goes_on(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    lab.send(topic, [b"a0", b"a1"])
    lab.send(topic, [b"b0"], partition=1)
    checkpoint = lab.checkpoint()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert flat(lab.run(checkpoint, **options)) == sorted(lab.written)
    assert lab.run(checkpoint, **options) == []
    more = lab.send(topic, [b"a2"]) + lab.send(topic, [b"b1"], partition=1)
    assert flat(lab.run(checkpoint, **options)) == sorted(more)


@beside_kafka
def test_batches_have_as_many_offsets_as_allowed(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    lab.send(topic, [b"%d" % at for at in range(15)])
    lab.send(topic, [b"%d" % at for at in range(5)], partition=1)
    batches: list[list[Rec]] = []
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 8}
    query = lab.start(lab.checkpoint(), batches, trigger={"availableNow": True}, **options)
    finish(query)
    # Each partition has its share of what is left.
    counts = [
        (sum(r.partition == 0 for r in batch), sum(r.partition == 1 for r in batch)) for batch in batches
    ]
    assert counts == [(6, 2), (6, 2), (3, 1)]
    expected = [(3, 9, 6), (1, 3, 2), (0, 0, 0)]
    reports: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    assert [tuple(behind_latest(each).values()) for each in reports] == expected
    if not lab.is_ours:  # Spark's own source reports the same as metrics
        metrics = [json.loads(each.json)["sources"][0]["metrics"] for each in reports]
        names = behind_latest(reports[0])
        assert [tuple(float(each[name]) for name in names) for each in metrics] == expected
    assert flat(batches) == sorted(lab.written)


def test_a_stream_begins_at_the_end_and_takes_what_comes(lab: SourceHarness) -> None:
    topic = lab.topic()
    lab.send(topic, [b"before"])
    batches: list[list[Rec]] = []
    with lab.running(batches, subscribe=topic) as query:
        one = lab.send(topic, [b"one"])
        query.processAllAvailable()
        assert batches == [one]
        two = lab.send(topic, [b"two", b"three"])
        query.processAllAvailable()
    assert flat(batches) == sorted(one + two)


@beside_kafka
def test_offsets_and_times_say_where_a_stream_begins(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    first = lab.send(topic, [b"a0", b"a1", b"a2"], timestamp=1_000_000)
    second = lab.send(topic, [b"b0", b"b1"], partition=1, timestamp=1_000_000)
    offsets = json.dumps({topic: {"0": 2, "1": -2}})
    assert flat(lab.run(lab.checkpoint(), subscribe=topic, startingOffsets=offsets)) == sorted(
        first[2:] + second
    )
    assert flat(lab.run(lab.checkpoint(), subscribe=topic, startingTimestamp=1_001_000)) == sorted(
        first[1:] + second[1:]
    )


def test_new_partitions_are_read_from_their_beginning(lab: SourceHarness) -> None:
    topic = lab.topic()
    batches: list[list[Rec]] = []
    with lab.running(batches, subscribe=topic) as query:
        one = lab.send(topic, [b"one"])
        query.processAllAvailable()
        lab.admin.topics.add_partitions(topic, 2)
        lab.await_partitions(topic, 2)
        with Producer(lab.servers) as fresh:  # that knows the new partition
            two = lab.send(topic, [b"two", b"three"], partition=1, producer=fresh)
        wait_for(lambda: len(flat(batches)) >= 3, "rows of the new partition")
    assert flat(batches) == sorted(one + two)


def test_new_topics_of_a_pattern_are_read_from_their_beginning(lab: SourceHarness) -> None:
    first = lab.topic(stem="growing")
    stem = first.partition("-")[2][:4]
    batches: list[list[Rec]] = []
    with lab.running(batches, subscribePattern=f"growing-({first.partition('-')[2]}|{stem}.new.*)") as query:
        one = lab.send(first, [b"one"])
        query.processAllAvailable()
        second = lab.topic(stem=f"growing-{stem}.new")
        two = lab.send(second, [b"two"])
        wait_for(lambda: len(flat(batches)) >= 2, "rows of the new topic")
    assert flat(batches) == sorted(one + two)


@beside_kafka
def test_transactions_leave_gaps_and_no_rows(lab: SourceHarness) -> None:
    topic = lab.topic()
    committed = {"kafka.isolation.level": "read_committed", "subscribe": topic, "startingOffsets": "earliest"}
    checkpoint = lab.checkpoint()
    with lab.transactional() as producer:
        producer.begin_transaction()
        kept = lab.send(topic, [b"kept"], producer=producer)
        producer.commit_transaction()
        lab.await_ends(topic)
        assert flat(lab.run(checkpoint, **committed)) == kept
        producer.begin_transaction()
        lab.send(topic, [b"gone"], producer=producer)
        # Still open: nothing after it can be read.
        assert lab.run(checkpoint, **committed) == []
        producer.abort_transaction()
    lab.await_ends(topic)
    assert lab.run(checkpoint, **committed) == []
    last = lab.send(topic, [b"last"])
    assert flat(lab.run(checkpoint, **committed)) == last


@beside_kafka
def test_expired_offsets_fail_the_query_or_are_skipped(lab: SourceHarness) -> None:
    topic = lab.topic()
    checkpoint = lab.checkpoint()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    lab.send(topic, [b"a0"])
    lab.run(checkpoint, **options)
    lab.send(topic, [b"a1", b"a2", b"a3"])
    lab.admin.offsets.delete_records({TopicPartition(topic, 0): 3})
    with pytest.raises(Exception, match=r"(?i)failOnDataLoss"):
        lab.run(checkpoint, **options)
    assert [rec.value for rec in flat(lab.run(checkpoint, **options, failOnDataLoss=False))] == [b"a3"]


@pytest.mark.exhaustive
def test_a_deleted_topic_fails_the_query(lab: SourceHarness) -> None:
    stays, goes = lab.topic(stem="del.stays"), lab.topic(stem="del.goes")
    options = {
        "subscribePattern": rf"({stays}|{goes})".replace(".", r"\."),
        "startingOffsets": "earliest",
    }
    lab.send(stays, [b"1"])
    lab.send(goes, [b"2"])
    checkpoint = lab.checkpoint()
    assert flat(lab.run(checkpoint, **options)) == sorted(lab.written)
    lab.admin.topics.delete(goes)
    lab.await_partitions(goes, 0)
    more = lab.send(stays, [b"3"])
    with pytest.raises(Exception, match=r"(?i)failOnDataLoss"):
        lab.run(checkpoint, **options)
    assert flat(lab.run(checkpoint, **options, failOnDataLoss=False)) == more


@beside_kafka
def test_small_batches_wait_for_company_or_for_the_delay(lab: SourceHarness) -> None:
    topic = lab.topic()
    batches: list[list[Rec]] = []
    options = {"subscribe": topic, "minOffsetsPerTrigger": 4, "maxTriggerDelay": "1s"}
    with lab.running(batches, **options):
        first = lab.send(topic, [b"1", b"2", b"3", b"4", b"5"])
        wait_for(lambda: len(flat(batches)) == 5, "a batch that is large enough")
        lonely = lab.send(topic, [b"6"])
        wait_for(lambda: len(flat(batches)) == 6, "a batch that has waited long enough")
    assert batches[-1] == lonely
    assert flat(batches) == sorted(first + lonely)


@pytest.mark.parametrize(
    "wrong",
    [
        {"endingOffsets": "latest"},
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in (
                {"startingOffsets": '{"a": {"0": }}'},
                {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
                {"subscribe": "no-such-topic"},
            )
        ),
    ],
    ids=lambda wrong: ", ".join(wrong),
)
def test_wrong_options_fail_the_query_and_are_named(lab: SourceHarness, wrong: dict[str, str]) -> None:
    named = "|".join(map(re.escape, (*wrong, *wrong.values()))) if lab.is_ours else None
    with pytest.raises(Exception, match=named):
        lab.run(lab.checkpoint(), **{"subscribe": lab.topic(), **wrong})
