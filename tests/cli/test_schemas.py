"""`ottla schemas` lists, shows, registers, checks, deletes and moves the schemas of a registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode
from tests.node.registry_calls import RegistryClient, record
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.slow
SETTINGS = {"http.listener": "http://127.0.0.1:0"}


def write(path: Path, schema: object) -> str:
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(path)


def test_schemas_are_registered_shown_checked_and_deleted(tmp_path: Path) -> None:
    first = write(tmp_path / "order.avsc", record("Order", id="int"))
    wider = write(tmp_path / "wider.avsc", record("Order", id="long"))
    other = write(tmp_path / "other.avsc", record("Order", customer="string"))
    money = write(tmp_path / "money.proto", 'syntax = "proto3"; message Money { int32 units = 1; }')
    price = write(
        tmp_path / "price.proto",
        'syntax = "proto3"; import "money.proto"; message Price { Money money = 1; }',
    )
    with LocalNode(SETTINGS) as node:
        assert node.schema_registry_url is not None
        ottla, at = CommandLine(node.bootstrap_servers), ("--registry", node.schema_registry_url)
        assert "`ottla schemas register" in ottla.ok("schemas", "list", *at).err
        assert "as version 1 with the id 1" in ottla.ok("schemas", "register", "orders-value", first, *at).out
        assert "takes this schema" in ottla.ok("schemas", "check", "orders-value", wider, *at).out
        refused = ottla("schemas", "check", "orders-value", other, *at)
        assert refused.status == 1
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.out
        assert ottla("schemas", "register", "orders-value", other, *at).status == 1
        ottla.ok("schemas", "register", "orders-value", wider, "--dry-run", *at)
        assert ottla.ok("schemas", "register", "orders-value", wider, "--json", *at).json == {
            "subject": "orders-value",
            "version": 2,
            "id": 2,
        }
        ottla.ok("schemas", "register", "money", money, *at)
        ottla.ok("schemas", "register", "price", price, "--reference", "money.proto=money:1", *at)
        listed = ottla.ok("schemas", "list", "--json", *at).json
        assert [(each["subject"], each["version"]) for each in listed] == [
            ("money", 1),
            ("orders-value", 2),
            ("price", 1),
        ]
        versions = ottla.ok("schemas", "list", "orders-value", "--json", *at).json
        assert [each["version"] for each in versions] == [1, 2]
        shown = ottla.ok("schemas", "show", "price", *at).out
        assert "money.proto = money:1" in shown
        assert 'import "money.proto";' in shown
        assert json.loads(ottla.ok("schemas", "show", "orders-value", "--version", "1", "--text", *at).out)
        unknown = ottla("schemas", "list", "order-value", *at)
        assert "orders-value" in unknown.err
        assert "this cannot be undone" in ottla("schemas", "delete", "orders-value", *at).err
        assert "One or more references exist" in ottla("schemas", "delete", "money", "--yes", *at).err
        ottla.ok("schemas", "delete", "orders-value", "--version", "1", "--permanent", "--yes", *at)
        ottla.ok("schemas", "delete", "orders-value", "--yes", *at)
        deleted = ottla.ok("schemas", "list", "orders-value", "--deleted", "--json", *at).json
        assert [(each["version"], each["deleted"]) for each in deleted] == [(2, True)]
        ottla.ok("schemas", "delete", "orders-value", "--permanent", "--yes", *at)
        assert "no subject" in ottla("schemas", "list", "orders-value", "--deleted", *at).err
    assert "`ottla start` has a registry" in ottla("schemas", "list", *at).err


def test_schemas_are_moved_to_another_registry_with_their_ids(tmp_path: Path) -> None:
    file = str(tmp_path / "schemas.json")
    with LocalNode(SETTINGS) as one, LocalNode(SETTINGS) as other:
        assert one.schema_registry_url is not None
        assert other.schema_registry_url is not None
        source, target = RegistryClient(one.schema_registry_url), RegistryClient(other.schema_registry_url)
        ottla = CommandLine(one.bootstrap_servers)
        source.register("left-out", "string")
        source.ok("PUT", "/config/z-part", {"compatibility": "FULL", "normalize": True})
        source.register("z-part", record("Part", a="int"))
        references = [{"name": "Part", "subject": "z-part", "version": 1}]
        source.register("orders-whole", record("Whole", part="Part"), references=references)
        source.ok("PUT", "/config/orders-gone", {"compatibility": "NONE"})
        source.register("orders-gone", "int")
        source.register("orders-gone", "string")
        source.ok("DELETE", "/subjects/orders-gone/versions/1")
        ottla.ok("schemas", "export", file, "--subject", "orders-", "--registry", source.url)
        to = ("--registry", target.url, "--yes")
        assert "would import 4 schemas" in ottla.ok("schemas", "import", file, "--dry-run", *to).out
        assert target.get("/subjects") == []
        # An import that was interrupted has left a subject as one that takes ids.
        target.ok("PUT", "/mode/z-part", {"mode": "IMPORT"})
        assert "imported 4 schemas" in ottla.ok("schemas", "import", file, *to).out
        assert "imported 0 schemas, 4 were there" in ottla.ok("schemas", "import", file, *to).out
        assert target.get("/subjects?deleted=true") == ["orders-gone", "orders-whole", "z-part"]
        for path in (
            "/subjects/orders-whole/versions/1",
            "/subjects/z-part/versions/1",
            "/subjects/orders-gone/versions/2",
            "/subjects/orders-gone/versions/1?deleted=true",
        ):
            moved, original = target.get(path), source.get(path)
            assert {**moved, "ts": 0} == {**original, "ts": 0}
        assert target.get("/config/z-part") == {"compatibilityLevel": "FULL", "normalize": True}
        assert target.refused("GET", "/mode/z-part")[0] == 40409
        # Another schema has the id there.
        text = Path(file).read_text().replace('"id": 3', '"id": 2')
        Path(file).write_text(text)
        assert ottla("schemas", "import", file, *to).status == 1
    assert "no file that" in ottla("schemas", "import", write(tmp_path / "x.json", {}), *to).err


def test_a_registry_that_is_away_and_a_file_that_is_missing(offline: CommandLine, tmp_path: Path) -> None:
    away = offline.fails("schemas", "list", "--registry", "http://127.0.0.1:1", status=3)
    assert "cannot be reached" in away.err
    assert "--registry names another" in away.err
    missing = str(tmp_path / "missing.avsc")
    assert f"cannot read {missing}" in offline.fails("schemas", "register", "s", missing, status=2).err
    offline.fails("schemas", "import", missing, status=2)
