"""The failures of data directories, and damage met in logs, from the thread that meets them to the broker.

This is Kafka's `LogDirFailureChannel` with its handler. A directory fails in any thread, also while the logs
are loaded; the parts of the broker that have to give it up live on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from ottla.log.directory.directory import LogDirectory
from ottla.log.log_manager import LogManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.damaged_replicas import DamagedReplicas
from ottla.node.server.metadata_publisher import BrokerMetadataPublisher
from ottla.protocol.errors import KafkaError

_log = logging.getLogger(__name__)


class LogDirFailureChannel:
    """What is put in in any thread comes out on the event loop, in order, once a handler takes it."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._queue: Final[asyncio.Queue[LogDirectory | tuple[str, KafkaError]]] = asyncio.Queue()

    def on_failure(self, directory: LogDirectory) -> None:
        self._put(directory)

    def on_damage(self, log_dir: str, error: KafkaError) -> None:
        self._put((log_dir, error))

    def _put(self, event: LogDirectory | tuple[str, KafkaError]) -> None:
        with contextlib.suppress(RuntimeError):  # the node has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def take(self) -> LogDirectory | tuple[str, KafkaError]:
        return await self._queue.get()


class LogDirFailureHandler:
    """Has a failed directory given up, and damaged replicas fetched again. Where that fails, or no directory
    is left, the node ends: its partitions would look as if they were served.
    """

    def __init__(
        self,
        channel: LogDirFailureChannel,
        logs: LogManager,
        lifecycle: BrokerLifecycleManager,
        publisher: BrokerMetadataPublisher,
        damaged_replicas: DamagedReplicas,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._channel: Final = channel
        self._logs: Final = logs
        self._lifecycle: Final = lifecycle
        self._publisher: Final = publisher
        self._damaged_replicas: Final = damaged_replicas
        self._on_fatal: Final = on_fatal

    async def run(self) -> None:
        while True:
            event = await self._channel.take()
            if isinstance(event, LogDirectory):
                self.handle(event)
            elif self._publisher.is_applying:
                self._damaged_replicas.on_damage(*event)

    def handle_offline(self) -> None:
        """Give up the directories that had failed before the broker took up its replicas."""
        for directory in self._logs.directories:
            if not directory.is_online:
                self.handle(directory)

    def handle(self, directory: LogDirectory) -> None:
        """Report a failed directory; give up what is in it, once the broker has taken that up."""
        try:
            self._lifecycle.propagate_directory_failure(directory.path)
            if not self._publisher.is_applying:
                return
            given_up = self._publisher.on_directory_failure(directory)
            given_up.add_done_callback(partial(self._on_given_up, directory))
        except Exception as error:
            self._fail_for(directory, error)
            return
        if not self._logs.live_directories:
            self._on_fatal(
                f"Shutdown broker because all log dirs have failed; {directory.path}: {directory.failure}"
            )

    def _on_given_up(self, directory: LogDirectory, given_up: asyncio.Future[None]) -> None:
        if not given_up.cancelled() and (error := given_up.exception()) is not None:
            self._fail_for(directory, error)

    def _fail_for(self, directory: LogDirectory, error: BaseException) -> None:
        _log.error("the failure of %s could not be handled", directory.path, exc_info=error)
        self._on_fatal(f"the failure of {directory.path} could not be handled: {error}")
