"""How long a quiet client waits while others send what is costly: `python -m bench.bystander [CLIENTS]`.

Each kind of heavy request is sent by some clients at once, again and again for some seconds; the quiet client
asks for ApiVersions all the time. Printed are its longest wait and the memory of the broker.
"""

import contextlib
import multiprocessing
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.wire import WireClient

from bench.brokers import ottla
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Request
from ottla.records.builder import build_batch, join_batch

SECONDS = 5.0
PARTITIONS = 8
BOMB_BYTES = 250_000_000
TOPICS: dict[str, dict[str, str]] = {
    "bomb": {},
    "zstd": {"compression.type": "zstd", "compression.zstd.level": "19"},
    "gzip": {"compression.type": "gzip"},
}


def bomb(size: int = BOMB_BYTES) -> bytes:
    """A gzip batch of one record of zeros."""
    packer = zlib.compressobj(9, wbits=31)
    body = b"\0\0\0\1" + varint(size)
    out = packer.compress(varint(len(body) + size + 1) + body)
    zeros = bytes(1_000_000)
    for _ in range(size // len(zeros)):
        out += packer.compress(zeros)
    out += packer.compress(b"\0") + packer.flush()
    return bytes(
        join_batch(
            out,
            base_offset=0,
            leader_epoch=-1,
            attributes=1,
            last_offset_delta=0,
            base_timestamp=1,
            max_timestamp=1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=1,
        )
    )


def varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def produce(topic: str, batch: bytes) -> ProduceRequest:
    parts = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    return ProduceRequest(
        acks=1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)]
    )


def ordinary() -> bytes:
    value = b" ".join(b"%d" % (number * 7919) for number in range(100))
    return build_batch([(1, None, value[number % 50 :]) for number in range(1_500)])


def requests() -> Iterator[tuple[str, Request, int]]:
    yield "Produce of 250 MB in 250 kB", produce("bomb", bomb()), 9
    parts = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=1)
        for index in range(PARTITIONS)
    ]
    topics = [ListOffsetsTopic(name="bomb", partitions=parts)]
    yield "ListOffsets by timestamp in these", ListOffsetsRequest(replica_id=-1, topics=topics), 7
    yield "Produce to a topic with zstd 19", produce("zstd", ordinary()), 9
    yield "Produce to a topic with gzip", produce("gzip", ordinary()), 9


def attack(bootstrap: str, request: Request, version: int) -> None:
    with WireClient(bootstrap, timeout_s=600) as wire:
        while True:
            wire.ask(request, version)


@contextlib.contextmanager
def attacked(bootstrap: str, clients: int, request: Request, version: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    attackers = [
        context.Process(target=attack, args=(bootstrap, request, version), daemon=True)
        for _ in range(clients)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()


def longest_wait_ms(bystander: WireClient) -> float:
    longest, ends = 0.0, time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        began = time.perf_counter()
        bystander.ask(ApiVersionsRequest(client_software_name="b", client_software_version="1"), 3)
        longest = max(longest, time.perf_counter() - began)
        time.sleep(0.002)
    return longest * 1000


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def create_topics(wire: WireClient, topics: Mapping[str, Mapping[str, str]], partitions: int) -> None:
    """Create topics by their settings, each with as many partitions."""
    for name, configs in topics.items():
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)


def main(clients: int) -> None:
    settings = {"log.message.timestamp.before.max.ms": str(2**62), "log.retention.ms": "-1"}
    with ottla(**settings) as broker, WireClient(broker.bootstrap, timeout_s=600) as wire:
        create_topics(wire, TOPICS, PARTITIONS)
        print(f"alone: {longest_wait_ms(wire):.0f} ms, {resident_mb(broker.pid):.0f} MB", flush=True)
        for name, request, version in requests():
            with attacked(broker.bootstrap, clients, request, version):
                time.sleep(2)
                waited_ms = longest_wait_ms(wire)
                print(f"{clients} x {name}: {waited_ms:.0f} ms, {resident_mb(broker.pid):.0f} MB", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
