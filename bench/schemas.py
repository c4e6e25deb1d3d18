"""Typed records: Avro to Arrow and back beside fastavro, record by record, and what a registry answers.

The records are orders: twelve fields, with a list of lines, a map, a decimal and a time. fastavro, which is
compiled, makes dicts of them; a second row has it make Arrow of these, as a program does that wants columns.
"""

import io
import json
import urllib.request
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from bench.harness import Row, alone, compare, scaled
from ottla.schemas.avro_arrow import AvroArrowDecoder
from ottla.schemas.avro_arrow_encoder import AvroArrowEncoder
from ottla.schemas.avro_definition import parse_avro
from ottla.schemas.avro_values import AvroEncoder
from ottla.testing.local_node import LocalNode

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "gift", "type": "boolean"},
        {"name": "weight", "type": "double"},
        {"name": "city", "type": "string"},
    ],
}


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer-{number % 97}",
        "cents": number % 5000,
        "price": Decimal(number % 10_000) / 100,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number),
        "note": "leave it at the door" if number % 3 == 0 else None,
        "state": ("NEW", "PAID", "SENT")[number % 3],
        "lines": [{"sku": f"sku-{line}", "count": line} for line in range(number % 4)],
        "tags": {"rank": number} if number % 2 else {},
        "gift": number % 2 == 0,
        "weight": number / 7,
        "city": "Zürich" if number % 10 == 0 else "Berlin",
    }


def rows() -> list[Row]:
    count = scaled(50_000, 20_000)
    definition = parse_avro(json.dumps(ORDER))
    encode = AvroEncoder(definition).encode
    data = [encode(order(number)) for number in range(count)]
    column = pa.array([bytes(5) + each for each in data], pa.binary())
    decoder = AvroArrowDecoder(definition)
    schema = fastavro.parse_schema(ORDER)
    size = sum(map(len, data)) // count

    def ours() -> None:
        assert sum(len(part) for part, errors in decoder.decode(column, 5) if not errors) == count

    def dicts() -> list[Any]:
        return [fastavro.schemaless_reader(io.BytesIO(each), schema, None) for each in data]

    what = f"Avro to Arrow, orders of {size} bytes"
    peer = "fastavro, to dicts"
    found = [compare(what, count, "records/s", ours, dicts, peer_name=peer, target="≥ 10")]
    peer = "fastavro, and pyarrow"
    found.append(
        compare(what, count, "records/s", ours, lambda: pa.array(dicts(), decoder.type), peer_name=peer)
    )
    encoder = AvroArrowEncoder(definition)
    columns = pa.concat_arrays([part for part, _ in decoder.decode(column, 5)])
    values = [order(number) for number in range(count)]

    def write() -> None:
        written = encoder.encode(columns, bytes(5))
        assert written is not None
        assert len(written) == count

    def write_dicts() -> None:
        for each in values:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, each)
            out.getvalue()

    peer = "fastavro, of dicts"
    found.append(compare("Arrow to Avro, the same", count, "records/s", write, write_dicts, peer_name=peer))
    return [*found, *_registry()]


def _registry() -> list[Row]:
    requests = scaled(2_000, 500)
    with LocalNode({"schema.registry.listener": "http://127.0.0.1:0"}) as node:
        url = str(node.schema_registry_url)
        body = json.dumps({"schema": json.dumps(ORDER)}).encode()
        request = urllib.request.Request(f"{url}/subjects/orders-value/versions", body)
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        with urllib.request.urlopen(request) as answer:
            number = json.loads(answer.read())["id"]

        def read() -> None:
            for _ in range(requests):
                with urllib.request.urlopen(f"{url}/schemas/ids/{number}") as found:
                    found.read()

        return [alone("a schema by its id, a connection each, from urllib", requests, "requests/s", read)]
