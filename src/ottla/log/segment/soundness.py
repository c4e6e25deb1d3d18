"""Tell sound batches of a segment's file from damaged bytes, exactly.

A batch is sound if it has the checksum that it declares, begins where the one before it ends or, after
compaction, behind that, and has the leader epoch of its offset. Behind damage the next sound batch is where
the length of the damaged one leads to, or is searched byte by byte: what lies behind is not lost.

No checksum covers the first bytes of a batch: base offset, length, leader epoch and magic. If only these have
rotted, its records are there, and what is beside it says what the bytes were (`unprotected_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from ottla.protocol.errors import KafkaError
from ottla.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    BatchHeader,
    check_batches,
    iter_offsets,
    verify_crc,
)

_CHUNK_BYTES: Final = 1024 * 1024
# What the check of a batch needs of the one that follows it.
NEXT_BYTES: Final = 17
_MAGIC: Final = b"\x02"
_MAGIC_POSITION: Final = 16
_LAST_EPOCH: Final = (1 << 31) - 1
_END_OFFSET: Final = (1 << 63) - 1
# Base offset, length, leader epoch, magic.
_UNPROTECTED: Final = Struct(">qiib")
_LAST_OFFSET_DELTA: Final = slice(23, 27)
# A larger stretch is not one batch with a few wrong bytes.
_LARGEST_BATCH: Final = 128 * 1024 * 1024


class ReadableFile(Protocol):
    @property
    def path(self) -> str: ...

    def pread(self, size: int, offset: int) -> bytes: ...


class EpochSpans(Protocol):
    """Which leader epoch wrote an offset."""

    def span(self, offset: int) -> tuple[int, int, int]:
        """The least and the greatest epoch that a batch at `offset` can have, and the offset from which on
        that may be another.
        """
        ...


class AnyEpoch:
    """The leader epochs are not known, or do not count."""

    def span(self, offset: int) -> tuple[int, int, int]:
        return NO_LEADER_EPOCH, _LAST_EPOCH, _END_OFFSET


class Stretch(NamedTuple):
    """A part of a file: sound batches, one after another, or the damaged bytes between such."""

    position: int
    end: int
    first_offset: int
    """The offset behind the batches before it."""
    next_offset: int
    """The offset behind its own batches. If it is damaged, the one at which the next sound batch begins."""
    reason: str | None
    """Why it is damaged; None if it is sound."""

    @property
    def damage(self) -> str:
        """What is damaged: position, offsets and reason."""
        offsets = f"offset {self.first_offset}"
        if self.next_offset > self.first_offset + 1:
            offsets = f"offsets {self.first_offset} to {self.next_offset - 1}"
        if self.next_offset == _END_OFFSET:
            offsets = f"offsets from {self.first_offset} on"
        return f"the bytes {self.position} to {self.end - 1} ({offsets}) are damaged: {self.reason}"


def sound_end(data: bytes, least_offset: int, epochs: EpochSpans) -> tuple[int, int, str | None]:
    """Return where the sound batches that `data` begins with end, the offset behind them, and what is wrong
    with what follows, if anything is; a batch that is cut is not.
    """
    done, at = 0, data
    while True:
        base_offset = int.from_bytes(at[:8], "big", signed=True)
        least, greatest, until = epochs.span(base_offset)
        size, least_offset, reason = check_batches(at, least_offset, until, least, greatest)
        done += size
        if reason is not None or not size or len(data) - done < 8:
            return done, least_offset, reason
        at = data[done:]
        if int.from_bytes(at[:8], "big", signed=True) < until:
            return done, least_offset, None


def stretches(
    file: ReadableFile, size: int, position: int, least_offset: int, end_offset: int, epochs: EpochSpans
) -> Iterator[Stretch]:
    """Check a file from a batch's position on, some of it at a time. Its batches have offsets from
    `least_offset` on and below `end_offset`.
    """
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            return  # truncated meanwhile
        if len(chunk) >= HEADER_SIZE and len(chunk) < _size(chunk) <= size - position:
            chunk = file.pread(min(_size(chunk) + NEXT_BYTES, size - position), position)
        done, next_offset, reason = sound_end(chunk, least_offset, epochs)
        if reason is None and len(chunk) - done < NEXT_BYTES and position + len(chunk) < size:
            chunk += file.pread(NEXT_BYTES, position + len(chunk))
            done, next_offset, reason = sound_end(chunk, least_offset, epochs)
        if next_offset > end_offset:
            for at, _, _, last_offset in iter_offsets(chunk):
                if last_offset >= end_offset:
                    done, next_offset, _ = sound_end(chunk[:at], least_offset, epochs)
                    reason = f"a batch up to offset {last_offset}, where the segment ends at {end_offset - 1}"
                    break
        if done:
            yield Stretch(position, position + done, least_offset, next_offset, None)
            position, least_offset = position + done, next_offset
            continue
        if reason is None:
            reason = f"a batch of {_size(chunk)} bytes, but the file ends after {size - position}"
        end, next_offset = _next_sound(file, size, position, least_offset, end_offset)
        yield Stretch(position, end, least_offset, next_offset, reason)
        position, least_offset = end, next_offset


def _size(chunk: bytes) -> int:
    """The size that the batch at the beginning declares."""
    return LOG_OVERHEAD + int.from_bytes(chunk[8:12], "big", signed=True)


def _next_sound(
    file: ReadableFile, size: int, damaged: int, least_offset: int, end_offset: int
) -> tuple[int, int]:
    """The position and base offset of the first sound batch behind the one at `damaged`; the ends of file and
    segment if there is none. What is damaged had an offset at least, so a batch at `least_offset` is not what
    it was.
    """

    def base_offset(position: int) -> int | None:
        try:
            header = BatchHeader.parse(file.pread(HEADER_SIZE, position))
            if header.size > size - position or not (
                least_offset < header.base_offset <= header.last_offset < end_offset
            ):
                return None
            verify_crc(file.pread(header.size, position), 0, header)
        except KafkaError:
            return None
        return header.base_offset

    declared = damaged + _size(file.pread(LOG_OVERHEAD, damaged))
    if damaged + HEADER_SIZE <= declared < size and (found := base_offset(declared)) is not None:
        return declared, found
    position = damaged + 1
    while size - position >= HEADER_SIZE:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        at = chunk.find(_MAGIC, _MAGIC_POSITION) - _MAGIC_POSITION
        while at >= 0:
            # What lies behind the header is looked at only where the offsets can be right.
            if (
                least_offset < int.from_bytes(chunk[at : at + 8], "big") < end_offset
                and (found := base_offset(position + at)) is not None
            ):
                return position + at, found
            at = chunk.find(_MAGIC, at + 1 + _MAGIC_POSITION) - _MAGIC_POSITION
        position += max(len(chunk) - _MAGIC_POSITION, 1)
    return size, end_offset


def unprotected_bytes(
    file: ReadableFile, size: int, damaged: Stretch, epochs: EpochSpans, likely: EpochSpans | None = None
) -> bytes | None:
    """What a damaged stretch began with, if it is one batch whose checksum holds and everything beside it
    leaves one answer; None if not, or if that is what is there. Of several leader epochs that of `likely`.
    """
    length = damaged.end - damaged.position
    if not HEADER_SIZE <= length <= _LARGEST_BATCH:
        return None
    batch = file.pread(length, damaged.position)
    if len(batch) < length:
        return None
    found, _, epoch, _ = _UNPROTECTED.unpack_from(batch)
    delta = int.from_bytes(batch[_LAST_OFFSET_DELTA], "big", signed=True)
    base_offset = damaged.first_offset
    if delta < 0:
        return None
    if base_offset + delta + 1 != damaged.next_offset:
        if not base_offset <= found <= found + delta < damaged.next_offset:
            return None
        base_offset = found
    least, greatest, _ = epochs.span(base_offset)
    following = file.pread(_UNPROTECTED.size, damaged.end) if damaged.end < size else b""
    if len(following) == _UNPROTECTED.size:
        greatest = min(greatest, _UNPROTECTED.unpack(following)[2])
    if not least <= epoch <= greatest:
        epoch = least if likely is None else likely.span(base_offset)[0]
        if not least <= epoch <= greatest or (likely is None and least < greatest):
            return None
    mended = _UNPROTECTED.pack(base_offset, length - LOG_OVERHEAD, epoch, MAGIC)
    if batch.startswith(mended):
        return None
    try:
        batch = mended + batch[len(mended) :]
        verify_crc(batch, 0, BatchHeader.parse(batch))
    except KafkaError:
        return None
    return mended
