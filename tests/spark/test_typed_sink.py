"""Typed columns in the sink: encoded by schemas that the driver finds or registers, once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from ottla.client.blocking import Admin, Producer
from ottla.serdes import Avro, JsonSchema, Protobuf
from ottla.spark.expectations import expect_or_dead_letter, source_record
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.options import sink_options
from ottla.spark.sink.writers import batch_writer, stream_writer
from ottla.spark.typed.encoding import (
    RegistryRefusal,
    RegistryUnreachable,
    check_encodings,
    column_encodings,
    encoded_batches,
)
from ottla.testing.local_node import LocalNode
from tests.node.registry_calls import RegistryClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROW = {
    "id": 1,
    "price": Decimal("1.25"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "tags": {"a": 1},
    "lines": [{"sku": "x", "data": b"\1"}],
    "note": None,
}
SPARK = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("price", t.DecimalType(9, 2)),
        t.StructField("at", t.TimestampType()),
        t.StructField("day", t.DateType()),
        t.StructField("tags", t.MapType(t.StringType(), t.LongType())),
        t.StructField(
            "lines",
            t.ArrayType(
                t.StructType([t.StructField("sku", t.StringType()), t.StructField("data", t.BinaryType())])
            ),
        ),
        t.StructField("note", t.StringType()),
    ]
)


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"schema.registry.listener": "http://127.0.0.1:0"}) as started:
        yield started


@pytest.fixture
def topic(node: LocalNode) -> str:
    name = f"typed-{uuid.uuid4().hex[:8]}"
    with Admin(node.bootstrap_servers) as admin:
        admin.topics.create(name, partitions=1)
    return name


@pytest.fixture
def registry(node: LocalNode) -> RegistryClient:
    assert node.schema_registry_url is not None
    return RegistryClient(node.schema_registry_url)


def written(node: LocalNode, topic: str, kind: t.DataType, value: Any, **options: str) -> bytes:
    """What a task writes for a value."""
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {
        "kafka.bootstrap.servers": node.bootstrap_servers,
        "topic": topic,
        "schemaRegistry": str(node.schema_registry_url),
        **options,
    }
    parsed = sink_options(given)
    schema = t.StructType([t.StructField("value", kind)])
    encodings = column_encodings(parsed.formats, schema, topic, register=parsed.register)
    batch = pa.RecordBatch.from_pylist(
        [{"value": value}, {"value": None}], to_arrow_schema(schema, timezone="UTC")
    )
    [found] = encoded_batches(iter([batch]), encodings)
    [data, nothing] = found.column("value").to_pylist()
    assert nothing is None
    return bytes(data)


def test_columns_without_a_schema_register_one_of_their_own(
    node: LocalNode, topic: str, registry: RegistryClient
) -> None:
    for _ in range(2):
        data = written(node, topic, SPARK, ROW, valueFormat="avro", autoRegister="true")
    assert Avro(registry.url).decode(topic, data) == ROW
    # Columns come and go: the subject's rule is BACKWARD.
    fewer = t.StructType(SPARK.fields[:2])
    written(node, topic, fewer, {"id": 1, "price": None}, valueFormat="avro", autoRegister="true")
    assert registry.get(f"/subjects/{topic}-value/versions") == [1, 2]


def test_json_columns_register_a_schema_too(node: LocalNode, topic: str, registry: RegistryClient) -> None:
    data = written(node, topic, SPARK, ROW, valueFormat="json-schema", autoRegister="true")
    assert JsonSchema(registry.url).decode(topic, data) == {
        "id": 1,
        "price": 1.25,
        "at": "2026-01-02T03:04:05.000006Z",
        "day": "2026-01-02",
        "tags": {"a": 1},
        "lines": [{"sku": "x", "data": "AQ=="}],
    }


def test_plain_json_has_no_id(node: LocalNode, topic: str) -> None:
    kind = t.StructType([t.StructField("id", t.LongType()), t.StructField("tags", SPARK["tags"].dataType)])
    assert written(node, topic, kind, {"id": 1, "tags": []}, valueFormat="json") == b'{"id":1,"tags":{}}'


def test_the_latest_schema_of_the_subject_is_written(
    node: LocalNode, topic: str, registry: RegistryClient
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "what", "type": ["null", "string", {"type": "enum", "name": "E", "symbols": ["A"]}]},
            {"name": "more", "type": "string", "default": "d"},
        ],
    }
    number = registry.register(f"{topic}-value", schema)
    union = t.StructType([t.StructField("member0", t.StringType()), t.StructField("member1", t.StringType())])
    kind = t.StructType([t.StructField("id", t.LongType()), t.StructField("what", union)])
    value = {"id": 5, "what": {"member0": None, "member1": "A"}}
    data = written(node, topic, kind, value, valueFormat="avro")
    assert int.from_bytes(data[1:5], "big") == number
    assert data[5:] == b"\x0a\x04\x00\x02d"
    with pytest.raises(ValueError, match=r"id: .*is no int"):
        written(node, topic, kind, {**value, "id": 2**40}, valueFormat="avro")
    wrong = t.StructType([*kind.fields, t.StructField("other", t.LongType())])
    with pytest.raises(ValueError, match="has other that the record Order does not have"):
        written(node, topic, wrong, value, valueFormat="avro")


def test_protobuf_is_written_by_the_schema_that_is_given(
    node: LocalNode, topic: str, registry: RegistryClient
) -> None:
    text = """
    syntax = "proto3";
    message Other { int32 n = 1; }
    message M { int64 id = 1; bytes b = 2; map<string, int32> m = 3; }
    """
    kind = t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField("b", t.BinaryType()),
            t.StructField("m", t.MapType(t.StringType(), t.LongType())),
        ]
    )
    options = {"valueFormat": "protobuf", "valueSchema": text, "valueMessage": "M", "autoRegister": "true"}
    data = written(node, topic, kind, {"id": 1, "b": b"x", "m": [("k", 2)]}, **options)
    assert Protobuf(registry.url).decode(topic, data) == {"id": 1, "b": "eA==", "m": {"k": 2}}


def test_nothing_is_registered_unless_that_is_wanted(
    node: LocalNode, topic: str, registry: RegistryClient
) -> None:
    with pytest.raises(RegistryRefusal, match="autoRegister=true"):
        written(node, topic, SPARK, ROW, valueFormat="avro")
    assert f"{topic}-value" not in registry.get("/subjects")


def test_a_schema_that_breaks_the_rules_is_refused_before_anything_is_written(
    node: LocalNode, topic: str
) -> None:
    kind = t.StructType([t.StructField("id", t.LongType())])
    written(node, topic, kind, {"id": 1}, valueFormat="avro", autoRegister="true")
    other = t.StructType([t.StructField("id", t.StringType())])
    with pytest.raises(RegistryRefusal, match="incompatible"):
        written(node, topic, other, {"id": "1"}, valueFormat="avro", autoRegister="true")


def test_columns_are_checked_before_a_run_and_nothing_is_registered(
    node: LocalNode, topic: str, registry: RegistryClient
) -> None:
    def check(kind: t.DataType, **more: str) -> None:
        given = {
            "kafka.bootstrap.servers": node.bootstrap_servers,
            "topic": topic,
            "schemaRegistry": str(node.schema_registry_url),
            "valueFormat": "avro",
            **more,
        }
        sink = sink_options(given)
        columns = t.StructType([t.StructField("value", kind)])
        check_encodings(sink.formats, columns, topic, register=sink.register)

    one = t.StructType([t.StructField("id", t.LongType())])
    other = t.StructType([t.StructField("id", t.StringType())])
    check(one, autoRegister="true")
    assert f"{topic}-value" not in registry.get("/subjects")
    with pytest.raises(RegistryRefusal, match="autoRegister=true"):
        check(one)
    written(node, topic, one, {"id": 1}, valueFormat="avro", autoRegister="true")
    check(one)
    check(one, autoRegister="true")
    with pytest.raises(RegistryRefusal, match=r"does not take the schema of the columns: .*errorType"):
        check(other, autoRegister="true")
    with pytest.raises(ValueError, match="value has more that the record value does not have"):
        check(t.StructType([*one.fields, t.StructField("more", t.LongType())]))
    assert registry.get(f"/subjects/{topic}-value/versions") == [1]
    with pytest.raises(RegistryUnreachable):
        check(one, schemaRegistry="http://127.0.0.1:1")


def test_a_commit_does_not_need_the_registry(node: LocalNode, topic: str) -> None:
    options = {
        "kafka.bootstrap.servers": node.bootstrap_servers,
        "topic": topic,
        "schemaRegistry": "http://127.0.0.1:1",
        "valueFormat": "avro",
    }
    schema = t.StructType([t.StructField("value", SPARK)])
    writer = stream_writer(options, schema, SinkListener())
    writer.commit([], 0)
    with pytest.raises(RegistryRefusal):
        writer.write(iter(()))
    with pytest.raises(RegistryRefusal):
        batch_writer(options, schema, False, SinkListener())


@pytest.mark.exhaustive
def test_spark_writes_typed_columns_exactly_once(
    node: LocalNode, topic: str, registry: RegistryClient, spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        "kafka.bootstrap.servers": node.bootstrap_servers,
        "schemaRegistry": registry.url,
        "valueFormat": "avro",
    }
    with Admin(node.bootstrap_servers) as admin:
        admin.topics.create(f"{topic}-out", partitions=2)
    rows = spark.createDataFrame(
        [(dict(ROW, id=n),) for n in range(10)], t.StructType([t.StructField("value", SPARK)])
    )
    rows.write.format("ottla").mode("append").options(**options, topic=topic, autoRegister="true").save()
    stream = spark.readStream.format("ottla").options(**options, subscribe=topic, startingOffsets="earliest")
    query = (
        stream.load().select("value").writeStream.format("ottla")
        .options(**options, topic=f"{topic}-out", autoRegister="true")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(180)
    found = spark.read.format("ottla").options(**options, subscribe=f"{topic}-out").load()
    assert sorted(row.id for row in found.select("value.*").collect()) == list(range(10))
    assert registry.get(f"/subjects/{topic}-out-value/versions") == [1]


@pytest.mark.exhaustive
def test_records_that_do_not_parse_are_dead_letters(
    node: LocalNode, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    brokers = {"kafka.bootstrap.servers": node.bootstrap_servers}
    out, failed = f"{topic}-out", f"{topic}-failed"
    with Admin(node.bootstrap_servers) as admin, Producer(node.bootstrap_servers) as producer:
        for each in (out, failed):
            admin.topics.create(each, partitions=1)
        for key, value in ((b"a", b'{"id": 1}'), (b"b", b"bad")):
            producer.send(topic, value, key=key)
    typed = {"valueFormat": "json", "valueSchema": "id long", "includeBytes": "true"}
    stream = spark.readStream.format("ottla").options(**brokers, **typed, subscribe=topic)
    rows = stream.option("startingOffsets", "earliest").load()
    rows = rows.select(source_record(typed=True), "key", "value", "_error")
    rows = expect_or_dead_letter("parses", "_error is null", topic=failed)(rows)
    query = (
        rows.writeStream.format("ottla").options(**brokers, topic=out, valueFormat="json")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(180)
    written = {
        each: [
            (bytes(row.key), bytes(row.value))
            for row in spark.read.format("ottla").options(**brokers, subscribe=each).load().collect()
        ]
        for each in (out, failed)
    }
    assert written == {out: [(b"a", b'{"id":1}')], failed: [(b"b", b"bad")]}
