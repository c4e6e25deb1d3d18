"""What a consumer sees: from its offset on, without control records, without aborted transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import Codec, Record, iter_batches
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.reader import open_reader
from tests.support.visible_records import read_visible


@dataclass
class History:
    """A partition's life: what was written, which transactions were aborted, and what should be seen."""

    data: bytes = b""
    next_offset: int = 0
    open: dict[int, list[Record]] = field(default_factory=dict)
    visible: list[Record] = field(default_factory=list)
    everything: list[Record] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def write(self, producer_id: int, count: int, codec: Codec, transactional: bool) -> None:
        records = [Record(self.next_offset + i, 7, b"%d" % producer_id, b"%d" % i) for i in range(count)]
        self.data += build_batch(
            records,
            base_offset=self.next_offset,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            transactional=transactional,
        )
        self.next_offset += count
        self.everything += records
        if transactional:
            self.open.setdefault(producer_id, []).extend(records)
        else:
            self.visible += records

    def end(self, producer_id: int, kind: ControlType) -> None:
        self.data += build_end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=7,
            base_offset=self.next_offset,
        )
        self.next_offset += 1
        records = self.open.pop(producer_id, [])
        if kind is ControlType.COMMIT:
            self.visible += records
        elif records:
            self.aborted.append((producer_id, records[0].offset))


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for _ in range(draw(st.integers(1, 15))):
        producer_id = draw(st.integers(-1, 3))
        codec = draw(st.sampled_from(list(Codec)))
        match draw(st.sampled_from(["write", "transaction", "commit", "abort"])):
            case "transaction" if producer_id >= 0:
                history.write(producer_id, draw(st.integers(1, 4)), codec, transactional=True)
            case "commit" if producer_id >= 0:
                history.end(producer_id, ControlType.COMMIT)
            case "abort" if producer_id >= 0:
                history.end(producer_id, ControlType.ABORT)
            case _:
                if producer_id not in history.open:
                    history.write(producer_id, draw(st.integers(1, 4)), codec, transactional=False)
    for producer_id in list(history.open):
        history.end(producer_id, draw(st.sampled_from([ControlType.COMMIT, ControlType.ABORT])))
    history.visible.sort(key=lambda record: record.offset)
    return history


def without_sequence(records: list[Record]) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


@given(history=histories(), data=st.data())
def test_committed_records_are_seen_and_aborted_ones_are_not(history: History, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, history.next_offset))
    end = data.draw(st.integers(start, history.next_offset + 1))
    seen = read_visible(history.data, start_offset=start, end_offset=end, aborted=history.aborted)
    assert without_sequence(seen) == [r for r in history.visible if start <= r.offset < end]


@given(history=histories())
def test_without_the_list_everything_but_control_records_is_seen(history: History) -> None:
    assert without_sequence(read_visible(history.data)) == history.everything


@given(history=histories(), fetch_size=st.integers(200, 900))
def test_a_reader_goes_on_where_the_last_fetch_ended(history: History, fetch_size: int) -> None:
    starts = {header.base_offset: pos for pos, header in iter_batches(history.data)}
    reader = open_reader()
    reader.set_aborted(history.aborted)
    seen: list[Record] = []
    while reader.next_offset < history.next_offset:
        at = starts[reader.next_offset]
        seen += reader.read(history.data[at : at + fetch_size])
    assert without_sequence(seen) == history.visible
    assert reader.next_offset == history.next_offset


def test_a_transaction_that_ends_before_the_offset_is_over() -> None:
    history = History()
    history.write(1, 2, Codec.NONE, transactional=True)
    history.end(1, ControlType.ABORT)
    history.write(1, 2, Codec.NONE, transactional=True)
    history.end(1, ControlType.COMMIT)
    seen = read_visible(history.data, start_offset=3, aborted=history.aborted)
    assert [record.offset for record in seen] == [3, 4]


def test_batches_before_the_offset_are_passed_over() -> None:
    data = b"".join(build_batch([(0, None, b"x")] * 5, base_offset=i * 5) for i in range(4))
    reader = open_reader(start_offset=7, end_offset=12)
    assert [record.offset for record in reader.read(data)] == [7, 8, 9, 10, 11]
    assert reader.next_offset == 12


def test_the_next_offset_passes_over_what_compaction_removed() -> None:
    data = build_batch([Record(3, 0, b"k", b"v")], base_offset=0, last_offset=90)
    reader = open_reader()
    assert [record.offset for record in reader.read(data)] == [3]
    assert reader.next_offset == 91


def test_damage_is_found_by_the_checksum_unless_it_is_not_wanted() -> None:
    data = bytearray(build_batch([(0, None, b"value")]))
    data[-2] ^= 0xFF
    with pytest.raises(KafkaError) as caught:
        read_visible(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert len(read_visible(data, check_crc=False)) == 1


def test_a_buffer_is_read_as_a_whole_or_not_at_all() -> None:
    sound = build_batch([(0, None, b"value")] * 3)
    damaged = bytearray(build_batch([(0, None, b"value")], base_offset=3))
    damaged[-2] ^= 0xFF
    reader = open_reader()
    with pytest.raises(KafkaError):
        reader.read(sound + damaged)
    assert reader.next_offset == 0
    assert len(reader.read(sound)) == 3


def test_a_marker_without_a_type_is_corrupt() -> None:
    data = build_batch([(0, b"\0", b"")], control=True, transactional=True, producer_id=4, producer_epoch=0)
    assert read_visible(data) == []
    with pytest.raises(KafkaError, match="key of a control record"):
        read_visible(data, aborted=[(4, 0)])


def test_the_reader_bounds_what_it_decompresses() -> None:
    data = build_batch([(0, None, bytes(100_000))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as caught:
        read_visible(data, max_decompressed_bytes=50_000)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
