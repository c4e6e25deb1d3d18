"""Searches within a budget, JSON paths and payloads, without a cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.console.history import SampledHistory
from ottla.console.messages.filters import MessageFilter, _contains, header_filter
from ottla.console.messages.json_path import JsonPath, JsonPathError
from ottla.console.messages.payload import (
    MAX_LIST_TEXT,
    DecodedPayload,
    PayloadDecoder,
    indented,
    internal_payloads,
)
from ottla.console.messages.scan import MessageScan, ScanBudget, ScanCursor, ScanEnd
from ottla.console.messages.secrets import hide_secrets
from ottla.console.messages.source import RecordReader
from ottla.console.messages.topic_schemas import TopicSchemas
from ottla.console.sessions import LongCursors
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.clock import SystemClock
from ottla.runtime.pool import InlinePool

Record = ConsumerRecord[bytes, bytes]


class MemorySource:
    """Records of partitions; offsets may have holes, as after compaction."""

    topic = "memory"

    def __init__(self, partitions: dict[int, list[Record]], ends: dict[int, int]) -> None:
        self.partitions, self.ends = partitions, ends
        self.fetched = 0

    async def bounds(self, partitions: Iterable[int] | None) -> dict[int, tuple[int, int]]:
        return {p: (0, self.ends[p]) for p in self.ends}

    async def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, *, live: bool = False, whole: bool = False) -> AsyncIterator[RecordReader]:
        yield _MemoryReader(self)


class _MemoryReader:
    def __init__(self, source: MemorySource) -> None:
        self._source = source
        self._positions: dict[int, int] = {}
        self.problems: list[str] = []

    async def poll(self) -> list[Record]:
        for partition, at in self._positions.items():
            left = [each for each in self._source.partitions[partition] if each.offset >= at]
            if at < self._source.ends[partition]:
                found = left[:3]
                end = self._source.ends[partition]
                self._positions[partition] = end if len(left) <= 3 else found[-1].offset + 1
                self._source.fetched += len(found)
                if found:
                    return found
        return []

    def positions(self) -> Mapping[int, int]:
        return self._positions

    def seek(self, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)


async def shown(record: Record) -> dict[str, Any]:
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}


async def undecoded(record: Record) -> DecodedPayload | None:
    return None if record.value is None else DecodedPayload(record.value, "json", json.loads(record.value))


def scan_of(
    source: MemorySource,
    limit: int,
    *,
    scan: int = 100_000,
    wanted: MessageFilter | None = None,
    size: int = 2**40,
) -> MessageScan:
    return MessageScan(
        source,
        SystemClock(),
        wanted or MessageFilter(),
        limit,
        ScanBudget(scan, bytes=size),
        undecoded,
        shown,
    )


def test_a_long_cursor_has_a_short_name_until_many_others_came() -> None:
    cursors = LongCursors()
    short = ScanCursor(True, {0: 7}, {0: 1}).encode()
    assert cursors.shorten(short) == short == cursors.expand(short)
    texts = [
        ScanCursor(
            False, {p: 10**9 + p + n for p in range(1_000)}, dict.fromkeys(range(1_000), 2**60)
        ).encode()
        for n in range(101)
    ]
    names = [cursors.shorten(text) for text in texts]
    assert all(len(name) < 100 for name in names)
    assert [cursors.expand(name) for name in names[1:]] == texts[1:]
    with pytest.raises(ValueError, match="forgotten"):
        cursors.expand(names[0])


def test_large_data_are_searched_in_pieces() -> None:
    data = bytearray(b"." * 1_000_000)
    for at in (0, 262_140, 524_288, 999_994):
        data[at : at + 6] = b"NeeDle"
        assert _contains(bytes(data), b"needle")
        data[at : at + 6] = b"......"
    assert not _contains(bytes(data), b"needle")


@pytest.mark.slow
async def test_charts_come_back_after_the_cluster_was_away_for_long() -> None:
    """Away for longer than a history records after the last look."""
    away = asyncio.Event()
    began = time.monotonic()

    async def take() -> dict[str, Any] | None:
        if away.is_set() and time.monotonic() - began < 1.0:
            return None
        return {"time": time.monotonic()}

    history = SampledHistory(SystemClock(), take, interval_seconds=0.01, size=10, keep_seconds=0.2)
    samples = history.follow()
    async with asyncio.timeout(60):
        await anext(samples)
        began = time.monotonic()
        away.set()
        async for sample in samples:
            if sample["time"] - began >= 1.0:
                break
    await history.close()


def start(source: MemorySource, *, backwards: bool) -> ScanCursor:
    starts = dict.fromkeys(source.ends, 0)
    if backwards:
        return ScanCursor(True, dict(source.ends), starts)
    return ScanCursor(False, starts, dict(source.ends))


def all_pages(source: MemorySource, limit: int, **options: Any) -> list[tuple[int, int]]:
    backwards = options.pop("backwards")
    cursor: ScanCursor | None = start(source, backwards=backwards)
    found: list[tuple[int, int]] = []
    for _ in range(10_000):
        assert cursor is not None
        messages, cursor = asyncio.run(scan_of(source, limit, **options).run(cursor))
        assert len(messages) <= limit
        found += [(each["partition"], each["offset"]) for each in messages]
        if cursor is None:
            return found
        cursor = ScanCursor.decode(cursor.encode())
    raise AssertionError("the pages do not end")


def topic(offsets: dict[int, list[int]], *, tail: int = 0) -> MemorySource:
    return MemorySource(
        {
            p: [
                ConsumerRecord("memory", p, at, 1000 + at * 3 + p, b"k%d" % at, b'{"n": %d}' % at)
                for at in each
            ]
            for p, each in offsets.items()
        },
        {p: (max(each, default=-1) + 1 + tail) for p, each in offsets.items()},
    )


@settings(max_examples=40)
@given(
    st.dictionaries(st.integers(0, 11), st.sets(st.integers(0, 60)), min_size=1, max_size=12),
    st.integers(1, 20),
    st.booleans(),
    st.integers(1, 30),
    st.integers(0, 5),
)
def test_pages_have_each_message_once_whatever_the_budget(
    offsets: dict[int, set[int]], limit: int, backwards: bool, scan: int, tail: int
) -> None:
    source = topic({p: sorted(each) for p, each in offsets.items()}, tail=tail)
    found = all_pages(source, limit, backwards=backwards, scan=scan)
    assert sorted(found) == sorted((p, at) for p, each in offsets.items() for at in each)
    for partition in offsets:
        own = [at for p, at in found if p == partition]
        assert own == sorted(own, reverse=backwards)


@settings(max_examples=40)
@given(st.booleans(), st.integers(1, 7), st.integers(1, 50))
def test_a_search_finds_all_matches_over_its_pages(backwards: bool, limit: int, scan: int) -> None:
    source = topic({0: list(range(50)), 1: list(range(40))})
    wanted = MessageFilter(path=JsonPath.parse("$.n"), path_value="7")
    assert sorted(all_pages(source, limit, backwards=backwards, wanted=wanted, scan=scan)) == [(0, 7), (1, 7)]


def test_the_newest_messages_of_a_large_topic_cost_few_reads() -> None:
    source = topic({p: list(range(2_000)) for p in range(3)})
    messages, cursor = asyncio.run(scan_of(source, 50).run(start(source, backwards=True)))
    assert [each["timestamp"] for each in messages] == sorted(
        (m["timestamp"] for m in messages), reverse=True
    )
    assert messages[0]["offset"] == 1_999
    assert source.fetched < 1_000
    assert cursor is not None


def test_a_search_stops_at_its_budget_and_says_how_much_is_left() -> None:
    source = topic({0: list(range(1_000))})
    scan = scan_of(source, 10, scan=100, wanted=MessageFilter(key=b"none"))
    messages, cursor = asyncio.run(scan.run(start(source, backwards=False)))
    assert messages == []
    assert (scan.end, scan.progress.messages, scan.progress.remaining) == (ScanEnd.SCAN, 100, 900)
    assert cursor is not None
    assert cursor.positions == {0: 100}


def test_large_messages_end_a_scan_by_bytes_and_the_next_page_goes_on() -> None:
    large = b'"' + b"x" * 100_000 + b'"'
    source = MemorySource(
        {0: [ConsumerRecord("memory", 0, at, at, None, large) for at in range(40)]}, {0: 40}
    )
    for backwards in (False, True):
        found = all_pages(source, 10, backwards=backwards, size=1_000_000)
        assert sorted(found) == [(0, at) for at in range(40)]


def test_the_newest_of_very_large_messages_are_shown_all_the_same() -> None:
    """None of the first window fits into the budget; some of them do."""
    large = b'"' + b"x" * 1_000_000 + b'"'
    source = MemorySource(
        {0: [ConsumerRecord("memory", 0, at, at, None, large) for at in range(20)]}, {0: 20}
    )
    scan = scan_of(source, 10, size=3_500_000)
    messages, _ = asyncio.run(scan.run(start(source, backwards=True)))
    assert [each["offset"] for each in messages][:2] == [19, 18]
    assert scan.progress.bytes < 12_000_000


@pytest.mark.parametrize(
    "text", ["", "x", "W10=", "WzAsMSxbWzAsLTEsNV1dXQ==", "bnVsbA==", "WzAsMSxbWzAsMV1dXQ=="]
)
def test_a_cursor_that_a_client_made_up_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        ScanCursor.decode(text)


class TestJsonPath:
    DOCUMENT: ClassVar = {"user": {"id": 7, "a b": 1}, "items": [{"sku": "x"}, {"sku": "y", "id": 8}], "*": 0}

    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("$", [DOCUMENT]),
            ("$.user.id", [7]),
            ("user.id", [7]),
            ("$['user']['a b']", [1]),
            ('$["user"].id', [7]),
            ("$.items[0].sku", ["x"]),
            ("$.items[-1].sku", ["y"]),
            ("$.items[*].sku", ["x", "y"]),
            ("$..id", [7, 8]),
            ("$..[1].sku", ["y"]),
            ("$.user.*", [7, 1]),
            ("$.none", []),
            ("$.items[9]", []),
        ],
    )
    def test_a_path_finds_values(self, path: str, found: list[object]) -> None:
        assert list(JsonPath.parse(path).find(self.DOCUMENT)) == found

    @pytest.mark.parametrize("path", ["$.", "$..", "$[", "$[a]", "$.a b", "$a", "$" + ".a" * 60])
    def test_what_is_no_path_is_refused(self, path: str) -> None:
        with pytest.raises(JsonPathError):
            JsonPath.parse(path)

    def test_a_search_in_a_huge_document_ends(self) -> None:
        document = [[0] * 1000] * 1000
        assert len(list(JsonPath.parse("$..[5]").find(document))) < 1_000_000


class TestPayload:
    DECODER = PayloadDecoder(TopicSchemas(), None, InlinePool())

    def show(self, data: bytes | None, format: str = "auto", most: int = MAX_LIST_TEXT) -> Any:
        found = asyncio.run(self.DECODER.decode("t", "value", data, format))
        return None if found is None else found.to_json(most)

    @pytest.mark.parametrize(
        ("data", "format", "text"),
        [
            (b'{"a":1.10,"b":[]}', "json", '{\n  "a": 1.10,\n  "b": []\n}'),
            (b"[12345678901234567890]", "json", "[\n  12345678901234567890\n]"),
            ("grüße\n".encode(), "text", "grüße\n"),
            (b"123", "text", "123"),
            (b'{"a": 1', "text", '{"a": 1'),
            (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
            (b"\0\1", "hex", "00000000  00 01" + " " * 44 + "|..|"),
            (b"", "empty", ""),
        ],
    )
    def test_a_payload_is_shown_as_what_it_is(self, data: bytes, format: str, text: str) -> None:
        found = self.show(data)
        assert (found["format"], found["text"], found["size"], found["truncated"]) == (
            format,
            text,
            len(data),
            False,
        )

    def test_no_payload_is_null(self) -> None:
        assert self.show(None) is None

    def test_asked_formats(self) -> None:
        assert self.show((42).to_bytes(8, "big"), "int64")["text"] == "42"
        assert self.show(b"abc", "int64")["note"] == "3 bytes are no int64, which has 8"
        assert self.show(b"abc", "hex")["text"].startswith("00000000  61 62 63")
        assert self.show(b"abc", "json")["note"] == "not JSON"
        assert self.show(b"\xffabc", "text")["text"] == "\ufffdabc"
        assert self.show(b"abc", "avro")["note"] == "no schema is set for the values of t"

    @pytest.mark.slow
    def test_a_large_payload_is_cut_and_cheap(self) -> None:
        for data in (b"x" * 20_000_000, b"\0" * 20_000_000, b'{"a": "' + b"y" * 20_000_000 + b'"}'):
            found = self.show(data)
            assert found["truncated"]
            assert len(found["text"]) <= MAX_LIST_TEXT
            assert found["size"] == len(data)

    @pytest.mark.parametrize(
        "data", [b"[" * 100_000, b'{"a":' * 50_000, b'"\\ud800"', b'["\\ud800"]', b"[NaN]"]
    )
    def test_hostile_json_is_shown_all_the_same(self, data: bytes) -> None:
        json.dumps(self.show(data)).encode()

    @settings(max_examples=40)
    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_indented_json_is_the_same_json(self, value: Any) -> None:
        text, cut = indented(json.dumps(value), 10**9)
        assert json.loads(text) == value
        assert not cut

    @settings(max_examples=40)
    @given(
        st.binary(max_size=300), st.sampled_from(["auto", "json", "text", "hex", "avro", "int32", "float64"])
    )
    def test_every_payload_has_a_form(self, data: bytes, format: str) -> None:
        json.dumps(self.show(data, format)).encode()

    def test_internal_records_that_cannot_be_decoded_say_why(self) -> None:
        found = internal_payloads("__consumer_offsets", b"\0\x63", b"x")
        assert found is not None
        assert found[0] is not None
        assert found[0].note

    def test_the_metadata_log_shows_no_credentials(self) -> None:
        record = {
            "type": "UserScramCredentialRecord",
            "data": {"name": "a", "salt": "s", "storedKey": "k", "serverKey": "k"},
        }
        assert hide_secrets(record)["data"] == {
            "name": "a",
            "salt": "(hidden)",
            "storedKey": "(hidden)",
            "serverKey": "(hidden)",
        }
        broken = internal_payloads(CLUSTER_METADATA_TOPIC, None, b"\xff secret")
        assert broken is not None
        assert broken[1] is not None
        assert "secret" not in broken[1].to_json(1000)["text"]

    @pytest.mark.parametrize(
        ("kind", "name", "is_shown"),
        [
            (4, "ssl.keystore.password", False),
            (4, "listener.name.plaintext.ssl.keystore.password", False),
            (4, "listener.name.external.scram-sha-512.sasl.jaas.config", False),
            (4, "table.catalog.s3.access-key-id", False),
            (4, "some.plugin.apikey", False),
            (4, "log.cleaner.threads", True),
            (2, "retention.ms", True),
            (2, "of.another.release", False),
            (32, "consumer.session.timeout.ms", True),
            (8, "root", True),
            (99, "retention.ms", False),
        ],
    )
    def test_values_of_settings_are_shown_by_their_type(self, kind: int, name: str, is_shown: bool) -> None:
        setting = {"type": "ConfigRecord", "data": {"resourceType": kind, "name": name, "value": "SEKRET"}}
        assert hide_secrets(setting)["data"]["value"] == ("SEKRET" if is_shown else "(hidden)")


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (MessageFilter(key=b"key"), True),
        (MessageFilter(key=b"other"), False),
        (MessageFilter(value=b'"n"'), True),
        (MessageFilter(header=header_filter("Trace")), True),
        (MessageFilter(header=header_filter("trace=A1")), True),
        (MessageFilter(header=header_filter("trace=b")), False),
        (MessageFilter(header=header_filter("a1")), True),
        (MessageFilter(path=JsonPath.parse("$.n"), path_value="1"), True),
        (MessageFilter(path=JsonPath.parse("$.n"), path_value="1.0"), True),
        (MessageFilter(path=JsonPath.parse("$.n"), path_value="x"), False),
        (MessageFilter(path=JsonPath.parse("$.f"), path_value="false"), True),
        (MessageFilter(path=JsonPath.parse("$.l"), path_value="[1,2]"), True),
        (MessageFilter(path=JsonPath.parse("$.m")), False),
        (MessageFilter(key=b"key", value=b"nothing"), False),
    ],
)
def test_a_filter_looks_into_keys_values_headers_and_json(wanted: MessageFilter, matches: bool) -> None:
    record: Record = ConsumerRecord(
        "t", 0, 0, 0, b"KEY", b'{"n": 1, "f": false, "l": [1, 2]}', [("trace", b"a1"), ("e", None)]
    )
    assert asyncio.run(wanted.matches(record, undecoded)) is matches
