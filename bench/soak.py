"""A node under many clients for a while: `python -m bench.soak`, with `--help` for its options.

Most connections are idle, as those of real clients are; some write and read all the time; some ask for much
and read a few bytes of it now and then; some come, send half a request and are gone. A prober asks for one
small thing after the other and notes how long it waits. The table shows memory, handles and the prober's
waits as time goes by: none of them may grow. At the end the node is stopped, and killed, and started again on
all its partitions.
"""

import argparse
import asyncio
import contextlib
import random
import resource
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.support.node_process import NodeProcess

from ottla.protocol.headers import request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Request
from ottla.records.builder import build_batch

PARTITIONS_PER_TOPIC = 500
# Of a hundred connections.
BUSY, SLOW, VANISHING = 10, 10, 10
SAMPLES = 10


@dataclass
class Soak:
    """What the clients share: where the node is, what there is, and what they saw."""

    port: int
    topics: list[str]
    over: bool = False
    waits_ms: list[float] = field(default_factory=list)
    written: int = 0
    read_bytes: int = 0
    vanished: int = 0
    cut_off: int = 0
    open: "set[Client]" = field(default_factory=set)

    def somewhere(self) -> tuple[str, int]:
        return random.choice(self.topics), random.randrange(PARTITIONS_PER_TOPIC)


class Client:
    """One connection that asks one thing at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, soak: Soak) -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", soak.port, limit=65536))
        soak.open.add(client)
        return client

    async def ask(self, request: Request, version: int) -> int:
        """Send a request and read the answer; its size."""
        self.writer.write(frame(request, version))
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        left = size
        while left:
            left -= len(await self.reader.readexactly(min(left, 65536)))
        return int(size)


def frame(request: Request, version: int) -> bytes:
    return b"".join(request_parts(version, 1, "soak", request))


def produce(topic: str, partition: int) -> ProduceRequest:
    records = memoryview(build_batch([(0, None, random.randbytes(1000)) for _ in range(10)]))
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch(topic: str, partition: int, max_bytes: int) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


async def probe(soak: Soak) -> None:
    client = await Client.connect(soak)
    while not soak.over:
        begin = time.perf_counter()
        await client.ask(ApiVersionsRequest(), 0)
        soak.waits_ms.append((time.perf_counter() - begin) * 1000)
        await asyncio.sleep(0.02)


async def idle(soak: Soak) -> None:
    client = await Client.connect(soak)
    while not soak.over:
        await client.ask(ApiVersionsRequest(), 0)
        await asyncio.sleep(random.uniform(5, 15))


async def busy(soak: Soak) -> None:
    client = await Client.connect(soak)
    while not soak.over:
        await client.ask(produce(*soak.somewhere()), 9)
        soak.written += 10
        soak.read_bytes += await client.ask(fetch(*soak.somewhere(), 1_000_000), 12)
        await asyncio.sleep(random.uniform(0, 0.5))


async def slow(soak: Soak) -> None:
    """Fill one partition, ask for it many times over, and hardly read."""
    client = await Client.connect(soak)
    topic, partition = soak.somewhere()
    for _ in range(20):
        await client.ask(produce(topic, partition), 9)
    client.writer.write(frame(fetch(topic, partition, 50_000_000), 12) * 500)
    while not soak.over:
        soak.read_bytes += len(await client.reader.read(100))
        await asyncio.sleep(1)


async def vanish(soak: Soak) -> None:
    while not soak.over:
        client = await Client.connect(soak)
        request = frame(produce(*soak.somewhere()), 9)
        client.writer.write(request[: random.randint(0, len(request))])
        await asyncio.sleep(random.uniform(0, 1))
        if random.random() < 0.5:
            client.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        client.writer.close()
        soak.open.discard(client)
        soak.vanished += 1


async def again_and_again(life: Callable[[Soak], Awaitable[None]], soak: Soak) -> None:
    """Live on with a new connection where one was lost, as every client does."""
    while not soak.over:
        try:
            await life(soak)
        except (ConnectionError, asyncio.IncompleteReadError):
            soak.cut_off += 1
            await asyncio.sleep(0.1)


async def create_partitions(soak: Soak) -> float:
    """Make all topics, one request each; seconds. The prober feels it."""
    client = await Client.connect(soak)
    begin = time.perf_counter()
    for name in soak.topics:
        topic = CreatableTopic(name=name, num_partitions=PARTITIONS_PER_TOPIC, replication_factor=1)
        await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    return time.perf_counter() - begin


def row(label: str, process: psutil.Process, soak: Soak) -> None:
    waits, soak.waits_ms = sorted(soak.waits_ms), []
    middle = statistics.median(waits) if waits else 0.0
    late = waits[int(len(waits) * 0.99)] if waits else 0.0
    worst = waits[-1] if waits else 0.0
    memory = process.memory_info().rss / 1e6
    handles = process.num_fds()
    cells = [label, f"{memory:.0f}", str(handles), f"{middle:.1f}", f"{late:.0f}", f"{worst:.0f}"]
    cells += [f"{soak.written:,}", f"{soak.read_bytes / 1e6:,.0f}", f"{soak.vanished:,}", f"{soak.cut_off:,}"]
    print("| " + " | ".join(cells) + " |", flush=True)


async def run(node: NodeProcess, seconds: float, connections: int, partitions: int) -> None:
    process = psutil.Process(node.pid)
    topics = [f"soak-{number}" for number in range(max(1, partitions // PARTITIONS_PER_TOPIC))]
    soak = Soak(node.port, topics)
    print("| | MB | handles | wait p50 ms | p99 | max | records written | MB read | vanished | cut off |")
    print("|---" * 10 + "|")
    row("at first", process, soak)
    tasks = [asyncio.create_task(probe(soak))]
    took_s = await create_partitions(soak)
    row(f"{len(topics) * PARTITIONS_PER_TOPIC:,} partitions made in {took_s:.1f} s", process, soak)
    kinds: list[Callable[[Soak], Awaitable[None]]] = [
        *[busy] * BUSY,
        *[slow] * SLOW,
        *[vanish] * VANISHING,
        *[idle] * (100 - BUSY - SLOW - VANISHING),
    ]
    tasks += [
        asyncio.create_task(again_and_again(kinds[number % 100], soak)) for number in range(connections)
    ]
    for number in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        row(f"{seconds / SAMPLES * (number + 1):.0f} s, {connections:,} connections", process, soak)
        failed = [task.exception() for task in tasks if task.done()]
        assert not failed, f"{len(failed)} clients failed, the first with {failed[0]!r}"
    soak.over = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in soak.open:
        client.writer.transport.abort()
    deadline = time.monotonic() + 30
    while connected(process) and time.monotonic() < deadline:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.1)
    row(f"clients gone, {connected(process)} connections left", process, soak)


def connected(process: psutil.Process) -> int:
    return sum(1 for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10_000)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-soak-")))
        with NodeProcess(directory) as node:
            asyncio.run(run(node, given.seconds, given.connections, given.partitions))
            print(f"\nstopped in {node.terminate()[1]:.1f} s")
        with NodeProcess(directory) as node:
            print(f"after a clean stop: {node.ready_line}")
            node.kill()
        with NodeProcess(directory) as node:
            print(f"after a kill: {node.ready_line}")


if __name__ == "__main__":
    main()
