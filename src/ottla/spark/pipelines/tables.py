"""The tables of a project: where their files are, and which of them a run continues or computes again.

Spark's own catalog lives in memory: in the next process the tables are unknown, while their files are on disk
and their checkpoints say that everything was read. Projects with a real catalog name it in their
specification; for all others this keeps a file with the definitions of the tables.

Nothing is computed in place. A run creates its tables in a directory of its own, a *version*:

    spark-warehouse/
      orders -> .versions/1/orders        what readers open: a link to the version that is complete
      turnover -> .versions/7/turnover
      .versions/1/orders                  a streaming table stays in the version that created it
      .versions/7/turnover                a materialized view gets a new one in each run

So the last complete result stays readable while a run computes the next, a run that fails or is killed
leaves nothing that the next one stumbles over, and a link is changed only when a flow is complete. A
streaming table never moves, as streams that read it know its files by their paths: for a full refresh its
former content goes to another directory, and the link with it.

Invariants:

* the catalog file names for each streaming table the directory that its checkpoint belongs to. It is written
  before the first flow of a run starts to write, so a kill at any moment loses no table;
* a full refresh that was begun and not recorded as done is begun again by the next run. Of sinks it is noted
  which number their checkpoints get, so that they begin again once, and write everything once;
* a directory that neither the catalog file nor a link names is not needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ottla.spark.pipelines.checkpoints import begin_checkpoints, sink_checkpoints
from ottla.spark.pipelines.moved_project import FILE_SINK_LOG, move_paths
from ottla.spark.pipelines.plan import Definitions
from ottla.spark.pipelines.progress import FlowState, PipelineProgress
from ottla.spark.pipelines.project import CHECKPOINTS, SPEC_NAMES, Project, ProjectError, spark_location
from ottla.spark.pipelines.runner import RunListener
from ottla.spark.pipelines.selection import Selection, UnknownTables, table_key

FILE: Final = "catalog.json"
VERSIONS: Final = ".versions"
_DEFAULT_DATABASE: Final = "default"
WAREHOUSE: Final = "spark.sql.warehouse.dir"
_OWN_CATALOG: Final = ("spark.sql.catalogImplementation", "spark.sql.catalog.spark_catalog")
_STRAY: Final = ".stray-"
# The place of the table's type among the fields of Spark's CatalogTable.
_TABLE_TYPE: Final = 1
UNUSED_SECONDS: Final = 600.0
_FORMATS: Final = ("parquet", "orc", "json", "csv", "avro", "text", "xml")


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table as the catalog file has it. `ddl` is empty if Spark is to find the columns in the files.

    A streaming table continues with each run; any other is a materialized view, which is computed again.
    """

    database: str
    table: str
    location: str
    ddl: str
    streaming: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.database, self.table

    @property
    def name(self) -> str:
        """The name for SQL."""
        return f"`{self.database}`.`{self.table}`"


def has_own_catalog(project: Project, settings: Mapping[str, str]) -> bool:
    """Whether another catalog remembers the tables."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    spec = yaml.safe_load(project.spec.read_text())
    return bool(spec.get("catalog") or any(name in settings for name in _OWN_CATALOG))


def local_warehouse(project: Project, conf: Mapping[str, str]) -> Path:
    """The directory of the tables on this machine. Raises ProjectError where `conf` has it elsewhere."""
    given = conf.get(WAREHOUSE)
    if given is None:
        return project.warehouse
    if (local := _directory(given)) is None:
        raise ProjectError(
            f"{WAREHOUSE}={given}: no catalog would remember tables that are not on this machine, and the "
            "next run could not continue them. Name a catalog in the specification (`catalog: NAME`), or "
            "omit the setting"
        )
    return local.resolve()


class PipelineTables:
    """The tables of one project over the runs of one process, which holds the lock of the project.

    For each run: `begin_run`, then the calls of the runner, then `end_run`.
    """

    def __init__(self, project: Project, warehouse: Path, state: Path) -> None:
        self._project = project
        self._base = warehouse
        self._file = state / FILE
        self._entries, self._pending, self._pending_sinks = _read(self._file)
        self._selection = Selection()
        self._declared: dict[str, bool] = {}  # by `table_key`: whether it is a streaming table
        self._registered: set[tuple[str, str]] = set()
        self._is_recorded = False
        self._version = self._base

    @property
    def unfinished_refresh(self) -> list[str]:
        """The tables whose full refresh an earlier run has begun, and may not have finished."""
        return sorted(self._pending)

    @property
    def unfinished_sinks(self) -> list[str]:
        """The flows into sinks, `SINK/FLOW`, that an earlier run was asked to begin again."""
        return sorted(self._pending_sinks)

    def finish_sinks(self) -> None:
        """Let the flows into sinks begin again that an earlier run, or this one, was asked to."""
        if self._pending_sinks and (storage := self._project.storage_path) is not None:
            begin_checkpoints(storage / CHECKPOINTS, self._pending_sinks)
            self._pending_sinks.clear()
            self._write()

    # Before a run.

    def begin_run(self, spark: Any, selection: Selection) -> None:
        """Make the tables known that the run continues or reads. Those that it computes again are left out,
        so that Spark creates them in the version of this run; their files stay.
        """
        self._check_owner()
        self._selection = selection
        self._declared.clear()
        self._is_recorded = False
        self._version = self._new_version(selection)
        databases = {_DEFAULT_DATABASE, *(database for database, _ in self._entries)}
        for database in sorted(databases):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
            directory = self._version / ("" if database == _DEFAULT_DATABASE else f"{database}.db")
            directory.mkdir(exist_ok=True)
            spark.sql(f"ALTER DATABASE `{database}` SET LOCATION '{spark_location(directory)}'")
        for entry in self._entries.values():
            self._restore(spark, entry)
        self._check_checkpoints()

    def _check_owner(self) -> None:
        """Refuse tables of another project: a copy of a project names the files of the original. Take over
        those of a project that was moved.
        """
        is_moved = False
        for entry in list(self._entries.values()):
            base = next((each.parent for each in Path(entry.location).parents if each.name == VERSIONS), None)
            if base is None or base == self._base:
                continue
            if any((base.parent / name).exists() for name in SPEC_NAMES):
                raise ProjectError(
                    f"table {entry.table} is one of {base.parent}, of which this project is a copy. In the "
                    f"copy, remove {self._file.parent.name}/ and {self._base.name}/, and name a new storage; "
                    "its tables are then computed from the beginning"
                )
            here = self._base / Path(entry.location).relative_to(base)
            if base.exists() or not here.is_dir():
                continue  # the warehouse alone is in another place, or has not come along
            move_paths(base, self._base, self._project.storage_path)
            self._entries[entry.key] = replace(entry, location=str(here))
            is_moved = True
        if is_moved:
            self._write()

    def _new_version(self, selection: Selection) -> Path:
        """The directory for the tables that this run creates."""
        versions = self._base / VERSIONS
        versions.mkdir(parents=True, exist_ok=True)
        self._adopt_unrecorded_tables(selection)
        self._remove_unused()
        taken = [int(each.name) for each in versions.iterdir() if each.name.isdecimal()]
        version = versions / str(max(taken, default=0) + 1)
        version.mkdir()
        return version

    def _adopt_unrecorded_tables(self, selection: Selection) -> None:
        """Find streaming tables that a run has created, and written to, right before it was killed."""
        for root in (self._base, *sorted((self._base / VERSIONS).iterdir())):
            for database, directory in table_directories(root):
                key = database, directory.name
                if key in self._entries or directory.is_symlink():
                    continue
                if table_key(directory.name) in self._pending or selection.recomputes(directory.name):
                    continue
                if committed_files(directory) is not None:
                    found = TableEntry(*key, str(directory), _format_of(directory), streaming=True)
                    self._entries[key] = found

    def _remove_unused(self) -> None:
        """Remove the versions of tables that neither the catalog file nor a link names any more. Young ones
        stay for a while: a reader may have found them through the link.
        """
        used = {Path(entry.location) for entry in self._entries.values()}
        used |= {_target(link) for _, link in table_directories(self._base) if link.is_symlink()}
        for version in (self._base / VERSIONS).iterdir():
            if time.time() - version.stat().st_mtime < UNUSED_SECONDS:
                continue  # `_publish` touches a version when a link leaves it
            for _, directory in list(table_directories(version)):
                if directory not in used:
                    shutil.rmtree(directory, ignore_errors=True)
            for empty in [*version.glob("*.db"), version]:
                with contextlib.suppress(OSError):
                    empty.rmdir()

    def _restore(self, spark: Any, entry: TableEntry) -> None:
        streaming = entry.streaming or _has_stream(self._project, entry)
        table, location = entry.table, Path(entry.location)
        is_computed = self._selection.recomputes(table) or (not streaming and self._selection.includes(table))
        if is_computed:
            if entry.key in self._registered:
                spark.sql(f"DROP TABLE IF EXISTS {entry.name}")
                self._registered.discard(entry.key)
            return
        if not location.is_dir():
            if streaming:
                raise ProjectError(
                    f"the files of table {table} are gone ({location}), but its checkpoint says that its "
                    f"rows were written; `ottla pipeline run --full-refresh {table}` computes it again"
                )
            return
        if entry.key in self._registered:
            return
        if streaming:
            _set_strays_aside(location)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {entry.name} {entry.ddl} LOCATION '{spark_location(location)}'"
        )
        self._registered.add(entry.key)

    def _check_checkpoints(self) -> None:
        """Refuse to continue a checkpoint whose table is unknown: rows that it counts as written would be
        missing.
        """
        storage = self._project.storage_path
        if storage is None:
            return
        for entry in self._entries.values():
            if entry.streaming and not self._selection.recomputes(entry.table):
                _check_batches(entry, storage / CHECKPOINTS)
        known = {(database.lower(), table.lower()) for database, table in self._entries}
        for database, table in sorted(_tables_with_commits(storage / CHECKPOINTS)):
            is_known = (database.lower(), table.lower()) in known
            if not is_known and not self._selection.recomputes(table):
                raise ProjectError(
                    f"table {table} has a checkpoint in {storage / CHECKPOINTS}, but its files are gone; "
                    f"`ottla pipeline run --full-refresh {table}` computes it again"
                )

    # During a run, called by the runner.

    def on_definitions_loaded(self, spark: Any, context: Any, definitions: Definitions) -> None:
        """Prepare a full refresh, now that the definitions are known to be sound. It is noted first: Spark
        resets checkpoints before it creates tables.
        """
        self._check_flows(definitions)
        selection = self._selection
        if not (selection.full_refresh_all or selection.full_refresh or selection.sinks):
            return
        self._pending_sinks |= next_checkpoints(self._project, selection)
        recomputed = [table for _, table in self._entries if selection.recomputes(table)]
        self._pending |= {table_key(name) for name in (*selection.full_refresh, *recomputed)}
        self._write()
        if selection.sinks:
            self.finish_sinks()
        for entry in list(self._entries.values()):
            if selection.recomputes(entry.table) and self._declared.get(table_key(entry.table), False):
                self._empty(spark, context, entry)

    def _check_flows(self, definitions: Definitions) -> None:
        """Refuse a second stream into a table of files: Spark takes its batches for those of the first, which
        are in the table already, and leaves them out without an error.
        """
        flows_by_table: dict[str, list[str]] = {}
        for flow in definitions.flows:
            flows_by_table.setdefault(table_key(flow.target), []).append(flow.name)
        for table, flows in flows_by_table.items():
            if len(flows) > 1 and table in definitions.streaming:
                raise ProjectError(
                    f"table {table} has {len(flows)} flows, {', '.join(flows)}: a table of files takes "
                    "one, as Spark would leave out rows of the others. What works: one flow with `union`, or "
                    "a table for each flow and a view over them. (Sinks take many flows.)"
                )

    def _empty(self, spark: Any, context: Any, entry: TableEntry) -> None:
        """Empty a streaming table where it is, with its former content in another place for readers."""
        location = Path(entry.location)
        public = self._public_path(location)
        if public is not None and public.is_symlink() and _target(public) == location and location.is_dir():
            former = self._version.with_name(f"{self._version.name}-former") / public.relative_to(self._base)
            shutil.copytree(location, former, copy_function=os.link, ignore=_hidden)
            _publish(public, former, self._base / VERSIONS)
        shutil.rmtree(location, ignore_errors=True)
        if entry.ddl.startswith("USING"):
            return  # its columns were to be found in its files
        location.mkdir(parents=True)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {entry.name} {entry.ddl} LOCATION '{spark_location(location)}'"
        )
        self._registered.add(entry.key)
        for table in _spark_tables(context):
            if table.entry.key == entry.key:
                table.set_managed(managed=True)  # Spark truncates no other tables

    def on_table_defined(self, spark: Any, name: str, *, streaming: bool) -> None:
        """Note the kind of a table that the definitions declare. A streaming table that has become a view is
        computed from scratch.
        """
        table = table_key(name)
        self._declared[table] = streaming
        for key in [key for key in self._registered if table_key(key[1]) == table and key in self._entries]:
            if self._entries[key].streaming and not streaming:
                spark.sql(f"DROP TABLE IF EXISTS {self._entries[key].name}")
                self._registered.discard(key)

    def changed_types(self, spark: Any, columns: Mapping[str, Mapping[str, str]]) -> list[str]:
        """The columns of streaming tables that have another type now; `columns` are the types of the columns
        that each table would get.
        """
        found = []
        for entry in self._entries.values():
            given = columns.get(table_key(entry.table), {})
            if not entry.streaming or entry.key not in self._registered or not given:
                continue
            for column in spark.table(entry.name).schema.fields:
                then, now = column.dataType.simpleString(), given.get(column.name)
                if now is not None and now != then:
                    found.append(
                        f"table {entry.table}: column {column.name} is {then} in its files, and {now} in the "
                        f"definitions now. Cast it to {then}, give it another name, or compute the table "
                        f"again: `ottla pipeline run --full-refresh {entry.table}`"
                    )
        return found

    def on_flow_started(self, context: Any) -> None:
        """Record the tables before the first flow writes; Spark has created all of them by then."""
        if not self._is_recorded:
            self._is_recorded = True
            self._record(context, {})

    # After a run.

    def end_run(self, context: Any, progress: PipelineProgress) -> None:
        """Record the tables, and let readers see the results of the flows that are complete."""
        done = {name.lower(): flow.state is FlowState.COMPLETED for name, flow in progress.flows.items()}
        for table in _spark_tables(context):
            table.set_managed(managed=False)  # a later run may let Spark forget it, without its files
            self._registered.add(table.entry.key)
        self._record(context, done)

    def _record(self, context: Any, done: Mapping[str, bool]) -> None:
        for table in _spark_tables(context):
            found = table.entry
            streaming = self._is_streaming(found)
            location = Path(found.location)
            is_new = location.is_relative_to(self._version)
            if is_new and not streaming and not _is_done(found.table, done):
                continue  # a view that is not complete: the one before stays
            self._entries[found.key] = replace(found, streaming=streaming)
            public = self._public_path(location)
            if public is not None and (_is_done(found.table, done) or not os.path.lexists(public)):
                _publish(public, location, self._base / VERSIONS)
        if self._is_recorded:
            self._pending.clear()
            self._pending_sinks.clear()
        self._write()

    def _public_path(self, location: Path) -> Path | None:
        """The link for readers to a table in one of the versions; None for a table elsewhere."""
        versions = self._base / VERSIONS
        if not location.is_relative_to(versions):
            return None
        return self._base.joinpath(*location.relative_to(versions).parts[1:])

    def _is_streaming(self, found: TableEntry) -> bool:
        declared = self._declared.get(table_key(found.table))
        if declared is not None:
            return declared
        before = self._entries.get(found.key)
        return (before is not None and before.streaming) or _has_stream(self._project, found)

    def _write(self) -> None:
        if not (self._entries or self._pending or self._pending_sinks or self._file.exists()):
            return
        document = {
            "version": 2,
            "tables": [asdict(entry) for entry in self._entries.values()],
            "full_refresh": sorted(self._pending),
            "full_refresh_sinks": self._pending_sinks,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        with draft.open("w") as file:
            json.dump(document, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)


def name_sinks(selection: Selection, project: Project) -> Selection:
    """Tell the sinks among the tables that a run is asked to refresh: those with a checkpoint of a sink."""
    storage = project.storage_path
    found = {} if storage is None else sink_checkpoints(storage / CHECKPOINTS)
    known = {table_key(flow.split("/")[0]) for flow in found}
    sinks = [name for name in selection.full_refresh if table_key(name) in known]
    if not sinks:
        return selection
    if selection.refresh:
        raise UnknownTables(f"{sinks[0]} is a sink: its flows run with all others, without --refresh")
    tables = tuple(name for name in selection.full_refresh if name not in sinks)
    return replace(selection, full_refresh=tables, sinks=tuple(sinks))


def next_checkpoints(project: Project, selection: Selection) -> dict[str, int]:
    """The numbers that the checkpoints of flows into sinks get when the run lets them begin again."""
    storage = project.storage_path
    wanted = set(map(table_key, selection.sinks))
    return {
        flow: number + 1
        for flow, number in ({} if storage is None else sink_checkpoints(storage / CHECKPOINTS)).items()
        if selection.full_refresh_all or table_key(flow.split("/")[0]) in wanted
    }


class TableListener(RunListener):
    """Passes the events of a run to the tables of its project."""

    def __init__(self, tables: PipelineTables, spark: Any, context: Any) -> None:
        self._tables = tables
        self._spark = spark
        self._context = context

    def on_table_defined(self, name: str, *, streaming: bool) -> None:
        self._tables.on_table_defined(self._spark, name, streaming=streaming)

    def on_definitions_loaded(self, definitions: Definitions, graph: str) -> None:
        self._tables.on_definitions_loaded(self._spark, self._context, definitions)

    def on_flow_started(self) -> None:
        self._tables.on_flow_started(self._context)


def _is_done(table: str, flows: Mapping[str, bool]) -> bool:
    """Whether the flow of this name is complete; of a table with flows of other names, whether all are."""
    return flows.get(table.lower(), bool(flows) and all(flows.values()))


# Directories.


def table_directories(root: Path) -> Iterator[tuple[str, Path]]:
    """(database, directory or link) of each table in a warehouse: `TABLE`, or `DATABASE.db/TABLE`."""
    if not root.is_dir():
        return
    for each in sorted(root.iterdir()):
        if each.name.startswith((".", "_")) or not each.is_dir():
            continue
        if each.suffix == ".db" and not each.is_symlink():
            yield from (
                (each.stem, table)
                for table in sorted(each.iterdir())
                if table.is_dir() and not table.name.startswith((".", "_"))
            )
        else:
            yield _DEFAULT_DATABASE, each


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / os.readlink(link)))


def _publish(public: Path, location: Path, versions: Path) -> None:
    """Let `public` lead to a new version of a table, at once. A directory that earlier releases wrote there
    is moved aside first.
    """
    if public.is_symlink() and _target(public) == location:
        return
    public.parent.mkdir(parents=True, exist_ok=True)
    if public.is_dir() and not public.is_symlink():
        aside = versions / "0"
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / public.name, ignore_errors=True)
        public.rename(aside / public.name)
    link = public.with_name(f".{public.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(location, public.parent))
    former = _target(public) if public.is_symlink() else None
    link.replace(public)
    if former is not None and former.is_relative_to(versions):
        with contextlib.suppress(FileNotFoundError):
            os.utime(versions / former.relative_to(versions).parts[0])  # its time as unused begins now


def _hidden(_: str, names: list[str]) -> list[str]:
    """Files that readers of a table pass over, among them the stream's log with the paths of the files."""
    return [name for name in names if name.startswith((".", "_"))]


def _has_stream(project: Project, entry: TableEntry) -> bool:
    """Whether a table is written by a stream: it has a checkpoint, or the log that Spark keeps beside files
    that a stream has written.
    """
    storage = project.storage_path
    has_checkpoint = storage is not None and any(
        each.name.lower() == entry.table.lower() for each in (storage / CHECKPOINTS).glob("*/*/*")
    )
    return has_checkpoint or (Path(entry.location) / FILE_SINK_LOG).exists()


def _flow_directories(entry: TableEntry, checkpoints: Path) -> list[Path]:
    """The checkpoints of the flows into a table, `CATALOG/DATABASE/TABLE/FLOW` in the spelling of the
    definitions.
    """
    wanted = [entry.database.lower(), entry.table.lower()]
    return [
        each
        for each in checkpoints.glob("*/*/*/*")
        if each.is_dir() and [part.lower() for part in each.parts[-3:-1]] == wanted
    ]


def committed_files(directory: Path) -> set[str] | None:
    """The names of the files that batches of a stream have committed; None if no batch has."""
    log = directory / FILE_SINK_LOG
    if not log.is_dir():
        return None
    found: set[str] = set()
    batches = [each for each in log.iterdir() if each.name.split(".")[0].isdecimal()]
    for batch in batches:
        for line in batch.read_text().splitlines()[1:]:
            path = unquote(urlsplit(json.loads(line)["path"]).path)
            found.add(os.path.basename(path))
    return found if batches else None


def _check_batches(entry: TableEntry, checkpoints: Path) -> None:
    """Refuse a checkpoint that is older than the files of its table, or newer. Spark counts the batches of a
    stream in both: it leaves out a batch that the files have already, whatever is in it.
    """
    of_table = _flow_directories(entry, checkpoints)
    if len(of_table) > 1:
        return  # of flows that have other names now
    numbers = [int(each.name) for flow in of_table for each in flow.iterdir() if each.name.isdecimal()]
    current = of_table[0] / str(max(numbers, default=0)) if of_table else checkpoints
    # The other way round than Spark writes them, as the query may be running.
    committed = _last_number(current / "commits")
    written = _last_number(Path(entry.location) / FILE_SINK_LOG)
    planned = _last_number(current / "offsets")
    if written is None:
        return
    if planned is None or planned < written:
        found = "is gone" if planned is None else f"ends with batch {planned}"
        problem = f"its checkpoint in {checkpoints} {found}: what comes next would be left out"
    elif committed is not None and committed > written:
        problem = f"its checkpoint has batch {committed}: what was in between is missing"
    else:
        return
    raise ProjectError(
        f"the files of table {entry.table} end with batch {written}, but {problem}. Was an older copy "
        "restored? Restore both from the same time, or compute the table again: `ottla pipeline run "
        f"--full-refresh {entry.table}`"
    )


def _last_number(directory: Path) -> int | None:
    """The number of the last batch in a log of Spark; None if it has none."""
    if not directory.is_dir():
        return None
    names = (each.name.split(".")[0] for each in directory.iterdir())
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _set_strays_aside(directory: Path) -> None:
    """Hide files that a killed batch has written and not committed from programs that read the directory.
    They are removed by the run after this one.
    """
    committed = committed_files(directory)
    if committed is None:
        return
    for file in directory.rglob("*"):
        if FILE_SINK_LOG in file.relative_to(directory).parts or not file.is_file():
            continue
        if file.name.startswith(_STRAY):
            file.unlink(missing_ok=True)
        elif not file.name.startswith((".", "_")) and file.name not in committed:
            file.rename(file.with_name(_STRAY + file.name))
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _format_of(directory: Path) -> str:
    """The clause for a table whose columns Spark finds in its files."""
    endings = {file.suffix.removeprefix(".") for file in directory.rglob("*") if file.is_file()}
    found = next((each for each in _FORMATS if each in endings), _FORMATS[0])
    return f"USING {found}"


def _tables_with_commits(checkpoints: Path) -> set[tuple[str, str]]:
    """(database, table) of the tables of which a flow has completed a batch; sinks are not here."""
    return {
        (commit.parts[-6], commit.parts[-5])
        for commit in checkpoints.glob("*/*/*/*/*/commits/*")
        if commit.name.isdecimal()
    }


# The catalog file, and Spark's catalog.


def _read(file: Path) -> tuple[dict[tuple[str, str], TableEntry], set[str], dict[str, int]]:
    try:
        document = json.loads(file.read_text())
        entries = {entry.key: entry for entry in (TableEntry(**each) for each in document["tables"])}
        pending = set(map(table_key, document.get("full_refresh", ())))
        return entries, pending, dict(document.get("full_refresh_sinks", {}))
    except FileNotFoundError:
        return {}, set(), {}
    except (ValueError, TypeError, KeyError) as error:
        raise ProjectError(
            f"{file} is damaged ({error}); remove it with the tables in spark-warehouse/, and run with "
            "--full-refresh-all"
        ) from None


class _SparkTable:
    """A table of Spark's catalog. The JVM is asked directly, as SQL would have to be parsed and planned for
    each table.
    """

    def __init__(self, context: Any, external: Any, table: Any, entry: TableEntry) -> None:
        self._context = context
        self._external = external
        self._table = table
        self.entry = entry

    def set_managed(self, *, managed: bool) -> None:
        """Set whether the files belong to the table: only then Spark removes or truncates them."""
        kinds = getattr(self._context._jvm, "org.apache.spark.sql.catalyst.catalog.CatalogTableType$")
        kind = getattr(kinds, "MODULE$")
        fields = [self._table.productElement(index) for index in range(self._table.productArity())]
        fields[_TABLE_TYPE] = kind.MANAGED() if managed else kind.EXTERNAL()
        self._external.alterTable(self._table.copy(*fields))


def _spark_tables(context: Any) -> Iterator[_SparkTable]:
    """The tables that Spark knows now, with files on this machine."""
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    assert session is not None
    external = session._jsparkSession.sharedState().externalCatalog()
    as_java = context._jvm.scala.jdk.javaapi.CollectionConverters.asJava
    for database in as_java(external.listDatabases()):
        for name in as_java(external.listTables(database)):
            table = external.getTable(database, name)
            if table.storage().locationUri().isEmpty() or not table.provider().isDefined():
                continue
            location = _directory(table.location().toString())
            if location is not None:
                columns = [f"`{column}`" for column in as_java(table.partitionColumnNames())]
                partitioned = f" PARTITIONED BY ({', '.join(columns)})" if columns else ""
                ddl = f"({table.schema().toDDL()}) USING {table.provider().get()}{partitioned}"
                entry = TableEntry(database, name, str(location), ddl, streaming=False)
                yield _SparkTable(context, external, table, entry)


def _directory(uri: str) -> Path | None:
    """The directory on this machine; None for another location."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") and parts.path else None
