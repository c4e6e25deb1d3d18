"""BootstrapMetadata: the records that a new cluster starts with, and the directories formatted with them.

Formatting a log directory writes `bootstrap.checkpoint` and `meta.properties`, as Kafka's StorageTool does.
`meta.properties` (`ottla.log.directory.meta_properties`) is written last: a directory without it is not
formatted, even if it has other files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from ottla.log.directory.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    StorageError,
    read_meta_properties,
)
from ottla.metadata.features import (
    DEFAULT_METADATA_VERSION,
    METADATA_VERSION,
    MetadataVersion,
    bootstrap_levels,
    metadata_version,
)
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import FeatureLevelRecord, decode_metadata_record
from ottla.protocol.names import METADATA_PARTITION_DIR
from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT, decode_snapshot, encode_snapshot
from ottla.raft.voters import VoterSet
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, read_file, write_file
from ottla.runtime.random import Random

BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"


def bootstrap_records(version: MetadataVersion = DEFAULT_METADATA_VERSION) -> list[MetadataRecord]:
    """The records of a new cluster at a metadata.version."""
    return [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in bootstrap_levels(version).items()
    ]


def bootstrap_metadata_version(bootstrap: Sequence[MetadataRecord]) -> MetadataVersion:
    """The metadata.version that the bootstrap records set; ValueError if they set none that is known."""
    level = bootstrap_level(bootstrap, METADATA_VERSION)
    if level is None:
        raise ValueError(f"the bootstrap records do not set {METADATA_VERSION}; format the directory again")
    return metadata_version(level)


def bootstrap_level(bootstrap: Sequence[MetadataRecord], name: str) -> int | None:
    """The level to which the bootstrap records set a feature; None if they do not set it."""
    levels = [r.feature_level for r in bootstrap if isinstance(r, FeatureLevelRecord) and r.name == name]
    return levels[-1] if levels else None


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

    With `dynamic_voters` it becomes the metadata directory of a quorum whose voters are kept in the log
    (what `kafka-storage format --standalone` does); otherwise voters come from
    `controller.quorum.voters`.
    """
    if read_meta_properties(disk, dir) is not None:
        raise StorageError(f"the log directory {dir} is formatted already")
    make_durable_dir(disk, dir)
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
        make_durable_dir(disk, partition)
        write_file(disk, posixpath.join(partition, BOOTSTRAP_SNAPSHOT.file_name), b"".join(quorum))
    properties = MetaProperties(cluster_id, node_id, directory_id or random.uuid())
    write_file(disk, posixpath.join(dir, META_PROPERTIES), properties.encode())
    return properties


def make_durable_dir(disk: Disk, dir: str) -> None:
    """Create a directory; it and the parents that had to be created survive a crash."""
    missing = [dir]
    while (parent := posixpath.dirname(missing[-1])) not in ("", missing[-1]) and not disk.is_dir(parent):
        missing.append(parent)
    disk.make_dirs(dir)
    for made in reversed(missing):
        disk.sync_dir(posixpath.dirname(made) or ".")


def encode_bootstrap(records: Sequence[MetadataRecord], now_ms: int) -> bytes:
    version = bootstrap_metadata_version(records)
    values = (encode_record(record, version) for record in records)
    return b"".join(encode_snapshot(values, epoch=0, timestamp=now_ms, last_contained_log_timestamp=0))


def read_bootstrap(disk: Disk, dir: str) -> list[MetadataRecord]:
    """Read the bootstrap records of a directory; those of this version if it has none."""
    path = posixpath.join(dir, BOOTSTRAP_CHECKPOINT)
    if not disk.exists(path):
        return bootstrap_records()
    try:
        return [decode_metadata_record(value)[0] for value in decode_snapshot(read_file(disk, path)).values]
    except KafkaError as error:
        raise StorageError(f"{path} cannot be read: {error.message}") from error
