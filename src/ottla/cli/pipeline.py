"""`ottla pipeline`: create, check, run and show Spark's declarative pipelines over topics.

`run` starts Spark in this process and, if requested, a node beside it, and shows the progress of the flows. A
project is a standard one of Spark and runs with `spark-pipelines` as well; `ottla.bootstrap.servers` in its
configuration says where its topics are, and is what `-b` and `--embedded` set.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from ottla.cli import command_config
from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import BUSY, FAILED, REFUSED, CliError, WrongUsage
from ottla.cli.options import DEFAULT_TIMEOUT_S, Common, Json, Timeout, named_values
from ottla.cli.output import note, print_json, print_line, print_table, time_text
from ottla.cli.pipeline_options import (
    DEFAULT_MASTER,
    Brokers,
    Embedded,
    Environment,
    FullRefresh,
    FullRefreshAll,
    Master,
    NewFlow,
    ProjectPath,
    Refresh,
    RenamedFlow,
    RenamedSink,
    Settings,
    Verbose,
    brokers_of,
    is_from_variable,
    log_file,
    naming_full_disks,
    project_of,
    state_directory,
)
from ottla.cli.pipeline_replay import replay
from ottla.cli.pipeline_summary import RunSummary, summarized_run
from ottla.cli.pipeline_test import play_tests
from ottla.cli.session import terminable, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.spark.pipelines.checkpoints import Checkpoint
    from ottla.spark.pipelines.run_lock import RunLock
    from ottla.spark.pipelines.selection import Selection, TimeRange

HELP: Final = "Create, run and watch Spark pipelines over topics."
_FULL_REFRESH_HINT: Final = (
    "To compute everything again from the current topics: ottla pipeline run --full-refresh-all "
    "(records that were written to topics stay there, and are written again)."
)
app = group("pipeline", HELP)
command(app, "test")(play_tests)
command(app, "replay")(replay)


@command(app, "init")
def init(
    name: Annotated[
        str,
        Argument(metavar="NAME", help="The project; a directory of this name, which is new or empty."),
    ],
) -> None:
    """Write a small project that runs: a topic, a streaming table, a view and an output topic."""
    from ottla.spark.pipelines.project import ProjectError
    from ottla.spark.pipelines.template import write_project

    if not name.strip():
        raise WrongUsage("NAME is empty; `.` is the current directory")
    try:
        with naming_full_disks(Path.cwd()):
            files = write_project(Path.cwd() / name)
    except ProjectError as error:
        raise CliError(str(error)) from None
    for file in files:
        print_line(os.path.relpath(file))
    there = "" if files[0].parent == Path.cwd() else f"cd {name} && "
    note(f"Now: {there}ottla pipeline run --embedded")


@command(app, "run")
def run(
    project: ProjectPath = ".",
    bootstrap: Brokers = None,
    embedded: Embedded = False,
    master: Master = DEFAULT_MASTER,
    continuous: Annotated[
        bool,
        Option("--continuous", help="After the run, keep a query open for each flow, until Ctrl-C."),
    ] = False,
    interval: Annotated[
        float,
        Option(
            "--interval",
            metavar="SECONDS",
            min=0,
            help="With --continuous: how often flows look for data, if the project has no setting for it; "
            "with --runs: the pause between runs.",
        ),
    ] = 0.5,
    runs: Annotated[
        int | None,
        Option("--runs", metavar="N", min=1, help="With --continuous: repeat the whole run N times."),
    ] = None,
    refresh: Refresh = None,
    full_refresh: FullRefresh = None,
    full_refresh_all: FullRefreshAll = False,
    renamed_flow: RenamedFlow = None,
    renamed_sink: RenamedSink = None,
    new_flow: NewFlow = None,
    environment: Environment = None,
    since: Annotated[
        str | None,
        Option(
            "--from",
            metavar="TIME",
            help="Read the records since this time again, into the tables that merge; nothing else runs.",
        ),
    ] = None,
    until: Annotated[
        str | None, Option("--to", metavar="TIME", help="With --from: those before this time.")
    ] = None,
    settings: Settings = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run a pipeline once over the data that exists; with --continuous, also over what comes after it.

    Exits with 1 if a flow fails, and says which one and why; with 4, before anything is run, if the project
    has to be changed first: it is not valid, or would repeat or leave out rows, as after changes of the
    definitions (`ottla pipeline plan` shows that); and with 5 if another run goes on. With --json, stdout
    gets a summary.
    """
    if runs is not None and not continuous:
        raise WrongUsage("--runs goes with --continuous")
    times = _times(since, until)
    if times is not None and (continuous or refresh or full_refresh or full_refresh_all):
        raise WrongUsage("--from reads a range of time again: omit --continuous and --refresh")
    selection = _selection(refresh, full_refresh, full_refresh_all, renamed_flow, renamed_sink, new_flow)
    started = _Start(project, bootstrap, embedded, master, settings, verbose, environment)
    lasting = continuous and runs is None
    with summarized_run(as_json=as_json) as summary:
        _start(
            started,
            selection,
            runs=runs if continuous else 1,
            interval_s=interval,
            continuous=lasting,
            summary=summary,
            times=times,
        )


def _times(since: str | None, until: str | None) -> TimeRange | None:
    from ottla.cli.positions import parse_time
    from ottla.runtime.clock import SystemClock
    from ottla.spark.pipelines.selection import TimeRange

    if since is None:
        if until is not None:
            raise WrongUsage("--to goes with --from")
        return None
    now_ms = SystemClock().wall_ms()
    start = parse_time("--from", since, now_ms)
    end = None if until is None else parse_time("--to", until, now_ms)
    if end is not None and end <= start:
        raise WrongUsage("--to is not after --from")
    return TimeRange(start, end)


def _selection(
    refresh: list[str] | None,
    full_refresh: list[str] | None,
    full_refresh_all: bool,
    renamed_flow: list[str] | None,
    renamed_sink: list[str] | None,
    new_flow: list[str] | None,
) -> Selection:
    from ottla.spark.pipelines.selection import Selection

    if full_refresh_all and (refresh or full_refresh):
        raise WrongUsage("--full-refresh-all includes all tables; omit --refresh and --full-refresh")
    return Selection(
        refresh or (),
        full_refresh or (),
        full_refresh_all,
        renamed_flows=named_values("--renamed-flow", renamed_flow or ()),
        renamed_sinks=named_values("--renamed-sink", renamed_sink or ()),
        new_flows=new_flow or (),
    )


@command(app, "plan")
def plan(
    project: ProjectPath = ".",
    bootstrap: Brokers = None,
    master: Master = DEFAULT_MASTER,
    refresh: Refresh = None,
    full_refresh: FullRefresh = None,
    full_refresh_all: FullRefreshAll = False,
    renamed_flow: RenamedFlow = None,
    renamed_sink: RenamedSink = None,
    new_flow: NewFlow = None,
    environment: Environment = None,
    settings: Settings = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Show what a run with these options would do with each stream, and why. Nothing is run or changed.

    Exits with 4 if the run would be refused, and says what to do instead.
    """
    selection = _selection(refresh, full_refresh, full_refresh_all, renamed_flow, renamed_sink, new_flow)
    started = _Start(project, bootstrap, False, master, settings, verbose, environment)
    _start(started, selection, runs=1, plan_only=True, as_json=as_json)


@command(app, "dry-run")
def dry_run(
    project: ProjectPath = ".",
    bootstrap: Brokers = None,
    embedded: Embedded = False,
    master: Master = DEFAULT_MASTER,
    environment: Environment = None,
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Check a pipeline without running it: its definitions, names, columns and types."""
    from ottla.spark.pipelines.selection import Selection

    started = _Start(project, bootstrap, embedded, master, settings, verbose, environment)
    _start(started, Selection(), runs=1, dry=True)


class _Start(NamedTuple):
    """The options that `run`, `plan` and `dry-run` share."""

    path: str
    bootstrap: str | None
    embedded: bool
    master: str
    settings: list[str] | None
    verbose: bool
    environment: str | None


def _start(
    given: _Start,
    selection: Selection,
    *,
    runs: int | None,
    interval_s: float = 0,
    dry: bool = False,
    plan_only: bool = False,
    continuous: bool = False,
    as_json: bool = False,
    summary: RunSummary | None = None,
    times: TimeRange | None = None,
) -> None:
    """Start what a run needs, run, and stop it again."""
    from ottla.cli.pipeline_run import PipelineRequest, embedded_node, run_all
    from ottla.spark.java import NoJava
    from ottla.spark.pipelines.project import BOOTSTRAP, CREATE_TOPICS, ProjectError
    from ottla.spark.pipelines.run_lock import AlreadyRunning, run_lock
    from ottla.spark.pipelines.runner import InvalidDefinitions, RunFailed
    from ottla.spark.pipelines.selection import UnknownTables
    from ottla.spark.session import NoSpark, kill_spark
    from ottla.spark.worker.client_config import use_client_config

    if given.embedded and given.environment is not None:
        raise WrongUsage("--embedded starts its own node, and an environment has its brokers: omit one")
    bootstrap = given.bootstrap
    if given.embedded and bootstrap is not None and not is_from_variable(bootstrap):
        raise WrongUsage("--embedded starts its own node; omit --bootstrap-server")
    if given.embedded and command_config.given() not in (None, os.environ.get(command_config.VARIABLE)):
        raise WrongUsage("--embedded starts its own node, which is not secured; omit --command-config")
    project = project_of(given.path, given.environment)
    bootstrap = brokers_of(project, bootstrap)
    if summary is not None:
        summary.pipeline, summary.environment = project.name, project.environment
    conf = named_values("--conf", given.settings or ())
    configuration = dict(project.configuration)
    with ExitStack() as stack:
        state = stack.enter_context(state_directory(project, only_reads=dry or plan_only))
        stack.enter_context(naming_full_disks(project.directory))
        stack.enter_context(terminable())
        lock: RunLock | None = None
        starts_node = given.embedded or (bootstrap is None and project.bootstrap_servers is None)
        if not (dry or plan_only) or starts_node:
            places = [state, *([project.storage_path] if project.storage_path is not None else [])]
            try:
                lock = stack.enter_context(
                    run_lock(places, lambda why: note(f"waiting: {why}"), on_lost=kill_spark)
                )
            except AlreadyRunning as error:
                hint = ". To look only takes no node: name any address with -b" if dry or plan_only else ""
                raise CliError(f"{error}{hint}", status=BUSY) from None
        if starts_node:
            bootstrap = stack.enter_context(embedded_node(state / "node", state / "node.log"))
            note(f"node: {bootstrap}, data in {state / 'node'}")
            command_config.use(None)  # it is not for this node
        if bootstrap is not None:
            configuration[BOOTSTRAP] = bootstrap
        if (file := command_config.given()) is not None:
            command_config.client_settings()  # a file that cannot be read ends the command here
            use_client_config(file, configuration[BOOTSTRAP])
        if not (dry or plan_only) and (wanted := configuration.get(CREATE_TOPICS)):
            _create_topics(configuration[BOOTSTRAP], wanted)
        log = None if given.verbose else stack.enter_context(log_file(state / "spark.log"))
        request = PipelineRequest(
            project,
            configuration,
            conf,
            given.master,
            state,
            selection,
            dry,
            runs,
            interval_s,
            continuous,
            plan_only,
            as_json,
            lock,
            times,
            summary,
        )
        try:
            run_all(request, log)
        except ProjectError as error:
            raise CliError(str(error), status=REFUSED) from None
        except (NoJava, NoSpark) as error:
            raise CliError(str(error)) from None
        except UnknownTables as error:
            raise WrongUsage(str(error)) from None
        except RunFailed as failure:
            more = [_FULL_REFRESH_HINT] if "DataLoss: " in str(failure) else []
            more += [] if log is None else [f"What Spark logged is in {state / 'spark.log'}."]
            status = REFUSED if isinstance(failure, InvalidDefinitions) else FAILED
            raise CliError(str(failure), *more, status=status) from None


def _create_topics(bootstrap: str, wanted: str) -> None:
    """Create the missing topics of the project: `orders:3, totals` in its configuration."""
    from ottla.spark.pipelines.project import ProjectError, topics_to_create

    try:
        topics = topics_to_create(wanted)
    except ProjectError as error:
        raise CliError(str(error), status=REFUSED) from None

    async def work(admin: Admin) -> None:
        known = {topic.name for topic in await admin.topics.list()}
        for name, partitions in topics.items():
            if name not in known:
                await admin.topics.create(name, partitions=partitions)
                note(f"topic {name}: created with {partitions} partition{'s' * (partitions > 1)}")

    with_admin(Common(bootstrap), work)


@command(app, "show")
def show(
    table: Annotated[
        str | None,
        Argument(
            metavar="[TABLE]", help="A table of the project: NAME or DATABASE.NAME. Default: all of it."
        ),
    ] = None,
    project: ProjectPath = ".",
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, help="How many rows, or runs.")] = 20,
    environment: Environment = None,
    as_json: Json = False,
) -> None:
    """Show rows of a table, as the last complete result has them; or without one the flows, with their state,
    and how the last runs have ended. Spark is not started.
    """
    from ottla.cli.pipeline_results import show_pipeline, show_table
    from ottla.spark.pipelines.project import ProjectError

    found = project_of(project, environment)
    try:
        if table is None:
            show_pipeline(found, limit, as_json=as_json)
        else:
            show_table(found, table, limit, as_json=as_json)
    except ProjectError as error:
        raise CliError(str(error)) from None


@command(app, "sql")
def sql(
    query: Annotated[str, Argument(metavar="QUERY", help="As 'SELECT item, amount FROM turnover'.")],
    project: ProjectPath = ".",
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, help="How many rows.")] = 100,
    master: Master = DEFAULT_MASTER,
    environment: Environment = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Run a query over the tables of the project, on a Spark that is started for it."""
    from ottla.cli.pipeline_results import check_query, run_query
    from ottla.spark.java import NoJava
    from ottla.spark.session import NoSpark

    check_query(query)
    found = project_of(project, environment)
    conf = named_values("--conf", settings or ())
    try:
        with (
            naming_full_disks(found.directory),
            state_directory(found, only_reads=True) as state,
            log_file(state / "sql.log") as log,
        ):
            run_query(found, query, limit, master=master, conf=conf, as_json=as_json, log=log)
    except (NoJava, NoSpark) as error:
        raise CliError(str(error)) from None


@command(app, "graph")
def graph(
    project: ProjectPath = ".",
    dot: Annotated[bool, Option("--dot", help="For Graphviz.")] = False,
    mermaid: Annotated[bool, Option("--mermaid", help="For Mermaid, as in Markdown files.")] = False,
    svg: Annotated[bool, Option("--svg", help="As a picture.")] = False,
    environment: Environment = None,
) -> None:
    """Show the flows of a pipeline and what they read, as the last run or dry-run has found them."""
    from ottla.cli.pipeline_results import print_graph

    forms = [form for form, chosen in (("dot", dot), ("mermaid", mermaid), ("svg", svg)) if chosen]
    if len(forms) > 1:
        raise WrongUsage("choose one of --dot, --mermaid and --svg")
    print_graph(project_of(project, environment).state, forms[0] if forms else "text")


@command(app, "status")
def status(
    project: ProjectPath = ".",
    bootstrap: Brokers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    environment: Environment = None,
    as_json: Json = False,
) -> None:
    """Show the checkpoint of each flow, and its lag behind its topics.

    Without brokers (-b, or the project's own) the lag is omitted; checkpoints are read from files.
    """
    from ottla.spark.pipelines.checkpoints import read_checkpoints
    from ottla.spark.pipelines.project import ProjectError
    from ottla.spark.pipelines.run_lock import is_running

    found = project_of(project, environment)
    bootstrap = brokers_of(found, bootstrap)
    try:
        checkpoints = read_checkpoints(found)
    except ProjectError as error:
        raise CliError(str(error)) from None
    if not checkpoints and not as_json:
        note("no flow has a checkpoint yet; `ottla pipeline run` creates them")
        return
    servers = bootstrap or found.bootstrap_servers
    ends = _ends(checkpoints, servers, timeout) if servers else {}
    rows = [_facts(checkpoint, ends) for checkpoint in checkpoints]
    if as_json:
        print_json(rows)
        return
    unfinished = "is in progress" if is_running(found.state) else "will be run again"
    print_table(
        ["flow", "into", "batch", "at", "topics", "lag", "remark"],
        [
            (
                row["flow"],
                row["into"],
                row["batch"],
                row["time"],
                ",".join(row["topics"]) or None,
                row["lag"],
                "" if row["unfinished"] is None else f"batch {row['unfinished']} {unfinished}",
            )
            for row in rows
        ],
    )


def _facts(checkpoint: Checkpoint, ends: dict[tuple[str, int], int]) -> dict[str, Any]:
    topics = {topic for topic, _ in checkpoint.offsets}
    # Including new partitions: the flow will read them from their beginning.
    partitions = sorted({*checkpoint.offsets, *(key for key in ends if key[0] in topics)})
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": partition,
            "offset": checkpoint.offsets.get((topic, partition)),
            "end": ends.get((topic, partition)),
        }
        for topic, partition in partitions
    ]
    known = [row for row in rows if row["end"] is not None]
    return {
        "flow": checkpoint.flow,
        "into": checkpoint.target,
        "checkpoint": checkpoint.number,
        "batch": checkpoint.batch,
        "unfinished": checkpoint.unfinished,
        "time": time_text(checkpoint.timestamp_ms),
        "topics": sorted(topics),
        "lag": sum(max(row["end"] - (row["offset"] or 0), 0) for row in known) if known else None,
        "partitions": rows,
    }


def _ends(checkpoints: list[Checkpoint], bootstrap: str, timeout_s: float) -> dict[tuple[str, int], int]:
    """The end offsets of all partitions of the flows' topics; deleted topics are left out."""
    from ottla.client.admin.offsets import FoundOffset, OffsetSpec
    from ottla.protocol.names import TopicPartition

    topics = {topic for checkpoint in checkpoints for topic, _ in checkpoint.offsets}
    if not topics:
        return {}

    async def work(admin: Admin) -> dict[tuple[str, int], int]:
        there = [info for info in await admin.topics.list() if info.name in topics]
        partitions = [TopicPartition(info.name, p.partition) for info in there for p in info.partitions]
        found = await admin.offsets.list(dict.fromkeys(partitions, OffsetSpec.LATEST))
        return {(p.topic, p.partition): at.offset for p, at in found.items() if isinstance(at, FoundOffset)}

    try:
        return with_admin(Common(bootstrap, timeout_s), work)
    except CliError as error:
        note(f"ottla: no lag: {error}")
        return {}
