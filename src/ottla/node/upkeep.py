"""What a running node does from time to time: signs of life, retention, flushes, checkpoints, cleaning.

When is set by Kafka's own settings, which are read anew each time as they may change. All of it begins
once the node serves, so that none of it delays a start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.node.chores import Chores
from ottla.node.settings import cleaner_config

if TYPE_CHECKING:
    from ottla.log.cleaner import LogCleaner
    from ottla.node.node import Node

_CONTROLLER_TICK_MS: Final = 1_000
_DELETION_TICK_MS: Final = 15_000


class Upkeep:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._chores: Final = Chores()
        self._cleaner: LogCleaner | None = None

    def start(self) -> None:
        node, every = self._node, self._chores.every
        logs = node.logs
        first_ms = node.config.number("log.initial.task.delay.ms")
        every(lambda: _CONTROLLER_TICK_MS, self._tick, "controller tick")
        every(
            self._setting("log.retention.check.interval.ms"), self._retention, "retention", first_ms=first_ms
        )
        every(self._setting("log.flush.scheduler.interval.ms"), self._flush, "flush", first_ms=first_ms)
        every(
            self._setting("log.flush.offset.checkpoint.interval.ms"),
            logs.checkpoint_recovery_points,
            "checkpoint of recovery points",
            first_ms=first_ms,
        )
        every(
            self._setting("log.flush.start.offset.checkpoint.interval.ms"),
            logs.checkpoint_log_starts,
            "checkpoint of log starts",
            first_ms=first_ms,
        )
        every(
            self._setting("replica.high.watermark.checkpoint.interval.ms"),
            logs.checkpoint_high_watermarks,
            "checkpoint of high watermarks",
        )
        every(
            self._setting("producer.id.expiration.check.interval.ms"),
            self._expire_producers,
            "expiry of producers",
        )
        every(lambda: _DELETION_TICK_MS, self._remove_deleted, "removal of deleted files")
        every(self._setting("replica.lag.time.max.ms", 0.5), self._shrink_isrs, "shrinking of in-sync sets")
        if node.config.flag("auto.leader.rebalance.enable"):
            every(
                self._setting("leader.imbalance.check.interval.seconds", 1000),
                node.controller.balance_leaders,
                "balancing of leaders",
            )
        every(
            self._setting("unclean.leader.election.interval.ms"),
            node.controller.elect_unclean_leaders,
            "unclean elections",
        )
        if node.config.flag("log.cleaner.enable") and node.config.number("log.cleaner.threads") > 0:
            self._chores.run(self._clean, "log cleaner")

    def _setting(self, name: str, factor: float = 1) -> Callable[[], int]:
        return lambda: int(self._node.config.number(name) * factor)

    def configure(self) -> None:
        """The node's settings have changed."""
        if self._cleaner is not None:
            self._cleaner.reconfigure(cleaner_config(self._node.config))

    async def stop(self) -> None:
        await self._chores.stop()

    async def _tick(self) -> None:
        node = self._node
        failure = node.controller.log.failure
        if failure is not None:
            node.fail(f"the metadata log failed: {failure}")
            return
        # First the sign of life: a node that was stopped for a while must not find itself dead.
        await node.registration.heartbeat()
        await node.controller.tick()

    async def _retention(self) -> None:
        await self._node.logs.delete_expired(self._node.now_ms())

    async def _flush(self) -> None:
        await self._node.logs.flush_dirty(self._node.now_ms())

    async def _expire_producers(self) -> None:
        await self._node.logs.expire_producers(self._node.now_ms())

    async def _remove_deleted(self) -> None:
        await self._node.logs.remove_deleted(self._node.now_ms())

    async def _shrink_isrs(self) -> None:
        self._node.replicas.shrink_isrs(self._node.now_ms())

    async def _clean(self) -> None:
        from ottla.log.cleaner import LogCleaner

        runtime = self._node.runtime
        self._cleaner = LogCleaner(
            runtime.clock,
            runtime.random,
            runtime.pool,
            self._node.logs.logs,
            cleaner_config(self._node.config),
        )
        await self._cleaner.run()
