"""The page of schemas: subjects, versions, what differs, a check before registration, deletion."""

from __future__ import annotations

import json

import pytest

from ottla.testing.local_node import LocalNode
from tests.console.api_client import ApiClient
from tests.node.registry_calls import RegistryClient, record

pytestmark = pytest.mark.slow


def test_schemas_are_listed_compared_checked_registered_and_deleted(
    api: ApiClient, console_node: LocalNode
) -> None:
    assert api.get("/api/session")["features"]["schemas"] is True
    assert console_node.schema_registry_url is not None
    registry = RegistryClient(console_node.schema_registry_url)
    name = "shown/orders-value"
    first, second = record("Order", id="int"), record("Order", id="long")
    given = {"subject": name, "type": "AVRO", "schema": json.dumps(first)}
    assert api.post("/api/schemas/check", given) == {"compatible": True, "messages": []}
    assert api.post("/api/schemas", given)["version"] == 1
    other = {**given, "schema": json.dumps(record("Order", customer="string"))}
    refused = api.post("/api/schemas/check", other)
    assert refused["compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused["messages"][0]
    assert api.send("POST", "/api/schemas", other).status == 409
    api.post("/api/schemas", {**given, "schema": json.dumps(second)})
    (row,) = api.get("/api/schemas", search="shown/")["items"]
    assert (row["subject"], row["version"], row["type"]) == (name, 2, "AVRO")
    shown = api.get("/api/schemas/subject", name=name, against="1")
    assert shown["versions"] == [1, 2]
    assert shown["compatibility"] == "BACKWARD"
    assert json.loads(shown["text"]) == second
    assert [line for line in shown["difference"] if line[0] in "+-"] == [
        '-      "type": "int"',
        '+      "type": "long"',
    ]
    assert api.get("/api/schemas/subject", name=name, version="1")["difference"] is None
    api.delete("/api/schemas", name=name, version="2")
    assert registry.get("/subjects/shown%2Forders-value/versions") == [1]
    api.delete("/api/schemas", name=name)
    assert api.get("/api/schemas", search="shown/")["items"] == []
    assert api.send("GET", "/api/schemas/subject", name=name).status == 404
    assert api.send("POST", "/api/schemas", {**given, "type": "XML"}).status == 400
