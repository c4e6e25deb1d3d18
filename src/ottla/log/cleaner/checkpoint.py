"""The offset up to which each log is clean: `cleaner-offset-checkpoint`, one file for each log directory.

The offsets are kept in memory and written at the end of a cleaning. A lost write costs a second cleaning,
never a record.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Container

from ottla.log.directory import checkpoints
from ottla.log.directory.directory import LogDirectory
from ottla.protocol.names import TopicPartition

__all__ = ["CleanerCheckpoint", "checkpoint_path"]

_log = logging.getLogger(__name__)


def checkpoint_path(directory: LogDirectory) -> str:
    return posixpath.join(directory.path, checkpoints.CLEANER_OFFSETS)


class CleanerCheckpoint:
    """The checkpoint of one log directory. To make one reads its file; OSError if that cannot be."""

    __slots__ = ("_directory", "_offsets", "_version", "_written_version")

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        # Counts the changes; the file holds the offsets as of `_written_version`.
        self._version = 0
        self._written_version = 0
        try:
            self._offsets = checkpoints.read_offsets(directory.disk, self.path)
        except checkpoints.CorruptCheckpoint as error:
            _log.error("the checkpoint is not usable, all its logs count as dirty: %s", error)
            self._offsets = {}

    @property
    def path(self) -> str:
        return checkpoint_path(self._directory)

    @property
    def is_dirty(self) -> bool:
        return self._version != self._written_version

    def get(self, partition: TopicPartition) -> int | None:
        """The first offset that the last cleaning has not reached."""
        return self._offsets.get(partition)

    def set(self, partition: TopicPartition, offset: int | None) -> None:
        """Set the offset of a partition, or remove the partition; `write` makes that durable."""
        if self._offsets.get(partition) == offset:
            return
        if offset is None:
            del self._offsets[partition]
        else:
            self._offsets[partition] = offset
        self._version += 1

    def retain_only(self, present: Container[TopicPartition]) -> None:
        """Remove all other partitions."""
        for partition in [known for known in self._offsets if known not in present]:
            self.set(partition, None)

    def stage(self) -> Callable[[], None]:
        """Return what writes the offsets as they are now, in any thread; one write at a time."""
        version, offsets = self._version, dict(self._offsets)

        def write() -> None:
            checkpoints.write_offsets(self._directory.disk, self.path, offsets)
            self._written_version = version

        return write
