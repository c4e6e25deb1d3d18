"""Complete or undo the operations that a crash interrupted: deletions, swaps of compacted segments, temporary
files.

A file marked `.deleted` is removed, and so is a `.tmp`. A swap has begun once all its files are named
`.swap`, which is durable before the first old segment is removed; so where a `.cleaned` file is left at or
below it, it is undone, and otherwise it is completed. An index without a segment is removed.
"""

from __future__ import annotations

import logging
import posixpath
from typing import NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.checkpoints import DAMAGE_REPORT
from ottla.log.segment.file_names import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_KINDS,
    SWAP,
    SegmentFile,
    parse_segment_file,
)
from ottla.log.segment.handles import FileHandles
from ottla.log.segment.segment import LogSegment
from ottla.runtime.disk import Disk

_log = logging.getLogger(__name__)

_TEMPORARY = ".tmp"
_NEVER = 1 << 64

Files = list[tuple[str, SegmentFile]]


class PartitionFiles(NamedTuple):
    """What a partition's directory holds once interrupted operations are completed."""

    base_offsets: list[int]
    """Of the segments, ascending."""
    has_damage_report: bool


def complete_interrupted_operations(handles: FileHandles, dir: str, config: LogConfig) -> PartitionFiles:
    """Complete or undo interrupted deletions and swaps in a partition's directory; return what is left. Reads
    no file unless it must.
    """
    disk = handles.disk
    names = disk.list_dir(dir)
    files = _segment_files(names)
    temporary = [name for name in names if name.endswith(_TEMPORARY)]
    if temporary or any(file.suffix for _, file in files):
        _unlink(disk, dir, temporary)
        _remove_marked(disk, dir, files)
        _complete_swaps(handles, dir, config)
        disk.sync_dir(dir)
        files = _segment_files(disk.list_dir(dir))
    bases = [file.offset for _, file in files if file.kind == LOG]
    known = set(bases)
    orphans = [
        name
        for name, file in files
        if file.kind != LOG and file.kind in SEGMENT_KINDS and file.offset not in known
    ]
    for name in orphans:
        _log.warning("%s has no segment and is removed", posixpath.join(dir, name))
    _unlink(disk, dir, orphans)
    return PartitionFiles(bases, DAMAGE_REPORT in names)


def _segment_files(names: list[str]) -> Files:
    parsed = ((name, parse_segment_file(name)) for name in names)
    return [(name, file) for name, file in parsed if file is not None]


def _remove_marked(disk: Disk, dir: str, files: Files) -> None:
    # The `.cleaned` files show that a swap has not begun, so they are removed last.
    first_cleaned = min((file.offset for _, file in files if file.suffix == CLEANED), default=_NEVER)
    undone = [name for name, file in files if file.suffix == SWAP and file.offset >= first_cleaned]
    _unlink(disk, dir, undone)
    if undone:
        disk.sync_dir(dir)
    _unlink(disk, dir, [name for name, file in files if file.suffix in (DELETED, CLEANED)])


def _complete_swaps(handles: FileHandles, dir: str, config: LogConfig) -> None:
    disk = handles.disk
    files = _segment_files(disk.list_dir(dir))
    swaps = [(name, file) for name, file in files if file.suffix == SWAP]
    if not swaps:
        return
    for _, swap in swaps:
        if swap.kind != LOG:
            continue
        segment = LogSegment(handles, dir, swap.offset, config, suffix=SWAP)
        end = swap.offset + 1  # also an empty segment replaces the one of its base offset
        for _, header in segment.headers():
            end = header.next_offset
        segment.close_handlers()
        _log.info("%s: the swap of %d to %d is completed", dir, swap.offset, end)
        replaced = [
            name
            for name, file in files
            if not file.suffix and file.kind in SEGMENT_KINDS and swap.offset <= file.offset < end
        ]
        _unlink(disk, dir, replaced)
        files = [(name, file) for name, file in files if name not in replaced]
    # The old segments must be gone before the new ones have their names, or their ranges might overlap.
    disk.sync_dir(dir)
    for name, _ in swaps:
        path = posixpath.join(dir, name)
        disk.rename(path, path.removesuffix(SWAP))


def _unlink(disk: Disk, dir: str, names: list[str]) -> None:
    for name in names:
        disk.unlink(posixpath.join(dir, name))
