"""The cluster as a whole: brokers, quorum, what is wrong now, and charts that move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

from ottla import __version__
from ottla.client.admin.cluster import Quorum
from ottla.client.admin.log_dirs import LogDir
from ottla.client.cluster_metadata import TopicInfo
from ottla.console.api.streams import event_stream
from ottla.console.api.topics import is_offline, is_under_replicated
from ottla.console.api_request import ApiRequest, not_available
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.files.inspector import NodeCounters
from ottla.console.group_lag import end_offsets
from ottla.console.history import Sample, SampledHistory
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.http_server import HttpServerResponse
from ottla.runtime.tasks import TaskState, TaskStatus

T = TypeVar("T")

_POINTS: Final = 300
_INTERVAL_SECONDS: Final = 2.0
_KEEP_SECONDS: Final = 600.0
MAX_WARNINGS: Final = 50
_MAX_NAMED: Final = 5
_LOW_SPACE: Final = 0.05
MAX_MIN_ISR_TOPICS: Final = 50
_MIN_ISR: Final = "min.insync.replicas"
_SILENT_MS: Final = 10_000


async def overview(context: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    admin = await context.access.admin()
    problems: list[str] = []

    async def tolerant(what: str, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except KafkaError as error:
            problems.append(f"{what}: {error.message}")
            return None

    cluster, topics, quorum, features, groups, directories = await asyncio.gather(
        admin.cluster.describe(),
        context.access.topics(),
        tolerant("quorum", admin.cluster.quorum()),
        tolerant("features", admin.cluster.features()),
        tolerant("groups", admin.groups.list()),
        tolerant("log directories", admin.log_dirs.describe(partitions=[])),
    )
    partitions = [each for topic in topics for each in topic.partitions]
    known = {broker.node_id for broker in cluster.brokers}
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    behind: dict[int, int] = {}
    for each in partitions:
        leaders[each.leader] = leaders.get(each.leader, 0) + 1
        for replica in each.replicas:
            replicas[replica] = replicas.get(replica, 0) + 1
            if replica not in each.isr:
                behind[replica] = behind.get(replica, 0) + 1
    by_broker: dict[int, list[LogDir]] = {}
    for directory in directories or ():
        by_broker.setdefault(directory.broker_id, []).append(directory)
    tasks = await _tasks(context)
    below = await _under_min_isr(context, topics, problems)
    return {
        "clusterId": cluster.cluster_id,
        "controllerId": cluster.controller_id,
        "brokers": [
            {
                "id": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "isController": _is_controller(broker.node_id, quorum, cluster.controller_id),
                "leaders": leaders.get(broker.node_id, 0),
                "replicas": replicas.get(broker.node_id, 0),
                "underReplicated": behind.get(broker.node_id, 0),
                **_space(by_broker.get(broker.node_id)),
            }
            for broker in cluster.brokers
        ],
        "quorum": None if quorum is None else _quorum(quorum),
        "topics": sum(not topic.is_internal for topic in topics),
        "internalTopics": sum(topic.is_internal for topic in topics),
        "partitions": len(partitions),
        "underReplicatedPartitions": sum(map(is_under_replicated, partitions)),
        "underMinIsrPartitions": sum(below.values()),
        "offlinePartitions": sum(map(is_offline, partitions)),
        "groups": None if groups is None else len(groups),
        "features": [
            {"name": name, "finalized": each.finalized, "min": each.min_supported, "max": each.max_supported}
            for name, each in (features or {}).items()
        ],
        "warnings": warnings_of(
            topics,
            known,
            directories or [],
            tasks,
            under_min_isr=below,
            silent_voters=_silent_voters(quorum),
        )[:MAX_WARNINGS],
        "node": await _node(context, tasks),
        "problems": problems,
    }


def _is_controller(broker: int, quorum: Quorum | None, named: int) -> bool:
    return broker == (named if quorum is None else quorum.leader_id)


def _space(directories: list[LogDir] | None) -> dict[str, Any]:
    totals = [each.total_bytes for each in directories or () if each.total_bytes is not None]
    usable = [each.usable_bytes for each in directories or () if each.usable_bytes is not None]
    return {
        "logDirs": None if directories is None else len(directories),
        "usedBytes": sum(totals) - sum(usable) if totals and usable else None,
        "totalBytes": sum(totals) if totals else None,
        "usableBytes": sum(usable) if usable else None,
    }


def _quorum(quorum: Quorum) -> dict[str, Any]:
    ends = [each.log_end_offset for each in (*quorum.voters, *quorum.observers)]
    latest = max(ends, default=0)

    def replica(each: Any) -> dict[str, Any]:
        return {
            "id": each.replica_id,
            "logEndOffset": each.log_end_offset if each.log_end_offset >= 0 else None,
            "lag": latest - each.log_end_offset if each.log_end_offset >= 0 else None,
            "lastFetchMs": each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
            "lastCaughtUpMs": each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
        }

    return {
        "leaderId": quorum.leader_id,
        "leaderEpoch": quorum.leader_epoch,
        "highWatermark": quorum.high_watermark,
        "voters": [replica(each) for each in quorum.voters],
        "observers": [replica(each) for each in quorum.observers],
    }


async def _under_min_isr(context: ApiContext, topics: list[TopicInfo], problems: list[str]) -> dict[str, int]:
    """How many partitions of each topic have fewer replicas in sync than `min.insync.replicas`. Topics that
    have all their replicas are not asked for it.
    """
    behind = [topic for topic in topics if any(map(is_under_replicated, topic.partitions))]
    if len(behind) > MAX_MIN_ISR_TOPICS:
        problems.append(
            f"{len(behind)} topics are under-replicated: min.insync.replicas was read of {MAX_MIN_ISR_TOPICS}"
        )
    admin = await context.access.admin()

    asked = behind[:MAX_MIN_ISR_TOPICS]
    try:
        settings = await admin.configs.describe_topics((topic.name for topic in asked), keys=(_MIN_ISR,))
    except KafkaError:
        settings = {}

    def min_isr(topic: TopicInfo) -> int:
        shown = settings.get(topic.name)
        if not isinstance(shown, dict) or _MIN_ISR not in shown:
            return 1  # a topic that is gone by now, or one whose settings this user may not see
        return int(shown[_MIN_ISR].value or 1)

    bounds = map(min_isr, asked)
    found = {
        topic.name: sum(len(each.isr) < bound for each in topic.partitions)
        for topic, bound in zip(asked, bounds, strict=True)
    }
    return {name: count for name, count in found.items() if count}


def _silent_voters(quorum: Quorum | None) -> list[int]:
    """Voters that have not fetched for a while, by the clock of the leader: those who fetched last."""
    if quorum is None:
        return []
    latest = max((each.last_fetch_timestamp for each in (*quorum.voters, *quorum.observers)), default=-1)
    return [
        each.replica_id
        for each in quorum.voters
        if each.replica_id != quorum.leader_id and latest - each.last_fetch_timestamp > _SILENT_MS
    ]


def warnings_of(
    topics: list[TopicInfo],
    brokers: set[int],
    directories: list[LogDir],
    tasks: list[TaskStatus] | None,
    *,
    under_min_isr: dict[str, int],
    silent_voters: list[int],
) -> list[dict[str, Any]]:
    """What is wrong now, the worst first."""
    errors: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    offline = _affected(topics, is_offline)
    if offline:
        text = f"{_counted(offline, 'partition has', 'partitions have')} no leader, of {_named(offline)}."
        errors.append(_warning("error", text, page="topics", health="offline"))
    if under_min_isr:
        text = (
            f"{_counted(under_min_isr, 'partition has', 'partitions have')} fewer replicas in sync than "
            f"min.insync.replicas, of {_named(under_min_isr)}: writes with acks=all fail."
        )
        errors.append(_warning("error", text, page="topics", health="underReplicated"))
    errors += (
        _warning("error", f"Controller {voter} is a voter of the quorum, but does not fetch from its leader.")
        for voter in silent_voters[:_MAX_NAMED]
    )
    behind = _affected(topics, lambda each: is_under_replicated(each) and not is_offline(each))
    if behind:
        text = f"{_counted(behind, 'partition is', 'partitions are')} under-replicated, of {_named(behind)}."
        others.append(_warning("warning", text, page="topics", health="underReplicated"))
    missing = sorted(
        {replica for topic in topics for each in topic.partitions for replica in each.replicas} - brokers
    )
    errors += (
        _warning("error", f"Broker {broker} has replicas, but is not in the cluster.")
        for broker in missing[:_MAX_NAMED]
    )
    for each in directories:
        where = f"Log directory {each.path} of broker {each.broker_id}"
        if each.error:
            errors.append(_warning("error", f"{where} has failed: {each.error.text}", page="log-dirs"))
        elif each.total_bytes and each.usable_bytes is not None:
            left = each.usable_bytes / each.total_bytes
            if left < _LOW_SPACE:
                text = f"{where} has {left:.1%} of its space left."
                others.append(_warning("warning", text, page="log-dirs"))
    for task in tasks or ():
        if task.state in (TaskState.BACKING_OFF, TaskState.FAILED):
            text = f"Background task {task.name} is {task.state.value}: {task.last_error}"
            errors.append(_warning("error", text, page="tasks"))
    return errors + others


def _affected(topics: list[TopicInfo], wanted: Any) -> dict[str, int]:
    found = {topic.name: sum(1 for each in topic.partitions if wanted(each)) for topic in topics}
    return {name: count for name, count in found.items() if count}


def _counted(affected: dict[str, int], one: str, many: str) -> str:
    count = sum(affected.values())
    return f"{count} {one if count == 1 else many}"


def _named(affected: dict[str, int]) -> str:
    names = sorted(affected)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{'topic' if len(names) == 1 else 'topics'} {', '.join(names[:_MAX_NAMED])}{more}"


def _warning(severity: str, text: str, **link: str) -> dict[str, Any]:
    return {"severity": severity, "text": text, "link": link or None}


async def _tasks(context: ApiContext) -> list[TaskStatus] | None:
    inspector = context.services.inspector
    return None if inspector is None else await inspector.tasks()


async def _node(context: ApiContext, tasks: list[TaskStatus] | None) -> dict[str, Any] | None:
    inspector = context.services.inspector
    if inspector is None or inspector.node_id is None:
        return None
    failed = sum(each.state in (TaskState.FAILED, TaskState.BACKING_OFF) for each in tasks or ())
    return {
        "id": inspector.node_id,
        "version": __version__,
        "uptimeMs": await inspector.uptime_ms(),
        "tasks": {"running": len(tasks or ()) - failed, "failed": failed},
    }


async def list_tasks(context: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    tasks = await _tasks(context)
    if tasks is None:
        raise not_available("background tasks are shown by a console that runs in a node")
    return {
        "items": [
            {
                "name": each.name,
                "state": each.state.value,
                "restarts": each.restarts,
                "lastError": each.last_error,
                "lastErrorMs": each.last_error_ms,
            }
            for each in tasks
        ],
        "problems": [],
    }


# Charts


async def overview_stream(context: ApiContext, _request: ApiRequest) -> HttpServerResponse:
    session = context.session
    if session.overview is None:
        session.overview = SampledHistory(
            context.runtime.clock,
            ThroughputSampler(context).take,
            interval_seconds=_INTERVAL_SECONDS,
            size=_POINTS,
            keep_seconds=_KEEP_SECONDS,
        )
    history = session.overview

    async def samples() -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async for sample in history.follow():
            yield "sample", sample

    return event_stream(context, samples())


class ThroughputSampler:
    """Rates between two looks: at the ends of all partitions, and at the counters of the node."""

    def __init__(self, context: ApiContext) -> None:
        self._context: Final = context
        self._ends: dict[TopicPartition, int] | None = None
        self._counters: NodeCounters | None = None
        self._at_ns = 0

    async def take(self) -> Sample | None:
        context = self._context
        clock = context.runtime.clock
        topics = await context.access.topics()
        partitions = [
            TopicPartition(topic.name, each.partition)
            for topic in topics
            for each in topic.partitions
            if not is_offline(each)
        ]
        ends = await end_offsets(context.access, partitions)
        inspector = context.services.inspector
        counters = None if inspector is None else await inspector.counters()
        admin = await context.access.admin()
        began = clock.monotonic_ns()
        await admin.cluster.api_versions()
        now = clock.monotonic_ns()
        seconds = (now - self._at_ns) / 1e9
        before_ends, before = self._ends, self._counters
        self._ends, self._counters, self._at_ns = ends, counters, now
        if before_ends is None:
            return None
        arrived = sum(max(end - before_ends.get(each, end), 0) for each, end in ends.items())
        return {
            "time": context.now_ms(),
            "messagesInPerSecond": round(arrived / seconds, 2),
            **_node_rates(before, counters, seconds),
            "roundTripMs": round((now - began) / 1e6, 3),
        }


def _node_rates(before: NodeCounters | None, now: NodeCounters | None, seconds: float) -> dict[str, Any]:
    if before is None or now is None:
        return {
            "bytesInPerSecond": None,
            "bytesOutPerSecond": None,
            "requestsPerSecond": None,
            "requestLatencyMs": None,
        }

    def rate(name: str) -> float | None:
        last, first = getattr(now, name), getattr(before, name)
        return None if last is None or first is None else round(max(last - first, 0) / seconds, 2)

    latency: dict[str, float | None] | None = None
    if now.request_ms is not None and now.requests is not None:
        count = now.requests - (before.requests or 0)
        took = now.request_ms - (before.request_ms or 0)
        mean = round(took / count, 3) if count > 0 else None
        latency = {"mean": mean, "p99": _quantile(before, now, 0.99)}
    return {
        "bytesInPerSecond": rate("bytes_in"),
        "bytesOutPerSecond": rate("bytes_out"),
        "requestsPerSecond": rate("requests"),
        "requestLatencyMs": latency,
    }


def _quantile(before: NodeCounters, now: NodeCounters, part: float) -> float | None:
    """The bound of the bucket in which a part of the requests ended."""
    earlier = dict(before.request_buckets)
    counts = [(bound, count - earlier.get(bound, 0)) for bound, count in now.request_buckets]
    if not counts or counts[-1][1] <= 0:
        return None
    wanted = counts[-1][1] * part
    found = next(bound for bound, count in counts if count >= wanted)
    return found if found != float("inf") else counts[-2][0] if len(counts) > 1 else None


ROUTES: Final = (
    ConsoleRoute("GET", "/api/overview", overview),
    ConsoleRoute("GET", "/api/overview/stream", overview_stream),
    ConsoleRoute("GET", "/api/tasks", list_tasks),
)
