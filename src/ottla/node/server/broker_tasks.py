"""The background tasks of a broker: retention, flushes, checkpoints, cleaning.

Each task runs alone, again and again, until the node stops, under the node's `TaskSupervisor`: one that fails
is logged and runs again the next time. Kafka's own settings say how often, and are read before each pause as
they may change. They begin once the broker serves, so that none of them delays a start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ottla.log.log_manager import LogManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.config.component_settings import cleaner_config, producer_config, scrub_config
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import LogCleaner
    from ottla.log.scrub.scrubber import LogScrubber

_log = logging.getLogger(__name__)

_DELETION_TICK_MS: Final = 15_000
_OFFLINE_TICK_MS: Final = 10_000
_FULL_DISK_TICK_MS: Final = 1_000
# How long a log may refuse records for lack of room before other brokers are to do without this one, and how
# long they have to find out whether they can: where all disks are full, leaderships should not go round.
_FULL_DISK_PATIENCE_MS: Final = 5_000
_FENCE_ITSELF_EVERY_MS: Final = 60_000


class BrokerTasks:
    """The periodic tasks of a broker's logs and replicas."""

    def __init__(
        self,
        tasks: TaskSupervisor,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        logs: LogManager,
        replicas: ReplicaManager,
        lifecycle: BrokerLifecycleManager,
        retry_offline: Callable[[], Awaitable[None]],
    ) -> None:
        """`retry_offline` creates logs that could not be created before."""
        self._runtime: Final = runtime
        self._config: Final = config
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._lifecycle: Final = lifecycle
        self._retry_offline: Final = retry_offline
        self._tasks: Final = tasks
        self._started: list[SupervisedTask] = []
        self._cleaner: LogCleaner | None = None
        self._scrubber: LogScrubber | None = None
        self._fenced_itself_ms = -_FENCE_ITSELF_EVERY_MS
        config.add_reconfigurable(self._configure)

    def start(self) -> None:
        every, config, logs = self._every, self._config, self._logs
        setting = config.reader
        first_ms = config.current.number("log.initial.task.delay.ms")
        every(setting("log.retention.check.interval.ms"), self._retention, "retention", first_ms=first_ms)
        every(setting("log.flush.scheduler.interval.ms"), self._flush, "flush", first_ms=first_ms)
        every(
            setting("log.flush.offset.checkpoint.interval.ms"),
            logs.checkpoint_log_recovery_offsets,
            "checkpoint of recovery points",
            first_ms=first_ms,
        )
        every(
            setting("log.flush.start.offset.checkpoint.interval.ms"),
            logs.checkpoint_log_start_offsets,
            "checkpoint of log starts",
            first_ms=first_ms,
        )
        every(
            setting("replica.high.watermark.checkpoint.interval.ms"),
            logs.checkpoint_high_watermarks,
            "checkpoint of high watermarks",
        )
        every(
            setting("producer.id.expiration.check.interval.ms"),
            self._expire_producers,
            "expiry of producers",
        )
        every(lambda: _DELETION_TICK_MS, self._remove_deleted, "removal of deleted files")
        every(setting("replica.lag.time.max.ms", 0.5), self._shrink_isrs, "shrinking of in-sync sets")
        every(lambda: _OFFLINE_TICK_MS, self._retry_offline_replicas, "retry of partitions without a log")
        every(lambda: _FULL_DISK_TICK_MS, self._fence_itself_if_full, "handing over for lack of room")
        if config.current.flag("log.cleaner.enable") and config.current.number("log.cleaner.threads") > 0:
            # Its state is a checkpoint that is behind at worst: a new run cleans again.
            self._started.append(self._tasks.start("log cleaner", self._clean))
        if config.current.flag("log.scrub.enable"):
            self._started.append(self._tasks.start("log scrubber", self._scrub))

    def _configure(self, config: NodeConfig) -> None:
        self._logs.update_producer_config(producer_config(config))
        if self._cleaner is not None:
            self._cleaner.reconfigure(cleaner_config(config))
        if self._scrubber is not None:
            self._scrubber.reconfigure(scrub_config(config))

    def _every(
        self,
        interval_ms: Callable[[], int],
        work: Callable[[], Awaitable[None]],
        name: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        self._started.append(self._tasks.every(interval_ms, work, name, first_ms=first_ms))

    @property
    def cleaner(self) -> LogCleaner | None:
        """The log cleaner, once it has begun."""
        return self._cleaner

    @property
    def scrubber(self) -> LogScrubber | None:
        """The scrubber of the logs, once it has begun."""
        return self._scrubber

    async def stop(self) -> None:
        await self._tasks.stop(self._started)

    def _now_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    async def _retention(self) -> None:
        await self._logs.cleanup_logs(self._now_ms())

    async def _flush(self) -> None:
        await self._logs.flush_dirty_logs(self._now_ms())

    async def _expire_producers(self) -> None:
        await self._logs.remove_expired_producers(self._now_ms())

    async def _remove_deleted(self) -> None:
        await self._logs.remove_deleted_files(self._now_ms())

    async def _shrink_isrs(self) -> None:
        await self._replicas.maybe_shrink_isrs(Turns(self._runtime.clock), self._now_ms())

    async def _retry_offline_replicas(self) -> None:
        """Retry logs that could not be created for lack of room: there may be some by now."""
        if self._replicas.has_offline_to_retry:
            await self._retry_offline()

    async def _fence_itself_if_full(self) -> None:
        """Fence this broker while its disk is full, as it holds other brokers up."""
        lifecycle = self._lifecycle
        if not any(directory.lacks_room for directory in self._logs.live_directories):
            if lifecycle.fences_itself:
                _log.warning("there is room again: this broker serves")
                lifecycle.stop_fencing_itself()
            return
        if lifecycle.fences_itself:
            return
        monotonic_ms = self._runtime.clock.monotonic_ns() // 1_000_000
        if monotonic_ms - self._fenced_itself_ms < _FENCE_ITSELF_EVERY_MS:
            return
        if self._replicas.has_partition_that_rejects_appends(self._now_ms() - _FULL_DISK_PATIENCE_MS):
            _log.warning(
                "a log has had no room for %d ms: this broker steps aside until there is some",
                _FULL_DISK_PATIENCE_MS,
            )
            self._fenced_itself_ms = monotonic_ms
            lifecycle.fence_itself()

    async def _clean(self) -> None:
        if self._cleaner is None:
            runtime = self._runtime
            cleaner_class = await runtime.pool.run(_import_cleaner)
            self._cleaner = cleaner_class(
                runtime.clock,
                runtime.random,
                runtime.pool,
                self._logs.logs,
                cleaner_config(self._config.current),
            )
        await self._cleaner.run()

    async def _scrub(self) -> None:
        if self._scrubber is None:
            runtime = self._runtime
            scrubber_class = await runtime.pool.run(_import_scrubber)
            self._scrubber = scrubber_class(
                runtime.clock,
                runtime.pool,
                self._logs.logs,
                self._logs.flush,
                scrub_config(self._config.current),
            )
        await self._scrubber.run(self._config.current.number("log.scrub.initial.delay.ms"))


def _import_cleaner() -> type[LogCleaner]:
    """Import the cleaner, which is not needed at the start and would hold the event loop for too long."""
    from ottla.log.cleaner.cleaner import LogCleaner

    return LogCleaner


def _import_scrubber() -> type[LogScrubber]:
    """Import the scrubber, as the cleaner."""
    from ottla.log.scrub.scrubber import LogScrubber

    return LogScrubber
