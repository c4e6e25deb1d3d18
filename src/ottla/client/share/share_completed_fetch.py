"""The records of one partition that a broker has acquired for this member, decoded when the user polls.

A response has whole batches of the log, and the ranges of offsets in them that the member holds; only these
are shown. An offset of a range without a record is a gap, which the consumer acknowledges as such. A batch
that is damaged, and a record that a deserializer refuses, are released: another member may be able to read
them, and after `share.delivery.count.limit` deliveries they are archived.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ottla.client.serialization import Deserializer, RecordSerde, SchemaNeeded, deserialize_records
from ottla.client.share.acknowledgements import AcknowledgedRange, acquired_slices, without_gaps
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.protocol.schema import Buffer
from ottla.protocol.share import AcknowledgeType
from ottla.records._kernel import ConsumerRecord
from ottla.records.reader import open_reader
from ottla.records.types import HEADER_SIZE, LOG_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


K = TypeVar("K")
V = TypeVar("V")

_FRONT = struct.Struct(">qi")  # base offset, length
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23


@dataclass(slots=True, eq=False)
class ShareRecord(Generic[K, V]):
    """A record of a share group. `delivery_count` is how often it was delivered, this time included."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int
    timestamp_type: int = 0
    leader_epoch: int = -1


class RecordDeserializationFailed(KafkaError):
    """A deserializer refused a record, which is `record`, with key and value as bytes. It is released, unless
    it is acknowledged in another way (in explicit mode) before the next poll.
    """

    __slots__ = ("record",)

    def __init__(self, record: ShareRecord[bytes, bytes], cause: Exception) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"{record.topic}-{record.partition}: the record at offset {record.offset} cannot be deserialized "
            f"(delivery {record.delivery_count}): {cause!r}; it is released, and delivered again",
        )
        self.record = record


class DamagedBatch(KafkaError):
    """A batch cannot be read: what the broker has sent is damaged. Its records are released."""

    __slots__ = ()


class AcquiredRows(NamedTuple):
    """Rows of one acquired range, and their offsets."""

    batch: pa.RecordBatch
    delivery_count: int
    offsets: tuple[tuple[int, int], ...]


class ShareCompletedFetch:
    """What one response has for one partition. `acquired` are ranges: first and last offset, and how often
    they were delivered.
    """

    __slots__ = (
        "_acquired",
        "_at",
        "_buf",
        "_check_crcs",
        "_counts",
        "_damage",
        "_records",
        "deadline",
        "node_id",
        "partition",
        "released",
        "skipped",
        "topic_id_partition",
    )

    def __init__(
        self,
        partition: TopicPartition,
        topic_id_partition: TopicIdPartition,
        node_id: int,
        buf: Buffer,
        acquired: Sequence[tuple[int, int, int]],
        *,
        deadline: float,
        check_crcs: bool,
    ) -> None:
        self.partition = partition
        self.topic_id_partition = topic_id_partition
        self.node_id = node_id
        # The loop's time at which the locks expire.
        self.deadline = deadline
        self._buf = memoryview(buf)
        self._acquired = sorted(acquired)
        self._check_crcs = check_crcs
        self._records: list[ConsumerRecord[Any, Any]] | None = None
        self._counts: list[int] = []
        self._at = 0
        self._damage: KafkaError | None = None
        # Known once it is decoded: offsets without a record, and those of records that cannot be read.
        self.skipped: list[AcknowledgedRange] = []
        self.released: list[AcknowledgedRange] = []

    @property
    def is_decoded(self) -> bool:
        return self._records is not None

    @property
    def is_empty(self) -> bool:
        return self._records is not None and self._at >= len(self._records)

    @property
    def size(self) -> int:
        return self._buf.nbytes

    def decode(self) -> None:
        """Decode all, and find what is skipped."""
        if self._records is not None:
            return
        self._records = []
        if not self._acquired:
            return
        found, broken = self._read()
        offsets = [record.offset for record in found]
        for part in acquired_slices(offsets, self._acquired):
            self._records += found[part.begin : part.end]
            self._counts += [part.delivery_count] * (part.end - part.begin)
            self._skip(part.gaps, broken)

    def _skip(self, gaps: Sequence[tuple[int, int]], broken: Sequence[tuple[int, int]]) -> None:
        for first, last in gaps:
            at = first
            for low, high in broken:
                low, high = max(low, at), min(high, last)
                if low > high:
                    continue
                if low > at:
                    self.skipped.append(AcknowledgedRange(at, low - 1, AcknowledgeType.GAP))
                self.released.append(AcknowledgedRange(low, high, AcknowledgeType.RELEASE))
                at = high + 1
            if at <= last:
                self.skipped.append(AcknowledgedRange(at, last, AcknowledgeType.GAP))

    def _read(self) -> tuple[list[ConsumerRecord[Any, Any]], list[tuple[int, int]]]:
        """Read the records between the first and the last that were acquired, and the offsets of damaged
        batches.
        """
        try:
            return self._read_part(self._buf), []
        except KafkaError:
            pass
        found: list[ConsumerRecord[Any, Any]] = []
        broken: list[tuple[int, int]] = []
        for batch, first, last in self._batches():
            try:
                found += self._read_part(batch)
            except KafkaError as error:
                broken.append((first, last))
                self._note_damage(first, last, error)
        return found, broken

    def _read_part(self, buf: memoryview) -> list[ConsumerRecord[Any, Any]]:
        first, last = self._acquired[0][0], self._acquired[-1][1]
        reader = open_reader(start_offset=first, end_offset=last + 1, check_crc=self._check_crcs)
        source: ConsumerRecord[None, None] = ConsumerRecord(*self.partition, first)
        return reader.read_for_user(buf, source)

    def _batches(self) -> Iterator[tuple[memoryview, int, int]]:
        """Each whole batch with its first and last offset."""
        buf, at = self._buf, 0
        while buf.nbytes - at >= HEADER_SIZE:
            base_offset, length = _FRONT.unpack_from(buf, at)
            end = at + LOG_OVERHEAD + length
            if length < HEADER_SIZE - LOG_OVERHEAD or end > buf.nbytes:
                return
            yield buf[at:end], base_offset, base_offset + _LAST_DELTA.unpack_from(buf, at + _LAST_DELTA_AT)[0]
            at = end

    def take_damage(self) -> KafkaError | None:
        """Return why some of it cannot be read, once."""
        error, self._damage = self._damage, None
        return error

    def take(
        self,
        most: int,
        key_deserializer: Deserializer | RecordSerde | None,
        value_deserializer: Deserializer | RecordSerde | None,
    ) -> list[ShareRecord[Any, Any]]:
        """Return up to `most` records. RecordDeserializationFailed, about the first one that is left, skips
        that one; SchemaNeeded does not.
        """
        self.decode()
        assert self._records is not None
        at = self._at
        found = self._records[at : at + most]
        if found and (key_deserializer is not None or value_deserializer is not None):
            count, error = deserialize_records(found, key_deserializer, value_deserializer)
            if error is not None:
                if not count:
                    if isinstance(error, SchemaNeeded):
                        raise error
                    self._at += 1
                    raise RecordDeserializationFailed(_shared(found[0], self._counts[at]), error) from error
                found = found[:count]
        self._at = at + len(found)
        return list(map(_shared, found, self._counts[at : self._at]))

    @property
    def at(self) -> int:
        """How many records were taken."""
        return self._at

    @property
    def left(self) -> int:
        """How many records are left, once it is decoded."""
        return len(self._records) - self._at if self._records is not None else 0

    def taken_since(self, begin: int) -> list[AcknowledgedRange]:
        """The records that were taken since there were `begin`, as accepted."""
        return self._ranges(begin, self._at, AcknowledgeType.ACCEPT)

    def release_rest(self) -> list[AcknowledgedRange]:
        """Give up the records that are left, as released."""
        begin, self._at = self._at, self._at + self.left
        return self._ranges(begin, self._at, AcknowledgeType.RELEASE)

    def _ranges(self, begin: int, end: int, type: AcknowledgeType) -> list[AcknowledgedRange]:
        assert self._records is not None
        ranges: list[AcknowledgedRange] = []
        first = last = -2
        for record in self._records[begin:end]:
            offset = record.offset
            if offset != last + 1:
                if last >= 0:
                    ranges.append(AcknowledgedRange(first, last, type))
                first = offset
            last = offset
        if last >= 0:
            ranges.append(AcknowledgedRange(first, last, type))
        return ranges

    def decode_arrow(self, columns: Sequence[str]) -> list[AcquiredRows]:
        """Return all of it as columns. Not after `take`: a fetch is read as records or as columns."""
        assert self._records is None, "a fetch is read as records or as columns"
        self._records = []
        if not self._acquired:
            return []
        wanted = list(columns) if "offset" in columns else [*columns, "offset"]
        broken: list[tuple[int, int]] = []
        try:
            batch = self._read_columns(self._buf, wanted)
        except KafkaError:
            batch = self._read_whole_batches(wanted, broken)
        offsets = _offsets(batch)
        found: list[AcquiredRows] = []
        for part, (first, last, count) in zip(
            acquired_slices(offsets, self._acquired), self._acquired, strict=True
        ):
            self._skip(part.gaps, broken)
            if part.end > part.begin:
                rows = batch.slice(part.begin, part.end - part.begin).select(list(columns))
                found.append(AcquiredRows(rows, count, tuple(without_gaps(first, last, part.gaps))))
        return found

    def _read_columns(self, buf: memoryview, columns: Sequence[str]) -> pa.RecordBatch:
        from ottla.records.arrow import ArrowDecoder

        decoder = ArrowDecoder(
            columns=columns,
            start_offset=self._acquired[0][0],
            end_offset=self._acquired[-1][1] + 1,
            check_crc=self._check_crcs,
            expected_bytes=buf.nbytes,
        )
        decoder.feed(buf)
        return decoder.finish()

    def _read_whole_batches(self, columns: Sequence[str], broken: list[tuple[int, int]]) -> pa.RecordBatch:
        """Read the batches that are not damaged."""
        import pyarrow as pa

        found = [self._read_columns(self._buf[:0], columns)]
        for batch, first, last in self._batches():
            try:
                found.append(self._read_columns(batch, columns))
            except KafkaError as error:
                broken.append((first, last))
                self._note_damage(first, last, error)
        joined = pa.Table.from_batches(found).combine_chunks().to_batches()
        return joined[0] if joined else found[0]

    def _note_damage(self, first: int, last: int, error: KafkaError) -> None:
        self._damage = self._damage or DamagedBatch(
            error.code,
            f"{self.partition}: the batch of offsets {first} to {last} cannot be read: {error.message}; "
            "its records are released, and delivered again",
        )


def _offsets(batch: pa.RecordBatch) -> Sequence[int]:
    """The column of offsets, which ascend, without a copy."""
    data = batch.column("offset").buffers()[1]
    return memoryview(data).cast("B").cast("q")[: batch.num_rows] if batch.num_rows else ()


def _shared(record: ConsumerRecord[Any, Any], delivery_count: int) -> ShareRecord[Any, Any]:
    return ShareRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
        delivery_count,
        record.timestamp_type,
        record.leader_epoch,
    )
