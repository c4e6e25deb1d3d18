"""Produce to topics whose settings demand records on the disk before the response."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic

from ottla.log.local_log import FlushPlan
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.testing.local_node import LocalNode


@pytest.fixture
def node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "sure", 2, durability="disk", retention_ms="-1")  # the records are from 1970
        yield wire


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[UnifiedLog]:
    """The logs that were flushed, in order. Partition 1 has no room for it."""
    logs: list[UnifiedLog] = []
    run_flush = UnifiedLog.run_flush

    def noted(self: UnifiedLog, plan: FlushPlan) -> None:
        if self.topic_partition.topic == "sure":
            if self.topic_partition.partition == 1:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
            logs.append(self)
        run_flush(self, plan)

    monkeypatch.setattr(UnifiedLog, "run_flush", noted)
    return logs


def request(acks: int, *partitions: int) -> ProduceRequest:
    data = [
        PartitionProduceData(index=index, records=build_batch([(0, None, b"value")])) for index in partitions
    ]
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData(name="sure", partition_data=data)])


def high_watermarks(wire: WireClient) -> list[int]:
    partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(2)
    ]
    response = wire.get(
        FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="sure", partitions=partitions)]),
        12,
        FetchResponse,
    )
    return [each.high_watermark for each in response.responses[0].partitions]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_flush_that_fails_is_the_error_of_its_own_partition(
    wire: WireClient, flushed: list[UnifiedLog], acks: int
) -> None:
    response = wire.get(request(acks, 0, 1), 9, ProduceResponse)
    sound, failed = response.responses[0].partition_responses
    assert (sound.error_code, sound.base_offset) == (ErrorCode.NONE, 0)
    assert (failed.error_code, failed.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert [log.recovery_point for log in flushed] == [1]
    # Consumers do not see what is not durable.
    assert high_watermarks(wire) == [1, 0]


def test_a_flush_is_done_also_where_no_response_waits_for_it(
    wire: WireClient, flushed: list[UnifiedLog]
) -> None:
    wire.send(request(0, 0), 9)
    wire.get(request(1, 0), 9, ProduceResponse)
    wait_until(lambda: flushed and flushed[-1].recovery_point == 2, "one of the two was not flushed")


def test_a_flush_that_fails_where_there_is_no_response_closes_the_connection(
    wire: WireClient, flushed: list[UnifiedLog]
) -> None:
    wire.send(request(0, 1), 9)
    assert wire.receive_frame() is None
    assert not flushed


def test_a_request_of_which_another_part_fails_has_its_flush_all_the_same(
    node: LocalNode, wire: WireClient, flushed: list[UnifiedLog]
) -> None:
    """The producer gets no response, and yet consumers see later records only after the flush."""
    wire.send(request(0, 0, 7), 9)
    assert wire.receive_frame() is None
    with WireClient(node.bootstrap_servers) as other:
        wait_until(lambda: high_watermarks(other)[0] == 1, "the record was not shown")
    assert len(flushed) == 1


def test_a_producer_that_leaves_does_not_take_the_flush_with_it(
    node: LocalNode, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gone = threading.Event(), threading.Event()
    run_flush = UnifiedLog.run_flush

    def slow(self: UnifiedLog, plan: FlushPlan) -> None:
        if self.topic_partition.topic == "sure":
            begun.set()
            assert gone.wait(60)
        run_flush(self, plan)

    monkeypatch.setattr(UnifiedLog, "run_flush", slow)
    with WireClient(node.bootstrap_servers) as leaver:
        leaver.send(request(1, 0), 9)
        assert begun.wait(60)
    assert high_watermarks(wire) == [0, 0]
    gone.set()
    wait_until(lambda: high_watermarks(wire)[0] == 1, "the record was not shown")


@pytest.mark.slow
def test_a_flush_that_fails_is_tried_again_without_another_record(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = ["no file handles"] * 2
    run_flush = UnifiedLog.run_flush

    def failing(self: UnifiedLog, plan: FlushPlan) -> None:
        if self.topic_partition.topic == "sure" and failures:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, failures.pop())
        run_flush(self, plan)

    monkeypatch.setattr(UnifiedLog, "run_flush", failing)
    response = wire.get(request(-1, 0), 9, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(lambda: high_watermarks(wire)[0] == 1, "the record was not committed")
    assert not failures
