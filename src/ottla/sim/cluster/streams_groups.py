"""Members of a streams group, which speak the protocol themselves.

A member joins with a topology of one subtopology, takes the tasks that it gets, gives up those that it loses,
and leaves cleanly or is gone without a word.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.client.admin.admin import AdminConfig
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.client.settings import connection_config, settings_of
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)
from ottla.rpc.channel import Lane
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.environment import EVENTS, ORDERS, ClusterEnvironment, attempt

_GROUP: Final = "streams"
_SUBTOPOLOGY: Final = "0"
_TOPICS: Final = (EVENTS, ORDERS)
_TOPOLOGY: Final = Topology(
    epoch=1, subtopologies=[Subtopology(subtopology_id=_SUBTOPOLOGY, source_topics=list(_TOPICS))]
)
_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_REQUEST_MS: Final = 2_500
_REBALANCE_MS: Final = 3_000


class StreamsWorker:
    """A process that is a member of the streams group, until all tasks are assigned at the end."""

    def __init__(self, environment: ClusterEnvironment, name: str) -> None:
        self._environment = environment
        self.name = name
        self._is_over = False

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not self.is_over():
            member = _StreamsMember(environment, self, runtime)
            await attempt(environment, self.name, member.run)
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    def is_over(self) -> bool:
        """Whether all tasks were assigned at the end: after that, members leave one after the other."""
        environment = self._environment
        if environment.draining and not self._is_over:
            partitions = max(environment.partitions(topic) for topic in _TOPICS)
            self._is_over = environment.checker.streams.reason_not_assigned(partitions) is None
        return self._is_over


class _StreamsMember:
    """A membership in the group, from joining to leaving."""

    def __init__(self, environment: ClusterEnvironment, worker: StreamsWorker, runtime: Runtime) -> None:
        self._environment = environment
        self._worker = worker
        self._random = runtime.random
        self._id = runtime.random.uuid().hex()[:22]
        config = settings_of(
            AdminConfig,
            environment.servers,
            {"request_timeout_ms": _REQUEST_MS, "socket_connection_setup_timeout_ms": 1_000},
        )
        self._cluster = NetworkClient(runtime, connection_config(config))
        self._coordinator = CoordinatorClient(
            self._cluster, CoordinatorType.GROUP, _GROUP, timeout_ms=_REQUEST_MS, lane=Lane.GROUP
        )
        self._epoch = _JOIN_EPOCH
        # The tasks that it has, and whether the coordinator does not know yet.
        self._tasks: list[TaskIds] = []
        self._is_changed = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 1 + self._random.random() * 10
        async with self._cluster:
            while not self._worker.is_over() and (loop.time() < until or self._environment.draining):
                try:
                    interval_ms = await self._heartbeat()
                except (KafkaError, OSError) as error:
                    self._environment.trace(self._worker.name, f"no heartbeat: {error}")
                    self._coordinator.forget()
                    # The response may have had tasks: the response to a join has all of them.
                    self._epoch, self._tasks, interval_ms = _JOIN_EPOCH, [], 200
                await asyncio.sleep(interval_ms / 1000)
            if self._random.random() < 0.7 or self._environment.draining:
                self._epoch = _LEAVE_EPOCH
                await self._heartbeat()
                self._count("leaves")
            else:
                self._count("is gone without a word")

    def _count(self, what: str) -> None:
        self._environment.world.coverage[f"streams: {what}"] += 1

    async def _heartbeat(self) -> int:
        joins = self._epoch == _JOIN_EPOCH
        tells = joins or (self._is_changed and self._epoch != _LEAVE_EPOCH)
        request = StreamsGroupHeartbeatRequest(
            group_id=_GROUP,
            member_id=self._id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=_REBALANCE_MS if joins else -1,
            topology=_TOPOLOGY if joins else None,
            process_id=self._worker.name if joins else None,
            active_tasks=self._tasks if tells else None,
            standby_tasks=[] if tells else None,
            warmup_tasks=[] if tells else None,
        )
        response = await self._coordinator.once(request, StreamsGroupHeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if code:
            raise KafkaError(code, response.error_message)
        self._is_changed = False
        if self._epoch != _LEAVE_EPOCH:
            self._epoch = response.member_epoch
        if response.active_tasks is not None:
            self._count("assignments")
            self._tasks, self._is_changed = response.active_tasks, True
            return 50
        return response.heartbeat_interval_ms
