"""A node's life as a process: start, stop, crash, and the starts that are refused."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.node_process import READY, NodeProcess, run_start
from tests.support.wire import CLOSED, WireClient, create_topic, fetch_request

from ottla.cli.surroundings import directory_remarks
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.server.storage import open_storage
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.runtime.disk import RealDisk
from ottla.runtime.network import RealNetwork
from ottla.runtime.runtime import Runtime
from ottla.security.authorizer.standard_authorizer import CLASS_NAME as AUTHORIZER
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

DEADLINE_SECONDS = 60
CLEAN = ".kafka_cleanshutdown"


def write(node: NodeProcess, topic: str, values: list[bytes], **settings: Any) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "acks": "all"} | settings)
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failures == []


def read(node: NodeProcess, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), DEADLINE_SECONDS)
            assert messages, f"only {len(found)} of {count} records came"
            found += [message.value() for message in messages]
    finally:
        consumer.close()
    return found


@pytest.mark.slow
def test_it_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_MAX_TURN_MS", "0")  # a busy machine holds any event loop now and then
    with NodeProcess(tmp_path / "data") as node:
        match = READY.fullmatch(node.ready_line)
        assert match is not None
        assert match["dir"] == str(tmp_path / "data")
        assert not (tmp_path / "data" / CLEAN).exists()
        status, seconds = node.terminate()
        assert status == 0
        assert seconds < 60
        # A directory in memory, or a nearly full disk, is said; nothing else is.
        remarks = [problem for problem, _ in directory_remarks([str(tmp_path / "data")])]
        lines = node.stderr().splitlines()
        assert [line for line in lines if not any(remark in line for remark in remarks)] == []
    assert (tmp_path / "data" / CLEAN).exists()


HANGING = """
import sys, threading
from ottla.node.api.broker_extension import BrokerExtension
from ottla.node.config.node_config import NodeConfig
from ottla.node.run import run_node

class Hanging(BrokerExtension):
    def __init__(self, broker):
        async def flush():
            await broker.shared.runtime.pool.run(threading.Event().wait)
        broker.shared.stop_sequence.add(flush, limit_seconds=0.1)

config = NodeConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1], "http.listener": ""})
ready = lambda node, addresses: print("ready", flush=True)
run_node(config, ready=ready, report=print, extensions=(Hanging,))
"""


@pytest.mark.slow
def test_a_disk_that_never_answers_does_not_keep_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        node.terminate()
        _, errors = node.communicate(timeout=DEADLINE_SECONDS)
    assert node.returncode == 1
    assert "flush has not ended within 0 s" in errors
    assert (tmp_path / "data" / CLEAN).exists(), "the others stopped cleanly"


@pytest.mark.slow
def test_readers_that_wait_for_records_do_not_hold_up_its_end(tmp_path: Path) -> None:
    request = fetch_request(
        "quiet", partition_max_bytes=1000, max_wait_ms=60_000, min_bytes=1, max_bytes=1000
    )
    with NodeProcess(tmp_path) as node, WireClient(node.bootstrap) as wire:
        create_topic(wire, "quiet")
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(WireClient(node.bootstrap)).send(request, 12)
            wire.ask(MetadataRequest(), 12)
            status, seconds = node.terminate()
        assert status == 0
        assert seconds < 50, "they would have waited for a minute"


@pytest.mark.slow
def test_it_is_small_at_rest(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        assert psutil.Process(node.pid).memory_info().rss < 50 * 1024 * 1024


@pytest.mark.slow
def test_topics_and_records_outlive_a_restart(tmp_path: Path) -> None:
    values = [b"%d" % n for n in range(100)]
    with NodeProcess(tmp_path) as node:
        write(node, "kept", values)
        node.terminate()
    with NodeProcess(tmp_path) as node:
        assert read(node, "kept", 100) == values
        write(node, "kept", [b"more"])
        node.terminate()
    with NodeProcess(tmp_path) as node:
        assert read(node, "kept", 101) == [*values, b"more"]


@pytest.mark.slow
def test_acknowledged_records_outlive_a_kill(tmp_path: Path) -> None:
    values: list[bytes] = []
    for life in range(3):
        with NodeProcess(tmp_path) as node:
            assert read(node, "kept", len(values)) == values
            more = [b"%d.%d" % (life, n) for n in range(200)]
            write(node, "kept", more, **{"enable.idempotence": True})
            values += more
            node.kill()
        assert not (tmp_path / CLEAN).exists()
    with NodeProcess(tmp_path) as node:
        assert read(node, "kept", len(values)) == values


def refused(arguments: list[str]) -> str:
    done = run_start(arguments)
    assert done.returncode == 1, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("time=")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.slow
def test_a_second_node_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        line = refused(["--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"])
        assert "in use by another node" in line
        assert str(tmp_path) in line
        write(node, "still-served", [b"1"])


def test_a_port_is_opened_once_when_there_is_something_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for a node by connecting to its port takes the first answer for the node."""
    (port,) = free_ports(1)
    steps: list[str] = []
    listen = RealNetwork.listen

    async def listening(self: RealNetwork, factory: Any, host: str, asked: int, **more: Any) -> Any:
        if asked == port:
            steps.append("listen")
        return await listen(self, factory, host, asked, **more)

    def opening(*arguments: Any) -> Any:
        steps.append("open the disk")
        return open_storage(*arguments)

    monkeypatch.setattr(RealNetwork, "listen", listening)
    monkeypatch.setattr("ottla.node.server.shared_server.open_storage", opening)
    with LocalNode({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as node:
        assert node.bootstrap_servers == f"127.0.0.1:{port}"
    assert steps == ["open the disk", "listen"]


@pytest.mark.slow
def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"])
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_start_that_is_refused_formats_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters").touch()
    both = f"{tmp_path / 'empty'},{tmp_path / 'full'}"
    line = refused(["--set", f"log.dirs={both}", "--listen", "127.0.0.1:0"])
    assert f"{tmp_path / 'full'}, which is not empty" in line
    assert {path.name for path in (tmp_path / "empty").iterdir()} <= {".lock"}


@pytest.mark.slow
def test_a_directory_that_failed_is_pointed_out_and_not_said_to_have_data(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    broken.touch()  # a file, where a directory should be
    both = f"log.dirs={whole},{broken}"
    with NodeProcess(None, "--set", both) as node:
        assert f"data in {whole}, " in node.ready_line
        assert str(broken) not in node.ready_line
        assert str(broken) in node.stderr()
        assert "the node starts without this directory" in node.stderr()
        node.terminate()


@pytest.mark.slow
def test_a_listener_on_every_interface_is_pointed_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        assert "is ready: 0.0.0.0:" in node.stdout.readline()
        node.terminate()
        assert "is open to every network of this machine" in node.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["authorizer.class.name=com.example.Mine"], "com.example.Mine"),
        ([f"authorizer.class.name={AUTHORIZER}", "super.users=alice"], "but got alice"),
        (["early.start.listeners=OTHER"], "early.start.listeners contains listener OTHER"),
        (
            ["principal.builder.class=com.example.Groups"],
            "Invalid value com.example.Groups for configuration",
        ),
        (
            ["listener.name.plaintext.principal.builder.class=com.example.Groups"],
            "configuration listener.name.plaintext.principal.builder.class",
        ),
    ],
)
def test_a_node_whose_authorizer_or_users_cannot_be_had_does_not_start(
    tmp_path: Path, settings: list[str], problem: str
) -> None:
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert problem in done.stderr
    assert "is ready" not in done.stdout


def test_the_principal_builder_of_kafka_is_ours() -> None:
    builder = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    NodeConfig(
        {"principal.builder.class": builder, "listener.name.plaintext.principal.builder.class": builder}
    )
    _, problems = NodeConfig().with_dynamic(
        default={}, broker={"principal.builder.class": "com.example.Groups"}
    )
    assert "Invalid value com.example.Groups" in problems[0]


@pytest.mark.slow
def test_a_quota_callback_that_is_not_loaded_is_pointed_out(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, "--set", "client.quota.callback.class=com.example.Quotas") as node:
        assert "client.quota.callback.class=com.example.Quotas is not loaded" in node.stderr()
        node.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["controller", "broker,controller"])
def test_a_controller_on_every_interface_is_pointed_out(tmp_path: Path, role: str) -> None:
    listeners = ["CONTROLLER://0.0.0.0:0"] + ["PLAINTEXT://127.0.0.1:0"] * ("broker" in role)
    settings = {
        "process.roles": role,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with NodeProcess(tmp_path, *options) as node:
        said = node.stderr()
        node.terminate()
    assert said.count("is open to every network of this machine") == 1
    assert "every client that reaches it may act as a node of the cluster" in said


@pytest.mark.slow
def test_an_ipv6_address_is_served_and_told_in_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), "--listen", "[::1]:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        try:
            address = node.stdout.readline().partition("is ready: ")[2].partition(",")[0]
            assert address.startswith("[::1]:")
            done = subprocess.run(
                [sys.executable, "-m", "ottla", "cluster", "describe", "-b", address],
                capture_output=True,
                text=True,
                check=True,
            )
            assert address in done.stdout
        finally:
            node.terminate()


@pytest.mark.slow
def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        with NodeProcess(tmp_path / name) as node:
            node.terminate()
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    assert "another cluster" in refused(["--set", f"log.dirs={both}", "--listen", "127.0.0.1:0"])


class _ReadOnlyDisk(RealDisk):
    """A disk on which nothing can be made."""

    def make_dirs(self, path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)


def test_a_read_only_disk_is_one_line(tmp_path: Path) -> None:
    real = Runtime.real(pool_workers=1)
    runtime = Runtime(real.clock, real.random, _ReadOnlyDisk(), real.pool, real.network)
    with contextlib.closing(real), pytest.raises(NodeFailed) as failure:
        open_storage(runtime, NodeConfig({"log.dirs": str(tmp_path / "data")}))
    assert str(failure.value) == f"cannot use {tmp_path / 'data'}: the disk is read-only"


@pytest.mark.slow
def test_a_wrong_setting_is_refused_by_name_value_and_what_is_allowed(tmp_path: Path) -> None:
    line = refused(["--data-dir", str(tmp_path), "--set", "num.partitions=0"])
    assert line == "ottla: Invalid value 0 for configuration num.partitions: Value must be at least 1"


@pytest.mark.slow
def test_settings_come_from_flags_over_the_file_and_unknown_ones_are_pointed_out(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.retention.hour=5\nmessage.max.bytes = 2000\n")
    with NodeProcess(tmp_path / "data", str(file), "--set", "num.partitions=4") as node:
        assert "did you mean log.retention.hours?" in node.stderr()
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none"})
        write(node, "made", [b"1"])
        assert len(consumer.list_topics("made", DEADLINE_SECONDS).topics["made"].partitions) == 4
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--frobnicate"], "there is no option --frobnicate"),
        (["--set"], "--set needs a value"),
        (["--set", "nonsense"], "expected NAME=VALUE"),
        (["--listen", "9092"], "expected HOST:PORT"),
        (["--log-level", "loud"], "allowed are debug, info"),
        (["a.properties", "b.properties"], "two files were given"),
        (["/no/such/file"], "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], problem: str) -> None:
    done = run_start(arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_help_and_version_need_no_node() -> None:
    assert "Usage: ottla start" in run_start(["--help"]).stdout
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ottla ")


@pytest.mark.slow
def test_a_kafka_node_of_one_starts_with_its_own_file(tmp_path: Path) -> None:
    """The file of a combined node of Apache Kafka, with a listener for the controller."""
    ports = free_ports(2)
    file = tmp_path / "server.properties"
    file.write_text(
        f"""
        process.roles=broker,controller
        node.id=7
        controller.quorum.voters=7@127.0.0.1:{ports[1]}
        listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}
        controller.listener.names=CONTROLLER
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
        log.dirs={tmp_path / "data"}
        offsets.topic.replication.factor=1
        """
    )
    with NodeProcess(None, str(file), listen=None) as node:
        assert node.port == ports[0]
        with WireClient(f"127.0.0.1:{ports[1]}") as controller:
            response = controller.get(DescribeClusterRequest(endpoint_type=2), 1, DescribeClusterResponse)
            assert [(each.broker_id, each.port) for each in response.brokers] == [(7, ports[1])]
            assert controller.ask(MetadataRequest(topics=[]), 12) is CLOSED


@pytest.mark.slow
def test_a_listener_that_cannot_be_served_as_asked_is_refused(tmp_path: Path) -> None:
    line = refused(["--data-dir", str(tmp_path), "--set", "listeners=SSL://127.0.0.1:0"])
    assert "listener SSL: there is no certificate for the listener: set ssl.keystore.location" in line


@pytest.mark.slow
def test_it_serves_what_lies_elsewhere_when_the_disk_of_a_directory_is_broken(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    both = Path(f"{a},{b}")
    topics = [f"topic-{number}" for number in range(4)]
    with NodeProcess(both) as node:
        for topic in topics:
            write(node, topic, [topic.encode()])
        node.terminate()
    whole = [topic for topic in topics if (a / f"{topic}-0").exists()]
    assert 0 < len(whole) < len(topics)
    b.rename(tmp_path / "away")
    b.write_text("what a broken mount may look like")
    with NodeProcess(both) as node:
        for topic in whole:
            assert read(node, topic, 1) == [topic.encode()]
        node.terminate()
        assert f"cannot use {b}: it is a file, not a directory" in node.stderr()
        assert "Traceback" not in node.stderr()
    b.unlink()
    (tmp_path / "away").rename(b)
    with NodeProcess(both) as node:
        for topic in topics:
            assert read(node, topic, 1) == [topic.encode()]
