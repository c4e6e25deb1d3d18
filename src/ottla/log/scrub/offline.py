"""Examine the log directory of a node that is stopped: everything at rest, and nothing is changed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import CorruptCheckpoint
from ottla.log.directory.dir_names import DirKind, parse_dir_name
from ottla.log.directory.meta_properties import StorageError, read_meta_properties
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT, LeaderEpochCache, read_epochs
from ottla.log.scrub.examination import (
    Examined,
    RottenFile,
    examine_leader_epochs,
    examine_segment,
    examine_snapshots,
    examine_topic_id,
    examine_transaction_index,
)
from ottla.log.segment.file_names import LOG, SNAPSHOT, parse_segment_file
from ottla.log.segment.handles import FileHandles
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.soundness import AnyEpoch, EpochSpans
from ottla.protocol.errors import KafkaError
from ottla.runtime.disk import Disk

CHECKPOINT: Final = "checkpoint"
META_PROPERTIES: Final = "meta.properties"
_END_OFFSET: Final = (1 << 63) - 1
_CONFIG: Final = LogConfig()


def examine_directory(disk: Disk, path: str) -> Iterator[Examined]:
    """Examine all logs of a directory, and its checkpoints."""
    try:
        read_meta_properties(disk, path)
    except StorageError as error:
        yield RottenFile(META_PROPERTIES, posixpath.join(path, "meta.properties"), str(error))
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS):
        file = posixpath.join(path, name)
        try:
            if disk.exists(file):
                checkpoints.read_offsets(disk, file)
        except CorruptCheckpoint as error:
            yield RottenFile(CHECKPOINT, file, str(error))
    for name in disk.list_dir(path):
        dir = posixpath.join(path, name)
        try:
            is_log = "-" in name and disk.is_dir(dir) and parse_dir_name(name)[1] is DirKind.CURRENT
        except KafkaError:
            continue
        if is_log:
            yield from _examine_log(disk, dir)


def _examine_log(disk: Disk, dir: str) -> Iterator[Examined]:
    files = [each for each in map(parse_segment_file, disk.list_dir(dir)) if each is not None]
    bases = sorted(each.offset for each in files if each.kind == LOG and not each.suffix)
    snapshots = sorted(each.offset for each in files if each.kind == SNAPSHOT and not each.suffix)
    yield from examine_topic_id(disk, dir, None)
    yield from examine_leader_epochs(disk, dir, None)
    handles = FileHandles(disk, 64)
    for number, base in enumerate(bases):
        segment = LogSegment(handles, dir, base, _CONFIG)
        is_closed = number + 1 < len(bases)
        end = bases[number + 1] if is_closed else _END_OFFSET
        try:
            epochs = _epochs(disk, dir)
            yield from examine_segment(disk, segment, segment.size, end, epochs, is_closed=is_closed)
            yield from examine_transaction_index(disk, segment)
        finally:
            segment.close_handlers()
    yield from examine_snapshots(disk, dir, snapshots)


def _epochs(disk: Disk, dir: str) -> EpochSpans:
    try:
        entries = read_epochs(disk, posixpath.join(dir, LEADER_EPOCH_CHECKPOINT))
    except CorruptCheckpoint:
        return AnyEpoch()
    return LeaderEpochCache(entries) if entries else AnyEpoch()
