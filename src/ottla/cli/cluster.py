"""`ottla cluster`: describe any cluster, and run one on this machine.

`describe`, `features` and `apis` ask brokers. `up`, `down`, `start`, `kill`, `pause`, `resume` and `status`
are for a cluster of processes on this machine. Such a cluster is its directory: every command finds the nodes
by it, from any shell. `up` watches the nodes and stops them when it ends; with `--detach` they keep running.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import click

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import FAILED, CliError, WrongUsage
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    Json,
    named_values,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table
from ottla.cli.session import run, with_admin
from ottla.cli.start import unknown_problem
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.cli.cluster_status import ClusterStatus
    from ottla.client.admin import Admin
    from ottla.client.admin.cluster import ClusterInfo, Feature
    from ottla.testing.cluster_plan import ClusterPlan
    from ottla.testing.cluster_process import NodeProcess
    from ottla.testing.zookeeper_server import ZooKeeperServer

HELP: Final = "Run a cluster on this machine; describe any cluster's brokers, features and APIs."
# How long to wait for a quorum that may have no leader.
_CONTROLLER_SECONDS: Final = 3.0
app = group("cluster", HELP)


@command(app, "describe")
def describe(
    common: Common = COMMON,
) -> None:
    """Show the cluster's id, its controller and its brokers."""

    async def work(admin: Admin) -> tuple[ClusterInfo, int | None]:
        info = await admin.cluster.describe()
        return info, await _controller(admin, info)

    info, controller = with_admin(common, work)
    if common.as_json:
        print_json(
            {
                "cluster_id": info.cluster_id,
                "controller": controller,
                "brokers": [
                    {"id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in info.brokers
                ],
            }
        )
        return
    from ottla.runtime.address import Address

    print_pairs([("cluster", info.cluster_id), ("controller", controller)])
    print_line()
    print_table(
        ["broker", "address", "rack"],
        [(b.node_id, str(Address(b.host, b.port)), b.rack) for b in info.brokers],
    )


async def _controller(admin: Admin, info: ClusterInfo) -> int | None:
    """The leader of the quorum; None without one. With a quorum, brokers report any broker as controller."""
    try:
        async with asyncio.timeout(_CONTROLLER_SECONDS):
            leader = (await admin.cluster.quorum()).leader_id
    except TimeoutError:
        return None
    except KafkaError as error:  # a Kafka without quorums, or one that requires a permission
        return None if error.retriable else info.controller_id
    return leader if leader >= 0 else None


@command(app, "features")
def features(
    upgrade: Annotated[
        list[str] | None,
        Option("--set", metavar="FEATURE=LEVEL", help="Set a feature to a level; may be repeated."),
    ] = None,
    downgrade: Annotated[bool, Option("--downgrade", help="Allow lower levels if no data is lost.")] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Show or change feature levels, such as metadata.version."""
    levels: dict[str, int] = {}
    for name, level in named_values("--set", upgrade or ()).items():
        if not level.isdecimal():
            raise WrongUsage(f"--set {name}={level}: a level is a number")
        levels[name] = int(level)

    async def work(admin: Admin) -> dict[str, Feature]:
        from ottla.client.admin.cluster import UpgradeType

        if levels:
            kind = UpgradeType.SAFE_DOWNGRADE if downgrade else UpgradeType.UPGRADE
            await admin.cluster.update_features(levels, upgrade_type=kind, validate_only=dry_run)
        return await admin.cluster.features()

    found = with_admin(common, work)
    if common.as_json:
        print_json(
            [
                {
                    "feature": name,
                    "level": f.finalized,
                    "min_supported": f.min_supported,
                    "max_supported": f.max_supported,
                }
                for name, f in found.items()
            ]
        )
    else:
        print_table(
            ["feature", "level", "supported"],
            [(name, f.finalized, f"{f.min_supported} to {f.max_supported}") for name, f in found.items()],
        )


@command(app, "apis")
def apis(
    common: Common = COMMON,
) -> None:
    """Show the APIs and versions that a broker announces."""

    async def work(admin: Admin) -> list[tuple[int, int, int]]:
        return await admin.cluster.api_versions()

    from ottla.protocol.api import API, api_name

    found = with_admin(common, work)
    if common.as_json:
        print_json([{"key": k, "name": api_name(k), "min": low, "max": high} for k, low, high in found])
        return
    print_table(
        ["key", "api", "versions", "supported here"],
        [
            (
                key,
                api_name(key),
                f"{low} to {high}",
                f"{API[key].min_version} to {API[key].max_version}" if key in API else None,
            )
            for key, low, high in found
        ],
    )


DEFAULT_DATA_DIR: Final = "ottla-cluster"
DEFAULT_NODES: Final = 3
DEFAULT_PORT: Final = 9092
_PROTOCOLS: Final = {"ssl": "SSL", "sasl": "SASL_SSL"}
_OWN_ZOOKEEPER: Final = "own"  # OWN_ZOOKEEPER of cluster_plan, which a start of this command does not import
_ZOOKEEPER_TIMEOUT_MS: Final = 10_000
_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05

DataDir = Annotated[str, Option("--data-dir", "-d", metavar="DIR", help="The directory of the cluster.")]
Nodes = Annotated[list[int], Argument(metavar="NODE...", help="The ids of nodes.")]


@command(app, "up")
def up(
    nodes: Annotated[
        int | None, Option("--nodes", "-n", min=1, max=100, help="The number of brokers; 3 by default.")
    ] = None,
    controllers: Annotated[
        int,
        Option(
            "--controllers", min=0, max=100, help="Separate controllers; 0 makes each broker a controller."
        ),
    ] = 0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    port: Annotated[
        int | None,
        Option(
            "--port",
            metavar="PORT",
            min=1,
            max=65_535,
            help=f"The first port, {DEFAULT_PORT} by default; the next nodes use the following ones.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="A setting of every node; may be repeated."),
    ] = None,
    log_level: Annotated[
        str,
        Option(
            "--log-level", choices=("debug", "info", "warning", "error"), help="The log level of the nodes."
        ),
    ] = "warning",
    secure: Annotated[
        str | None,
        Option(
            "--secure",
            metavar="[ssl|sasl]",
            choices=tuple(_PROTOCOLS),
            implied="ssl",
            help="Encrypt all connections, with certificates of a CA of its own. Clients need one, too; with "
            "sasl they log in by a password instead, and ACLs say what they may do.",
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        Option(
            "--zookeeper",
            metavar="[HOST:PORT/PATH]",
            implied=_OWN_ZOOKEEPER,
            help="Legacy: keep the metadata in ZooKeeper, as Kafka did before 4.0, instead of in a quorum. "
            "Starts one, which needs Java and, once, Maven, or uses the one at HOST:PORT[/PATH].",
        ),
    ] = None,
    detach: Annotated[
        bool, Option("--detach", help="Return when the cluster is ready, and let it run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a cluster on this machine, one process per node, and watch it.

    Without --detach, Ctrl-C stops it. The data stays in the directory: the next `up` finds it, and nodes
    keep their ids, ports and settings. The log of each node is node-N/node.log in the directory.
    """
    from ottla.testing.cluster_process import ProcessState

    given = named_values("--set", settings or ())
    if (problem := unknown_problem(given, with_zookeeper=zookeeper is not None)) is not None:
        raise WrongUsage(f"--set: {problem}")
    plan = _load_or_create(data_dir, nodes, controllers, port, given, secure=secure, zookeeper=zookeeper)
    processes = _processes(plan)
    running = [process for process in processes if process.state() is not ProcessState.DOWN]
    if running:
        here = _directory_option(data_dir)
        raise CliError(
            f"{_are(running)} already running; `ottla cluster status{here}` shows the cluster, "
            f"`ottla cluster start NODE{here}` starts the others, `ottla cluster down{here}` stops all"
        )
    started = _Started()
    try:
        _start(plan, processes, started, log_level=log_level)
        if not detach:
            run(_watch(plan, processes, as_json))
    except BaseException:
        _stop(started.nodes)
        if started.zookeeper:
            _stop_zookeeper(plan)
        raise
    if not detach:
        stopped = _stop(processes)
        _stop_zookeeper(plan)
        if stopped and not as_json:
            _report(stopped, "stopped", as_json)
    elif as_json:
        print_json(
            {
                "cluster_id": plan.cluster_id,
                "directory": str(plan.directory),
                "bootstrap_servers": plan.bootstrap_servers,
                "nodes": [process.plan.id for process in processes],
                "command_config": plan.command_config,
                **({} if plan.zookeeper is None else {"zookeeper": plan.zookeeper}),
            }
        )
    else:
        print_line(f"cluster {plan.cluster_id} serves at {plan.bootstrap_servers}, data in {plan.directory}")
        if plan.zookeeper is not None:
            print_line(f"its metadata are in ZooKeeper at {plan.zookeeper} (legacy)")
        if plan.security is not None:
            print_line(f"clients need --command-config {plan.command_config}")
            if plan.security.protocol.sasl:
                print_line("with it, `ottla users add` and `ottla acls add` let others in")


@command(app, "down")
def down(
    nodes: Annotated[
        list[int] | None, Argument(metavar="[NODE...]", help="The ids of nodes; all if none is given.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: Json = False,
) -> None:
    """Stop the cluster, or some of its nodes, cleanly. The data stays."""
    plan = _load(data_dir)
    stopped = _stop(_choose_processes(plan, nodes))
    with_zookeeper = not nodes and _stop_zookeeper(plan)
    if stopped or as_json or not with_zookeeper:
        _report(stopped, "stopped", as_json)
    if with_zookeeper and not as_json:
        print_line("ZooKeeper stopped")


@command(app, "start")
def start(nodes: Nodes, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: Json = False) -> None:
    """Start nodes that are down, with their data."""
    plan = _load(data_dir)
    chosen = _choose_processes(plan, nodes)
    _start(plan, chosen, _Started())
    _report(chosen, "started", as_json)


@command(app, "kill")
def kill(nodes: Nodes, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: Json = False) -> None:
    """Kill nodes, as a crash would (SIGKILL)."""
    _signal(data_dir, nodes, signal.SIGKILL, "killed", as_json)


@command(app, "pause")
def pause(nodes: Nodes, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: Json = False) -> None:
    """Pause nodes (SIGSTOP): connections stay open, and requests are not answered."""
    _signal(data_dir, nodes, signal.SIGSTOP, "paused", as_json)


@command(app, "resume")
def resume(nodes: Nodes, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: Json = False) -> None:
    """Resume paused nodes (SIGCONT)."""
    _signal(data_dir, nodes, signal.SIGCONT, "resumed", as_json)


@command(app, "status")
def status(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    partitions: Annotated[bool, Option("--partitions", "-p", help="Show a line for each partition.")] = False,
    as_json: Json = False,
) -> None:
    """Show nodes, leaders, in-sync replicas, lag and quorum, and what nodes say is wrong with them.
    Exits with 1 if something is down or behind.
    """
    from ottla.cli.cluster_status import (
        document,
        facts,
        nodes_table,
        partitions_table,
        problems,
        topics_table,
    )

    plan = _load(data_dir)
    found = run(_read_status(plan, _processes(plan)))
    if as_json:
        print_json(document(found))
    else:
        print_pairs(facts(found))
        print_line()
        print_table(*nodes_table(found))
        wrong = problems(found)
        if wrong:
            print_line()
            for problem in wrong:
                print_line(problem)
        if found.partitions:
            print_line()
            print_table(*(partitions_table if partitions else topics_table)(found))
    if not found.is_healthy:
        raise click.exceptions.Exit(FAILED)


# The cluster and its nodes.


def _directory_option(data_dir: str) -> str:
    """The option that other commands need for the same cluster; none for the default."""
    from shlex import quote

    return "" if data_dir == DEFAULT_DATA_DIR else f" -d {quote(data_dir)}"


def _load_or_create(
    data_dir: str,
    nodes: int | None,
    controllers: int,
    port: int | None,
    settings: dict[str, str],
    *,
    secure: str | None,
    zookeeper: str | None,
) -> ClusterPlan:
    """The cluster in the directory, or a new one."""
    from ottla.testing.cluster_plan import ClusterPlan, PlanError
    from ottla.testing.security import LocalSecurity

    try:
        if not ClusterPlan.exists(data_dir):
            if zookeeper is not None:
                _check_zookeeper(zookeeper, settings)
            plan = ClusterPlan.make(
                data_dir,
                brokers=nodes or DEFAULT_NODES,
                controllers=controllers,
                settings=settings,
                first_port=port or DEFAULT_PORT,
                security=None if secure is None else LocalSecurity(_PROTOCOLS[secure]),
                zookeeper=zookeeper,
            )
            plan.write()
            return plan
        plan = ClusterPlan.read(data_dir)
    except PlanError as error:
        raise CliError(str(error)) from None
    wanted = {"--nodes": nodes not in (None, len(plan.brokers))}
    wanted["--controllers"] = bool(controllers) and controllers != len(plan.nodes) - len(plan.brokers)
    wanted["--port"] = port not in (None, plan.brokers[0].port)
    wanted["--secure"] = secure is not None and (
        plan.security is None or plan.security.protocol.name != _PROTOCOLS[secure]
    )
    known = plan.zookeeper if plan.zookeeper_port is None else _OWN_ZOOKEEPER
    wanted["--zookeeper"] = zookeeper not in (None, known, plan.zookeeper)
    wanted["--set"] = bool(settings) and settings.items() != dict(plan.settings).items()
    for option, differs in wanted.items():
        if differs:
            or_edit = "; node-N/server.properties has the settings of a node" if option == "--set" else ""
            raise CliError(
                f"there is already a cluster in {plan.directory}, created with another {option}; omit the "
                f"option, or choose another --data-dir{or_edit}"
            )
    return plan


def _check_zookeeper(zookeeper: str, settings: dict[str, str]) -> None:
    """Fail before there is a cluster that would keep an address at which no ZooKeeper is, or a cluster is."""
    from importlib.util import find_spec

    from ottla.runtime.zookeeper import KAZOO_IS_MISSING
    from ottla.testing.zookeeper_server import missing_requirement

    if find_spec("kazoo") is None:
        raise CliError(KAZOO_IS_MISSING)
    if zookeeper == _OWN_ZOOKEEPER:
        if (missing := missing_requirement()) is not None:
            raise CliError(f"ZooKeeper cannot be started: {missing}")
    else:
        _check_reachable(zookeeper)
        asyncio.run(_check_no_cluster(zookeeper, settings))


def _check_reachable(zookeeper: str) -> None:
    from ottla.runtime.zookeeper import unreachable

    reason = unreachable(zookeeper)
    if reason is not None:
        raise CliError(
            f"ZooKeeper cannot be reached: {reason}. Check the address, and that it runs; "
            "`--zookeeper` alone starts one"
        )


async def _check_no_cluster(zookeeper: str, settings: dict[str, str]) -> None:
    """Open a session, as the nodes will: a port that is open may be of anything."""
    import logging

    from ottla.runtime.disk import RealDisk
    from ottla.runtime.zookeeper import KAZOO_LOGGER, KazooSession, ZooKeeperError, ZooKeeperSettings
    from ottla.security.zookeeper_login import ZooKeeperSettingsError, load_login, load_tls
    from ottla.zookeeper import znodes

    logging.getLogger(KAZOO_LOGGER).setLevel(logging.CRITICAL)  # what goes wrong is in the error
    try:
        connection = ZooKeeperSettings(
            zookeeper,
            session_timeout_ms=_ZOOKEEPER_TIMEOUT_MS,
            connection_timeout_ms=_ZOOKEEPER_TIMEOUT_MS,
            login=load_login(settings, RealDisk()),
            tls_context=load_tls(settings, RealDisk()),
        )
        note(f"asking ZooKeeper at {zookeeper}")
        session = await KazooSession.connect(connection)
        try:
            is_taken = await session.exists(znodes.CLUSTER_ID) is not None
        finally:
            await session.close()
    except (ConnectionError, ZooKeeperError, ZooKeeperSettingsError) as error:
        raise CliError(
            f"{str(error).rstrip('.')}. Is it ZooKeeper that listens there? No cluster was made"
        ) from None
    if is_taken:
        place = connection.chroot or "/"
        raise CliError(
            f"ZooKeeper at {connection.hosts} has a cluster at {place} already ({znodes.CLUSTER_ID}). No "
            f"cluster was made. Choose another path: --zookeeper {connection.hosts}{connection.chroot}/NAME"
        )


def _zookeeper_server(plan: ClusterPlan) -> ZooKeeperServer | None:
    if plan.zookeeper_port is None:
        return None
    from ottla.testing.zookeeper_server import ZooKeeperServer

    return ZooKeeperServer(plan.directory / "zookeeper", plan.zookeeper_port)


def _start_zookeeper(plan: ClusterPlan, started: _Started) -> None:
    """Start the ZooKeeper of the cluster, if it has one of its own that does not run; its lock is held."""
    server = _zookeeper_server(plan)
    if server is None:
        if plan.zookeeper is not None:
            _check_reachable(plan.zookeeper)
        return
    from ottla.testing.cluster_process import ClusterError
    from ottla.testing.zookeeper_server import ZOOKEEPER_VERSION, pending_download

    if server.pid() is None:
        started.zookeeper = True
        if (folder := pending_download()) is not None:
            note(f"Maven fetches ZooKeeper {ZOOKEEPER_VERSION} into {folder}, once")
    try:
        server.start()
    except ClusterError as error:
        raise CliError(str(error)) from None


def _stop_zookeeper(plan: ClusterPlan) -> bool:
    """Stop the ZooKeeper of the cluster's own, if it has one; returns whether it was running."""
    server = _zookeeper_server(plan)
    if server is None:
        return False
    from ottla.testing.cluster_process import ClusterError

    try:
        return server.stop()
    except ClusterError as error:
        raise CliError(str(error)) from None


def _load(data_dir: str) -> ClusterPlan:
    from ottla.testing.cluster_plan import ClusterPlan, PlanError

    try:
        return ClusterPlan.read(data_dir)
    except PlanError as error:
        raise CliError(str(error)) from None


def _processes(plan: ClusterPlan) -> list[NodeProcess]:
    from ottla.testing.cluster_process import NodeProcess

    return [NodeProcess(node) for node in plan.nodes]


def _choose_processes(plan: ClusterPlan, nodes: Iterable[int] | None) -> list[NodeProcess]:
    from ottla.testing.cluster_plan import PlanError
    from ottla.testing.cluster_process import NodeProcess

    if not nodes:
        return _processes(plan)
    try:
        return [NodeProcess(plan.node(node)) for node in dict.fromkeys(nodes)]
    except PlanError as error:
        raise WrongUsage(str(error)) from None


@dataclass(slots=True)
class _Started:
    """What a command has started, and stops if it fails; what runs already is of another command."""

    nodes: list[NodeProcess] = field(default_factory=list)
    zookeeper: bool = False


def _start(
    plan: ClusterPlan, processes: Sequence[NodeProcess], started: _Started, *, log_level: str = "warning"
) -> None:
    """Start the processes that are down, add them to `started`, and wait until all are ready."""
    from ottla.testing.cluster_plan import PlanError, check_free, locked
    from ottla.testing.cluster_process import ProcessState

    process = processes[0]
    try:
        with locked(plan.directory):
            starting = [process for process in processes if process.state() is ProcessState.DOWN]
            if not starting:
                raise CliError(f"{_are(processes)} already running")
            ports = (port for each in starting for port in (each.plan.port, each.plan.controller_port))
            check_free([port for port in ports if port is not None])
            _start_zookeeper(plan, started)
            for process in starting:
                started.nodes.append(process)
                process.start(log_level=log_level)
    except PlanError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(
            f"node {process.plan.id} did not start: {error.strerror}: "
            f"{error.filename or process.plan.directory}"
        ) from None
    deadline = time.monotonic() + _START_SECONDS
    while not all(process.said_ready() for process in starting):
        for process in starting:
            if process.state() is ProcessState.DOWN:
                lines = process.log_tail().strip().splitlines()
                why = lines[-1].removeprefix("ottla: ") if lines else "there is no output"
                raise CliError(
                    f"node {process.plan.id} did not start: {why.rstrip('.')}; see {process.plan.log_file}"
                )
        if time.monotonic() > deadline:
            raise CliError(
                f"the nodes were not ready within {_START_SECONDS:.0f} s; see the node.log of each in "
                f"{starting[0].plan.directory.parent}"
            )
        time.sleep(_POLL_SECONDS)


def _stop(processes: Iterable[NodeProcess]) -> list[NodeProcess]:
    """Stop the running processes concurrently; returns them when they have ended."""
    from ottla.testing.cluster_process import ClusterError, stop_all

    try:
        return stop_all(processes)
    except ClusterError as error:
        raise CliError(str(error)) from None


def _signal(data_dir: str, nodes: Sequence[int], how: signal.Signals, done: str, as_json: bool) -> None:
    from ottla.testing.cluster_process import ClusterError

    chosen = _choose_processes(_load(data_dir), nodes)
    for process in chosen:
        try:
            process.signal(how)
            if how is signal.SIGKILL:
                process.wait_until_down()
        except ClusterError as error:
            raise CliError(str(error)) from None
    _report(chosen, done, as_json)


def _report(processes: Sequence[NodeProcess], done: str, as_json: bool) -> None:
    """Print what was done to which nodes."""
    if as_json:
        print_json({done: [process.plan.id for process in processes]})
    else:
        print_line(_nodes_text(processes, done) if processes else "nothing was running")


def _nodes_text(processes: Sequence[NodeProcess], what: str) -> str:
    numbers = ", ".join(str(process.plan.id) for process in processes)
    return f"node{'s' if len(processes) > 1 else ''} {numbers} {what}"


def _are(processes: Sequence[NodeProcess]) -> str:
    return _nodes_text(processes, "are" if len(processes) > 1 else "is")


async def _watch(plan: ClusterPlan, processes: Sequence[NodeProcess], as_json: bool) -> None:
    from ottla.cli.cluster_watch import watch

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await watch(plan, processes, stop, as_json=as_json)


async def _read_status(plan: ClusterPlan, processes: Sequence[NodeProcess]) -> ClusterStatus:
    from ottla.cli.cluster_status import read_status
    from ottla.cli.cluster_watch import connect_admin

    admin = await connect_admin(processes)
    try:
        return await read_status(plan, processes, admin, ask_processes=True)
    finally:
        if admin is not None:
            await admin.close()
