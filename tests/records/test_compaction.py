"""The map of newest offsets, and what compaction leaves of a batch, against plain models of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import KafkaError
from ottla.records.batch import BatchHeader, Codec, Record, TimestampType, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.records.compaction import OffsetMap, empty_batch, filter_batch, map_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker

NOW = 1_000_000
RETENTION = 500

keys = st.none() | st.binary(max_size=2)
entries = st.lists(
    st.tuples(st.integers(0, 3), keys, st.none() | st.binary(max_size=5), st.integers(0, NOW)),
    min_size=1,
    max_size=40,
)


def records_of(rows: list[tuple[int, bytes | None, bytes | None, int]], base: int) -> list[Record]:
    records = []
    offset = base
    for gap, key, value, timestamp in rows:
        offset += gap
        records.append(Record(offset, timestamp, key, value))
        offset += 1
    return records


def keeps(record: Record, newest: dict[bytes, int], latest: int, tombstones_stay: bool) -> bool:
    if record.offset > latest:
        return True
    if record.key is None or record.offset < newest.get(record.key, -1):
        return False
    return record.value is not None or tombstones_stay


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 10_000)), max_size=200),
    st.binary(min_size=16, max_size=16),
)
def test_the_map_is_a_dictionary_of_offsets(puts: list[tuple[bytes, int]], seed: bytes) -> None:
    offset_map = OffsetMap(24 * 400, seed=seed)
    plain: dict[bytes, int] = {}
    for key, offset in puts:
        assert offset_map.put(key, offset)
        plain[key] = offset
    assert len(offset_map) == offset_map.used == len(plain)
    assert all(offset_map.get(key) == offset for key, offset in plain.items())
    assert offset_map.get(b"never seen") == -1
    offset_map.clear()
    assert len(offset_map) == 0
    assert all(offset_map.get(key) == -1 for key in plain)


def test_the_map_stops_at_its_load_factor_but_still_updates() -> None:
    offset_map = OffsetMap(24 * 100, 0.75)
    assert offset_map.capacity == 75
    assert all(offset_map.put(b"%d" % i, i) for i in range(75))
    assert not offset_map.put(b"one more", 75)
    assert offset_map.put(b"3", 80)
    assert offset_map.get(b"3") == 80
    assert offset_map.get(b"one more") == -1


def test_a_batch_that_does_not_fit_is_taken_up_to_where_it_does() -> None:
    offset_map = OffsetMap(24 * 10, 0.5)
    data = build_batch([(0, b"%d" % (i // 2), b"") for i in range(20)])
    assert not map_batch(data, 0, BatchHeader.parse(data), offset_map)
    assert (offset_map.used, offset_map.latest_offset) == (5, 9)


@given(rows=entries, start=st.integers(0, 120), codec=st.sampled_from(list(Codec)))
def test_batches_are_mapped_from_an_offset_on(
    rows: list[tuple[int, bytes | None, bytes | None, int]], start: int, codec: Codec
) -> None:
    records = records_of(rows, 10)
    data = build_batch(records, base_offset=10, codec=codec)
    offset_map = OffsetMap(24 * 100)
    assert map_batch(data, 0, BatchHeader.parse(data), offset_map, start_offset=start)
    plain = {r.key: r.offset for r in records if r.key is not None and r.offset >= start}
    assert len(offset_map) == len(plain)
    assert all(offset_map.get(key) == offset for key, offset in plain.items())
    assert offset_map.latest_offset == (records[-1].offset if records[-1].offset >= start else -1)


def test_maps_that_could_hold_nothing_are_refused() -> None:
    for arguments in [(0,), (24,), (-5,), (2400, 0.0), (2400, 1.0), (2400, 0.9, b"short")]:
        with pytest.raises(ValueError):
            OffsetMap(*arguments)
    with pytest.raises(TypeError):
        OffsetMap(2400).get(None)  # type: ignore[arg-type]


@given(
    rows=entries,
    newest=st.dictionaries(st.binary(max_size=2), st.integers(0, 120)),
    latest=st.integers(-1, 120),
    codec=st.sampled_from(list(Codec)),
    horizon=st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1]),
    append_time=st.booleans(),
)
def test_what_is_left_of_a_batch(
    rows: list[tuple[int, bytes | None, bytes | None, int]],
    newest: dict[bytes, int],
    latest: int,
    codec: Codec,
    horizon: int | None,
    append_time: bool,
) -> None:
    records = records_of(rows, 10)
    data = b"front" + build_batch(
        records,
        base_offset=8,
        last_offset=records[-1].offset + 2,
        codec=codec,
        leader_epoch=6,
        producer_id=3,
        producer_epoch=1,
        base_sequence=40,
        transactional=True,
        delete_horizon_ms=horizon,
        timestamp_type=TimestampType(append_time),
        append_time_ms=NOW - 7,
    )
    header = BatchHeader.parse(data, 5)
    offset_map = OffsetMap(24 * 200)
    for key, offset in newest.items():
        offset_map.put(key, offset)
    offset_map.latest_offset = latest
    before = read_records(data, 5)
    expected = [r for r in before if keeps(r, newest, latest, horizon is None or horizon > NOW)]

    left = filter_batch(data, 5, header, offset_map, now_ms=NOW, delete_retention_ms=RETENTION)
    if not expected:
        assert left is None
        return
    assert left is not None
    after = BatchHeader.parse(left)
    verify_crc(left, 0, after)
    assert read_records(left) == expected
    for name in (
        *("base_offset", "last_offset", "leader_epoch", "codec", "timestamp_type", "is_transactional"),
        *("is_control", "producer_id", "producer_epoch", "base_sequence", "last_sequence"),
    ):
        assert getattr(after, name) == getattr(header, name), name
    assert after.max_timestamp == (NOW - 7 if append_time else max(r.timestamp for r in expected))
    has_tombstones = any(r.value is None for r in expected)
    sets_horizon = horizon is None and has_tombstones
    assert after.delete_horizon_ms == (NOW + RETENTION if sets_horizon else horizon)
    if len(expected) == len(before) and not sets_horizon:
        assert bytes(left) == data[5:]


def test_markers_stay_and_get_a_horizon_when_their_transaction_is_gone() -> None:
    data = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 1), producer_id=5, producer_epoch=2, timestamp=NOW - 9
    )
    header = BatchHeader.parse(data)
    offset_map = OffsetMap(2400)
    offset_map.latest_offset = 1000
    kept = filter_batch(data, 0, header, offset_map, now_ms=NOW, delete_retention_ms=RETENTION)
    assert kept is not None
    assert bytes(kept) == data
    marked = filter_batch(
        data,
        0,
        header,
        offset_map,
        now_ms=NOW,
        delete_retention_ms=RETENTION,
        marker_of_empty_transaction=True,
    )
    assert marked is not None
    after = BatchHeader.parse(marked)
    verify_crc(marked, 0, after)
    assert (after.delete_horizon_ms, after.is_control) == (NOW + RETENTION, True)
    assert read_records(marked) == read_records(data)
    again = filter_batch(
        marked,
        0,
        after,
        offset_map,
        now_ms=NOW + 5,
        delete_retention_ms=RETENTION,
        marker_of_empty_transaction=True,
    )
    assert again is not None
    assert bytes(again) == bytes(marked)


def test_an_empty_batch_still_tells_of_its_producer() -> None:
    data = build_batch(
        [(NOW, b"k", b"v")] * 4,
        base_offset=20,
        codec=Codec.LZ4,
        leader_epoch=2,
        producer_id=8,
        producer_epoch=3,
        base_sequence=100,
        transactional=True,
    )
    header = BatchHeader.parse(data)
    empty = empty_batch(header)
    after = BatchHeader.parse(empty)
    verify_crc(empty, 0, after)
    assert read_records(empty) == []
    assert (after.base_offset, after.last_offset, after.last_sequence) == (20, 23, 103)
    assert (after.producer_id, after.producer_epoch, after.is_transactional) == (8, 3, True)
    assert (after.base_timestamp, after.max_timestamp, after.codec) == (-1, NOW, Codec.NONE)


def test_records_out_of_order_are_corruption() -> None:
    data = bytearray(build_batch([(0, b"a", b"1"), (0, b"b", None), (0, b"c", b"3")]))
    data[61 + 3 + 9] = 0  # the second record's offset delta
    offset_map = OffsetMap(2400)
    offset_map.latest_offset = 10
    with pytest.raises(KafkaError, match="offset delta 0 behind 0"):
        filter_batch(data, 0, BatchHeader.parse(data), offset_map, now_ms=NOW, delete_retention_ms=1)
