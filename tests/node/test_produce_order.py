"""Records of one connection are appended in the order in which they were sent, also while a request waits
for the verification of its transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.node.api.handlers import produce
from ottla.protocol.api import API_BY_NAME
from ottla.protocol.headers import read_response
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.runtime.steps import Steps
from ottla.testing.local_node import LocalNode


class SlowCoordinator:
    """Stands in for the transaction coordinator: the first verification waits until it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.release: asyncio.Event | None = None

    def verify(self, _transactional_id: str) -> Steps[Awaitable[None] | None]:
        yield
        self.asked += 1
        if self.asked > 1:
            return None
        self.release = asyncio.Event()
        return self._wait()

    async def _wait(self) -> None:
        assert self.release is not None
        await self.release.wait()


def request(value: bytes, transactional_id: str | None) -> ProduceRequest:
    batch = build_batch([(0, None, value)])
    return produce_request("order", batch, transactional_id=transactional_id, acks=1)


def base_offset(wire: WireClient) -> int:
    frame = wire.receive_frame()
    assert frame is not None
    _, response = read_response(API_BY_NAME["Produce"], 9, frame)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].base_offset


def test_a_request_that_waits_holds_up_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = SlowCoordinator()
    monkeypatch.setattr(produce._Produce, "verify_transaction", coordinator.verify)
    with (
        LocalNode({"log.retention.ms": -1}) as node,  # the records are from 1970
        WireClient(node.bootstrap_servers) as wire,
        WireClient(node.bootstrap_servers) as other,
    ):
        create_topic(wire, "order")
        for value, transactional_id in ((b"0", "t"), (b"1", None), (b"2", "t"), (b"3", None)):
            wire.send(request(value, transactional_id), 9)
        # Another connection is not held up.
        wait_until(lambda: coordinator.asked == 1, "the first was not started")
        for offset in range(3):
            other.send(request(b"x", None), 9)
            assert base_offset(other) == offset
        assert coordinator.asked == 1
        assert node._loop is not None
        assert coordinator.release is not None
        node._loop.call_soon_threadsafe(coordinator.release.set)
        assert [base_offset(wire) for _ in range(4)] == [3, 4, 5, 6]
        # No request waits any more: the next one is answered at once.
        wire.send(request(b"4", None), 9)
        assert base_offset(wire) == 7


def wide(partitions: int, *, acks: int = 1) -> ProduceRequest:
    batch = build_batch([(0, None, b"value")])
    return produce_request("wide", *[batch] * partitions, acks=acks)


@pytest.mark.slow
def test_a_request_for_many_partitions_lets_other_connections_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests behind it on its own connection wait, so that each partition has the records in order."""
    partitions = 40
    seen: list[str] = []
    begun, sent = threading.Event(), threading.Event()
    append = produce._Produce.append_partition

    def slow(self: Any, topic: TopicProduceData, data: PartitionProduceData) -> Any:
        loop = asyncio.get_running_loop()
        if topic.name == "wide":
            begun.set()
            assert sent.wait(60)  # the other connection's request has arrived
            ends = loop.time() + 0.01
            while loop.time() < ends:
                pass
        seen.append(topic.name)
        return append(self, topic, data)

    # The lane would answer the other connection without the turn that is noted here.
    settings = {"native.lane.enable": "false", "log.retention.ms": -1}  # the records are from 1970
    with (
        LocalNode(settings) as node,
        WireClient(node.bootstrap_servers) as wire,
        WireClient(node.bootstrap_servers) as other,
    ):
        topics = [
            CreatableTopic(name="wide", num_partitions=partitions, replication_factor=1),
            CreatableTopic(name="order", num_partitions=1, replication_factor=1),
        ]
        wire.ask(CreateTopicsRequest(topics=topics), 7)
        other.send(request(b"before", None), 9)
        assert base_offset(other) == 0
        monkeypatch.setattr(produce._Produce, "append_partition", slow)
        wire.send(wide(partitions), 9)
        wire.send(wide(partitions, acks=0), 9)
        wire.send(wide(partitions), 9)
        assert begun.wait(60)
        other.send(request(b"meanwhile", None), 9)
        sent.set()
        assert base_offset(other) == 1
        assert seen.index("order") < partitions
        for offset in (0, 2):
            frame = wire.receive_frame()
            assert frame is not None
            _, response = read_response(API_BY_NAME["Produce"], 9, frame)
            assert isinstance(response, ProduceResponse)
            answers = response.responses[0].partition_responses
            assert [(each.index, each.error_code, each.base_offset) for each in answers] == [
                (index, 0, offset) for index in range(partitions)
            ]
