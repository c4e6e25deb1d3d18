"""What a running node does from time to time: signs of life, retention, flushes, checkpoints, cleaning.

When is set by Kafka's own settings, which are read anew each time as they may change. All of it begins
once the node serves, so that none of it delays a start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.metadata.controller.quorum_controller import QuorumController
from ottla.node.chores import Chores
from ottla.node.config.component_settings import cleaner_config
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import LogCleaner
    from ottla.node.node import Node

_log = logging.getLogger(__name__)

_CONTROLLER_TICK_MS: Final = 1_000
_WATCH_TICK_MS: Final = 250
_DELETION_TICK_MS: Final = 15_000
_OFFLINE_TICK_MS: Final = 10_000
_LACK_TICK_MS: Final = 1_000
# How long a log may refuse records for lack of room before others are to do without this broker, and how long
# they have to find out whether they can: where all disks are full, leaderships should not go round.
_LACK_PATIENCE_MS: Final = 5_000
_STEP_ASIDE_EVERY_MS: Final = 60_000


class Upkeep:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._chores: Final = Chores()
        self._quorum_chores: Final = Chores()
        self._cleaner: LogCleaner | None = None
        self._stepped_aside_ms = -_STEP_ASIDE_EVERY_MS

    def start_quorum(self) -> None:
        """Begin with what concerns the metadata log and its controller."""
        node, every = self._node, self._quorum_chores.every
        every(lambda: _CONTROLLER_TICK_MS, self._tick, "controller tick")
        every(self._watch_interval_ms, self._watch, "watch over brokers")
        if node.config.flag("auto.leader.rebalance.enable"):
            every(
                self._setting("leader.imbalance.check.interval.seconds", 1000),
                partial(self._decide, QuorumController.balance_leaders),
                "balancing of leaders",
            )
        every(
            self._setting("unclean.leader.election.interval.ms"),
            partial(self._decide, QuorumController.elect_unclean_leaders),
            "unclean elections",
        )

    async def stop_quorum(self) -> None:
        await self._quorum_chores.stop()

    def start(self) -> None:
        node, every = self._node, self._chores.every
        logs = node.logs
        first_ms = node.config.number("log.initial.task.delay.ms")
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
        every(lambda: _OFFLINE_TICK_MS, self._retry_offline, "retry of partitions without a log")
        every(lambda: _LACK_TICK_MS, self._step_aside, "handing over for lack of room")
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
        failure = node.metadata.failure
        if failure is not None:
            node.fail(f"the metadata log failed: {failure}")
            return
        await self._decide(QuorumController.tick)
        await node.metadata.maybe_snapshot()

    def _watch_interval_ms(self) -> int:
        """A node alone has nobody to watch."""
        others = len(self._node.image.cluster.brokers) > 1
        return (
            _WATCH_TICK_MS
            if others and self._node.active_controller.current is not None
            else _CONTROLLER_TICK_MS
        )

    async def _watch(self) -> None:
        self._node.quorum.liveness.look_for_silent()

    async def _decide(self, work: Callable[[QuorumController], Awaitable[None]]) -> None:
        """What the active controller does by itself, if it is here."""
        active = self._node.active_controller.current
        if active is None:
            return
        try:
            await work(active)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise

    async def _retention(self) -> None:
        await self._node.logs.delete_expired(self._node.now_ms())

    async def _flush(self) -> None:
        await self._node.logs.flush_dirty(self._node.now_ms())

    async def _expire_producers(self) -> None:
        await self._node.logs.expire_producers(self._node.now_ms())

    async def _remove_deleted(self) -> None:
        await self._node.logs.remove_deleted(self._node.now_ms())

    async def _shrink_isrs(self) -> None:
        self._node.replicas.maybe_shrink_isrs(self._node.now_ms())

    async def _retry_offline(self) -> None:
        """A log that could not be made for lack of room may have some by now."""
        node = self._node
        if node.replicas.offline:
            changes = node.replicas.retry_offline(node.now_ms())
            node.replication.follow(changes)
            node.coordinators.follow(node.image, changes)

    async def _step_aside(self) -> None:
        """A broker whose disk is full holds others up: they are to do without it until there is room."""
        node = self._node
        if not any(directory.lacks_room for directory in node.logs.live_directories):
            if node.lifecycle.is_aside:
                _log.warning("there is room again: this broker serves")
                node.lifecycle.step_back()
            return
        if node.lifecycle.is_aside:
            return
        monotonic_ms = node.runtime.clock.monotonic_ns() // 1_000_000
        if monotonic_ms - self._stepped_aside_ms < _STEP_ASIDE_EVERY_MS:
            return
        if node.replicas.rejects_what_others_could_take(node.now_ms() - _LACK_PATIENCE_MS):
            _log.warning(
                "a log has had no room for %d ms: this broker steps aside until there is some",
                _LACK_PATIENCE_MS,
            )
            self._stepped_aside_ms = monotonic_ms
            node.lifecycle.step_aside()

    async def _clean(self) -> None:
        from ottla.log.cleaner.cleaner import LogCleaner

        runtime = self._node.runtime
        self._cleaner = LogCleaner(
            runtime.clock,
            runtime.random,
            runtime.pool,
            self._node.logs.logs,
            cleaner_config(self._node.config),
        )
        await self._cleaner.run()
