"""Producer snapshots have Kafka's bytes, show damage, and are kept by Kafka's rules."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.producers.snapshot import (
    CorruptSnapshotError,
    ProducerSnapshots,
    decode_snapshot,
    encode_snapshot,
)
from ottla.log.producers.state_entry import BatchMetadata, ProducerAppendInfo, ProducerStateEntry
from ottla.records.batch import BatchHeader
from ottla.records.builder import build_batch
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import RealDisk

INT64 = st.integers(0, 2**63 - 1)


@st.composite
def entries(draw: st.DrawFn) -> ProducerStateEntry:
    timestamp = draw(st.integers(-1, 2**63 - 1))
    batches = []
    if draw(st.booleans()):
        sequence, delta = draw(st.integers(-1, 2**31 - 1)), draw(st.integers(0, 2**31 - 1))
        batches.append(BatchMetadata(sequence, draw(INT64), delta, timestamp))
    return ProducerStateEntry(
        draw(INT64),
        draw(st.integers(-1, 2**15 - 1)),
        draw(st.integers(-1, 2**31 - 1)),
        timestamp,
        draw(st.none() | INT64),
        batches,
    )


def test_the_bytes_are_kafkas() -> None:
    entry = ProducerStateEntry(
        7,
        producer_epoch=2,
        coordinator_epoch=5,
        last_timestamp=1000,
        current_txn_first_offset=40,
        batches=[BatchMetadata(1, 30, 0, 900), BatchMetadata(11, 49, 9, 1000)],
    )
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 2, 11, 49, 9, 1000, 5, 40)
    assert encode_snapshot([entry]) == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_producer_without_batches_is_written_with_kafkas_placeholders() -> None:
    data = encode_snapshot([ProducerStateEntry(7, 2, 5, 1000)])
    assert data[10:] == struct.pack(">qhiqiqiq", 7, 2, -1, -1, 0, 1000, 5, -1)


def test_only_producers_that_have_changed_are_packed_again() -> None:
    entries = [ProducerStateEntry(id, 0, last_timestamp=1000) for id in range(3)]
    before = encode_snapshot(entries)
    packed = [entry.packed for entry in entries]
    batch = build_batch([(1001, None, b"")], base_offset=49, producer_id=1, producer_epoch=0, base_sequence=0)
    info = ProducerAppendInfo("t-0", entries[1], AppendOrigin.CLIENT, None)
    info.append_data(BatchHeader.parse(batch))
    info.apply_to(entries[1])
    after = decode_snapshot(encode_snapshot(entries))
    assert after == entries
    assert after != decode_snapshot(before)
    assert (entries[0].packed, entries[2].packed) == (packed[0], packed[2])
    assert entries[1].packed != packed[1]


@given(st.lists(entries(), max_size=5))
def test_what_is_written_is_read(written: list[ProducerStateEntry]) -> None:
    assert decode_snapshot(encode_snapshot(written)) == written


@given(st.lists(entries(), max_size=3), st.data())
def test_any_flipped_bit_is_noticed(written: list[ProducerStateEntry], draw: st.DataObject) -> None:
    data = bytearray(encode_snapshot(written))
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data)


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_a_count_that_the_bytes_do_not_bear_out_is_refused(count: int) -> None:
    body = struct.pack(">i", count) + encode_snapshot([ProducerStateEntry(1)])[10:]
    with pytest.raises(CorruptSnapshotError, match="entries"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)


@pytest.fixture
def snapshots(tmp_path: Path) -> ProducerSnapshots:
    for name in ("00000000000000000007.log", "00000000000000000003.snapshot.deleted", "notes.snapshot"):
        (tmp_path / name).touch()
    return ProducerSnapshots(RealDisk(), str(tmp_path))


def write(snapshots: ProducerSnapshots, *offsets: int) -> None:
    for offset in offsets:
        snapshots.write(offset, encode_snapshot([ProducerStateEntry(offset)]))


def on_disk(snapshots: ProducerSnapshots) -> tuple[int, ...]:
    return ProducerSnapshots(RealDisk(), snapshots.dir).offsets


def test_only_snapshot_files_are_listed(snapshots: ProducerSnapshots) -> None:
    assert snapshots.offsets == ()
    assert snapshots.latest is None
    assert snapshots.oldest is None
    write(snapshots, 20, 5, 10)
    assert snapshots.offsets == on_disk(snapshots) == (5, 10, 20)
    assert (snapshots.oldest, snapshots.latest) == (5, 20)
    assert snapshots.path(5).endswith("/00000000000000000005.snapshot")


def test_a_snapshot_written_again_replaces_a_longer_one(snapshots: ProducerSnapshots) -> None:
    snapshots.write(5, encode_snapshot([ProducerStateEntry(1), ProducerStateEntry(2)]))
    write(snapshots, 5)
    snapshots.sync(5)
    assert [entry.producer_id for entry in snapshots.load(5)] == [5]
    assert snapshots.offsets == (5,)


def test_deletions_leave_the_rest(snapshots: ProducerSnapshots) -> None:
    write(snapshots, 1, 5, 10, 20, 30)
    snapshots.delete_outside(log_start_offset=5, log_end_offset=20)
    assert on_disk(snapshots) == snapshots.offsets == (10, 20)
    snapshots.delete(10)
    snapshots.delete(10)
    assert on_disk(snapshots) == snapshots.offsets == (20,)
    snapshots.delete_all()
    assert on_disk(snapshots) == snapshots.offsets == ()
    snapshots.sync(20)


def test_a_snapshot_may_be_marked_for_later_deletion(snapshots: ProducerSnapshots) -> None:
    write(snapshots, 5)
    path = snapshots.path(5)
    assert snapshots.mark_deleted(5) == path + ".deleted"
    assert Path(path + ".deleted").exists()
    assert on_disk(snapshots) == snapshots.offsets == ()
    assert snapshots.mark_deleted(5) is None


def test_a_snapshot_that_vanished_is_no_error(snapshots: ProducerSnapshots) -> None:
    write(snapshots, 5, 6)
    Path(snapshots.path(5)).unlink()
    Path(snapshots.path(6)).unlink()
    snapshots.delete(5)
    assert snapshots.mark_deleted(6) is None
    assert snapshots.offsets == ()


@pytest.mark.parametrize(
    ("segments", "kept"),
    [
        ([0, 10, 20], (10, 20, 25)),
        ([0, 10, 30], (10,)),
        ([10], (10, 25)),
        ([], (25,)),
        ([25], (25,)),
    ],
)
def test_strays_go_but_the_one_of_a_clean_shutdown(
    snapshots: ProducerSnapshots, segments: list[int], kept: tuple[int, ...]
) -> None:
    write(snapshots, 5, 10, 20, 25)
    snapshots.remove_stray(segments)
    assert on_disk(snapshots) == snapshots.offsets == kept
