"""Loading the metadata log: the newest usable snapshot, and every record of the log after it.

The log is recovered first, as after a crash: what was not whole at its end was not committed. If the
snapshot is ahead of the log, it came from a leader that was ahead, and the log starts over behind it.
Invariant: what is loaded is exactly what the snapshot and the log say; where neither reaches back far
enough, loading is refused.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Final

from ottla.log.config import LogConfig
from ottla.log.directory import LogDirectory
from ottla.log.files import TopicPartition
from ottla.log.handles import FileHandles
from ottla.log.log import Log
from ottla.log.recovery import LoadOptions, create_log, load_log
from ottla.metadata.delta import ReplayError
from ottla.metadata.image import Provenance
from ottla.metadata.replay import Replayer
from ottla.metadata.snapshots import Snapshots
from ottla.metadata.storage import METADATA_PARTITION_DIR, StorageError
from ottla.protocol.control_records import KRaftVersionRecord, VotersRecord
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.voters import VoterSet
from ottla.records.batch import BatchHeader, iter_batches, read_records
from ottla.records.control import parse_control_records
from ottla.runtime.runtime import Runtime

METADATA_PARTITION: Final = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The settings whose names begin with ``metadata.log`` and ``metadata.max``."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    max_retention_bytes: int = 100 * 1024 * 1024
    max_retention_ms: int = 7 * _DAY_MS
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 60 * 60 * 1000

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
            file_delete_delay_ms=0,
        )


DEFAULT_CONFIG: Final = MetadataLogConfig()


class _MetadataDirectory(LogDirectory):
    """The directory as the metadata log sees it: its start and recovery points are not in the broker's
    checkpoints.

    The start follows from the snapshots, and recovery looks at the whole log, as Kafka's does.
    """

    __slots__ = ()

    def write_recovery_points(self, offsets: object) -> None:
        pass

    def write_log_starts(self, offsets: object) -> None:
        pass


@dataclass(slots=True)
class LoadedMetadata:
    """Everything that the files say."""

    directory: LogDirectory
    log: Log
    snapshots: Snapshots
    replayer: Replayer = field(default_factory=Replayer)
    kraft_version: int = 0
    voters: VoterSet | None = None  # from control records; None while they are configured
    voters_offset: int | None = (
        None  # where they were last written; -1: only when the directory was formatted
    )
    bytes_since_snapshot: int = 0


def load_metadata(runtime: Runtime, dir: str, config: MetadataLogConfig) -> LoadedMetadata:
    """Load the metadata log of a formatted log directory. Blocks: for the pool."""
    disk = runtime.disk
    directory = _MetadataDirectory(dir, FileHandles(disk), runtime.clock, runtime.random)
    path = posixpath.join(dir, METADATA_PARTITION_DIR)
    disk.make_dirs(path)
    snapshots = Snapshots(disk, path)
    snapshots.load()
    if any(name.endswith(".log") for name in disk.list_dir(path)):
        options = LoadOptions(clean=False)
        log = load_log(directory, METADATA_PARTITION_DIR, METADATA_PARTITION, config.log_config(), options)
    else:
        log = create_log(directory, METADATA_PARTITION_DIR, METADATA_PARTITION, config.log_config())
    log.assign_topic_id(METADATA_TOPIC_ID)
    loaded = LoadedMetadata(directory, log, snapshots)
    try:
        _replay_log(loaded, _replay_snapshot(loaded))
    except (ReplayError, KafkaError) as error:
        log.release()
        raise StorageError(f"{log.dir}: the metadata log cannot be replayed: {error}") from error
    return loaded


def _replay_snapshot(loaded: LoadedMetadata) -> int:
    """Replay the newest snapshot, if there is one; the offset to go on from."""
    found = loaded.snapshots.read_newest()
    if found is None:
        return 0
    id, content = found
    log = loaded.log
    if id.offset > log.log_end_offset or id.epoch > (log.latest_epoch or 0):
        log.truncate_fully_and_start_at(id.offset)
    loaded.kraft_version = content.kraft_version
    if content.voters is not None:
        loaded.voters = content.voters
        loaded.voters_offset = id.offset - 1
    if content.values:
        provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
        loaded.replayer.replay([decode_metadata_record(v)[0] for v in content.values], provenance)
    return id.offset


def _replay_log(loaded: LoadedMetadata, start: int) -> None:
    log = loaded.log
    if start < log.log_start_offset:
        raise StorageError(
            f"{log.dir}: the metadata log begins at offset {log.log_start_offset}, and there is no usable "
            "snapshot of what was before; restore one, or the directory, from a copy"
        )
    offset = start
    end = log.log_end_offset
    while offset < end:
        data = log.read(offset, _READ_BYTES).records
        for position, header in iter_batches(data):
            if header.last_offset >= offset:
                _replay_batch(loaded, data, position, header)
                offset = header.next_offset


def _replay_batch(loaded: LoadedMetadata, data: bytes, position: int, header: BatchHeader) -> None:
    records = read_records(data, position)
    provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
    if not header.is_control:
        decoded = [decode_metadata_record(record.value or b"")[0] for record in records]
        loaded.replayer.replay(decoded, provenance)
        loaded.bytes_since_snapshot += header.size
        return
    for control in parse_control_records(records):
        if isinstance(control.value, KRaftVersionRecord):
            loaded.kraft_version = control.value.kraft_version
        elif isinstance(control.value, VotersRecord):
            loaded.voters = VoterSet.from_record(control.value)
            loaded.voters_offset = control.offset
    loaded.replayer.replay([], provenance)
