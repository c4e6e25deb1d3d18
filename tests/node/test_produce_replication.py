"""acks=all over several partitions: each is decided once, as soon as it can be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.testing.local_node import LocalNode

NONE, MOVED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


class Replicas:
    """The outcome of each partition of the topic, in place of its high watermark."""

    def __init__(self) -> None:
        self.outcomes: dict[int, ErrorCode | None] = {0: None, 1: None}
        self.looks = {0: 0, 1: 0}

    def outcome(self, partition: Partition, required_offset: int) -> ErrorCode | None:
        index = partition.topic_partition.partition
        if required_offset > 1:
            return NONE  # what a test sends for the progress alone
        self.looks[index] += 1
        return self.outcomes[index]


@pytest.fixture
def node() -> Iterator[LocalNode]:
    # The lane does not ask for the outcome in a partition without followers.
    with LocalNode({"native.lane.enable": "false"}) as node:
        yield node


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "t", 2)
        yield wire


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    replicas = Replicas()
    monkeypatch.setattr(
        Partition,
        "check_enough_replicas_reach_offset",
        lambda partition, offset: replicas.outcome(partition, offset),
    )
    return replicas


def request(*partitions: int, timeout_ms: int = 60_000) -> ProduceRequest:
    data = [PartitionProduceData(index=at, records=build_batch([(0, None, b"value")])) for at in partitions]
    topics = [TopicProduceData(name="t", partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics)


def parts(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return response.responses[0].partition_responses


def received(wire: WireClient) -> ProduceResponse:
    frame = wire.receive_frame()
    assert frame is not None
    _, response = read_response(API[ProduceRequest.API_KEY], 10, frame)
    assert isinstance(response, ProduceResponse)
    return response


def make_progress(node: LocalNode, partition: int) -> None:
    with WireClient(node.bootstrap_servers) as other:
        other.get(request(partition), 9, ProduceResponse)


def test_a_partition_that_is_decided_stays_so_while_another_is_awaited(
    node: LocalNode, wire: WireClient, replicas: Replicas
) -> None:
    replicas.outcomes[0] = NONE
    wire.send(request(0, 1), 10)
    wait_until(lambda: replicas.looks[1] >= 2, "the request does not wait")
    replicas.outcomes[0] = MOVED  # another broker leads it now
    make_progress(node, 0)
    replicas.outcomes[1] = NONE
    make_progress(node, 1)
    response = received(wire)
    assert [(part.error_code, part.base_offset) for part in parts(response)] == [(NONE, 0), (NONE, 0)]
    # What is decided is not looked at again.
    assert replicas.looks[0] == 1


def test_only_what_is_not_decided_times_out(node: LocalNode, wire: WireClient, replicas: Replicas) -> None:
    replicas.outcomes[0] = NONE
    response = wire.get(request(0, 1, timeout_ms=1), 9, ProduceResponse)
    assert [part.error_code for part in parts(response)] == [NONE, ErrorCode.REQUEST_TIMED_OUT]
    assert replicas.looks[0] == 1


def test_a_partition_that_moves_while_it_is_awaited_names_its_leader(
    node: LocalNode, wire: WireClient, replicas: Replicas
) -> None:
    wire.send(request(0, 1), 10)
    wait_until(lambda: replicas.looks[1] >= 2, "the request does not wait")
    replicas.outcomes.update({0: MOVED, 1: NONE})
    make_progress(node, 0)
    moved, sound = parts(received(wire))
    assert (moved.error_code, sound.error_code) == (MOVED, NONE)
    assert moved.current_leader.leader_id >= 0
    assert sound.current_leader.leader_id == -1
