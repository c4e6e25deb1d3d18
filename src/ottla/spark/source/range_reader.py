"""Read one range of one partition in a task, from the broker into Arrow batches.

While Spark takes a batch, the next request is already in flight; there is never more than one. The memory of
a task is bounded: the bytes of two answers, and one batch of rows, which is handed over as soon as it has
`BATCH_ROWS` rows or `BATCH_BYTES` bytes. Between socket and Arrow no Python object is created per record.

The range was chosen from offsets that exist, so reading on reaches its end: by a batch that ends at or after
it, whatever is left of its records, or by the control batch of a transaction. Records that are missing
nevertheless are reported as data loss.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.schema import ZERO_UUID
from ottla.records.arrow import ArrowDecoder
from ottla.records.types import HEADER_SIZE, LOG_OVERHEAD
from ottla.rpc.connection import BrokerConnection
from ottla.spark.source.client import SourceClient
from ottla.spark.source.columns import BatchShaper
from ottla.spark.source.data_loss import DataLossPolicy
from ottla.spark.source.offset_ranges import OffsetRange
from ottla.spark.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


BATCH_ROWS = 100_000
BATCH_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 512 * 1024
MIN_FETCH_BYTES = 64 * 1024
FIRST_FETCH_BYTES = 1024 * 1024
EMPTY_WAIT_S = 0.01
WITHOUT_TOPIC_IDS = 12
_SESSIONLESS = -1
_FRONT = struct.Struct(">qi")  # base offset, length
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_TOPIC_CHANGED = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)


@dataclass(slots=True)
class Fetched:
    """An answer with records from `offset` on, or no data and the start and end of the log."""

    offset: int
    data: PartitionData | None
    log_start: int = -1
    log_end: int = -1


class TopicReplaced(Exception):
    """The topic is deleted, or another one than the range was chosen from."""


def read_range(client: SourceClient, options: SourceOptions, what: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `what` in order, in batches that fit Spark's schema."""
    return RangeReader(client, options, what).read()


class RangeReader:
    """Reads one range; `fetch` may be replaced by one that has the records from elsewhere."""

    def __init__(self, client: SourceClient, options: SourceOptions, what: OffsetRange) -> None:
        self._client = client
        self._options = options
        self._range = what
        self.loss = DataLossPolicy(options.fail_on_data_loss)
        self._shaper = BatchShaper(options.columns, *what.partition)
        # From the last answer, to ask for as much as is left and not much more.
        self._bytes_per_offset = what.expected_bytes / what.size if what.expected_bytes else 0.0
        self._replica = -1
        self._next_answer: Future[Fetched] | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches that fit Spark's schema."""
        try:
            yield from self._batches()
        except TopicReplaced:
            self.loss.report_recreated(self._range.partition.topic)
        finally:
            self.close()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        offset, end = self._range.start, self._range.end
        decoder = self._decoder(offset)
        self._request(offset)
        while offset < end:
            fetched = self._await_answer()
            if fetched.data is None:
                offset = self._skip_missing(fetched)
                if decoder.rows:
                    yield self._finish_batch(decoder)
                # A batch may begin before what was deleted, and still contain it.
                decoder = self._decoder(offset)
                if offset < end:
                    self._request(offset)
                continue
            records = memoryview(fetched.data.records or b"")
            pieces, next_offset = self._split_at_batches(records, offset)
            self._learn(records.nbytes, next_offset - offset)
            if next_offset < end:
                self._request(next_offset)
            decoder.set_aborted(
                (each.producer_id, each.first_offset) for each in fetched.data.aborted_transactions or ()
            )
            for begin, stop in pieces:
                self._feed(decoder, records[begin:stop])
                if decoder.rows >= BATCH_ROWS or decoder.nbytes >= BATCH_BYTES:
                    yield self._finish_batch(decoder)
            offset = next_offset
        if decoder.rows:
            yield self._finish_batch(decoder)

    def _decoder(self, offset: int) -> ArrowDecoder:
        return ArrowDecoder(
            columns=self._shaper.decoded or ["offset"],
            start_offset=offset,
            end_offset=self._range.end,
            check_crc=self._options.check_crcs,
            expected_bytes=min(self._range.expected_bytes, BATCH_BYTES),
        )

    def _finish_batch(self, decoder: ArrowDecoder) -> pa.RecordBatch:
        rows = decoder.rows
        return self._shaper.shape(decoder.finish(), rows)

    def _feed(self, decoder: ArrowDecoder, piece: memoryview) -> None:
        try:
            decoder.feed(piece)
        except KafkaError as error:
            raise KafkaError(
                error.code,
                f"{self._range.partition}: cannot decode the records from offset {decoder.next_offset} on: "
                f"{error.message}; begin after them with startingOffsets to skip them",
            ) from error

    def _split_at_batches(self, records: memoryview, offset: int) -> tuple[list[tuple[int, int]], int]:
        """Split the answer at ends of batches; the pieces, and the offset after its last whole batch.

        A compressed batch may become many times larger, so rows are handed over between pieces.
        """
        size = records.nbytes
        pieces: list[tuple[int, int]] = []
        begin = at = 0
        next_offset = offset
        while size - at >= HEADER_SIZE:
            base_offset, length = _FRONT.unpack_from(records, at)
            if length < HEADER_SIZE - LOG_OVERHEAD or at + LOG_OVERHEAD + length > size:
                break
            next_offset = base_offset + _LAST_DELTA.unpack_from(records, at + _LAST_DELTA_AT)[0] + 1
            at += LOG_OVERHEAD + length
            if at - begin >= PIECE_BYTES:
                pieces.append((begin, at))
                begin = at
            if next_offset >= self._range.end:
                break
        if at > begin:
            pieces.append((begin, at))
        if next_offset <= offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self._range.partition}: {size} bytes fetched at offset {offset} hold no whole batch",
            )
        return pieces, next_offset

    def _learn(self, size: int, offsets: int) -> None:
        self._bytes_per_offset = size / offsets

    def _skip_missing(self, fetched: Fetched) -> int:
        """Report the records that are missing from `fetched.offset` on; the offset to continue at."""
        partition, end = self._range.partition, self._range.end
        if fetched.offset < fetched.log_start:
            self.loss.report_expired(partition, fetched.offset, end, fetched.log_start)
            return min(fetched.log_start, end)
        self.loss.report_beyond_end(partition, fetched.offset, fetched.log_end)
        return end

    # Requests.

    def _request(self, offset: int) -> None:
        self._next_answer = self._client.submit(self.fetch(offset))

    def _await_answer(self) -> Fetched:
        assert self._next_answer is not None
        answer, self._next_answer = self._next_answer, None
        return answer.result()

    def close(self) -> None:
        """Cancel the request in flight, as Spark may end a task early (LIMIT, a failure)."""
        if self._next_answer is not None:
            self._next_answer.cancel()

    def _wanted_bytes(self, offset: int) -> int:
        if not self._bytes_per_offset:
            return min(FIRST_FETCH_BYTES, self._options.fetch_bytes)
        left = int((self._range.end - offset) * self._bytes_per_offset * 1.1)
        return min(max(left, MIN_FETCH_BYTES), self._options.fetch_bytes)

    async def fetch(self, offset: int) -> Fetched:
        """Fetch until there are records, for as long as the options allow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.poll_timeout_ms / 1000
        backoff = self._client.cluster.new_backoff()
        while True:
            problem: KafkaError | None = None
            try:
                data = await self._fetch_once(offset)
                code = ErrorCode.of(data.error_code)
                if not code and data.records:
                    return Fetched(offset, data)
                if not code and data.preferred_read_replica not in (-1, self._replica):
                    self._replica = data.preferred_read_replica
                    continue
                if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._replica < 0:
                    return await self._out_of_range(offset)
                self._replica = -1
                if code in _TOPIC_CHANGED and self._range.topic_id is not None:
                    await self._check_topic()
                if code:
                    problem = KafkaError(code, f"{self._range.partition}: {code.text}")
            except KafkaError as error:
                self._replica = -1
                problem = error
            if problem is not None and not problem.retriable and problem.code not in _TOPIC_CHANGED:
                raise problem
            # A broker without new records waits by itself, but need not.
            wait = backoff.next_ms() / 1000 if problem is not None else EMPTY_WAIT_S
            if loop.time() + wait >= deadline:
                raise self._timeout_error(offset, problem)
            await asyncio.sleep(wait)
            if problem is not None:
                await self._refresh()

    def _timeout_error(self, offset: int, problem: KafkaError | None) -> KafkaError:
        reason = problem.message if problem is not None else "the broker has none to give"
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self._range.partition}: no records at offset {offset} of the range that ends at "
            f"{self._range.end}, after {self._options.poll_timeout_ms} ms "
            f"(kafkaConsumer.pollTimeoutMs): {reason}",
        )

    async def _fetch_once(self, offset: int) -> PartitionData:
        topic, index = self._range.partition
        connection, epoch = await self._connection()
        known = self._client.cluster.metadata.topics.get(topic)
        topic_id = self._range.topic_id or (known.topic_id if known is not None else None)
        size = self._wanted_bytes(offset)
        request = FetchRequest(
            max_wait_ms=self._options.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=size,
            isolation_level=1 if self._options.read_committed else 0,
            session_id=0,
            session_epoch=_SESSIONLESS,
            rack_id=self._options.client_rack,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=topic_id or ZERO_UUID,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            current_leader_epoch=epoch,
                            fetch_offset=offset,
                            partition_max_bytes=size,
                        )
                    ],
                )
            ],
        )
        version = connection.version_for(
            FetchRequest, at_most=None if topic_id is not None else WITHOUT_TOPIC_IDS
        )
        answer = await connection.request(
            request,
            FetchResponse,
            timeout_ms=self._client.cluster.config.request_timeout_ms,
            version=version,
        )
        if answer.throttle_time_ms:
            await asyncio.sleep(answer.throttle_time_ms / 1000)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            raise KafkaError(code, f"{self._range.partition}: fetch: {code.text}")
        for found in answer.responses:
            for data in found.partitions:
                if data.partition_index == index:
                    return data
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{self._range.partition}: the answer does not contain the requested partition",
        )

    async def _connection(self) -> tuple[BrokerConnection, int]:
        """A connection to the replica that the leader prefers, or to the leader; and the leader epoch."""
        cluster = self._client.cluster
        info = cluster.metadata.leader(self._range.partition)
        if info is None:
            info = (await cluster.refresh(topics=[self._range.partition.topic])).leader(self._range.partition)
        if info is None:
            await self._check_topic()
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{self._range.partition} has no leader at the moment"
            )
        replica = self._replica if self._replica in cluster.metadata.brokers else info.leader
        return await cluster.connection(replica), info.leader_epoch

    async def _refresh(self) -> None:
        with suppress(KafkaError):  # the next attempt reports what is wrong
            await self._client.cluster.refresh(topics=[self._range.partition.topic])

    async def _check_topic(self) -> None:
        """Raise `TopicReplaced` if the topic has another id by now, or does not exist."""
        wanted = self._range.topic_id
        view = await self._client.cluster.refresh(topics=[self._range.partition.topic])
        info = view.topics.get(self._range.partition.topic)
        if info is None or info.error in _TOPIC_CHANGED or (wanted is not None and info.topic_id != wanted):
            raise TopicReplaced

    async def _out_of_range(self, offset: int) -> Fetched:
        """Find where the log begins and ends, which shows what has happened."""
        from ottla.client.admin.offsets import FoundOffset, OffsetsAdmin, OffsetSpec

        partition = self._range.partition
        admin = OffsetsAdmin(self._client.caller(self._options.api_timeout_ms))
        found = []
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
            result = (await admin.list({partition: spec}))[partition]
            if not isinstance(result, FoundOffset):
                raise result
            found.append(result.offset)
        log_start, log_end = found
        if log_start <= offset < log_end:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{partition}: offset {offset} is refused, though the log has {log_start} to {log_end - 1}",
            )
        return Fetched(offset, None, log_start, log_end)
