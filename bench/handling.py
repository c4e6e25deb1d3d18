"""Requests without their socket: the thread's CPU time from received bytes to the bytes of the response.

A node in this process takes the same frames in turns by two connections, one with the lane and one without,
whose transports drop what they are given. A figure is the least of many short rounds.
"""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from bench.harness import Row, scaled, show
from bench.requests import WIDE, fetch, produce
from bench.requests import batch as one_record
from ottla.node.api.context import RequestListener
from ottla.node.api.dispatch import Dispatcher
from ottla.node.config.node_config import NodeConfig
from ottla.node.network.connection import RECEIVE_BYTES, ClientConnection, ClientFaultLog, ConnectionLimits
from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.node import Node
from ottla.protocol.api import API, ListenerType
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Request
from ottla.runtime.loop import run
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import FOR_TESTS

ROUNDS = scaled(60, 20)


class Dropped:
    """A transport that keeps the last response alone."""

    def __init__(self) -> None:
        self.writes = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.last = data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, *_: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        raise AssertionError("the connection was closed")

    abort = close


class InProcess:
    """A connection to a node of this process."""

    def __init__(self, node: Node, *, has_lane: bool) -> None:
        shared = node.shared
        now_ns = shared.network_statistics.now_ns
        listener = RequestListener("PLAINTEXT", ListenerType.BROKER, serves_unstable_versions=False)
        statistics = shared.network_statistics.listener(listener.name)
        dispatcher = Dispatcher(shared.broker_gate, listener, shared.quotas, statistics, now_ns)
        if has_lane:
            dispatcher.open_lane()
        self._connection = ClientConnection(
            dispatcher,
            ConnectionLimits(),
            MemoryBudget(),
            memoryview(bytearray(RECEIVE_BYTES)),
            lambda _: True,
            lambda _: None,
            ClientFaultLog(),
            now_ns=now_ns,
        )
        self.dropped = Dropped()
        transport: Any = self.dropped
        self._connection.connection_made(transport)

    def feed(self, frame: bytes) -> None:
        self._connection.get_buffer(-1)[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))

    async def ask(self, frame: bytes, request: type[Request], version: int) -> Any:
        writes = self.dropped.writes
        self.feed(frame)
        while self.dropped.writes == writes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return read_response(API[request.API_KEY], version, self.dropped.last[4:])[1]

    async def prepare(self) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in (("one", 1), ("twelve", WIDE), ("quiet", WIDE))
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
        frame = b"".join(request_parts(7, 0, "bench", request))
        created = await self.ask(frame, CreateTopicsRequest, 7)
        assert all(topic.error_code == 0 for topic in created.topics), created
        for topic in topics:
            frame = produce(topic.name, topic.num_partitions, -1, one_record())
            while True:
                response = await self.ask(frame, ProduceRequest, 9)
                parts = [part for each in response.responses for part in each.partition_responses]
                if not any(part.error_code for part in parts):
                    break
                await asyncio.sleep(0.01)


def rounds(connection: InProcess, frame: bytes, count: int) -> Callable[[], float]:
    """µs of thread CPU of one request, of so many in a row."""

    def one() -> float:
        writes = connection.dropped.writes
        begin = time.thread_time_ns()
        for _ in range(count):
            connection.feed(frame)
        taken = time.thread_time_ns() - begin
        assert connection.dropped.writes == writes + count, "a request was not answered at once"
        return taken / count / 1000

    return one


async def measure() -> list[Row]:
    directory = tempfile.mkdtemp(prefix="ottla-bench-")
    settings = {**FOR_TESTS, "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory}
    node = Node(Runtime.real(guest=True), NodeConfig(settings))
    found = []
    try:
        await node.start()
        connections = [InProcess(node, has_lane=True), InProcess(node, has_lane=False)]
        await connections[0].prepare()
        # The first requests wait until new logs are durable.
        services = node.shared.broker_gate.services
        assert services is not None
        while services.broker.logs.new_logs:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        record = one_record()
        size = len(record)
        for name, frame, count in (
            ("produce, acks=1", produce("one", 1, 1, record), 300),
            ("produce, acks=all", produce("one", 1, -1, record), 300),
            ("produce to 12 partitions", produce("twelve", WIDE, -1, record), 50),
            ("fetch of one partition", fetch("one", 0, size), 300),
            ("fetch of 12 partitions", fetch("twelve", 0, size), 50),
            ("fetch of 12 without news", fetch("quiet", 1, 1_000_000), 50),
        ):
            works = [rounds(connection, frame, count) for connection in connections]
            best = [[work() for work in works] for _ in range(ROUNDS)]
            await asyncio.sleep(0)
            with_lane, without = (min(each) for each in zip(*best, strict=True))
            ratio = statistics.median(slow / fast for fast, slow in best)
            found.append(Row(name, "µs", with_lane, without, "without the lane", ratio, ratio, ratio, ""))
    finally:
        with suppress(Exception):
            await node.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return found


def rows() -> Iterator[Row]:
    yield from run(measure())


if __name__ == "__main__":
    show(rows())
