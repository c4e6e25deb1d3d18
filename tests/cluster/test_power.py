"""The power of all machines fails at once, under real nodes and clients, and what was not synced is gone.

The simulator does this to its own disk, thousands of times; here it is the system's calls of `ottla start`
that count. `OTTLA_POWER_LOSSES` says how often, `OTTLA_POWER_SEED` repeats the choice of what is left.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom

import pytest

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster
from tests.support import power
from tests.support.acknowledged_workload import Load, read_all
from tests.support.power import PowerLoss
from tests.support.transform_workload import Copying, Worker, read

LOSSES = int(os.environ.get("OTTLA_POWER_LOSSES", "8"))
SEED = int(os.environ.get("OTTLA_POWER_SEED", "0")) or SystemRandom().randrange(1, 1 << 32)
PARTITIONS = 3
SETTINGS: dict[str, str | int | bool] = {
    "broker.session.timeout.ms": 6_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 6_000,
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
DEADLINE_S = 180.0
SCRUBBED: dict[str, str | int | bool] = {"log.scrub.initial.delay.ms": 200, "log.scrub.interval.ms": 2_000}
DISK: dict[str, str | int | bool] = {"log.durability": "disk", "min.insync.replicas": 2}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        power.missing_requirement() is not None, reason=f"no preloaded library: {power.missing_requirement()}"
    ),
]


@pytest.fixture
def supply(tmp_path: Path) -> Iterator[PowerLoss]:
    with PowerLoss(tmp_path / "cluster", tmp_path / "disk") as supply:
        yield supply


def fail(cluster: LocalCluster, supply: PowerLoss, random: Random | None = None) -> None:
    """All machines lose their power at once; then it is back."""
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        supply.lose(Path(node.data_dir), random)
    cluster.start_all()


def running(tmp_path: Path, nodes: int, settings: dict[str, str | int | bool]) -> LocalCluster:
    return LocalCluster(nodes=nodes, settings=SETTINGS | settings, data_dir=str(tmp_path / "cluster"))


def create(cluster: LocalCluster, topic: str) -> None:
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create(
            topic,
            partitions=PARTITIONS,
            replication_factor=len(cluster.nodes),
            configs={"segment.bytes": "1048576"},
        )


def test_records_that_only_the_page_cache_has_are_gone(tmp_path: Path, supply: PowerLoss) -> None:
    """The price of the default on one machine; and it shows that what is not synced is lost here."""
    with running(tmp_path, 1, {}) as cluster:
        create(cluster, "orders")
        with blocking.Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
            producer.send("orders", b"acknowledged", partition=0)
        fail(cluster, supply)
        assert read_all(cluster.bootstrap_servers, "orders", 0) == {}


def test_records_that_are_acknowledged_on_disk_survive(tmp_path: Path, supply: PowerLoss) -> None:
    with running(tmp_path, 3, DISK) as cluster:
        create(cluster, "orders")
        with Load(cluster.bootstrap_servers, "orders", PARTITIONS, per_second=300) as load:
            load.wait_for_more(300)
            fail(cluster, supply)
            load.wait_for_more(100)
            load.finish()
        load.check(cluster.bootstrap_servers)
        cluster.wait_in_sync()


@pytest.mark.exhaustive
@pytest.mark.timeout(900 + 120 * LOSSES)
def test_whatever_is_left_of_what_was_not_synced_nothing_is_lost_doubled_or_torn(
    tmp_path: Path, supply: PowerLoss
) -> None:
    """Transactional copies go on beside it, of all machines or of one; and a bit rots where one was off."""
    print(f"repeat with OTTLA_POWER_SEED={SEED}")
    random = Random(SEED)
    with running(tmp_path, 3, {**DISK, **SCRUBBED}) as cluster:
        for topic in ("orders", "copies"):
            create(cluster, topic)
        copying = Copying(cluster.bootstrap_servers, "orders", "copies", PARTITIONS)
        load = Load(cluster.bootstrap_servers, "orders", PARTITIONS, per_second=300, bare=True)
        worker = Worker("librdkafka", "worker", copying, tmp_path, protocol="classic")
        worker.start()
        try:
            with load:
                for _ in range(LOSSES):
                    load.wait_for_more(random.randrange(50, 600))
                    worker.keep_alive()
                    lose_some(cluster, supply, random)
                    cluster.wait_in_sync()
                load.finish()
            deadline = time.monotonic() + DEADLINE_S
            while len(copied := read(copying, "read_committed")) < load.count:
                assert time.monotonic() < deadline, f"{len(copied)} of {load.count}: {worker.last_words()}"
                worker.keep_alive()
        finally:
            worker.kill()
        load.check(cluster.bootstrap_servers)
        cluster.wait_in_sync()
    times = Counter(int(each.value.split("|")[0]) for each in copied)
    assert [number for number, count in times.items() if count != 1] == []
    assert sum(times.values()) == load.count


def lose_some(cluster: LocalCluster, supply: PowerLoss, random: Random) -> None:
    """The power of all machines, or of one; in half of these a batch on its disk rots, too."""
    if random.random() < 0.6:
        fail(cluster, supply, random)
        return
    node = random.choice(cluster.nodes)
    cluster.kill(node)
    supply.lose(Path(node.data_dir), random)
    if random.random() < 0.5:
        segments = [each for each in Path(node.data_dir).glob("*-0/*.log") if each.stat().st_size]
        file = random.choice(sorted(segments))
        content = bytearray(file.read_bytes())
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.write_bytes(content)
    cluster.start(node)
