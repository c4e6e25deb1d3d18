"""The status of a cluster on this machine: its processes, and what its brokers report.

Leaders, in-sync replicas, lag and quorum come from the brokers, by the admin client; background tasks,
storage that is offline, turns of the event loop and the memory of connections from the processes, which write
them to their logs when they are asked (`ottla.node.server.process_status`). A node that is down or paused is
never asked, and every wait is short: the status matters most when the cluster is in trouble.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.output import Cell, ids_text, size_text
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.testing.cluster_process import STATUS, ProcessState

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.cluster import Quorum
    from ottla.client.cluster_metadata import TopicInfo
    from ottla.testing.cluster_plan import ClusterPlan, NodePlan
    from ottla.testing.cluster_process import NodeProcess

ASK_SECONDS: Final = 3.0
# A broker answers for the quorum only when there is a leader, and later requests on the same connection wait
# as well. So the quorum is asked last: the other facts are shown without it.
_QUORUM_SECONDS: Final = 1.5
_PROCESS_SECONDS: Final = 3.0
_TAIL_BYTES: Final = 65_536
_POLL_SECONDS: Final = 0.02
# With more partitions the lag of replicas is not asked for: the rest comes in one answer.
_MAX_PARTITIONS_WITH_LAG: Final = 5000
# A disk with less than this has no room for a line of a log, or soon will not.
_NO_ROOM_BYTES: Final = 64 * 1024

Table = tuple[Sequence[str], list[Sequence[Cell]]]


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What a node says of its process."""

    failing_tasks: Mapping[str, str]
    """The background tasks that had errors since the start, with their state, their number and the last."""
    down_tasks: tuple[str, ...]
    """Those of the background tasks that do not run now: they back off, or have failed."""
    offline_directories: Mapping[str, str]
    offline_partitions: int
    damaged_partitions: int
    offline_reasons: Mapping[str, str]
    set_aside: tuple[str, ...]
    longest_turn_ms: float | None
    """The longest turn of the event loop since it was last asked, by CPU time."""
    longest_turn_culprit: str
    memory_used: int
    memory_limit: int
    memory_waiting: int
    """Requests and responses that wait for memory."""
    slow_clients_closed: int

    @staticmethod
    def of(status: Mapping[str, Any]) -> ProcessReport:
        storage, loop, pools = status["storage"], status["loop"], status["connection_memory"].values()
        return ProcessReport(
            failing_tasks=status["failing_tasks"],
            down_tasks=tuple(
                name
                for name, state in status["background_tasks"].items()
                if state in ("backing off", "failed")
            ),
            offline_directories=storage["offline_directories"],
            offline_partitions=storage["offline_partitions"],
            damaged_partitions=storage["damaged_partitions"],
            offline_reasons=storage["offline_reasons"],
            set_aside=tuple(storage["set_aside"]),
            longest_turn_ms=None if loop is None else loop["recent_cpu_ms"],
            longest_turn_culprit="" if loop is None else loop["recent_cpu_culprit"],
            memory_used=sum(pool["requests"] + pool["responses"] for pool in pools),
            memory_limit=sum(pool["limit"] for pool in pools),
            memory_waiting=sum(pool["waiting"] for pool in pools),
            slow_clients_closed=sum(
                pool["slow_readers_closed"] + pool["slow_senders_closed"] for pool in pools
            ),
        )

    @property
    def is_healthy(self) -> bool:
        return not (self.down_tasks or self.offline_directories or self.offline_partitions)

    def problems(self) -> list[str]:
        """A line for each thing that an operator should know."""
        lines = [f"directory {path} is offline: {error}" for path, error in self.offline_directories.items()]
        if self.offline_partitions:
            damaged = f", {self.damaged_partitions} of them damaged" if self.damaged_partitions else ""
            lines.append(f"{self.offline_partitions} replicas are offline{damaged}")
            lines += [f"{partition}: {error}" for partition, error in self.offline_reasons.items()]
            if self.offline_partitions > len(self.offline_reasons):
                lines.append(f"and {self.offline_partitions - len(self.offline_reasons)} replicas more")
        lines += [f"{path} holds a damaged log that was replaced" for path in self.set_aside]
        lines += [f"task {name}: {text}" for name, text in self.failing_tasks.items()]
        if self.memory_waiting:
            lines.append(f"{self.memory_waiting} requests and responses wait for memory of connections")
        if self.slow_clients_closed:
            lines.append(f"{self.slow_clients_closed} slow clients were closed, as memory was short")
        return lines


@dataclass(frozen=True, slots=True)
class NodeStatus:
    id: int
    roles: tuple[str, ...]
    state: ProcessState
    address: str | None
    pid: int | None
    memory_bytes: int | None
    leads: int
    replicas: int
    out_of_sync: int
    lag: int | None
    """The sum of the records that its replicas are behind their leaders."""
    quorum: str | None
    """Its role in the quorum: leader, voter or observer."""
    metadata_lag: int | None
    process: ProcessReport | None = None
    """None if it was not asked or did not answer."""
    is_silent: bool = False
    """Whether its process was asked and did not answer in time."""
    reason: str | None = None
    """Why it is down or silent, as far as its directory shows."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    lag: int | None
    """The lag of the slowest replica."""

    @property
    def under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    leader: int
    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    directory: str
    cluster_id: str
    bootstrap_servers: str
    nodes: tuple[NodeStatus, ...]
    quorum: QuorumStatus | None
    partitions: tuple[PartitionStatus, ...] | None
    """None if no broker answered."""
    command_config: str | None = None
    """The file of settings that clients of a secured cluster need."""
    zookeeper: str | None = None
    """Legacy: where the metadata are, instead of in a quorum."""

    @property
    def offline(self) -> int:
        return sum(partition.leader is None for partition in self.partitions or ())

    @property
    def under_replicated(self) -> int:
        return sum(partition.under_replicated for partition in self.partitions or ())

    @property
    def is_healthy(self) -> bool:
        """Every node runs with all its tasks and its storage, as far as it was asked, the quorum has a
        leader, and every replica of every partition is in sync.
        """
        return (
            all(
                node.state is ProcessState.RUNNING
                and not node.is_silent
                and (node.process is None or node.process.is_healthy)
                for node in self.nodes
            )
            and self.quorum is not None
            and self.partitions is not None
            and self.offline == self.under_replicated == 0
        )


@dataclass(slots=True)
class _Report:
    """The answers of the brokers."""

    topics: Sequence[TopicInfo]
    quorum: Quorum | None
    ends: Mapping[int, Mapping[TopicPartition, int]]
    """The log end offsets of each broker's replicas."""


async def read_status(
    plan: ClusterPlan, processes: Iterable[NodeProcess], admin: Admin | None, *, ask_processes: bool = False
) -> ClusterStatus:
    """The current status. Without an `admin`, or if no broker answers, only the processes; these report on
    themselves only with `ask_processes`, as each answer is a line in their logs.
    """
    found = [(process, process.state()) for process in processes]
    asked = {process: process.ask_status() for process, _ in found} if ask_processes else {}
    report = None
    running = [
        process.plan.id
        for process, state in found
        if state is ProcessState.RUNNING and process.plan.is_broker
    ]
    if admin is not None and running:
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                report = await _ask(admin, running)
    reports = await _process_reports({process: at for process, at in asked.items() if at is not None})
    down = {process.plan.id for process, state in found if state is ProcessState.DOWN}
    partitions = None if report is None else _partitions(report, down)
    return ClusterStatus(
        directory=str(plan.directory),
        cluster_id=plan.cluster_id,
        bootstrap_servers=plan.bootstrap_servers,
        nodes=tuple(
            replace(
                _node(process, state, partitions or (), report),
                process=reports.get(process),
                is_silent=asked.get(process) is not None and process not in reports,
                reason=_reason(process, state) if process not in reports else None,
            )
            for process, state in found
        ),
        quorum=None
        if report is None or report.quorum is None
        else QuorumStatus(report.quorum.leader_id, report.quorum.leader_epoch, report.quorum.high_watermark),
        partitions=partitions,
        command_config=plan.command_config,
        zookeeper=plan.zookeeper,
    )


def _reason(process: NodeProcess, state: ProcessState) -> str | None:
    """Why a process that says nothing may be down or silent."""
    if (full := no_room_text(process.plan)) is not None:
        return full
    if state is not ProcessState.DOWN:
        return None
    # Its answers to us are long lines in the same log, and say nothing of its end.
    lines = process.log_tail(_TAIL_BYTES).strip().splitlines()
    said = [line for line in lines if not line.startswith(STATUS.decode())]
    return f"its log ends with: {said[-1]}" if said else None


def no_room_text(node: NodePlan) -> str | None:
    """Say that the disk of a node is full; None if it is not. A process answers by its log, which then has no
    room for the answer.
    """
    try:
        disk = os.statvfs(node.directory)
    except OSError:
        return None
    if disk.f_bavail * disk.f_frsize >= _NO_ROOM_BYTES:
        return None
    return f"there is no room in {node.directory}; free some"


async def _process_reports(asked: Mapping[NodeProcess, int]) -> dict[NodeProcess, ProcessReport]:
    """What the processes say of themselves; without those that do not answer in time."""
    reports: dict[NodeProcess, ProcessReport] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PROCESS_SECONDS):
            while len(reports) < len(asked):
                for process, position in asked.items():
                    if process not in reports and (status := process.read_status(position)) is not None:
                        reports[process] = ProcessReport.of(status)
                await asyncio.sleep(_POLL_SECONDS)
    return reports


async def _ask(admin: Admin, running: Sequence[int]) -> _Report:
    topics = await admin.topics.list(include_internal=True)
    ends = await _ends(admin, topics, running)
    quorum = None
    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(_QUORUM_SECONDS):
            quorum = await admin.cluster.quorum()
    return _Report(topics, quorum, ends)


async def _ends(
    admin: Admin, topics: Sequence[TopicInfo], running: Sequence[int]
) -> Mapping[int, Mapping[TopicPartition, int]]:
    """The log end offsets of the replicas of each running broker."""
    held: dict[int, list[TopicPartition]] = {broker: [] for broker in running}
    for topic in topics:
        for partition in topic.partitions:
            for broker in partition.replicas:
                if broker in held:
                    held[broker].append(TopicPartition(topic.name, partition.partition))
    if sum(map(len, held.values())) > _MAX_PARTITIONS_WITH_LAG:
        return {}
    asked = {broker: admin.offsets.of_replica(broker, owned) for broker, owned in held.items() if owned}
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    return {
        broker: {p: end for p, end in answer.items() if isinstance(end, int)}
        for broker, answer in zip(asked, answers)
        if not isinstance(answer, BaseException)
    }


def _partitions(report: _Report, down: set[int]) -> tuple[PartitionStatus, ...]:
    """The partitions as the brokers know them. Without a quorum no controller has replaced a leader that is
    down, and the brokers still name it: its partitions have no leader.
    """
    return tuple(
        PartitionStatus(
            topic.name,
            partition.partition,
            partition.leader if partition.leader >= 0 and partition.leader not in down else None,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            max(
                (
                    lag
                    for broker in partition.replicas
                    if (
                        lag := _lag(
                            report, TopicPartition(topic.name, partition.partition), partition.leader, broker
                        )
                    )
                    is not None
                ),
                default=None,
            ),
        )
        for topic in report.topics
        for partition in topic.partitions
    )


def _lag(report: _Report, partition: TopicPartition, leader: int, broker: int) -> int | None:
    """The lag of a replica, never below 0: replicas are not asked at the same moment."""
    end = report.ends.get(leader, {}).get(partition)
    own = report.ends.get(broker, {}).get(partition)
    return None if end is None or own is None else max(end - own, 0)


def _node(
    process: NodeProcess, state: ProcessState, partitions: Sequence[PartitionStatus], report: _Report | None
) -> NodeStatus:
    node = process.plan
    held = [partition for partition in partitions if node.id in partition.replicas]
    lags = (
        []
        if report is None
        else [
            _lag(report, TopicPartition(p.topic, p.partition), -1 if p.leader is None else p.leader, node.id)
            for p in held
        ]
    )
    known = [lag for lag in lags if lag is not None]
    role, behind = _in_quorum(node.id, None if report is None else report.quorum)
    return NodeStatus(
        id=node.id,
        roles=node.roles,
        state=state,
        address=node.address,
        pid=process.pid(),
        memory_bytes=process.resident_bytes(),
        leads=sum(partition.leader == node.id for partition in held),
        replicas=len(held),
        out_of_sync=sum(node.id not in partition.in_sync for partition in held),
        lag=sum(known) if known else None,
        quorum=role,
        metadata_lag=behind,
    )


def _in_quorum(node_id: int, quorum: Quorum | None) -> tuple[str | None, int | None]:
    if quorum is None:
        return None, None
    ends = {member.replica_id: member.log_end_offset for member in (*quorum.observers, *quorum.voters)}
    if node_id not in ends:
        return None, None
    if node_id == quorum.leader_id:
        return "leader", 0
    role = "voter" if any(voter.replica_id == node_id for voter in quorum.voters) else "observer"
    end, leader_end = ends[node_id], ends.get(quorum.leader_id, -1)
    return role, max(leader_end - end, 0) if end >= 0 and leader_end >= 0 else None


# How it is shown


def facts(status: ClusterStatus) -> list[tuple[str, Cell]]:
    return [
        ("cluster", status.cluster_id),
        ("directory", status.directory),
        ("brokers", status.bootstrap_servers),
        *([] if status.command_config is None else [("clients", clients_text(status))]),
        (metadata_store(status), quorum_text(status, with_offset=True)),
        ("partitions", partitions_text(status)),
    ]


def metadata_store(status: ClusterStatus) -> str:
    """What has the metadata, as a label."""
    return "quorum" if status.zookeeper is None else "zookeeper"


def quorum_text(status: ClusterStatus, *, with_offset: bool = False) -> str:
    """Who leads the quorum or, with ZooKeeper, is the controller."""
    quorum = status.quorum
    what, at = ("leader", "") if status.zookeeper is None else ("controller", f"{status.zookeeper}, ")
    if quorum is None:
        return f"{at}no {what} is known"
    offset = f", high watermark {quorum.high_watermark}" if with_offset else ""
    return f"{at}{what} {quorum.leader}, epoch {quorum.epoch}{offset}"


def clients_text(status: ClusterStatus) -> str:
    return f"need --command-config {status.command_config}"


def partitions_text(status: ClusterStatus) -> str:
    if status.partitions is None:
        return "no broker answers"
    text = f"{len(status.partitions)}"
    if status.under_replicated:
        text += f", {status.under_replicated} with replicas out of sync"
    if status.offline:
        text += f", {status.offline} without a leader"
    if status.quorum is None:
        what = "a quorum" if status.zookeeper is None else "a controller"
        text += f" (last known: without {what} this does not change)"
    return text


def nodes_table(status: ClusterStatus, *, brief: bool = False) -> Table:
    """A row per node; with `brief`, without columns that do not change."""
    columns = {
        "node": [node.id for node in status.nodes],
        "roles": [",".join(node.roles) for node in status.nodes],
        "state": [node.state.value for node in status.nodes],
        "address": [node.address for node in status.nodes],
        "pid": [node.pid for node in status.nodes],
        "memory": [size_text(node.memory_bytes) for node in status.nodes],
        "leads": [node.leads for node in status.nodes],
        "replicas": [node.replicas for node in status.nodes],
        "out of sync": [node.out_of_sync for node in status.nodes],
        "lag": [node.lag for node in status.nodes],
        metadata_store(status): [node.quorum for node in status.nodes],
        "metadata lag": [node.metadata_lag for node in status.nodes],
    }
    if any(node.process is not None for node in status.nodes):
        columns["longest turn"] = [_turn_text(node.process) for node in status.nodes]
        columns["connections"] = [_connections_text(node.process) for node in status.nodes]
    shown = [name for name in columns if not (brief and name in ("roles", "address", "memory"))]
    return shown, list(zip(*(columns[name] for name in shown)))


def _turn_text(process: ProcessReport | None) -> str | None:
    if process is None or process.longest_turn_ms is None:
        return None
    return f"{process.longest_turn_ms:.0f} ms"


def _connections_text(process: ProcessReport | None) -> str | None:
    if process is None:
        return None
    return f"{size_text(process.memory_used)} of {size_text(process.memory_limit)}"


def problems(status: ClusterStatus) -> list[str]:
    """What nodes say is wrong with them, a line each."""
    lines = []
    for node in status.nodes:
        reason = "" if node.reason is None else f": {node.reason}"
        if node.is_silent:
            lines.append(f"node {node.id}: its process does not answer{reason}")
        elif node.state is ProcessState.DOWN and reason:
            lines.append(f"node {node.id} is down{reason}")
        if node.process is not None:
            lines += [f"node {node.id}: {line}" for line in node.process.problems()]
    return lines


def topics_table(status: ClusterStatus, limit: int | None = None) -> Table:
    """A row per topic, those with problems first."""
    by_topic: dict[str, list[PartitionStatus]] = {}
    for partition in status.partitions or ():
        by_topic.setdefault(partition.topic, []).append(partition)
    rows: list[tuple[int, int, Sequence[Cell]]] = []
    for topic, partitions in by_topic.items():
        leaders = Counter(p.leader for p in partitions if p.leader is not None)
        offline = sum(p.leader is None for p in partitions)
        behind = sum(p.under_replicated for p in partitions)
        lags = [p.lag for p in partitions if p.lag is not None]
        spread = " ".join(f"{node}:{count}" for node, count in sorted(leaders.items()))
        row = (topic, len(partitions), spread, behind, offline, sum(lags) if lags else None)
        rows.append((-offline, -behind, row))
    rows.sort(key=lambda each: each[:2])
    return ("topic", "partitions", "leaders", "out of sync", "offline", "lag"), [
        row for _, _, row in rows[:limit]
    ]


def partitions_table(status: ClusterStatus) -> Table:
    return ("topic", "partition", "leader", "epoch", "replicas", "in sync", "lag"), [
        (p.topic, p.partition, p.leader, p.leader_epoch, ids_text(p.replicas), ids_text(p.in_sync), p.lag)
        for p in status.partitions or ()
    ]


def document(status: ClusterStatus) -> dict[str, Any]:
    quorum = status.quorum
    return {
        "cluster_id": status.cluster_id,
        "directory": status.directory,
        "bootstrap_servers": status.bootstrap_servers,
        "command_config": status.command_config,
        "well": status.is_healthy,
        "quorum": None
        if quorum is None
        else {"leader": quorum.leader, "epoch": quorum.epoch, "high_watermark": quorum.high_watermark},
        "nodes": [
            {
                "id": node.id,
                "roles": list(node.roles),
                "state": node.state.value,
                "address": node.address,
                "pid": node.pid,
                "memory_bytes": node.memory_bytes,
                "leads": node.leads,
                "replicas": node.replicas,
                "out_of_sync": node.out_of_sync,
                "lag": node.lag,
                "quorum": node.quorum,
                "metadata_lag": node.metadata_lag,
                "silent": node.is_silent,
                "reason": node.reason,
                "process": None if node.process is None else asdict(node.process),
            }
            for node in status.nodes
        ],
        "partitions": None
        if status.partitions is None
        else [
            {
                "topic": p.topic,
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "in_sync": list(p.in_sync),
                "lag": p.lag,
            }
            for p in status.partitions
        ],
    }
