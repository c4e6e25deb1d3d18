"""The transaction index answers which aborted transactions a range of offsets touches."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.log.segment.txn_index import AbortedTxn, CorruptTxnIndexError, TransactionIndex
from ottla.runtime.disk import RealDisk


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "00000000000000000000.txnindex")


def index_at(path: str, start_offset: int = 0) -> TransactionIndex:
    return TransactionIndex(RealDisk(), path, start_offset)


ABORTED = [
    AbortedTxn(producer_id=0, first_offset=0, last_offset=10, last_stable_offset=2),
    AbortedTxn(producer_id=1, first_offset=5, last_offset=15, last_stable_offset=16),
    AbortedTxn(producer_id=2, first_offset=18, last_offset=35, last_stable_offset=25),
    AbortedTxn(producer_id=3, first_offset=32, last_offset=50, last_stable_offset=40),
]


def test_an_entry_is_34_bytes_as_kafka_lays_them_out() -> None:
    txn = AbortedTxn(producer_id=983493, first_offset=137, last_offset=299, last_stable_offset=200)
    assert txn.encode() == struct.pack(">hqqqq", 0, 983493, 137, 299, 200)
    assert len(txn.encode()) == 34


def test_no_file_is_made_before_the_first_abort(path: str) -> None:
    index = index_at(path)
    assert index.entries == []
    assert index.collect(0, 100) == ([], False)
    index.flush()
    index.truncate_to(0)
    assert not Path(path).exists()
    index.append(ABORTED[0])
    assert Path(path).read_bytes() == ABORTED[0].encode()


def test_entries_survive_a_reopen(path: str) -> None:
    index = index_at(path)
    for txn in ABORTED:
        index.append(txn)
    index.flush()
    assert index_at(path).entries == ABORTED


def test_a_torn_last_entry_is_ignored_and_overwritten(path: str) -> None:
    Path(path).write_bytes(ABORTED[0].encode() + ABORTED[1].encode()[:20])
    index = index_at(path)
    assert index.entries == ABORTED[:1]
    index.append(ABORTED[2])
    assert index_at(path).entries == [ABORTED[0], ABORTED[2]]


@pytest.mark.parametrize(
    ("fetch", "upper", "expected", "complete"),
    [
        (0, 100, ABORTED, False),
        (0, 32, ABORTED[:3], True),
        (0, 35, ABORTED, True),
        (10, 35, ABORTED, True),
        (11, 35, ABORTED[1:], True),
        (20, 41, ABORTED[2:], False),
        (36, 40, ABORTED[3:], True),
        (51, 100, [], False),
        (11, 12, [ABORTED[1]], True),
    ],
)
def test_a_search_finds_what_overlaps_and_knows_when_to_stop(
    path: str, fetch: int, upper: int, expected: list[AbortedTxn], complete: bool
) -> None:
    index = index_at(path)
    for txn in ABORTED:
        index.append(txn)
    assert index.collect(fetch, upper) == (expected, complete)


def test_markers_must_come_in_order(path: str) -> None:
    index = index_at(path)
    index.append(ABORTED[1])
    with pytest.raises(ValueError, match="15"):
        index.append(ABORTED[0])


@pytest.mark.parametrize(("offset", "kept"), [(51, 4), (50, 3), (16, 2), (15, 1), (11, 1), (10, 0), (0, 0)])
def test_truncation_forgets_markers_from_the_offset_on(path: str, offset: int, kept: int) -> None:
    index = index_at(path)
    for txn in ABORTED:
        index.append(txn)
    index.truncate_to(offset)
    assert index.entries == ABORTED[:kept]
    assert index_at(path).entries == ABORTED[:kept]
    index.append(AbortedTxn(9, 60, 70, 71))
    assert index_at(path).entries[-1].producer_id == 9


def test_reset_replaces_the_content_even_of_a_damaged_file(path: str) -> None:
    Path(path).write_bytes(b"\xff" * 34)
    index = index_at(path)
    with pytest.raises(CorruptTxnIndexError, match="version -1"):
        index.sanity_check()
    index.reset(ABORTED[:2])
    index.sanity_check()
    assert index_at(path).entries == ABORTED[:2]


def test_an_index_of_another_segment_is_found_out(path: str) -> None:
    index = index_at(path)
    for txn in ABORTED:
        index.append(txn)
    index_at(path, start_offset=10).sanity_check()
    with pytest.raises(CorruptTxnIndexError, match="segment that starts at 11"):
        index_at(path, start_offset=11).sanity_check()


def test_deleting_an_index_deletes_its_file(path: str) -> None:
    index = index_at(path)
    index.append(ABORTED[0])
    assert index_at(path).entries == ABORTED[:1]
    index.delete_if_exists()
    index.delete_if_exists()
    assert not Path(path).exists()


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedTxn]:
    """Aborts of a few producers with open transactions in between, as a log would have them."""
    open_txns: dict[int, int] = {}
    aborted = []
    offset = 0
    for producer_id, ends in draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40)):
        offset += draw(st.integers(1, 5))
        if producer_id not in open_txns:
            open_txns[producer_id] = offset
        elif ends:
            first = open_txns.pop(producer_id)
            aborted.append(AbortedTxn(producer_id, first, offset, min([*open_txns.values(), offset + 1])))
    return aborted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(aborted=histories(), fetch=st.integers(0, 200), length=st.integers(1, 200))
def test_a_search_agrees_with_a_scan(path: str, aborted: list[AbortedTxn], fetch: int, length: int) -> None:
    index = index_at(path)
    index.reset(aborted)
    upper = fetch + length
    overlapping = [txn for txn in aborted if txn.last_offset >= fetch and txn.first_offset < upper]
    found, complete = index.collect(fetch, upper)
    assert found == overlapping
    if complete:
        # Whatever is aborted after the point where the search stopped begins at or above the range.
        stop = next(i for i, txn in enumerate(aborted) if txn.last_stable_offset >= upper)
        assert all(txn.first_offset >= upper for txn in aborted[stop + 1 :])
