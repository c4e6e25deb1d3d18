"""metadata.store=zookeeper, the legacy mode: what an operator of that time sees in ZooKeeper, and does there.

Three brokers on one real ZooKeeper. The tests write znodes by hand as tools did, take away sessions by
pausing processes, and stop ZooKeeper itself under writes. The tests of clusters that do not speak of the
quorum run here too, on the same brokers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from ottla import blocking
from ottla.client.admin.configs import ConfigSource, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.testing.cluster_plan import ClusterPlan, free_ports, is_free, locked
from ottla.testing.local_cluster import ClusterError, LocalCluster
from ottla.testing.zookeeper_server import ZooKeeperServer
from tests.cluster.conftest import SETTINGS, cluster, make_topic
from tests.support import kafka_libs
from tests.support.acknowledged_workload import Load
from tests.support.command_line import CommandLine
from tests.support.waiting import DEADLINE_S, wait_until
from tests.support.zookeeper import ApacheZooKeeper

__all__ = ["cluster", "make_topic"]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Shell:
    """What `zookeeper-shell` does. Reads outlast a ZooKeeper that is away, and the session that ends then."""

    def __init__(self, connect: str) -> None:
        self.client = KazooClient(
            connect,
            connection_retry=KazooRetry(max_tries=-1, max_delay=1),
            command_retry=KazooRetry(max_tries=-1, max_delay=1, deadline=DEADLINE_S),
        )
        self.client.start(DEADLINE_S)

    def get(self, path: str) -> Any:
        data = self.text(path)
        return None if data is None else json.loads(data)

    def text(self, path: str) -> str | None:
        try:
            data, _ = self.client.retry(self.client.get, path)
        except NoNodeError:
            return None
        return data.decode()

    def version(self, path: str) -> int:
        version: int = self.client.retry(self.client.get, path)[1].version
        return version

    def exists(self, path: str) -> bool:
        return self.client.retry(self.client.exists, path) is not None

    def ls(self, path: str) -> list[str]:
        return sorted(self.client.retry(self.client.get_children, path))

    def create(self, path: str, value: object, *, sequence: bool = False) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.client.create(path, data, sequence=sequence)

    def controller(self) -> int | None:
        found = self.get("/controller")
        return None if found is None else int(found["brokerid"])

    def epoch(self) -> int:
        return int(self.text("/controller_epoch") or 0)

    def close(self) -> None:
        self.client.stop()
        self.client.close()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheZooKeeper]:
    with ApacheZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def shared_cluster(zookeeper: ApacheZooKeeper) -> Iterator[LocalCluster]:
    settings = {**SETTINGS, "zookeeper.session.timeout.ms": 3_000}
    with LocalCluster(nodes=3, settings=settings, zookeeper=f"{zookeeper.connect}/legacy") as running:
        yield running


@pytest.fixture
def shell(cluster: LocalCluster) -> Iterator[Shell]:
    assert cluster.plan.zookeeper is not None
    opened = Shell(cluster.plan.zookeeper)
    yield opened
    opened.close()


def new_topic(cluster: LocalCluster, partitions: int = 1, **configs: str) -> str:
    name = f"t-{uuid4().hex[:12]}"
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create(name, partitions=partitions, replication_factor=3, configs=configs)
    for partition in range(partitions):
        cluster.partition(name, partition)
    return name


def test_brokers_topics_and_the_controller_are_seen_in_zookeeper(cluster: LocalCluster, shell: Shell) -> None:
    epoch = shell.epoch()
    topic = new_topic(cluster, 2)
    wait_until(lambda: shell.ls("/brokers/ids") == ["1", "2", "3"], "not all brokers are registered")
    for node in cluster.nodes:
        found = shell.get(f"/brokers/ids/{node.id}")
        assert (found["host"], found["port"], found["version"]) == ("127.0.0.1", node.port, 5)
        assert found["endpoints"] == [f"PLAINTEXT://127.0.0.1:{node.port}"]
    wait_until(lambda: shell.controller() == cluster.controller(), "the brokers name another controller")
    assert shell.get("/cluster/id")["id"] == cluster.cluster_id
    assert sorted(shell.get(f"/brokers/topics/{topic}")["partitions"]) == ["0", "1"]

    def is_described() -> bool:
        state = shell.get(f"/brokers/topics/{topic}/partitions/0/state")
        described = cluster.partition(topic)
        found = described.leader_id, described.isr_nodes, described.leader_epoch
        return found == (state["leader"], state["isr"], state["leader_epoch"])

    wait_until(is_described, "the brokers describe another state of the partition")
    state = shell.get(f"/brokers/topics/{topic}/partitions/0/state")
    assert epoch <= state["controller_epoch"] <= shell.epoch()


def test_deleting_the_znode_of_the_controller_by_hand_causes_an_election(
    cluster: LocalCluster, shell: Shell
) -> None:
    epoch = shell.epoch()
    shell.client.delete("/controller")
    wait_until(lambda: shell.epoch() > epoch and shell.controller() is not None, "no election")
    topic = new_topic(cluster)
    state = shell.get(f"/brokers/topics/{topic}/partitions/0/state")
    assert epoch < state["controller_epoch"] <= shell.epoch()
    wait_until(lambda: cluster.controller() == shell.controller(), "the brokers name another controller")


def test_every_change_of_a_partition_is_one_version_of_its_znode(cluster: LocalCluster, shell: Shell) -> None:
    topic = new_topic(cluster)
    path = f"/brokers/topics/{topic}/partitions/0/state"
    leader = cluster.leader(topic)
    cluster.kill(leader)
    wait_until(lambda: shell.get(path)["leader"] not in (leader, -1), "no other leader in ZooKeeper")
    state = shell.get(path)
    assert leader not in state["isr"]
    assert state["leader_epoch"] >= 1
    assert shell.version(path) >= 1
    wait_until(lambda: str(leader) not in shell.ls("/brokers/ids"), "its session does not expire")
    cluster.start(leader)
    wait_until(lambda: sorted(shell.get(path)["isr"]) == [1, 2, 3], "it is not in sync again")
    wait_until(lambda: shell.ls("/brokers/ids") == ["1", "2", "3"], "not all brokers are registered")


@pytest.mark.exhaustive
def test_a_controller_that_was_paused_beyond_its_session_writes_nothing_any_more(
    cluster: LocalCluster, shell: Shell
) -> None:
    """It still believes in itself when it goes on: the check of the epoch refuses its writes."""
    topic = new_topic(cluster, 3)
    paused, epoch = shell.controller(), shell.epoch()
    assert paused is not None
    with Load(cluster.bootstrap_servers, topic, 3, per_second=500) as load:
        load.wait_for_more(200)
        cluster.pause(paused)
        wait_until(lambda: shell.controller() not in (None, paused), "no other controller")
        load.wait_for_more(200)
        assert shell.epoch() > epoch
        meanwhile = new_topic_on(cluster, [node.id for node in cluster.nodes if node.id != paused])
        cluster.resume(paused)
        wait_until(lambda: str(paused) in shell.ls("/brokers/ids"), "it does not register again")
        cluster.wait_ready()
        cluster.wait_in_sync()
        load.wait_for_more(200)
        load.finish()
    load.check(cluster.bootstrap_servers)
    for name in (topic, meanwhile):
        for partition in shell.ls(f"/brokers/topics/{name}/partitions"):
            state = shell.get(f"/brokers/topics/{name}/partitions/{partition}/state")
            assert state["controller_epoch"] <= shell.epoch()
            assert state["leader"] in state["isr"]
    assert shell.get(f"/brokers/topics/{meanwhile}/partitions/0/state")["controller_epoch"] > epoch


def new_topic_on(cluster: LocalCluster, brokers: list[int]) -> str:
    name = f"t-{uuid4().hex[:12]}"
    servers = ",".join(cluster.node(id).bootstrap_servers for id in brokers)
    with blocking.Admin(servers) as admin:
        admin.topics.create(name, partitions=1, replication_factor=len(brokers))
    return name


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_nothing_is_lost_while_zookeeper_is_away(
    cluster: LocalCluster, shell: Shell, zookeeper: ApacheZooKeeper, how: str
) -> None:
    """Leaders go on without it; changes wait. Afterwards the brokers register again."""
    topic = new_topic(cluster, 3)
    with Load(cluster.bootstrap_servers, topic, 3, per_second=500) as load:
        load.wait_for_more(200)
        if how == "killed":
            zookeeper.kill()
        else:
            os.kill(zookeeper.pid, signal.SIGSTOP)
        load.wait_for_more(2_000)  # longer than a session
        if how == "killed":
            zookeeper.start()
        else:
            os.kill(zookeeper.pid, signal.SIGCONT)
        wait_until(lambda: shell.ls("/brokers/ids") == ["1", "2", "3"], "the brokers do not register again")
        wait_until(lambda: shell.controller() is not None, "there is no controller")
        cluster.wait_ready()
        load.wait_for_more(200)
        load.finish()
    load.check(cluster.bootstrap_servers)
    new_topic(cluster)


def test_a_topic_that_an_operator_lists_for_deletion_is_deleted(cluster: LocalCluster, shell: Shell) -> None:
    topic = new_topic(cluster)
    shell.create(f"/admin/delete_topics/{topic}", "")
    shell.create("/admin/delete_topics/there-is-no-such-topic", "")
    wait_until(lambda: not shell.exists(f"/brokers/topics/{topic}"), "the topic is still there")
    wait_until(lambda: shell.ls("/admin/delete_topics") == [], "the list is not cleared")
    assert not shell.exists(f"/config/topics/{topic}")
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        wait_until(lambda: topic not in {each.name for each in admin.topics.list()}, "brokers know it")


def test_a_reassignment_that_an_operator_writes_is_done_and_removed(
    cluster: LocalCluster, shell: Shell
) -> None:
    topic = new_topic_on(cluster, [1, 2, 3])
    wanted = [3, 1]
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": wanted}]}
    shell.create("/admin/reassign_partitions", plan)
    wait_until(lambda: not shell.exists("/admin/reassign_partitions"), "the reassignment does not end")
    found = shell.get(f"/brokers/topics/{topic}")
    assert found["partitions"]["0"] == wanted
    assert found["adding_replicas"] == found["removing_replicas"] == {}
    wait_until(lambda: cluster.partition(topic).replica_nodes == wanted, "clients see other replicas")
    cluster.wait_in_sync()
    asked = {"version": 1, "partitions": [{"topic": topic, "partition": 0}]}
    shell.create("/admin/preferred_replica_election", asked)
    wait_until(lambda: not shell.exists("/admin/preferred_replica_election"), "the election does not end")
    assert shell.get(f"/brokers/topics/{topic}/partitions/0/state")["leader"] == 3
    wait_until(lambda: cluster.leader(topic) == 3, "the preferred replica does not lead")


def test_configurations_are_written_with_a_notification_and_read_by_one(
    cluster: LocalCluster, shell: Shell
) -> None:
    topic = new_topic(cluster, **{"retention.ms": "86400000"})
    path = f"/config/topics/{topic}"
    assert shell.get(path) == {"version": 1, "config": {"retention.ms": "86400000"}}
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.configs.alter(ResourceType.TOPIC, topic, set={"segment.bytes": "2000000"})
        assert shell.get(path)["config"] == {"retention.ms": "86400000", "segment.bytes": "2000000"}
        named = [shell.get(f"/config/changes/{each}") for each in shell.ls("/config/changes")]
        assert {"version": 2, "entity_path": f"topics/{topic}"} in named
        shell.client.set(path, json.dumps({"version": 1, "config": {"retention.ms": "3600000"}}).encode())
        shell.create(
            "/config/changes/config_change_", {"version": 2, "entity_path": f"topics/{topic}"}, sequence=True
        )

        def values() -> dict[str, str | None]:
            described = admin.configs.describe(ResourceType.TOPIC, topic)
            return {name: each.value for name, each in described.items() if each.source is ConfigSource.TOPIC}

        wait_until(lambda: values() == {"retention.ms": "3600000"}, "the change is not seen")


def test_what_has_no_znode_is_refused_plainly(cluster: LocalCluster) -> None:
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        levels = {name: each.finalized for name, each in admin.cluster.features().items() if each.finalized}
        assert levels == {"metadata.version": 14, "group.version": 1, "transaction.version": 2}
        with pytest.raises(KafkaError, match=r"metadata.store=zookeeper") as refused:
            admin.cluster.update_features({"share.version": 1})
        assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.exhaustive
def test_a_node_of_another_cluster_does_not_start_on_the_same_path(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    started = subprocess.run(
        [
            *(sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path / "data")),
            *("--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"),
            *("--set", "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "--set", "metadata.store=zookeeper"),
            *("--set", f"zookeeper.connect={cluster.plan.zookeeper}"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert started.returncode == 1
    assert "doesn't match stored clusterId AAAAAAAAAAAAAAAAAAAAAA" in started.stderr


@pytest.mark.exhaustive
def test_a_cluster_with_a_zookeeper_of_its_own_comes_up_and_goes_down_by_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = kafka_libs.classpath(kafka_libs.ZOOKEEPER_KAFKA).removesuffix("/*")
    monkeypatch.setenv("OTTLA_ZOOKEEPER_LIBS", jars)
    directory = str(tmp_path / "cluster")
    first = next(port for port in free_ports(20) if all(map(is_free, range(port, port + 4))))
    ottla = CommandLine("")
    up = ottla.ok(
        *("cluster", "up", "--zookeeper", "--nodes", "1", "--detach", "--json"),
        *("--data-dir", directory, "--port", str(first)),
    )
    plan = ClusterPlan.read(directory)
    try:
        assert up.json["zookeeper"] == plan.zookeeper
        assert plan.zookeeper is not None
        shell = Shell(plan.zookeeper)
        assert shell.controller() == 1
        shell.close()
        other = ottla("cluster", "up", "--zookeeper", "127.0.0.1:1", "--data-dir", directory)
        assert "created with another --zookeeper" in other.err
        taken = str(tmp_path / "taken")
        other = ottla("cluster", "up", "--zookeeper", plan.zookeeper, "--data-dir", taken)
        assert f"ZooKeeper at {plan.zookeeper} has a cluster at / already" in other.err
        assert not Path(taken).exists()
        _check_that_a_failed_start_leaves_zookeeper(plan, ottla, monkeypatch)
        ottla.ok("cluster", "up", "--detach", "--data-dir", directory)
    finally:
        down = [ottla.ok("cluster", "down", *nodes, "--data-dir", directory).out for nodes in (["1"], [], [])]
    assert down == ["node 1 stopped\n", "ZooKeeper stopped\n", "nothing was running\n"]
    assert plan.zookeeper_port is not None
    assert ZooKeeperServer(plan.directory / "zookeeper", plan.zookeeper_port).pid() is None


def _check_that_a_failed_start_leaves_zookeeper(
    plan: ClusterPlan, ottla: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `up` does not stop what the first has started, nor start it a second time."""
    assert plan.zookeeper_port is not None
    server = ZooKeeperServer(plan.directory / "zookeeper", plan.zookeeper_port)
    running = server.pid()
    assert running is not None
    directory = str(plan.directory)
    ottla.ok("cluster", "down", "1", "--data-dir", directory)
    port = plan.node(1).port
    with socket.create_server(("127.0.0.1", port or 0)):
        ended = ottla("cluster", "up", "--detach", "--data-dir", directory)
    assert f"port {port} is in use" in ended.err
    assert server.pid() == running
    assert server.stop()
    monkeypatch.setattr("ottla.testing.cluster_plan._LOCK_SECONDS", 0.1)
    with locked(plan.directory):
        ended = ottla("cluster", "up", "--detach", "--data-dir", directory)
    assert "another process is making or starting the cluster" in ended.err
    assert server.pid() is None
    with socket.create_server(("127.0.0.1", plan.zookeeper_port)):
        ended = ottla("cluster", "up", "--detach", "--data-dir", directory)
    assert f"port {plan.zookeeper_port} is in use by another process" in ended.err


@pytest.mark.exhaustive
def test_a_broker_keeps_its_logs_where_zookeeper_has_lost_its_data(
    zookeeper: ApacheZooKeeper, tmp_path: Path
) -> None:
    """While it runs, at its next start, and where another broker of the cluster has started first since."""
    with LocalCluster(
        nodes=1,
        settings={"zookeeper.session.timeout.ms": 3_000},
        data_dir=str(tmp_path / "cluster"),
        zookeeper=f"{zookeeper.connect}/lost",
    ) as cluster:
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create("orders", partitions=1, replication_factor=1)
        (node,) = cluster.nodes
        wait_until(lambda: any(node.plan.directory.rglob("orders-0")), "there is no log")
        (log,) = node.plan.directory.rglob("orders-0")
        root = Shell(zookeeper.connect)
        cluster.pause(node)
        root.client.delete("/lost", recursive=True)
        cluster.resume(node)
        wait_until(
            lambda: "cannot be the controller now" in node.plan.log_file.read_text(), "it does not notice"
        )
        cluster.kill(node)
        with pytest.raises(ClusterError, match=r"there is no /cluster/id in ZooKeeper, but this broker has"):
            cluster.start(node)
        for path in ("/lost/cluster", "/lost/ottla"):  # the path itself is there again
            root.create(path, "")
        root.create("/lost/cluster/id", {"version": "1", "id": cluster.cluster_id})
        root.create("/lost/ottla/metadata_id", "another")
        with pytest.raises(ClusterError, match=r"and ZooKeeper has another at /ottla/metadata_id"):
            cluster.start(node)
        root.close()
        assert log.is_dir()
        assert [each.name for each in log.parent.glob("orders-*")] == ["orders-0"]
