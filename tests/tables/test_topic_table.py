"""What a table has of its topic: every record once, whatever happens around a commit."""

from __future__ import annotations

import json
import re
import threading
from decimal import Decimal
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchTableError

from ottla.records.batch import Codec, Record
from ottla.records.builder import build_batch
from ottla.schemas.schema import make_schema
from ottla.tables.describe import describe_table
from ottla.tables.errors import OffsetsMoved, TableError
from ottla.tables.maintenance import (
    _groups,
    _merge,
    check_rows,
    compact,
    expire,
    remove_orphans,
    repair_offsets,
)
from ottla.tables.offsets import committed_offsets
from ottla.tables.settings import table_name
from tests.tables.conftest import NOW_MS, TOPIC_ID, Warehouse, batches

DAY_MS = 86_400_000


def commit(warehouse: Warehouse, values, *, partition: int = 0, **settings):
    """Open the table as a new broker would, and add records behind those that it has."""
    table = warehouse.table(**settings)
    start = table.open().get(partition, 0)
    table.append(partition, start, batches(values, start))
    return table.commit()


def values_of(rows) -> list:
    return [row["value"] for row in rows]


@pytest.mark.slow
def test_a_row_has_what_its_record_has(warehouse: Warehouse) -> None:
    result = commit(warehouse, [b"a", None], partition=3)
    assert result.offsets == {3: 2}
    assert (result.rows, result.files) == (2, 1)
    first, second = warehouse.rows()
    assert first["timestamp"].timestamp() * 1000 == NOW_MS
    del first["timestamp"], second["timestamp"]
    kept = {"partition": 3, "timestamp_type": 0, "headers": []}
    assert first == kept | {"offset": 0, "key": b"k0", "value": b"a"}
    assert second == kept | {"offset": 1, "key": b"k1", "value": None}


class Killed(BaseException):
    """The process ends here: nothing of it is cleaned up."""


@pytest.mark.parametrize("step", ["data files written", "manifests written", "committed"])
def test_a_commit_that_ends_anywhere_is_made_once(warehouse: Warehouse, step: str) -> None:
    commit(warehouse, [b"0", b"1"])

    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    table = warehouse.table(on_step=kill)
    start = table.open()[0]
    table.append(0, start, batches([b"2", b"3"], start))
    with pytest.raises(Killed):
        table.commit()
    # The next process begins where the table says.
    offsets = warehouse.table().open()
    assert offsets == ({0: 4} if step == "committed" else {0: 2})
    left = [b"2", b"3", b"4"][offsets[0] - 2 :]
    commit(warehouse, left)
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_table_that_was_made_by_a_process_that_ended_is_used(warehouse: Warehouse) -> None:
    def kill(_: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        warehouse.table(on_step=kill).open()
    commit(warehouse, [b"0"])
    assert values_of(warehouse.rows()) == [b"0"]


def test_a_commit_whose_answer_got_lost_is_recognised(warehouse: Warehouse, monkeypatch) -> None:
    table = warehouse.table()
    table.open()
    table.append(0, 0, batches([b"0"]))
    through = type(warehouse.catalog).commit_table

    def commit_and_lose(self, *arguments):
        through(self, *arguments)
        raise ConnectionError("the answer is lost")

    monkeypatch.setattr(type(warehouse.catalog), "commit_table", commit_and_lose)
    assert table.commit().offsets == {0: 1}
    monkeypatch.undo()
    assert warehouse.table().open() == {0: 1}
    assert values_of(warehouse.rows()) == [b"0"]


def test_a_leader_that_has_moved_cannot_commit_what_the_new_one_has(warehouse: Warehouse) -> None:
    old = warehouse.table()
    old.open()
    old.append(0, 0, batches([b"0", b"1"]))
    commit(warehouse, [b"0", b"1", b"2"])
    with pytest.raises(OffsetsMoved, match="partition 0 is at 3"):
        old.commit()
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2"]
    assert old.open() == {0: 3}


@pytest.mark.slow
def test_leaders_of_different_partitions_commit_side_by_side(warehouse: Warehouse) -> None:
    brokers = [warehouse.table() for _ in range(3)]
    for _ in range(3):
        starts = [broker.open() for broker in brokers]
        for index, (broker, start) in enumerate(zip(brokers, starts, strict=True)):
            at = start.get(index, 0)
            broker.append(index, at, batches([b"x"], at))
        # All have read the same metadata; each but the first has to begin again on newer ones.
        for broker in brokers:
            broker.commit()
    assert warehouse.table().open() == {0: 3, 1: 3, 2: 3}
    assert [(row["partition"], row["offset"]) for row in warehouse.rows()] == [
        (index, offset) for index in range(3) for offset in range(3)
    ]


def test_a_table_that_was_rolled_back_is_filled_again(warehouse: Warehouse) -> None:
    first = commit(warehouse, [b"0"]).snapshot_id
    commit(warehouse, [b"1"])
    table = warehouse.catalog.load_table(("topics", "orders"))
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert warehouse.table().open() == {0: 1}
    commit(warehouse, [b"1"])
    assert values_of(warehouse.rows()) == [b"0", b"1"]


def test_snapshots_of_other_programs_keep_the_offsets(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0", b"1"])
    table = warehouse.catalog.load_table(("topics", "orders"))
    table.delete('"offset" = 0')
    assert warehouse.table().open() == {0: 2}
    # Even if the snapshots that had them are gone.
    table.maintenance.expire_snapshots().older_than(_in_the_future()).commit()
    assert len(table.metadata.snapshots) == 1
    assert warehouse.table().open() == {0: 2}


def _in_the_future():
    from datetime import UTC, datetime

    return datetime(2100, 1, 1, tzinfo=UTC)


def test_the_records_of_a_new_topic_do_not_mix_with_those_of_a_deleted_one(warehouse: Warehouse) -> None:
    commit(warehouse, [b"old"], metadata_offset=10)
    commit(warehouse, [b"new"], topic_id="zzzzzzzzzz", metadata_offset=20)
    assert values_of(warehouse.rows()) == [b"new"]
    assert values_of(warehouse.rows(f"orders____{TOPIC_ID[:8]}")) == [b"old"]
    # A broker whose metadata are behind does not undo that.
    with pytest.raises(TableError, match="behind"):
        warehouse.table(metadata_offset=15).open()
    assert values_of(warehouse.rows()) == [b"new"]


def test_a_commit_to_the_table_of_a_newer_topic_is_refused(warehouse: Warehouse) -> None:
    old = warehouse.table(metadata_offset=10)
    old.open()
    old.append(0, 0, batches([b"old"]))
    commit(warehouse, [b"new"], topic_id="zzzzzzzzzz", metadata_offset=20)
    # Its table has another name by now, and the one of this name is of another topic.
    with pytest.raises((OffsetsMoved, NoSuchTableError)):
        old.commit()
    assert values_of(warehouse.rows()) == [b"new"]
    assert warehouse.rows(f"orders____{TOPIC_ID[:8]}") == []


def test_no_topic_can_take_the_name_of_the_table_of_another(warehouse: Warehouse) -> None:
    commit(warehouse, [b"forged"], topic="shop-orders", topic_id="attacker")
    commit(warehouse, [b"real"], topic="shop.orders", topic_id="victim")
    assert values_of(warehouse.rows("shop_orders")) == [b"real"]
    assert values_of(warehouse.rows("shop__orders")) == [b"forged"]


@pytest.mark.parametrize("mode", ["append", "latest"])
def test_what_inflates_to_more_than_a_table_takes_is_left_out(warehouse: Warehouse, mode: str) -> None:
    def batch(offset: int, key: bytes, value: bytes, headers=()) -> bytes:
        return bytes(build_batch([(NOW_MS, key, value, headers)], base_offset=offset, codec=Codec.ZSTD))

    large = bytes(3_000)
    table = warehouse.table(mode=mode, max_part_bytes=2_000)
    table.open()
    records = (
        batch(0, b"a", b"small", [("h", b"1")])
        + batch(1, b"b", large, [("h", b"2")])
        + batch(2, large, b"small")
        + batch(3, b"d", b"small", [("h", large)])
        + batch(4, b"e", b"last")
    )
    assert table.append(0, 0, records) == 5
    table.commit()
    rows = [(row["key"], row["value"], row["headers"]) for row in warehouse.rows()]

    def said(name: str, size: int) -> dict:
        return {"key": "ottla.left-out", "value": b"the %s of %d bytes" % (name.encode(), size)}

    assert rows[0] == (b"a", b"small", [{"key": "h", "value": b"1"}])
    assert rows[1] == (b"b", b"", [{"key": "h", "value": b"2"}, said("value", 3_000)])
    assert rows[2] == (sha256(large).digest(), b"small", [said("key", 3_000)])
    assert rows[3][:2] == (b"d", b"small")
    assert [each["key"] for each in rows[3][2]] == ["ottla.left-out"]
    assert rows[4] == (b"e", b"last", [])


def test_all_topics_have_tables_of_their_own() -> None:
    parts = ("a", "b", "-", "_", "--", "__", "-_", "_-", "___")
    topics = {"".join(each) for size in range(1, 5) for each in product(parts, repeat=size)}
    assert len({table_name(topic) for topic in topics}) == len(topics)
    assert all(re.fullmatch(r"\w+", table_name(topic)) for topic in topics)


def test_a_table_that_an_older_release_has_made_keeps_its_name(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0"], topic="shop-orders", topic_id="first")
    warehouse.catalog.rename_table(("topics", "shop__orders"), ("topics", "shop_orders"))
    table = warehouse.table(topic="shop-orders", topic_id="first")
    assert table.open() == {0: 1}
    assert table.append(0, 1, batches([b"1"], start=1)) == 2
    table.commit()
    assert values_of(warehouse.rows("shop_orders")) == [b"0", b"1"]
    with pytest.raises(
        TableError, match=r"topics\.shop_orders is of the topic 'shop-orders': an older release"
    ):
        warehouse.table(topic="shop.orders", topic_id="other").open()


def test_a_table_of_other_programs_is_left_alone(warehouse: Warehouse) -> None:
    import pyarrow as pa

    warehouse.catalog.create_namespace("topics")
    warehouse.catalog.create_table(("topics", "orders"), pa.schema([("x", pa.int64())]))
    with pytest.raises(TableError, match="has not made"):
        warehouse.table().open()


@pytest.mark.slow
def test_timestamps_that_no_engine_has_do_not_stop_a_table(warehouse: Warehouse) -> None:
    table = warehouse.table(partition_by="day")
    table.open()
    table.append(0, 0, batches([b"0"], 0, 2**62))
    table.append(0, 1, batches([b"1"], 1, -1))
    table.commit()
    assert [row["timestamp"].year for row in warehouse.rows()] == [9999, 1969]


JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "amount": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "who": {"type": "object", "properties": {"name": {"type": "string"}}},
            "any": {},
            "Offset": {"type": "integer"},
        },
    }
)


def test_fields_of_a_schema_are_columns(warehouse: Warehouse) -> None:
    value = {"id": 1, "amount": 2, "tags": ["a"], "who": {"name": "x"}, "any": [1], "Offset": 7}
    given = [json.dumps(value).encode(), b"no JSON", b'{"id":"one"}', None]
    commit(warehouse, given, schema_type="json", schema=JSON_SCHEMA)
    good, bad, wrong, tombstone = warehouse.rows()
    names = ("id", "amount", "tags", "who", "any", "field_Offset", "_error")
    assert [good[name] for name in names] == [1, 2.0, ["a"], {"name": "x"}, "[1]", 7, None]
    assert bad["id"] is None
    assert "no JSON" in bad["_error"]
    assert "field 'id' is no long" in wrong["_error"]
    assert [tombstone[name] for name in names] == [None] * 7
    assert [row["value"] for row in (good, bad, wrong, tombstone)] == given


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "bytes"},
    ],
}


def test_avro_has_decimals_dates_times_and_bytes(warehouse: Warehouse) -> None:
    schema = make_schema("test", "avro", json.dumps(AVRO))
    value = {"id": 5, "price": "12.50", "at": "2024-01-02T03:04:05Z", "day": "2024-01-02", "raw": "00ff"}
    commit(warehouse, [schema.encode(value), b"\xff"], schema_type="avro", schema=json.dumps(AVRO))
    good, bad = warehouse.rows()
    assert (good["id"], good["price"], good["raw"]) == (5, Decimal("12.50"), b"\x00\xff")
    assert good["at"].isoformat() == "2024-01-02T03:04:05+00:00"
    assert good["day"].isoformat() == "2024-01-02"
    assert bad["id"] is None
    assert bad["_error"]


PROTO = """
syntax = "proto3";
message Order { int64 id = 1; repeated string tags = 2; Kind kind = 3; bytes raw = 4; uint64 big = 5; }
enum Kind { NONE = 0; BOOK = 1; }
"""


def test_protobuf_has_enums_and_lists(warehouse: Warehouse) -> None:
    schema = make_schema("test", "protobuf", PROTO)
    value = {"id": 5, "tags": ["a", "b"], "kind": "BOOK", "raw": "AP8=", "big": 2**64 - 1}
    commit(warehouse, [schema.encode(value)], schema_type="protobuf", schema=PROTO)
    (row,) = warehouse.rows()
    assert (row["id"], row["tags"], row["kind"], row["raw"]) == (5, ["a", "b"], "BOOK", b"\x00\xff")
    assert row["big"] == 2**64 - 1


def with_fields(**fields: str) -> str:
    return json.dumps(
        {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}
    )


@pytest.mark.slow
def test_a_schema_may_get_and_lose_fields(warehouse: Warehouse) -> None:
    commit(warehouse, [b'{"a":1}'])
    commit(warehouse, [b'{"a":2,"b":"x"}'], schema_type="json", schema=with_fields(a="integer", b="string"))
    commit(warehouse, [b'{"c":3}'], schema_type="json", schema=with_fields(c="integer"))
    expected = [(None, None, None, None), (2, "x", None, None), (None, None, 3, None)]
    found = [(row["a"], row["b"], row["c"], row["_error"]) for row in warehouse.rows()]
    assert found == expected
    # Files of all of them may become one.
    assert compact(warehouse.catalog.load_table(("topics", "orders")), 1_000_000, 2) == 3
    assert [(row["a"], row["b"], row["c"], row["_error"]) for row in warehouse.rows()] == expected


def test_a_field_that_changes_its_type_keeps_its_column(warehouse: Warehouse) -> None:
    commit(warehouse, [b'{"a":1,"b":1}'], schema_type="json", schema=with_fields(a="integer", b="integer"))
    commit(warehouse, [b'{"a":"x","b":2}'], schema_type="json", schema=with_fields(a="string", b="integer"))
    first, second = warehouse.rows()
    assert (first["a"], first["b"], first["_error"]) == (1, 1, None)
    assert (second["a"], second["b"]) == (None, 2)
    assert second["_error"] == "the table has another type for a"


@pytest.mark.parametrize(
    ("partition_by", "expected"), [("none", 1), ("day", 2), ("hour", 3), ("field:kind", 2)]
)
def test_a_table_is_partitioned_as_its_topic_says(
    warehouse: Warehouse, partition_by: str, expected: int
) -> None:
    table = warehouse.table(partition_by=partition_by, schema_type="json", schema=with_fields(kind="string"))
    table.open()
    hour_ms = 3_600_000
    for offset, (kind, at) in enumerate((("a", 0), ("b", hour_ms), ("a", DAY_MS))):
        value = json.dumps({"kind": kind}).encode()
        table.append(0, offset, batches([value], offset, NOW_MS - NOW_MS % DAY_MS + at))
    assert table.commit().files == expected
    assert [row["kind"] for row in warehouse.rows()] == ["a", "b", "a"]


def test_small_files_are_merged_in_order(warehouse: Warehouse) -> None:
    for n in range(6):
        commit(warehouse, [f"{n}".encode()], partition=n % 2)
    table = warehouse.catalog.load_table(("topics", "orders"))
    before = warehouse.rows()
    assert compact(table, 1_000_000, 100) == 0
    assert compact(table, 1_000_000, 2) == 6
    assert len(list(table.scan().plan_files())) == 1
    assert warehouse.rows() == before
    assert warehouse.table().open() == {0: 3, 1: 3}
    commit(warehouse, [b"6"])
    assert len(warehouse.rows()) == 7


def test_a_merge_and_an_append_at_once_lose_nothing(warehouse: Warehouse) -> None:
    for n in range(3):
        commit(warehouse, [f"{n}".encode()])
    stale = warehouse.catalog.load_table(("topics", "orders"))
    commit(warehouse, [b"3"])
    assert compact(stale, 1_000_000, 2) == 3
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2", b"3"]
    assert warehouse.table().open() == {0: 4}


def test_an_append_that_loses_against_a_merge_is_made_on_top(warehouse: Warehouse) -> None:
    for n in range(3):
        commit(warehouse, [f"{n}".encode()])
    table = warehouse.table()
    table.open()
    table.append(0, 3, batches([b"3"], 3))
    assert compact(warehouse.catalog.load_table(("topics", "orders")), 1_000_000, 2) == 3
    table.commit()
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2", b"3"]


def test_snapshots_expire_and_their_files_go_when_they_are_old(warehouse: Warehouse) -> None:
    for n in range(4):
        commit(warehouse, [f"{n}".encode()])
    abandoned = warehouse.table()
    abandoned.open()
    abandoned.append(0, 4, batches([b"4"], 4))
    abandoned._write()
    table = warehouse.catalog.load_table(("topics", "orders"))
    compact(table, 1_000_000, 2)
    now_ms = table.metadata.last_updated_ms + 10_000
    assert expire(table, DAY_MS, 100, now_ms) == 0
    assert expire(table, DAY_MS, 2, now_ms) == 3
    assert expire(table, 1_000, 2, now_ms) == 1
    # What is young may be part of a commit under way.
    assert remove_orphans(table, DAY_MS, now_ms) == 0
    assert remove_orphans(table, 0, now_ms, dry_run=True) == remove_orphans(table, 0, now_ms) >= 5
    assert remove_orphans(table, 0, now_ms) == 0
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2", b"3"]
    commit(warehouse, [b"4"])
    assert len(warehouse.rows()) == 5


def test_offsets_are_made_from_rows_where_they_were_lost(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0", b"1"], partition=1)
    table = warehouse.catalog.load_table(("topics", "orders"))
    with table.transaction() as transaction:
        transaction.set_properties({"ottla.offsets": "nonsense"})
    table.delete('"offset" = 0')
    table.maintenance.expire_snapshots().older_than(_in_the_future()).commit()
    with pytest.raises(TableError, match="repair"):
        committed_offsets(table.metadata)
    assert repair_offsets(table) == {1: 2}
    assert warehouse.table().open() == {1: 2}


@pytest.fixture
def registry():
    """A registry that has two schemas, and counts how often it is asked."""
    schemas = {
        "3": "no schema",
        "1": json.dumps(AVRO),
        "2": json.dumps({**AVRO, "fields": [*AVRO["fields"], NOTE]}),
    }
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            text = schemas.get(self.path.rpartition("/")[2])
            body = json.dumps({"schema": text}).encode()
            if self.path.endswith("/8") or len(self.path.rpartition("/")[2]) > 2:
                body = json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
            self.send_response(200 if text else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


NOTE = {"name": "note", "type": "string"}
VALUE = {"id": 5, "price": "1.00", "at": None, "day": "2024-01-02", "raw": ""}


@pytest.mark.slow
def test_records_name_their_schemas_by_the_ids_of_a_registry(warehouse: Warehouse, registry) -> None:
    url, asked = registry
    one = make_schema("1", "avro", json.dumps(AVRO))
    two = make_schema("2", "avro", json.dumps({**AVRO, "fields": [*AVRO["fields"], NOTE]}))
    given = [
        bytes([0, 0, 0, 0, 1]) + one.encode(VALUE),
        b"without an id",
        bytes([0, 0, 0, 0, 2]) + two.encode(VALUE | {"note": "new"}),
        bytes([0, 0, 0, 0, 1]) + one.encode(VALUE | {"id": 6}),
        bytes([0, 0, 0, 0, 8]) + b"x",
        bytes([0, 0, 0, 0, 8]) + b"y",
    ]
    commit(warehouse, given, schema_type="registry", registry_url=url)
    rows = warehouse.rows()
    assert [row["id"] for row in rows] == [5, None, 5, 6, None, None]
    assert [row["note"] for row in rows] == [None, None, "new", None, None, None]
    assert "id of a schema" in rows[1]["_error"]
    # Any producer can write such an id: it is an error of its record, not of the table.
    assert [row["_error"] for row in rows[4:]] == ["the registry has no schema 8"] * 2
    assert asked == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/8"]
    # Another id that cannot be looked up stops the table, as it may be the registry that fails.
    table = warehouse.table(schema_type="registry", registry_url=url)
    start = table.open()[0]
    table.append(0, start, batches([bytes([0, 0, 0, 0, 9]) + b"x"], start))
    with pytest.raises(TableError, match="the schema 9"):
        table.commit()


@pytest.mark.parametrize(
    "value", [b'{"any": "\\ud800"}', b'{"any": {"\\udfff": 1}}', b'{"any": %s}' % (b"[" * 990 + b"]" * 990)]
)
def test_a_value_that_no_column_can_have_does_not_stop_the_table(warehouse: Warehouse, value: bytes) -> None:
    schema = json.dumps({"type": "object", "properties": {"any": {}, "id": {"type": "integer"}}})
    commit(warehouse, [b'{"id": 1}', value, b'{"id": 2}'], schema_type="json", schema=schema)
    rows = warehouse.rows()
    assert [row["id"] for row in rows] == [1, None, 2]
    assert rows[1]["value"] == value
    assert [row["_error"] is None for row in rows][::2] == [True, True]


def test_a_topic_of_another_format_does_not_ask_the_registry_for_each_record(
    warehouse: Warehouse, registry
) -> None:
    url, asked = registry
    one = bytes([0, 0, 0, 0, 1]) + make_schema("1", "avro", json.dumps(AVRO)).encode(VALUE)
    garbage = [b"\x00" + (1000 + n).to_bytes(4, "big") + b"x" for n in range(200)]
    table = warehouse.table(schema_type="registry", registry_url=url)
    table.open()
    table.append(0, 0, batches([one, *garbage, one]))
    table.commit()
    rows = warehouse.rows()
    assert [row["id"] for row in rows] == [5, *[None] * 200, 5]
    assert len(asked) == 33
    assert "was not looked up" in rows[-2]["_error"]
    assert all(row["_error"] for row in rows[1:-1])
    # What it did not have is remembered.
    table.open()
    table.append(0, 202, batches([garbage[0], garbage[1]], 202))
    table.commit()
    assert len(asked) == 33


def test_a_text_of_a_registry_that_is_no_schema_does_not_stop_the_table(
    warehouse: Warehouse, registry
) -> None:
    commit(warehouse, [bytes([0, 0, 0, 0, 3]) + b"x"], schema_type="registry", registry_url=registry[0])
    assert "the schema 3 of the registry cannot be used" in warehouse.rows()[0]["_error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition_by", "then"),
    [
        ("field:id", "bucket[4](id)"),
        ("field:price", "none"),
        ("hour", "day(timestamp)"),
        ("day", "none"),
    ],
)
def test_a_partitioning_with_too_many_values_becomes_coarser(
    warehouse: Warehouse, partition_by: str, then: str, monkeypatch
) -> None:
    monkeypatch.setattr("ottla.tables.partitioning.MAX_FILES", 8)
    monkeypatch.setattr("ottla.tables.partitioning._BUCKETS", 4)
    schema = with_fields(id="integer", price="number")
    settings = {"partition_by": partition_by, "schema_type": "json", "schema": schema}
    commit(warehouse, [json.dumps({"id": n, "price": n / 10}).encode() for n in range(6)], **settings)
    step_ms = {"hour": 3_600_000, "day": 400 * DAY_MS}.get(partition_by, 0)
    values = [json.dumps({"id": n, "price": n / 10}).encode() for n in range(6, 26)]

    def fill() -> None:
        table = warehouse.table(**settings)
        start = table.open()[0]
        for n, value in enumerate(values):
            table.append(0, start + n, batches([value], start + n, NOW_MS + n * step_ms))
        table.commit()

    with pytest.raises(OffsetsMoved, match="too many values"):
        fill()
    fill()
    assert sorted(row["id"] for row in warehouse.rows()) == list(range(26))
    table = warehouse.catalog.load_table(("topics", "orders"))
    assert describe_table(table).partitioning == then
    # Files of the earlier partitioning are merged into the new one.
    while compact(table, 1_000_000, 2):
        pass
    assert len(list(table.refresh().scan().plan_files())) <= 8
    assert sorted(row["id"] for row in warehouse.rows()) == list(range(26))


def test_two_merges_at_once_do_not_double_rows(warehouse: Warehouse) -> None:
    for n in range(4):
        commit(warehouse, [f"{n}".encode()])
    one, other = (warehouse.catalog.load_table(("topics", "orders")) for _ in range(2))
    (group,) = _groups(other, 1_000_000, 2)
    assert compact(one, 1_000_000, 2) == 4
    # The other run has lost an earlier merge, and so read the table again.
    other.refresh()
    assert _merge(other, group) == 0
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2", b"3"]
    assert check_rows(other.refresh()).duplicates == 0


@pytest.mark.slow
def test_batches_that_inflate_are_not_in_memory_together(warehouse: Warehouse, monkeypatch) -> None:
    monkeypatch.setattr("ottla.tables.topic_table.FLUSH_BYTES", 1_000_000)
    records = b"".join(compressed([bytes(2_000_000)], n) for n in range(8))
    assert len(records) < 100_000
    table = warehouse.table()
    table.open()
    most = 0
    write = type(table)._write

    def watch(self) -> None:
        nonlocal most
        most = max(most, self._round.buffered)
        write(self)

    monkeypatch.setattr(type(table), "_write", watch)
    assert table.append(0, 0, records) == 8
    assert 0 < most < 5_000_000
    table.commit()
    assert [len(value) for value in values_of(warehouse.rows())] == [2_000_000] * 8


def test_a_table_that_was_renamed_keeps_its_files(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0", b"1"])
    warehouse.catalog.rename_table(("topics", "orders"), ("topics", "archive"))
    commit(warehouse, [b"0", b"1", b"2"])
    table = warehouse.catalog.load_table(("topics", "orders"))
    remove_orphans(table, 0, table.metadata.last_updated_ms + DAY_MS)
    assert values_of(warehouse.rows("archive")) == [b"0", b"1"]
    assert values_of(warehouse.rows()) == [b"0", b"1", b"2"]


def test_what_others_put_into_the_place_of_a_table_stays(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0"])
    table = warehouse.catalog.load_table(("topics", "orders"))
    place = Path(table.metadata.location.removeprefix("file://"))
    (place / "README").write_text("mine")
    (place / "data" / "left-over.parquet").write_text("of a commit that a crash ended")
    assert remove_orphans(table, 0, table.metadata.last_updated_ms + DAY_MS) == 1
    assert [each.name for each in place.iterdir() if each.is_file()] == ["README"]
    assert values_of(warehouse.rows()) == [b"0"]


def test_a_table_that_was_dropped_is_made_again_from_the_log(warehouse: Warehouse) -> None:
    commit(warehouse, [b"0"])
    table = warehouse.table()
    table.open()
    table.append(0, 1, batches([b"1"], 1))
    warehouse.catalog.drop_table(("topics", "orders"))
    with pytest.raises(NoSuchTableError):
        table.commit()
    assert table.open() == {}
    table.append(0, 0, batches([b"0", b"1"]))
    table.commit()
    assert values_of(warehouse.rows()) == [b"0", b"1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ({"type": "object", "properties": {"x": {"type": "string"}}}, {"type": "string"}, "text"),
        ({"type": "string"}, {"type": "array", "items": {"type": "string"}}, ["a"]),
        (
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "integer"}},
            [1],
        ),
        ({"type": "integer"}, {"type": "boolean"}, True),
    ],
)
def test_a_schema_that_no_column_can_follow_does_not_stop_the_table(
    warehouse: Warehouse, one, other, value
) -> None:
    def schema(kind) -> str:
        return json.dumps({"type": "object", "properties": {"a": kind, "id": {"type": "integer"}}})

    commit(warehouse, [b'{"id":1}'], schema_type="json", schema=schema(one))
    commit(warehouse, [json.dumps({"id": 2, "a": value}).encode()], schema_type="json", schema=schema(other))
    commit(warehouse, [b'{"id":3}'], schema_type="json", schema=schema(one))
    rows = warehouse.rows()
    assert [(row["id"], row["a"]) for row in rows] == [(1, None), (2, None), (3, None)]
    assert "another type for a" in rows[1]["_error"]


def test_a_field_that_differs_in_case_gets_no_column_of_its_own(warehouse: Warehouse) -> None:
    commit(warehouse, [b'{"Id":1}'], schema_type="json", schema=with_fields(Id="integer"))
    commit(warehouse, [b'{"id":2}'], schema_type="json", schema=with_fields(id="integer"))
    first, second = warehouse.rows()
    assert first["Id"] == 1
    assert "id" not in second
    assert "another type for id" in second["_error"]


def compressed(values, start: int) -> bytes:
    records = [Record(offset=start + n, timestamp=NOW_MS, value=value) for n, value in enumerate(values)]
    return bytes(build_batch(records, codec=Codec.ZSTD))
