"""The catalog of tables: made by the process that is first, whichever that is."""

from __future__ import annotations

import threading
from pathlib import Path

import pyiceberg.catalog.rest
import pyiceberg.catalog.sql
import pyiceberg.io
import pytest

from ottla.tables.catalog import catalog_properties, open_catalog
from ottla.tables.settings import CatalogSettings, meant_property


def test_processes_that_open_a_new_catalog_at_once_all_have_it(tmp_path: Path) -> None:
    """Each engine of SQLAlchemy has connections of its own, so threads meet as processes do."""
    failures: list[Exception] = []

    def use(settings: CatalogSettings, start: threading.Barrier) -> None:
        start.wait(60)
        try:
            open_catalog(settings, create=True).list_namespaces()
        except Exception as error:
            failures.append(error)

    for attempt in range(10):
        settings = CatalogSettings(warehouse=str(tmp_path / f"{attempt}"))
        start = threading.Barrier(4)
        threads = [threading.Thread(target=use, args=(settings, start)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert failures == []


def test_a_warehouse_may_be_the_address_of_a_directory(tmp_path: Path) -> None:
    given = {"table.catalog.warehouse": f"file://{tmp_path}/tables"}
    settings = CatalogSettings.from_settings(given)
    open_catalog(settings, create=True)
    assert (tmp_path / "tables" / "catalog.db").exists()
    assert catalog_properties(settings)["warehouse"] == f"file://{tmp_path}/tables"


@pytest.mark.parametrize(
    ("warehouse", "sent"),
    [
        (None, None),
        ("main", "main"),
        ("arn:aws:s3tables:eu-central-1:1:bucket/b", "arn:aws:s3tables:eu-central-1:1:bucket/b"),
        ("s3://bucket/tables", "s3://bucket/tables"),
        ("file:///shared/tables", "file:///shared/tables"),
        ("/shared/tables", "file:///shared/tables"),
    ],
)
def test_a_rest_catalog_is_asked_for_the_warehouse_by_the_name_that_it_has(
    warehouse: str | None, sent: str | None
) -> None:
    given = {"table.catalog.type": "rest", "table.catalog.uri": "http://catalog"}
    if warehouse is not None:
        given["table.catalog.warehouse"] = warehouse
    settings = CatalogSettings.from_settings(given, "/data/log")
    # As it was given: tables have places of their own below an address, and a name has none.
    assert settings.warehouse == warehouse
    assert catalog_properties(settings).get("warehouse") == sent


def test_no_property_of_pyiceberg_is_taken_for_a_misspelled_one() -> None:
    """Those that it has a constant for, in the modules that read them."""
    known = {
        value
        for module in (pyiceberg.io, pyiceberg.catalog, pyiceberg.catalog.rest, pyiceberg.catalog.sql)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert {"s3.endpoint", "credential", "uri"} <= known
    assert {each: meant_property(each) for each in known if meant_property(each) is not None} == {}
    assert [meant_property(each) for each in ("url", "warehuose", "tpye", "s3.secret-acces-key")] == [
        "uri",
        "warehouse",
        "type",
        "s3.secret-access-key",
    ]


def test_the_address_of_a_catalog_is_enough_where_brokers_show_the_rest() -> None:
    shown = {
        "table.catalog.type": "rest",
        "table.catalog.uri": None,
        "table.catalog.warehouse": "main",
        "table.namespace": "shop",
        "log.dirs": "/data",
    }
    with pytest.raises(ValueError, match=r"the brokers have table.catalog.uri and do not show it"):
        CatalogSettings.from_broker(shown)
    found = CatalogSettings.from_broker(shown, {"table.catalog.uri": "http://catalog"})
    assert (found.type, found.uri, found.warehouse) == ("rest", "http://catalog", "main")
    assert found.namespace == "shop"
    # Another catalog than theirs.
    found = CatalogSettings.from_broker(shown, {"table.catalog.warehouse": "/copy"})
    assert (found.type, found.uri, found.warehouse, found.namespace) == ("sql", None, "/copy", "shop")
