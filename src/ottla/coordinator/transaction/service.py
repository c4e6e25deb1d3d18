"""The transaction coordinator of this broker: the partitions of `__transaction_state` that it leads.

A transactional id lives in the partition that the hash of its name gives, as with groups. The broker passes
metadata updates on to the service. The service has markers written and gets fresh producer ids for the shards
that ask for them. A reply is there at once or can be awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, Ticket
from ottla.coordinator.runtime.partitioning import partition_for
from ottla.coordinator.transaction.config import TransactionConfig, TransactionSettings
from ottla.coordinator.transaction.pending_markers import (
    MarkerWriter,
    PendingTransactionMarkers,
)
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    ListTransactions,
    MarkersWritten,
    MissingInput,
    NewTransactionSettings,
    ProducerIdOperation,
    ProducerIdWanted,
    TransactionOperation,
    WriteMarkers,
)
from ottla.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction.transaction_metadata import TransactionMetadata
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.protocol.transaction_state_records import RECORDS
from ottla.replication.partition import Partition
from ottla.runtime.metrics import Histogram
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

R = TypeVar("R")

_OPEN_BOUNDS_MS: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000, 300_000, 900_000)


class TransactionCoordinatorService:
    """`new_producer_id` gives an id that no producer has had."""

    def __init__(
        self,
        runtime: Runtime,
        config: TransactionConfig,
        markers: MarkerWriter,
        new_producer_id: Callable[[], Awaitable[int]],
        *,
        commit_timeout_ms: int = 30_000,
        load_bytes: int = 5 * 1024 * 1024,
    ) -> None:
        self._new_producer_id: Final = new_producer_id
        self._settings = TransactionSettings(config, 0)
        self._image = MetadataImage.EMPTY
        self._markers: Final = PendingTransactionMarkers(
            markers, lambda: self._settings.config, self._on_written
        )
        self._sends: deque[tuple[int, Any]] = deque()
        # Transactions whose end was decided here, or whose markers were taken over from another coordinator.
        self.committed = 0
        self.aborted = 0
        # How long they were open, in milliseconds.
        self.open_times: Final = Histogram(_OPEN_BOUNDS_MS, scale=1e-3)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.runtime: Final[CoordinatorRuntime[TransactionCoordinator]] = CoordinatorRuntime(
            RECORDS,
            lambda _index, epoch: TransactionCoordinator(self._settings, epoch),
            runtime.clock,
            runtime.pool,
            on_sends=self._on_sends,
            commit_timeout_ms=commit_timeout_ms,
            load_bytes=load_bytes,
        )

    @property
    def config(self) -> TransactionConfig:
        return self._settings.config

    # Events of the broker

    def on_metadata_update(
        self,
        image: MetadataImage,
        *,
        leaders: Iterable[Partition] = (),
        followers: Iterable[Partition] = (),
        deleted_topics: Iterable[str] = (),
    ) -> None:
        """Follow a new metadata image: partitions that this broker leads or follows now, deleted topics."""
        self._image = image
        self._update_settings(
            TransactionSettings(self.config, image.features.levels.get(TRANSACTION_VERSION, 0))
        )
        self.on_resignation(partition.topic_partition for partition in followers)
        if TRANSACTION_STATE_TOPIC in deleted_topics:
            self.on_resignation(
                [TopicPartition(TRANSACTION_STATE_TOPIC, index) for index in self.runtime.partitions]
            )
        for partition in leaders:
            if partition.topic_partition.topic == TRANSACTION_STATE_TOPIC:
                self._markers.remove_markers(partition.topic_partition.partition)
                self.runtime.load(partition)

    def on_resignation(self, partitions: Iterable[TopicPartition]) -> None:
        """Unload partitions that this broker no longer leads, or cannot serve."""
        for partition in partitions:
            if partition.topic == TRANSACTION_STATE_TOPIC:
                self._markers.remove_markers(partition.partition)
                self.runtime.unload(partition.partition)

    def on_partition_progress(self, partition: Partition) -> None:
        """Give the replies that wait for the high watermark of a partition."""
        if partition.topic_partition.topic == TRANSACTION_STATE_TOPIC:
            self.runtime.on_partition_progress(partition.topic_partition.partition)

    def configure(self, config: TransactionConfig) -> None:
        self._update_settings(TransactionSettings(config, self._settings.transaction_version))

    def _update_settings(self, settings: TransactionSettings) -> None:
        if settings != self._settings:
            self._settings = settings
            self.runtime.notify(NewTransactionSettings(settings))

    async def close(self) -> None:
        await self._markers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.close()

    # Work that shards send

    def _on_sends(self, index: int, sends: list[Any]) -> None:
        """Called within an event of the shard; the work begins after it."""
        if not self._sends:
            asyncio.get_running_loop().call_soon(self._work)
        self._sends.extend((index, send) for send in sends)

    def _work(self) -> None:
        sends, self._sends = self._sends, deque()
        for index, send in sends:
            if isinstance(send, WriteMarkers):
                if send.commit:
                    self.committed += 1
                else:
                    self.aborted += 1
                self.open_times.observe(send.open_ms)
                self._markers.add_markers(index, send)
            else:
                assert isinstance(send, ProducerIdWanted)
                self._start(self._abort_with_fresh_id(index, send))

    def _on_written(self, index: int, marker: WriteMarkers) -> None:
        self.runtime.submit(index, MarkersWritten(marker.transactional_id, marker.writer))

    async def _abort_with_fresh_id(self, index: int, wanted: ProducerIdWanted) -> None:
        try:
            fresh_id = await self._new_producer_id()
        except KafkaError as error:
            _log.warning("%r is past its timeout and stays open: %s", wanted.transactional_id, error)
            return  # the next check of timeouts finds it again
        self.runtime.submit(index, AbortTimedOut(wanted.transactional_id, wanted.writer, fresh_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_abort_finished)

    def _on_abort_finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a transaction past its timeout could not be aborted", exc_info=error)

    # Requests

    def partition_for(self, transactional_id: str) -> int:
        """The partition of a transactional id; COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        topic = self._image.topics.by_name.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{TRANSACTION_STATE_TOPIC} does not exist yet; try again",
            )
        return partition_for(transactional_id, len(topic.partitions))

    def submit(self, request: TransactionOperation[R]) -> Ticket[R]:
        """Give an operation to the shard of its transactional id."""
        if not request.transactional_id:
            return Ticket.failed(KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty"))
        try:
            index = self.partition_for(request.transactional_id)
        except KafkaError as error:
            return Ticket.failed(error)
        return self.runtime.submit(index, request)

    async def submit_with_id(self, request: ProducerIdOperation[R]) -> R:
        """Submit an operation that may need a fresh producer id; it is repeated with one if it does."""
        reply = await self.submit(request)
        if isinstance(reply, MissingInput):
            reply = await self.submit(request.with_fresh_id(await self._new_producer_id()))
            assert not isinstance(reply, MissingInput), f"{request} needs another producer id"
        return reply

    async def list(self, request: ListTransactions) -> list[TransactionMetadata]:
        """The transactions of all partitions that this broker leads; an error while one of them is loaded."""
        found: list[TransactionMetadata] = []
        for ticket in self.runtime.submit_all(request):
            found += await ticket
        return found
