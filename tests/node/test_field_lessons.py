"""What broke clients on other brokers, each as a test that names the issue where it was reported."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.node_process import NodeProcess
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.testing.local_node import LocalNode

NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        yield wire


def produce(wire: WireClient, name: str, batch: bytes, partition: int = 0) -> PartitionProduceResponse:
    request = produce_request(name, batch, partition=partition)
    return wire.get(request, 9, ProduceResponse).responses[0].partition_responses[0]


def fetch_request(topic_id: bytes, *offsets: int, **fields: int) -> FetchRequest:
    parts = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=2**20)
        for index, offset in enumerate(offsets)
    ]
    topics = [FetchTopic(topic_id=topic_id, partitions=parts)] if parts else []
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1} | fields, topics=topics)


def only_partition(response: FetchResponse) -> PartitionData:
    ((partition,),) = (topic.partitions for topic in response.responses)
    return partition


def records(*values: bytes, **fields: int) -> bytes:
    return build_batch([(NOW_MS, None, value) for value in values], **fields)


def test_the_response_to_api_versions_has_no_tagged_fields_in_its_header(wire: WireClient) -> None:
    """One byte more made librdkafka reserve 34 GB."""
    wire.send_frame(struct.pack(">hhih", 18, 3, 9, -1) + b"\0" + b"\2a\2b\0")
    frame = wire.receive_frame()
    assert frame is not None
    correlation_id, error, count = struct.unpack_from(">ihB", frame)
    assert (correlation_id, error) == (9, 0)
    assert count > 40


def test_an_empty_incremental_fetch_waits_instead_of_answering_at_once(wire: WireClient) -> None:
    """redpanda#1115: the consumer of an idle topic kept a core busy."""
    topic_id = create_topic(wire, "idle", 2)
    first = wire.get(fetch_request(topic_id, 0, 0, session_epoch=0), 13, FetchResponse)
    session = {"session_id": first.session_id, "max_wait_ms": 300}
    assert first.session_id != 0
    began = time.monotonic()
    second = wire.get(fetch_request(topic_id, **session, session_epoch=1), 13, FetchResponse)
    assert time.monotonic() - began > 0.25
    assert (second.error_code, second.session_id, second.responses) == (0, first.session_id, [])


def test_a_waiting_incremental_fetch_is_woken_by_a_record(node: LocalNode, wire: WireClient) -> None:
    topic_id = create_topic(wire, "woken", 2)
    first = wire.get(fetch_request(topic_id, 0, 0, session_epoch=0), 13, FetchResponse)

    def write() -> None:
        with WireClient(node.bootstrap_servers) as other:
            produce(other, "woken", records(b"now"), partition=1)

    session = {"session_id": first.session_id, "session_epoch": 1, "max_wait_ms": 50_000}
    wire.send(fetch_request(topic_id, **session), 13)
    writer = threading.Thread(target=write)
    writer.start()
    began = time.monotonic()
    frame = wire.receive_frame()
    writer.join()
    assert time.monotonic() - began < 30
    assert frame is not None
    assert b"now" in frame


def test_a_full_fetch_never_carries_made_up_offsets(wire: WireClient) -> None:
    """franz-go#1222: a high watermark of -1 in a full fetch lost data."""
    topic_id = create_topic(wire, "offsets")
    for version in (13, 16, 18):
        data = only_partition(wire.get(fetch_request(topic_id, 0), version, FetchResponse))
        assert (data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset) == (
            0,
            0,
            0,
            0,
        )


def test_a_batch_may_begin_before_the_offset_that_was_asked_for(wire: WireClient) -> None:
    topic_id = create_topic(wire, "middle")
    produce(wire, "middle", records(b"0", b"1", b"2"))
    data = only_partition(wire.get(fetch_request(topic_id, 2), 13, FetchResponse))
    ((_, header),) = iter_batches(data.records or b"")
    assert (header.base_offset, header.last_offset) == (0, 2)


def test_a_topic_that_was_created_again_is_another_topic(wire: WireClient) -> None:
    """franz-go#1426: a session that kept the old id never got records again."""
    old_id = create_topic(wire, "again")
    produce(wire, "again", records(b"old"))
    session = wire.get(fetch_request(old_id, 0, session_epoch=0), 13, FetchResponse).session_id
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="again")])
    assert wire.get(request, 6, DeleteTopicsResponse).responses[0].error_code == 0
    new_id = create_topic(wire, "again")
    assert new_id != old_id
    stale = wire.get(fetch_request(old_id, session_id=session, session_epoch=1), 13, FetchResponse)
    assert only_partition(stale).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    fresh = only_partition(wire.get(fetch_request(new_id, 0), 13, FetchResponse))
    assert (fresh.error_code, fresh.high_watermark) == (0, 0)
    metadata = wire.get(MetadataRequest(topics=[MetadataRequestTopic(name="again")]), 12, MetadataResponse)
    assert (metadata.topics[0].topic_id, metadata.topics[0].partitions[0].leader_id) == (new_id, 1)


def test_a_repeated_batch_is_answered_with_its_first_offset(wire: WireClient) -> None:
    """redpanda#3039: duplicates, because the broker kept no producer state."""
    create_topic(wire, "once")
    producer = wire.get(InitProducerIdRequest(transactional_id=None), 4, InitProducerIdResponse)
    batches = [
        records(b"%d" % n, producer_id=producer.producer_id, producer_epoch=0, base_sequence=n)
        for n in range(5)
    ]
    assert [produce(wire, "once", batch).base_offset for batch in batches] == [0, 1, 2, 3, 4]
    for n, batch in enumerate(batches):
        again = produce(wire, "once", batch)
        assert (again.error_code, again.base_offset) == (0, n)
    gap = records(b"x", producer_id=producer.producer_id, producer_epoch=0, base_sequence=7)
    assert produce(wire, "once", gap).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_ids_are_never_given_out_twice(wire: WireClient) -> None:
    ids = [
        wire.get(InitProducerIdRequest(transactional_id=None), 4, InitProducerIdResponse).producer_id
        for _ in range(50)
    ]
    assert len(set(ids)) == 50


def test_a_fault_of_the_node_is_an_error_that_producers_retry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA-14034: UNKNOWN_SERVER_ERROR made the Java client write twice."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    # The lane appends by itself.
    with LocalNode({"native.lane.enable": "false"}) as node, WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "fault")
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append_records_to_leader", fail)
            answer = produce(wire, "fault", records(b"1"))
        assert ErrorCode(answer.error_code).retriable
        assert "a bug" in caplog.text
        assert produce(wire, "fault", records(b"1")).base_offset == 0


@pytest.mark.slow
def test_a_topic_that_metadata_returned_outlives_a_kill(tmp_path: Path) -> None:
    """SeaweedFS: an auto-created topic was gone after a restart, with the offsets of its consumers."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="told")], allow_auto_topic_creation=True)
    with NodeProcess(tmp_path) as node, WireClient(node.bootstrap) as wire:
        (told,) = wire.get(request, 12, MetadataResponse).topics
        node.kill()
    assert told.error_code == 0
    with NodeProcess(tmp_path) as node, WireClient(node.bootstrap) as wire:
        request.allow_auto_topic_creation = False
        (found,) = wire.get(request, 12, MetadataResponse).topics
    assert (found.error_code, found.topic_id) == (0, told.topic_id)
