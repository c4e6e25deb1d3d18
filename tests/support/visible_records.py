"""What a consumer sees of fetched bytes, as records or as columns of Arrow; and batches of such columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ottla.records._kernel import Record
from ottla.records.arrow import ALL_COLUMNS, DEFAULT_BATCH_BYTES, ArrowDecoder, encode_rows
from ottla.records.builder import seal
from ottla.records.reader import MAX_OFFSET, open_reader
from ottla.records.types import (
    MAX_DECOMPRESSED_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_MAX_SEQUENCE = 2**31


def read_visible(
    buf: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    aborted: Iterable[tuple[int, int]] = (),
    check_crc: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The records in [start_offset, end_offset) that a consumer sees of the complete batches in `buf`.

    `aborted` are the (producer id, first offset) pairs of the aborted transactions that a read_committed
    fetch comes with; without them nothing is left out but control records.
    """
    reader = open_reader(
        start_offset=start_offset,
        end_offset=end_offset,
        check_crc=check_crc,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    reader.set_aborted(aborted)
    return reader.read(buf)


def decode_to_arrow(
    buffers: Sequence[Buffer],
    *,
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    aborted: Iterable[tuple[int, int]] = (),
    columns: Sequence[str] = ALL_COLUMNS,
    empty_headers: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> pa.RecordBatch:
    """The records in [start_offset, end_offset) that a consumer sees of these fetched bytes."""
    decoder = ArrowDecoder(
        columns=columns,
        start_offset=start_offset,
        end_offset=end_offset,
        empty_headers=empty_headers,
        check_crc=check_crc,
        max_decompressed_bytes=max_decompressed_bytes,
        expected_bytes=sum(memoryview(buf).nbytes for buf in buffers),
    )
    decoder.set_aborted(aborted)
    for buf in buffers:
        decoder.feed(buf)
    return decoder.finish()


def build_batches_from_arrow(
    data: pa.RecordBatch,
    *,
    default_timestamp: int = NO_TIMESTAMP,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> Iterator[tuple[int, bytearray]]:
    """(number of rows, batch) for all rows in order; batches stay below `max_batch_bytes` before
    compression.

    `data` has columns `key`, `value`, `headers` and `timestamp`, each of which may be missing. Text is
    written as UTF-8. Rows without a timestamp get `default_timestamp`. Sequence numbers go on from batch to
    batch.
    """
    at = 0
    for encoder in encode_rows(data, default_timestamp=default_timestamp, max_batch_bytes=max_batch_bytes):
        sequence = base_sequence if base_sequence < 0 else (base_sequence + at) % _MAX_SEQUENCE
        yield (
            encoder.count,
            seal(
                encoder,
                codec=codec,
                level=level,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                transactional=transactional,
            ),
        )
        at += encoder.count
