"""A cluster of processes: there when the block begins, gone when it ends, and what happens to it between.

These are about the processes; one node is enough. What three do together is in `tests/cluster`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from ottla.testing import cluster_plan
from ottla.testing.cluster_plan import ClusterPlan, PlanError, is_free
from ottla.testing.cluster_process import ClusterError, NodeProcess, ProcessState
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.security import LocalSecurity
from tests.support.waiting import wait_until


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_node_is_killed_started_paused_and_restarted() -> None:
    with LocalCluster(nodes=1) as cluster:
        (node,) = cluster.nodes
        first, directory = node.pid, Path(cluster.data_dir)
        assert first is not None
        assert (cluster.controller(), node.state) == (1, ProcessState.RUNNING)
        cluster.kill(1)
        assert (node.pid, node.state) == (None, ProcessState.DOWN)
        with pytest.raises(ClusterError, match="node 1 is down"):
            cluster.kill(1)
        cluster.start(1)
        assert node.pid not in (None, first)
        cluster.pause(node)
        assert node.state is ProcessState.PAUSED
        cluster.resume(1)
        assert cluster.node(1).state is ProcessState.RUNNING
        second = node.pid
        cluster.restart(1)
        assert node.pid not in (None, first, second)
        with pytest.raises(ClusterError, match="runs already"):
            cluster.start(1)
    assert not directory.exists()
    assert node.pid is None


@pytest.mark.slow
def test_a_cluster_that_is_given_a_directory_is_found_there_again(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, data_dir=str(tmp_path / "kept")) as cluster:
        known = (cluster.cluster_id, cluster.bootstrap_servers)
    with LocalCluster(nodes=1, data_dir=str(tmp_path / "kept")) as cluster:
        assert (cluster.cluster_id, cluster.bootstrap_servers) == known
        assert "is ready" in cluster.logs()


@pytest.mark.slow
def test_a_node_that_cannot_start_says_why_and_nothing_is_left() -> None:
    cluster = LocalCluster(nodes=1, settings={"num.partitions": 0})
    with pytest.raises(ClusterError, match=r"(?s)node 1 ended with status 1.*num\.partitions"):
        cluster.start()
    assert not Path(cluster.data_dir).exists()


@pytest.mark.slow
def test_a_node_that_dies_by_itself_is_not_waited_for() -> None:
    with LocalCluster(nodes=1) as cluster:
        cluster._process(1).signal(signal.SIGKILL)
        with pytest.raises(ClusterError, match="node 1 ended with status -9"):
            cluster.wait_ready()
        assert "--- node 1, down with exit status -9\n" in cluster.logs()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_node_that_is_not_ready_shows_where_it_is() -> None:
    with LocalCluster(nodes=3) as cluster:
        for node in cluster.nodes:
            cluster.kill(node)
        alone = cluster.node(1)
        cluster._launch(cluster._process(1))
        # It has written one of them by itself, so that it has come far enough to be asked; which depends on
        # the leader that it knew last, itself or another.
        signs = ("the quorum has no leader yet", "the metadata of the active controller, ")
        wait_until(lambda: any(sign in alone.log() for sign in signs), "node 1 does not wait", 100)
        with pytest.raises(ClusterError, match=r"not ready \(nodes that are not: 1\) within") as failure:
            cluster.wait_ready(0.1)
        assert "in run_node" in str(failure.value)
        assert alone.state is ProcessState.RUNNING


@pytest.mark.slow
def test_nodes_end_with_the_process_that_started_them_even_paused_ones() -> None:
    script = (
        "import os, signal, ottla\n"
        "cluster = ottla.LocalCluster(nodes=1).start()\n"
        "print(cluster.nodes[0].pid, cluster.data_dir, flush=True)\n"
        "cluster.pause(1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid, directory = done.stdout.split()
    wait_until(lambda: not is_alive(int(pid)), "the node outlives its starter")
    wait_until(lambda: not Path(directory).exists(), "its files are still there")


@pytest.mark.slow
def test_the_logs_of_the_nodes_are_shown_when_the_block_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="something"), LocalCluster(nodes=1):
        raise RuntimeError("something")
    shown = capsys.readouterr().out
    assert "--- node 1, running" in shown
    assert "is ready" in shown


@pytest.mark.slow
async def test_it_works_in_an_event_loop_too() -> None:
    async with LocalCluster(nodes=1) as cluster:
        assert cluster.nodes[0].state is ProcessState.RUNNING


@pytest.mark.slow
def test_it_is_used_once_and_only_after_its_start() -> None:
    cluster = LocalCluster(nodes=1)
    assert repr(cluster) == "<LocalCluster, not started>"
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = cluster.bootstrap_servers
    with cluster:
        assert repr(cluster) == f"<LocalCluster at {cluster.bootstrap_servers}: 1 running>"
        with pytest.raises(RuntimeError, match="started already"):
            cluster.start()
    cluster.stop()


class TestPlan:
    def test_brokers_are_controllers_where_there_are_no_others(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path, brokers=3)
        assert [node.roles for node in plan.nodes] == [("broker", "controller")] * 3
        properties = plan.properties(plan.node(2))
        assert properties["node.id"] == "2"
        assert properties["process.roles"] == "broker,controller"
        assert properties["controller.quorum.voters"] == ",".join(
            f"{node.id}@127.0.0.1:{node.controller_port}" for node in plan.nodes
        )
        assert properties["listeners"] == (
            f"PLAINTEXT://127.0.0.1:{plan.node(2).port},CONTROLLER://127.0.0.1:{plan.node(2).controller_port}"
        )
        assert (properties["default.replication.factor"], properties["min.insync.replicas"]) == ("3", "2")

    def test_controllers_of_their_own_come_after_the_brokers(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path, brokers=2, controllers=3)
        assert [node.id for node in plan.brokers] == [1, 2]
        assert [node.id for node in plan.voters] == [3, 4, 5]
        assert plan.properties(plan.node(1))["listeners"] == f"PLAINTEXT://127.0.0.1:{plan.node(1).port}"
        assert plan.properties(plan.node(4))["process.roles"] == "controller"
        assert plan.properties(plan.node(1))["offsets.topic.replication.factor"] == "2"
        assert plan.properties(plan.node(1))["min.insync.replicas"] == "1"
        assert plan.bootstrap_servers == f"127.0.0.1:{plan.node(1).port},127.0.0.1:{plan.node(2).port}"

    def test_settings_that_are_given_count_over_those_of_the_plan(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path, settings={"default.replication.factor": "1", "a": "b\\c"})
        assert plan.properties(plan.node(1))["default.replication.factor"] == "1"

    def test_what_was_written_is_read_again(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path / "a", brokers=2, controllers=1, settings={"x": "y"})
        plan.write()
        assert ClusterPlan.read(tmp_path / "a") == plan
        meta = (tmp_path / "a" / "node-3" / "data" / "meta.properties").read_text()
        assert f"cluster.id={plan.cluster_id}" in meta
        assert "node.id=3" in meta

    def test_a_dynamic_quorum_has_its_voters_in_the_metadata(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path / "a", brokers=2, controllers=1, dynamic_quorum=True)
        plan.write()
        snapshot = "data/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
        assert [(node.directory / snapshot).exists() for node in plan.nodes] == [False, False, True]
        properties = plan.properties(plan.node(1))
        assert "controller.quorum.voters" not in properties
        servers = f"127.0.0.1:{plan.node(3).controller_port}"
        assert properties["controller.quorum.bootstrap.servers"] == servers

    def test_a_directory_with_something_else_in_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "letter.txt").write_text("dear")
        with pytest.raises(PlanError, match=r"is not empty, and has no cluster\.json"):
            ClusterPlan.make(tmp_path).write()
        with pytest.raises(PlanError, match="there is no cluster in"):
            ClusterPlan.read(tmp_path)
        (tmp_path / "cluster.json").write_text("{}")
        with pytest.raises(PlanError, match="cannot be read"):
            ClusterPlan.read(tmp_path)

    def test_what_a_killed_process_has_left_is_replaced(self, tmp_path: Path) -> None:
        plan = ClusterPlan.make(tmp_path / "a", brokers=2, security=LocalSecurity())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_plan, "format_directory", Mock(side_effect=[None, OSError("killed")]))
            with pytest.raises(OSError, match="killed"):
                plan.write()
        left = tmp_path / "a" / "node-2" / "server.properties"
        assert left.exists()
        assert not ClusterPlan.exists(plan.directory)
        other = ClusterPlan.make(tmp_path / "a", brokers=1)
        other.write()
        assert ClusterPlan.read(other.directory) == other
        assert not left.exists()
        assert not other.security_directory.exists()

    def test_a_directory_is_written_by_one_process_at_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_plan, "_LOCK_SECONDS", 0.05)
        plan = ClusterPlan.make(tmp_path / "a", brokers=1)
        with (
            cluster_plan.locked(plan.directory),
            pytest.raises(PlanError, match="another process is making or starting the cluster"),
        ):
            plan.write()
        plan.write()
        with pytest.raises(PlanError, match="another process has just made a cluster"):
            plan.write()

    def test_nonsense_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="1 to 100 brokers"):
            ClusterPlan.make(tmp_path, brokers=0)
        with pytest.raises(PlanError, match="there is no node 4"):
            ClusterPlan.make(tmp_path).node(4)
        with pytest.raises(PlanError, match="ports go from 1 to 65535"):
            ClusterPlan.make(tmp_path, first_port=65_534)

    def test_ports_of_a_plan_are_free_and_different(self, tmp_path: Path) -> None:
        ports = [p for n in ClusterPlan.make(tmp_path).nodes for p in (n.port, n.controller_port)]
        assert len(set(ports)) == 6
        assert all(port is not None and is_free(port) for port in ports)


@pytest.mark.slow
def test_a_process_of_another_with_the_same_number_is_not_the_node(tmp_path: Path) -> None:
    plan = ClusterPlan.make(tmp_path / "a", brokers=1)
    plan.write()
    process = NodeProcess(plan.node(1))
    with subprocess.Popen(["sleep", "60"]) as other:
        (plan.node(1).directory / "process.json").write_text(json.dumps({"pid": other.pid, "log_from": 0}))
        assert process.state() is ProcessState.DOWN
        with pytest.raises(ClusterError, match="node 1 is down"):
            process.signal(signal.SIGKILL)
        assert other.poll() is None
        other.kill()


@pytest.mark.slow
def test_a_secured_cluster_encrypts_what_its_nodes_and_clients_say() -> None:
    from ottla.client.blocking import Admin, Producer

    with LocalCluster(nodes=2, controllers=1, security="SSL") as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.client_settings}
        with Admin(settings) as admin:
            admin.topics.create("orders", partitions=2, replication_factor=2)
            with Producer(settings) as producer:
                assert producer.send("orders", b"1", partition=0).offset == 0
            assert all(len(each.isr) == 2 for each in admin.topics.describe("orders").partitions)
