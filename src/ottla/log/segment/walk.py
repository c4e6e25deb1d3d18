"""Walk over the batches of a file, by their headers or with all their bytes.

A segment's file is whole batches, one after another. Every walk ends exactly at the end of the file or raises
`CorruptBatch`, which says where it cannot go on and why: a batch is never stepped over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ottla.log.segment.offset_index import OffsetPosition
from ottla.log.segment.soundness import ReadableFile
from ottla.log.segment.sparse_index import CorruptIndex
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, verify_crc
from ottla.runtime.disk import File

# Base offset, length and last offset delta: what it takes to get from batch to batch.
_STEP = Struct(">qi11xi")
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_WALK_BYTES = 16 * 1024
# What a search reads at first: about the distance between two entries of an index.
_FIND_BYTES = 5 * 1024
_SCAN_BYTES = 1024 * 1024


class CorruptBatch(KafkaError):
    """The bytes at `position` of a segment's file are not a batch, or not the one that was written."""

    __slots__ = ("path", "position", "reason")

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path}, position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class CorruptLog(KafkaError):
    """Synced records are damaged or missing."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class BatchPosition(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    least_offset: int
    """The batch cannot begin below it: where the one before it ends, if that was passed."""
    chunk: bytes
    """What the search has read of the file: from `at` on the batch, or its beginning, and what follows it."""
    at: int


class ScannedBatch(NamedTuple):
    """A batch with its bytes: `buffer` holds it whole, from `at` on."""

    position: int
    header: BatchHeader
    buffer: bytes
    at: int


def find_batch(
    file: File, size: int, indexed: OffsetPosition, offset: int, least_offset: int, *, check: bool = True
) -> BatchPosition | None:
    """The first batch that ends at or above `offset`, searched from an entry of the offset index on; None if
    all end below it. CorruptBatch where the offsets of batches that are passed, from `least_offset` on, do
    not rise; CorruptIndex if the entry is to be checked, and no batch ends where it says.
    """
    position = indexed.position
    check = check and position > 0
    unpack = _STEP.unpack_from
    wanted = _FIND_BYTES
    while position < size:
        chunk = file.pread(min(wanted, size - position), position)
        at = 0
        while len(chunk) - at >= _STEP.size:
            base_offset, length, delta = unpack(chunk, at)
            last_offset = base_offset + delta
            if check:
                if last_offset != indexed.offset:
                    raise CorruptIndex(f"{file.path}: {indexed} is not where a batch ends")
                check = False
            left = size - position - at
            if length < _MIN_LENGTH or length + LOG_OVERHEAD > left:
                reason = f"a batch of length {length}, with {left} bytes left in the file"
                raise CorruptBatch(file.path, position + at, reason)
            if not least_offset <= base_offset <= last_offset:
                reason = f"the offsets {base_offset} to {last_offset} after {least_offset - 1}"
                raise CorruptBatch(file.path, position + at, reason)
            if last_offset >= offset:
                return BatchPosition(
                    position + at, length + LOG_OVERHEAD, base_offset, last_offset, least_offset, chunk, at
                )
            least_offset = last_offset + 1
            at += length + LOG_OVERHEAD
        if at == 0:
            raise _too_short(file, position, len(chunk))
        position += at
        # Behind a large batch most likely lies the one that is sought, and its header is enough.
        wanted = HEADER_SIZE if wanted == _FIND_BYTES and at > wanted else _WALK_BYTES
    return None


def walk_headers(file: ReadableFile, size: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from a batch's position on, without reading the records."""
    while position < size:
        chunk = file.pread(min(_WALK_BYTES, size - position), position)
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            header = _parse(file, chunk, at, position, size)
            yield position + at, header
            at += header.size
        if at == 0:
            raise _too_short(file, position, len(chunk))
        position += at


def scan_batches(file: File, size: int, position: int) -> Iterator[ScannedBatch]:
    """Each batch with its bytes, from a batch's position on, checksums verified."""
    while position < size:
        chunk = file.pread(min(_SCAN_BYTES, size - position), position)
        at = 0
        while at < len(chunk):
            rest = len(chunk) - at
            if rest < HEADER_SIZE:
                if position + len(chunk) < size:
                    break
                raise _too_short(file, position + at, rest)
            header = _parse(file, chunk, at, position, size)
            if header.size > rest:
                if at:
                    break
                chunk = file.pread(header.size, position)
            try:
                verify_crc(chunk, at, header)
            except KafkaError as error:
                raise CorruptBatch(file.path, position + at, error.message) from None
            yield ScannedBatch(position + at, header, chunk, at)
            at += header.size
        position += at


def _parse(file: ReadableFile, chunk: bytes, at: int, position: int, size: int) -> BatchHeader:
    """The header at `at` of a chunk that was read at `position`."""
    try:
        header = BatchHeader.parse(chunk, at)
    except KafkaError as error:
        raise CorruptBatch(file.path, position + at, error.message) from None
    left = size - position - at
    if header.size > left:
        reason = f"a batch of {header.size} bytes, but the file ends after {left}"
        raise CorruptBatch(file.path, position + at, reason)
    return header


def _too_short(file: ReadableFile, position: int, size: int) -> CorruptBatch:
    return CorruptBatch(file.path, position, f"{size} bytes, too few for a batch")
