"""Control records: markers of transactions and the quorum's own records."""

from __future__ import annotations

import struct

import pytest

from ottla.protocol.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    VotersRecordEndpoint,
    VotersRecordVoter,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    QuorumRecord,
    build_end_transaction_marker,
    build_quorum_batch,
    read_control_records,
)

VOTER = VotersRecordVoter(
    voter_id=1,
    voter_directory_id=bytes(range(16)),
    endpoints=[VotersRecordEndpoint(name="CONTROLLER", host="localhost", port=9093)],
    kraft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
)
MESSAGES: list[tuple[ControlType, QuorumRecord]] = [
    (
        ControlType.LEADER_CHANGE,
        LeaderChangeMessage(
            version=0,
            leader_id=3,
            voters=[LeaderChangeMessageVoter(voter_id=3), LeaderChangeMessageVoter(voter_id=4)],
            granting_voters=[LeaderChangeMessageVoter(voter_id=3)],
        ),
    ),
    (
        ControlType.LEADER_CHANGE,
        LeaderChangeMessage(
            version=1,
            leader_id=3,
            voters=[LeaderChangeMessageVoter(voter_id=3, voter_directory_id=bytes(range(16)))],
            granting_voters=[],
        ),
    ),
    (ControlType.SNAPSHOT_HEADER, SnapshotHeaderRecord(version=0, last_contained_log_timestamp=12345)),
    (ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(version=0)),
    (ControlType.KRAFT_VERSION, KRaftVersionRecord(version=0, kraft_version=1)),
    (ControlType.KRAFT_VOTERS, VotersRecord(version=0, voters=[VOTER])),
]


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_ends_the_transaction_of_its_producer(kind: ControlType) -> None:
    marker = EndTransactionMarker(kind, coordinator_epoch=17)
    data = build_end_transaction_marker(
        marker, producer_id=1234, producer_epoch=5, timestamp=999, leader_epoch=8, base_offset=50
    )
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    assert (header.is_control, header.is_transactional) == (True, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1234, 5, -1)
    assert read_control_records(data) == [ControlRecord(50, 999, kind, marker)]
    (record,) = read_records(data)
    assert record.key == struct.pack(">hh", 0, kind)
    assert record.value == struct.pack(">hi", 0, 17)


@pytest.mark.parametrize(("kind", "message"), MESSAGES)
def test_records_of_the_quorum_come_back(kind: ControlType, message: QuorumRecord) -> None:
    data = build_quorum_batch([message], timestamp=7, leader_epoch=2, base_offset=10)
    header = BatchHeader.parse(data)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)
    assert header.leader_epoch == 2
    assert read_control_records(data) == [ControlRecord(10, 7, kind, message)]


def test_a_batch_may_hold_several() -> None:
    data = build_quorum_batch([message for _, message in MESSAGES], timestamp=7, leader_epoch=2)
    assert [(r.offset, r.type) for r in read_control_records(data)] == list(
        enumerate(kind for kind, _ in MESSAGES)
    )


def test_types_and_versions_of_the_future_are_not_errors() -> None:
    data = build_batch(
        [(0, struct.pack(">hh", 1, 99), b"?"), (0, struct.pack(">hh", 2, 1), struct.pack(">hiq", 3, 44, 0))],
        control=True,
    )
    unknown, commit = read_control_records(data)
    assert (unknown.type, unknown.value) == (ControlType.UNKNOWN, None)
    assert commit.value == EndTransactionMarker(ControlType.COMMIT, 44)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00\x00\x00", b""),
        (struct.pack(">hh", -1, 0), struct.pack(">hi", 0, 1)),
        (struct.pack(">hh", 0, 0), None),
        (struct.pack(">hh", 0, 1), b"\x00\x00\x00"),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 1)),
        (struct.pack(">hh", 0, 2), b"\x00"),
        (struct.pack(">hh", 0, 2), b"\x00\x00\xff"),
        (struct.pack(">hh", 0, 6), struct.pack(">h", 9)),
    ],
)
def test_damaged_control_records_are_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(KafkaError) as caught:
        read_control_records(build_batch([(0, key, value)], control=True))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="COMMIT or ABORT"):
        EndTransactionMarker(ControlType.LEADER_CHANGE, 1)
    with pytest.raises(ValueError, match="needs the producer"):
        build_end_transaction_marker(
            EndTransactionMarker(ControlType.ABORT, 1), producer_id=-1, producer_epoch=0, timestamp=0
        )
    with pytest.raises(ValueError, match="at least one"):
        build_quorum_batch([], timestamp=0, leader_epoch=0)
    with pytest.raises(ValueError, match="no control records"):
        read_control_records(build_batch([(0, b"k", b"v")]))
