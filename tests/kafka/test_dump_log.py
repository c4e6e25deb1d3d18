"""Our files under Apache Kafka's eyes: its dump tool finds nothing wrong and prints what we wrote, and its
broker takes the directory over and serves every record.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.records.builder import build_batch
from tests.kafka.conftest import OurLogs
from tests.support.apache_kafka import ApacheKafka
from tests.support.dump_log import Dump, check_directory
from tests.support.java_driver import Consumed, ConsumedRecord, JavaDriver
from tests.support.kafka_corpus import CODECS, NODE_PROPERTIES, TOPICS, Truth, read_truth
from tests.support.wire import WireClient, produce_request

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(params=["clean", "recovered"])
def our_directory(request: pytest.FixtureRequest, our_logs: OurLogs) -> Path:
    directory: Path = getattr(our_logs, request.param)
    return directory


@pytest.mark.parametrize("topic", TOPICS)
def test_kafkas_tool_reads_our_files_without_a_complaint(
    topic: str, our_directory: Path, our_logs: OurLogs, java_driver: JavaDriver
) -> None:
    dumped = check_directory(java_driver, our_directory / f"{topic}-0", compacted=topic == "compacted")
    expected = our_logs.topics[topic]
    # The tool knows nothing of the log start, so it may see what DeleteRecords has hidden.
    assert [
        (each.offset, each.timestamp, each.key, each.payload, each.header_keys)
        for each in dumped.records
        if each.offset >= expected.log_start_offset
    ] == [_as_dumped(each) for each in expected.uncommitted]


def _as_dumped(record: ConsumedRecord) -> tuple[int, int, str | None, str | None, tuple[str, ...]]:
    key, value = record.key, record.value
    return (
        record.offset,
        record.timestamp,
        None if key is None else key.decode(),
        None if value is None else value.decode(),
        tuple(name for name, _ in record.headers),
    )


@pytest.mark.parametrize("codec", CODECS)
def test_kafkas_tool_sees_the_codec(codec: str, our_logs: OurLogs, java_driver: JavaDriver) -> None:
    dumped = check_directory(java_driver, our_logs.clean / f"codec-{codec}-0")
    assert {each.codec for each in dumped.all_batches} == {codec}
    assert {each.timestamp_type for each in dumped.all_batches} == {"CreateTime"}


def test_kafkas_tool_sees_log_append_time(our_logs: OurLogs, java_driver: JavaDriver) -> None:
    dumped = check_directory(java_driver, our_logs.clean / "append-time-0")
    assert {each.timestamp_type for each in dumped.all_batches} == {"LogAppendTime"}


def test_kafkas_tool_agrees_with_our_indexes(
    our_directory: Path, our_logs: OurLogs, java_driver: JavaDriver
) -> None:
    dumped = check_directory(java_driver, our_directory / "indexed-0")
    positions = {batch.last_offset: batch.position for batch in dumped.all_batches}
    entries = dumped.entries["00000000000000000000.index"]
    assert len(entries) > 20
    assert {row["offset"]: row["position"] for row in entries}.items() <= positions.items()
    times = dumped.entries["00000000000000000000.timeindex"]
    newest = {batch.last_offset: batch.max_timestamp for batch in dumped.all_batches}
    assert len(times) > 20
    assert {row["offset"]: row["timestamp"] for row in times}.items() <= newest.items()


def _snapshots(dumped: Dump) -> dict[int, list[dict[str, int]]]:
    return {
        int(name.split(".")[0]): rows for name, rows in dumped.entries.items() if name.endswith(".snapshot")
    }


def test_kafkas_tool_sees_transactions(
    our_directory: Path, our_logs: OurLogs, java_driver: JavaDriver
) -> None:
    dumped = check_directory(java_driver, our_directory / "transactions-0")
    assert [each.control for each in dumped.markers] == ["ABORT", "COMMIT"] * 3
    assert {each.coordinator_epoch for each in dumped.markers} == {3}
    indexed = [row for name, rows in dumped.entries.items() if name.endswith(".txnindex") for row in rows]
    aborted = our_logs.topics["transactions"].aborted
    assert [row["producerId"] for row in indexed] == [7002] * 3
    for row in indexed:
        inside = {offset for offset in aborted if row["firstOffset"] <= offset <= row["lastOffset"]}
        assert len(inside) == 4
    snapshot = _snapshots(dumped)[max(_snapshots(dumped))]
    open_transactions = {row["producerId"]: row["currentTxnFirstOffset"] for row in snapshot}
    stable = our_logs.topics["transactions"].last_stable_offset
    assert open_transactions == {7001: -1, 7002: -1, 7003: stable}


def test_kafkas_tool_sees_a_producer_snapshot_at_every_roll(
    our_logs: OurLogs, java_driver: JavaDriver
) -> None:
    dumped = check_directory(java_driver, our_logs.clean / "segments-0")
    bases = [int(name.split(".")[0]) for name in dumped.batches]
    end = our_logs.topics["segments"].records[-1].offset + 1 + 2
    assert len(bases) > 4
    assert sorted(_snapshots(dumped)) == sorted([*bases[1:], end])
    assert {row["producerId"] for row in _snapshots(dumped)[end]} == {7004, 7005}


@pytest.fixture(scope="module")
def took_over(
    our_logs: OurLogs, java_driver: JavaDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApacheKafka, dict[str, Truth]]]:
    """Apache Kafka on the directory that our log layer shut down."""
    with _kafka_on(our_logs.clean, our_logs, tmp_path_factory.mktemp("took-over")) as kafka:
        yield kafka, read_truth(kafka, java_driver)


def _kafka_on(directory: Path, our_logs: OurLogs, home: Path) -> ApacheKafka:
    kafka = ApacheKafka(home, properties=NODE_PROPERTIES, cluster_id=our_logs.cluster_id)
    shutil.copytree(directory, kafka.data_dir)
    return kafka


@pytest.mark.parametrize("topic", TOPICS)
def test_kafka_takes_over_and_serves_every_record(
    topic: str, our_logs: OurLogs, took_over: tuple[ApacheKafka, dict[str, Truth]]
) -> None:
    _check_truth(took_over[1][topic], our_logs, topic)


def test_kafka_takes_over_without_recovering_anything(
    took_over: tuple[ApacheKafka, dict[str, Truth]],
) -> None:
    kafka, truth = took_over
    lines = kafka.log_tail(10_000_000).splitlines()
    assert any(f"Skipping recovery of {len(TOPICS)} logs" in line for line in lines)
    for topic in TOPICS:
        said = [line for line in lines if f"{topic}-0" in line]
        assert not [line for line in said if " WARN " in line or " ERROR " in line or "Recovering" in line]
        # The snapshot of the shutdown is at the end of the log, so nothing is left to be replayed.
        end = truth[topic].uncommitted.end_offset
        assert any(f"rebuilding producer state from offset {end} " in line for line in said)


def test_kafka_recovers_what_our_crash_left(
    our_logs: OurLogs, java_driver: JavaDriver, tmp_path: Path
) -> None:
    with _kafka_on(our_logs.crashed, our_logs, tmp_path) as kafka:
        for topic, truth in read_truth(kafka, java_driver).items():
            _check_truth(truth, our_logs, topic)


def _check_truth(truth: Truth, our_logs: OurLogs, topic: str) -> None:
    expected = our_logs.topics[topic]
    assert truth.uncommitted.records == expected.uncommitted
    assert truth.committed.records == expected.committed
    assert truth.uncommitted.beginning_offset == expected.log_start_offset
    if expected.last_stable_offset is not None:
        assert _end(truth.committed) == expected.last_stable_offset


def _end(consumed: Consumed) -> int:
    return consumed.end_offset


def test_kafka_goes_on_with_our_producers(
    our_logs: OurLogs, took_over: tuple[ApacheKafka, dict[str, Truth]]
) -> None:
    """What we remembered of a producer makes Kafka know a repeat, refuse a gap, and take the next batch."""
    kafka, truth = took_over
    topic = "compacted"
    producer = our_logs.topics[topic].producers[7006]
    end = truth[topic].uncommitted.end_offset
    with WireClient(kafka.bootstrap) as client:
        names = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        topic_id = client.get(names, 13, MetadataResponse).topics[0].topic_id

        def produce(sequence: int) -> PartitionProduceResponse:
            batch = build_batch(
                [(1_700_000_000_000, b"k", b"v")] * 2,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
            )
            request = produce_request(topic_id, batch, timeout_ms=10_000)
            return client.get(request, 13, ProduceResponse).responses[0].partition_responses[0]

        repeated = produce(producer.sequence - 2)
        assert (repeated.error_code, repeated.base_offset) == (0, end - 2)
        assert produce(producer.sequence + 5).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = produce(producer.sequence)
        assert (following.error_code, following.base_offset) == (0, end)
