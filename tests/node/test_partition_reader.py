"""A read of a partition gives what it finds, what is to be done first, or the error that the client gets."""

from __future__ import annotations

import ast
import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.replication.partition_harness import PartitionHarness

import ottla.node
from ottla.log.config.log_config import LogConfig
from ottla.node.fetch.partition_reader import (
    PartitionReader,
    RemoteOffsetSearch,
    RemoteRead,
    complete,
    load,
    rounds,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.remote.log_reader import RemoteRecords
from ottla.remote.segment_metadata import RemoteStorageError, RemoteStorageNotReady
from ottla.replication.list_offsets import ListedOffset
from ottla.replication.partition import FetchIsolation, LogReadInfo
from ottla.runtime.disk import NotInMemory
from ottla.runtime.pool import InlinePool

TIERED = LogConfig(
    segment_bytes=300,
    remote_storage_enable=True,
    local_retention_bytes=0,
    local_retention_ms=-1,
    retention_ms=-1,
)
BYTES = 1_000_000
POOL = InlinePool()


class Store:
    """Remote storage: it gives the answers of the test, and notes what it is asked for."""

    def __init__(self, *answers: RemoteRecords | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.offset: Any = None

    async def read(self, *args: Any, **options: Any) -> RemoteRecords:
        self.asked.append((*args[2:], *options.values()))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch_offset_by_timestamp(self, *_: Any) -> Any:
        return self.offset

    def on_read_failed(self, _: object) -> bool:
        return True


class Lab:
    """A partition of which the first segments are in remote storage only."""

    def __init__(self, store: Store | None = None) -> None:
        self.harness = PartitionHarness(config=TIERED)
        self.partition, self.log = self.harness.partition, self.harness.log
        for _ in range(12):
            self.harness.produce(2)
        self.log.update_highest_offset_in_remote_storage(self.log.segments[3].base_offset - 1)
        assert self.log.delete_old_segments(self.harness.now_ms) == 3
        self.local = self.log.local_log_start_offset
        assert 0 < self.local < self.log.high_watermark
        settings = {"remote.fetch.max.wait.ms": 0, "remote.list.offsets.request.timeout.ms": 30_000}
        self.broker: Any = SimpleNamespace(
            config=SimpleNamespace(number=lambda name: settings[name]),
            replication=SimpleNamespace(remote_log_reader=store),
            runtime=SimpleNamespace(clock=self.harness.clock),
        )

    def read_to_the_end(self, reader: PartitionReader) -> LogReadInfo | KafkaError:
        """Read from offset 0, with all work that has to be done first."""
        return asyncio.run(complete(POOL, partial(reader.read, self.partition, 0, BYTES)))

    def reader(self, isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK) -> PartitionReader:
        return PartitionReader(self.broker, isolation, max_wait_ms=30_000)


def test_records_on_the_disk_are_found() -> None:
    lab = Lab()
    found = lab.reader().read(lab.partition, lab.local, BYTES)
    assert isinstance(found, LogReadInfo)
    assert found.records == lab.harness.consume(lab.local).records != b""
    assert not found.is_remote


def test_an_error_is_returned() -> None:
    lab = Lab()
    for found in (
        lab.reader().read(lab.partition, 10_000, BYTES),
        lab.reader().find_offset(lab.partition, -1, current_leader_epoch=7),
    ):
        assert isinstance(found, KafkaError)
    assert isinstance(lab.reader().find_offset(lab.partition, -1), ListedOffset)


def test_what_is_not_in_memory_is_to_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    cold = NotInMemory.__new__(NotInMemory)

    def read(*_: object, **__: object) -> None:
        raise cold

    monkeypatch.setattr(type(lab.log), "read", read)
    monkeypatch.setattr(type(lab.log), "fetch_offset_by_timestamp", read)
    lab.log.maybe_increment_log_start_offset(lab.local, "so that a search begins on the disk")
    assert lab.reader().read(lab.partition, lab.local, BYTES) is cold
    assert lab.reader().find_offset(lab.partition, 5) is cold
    assert cold.__traceback__ is None  # it would keep what the read had


def test_half_a_batch_is_nothing() -> None:
    lab = Lab()
    found = lab.reader().read(lab.partition, lab.local, 30, min_one_batch=False)
    assert isinstance(found, LogReadInfo)
    assert found.records == b""


@pytest.mark.parametrize("isolation", [FetchIsolation.TXN_COMMITTED, FetchIsolation.HIGH_WATERMARK])
def test_what_is_in_remote_storage_only_is_read_there_once(isolation: FetchIsolation) -> None:
    store = Store(RemoteRecords(b"records of a segment", ()))
    lab = Lab(store)
    reader = lab.reader(isolation)
    work = reader.read(lab.partition, 0, 700)
    assert isinstance(work, RemoteRead)
    asyncio.run(load(POOL, [work]))
    for _ in range(2):
        found = reader.read(lab.partition, 0, 700)
        assert isinstance(found, LogReadInfo)
        assert (found.records, found.is_remote) == (b"records of a segment", True)
    end = lab.log.high_watermark
    assert store.asked == [(0, 700, end, True, isolation is FetchIsolation.TXN_COMMITTED)]
    assert isinstance(reader.read(lab.partition, 1, 700), RemoteRead)


def test_what_does_not_come_from_remote_storage_in_time_is_nothing() -> None:
    lab = Lab(Store(RemoteStorageNotReady("still being read")))
    reader = PartitionReader(lab.broker, FetchIsolation.HIGH_WATERMARK)
    found: LogReadInfo | KafkaError = asyncio.run(
        complete(POOL, partial(reader.read, lab.partition, 0, BYTES))
    )
    assert isinstance(found, LogReadInfo)
    assert (found.records, found.is_remote) == (b"", True)


def test_what_remote_storage_cannot_give_is_an_error() -> None:
    lab = Lab(Store(RemoteStorageError("the store is away")))
    reader = PartitionReader(lab.broker, FetchIsolation.HIGH_WATERMARK)
    found: LogReadInfo | KafkaError = asyncio.run(
        complete(POOL, partial(reader.read, lab.partition, 0, BYTES))
    )
    assert isinstance(found, KafkaError)
    assert found.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_where_compaction_has_left_nothing_in_remote_storage_the_disk_goes_on() -> None:
    lab = Lab()
    lab.broker.replication.remote_log_reader = Store(RemoteRecords(b"", None, lab.local))
    reader = lab.reader()
    found: LogReadInfo | KafkaError = asyncio.run(
        complete(POOL, partial(reader.read, lab.partition, 0, BYTES))
    )
    assert isinstance(found, LogReadInfo)
    assert found.records == lab.harness.consume(lab.local).records != b""


def test_the_time_of_a_record_is_searched_in_remote_storage_first() -> None:
    store = Store()
    lab = Lab(store)
    reader = lab.reader()
    work = reader.find_offset(lab.partition, 5)
    assert isinstance(work, RemoteOffsetSearch)
    late = reader.find_offset(lab.partition, 5, may_wait=True)
    assert isinstance(late, KafkaError)
    assert late.code is ErrorCode.OFFSET_NOT_AVAILABLE
    store.offset = SimpleNamespace(timestamp=6, offset=1, leader_epoch=0)
    asyncio.run(load(POOL, [work]))
    assert reader.find_offset(lab.partition, 5) == ListedOffset(6, 1, 0)


def test_a_broker_without_remote_storage_says_which_setting_is_missing() -> None:
    lab = Lab()
    found = lab.reader().read(lab.partition, 0, BYTES)
    assert isinstance(found, KafkaError)
    assert found.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "offset 0 is in remote storage" in found.message
    assert "remote.log.storage.system.enable" in found.message


def test_what_is_missing_again_and_again_is_waited_for_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = NotInMemory.__new__(NotInMemory)
    monkeypatch.setattr(NotInMemory, "load", lambda _: None)
    waits: list[bool] = []

    def read(*, may_wait: bool) -> str | NotInMemory:
        waits.append(may_wait)
        return "found" if may_wait else cold

    assert asyncio.run(complete(POOL, read)) == "found"
    assert waits == [not may_miss for may_miss in rounds()]


def test_partitions_are_read_for_clients_in_one_place() -> None:
    made = [
        path.name
        for path in sorted(Path(ottla.node.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "fetch_records"
    ]
    assert set(made) == {"partition_reader.py"}
