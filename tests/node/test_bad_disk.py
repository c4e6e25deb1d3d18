"""A node of two disks of which one cannot be read: it serves what the other one has, and says so."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.wire import WireClient, create_topic, produce_request

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.builder import build_batch
from ottla.testing.local_node import LocalNode

DEADLINE_SECONDS = 60
PARTITIONS = 6


def produce(wire: WireClient, index: int) -> ErrorCode:
    batch = build_batch([(0, None, b"x")])
    response = wire.get(produce_request("t", batch, partition=index), 9, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def directory_errors(wire: WireClient) -> dict[str, ErrorCode]:
    response = wire.get(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
    return {result.log_dir: ErrorCode(result.error_code) for result in response.results}


def test_one_file_that_cannot_be_read_costs_its_directory_and_not_the_node(tmp_path: Path) -> None:
    dirs = tmp_path / "a", tmp_path / "b"
    settings = {"log.dirs": ",".join(map(str, dirs)), "log.retention.ms": "-1"}
    with LocalNode(settings) as node, WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "t", PARTITIONS)
        assert {produce(wire, index) for index in range(PARTITIONS)} == {ErrorCode.NONE}
    lost = {int(path.name[2:]) for path in dirs[1].glob("t-*")}
    assert 0 < len(lost) < PARTITIONS
    victim = dirs[1] / f"t-{min(lost)}" / "leader-epoch-checkpoint"
    victim.unlink()
    victim.mkdir()  # each read of it fails, as on a bad sector
    with LocalNode(settings) as node, WireClient(node.bootstrap_servers) as wire:
        expected = {str(dirs[0]): ErrorCode.NONE, str(dirs[1]): ErrorCode.KAFKA_STORAGE_ERROR}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := directory_errors(wire)) != expected:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        for index in range(PARTITIONS):
            served = produce(wire, index) is ErrorCode.NONE
            assert served == (index not in lost), index
