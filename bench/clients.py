"""Producing and consuming: Ottla's clients beside confluent-kafka and aiokafka, against one broker.

The broker is Apache Kafka if the machine has Java, otherwise a node of Ottla in its own process; it
is the same for all clients of a run. All of them produce with acks=all and idempotence, batches of 64 KiB
and 5 ms of linger, one record without a key after the other, to a topic with four partitions, and consume one
whole, with their own defaults. The broker's files are in memory if there is room: it is the clients that
are measured, and gigabytes in a minute would measure the disk.

Two rows help to read the others. "Bytes only" fetches the same topic with the same requests, over a
bare socket, and discards the answers: no client can read faster from this broker. The last row is the
memory that a consumer takes while two gigabytes pass through it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pyarrow as pa
from tests.support import kafka_libs
from tests.support.apache_kafka import SERVER_JVM, ApacheKafka

from bench.harness import Row, compare, quick
from ottla.client import blocking
from ottla.client.consumer import Consumer, ConsumerConfig
from ottla.client.errors import BufferFull
from ottla.client.producer import Producer
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.records.batch import iter_batches
from ottla.runtime.loop import run

BATCH_BYTES = 65_536
WITH_NAMES = 12
LINGER_MS = 5
ROUNDS = 5
PARTITIONS = 4
SIZES = {100: 200_000, 1_000: 60_000}
# Reading is faster than writing: read more, so that the start of a client does not dominate.
READ_TIMES = 4
LARGE_BYTES = 2_000_000_000
MB = 1_000_000
ROOM_BYTES = 8_000_000_000
_serial = itertools.count()
_made: list[str] = []


def rows() -> Iterator[Row]:
    scale = float(os.environ.get("BENCH_SCALE", "0.25" if quick() else "1"))
    with broker() as servers:
        for size, most in SIZES.items():
            yield from of_size(servers, size, int(most * scale))
            delete_topics(servers)
        yield memory(servers, int(LARGE_BYTES * scale))
        delete_topics(servers)


def of_size(servers: str, size: int, count: int) -> Iterator[Row]:
    value = os.urandom(size)
    table = pa.table({"value": pa.array([value] * count, pa.binary())})
    kind = f"{size} B" if size < 1000 else f"{size // 1000} kB"

    def timed(work: Callable[..., None]) -> Callable[[], None]:
        """The work on its own topic, which is created before."""
        topics = [new_topic(servers) for _ in range(ROUNDS + 1)]
        return lambda: work(servers, topics.pop(), value, count)

    def arrow() -> Callable[[], None]:
        topics = [new_topic(servers) for _ in range(ROUNDS + 1)]
        return lambda: produce_arrow(servers, topics.pop(), table)

    unit = "records/s"
    yield compare(
        f"produce {kind}", count, unit, timed(produce), timed(produce_confluent),
        peer_name="confluent-kafka", target="≥ 0.5", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"produce {kind}", count, unit, timed(produce), timed(produce_aiokafka),
        peer_name="aiokafka", target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"produce {kind}, Arrow", count, unit, arrow(), timed(produce_confluent),
        peer_name="confluent-kafka", target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    topic = new_topic(servers)
    for _ in range(READ_TIMES):
        produce_arrow(servers, topic, table)
    count *= READ_TIMES

    def reading(work: Callable[[str, str, int], None]) -> Callable[[], None]:
        return lambda: work(servers, topic, count)

    yield compare(
        f"consume {kind}", count, unit, reading(consume), reading(consume_confluent),
        peer_name="confluent-kafka", target="≥ 1", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"consume {kind}", count, unit, reading(consume), reading(consume_aiokafka),
        peer_name="aiokafka", target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"consume {kind}, Arrow", count, unit, reading(consume_arrow), reading(consume_confluent),
        peer_name="confluent-kafka", target="≥ 3", rounds=ROUNDS,
    )  # fmt: skip
    yield compare(
        f"consume {kind}, bytes only", count, unit, reading(receive), reading(consume_confluent),
        peer_name="confluent-kafka", rounds=ROUNDS,
    )  # fmt: skip


def memory(servers: str, total: int) -> Row:
    """The growth of a process while it reads a large topic, in its own interpreter."""
    topic = new_topic(servers)
    table = pa.table({"value": pa.array([os.urandom(1000)] * 50_000, pa.binary())})
    rounds = max(total // (50_000 * 1000), 1)
    for _ in range(rounds):
        produce_arrow(servers, topic, table)
    script = (
        "import pyarrow.compute\n"
        "from bench import clients\n"
        "begin = clients.peak_bytes()\n"
        f"clients.consume_arrow({servers!r}, {topic!r}, {rounds * 50_000})\n"
        "print(clients.peak_bytes() - begin)\n"
    )
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    size = rounds * 50_000 * 1000 / MB
    prefetch = ConsumerConfig().prefetch_max_bytes / MB
    return Row(
        f"memory while {size:,.0f} MB are read, Arrow", "MB", int(grown.stdout) / MB, None, "–", None,
        None, None, f"≤ {2 * prefetch:.0f}, twice the prefetch",
    )  # fmt: skip


def peak_bytes() -> int:
    """The peak memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


# Ours.


def produce(servers: str, topic: str, value: bytes, count: int) -> None:
    async def main() -> None:
        async with Producer(servers, batch_size=BATCH_BYTES, linger_ms=LINGER_MS) as producer:
            await producer.ready(topic)
            send = producer.send_nowait
            for n in range(count):
                if not n & 1023:
                    await asyncio.sleep(0)  # the sender works on this loop, too
                try:
                    send(topic, value)
                except BufferFull:
                    await producer.ready(topic)
                    send(topic, value)
            await producer.flush()

    run(main())


def produce_arrow(servers: str, topic: str, table: pa.Table) -> None:
    async def main() -> None:
        async with Producer(servers, linger_ms=LINGER_MS) as producer:
            await producer.send_arrow(topic, table)

    run(main())


def consume(servers: str, topic: str, count: int) -> None:
    async def main() -> None:
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, p) for p in range(PARTITIONS)])
            left = count
            while left > 0:
                for record in await consumer.poll():
                    assert record.value is not None
                    left -= 1

    run(main())


def consume_arrow(servers: str, topic: str, count: int) -> None:
    async def main() -> None:
        async with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, p) for p in range(PARTITIONS)])
            left = count
            while left > 0:
                left -= (await consumer.poll_arrow()).num_rows

    run(main())


def receive(servers: str, topic: str, count: int) -> None:
    """Fetch with the same requests as our client, and parse only the ends of batches."""
    host, port = servers.split(",")[0].split(":")
    offsets = [0] * PARTITIONS
    memory = memoryview(bytearray(64 << 20))
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        left = count
        while left > 0:
            wanted = [
                FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=1 << 20)
                for p, offset in enumerate(offsets)
            ]
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=50 << 20,
                topics=[FetchTopic(topic=topic, partitions=wanted)],
            )
            connection.sendall(b"".join(request_parts(WITH_NAMES, 1, "bench", request)))
            size = int.from_bytes(received(connection, memory[:4]))
            _, answer = read_response(
                API[FetchRequest.API_KEY], WITH_NAMES, received(connection, memory[:size])
            )
            assert isinstance(answer, FetchResponse)
            for data in answer.responses[0].partitions:
                for _, header in iter_batches(data.records or b""):
                    offsets[data.partition_index] = header.next_offset
                    left -= header.count


def received(connection: socket.socket, memory: memoryview) -> memoryview:
    at = 0
    while at < len(memory):
        at += connection.recv_into(memory[at:])
    return memory


# The others.


def produce_confluent(servers: str, topic: str, value: bytes, count: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
        }
    )
    for n in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if not n & 63:
            producer.poll(0)
    producer.flush()


def produce_aiokafka(servers: str, topic: str, value: bytes, count: int) -> None:
    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
        )
        await producer.start()
        try:
            for _ in range(count):
                await producer.send(topic, value)
            await producer.flush()
        finally:
            await producer.stop()

    run(main())


def consume_confluent(servers: str, topic: str, count: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    left = count
    while left > 0:
        for message in consumer.consume(500, 1.0):
            assert message.value() is not None
            left -= 1
    consumer.close()


def consume_aiokafka(servers: str, topic: str, count: int) -> None:
    async def main() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, p) for p in range(PARTITIONS)])
            left = count
            while left > 0:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
                    for record in records:
                        assert record.value is not None
                        left -= 1
        finally:
            await consumer.stop()

    run(main())


# The broker.


def new_topic(servers: str) -> str:
    name = f"bench-{next(_serial)}"
    with blocking.Admin(servers) as admin:
        admin.topics.create(name, partitions=PARTITIONS)
    _made.append(name)
    return name


def delete_topics(servers: str) -> None:
    with blocking.Admin(servers) as admin:
        admin.topics.delete(*_made)
    _made.clear()


def memory_folder() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > ROOM_BYTES else None


@contextmanager
def broker() -> Iterator[str]:
    if (given := os.environ.get("BENCH_SERVERS")) is not None:
        yield given
    elif kafka_libs.missing_requirement() is None:
        soon = {"log.segment.delete.delay.ms": "1000"}
        with (
            tempfile.TemporaryDirectory(dir=memory_folder()) as folder,
            ApacheKafka(Path(folder), jvm=SERVER_JVM, properties=soon) as kafka,
        ):
            yield kafka.bootstrap
    else:
        with ottla_process() as servers:
            yield servers


@contextmanager
def ottla_process() -> Iterator[str]:
    """A node in its own process, so that it shares no interpreter with the clients."""
    script = (
        "import sys\n"
        "from ottla.testing.local_node import LocalNode\n"
        "with LocalNode() as node:\n"
        "    print(node.bootstrap_servers, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process: Any = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)
