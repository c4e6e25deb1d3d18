"""Open a log directory and list what is in it; both run in the pool."""

from __future__ import annotations

import logging
import posixpath
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.log.directory import checkpoints
from ottla.log.directory.dir_names import REMOTE_LOG_INDEX_CACHE, DirKind, parse_dir_name
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.meta_properties import StorageError, read_meta_properties
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.runtime.disk import Disk, Lock

_log = logging.getLogger(__name__)


class PartitionDir(NamedTuple):
    name: str
    partition: TopicPartition
    kind: DirKind


@dataclass(slots=True)
class DirectoryContents:
    """The partitions of a log directory, by the names in it."""

    clean_epoch: int | None
    """The broker epoch of the last shutdown, if that was clean."""
    high_watermarks: dict[TopicPartition, int]
    partitions: list[PartitionDir] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    """Partitions whose removal was not completed, by their paths."""
    strays: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Damaged logs that were set aside, by their paths."""


def open_directory(directory: LogDirectory, *, lock: bool) -> Lock | None:
    """Create the directory if it is missing, lock it and read what all its logs share. It is offline
    afterwards if its disk fails; KAFKA_STORAGE_ERROR if another process has it.
    """
    disk, path = directory.disk, directory.path
    taken: Lock | None = None
    try:
        _make_durable_dirs(disk, path)
        if lock:
            taken = disk.lock(posixpath.join(path, checkpoints.LOCK))
        properties = read_meta_properties(disk, path)
        if properties is not None:
            directory.directory_id = properties.directory_id
        directory.load_checkpoints()
    except BlockingIOError as error:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Failed to acquire lock on file .lock in {path}. A Kafka instance in another process or thread "
            "is using this directory.",
        ) from error
    except OSError as error:
        directory.fail(f"it could not be opened: {error}")
    except StorageError as error:
        if taken is not None:
            taken.release()
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return taken


def _make_durable_dirs(disk: Disk, path: str) -> None:
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = posixpath.dirname(path)
    if missing:
        disk.make_dirs(missing[0])
        for made in missing:
            disk.sync_dir(posixpath.dirname(made) or ".")


def list_directory(directory: LogDirectory) -> DirectoryContents:
    """List the partitions, and remove the mark of a clean shutdown, which is valid for one start only."""
    disk = directory.disk
    epoch = checkpoints.read_clean_shutdown(disk, directory.path)
    if epoch is not None:
        # If this load is interrupted, the next one must not rely on it.
        disk.unlink(posixpath.join(directory.path, checkpoints.CLEAN_SHUTDOWN))
    # A process may have been killed before it could sync its names; those found here count as durable.
    disk.sync_dir(directory.path)
    contents = DirectoryContents(epoch, _read_high_watermarks(directory))
    for name in disk.list_dir(directory.path):
        path = posixpath.join(directory.path, name)
        if "-" not in name or name == REMOTE_LOG_INDEX_CACHE or not disk.is_dir(path):
            continue
        try:
            partition, kind = parse_dir_name(name)
        except KafkaError as error:
            _log.error("%s: %s", directory.path, error.message)
            continue
        if partition.topic == CLUSTER_METADATA_TOPIC:
            continue
        if kind is DirKind.DELETE:
            contents.deleted.append(path)
        elif kind is DirKind.STRAY:
            _log.warning("%s is a stray partition; remove it when it is no longer needed", path)
            contents.strays.append(path)
        elif kind is DirKind.DAMAGED:
            _log.warning("%s was set aside as damaged; remove it when it is no longer needed", path)
            contents.damaged.append(path)
        else:
            contents.partitions.append(PartitionDir(name, partition, kind))
    return contents


def _read_high_watermarks(directory: LogDirectory) -> dict[TopicPartition, int]:
    try:
        path = posixpath.join(directory.path, checkpoints.HIGH_WATERMARKS)
        return checkpoints.read_offsets(directory.disk, path)
    except checkpoints.CorruptCheckpoint as error:
        _log.error("the high watermarks begin at the log starts: %s", error)
        return {}
