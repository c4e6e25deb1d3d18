"""The Iceberg catalog: an SQL one in a file by default, so that no server is needed, or a REST catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.disk import RealDisk
from ottla.tables.errors import TableError
from ottla.tables.settings import CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


CATALOG_FILE = "catalog.db"
# A catalog has two tables, and each may be created by another process between a look and the attempt.
_ATTEMPTS: Final = 5


def catalog_properties(settings: CatalogSettings) -> dict[str, str]:
    """The properties for `pyiceberg.catalog.load_catalog`, and so for a client that reads the tables."""
    properties = {"type": settings.type, **settings.properties}
    if settings.uri is not None:
        properties["uri"] = settings.uri
    elif settings.type == "sql":
        if not settings.is_local:
            raise TableError(
                "table.catalog.uri is not set: an SQL catalog is a file in table.catalog.warehouse only "
                "where that is a directory"
            )
        # Another broker may hold the file while it commits; SQLite waits for so many seconds.
        properties["uri"] = f"sqlite:///{settings.warehouse}/{CATALOG_FILE}?timeout=60"
    if settings.warehouse is not None:
        properties["warehouse"] = f"file://{settings.warehouse}" if settings.is_local else settings.warehouse
    return properties


def has_catalog(settings: CatalogSettings) -> bool:
    """Whether the catalog is there, if it is one that would be a file."""
    if not settings.is_local or settings.uri is not None:
        return True
    return RealDisk().exists(f"{settings.warehouse}/{CATALOG_FILE}")


def open_catalog(settings: CatalogSettings, *, create: bool = False) -> Catalog:
    """Open the catalog. TableError if it cannot be; with `create` a missing directory is made."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise TableError(f"tables need {error.name}: pip install 'ottla[tables]'") from None
    if settings.is_local and settings.uri is None:
        assert settings.warehouse is not None
        if create:
            RealDisk().make_dirs(settings.warehouse)
        elif not has_catalog(settings):
            raise TableError(
                f"there is no catalog in {settings.warehouse}: no topic with table.format=iceberg has been "
                "kept there"
            )
    from sqlalchemy.exc import DatabaseError

    properties: dict[str, Any] = catalog_properties(settings)
    for _ in range(_ATTEMPTS):
        try:
            return load_catalog(settings.name, **properties)
        except DatabaseError as error:
            # Another process creates the tables of a new catalog at the same time.
            if "already exists" not in str(error):
                raise
    return load_catalog(settings.name, **properties)
