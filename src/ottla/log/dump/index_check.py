"""Check whether the indexes of a segment agree with its log.

An entry of the offset index must name the position of a batch and that batch's last offset; an entry of the
time index must name an offset of the log up to which no batch is younger. Each entry that is wrong is
reported in one sentence.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from ottla.log.dump.dump import RowKind, batch_headers, dump_offset_index, dump_time_index
from ottla.log.segment.file_names import INDEX, LOG, TIME_INDEX, parse_segment_file, segment_file_name
from ottla.protocol.errors import KafkaError
from ottla.runtime.disk import Disk


class _Batch(NamedTuple):
    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def check_index(disk: Disk, path: str) -> Iterator[str]:
    """The contradictions between an `.index` or a `.timeindex` and the log beside it."""
    segment = parse_segment_file(posixpath.basename(path))
    if segment is None or segment.kind not in (INDEX, TIME_INDEX):
        return
    log = posixpath.join(posixpath.dirname(path), segment_file_name(segment.offset, LOG, segment.suffix))
    if not disk.exists(log):
        yield f"there is no {posixpath.basename(log)} beside it"
        return
    batches = _batches(disk, log)
    if segment.kind == INDEX:
        yield from _check_offsets(disk, path, batches)
    else:
        yield from _check_times(disk, path, batches)


def _batches(disk: Disk, log: str) -> list[_Batch]:
    file = disk.open(log, writable=False)
    try:
        return [
            _Batch(position, header.base_offset, header.last_offset, header.max_timestamp)
            for position, header in batch_headers(file)
            if not isinstance(header, KafkaError)
        ]
    finally:
        file.close()


def _check_offsets(disk: Disk, path: str, batches: list[_Batch]) -> Iterator[str]:
    by_position = {batch.position: batch for batch in batches}
    for row in dump_offset_index(disk, path):
        if row.kind is not RowKind.ENTRY:
            continue
        offset, position = row.data["offset"], row.data["position"]
        batch = by_position.get(position)
        if batch is None:
            yield f"the entry of offset {offset} names position {position}, where no batch begins"
        elif batch.last_offset != offset:
            yield f"the entry at {position} names offset {offset}; its batch ends at {batch.last_offset}"


def _check_times(disk: Disk, path: str, batches: list[_Batch]) -> Iterator[str]:
    youngest = -1
    at = 0
    for row in dump_time_index(disk, path):
        if row.kind is not RowKind.ENTRY:
            continue
        timestamp, offset = row.data["timestamp"], row.data["offset"]
        while at < len(batches) and batches[at].last_offset <= offset:
            youngest = max(youngest, batches[at].max_timestamp)
            at += 1
        if batches and not batches[0].base_offset <= offset <= batches[-1].last_offset:
            yield f"the entry of {timestamp} names offset {offset}, which the log does not have"
        elif youngest > timestamp:
            yield f"the entry of {timestamp} names offset {offset}, but up to it a record has {youngest}"
