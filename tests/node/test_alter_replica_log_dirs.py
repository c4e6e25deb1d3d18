"""Partitions that move from one data directory to another while they serve."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.wire import WireClient, fetch_request, produce_request

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.testing.local_node import LocalNode

DEADLINE_SECONDS = 60


class Client:
    """The few requests that these tests need."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        topics = [CreatableTopic(name="move", num_partitions=1, replication_factor=1)]
        wire.get(CreateTopicsRequest(topics=topics), 6, CreateTopicsResponse)

    def produce(self, first: int, count: int) -> None:
        batch = build_batch([(0, None, b"%d" % n) for n in range(first, first + count)])
        response = self._wire.get(produce_request("move", batch), 9, ProduceResponse)
        assert response.responses[0].partition_responses[0].base_offset == first

    def fetch(self) -> list[bytes | None]:
        values: list[bytes | None] = []
        while True:
            request = fetch_request("move", len(values))
            data = self._wire.get(request, 12, FetchResponse).responses[0].partitions[0]
            assert data.error_code == 0
            records = [
                record
                for at, _ in iter_batches(data.records or b"")
                for record in read_records(data.records, at)
            ]
            if not records:
                return values
            values += [record.value for record in records if record.offset >= len(values)]

    def move(self, path: Path) -> ErrorCode:
        topic = AlterReplicaLogDirTopic(name="move", partitions=[0])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=[topic])])
        response = self._wire.get(request, 2, AlterReplicaLogDirsResponse)
        return ErrorCode(response.results[0].partitions[0].error_code)

    def where(self) -> list[str]:
        response = self._wire.get(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
        return [result.log_dir for result in response.results if result.topics]

    def wait_until_in(self, path: Path) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.where() != [str(path)]:
            assert time.monotonic() < deadline, f"it is still in {self.where()}"
            time.sleep(0.01)


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def settings(dirs: list[Path]) -> dict[str, str]:
    """Those of a node that keeps its records, which are from 1970."""
    return {"log.dirs": ",".join(map(str, dirs)), "log.retention.ms": "-1"}


@pytest.fixture
def client(dirs: list[Path]) -> Iterator[Client]:
    with (
        LocalNode(settings(dirs)) as node,
        WireClient(node.bootstrap_servers) as wire,
    ):
        yield Client(wire)


def test_a_partition_moves_with_all_its_records_and_goes_on(client: Client, dirs: list[Path]) -> None:
    for first in range(0, 1000, 100):
        client.produce(first, 100)
    (before,) = client.where()
    target = next(path for path in dirs if str(path) != before)
    assert client.move(target) is ErrorCode.NONE
    client.produce(1000, 10)
    client.wait_until_in(target)
    assert client.fetch() == [b"%d" % n for n in range(1010)]
    client.produce(1010, 10)
    assert client.fetch() == [b"%d" % n for n in range(1020)]
    assert client.move(Path(before)) is ErrorCode.NONE
    client.wait_until_in(Path(before))
    assert client.fetch() == [b"%d" % n for n in range(1020)]


def test_a_move_to_where_it_is_does_nothing_and_to_nowhere_is_refused(
    client: Client, dirs: list[Path]
) -> None:
    (here,) = client.where()
    assert client.move(Path(here)) is ErrorCode.NONE
    assert client.where() == [here]
    assert client.move(dirs[0] / "elsewhere") is ErrorCode.LOG_DIR_NOT_FOUND


def test_a_moved_partition_is_found_again_after_a_restart(dirs: list[Path]) -> None:
    with LocalNode(settings(dirs)) as node, WireClient(node.bootstrap_servers) as wire:
        client = Client(wire)
        client.produce(0, 50)
        (before,) = client.where()
        target = next(path for path in dirs if str(path) != before)
        client.move(target)
        client.wait_until_in(target)
    with LocalNode(settings(dirs)) as node, WireClient(node.bootstrap_servers) as wire:
        client = Client(wire)
        assert client.where() == [str(target)]
        assert client.fetch() == [b"%d" % n for n in range(50)]
