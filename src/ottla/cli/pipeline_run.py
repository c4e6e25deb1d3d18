"""Run a pipeline once or many times on one session of Spark, and show its progress.

On a terminal a live table shows the flows, elsewhere a line for each change. `--embedded` runs `ottla start`
as a process beside Spark: it listens on a free port of the loopback interface, keeps its data with the
project, and stops with the command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.cli.errors import CliError
from ottla.cli.options import Common
from ottla.cli.output import note, print_json, print_line, print_table, printable
from ottla.cli.pipeline_summary import RunSummary
from ottla.cli.session import with_admin
from ottla.spark.pipelines.checkpoints import begin_checkpoints, flow_checkpoints
from ottla.spark.pipelines.code_version import code_version
from ottla.spark.pipelines.continuous import ContinuousFlows, Triggers
from ottla.spark.pipelines.environments import check_topic_prefix
from ottla.spark.pipelines.flow_graph import save_graph
from ottla.spark.pipelines.moved_project import check_storage, keep_storage
from ottla.spark.pipelines.plan import (
    Definitions,
    FlowRecord,
    RunPlan,
    assumed_checkpoints,
    plan_run,
    rename_flows,
    rename_sinks,
    renamed,
)
from ottla.spark.pipelines.progress import Flow, FlowState, PipelineProgress, readable_error
from ottla.spark.pipelines.project import (
    BOOTSTRAP,
    CHECKPOINTS,
    CREATE_TOPICS,
    Project,
    ProjectError,
    topics_to_create,
)
from ottla.spark.pipelines.query_listener import listen_to_queries
from ottla.spark.pipelines.remote_storage import remove_directories, rename_elsewhere
from ottla.spark.pipelines.run_lock import RunLock
from ottla.spark.pipelines.run_record import record_run
from ottla.spark.pipelines.runner import (
    InvalidDefinitions,
    RunFailed,
    RunListener,
    run_once,
    storage_for_spark,
)
from ottla.spark.pipelines.selection import Selection, TimeRange, table_key
from ottla.spark.pipelines.spark_flows import FlowNotSupported, SparkFlows
from ottla.spark.pipelines.tables import (
    WAREHOUSE,
    PipelineTables,
    TableListener,
    has_own_catalog,
    local_warehouse,
    name_sinks,
    next_checkpoints,
)
from ottla.spark.session import SparkEnded, connect_session
from ottla.spark.sink.lineage import CODE_VERSION
from ottla.spark.sink.options import sink_options
from ottla.spark.sink.written_columns import check_schema
from ottla.spark.typed.encoding import RegistryUnreachable, check_encodings

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """A pipeline to run, and how. `configuration` is the project's, overridden by the caller's values; `conf`
    has settings for the start of Spark. `runs` is None without a limit; only the first run uses the
    selection.
    """

    project: Project
    configuration: Mapping[str, str]
    conf: Mapping[str, str]
    master: str
    state: Path
    selection: Selection
    dry: bool
    runs: int | None
    interval_s: float
    continuous: bool = False
    """Whether the queries stay open after the first run."""
    plan_only: bool = False
    """Whether it ends before anything is run."""
    as_json: bool = False
    """Whether a plan is printed for programs."""
    lock: RunLock | None = None
    """The lock of the project; the JVM holds it as long as it lives. None for a dry run."""
    times: TimeRange | None = None
    """The range of time that is read again, if it is not a run as any other."""
    summary: RunSummary | None = None
    """What the caller learns of the run when it has ended."""


def run_all(request: PipelineRequest, log: IO[str] | None) -> None:
    """Run the project as often as requested. The output of Spark and of the definitions goes to `log`."""
    try:
        _run_all(request, log)
    except SparkEnded as error:
        if request.lock is not None:
            request.lock.check()
        raise RunFailed(f"{error}; the next run completes what is left") from None


def _run_all(request: PipelineRequest, log: IO[str] | None) -> None:
    began = monotonic()
    project = request.project
    request = replace(request, selection=name_sinks(request.selection, project))
    triggers = Triggers(request.configuration, request.interval_s)
    check_storage(project, request.state, from_scratch=request.selection.full_refresh_all)
    warehouse: Path | None = None
    settings = {WAREHOUSE: str(project.warehouse), **request.conf}
    if not has_own_catalog(project, {**request.conf, **request.configuration}):
        warehouse = local_warehouse(project, request.conf)
        settings[WAREHOUSE] = str(warehouse)
    once = request.runs == 1
    os.environ.setdefault(CODE_VERSION, code_version(project))  # the sink keeps it with each batch
    locks = [] if request.lock is None else request.lock.files
    with started_session(
        request.master, name=project.name, conf=settings, log=log, short=once, keep_open=locks
    ) as (spark, context):
        note(f"Spark {context.version} on {request.master} is ready, {monotonic() - began:.1f} s")
        if request.lock is not None:
            request.lock.check()
        if request.times is not None:
            _read_again(spark, context, request, request.times, log, began)
            return
        session = _Session(spark, context, request, log, began)
        if warehouse is not None and not (request.dry or request.plan_only):
            session.tables = PipelineTables(project, warehouse, request.state)
            unfinished = session.tables.unfinished_refresh
            if names := [*unfinished, *session.tables.unfinished_sinks]:
                note(f"finishing the full refresh that an earlier run began: {', '.join(names)}")
                session.tables.finish_sinks()
            if unfinished:
                session.run(Selection(full_refresh=unfinished, must_exist=False), number=1)
        if request.continuous:
            session.run_first()
            if session.run_continuously(triggers):
                return
        number = 1 + request.continuous
        if number == 1 and request.selection.sinks and request.selection.full_refresh:
            # Where tables are named, Spark runs nothing else.
            session.run(request.selection, number=1)
            request = replace(request, selection=Selection())
        while request.runs is None or number <= request.runs:
            if number > 1:
                sleep(request.interval_s)
            session.run(request.selection if number == 1 else Selection(), number=number)
            number += 1


@contextmanager
def started_session(master: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    """`connect_session`, which says what it waits for."""
    with contextlib.ExitStack() as stack:
        with show_start(master) as on_step:
            session = stack.enter_context(connect_session(master, on_step=on_step, **options))
        yield session


@contextmanager
def show_start(master: str) -> Iterator[Callable[[str], None]]:
    """Show that Spark starts: on a terminal for how long, and what for; the block calls with that."""
    text, began = f"starting Spark on {master}", monotonic()
    if not sys.stderr.isatty():
        note(text)
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    waits_for = [""]

    def shown() -> Text:
        what = f", waiting for {waits_for[-1]}" if waits_for[-1] else ""
        return Text(printable(f"{text}{what}, {monotonic() - began:.0f} s"))

    with Live(
        get_renderable=shown,
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
    ):
        yield waits_for.append


def _read_again(
    spark: Any, context: Any, request: PipelineRequest, times: TimeRange, log: IO[str] | None, began: float
) -> None:
    """Read a range of time again, with checkpoints of its own: one that was killed goes on, and with other
    code it begins again.
    """
    project = request.project
    code = sha256(os.environ[CODE_VERSION].encode()).hexdigest()[:_CODE_DIGITS]
    root, name = f"{storage_for_spark(project).rstrip('/')}/{_AGAIN}", f"{times.name}-{code}"
    remove_directories(context, root, other_than=name)
    there = replace(request, project=replace(project, storage=f"{root}/{name}"))
    _Session(spark, context, there, log, began).run(Selection(), number=1)
    remove_directories(context, root)


_AGAIN: Final = "_again"
_CODE_DIGITS: Final = 8
_OTHER_TYPE: Final = "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE"


class _Session:
    """A session of Spark that runs one project. `tables` is None where another catalog keeps them."""

    def __init__(
        self, spark: Any, context: Any, request: PipelineRequest, log: IO[str] | None, began: float
    ) -> None:
        self._began = began  # before Spark was started
        self._spark = spark
        self._context = context
        self._request = request
        self._log = log
        self.tables: PipelineTables | None = None
        self._flows: SparkFlows | None = None
        self._definitions = Definitions()
        self._is_planned = False
        self._changed_types: list[str] = []
        self._progress = PipelineProgress()

    def run(self, selection: Selection, *, number: int) -> None:
        """Run once, and say how it went."""
        began = monotonic()
        if number == 1:
            note("reading the definitions")
        request, tables = self._request, self.tables
        self._flows = None
        progress = self._progress = PipelineProgress()
        if request.summary is not None:
            request.summary.begin(progress)
        if tables is not None:
            tables.begin_run(self._spark, selection)
        try:
            with (
                self._recorded(progress, "once" if request.runs == 1 else "repeated"),
                show_progress(progress, quiet=request.dry or request.plan_only or number > 1),
                listen_to_queries(self._context, progress),
            ):
                run_once(
                    self._spark,
                    request.project,
                    request.configuration,
                    progress,
                    selection=selection,
                    dry=request.dry,
                    plan_only=request.plan_only,
                    output=self._log,
                    listener=_SessionListener(self, selection),
                    times=request.times,
                )
        except RunFailed as failure:
            if _OTHER_TYPE in str(failure) and self._changed_types:
                raise InvalidDefinitions("; ".join(self._changed_types), failure.flow) from None
            raise
        finally:
            if tables is not None:
                tables.end_run(self._context, progress)
        self._report(progress, number, monotonic() - began)

    def listener_of_tables(self) -> RunListener | None:
        """What the tables of the project hear of a run, if they are kept here."""
        return None if self.tables is None else TableListener(self.tables, self._spark, self._context)

    def begin_sinks_again(self, selection: Selection) -> None:
        """Let the flows into some sinks begin again, where another catalog keeps the tables."""
        if selection.sinks and (storage := self._request.project.storage_path) is not None:
            begin_checkpoints(storage / CHECKPOINTS, next_checkpoints(self._request.project, selection))

    def _recorded(self, progress: PipelineProgress, mode: str) -> AbstractContextManager[None]:
        """Keep the progress of a run in a file, unless it changes nothing."""
        if self._request.dry or self._request.plan_only:
            return nullcontext()
        return record_run(progress, self._request.state, self._request.project.name, mode=mode)

    def plan(self, definitions: Definitions, selection: Selection, graph: str) -> None:
        """Say what the run does with each stream that does not just continue, and refuse what would repeat or
        leave out rows.
        """
        self._definitions = definitions
        request = self._request
        check_topic_prefix(request.project, definitions)
        check_topics(definitions, request.configuration, is_dry=request.dry)
        if any(sink_options(options).formats for options in definitions.options.values()):
            with contextlib.suppress(FlowNotSupported):  # what cannot be resolved the run reports itself
                check_sink_columns(SparkFlows(self._spark, self._context, graph, dry=True), definitions)
        if request.times is not None:
            return
        storage = request.project.storage_path
        if request.dry:
            return
        # Beside the checkpoints, or with the project where those are not on this machine.
        record = FlowRecord(request.state if storage is None else storage)
        known = renamed(record.read(), selection)
        if storage is None:
            if not request.plan_only:
                rename_elsewhere(self._context, request.project.storage, selection, definitions)
            checkpoints = assumed_checkpoints(known, selection)
        else:
            if not request.plan_only:
                rename_sinks(storage, selection.renamed_sinks, definitions)
                rename_flows(storage, selection.renamed_flows, definitions)
            checkpoints = flow_checkpoints(storage / CHECKPOINTS)
        plan = plan_run(definitions, selection, checkpoints, known, is_elsewhere=storage is None)
        if request.plan_only:
            print_plan(plan, as_json=request.as_json)
        plan.check()
        if not request.plan_only:
            if not self._is_planned:
                note_plan(plan)
            self._is_planned = True
            record.write(definitions, selection)
            keep_storage(request.project, request.state)

    def keep_flows(self, graph: str) -> None:
        """Keep what Spark knows of the flows, and a copy for `ottla pipeline graph`."""
        if self._request.times is not None:
            return  # it is not all of them
        try:
            self._flows = SparkFlows(self._spark, self._context, graph, dry=self._request.dry)
            letters = self._definitions.dead_letters
            nodes = [
                replace(node, dead_letters=tuple(sorted(letters.get(node.name, ()))))
                for node in self._flows.nodes()
            ]
            save_graph(nodes, self._request.state)
            if self._request.dry:
                check_sink_columns(self._flows, self._definitions)
        except FlowNotSupported as error:
            log.debug("the graph of the flows cannot be read: %s", error)
            self._find_changed_types(graph)

    def _find_changed_types(self, graph: str) -> None:
        """Of a run that has started no flow: find the columns that do not fit the tables any more."""
        if self.tables is None:
            return
        with contextlib.suppress(Exception):  # what Spark says will do
            flows = SparkFlows(self._spark, self._context, graph, dry=True)
            columns = {
                table_key(node.target): {
                    column.name: column.dataType.simpleString() for column in flows.schema(node.name).fields
                }
                for node in flows.nodes()
            }
            self._changed_types = self.tables.changed_types(self._spark, columns)

    def run_first(self) -> None:
        """Run once before the queries stay open. A flow that fails then is one that starts again later."""
        try:
            self.run(self._request.selection, number=1)
        except RunFailed as failure:
            if self._flows is None or failure.flow is None:
                raise
            note(f"{failure}; the others go on")

    def run_continuously(self, triggers: Triggers) -> bool:
        """Keep the flows running until Ctrl-C; False if this Spark cannot."""
        flows = self._flows
        if flows is None:
            note("this version of Spark keeps no queries open: the whole pipeline runs again and again")
            return False
        if _RETRIES not in self._request.configuration:
            self._spark.conf.set(_RETRIES, "0")  # of views; the supervision starts them again
        progress = PipelineProgress()
        if self._request.summary is not None:
            self._request.summary.begin(progress)
        done = {name for name, flow in self._progress.flows.items() if flow.state is FlowState.COMPLETED}
        nodes = flows.nodes()
        supervised = ContinuousFlows(
            nodes,
            flows,
            lambda tables: self._refresh(tables, progress),
            progress,
            triggers,
            note,
            stale={node.name for node in nodes} - done,
        )
        stop, ended = Event(), Event()
        failures: list[Exception] = []

        def supervise() -> None:  # in a thread: Ctrl-C would break off a call of the JVM in the middle
            try:
                supervised.start(monotonic())
                alive_until = 0.0
                while not stop.wait(_SUPERVISION_SECONDS):
                    supervised.step(monotonic())
                    if monotonic() >= alive_until:  # Spark ends sessions that are not used for an hour
                        self._spark.conf.get(_RETRIES)
                        alive_until = monotonic() + _KEEP_ALIVE_SECONDS
            except Exception as error:
                failures.append(error)
            finally:
                supervised.stop()
                ended.set()

        thread = Thread(target=supervise, name="continuous flows", daemon=True)
        with (
            self._recorded(progress, "continuous"),
            show_progress(progress, lines_every_s=_SECONDS_BETWEEN_LONG_LINES),
            listen_to_queries(self._context, progress),
        ):
            thread.start()
            try:
                while not ended.wait(_WAIT_SECONDS):  # a join that is interrupted takes the thread for ended
                    pass
            except KeyboardInterrupt:
                note("stopping")
                stop.set()
                ended.wait(_END_SECONDS)
                raise
        if failures:
            if isinstance(failures[0], ProjectError):
                raise failures[0]
            raise RunFailed(f"the flows had to be stopped: {failures[0]}") from failures[0]
        return True

    def _refresh(self, tables: Sequence[str], shown: PipelineProgress) -> dict[str, str]:
        """Compute some tables once; returns the flows that failed, with the reason. A full disk, or the files
        of one table, are no reason to stop the others.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        assert self._flows is not None
        names = [node.name for node in self._flows.nodes() if node.target in tables]
        try:
            progress, failure = self._refresh_once(self._flows, tables)
        except (PySparkException, Py4JJavaError) as error:
            return dict.fromkeys(names, readable_error(str(error)))
        except (ProjectError, OSError) as error:
            if isinstance(error, ConnectionError):  # to Spark's process, which has ended
                raise
            return dict.fromkeys(names, str(error))
        failed: dict[str, str] = {}
        for name in names:
            flow = progress.flows.get(name)
            if flow is not None and flow.state is FlowState.COMPLETED:
                shown.on_computed(name)
            else:
                reason = None if flow is None else flow.error
                failed[name] = reason or failure or "Spark gives no reason; see its log"
        return failed

    def _refresh_once(self, flows: SparkFlows, tables: Sequence[str]) -> tuple[PipelineProgress, str | None]:
        progress = PipelineProgress()
        selection = Selection(refresh=tables)
        kept = self.tables
        if kept is not None:
            kept.begin_run(self._spark, selection)
        try:
            failure = flows.refresh(
                tables, progress, lambda: None if kept is None else kept.on_flow_started(self._context)
            )
        finally:
            for name in [name for name, flow in progress.flows.items() if flow.state is FlowState.EXCLUDED]:
                del progress.flows[name]
            if kept is not None:
                kept.end_run(self._context, progress)
        return progress, failure

    def _report(self, progress: PipelineProgress, number: int, seconds: float) -> None:
        took = f"{seconds:.1f} s"
        if number == 1:
            took += f"; {monotonic() - self._began:.1f} s with the start of Spark"
        name = self._request.project.name
        if self._request.plan_only:
            return
        if self._request.dry:
            note(f"{name}: the definitions are valid, {took}")
        elif number == 1 or progress.rows:  # of later runs only those with new rows
            done = sum(flow.state is FlowState.COMPLETED for flow in progress.flows.values())
            streams = any(flow.rows is not None for flow in progress.flows.values())
            rows = f"{_count_text(progress.rows, 'row')} read, " if streams else ""
            again = "" if number == 1 else f" again ({number})"
            note(f"{name}: run complete{again}, {_count_text(done, 'flow')}, {rows}{took}")


def check_sink_columns(flows: SparkFlows, definitions: Definitions) -> None:
    """Refuse a flow whose columns its sink cannot write, also by the schemas that a registry has now."""
    for node in flows.nodes():
        if (target := table_key(node.target)) in definitions.options:
            columns, sink = flows.schema(node.name), sink_options(definitions.options[target])
            try:
                check_schema(columns, sink.topic, [each.column for each in sink.formats])
                check_encodings(sink.formats, columns, sink.topic, register=sink.register)
            except RegistryUnreachable as error:
                note(f"flow {node.name} into sink {node.target} was not checked: {error}")
            except ValueError as error:
                raise InvalidDefinitions(f"flow {node.name} into sink {node.target}: {error}") from None


def print_plan(plan: RunPlan, *, as_json: bool) -> None:
    """Print what a run would do with each stream."""
    if as_json:
        print_json(
            {
                "flows": [
                    {"flow": each.flow, "into": each.target, "does": each.action.value, "why": each.why}
                    for each in plan.flows
                ],
                "problems": list(plan.problems),
            }
        )
        return
    print_table(
        ("FLOW", "INTO", "DOES", "WHY"),
        [(flow.flow, flow.target, flow.action, flow.why) for flow in plan.flows],
    )


def note_plan(plan: RunPlan) -> None:
    """Say what the run is about to do: a line for each stream of which there is more to say than that it
    continues.
    """
    for flow in plan.flows:
        if flow.why:
            note(f"plan: {flow.flow} {flow.action}: {flow.why}")
    plain = sum(not flow.why for flow in plan.flows)
    if plain:
        note(f"plan: {plain} flow{'s' * (plain > 1)} continue{'s' * (plain == 1)}")


def check_topics(definitions: Definitions, configuration: Mapping[str, str], *, is_dry: bool) -> None:
    """Refuse sinks into topics that do not exist: brokers may create them by themselves, also those with a
    mistake in the name. Of sources a dry-run says the same; in a run they say it themselves. Only topics on
    the brokers of the run are looked for.
    """
    from ottla.client.admin import Admin

    servers = configuration.get(BOOTSTRAP, "")
    wanted = [
        (f"sink {sink} writes to", topic)
        for sink, topic in definitions.topics.items()
        if topic is not None and definitions.servers.get(sink) == servers
    ]
    if is_dry:
        wanted += [(f"flow {flow} reads", topic) for flow, at, topic in definitions.sources if at == servers]
    to_create = topics_to_create(configuration.get(CREATE_TOPICS, ""))
    if not wanted:
        return

    async def list_topics(admin: Admin) -> set[str]:
        return {topic.name for topic in await admin.topics.list()}

    try:
        known = with_admin(Common(servers), list_topics)
    except CliError as error:
        if is_dry:
            note(f"topics were not looked for: {error}")
        return  # a run has its own errors about brokers
    for who, topic in wanted:
        if topic in known or topic in to_create:
            continue
        near = get_close_matches(topic, [*known, *to_create], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ProjectError(
            f"{who} topic {topic}, which does not exist; {hint}`ottla topics create {topic}` creates it, or "
            f"name it in `{CREATE_TOPICS}` of the configuration"
        )


class _SessionListener(RunListener):
    """Passes the events of a run to its tables, if they are kept here, and the id of its graph to the
    session.
    """

    def __init__(self, session: _Session, selection: Selection) -> None:
        self._session = session
        self._selection = selection
        self._tables = session.listener_of_tables()
        self._inner = self._tables or RunListener()

    def on_table_defined(self, name: str, *, streaming: bool) -> None:
        self._inner.on_table_defined(name, streaming=streaming)

    def on_definitions_loaded(self, definitions: Definitions, graph: str) -> None:
        self._session.plan(definitions, self._selection, graph)
        self._inner.on_definitions_loaded(definitions, graph)
        if self._tables is None:
            self._session.begin_sinks_again(self._selection)

    def on_flow_started(self) -> None:
        self._inner.on_flow_started()

    def on_run_ended(self, graph: str) -> None:
        self._session.keep_flows(graph)


def _count_text(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


_STYLES: Final = {
    FlowState.COMPLETED: "green",
    FlowState.RUNNING: "cyan",
    FlowState.FAILED: "bold red",
    FlowState.SKIPPED: "yellow",
    FlowState.RESTARTING: "bold yellow",
}
_RIGHT: Final = ("rows read", "rows/s", "lag", "restarts")
_REFRESHES_PER_SECOND: Final = 4
_SECONDS_BETWEEN_LINES: Final = 2.0
_SECONDS_BETWEEN_LONG_LINES: Final = 10.0
_RETRIES: Final = "spark.sql.pipelines.maxFlowRetryAttempts"
_SUPERVISION_SECONDS: Final = 0.2
_KEEP_ALIVE_SECONDS: Final = 300.0
_WAIT_SECONDS: Final = 0.5
_END_SECONDS: Final = 60.0


@contextmanager
def show_progress(
    progress: PipelineProgress, *, quiet: bool = False, lines_every_s: float | None = None
) -> Iterator[None]:
    """Show the progress of a run during the block."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with _live(progress):
            yield
    else:
        lines = _Lines(progress, _SECONDS_BETWEEN_LINES if lines_every_s is None else lines_every_s)
        progress.observer = lines.update
        try:
            yield
        finally:
            lines.update(interval_s=0)
            progress.observer = lambda: None


@contextmanager
def _live(progress: PipelineProgress) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    began = monotonic()
    with Live(
        get_renderable=lambda: _table(progress, monotonic() - began),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        refresh_per_second=_REFRESHES_PER_SECOND,
    ):
        yield


def _table(progress: PipelineProgress, seconds: float) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        caption=f"{seconds:.0f} s",
        caption_justify="left",
    )
    flows = list(progress.flows.values())
    columns = ["flow", "state", "rows read", "rows/s", "lag"]
    expects, failed = any(flow.expectations for flow in flows), any(flow.restarts for flow in flows)
    columns += ["expectations"] * expects
    columns += ["restarts", "last error"] * failed
    for name in columns:
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    for flow in flows:
        cells = [flow.name, _state(flow), *_figures(flow)]
        cells += [", ".join(expectation_texts(flow))] * expects
        cells += [str(flow.restarts), flow.error or ""] * failed
        table.add_row(*map(printable, cells), style=_STYLES.get(flow.state, ""))
    return table


def _figures(flow: Flow) -> tuple[str, str, str]:
    return _count(flow.rows), _rate(flow.rows_per_second), _count(flow.lag)


def expectation_texts(flow: Flow) -> list[str]:
    """The expectations of a flow that rows have not met.

    >>> from ottla.spark.expectations import ExpectationAction
    >>> flow = Flow("orders")
    >>> flow.expectations["costs something", ExpectationAction.DROP] = (5, 2)
    >>> expectation_texts(flow)
    ["'costs something': 2 of 5 dropped"]
    """
    return [
        f"{name!r}: {failed:,} of {rows:,} {action}"
        for (name, action), (rows, failed) in sorted(flow.expectations.items())
        if failed
    ]


def _rate(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _state(flow: Flow) -> str:
    return flow.state if flow.attempts < 2 else f"{flow.state}, try {flow.attempts}"


class _Lines:
    """Prints a line when the state of a flow changes, and at intervals when its rows do."""

    def __init__(self, progress: PipelineProgress, interval_s: float) -> None:
        self._progress = progress
        self._interval_s = interval_s
        self._printed: dict[str, tuple[str, int | None, list[str]]] = {}
        self._at: dict[str, float] = {}
        self._lock = Lock()

    def update(self, *, interval_s: float | None = None) -> None:
        now = monotonic()
        interval_s = self._interval_s if interval_s is None else interval_s
        with self._lock:
            for flow in list(self._progress.flows.values()):
                state, rows, broken = _state(flow), flow.rows, expectation_texts(flow)
                printed = self._printed.get(flow.name)
                waited = now - self._at.get(flow.name, 0) >= interval_s
                if printed is None or printed[0] != state or (waited and printed[1:] != (rows, broken)):
                    self._printed[flow.name], self._at[flow.name] = (state, rows, broken), now
                    print_line(self._line(flow, state), file=sys.stderr, flush=True)

    def _line(self, flow: Flow, state: str) -> str:
        rows, rate, lag = _figures(flow)
        facts = [f"{rows} row{'s' * (flow.rows != 1)} read"] if rows else []
        facts += [f"{rate} rows/s"] if rate else []
        facts += [f"lag {lag}"] if lag else []
        facts += expectation_texts(flow)
        facts += [f"{flow.restarts} restart{'s' * (flow.restarts != 1)}"] if flow.restarts else []
        return ", ".join([f"{flow.name}: {state}", *facts])


_NODE_SAYS: Final = "ottla: "
_IN_USE: Final = "is in use by another node"
_READY: Final = re.compile(r"is ready: (?P<address>[^,]+),")
_STOP_SECONDS: Final = 30
_PR_SET_PDEATHSIG: Final = 1


@contextlib.contextmanager
def embedded_node(data_dir: Path, log: Path) -> Iterator[str]:
    """Run a node during the block; yields its bootstrap servers. One that a killed run has left is ended."""
    data_dir.mkdir(parents=True, exist_ok=True)
    pid_file = data_dir.with_name("node.pid")
    _end_left_over_node(pid_file, data_dir)
    command = [sys.executable, "-m", "ottla", "start"]
    command += ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    with log.open("ab") as errors:
        # In its own process group: Ctrl-C is for the pipeline, which then stops its node cleanly.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_end_with_parent(),
        )
    pid_file.write_text(str(process.pid))
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode(errors="replace")
        ready = _READY.search(line)
        if ready is None:
            process.wait()
            raise CliError(f"the node of --embedded did not start{_reason(log)}; see {log}")
        yield ready["address"].split()[0]
    finally:
        _stop(process)
        pid_file.unlink(missing_ok=True)


def _reason(log: Path) -> str:
    """What a node said last, if it said why it ended."""
    said = log.read_text(errors="replace").splitlines()[-1:]
    if not said or not said[0].startswith(_NODE_SAYS):
        return ""
    using = ". To use that node, omit --embedded" if _IN_USE in said[0] else ""
    return f": {said[0].removeprefix(_NODE_SAYS)}{using}"


def _end_with_parent() -> Callable[[], None] | None:
    """What a new process does first so that it gets SIGTERM when this one ends, also by SIGKILL. Linux has
    that; elsewhere the next run ends what is left.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _end_left_over_node(pid_file: Path, data_dir: Path) -> None:
    """End the node of a run that was killed: it would hold the lock of its data directory."""
    try:
        pid = int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return
    if str(data_dir) not in _command_line(pid):
        return
    note(f"ending the node of a run that was killed (process {pid})")
    deadline = monotonic() + _STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while monotonic() < deadline:
            os.kill(pid, 0)
            sleep(0.05)
        os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    """The command of a process; empty if there is none with this id."""
    ended = subprocess.run(
        ["ps", "-ww", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
    )
    return ended.stdout


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
