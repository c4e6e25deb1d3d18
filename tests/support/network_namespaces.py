"""A cluster whose nodes can be cut off from each other: each in a network namespace of its own (Linux, root).

Between them, and the test, stands another namespace that routes, and drops in silence what is cut, as a
broken switch does: connections stay open, and nothing comes. Everything is taken away when the context ends;
`missing_requirement` says what keeps a machine from it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.testing.cluster_plan import ClusterPlan
from ottla.testing.cluster_process import ClusterError, NodeProcess
from ottla.testing.reaper import ClusterReaper
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

PORT, CONTROLLER_PORT = 9092, 9093
START_S = 60.0


def missing_requirement() -> str | None:
    """What keeps this machine from cutting nodes off, or None if nothing does."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "needs Linux with `ip`"
    name = f"ottla-try-{os.getpid()}"
    try:
        _run(f"ip netns add {name}")
    except AssertionError as error:
        return f"may not make network namespaces: {error}"
    try:
        _run(f"ip -n {name} link add one type veth peer name other")
        _run(f"ip -n {name} rule add from 10.0.0.1 to 10.0.0.2 blackhole")
    except AssertionError as error:
        return f"cannot drop packets: {error}"
    finally:
        _run(f"ip netns del {name}")
    return None


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


class SeparableCluster:
    """Nodes 1 to `size`, each broker and controller, at `address(node)`."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int], *, size: int = 3) -> None:
        self.nodes = tuple(range(1, size + 1))
        self._directory = directory
        self._settings = {name: str(value) for name, value in settings.items()}
        self._tag = f"{os.getpid() % 100_000:05d}"
        self._device = f"ov{self._tag}"
        self._subnet = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
        self._router = f"ottla-{self._tag}-router"
        self._cuts: list[str] = []
        self._processes: list[NodeProcess] = []
        self._reaper: ClusterReaper | None = None

    def address(self, node: int) -> str:
        return f"{self._host(node)}:{PORT}"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address, self.nodes))

    def _host(self, node: int) -> str:
        """Each has a network of its own, of which the router has the first address. The test is number 0."""
        return f"{self._subnet}.{4 * node + 2}"

    def _gateway(self, node: int) -> str:
        return f"{self._subnet}.{4 * node + 1}"

    def _namespace(self, node: int) -> str:
        return f"ottla-{self._tag}-{node}"

    # Cutting

    def cut_off(self, node: int, *, from_clients: bool = True) -> None:
        """Let nothing pass between a node and the others, nor between it and clients."""
        for other in (*self.nodes, *((0,) if from_clients else ())):
            if other != node:
                self._drop(node, other)
                self._drop(other, node)

    def heal(self) -> None:
        """Let everything pass again."""
        while self._cuts:
            _run(f"ip -n {self._router} rule del {self._cuts.pop()}")

    def _drop(self, origin: int, to: int) -> None:
        rule = f"from {self._host(origin)} to {self._host(to)} blackhole"
        _run(f"ip -n {self._router} rule add {rule}")
        self._cuts.append(rule)

    # Asking

    def metadata(self, node: int, topics: Iterable[str] = ()) -> MetadataResponse | None:
        """What a node says of the cluster; None if it says nothing."""
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        try:
            with WireClient(self.address(node), timeout_s=10) as wire:
                return wire.get(request, 12, MetadataResponse)
        except (OSError, AssertionError, MalformedMessage):
            return None

    def leader(self, topic: str, *, asked: int) -> int | None:
        """Who leads partition 0 of a topic, as a node says."""
        found = self.metadata(asked, [topic])
        if found is None or not found.topics or not found.topics[0].partitions:
            return None
        return found.topics[0].partitions[0].leader_id

    def in_sync(self, topic: str, *, asked: int) -> set[int]:
        found = self.metadata(asked, [topic])
        if found is None or not found.topics or not found.topics[0].partitions:
            return set()
        return set(found.topics[0].partitions[0].isr_nodes)

    def brokers(self, node: int) -> set[int]:
        found = self.metadata(node)
        return set() if found is None else {broker.node_id for broker in found.brokers}

    def log_of(self, node: int, partition: str) -> bytes:
        """The bytes of a node's replica."""
        folder = self._directory / "cluster" / f"node-{node}" / "data" / partition
        return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))

    def log(self, node: int) -> str:
        return (self._directory / "cluster" / f"node-{node}" / "node.log").read_text()[-4000:]

    # Its life

    def __enter__(self) -> Self:
        try:
            self._connect()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for node in self.nodes:
                print(f"--- node {node}\n{self.log(node)}")
        self._end()

    def _connect(self) -> None:
        _run(f"ip netns add {self._router}")
        forward = "/proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self._router, "sh", "-c", f"echo 1 > {forward}"], check=True)
        device = self._device
        _run(f"ip link add {device} type veth peer name to-0 netns {self._router}")
        _run(f"ip addr add {self._host(0)}/30 dev {device}")
        _run(f"ip link set {device} up")
        self._gate(0)
        _run(f"ip route add {self._subnet}.0/24 via {self._gateway(0)}")
        for node in self.nodes:
            namespace = self._namespace(node)
            _run(f"ip netns add {namespace}")
            _run(f"ip -n {namespace} link add eth0 type veth peer name to-{node} netns {self._router}")
            _run(f"ip -n {namespace} addr add {self._host(node)}/30 dev eth0")
            _run(f"ip -n {namespace} link set lo up")
            _run(f"ip -n {namespace} link set eth0 up")
            self._gate(node)
            _run(f"ip -n {namespace} route add default via {self._gateway(node)}")

    def _gate(self, node: int) -> None:
        _run(f"ip -n {self._router} addr add {self._gateway(node)}/30 dev to-{node}")
        _run(f"ip -n {self._router} link set to-{node} up")

    def _start(self) -> None:
        voters = ",".join(f"{node}@{self._host(node)}:{CONTROLLER_PORT}" for node in self.nodes)
        plan = ClusterPlan.make(
            self._directory / "cluster",
            brokers=len(self.nodes),
            settings={**self._settings, "controller.quorum.voters": voters},
        )
        plan.write()
        self._reaper = ClusterReaper(plan.directory, temporary=False)
        for node in plan.nodes:
            host = self._host(node.id)
            listeners = f"PLAINTEXT://{host}:{PORT},CONTROLLER://{host}:{CONTROLLER_PORT}"
            process = NodeProcess(node)
            process.start(
                prefix=("ip", "netns", "exec", self._namespace(node.id)),
                options=("--set", f"listeners={listeners}"),
            )
            self._processes.append(process)
        for node_id in self.nodes:
            wait_until(
                lambda node_id=node_id: self.brokers(node_id) == set(self.nodes),  # type: ignore[misc]
                f"node {node_id} does not know the others",
                START_S,
            )

    def _end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ClusterError):
                process.signal(signal.SIGKILL)
            process.wait_until_down()
        if self._reaper is not None:
            self._reaper.dismiss()
        # At once: what goes with its namespace goes when the system comes to it.
        subprocess.run(["ip", "link", "del", self._device], capture_output=True, check=False)
        for namespace in (*map(self._namespace, self.nodes), self._router):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
