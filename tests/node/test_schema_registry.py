"""The REST API of the schema registry of a node, as Confluent's documentation and clients have it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from tests.node.registry_calls import CONTENT_TYPE, RegistryClient, record
from tests.support.rows import for_each

from ottla.testing.local_node import LocalNode

# One node starts for the module, and each test has subjects of its own.
pytestmark = pytest.mark.slow

STRING = {"schema": '"string"'}
INT = {"schema": '"int"'}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        yield node


@pytest.fixture
def registry(node: LocalNode) -> RegistryClient:
    assert node.schema_registry_url is not None
    return RegistryClient(node.schema_registry_url)


def test_a_schema_is_registered_once_and_found_by_all_ways(registry: RegistryClient) -> None:
    text = json.dumps(record("Order", id="long"), indent=2)
    first = registry.ok("POST", "/subjects/orders-value/versions", {"schema": text})
    again = registry.ok("POST", "/subjects/orders-value/versions", {"schema": text})
    other = registry.ok("POST", "/subjects/orders-copy/versions", {"schema": text})
    assert first == again
    assert other["id"] == first["id"]
    assert first["version"] == 1
    canonical = json.dumps(record("Order", id="long"), separators=(",", ":"))
    by_id = registry.get(f"/schemas/ids/{first['id']}")
    assert json.loads(by_id["schema"]) == json.loads(canonical)
    assert "\n" not in by_id["schema"]
    assert registry.get(f"/schemas/ids/{first['id']}/schema") == json.loads(canonical)
    assert registry.get(f"/schemas/ids/{first['id']}/subjects") == ["orders-copy", "orders-value"]
    assert registry.get(f"/schemas/ids/{first['id']}/versions") == [
        {"subject": "orders-copy", "version": 1},
        {"subject": "orders-value", "version": 1},
    ]
    assert registry.get(f"/schemas/guids/{by_id['guid']}")["schema"] == by_id["schema"]
    assert registry.get(f"/schemas/guids/{by_id['guid']}/ids") == [{"context": ".", "id": first["id"]}]
    for version in ("1", "latest", "-1"):
        found = registry.get(f"/subjects/orders-value/versions/{version}")
        assert (found["subject"], found["version"], found["id"]) == ("orders-value", 1, first["id"])
    assert registry.get("/subjects/orders-value/versions/1/schema") == json.loads(canonical)
    looked_up = registry.ok("POST", "/subjects/orders-value", {"schema": text})
    assert (looked_up["id"], looked_up["version"]) == (first["id"], 1)
    with_subject = registry.get(f"/schemas/ids/{first['id']}?subject=orders-copy&fetchMaxId=true")
    assert (with_subject["subject"], with_subject["version"]) == ("orders-copy", 1)
    assert with_subject["maxId"] >= first["id"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "text"),
    [
        ("GET", "/subjects/none/versions", None, 40401, "Subject 'none' not found."),
        ("GET", "/subjects/none/versions/1", None, 40401, "Subject 'none' not found."),
        ("GET", "/subjects/there/versions/9", None, 40402, "Version 9 not found."),
        ("GET", "/schemas/ids/999999", None, 40403, "Schema 999999 not found"),
        ("GET", "/schemas/ids/999999/versions", None, 40403, "Schema not found"),
        ("POST", "/subjects/there", INT, 40403, "Schema not found"),
        ("POST", "/subjects/none", INT, 40401, "Subject 'none' not found."),
        ("GET", "/config/there", None, 40408, "Subject 'there' does not have subject-level"),
        ("GET", "/mode/there", None, 40409, "Subject 'there' does not have subject-level mode"),
        ("DELETE", "/config/there", None, 40401, "Subject 'there' not found."),
        ("DELETE", "/subjects/none", None, 40401, "Subject 'none' not found."),
        ("DELETE", "/subjects/there?permanent=true", None, 40405, "Subject 'there' was not deleted first"),
        ("DELETE", "/subjects/there/versions/1?permanent=true", None, 40407, "Subject 'there' Version 1"),
        ("DELETE", "/subjects/there/versions/9", None, 40402, "Version 9 not found."),
        ("POST", "/subjects/there/versions", INT, 409, "Schema being registered is incompatible with an"),
        ("POST", "/subjects/s/versions", {"schema": "{"}, 42201, "Invalid schema of type AVRO, details:"),
        ("POST", "/subjects/s/versions", {"schema": ""}, 42201, "Empty schema"),
        (
            "POST",
            "/subjects/s/versions",
            {"schema": "1", "schemaType": "XML"},
            42201,
            "Invalid schema type XML",
        ),
        (
            *("POST", "/subjects/s/versions"),
            {**STRING, "references": [{"name": "a", "subject": "none", "version": 1}]},
            *(42201, 'No schema reference found for subject "none" and version 1'),
        ),
        ("GET", "/subjects/there/versions/0", None, 42202, "The specified version '0' is not a valid"),
        ("GET", "/subjects/there/versions/newest", None, 42202, "The specified version 'newest' is not"),
        ("PUT", "/config", {"compatibility": "SOME"}, 42203, "Invalid compatibility level."),
        ("PUT", "/mode/there", {"mode": "SOME"}, 42204, "Invalid mode. Valid values are READWRITE"),
        ("PUT", "/mode/there", {"mode": "IMPORT"}, 42205, "Cannot import since found existing subjects"),
        (
            "POST",
            "/subjects/s/versions",
            {**STRING, "id": 7},
            42205,
            "Subject s in context  is not in",
        ),
        ("POST", "/subjects/__EMPTY/versions", STRING, 42208, "The specified subject '__EMPTY' is not a"),
        (
            "POST",
            "/subjects/s/versions",
            {**STRING, "ruleSet": {"domainRules": [{}]}},
            42210,
            "Missing rule name",
        ),
        ("POST", "/subjects/s/versions", [], 422, "The body has to be an object"),
        ("POST", "/subjects/s/versions", b"{", 400, "The body is no JSON"),
        ("POST", "/subjects/s/versions", b"[" + b"[]," * 200_000 + b"1]", 413, "The body has more than"),
        ("GET", "/subjects/s/t/u/v/w", None, 404, "HTTP 404 Not Found"),
        ("GET", "/schemas/ids/first", None, 404, "HTTP 404 Not Found"),
        ("PUT", "/subjects", {}, 405, "HTTP 405 Method Not Allowed"),
    ],
)
def test_errors(registry: RegistryClient, method: str, path: str, body: object, code: int, text: str) -> None:
    registry.register("there", "string")
    found, message = registry.refused(method, path, body)
    assert found == code
    assert message.startswith(text)


def test_content_types(registry: RegistryClient) -> None:
    registry.get("/subjects")
    assert registry.content_type == CONTENT_TYPE
    registry.call("GET", "/subjects", accept="application/json")
    assert registry.content_type == "application/json"
    registry.call("GET", "/nothing")
    assert registry.content_type == CONTENT_TYPE
    for kind in ("application/json", "application/vnd.schemaregistry+json; charset=utf-8"):
        assert registry.call("POST", "/subjects/kinds/versions", STRING, content_type=kind)[0] == 200
    # A page of another site could send these without being asked.
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert registry.call("POST", "/subjects/kinds/versions", STRING, content_type=kind)[0] == 415


@for_each(
    ("accept", "kind"),
    [
        ("*/*", CONTENT_TYPE),
        ("application/*", CONTENT_TYPE),
        ("text/html, image/gif, *; q=.2, */*; q=.2", CONTENT_TYPE),
        ("application/json, application/vnd.schemaregistry.v1+json", CONTENT_TYPE),
        ("application/json, application/vnd.schemaregistry.v1+json; q=0.5", "application/json"),
        (
            "application/vnd.schemaregistry.v2+json; q=0.1, application/vnd.schemaregistry+json; q=0.9",
            "application/vnd.schemaregistry+json",
        ),
        ("text/*", None),
        ("application/octet-stream", None),
        ("application/json; q=0", None),
    ],
)
def test_an_answer_has_the_type_that_the_client_likes_best(
    registry: RegistryClient, accept: str, kind: str | None
) -> None:
    found = registry.call("GET", "/subjects", accept=accept)
    if kind is None:
        assert found == (406, {"error_code": 406, "message": "HTTP 406 Not Acceptable"})
    assert registry.content_type == (kind or CONTENT_TYPE)


def test_the_server_says_what_it_is(registry: RegistryClient) -> None:
    assert registry.get("/") == {}
    assert sorted(registry.get("/schemas/types")) == ["AVRO", "JSON", "PROTOBUF"]
    clusters = registry.get("/v1/metadata/id")["scope"]["clusters"]
    assert clusters["schema-registry-cluster"] == "schema-registry"
    assert len(clusters["kafka-cluster"]) == 22
    assert registry.get("/v1/metadata/version")["version"].startswith("ottla ")
    assert registry.get("/v1/metadata/deployment") == {}


def test_a_version_is_deleted_softly_and_then_for_good(registry: RegistryClient) -> None:
    path = "/subjects/deleted-versions/versions"
    registry.ok("PUT", "/config/deleted-versions", {"compatibility": "NONE"})
    first = registry.register("deleted-versions", "string")
    registry.register("deleted-versions", "int")
    assert registry.ok("DELETE", f"{path}/1") == 1
    assert registry.get(path) == [2]
    assert registry.get(f"{path}?deleted=true") == [1, 2]
    assert registry.get(f"{path}?deletedOnly=true") == [1]
    assert registry.get(f"{path}?deletedAsNegative=true") == [-1, 2]
    assert registry.refused("GET", f"{path}/1")[0] == 40402
    assert registry.get(f"{path}/1?deleted=true")["deleted"] is True
    assert registry.get(f"/schemas/ids/{first}")["schema"] == '"string"'
    assert registry.refused("DELETE", f"{path}/1")[0] == 40406
    # What comes back gets a new version, and keeps its id; the old one is gone.
    assert registry.register("deleted-versions", "string") == first
    assert registry.get(f"{path}?deleted=true") == [2, 3]
    assert registry.ok("DELETE", f"{path}/latest") == 3
    assert registry.ok("DELETE", f"{path}/3?permanent=true") == 3
    assert registry.get(f"{path}?deleted=true") == [2]


def test_a_subject_is_deleted_softly_and_then_for_good(registry: RegistryClient) -> None:
    registry.ok("PUT", "/config/deleted-subject", {"compatibility": "NONE"})
    registry.register("deleted-subject", record("Gone", a="int"))
    last = registry.register("deleted-subject", record("Gone", b="int"))
    assert registry.ok("DELETE", "/subjects/deleted-subject") == [1, 2]
    assert "deleted-subject" not in registry.get("/subjects")
    assert "deleted-subject" in registry.get("/subjects?deleted=true")
    assert "deleted-subject" in registry.get("/subjects?deletedOnly=true")
    assert registry.refused("DELETE", "/subjects/deleted-subject")[0] == 40404
    assert registry.refused("GET", "/subjects/deleted-subject/versions")[0] == 40401
    deleted = registry.ok(
        "POST", "/subjects/deleted-subject?deleted=true", {"schema": json.dumps(record("Gone", b="int"))}
    )
    assert deleted["version"] == 2
    assert registry.ok("DELETE", "/subjects/deleted-subject?permanent=true") == [1, 2]
    assert registry.refused("GET", f"/schemas/ids/{last}")[0] == 40403
    # Its configuration is gone with it, and its ids are not given again.
    assert registry.refused("GET", "/config/deleted-subject")[0] == 40408
    assert registry.register("deleted-subject", record("New", c="int")) > last
    assert registry.get("/subjects/deleted-subject/versions") == [1]


def test_what_is_referred_to_stays(registry: RegistryClient) -> None:
    registry.register("address", record("Address", city="string"))
    references = [{"name": "Address", "subject": "address", "version": 1}]
    person = registry.register("person", record("Person", home="Address"), references=references)
    found = registry.get("/subjects/person/versions/1")
    assert found["references"] == references
    assert registry.get("/subjects/address/versions/1/referencedby") == [person]
    code, text = registry.refused("DELETE", "/subjects/address/versions/1")
    assert code == 42206
    assert text == (
        "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=address,version=1}."
    )
    assert registry.refused("DELETE", "/subjects/address")[0] == 42206
    registry.ok("DELETE", "/subjects/person")
    assert registry.get("/subjects/address/versions/1/referencedby") == []
    assert registry.get("/subjects/address/versions/1/referencedby?deleted=true") == [person]
    registry.ok("DELETE", "/subjects/address")
    assert registry.refused("DELETE", "/subjects/address?permanent=true")[0] == 42206
    registry.ok("DELETE", "/subjects/person?permanent=true")
    registry.ok("DELETE", "/subjects/address?permanent=true")


def test_a_reference_to_the_latest_version_is_one_to_its_number(registry: RegistryClient) -> None:
    registry.register("latest-part", record("Part", a="int"))
    references = [{"name": "Part", "subject": "latest-part", "version": -1}]
    registry.register("latest-whole", record("Whole", part="Part"), references=references)
    found = registry.get("/subjects/latest-whole/versions/1")
    assert found["references"] == [{"name": "Part", "subject": "latest-part", "version": 1}]


def test_a_new_schema_does_not_refer_to_what_is_deleted(registry: RegistryClient) -> None:
    registry.register("gone-part", record("Gone", a="int"))
    body = {
        "schema": json.dumps(record("Whole", part="Gone")),
        "references": [{"name": "Gone", "subject": "gone-part", "version": 1}],
    }
    registry.ok("POST", "/subjects/gone-whole/versions", body)
    registry.ok("DELETE", "/subjects/gone-whole")
    registry.ok("DELETE", "/subjects/gone-part")
    code, text = registry.refused("POST", "/subjects/gone-whole/versions", body)
    assert code == 42201
    assert 'No schema reference found for subject "gone-part" and version 1' in text
    assert registry.ok("POST", "/subjects/gone-whole?deleted=true", body)["version"] == 1


def test_a_schema_of_avro_is_found_with_what_it_refers_to_inside(registry: RegistryClient) -> None:
    registry.register("inner-a", record("A", a="int"))
    registry.register("inner-b", record("B", b="int"))
    references = [{"name": each, "subject": f"inner-{each.lower()}", "version": 1} for each in "AB"]
    body = {"schema": json.dumps(record("Outer", a="A", b="B")), "references": references}
    found = registry.ok("POST", "/subjects/outer/versions?normalize=true", body)
    whole = {"schema": json.dumps(record("Outer", a=record("A", a="int"), b=record("B", b="int")))}
    for other in (whole, body | {"references": references[::-1]}):
        assert registry.ok("POST", "/subjects/outer?normalize=true", other)["id"] == found["id"]
        assert registry.ok("POST", "/subjects/outer/versions?normalize=true", other)["id"] == found["id"]
    assert registry.refused("POST", "/subjects/outer", body | {"references": references[:1]})[0] == 42201


def test_references_are_shown_with_their_context_if_that_is_asked_for(registry: RegistryClient) -> None:
    registry.register(":.refs:part", record("P", a="int"))
    reference = {"name": "P", "subject": "part", "version": 1}
    body = {"schema": json.dumps(record("R", p="P")), "references": [reference]}
    schema_id = registry.ok("POST", "/subjects/:.refs:whole/versions", body)["id"]
    for path in (f"/schemas/ids/{schema_id}?subject=:.refs:whole", "/subjects/:.refs:whole/versions/1?"):
        assert registry.get(path)["references"] == [reference]
        shown = registry.get(f"{path}&referenceFormat=qualified")["references"]
        assert shown == [reference | {"subject": ":.refs:part"}]


def test_an_alias_stands_for_its_subject(registry: RegistryClient) -> None:
    registered = registry.register("aliased", "string")
    registry.ok("PUT", "/config/the-alias", {"alias": "aliased"})
    assert registry.get("/subjects/the-alias/versions/1")["subject"] == "aliased"
    assert registry.get(f"/schemas/ids/{registered}?subject=the-alias")["subject"] == "aliased"
    assert registry.register("the-alias", "string") == registered
    assert registry.get("/config/the-alias") == {"alias": "aliased", "compatibilityLevel": "BACKWARD"}
    assert "the-alias" not in registry.get("/subjects")
    listed = registry.get("/schemas?subjectPrefix=the-alias&aliases=true")
    assert [(each["subject"], each["aliases"]) for each in listed] == [("aliased", ["the-alias"])]
    assert registry.get("/schemas?subjectPrefix=the-alias") == []
    registry.register(":.other:b", "string")
    for alias in ("b", ":.other:b"):
        registry.ok("PUT", "/config/:.other:a", {"alias": alias})
        assert registry.get("/contexts/.other/subjects/a/versions/latest")["subject"] == ":.other:b"


def test_an_incompatible_schema_may_be_forced(registry: RegistryClient) -> None:
    registry.register("forced", record("F", a="int"))
    other = {"schema": json.dumps(record("F", a="string"))}
    assert registry.refused("POST", "/subjects/forced/versions", other)[0] == 409
    assert registry.ok("POST", "/subjects/forced/versions?force=true", other)["version"] == 2


def test_confluent_version_tells_versions_of_one_schema_apart(registry: RegistryClient) -> None:
    text = json.dumps(record("V", a="int"))

    def body(version: int = 0, named: str | None = None) -> dict[str, object]:
        properties = {} if named is None else {"metadata": {"properties": {"confluent:version": named}}}
        return {"schema": text, **({"version": version} if version else {}), **properties}

    def registered(**more: Any) -> int:
        return int(registry.ok("POST", "/subjects/cv/versions", body(**more))["version"])

    def found(**more: Any) -> int:
        return int(registry.ok("POST", "/subjects/cv", body(**more))["version"])

    assert [registered(), registered(version=-1), registered(version=2), registered(version=-1)] == [
        1,
        1,
        2,
        2,
    ]
    assert [found(), found(named="1"), found(named="2")] == [1, 1, 2]
    assert registry.refused("POST", "/subjects/cv/versions", body(version=2))[0] == 42201
    registry.ok("DELETE", "/subjects/cv/versions/1")
    assert found() == 2
    assert [registered(), registered(version=3), registered(named="2"), registered(named="-1")] == [
        2,
        3,
        2,
        4,
    ]


def test_objects_of_json_may_be_taken_to_have_no_further_properties(registry: RegistryClient) -> None:
    def body(**properties: str) -> dict[str, str]:
        kinds = {name: {"type": kind} for name, kind in properties.items()}
        return {"schemaType": "JSON", "schema": json.dumps({"type": "object", "properties": kinds})}

    registry.ok("POST", "/subjects/open/versions", body(a="string"))
    code, text = registry.refused("POST", "/subjects/open/versions", body(a="string", b="string"))
    assert code == 409
    assert "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL" in text
    registry.ok("PUT", "/config/open", {"compatibilityPolicy": "LENIENT"})
    registry.ok("POST", "/subjects/open/versions", body(a="string", b="string"))
    assert registry.refused("POST", "/subjects/open/versions", body(a="integer", b="string"))[0] == 409


def test_fields_that_are_reserved_are_kept_free(registry: RegistryClient) -> None:
    def body(reserved: str, **fields: str) -> dict[str, object]:
        return {
            "schema": json.dumps(record("Reserved", **fields)),
            "metadata": {"properties": {"confluent:reserved": reserved}},
        }

    registry.ok("PUT", "/config/reserved", {"validateFields": True, "compatibility": "NONE"})
    code, text = registry.refused("POST", "/subjects/reserved/versions", body("a, b", a="int"))
    assert code == 409
    assert "The new schema has field that conflicts with the reserved field a." in text
    assert "{validateFields: 'true', compatibility: 'NONE'}" in text
    registry.ok("POST", "/subjects/reserved/versions", body("b", a="int"))
    code, text = registry.refused("POST", "/subjects/reserved/versions", body("c", a="int"))
    assert "has reserved field b removed from its metadata" in text
    registry.ok("PUT", "/config/reserved", {"validateFields": False})
    registry.ok("POST", "/subjects/reserved/versions", body("c", a="int"))


def test_a_subject_may_take_schemas_as_they_are(registry: RegistryClient) -> None:
    wrong = record("Wrong")
    wrong["fields"] = [{"name": "a", "type": "int", "default": "none"}]
    body = {"schema": json.dumps(wrong)}
    assert registry.refused("POST", "/subjects/lenient/versions", body)[0] == 42201
    assert registry.refused("POST", "/subjects/lenient", body)[0] == 40401
    registry.ok("PUT", "/config/lenient", {"validateNewSchemas": False})
    assert registry.ok("POST", "/compatibility/subjects/lenient/versions", body) == {"is_compatible": True}
    assert registry.ok("POST", "/subjects/lenient/versions", body)["version"] == 1


def test_compatibility_is_checked_before_and_at_registration(registry: RegistryClient) -> None:
    registry.register("checked", record("R", a="int"))
    wider = {"schema": json.dumps(record("R", a="long"))}
    other = {"schema": json.dumps(record("R", b="int"))}
    check = "/compatibility/subjects/checked/versions"
    assert registry.ok("POST", check, wider) == {"is_compatible": True}
    assert registry.ok("POST", f"{check}/latest?verbose=true", wider) == {
        "is_compatible": True,
        "messages": [],
    }
    found = registry.ok("POST", f"{check}/1?verbose=true", other)
    assert found["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in found["messages"][0]
    assert found["messages"][-1] == "{validateFields: 'false', compatibility: 'BACKWARD'}"
    assert registry.refused("POST", f"{check}/2", wider)[0] == 40402
    assert registry.ok("POST", "/compatibility/subjects/nowhere/versions/latest", wider)["is_compatible"]
    assert registry.refused("POST", check, {"schema": "{"})[0] == 42201
    invalid = registry.ok("POST", f"{check}?verbose=true", {"schema": "{"})
    assert invalid["is_compatible"] is False
    code, text = registry.refused("POST", "/subjects/checked/versions", other)
    assert code == 409
    assert text.startswith(
        'Schema being registered is incompatible with an earlier schema for subject "checked", details: ['
    )
    registry.ok("PUT", "/config/checked", {"compatibility": "none"})
    registry.ok("POST", "/subjects/checked/versions", other)


def test_configurations_are_those_of_the_subject_or_of_all(registry: RegistryClient) -> None:
    assert registry.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.get("/config/configured?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert registry.ok("PUT", "/config/configured", {"compatibility": "full_transitive"}) == {
        "compatibility": "FULL_TRANSITIVE"
    }
    assert registry.ok("PUT", "/config/configured", {"normalize": True}) == {
        "compatibility": "FULL_TRANSITIVE",
        "normalize": True,
    }
    assert registry.get("/config/configured") == {"compatibilityLevel": "FULL_TRANSITIVE", "normalize": True}
    assert registry.ok("DELETE", "/config/configured")["compatibilityLevel"] == "FULL_TRANSITIVE"
    assert registry.refused("GET", "/config/configured")[0] == 40408
    try:
        registry.ok("PUT", "/config", {"compatibility": "FORWARD"})
        assert registry.get("/config/configured?defaultToGlobal=true") == {"compatibilityLevel": "FORWARD"}
    finally:
        assert registry.ok("DELETE", "/config") == {"compatibilityLevel": "FORWARD"}
    assert registry.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_modes(registry: RegistryClient) -> None:
    assert registry.get("/mode") == {"mode": "READWRITE"}
    registered = registry.register("frozen", "string")
    assert registry.ok("PUT", "/mode/frozen", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert registry.get("/mode/frozen") == {"mode": "READONLY"}
    code, text = registry.refused("POST", "/subjects/frozen/versions", {"schema": '"bytes"'})
    assert (code, text) == (42205, "Subject frozen in context  is in read-only mode")
    assert registry.refused("DELETE", "/subjects/frozen")[0] == 42205
    assert registry.refused("PUT", "/config/frozen", {"compatibility": "NONE"})[0] == 42205
    # What is there already may be registered: a client that does so on each start goes on.
    assert registry.register("frozen", "string") == registered
    assert registry.ok("DELETE", "/mode/frozen") == {"mode": "READONLY"}
    assert registry.refused("DELETE", "/mode/frozen")[0] == 40401


def test_schemas_are_imported_with_their_ids(registry: RegistryClient) -> None:
    registry.ok("PUT", "/mode/imported", {"mode": "IMPORT"})
    path = "/subjects/imported/versions"
    found = registry.ok("POST", path, {"schema": json.dumps(record("I", a="int")), "id": 5000, "version": 3})
    assert (found["id"], found["version"]) == (5000, 3)
    assert registry.get(path) == [3]
    other = {"schema": json.dumps(record("I", b="int")), "id": 5000, "version": 4}
    assert registry.refused("POST", path, other) == (
        42205,
        "Overwrite new schema with id 5000 in context  is not permitted.",
    )
    registry.ok("PUT", "/mode/imported", {"mode": "READWRITE"})
    assert registry.register("after-import", record("Next", a="int")) == 5001


def test_contexts_have_subjects_and_ids_of_their_own(registry: RegistryClient) -> None:
    registry.register("in-default", record("D", a="int"))
    found = registry.ok("POST", "/contexts/staging/subjects/s/versions", STRING)
    assert found["id"] == 1
    assert ".staging" in registry.get("/contexts")
    assert registry.get("/contexts/staging/subjects") == [":.staging:s"]
    assert registry.get("/subjects/:.staging:s/versions") == [1]
    assert registry.get("/subjects?subjectPrefix=:.staging:") == [":.staging:s"]
    assert ":.staging:s" in registry.get("/subjects")
    assert ":.staging:s" not in registry.get("/subjects?subjectPrefix=")
    assert ":.staging:s" not in [each["subject"] for each in registry.get("/schemas")]
    assert ":.staging:s" in [each["subject"] for each in registry.get("/schemas?subjectPrefix=:*:")]
    assert registry.get("/subjects/s/versions/1")["subject"] == ":.staging:s"
    assert registry.get("/contexts/staging/schemas/ids/1")["schema"] == '"string"'
    assert registry.get("/schemas/ids/1?subject=:.staging:")["schema"] == '"string"'
    registry.ok("PUT", "/contexts/staging/config", {"compatibility": "NONE"})
    assert registry.get("/config/:.staging:s?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
    assert registry.refused("DELETE", "/contexts/.staging")[0] == 42211
    registry.ok("DELETE", "/contexts/staging/subjects/s")
    registry.ok("DELETE", "/contexts/staging/subjects/s?permanent=true")
    registry.ok("DELETE", "/contexts/.staging")
    assert ".staging" not in registry.get("/contexts")


def test_metadata_and_rules_are_kept(registry: RegistryClient) -> None:
    metadata = {
        "properties": {"owner": "shop", "a": "b"},
        "tags": {"Order.id": ["PII", "KEY"]},
        "sensitive": ["owner"],
    }
    rules = {"domainRules": [{"name": "check", "kind": "CONDITION", "type": "CEL", "expr": "true"}]}
    body = {"schema": json.dumps(record("Ruled", id="int")), "metadata": metadata, "ruleSet": rules}
    registry.ok("POST", "/subjects/ruled/versions", body)
    found = registry.get("/subjects/ruled/versions/latest")
    assert found["metadata"] == {**metadata, "tags": {"Order.id": ["KEY", "PII"]}}
    assert found["ruleSet"] == {
        "domainRules": [
            {
                "name": "check",
                "kind": "CONDITION",
                "mode": "WRITEREAD",
                "type": "CEL",
                "expr": "true",
                "disabled": False,
            }
        ]
    }
    # A schema without any gets those of the version before.
    registry.register("ruled", record("Ruled", id="long"))
    assert registry.get("/subjects/ruled/versions/2")["metadata"]["properties"]["owner"] == "shop"
    assert registry.get("/subjects/ruled/metadata?key=owner&value=shop")["version"] == 2
    assert registry.refused("GET", "/subjects/ruled/metadata?key=owner&value=other")[0] == 40403


def test_lists_have_pages(registry: RegistryClient) -> None:
    registry.ok("PUT", "/config/page-a", {"compatibility": "NONE"})
    for name, schema in (("page-a", "string"), ("page-a", "int"), ("page-b", "string"), ("page-c", "long")):
        registry.register(name, schema)
    assert registry.get("/subjects?subjectPrefix=page-&offset=1&limit=1") == ["page-b"]
    assert registry.get("/subjects/page-a/versions?offset=1") == [2]
    listed = registry.get("/schemas?subjectPrefix=page-&latestOnly=true")
    assert [(each["subject"], each["version"]) for each in listed] == [
        ("page-a", 2),
        ("page-b", 1),
        ("page-c", 1),
    ]
    assert len(registry.get("/schemas?subjectPrefix=page-")) == 4
    assert [each["subject"] for each in registry.get("/schemas?subjectPrefix=page-&limit=1&offset=3")] == [
        "page-c"
    ]


def test_a_subject_may_have_any_name(registry: RegistryClient) -> None:
    registry.register("a%2Fb%20c%3F%C3%A9", "string")
    assert "a/b c?é" in registry.get("/subjects")
    assert registry.get("/subjects/a%2Fb%20c%3F%C3%A9/versions") == [1]


def test_the_schemas_are_there_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("registry"))
    settings = {"http.listener": "http://127.0.0.1:0", "schema.registry.listener": "http://127.0.0.1:0"}
    with LocalNode(settings, data_dir=directory) as node:
        assert node.schema_registry_url is not None
        registered = RegistryClient(node.schema_registry_url).register("kept", record("Kept", a="int"))
    with LocalNode(settings, data_dir=directory) as node:
        assert node.schema_registry_url is not None
        assert node.http_url is not None
        # The listener of its own, and the path below the other, are the same registry.
        own = RegistryClient(node.schema_registry_url)
        below = RegistryClient(node.http_url.rstrip("/") + "/schema-registry")
        for registry in (own, below):
            assert registry.register("kept", record("Kept", a="int")) == registered
            assert registry.get("/subjects") == ["kept"]
        assert own.register("more", record("More", a="int")) == registered + 1
        assert below.get("/subjects") == ["kept", "more"]


def test_a_node_may_have_no_registry() -> None:
    with LocalNode({"http.listener": "http://127.0.0.1:0", "schema.registry.enable": False}) as node:
        assert node.http_url is not None
        status, _ = RegistryClient(node.http_url.rstrip("/")).call(
            "POST", "/schema-registry/subjects/s/versions", STRING
        )
        assert status == 404
        assert node.schema_registry_url is None


def _nested_avro(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


HOSTILE: dict[str, tuple[str, str]] = {
    "nested Avro": ("AVRO", _nested_avro(50_000)),
    "nested JSON": ("JSON", '{"items":' * 50_000 + "{}" + "}" * 50_000),
    "nested Protobuf": ("PROTOBUF", 'syntax="proto3";' + "message M {" * 50_000 + "}" * 50_000),
    "a record of itself": (
        "AVRO",
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}] * 2}),
    ),
    "references in a circle": (
        "JSON",
        json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    ),
    "a pattern that explodes": (
        "JSON",
        json.dumps(
            {
                "type": "object",
                "patternProperties": {"^(a+)+$": {"type": "string"}},
                "properties": {"a" * 60 + "b": {"type": "string"}},
                "additionalProperties": False,
            }
        ),
    ),
    "a pattern that takes memory": (
        "JSON",
        json.dumps(
            {"type": "object", "patternProperties": {"((((a{1,1000}){1,1000}){1,1000}){1,1000})": {}}}
        ),
    ),
    "ten megabytes": ("JSON", json.dumps({"description": "x" * 10_000_000})),
    "two megabytes": ("AVRO", json.dumps({"type": "string", "doc": "x" * 2_000_000})),
    "many fields": ("PROTOBUF", 'syntax="proto3"; message M {' + "int32 a=1;" * 90_000 + "}"),
    "many branches": (
        "JSON",
        json.dumps({"anyOf": [{"type": "object", "title": str(n)} for n in range(9_000)]}),
    ),
}


def test_hostile_schemas_are_answered_while_others_are_served(registry: RegistryClient) -> None:
    def register(name: str) -> int:
        kind, text = HOSTILE[name]
        subject = quote(f"hostile {name}")
        client, path = RegistryClient(registry.url), f"/subjects/{subject}/versions"
        body = {"schema": text, "schemaType": kind}
        status = client.call("POST", path, body)[0]
        # The same once more, and something like it, which is compared with it.
        client.call("POST", path, {**body, "schema": text.replace("a", "b", 1)})
        client.call("POST", f"/compatibility{path}?verbose=true", body)
        return status

    registry.register("harmless", "string")
    with ThreadPoolExecutor(4) as pool:
        answers = {name: pool.submit(register, name) for name in HOSTILE}
        while not all(each.done() for each in answers.values()):
            assert registry.get("/subjects/harmless/versions") == [1]
        found = {name: each.result() for name, each in answers.items()}
    assert found["ten megabytes"] == 413
    refused = {
        "nested Avro",
        "nested JSON",
        "nested Protobuf",
        "two megabytes",
        "many fields",
        "a record of itself",
    }
    assert {name for name in refused if found[name] != 422} == set()
    assert set(found.values()) <= {200, 413, 422}


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_references_that_double_at_each_step_are_bounded(registry: RegistryClient, kind: str) -> None:
    """Each schema refers twice to the one before: to write them out would take 2^20 copies."""
    statuses = []
    for step in range(20):
        names = [f"laugh{step - 1}{which}" for which in "ab"] if step else []
        for which in "ab":
            name = f"laugh{step}{which}"
            if kind == "AVRO":
                text = json.dumps(record(name, **{each: each for each in names}))
            elif kind == "JSON":
                text = json.dumps({"properties": {each: {"$ref": each} for each in names}})
            else:
                fields = "".join(f"{each} f{place + 1} = {place + 1};" for place, each in enumerate(names))
                imports = "".join(f'import "{each}";' for each in names)
                text = f'syntax="proto3";{imports} message {name} {{{fields}}}'
            references = [{"name": each, "subject": f"{kind}-{each}", "version": 1} for each in names]
            body = {"schema": text, "schemaType": kind, "references": references}
            statuses.append(registry.call("POST", f"/subjects/{kind}-{name}/versions", body)[0])
    assert set(statuses) <= {200, 422}
    last = f"/subjects/{kind}-laugh19a/versions/1"
    if statuses[-1] == 200:
        assert len(registry.get(last)["references"]) == 2
        registry.call("GET", f"{last}?format=resolved")
        registry.call("GET", f"{last}?format=serialized")
    assert registry.get("/subjects") != []


def test_metrics(node: LocalNode, registry: RegistryClient) -> None:
    assert node.http_url is not None
    registry.register("measured", "string")
    registry.call("GET", "/subjects/never-there/versions")
    with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=60) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
    assert int(lines["ottla_schema_registry_subjects"]) >= 1
    assert int(lines["ottla_schema_registry_versions"]) >= 1
    assert int(lines["ottla_schema_registry_writes_total"]) >= 1
    assert int(lines["ottla_schema_registry_conflicts_total"]) == 0
    assert int(lines['ottla_schema_registry_answers_total{status="200"}']) >= 1
    assert int(lines['ottla_schema_registry_answers_total{status="404"}']) >= 1
