"""What a node makes and drops all the time leaves no cycles: the garbage collector may never see it again.

`runtime/garbage_collection.py` freezes what has survived while a node grows, and cycles among frozen objects
stay until a complete collection, which is rare.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.support.wire import WireClient, create_topic

from ottla import LocalNode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.records.builder import build_batch

pytestmark = pytest.mark.slow

ROUNDS = 20


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


def garbage_of(work: Callable[[], None]) -> Counter[str]:
    """How many objects of this project only the garbage collector can free after the work."""
    for _ in range(3):
        work()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(ROUNDS):
            work()
        # What waits for another turn of the node's loop, such as the end of a connection.
        time.sleep(0.3)
        gc.collect()
        found = Counter(
            f"{type(each).__module__}.{type(each).__qualname__}"
            for each in gc.garbage
            if type(each).__module__.startswith("ottla.") or "function" in type(each).__name__
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return found


class _Cyclic:
    __module__ = "ottla.of_this_test"

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_found() -> None:
    # Threads of tests before this one may leave something meanwhile.
    found = garbage_of(lambda: [_Cyclic() for _ in range(2)].clear())
    assert found["ottla.of_this_test._Cyclic"] == 2 * ROUNDS


def delete(client: WireClient, name: str) -> None:
    client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000), 6)


def produce(name: str) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=build_batch([(0, None, b"x")]))
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=name, partition_data=[data])]
    )


def fetch(name: str, session_epoch: int = -1) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=10,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=name, partitions=[wanted])],
    )


def test_connections_leave_no_cycles(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as client:
        create_topic(client, "kept")

    def work() -> None:
        with WireClient(node.bootstrap_servers) as client:
            client.ask(ApiVersionsRequest(), 0)
            client.ask(produce("kept"), 11)
            client.ask(fetch("kept"), 12)
            client.ask(fetch("kept", session_epoch=0), 12)

    found = garbage_of(work)
    assert sum(found.values()) < ROUNDS, found


def test_topics_leave_no_cycles(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as client:

        def work() -> None:
            create_topic(client, "dropped", 4)
            client.ask(produce("dropped"), 11)
            delete(client, "dropped")

        found = garbage_of(work)
    assert sum(found.values()) < ROUNDS, found
