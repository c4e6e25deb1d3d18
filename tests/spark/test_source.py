"""Batch reads: the same rows from `format("ottla")` on Ottla and on Apache Kafka, and from Spark's own
`format("kafka")` on Ottla.
"""

from __future__ import annotations

import json

import pytest

from ottla.client.blocking import Producer
from ottla.protocol.names import TopicPartition
from tests.spark.source_harness import SourceHarness, beside_kafka, every_way, without_headers

T0 = 1_700_000_000_000


@every_way
def test_a_record_becomes_a_row(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    lab.send(topic, [b"plain"], key=b"k")
    lab.send(topic, [None], key=b"tombstone")
    lab.send(topic, [b""], partition=1, timestamp=T0 + 123)
    frame = lab.load(subscribe=topic)
    assert [field.simpleString() for field in frame.schema] == [
        "key:binary",
        "value:binary",
        "topic:string",
        "partition:int",
        "offset:bigint",
        "timestamp:timestamp",
        "timestampType:int",
    ]
    assert lab.read(subscribe=topic) == sorted(lab.written)


@beside_kafka
def test_headers_come_when_they_are_asked_for(lab: SourceHarness) -> None:
    topic = lab.topic()
    lab.send(topic, [b"one"], headers=[("trace", b"abc"), ("empty", b""), ("trace", b"again")])
    lab.send(topic, [b"two"], headers=[("nothing", None)])
    lab.send(topic, [b"three"])
    assert lab.read(subscribe=topic, includeHeaders=True) == sorted(lab.written)
    assert lab.read(subscribe=topic) == without_headers(lab.written)


def test_the_broker_can_set_the_time(lab: SourceHarness) -> None:
    topic = lab.topic(configs={"message.timestamp.type": "LogAppendTime"})
    lab.send(topic, [b"late"])
    [row] = lab.read(subscribe=topic)
    assert row.timestamp_type == 1
    assert row.timestamp_ms > T0 + 86_400_000


def test_compressed_batches_are_read(lab: SourceHarness) -> None:
    topic = lab.topic()
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with Producer(lab.servers, compression_type=codec, linger_ms=50) as producer:
            lab.send(topic, [b"%d" % at * 20 for at in range(50)], producer=producer)
    assert lab.read(subscribe=topic) == sorted(lab.written)


@beside_kafka
def test_topics_are_chosen_by_list_by_pattern_or_by_partition(lab: SourceHarness) -> None:
    one, two, other = lab.topic(2, stem="pick.a"), lab.topic(stem="pick.b"), lab.topic(stem="leave")
    for topic in (one, two, other):
        lab.send(topic, [b"x", b"y"])
    lab.send(one, [b"z"], partition=1)
    picked = sorted(rec for rec in lab.written if rec.topic in (one, two))
    ends = f"({one.removeprefix('pick.')}|{two.removeprefix('pick.')})"
    assert lab.read(subscribe=f"{one}, {two}") == picked
    assert lab.read(subscribePattern=rf"^pick\.{ends}$") == picked
    assert lab.read(subscribePattern=ends) == picked  # a part of the name is enough
    assert lab.read(subscribePattern=rf"^{ends}") == []
    chosen = lab.read(assign=json.dumps({one: [1], two: [0]}))
    assert chosen == [rec for rec in picked if rec.topic == two or rec.partition == 1]


@beside_kafka
def test_offsets_bound_what_is_read(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    first = lab.send(topic, [b"a0", b"a1", b"a2", b"a3"])
    second = lab.send(topic, [b"b0", b"b1"], partition=1)

    def read(start: dict[str, int] | str, end: dict[str, int] | str) -> list[bytes | None]:
        limits = {
            "startingOffsets": start if isinstance(start, str) else json.dumps({topic: start}),
            "endingOffsets": end if isinstance(end, str) else json.dumps({topic: end}),
        }
        return [rec.value for rec in lab.read(subscribe=topic, **limits)]

    assert read("earliest", "latest") == [rec.value for rec in [*first, *second]]
    assert read({"0": 1, "1": -2}, {"0": 3, "1": -1}) == [b"a1", b"a2", b"b0", b"b1"]
    assert read({"0": 2, "1": 1}, "latest") == [b"a2", b"a3", b"b1"]
    assert read("earliest", {"0": 1, "1": 0}) == [b"a0"]
    assert read({"0": 4, "1": 2}, "latest") == []


@beside_kafka
def test_times_bound_what_is_read(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    lab.send(topic, [b"a0", b"a1", b"a2"], timestamp=T0)
    lab.send(topic, [b"b0", b"b1"], partition=1, timestamp=T0 + 1_500)

    def read(**limits: object) -> list[bytes | None]:
        return [rec.value for rec in lab.read(subscribe=topic, **limits)]

    assert read(startingTimestamp=T0 + 500) == [b"a1", b"a2", b"b0", b"b1"]
    assert read(startingTimestamp=T0 + 1_000, endingTimestamp=T0 + 2_000) == [b"a1", b"b0"]
    assert read(endingTimestamp=T0 + 99_000) == [b"a0", b"a1", b"a2", b"b0", b"b1"]
    starting = json.dumps({topic: {"0": T0 + 2_000, "1": T0}})
    ending = json.dumps({topic: {"0": T0 + 9_000, "1": T0 + 2_000}})
    assert read(startingOffsetsByTimestamp=starting, endingOffsetsByTimestamp=ending) == [b"a2", b"b0"]
    # One timestamp takes precedence over timestamps by partition, and those over offsets.
    assert read(startingTimestamp=T0 + 2_200, startingOffsetsByTimestamp=starting, startingOffsets="earliest",
                startingOffsetsByTimestampStrategy="latest") == [b"b1"]  # fmt: skip


def test_a_start_later_than_all_records_is_an_error_or_the_end(lab: SourceHarness) -> None:
    topic = lab.topic()
    lab.send(topic, [b"a0"], timestamp=T0)
    later = {"subscribe": topic, "startingTimestamp": T0 + 1}
    with pytest.raises(Exception, match=str(T0 + 1)):
        lab.read(**later)
    assert lab.read(**later, startingOffsetsByTimestampStrategy="latest") == []


@beside_kafka
def test_reads_are_cut_into_tasks(lab: SourceHarness) -> None:
    topic = lab.topic(2)
    lab.send(topic, [b"%d" % at for at in range(30)])
    lab.send(topic, [b"%d" % at for at in range(10)], partition=1)

    def tasks(**options: int) -> int:
        frame = lab.load(subscribe=topic, **options)
        assert sorted(row.offset for row in frame.select("offset").collect()) == sorted(
            [*range(30), *range(10)]
        )
        return frame.rdd.getNumPartitions()

    assert tasks() == 2
    assert tasks(minPartitions=8) == 8
    assert tasks(minPartitions=1) == 2


@every_way
def test_aborted_transactions_are_hidden_from_read_committed(lab: SourceHarness) -> None:
    topic = lab.topic()
    lab.send(topic, [b"before"])
    with lab.transactional() as producer:
        producer.begin_transaction()
        lab.send(topic, [b"kept1", b"kept2"], producer=producer)
        producer.commit_transaction()
        producer.begin_transaction()
        aborted = lab.send(topic, [b"gone1", b"gone2"], producer=producer)
        producer.abort_transaction()
    after = lab.send(topic, [b"after"])
    lab.await_ends(topic)
    committed = sorted(rec for rec in lab.written if rec not in aborted)
    assert lab.read(subscribe=topic) == sorted(lab.written)
    assert lab.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"}) == committed
    # After `kept2` comes the marker of its transaction, an offset without a record. That of the abort may
    # come before `after` or after it: a producer does not wait for it.
    assert after[0].offset in (6, 7)
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 3}}),
        "endingOffsets": json.dumps({topic: {"0": after[0].offset}}),
    }
    assert lab.read(subscribe=topic, **bounds, **{"kafka.isolation.level": "read_committed"}) == []


def test_an_open_transaction_holds_read_committed_back(lab: SourceHarness) -> None:
    topic = lab.topic()
    before = lab.send(topic, [b"before"])
    with lab.transactional() as producer:
        producer.begin_transaction()
        lab.send(topic, [b"open"], producer=producer)
        lab.send(topic, [b"behind"])
        assert lab.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"}) == before
        assert lab.read(subscribe=topic) == sorted(lab.written)
        producer.abort_transaction()


@beside_kafka
def test_deleted_records_are_a_loss_only_where_they_are_asked_for(lab: SourceHarness) -> None:
    topic = lab.topic()
    lab.send(topic, [b"a0", b"a1", b"a2"])
    lab.admin.offsets.delete_records({TopicPartition(topic, 0): 2})
    assert [rec.offset for rec in lab.read(subscribe=topic)] == [2]
    from_zero = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(Exception, match=topic):
        lab.read(**from_zero)
    assert [rec.offset for rec in lab.read(**from_zero, failOnDataLoss=False)] == [2]


def test_an_empty_topic_has_no_rows(lab: SourceHarness) -> None:
    topic = lab.topic(3)
    frame = lab.load(subscribe=topic)
    assert frame.count() == 0
    assert lab.read(subscribe=topic) == []


WRONG = {
    "no topic named": {},
    "two ways of naming topics": {"subscribe": "a", "subscribePattern": "b"},
    "an unknown topic": {"subscribe": "no-such-topic"},
    "a beginning at the end": {"subscribe": "{topic}", "startingOffsets": "latest"},
    "an end at the beginning": {"subscribe": "{topic}", "endingOffsets": "earliest"},
    "broken JSON": {"subscribe": "{topic}", "startingOffsets": '{"a": {"0": }}'},
    "an offset of no partition": {"subscribe": "{topic}", "startingOffsets": '{"{topic}": {"0": 0, "7": 0}}'},
    "a partition without an offset": {"subscribe": "{topic}", "startingOffsets": '{"{topic}": {}}'},
    "no partitions": {"subscribe": "{topic}", "minPartitions": "0"},
    "a consumer's own reset": {"subscribe": "{topic}", "kafka.auto.offset.reset": "latest"},
    "a consumer's own commits": {"subscribe": "{topic}", "kafka.enable.auto.commit": "true"},
    "a deserializer": {"subscribe": "{topic}", "kafka.value.deserializer": "x"},
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options_are_refused(lab: SourceHarness, wrong: str) -> None:
    topic = lab.topic()
    options = {name: value.replace("{topic}", topic) for name, value in WRONG[wrong].items()}
    with pytest.raises(Exception):  # noqa: B017 - what Spark says is not ours to fix
        lab.read(**options)
