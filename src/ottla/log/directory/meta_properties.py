"""`meta.properties`: to which cluster and node a log directory belongs, and the directory's own id.

Invariant: all directories of a node carry the same cluster and node id, and no two of them the same directory
id. A directory without the file is not formatted, whatever else lies in it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ottla.protocol.names import METADATA_PARTITION_DIR, parse_uuid, uuid_text
from ottla.runtime.disk import Disk, read_file, write_file
from ottla.runtime.random import Random

META_PROPERTIES: Final = "meta.properties"
_QUORUM_STATE: Final = "quorum-state"
ZOOKEEPER_MARK: Final = "metadata-in-zookeeper"
"""An empty file in a directory that a node of the legacy mode has used."""


def is_reserved_directory(directory_id: bytes) -> bool:
    """True for the ids that stand for an unassigned, a lost or a migrating directory."""
    return directory_id[:15] == bytes(15) and directory_id[15] < 100


class StorageError(Exception):
    """A directory that cannot be used, in one line that says which and what to do."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """To which cluster and node a log directory belongs, and its own id."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None = None  # None in directories formatted before Kafka 3.7
    version: int = 1  # 0 in directories that a broker on ZooKeeper has written

    def encode(self) -> bytes:
        lines = [
            "#",
            f"cluster.id={_escape(self.cluster_id)}",
            *([] if self.directory_id is None else [f"directory.id={uuid_text(self.directory_id)}"]),
            f"node.id={self.node_id}",
            "version=1",
        ]
        return ("\n".join(lines) + "\n").encode("latin-1")

    @classmethod
    def decode(cls, text: bytes, path: str) -> MetaProperties:
        properties = _parse_properties(text.decode("latin-1"))
        version = properties.get("version", "0")
        if version not in ("0", "1"):
            raise StorageError(f"{path} has version {version}; this version reads 0 and 1")
        node_id = properties.get("node.id" if version == "1" else "broker.id")
        cluster_id = properties.get("cluster.id")
        if cluster_id is None or node_id is None or not node_id.isdecimal():
            raise StorageError(
                f"{path} lacks a valid cluster.id or node.id; is it the directory of a Kafka node?"
            )
        directory_id = None
        if "directory.id" in properties:
            try:
                directory_id = parse_uuid(properties["directory.id"])
            except ValueError as error:
                raise StorageError(f"{path}: directory.id: {error}") from None
            if is_reserved_directory(directory_id):
                raise StorageError(f"{path}: directory.id {properties['directory.id']} is reserved")
        return cls(cluster_id, int(node_id), directory_id, int(version))


def _escape(value: str) -> str:
    return re.sub(r"([\\:=#! ])", r"\\\1", value)


def _parse_properties(text: str) -> dict[str, str]:
    """The part of Java's properties format that such files use: `key=value` lines, comments, backslash
    escapes.
    """
    properties: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:\s]\s*(.*)\Z", line)
        if match is not None:
            key, value = (re.sub(r"\\(.)", r"\1", part) for part in match.groups())
            properties[key] = value
    return properties


def read_meta_properties(disk: Disk, dir: str) -> MetaProperties | None:
    """Read the properties of a directory; None if it is not formatted."""
    path = posixpath.join(dir, META_PROPERTIES)
    if not disk.exists(path):
        return None
    return MetaProperties.decode(read_file(disk, path), path)


def check_not_of_zookeeper(disk: Disk, dirs: Iterable[str]) -> None:
    """Raise StorageError if a directory is of a broker that ran on ZooKeeper: its topics are in ZooKeeper, so
    a node that starts there knows none of them, and puts their logs aside as strays.

    A broker that Apache Kafka has migrated keeps `version=0`, but it has a metadata log, with which it has
    run. One that no node has run with is of an import: interrupted, or undone and forgotten, and then it does
    not know what the broker did on ZooKeeper since.
    """
    old: list[tuple[str, MetaProperties]] = []
    imported: list[str] = []
    for dir in dirs:
        try:
            properties = read_meta_properties(disk, dir)
        except OSError:
            continue  # the directory cannot be used, as its load will find
        if properties is not None and properties.version == 0:
            old.append((dir, properties))
        metadata = posixpath.join(dir, METADATA_PARTITION_DIR)
        if disk.is_dir(metadata):
            if has_run_with(disk, metadata):
                return
            imported.append(metadata)
    if not old:
        return
    dir, properties = old[0]
    why = (
        f"{posixpath.join(dir, META_PROPERTIES)} has version=0: the directory is of broker "
        f"{properties.node_id} of a Kafka that ran on ZooKeeper, where its topics are."
    )
    if imported:
        raise StorageError(
            f"{why} {imported[0]} is of an import that was interrupted, or undone. Nothing was changed. Run "
            "`ottla zookeeper import` again, with the brokers stopped: it replaces it. If the cluster is to "
            "stay on ZooKeeper, remove it"
        )
    raise StorageError(
        f"{why} Nothing was changed. Bring the cluster over with `ottla zookeeper import`, or choose an "
        "empty directory for a new one"
    )


def has_run_with(disk: Disk, metadata_log: str) -> bool:
    """True if a node has started with this metadata log, or that is not known; an import writes a snapshot
    alone.
    """
    try:
        return any(name.endswith(".log") or name == _QUORUM_STATE for name in disk.list_dir(metadata_log))
    except OSError:
        return True


def check_metadata_store(disk: Disk, dirs: Iterable[str], *, zookeeper: bool) -> None:
    """Raise StorageError if the topics in the directories are known to the other store: the one of a quorum,
    or ZooKeeper. A node that does not know them puts their logs aside as strays.
    """
    paths = list(dirs)
    logs = [path for path in paths if disk.is_dir(posixpath.join(path, METADATA_PARTITION_DIR))]
    if zookeeper and logs:
        raise StorageError(
            f"{posixpath.join(logs[0], METADATA_PARTITION_DIR)} is the metadata log of a quorum, which knows "
            "the topics of this directory, and metadata.store=zookeeper is set. Nothing was changed. Remove "
            "metadata.store, or choose an empty directory for a new cluster on ZooKeeper"
        )
    marked = [path for path in paths if disk.exists(posixpath.join(path, ZOOKEEPER_MARK))]
    if not zookeeper and not logs and marked:
        raise StorageError(
            f"{posixpath.join(marked[0], ZOOKEEPER_MARK)} exists: the topics of this directory are in "
            "ZooKeeper. Nothing was changed. Set metadata.store=zookeeper and zookeeper.connect again, bring "
            "the cluster over with `ottla zookeeper import`, or choose an empty directory for a new one"
        )


def mark_of_zookeeper(disk: Disk, dir: str) -> None:
    """Note durably that ZooKeeper has the topics of this directory."""
    path = posixpath.join(dir, ZOOKEEPER_MARK)
    if not disk.exists(path):
        write_file(disk, path, b"")


def read_zookeeper_mark(disk: Disk, dir: str) -> str | None:
    """The id of the metadata in ZooKeeper that know the topics of this directory, if one is noted."""
    path = posixpath.join(dir, ZOOKEEPER_MARK)
    return (read_file(disk, path).decode(errors="replace").strip() or None) if disk.exists(path) else None


def note_zookeeper_mark(disk: Disk, dir: str, metadata_id: str) -> None:
    """Note durably which metadata in ZooKeeper know the topics of this directory."""
    if read_zookeeper_mark(disk, dir) != metadata_id:
        write_file(disk, posixpath.join(dir, ZOOKEEPER_MARK), f"{metadata_id}\n".encode())


def unmark_of_zookeeper(disk: Disk, dir: str) -> None:
    path = posixpath.join(dir, ZOOKEEPER_MARK)
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_dir(dir)


def load_directories(
    disk: Disk, dirs: Iterable[str], *, node_id: int | None = None, cluster_id: str | None = None
) -> dict[str, MetaProperties | None]:
    """Read the properties of each directory; StorageError unless they all belong to the same node and
    cluster.
    """
    found: dict[str, MetaProperties | None] = {}
    seen: dict[bytes, str] = {}
    for dir in dirs:
        properties = read_meta_properties(disk, dir)
        found[dir] = properties
        if properties is None:
            continue
        path = posixpath.join(dir, META_PROPERTIES)
        if cluster_id is not None and properties.cluster_id != cluster_id:
            raise StorageError(
                f"{path} has cluster.id {properties.cluster_id}, not {cluster_id}: is this "
                "the data of another cluster?"
            )
        if node_id is not None and properties.node_id != node_id:
            raise StorageError(
                f"{path} belongs to node {properties.node_id}, and this node is {node_id}: "
                f"set node.id to {properties.node_id}, or give a new node an empty directory"
            )
        cluster_id, node_id = properties.cluster_id, properties.node_id
        if properties.directory_id is not None:
            other = seen.setdefault(properties.directory_id, dir)
            if other != dir:
                raise StorageError(
                    f"{dir} and {other} have the same directory.id; one is a copy of the other"
                )
    return found


def assign_directory_id(disk: Disk, random: Random, dir: str, properties: MetaProperties) -> MetaProperties:
    """Give a directory from before Kafka 3.7 the id that it lacks."""
    if properties.directory_id is not None:
        return properties
    upgraded = MetaProperties(properties.cluster_id, properties.node_id, random.uuid())
    write_file(disk, posixpath.join(dir, META_PROPERTIES), upgraded.encode())
    return upgraded
