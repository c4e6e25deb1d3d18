"""A node under many clients: a minute as a part of `python -m bench`, or longer with
`python -m bench.soak --seconds 28800`.

Most connections are idle, as those of real clients are; some write and read all the time; some fetch much
and read few bytes of it; some send half a request and disconnect. A prober sends one small request after the
other and measures its latency. Memory, handles and the prober's latency are printed periodically, and none of
them may grow: the soak fails if memory grows in its second half, a well-behaved client is disconnected, or a
connection is leaked. At the end the node is stopped, and killed,
and started again on all its partitions.
"""

import argparse
import asyncio
import random
import resource
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.support.node_process import READY, NodeProcess

from bench.harness import Row, markdown, quick
from ottla.log.segment.handles import DEFAULT_CAPACITY, DEFAULT_UNSYNCED_CAPACITY
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
GIVE_BACK_SECONDS = 30
# Log files up to a bound, sockets, and a few files of every process.
MAX_FILES = DEFAULT_CAPACITY + DEFAULT_UNSYNCED_CAPACITY + 100
MAX_GROWTH_MB = 50


@dataclass
class Soak:
    """The state that clients share: the address of the node, its topics, and the results."""

    port: int
    topics: list[str]
    over: bool = False
    waits_ms: list[float] = field(default_factory=list)
    written: int = 0
    read_bytes: int = 0
    vanished: int = 0
    cut_off: int = 0
    reason: str = ""
    open: "set[Client]" = field(default_factory=set)
    filled: int = 0
    # The backlog of a listener has fifty connections; others are dropped.
    door: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(25))

    def somewhere(self) -> tuple[str, int]:
        return random.choice(self.topics), random.randrange(PARTITIONS_PER_TOPIC)


class Client:
    """A connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, soak: Soak) -> "Client":
        async with soak.door:
            client = cls(*await asyncio.open_connection("127.0.0.1", soak.port, limit=65536))
            soak.open.add(client)
            await client.ask(ApiVersionsRequest(), 0)
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
    """Fill one partition, fetch it many times, and hardly read the answers."""
    client = await Client.connect(soak)
    topic, partition = soak.somewhere()
    for _ in range(20):
        await client.ask(produce(topic, partition), 9)
    client.writer.write(frame(fetch(topic, partition, 50_000_000), 12) * 500)
    soak.filled += 1
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
    """Continue with a new connection after one was lost, as every client does."""
    while not soak.over:
        try:
            await life(soak)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            soak.cut_off += 1
            soak.reason = f"a client that is {life.__name__}: {error!r}"
            await asyncio.sleep(0.1)


async def create_partitions(soak: Soak) -> float:
    """Create all topics, one request each; seconds. The prober's latency shows the effect."""
    client = await Client.connect(soak)
    begin = time.perf_counter()
    for name in soak.topics:
        topic = CreatableTopic(name=name, num_partitions=PARTITIONS_PER_TOPIC, replication_factor=1)
        await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the node at a moment, and the prober's latency since the last sample."""

    memory_mb: float
    handles: int
    median_ms: float
    late_ms: float
    worst_ms: float


def look(label: str, process: psutil.Process, soak: Soak) -> Sample:
    waits, soak.waits_ms = sorted(soak.waits_ms) or [0.0], []
    sample = Sample(
        process.memory_info().rss / 1e6,
        process.num_fds(),
        statistics.median(waits),
        waits[int(len(waits) * 0.99)],
        waits[-1],
    )
    print(
        f"{label}: {sample.memory_mb:.0f} MB, {sample.handles} handles; waits of {sample.median_ms:.1f} ms, "
        f"{sample.late_ms:.0f} at p99, {sample.worst_ms:.0f} at worst; {soak.written:,} records written, "
        f"{soak.read_bytes / 1e6:,.0f} MB read, {soak.vanished:,} clients vanished, {soak.cut_off:,} cut off",
        flush=True,
    )
    return sample


async def run(node: NodeProcess, seconds: float, connections: int, partitions: int) -> list[Row]:
    process = psutil.Process(node.pid)
    topics = [f"soak-{number}" for number in range(max(1, partitions // PARTITIONS_PER_TOPIC))]
    soak = Soak(node.port, topics)
    made = len(topics) * PARTITIONS_PER_TOPIC
    look("at first", process, soak)
    tasks = [asyncio.create_task(probe(soak))]
    took_s = await create_partitions(soak)
    empty = look(f"{made:,} partitions made in {took_s:.1f} s", process, soak)
    kinds: list[Callable[[Soak], Awaitable[None]]] = [
        *[busy] * BUSY,
        *[slow] * SLOW,
        *[vanish] * VANISHING,
        *[idle] * (100 - BUSY - SLOW - VANISHING),
    ]
    lives = [kinds[number % 100] for number in range(connections)]
    tasks += [asyncio.create_task(again_and_again(life, soak)) for life in lives]
    while len(soak.open) < 0.9 * connections or soak.filled < lives.count(slow):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    look(f"{connections:,} clients are there", process, soak)
    samples = []
    for number in range(SAMPLES):
        await asyncio.sleep(seconds / SAMPLES)
        samples.append(look(f"{seconds / SAMPLES * (number + 1):.0f} s", process, soak))
        failed = [task.exception() for task in tasks if task.done()]
        assert not failed, f"{len(failed)} clients failed, the first with {failed[0]!r}"
    soak.over = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in soak.open:
        client.writer.transport.abort()
    deadline = time.monotonic() + GIVE_BACK_SECONDS
    while connected(process) and time.monotonic() < deadline:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.1)
    gone = look("all clients gone", process, soak)
    left = connected(process)
    growth_mb = samples[-1].memory_mb - samples[SAMPLES // 2 - 1].memory_mb
    assert soak.cut_off == 0, f"{soak.cut_off} clients lost their connections, the last {soak.reason}"
    assert left == 0, f"{left} connections were not given back within {GIVE_BACK_SECONDS} s"
    assert gone.handles <= MAX_FILES, f"{gone.handles} handles are open without a client"
    assert growth_mb < MAX_GROWTH_MB, f"memory grew by {growth_mb:.0f} MB in the second half"
    under = f"under {connections:,} connections"
    return [
        figure(f"to make {made:,} partitions", "s", took_s),
        figure(f"memory with {made:,} empty partitions", "MB", empty.memory_mb),
        figure(f"memory {under}", "MB", samples[-1].memory_mb),
        figure("growth of it in the second half", "MB", growth_mb, f"< {MAX_GROWTH_MB}"),
        figure(f"handles {under}", "", samples[-1].handles, f"< {MAX_FILES + connections:,}"),
        figure(f"a small request {under}, p50", "ms", statistics.median(each.median_ms for each in samples)),
        figure(f"a small request {under}, p99", "ms", statistics.median(each.late_ms for each in samples)),
        figure("clients that vanished meanwhile", "", soak.vanished),
        figure("connections not given back", "", left, "0"),
    ]


def connected(process: psutil.Process) -> int:
    return sum(1 for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED)


def figure(name: str, unit: str, value: float, target: str = "") -> Row:
    return Row(name, unit, value, None, "–", None, None, None, target)


def ready_seconds(node: NodeProcess) -> float:
    match = READY.fullmatch(node.ready_line)
    assert match is not None
    return int(match["ms"]) / 1000


def rows(seconds: float | None = None, connections: int = 1000, partitions: int = 10_000) -> Iterator[Row]:
    seconds = seconds if seconds is not None else 20 if quick() else 60
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="ottla-soak-") as name:
        directory = Path(name)
        with NodeProcess(directory) as node:
            yield from asyncio.run(run(node, seconds, connections, partitions))
            status, took_s = node.terminate()
            assert status == 0, f"the node ended with {status}: {node.stderr()}"
            yield figure("to stop", "s", took_s)
        with NodeProcess(directory) as node:
            yield figure("to start after that", "s", ready_seconds(node))
            node.kill()
        with NodeProcess(directory) as node:
            yield figure("to start after a kill", "s", ready_seconds(node))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10_000)
    given = parser.parse_args()
    print(markdown(list(rows(given.seconds, given.connections, given.partitions))))


if __name__ == "__main__":
    main()
