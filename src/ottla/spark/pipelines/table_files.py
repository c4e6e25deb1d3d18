"""Read the tables of a project from their files, without Spark.

Readers open a table through its link in the warehouse; see `ottla.spark.pipelines.tables`. The link is
followed once: the version that it leads to stays for a while after another has replaced it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ottla.spark.merge.options import merged_names, merged_table
from ottla.spark.pipelines.project import ProjectError
from ottla.spark.pipelines.tables import committed_files, table_directories
from ottla.tables.errors import TableError
from ottla.tables.keyed_table import keyed_rows

_FORMATS: Final = {".parquet": "parquet", ".orc": "orc", ".csv": "csv", ".json": "json"}
_ATTEMPTS: Final = 5
NO_PYARROW: Final = "PyArrow, which reads the files of tables, is not installed; `pip install 'ottla[spark]'`"
_HIDDEN: Final = (".", "_")


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table, and how many it has."""

    columns: list[str]
    rows: list[dict[str, Any]]
    total: int


def list_tables(warehouse: Path) -> dict[str, Path]:
    """The directories of the tables by their names; those of other databases have a prefix."""
    return {
        directory.name if database == "default" else f"{database}.{directory.name}": directory
        for database, directory in table_directories(warehouse)
    }


def read_rows(warehouse: Path, table: str, limit: int) -> TableRows:
    """The first rows of a table, of files that were committed. A full refresh at the same time moves them;
    then they are found in their new place.
    """
    merged = merged_names(warehouse)
    for name in merged:
        if name.lower() == table.lower():
            return _read_merged(warehouse, name, limit)
    for _ in range(_ATTEMPTS):
        found = list_tables(warehouse)
        spelled = {name.lower(): each for name, each in found.items()}
        directory = spelled.get(table.lower().removeprefix("default."))
        if directory is None:
            known = (
                f"there are {', '.join(sorted({*found, *merged}))}"
                if found or merged
                else "no run has completed yet; start one with `ottla pipeline run`"
            )
            raise ProjectError(f"there is no table {table}; {known}")
        try:
            return _read_directory(directory.resolve(), table, limit)
        except FileNotFoundError:
            continue
    raise ProjectError(f"the files of table {table} change while they are read; try again")


def _read_merged(warehouse: Path, name: str, limit: int) -> TableRows:
    try:
        rows = keyed_rows(merged_table(warehouse, name))
    except TableError as error:
        raise ProjectError(str(error)) from None
    return TableRows(rows.column_names, rows.slice(0, limit).to_pylist(), rows.num_rows)


def _read_directory(directory: Path, table: str, limit: int) -> TableRows:
    files = sorted(_data_files(directory))
    if not files:
        return TableRows([], [], 0)
    kind = _FORMATS.get(files[0].suffix)
    if kind is None:
        raise ProjectError(f"files as {files[0].name} are read by Spark: ottla pipeline sql 'TABLE {table}'")
    try:
        from pyarrow import dataset, unify_schemas
    except ImportError:
        raise ProjectError(NO_PYARROW) from None
    open_files = partial(
        dataset.dataset,
        [str(file) for file in files],
        format=kind,
        partitioning="hive",
        partition_base_dir=str(directory),
    )
    # A file from before a column was added has none of it: the columns are those of all files.
    first = open_files()
    of_files = (each.physical_schema for each in first.get_fragments())
    data = open_files(schema=unify_schemas([first.schema, *of_files], promote_options="permissive"))
    rows = data.head(limit).to_pylist()
    return TableRows(list(data.schema.names), rows, data.count_rows())


def newest_rows(warehouse: Path, table: str, limit: int) -> TableRows:
    """Some rows of the file that was written last, without reading the others: a look, and no answer. `total`
    is that of the file. Of a table that merges, some of its rows.
    """
    merged = {name.lower(): name for name in merged_names(warehouse)}
    if (name := merged.get(table.lower())) is not None:
        try:
            rows = keyed_rows(merged_table(warehouse, name), limit)
        except TableError as error:
            raise ProjectError(str(error)) from None
        return TableRows(rows.column_names, rows.to_pylist(), rows.num_rows)
    directory = {name.lower(): each for name, each in list_tables(warehouse).items()}.get(table.lower())
    if directory is None:
        raise ProjectError(f"there is no table {table}")
    try:
        from pyarrow import parquet

        files = [file for file in _data_files(directory.resolve()) if file.suffix == ".parquet"]
        if not files:
            return TableRows([], [], 0)
        with parquet.ParquetFile(max(files, key=lambda file: file.stat().st_mtime_ns)) as file:
            first = next(file.iter_batches(batch_size=limit), None)
            found = [] if first is None else first.to_pylist()
            return TableRows(list(file.schema_arrow.names), found[:limit], file.metadata.num_rows)
    except ImportError:
        raise ProjectError(NO_PYARROW) from None
    except FileNotFoundError:
        raise ProjectError(f"the files of table {table} change while they are read; try again") from None


def format_of(directory: Path) -> str | None:
    """How the files of a table are written, as Spark names it; None without files."""
    first = next(_data_files(directory), None)
    return None if first is None else first.suffix.removeprefix(".") or "text"


def _data_files(directory: Path) -> Iterator[Path]:
    committed = committed_files(directory)
    for file in directory.rglob("*"):
        parts = file.relative_to(directory).parts
        if any(part.startswith(_HIDDEN) for part in parts) or not file.is_file() or not file.stat().st_size:
            continue
        if committed is None or file.name in committed:
            yield file
