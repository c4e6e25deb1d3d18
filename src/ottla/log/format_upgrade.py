"""Rewrite segments in the formats from before Kafka 0.11 as record batches, offset by offset. Needs no node.

Apache Kafka 4 reads these formats and Ottla does not, so this is for the logs of an old cluster. A segment is
written beside the old one, synced, and takes its place with one rename; its indexes are removed before, and
durably, as they are built again from the batches. An interruption leaves the old segment or the new one,
which never has the indexes of the old one. Offsets, keys, values and timestamps stay the same; batches get no
leader epoch, as messages of that time had none.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.legacy import (
    MAGIC_POSITION,
    LegacyMessage,
    can_follow,
    convert,
    read_message,
    unwrap,
)
from ottla.records.types import LOG_OVERHEAD, Codec
from ottla.runtime.disk import Disk, File

_CURRENT_MAGIC: Final = 2
_MAX_BATCH_BYTES: Final = 64 * 1024
_MAX_MESSAGE_BYTES: Final = 1024 * 1024 * 1024
_INDEXES: Final = (".index", ".timeindex", ".txnindex")
# A suffix that every load removes: the segment of a compaction that did not complete.
_UNFINISHED: Final = ".cleaned"


class UpgradedSegment(NamedTuple):
    path: str
    size_before: int
    size_after: int
    records: int
    torn_size: int = 0
    """The bytes of a message at the end that was not written completely."""


def old_segments(disk: Disk, directory: str, *, thorough: bool = False) -> list[str]:
    """The segments of a partition that begin with an old format, by their paths. A later segment may have one
    only if an earlier one has, but it is looked for in all. With `thorough`, every batch is looked at:
    `message.format.version` may have been lowered in the middle of a segment.
    """
    found = []
    for name in disk.list_dir(directory):
        if not name.endswith(".log"):
            continue
        path = posixpath.join(directory, name)
        file = disk.open(path, writable=False)
        try:
            if _has_old_format(file, thorough):
                found.append(path)
        finally:
            file.close()
    return found


def _has_old_format(file: File, thorough: bool) -> bool:
    pos = 0
    while len(start := file.pread(LOG_OVERHEAD + 5, pos)) == LOG_OVERHEAD + 5:
        if start[MAGIC_POSITION] < _CURRENT_MAGIC:
            return True
        length = int.from_bytes(start[8:12], "big", signed=True)
        if not thorough or length <= 0:
            break  # damage is for the recovery of the log
        pos += LOG_OVERHEAD + length
    return False


def upgrade_segment(disk: Disk, path: str, *, may_be_torn: bool = False) -> UpgradedSegment:
    """Rewrite one segment; KafkaError CORRUPT_MESSAGE, and nothing has changed, if a message is damaged, or
    if the segment ends within one. The last segment of a node that was killed `may_be_torn`: then the rest is
    left out, as the recovery of a log does.
    """
    new = path + _UNFINISHED
    source = disk.open(path, writable=False)
    records = 0
    try:
        target = disk.open(new, create=True)
        try:
            target.truncate(0)
            size = 0
            torn = source.size()
            for batch, count, end in _batches(source):
                target.pwrite(batch, size)
                size += len(batch)
                records += count
                torn = source.size() - end
            if torn and not may_be_torn:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"its last {torn} bytes are no message",
                )
            target.sync()
        except BaseException:
            target.close()
            with suppress(OSError):
                disk.unlink(new)
            raise
        target.close()
        before = source.size()
    except KafkaError as error:
        raise KafkaError(error.code, f"{path}: {error.message}") from None
    finally:
        source.close()
    base = path.removesuffix(".log")
    for suffix in _INDEXES:
        if disk.exists(base + suffix):
            disk.unlink(base + suffix)
    disk.sync_dir(posixpath.dirname(path))
    disk.rename(new, path)
    disk.sync_dir(posixpath.dirname(path))
    return UpgradedSegment(path, before, size, records, torn)


def _messages(source: File) -> Iterator[tuple[int, bytes]]:
    """The messages and batches of a segment, with where each ends, up to one that is not complete."""
    end, pos = source.size(), 0
    while pos < end:
        start = source.pread(LOG_OVERHEAD + 5, pos)
        if len(start) < LOG_OVERHEAD + 5:
            return
        length = LOG_OVERHEAD + int.from_bytes(start[8:12], "big", signed=True)
        if length < LOG_OVERHEAD or length > _MAX_MESSAGE_BYTES:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no message begins at position {pos}")
        if pos + length > end:
            return
        pos += length
        yield pos, source.pread(length, pos - length)


def _batches(source: File) -> Iterator[tuple[bytes, int, int]]:
    """The batches of a segment, how many records each has that was converted, and where their source ends."""
    gathered: list[LegacyMessage] = []
    gathered_bytes = 0
    end = 0
    for pos, data in _messages(source):
        if data[MAGIC_POSITION] >= _CURRENT_MAGIC:
            if gathered:
                yield convert(gathered, Codec.NONE), len(gathered), end
                gathered, gathered_bytes = [], 0
            yield data, 0, pos
        else:
            message, _ = read_message(memoryview(data))
            full = gathered_bytes + len(data) > _MAX_BATCH_BYTES
            if gathered and (full or not can_follow(gathered, message)):
                yield convert(gathered, Codec.NONE), len(gathered), end
                gathered, gathered_bytes = [], 0
            if message.codec is Codec.NONE:
                gathered.append(message)
                gathered_bytes += len(data)
            else:
                inner = unwrap(message)
                yield convert(inner, message.codec), len(inner), pos
        end = pos
    if gathered:
        yield convert(gathered, Codec.NONE), len(gathered), end
