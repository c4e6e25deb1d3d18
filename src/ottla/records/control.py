"""Control records: transaction markers and records of the quorum, which lie between the records of users.

A control batch has its own attribute bit, and clients never see what it holds. The key of a control record
is a version and a type; the value of a transaction marker is a version and the epoch of the coordinator
that wrote it, and the values of the quorum's records are messages that carry their own version. A marker's
batch belongs to the producer whose transaction it ends.

Types and versions that are newer than this code are not errors: a reader skips what it does not know.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.protocol.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.records.batch import BatchHeader, read_records
from ottla.records.builder import build_batch
from ottla.records.types import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from ottla.records._kernel import Record

QuorumRecord: TypeAlias = (
    LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)
ControlValue: TypeAlias = "EndTransactionMarker | QuorumRecord | None"

_KEY: Final = struct.Struct(">hh")
_MARKER: Final = struct.Struct(">hi")
_VERSION: Final = struct.Struct(">h")
_CURRENT_VERSION: Final = 0


class ControlType(IntEnum):
    """The types of control records; UNKNOWN stands for those of later versions of Kafka."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

    @property
    def key(self) -> bytes:
        """The key of a control record of this type."""
        return _KEY.pack(_CURRENT_VERSION, self)

    @classmethod
    def of_key(cls, key: Buffer | None) -> ControlType:
        """The type that the key of a control record names."""
        if key is None or memoryview(key).nbytes < _KEY.size:
            raise _corrupt(f"the key of a control record is {_KEY.size} bytes, not {key!r}")
        version, number = _KEY.unpack_from(key)
        if version < 0:
            raise _corrupt(f"the key of a control record has version {version}")
        return _TYPES.get(number, cls.UNKNOWN)


_TYPES: Final = {int(member): member for member in ControlType}
_MARKERS: Final = (ControlType.ABORT, ControlType.COMMIT)
_MESSAGES: Final[dict[ControlType, type[QuorumRecord]]] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_TYPE_OF_MESSAGE: Final = {message: kind for kind, message in _MESSAGES.items()}


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of one producer's transaction in a partition: COMMIT or ABORT."""

    type: ControlType
    coordinator_epoch: int

    def __post_init__(self) -> None:
        if self.type not in _MARKERS:
            raise ValueError(f"a transaction ends with COMMIT or ABORT, not with {self.type.name}")

    def encode(self) -> bytes:
        return _MARKER.pack(_CURRENT_VERSION, self.coordinator_epoch)

    @classmethod
    def decode(cls, kind: ControlType, value: Buffer | None) -> EndTransactionMarker:
        if value is None or memoryview(value).nbytes < _MARKER.size:
            raise _corrupt(
                f"the value of a transaction marker is at least {_MARKER.size} bytes, not {value!r}"
            )
        version, coordinator_epoch = _MARKER.unpack_from(value)
        if version < 0:
            raise _corrupt(f"a transaction marker has version {version}")
        return cls(kind, coordinator_epoch)


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A control record that was read; `value` is None if its type is UNKNOWN."""

    offset: int
    timestamp: int
    type: ControlType
    value: ControlValue


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    leader_epoch: int = NO_LEADER_EPOCH,
    base_offset: int = 0,
) -> bytes:
    """The batch of one marker: transactional, control, and without a sequence number."""
    if producer_id < 0 or producer_epoch < 0:
        raise ValueError(
            f"a marker needs the producer that it is for, not {producer_id}, epoch {producer_epoch}"
        )
    return build_batch(
        [(timestamp, marker.type.key, marker.encode())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def build_quorum_batch(
    messages: Sequence[QuorumRecord], *, timestamp: int, leader_epoch: int, base_offset: int = 0
) -> bytes:
    """The control batch of these records of the quorum, each at its next offset."""
    if not messages:
        raise ValueError("a control batch holds at least one record")
    return build_batch(
        [(timestamp, control_type_of(message).key, message.encode(message.version)) for message in messages],
        base_offset=base_offset,
        control=True,
        leader_epoch=leader_epoch,
    )


def control_type_of(message: QuorumRecord) -> ControlType:
    return _TYPE_OF_MESSAGE[type(message)]


def read_control_records(buf: Buffer, pos: int = 0) -> list[ControlRecord]:
    """Decode the control batch at `pos`."""
    header = BatchHeader.parse(buf, pos)
    if not header.is_control:
        raise ValueError(
            f"the batch at position {pos} (base offset {header.base_offset}) holds no control records"
        )
    return list(parse_control_records(read_records(buf, pos)))


def parse_control_records(records: Iterable[Record]) -> Iterable[ControlRecord]:
    """Decode the records of a control batch."""
    for record in records:
        kind = ControlType.of_key(record.key)
        yield ControlRecord(record.offset, record.timestamp, kind, _decode(kind, record.value))


def _decode(kind: ControlType, value: bytes | None) -> ControlValue:
    if kind is ControlType.UNKNOWN:
        return None
    if kind in _MARKERS:
        return EndTransactionMarker.decode(kind, value)
    if value is None or len(value) < _VERSION.size:
        raise _corrupt(f"the value of a {kind.name} record is too short: {value!r}")
    (version,) = _VERSION.unpack_from(value)
    try:
        return _MESSAGES[kind].decode(value, version)
    except (MalformedMessage, UnsupportedVersion) as error:
        raise _corrupt(f"the value of a {kind.name} record is malformed: {error.message}") from error


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
