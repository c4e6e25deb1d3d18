"""Opens the data directories of a node: locks them, reads whose they are, formats the empty ones.

A directory that holds something else is never formatted, and one that another node has locked, or that
belongs to another cluster or node, ends the start with one line, before anything is written to any of them.
Without a configured node id, the node takes the one that the directories have.

As in Kafka, a node starts without a directory whose disk fails. The directory of the metadata log must not be
missing: a node that has data, but has lost its votes in the quorum and its metadata, must not start over.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.log.directory.checkpoints import read_clean_shutdown
from ottla.log.directory.meta_properties import (
    MetaProperties,
    StorageError,
    assign_directory_id,
    check_metadata_store,
    check_not_of_zookeeper,
    load_directories,
    mark_of_zookeeper,
    read_meta_properties,
)
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.rules import voter_ids
from ottla.protocol.names import METADATA_PARTITION_DIR, uuid_text
from ottla.runtime.disk import Disk, Lock
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
# Files of file systems and desktops: a directory with these alone counts as empty.
_IGNORED: Final = frozenset((LOCK_FILE, "lost+found", ".DS_Store"))


@dataclass(frozen=True, slots=True)
class NodeStorage:
    """The node's directories, locked and formatted."""

    cluster_id: str
    node_id: int
    directories: dict[str, bytes]
    """The directory ids by path, as `log.dirs` lists them."""
    failed: dict[str, str]
    """The directories that cannot be used, and why."""
    locks: tuple[Lock, ...]

    def release(self) -> None:
        for lock in self.locks:
            lock.release()


def open_storage(runtime: Runtime, config: NodeConfig) -> NodeStorage:
    """Lock the data directories and format the empty ones; NodeFailed if they cannot be used."""
    metadata_dir = config.metadata_log_dir
    # The one of the metadata comes first: an interrupted start must not leave it alone unformatted.
    dirs = list(dict.fromkeys((metadata_dir, *config.log_dirs)))
    locks: list[Lock] = []
    failed: dict[str, str] = {}
    ids: dict[str, bytes] = {}
    try:
        check_not_of_zookeeper(runtime.disk, dirs)
        check_metadata_store(runtime.disk, dirs, zookeeper=config.uses_zookeeper)
        for path in dirs:
            try:
                locks.append(_lock(runtime, path))
                read_meta_properties(runtime.disk, path)
            except OSError as error:
                _skip_failed(path, error, metadata_dir, failed)
        usable = [path for path in dirs if path not in failed]
        wanted = config.node_id if config.is_set("node.id") else None
        cluster = config.text("cluster.id") if config.is_set("cluster.id") else None
        found = load_directories(runtime.disk, usable, node_id=wanted, cluster_id=cluster)
        known = [properties for properties in found.values() if properties is not None]
        if known:
            _check_metadata(runtime, found, metadata_dir)
        cluster_id = known[0].cluster_id if known else _new_cluster_id(runtime, config, metadata_dir)
        node_id = known[0].node_id if known else config.node_id
        for path, properties in found.items():
            if properties is None:
                _check_empty(runtime, path)
        for path, properties in found.items():
            try:
                ids[path] = _format_if_empty(runtime, path, properties, cluster_id, node_id)
                if config.uses_zookeeper:
                    mark_of_zookeeper(runtime.disk, path)
            except OSError as error:
                _skip_failed(path, error, metadata_dir, failed)
        for path in ids:
            if not runtime.disk.is_private(path):
                _log.warning(
                    "every user of this machine may read the data in %s, with the keys of SCRAM users: "
                    "chmod -R go-rwx %s",
                    path,
                    path,
                )
        if not any(path in ids for path in config.log_dirs):
            raise StorageError("; ".join(failed.values()))
    except StorageError as error:
        _release(locks)
        raise NodeFailed(str(error)) from None
    except OSError as error:
        _release(locks)
        raise NodeFailed(_disk_problem(error)) from None
    except BaseException:
        _release(locks)
        raise
    return NodeStorage(cluster_id, node_id, ids, failed, tuple(locks))


def _skip_failed(path: str, error: OSError, metadata_dir: str, failed: dict[str, str]) -> None:
    """Continue without a directory; OSError if it is the one of the metadata."""
    if path == metadata_dir:
        raise error
    failed[path] = _disk_problem(error)
    _log.error("%s; the node starts without this directory", failed[path])


def _check_metadata(runtime: Runtime, found: dict[str, MetaProperties | None], metadata_dir: str) -> None:
    """Raise StorageError unless the metadata log of used directories is in the configured one."""
    for path in found:
        elsewhere = posixpath.join(path, METADATA_PARTITION_DIR)
        if path != metadata_dir and runtime.disk.is_dir(elsewhere):
            raise StorageError(
                f"the metadata log is in {elsewhere}, and {metadata_dir} is configured for it: set "
                f"metadata.log.dir to {path}, or move it"
            )
    if found[metadata_dir] is None:
        others = ", ".join(path for path, properties in found.items() if properties is not None)
        raise StorageError(
            f"No `meta.properties` found in {metadata_dir}, the directory of the metadata log, but {others} "
            "is formatted: restore it from a copy; if it is lost, and other nodes have the metadata, format "
            "it with `ottla storage format --ignore-formatted`"
        )


def _new_cluster_id(runtime: Runtime, config: NodeConfig, path: str) -> str:
    """Choose the id of the cluster that empty directories are formatted for. One of several nodes needs it
    from the operator, as they must agree; and a voter whose disk is empty may have lost its votes.
    """
    if config.is_set("cluster.id"):
        return config.text("cluster.id")
    if config.alone or voter_ids(config) == {config.node_id}:
        return uuid_text(runtime.random.uuid())
    raise StorageError(
        f"No `meta.properties` found in {path}, and this node is one of several: format the directory with "
        "`ottla storage format --config FILE --cluster-id ID`, with the same id for all of them, or start "
        "with --set cluster.id=ID"
    )


def clean_shutdown_epoch(disk: Disk, dirs: Sequence[str]) -> int:
    """The broker epoch of the last run if every directory has the mark of a clean end, else -1."""
    try:
        first, *others = [read_clean_shutdown(disk, dir) for dir in dirs]
    except OSError as error:
        # The load of that directory finds the error again, and takes it offline alone.
        _log.error("%s; the last end of this node does not count as clean", _disk_problem(error))
        return -1
    return -1 if first is None or any(epoch != first for epoch in others) else first


def _release(locks: list[Lock]) -> None:
    for lock in locks:
        lock.release()


def _lock(runtime: Runtime, path: str) -> Lock:
    runtime.disk.make_dirs(path)
    try:
        return runtime.disk.lock(posixpath.join(path, LOCK_FILE))
    except BlockingIOError:
        raise StorageError(
            f"Failed to acquire lock on file {LOCK_FILE} in {path}. The directory is in use by another node; "
            "stop that one, or choose another directory with --data-dir"
        ) from None


def _check_empty(runtime: Runtime, path: str) -> None:
    others = [name for name in runtime.disk.list_dir(path) if name not in _IGNORED]
    if others and not _is_half_formatted(others):
        raise StorageError(
            f"No `meta.properties` found in {path}, which is not empty (it has {others[0]!r}), so it is not "
            "the data directory of a node; choose another with --data-dir"
        )


def _format_if_empty(
    runtime: Runtime, path: str, properties: MetaProperties | None, cluster_id: str, node_id: int
) -> bytes:
    if properties is None:
        properties = format_directory(
            runtime.disk, runtime.random, runtime.clock, path, cluster_id=cluster_id, node_id=node_id
        )
    properties = assign_directory_id(runtime.disk, runtime.random, path, properties)
    assert properties.directory_id is not None
    return properties.directory_id


def _is_half_formatted(names: list[str]) -> bool:
    """Whether these are the files of a format that was interrupted."""
    return all(name.startswith(("bootstrap.checkpoint", "meta.properties")) for name in names)


def _disk_problem(error: OSError) -> str:
    where = error.filename or "a data directory"
    reasons = {
        errno.EROFS: "the disk is read-only",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENOSPC: "no space is left on the disk",
        errno.ENOTDIR: "it, or its parent, is not a directory",
        errno.EEXIST: "it is a file, not a directory",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return f"cannot use {where}: {reason}"
