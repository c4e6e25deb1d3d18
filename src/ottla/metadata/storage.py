"""A formatted log directory: ``meta.properties`` and ``bootstrap.checkpoint``, as Kafka's StorageTool
writes them.

``meta.properties`` says to which cluster and node a directory belongs, and gives it an id of its own;
``bootstrap.checkpoint`` holds the records that a new cluster begins with. The former is written last: a
directory without it is not formatted, whatever else lies in it. Invariant: all directories of a node carry
the same cluster and node id, and no two of them the same directory id.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.metadata.controller.activation import bootstrap_metadata_version, bootstrap_records
from ottla.metadata.image.entities import is_reserved_directory
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.protocol.names import METADATA_PARTITION_DIR, parse_uuid, uuid_text
from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT, decode_snapshot, encode_snapshot
from ottla.raft.voters import VoterSet
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, read_file, write_file
from ottla.runtime.random import Random

META_PROPERTIES: Final = "meta.properties"
BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"


class StorageError(Exception):
    """A directory that cannot be used, in one line that says which and what to do."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: bytes | None = None  # None in directories formatted before Kafka 3.7

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
        return cls(cluster_id, int(node_id), directory_id)


def _escape(value: str) -> str:
    return re.sub(r"([\\:=#! ])", r"\\\1", value)


def _parse_properties(text: str) -> dict[str, str]:
    """The part of Java's properties format that such files use: ``key=value`` lines, comments, backslash
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
    """What a directory says it is; None if it is not formatted."""
    path = posixpath.join(dir, META_PROPERTIES)
    if not disk.exists(path):
        return None
    return MetaProperties.decode(read_file(disk, path), path)


def load_directories(
    disk: Disk, dirs: Iterable[str], *, node_id: int | None = None, cluster_id: str | None = None
) -> dict[str, MetaProperties | None]:
    """The formatted state of each directory; StorageError unless they all belong to the same node and
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


def format_directory(
    disk: Disk,
    random: Random,
    clock: Clock,
    dir: str,
    *,
    cluster_id: str,
    node_id: int,
    bootstrap: Sequence[MetadataRecord] | None = None,
    directory_id: bytes | None = None,
    dynamic_voters: VoterSet | None = None,
) -> MetaProperties:
    """Format a directory that is not formatted yet.

    With ``dynamic_voters`` it becomes the metadata directory of a quorum whose voters are kept in the log
    (what ``kafka-storage format --standalone`` does); otherwise voters come from
    ``controller.quorum.voters``.
    """
    if read_meta_properties(disk, dir) is not None:
        raise StorageError(f"the log directory {dir} is formatted already")
    _make_durable_dir(disk, dir)
    now_ms = clock.wall_ms()
    records = bootstrap_records() if bootstrap is None else bootstrap
    write_file(disk, posixpath.join(dir, BOOTSTRAP_CHECKPOINT), encode_bootstrap(records, now_ms))
    if dynamic_voters is not None:
        quorum = encode_snapshot(
            (),
            epoch=BOOTSTRAP_SNAPSHOT.epoch,
            timestamp=now_ms,
            last_contained_log_timestamp=now_ms,
            kraft_version=1,
            voters=dynamic_voters,
        )
        partition = posixpath.join(dir, METADATA_PARTITION_DIR)
        _make_durable_dir(disk, partition)
        write_file(disk, posixpath.join(partition, BOOTSTRAP_SNAPSHOT.file_name), b"".join(quorum))
    properties = MetaProperties(cluster_id, node_id, directory_id or random.uuid())
    write_file(disk, posixpath.join(dir, META_PROPERTIES), properties.encode())
    return properties


def _make_durable_dir(disk: Disk, dir: str) -> None:
    """Make a directory whose name, and those of the parents that had to be made, survive a crash."""
    missing = [dir]
    while (parent := posixpath.dirname(missing[-1])) not in ("", missing[-1]) and not disk.is_dir(parent):
        missing.append(parent)
    disk.make_dirs(dir)
    for made in reversed(missing):
        disk.sync_dir(posixpath.dirname(made) or ".")


def assign_directory_id(disk: Disk, random: Random, dir: str, properties: MetaProperties) -> MetaProperties:
    """Give a directory from before Kafka 3.7 the id that it lacks."""
    if properties.directory_id is not None:
        return properties
    upgraded = MetaProperties(properties.cluster_id, properties.node_id, random.uuid())
    write_file(disk, posixpath.join(dir, META_PROPERTIES), upgraded.encode())
    return upgraded


def encode_bootstrap(records: Sequence[MetadataRecord], now_ms: int) -> bytes:
    version = bootstrap_metadata_version(records)
    values = (encode_record(record, version) for record in records)
    return b"".join(encode_snapshot(values, epoch=0, timestamp=now_ms, last_contained_log_timestamp=0))


def read_bootstrap(disk: Disk, dir: str) -> list[MetadataRecord]:
    """The records that a new cluster begins with: those in the directory, else those of this version."""
    path = posixpath.join(dir, BOOTSTRAP_CHECKPOINT)
    if not disk.exists(path):
        return bootstrap_records()
    try:
        return [decode_metadata_record(value)[0] for value in decode_snapshot(read_file(disk, path)).values]
    except KafkaError as error:
        raise StorageError(f"{path} cannot be read: {error.message}") from error
