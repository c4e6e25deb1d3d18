"""Replicas of a partition hold the same bytes, no matter which broker led in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla import blocking
from ottla.records.batch import iter_batches, verify_crc
from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load
from tests.support.waiting import wait_until

PARTITIONS = 3


def batches(directory: Path) -> list[bytes]:
    """The batches of a log as they lie in its segments."""
    found = []
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        for position, header in iter_batches(data):
            verify_crc(data, position, header)
            found.append(data[position : position + header.size])
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_replicas_are_equal_byte_for_byte_after_deaths_and_elections(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.roll.ms": 1_000}
    with LocalCluster(nodes=3, settings=settings, data_dir=str(tmp_path / "kept")) as cluster:
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create("equal", partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap_servers, "equal", PARTITIONS, per_second=3000) as load:
            for how in ("kill", "stop", "pause"):
                load.wait_for_more(1000)
                leader = cluster.leader("equal")
                getattr(cluster, how)(leader)
                wait_until(lambda leader=leader: cluster.leader("equal") != leader, "no new leader")  # type: ignore[misc]
                load.wait_for_more(500)
                if how == "pause":
                    cluster.resume(leader)
                else:
                    cluster.start(leader)
                cluster.wait_ready()
                cluster.wait_in_sync()
            load.finish()
        load.check(cluster.bootstrap_servers)
        cluster.wait_in_sync()
        directories = [Path(node.data_dir) for node in cluster.nodes]
        cluster.stop()
        for partition in range(PARTITIONS):
            first, *others = [batches(directory / f"equal-{partition}") for directory in directories]
            assert first
            assert all(other == first for other in others)
