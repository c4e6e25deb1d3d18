"""`ottla zookeeper`: bring a cluster that ran on ZooKeeper to a quorum of controllers. Needs no node."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import UNREACHABLE, CliError, WrongUsage, unreadable
from ottla.cli.options import Json
from ottla.cli.output import print_json, print_line

if TYPE_CHECKING:
    from ottla.metadata.features import MetadataVersion
    from ottla.runtime.zookeeper import KazooSession, ZooKeeperSettings
    from ottla.zookeeper.migration.cluster_reader import ZooKeeperCluster
    from ottla.zookeeper.migration.importer import ImportNode, ImportPlan
    from ottla.zookeeper.migration.kraft_properties import ControllerVoter, KraftProperties
    from ottla.zookeeper.migration.metadata_records import ImportedMetadata

HELP: Final = "Bring a cluster from ZooKeeper to a quorum of controllers; needs no node."
app = group("zookeeper", HELP)

# The first of these that no listener of the broker has is the port of its controller.
_CONTROLLER_PORTS: Final = (9093, *range(19093, 19193))
_POLL_S: Final = 1.0
_MAX_ID: Final = (1 << 31) - 1
# The import is a command that a person waits for: it gives up earlier than a broker does.
_CONNECT_TIMEOUT_MS: Final = 10_000


@dataclass(slots=True)
class _Broker:
    """A broker whose directories are on this machine."""

    id: int
    paths: list[str]
    file: str | None
    settings: dict[str, str]
    roles: tuple[str, ...] = ("broker",)
    """A node of Ottla's legacy mode may be a controller; Kafka's brokers on ZooKeeper have no roles."""


@command(app, "import")
def import_(
    files: Annotated[
        list[str] | None,
        Argument(metavar="FILE...", help="The server.properties of the brokers on this machine."),
    ] = None,
    zookeeper: Annotated[
        str | None,
        Option("--zookeeper", metavar="HOST:PORT/CHROOT", help="Instead of zookeeper.connect of the files."),
    ] = None,
    zookeeper_config: Annotated[
        str | None,
        Option(
            "--zookeeper-config",
            metavar="FILE",
            help="Properties for ZooKeeper: zookeeper.ssl.*, zookeeper.login.scheme, .user and .password.",
        ),
    ] = None,
    jaas: Annotated[
        str | None,
        Option(
            "--jaas", metavar="FILE", help="The JAAS file of the brokers, whose section Client is the login."
        ),
    ] = None,
    log_dirs: Annotated[
        list[str] | None,
        Option(
            "--log-dirs",
            metavar="ID=DIR,...",
            help="The data directories of a broker without a file; repeatable.",
        ),
    ] = None,
    controllers: Annotated[
        str | None,
        Option(
            "--controllers",
            metavar="ID@HOST:PORT,...",
            help="The controllers of the new cluster, also brokers. Needed unless there is one broker.",
        ),
    ] = None,
    controller_dir: Annotated[
        list[str] | None,
        Option(
            "--controller-dir",
            metavar="ID=DIR",
            help="The empty directory of a controller that is no broker; repeatable.",
        ),
    ] = None,
    release: Annotated[
        str | None,
        Option("--release-version", metavar="VERSION", help="The metadata version, as 4.0 or 4.3-IV0."),
    ] = None,
    output: Annotated[
        str | None,
        Option("--output", metavar="DIR", help="Where the new settings are written; else beside the files."),
    ] = None,
    wait: Annotated[
        float,
        Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait for killed brokers' sessions to end."
        ),
    ] = 30.0,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would come over, what cannot and what looks wrong.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a stopped cluster of Kafka 2.8 to 3.9 from ZooKeeper to a quorum of controllers.

    Also one of Ottla whose metadata are in ZooKeeper (metadata.store=zookeeper). Reads ZooKeeper and the data
    directories, and writes the metadata log of the controllers, meta.properties and the new settings of each
    node. Neither ZooKeeper nor a log of a partition is changed. Run it for the
    directories of every node, on each machine with the same --controllers. Then start the nodes with the new
    settings, as Ottla or as Apache Kafka 4.
    """
    import asyncio
    import contextlib

    from ottla.log.directory.meta_properties import StorageError
    from ottla.runtime.disk import RealDisk, is_out_of_space
    from ottla.zookeeper.migration.importer import locked_directories, plan_import, write_import
    from ottla.zookeeper.migration.metadata_records import import_metadata

    disk = RealDisk()
    # All that is given is checked before anything else is looked at.
    version = _version(release)
    named = None if controllers is None else _parse_controllers(controllers)
    dirs = [_controller_dir(text) for text in controller_dir or []]
    brokers = [*(_read_file(file) for file in files or []), *(_given_dirs(each) for each in log_dirs or [])]
    _check_given(brokers, dirs, named)
    _check_output(output)
    settings = _zookeeper_settings(zookeeper, zookeeper_config, jaas, brokers)
    paths = [*(path for broker in brokers for path in broker.paths), *(path for _, path in dirs)]
    try:
        with contextlib.ExitStack() as stack:
            # The locks come first: what is read under them stays as it is. A directory that no node has ever
            # locked is not touched before it is certain that something will be written.
            locked = stack.enter_context(locked_directories(disk, paths, create=False))
            _check_reachable(settings)
            cluster = asyncio.run(_read(settings, wait))
            imported = import_metadata(cluster, version, _password_decoder(brokers))
            voters = _default_voters(brokers, imported) if named is None else named
            nodes = _nodes(brokers, voters, dirs)
            plan = plan_import(disk, cluster, imported, version, nodes)
            new_settings = _new_settings(brokers, voters, nodes, output)
            for properties in new_settings.values():
                plan.findings.warnings += properties.warnings
            _check_controllers(voters, nodes, plan)
            _check_owner(plan)
            _check_settings(new_settings, plan)
            can_write = not plan.findings.problems and not dry_run
            if can_write:
                others = [path for path in paths if path not in locked]
                stack.enter_context(locked_directories(disk, others, create=True))
                asyncio.run(_check_still_stopped(settings))
                write_import(disk, plan)
                _write_settings(new_settings)
    except StorageError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        what = "make room" if is_out_of_space(error) else "solve that"
        raise CliError(
            f"cannot use {error.filename or 'a file'}: {error.strerror or error}. To go on, {what}, and run "
            "the import again: it goes on where it was. If the disk has failed, take the directory out of "
            "log.dirs"
        ) from None
    if as_json:
        print_json(_document(imported, plan, voters, new_settings, written=can_write))
    else:
        _print_report(imported, plan, voters, new_settings, dry_run=dry_run)
    if plan.findings.problems:
        count = len(plan.findings.problems)
        raise CliError(
            f"{count} {'problem keeps' if count == 1 else 'problems keep'} the cluster from being imported; "
            "nothing was written"
        )


# What is given


def _version(release: str | None) -> MetadataVersion:
    from ottla.metadata.features import DEFAULT_METADATA_VERSION, METADATA_VERSIONS

    if release is None:
        return DEFAULT_METADATA_VERSION
    versions = list(METADATA_VERSIONS.values())
    fitting = [v for v in versions if v.release == release or v.release.startswith(f"{release}-")]
    if not fitting:
        releases = list(dict.fromkeys(v.release.partition("-")[0] for v in versions))
        raise WrongUsage(f"--release-version {release}: known are {', '.join(releases)}")
    return fitting[-1]


def _read_properties(file: str) -> dict[str, str]:
    from ottla.runtime.properties import parse_properties

    try:
        with open(file, "rb") as handle:
            data = handle.read()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        return parse_properties(text)
    except OSError as error:
        raise unreadable(file, error) from None
    except ValueError as error:
        raise CliError(f"{file}, {error}") from None


def _read_file(file: str) -> _Broker:
    settings = _read_properties(file)
    is_legacy = settings.get("metadata.store", "").strip().lower() == "zookeeper"
    if "process.roles" in settings and not is_legacy:
        raise CliError(
            f"{file} has process.roles: it is for a node with a quorum, not for one on ZooKeeper. Give the "
            "file that the broker had on ZooKeeper"
        )
    text = settings.get("log.dirs") or settings.get("log.dir")
    if text is None and is_legacy:
        raise CliError(f"{file} has no log.dirs: name the directory of the node with --log-dirs ID=DIR")
    paths = [os.path.abspath(path.strip()) for path in (text or "/tmp/kafka-logs").split(",") if path.strip()]
    id = (settings.get("broker.id") or (settings.get("node.id") if is_legacy else None) or "-1").strip()
    if not id.lstrip("-").isdecimal():
        raise CliError(f"{file} has broker.id={id}, which is no number")
    roles: tuple[str, ...] = ("broker",)
    if is_legacy:
        roles = tuple(each.strip() for each in settings.get("process.roles", "broker,controller").split(","))
    return _Broker(int(id) if int(id) >= 0 else _stored_id(file, paths), paths, file, settings, roles)


def _stored_id(file: str, paths: list[str]) -> int:
    """The id that ZooKeeper has generated for a broker, from its directories."""
    from ottla.log.directory.meta_properties import StorageError, read_meta_properties
    from ottla.runtime.disk import RealDisk

    try:
        found = [read_meta_properties(RealDisk(), path) for path in paths]
    except StorageError as error:
        raise CliError(str(error)) from None
    ids = {properties.node_id for properties in found if properties is not None}
    if len(ids) != 1:
        raise CliError(f"{file} has no broker.id, and its directories do not tell one: {sorted(ids)}")
    return ids.pop()


def _given_dirs(text: str) -> _Broker:
    id, equals, dirs = text.partition("=")
    paths = [os.path.abspath(path.strip()) for path in dirs.split(",") if path.strip()]
    if not equals or not id.strip().isdecimal() or not paths:
        raise WrongUsage(f"--log-dirs {text}: expected ID=DIR,DIR")
    return _Broker(int(id), paths, None, {})


def _check_given(
    brokers: list[_Broker], dirs: list[tuple[int, str]], named: list[ControllerVoter] | None
) -> None:
    """What can be said of the nodes and their directories before ZooKeeper is asked."""
    if not brokers and not dirs:
        raise WrongUsage("no directory is given: name the server.properties of the brokers on this machine")
    if dirs and named is None:
        raise WrongUsage(
            "--controller-dir is for a node of --controllers: give those, the same on each machine, as "
            f"--controllers {dirs[0][0]}@HOST:9093"
        )
    for id, path in dirs:
        if named is not None and all(voter.id != id for voter in named):
            raise WrongUsage(f"--controller-dir {id}={path}: {id} is not among --controllers")
    ids = [*(broker.id for broker in brokers), *(id for id, _ in dirs)]
    for id in ids:
        if ids.count(id) > 1:
            raise WrongUsage(f"node {id} is given twice")
    paths = [path for broker in brokers for path in broker.paths] + [path for _, path in dirs]
    places = [os.path.realpath(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise WrongUsage(f"the directory {path} is given twice")
    for id, path in dirs:
        here = os.path.realpath(path)
        for other, place in zip(paths, places, strict=True):
            if place != here and os.path.commonpath([here, place]) in (here, place):
                raise WrongUsage(
                    f"--controller-dir {id}={path}: one of it and {other} is inside the other. Give the "
                    "controller a directory of its own"
                )


def _check_output(output: str | None) -> None:
    if output is None:
        return
    place = os.path.abspath(output)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise WrongUsage(f"--output {output}: {place} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise WrongUsage(f"--output {output}: nothing can be written in {place}")


def _zookeeper_settings(
    connect: str | None, file: str | None, jaas: str | None, brokers: list[_Broker]
) -> ZooKeeperSettings:
    from ottla.runtime.disk import RealDisk
    from ottla.runtime.zookeeper import ZooKeeperSettings, server_addresses
    from ottla.security.zookeeper_login import ZooKeeperSettingsError, load_login, load_tls

    given: dict[str, str] = {}
    for broker in brokers:
        other = broker.settings.get("zookeeper.connect")
        if other is not None and given.setdefault("zookeeper.connect", other) != other and connect is None:
            raise WrongUsage(
                f"the files name different ZooKeepers, {given['zookeeper.connect']} and {other}: are they of "
                "one cluster? --zookeeper chooses"
            )
        for name, value in broker.settings.items():
            if name.startswith("zookeeper."):
                given.setdefault(name, value)
    special = {} if file is None else _read_properties(file)
    if jaas is not None or any(map(_is_of_login, special)):  # instead of the login that the files have
        given = {name: value for name, value in given.items() if not _is_of_login(name)}
    given |= special
    if connect is not None:
        given["zookeeper.connect"] = connect
    if "zookeeper.connect" not in given:
        raise WrongUsage("no ZooKeeper is named: give a server.properties, or --zookeeper HOST:PORT/CHROOT")
    if jaas is not None:
        given["zookeeper.jaas.file"] = jaas
    try:
        server_addresses(given["zookeeper.connect"])
    except ValueError as error:
        raise WrongUsage(f"ZooKeeper at {given['zookeeper.connect']}: {error}") from None
    timeout = given.get("zookeeper.connection.timeout.ms", "").strip()
    timeout_ms = min(int(timeout) if timeout.isdecimal() else _CONNECT_TIMEOUT_MS, _CONNECT_TIMEOUT_MS)
    try:
        return ZooKeeperSettings(
            given["zookeeper.connect"].strip(),
            session_timeout_ms=timeout_ms,
            connection_timeout_ms=timeout_ms,
            login=load_login(given, RealDisk()),
            tls_context=load_tls(given, RealDisk()),
        )
    except ZooKeeperSettingsError as error:
        raise CliError(str(error)) from None


def _is_of_login(name: str) -> bool:
    return name.startswith("zookeeper.login.") or name == "zookeeper.jaas.file"


def _password_decoder(brokers: list[_Broker]) -> Any:
    from ottla.zookeeper.migration.password_encoder import decode_password

    secrets = [
        broker.settings[name]
        for broker in brokers
        for name in ("password.encoder.secret", "password.encoder.old.secret")
        if name in broker.settings
    ]
    if not secrets:
        return None

    def decode(value: str) -> str:
        for secret in secrets[:-1]:
            try:
                return decode_password(value, secret)
            except ValueError:
                continue
        return decode_password(value, secrets[-1])

    return decode


# ZooKeeper


def _check_reachable(settings: ZooKeeperSettings) -> None:
    """Say what is tried, and end at once if no server listens. A broker would wait for one."""
    from ottla.cli.output import note
    from ottla.runtime.zookeeper import unreachable

    note(f"reading ZooKeeper at {settings.connect}")
    reason = unreachable(settings.connect)
    if reason is not None:
        raise CliError(
            f"ZooKeeper cannot be reached: {reason}. Check the address, and that it runs: only the brokers "
            "have to be stopped. Nothing was written",
            status=UNREACHABLE,
        )


async def _read(settings: ZooKeeperSettings, wait_s: float) -> ZooKeeperCluster:
    """Read the cluster; if brokers are registered, wait until the sessions of killed ones have ended."""
    import asyncio
    import logging

    from ottla.cli.output import note
    from ottla.runtime.clock import SystemClock
    from ottla.runtime.zookeeper import KAZOO_LOGGER
    from ottla.zookeeper.migration.cluster_reader import read_cluster
    from ottla.zookeeper.migration.importer import check_cluster

    logging.getLogger(KAZOO_LOGGER).setLevel(logging.CRITICAL)  # what goes wrong is in the error
    async with _session(settings) as session:
        clock = SystemClock()
        deadline_ms = clock.monotonic_ns() // 1_000_000 + int(wait_s * 1000)
        waiting = False
        while True:
            cluster = await read_cluster(session)
            problems = check_cluster(cluster)
            late = clock.monotonic_ns() // 1_000_000 >= deadline_ms
            if not problems:
                return cluster
            may_end = cluster.brokers or cluster.controller or cluster.has_changed
            if late or not may_end or cluster.migration is not None:
                hint = "" if cluster.cluster_id is not None else await _other_chroots(settings)
                raise CliError(f"ZooKeeper at {settings.connect}: {'; '.join(problems)}{hint}")
            if not waiting:
                note(f"{problems[0]}; waiting up to {wait_s:g} s for that")
                waiting = True
            await asyncio.sleep(_POLL_S)


async def _check_still_stopped(settings: ZooKeeperSettings) -> None:
    """Look once more, as an old broker may have been started on another machine since ZooKeeper was read."""
    from ottla.zookeeper.migration.cluster_reader import registered_brokers

    async with _session(settings) as session:
        running = await registered_brokers(session)
    if running:
        raise CliError(
            f"brokers are running: {', '.join(running)} (in /brokers/ids): started while the cluster was "
            "read. Nothing was written. Stop them, and run the import again"
        )


async def _other_chroots(settings: ZooKeeperSettings) -> str:
    """Where in this ZooKeeper clusters of Kafka are, for an operator who has named the wrong place."""
    from dataclasses import replace

    from ottla.runtime.zookeeper import ZooKeeperError
    from ottla.zookeeper import znodes

    try:
        async with _session(replace(settings, connect=settings.hosts)) as session:
            places = ["", *(f"/{name}" for name in await session.children("/"))]
            found = [
                f"{settings.hosts}{place}"
                for place in places
                if await session.exists(f"{place}{znodes.CLUSTER_ID}") is not None
            ]
    except (CliError, ZooKeeperError):
        return ""
    return f" Clusters of Kafka are at {', '.join(found)}" if found else ""


@asynccontextmanager
async def _session(settings: ZooKeeperSettings) -> AsyncIterator[KazooSession]:
    """A session for a block, whose errors say what an operator can do."""
    from ottla.runtime.zookeeper import KazooSession, ZooKeeperError, ZooKeeperErrorCode

    try:
        session = await KazooSession.connect(settings)
    except ConnectionError as error:
        raise CliError(str(error), status=UNREACHABLE) from None
    try:
        yield session
    except ZooKeeperError as error:
        if error.code is ZooKeeperErrorCode.NO_AUTH:
            login = "without a login" if settings.login is None else f"the login {settings.login.user!r}"
            raise CliError(
                f"ZooKeeper at {settings.connect}: {login} may not read {error.path}. Give the login of the "
                "brokers, with --jaas FILE or --zookeeper-config FILE. Nothing was written"
            ) from None
        raise CliError(
            f"{error}. ZooKeeper at {settings.connect} went away while it was read. Nothing was written; run "
            "the import again when it is back",
            status=UNREACHABLE,
        ) from None
    finally:
        await session.close()


# The new cluster


def _parse_controllers(text: str) -> list[ControllerVoter]:
    from ottla.zookeeper.migration.kraft_properties import ControllerVoter

    voters: list[ControllerVoter] = []
    for item in (part.strip() for part in text.split(",")):
        id, at, address = item.partition("@")
        host, colon, port = address.rpartition(":")
        if not (at and colon and host.strip("[]") and id.isdecimal() and port.isdecimal()):
            raise WrongUsage(f"--controllers: {item!r} is not of the form ID@HOST:PORT")
        if not 0 < int(port) < 65_536:
            raise WrongUsage(f"--controllers: {item!r} has the port {port}; ports go from 1 to 65535")
        if int(id) > _MAX_ID:
            raise WrongUsage(f"--controllers: {item!r} has the id {id}; the largest is {_MAX_ID}")
        if any(voter.id == int(id) for voter in voters):
            raise WrongUsage(f"--controllers: {id} is named twice")
        if any((voter.host, voter.port) == (host.strip("[]"), int(port)) for voter in voters):
            raise WrongUsage(f"--controllers: {address} is named twice")
        voters.append(ControllerVoter(int(id), host.strip("[]"), int(port)))
    return sorted(voters)


def _default_voters(brokers: list[_Broker], imported: ImportedMetadata) -> list[ControllerVoter]:
    """The controllers if none are named: those of the files of the legacy mode, or the only broker."""
    from ottla.zookeeper.migration.kraft_properties import ControllerVoter

    replicas = {
        id for _, _, registration in imported.image.topics.partitions() for id in registration.replicas
    }
    named = _named_controllers(brokers)
    if named and replicas <= {broker.id for broker in brokers}:
        return named
    if len(brokers) != 1 or not replicas <= {brokers[0].id}:
        known = sorted(replicas | {broker.id for broker in brokers})
        raise WrongUsage(
            f"the cluster has the brokers {known}: choose its controllers, the same on each machine, as "
            "--controllers 1@HOST:9093,2@HOST:9093,3@HOST:9093"
        )
    taken = brokers[0].settings.get("listeners", "")
    port = next(port for port in _CONTROLLER_PORTS if f":{port}" not in taken)
    return [ControllerVoter(brokers[0].id, "localhost", port)]


def _named_controllers(brokers: list[_Broker]) -> list[ControllerVoter]:
    """The controllers that the files of Ottla's legacy mode have, if all of them have an address."""
    from ottla.zookeeper.migration.kraft_properties import ControllerVoter, controller_address

    found = []
    for broker in brokers:
        if "controller" in broker.roles:
            address = controller_address(broker.settings)
            if address is None:
                return []
            found.append(ControllerVoter(broker.id, *address))
    return sorted(found)


def _controller_dir(text: str) -> tuple[int, str]:
    id, equals, path = text.partition("=")
    if not equals or not id.isdecimal() or not path:
        raise WrongUsage(f"--controller-dir {text}: expected ID=DIR")
    return int(id), os.path.abspath(path)


def _nodes(
    brokers: list[_Broker], voters: list[ControllerVoter], controller_dirs: list[tuple[int, str]]
) -> list[ImportNode]:
    from ottla.zookeeper.migration.importer import ImportNode

    ids = {voter.id for voter in voters}
    nodes = []
    for broker in brokers:
        is_broker, is_controller = "broker" in broker.roles, broker.id in ids
        if not is_broker and not is_controller:
            raise WrongUsage(
                f"{broker.file}: node {broker.id} is a controller and no broker, and not among "
                "--controllers. It has no data: leave its file out"
            )
        nodes.append(ImportNode(broker.id, tuple(broker.paths), is_broker, is_controller))
    nodes += [ImportNode(id, (path,), is_broker=False, is_controller=True) for id, path in controller_dirs]
    return nodes


def _check_controllers(voters: list[ControllerVoter], nodes: list[ImportNode], plan: ImportPlan) -> None:
    here = {node.id for node in nodes if node.is_controller}
    others = [str(voter) for voter in voters if voter.id not in here]
    if others:
        plan.findings.notes.append(
            f"the controllers {', '.join(others)} are not imported by this run: run it with their "
            "directories, before any node starts"
        )
    if len(voters) % 2 == 0:
        plan.findings.warnings.append(
            f"{len(voters)} controllers are not safer than {len(voters) - 1}: an odd number is usual"
        )


def _check_owner(plan: ImportPlan) -> None:
    """What is written belongs to the user of this command, and a broker of another may not read it."""
    user = os.geteuid()
    for path in plan.facts:
        owner = os.stat(path).st_uid
        if owner != user:
            plan.findings.warnings.append(
                f"{path} belongs to the user with the id {owner}, and this command runs as {user}: run it as "
                "that user, or give it the new files before the start"
            )


def _new_settings(
    brokers: list[_Broker], voters: list[ControllerVoter], nodes: list[ImportNode], output: str | None
) -> dict[str, KraftProperties]:
    """The new settings of each node, by the file that they are written to."""
    from ottla.zookeeper.migration.kraft_properties import controller_properties, kraft_properties

    found: dict[str, KraftProperties] = {}
    for broker in brokers:
        settings = broker.settings or {"log.dirs": ",".join(broker.paths)}
        if broker.file is not None:
            stem, suffix = os.path.splitext(os.path.basename(broker.file))
            directory = output or os.path.dirname(os.path.abspath(broker.file))
            path = os.path.join(directory, f"{stem}-kraft{suffix}")
        else:
            path = os.path.join(output or ".", f"broker-{broker.id}-kraft.properties")
        found[os.path.abspath(path)] = kraft_properties(settings, broker.id, voters)
    for node in nodes:
        if all(node.id != broker.id for broker in brokers):
            voter = next(voter for voter in voters if voter.id == node.id)
            path = os.path.join(output or ".", f"controller-{node.id}.properties")
            found[os.path.abspath(path)] = controller_properties(voter, voters, node.metadata_dir)
    return found


# What the new settings must agree in with the metadata; the rest an operator may have changed.
_DECISIVE: Final = ("process.roles", "node.id", "controller.quorum.voters", "log.dirs", "log.dir")


def _check_settings(new_settings: dict[str, KraftProperties], plan: ImportPlan) -> None:
    """Files that are there already stay as they are, so they have to be for the same node and controllers."""
    for path, properties in new_settings.items():
        if not os.path.exists(path):
            plan.pending.append(path)
            continue
        current = _read_properties(path)
        other = [name for name in _DECISIVE if current.get(name) != properties.settings.get(name)]
        if other:
            name = other[0]
            plan.findings.problems.append(
                f"{path} was there already, with {name}={current.get(name, '')}, and the import is for "
                f"{properties.settings.get(name, '')}: move it away, or choose another place with --output"
            )
        elif current != properties.settings:
            plan.findings.notes.append(f"{path} was there already, with other settings, and is not changed")


def _write_settings(new_settings: dict[str, KraftProperties]) -> None:
    for path, properties in new_settings.items():
        if os.path.exists(path):
            continue
        unfinished = f"{path}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(properties.text())
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:  # of a write, it has no name
            raise OSError(error.errno, error.strerror, error.filename or path) from None


# The report


def _counts(imported: ImportedMetadata) -> dict[str, int]:
    image = imported.image
    partitions = list(image.topics.partitions())
    return {
        "topics": len(image.topics.by_id),
        "partitions": len(partitions),
        "reassignments": sum(1 for _, _, each in partitions if each.is_reassigning),
        "configs": sum(len(values) for values in image.configs.values()),
        "quotas": sum(len(values) for values in image.client_quotas.values()),
        "scram_credentials": len(image.scram),
        "acls": len(image.acls),
        "delegation_tokens": len(image.delegation_tokens),
    }


def _document(
    imported: ImportedMetadata,
    plan: ImportPlan,
    voters: list[ControllerVoter],
    new_settings: dict[str, KraftProperties],
    *,
    written: bool,
) -> dict[str, Any]:
    return {
        "cluster_id": plan.cluster_id,
        "metadata_version": str(plan.version),
        "metadata_digest": plan.digest,
        "controllers": [str(voter) for voter in voters],
        "next_producer_id": imported.image.next_producer_id,
        "counts": _counts(imported),
        "nodes": [
            {
                "id": node.id,
                "roles": [
                    *(["broker"] if node.is_broker else []),
                    *(["controller"] if node.is_controller else []),
                ],
                "directories": list(node.paths),
            }
            for node in plan.nodes
        ],
        "settings": list(new_settings),
        "left_behind": plan.findings.left_behind,
        "warnings": plan.findings.warnings,
        "problems": plan.findings.problems,
        "notes": plan.findings.notes,
        "pending": plan.pending,
        "written": written,
    }


def _print_report(
    imported: ImportedMetadata,
    plan: ImportPlan,
    voters: list[ControllerVoter],
    new_settings: dict[str, KraftProperties],
    *,
    dry_run: bool,
) -> None:
    print_line(f"cluster {plan.cluster_id}, metadata version {plan.version}")
    if len(voters) > 1:
        print_line(f"metadata {plan.digest}: has to be the same for all controllers, on each machine")
    counts = _counts(imported)
    print_line(
        "comes over: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    )
    findings = plan.findings
    for heading, lines in (
        ("does not come over", findings.left_behind),
        ("looks wrong", findings.warnings),
        ("has to be solved first", findings.problems),
        ("to know", findings.notes),
    ):
        if lines:
            print_line(f"{heading}:")
            for line in lines:
                print_line(f"  {line}")
    if findings.problems:
        return
    if not plan.pending:
        print_line("everything was imported before; nothing was changed")
    else:
        print_line("would be written:" if dry_run else "written:")
        for path in plan.pending:
            print_line(f"  {path}")
    print_line(f"settings {'to be written' if dry_run else 'of the nodes'}, to be checked before a start:")
    for path in new_settings:
        print_line(f"  {path}")
    print_line(
        f"controllers: {','.join(map(str, voters))}. Start the nodes with `ottla start FILE`, or with Apache "
        "Kafka's kafka-server-start.sh, and do not start the brokers on ZooKeeper again"
    )
