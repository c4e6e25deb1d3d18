"""Rewrite segments in the formats from before Kafka 0.11 as record batches, offset by offset. Needs no node.

Apache Kafka 4 reads these formats and Ottla does not, so this is for the logs of an old cluster. A segment is
written beside the old one, synced, and takes its place with one rename; its indexes are removed before, as
they are built again from the batches. An interruption leaves the old segment or the new one. Offsets, keys,
values and timestamps stay the same; batches get no leader epoch, as messages of that time had none.
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


def old_segments(disk: Disk, directory: str) -> list[str]:
    """The segments of a partition that begin with an old format, by their paths. A later segment may have one
    only if an earlier one has, but it is looked for in all.
    """
    found = []
    for name in disk.list_dir(directory):
        if not name.endswith(".log"):
            continue
        path = posixpath.join(directory, name)
        file = disk.open(path, writable=False)
        try:
            magic = file.pread(1, MAGIC_POSITION)
        finally:
            file.close()
        if magic and magic[0] < _CURRENT_MAGIC:
            found.append(path)
    return found


def upgrade_segment(disk: Disk, path: str) -> UpgradedSegment:
    """Rewrite one segment; KafkaError CORRUPT_MESSAGE, and nothing has changed, if a message is damaged."""
    new = path + _UNFINISHED
    source = disk.open(path, writable=False)
    records = 0
    try:
        target = disk.open(new, create=True)
        try:
            target.truncate(0)
            size = 0
            for batch, count in _batches(source):
                target.pwrite(batch, size)
                size += len(batch)
                records += count
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
    disk.rename(new, path)
    disk.sync_dir(posixpath.dirname(path))
    return UpgradedSegment(path, before, size, records)


def _batches(source: File) -> Iterator[tuple[bytes, int]]:
    """The batches of a segment, and how many records each has that was converted."""
    gathered: list[LegacyMessage] = []
    gathered_bytes = 0
    end, pos = source.size(), 0
    while pos < end:
        start = source.pread(LOG_OVERHEAD + 5, pos)
        if len(start) < LOG_OVERHEAD + 5:
            break  # a torn end, as recovery leaves out
        length = LOG_OVERHEAD + int.from_bytes(start[8:12], "big", signed=True)
        if length < LOG_OVERHEAD or length > _MAX_MESSAGE_BYTES:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no message begins at position {pos}")
        if pos + length > end:
            break
        data = source.pread(length, pos)
        if start[MAGIC_POSITION] >= _CURRENT_MAGIC:
            if gathered:
                yield convert(gathered, Codec.NONE), len(gathered)
                gathered, gathered_bytes = [], 0
            yield data, 0
        else:
            message, _ = read_message(memoryview(data))
            full = gathered_bytes + length > _MAX_BATCH_BYTES
            if gathered and (full or not can_follow(gathered, message)):
                yield convert(gathered, Codec.NONE), len(gathered)
                gathered, gathered_bytes = [], 0
            if message.codec is Codec.NONE:
                gathered.append(message)
                gathered_bytes += length
            else:
                inner = unwrap(message)
                yield convert(inner, message.codec), len(inner)
        pos += length
    if gathered:
        yield convert(gathered, Codec.NONE), len(gathered)
