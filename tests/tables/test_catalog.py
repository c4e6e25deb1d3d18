"""The catalog of tables: made by the process that is first, whichever that is."""

from __future__ import annotations

import threading
from pathlib import Path

from ottla.tables.catalog import catalog_properties, open_catalog
from ottla.tables.settings import CatalogSettings


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
