"""A cluster goes from one build to the next and back, node by node, under load: nothing is lost or doubled.

An idempotent producer writes numbers to one topic, and a process copies them to another in transactions. The
nodes begin with another build, are stopped and started with this one, one after the other, and go back in the
same way, as `metadata.version` is not raised. `OTTLA_OTHER_BUILD` is the Python of an environment with that
other build, such as the last release; without it that is a copy of this one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

import ottla
from ottla import blocking
from ottla.testing.local_cluster import ClusterNode, LocalCluster
from tests.guarantees.transformer import DOOMED
from tests.support.acknowledged_workload import Load
from tests.support.replicas import replicas_of
from tests.support.transaction_checker import check
from tests.support.transform_workload import Copying, Worker, read
from tests.support.waiting import wait_until

SOURCE, TARGET, PARTITIONS, PER_SECOND = "source", "target", 3, 300
SETTLE_S = 180.0
SETTINGS = {"group.min.session.timeout.ms": 1_000}  # the worker has a short session


def other_build(directory: Path) -> Path:
    """The directory of the other build's package: that of OTTLA_OTHER_BUILD, or a copy of this one."""
    if python := os.environ.get("OTTLA_OTHER_BUILD"):
        (found,) = Path(python).parents[1].glob("lib/python*/site-packages/ottla")
        return found.parent
    shutil.copytree(Path(ottla.__file__).parent, directory / "ottla")
    return directory


def build_of(node: ClusterNode) -> Path:
    """The directory of the package that the node's process runs, by the kernel that it has loaded."""
    maps = Path(f"/proc/{node.pid}/maps").read_text().splitlines()
    (kernel,) = {line.split()[-1] for line in maps if "/ottla/records/_kernel." in line}
    return Path(kernel).parents[2]


def metadata_version(admin: blocking.Admin) -> int | None:
    return admin.cluster.features()["metadata.version"].finalized


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nothing_is_lost_on_the_way_to_another_build_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = other_build(tmp_path / "other"), Path(ottla.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(there))  # of nodes that start
    with LocalCluster(nodes=3, settings=SETTINGS, data_dir=str(tmp_path / "cluster")) as cluster:
        assert {build_of(node) for node in cluster.nodes} == {there}
        bootstrap = cluster.bootstrap_servers
        with blocking.Admin(bootstrap) as admin:
            for topic in (SOURCE, TARGET):
                admin.topics.create(topic, partitions=PARTITIONS, replication_factor=3)
            level = metadata_version(admin)
        copying = Copying(bootstrap, SOURCE, TARGET, PARTITIONS)
        worker = Worker("librdkafka", "worker", copying, tmp_path, protocol="classic")
        worker.start()
        try:
            with Load(bootstrap, SOURCE, PARTITIONS, per_second=PER_SECOND, bare=True) as load:
                load.wait_for_more(PER_SECOND)
                wait_until(lambda: bool(read(copying, "read_committed")), "nothing is copied", SETTLE_S)
                for build in (here, there):
                    monkeypatch.setenv("PYTHONPATH", str(build))
                    for node in cluster.nodes:
                        cluster.stop(node)
                        cluster.start(node)
                        assert build_of(node) == build
                        cluster.wait_in_sync()
                        worker.keep_alive()
                        load.wait_for_more(PER_SECOND)
                load.finish()
            deadline = time.monotonic() + SETTLE_S
            while len(copied := read(copying, "read_committed")) < load.count:
                assert time.monotonic() < deadline, f"{len(copied)} of {load.count}: {worker.last_words()}"
                worker.keep_alive()
        finally:
            worker.kill()
        load.check(bootstrap)
        cluster.wait_in_sync()
        with blocking.Admin(bootstrap) as admin:
            assert metadata_version(admin) == level
        replicas = [
            replicas_of(cluster, topic, partition)
            for topic in (SOURCE, TARGET)
            for partition in range(PARTITIONS)
        ]
    transactions = worker.transactions()
    print(
        f"{load.count} records acknowledged, {len(transactions)} transactions, the longest pause of the "
        f"producer {load.longest_pause_s:.2f} s; the other build is {there}"
    )
    outputs = Counter(int(seen.value.split("|")[0]) for seen in copied)
    assert [number for number, times in outputs.items() if times != 1] == []
    assert sum(outputs.values()) == load.count
    assert not [seen for seen in copied if seen.value.endswith(DOOMED)]
    assert [str(anomaly) for anomaly in check(transactions, copied, [copied])] == []
    assert all(len(set(held.values())) == 1 for held in replicas)
