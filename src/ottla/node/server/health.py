"""The health of a node: whether it lives, and whether it is ready, with what is wrong if it is not.

A node is live while it has not given up: a supervisor restarts one that is not. It is ready when all of these
hold, each of which has its name in the answer:

- `started`: it has gone through its start, and has not begun to stop;
- `quorum`: the quorum has a leader, and the metadata log works;
- `caught_up`: this node has applied what the quorum has committed;
- `registered`: the controller has registered this broker, hears of it and lets it serve;
- `storage`: no directory and no replica of this node is offline;
- `partitions`: every partition with a replica here has a leader;
- `in_sync`: every replica here is in sync with its leader;
- `tasks`: all background tasks run.

The walk over all partitions is done in turns, and again only when topics have changed, or what this node
hosts: a new image of the metadata alone, which controllers make twice a second, is no reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from ottla.metadata.image.image import TopicsImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.http.checks import CHECKS, IN_SYNC, PARTITIONS
from ottla.node.server.shared_server import SharedServer
from ottla.protocol.names import TopicPartition
from ottla.runtime.http_server import HttpMount, HttpProblem, HttpRoute, HttpServerRequest, HttpServerResponse
from ottla.runtime.tasks import TaskState, TaskStatus
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.node.server.broker_server import BrokerServer

# Partitions that are named where some are not as they should be.
_EXAMPLES: Final = 5


class NodeHealth:
    def __init__(
        self,
        shared: SharedServer,
        quorum: Callable[[], QuorumMember | None],
        broker: Callable[[], BrokerServer | None],
    ) -> None:
        """`quorum` and `broker` are None as long as the node has not come to them."""
        self._shared: Final = shared
        self._quorum: Final = quorum
        self._broker: Final = broker
        self._walk: Final = asyncio.Lock()
        # What the walk over the partitions found in these topics, and the version of what was hosted then.
        self._walked: tuple[TopicsImage, int] | None = None
        self._leaderless: list[TopicPartition] = []
        self._out_of_sync: list[TopicPartition] = []

    def live_problem(self) -> str | None:
        """Why the node is not live; None if it is."""
        return self._shared.state.failure

    async def ready_problems(self, skip: Collection[str] = ()) -> dict[str, str | None]:
        """The checks of readiness by name, those of `skip` left out; each with what is wrong, or None. Before
        the node has started, only those that can be made.
        """
        checks: dict[str, Callable[[], str | None]] = {"started": self._started, "tasks": self._tasks}
        quorum, broker = self._quorum(), self._broker()
        if quorum is not None:
            checks["quorum"] = lambda: _quorum(quorum.metadata)
        if quorum is not None and self._shared.state.is_serving:
            checks["caught_up"] = lambda: _caught_up(quorum.metadata)
            # A controller registers before it is ready, and stays so.
            checks["registered"] = lambda: None if broker is None else self._registered(broker)
            if broker is not None:
                if PARTITIONS not in skip or IN_SYNC not in skip:
                    await self._walk_partitions(broker)
                checks["storage"] = lambda: _storage(broker)
                checks[PARTITIONS] = lambda: _counted(self._leaderless, "partitions have no leader")
                checks[IN_SYNC] = lambda: _counted(
                    self._out_of_sync, "replicas are not in sync with their leaders"
                )
        return {name: checks[name]() for name in CHECKS if name in checks and name not in skip}

    def _started(self) -> str | None:
        state = self._shared.state
        if state.failure is not None:
            return f"the node has given up: {state.failure}"
        return None if state.is_serving else state.phase

    def _registered(self, broker: BrokerServer) -> str | None:
        config = self._shared.config
        registration = self._shared.image().cluster.brokers.get(config.node_id)
        if registration is None or registration.epoch != broker.lifecycle.epoch:
            return f"broker {config.node_id} is not registered"
        silent_ms = broker.lifecycle.unanswered_ms
        if silent_ms > config.number("broker.session.timeout.ms"):
            return f"no controller has answered a heartbeat of broker {config.node_id} for {silent_ms} ms"
        if registration.in_controlled_shutdown:
            return f"broker {config.node_id} is shutting down"
        return f"broker {config.node_id} is fenced by the controller" if registration.fenced else None

    def _tasks(self) -> str | None:
        down = [each for each in self._shared.tasks.statuses() if _is_down(each)]
        return "; ".join(f"{each.name}: {each.state.value}, {each.last_error}" for each in down) or None

    async def _walk_partitions(self, broker: BrokerServer) -> None:
        """Find the partitions of this broker that are not as they should be, unless nothing has changed."""
        async with self._walk:
            topics, version = self._shared.image().topics, broker.replicas.partitions_version
            if self._walked is not None and self._walked[0] is topics and self._walked[1] == version:
                return
            node_id = self._shared.config.node_id
            leaderless: list[TopicPartition] = []
            out_of_sync: list[TopicPartition] = []
            turns = Turns(self._shared.runtime.clock, check_every=16)
            for partition in broker.replicas:
                tp = partition.topic_partition
                registration = topics.partition(partition.topic_id, tp.partition)
                if registration is not None and node_id in registration.replicas:
                    if registration.leader < 0:
                        leaderless.append(tp)
                    elif node_id not in registration.isr:
                        out_of_sync.append(tp)
                await turns.pause_if_due()
            self._walked = topics, version
            self._leaderless, self._out_of_sync = leaderless, out_of_sync

    # Answers

    async def routes(self) -> HttpMount:
        return HttpMount(
            (
                HttpRoute("GET", "/health/live", self._answer_live),
                HttpRoute("GET", "/health/ready", self._answer_ready),
            )
        )

    async def _answer_live(self, request: HttpServerRequest) -> HttpServerResponse:
        problem = self.live_problem()
        answer: dict[str, Any] = {"status": "failed" if problem else "live"}
        if request.principal is not None:
            answer |= self._identity()
            answer["problems"] = [problem] if problem else []
            answer["tasks"] = self._described_tasks()
        return HttpServerResponse.json(answer, 503 if problem else 200)

    async def _answer_ready(self, request: HttpServerRequest) -> HttpServerResponse:
        skip = [name for name in request.query().get("skip", "").split(",") if name]
        if unknown := [name for name in skip if name not in CHECKS]:
            raise HttpProblem(400, f"There is no check {unknown[0]!r}; there are {', '.join(CHECKS)}.")
        checks = await self.ready_problems(skip)
        problems = {name: problem for name, problem in checks.items() if problem is not None}
        answer: dict[str, Any] = {"status": "not ready" if problems else "ready"}
        if request.principal is not None:
            answer |= self._identity()
            answer["checks"] = {name: problem or "ok" for name, problem in checks.items()}
            answer["problems"] = [f"{name}: {problem}" for name, problem in problems.items()]
            answer["tasks"] = self._described_tasks()
        return HttpServerResponse.json(answer, 503 if problems else 200)

    def _identity(self) -> dict[str, Any]:
        config = self._shared.config
        return {"node": config.node_id, "roles": list(config.names("process.roles"))}

    def _described_tasks(self) -> dict[str, Any]:
        """The background tasks: how many run, and those that had errors since the start."""
        statuses = self._shared.tasks.statuses()
        return {
            "running": sum(not _is_down(each) for each in statuses),
            "down": sum(map(_is_down, statuses)),
            "with_errors": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "errors": each.restarts,
                    "last_error": each.last_error,
                    "last_error_ms": each.last_error_ms,
                }
                for each in statuses
                if each.restarts
            ],
        }


def _is_down(status: TaskStatus) -> bool:
    return status.state in (TaskState.BACKING_OFF, TaskState.FAILED)


def _quorum(metadata: MetadataLog) -> str | None:
    if metadata.failure is not None:
        return f"the metadata log failed: {metadata.failure}"
    if metadata.leader_id is None:
        return metadata.missing_leader_text
    return None


def _storage(broker: BrokerServer) -> str | None:
    status = broker.storage_status()
    problems = [f"directory {path} is offline: {error}" for path, error in status.offline_directories.items()]
    if status.offline_partitions:
        damaged = status.damaged_partitions
        examples = "; ".join(f"{tp}: {error}" for tp, error in status.offline_reasons.items())
        problems.append(
            f"{status.offline_partitions} replicas are offline"
            f"{f', {damaged} of them damaged' if damaged else ''}: {examples}"
        )
    return "; ".join(problems) or None


def _caught_up(metadata: MetadataLog) -> str | None:
    if metadata.is_caught_up:
        return None
    return f"the metadata are applied up to offset {metadata.image.provenance.last_contained_offset}"


def _counted(partitions: list[TopicPartition], what: str) -> str | None:
    if not partitions:
        return None
    more = "" if len(partitions) <= _EXAMPLES else ", ..."
    return f"{len(partitions)} {what}: {', '.join(map(str, partitions[:_EXAMPLES]))}{more}"
