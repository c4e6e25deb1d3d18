"""The files of a cluster on one machine: its nodes, their ports and their settings.

    DIR/cluster.json                the plan
    DIR/cluster.lock                held by a process that writes the plan, or starts nodes
    DIR/node-1/server.properties    the settings that `ottla start` reads
    DIR/node-1/data/                formatted for this node of this cluster
    DIR/node-1/node.log             the output of its process
    DIR/node-1/process.json         its process, see `cluster_process`
    DIR/zookeeper/                  in the legacy mode, the ZooKeeper of this cluster, see `zookeeper_server`

The plan is written once and never changed: a node that was killed starts with the same identity, and any
process that knows the directory can control the cluster.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from ottla.metadata.log.bootstrap_metadata import bootstrap_records, format_directory
from ottla.protocol.names import uuid_text
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.clock import SystemClock
from ottla.runtime.disk import RealDisk
from ottla.runtime.random import SystemRandom
from ottla.security.sasl.add_scram import scram_records
from ottla.testing.security import CLIENT_FILE, LocalSecurity

HOST: Final = "127.0.0.1"
PLAN_FILE: Final = "cluster.json"
_LOCK_FILE: Final = "cluster.lock"
_UNFINISHED_FILE: Final = f"{PLAN_FILE}.tmp"
_DIRECTORY: Final = re.compile(r"security|zookeeper|node-\d+")
_LOCK_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
OWN_ZOOKEEPER: Final = "own"
BROKER: Final = "broker"
CONTROLLER: Final = "controller"
MAX_NODES: Final = 100
# Below the ephemeral ports: no outgoing connection takes the port of a node that is down.
_PORTS: Final = range(10_000, 32_000)
_PORT_ATTEMPTS: Final = 1000
_LISTENER: Final = "PLAINTEXT"
_CONTROLLER_LISTENER: Final = "CONTROLLER"


class PlanError(ValueError):
    """A cluster that cannot be planned as requested; the text says what to change."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node. `port` is for clients and other brokers, `controller_port` for the quorum."""

    id: int
    directory: Path
    port: int | None
    controller_port: int | None

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(
            role
            for role, port in ((BROKER, self.port), (CONTROLLER, self.controller_port))
            if port is not None
        )

    @property
    def is_broker(self) -> bool:
        return self.port is not None

    @property
    def address(self) -> str | None:
        """The address that clients connect to; None for a node that is only a controller."""
        return None if self.port is None else f"{HOST}:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_file(self) -> Path:
        return self.directory / "node.log"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    directory: Path
    cluster_id: str
    nodes: tuple[NodePlan, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of every node; they override those that the plan sets itself."""
    dynamic_quorum: bool = False
    """Whether the voters are kept in the metadata log, so that controllers can be added and removed."""
    security: LocalSecurity | None = None
    """What protects all listeners; None is plain text. Its files are in `security_directory`."""
    zookeeper: str | None = None
    """Legacy: where the metadata are, as `zookeeper.connect` has it; None is a quorum of the controllers."""
    zookeeper_port: int | None = None
    """The port of a ZooKeeper that belongs to the cluster; None if it has none, or uses another."""

    @classmethod
    def make(
        cls,
        directory: str | Path,
        *,
        brokers: int = 3,
        controllers: int = 0,
        settings: Mapping[str, str] | None = None,
        first_port: int | None = None,
        dynamic_quorum: bool = False,
        security: LocalSecurity | None = None,
        zookeeper: str | None = None,
    ) -> Self:
        """Make a new plan.

        Without `controllers` every broker is a controller as well. Ports count up from `first_port`; without
        it, free ports are chosen. `zookeeper` is an address or, for a ZooKeeper of its own, `OWN_ZOOKEEPER`.
        """
        if not 1 <= brokers <= MAX_NODES or not 0 <= controllers <= MAX_NODES:
            raise PlanError(f"a cluster has 1 to {MAX_NODES} brokers and at most {MAX_NODES} controllers")
        if zookeeper is not None and dynamic_quorum:
            raise PlanError("a cluster whose metadata are in ZooKeeper has no quorum")
        path = Path(directory).absolute()
        combined = controllers == 0
        count = brokers + (brokers if combined else controllers)
        is_own = zookeeper == OWN_ZOOKEEPER
        count += is_own
        ports = free_ports(count) if first_port is None else counted_ports(first_port, count)
        zookeeper_port = ports.pop() if is_own else None
        if zookeeper_port is not None:
            zookeeper = f"{HOST}:{zookeeper_port}"
        of_clients, of_controllers = ports[:brokers], ports[brokers:]
        nodes = [
            NodePlan(n, path / f"node-{n}", port, of_controllers[n - 1] if combined else None)
            for n, port in enumerate(of_clients, 1)
        ]
        if not combined:
            nodes += [
                NodePlan(n, path / f"node-{n}", None, port)
                for n, port in enumerate(of_controllers, brokers + 1)
            ]
        cluster_id = uuid_text(SystemRandom().uuid())
        return cls(
            path,
            cluster_id,
            tuple(nodes),
            dict(settings or {}),
            dynamic_quorum,
            security,
            zookeeper,
            zookeeper_port,
        )

    @property
    def security_directory(self) -> Path:
        return self.directory / "security"

    @property
    def command_config(self) -> str | None:
        """The file of settings that clients of a secured cluster need."""
        return None if self.security is None else str(self.security_directory / CLIENT_FILE)

    @property
    def brokers(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    @property
    def voters(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.controller_port is not None)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.brokers)

    def node(self, node_id: int) -> NodePlan:
        for node in self.nodes:
            if node.id == node_id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise PlanError(f"there is no node {node_id}; the cluster in {self.directory} has {known}")

    # On disk

    def write(self) -> None:
        """Create the directories of all nodes, formatted and configured.

        The plan itself is written last: a directory without it is not that of a cluster, and what a process
        that was killed has left in it is replaced.
        """
        self._unfinished()
        with locked(self.directory):
            if self.exists(self.directory):
                raise PlanError(f"another process has just made a cluster in {self.directory}")
            for path in self._unfinished():
                shutil.rmtree(path)
            self._write()

    def _unfinished(self) -> list[Path]:
        """The directories that a process has left which was killed while it wrote a plan here. PlanError if
        there is anything else.
        """
        found = {each.name: each for each in self.directory.iterdir()} if self.directory.exists() else {}
        is_own = _LOCK_FILE in found
        for name in (_LOCK_FILE, _UNFINISHED_FILE, PLAN_FILE):
            found.pop(name, None)
        if found and not (is_own and all(map(_DIRECTORY.fullmatch, found))):
            raise PlanError(
                f"{self.directory} is not empty, and has no {PLAN_FILE}; choose another directory"
            )
        return list(found.values())

    def _write(self) -> None:
        directory_ids = {node.id: SystemRandom().uuid() for node in self.nodes}
        records = bootstrap_records()
        if self.security is not None:
            self.security.write(self.security_directory)
            records = [*records, *scram_records(self.security.first_users, SystemRandom())]
        for node in self.nodes:
            node.directory.mkdir(parents=True)
            lines = [f"{name}={_escape(value)}\n" for name, value in self.properties(node).items()]
            node.properties_file.write_text("".join(lines))
            format_directory(
                RealDisk(),
                SystemRandom(),
                SystemClock(),
                str(node.data_dir),
                cluster_id=self.cluster_id,
                node_id=node.id,
                bootstrap=records,
                directory_id=directory_ids[node.id],
                dynamic_voters=self._voter_set(directory_ids)
                if self.dynamic_quorum and node.controller_port is not None
                else None,
            )
        unfinished = self.directory / _UNFINISHED_FILE
        unfinished.write_text(json.dumps(self._document(), indent=2) + "\n")
        unfinished.replace(self.directory / PLAN_FILE)

    @classmethod
    def read(cls, directory: str | Path) -> Self:
        """Read the plan of a directory; PlanError if there is none."""
        path = Path(directory).absolute()
        try:
            document = json.loads((path / PLAN_FILE).read_text())
            return cls(
                path,
                document["cluster_id"],
                tuple(
                    NodePlan(node["id"], path / f"node-{node['id']}", node["port"], node["controller_port"])
                    for node in document["nodes"]
                ),
                document["settings"],
                document["dynamic_quorum"],
                _read_security(path, document.get("security")),
                document.get("zookeeper"),
                document.get("zookeeper_port"),
            )
        except FileNotFoundError:
            raise PlanError(
                f"there is no cluster in {path}; `ottla cluster up --data-dir {directory}` makes one"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise PlanError(f"{path / PLAN_FILE} cannot be read: {error!r}") from None

    @staticmethod
    def exists(directory: str | Path) -> bool:
        return (Path(directory) / PLAN_FILE).exists()

    def _document(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "dynamic_quorum": self.dynamic_quorum,
            "settings": dict(self.settings),
            "security": None if self.security is None else self.security.protocol.name,
            "zookeeper": self.zookeeper,
            "zookeeper_port": self.zookeeper_port,
            "nodes": [
                {"id": node.id, "port": node.port, "controller_port": node.controller_port}
                for node in self.nodes
            ],
        }

    def _voter_set(self, directory_ids: Mapping[int, bytes]) -> VoterSet:
        return VoterSet.of(
            *(
                Voter(
                    ReplicaKey(node.id, directory_ids[node.id]),
                    {_CONTROLLER_LISTENER: Address(HOST, node.controller_port or 0)},
                )
                for node in self.voters
            )
        )

    # Settings of a node

    def properties(self, node: NodePlan) -> dict[str, str]:
        """The `server.properties` of a node.

        With three brokers or more every topic has three replicas, of which two must have a record before it
        is acknowledged: the cluster survives the loss of one node.
        """
        replicas = min(3, len(self.brokers))
        in_sync = min(2, replicas) if replicas > 2 else 1
        protocol = "PLAINTEXT" if self.security is None else self.security.protocol.name
        listener = _LISTENER if self.security is None else protocol
        listeners = [f"{listener}://{HOST}:{node.port}"] if node.port is not None else []
        if node.controller_port is not None:
            listeners.append(f"{_CONTROLLER_LISTENER}://{HOST}:{node.controller_port}")
        addresses = [(each.id, f"{HOST}:{each.controller_port}") for each in self.voters]
        if self.zookeeper is not None:
            quorum = {"metadata.store": "zookeeper", "zookeeper.connect": self.zookeeper}
        elif self.dynamic_quorum:
            quorum = {"controller.quorum.bootstrap.servers": ",".join(at for _, at in addresses)}
        else:
            quorum = {"controller.quorum.voters": ",".join(f"{n}@{at}" for n, at in addresses)}
        secured = (
            {} if self.security is None else self.security.cluster_settings(listener, _CONTROLLER_LISTENER)
        )
        return {
            "process.roles": ",".join(node.roles),
            "node.id": str(node.id),
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": f"{listener}:{protocol},{_CONTROLLER_LISTENER}:{protocol}",
            "controller.listener.names": _CONTROLLER_LISTENER,
            "inter.broker.listener.name": listener,
            **quorum,
            "log.dirs": str(node.data_dir),
            "http.listener": "",
            # One for all brokers.
            "table.catalog.warehouse": str(self.directory / "tables"),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            **secured,
            **self.settings,
        }


def _read_security(directory: Path, protocol: str | None) -> LocalSecurity | None:
    if protocol is None:
        return None
    security = LocalSecurity(protocol)
    security.write(directory / "security")
    return security


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a cluster's directory, which is made if it is not there. Another process holds it for
    a moment; PlanError if it does not release it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock = RealDisk().lock(str(directory / _LOCK_FILE))
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PlanError(f"another process is making or starting the cluster in {directory}") from None
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def free_ports(count: int) -> list[int]:
    """Choose free ports of the loopback interface.

    They are chosen at random, so that clusters that are planned at the same time rarely choose the same.
    """
    found: list[int] = []
    for _ in range(_PORT_ATTEMPTS):
        port = random.choice(_PORTS)
        if port not in found and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise PlanError(f"there are no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def counted_ports(first: int, count: int) -> list[int]:
    if not 1 <= first <= 65_536 - count:
        raise PlanError(f"{count} ports from {first} on: ports go from 1 to 65535")
    ports = list(range(first, first + count))
    check_free(ports)
    return ports


def check_free(ports: Sequence[int]) -> None:
    taken = [port for port in ports if not is_free(port)]
    if taken:
        raise PlanError(
            f"port {taken[0]} is in use; is another cluster or node running? A new cluster may have others"
            " (--port)"
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # as a node binds it: connections in TIME_WAIT do not matter
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")
