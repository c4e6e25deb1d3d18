"""Run one case's pipeline on a session of Spark that serves many cases.

The session's catalog is shared, so what a case has put there is taken out before the next one begins; the
files are in directories of the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from ottla.spark.merge.options import merged_names, merged_table
from ottla.spark.pipelines.progress import PipelineProgress
from ottla.spark.pipelines.project import Project, spark_location
from ottla.spark.pipelines.query_listener import listen_to_queries
from ottla.spark.pipelines.runner import run_once
from ottla.spark.pipelines.selection import Selection
from ottla.spark.pipelines.tables import PipelineTables, TableListener
from ottla.tables.keyed_table import keyed_rows

TEST_SETTINGS: Final = {
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a test, where the project has none: a flow that fails does so at once."""


@dataclass(frozen=True, slots=True)
class CaseDirectories:
    """The directories of one case: checkpoints, tables, and the catalog file."""

    root: Path

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def project(self, project: Project) -> Project:
        """The project with its checkpoints and tables in this directory."""
        storage = spark_location(self.storage.resolve())
        return replace(project, storage=storage, case_warehouse=self.warehouse)


class WarmSession:
    """A session of Spark, and which tables of the current case it knows."""

    def __init__(self, spark: Any, context: Any, log: IO[str] | None) -> None:
        self._spark = spark
        self._context = context
        self._log = log
        self._tables: PipelineTables | None = None
        self._warehouse: Path | None = None
        self._settings: set[str] = set()

    @property
    def spark(self) -> Any:
        return self._spark

    def run(
        self, project: Project, directories: CaseDirectories, configuration: Mapping[str, str]
    ) -> PipelineProgress:
        """Run the pipeline once. Raises RunFailed with the flow that failed."""
        there = directories.project(project)
        self._warehouse = there.warehouse
        if self._tables is None:
            self._tables = PipelineTables(there, directories.warehouse, directories.state)
        settings = {**TEST_SETTINGS, **configuration}
        self._settings |= set(settings)
        progress = PipelineProgress()
        self._tables.begin_run(self._spark, Selection())
        try:
            with listen_to_queries(self._context, progress):
                run_once(
                    self._spark,
                    there,
                    settings,
                    progress,
                    selection=Selection(),
                    output=self._log,
                    listener=TableListener(self._tables, self._spark, self._context),
                )
        finally:
            self._tables.end_run(self._context, progress)
        return progress

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table, times in UTC."""
        if self._warehouse is not None and table in merged_names(self._warehouse):
            merged: list[dict[str, Any]] = keyed_rows(merged_table(self._warehouse, table)).to_pylist()
            return merged
        self._spark.catalog.refreshTable(table)
        found: list[dict[str, Any]] = self._spark.table(table).toArrow().to_pylist()
        return found

    def forget_tables(self) -> None:
        """Take all tables out of the catalog, without their files, so that a run reads the catalog file."""
        self._tables = None
        for database in self._spark.catalog.listDatabases():
            name = database.name
            for table in self._spark.catalog.listTables(name):
                if not table.isTemporary:
                    self._spark.sql(f"DROP TABLE IF EXISTS `{name}`.`{table.name}`")
            if name != "default":
                self._spark.sql(f"DROP DATABASE IF EXISTS `{name}` CASCADE")

    def end_case(self) -> None:
        """Forget the tables and the settings of a case."""
        self.forget_tables()
        for name in self._settings:
            self._spark.conf.unset(name)
        self._settings.clear()
