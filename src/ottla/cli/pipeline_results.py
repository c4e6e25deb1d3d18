"""Show what a pipeline has computed: rows of its tables, answers to queries, the graph of its flows.

Rows are read from files, which takes no Spark; queries start one. Neither takes the lock of the project: they
read what the last complete results are, also while a run is computing the next.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.formats import readable
from ottla.cli.output import Cell, note, print_json, print_json_line, print_line, print_table, time_text
from ottla.spark.merge.options import data_files, merged_names, merged_table
from ottla.spark.pipelines.flow_graph import load_graph
from ottla.spark.pipelines.graph_picture import as_dot, as_mermaid, as_svg, as_text
from ottla.spark.pipelines.progress import readable_error
from ottla.spark.pipelines.project import Project, spark_location
from ottla.spark.pipelines.run_record import load_record, load_runs
from ottla.spark.pipelines.table_files import format_of, list_tables, read_rows
from ottla.tables.errors import TableError
from ottla.tables.keyed_table import DELETED, SPECIAL

_MAX_ERROR: Final = 100
NO_TABLES: Final = "there are no tables yet: no run has completed; start one with `ottla pipeline run`"
_WAREHOUSE: Final = "spark.sql.warehouse.dir"
_NO_TABLE: Final = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (\S+) cannot be found")
_FILES_GONE: Final = ("FAILED_READ_FILE.FILE_NOT_EXIST", "FileNotFoundException")
PICTURES: Final = {"text": as_text, "dot": as_dot, "mermaid": as_mermaid, "svg": as_svg}
_QUERY: Final = re.compile(
    r"\s*(?:SELECT|WITH|FROM|VALUES|TABLE|SHOW|DESC|DESCRIBE|EXPLAIN)\b", re.IGNORECASE
)
_NOT_CODE: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WRITES: Final = re.compile(r"\bINSERT\s+(?:INTO|OVERWRITE)\b", re.I)


def show_table(project: Project, table: str, limit: int, *, as_json: bool) -> None:
    """Print the first rows of a table."""
    found = read_rows(project.warehouse, table, limit)
    if not found.columns:
        note(f"{table} has no rows")
        return
    print_rows(found.columns, found.rows, as_json=as_json)
    if found.total > len(found.rows):
        note(f"{len(found.rows)} of {found.total:,} rows; --limit shows more")


def show_pipeline(project: Project, limit: int, *, as_json: bool) -> None:
    """Print the flows of the run that is or was the last one, and how the last runs have ended."""
    last = load_record(project.state, time.time_ns() // 1_000_000)
    runs = load_runs(project.state, limit)
    if last is None:
        raise CliError("no run has begun yet; start one with `ottla pipeline run`")
    if as_json:
        print_json({**last, "runs": runs})
        return
    took = (last["updatedMs"] - last["startedMs"]) / 1000
    note(
        f"{project.name}: {last['state']}, {last['mode']}, {took:.1f} s until {time_text(last['updatedMs'])}"
    )
    nodes = {node.name: node for node in load_graph(project.state) or []}
    print_table(
        ["flow", "into", "state", "rows read", "written", "lag", "broke a rule", "error"],
        [
            (
                flow["name"],
                nodes[flow["name"]].target if flow["name"] in nodes else None,
                flow["state"],
                flow["rows"],
                flow.get("rowsOut"),
                flow["lag"],
                sum(rule["failed"] for rule in flow["expectations"]) if flow["expectations"] else None,
                (flow["error"] or "").partition("\n")[0][:_MAX_ERROR],
            )
            for flow in last["flows"]
        ],
    )
    if runs:
        print_line("")
        print_table(
            ["run", "took", "outcome", "rows read", "to sinks", "lag", "broke a rule", "error"],
            [
                (
                    time_text(run["startedMs"]),
                    f"{(run['endedMs'] - run['startedMs']) / 1000:.1f} s",
                    run["state"],
                    run["rows"],
                    run["rowsOut"],
                    run["lag"],
                    run["broken"],
                    (run["error"] or "").partition("\n")[0][:_MAX_ERROR],
                )
                for run in runs
            ],
        )


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json_line({name: _plain(row[name]) for name in columns})
        return
    print_table(columns, [[_cell(row[name]) for name in columns] for row in rows])


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return readable(bytes(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _cell(value: Any) -> Cell:
    plain = _plain(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return plain if plain is None or isinstance(plain, str | int | float | bool) else str(plain)


def check_query(query: str) -> None:
    """Refuse statements that change something: results are written by runs alone."""
    code = _NOT_CODE.sub(" ", query)
    if not _QUERY.match(code) or _WRITES.search(code):
        raise WrongUsage("only queries are run here: SELECT, WITH, VALUES, TABLE, SHOW, DESCRIBE, EXPLAIN")


def run_query(
    project: Project,
    query: str,
    limit: int,
    *,
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
    log: IO[str] | None,
) -> None:
    """Run a query over the tables of the project, and print its rows."""
    from ottla.cli.pipeline_run import started_session

    tables = list_tables(project.warehouse)
    try:
        merged = {name: merged_table(project.warehouse, name) for name in merged_names(project.warehouse)}
    except TableError as error:
        raise CliError(str(error)) from None
    if not (tables or merged):
        raise CliError(NO_TABLES)
    with (
        TemporaryDirectory(prefix="ottla-sql-") as own,
        started_session(
            master, name=f"{project.name}: sql", conf={_WAREHOUSE: own, **conf}, log=log, short=True
        ) as (spark, _),
    ):
        from pyspark.errors import PySparkException

        logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints what is raised as well
        try:
            for name, directory in tables.items():
                _define(spark, name, directory.resolve())
            for name, table in merged.items():
                _define_merged(spark, name, table)
            answer = spark.sql(query)
            columns = list(answer.columns)
            rows = [row.asDict(recursive=True) for row in answer.limit(limit + 1).collect()]
        except PySparkException as error:
            raise CliError(query_error(str(error), [*tables, *merged])) from None
    print_rows(columns, rows[:limit], as_json=as_json)
    if len(rows) > limit:
        note(f"the first {limit} rows; --limit shows more")


def query_error(text: str, tables: Iterable[str]) -> str:
    """What is wrong with a query, in a line."""
    if missing := _NO_TABLE.search(text):
        return f"there is no table {missing[1].replace('`', '')}; there are {', '.join(sorted(tables))}"
    if any(sign in text for sign in _FILES_GONE):
        return "a full refresh has replaced the files of a table while they were read; run the query again"
    return readable_error(text)


def _define(spark: Any, name: str, directory: Path) -> None:
    """Make a table known under its name, with the columns of all its files; one without files is left out."""
    kind = format_of(directory)
    if kind is None:
        return
    database, _, table = name.rpartition(".")
    if database:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        spark.sql(
            f"CREATE TABLE `{database}`.`{table}` USING {kind} OPTIONS (mergeSchema 'true') "
            f"LOCATION '{spark_location(directory)}'"
        )
    else:
        files = spark.read.format(kind).option("mergeSchema", "true")
        files.load(str(directory)).createOrReplaceTempView(table)


def _define_merged(spark: Any, name: str, table: Any) -> None:
    """Make a table that merges known, with the rows that it has now and without those that are deleted."""
    files = data_files(table)
    if files:
        rows = spark.read.option("mergeSchema", "true").parquet(*files)
        rows.where(f"not {DELETED}").drop(*SPECIAL).createOrReplaceTempView(name)


def print_graph(state: Path, form: str) -> None:
    """Print the graph that the last run has left."""
    nodes = load_graph(state)
    if nodes is None:
        raise CliError(
            "the flows are not known yet; `ottla pipeline run` or `ottla pipeline dry-run` finds them"
        )
    print(PICTURES[form](nodes))
