"""Remember a project's tables from run to run.

Spark's own catalog lives in memory: in the next process the tables are unknown, while their files are in the
warehouse and their checkpoints say that everything was read. Projects with a real catalog name it in their
specification. For all others this keeps a file with the definitions of the tables and restores them before a
run. Tables that a run computes from scratch, as Spark does with every materialized view, are removed instead,
as Spark itself would do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ottla.spark.pipelines.project import CHECKPOINTS, Project, ProjectError
from ottla.spark.pipelines.runner import Selection

FILE: Final = "catalog.json"
_OWN_CATALOG: Final = ("spark.sql.catalogImplementation", "spark.sql.catalog.spark_catalog")


def is_needed(project: Project, settings: Mapping[str, str]) -> bool:
    """Whether no other catalog remembers the tables, and whether they are on this machine."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    spec = yaml.safe_load(project.spec.read_text())
    return (
        not spec.get("catalog")
        and not any(name in settings for name in _OWN_CATALOG)
        and project.storage_path is not None
    )


def restore(spark: Any, warehouse: Path, state: Path, selection: Selection) -> None:
    """Make the tables of earlier runs known, and remove those that this run computes from scratch.

    Nothing is removed outside of the warehouse, and no streaming table unless it is selected by name.
    """
    for entry in _read_entries(state / FILE):
        location = Path(entry["location"])
        if not location.is_dir():
            continue
        table = entry["table"]
        is_recomputed = not entry["streaming"] and selection.includes(table)
        if (is_recomputed or selection.recomputes(table)) and location.is_relative_to(warehouse):
            shutil.rmtree(location)
            continue
        if entry["database"] != "default":
            spark.sql(f"CREATE DATABASE IF NOT EXISTS `{entry['database']}`")
        name = f"`{entry['database']}`.`{table}`"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} {entry['ddl']} LOCATION '{location.as_uri()}'")


def remember(context: Any, project: Project, state: Path) -> None:
    """Save the tables that exist now. It asks the JVM directly, as SQL would have to be parsed and planned
    for each table.
    """
    before = {(entry["database"], entry["table"]): entry for entry in _read_entries(state / FILE)}
    entries = [
        {**entry, "streaming": is_streaming(project, entry, before.get((entry["database"], entry["table"])))}
        for entry in _tables(context)
    ]
    if not entries and not before:
        return
    state.mkdir(parents=True, exist_ok=True)
    draft = state / (FILE + ".tmp")
    draft.write_text(json.dumps({"version": 1, "tables": entries}, indent=2))
    draft.replace(state / FILE)


def is_streaming(project: Project, entry: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a table is a streaming table, which continues, and not a materialized view, which is computed
    from scratch. A streaming table has a checkpoint, or the log that Spark keeps beside files that a stream
    has written. Once recognised, it stays one.
    """
    if before is not None and before["streaming"]:
        return True
    storage = project.storage_path
    has_checkpoint = storage is not None and any((storage / CHECKPOINTS).glob(f"*/*/{entry['table']}"))
    return has_checkpoint or (Path(entry["location"]) / "_spark_metadata").exists()


def _tables(context: Any) -> Iterator[dict[str, str]]:
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    assert session is not None
    external = session._jsparkSession.sharedState().externalCatalog()
    as_java = context._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    for database in as_java(external.listDatabases()):
        for name in as_java(external.listTables(database)):
            table = external.getTable(database, name)
            location = (
                None if table.storage().locationUri().isEmpty() else _directory(table.location().toString())
            )
            if location is not None and table.provider().isDefined():
                columns = [f"`{column}`" for column in as_java(table.partitionColumnNames())]
                partitioned = f" PARTITIONED BY ({', '.join(columns)})" if columns else ""
                yield {
                    "database": database,
                    "table": name,
                    "location": str(location),
                    "ddl": f"({table.schema().toDDL()}) USING {table.provider().get()}{partitioned}",
                }


def _directory(uri: str) -> Path | None:
    """The directory on this machine; None for another location."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") and parts.path else None


def _read_entries(file: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(file.read_text())["tables"])
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise ProjectError(
            f"{file} is damaged ({error}); remove it with the tables in spark-warehouse/, and run with "
            "--full-refresh-all"
        ) from None
