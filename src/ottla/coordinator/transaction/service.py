"""The transactions of this node: the shards of `__transaction_state` that it leads, and what handlers ask.

A transactional id lives in the partition that the hash of its name gives, as with groups. The node tells
the service what it follows; the service drives markers and gets fresh producer ids where machines ask for
them. An answer is there at once or can be awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final

from ottla.coordinator.group.service import partition_of
from ottla.coordinator.runtime.engine import Engine
from ottla.coordinator.runtime.shard import Ticket
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.machine import TransactionMachine
from ottla.coordinator.transaction.markers import MarkerDriver, MarkerWriter
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    Missing,
    NewSettings,
    ProducerIdWanted,
    Settings,
    WriteMarkers,
)
from ottla.coordinator.transaction.transaction import Transaction
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.protocol.transaction_state_records import RECORDS
from ottla.replication.partition import Partition
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)


class TransactionService:
    """`new_producer_id` gives an id that nobody has."""

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
        self._settings = Settings(config, 0)
        self._image = MetadataImage.EMPTY
        self._markers: Final = MarkerDriver(markers, lambda: self._settings.config, self._written)
        self._sends: deque[tuple[int, Any]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.engine: Final[Engine[TransactionMachine]] = Engine(
            RECORDS,
            lambda _index, epoch: TransactionMachine(self._settings, epoch),
            runtime.clock,
            runtime.pool,
            on_sends=self._on_sends,
            commit_timeout_ms=commit_timeout_ms,
            load_bytes=load_bytes,
        )

    @property
    def config(self) -> TransactionConfig:
        return self._settings.config

    # The node's part

    def follow(
        self,
        image: MetadataImage,
        *,
        leaders: Iterable[Partition] = (),
        followers: Iterable[Partition] = (),
        deleted_topics: Iterable[str] = (),
    ) -> None:
        """The metadata moved on: partitions that are now led and followed here, topics that are gone."""
        self._image = image
        self._settle(Settings(self.config, image.features.levels.get(TRANSACTION_VERSION, 0)))
        self.resigned(partition.topic_partition for partition in followers)
        if TRANSACTION_STATE_TOPIC in deleted_topics:
            self.resigned(
                [TopicPartition(TRANSACTION_STATE_TOPIC, index) for index in self.engine.partitions]
            )
        for partition in leaders:
            if partition.topic_partition.topic == TRANSACTION_STATE_TOPIC:
                self._markers.resigned(partition.topic_partition.partition)
                self.engine.elected(partition)

    def resigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that this node no longer leads, or cannot serve."""
        for partition in partitions:
            if partition.topic == TRANSACTION_STATE_TOPIC:
                self._markers.resigned(partition.partition)
                self.engine.resigned(partition.partition)

    def progressed(self, partition: Partition) -> None:
        """For the listener of partitions: the high watermark may have moved."""
        if partition.topic_partition.topic == TRANSACTION_STATE_TOPIC:
            self.engine.progressed(partition.topic_partition.partition)

    def configure(self, config: TransactionConfig) -> None:
        self._settle(Settings(config, self._settings.transaction_version))

    def _settle(self, settings: Settings) -> None:
        if settings != self._settings:
            self._settings = settings
            self.engine.notify(NewSettings(settings))

    async def close(self) -> None:
        await self._markers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()

    # What machines send

    def _on_sends(self, index: int, sends: list[Any]) -> None:
        """Called in the midst of an event; the work begins after it."""
        if not self._sends:
            asyncio.get_running_loop().call_soon(self._work)
        self._sends.extend((index, send) for send in sends)

    def _work(self) -> None:
        sends, self._sends = self._sends, deque()
        for index, send in sends:
            if isinstance(send, WriteMarkers):
                self._markers.drive(index, send)
            else:
                assert isinstance(send, ProducerIdWanted)
                self._start(self._abort_with_fresh_id(index, send))

    def _written(self, index: int, marker: WriteMarkers) -> None:
        self.engine.submit(index, MarkersWritten(marker.transactional_id, marker.writer))

    async def _abort_with_fresh_id(self, index: int, wanted: ProducerIdWanted) -> None:
        try:
            fresh_id = await self._new_producer_id()
        except KafkaError as error:
            _log.warning("%r is past its timeout and stays open: %s", wanted.transactional_id, error)
            return  # it is found again when timeouts are looked at next
        self.engine.submit(index, AbortTimedOut(wanted.transactional_id, wanted.writer, fresh_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a transaction past its timeout could not be aborted", exc_info=error)

    # Requests

    def partition_for(self, transactional_id: str) -> int:
        """Where the id lives; COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        topic = self._image.topics.by_name.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{TRANSACTION_STATE_TOPIC} does not exist yet; ask again",
            )
        return partition_of(transactional_id, len(topic.partitions))

    def submit(self, request: Any) -> Ticket:
        """Give a request to the transactional id that it names."""
        ticket = Ticket()
        if not request.transactional_id:
            ticket.resolve(KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty"))
            return ticket
        try:
            index = self.partition_for(request.transactional_id)
        except KafkaError as error:
            ticket.resolve(error)
            return ticket
        return self.engine.submit(index, request)

    async def submit_with_id(self, request: InitProducerId | EndTransaction) -> Any:
        """The same for a request that may need a fresh producer id."""
        answer = await self.submit(request)
        if answer is not Missing.PRODUCER_ID:
            return answer
        return await self.submit(replace(request, fresh_id=await self._new_producer_id()))

    async def list(self, request: ListTransactions) -> list[Transaction]:
        """What all partitions led here hold, once all of them are loaded."""
        found: list[Transaction] = []
        for ticket in self.engine.submit_all(request):
            found += await ticket
        return found
