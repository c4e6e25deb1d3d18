"""`ottla cluster up`, `down`, `start`, `kill`, `pause`, `resume` and `status`. One node is enough here."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest
from rich.console import Console
from rich.live import Live

from ottla.cli import cluster_status
from ottla.cli.cluster_status import (
    ClusterStatus,
    NodeStatus,
    PartitionStatus,
    ProcessReport,
    QuorumStatus,
    facts,
    nodes_table,
    problems,
    topics_table,
)
from ottla.cli.cluster_watch import _Lines, _Tables
from ottla.client.admin import Admin
from ottla.client.cluster_metadata import PartitionInfo, TopicInfo
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition
from ottla.testing.cluster_plan import ClusterPlan, free_ports
from ottla.testing.cluster_process import NodeProcess, ProcessState
from tests.support.command_line import CommandLine, Ended
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, offline: CommandLine) -> Iterator[str]:
    """A directory for a cluster, which is stopped at the end."""
    directory = str(tmp_path / "cluster")
    yield directory
    if ClusterPlan.exists(directory):
        offline("cluster", "down", "-d", directory)


def brought_up(ottla: CommandLine, home: str) -> CommandLine:
    """A detached cluster of one node; the command line for it."""
    ports = ("--port", str(free_ports(1)[0]))
    up = ottla.ok("cluster", "up", "--nodes", "1", "-d", home, "--detach", *ports)
    servers = ClusterPlan.read(home).bootstrap_servers
    assert f"serves at {servers}" in up.out
    return CommandLine(servers)


def status_when_well(ottla: CommandLine, home: str, *options: str) -> Ended:
    """What `cluster status` shows once all is well: a node may not answer in time on a busy machine."""
    shown: list[Ended] = []

    def is_well() -> bool:
        shown[:] = [ottla("cluster", "status", "-d", home, *options)]
        return shown[0].status == 0

    wait_until(is_well, "all is well, and status does not say so")
    return shown[0]


def test_a_cluster_is_brought_up_looked_at_and_taken_down(offline: CommandLine, home: str) -> None:
    ottla = brought_up(offline, home)
    ottla.ok("topics", "create", "orders", "--partitions", "2")
    seen = status_when_well(ottla, home, "--json").json
    assert (seen["well"], seen["quorum"]["leader"]) == (True, 1)
    (node,) = seen["nodes"]
    assert (node["state"], node["leads"], node["lag"], node["quorum"]) == ("running", 2, 0, "leader")
    assert [(p["partition"], p["leader"], p["in_sync"]) for p in seen["partitions"]] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    assert status_when_well(ottla, home).rows[-1] == ["orders", "2", "1:2", "0", "0", "0"]
    assert status_when_well(ottla, home, "--partitions").rows[-1][:2] == ["orders", "1"]
    assert ottla.ok("cluster", "down", "-d", home).out == "node 1 stopped\n"
    assert ottla.ok("cluster", "down", "-d", home).out == "nothing was running\n"


def test_a_node_is_killed_started_paused_and_resumed_from_anywhere(offline: CommandLine, home: str) -> None:
    brought_up(offline, home)
    ended = offline("cluster", "up", "-d", home, "--detach")
    assert (ended.status, "node 1 is already running" in ended.err) == (1, True)
    for hint in ("status", "start NODE", "down"):
        assert f"`ottla cluster {hint} -d {home}`" in ended.err
    assert "node 1 is already running" in offline("cluster", "start", "1", "-d", home).err
    assert offline.ok("cluster", "kill", "1", "-d", home).out == "node 1 killed\n"
    ended = offline("cluster", "status", "-d", home, "--json")
    assert (ended.status, ended.json["nodes"][0]["state"], ended.json["partitions"]) == (1, "down", None)
    assert "node 1 is down" in offline("cluster", "kill", "1", "-d", home).err
    offline.ok("cluster", "start", "1", "-d", home)
    offline.ok("cluster", "pause", "1", "-d", home)
    assert offline("cluster", "status", "-d", home, "--json").json["nodes"][0]["state"] == "paused"
    assert offline.ok("cluster", "resume", "1", "-d", home, "--json").json == {"resumed": [1]}
    status_when_well(offline, home)


def test_an_up_that_comes_second_leaves_the_nodes_of_the_first(offline: CommandLine, home: str) -> None:
    """The nodes were down when it looked, and are started by the other before it starts them."""
    brought_up(offline, home)
    actual = NodeProcess.state
    answers = iter([ProcessState.DOWN])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeProcess, "state", lambda self: next(answers, None) or actual(self))
        ended = offline("cluster", "up", "-d", home, "--detach")
    assert (ended.status, "node 1 is already running" in ended.err) == (1, True)
    status_when_well(offline, home)


def test_a_secured_cluster_says_how_clients_get_in(offline: CommandLine, home: str, tmp_path: Path) -> None:
    options = ("-n", "1", "-d", home, "--port", str(free_ports(1)[0]))
    up = offline.ok("cluster", "up", *options, "--secure", "sasl", "--detach")
    config = f"{home}/security/client.properties"
    assert f"clients need --command-config {config}\nwith it, `ottla users add`" in up.out
    assert f"need --command-config {config}" in status_when_well(offline, home).out
    ottla = CommandLine(ClusterPlan.read(home).bootstrap_servers)
    password = tmp_path / "password"
    password.write_text("alice-secret")
    ottla.ok("users", "add", "alice", "--password-file", str(password), "--command-config", config)
    ottla.ok("topics", "create", "orders", "--command-config", config)
    own = tmp_path / "alice.properties"
    own.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=alice\nsasl.password=alice-secret\n"
        f"ssl.ca.location={home}/security/ca.crt\n"
    )
    refused = ottla("produce", "orders", "hello", "--command-config", str(own))
    assert "Missing ACL: User:alice" in refused.err
    acl = ("--principal", "alice", "--producer", "--topic", "orders")
    ottla.ok("acls", "add", *acl, "--command-config", config)
    ottla.ok("produce", "orders", "hello", "--command-config", str(own))
    # The options of a cluster that is there are those that it was made with.
    for option in (("--secure",), ("--port", "9"), ("--secure", "ssl")):
        assert f"created with another {option[0]}" in offline("cluster", "up", "-d", home, *option).err
    other = offline("cluster", "up", "-d", home, "--set", "num.io.threads=3").err
    assert "node-N/server.properties has the settings" in other


def test_up_tells_of_every_change_and_stops_the_nodes_when_it_is_stopped(
    offline: CommandLine, home: str
) -> None:
    command = [sys.executable, "-m", "ottla", "cluster", "up", "-n", "1", "-d", home]
    with subprocess.Popen(
        [*command, "--port", str(free_ports(1)[0])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        # A node that does not answer in time makes more lines in between, and another order.
        wanted = {"node 1: running, 127.0.0.1:", "quorum: leader 1, epoch ", "partitions: 0\n"}
        while wanted:
            line = next(lines)
            wanted = {prefix for prefix in wanted if not line.startswith(prefix)}
        offline.ok("cluster", "pause", "1", "-d", home)
        assert any(line.startswith("node 1: paused") for line in lines)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, ""), out
        assert out.endswith("node 1 stopped\n")
    wait_until(
        lambda: offline("cluster", "down", "-d", home).out == "nothing was running\n", "a node is left"
    )


def test_up_ends_when_its_nodes_were_taken_down(offline: CommandLine, home: str) -> None:
    command = [sys.executable, "-m", "ottla", "cluster", "up", "-n", "1", "-d", home]
    with subprocess.Popen(
        [*command, "--port", str(free_ports(1)[0])], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        offline.ok("cluster", "down", "-d", home)
        assert process.wait(120) == 0


def test_what_makes_no_sense_is_refused_in_one_line(offline: CommandLine, home: str, tmp_path: Path) -> None:
    ended = offline("cluster", "status", "-d", home)
    assert (ended.status, "there is no cluster in" in ended.err) == (1, True)
    ClusterPlan.make(home, brokers=1).write()
    ended = offline("cluster", "up", "-d", home, "--nodes", "3")
    assert (ended.status, "created with another --nodes" in ended.err) == (1, True)
    ended = offline("cluster", "kill", "7", "-d", home)
    assert (ended.status, "there is no node 7" in ended.err) == (2, True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    ports = ("--nodes", "1", "--port", str(free_ports(1)[0]))
    assert "is not empty" in offline("cluster", "up", "-d", str(tmp_path / "other"), *ports).err


def test_a_zookeeper_that_is_not_there_is_reported_before_there_is_a_cluster(
    offline: CommandLine, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    ended = offline("cluster", "up", "-d", home, "--zookeeper", f"127.0.0.1:{port}/kafka")
    assert ended.status == 1
    assert f"127.0.0.1:{port}: Connection refused" in ended.err
    assert "is not an address" in offline("cluster", "up", "-d", home, "--zookeeper", "localhost:zk").err
    monkeypatch.setenv("PATH", "")
    assert "there is no `java`" in offline("cluster", "up", "-d", home, "--zookeeper").err
    assert not Path(home).exists()


def test_the_address_of_something_else_than_zookeeper_is_not_kept(
    offline: CommandLine, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.cluster._ZOOKEEPER_TIMEOUT_MS", 300)
    with socket.create_server(("127.0.0.1", 0)) as other:
        connect = f"127.0.0.1:{other.getsockname()[1]}"
        ended = offline("cluster", "up", "-d", home, "--zookeeper", connect)
    assert ended.status == 1
    assert f"ZooKeeper at {connect} did not answer within 0.3 s" in ended.err
    assert "Is it ZooKeeper that listens there? No cluster was made" in ended.err
    wrong = ("--set", "zookeeper.login.scheme=no-such")
    ended = offline("cluster", "up", "-d", home, "--zookeeper", connect, *wrong)
    assert ended.status == 1
    assert not Path(home).exists()


def test_a_port_in_use_or_a_wrong_setting_is_reported(
    offline: CommandLine, home: str, tmp_path: Path
) -> None:
    brought_up(offline, home)
    port = str(ClusterPlan.read(home).node(1).port)
    ended = offline("cluster", "up", "-d", str(tmp_path / "second"), "--port", port, "-n", "1")
    assert f"port {port} is in use" in ended.err
    wrong = ("--set", "num.partitions=0", "--port", str(free_ports(1)[0]))
    ended = offline("cluster", "up", "-d", str(tmp_path / "third"), "-n", "1", "--detach", *wrong)
    assert "node 1 did not start: " in ended.err
    assert "num.partitions" in ended.err


def test_a_directory_that_fails_is_shown_by_status(offline: CommandLine, home: str, tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    ports = ("--port", str(free_ports(1)[0]))
    up = ("cluster", "up", "--nodes", "1", "-d", home, "--detach")
    offline.ok(*up, *ports, "--set", f"log.dirs={dirs[0]},{dirs[1]}")
    ottla = CommandLine(ClusterPlan.read(home).bootstrap_servers)
    ottla.ok("topics", "create", "t", "--partitions", "4", "--replication-factor", "1")
    offline.ok("cluster", "down", "-d", home)
    lost = sorted(path.name for path in dirs[1].glob("t-*"))
    assert lost
    victim = dirs[1] / lost[0] / "leader-epoch-checkpoint"
    victim.unlink(missing_ok=True)
    victim.mkdir()  # each read of it fails
    offline.ok(*up)

    shown: list[Ended] = []

    def is_offline() -> bool:
        shown[:] = [offline("cluster", "status", "-d", home, "--json")]
        (node,) = shown[0].json["nodes"]
        return node["process"] is not None and bool(node["process"]["offline_directories"])

    wait_until(is_offline, "the directory that fails is not shown")
    ended = shown[0]
    process = ended.json["nodes"][0]["process"]
    assert (ended.status, ended.json["well"]) == (1, False)
    assert list(process["offline_directories"]) == [str(dirs[1])]
    assert process["offline_partitions"] == len(list(dirs[1].glob("*-[0-9]*")))
    # A process that does not answer in time has nothing to say of it.
    said = f"node 1: directory {dirs[1]} is offline: "
    wait_until(lambda: said in offline("cluster", "status", "-d", home).out, "the text does not say so")


async def test_a_process_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_status, "_PROCESS_SECONDS", 0.01)
    plan = ClusterPlan.make(tmp_path / "cluster", brokers=1)
    monkeypatch.setattr(NodeProcess, "state", lambda self: ProcessState.RUNNING)
    monkeypatch.setattr(NodeProcess, "ask_status", lambda self: 0)
    monkeypatch.setattr(NodeProcess, "read_status", lambda self, position: None)
    status = await cluster_status.read_status(plan, [NodeProcess(plan.node(1))], None, ask_processes=True)
    assert problems(status) == ["node 1: its process does not answer"]
    # It answers by its log, for which there may be no room.
    full = Mock(f_bavail=3, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    status = await cluster_status.read_status(plan, [NodeProcess(plan.node(1))], None, ask_processes=True)
    where = plan.node(1).directory
    assert problems(status) == [
        f"node 1: its process does not answer: there is no room in {where}; free some"
    ]


async def test_of_a_node_that_is_down_the_last_line_is_shown(tmp_path: Path) -> None:
    plan = ClusterPlan.make(tmp_path / "cluster", brokers=1)
    process = NodeProcess(plan.node(1))
    process.plan.directory.mkdir(parents=True)
    answer = 'ottla status: {"tasks": "' + 5000 * "x" + '"}\n'
    process.plan.log_file.write_text(f"first\nottla: the disk failed\n{answer}")
    status = await cluster_status.read_status(plan, [process], None)
    assert problems(status) == ["node 1 is down: its log ends with: ottla: the disk failed"]


def test_a_start_without_room_names_the_node_and_the_file(
    offline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ClusterPlan.make(tmp_path / "cluster", brokers=1).write()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/there/process.tmp")
    monkeypatch.setattr(NodeProcess, "start", Mock(side_effect=full))
    ended = offline("cluster", "start", "1", "-d", str(tmp_path / "cluster"))
    assert ended.err == "ottla: node 1 did not start: No space left on device: /there/process.tmp\n"


def test_a_process_that_is_not_ready_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = NodeProcess(ClusterPlan.make(tmp_path / "cluster", brokers=1).node(1))
    monkeypatch.setattr(NodeProcess, "state", lambda self: ProcessState.RUNNING)
    monkeypatch.setattr(NodeProcess, "signal", Mock(side_effect=AssertionError("it would end")))
    assert process.ask_status() is None


async def test_what_brokers_know_is_shown_while_the_quorum_has_no_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_status, "_QUORUM_SECONDS", 0.01)
    plan = ClusterPlan.make(tmp_path / "cluster", brokers=1)
    process = NodeProcess(plan.node(1))
    monkeypatch.setattr(NodeProcess, "state", lambda self: ProcessState.RUNNING)
    asked_for_quorum = asyncio.Event()

    async def quorum() -> None:
        asked_for_quorum.set()
        await asyncio.Event().wait()

    async def ends(broker: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert not asked_for_quorum.is_set()  # or it would wait for its turn on the same connection
        return dict.fromkeys(partitions, 5)

    partition = PartitionInfo(0, 1, 0, (1,), (1,), (), ErrorCode.NONE)
    admin = create_autospec(Admin, instance=True)
    admin.topics = Mock(list=AsyncMock(return_value=[TopicInfo("orders", None, False, (partition,))]))
    admin.offsets = Mock(of_replica=ends)
    admin.cluster = Mock(quorum=quorum)
    status = await cluster_status.read_status(plan, [process], admin)
    assert asked_for_quorum.is_set()
    assert (status.quorum, status.is_healthy) == (None, False)
    assert status.partitions == (PartitionStatus("orders", 0, 1, 0, (1,), (1,), 0),)
    assert "last known" in cluster_status.partitions_text(status)
    # The brokers still name leaders that are down.
    (offline,) = cluster_status._partitions(
        cluster_status._Report([TopicInfo("orders", None, False, (partition,))], None, {}), {1}
    )
    assert offline.leader is None


def node(number: int, state: ProcessState = ProcessState.RUNNING) -> NodeStatus:
    return NodeStatus(
        number, ("broker",), state, f"127.0.0.1:{number}", number, 2**20, 1, 2, 0, 0, "voter", 0
    )


WELL = ClusterStatus(
    directory="/d",
    cluster_id="c",
    bootstrap_servers="b",
    nodes=(node(1), node(2)),
    quorum=QuorumStatus(1, 3, 77),
    partitions=(
        PartitionStatus("good", 0, 1, 0, (1, 2), (1, 2), 0),
        PartitionStatus("behind", 0, 2, 4, (1, 2), (2,), 9),
        PartitionStatus("behind", 1, 2, 4, (1, 2), (2, 1), None),
        PartitionStatus("lost", 0, None, 5, (1,), (1,), None),
    ),
)


REPORT = ProcessReport(
    failing_tasks={"log cleaner": "backing off, 3 errors, the last: OSError: EIO"},
    down_tasks=("log cleaner",),
    offline_directories={},
    offline_partitions=0,
    damaged_partitions=0,
    offline_reasons={},
    set_aside=(),
    longest_turn_ms=7.4,
    longest_turn_culprit="somewhere",
    memory_used=2**20,
    memory_limit=2**29,
    memory_waiting=0,
    slow_clients_closed=0,
)


class TestView:
    def test_a_cluster_on_zookeeper_has_a_controller_and_no_quorum(self) -> None:
        legacy = replace(WELL, zookeeper="127.0.0.1:2181")
        shown = dict(facts(legacy))
        assert "quorum" not in shown
        assert shown["zookeeper"] == "127.0.0.1:2181, controller 1, epoch 3, high watermark 77"
        unknown = dict(facts(replace(legacy, quorum=None)))["zookeeper"]
        assert str(unknown).endswith("no controller is known")
        assert "zookeeper" in nodes_table(legacy)[0]

    def test_what_nodes_say_of_themselves(self) -> None:
        well = replace(WELL, partitions=(), nodes=(replace(node(1), process=replace(REPORT, down_tasks=())),))
        assert well.is_healthy  # a task that had errors and runs again
        columns, (row,) = nodes_table(well)
        assert list(zip(columns, row))[-2:] == [
            ("longest turn", "7 ms"),
            ("connections", "1.0 MiB of 512.0 MiB"),
        ]
        ill = replace(REPORT, offline_partitions=30, damaged_partitions=1, offline_reasons={"t-0": "why"})
        status = replace(well, nodes=(replace(node(1), process=ill),))
        assert not status.is_healthy
        assert problems(status) == [
            "node 1: 30 replicas are offline, 1 of them damaged",
            "node 1: t-0: why",
            "node 1: and 29 replicas more",
            "node 1: task log cleaner: backing off, 3 errors, the last: OSError: EIO",
        ]

    def test_topics_in_trouble_come_first(self) -> None:
        _, rows = topics_table(WELL)
        assert rows == [
            ("lost", 1, "", 0, 1, None),
            ("behind", 2, "2:2", 1, 0, 9),
            ("good", 1, "1:1", 0, 0, 0),
        ]
        assert not WELL.is_healthy
        assert replace(WELL, partitions=WELL.partitions and WELL.partitions[:1]).is_healthy
        assert not replace(WELL, partitions=(), nodes=(node(1, ProcessState.PAUSED),)).is_healthy

    def test_a_terminal_shows_nodes_quorum_and_as_many_topics_as_fit(self) -> None:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=140, height=20)
        with Live(console=console, auto_refresh=False) as live:
            _Tables(live)(WELL)
        shown = screen.getvalue()
        assert "leader 1, epoch 3, high watermark 77" in shown
        assert "4, 1 with replicas out of sync, 1 without a leader" in shown
        assert "lost" in shown
        assert "1 more topics" in shown
        assert "good" not in shown
        assert "127.0.0.1:1" in shown

    def test_a_narrow_terminal_shows_what_changes(self) -> None:
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=90, height=30)
        with Live(console=console, auto_refresh=False) as live:
            _Tables(live)(WELL)
        assert "metadata lag" in screen.getvalue()
        assert "127.0.0.1:1" not in screen.getvalue()

    def test_elsewhere_there_is_a_line_for_each_change(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = _Lines()
        lines(WELL)
        assert len(capsys.readouterr().out.splitlines()) == 4
        lines(replace(WELL, command_config="/d/client.properties"))
        assert capsys.readouterr().out == "clients: need --command-config /d/client.properties\n"
        lines(WELL)
        lines(replace(WELL, nodes=(node(1), node(2, ProcessState.DOWN)), quorum=None, partitions=None))
        assert capsys.readouterr().out.splitlines() == [
            "node 2: down, 127.0.0.1:2, process 2",
            "quorum: no leader is known",
        ]
