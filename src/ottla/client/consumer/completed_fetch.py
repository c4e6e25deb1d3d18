"""The fetched data of one partition, decoded only as far as the user reads.

`take` decodes it piece by piece, a few batches at a time; decoded records that were not taken stay in
`_decoded`. Compressed batches are decoded one by one, as some kilobytes may inflate to hundreds of megabytes,
and `inflated_bytes` counts them, so that a poll can end. `decode_arrow` decodes all the rest to columns at
once.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ottla.client.consumer.subscription_state import TopicPartitionState
from ottla.client.serialization import Deserializer, RecordSerde, SchemaNeeded, deserialize_records
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Buffer
from ottla.records._kernel import ConsumerRecord
from ottla.records.compression import decompress
from ottla.records.reader import open_reader
from ottla.records.types import HEADER_SIZE, LOG_OVERHEAD, MAX_DECOMPRESSED_BYTES, Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from typing_extensions import Buffer as AnyBuffer


PIECE_BYTES = 64 * 1024
# Of compressed batches, which can inflate to thirty thousand times as much.
COMPRESSED_PIECE_BYTES = 1024
_FRONT = struct.Struct(">qii")  # base offset, length, leader epoch
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_CODEC_AT = 22
_CODEC_BITS = 0x07


class SerializationFailed(KafkaError):
    """A deserializer refused a record. `partition` and `offset` say which: seek past it to continue."""

    __slots__ = ("offset", "partition")

    def __init__(self, partition: Any, offset: int, cause: Exception) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"{partition}: the record at offset {offset} cannot be deserialized: {cause!r}; "
            f"seek to {offset + 1} to go on after it",
        )
        self.partition = partition
        self.offset = offset


class UnreadableBatch(KafkaError):
    """A batch is damaged, or inflates to more than is allowed. The one after it begins at `next_offset`."""

    __slots__ = ("next_offset", "offset", "partition")

    def __init__(self, partition: Any, offset: int, next_offset: int, cause: KafkaError) -> None:
        super().__init__(
            cause.code,
            f"{partition}: cannot read on from offset {offset}: {cause.message}; seek past it to go on",
        )
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class _Inflater:
    """Decompresses, and counts what comes out."""

    __slots__ = ("inflated_bytes",)

    def __init__(self) -> None:
        self.inflated_bytes = 0

    def __call__(self, codec: Codec, data: AnyBuffer, max_bytes: int) -> AnyBuffer:
        inflated = decompress(codec, data, max_bytes)
        self.inflated_bytes += memoryview(inflated).nbytes
        return inflated


class CompletedFetch:
    """The data of one fetch response for one partition."""

    __slots__ = (
        "_aborted",
        "_at",
        "_buf",
        "_check_crcs",
        "_decoded",
        "_fetch_offset",
        "_inflater",
        "_reader",
        "dropped",
        "is_compressed",
        "last_epoch",
        "next_offset",
        "node_id",
        "size",
        "state",
    )

    def __init__(
        self,
        state: TopicPartitionState,
        buf: Buffer,
        *,
        fetch_offset: int,
        aborted: list[tuple[int, int]],
        check_crcs: bool,
        node_id: int,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.state = state
        self.node_id = node_id
        self.size = memoryview(buf).nbytes
        self.dropped = False
        self._buf = memoryview(buf)
        self._at = 0
        self._fetch_offset = fetch_offset
        self._aborted = aborted
        self._check_crcs = check_crcs
        self._inflater = _Inflater()
        self._reader = open_reader(
            start_offset=fetch_offset,
            check_crc=check_crcs,
            max_decompressed_bytes=max_decompressed_bytes,
            decompress=self._inflater,
        )
        self._reader.set_aborted(aborted)
        self._decoded: list[ConsumerRecord[Any, Any]] = []
        self.is_compressed = False
        # The offset after the last whole batch, and that batch's leader epoch.
        self.next_offset, self.last_epoch = self._end(fetch_offset)

    def _end(self, fetch_offset: int) -> tuple[int, int]:
        buf, size, at = self._buf, self.size, 0
        offset, epoch = fetch_offset, -1
        while size - at >= HEADER_SIZE:
            base_offset, length, batch_epoch = _FRONT.unpack_from(buf, at)
            if length < HEADER_SIZE - LOG_OVERHEAD or at + LOG_OVERHEAD + length > size:
                break
            offset = base_offset + _LAST_DELTA.unpack_from(buf, at + _LAST_DELTA_AT)[0] + 1
            epoch = batch_epoch
            self.is_compressed |= bool(buf[at + _CODEC_AT] & _CODEC_BITS)
            at += LOG_OVERHEAD + length
        if not at and size:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self.state.partition}: {size} bytes fetched at offset {fetch_offset} hold no whole batch",
            )
        return max(offset, fetch_offset), epoch

    @property
    def is_empty(self) -> bool:
        return not self._decoded and self.size - self._at < HEADER_SIZE

    @property
    def inflated_bytes(self) -> int:
        """What compressed batches that were decoded by `take` have decompressed."""
        return self._inflater.inflated_bytes

    @property
    def is_readable(self) -> bool:
        return not (self.dropped or self.state.paused or self.state.revoking)

    def take(
        self,
        most: int,
        key_deserializer: Deserializer | RecordSerde | None,
        value_deserializer: Deserializer | RecordSerde | None,
    ) -> list[ConsumerRecord[Any, Any]]:
        """Return up to `most` records, and advance the position past them. None if the rest has no records
        for users; the position advances all the same. SchemaNeeded, if the first has to wait for its schema.
        """
        state = self.state
        while not self._decoded:
            if self.is_empty:
                self._advance_to_end()
                return []
            self._decode_piece()
        found, rest = self._decoded[:most], self._decoded[most:]
        if key_deserializer is not None or value_deserializer is not None:
            count, error = deserialize_records(found, key_deserializer, value_deserializer)
            if error is not None:
                found, rest = found[:count], found[count:] + rest
                if not found:
                    self._decoded = rest
                    if isinstance(error, SchemaNeeded):
                        raise error
                    raise SerializationFailed(state.partition, rest[0].offset, error) from error
        self._decoded = rest
        if rest:
            state.position, state.position_epoch = rest[0].offset, rest[0].leader_epoch
        elif self.is_empty:
            self._advance_to_end()
        else:
            state.position, state.position_epoch = found[-1].offset + 1, found[-1].leader_epoch
        return found

    def _advance_to_end(self) -> None:
        """Move the position to the end of the fetch. The last batch may have no records for users, such as a
        marker; its epoch still counts for validation, or the next leader would seem to have truncated the log
        before it.
        """
        state = self.state
        state.position = max(state.position or 0, self.next_offset)
        if self.last_epoch >= 0:
            state.position_epoch = self.last_epoch

    def _decode_piece(self) -> None:
        begin = self._at
        at, next_offset = self._piece(COMPRESSED_PIECE_BYTES if self.is_compressed else PIECE_BYTES)
        if at == begin:
            self._at = self.size  # the incomplete end of a fetch, which the next one brings as a whole
            return
        source: ConsumerRecord[None, None] = ConsumerRecord(*self.state.partition, self._fetch_offset)
        try:
            self._decoded = self._reader.read_for_user(self._buf[begin:at], source)
        except KafkaError:
            # Those before the one that cannot be read are read first.
            at, next_offset = self._piece(1)
            try:
                self._decoded = self._reader.read_for_user(self._buf[begin:at], source)
            except KafkaError as error:
                offset = max(self.state.position or 0, self._fetch_offset)
                raise UnreadableBatch(self.state.partition, offset, next_offset, error) from error
        self._at = at

    def _piece(self, most: int) -> tuple[int, int]:
        """Where batches of at least `most` bytes end, or what there is, and the offset that follows."""
        begin, at, size, buf = self._at, self._at, self.size, self._buf
        next_offset = -1
        while size - at >= HEADER_SIZE and at - begin < most:
            base_offset, length, _ = _FRONT.unpack_from(buf, at)
            if length < HEADER_SIZE - LOG_OVERHEAD or at + LOG_OVERHEAD + length > size:
                break
            next_offset = base_offset + _LAST_DELTA.unpack_from(buf, at + _LAST_DELTA_AT)[0] + 1
            at += LOG_OVERHEAD + length
        return at, next_offset

    def decode_arrow(self, columns: Sequence[str], position: int) -> pa.RecordBatch:
        """Return the rest from `position` on as columns. Changes no state, so that it may run in another
        thread: `taken_arrow` does.
        """
        from ottla.records.arrow import ArrowDecoder

        partly, at = bool(self._decoded), self._at
        decoder = ArrowDecoder(
            columns=columns,
            start_offset=max(position, self._fetch_offset),
            check_crc=self._check_crcs,
            expected_bytes=self.size - (0 if partly else at),
        )
        decoder.set_aborted(self._aborted)
        # From the beginning, as earlier batches may contain the end of an aborted transaction.
        try:
            decoder.feed(self._buf if partly or self._aborted else self._buf[at:])
        except KafkaError as error:
            raise UnreadableBatch(self.state.partition, position, self.next_offset, error) from error
        return decoder.finish()

    def taken_arrow(self) -> None:
        """Mark all of it as consumed: the position is the end of the fetch."""
        self._at, self._decoded = self.size, []
        self._advance_to_end()
