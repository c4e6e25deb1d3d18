"""Bits that rot in files of three real nodes: found by the scrubber, and mended from another node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import blocking
from ottla.protocol.names import TopicPartition
from ottla.testing.local_cluster import LocalCluster
from tests.support.waiting import wait_until

RECORDS = 60
SETTINGS = {
    "log.scrub.initial.delay.ms": 200,
    "log.scrub.interval.ms": 1_000,
    "replica.lag.time.max.ms": 10_000,
    "auto.leader.rebalance.enable": False,
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rotting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """Three nodes with short pauses between passes, and a topic with closed segments on each."""
    directory = tmp_path_factory.mktemp("rotting")
    with LocalCluster(nodes=3, settings=SETTINGS, data_dir=str(directory)) as cluster:
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create(
                "orders",
                partitions=1,
                replication_factor=3,
                configs={
                    "segment.bytes": "1048576",
                    "index.interval.bytes": "100",
                    "min.insync.replicas": "2",
                },
            )
        with blocking.Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"%02d" % number + b"x" * 100_000, key=b"%d" % number)
        cluster.wait_in_sync()
        yield cluster, directory


def file_of(directory: Path, kind: str) -> Path:
    """A file at rest of one of the nodes."""
    found = sorted(directory.rglob(f"orders-0/*{kind}"))
    return next(each for each in found if each.stat().st_size)


def flip(file: Path, position: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ 0x10]))


def read_all(cluster: LocalCluster) -> list[bytes | None]:
    with blocking.Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        return [record.value for record in itertools.islice(consumer, RECORDS)]


@pytest.mark.parametrize(
    "kind",
    [
        ".index",
        pytest.param(".timeindex", marks=pytest.mark.exhaustive),
        pytest.param(".snapshot", marks=pytest.mark.exhaustive),
        pytest.param("leader-epoch-checkpoint", marks=pytest.mark.exhaustive),
        pytest.param("partition.metadata", marks=pytest.mark.exhaustive),
    ],
)
def test_what_follows_from_the_batches_is_written_again(
    rotting: tuple[LocalCluster, Path], kind: str
) -> None:
    _, directory = rotting
    file = file_of(directory, kind)
    before = file.read_bytes()
    flip(file, len(before) // 2)
    wait_until(lambda: file.read_bytes() == before)


def test_a_replica_with_a_damaged_batch_is_fetched_again(rotting: tuple[LocalCluster, Path]) -> None:
    cluster, directory = rotting
    file = file_of(directory, ".log")
    before = file.read_bytes()
    flip(file, len(before) // 2)
    node = file.parents[1]
    wait_until(lambda: bool(list(node.glob("orders-0*-damaged-stray"))))
    wait_until(lambda: file.exists() and file.read_bytes() == before)
    cluster.wait_in_sync()
    assert read_all(cluster) == [b"%02d" % number + b"x" * 100_000 for number in range(RECORDS)]
