"""The background tasks of the metadata log and of the controller: each runs as those of a broker do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ottla.metadata.controller.quorum_controller import QuorumController
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

_CONTROLLER_TICK_MS: Final = 1_000
_LIVENESS_TICK_MS: Final = 250


class ControllerTasks:
    """The periodic tasks of the metadata log, and of the active controller where it is on this node."""

    def __init__(
        self,
        tasks: TaskSupervisor,
        config: DynamicBrokerConfig,
        quorum: QuorumMember,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._tasks: Final = tasks
        self._config: Final = config
        self._quorum: Final = quorum
        self._on_fatal: Final = on_fatal
        self._started: list[SupervisedTask] = []

    def start(self) -> None:
        every, setting = self._every, self._config.reader
        every(lambda: _CONTROLLER_TICK_MS, self._tick, "controller tick")
        every(self._liveness_interval_ms, self._probe_silent_brokers, "liveness of brokers")
        if self._config.current.flag("auto.leader.rebalance.enable"):
            every(
                setting("leader.imbalance.check.interval.seconds", 1000),
                partial(self._decide, QuorumController.maybe_balance_partition_leaders),
                "balancing of leaders",
            )
        every(
            setting("unclean.leader.election.interval.ms"),
            partial(self._decide, QuorumController.elect_unclean_leaders),
            "unclean elections",
        )

        if self._config.current["delegation.token.secret.key"]:
            every(
                setting("delegation.token.expiry.check.interval.ms"),
                partial(self._decide, QuorumController.sweep_expired_delegation_tokens),
                "expired delegation tokens",
            )
        if self._config.current.number("metadata.max.idle.interval.ms") > 0:
            every(
                setting("metadata.max.idle.interval.ms"),
                partial(self._decide, QuorumController.maybe_write_no_op_record),
                "no-op records",
            )

    def _every(
        self,
        interval_ms: Callable[[], int],
        work: Callable[[], Awaitable[None]],
        name: str,
    ) -> None:
        self._started.append(self._tasks.every(interval_ms, work, name))

    async def stop(self) -> None:
        await self._tasks.stop(self._started)

    async def _tick(self) -> None:
        metadata = self._quorum.metadata
        if metadata.failure is not None:
            self._on_fatal(f"the metadata log failed: {metadata.failure}")
            return
        await self._decide(QuorumController.maybe_fence_stale_brokers)
        await metadata.maybe_snapshot()

    def _liveness_interval_ms(self) -> int:
        """A node without other brokers has none to probe."""
        others = len(self._quorum.metadata.image.cluster.brokers) > 1
        active = self._quorum.active_controller.current is not None
        return _LIVENESS_TICK_MS if others and active else _CONTROLLER_TICK_MS

    async def _probe_silent_brokers(self) -> None:
        self._quorum.liveness.probe_silent_brokers()

    async def _decide(self, work: Callable[[QuorumController], Awaitable[None]]) -> None:
        """Let the active controller do something by itself, if it is on this node."""
        active = self._quorum.active_controller.current
        if active is None:
            return
        try:
            await work(active)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
