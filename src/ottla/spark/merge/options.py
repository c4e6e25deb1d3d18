"""A table that merges: as the definitions of a pipeline declare it, and as options of its sink."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.tables.catalog import CATALOG_FILE, open_catalog
from ottla.tables.keyed_table import NAMESPACE, History, KeyedTable, load_keyed_table
from ottla.tables.settings import CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

TABLE: Final = "mergeTable"
DIRECTORY: Final = ".merged"
_WAREHOUSE: Final = "mergeWarehouse"
_KEYS: Final = "mergeKeys"
_COLUMNS: Final = "mergeColumns"
_EXCEPT: Final = "mergeExcept"
_AGAIN: Final = "mergeAgain"
_HISTORY: Final = "mergeHistory"


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Where the changes go, and which of their columns: all without `columns`, other than `without`."""

    table: str
    warehouse: str
    keys: tuple[str, ...]
    columns: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    is_again: bool = False
    """Whether changes are read again: the table goes on as it is."""
    history: History | None = None
    """What of a row is tracked, if the table has its history (SCD type 2)."""

    def to_spark(self) -> dict[str, str]:
        return {
            TABLE: self.table,
            _WAREHOUSE: self.warehouse,
            _KEYS: json.dumps(self.keys),
            _COLUMNS: json.dumps(self.columns),
            _EXCEPT: json.dumps(self.without),
            _AGAIN: json.dumps(self.is_again),
            _HISTORY: json.dumps(None if self.history is None else asdict(self.history)),
        }

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> MergeOptions:
        given = {name.lower(): value for name, value in options.items()}

        def names(option: str) -> tuple[str, ...]:
            return tuple(json.loads(given[option.lower()]))

        return cls(
            given[TABLE.lower()],
            given[_WAREHOUSE.lower()],
            names(_KEYS),
            names(_COLUMNS),
            names(_EXCEPT),
            json.loads(given[_AGAIN.lower()]),
            _history(json.loads(given[_HISTORY.lower()])),
        )

    def selects(self, column: str) -> bool:
        """Whether a column of the changes is one of the table."""
        lower = column.lower()
        if lower in map(str.lower, self.keys):
            return True
        if self.columns:
            return lower in map(str.lower, self.columns)
        return lower not in map(str.lower, self.without)

    def open(self) -> KeyedTable:
        directory = Path(self.warehouse)
        catalog = _catalog(directory, create=True)
        location = _location(directory, self.table)
        return KeyedTable(catalog, self.table, self.keys, location, history=self.history)


def _history(document: Mapping[str, Sequence[str]] | None) -> History | None:
    return None if document is None else History(**{name: tuple(each) for name, each in document.items()})


def merged_warehouse(warehouse: Path) -> Path:
    """Where the tables that merge are, beside the others of a project."""
    return warehouse / DIRECTORY


def _location(directory: Path, name: str) -> str:
    return f"file://{directory}/{name}"


def _catalog(directory: Path, *, create: bool) -> Catalog:
    return open_catalog(CatalogSettings(warehouse=str(directory), namespace=NAMESPACE), create=create)


def merged_names(warehouse: Path) -> list[str]:
    """The names of the tables of a project that merge."""
    directory = merged_warehouse(warehouse)
    if not (directory / CATALOG_FILE).exists():
        return []
    catalog = _catalog(directory, create=False)
    if not catalog.namespace_exists(NAMESPACE):
        return []
    return sorted(name for _, name in catalog.list_tables(NAMESPACE))


def merged_table(warehouse: Path, name: str) -> Table:
    """A table of a project that merges. Raises TableError if its files are elsewhere."""
    directory = merged_warehouse(warehouse)
    return load_keyed_table(_catalog(directory, create=False), name, _location(directory, name))


def data_files(table: Any) -> Sequence[str]:
    """The files that have the rows of a table now: of Parquet, as nothing but whole files is deleted."""
    return [task.file.file_path for task in table.scan().plan_files()]
