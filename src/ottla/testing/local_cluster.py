"""A cluster for tests and notebooks: processes on this machine that a test can kill, pause and restart.

    with LocalCluster(nodes=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.kill(cluster.leader("orders"))

The nodes listen on free ports of the loopback interface, keep them through every restart, and end with the
process that started them, also if that is killed. Without a `data_dir` their files are removed when the
cluster stops. When the block ends with an error the ends of their logs are printed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import shutil
import signal
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeVar

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, MalformedMessage
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.protocol.schema import Request, Response
from ottla.testing.cluster_plan import ClusterPlan, NodePlan
from ottla.testing.cluster_process import STOP_SECONDS, ClusterError, NodeProcess, ProcessState, stop_all
from ottla.testing.local_node import FOR_TESTS, settings_text
from ottla.testing.reaper import ClusterReaper
from ottla.testing.security import SASL_USER, LocalSecurity

__all__ = ["ClusterError", "ClusterNode", "LocalCluster", "NodeAccess", "ProcessState", "send_request"]

R = TypeVar("R", bound=Response)

START_SECONDS: Final = 120.0
_REQUEST_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
# How long a process may take to write its stacks.
_STACKS_SECONDS: Final = 5.0
_METADATA_VERSION: Final = 12
_QUORUM_VERSION: Final = 1
_HANDSHAKE_VERSION: Final = 1
_LOGIN_VERSION: Final = 2
_CORRELATION_ID: Final = 1
_MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """What gets a request into a secured node: a TLS context, and the token of a login with PLAIN."""

    tls: ssl.SSLContext | None = None
    plain_token: bytes | None = field(default=None, repr=False)


class ClusterNode:
    """One node of a `LocalCluster`: its id, its addresses and the state of its process."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def __repr__(self) -> str:
        return f"<ClusterNode {self.id}, {self.state}>"

    @property
    def plan(self) -> NodePlan:
        return self._process.plan

    @property
    def id(self) -> int:
        return self.plan.id

    @property
    def port(self) -> int:
        """The port that clients connect to; ValueError for a node that is only a controller."""
        if self.plan.port is None:
            raise ValueError(f"node {self.id} is a controller only")
        return self.plan.port

    @property
    def bootstrap_servers(self) -> str:
        """The address of this node alone, for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_broker(self) -> bool:
        return self.plan.is_broker

    @property
    def is_controller(self) -> bool:
        return self.plan.controller_port is not None

    @property
    def data_dir(self) -> str:
        return str(self.plan.data_dir)

    @property
    def http_url(self) -> str | None:
        """Where the node answers HTTP; None without the setting `http.listener`, whose port may be 0."""
        return self._process.http_url()

    @property
    def pid(self) -> int | None:
        """The id of its process; None while it is down."""
        return self._process.pid()

    @property
    def state(self) -> ProcessState:
        return self._process.state()

    def log(self, size: int = 4000) -> str:
        """The end of its log."""
        return self._process.log_tail(size)


class LocalCluster:
    """A cluster that runs for the `with` block, or from `start` to `stop`.

        >>> with LocalCluster(nodes=3) as cluster:
        ...     [node.id for node in cluster.nodes]
        [1, 2, 3]

    `settings` are those of `server.properties`, for every node. Each node is broker and controller; with
    `controllers` there are that many separate controllers, whose ids follow those of the brokers. With
    `dynamic_quorum` the voters are kept in the metadata log, and can be added and removed. With `data_dir`
    the cluster keeps its files there, and the next `LocalCluster` with the same `data_dir` continues with
    them. `security` is the security protocol of all listeners, as "SSL"; then clients need `client_settings`.
    With "SASL_SSL" there is an authorizer too, see `LocalSecurity`.

    Methods that take a node accept its id or the `ClusterNode`.
    """

    def __init__(
        self,
        nodes: int = 3,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        controllers: int = 0,
        dynamic_quorum: bool = False,
        data_dir: str | None = None,
        log_level: str = "warning",
        security: str | LocalSecurity | None = None,
        zookeeper: str | None = None,
    ) -> None:
        """`zookeeper` is for the legacy mode: the servers that keep the metadata, `host:port/chroot`."""
        self._security = LocalSecurity(security) if isinstance(security, str) else security
        self._size = nodes
        self._settings = {**FOR_TESTS, **settings_text(settings or {})}
        self._controllers = controllers
        self._dynamic_quorum = dynamic_quorum
        self._zookeeper = zookeeper
        self._given_dir = data_dir
        self._log_level = log_level
        self._plan: ClusterPlan | None = None
        self._processes: dict[int, NodeProcess] = {}
        self._reaper: ClusterReaper | None = None
        self._access: NodeAccess | None = None
        # The ids of the nodes that were started and not stopped or killed since: one that is down has failed.
        self._wanted: set[int] = set()

    def __repr__(self) -> str:
        if self._plan is None:
            return "<LocalCluster, not started>"
        states = ", ".join(f"{node.id} {node.state}" for node in self.nodes)
        return f"<LocalCluster at {self.bootstrap_servers}: {states}>"

    # Properties

    @property
    def plan(self) -> ClusterPlan:
        if self._plan is None:
            raise RuntimeError(
                "the cluster has not been started: use `with LocalCluster() as cluster:` or `start()`"
            )
        return self._plan

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return self.plan.bootstrap_servers

    @property
    def client_settings(self) -> dict[str, str]:
        """What clients need besides `bootstrap.servers`; empty in plain text."""
        return {} if self.plan.security is None else self.plan.security.client_settings

    @property
    def cluster_id(self) -> str:
        return self.plan.cluster_id

    @property
    def data_dir(self) -> str:
        return str(self.plan.directory)

    @property
    def nodes(self) -> tuple[ClusterNode, ...]:
        return tuple(ClusterNode(self._processes[node.id]) for node in self.plan.nodes)

    def node(self, node: int | ClusterNode) -> ClusterNode:
        return ClusterNode(self._process(node))

    def _process(self, node: int | ClusterNode) -> NodeProcess:
        number = node if isinstance(node, int) else node.id
        return self._processes[self.plan.node(number).id]

    # Start and stop

    def start(self, node: int | ClusterNode | None = None) -> Self:
        """Start the cluster, or one of its nodes that is down, and return when it is ready."""
        if node is not None:
            self._launch(self._process(node))
            self.wait_ready()
            return self
        if self._plan is not None:
            raise RuntimeError("the cluster has been started already; make another LocalCluster")
        try:
            self._plan = self._make_plan()
            self._processes = {each.id: NodeProcess(each) for each in self._plan.nodes}
            self._reaper = ClusterReaper(self._plan.directory, temporary=self._given_dir is None)
            self.start_all()
        except BaseException:
            self._end()
            raise
        return self

    def start_all(self) -> None:
        """Start all nodes that are down, at once, and return when the cluster is ready."""
        for process in self._processes.values():
            if process.state() is ProcessState.DOWN:
                self._launch(process)
        self.wait_ready()

    def _make_plan(self) -> ClusterPlan:
        if self._given_dir is not None and ClusterPlan.exists(self._given_dir):
            return ClusterPlan.read(self._given_dir)
        directory = self._given_dir or self._temporary_dir()
        plan = ClusterPlan.make(
            directory,
            brokers=self._size,
            controllers=self._controllers,
            settings=self._settings,
            dynamic_quorum=self._dynamic_quorum,
            security=self._security,
            zookeeper=self._zookeeper,
        )
        plan.write()
        return plan

    def _launch(self, process: NodeProcess) -> None:
        process.start(log_level=self._log_level)
        self._wanted.add(process.plan.id)

    def stop(self, node: int | ClusterNode | None = None) -> None:
        """Stop one node cleanly, or the cluster. Stopping a stopped cluster is harmless.

        The files of a cluster without a `data_dir` are removed, so its nodes are just killed.
        """
        if node is not None:
            process = self._process(node)
            self._wanted.discard(process.plan.id)
            process.signal(signal.SIGTERM)
            process.wait_until_down()
            return
        try:
            if self._given_dir is not None:
                stop_all(self._processes.values())
        finally:
            self._end()

    def kill(self, node: int | ClusterNode, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a node as a crash would, or send it another signal."""
        process = self._process(node)
        if how is signal.SIGKILL:
            self._wanted.discard(process.plan.id)
        process.signal(how)
        if how is signal.SIGKILL:
            process.wait_until_down()

    def pause(self, node: int | ClusterNode) -> None:
        """Pause a node (SIGSTOP): its connections stay open, and it does not answer."""
        process = self._process(node)
        process.signal(signal.SIGSTOP)
        _wait_for(lambda: process.state() is ProcessState.PAUSED, STOP_SECONDS, f"{node} is not paused")

    def resume(self, node: int | ClusterNode) -> None:
        """Resume a paused node (SIGCONT)."""
        self._process(node).signal(signal.SIGCONT)

    def restart(self, node: int | ClusterNode) -> None:
        """Stop a node cleanly, if it runs, start it again, and return when it is ready."""
        if self._process(node).state() is not ProcessState.DOWN:
            self.stop(node)
        self.start(node)

    def _temporary_dir(self) -> str:
        atexit.register(self._end)
        return tempfile.mkdtemp(prefix="ottla-cluster-")

    def _end(self) -> None:
        """Kill the nodes that still run, and remove the files if they are temporary."""
        for process in self._processes.values():
            with contextlib.suppress(ClusterError):
                process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.wait_until_down()
        if self._reaper is not None:
            self._reaper.dismiss()
            self._reaper = None
        if self._given_dir is None and self._plan is not None:
            shutil.rmtree(self._plan.directory, ignore_errors=True)
            atexit.unregister(self._end)

    # Wait and inspect

    def wait_ready(self, timeout_s: float = START_SECONDS) -> None:
        """Wait until all running nodes are ready, all brokers know each other, and there is a controller."""

        def ready() -> bool:
            wanted = [self._processes[number] for number in sorted(self._wanted)]
            running = [process for process in wanted if process.state() is not ProcessState.PAUSED]
            return all(self._serves(process) for process in running) and self._brokers_agree(running)

        self._wait(ready, timeout_s, self._explain_not_ready)

    def _explain_not_ready(self) -> str:
        """Have the nodes that are not ready write their stacks to their logs, which follow this text."""
        waiting = [
            self._processes[number]
            for number in sorted(self._wanted)
            if self._processes[number].state() is ProcessState.RUNNING
            and not self._processes[number].said_ready()
        ]
        for process in waiting:
            process.write_stacks(_STACKS_SECONDS)
        ids = ", ".join(str(process.plan.id) for process in waiting)
        return f"the cluster was not ready (nodes that are not: {ids or 'none'})"

    def _serves(self, process: NodeProcess) -> bool:
        if process.state() is ProcessState.DOWN:
            status = process.exit_status()
            raise ClusterError(f"node {process.plan.id} ended with status {status}:\n{process.log_tail()}")
        return process.said_ready()

    def _brokers_agree(self, running: Iterable[NodeProcess]) -> bool:
        brokers = {process.plan.id: process.plan.port for process in running if process.plan.is_broker}
        for port in brokers.values():
            assert port is not None
            found = _metadata(port, [], self.access())
            if found is None or not brokers.keys() <= {broker.node_id for broker in found.brokers}:
                return False
        return not brokers or self.find_controller() is not None

    def wait_in_sync(self, timeout_s: float = START_SECONDS) -> None:
        """Wait until every replica of every partition is in sync, and every partition has a leader."""

        def in_sync() -> bool:
            found = self._metadata(None)
            return found is not None and all(
                partition.leader_id >= 0 and set(partition.isr_nodes) == set(partition.replica_nodes)
                for topic in found.topics
                for partition in topic.partitions
            )

        self._wait(in_sync, timeout_s, "not all replicas are in sync")

    def partition(self, topic: str, partition: int = 0) -> MetadataResponsePartition:
        """Describe a partition: leader, replicas, in-sync set. Waits until it has a leader."""
        seen: list[MetadataResponsePartition] = []

        def has_leader() -> bool:
            found = self._metadata([topic])
            if found is None:
                return False
            seen[:] = [
                each
                for described in found.topics
                if described.error_code == ErrorCode.NONE
                for each in described.partitions
                if each.partition_index == partition
            ]
            return bool(seen) and seen[0].leader_id >= 0

        self._wait(
            has_leader,
            START_SECONDS,
            lambda: f"{topic}-{partition} {'had no leader' if seen else 'does not exist'}",
        )
        return seen[0]

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the node that leads a partition."""
        return self.partition(topic, partition).leader_id

    def controller(self) -> int:
        """The id of the active controller. Waits until there is one."""
        found: list[int] = []

        def has_leader() -> bool:
            leader = self.find_controller()
            found[:] = [] if leader is None else [leader]
            return bool(found)

        self._wait(has_leader, START_SECONDS, "the quorum has no leader")
        return found[0]

    def find_controller(self) -> int | None:
        """The id of the active controller, as the first broker that answers reports it; or None."""
        topic = DescribeQuorumRequestTopicData(
            topic_name=CLUSTER_METADATA_TOPIC,
            partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
        )
        for process in self._running_brokers():
            assert process.plan.port is not None
            with contextlib.suppress(OSError, MalformedMessage):
                answer = send_request(
                    process.plan.port,
                    DescribeQuorumRequest(topics=[topic]),
                    _QUORUM_VERSION,
                    DescribeQuorumResponse,
                    timeout_s=_REQUEST_SECONDS,
                    access=self.access(),
                )
                for described in answer.topics:
                    for partition in described.partitions:
                        if not partition.error_code and partition.leader_id >= 0:
                            return partition.leader_id
        return None

    def _metadata(self, topics: list[str] | None) -> MetadataResponse | None:
        """The metadata of topics, of all for None, from the first running broker that answers."""
        for process in self._running_brokers():
            assert process.plan.port is not None
            found = _metadata(process.plan.port, topics, self.access())
            if found is not None:
                return found
        return None

    def access(self) -> NodeAccess:
        """How `send_request` gets in as the user `client`."""
        if self._access is None:
            security, context, login = self.plan.security, None, None
            if security is not None and security.protocol.tls:
                context = ssl.create_default_context(cafile=str(security.directory / "ca.crt"))
                context.load_cert_chain(security.directory / "client.pem")
            if security is not None and security.protocol.sasl:
                login = f"\0{SASL_USER}\0{security.password}".encode()
            self._access = NodeAccess(context, login)
        return self._access

    def _running_brokers(self) -> list[NodeProcess]:
        return [
            process
            for process in self._processes.values()
            if process.plan.is_broker and process.state() is ProcessState.RUNNING
        ]

    def _wait(
        self, condition: Callable[[], bool], timeout_s: float, otherwise: str | Callable[[], str]
    ) -> None:
        _wait_for(condition, timeout_s, otherwise, lambda: f"\n{self.logs()}")

    def logs(self, size: int = 4000) -> str:
        """The ends of the logs of all nodes, each with its state and, if it has ended, its exit status."""
        found = []
        for number, process in self._processes.items():
            status = process.exit_status()
            ended = "" if status is None else f" with exit status {status}"
            found.append(f"--- node {number}, {process.state()}{ended}\n{process.log_tail(size)}")
        return "\n".join(found)

    # Context manager

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            print(self.logs())  # noqa: T201
            self._end()
        else:
            self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)


def _metadata(port: int, topics: list[str] | None, access: NodeAccess) -> MetadataResponse | None:
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    try:
        return send_request(
            port, request, _METADATA_VERSION, MetadataResponse, timeout_s=_REQUEST_SECONDS, access=access
        )
    except (OSError, MalformedMessage):
        return None


def _wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    otherwise: str | Callable[[], str],
    details: Callable[[], str] = str,
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            text = otherwise if isinstance(otherwise, str) else otherwise()
            raise ClusterError(f"{text} within {timeout_s:.0f} s{details()}")
        time.sleep(_POLL_SECONDS)


def send_request(
    port: int,
    request: Request,
    version: int,
    response_type: type[R],
    *,
    timeout_s: float,
    access: NodeAccess = NodeAccess(),
) -> R:
    """Send one request to the node at a port of this machine, and return its response; OSError without one.

    Unlike a client it asks this node alone, and once: it shows what this node answers, or that it does not.
    """
    with _connected(port, timeout_s, access.tls) as connection:
        if access.plain_token is not None:
            _log_in(connection, access.plain_token)
        return _exchange(connection, request, version, response_type)


def _log_in(connection: socket.socket, token: bytes) -> None:
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    offered = _exchange(connection, handshake, _HANDSHAKE_VERSION, SaslHandshakeResponse)
    answer = _exchange(
        connection, SaslAuthenticateRequest(auth_bytes=token), _LOGIN_VERSION, SaslAuthenticateResponse
    )
    if offered.error_code or answer.error_code:
        raise ConnectionError(f"the login failed: {answer.error_message}")


def _exchange(connection: socket.socket, request: Request, version: int, response_type: type[R]) -> R:
    connection.sendall(b"".join(request_parts(version, _CORRELATION_ID, "ottla-testing", request)))
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 0 < size <= _MAX_RESPONSE_BYTES:
        port = connection.getpeername()[1]
        raise ConnectionError(f"port {port} answered with a frame of {size} bytes; it is not a Kafka broker")
    _, response = read_response(API[request.API_KEY], version, _read(connection, size))
    assert isinstance(response, response_type)
    return response


def _connected(port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout_s)
    try:
        plain.settimeout(timeout_s)
        return plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed before the response")
        data += part
    return bytes(data)
