"""Apache Kafka itself, as one KRaft node in a temporary folder on loopback: the oracle.

`ApacheKafka` formats the storage, runs `kafka.Kafka`, and calls it ready once it answers a metadata request
that lists itself. It can be stopped as an operator would, killed as a power cut would, and started again on
the same files, by itself or after Ottla has worked on them. Whatever happens, leaving the context ends the
process that was started, and a failed start shows the end of its log.

Its controller answers a change when that is decided; the broker, in the same process, gets to know a moment
later. `settle` waits for that.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.testing.cluster_plan import free_ports
from tests.support import java, kafka_libs
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

# What `kafka-server-start` passes, for measurements; tests use `java.LIGHT_JVM`.
SERVER_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 120.0
PORT_ATTEMPTS = 5
POLL_INTERVAL_S = 0.05
CHECKPOINT = "bootstrap.checkpoint"

# What is changed to see that the broker knows of it.
_TOPIC = 2
_SETTLED = "settled"
_SETTING = "delete.retention.ms"

_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.stdout.ref = STDOUT
appender.stdout.type = Console
appender.stdout.name = STDOUT
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = [%d] %p %m (%c)%n
"""

# Settings for every broker that is compared with this node. One node can hold only one replica, and a
# test should not wait for what a cluster would gain.
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # Records of tests carry fixed, old timestamps; no retention takes them away in the middle of a test.
    "log.initial.task.delay.ms": "3600000",
}

# Those of a node of ours that is compared with it, which finds its listeners by itself.
_OF_ITS_LISTENERS = ("process.roles", "controller.listener.names", "listener.security.protocol.map")
TWIN_SETTINGS = {
    **{name: value for name, value in SINGLE_NODE.items() if name not in _OF_ITS_LISTENERS},
    "node.id": "1",
}

# A killed broker can register again only when the session of its former life has ended.
_AFTER_A_CRASH = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


class ApacheKafkaError(RuntimeError):
    """Apache Kafka did not do what the test needs; the message carries the end of its log."""


class ApacheKafka:
    """One combined broker and controller of Apache Kafka.

    `properties` override the defaults of a single test node; `log_dirs` are folders under `directory`. An
    already formatted folder is taken as it is, so a node can be put on files that another node, or Ottla, has
    left.
    """

    def __init__(
        self,
        directory: Path,
        *,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        cluster_id: str | None = None,
        log_dirs: Sequence[str] = ("data",),
        jvm: Sequence[str] = java.LIGHT_JVM,
    ) -> None:
        self.directory = directory
        self.node_id = node_id
        self.cluster_id = cluster_id or _new_uuid()
        self.log_dirs = [directory / name for name in log_dirs]
        self.port = 0
        self.controller_port = 0
        self._properties = dict(properties or {})
        self._jvm = tuple(jvm)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = directory / "server.log"
        self._crashed = False
        self._can_settle = False

    @property
    def bootstrap(self) -> str:
        """The address clients connect to, as HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.log_dirs[0]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Return the folder of a partition, in the log directory that holds it."""
        for log_dir in self.log_dirs:
            if (folder := log_dir / f"{topic}-{partition}").is_dir():
                return folder
        raise ApacheKafkaError(f"no log directory of {self.directory} holds {topic}-{partition}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Formats the storage if it is new, runs the node and returns when it serves requests."""
        if self.running:
            raise ApacheKafkaError(f"Apache Kafka in {self.directory} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(PORT_ATTEMPTS):
            if self.port == 0 or attempt > 0:
                self.port, self.controller_port = free_ports(2)
            self._write_configuration()
            if not (self.data_dir / "meta.properties").exists():
                self._format()
            try:
                self._launch()
                self._await_ready(timeout_s)
                return
            except _PortTaken:
                continue
            except BaseException:
                self.kill()
                raise
        raise ApacheKafkaError(f"no free port for Apache Kafka after {PORT_ATTEMPTS} attempts")

    def format(self, *, by_tool: bool = False) -> None:
        """Format the storage without starting the node; `by_tool` asks for a run of Kafka's own tool."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        if by_tool:
            self._format_by_tool()
        else:
            self._format()

    def stop(self) -> None:
        """Shuts the node down cleanly; one that does not end in time is killed, which fails the test."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ApacheKafkaError(
                f"Apache Kafka did not stop in {STOP_TIMEOUT_S} s:\n{self.log_tail()}"
            ) from None
        self._process = None

    def kill(self) -> None:
        """Ends the node as a crash would (SIGKILL)."""
        if self._process is not None:
            java.kill_process(self._process)
            self._process = None
            self._crashed = True

    def restart(self) -> None:
        """Stops and starts the node on the same ports and files."""
        self.stop()
        self.start()

    def tool(self, main: str, *args: str, stdin: str = "", check: bool = True) -> java.ToolResult:
        """Runs a command-line tool against this node."""
        return java.run_tool(main, "--bootstrap-server", self.bootstrap, *args, stdin=stdin, check=check)

    def settle(self) -> None:
        """Waits until the broker knows what the controller has decided so far: brokers take changes over in
        their order, so it does once it knows of one that is made now.
        """
        value = str(time.time_ns())
        with WireClient(self.bootstrap) as wire:
            if not self._can_settle:
                topic = CreatableTopic(name=_SETTLED, num_partitions=1, replication_factor=1)
                made = wire.get(
                    CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7, CreateTopicsResponse
                )
                assert made.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), made
                self._can_settle = True
            change = AlterableConfig(name=_SETTING, config_operation=0, value=value)
            altered = wire.get(
                IncrementalAlterConfigsRequest(
                    resources=[
                        AlterConfigsResource(resource_type=_TOPIC, resource_name=_SETTLED, configs=[change])
                    ]
                ),
                1,
                IncrementalAlterConfigsResponse,
            )
            assert altered.responses[0].error_code == ErrorCode.NONE, altered
            described = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=_TOPIC, resource_name=_SETTLED, configuration_keys=[_SETTING]
                    )
                ]
            )

            def known() -> bool:
                (found,) = wire.get(described, 4, DescribeConfigsResponse).results
                return [each.value for each in found.configs] == [value]

            wait_until(known, "the broker does not know of a change")

    def log_tail(self, size: int = 6000) -> str:
        """The end of what the node logged."""
        if not self._log_file.exists():
            return "(no log)"
        return self._log_file.read_text(errors="replace")[-size:]

    def _write_configuration(self) -> None:
        values = {
            **SINGLE_NODE,
            "node.id": str(self.node_id),
            "controller.quorum.voters": f"{self.node_id}@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(str(each) for each in self.log_dirs),
            **(_AFTER_A_CRASH if self._crashed else {}),
            **self._properties,
        }
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        (self.directory / "server.properties").write_text(text)
        (self.directory / "log4j2.properties").write_text(_LOGGING)

    def _format(self) -> None:
        """Format the storage as Kafka's tool does: it runs once in a checkout, its checkpoint fits all."""
        checkpoint = kafka_libs.made("formatted") / f"{kafka_libs.BROKER.name}.{CHECKPOINT}"
        if not checkpoint.exists():
            self._format_by_tool()
            part = checkpoint.with_suffix(f".{os.getpid()}")
            shutil.copy(self.data_dir / CHECKPOINT, part)
            part.rename(checkpoint)
            return
        for log_dir in self.log_dirs:
            log_dir.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkpoint, log_dir / CHECKPOINT)
            (log_dir / "meta.properties").write_text(
                f"version=1\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\ndirectory.id={_new_uuid()}\n"
            )

    def _format_by_tool(self) -> None:
        java.run_tool(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self.cluster_id,
            "-c",
            str(self.directory / "server.properties"),
        )

    def _launch(self) -> None:
        jvm = (*self._jvm, f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}")
        command = java.command(
            "kafka.Kafka", [str(self.directory / "server.properties")], bundle=kafka_libs.BROKER, jvm=jvm
        )
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=java.die_with_parent(),
            )

    def _await_ready(self, timeout_s: float) -> None:
        process = self._process  # which another thread may end, and take away, meanwhile
        assert process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._process = None
                log = self.log_tail()
                if "Address already in use" in log:
                    raise _PortTaken
                raise ApacheKafkaError(f"Apache Kafka ended while starting:\n{log}")
            if self.node_id in listed_brokers(self.port):
                return
            time.sleep(POLL_INTERVAL_S)
        raise ApacheKafkaError(f"Apache Kafka was not ready after {timeout_s} s:\n{self.log_tail()}")


class _PortTaken(Exception):
    pass


def _new_uuid() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def listed_brokers(port: int) -> list[int]:
    """The broker ids that the node at `port` lists, none if it does not answer yet.

    Metadata version 0 for a topic that does not exist, written by hand: readiness must not depend on the code
    under test.
    """
    body = struct.pack(">hhih5si", 3, 0, 1, 5, b"ready", 1) + struct.pack(">h", 1) + b"?"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                size = struct.unpack(">i", stream.read(4))[0]
                answer = stream.read(size)
    except (OSError, struct.error):
        return []
    brokers = []
    count, position = struct.unpack_from(">i", answer, 4)[0], 8
    for _ in range(count):
        node_id, host_length = struct.unpack_from(">ih", answer, position)
        brokers.append(node_id)
        position += 6 + host_length + 4
    return brokers
