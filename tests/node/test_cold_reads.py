"""A client that reads what is not in memory does not make other clients wait for the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.support.wire import WireClient, create_topic, fetch_request, produce_request

from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.unified_log import UnifiedLog
from ottla.node.fetch.partition_reader import rounds
from ottla.protocol.api import API_BY_NAME
from ottla.protocol.headers import read_response
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.records.builder import build_batch
from ottla.runtime.disk import NotInMemory, _RealFile
from ottla.testing.local_node import LocalNode

VALUES = [b"%03d" % n * 1000 for n in range(100)]
DEADLINE_S = 60


@pytest.fixture
def old_data(tmp_path: Path) -> str:
    """The data directory of a stopped node; what a running node wrote itself is still in its memory."""
    with LocalNode(data_dir=str(tmp_path)) as node, WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "old", retention_ms="-1")  # the records are from 1970
        for n, value in enumerate(VALUES):
            wire.ask(produce_request("old", build_batch([(1000 + n, None, value)])), 9)
    return str(tmp_path)


def fetch(max_bytes: int = 10_000_000) -> FetchRequest:
    return fetch_request("old", 7, partition_max_bytes=max_bytes, max_bytes=max_bytes)


def records(response: FetchResponse) -> bytes:
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert partition.error_code == 0
    return bytes(partition.records or b"")


class ColdDisk:
    """A disk of which no segment is in memory until it is loaded, and a load waits until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_load = threading.Event()
        self.loading = threading.Event()
        self.loaded: set[str] = set()
        self.loads = 0
        self.forgets = False
        monkeypatch.setattr(_RealFile, "_check_in_memory", lambda *read: self._check(*read))
        monkeypatch.setattr(NotInMemory, "load", lambda data: self._load(data))

    def _check(self, file: _RealFile, size: int, offset: int) -> None:
        if file.path.endswith(".log") and file.path not in self.loaded:
            raise NotInMemory(file, size, offset)

    def _load(self, data: NotInMemory) -> None:
        self.loading.set()
        assert self.may_load.wait(DEADLINE_S)
        self.loads += 1
        if not self.forgets:
            self.loaded.add(data._file.path)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> ColdDisk:
    return ColdDisk(monkeypatch)


def test_other_clients_are_answered_while_old_records_are_loaded(old_data: str, cold: ColdDisk) -> None:
    with (
        LocalNode(data_dir=old_data) as node,
        WireClient(node.bootstrap_servers) as wire,
        WireClient(node.bootstrap_servers) as other,
    ):
        wire.send(fetch(), 12)
        assert cold.loading.wait(DEADLINE_S)
        assert isinstance(other.ask(ApiVersionsRequest(), 0), ApiVersionsResponse)
        cold.may_load.set()
        frame = wire.receive_frame()
        assert frame is not None
        _, response = read_response(API_BY_NAME["Fetch"], 12, frame)
        assert isinstance(response, FetchResponse)
        assert all(value in records(response) for value in VALUES[7:])
        assert cold.loads == 1


def test_a_search_by_time_does_not_make_other_clients_wait_either(old_data: str, cold: ColdDisk) -> None:
    with (
        LocalNode(data_dir=old_data) as node,
        WireClient(node.bootstrap_servers) as wire,
        WireClient(node.bootstrap_servers) as other,
    ):
        wanted = ListOffsetsPartition(partition_index=0, timestamp=1042)
        wire.send(ListOffsetsRequest(topics=[ListOffsetsTopic(name="old", partitions=[wanted])]), 6)
        assert cold.loading.wait(DEADLINE_S)
        assert isinstance(other.ask(ApiVersionsRequest(), 0), ApiVersionsResponse)
        cold.may_load.set()
        frame = wire.receive_frame()
        assert frame is not None
        _, response = read_response(API_BY_NAME["ListOffsets"], 6, frame)
        assert isinstance(response, ListOffsetsResponse)
        assert response.topics[0].partitions[0].offset == 42


def test_the_aborted_transactions_of_old_segments_are_not_waited_for_either(
    old_data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = 0
    collect = UnifiedLog.collect_aborted_transactions

    def cold(log: UnifiedLog, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Each index is in memory only after it was loaded."""
        nonlocal searches
        searches += 1
        for segment in log.local_log.segments_from(start_offset):
            Path(segment.txn_index.path).write_bytes(b"")
            with monkeypatch.context() as patched:
                patched.setattr(_RealFile, "size", lambda _: 1)  # so that there is something to read
                if searches == 1:
                    patched.setattr(_RealFile, "_check_in_memory", _is_not_in_memory)
                segment.txn_index.sanity_check()
        return collect(log, start_offset, upper_offset)

    monkeypatch.setattr(UnifiedLog, "collect_aborted_transactions", cold)
    with LocalNode(data_dir=old_data) as node, WireClient(node.bootstrap_servers) as wire:
        request = fetch()
        request.isolation_level = 1
        response = wire.ask(request, 12)
        assert isinstance(response, FetchResponse)
        assert all(value in records(response) for value in VALUES[7:])
    assert searches == 2


def _is_not_in_memory(file: _RealFile, size: int, offset: int) -> None:
    raise NotInMemory(file, size, offset)


def test_what_memory_cannot_hold_is_read_all_the_same(old_data: str, cold: ColdDisk) -> None:
    cold.forgets = True
    cold.may_load.set()
    with LocalNode(data_dir=old_data) as node, WireClient(node.bootstrap_servers) as wire:
        response = wire.ask(fetch(), 12)
        assert isinstance(response, FetchResponse)
        assert all(value in records(response) for value in VALUES[7:])
        assert cold.loads == sum(rounds())


def test_records_that_the_system_has_dropped_from_memory_are_read(old_data: str) -> None:
    for path in (Path(old_data) / "old-0").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    with LocalNode(data_dir=old_data) as node, WireClient(node.bootstrap_servers) as wire:
        response = wire.ask(fetch(), 12)
        assert isinstance(response, FetchResponse)
        assert all(value in records(response) for value in VALUES[7:])
