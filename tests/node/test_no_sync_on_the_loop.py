"""No sync of a file or directory is done on the event loop, where all clients would wait for the disk."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.records.builder import build_batch
from ottla.runtime import disk
from ottla.testing.local_node import LocalNode

PARTITIONS = 20


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs on an event loop, each with the calls that led to it."""
    found: list[str] = []

    def noted(function: Any) -> Any:
        def sync(*args: Any, **options: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                found.append("".join(traceback.format_stack(limit=12)))
            return function(*args, **options)

        return sync

    monkeypatch.setattr(disk._RealFile, "sync", noted(disk._RealFile.sync))
    monkeypatch.setattr(disk.RealDisk, "sync_dir", noted(disk.RealDisk.sync_dir))
    return found


@pytest.fixture
def wire(syncs: list[str]) -> Iterator[WireClient]:
    with (
        LocalNode({"log.message.timestamp.after.max.ms": 2**62}) as node,
        WireClient(node.bootstrap_servers) as wire,
    ):
        syncs.clear()
        yield wire


def ends(wire: WireClient) -> list[int]:
    parts = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
        for index in range(PARTITIONS)
    ]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="new", partitions=parts)])
    response = wire.get(request, 7, ListOffsetsResponse)
    return [part.offset for part in response.topics[0].partitions]


@pytest.mark.parametrize("acks", [0, 1])
def test_first_records_of_new_partitions(wire: WireClient, syncs: list[str], acks: int) -> None:
    create_topic(wire, "new", PARTITIONS)
    batch = build_batch([(int(time.time() * 1000), None, b"x")])
    wire.send(produce_request("new", *[batch] * PARTITIONS, acks=acks), 9)
    # Its client is gone before the disk is done: what was received is appended all the same.
    wire.close()
    if acks == 0:
        wait_until(lambda: ends(wire) == [1] * PARTITIONS, "not all records were appended")
    assert not syncs, syncs[0]


def test_first_records_of_coordinators(wire: WireClient, syncs: list[str]) -> None:
    def is_found(key_type: int) -> bool:
        request = FindCoordinatorRequest(key="x", key_type=key_type)
        return wire.get(request, 2, FindCoordinatorResponse).error_code == 0

    def commit() -> bool:
        topic = OffsetCommitRequestTopic(
            name="new",
            partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
        )
        request = OffsetCommitRequest(group_id="x", generation_id_or_member_epoch=-1, topics=[topic])
        response = wire.get(request, 7, OffsetCommitResponse)
        return response.topics[0].partitions[0].error_code == ErrorCode.NONE

    def init() -> bool:
        request = InitProducerIdRequest(
            transactional_id="x", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        return wire.get(request, 4, InitProducerIdResponse).error_code == ErrorCode.NONE

    create_topic(wire, "new")
    for key_type, write in ((0, commit), (1, init)):
        wait_until(lambda key_type=key_type: is_found(key_type), "no coordinator")
        wait_until(write, "the coordinator does not write")
    assert not syncs, syncs[0]
