"""Records of one connection are appended in the order in which they were sent, whatever has to be asked
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.support.wire import WireClient

from ottla.node.handlers import produce
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
from ottla.testing.local_node import LocalNode


class SlowQuestions:
    """Stands in for the transaction coordinator: the first question waits until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.release: asyncio.Event | None = None

    def verify(self, _appends: Any, _transactional_id: str) -> Awaitable[None] | None:
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
    data = TopicProduceData(name="order", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=1, transactional_id=transactional_id, topic_data=[data])


def base_offset(wire: WireClient) -> int:
    frame = wire.receive_frame()
    assert frame is not None
    _, response = read_response(API_BY_NAME["Produce"], 9, frame)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses[0].base_offset


def test_a_request_that_waits_holds_up_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = SlowQuestions()
    monkeypatch.setattr(produce._Appends, "verify", lambda self, name: questions.verify(self, name))
    with (
        LocalNode({"log.retention.ms": -1}) as node,  # the records are from 1970
        WireClient(node.bootstrap_servers) as wire,
        WireClient(node.bootstrap_servers) as other,
    ):
        topics = [CreatableTopic(name="order", num_partitions=1, replication_factor=1)]
        wire.ask(CreateTopicsRequest(topics=topics), 7)
        for value, transactional_id in ((b"0", "t"), (b"1", None), (b"2", "t"), (b"3", None)):
            wire.send(request(value, transactional_id), 9)
        # Another connection is not held up; its round trips also make sure that the node has seen all four.
        for offset in range(3):
            other.send(request(b"x", None), 9)
            assert base_offset(other) == offset
        assert questions.asked == 1
        assert node._loop is not None
        assert questions.release is not None
        node._loop.call_soon_threadsafe(questions.release.set)
        assert [base_offset(wire) for _ in range(4)] == [3, 4, 5, 6]
        # The line is gone: the next one is answered at once.
        wire.send(request(b"4", None), 9)
        assert base_offset(wire) == 7
