"""Records on disk before they are acknowledged: `durability=disk` beside Kafka with `flush.messages=1`.

Each producer has a connection of its own to the leader of its partition, and sends one record of 100 bytes
with acks=all after the other: the next one when it has the response. So the throughput of N producers is N by
the time that a record takes. One process with one event loop drives all of them, the same for both brokers.
"""

import asyncio
import contextlib
import itertools
import statistics
import struct
import time
from collections.abc import Iterator, Sequence

from confluent_kafka.admin import AdminClient

from bench import loads
from bench.brokers import AGAINST, PEER, Broker, ottla
from bench.brokers import peer as peer_broker
from bench.clusters import OttlaCluster, peer, running
from bench.harness import Row, fewer, scaled, show
from bench.latency import at
from bench.versus import without_kafka
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch

PRODUCERS = (1, 100, 1_000)
PARTITIONS = 12
SIZE = 100
VERSION = 9
# On our own default, to say what the promise costs.
DEFAULT = "default"
_NAMES = itertools.count()


class Producer(asyncio.Protocol):
    """Sends a record, waits for the response, and sends the next one."""

    def __init__(self, frame: bytes, took_s: list[float]) -> None:
        self._frame = frame
        self._took_s = took_s
        self._sent_s = 0.0
        self._received = b""
        self.is_stopped = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data
        if len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
            return
        self._took_s.append(time.perf_counter() - self._sent_s)
        self._received = b""
        if not self.is_stopped:
            self.send()
            return
        _, response = read_response(API[ProduceRequest.API_KEY], VERSION, received[4:])
        assert isinstance(response, ProduceResponse)
        (topic,) = response.responses
        assert not topic.partition_responses[0].error_code, response
        self._transport.close()
        self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("the broker has closed the connection"))


def leaders(broker: Broker, topic: str) -> list[tuple[str, int]]:
    """The address of the leader of each partition."""
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, 30)
    partitions = metadata.topics[topic].partitions
    nodes = (metadata.brokers[partitions[index].leader] for index in range(len(partitions)))
    return [(node.host, node.port) for node in nodes]


def frame_for(topic: str, partition: int) -> bytes:
    records = build_batch([(time.time_ns() // 1_000_000, None, b"x" * SIZE)])
    data = PartitionProduceData(index=partition, records=records)
    request = ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return b"".join(request_parts(VERSION, 1, "bench", request))


async def drive(topic: str, addresses: Sequence[tuple[str, int]], count: int, seconds: float) -> list[float]:
    """The seconds that each record took, of `count` producers at a time."""
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    frames = [frame_for(topic, partition) for partition in range(len(addresses))]
    producers = []
    for number in range(count):
        at_partition = number % len(addresses)
        _, producer = await loop.create_connection(
            lambda frame=frames[at_partition]: Producer(frame, took_s),  # type: ignore[misc]
            *addresses[at_partition],
        )
        producers.append(producer)
    for producer in producers:
        producer.send()
    await asyncio.sleep(seconds / 4)  # a warm-up
    took_s.clear()
    await asyncio.sleep(seconds)
    taken = took_s.copy()
    for producer in producers:
        producer.is_stopped = True
    await asyncio.gather(*(producer.ended for producer in producers))
    return taken


def measure(brokers: Sequence[tuple[Broker, str]], replicas: int, where: str) -> Iterator[Row]:
    """`brokers` are Ottla, the peer if there is one, and Ottla with its default; each with its setting."""
    rounds, seconds = scaled(5, 3), scaled(8, 3)
    topics = []
    for broker, setting in brokers:
        topic = f"durable-{next(_NAMES)}"
        name, _, value = setting.partition("=")
        loads.create(broker, topic, PARTITIONS, replicas=replicas, **({name: value} if value else {}))
        topics.append((broker, topic, leaders(broker, topic), setting))
    for count in PRODUCERS:
        speeds: dict[str, list[float]] = {setting: [] for *_, setting in topics}
        taken_s: dict[str, list[float]] = {setting: [] for *_, setting in topics}
        for turn in range(rounds):
            for _, topic, addresses, setting in topics if turn % 2 == 0 else reversed(topics):
                taken = asyncio.run(drive(topic, addresses, count, seconds))
                speeds[setting].append(len(taken) / seconds)
                taken_s[setting] += taken
        yield from rows_of(f"{where}, {count:,} producer{'s' if count > 1 else ''}", speeds, taken_s, count)


def rows_of(
    name: str, speeds: dict[str, list[float]], taken_s: dict[str, list[float]], count: int
) -> Iterator[Row]:
    ours, theirs = speeds["durability=disk"], speeds.get("flush.messages=1")
    aim = "≥ 5" if count == 100 else ""
    mine = statistics.median(ours)
    if theirs is None:
        yield Row(name, "records/s", mine, None, "–", None, None, None, aim)
    else:
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        yield Row(
            name,
            "records/s",
            mine,
            statistics.median(theirs),
            PEER,
            statistics.median(ratios),
            ratios[0],
            ratios[-1],
            aim,
        )
    latencies = {setting: sorted(taken) for setting, taken in taken_s.items()}
    for quantile, label, latency_aim in ((0.5, "p50", ""), (0.99, "p99", "≥ 2" if count == 100 else "")):
        peer_ms = None
        if theirs is not None:
            peer_ms = at(latencies["flush.messages=1"], quantile) * 1000
        our_ms = at(latencies["durability=disk"], quantile) * 1000
        yield fewer(f"{name}: {label}", "ms", our_ms, peer_ms, PEER, latency_aim)
    default = sorted(a / b for a, b in zip(ours, speeds[DEFAULT], strict=True))
    yield Row(
        f"{name}: beside our default",
        "records/s",
        mine,
        statistics.median(speeds[DEFAULT]),
        "Ottla, durability=replicas",
        statistics.median(default),
        default[0],
        default[-1],
        "",
    )


def with_peer(mine: Broker, theirs: Broker | None) -> list[tuple[Broker, str]]:
    """The brokers, and the settings of their topics."""
    peers = [] if theirs is None else [(theirs, "flush.messages=1")]
    return [(mine, "durability=disk"), *peers, (mine, DEFAULT)]


def rows() -> Iterator[Row]:
    missing = None if AGAINST is not None else without_kafka()
    if missing is not None:
        print(missing, flush=True)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(ottla())
        theirs = None if missing is not None else stack.enter_context(peer_broker())
        yield from measure(with_peer(one, theirs), 1, "one node")
    with contextlib.ExitStack() as stack:
        three = stack.enter_context(running(OttlaCluster))
        others = None if missing is not None else stack.enter_context(running(peer()))
        yield from measure(with_peer(three, others), 3, "three nodes")


if __name__ == "__main__":
    show(rows())
