"""Run a project on a session of Spark Connect, with Spark's own registration and execution.

A run creates a graph, registers the project's definitions in it, starts it, and follows its messages to the
end. One session serves many runs; the second starts in a fraction of the time of the first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.spark.merge.definitions import InvalidMerge, merge_flow, merge_sink
from ottla.spark.merge.options import TABLE, merged_warehouse
from ottla.spark.pipelines.lazy_plans import (
    DEFINED,
    EagerRead,
    dead_letter_topics,
    eager_reads,
    make_lazy,
    outside_reads,
    read_again,
    shape_of,
    shape_of_sql,
    stream_reads,
    streams_in_sql,
    tables_read,
)
from ottla.spark.pipelines.plan import Definitions, FlowDefinition
from ottla.spark.pipelines.progress import Flow, PipelineProgress, readable_error
from ottla.spark.pipelines.project import Project, ProjectError, spark_location
from ottla.spark.pipelines.selection import Selection, TimeRange, UnknownTables, table_key
from ottla.spark.sink.options import sink_options
from ottla.spark.source.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT: Final = "ottla"
_STARTS: Final = re.compile(r"Flow '?[^'\n]+?'? (?:is|has|has been)? ?(?:PLANNING|STARTING|RUNNING)\b")
_SQL_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_CREATE: Final = r"\bCREATE\s+(?:OR\s+(?:REFRESH|REPLACE)\s+)?"
_NAMED: Final = r"(?:IF\s+NOT\s+EXISTS\s+)?(?P<name>(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*)"
_DEFINES_TABLE: Final = re.compile(
    rf"{_CREATE}(?P<kind>STREAMING\s+TABLE|MATERIALIZED\s+VIEW)\s+{_NAMED}", re.IGNORECASE
)
_DEFINES_QUERY: Final = re.compile(
    rf"{_CREATE}(?:STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW)\s+{_NAMED}", re.IGNORECASE
)


_DEFINES_FLOW: Final = re.compile(
    r"\bCREATE\s+FLOW\s+(?P<name>(?:`[^`]+`|[\w.])+).*?\bAS\s+INSERT\s+INTO\s+(?:ONCE\s+)?(?:TABLE\s+)?"
    r"(?P<target>(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*)",
    re.IGNORECASE | re.DOTALL,
)
_HAS_QUERY: Final = re.compile(r"\bAS\s+\(*\s*(?:SELECT|WITH|FROM|TABLE|VALUES)\b", re.IGNORECASE)


class RunFailed(Exception):
    """A run that did not complete. `flow` is the one that failed, if it was a flow."""

    def __init__(self, message: str, flow: Flow | None = None) -> None:
        super().__init__(message)
        self.flow = flow


class InvalidDefinitions(RunFailed):
    """The definitions cannot be run as they are: nothing was, and to try again does not help."""


class RunListener:
    """What a run calls. The methods here do nothing."""

    def on_table_defined(self, name: str, *, streaming: bool) -> None:
        """The definitions declare a streaming table, or a materialized view."""

    def on_definitions_loaded(self, definitions: Definitions, graph: str) -> None:
        """All definitions are registered, in a graph with this id, and the run starts now. A ProjectError
        prevents that.
        """

    def on_flow_started(self) -> None:
        """Spark has created the tables, and a flow starts; called for each flow."""

    def on_run_ended(self, graph: str) -> None:
        """The flows have run, or were checked, and some may have failed. Spark still has their graph, with
        this id.
        """


def run_once(
    spark: SparkSession,
    project: Project,
    configuration: Mapping[str, str],
    progress: PipelineProgress,
    *,
    selection: Selection,
    dry: bool = False,
    plan_only: bool = False,
    output: IO[str] | None = None,
    listener: RunListener | None = None,
    times: TimeRange | None = None,
) -> None:
    """Run the project once over the data that exists, or with `plan_only` load its definitions. With `times`
    only the tables that merge run, over what topics have of these times. Raises RunFailed with the flow that
    failed and why.

    `configuration` is the project's, overridden by the caller's values; the output of its definitions goes to
    `output`.
    """
    from pyspark.errors import PySparkException

    try:
        _run(
            spark,
            project,
            configuration,
            progress,
            selection,
            dry,
            plan_only,
            output,
            listener or RunListener(),
            times,
        )
    except PySparkException as error:
        raise _failure(error, progress) from None
    if progress.failed:
        raise _failure(None, progress)


def _run(
    spark: Any,
    project: Project,
    configuration: Mapping[str, str],
    progress: PipelineProgress,
    selection: Selection,
    dry: bool,
    plan_only: bool,
    output: IO[str] | None,
    listener: RunListener,
    times: TimeRange | None,
) -> None:
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    spec = load_pipeline_spec(project.spec)
    for name, value in configuration.items():
        _set(spark, project, name, value)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, configuration)
    try:
        registry = _registry(spark, graph, project, listener, times)
        try:
            spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS session.{DEFINED}")
            with redirect_stdout(output or sys.stderr):
                register_definitions(project.spec, registry, spec, spark, graph)
            registry.check()
            spark.sql(f"DECLARE OR REPLACE VARIABLE session.{DEFINED} BOOLEAN DEFAULT true")
            selection = selection.spelled(registry.definitions.tables, registry.definitions.sinks)
        except (PySparkException, RunFailed, UnknownTables):
            raise
        except Exception as error:
            raise definition_error(project, error) from None
        listener.on_definitions_loaded(registry.definitions, graph)
        if plan_only:
            return
        if not dry:
            remove_unfinished_files(project.storage_path)
        results = start_run(
            spark,
            graph,
            full_refresh=list(selection.full_refresh),
            full_refresh_all=selection.full_refresh_all,
            refresh=list(selection.refresh),
            dry=dry,
            storage=storage_for_spark(project),
        )
        try:
            for result in results:
                if "pipeline_event_result" in result:
                    message = result["pipeline_event_result"].event.message
                    if _STARTS.search(message):
                        listener.on_flow_started()
                    progress.on_message(message)
        except PySparkException:
            if not dry:
                listener.on_run_ended(graph)
            raise
        listener.on_run_ended(graph)
    finally:
        _drop(spark, graph)


def _registry(
    spark: Any, graph: str, project: Project, listener: RunListener, times: TimeRange | None
) -> Any:
    """Spark's registry of definitions, which also tells the listener of the tables, registers plans that are
    resolved with the graph, and says which flow an error is in.
    """
    from pyspark.errors import PySparkException
    from pyspark.pipelines.flow import AutoCdcFlow
    from pyspark.pipelines.flow import Flow as DefinedFlow
    from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry

    class Registry(SparkConnectGraphElementRegistry):
        def __init__(self) -> None:
            super().__init__(spark, graph)
            self._datasets: set[str] = set()
            self.definitions = Definitions()
            self._eager: list[tuple[str, str, EagerRead]] = []
            self._reads: list[tuple[str, str, set[str]]] = []
            # A streaming table is registered with its flow: if that merges, it is none for Spark.
            self._held: dict[str, StreamingTable] = {}
            self._merging: list[AutoCdcFlow] = []

        def register_output(self, output: Output) -> None:
            if isinstance(output, StreamingTable):
                self._held[table_key(output.name)] = output
            elif times is None or isinstance(output, TemporaryView):
                self._register(output)

        def _release(self, table: str) -> None:
            """Register a streaming table that was held back."""
            if (held := self._held.pop(table_key(table), None)) is not None and times is None:
                self._register(held)

        def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
            self._merging.append(flow)

        def _merge(self, flow: AutoCdcFlow) -> None:
            """Register a flow of changes into a table that merges."""
            where = _source(project, flow.source_code_location)
            table = self._held.pop(table_key(flow.target), None)
            if table is None:
                why = (
                    "it has another flow, and takes one"
                    if table_key(flow.target) in self._datasets
                    else (f'create it with create_streaming_table("{flow.target}")')
                )
                raise InvalidDefinitions(f"{where}: create_auto_cdc_flow into {flow.target}: {why}")
            try:
                warehouse = merged_warehouse(project.warehouse)
                sink = merge_sink(flow, table, warehouse, is_again=times is not None)
            except InvalidMerge as error:
                raise InvalidDefinitions(
                    f"{where}: create_auto_cdc_flow into {flow.target}: {error}"
                ) from None
            self.definitions.merged.add(table_key(flow.target))
            self._register(sink)
            self.register_flow(merge_flow(spark, flow))

        def _register(self, output: Output) -> None:
            super().register_output(output)
            self._datasets.add(table_key(output.name))
            if isinstance(output, MaterializedView | StreamingTable):
                self._add_table(output.name, streaming=isinstance(output, StreamingTable))
            elif isinstance(output, Sink):
                self.definitions.sinks.add(table_key(output.name))
                if output.format == _FORMAT and TABLE not in (output.options or {}):
                    options = output.options or {}
                    self._check_options(sink_options, options, f"sink {output.name}", output)
                    parsed = sink_options(options)
                    self.definitions.options[table_key(output.name)] = options
                    self.definitions.topics[table_key(output.name)] = parsed.topic
                    self.definitions.servers[table_key(output.name)] = parsed.settings["bootstrap.servers"]

        def _add_table(self, name: str, *, streaming: bool) -> None:
            self.definitions.tables[table_key(name)] = name
            if streaming:
                self.definitions.streaming.add(table_key(name))
            listener.on_table_defined(name, streaming=streaming)

        def _check_options(
            self,
            parse: Callable[[Mapping[str, str]], object],
            options: Mapping[str, str],
            what: str,
            part: Any,
        ) -> None:
            """Refuse options that a source or a sink would refuse, before anything starts."""
            try:
                parse(options)
            except ValueError as error:
                where = _source(project, part.source_code_location)
                raise InvalidDefinitions(f"{where}: {what}: {error}") from None

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            if times is not None:
                return
            super().register_sql(sql_text, file_path)
            for name, streaming in tables_in_sql(sql_text):
                self._datasets.add(table_key(name))
                self._add_table(name, streaming=streaming)
            self.definitions.flows += flows_in_sql(sql_text)

        def register_flow(self, flow: DefinedFlow) -> None:
            plans: list[Any] = []
            shapes: list[str] = []
            where = _source(project, flow.source_code_location)
            self._release(flow.target)
            if times is not None and table_key(flow.target) not in self._datasets:
                return  # of what does not run

            def resolved_late() -> Any:
                return _ResolvedLate(flow.func(), plans, shapes, times)

            try:
                super().register_flow(replace(flow, func=resolved_late))
            except PySparkException as error:
                where = _project_line(project, error) or where
                missing = "TABLE_OR_VIEW_NOT_FOUND" in str(error)
                eager = [each for plan in plans for each in eager_reads(plan)]
                hint = eager_hint(eager[0]) if eager and missing else readable_error(str(error))
                raise InvalidDefinitions(f"{where}: flow {flow.name}: {hint}") from None
            for plan in plans:
                self._reads.append((where, flow.name, tables_read(plan)))
                self._eager += [(where, flow.name, each) for each in eager_reads(plan)]
                for read in outside_reads(plan):
                    if read.format == _FORMAT:
                        parse = partial(source_options, streaming=read.streaming)
                        self._check_options(parse, read.options, f"flow {flow.name}", flow)
                        self._add_topics(flow.name, read.options)
            if letters := {topic for plan in plans for topic in dead_letter_topics(plan)}:
                self.definitions.dead_letters[flow.name.rpartition(".")[2]] = letters
            streams = tuple(each for plan in plans for each in stream_reads(plan))
            self.definitions.flows.append(FlowDefinition(flow.name, flow.target, streams, "".join(shapes)))

        def _add_topics(self, flow: str, options: Mapping[str, str]) -> None:
            given = {name.lower(): value for name, value in options.items()}
            servers = given.get("kafka.bootstrap.servers", "")
            topics = (each.strip() for each in given.get("subscribe", "").split(","))
            self.definitions.sources += [(flow, servers, topic) for topic in topics if topic]

        def check(self) -> None:
            """Register what was held back, and refuse what Spark has resolved without the graph: the order of
            the flows would be wrong.
            """
            for merging in self._merging:
                self._merge(merging)
            for table in list(self._held):
                self._release(table)
            if times is not None:
                self._check_times()
            for where, name, tables in self._reads:
                for table in sorted(tables & self.definitions.merged):
                    raise InvalidDefinitions(
                        f"{where}: flow {name}: {table} is a table that merges, which flows of its pipeline "
                        f"cannot read; let the flow read the changes that {table} is made of"
                    )
            for where, name, each in self._eager:
                if each.tables & self._datasets:
                    raise InvalidDefinitions(f"{where}: flow {name}: {eager_hint(each)}")

        def _check_times(self) -> None:
            """Refuse to read a range of time again where rows would be doubled, or are not to be had."""
            if not self._merging:
                raise InvalidDefinitions(
                    "--from: no table here merges (create_auto_cdc_flow), and rows of all others would be "
                    "doubled; --full-refresh computes them again"
                )
            for where, name, tables in self._reads:
                if others := sorted(tables - self._datasets):
                    raise InvalidDefinitions(
                        f"{where}: flow {name}: with --from, changes are read from topics; let it read the "
                        f"topic of {', '.join(others)} through a temporary view"
                    )

    return Registry()


class _ResolvedLate:
    """The frame of a flow, with a plan that is resolved with the graph as far as that is possible. `plans`
    gets the plan, and `shapes` what tells it from another.
    """

    def __init__(self, frame: Any, plans: list[Any], shapes: list[str], times: TimeRange | None) -> None:
        if not hasattr(frame, "_plan"):
            raise TypeError(f"the function of a flow returns a DataFrame, not {type(frame).__name__}")
        self._frame = frame
        self._plans = plans
        self._shapes = shapes
        self._times = times
        self._plan = self

    def plan(self, client: Any) -> Any:
        query = self._frame._plan.plan(client)
        self._shapes.append(shape_of(query))
        relation = make_lazy(query)
        if self._times is not None:
            relation = read_again(relation, self._times, _FORMAT)
        self._plans.append(relation)
        return relation


def eager_hint(read: EagerRead) -> str:
    """What to do about an operation that Spark resolves before the tables of the pipeline are known."""
    return (
        f"`{read.operation}` on {', '.join(sorted(read.tables))}: Spark resolves it while the pipeline is "
        f"defined, when its tables are not known yet. What works: {read.instead}"
    )


def _source(project: Project, location: Any) -> str:
    """Where the decorator of a flow is."""
    file = Path(location.filename).resolve()
    inside = file.is_relative_to(project.directory)
    return f"{file.relative_to(project.directory) if inside else file}, line {location.line_number}"


def tables_in_sql(text: str) -> list[tuple[str, bool]]:
    """The tables that a file of SQL defines, and whether they are streaming tables.

    >>> tables_in_sql("-- a\\nCREATE MATERIALIZED VIEW v AS SELECT 1; CREATE STREAMING TABLE `db`.`t`;")
    [('v', False), ('db.t', True)]
    """
    found = _DEFINES_TABLE.finditer(_SQL_COMMENT.sub(" ", text))
    return [(match["name"].replace("`", ""), match["kind"].upper().startswith("S")) for match in found]


def flows_in_sql(text: str) -> list[FlowDefinition]:
    """The flows that a file of SQL defines; a table or a temporary view with a query is its own flow.

    >>> [flow] = flows_in_sql("CREATE FLOW f AS INSERT INTO ONCE t BY NAME SELECT 1")
    >>> flow.name, flow.target
    ('f', 't')
    >>> flows_in_sql("CREATE STREAMING TABLE t AS SELECT * FROM STREAM(orders)")[0].streams
    (StreamRead(kind='table', what='orders'),)
    """
    return [
        FlowDefinition(
            name.replace("`", ""),
            target.replace("`", ""),
            tuple(streams_in_sql(query)),
            shape_of_sql(query),
        )
        for name, target, query in _queries_in_sql(_SQL_COMMENT.sub(" ", text))
    ]


def _queries_in_sql(code: str) -> Iterator[tuple[str, str, str]]:
    for statement in code.split(";"):
        if (flow := _DEFINES_FLOW.search(statement)) is not None:
            yield flow["name"], flow["target"], statement[flow.end() :]
        elif (own := _DEFINES_QUERY.search(statement)) is not None and _HAS_QUERY.search(
            statement, own.end()
        ):
            yield own["name"], own["name"], statement[own.end() :]


def storage_for_spark(project: Project) -> str:
    """The directory of checkpoints. A relative path starts at the specification, not at the working
    directory.
    """
    path = project.storage_path
    return project.storage if path is None else spark_location(path.resolve())


def remove_unfinished_files(storage: Path | None) -> None:
    """Remove what a killed run was writing to the logs of its checkpoints: Spark refuses to begin its first
    batch again beside such a file.
    """
    for log in ("offsets", "commits"):
        for file in [] if storage is None else storage.glob(f"_checkpoints/**/{log}/.*.tmp*"):
            file.unlink(missing_ok=True)


def definition_error(project: Project, error: Exception) -> InvalidDefinitions:
    """The error in the project's own Python, with the innermost line that belongs to the project."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    where = _project_line(project, error)
    return InvalidDefinitions(f"{f'{where}: ' if where else ''}{type(error).__name__}: {said}")


def _project_line(project: Project, error: Exception) -> str | None:
    """The innermost line of an error's traceback that belongs to the project."""
    locations = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        locations.append((error.filename, error.lineno))
    for name, line in reversed(locations):
        if (file := Path(name).resolve()).is_relative_to(project.directory):
            return f"{file.relative_to(project.directory)}, line {line}"
    return None


def _set(spark: Any, project: Project, name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        if "CANNOT_MODIFY" not in str(error):
            raise ProjectError(f"{project.spec}: {name}: {readable_error(str(error))}") from None
        raise ProjectError(
            f"{project.spec}: {name} cannot be changed once Spark runs; take it out of `configuration` "
            f"and give it as --conf {name}={value}"
        ) from None


def _drop(spark: Any, graph: str) -> None:
    """Drop a graph, so that a session can run for days."""
    import pyspark.sql.connect.proto as pb
    from pyspark.errors import PySparkException

    command = pb.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
    try:
        spark.client.execute_command(command)
    except PySparkException:
        return  # the session has ended, with its graphs


def _failure(error: Exception | None, progress: PipelineProgress) -> RunFailed:
    failed = next((flow for flow in progress.failed if flow.error), None) or next(iter(progress.failed), None)
    reason = (failed.error if failed is not None else None) or (readable_error(str(error)) if error else "")
    if failed is None:
        return RunFailed(reason)
    failed.error = reason
    return RunFailed(f"flow {failed.name} failed: {reason}", failed)
