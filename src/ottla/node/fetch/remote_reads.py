"""Reads of records that are in remote storage only, for one request.

A read that does not succeed within `remote.fetch.max.wait.ms` brings nothing, and the client asks again; what
it waited for is loaded meanwhile. Where remote storage fails, the response waits for that time too, so that
clients do not ask again and again at once; then it is KAFKA_STORAGE_ERROR, which they repeat.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.log.segment.timestamp_search import TimestampAndOffset
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.remote.log_reader import RemoteLogReader, RemoteRecords
    from ottla.replication.partition import Partition
    from ottla.runtime.clock import Clock
    from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)


class RemoteAccess(Exception, ABC):
    """Something is to be read from remote storage first: raised by an attempt to read it here."""

    @abstractmethod
    async def run(self) -> None:
        """Read it, and keep the result. Raises nothing."""


class RemoteRead(RemoteAccess):
    """The records from an offset on."""

    def __init__(
        self,
        reader: RemoteLogReader,
        clock: Clock,
        partition: Partition,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        min_one_batch: bool,
        with_aborted: bool,
        max_wait_ms: int,
    ) -> None:
        super().__init__(f"offset {offset} of {partition.topic_partition} is in remote storage")
        self._reader: Final = reader
        self._clock: Final = clock
        self.partition: Final = partition
        self.offset: Final = offset
        self._max_bytes: Final = max_bytes
        self._upper_offset: Final = upper_offset
        self._min_one_batch: Final = min_one_batch
        self._with_aborted: Final = with_aborted
        self._max_wait_ms: Final = max_wait_ms
        # None before it was run, and if the time was over first.
        self.result: RemoteRecords | KafkaError | None = None

    async def run(self) -> None:
        """Read, and set the result."""
        deadline_ns = self._clock.monotonic_ns() + self._max_wait_ms * 1_000_000
        try:
            async with asyncio.timeout(self._max_wait_ms / 1000):
                self.result = await self._read()
        except TimeoutError:
            return
        failed = isinstance(self.result, KafkaError) and self.result.code is ErrorCode.KAFKA_STORAGE_ERROR
        if failed or self.result is None:
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns > 0:
                await asyncio.sleep(left_ns / 1e9)

    async def _read(self) -> RemoteRecords | KafkaError | None:
        """None if the read cannot begin yet: too many wait, or the metadata are still being read."""
        from ottla.remote.segment_cache import TooManyRemoteReads
        from ottla.remote.segment_metadata import RemoteStorageError, RemoteStorageNotReady

        partition = self.partition
        try:
            return await self._reader.read(
                partition.topic_id_partition,
                partition.log,
                self.offset,
                self._max_bytes,
                self._upper_offset,
                min_one_batch=self._min_one_batch,
                with_aborted=self._with_aborted,
            )
        except (TooManyRemoteReads, RemoteStorageNotReady):
            return None
        except RemoteStorageError as error:
            if self._reader.on_read_failed(partition.topic_id_partition):
                _log.warning(
                    "%s: a read from remote storage failed; clients try again: %s",
                    partition.topic_partition,
                    error.message,
                )
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
        except KafkaError as error:
            is_first = error.code is ErrorCode.CORRUPT_MESSAGE and self._reader.on_read_failed(
                partition.topic_id_partition
            )
            if is_first:
                _log.error("%s: %s", partition.topic_partition, error.message)
            return error


class RemoteReadServices(Protocol):
    """The parts of a broker that a read of remote storage uses."""

    @property
    def config(self) -> NodeConfig: ...
    @property
    def replication(self) -> BrokerReplication: ...
    @property
    def runtime(self) -> Runtime: ...


def prepare_remote_read(
    broker: RemoteReadServices,
    partition: Partition,
    offset: int,
    max_bytes: int,
    *,
    committed: bool,
    min_one_batch: bool,
    max_wait_ms: int | None = None,
) -> RemoteRead:
    """Return the read of the records from an offset on, which are in remote storage only. With `committed`,
    it ends at the last stable offset and names the aborted transactions. It waits for
    `remote.fetch.max.wait.ms`, unless `max_wait_ms` is given.
    """
    reader = broker.replication.remote_log_reader
    if reader is None:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{partition.topic_partition}: offset {offset} is in remote storage, which this broker does "
            "not use (remote.log.storage.system.enable)",
        )
    log = partition.log
    return RemoteRead(
        reader,
        broker.runtime.clock,
        partition,
        offset,
        max_bytes,
        log.last_stable_offset if committed else log.high_watermark,
        min_one_batch=min_one_batch,
        with_aborted=committed,
        max_wait_ms=broker.config.number("remote.fetch.max.wait.ms") if max_wait_ms is None else max_wait_ms,
    )


class RemoteOffsetSearch(RemoteAccess):
    """The first record that is not older than a timestamp, or, if that is negative, with the greatest."""

    def __init__(
        self, reader: RemoteLogReader, partition: Partition, timestamp: int, timeout_ms: int
    ) -> None:
        super().__init__(f"the time {timestamp} of {partition.topic_partition} may be in remote storage")
        self._reader: Final = reader
        self._partition: Final = partition
        self._timestamp: Final = timestamp
        self._timeout_ms: Final = timeout_ms
        self.result: TimestampAndOffset | KafkaError | None = None

    async def run(self) -> None:
        partition = self._partition
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                id, log = partition.topic_id_partition, partition.log
                if self._timestamp < 0:
                    self.result = await self._reader.fetch_offset_of_max_timestamp(id, log)
                else:
                    self.result = await self._reader.fetch_offset_by_timestamp(id, log, self._timestamp)
        except TimeoutError:
            self.result = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{partition.topic_partition}: no offset was found in remote storage within "
                f"{self._timeout_ms} ms",
            )
        except KafkaError as error:
            _log.warning(
                "%s: a search in remote storage failed: %s", partition.topic_partition, error.message
            )
            self.result = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
