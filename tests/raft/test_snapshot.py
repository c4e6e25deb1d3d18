"""Snapshots: the frame around the records, and what is not a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.snapshot import (
    SnapshotContent,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    is_unfinished,
    parse_name,
    snapshot_timestamp,
)
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address

VOTERS = VoterSet.of(Voter(ReplicaKey(1, b"d" * 16), {"CONTROLLER": Address("localhost", 9093)}))


def encode(values: list[bytes], **options: object) -> bytes:
    return b"".join(
        encode_snapshot(values, epoch=3, timestamp=1000, last_contained_log_timestamp=77, **options)  # type: ignore[arg-type]
    )


@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 200))
def test_what_goes_in_comes_out(values: list[bytes], batch_bytes: int) -> None:
    data = encode(values, batch_bytes=batch_bytes)
    content = decode_snapshot(data)
    assert content.values == values
    assert content.last_contained_log_timestamp == snapshot_timestamp(data) == 77
    assert (content.kraft_version, content.voters) == (0, None)


def test_dynamic_voters_are_in_the_header() -> None:
    content = decode_snapshot(encode([b"r"], kraft_version=1, voters=VOTERS))
    assert (content.kraft_version, content.voters) == (1, VOTERS)


@pytest.mark.parametrize("cut", [1, 40, 90, 200])
def test_a_file_that_was_not_finished_is_not_a_snapshot(cut: int) -> None:
    data = encode([b"x" * 60] * 3, batch_bytes=50)
    with pytest.raises(KafkaError) as error:
        decode_snapshot(data[:-cut])
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE


def decoded_or_none(data: bytes) -> SnapshotContent | None:
    try:
        return decode_snapshot(data)
    except KafkaError:
        return None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_byte_is_noticed_or_harmless(position: int, flip: int) -> None:
    data = bytearray(encode([b"x" * 60] * 3))
    data[position % len(data)] ^= flip
    content = decoded_or_none(bytes(data))
    assert content is None or content.values == [b"x" * 60] * 3


def test_an_empty_file_is_not_a_snapshot() -> None:
    with pytest.raises(KafkaError, match="no header"):
        decode_snapshot(b"")


def test_names() -> None:
    id = SnapshotId(123, 4)
    assert parse_name(id.file_name) == id
    assert parse_name("00000000000000000123-0000000004.checkpoint.part") is None
    assert parse_name("leader-epoch-checkpoint") is None
    assert is_unfinished("00000000000000000123-0000000004-9817.checkpoint.part")
    assert is_unfinished("00000000000000000123-0000000004.checkpoint.deleted")
    assert not is_unfinished(id.file_name)
