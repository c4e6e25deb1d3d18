"""A disk without room under a running node: writes are refused clearly, reads go on, and room is enough to
make it all work again.
"""

from __future__ import annotations

import contextlib
import errno
from asyncio import timeout
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.errors import BufferFull
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.runtime.disk import Buffer, File, RealDisk
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.wire import WireClient, produce_request

pytestmark = pytest.mark.slow


class _File:
    """A file that cannot grow while its disk is full; half of a write may have happened."""

    def __init__(self, file: File, disk: FillingDisk) -> None:
        self._file = file
        self._disk = disk

    def pwrite(self, data: Buffer, offset: int) -> None:
        if self._disk.full:
            half = memoryview(data).cast("B")
            self._file.pwrite(half[: len(half) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device", self._file.path)
        self._file.pwrite(data, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FillingDisk(RealDisk):
    __slots__ = ("full",)

    def __init__(self) -> None:
        super().__init__(guest=True)
        self.full = False

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> File:
        if self.full and create and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return _File(super().open(path, create=create, exclusive=exclusive, writable=writable), self)


@pytest.fixture
def disk() -> FillingDisk:
    return FillingDisk()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, disk: FillingDisk) -> Iterator[LocalNode]:
    machine = Runtime.real

    def with_disk(cls: type[Runtime], *, guest: bool = False, **settings: Any) -> Runtime:
        real = machine(guest=guest, **settings)
        return Runtime(real.clock, real.random, disk, real.pool, real.network)

    monkeypatch.setattr(Runtime, "real", classmethod(with_disk))
    # The records are from 1970, and a node would not keep them for long.
    with LocalNode({"log.segment.bytes": 1048576, "log.retention.ms": -1}) as node:
        yield node
        disk.full = False


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        yield wire


def create(wire: WireClient, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=9000), 7, CreateTopicsResponse)
    return answer.topics[0].error_code


def produce(wire: WireClient, topic: str, value: bytes) -> PartitionProduceResponse:
    records = memoryview(build_batch([(0, None, value)]))
    request = produce_request(topic, records, timeout_ms=9000)
    return wire.get(request, 9, ProduceResponse).responses[0].partition_responses[0]


def consume(wire: WireClient, topic: str, count: int) -> list[bytes | None]:
    """The first records; a fetch ends at the end of a segment."""
    values: list[bytes | None] = []
    while len(values) < count:
        partition = FetchPartition(
            partition=0, fetch_offset=len(values), partition_max_bytes=10_000_000, log_start_offset=-1
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=10_000_000,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        found = wire.get(request, 12, FetchResponse).responses[0].partitions[0]
        assert found.error_code == 0
        assert found.high_watermark == count
        data = bytes(found.records or b"")
        more = [record.value for at, _ in iter_batches(data) for record in read_records(data, at)]
        assert more
        values += more
    return values


@pytest.mark.slow
def test_a_node_without_room_stops_in_peace(
    node: LocalNode, wire: WireClient, disk: FillingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(wire, "orders") == 0
    assert produce(wire, "orders", b"kept").error_code == 0
    disk.full = True
    node.stop()
    assert "the metadata log is closed without its last checkpoint" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
def test_a_send_that_came_to_nothing_says_why_in_time(
    node: LocalNode, wire: WireClient, disk: FillingDisk
) -> None:
    assert create(wire, "orders") == 0
    ottla = CommandLine(node.bootstrap_servers)
    for first in ("cannot get a producer id", "KAFKA_STORAGE_ERROR"):
        disk.full = True
        # A busy machine may not get as far as a refusal in one second.
        for seconds in (1, 30):
            ended = ottla("produce", "orders", "lost", "--timeout", f"{seconds}")
            assert ended.status == 1
            assert f"delivery.timeout.ms={seconds}000" in ended.err
            if first in ended.err.partition("; last: ")[2]:
                break
        else:
            pytest.fail(f"{first!r} is not the reason: {ended.err}")
        disk.full = False
        ottla.ok("produce", "orders", "written")


async def why_not_ready(producer: Producer) -> str:
    try:
        await producer.ready("orders")
    except KafkaError as error:
        return str(error)
    return ""


async def test_a_producer_whose_memory_is_full_says_why(
    node: LocalNode, wire: WireClient, disk: FillingDisk
) -> None:
    assert create(wire, "orders") == 0
    limits = {"max_block_ms": 500, "linger_ms": 0}
    async with Producer(node.bootstrap_servers, buffer_memory=10_000, **limits) as producer, timeout(60):
        while await why_not_ready(producer):
            pass  # it does not know the topic yet
        await producer.send("orders", b"written")
        disk.full = True
        with contextlib.suppress(BufferFull):
            while True:
                producer.send_nowait("orders", b"x" * 1000)
        while "; last: " not in (said := await why_not_ready(producer)):
            assert "buffer.memory=10000 bytes wait" in said
        assert "buffer.memory=10000 bytes wait; last: KAFKA_STORAGE_ERROR" in said
        disk.full = False


def test_a_full_disk_refuses_writes_and_nothing_else(
    wire: WireClient, disk: FillingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(wire, "orders") == 0
    assert produce(wire, "orders", b"before").error_code == 0
    disk.full = True
    for _ in range(3):
        refused = produce(wire, "orders", b"lost")
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert caplog.text.count("no room in the log directory") == 1
    assert consume(wire, "orders", 1) == [b"before"]
    disk.full = False
    written = produce(wire, "orders", b"after")
    assert (written.error_code, written.base_offset) == (0, 1)
    assert consume(wire, "orders", 2) == [b"before", b"after"]


def test_a_new_segment_waits_for_room(wire: WireClient, disk: FillingDisk) -> None:
    """The write that would begin a segment is refused too, and the log is as it was."""
    assert create(wire, "rolling") == 0
    large = bytes(700_000)
    assert produce(wire, "rolling", large).error_code == 0
    disk.full = True
    assert produce(wire, "rolling", large).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.full = False
    assert produce(wire, "rolling", large).base_offset == 1
    assert consume(wire, "rolling", 2) == [large, large]
