"""The contents of the files of a partition and of a data directory, as plain rows, without a node.

Every kind of file that a node writes can be read: segments and snapshots of the metadata as batches and
records, indexes, producer snapshots and checkpoints as entries. Nothing is written, locked or trusted: damage
is shown as a row of kind `problem` that says where and how, and reading goes on where it can. A file of a
running node may be caught in the middle of a write; its last batch then looks torn.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, Final

from ottla.log.directory.checkpoints import (
    CLEAN_SHUTDOWN,
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_entries,
)
from ottla.log.directory.dir_names import parse_dir_name
from ottla.log.directory.meta_properties import META_PROPERTIES
from ottla.log.dump.internal_records import DECODABLE_TOPICS, decode_control, decode_record
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT
from ottla.log.producers.snapshot import CorruptSnapshotError, decode_snapshot
from ottla.log.segment.file_names import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, parse_segment_file
from ottla.log.segment.offset_index import ENTRY as OFFSET_ENTRY
from ottla.log.segment.time_index import ENTRY as TIME_ENTRY
from ottla.log.segment.txn_index import CorruptTxnIndexError
from ottla.log.segment.txn_index import decode_entries as decode_aborted
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.records.batch import HEADER_SIZE, BatchHeader, Record, read_records, verify_crc
from ottla.runtime.disk import Disk, File, read_file

QUORUM_STATE: Final = "quorum-state"
CHECKPOINT_SUFFIX: Final = ".checkpoint"
OFFSET_CHECKPOINT_SUFFIX: Final = "-offset-checkpoint"
MAX_SMALL_FILE_BYTES: Final = 256 * 1024 * 1024


class RowKind(Enum):
    BATCH = "batch"
    RECORD = "record"
    ENTRY = "entry"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a dump; the names in `data` are those that Kafka's own tool prints."""

    kind: RowKind
    data: dict[str, Any]


class NotReadable(ValueError):
    """The file is not of a kind that can be dumped."""


def readable_files(disk: Disk, path: str) -> list[str]:
    """The file itself; of a directory, all files in it whose kind is known."""
    if not disk.is_dir(path):
        return [path]
    files = [posixpath.join(path, name) for name in disk.list_dir(path)]
    return [
        each for each in files if not disk.is_dir(each) and file_kind(posixpath.basename(each)) is not None
    ]


def file_kind(name: str) -> str | None:
    """The kind of a file by its name: an ending as `.log`, or the whole name of a checkpoint."""
    segment = parse_segment_file(name)
    if segment is not None:
        return segment.kind
    if name.endswith((CHECKPOINT_SUFFIX, CHECKPOINT_SUFFIX + ".part", CHECKPOINT_SUFFIX + ".deleted")):
        return CHECKPOINT_SUFFIX
    if name.endswith(OFFSET_CHECKPOINT_SUFFIX):
        return OFFSET_CHECKPOINT_SUFFIX
    if name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, META_PROPERTIES, QUORUM_STATE, CLEAN_SHUTDOWN):
        return name
    return None


def topic_of(path: str) -> str | None:
    """The topic that a file belongs to, by the directory it lies in."""
    if posixpath.basename(path).startswith("bootstrap" + CHECKPOINT_SUFFIX):
        return CLUSTER_METADATA_TOPIC
    try:
        return parse_dir_name(posixpath.basename(posixpath.dirname(path)))[0].topic
    except KafkaError:
        return None


def dump_file(
    disk: Disk, path: str, *, records: bool = False, decode: str | None = None, position: int = 0
) -> Iterator[Row]:
    """The rows of a file. `records` shows the records of the batches, decoded as records of the internal
    topic `decode`, or of the topic whose directory the file lies in. A log is shown from the batch at
    `position` on.
    """
    kind = file_kind(posixpath.basename(path))
    topic = decode or topic_of(path)
    if kind in (LOG, CHECKPOINT_SUFFIX):
        return dump_batches(disk, path, topic=topic, records=records, start=position)
    if kind == INDEX:
        return dump_offset_index(disk, path)
    if kind == TIME_INDEX:
        return dump_time_index(disk, path)
    if kind == TXN_INDEX:
        return _dump_txn_index(disk, path)
    if kind == SNAPSHOT:
        return _dump_producers(disk, path)
    if kind in (LEADER_EPOCH_CHECKPOINT, OFFSET_CHECKPOINT_SUFFIX):
        return _dump_checkpoint(disk, path, epochs=kind == LEADER_EPOCH_CHECKPOINT)
    if kind is not None:
        return _dump_text(disk, path)
    raise NotReadable(f"{path}: not a file of a partition or of a data directory")


def batch_headers(file: File, position: int = 0) -> Iterator[tuple[int, BatchHeader | KafkaError]]:
    """Yield position and header of each batch from a position on, and at last an error if the bytes go on
    without a batch.
    """
    size = file.size()
    while position < size:
        head = file.pread(HEADER_SIZE, position)
        if len(head) == HEADER_SIZE and not any(head):
            # Space that was allocated in advance.
            return
        try:
            header = BatchHeader.parse(head)
        except KafkaError as error:
            yield position, error
            return
        yield position, header
        position += header.size


def dump_batches(disk: Disk, path: str, *, topic: str | None, records: bool, start: int = 0) -> Iterator[Row]:
    file = disk.open(path, writable=False)
    try:
        size = file.size()
        for position, header in batch_headers(file, start):
            if isinstance(header, KafkaError):
                yield _problem(f"at position {position} of {size} no batch begins: {header.message}")
                return
            if position + header.size > size:
                yield _problem(
                    f"the batch at position {position} (base offset {header.base_offset}) needs "
                    f"{header.size} bytes, but the file ends after {size - position}: it is torn"
                )
                return
            data = file.pread(header.size, position)
            try:
                verify_crc(data, 0, header)
                valid = True
            except KafkaError:
                valid = False
            yield Row(RowKind.BATCH, _batch(header, position, valid=valid))
            if not valid:
                yield _problem(
                    f"the batch at position {position} (base offset {header.base_offset}) is corrupt: its "
                    "checksum does not match its content"
                )
            elif records:
                yield from _records(data, header, topic)
    finally:
        file.close()


def _batch(header: BatchHeader, position: int, *, valid: bool) -> dict[str, Any]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "position": position,
        "timestampType": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "maxTimestamp": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": header.codec.name.lower(),
        "crc": header.crc,
        "isvalid": valid,
    }


def _records(data: bytes, header: BatchHeader, topic: str | None) -> Iterator[Row]:
    try:
        found = read_records(data)
    except KafkaError as error:
        yield _problem(
            f"the records of the batch at offset {header.base_offset} cannot be read: {error.message}"
        )
        return
    for record in found:
        row: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "sequence": record.sequence,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "headers": list(record.headers),
        }
        if header.is_control:
            row["control"] = decode_control(record)
        elif topic in DECODABLE_TOPICS:
            row["decoded"] = decode_record(str(topic), record.key, record.value)
        else:
            row["key"], row["value"] = record.key, record.value
        yield Row(RowKind.RECORD, row)
        yield from _problems_of(record, row)


def _problems_of(record: Record, row: dict[str, Any]) -> Iterator[Row]:
    for name in ("control", "decoded"):
        if "error" in row.get(name, ()):
            yield _problem(f"the record at offset {record.offset} cannot be decoded: {row[name]['error']}")


def dump_offset_index(disk: Disk, path: str) -> Iterator[Row]:
    """Offsets and positions, checked against the order that an index must have."""
    base = _base_offset(path)
    last = (-1, -1)
    for n, (relative, position) in enumerate(_index_entries(disk, path, OFFSET_ENTRY)):
        yield Row(RowKind.ENTRY, {"offset": base + relative, "position": position})
        if (relative, position) <= last or relative < 0 or position < 0:
            yield _problem(f"entry {n} (offset {base + relative}, position {position}) does not ascend")
        last = (relative, position)
    yield from _odd_size(disk, path, OFFSET_ENTRY)


def dump_time_index(disk: Disk, path: str) -> Iterator[Row]:
    base = _base_offset(path)
    last = (-1, -1)
    for n, (timestamp, relative) in enumerate(_index_entries(disk, path, TIME_ENTRY)):
        yield Row(RowKind.ENTRY, {"timestamp": timestamp, "offset": base + relative})
        if timestamp <= last[0] or relative < last[1]:
            yield _problem(f"entry {n} (timestamp {timestamp}, offset {base + relative}) does not ascend")
        last = (timestamp, relative)
    yield from _odd_size(disk, path, TIME_ENTRY)


def _base_offset(path: str) -> int:
    segment = parse_segment_file(posixpath.basename(path))
    assert segment is not None
    return segment.offset


def _index_entries(disk: Disk, path: str, layout: Struct) -> Iterator[tuple[int, int]]:
    """The entries before the zeros of space that was allocated in advance."""
    data = _small(disk, path)
    whole = len(data) - len(data) % layout.size
    blank = bytes(layout.size)
    for at in range(0, whole, layout.size):
        if at and data[at : at + layout.size] == blank:
            return
        first, second = layout.unpack_from(data, at)
        if at == 0 and not any(data):
            return
        yield first, second


def _odd_size(disk: Disk, path: str, layout: Struct) -> Iterator[Row]:
    size = disk.size(path)
    if size % layout.size:
        yield _problem(f"the file has {size} bytes, which is no multiple of {layout.size}")


def _dump_txn_index(disk: Disk, path: str) -> Iterator[Row]:
    try:
        for entry in decode_aborted(_small(disk, path)):
            yield Row(
                RowKind.ENTRY,
                {
                    "version": entry.version,
                    "producerId": entry.producer_id,
                    "firstOffset": entry.first_offset,
                    "lastOffset": entry.last_offset,
                    "lastStableOffset": entry.last_stable_offset,
                },
            )
    except CorruptTxnIndexError as error:
        yield _problem(str(error))


def _dump_producers(disk: Disk, path: str) -> Iterator[Row]:
    try:
        entries = decode_snapshot(_small(disk, path))
    except CorruptSnapshotError as error:
        yield _problem(str(error))
        return
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        yield Row(
            RowKind.ENTRY,
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.current_txn_first_offset,
                "lastTimestamp": entry.last_timestamp,
                "firstSequence": None if last is None else last.first_sequence,
                "lastSequence": None if last is None else last.last_sequence,
                "lastOffset": None if last is None else last.last_offset,
                "offsetDelta": None if last is None else last.offset_delta,
                "timestamp": None if last is None else last.timestamp,
            },
        )


def _dump_checkpoint(disk: Disk, path: str, *, epochs: bool) -> Iterator[Row]:
    names = ("leaderEpoch", "startOffset") if epochs else ("topic", "partition", "offset")
    try:
        for entry in decode_entries(_small(disk, path), path):
            if len(entry) != len(names):
                raise CorruptCheckpoint(f"{path} has the entry {' '.join(entry)[:80]!r}")
            yield Row(
                RowKind.ENTRY,
                {
                    name: int(text) if name != "topic" and text.lstrip("-").isdecimal() else text
                    for name, text in zip(names, entry)
                },
            )
    except CorruptCheckpoint as error:
        yield _problem(str(error))


def _dump_text(disk: Disk, path: str) -> Iterator[Row]:
    """The lines of `meta.properties`, `partition.metadata` and the like, as names and values."""
    import json

    text = _small(disk, path).decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        yield Row(RowKind.ENTRY, document)
        return
    separator = ":" if posixpath.basename(path) == PARTITION_METADATA else "="
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = (line.partition(separator)[::2] for line in lines)
    yield Row(RowKind.ENTRY, {name.strip(): value.strip() for name, value in pairs})


def _small(disk: Disk, path: str) -> bytes:
    size = disk.size(path)
    if size > MAX_SMALL_FILE_BYTES:
        raise NotReadable(f"{path}: {size} bytes are too many for a file of this kind")
    return read_file(disk, path)


def _problem(text: str) -> Row:
    return Row(RowKind.PROBLEM, {"problem": text})
