"""Spark pipelines, from what `ottla pipeline` writes into their projects; Spark is not asked."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ottla.console.api_request import ApiRequest, ConsoleError
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.group_lag import end_offsets
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.spark.merge.options import merged_warehouse
from ottla.spark.pipelines.checkpoints import Checkpoint, read_checkpoints
from ottla.spark.pipelines.flow_graph import FlowNode, load_graph
from ottla.spark.pipelines.graph_picture import layout
from ottla.spark.pipelines.plan import FlowRecord
from ottla.spark.pipelines.project import Project, ProjectError, load_project
from ottla.spark.pipelines.run_record import load_record, load_runs
from ottla.spark.pipelines.table_files import TableRows, list_tables, newest_rows

MAX_FLOWS: Final = 1_000
MAX_RUNS: Final = 50
PREVIEW_ROWS: Final = 20
MAX_CELL: Final = 500


async def list_pipelines(context: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    await context.require_cluster(AclOperation.DESCRIBE)
    items: list[dict[str, Any]] = []
    problems: list[str] = []
    for spec in context.config.pipelines:
        try:
            items.append(await _summary(context, spec))
        except ProjectError as error:
            problems.append(str(error))
    return {"items": items, "problems": problems}


async def describe_pipeline(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    await context.require_cluster(AclOperation.DESCRIBE)
    spec = _spec(context, request)
    try:
        details = await _details(context, spec)
        return details | await context.runtime.pool.run(_more, spec, details["flows"])
    except ProjectError as error:
        raise ConsoleError(400, "BAD_REQUEST", str(error)) from None


async def preview_table(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """Some of the newest rows of a table. They come from any topic, so it takes the right to change the
    cluster.
    """
    await context.require_cluster(AclOperation.ALTER)
    spec, table = _spec(context, request), request.required("table")
    async with context.services.limits.one_of(context.services.limits.exports):
        try:
            found = await context.runtime.pool.run(_preview, spec, table)
        except ProjectError as error:
            raise ConsoleError(400, "BAD_REQUEST", str(error)) from None
    return {
        "columns": found.columns,
        "rows": [[_cell(row[name]) for name in found.columns] for row in found.rows],
        "total": found.total,
    }


def _spec(context: ApiContext, request: ApiRequest) -> Path:
    """The specification of a project. Only projects that were named to the console are read."""
    wanted = request.required("directory")
    for spec in context.config.pipelines:
        if str(spec.parent) == wanted:
            return spec
    raise ConsoleError(404, "NOT_FOUND", "the console was not given a pipeline in this directory")


def _preview(spec: Path, table: str) -> TableRows:
    return newest_rows(load_project(spec).warehouse, table, PREVIEW_ROWS)


def _cell(value: Any) -> str | None:
    return None if value is None else str(value)[:MAX_CELL]


def _more(spec: Path, flows: list[dict[str, Any]]) -> dict[str, Any]:
    """What only the page of one pipeline shows: its runs, its graph, its tables, the topics of its sinks."""
    project = load_project(spec)
    nodes = load_graph(project.state) or []
    states: dict[str, list[str]] = {}
    for each in flows:
        if each["target"] is not None:
            states.setdefault(each["target"], []).append(each["state"])
    topics = {}
    with contextlib.suppress(ProjectError):
        record = FlowRecord(project.storage_path or project.state)
        topics = {target: flow.topic for (target, _), flow in record.read().items() if flow.topic}
    return {
        "runs": load_runs(project.state, MAX_RUNS),
        "graph": asdict(layout(nodes[:MAX_FLOWS])),
        "states": states,
        "tables": sorted({*list_tables(project.warehouse), *_merged(project)})[:MAX_FLOWS],
        "topics": topics,
        "deadLetters": {node.name: list(node.dead_letters) for node in nodes if node.dead_letters},
    }


def _merged(project: Project) -> list[str]:
    """The tables that merge, by their directories: a page that looks every few seconds opens no catalog."""
    directory = merged_warehouse(project.warehouse)
    return [each.name for each in directory.iterdir() if each.is_dir()] if directory.is_dir() else []


async def _summary(context: ApiContext, spec: Path) -> dict[str, Any]:
    details = await _details(context, spec)
    return {
        **details,
        "flows": len(details["flows"]),
        "failed": sum(each["state"] == "failed" for each in details["flows"]),
    }


async def _details(context: ApiContext, spec: Path) -> dict[str, Any]:
    pool = context.runtime.pool
    project, record, nodes, checkpoints = await pool.run(_read, spec, context.now_ms())
    ends: dict[TopicPartition, int] = {}
    with contextlib.suppress(KafkaError):  # the pipeline may read from another cluster
        ends = await end_offsets(
            context.access, {TopicPartition(*each) for found in checkpoints for each in found.offsets}
        )
    flows = _flows(record, nodes, checkpoints, ends)
    lags = [each["lag"] for each in flows if each["lag"] is not None]
    rows = [each["rows"] for each in flows if each["rows"] is not None]
    failed = next((each["error"] for each in flows if each["error"]), None)
    return {
        "name": project.name,
        "directory": str(project.directory),
        "state": record.get("state", "unknown"),
        "mode": record.get("mode"),
        "startedMs": record.get("startedMs"),
        "updatedMs": record.get("updatedMs"),
        "rows": sum(rows) if rows else None,
        "lag": sum(lags) if lags else None,
        "error": record.get("error") or failed,
        "flows": flows,
        "failed": sum(each["state"] == "failed" for each in flows),
    }


def _read(spec: Path, now_ms: int) -> tuple[Project, dict[str, Any], list[FlowNode], list[Checkpoint]]:
    project = load_project(spec)
    state = project.state
    try:
        checkpoints = read_checkpoints(project)
    except (ProjectError, OSError, ValueError):
        checkpoints = []
    return project, load_record(state, now_ms) or {}, load_graph(state) or [], checkpoints


def _flows(
    record: dict[str, Any],
    nodes: list[FlowNode],
    checkpoints: list[Checkpoint],
    ends: dict[TopicPartition, int],
) -> list[dict[str, Any]]:
    reported = {str(each.get("name")): each for each in record.get("flows", ()) if isinstance(each, dict)}
    graph = {each.name: each for each in nodes}
    kept = {each.flow: each for each in checkpoints}
    names = list(dict.fromkeys((*graph, *reported, *kept)))[:MAX_FLOWS]
    return [_flow(name, reported.get(name, {}), graph.get(name), kept.get(name), ends) for name in names]


def _flow(
    name: str,
    report: dict[str, Any],
    node: FlowNode | None,
    checkpoint: Checkpoint | None,
    ends: dict[TopicPartition, int],
) -> dict[str, Any]:
    lag = report.get("lag")
    if checkpoint is not None:
        known = [
            max(ends[TopicPartition(*each)] - offset, 0)
            for each, offset in checkpoint.offsets.items()
            if TopicPartition(*each) in ends
        ]
        lag = sum(known) if known else lag
    return {
        "name": name,
        "state": report.get("state", "unknown"),
        "kind": None if node is None else node.kind.value,
        "target": node.target if node is not None else None if checkpoint is None else checkpoint.target,
        "inputs": [] if node is None else list(node.inputs),
        "intoTopic": None if node is None else node.into_topic,
        "batches": report.get("batches"),
        "rows": report.get("rows"),
        "rowsOut": report.get("rowsOut"),
        "rowsPerSecond": report.get("rowsPerSecond"),
        "lag": lag,
        "restarts": report.get("restarts"),
        "error": report.get("error"),
        "checkpoint": None
        if checkpoint is None
        else {
            "batch": checkpoint.batch,
            "unfinished": checkpoint.unfinished,
            "time": checkpoint.timestamp_ms,
            "topics": sorted({topic for topic, _ in checkpoint.offsets}),
        },
        "expectations": report.get("expectations", []),
    }


ROUTES: Final = (
    ConsoleRoute("GET", "/api/pipelines", list_pipelines),
    ConsoleRoute("GET", "/api/pipeline", describe_pipeline),
    ConsoleRoute("GET", "/api/pipeline/table", preview_table, payloads=True),
)
