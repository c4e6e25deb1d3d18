"""Snapshots of the metadata log: their names and their frame.

A snapshot is a file of record batches that stands for everything in the log below its offset: a control
batch with the header (and, with dynamic voters, the version and the voters of the quorum), batches of
records, and a control batch with the footer. A file without a footer is not a snapshot: its writer did not
finish. Offsets inside count from zero and mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.protocol.control_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.voters import VoterSet
from ottla.records.batch import iter_batches, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.records.control import build_quorum_batch, parse_control_records

SUFFIX: Final = ".checkpoint"
PART_SUFFIX: Final = ".checkpoint.part"
DELETED_SUFFIX: Final = ".checkpoint.deleted"
# Records are collected into batches of about this size.
BATCH_BYTES: Final = 256 * 1024

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint\Z", re.ASCII)


class SnapshotId(NamedTuple):
    """The first offset that is not in the snapshot, and the epoch of the last one that is."""

    offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.offset:020d}-{self.epoch:010d}{SUFFIX}"


BOOTSTRAP_SNAPSHOT: Final = SnapshotId(0, 0)


def parse_name(name: str) -> SnapshotId | None:
    """Parse the name of a snapshot file; None for other files, also for unfinished and deleted snapshots."""
    match = _NAME.match(name)
    return None if match is None else SnapshotId(int(match[1]), int(match[2]))


def is_unfinished(name: str) -> bool:
    """Whether a file is a snapshot that was being written or deleted when the node stopped."""
    return name.endswith((PART_SUFFIX, DELETED_SUFFIX))


def encode_snapshot(
    values: Iterable[bytes],
    *,
    epoch: int,
    timestamp: int,
    last_contained_log_timestamp: int,
    kraft_version: int = 0,
    voters: VoterSet | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[bytes]:
    """Encode the batches of a snapshot whose records have these values."""
    header: list[SnapshotHeaderRecord | KRaftVersionRecord | VotersRecord] = [
        SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_log_timestamp)
    ]
    if kraft_version >= 1:
        header.append(KRaftVersionRecord(kraft_version=kraft_version))
        if voters is not None:
            header.append(voters.to_record())
    yield build_quorum_batch(header, timestamp=timestamp, leader_epoch=epoch)
    offset = len(header)
    gathered: list[tuple[int, None, bytes]] = []
    size = 0
    for value in values:
        gathered.append((timestamp, None, value))
        size += len(value)
        if size >= batch_bytes:
            yield build_batch(gathered, base_offset=offset, leader_epoch=epoch)
            offset += len(gathered)
            gathered, size = [], 0
    if gathered:
        yield build_batch(gathered, base_offset=offset, leader_epoch=epoch)
        offset += len(gathered)
    yield build_quorum_batch(
        [SnapshotFooterRecord()], timestamp=timestamp, leader_epoch=epoch, base_offset=offset
    )


@dataclass(slots=True)
class SnapshotContent:
    values: list[bytes] = field(default_factory=list)
    last_contained_log_timestamp: int = -1
    kraft_version: int = 0
    voters: VoterSet | None = None


def decode_snapshot(data: bytes) -> SnapshotContent:
    """Decode a snapshot file; KafkaError CORRUPT_MESSAGE if it is damaged or not complete."""
    content = SnapshotContent()
    seen_header = seen_footer = False
    end = 0
    for position, header in iter_batches(data):
        verify_crc(data, position, header)
        end = position + header.size
        records = read_records(data, position)
        if not header.is_control:
            content.values += [_value(record.value) for record in records]
            continue
        for control in parse_control_records(records):
            message = control.value
            if isinstance(message, SnapshotHeaderRecord):
                seen_header = True
                content.last_contained_log_timestamp = message.last_contained_log_timestamp
            elif isinstance(message, KRaftVersionRecord):
                content.kraft_version = message.kraft_version
            elif isinstance(message, VotersRecord):
                content.voters = VoterSet.from_record(message)
            elif isinstance(message, SnapshotFooterRecord):
                seen_footer = True
    if not seen_header or not seen_footer or end != len(data):
        missing = "header" if not seen_header else "footer"
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the snapshot has no {missing}: it was not written to its end"
        )
    return content


def _value(value: bytes | None) -> bytes:
    if value is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of the snapshot has no value")
    return value


def snapshot_timestamp(beginning: bytes) -> int:
    """Read from the first bytes of a snapshot file when its last record was appended."""
    for position, header in iter_batches(beginning):
        verify_crc(beginning, position, header)
        for control in parse_control_records(read_records(beginning, position)):
            if isinstance(control.value, SnapshotHeaderRecord):
                return control.value.last_contained_log_timestamp
        break
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the snapshot has no header")
