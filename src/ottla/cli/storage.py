"""`ottla storage`: show data directories, format new ones, find and repair damage. Needs no node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import FAILED, CliError, WrongUsage
from ottla.cli.options import Json
from ottla.cli.output import note, print_json, print_line, print_pairs, size_text, time_text

if TYPE_CHECKING:
    from ottla.log.directory.directory import LogDirectory
    from ottla.log.log_repair import Damage
    from ottla.log.scrub.examination import RottenFile
    from ottla.node.config.node_config import NodeConfig
    from ottla.raft.voters import VoterSet
    from ottla.runtime.disk import Disk
    from ottla.runtime.random import Random

HELP: Final = "Show, format and repair data directories; needs no node."
app = group("storage", HELP)

Directories = Annotated[list[str], Argument(metavar="DIRECTORY...")]


@command(app, "info")
def info(directories: Directories, as_json: Json = False) -> None:
    """Show the cluster and node of a data directory, and its size. Exits with 1 if one is not formatted."""
    found = [_info(path) for path in directories]
    if as_json:
        print_json(found)
    else:
        for n, facts in enumerate(found):
            if n:
                print_line()
            _print_info(facts)
    if any(facts["problem"] is not None for facts in found):
        raise click.exceptions.Exit(FAILED)


def _print_info(facts: dict[str, Any]) -> None:
    shown = dict(facts)
    if "size_bytes" in shown:
        shown["size"] = size_text(shown.pop("size_bytes"))
    user = shown.pop("in_use_by", None)
    if user is not None:
        # The node is running, so there is no shutdown yet.
        shown["clean_shutdown"] = f"not shut down: process {user} uses it"
    for name in ("damaged", "set_aside"):
        if name in shown:
            shown[name] = ", ".join(shown[name]) or None
    hidden = ("problem", "damaged", "set_aside")
    print_pairs(
        (name.replace("_", " "), value)
        for name, value in shown.items()
        if not (name in hidden and value is None)
    )


def _info(path: str) -> dict[str, Any]:
    import os

    from ottla.log.directory.checkpoints import DAMAGE_REPORT, LOCK, read_clean_shutdown
    from ottla.log.directory.dir_names import DirKind, parse_dir_name
    from ottla.log.directory.meta_properties import StorageError, read_meta_properties
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import uuid_text
    from ottla.runtime.disk import RealDisk

    if not os.path.isdir(path):
        raise CliError(f"{path}: no such directory")
    disk = RealDisk()
    full = os.path.abspath(path)
    facts: dict[str, Any] = {"directory": full, "formatted": False, "problem": None}
    try:
        properties = read_meta_properties(disk, full)
    except StorageError as error:
        return facts | {"problem": str(error)}
    if properties is None:
        return facts | {"problem": "it is not formatted; `ottla start` or `ottla storage format` formats it"}
    partitions = 0
    size = 0
    damaged: list[str] = []
    aside: list[str] = []
    for entry in os.scandir(full):
        if entry.is_dir():
            try:
                kind = parse_dir_name(entry.name)[1]
            except KafkaError:
                continue
            partitions += kind is DirKind.CURRENT
            if kind is DirKind.DAMAGED:
                aside.append(entry.name)
            elif os.path.exists(os.path.join(entry.path, DAMAGE_REPORT)):
                damaged.append(entry.name)
            size += sum(file.stat().st_size for file in os.scandir(entry.path) if file.is_file())
    user = disk.locked_by(os.path.join(full, LOCK))
    return facts | {
        "formatted": True,
        "cluster_id": properties.cluster_id,
        "node_id": properties.node_id,
        "directory_id": uuid_text(properties.directory_id) if properties.directory_id is not None else None,
        "in_use_by": user,
        "clean_shutdown": read_clean_shutdown(disk, full) is not None if user is None else None,
        "partitions": partitions,
        "damaged": sorted(damaged),
        "set_aside": sorted(aside),
        "size_bytes": size,
    }


@command(app, "repair")
def repair_logs(
    directories: Annotated[list[str] | None, Argument(metavar="[DIRECTORY...]")] = None,
    config: Annotated[
        str | None,
        Option("--config", "-c", metavar="FILE", help="server.properties, for its directories."),
    ] = None,
    topic: Annotated[
        str | None, Option("--topic", metavar="TOPIC", help="Check the partitions of this topic.")
    ] = None,
    partition: Annotated[
        int | None, Option("--partition", min=0, help="Check this partition of the topic.")
    ] = None,
    apply: Annotated[
        bool, Option("--apply", help="End the damaged logs before the damage; without it, nothing changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is damaged in the logs of a stopped node, and end them before the damage.

    Looks at the partitions that the node has refused as damaged, or at those of --topic, and shows what would
    be lost. With --apply, what is removed is kept in a directory beside the log, whose name ends with
    -damaged-stray. Not for partitions with another replica that leads: the node fetches these again.
    """
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic")
    paths = [os.path.abspath(path) for path in directories or []]
    if not paths and config is not None:
        paths = [os.path.abspath(path) for path in _read_config(config).log_dirs]
    if not paths:
        raise WrongUsage("no directory is given: name directories, or a file with --config")
    found = [facts for path in paths for facts in _repair(path, topic, partition, apply)]
    if as_json:
        print_json(found)
        return
    for n, facts in enumerate(found):
        if n:
            print_line()
        print_pairs((name.replace("_", " "), value) for name, value in _readable(facts).items())
    if not found:
        print_line("no damaged log was found")
    elif not apply:
        note("nothing was changed; --apply ends the logs there, and keeps what it removes")


@command(app, "scrub")
def scrub(
    directories: Annotated[list[str] | None, Argument(metavar="[DIRECTORY...]")] = None,
    config: Annotated[
        str | None,
        Option("--config", "-c", metavar="FILE", help="server.properties, for its directories."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read everything in the data directories of a stopped node, and report what has rotted.

    Checks every batch, index, snapshot and checkpoint, and changes nothing. A node that runs does the same by
    itself, slowly, and mends what it finds (log.scrub.*). Exits with 1 if something is damaged.
    """
    from ottla.runtime.disk import RealDisk

    paths = [os.path.abspath(path) for path in directories or []]
    if not paths and config is not None:
        paths = [os.path.abspath(path) for path in _read_config(config).log_dirs]
    if not paths:
        raise WrongUsage("no directory is given: name directories, or a file with --config")
    disk = RealDisk()
    for path in paths:
        if not os.path.isfile(os.path.join(path, "meta.properties")):
            raise CliError(f"{path} is not the data directory of a node: it has no meta.properties")
    size = 0
    found: list[RottenFile] = []
    with _locked(disk, paths):
        for path in dict.fromkeys(paths):
            for each in _examine(disk, path):
                if isinstance(each, int):
                    size += each
                else:
                    found.append(each)
                    if not as_json:
                        print_line(f"{each.kind}: {each.path}: {each.detail}", flush=True)
    if as_json:
        facts = [{"kind": each.kind, "path": each.path, "detail": each.detail} for each in found]
        print_json({"bytes": size, "findings": facts})
    else:
        note(f"{size_text(size)} were read; {len(found) or 'no'} files or parts of them are damaged")
    if found:
        raise click.exceptions.Exit(FAILED)


def _examine(disk: Disk, path: str) -> Iterator[int | RottenFile]:
    """Examine a directory, and what the quorum keeps in it."""
    from ottla.log.scrub.examination import RottenFile
    from ottla.log.scrub.offline import examine_directory
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import CLUSTER_METADATA_TOPIC
    from ottla.raft.driver.quorum_state_store import FILE_NAME, BadQuorumState, read_election_state
    from ottla.raft.snapshot import decode_snapshot, parse_name
    from ottla.runtime.disk import read_file

    yield from examine_directory(disk, path)
    dir = os.path.join(path, f"{CLUSTER_METADATA_TOPIC}-0")
    if not disk.is_dir(dir):
        return
    try:
        read_election_state(disk, dir)
    except BadQuorumState as error:
        yield RottenFile("quorum state", os.path.join(dir, FILE_NAME), str(error))
    for name in disk.list_dir(dir):
        if parse_name(name) is not None:
            file = os.path.join(dir, name)
            data = read_file(disk, file)
            try:
                decode_snapshot(data)
            except KafkaError as error:
                yield RottenFile("metadata snapshot", file, error.message)
            else:
                yield len(data)


@command(app, "upgrade-format")
def upgrade_format(
    directories: Annotated[list[str] | None, Argument(metavar="[DIRECTORY...]")] = None,
    config: Annotated[
        str | None,
        Option("--config", "-c", metavar="FILE", help="server.properties, for its directories."),
    ] = None,
    thorough: Annotated[
        bool,
        Option(
            "--thorough",
            help="Look at every batch, not only at the first of each segment: for topics whose "
            "message.format.version was lowered. Reads through all logs.",
        ),
    ] = False,
    apply: Annotated[
        bool, Option("--apply", help="Rewrite the segments; without it, nothing changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rewrite segments in the formats from before Kafka 0.11, which Ottla does not read, as record batches.

    For a stopped node whose cluster was imported from ZooKeeper. Offsets, keys, values and timestamps stay as
    they are. May be interrupted, and run again.
    """
    from ottla.runtime.disk import RealDisk

    paths = [os.path.abspath(path) for path in directories or []]
    if not paths and config is not None:
        paths = [os.path.abspath(path) for path in _read_config(config).log_dirs]
    if not paths:
        raise WrongUsage("no directory is given: name directories, or a file with --config")
    disk = RealDisk()
    for path in paths:
        if not os.path.isfile(os.path.join(path, "meta.properties")):
            raise CliError(f"{path} is not the data directory of a node: it has no meta.properties")
    found: list[dict[str, Any]] = []
    # All of them, before the first is changed.
    with _locked(disk, paths):
        for path in dict.fromkeys(paths):
            found += _upgrade_directory(disk, path, thorough=thorough, apply=apply)
    if as_json:
        print_json(found)
        return
    for facts in found:
        print_line(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
    if not found:
        print_line("no segment has an old format")
    elif not apply:
        note("nothing was changed; --apply rewrites the segments")


@contextmanager
def _locked(disk: Disk, paths: Iterable[str]) -> Iterator[None]:
    """Hold the locks of directories, as a running node does; CliError if one is held by another process."""
    with ExitStack() as stack:
        # In the same order in every process, so that one of them gets all.
        for _, path in sorted({os.path.realpath(path): path for path in paths}.items()):
            try:
                lock = disk.lock(os.path.join(path, ".lock"))
            except BlockingIOError:
                raise CliError(
                    f"{path} is in use: stop its node, or wait until the other `ottla storage` has ended. "
                    "Nothing was changed"
                ) from None
            except OSError as error:
                raise CliError(f"cannot use {path}: {error.strerror}") from None
            stack.callback(lock.release)
        yield


def _upgrade_directory(disk: Disk, path: str, *, thorough: bool, apply: bool) -> list[dict[str, Any]]:
    from ottla.log.directory.checkpoints import read_clean_shutdown
    from ottla.log.directory.dir_names import DirKind, parse_dir_name
    from ottla.log.format_upgrade import old_segments, upgrade_segment
    from ottla.protocol.errors import KafkaError

    found: list[dict[str, Any]] = []
    try:
        was_killed = read_clean_shutdown(disk, path) is None
        for name in disk.list_dir(path):
            directory = os.path.join(path, name)
            try:
                if not disk.is_dir(directory) or parse_dir_name(name)[1] is not DirKind.CURRENT:
                    continue
            except KafkaError:
                continue
            last = max((each for each in disk.list_dir(directory) if each.endswith(".log")), default="")
            for segment in old_segments(disk, directory, thorough=thorough):
                facts: dict[str, Any] = {"segment": segment, "bytes": disk.size(segment)}
                if apply:
                    may_be_torn = was_killed and os.path.basename(segment) == last
                    done = upgrade_segment(disk, segment, may_be_torn=may_be_torn)
                    facts |= {"records": done.records, "bytes_after": done.size_after}
                    if done.torn_size:
                        facts["torn_bytes"] = done.torn_size
                found.append(facts)
    except KafkaError as error:
        raise CliError(
            f"{error.message}; the segment is as it was. Is there a replica of it elsewhere? Then move "
            "this directory of the partition away; it is fetched again"
        ) from None
    except OSError as error:
        raise CliError(
            f"{error.filename or path}: {error.strerror}; no segment is lost. Solve that, run it again"
        ) from None
    return found


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    shown = dict(facts)
    shown["lost_size"] = size_text(shown.pop("lost_bytes"))
    for name in ("first_timestamp", "last_timestamp"):
        shown[name] = time_text(shown[name])
    return {name: value for name, value in shown.items() if value is not None}


def _repair(path: str, topic: str | None, partition: int | None, apply: bool) -> list[dict[str, Any]]:
    from ottla.log.directory.contents import open_directory
    from ottla.log.directory.directory import LogDirectory
    from ottla.log.segment.handles import FileHandles
    from ottla.protocol.errors import KafkaError
    from ottla.runtime.clock import SystemClock
    from ottla.runtime.disk import RealDisk
    from ottla.runtime.random import SystemRandom

    if not os.path.isfile(os.path.join(path, "meta.properties")):
        raise CliError(f"{path} is not the data directory of a node: it has no meta.properties")
    directory = LogDirectory(path, FileHandles(RealDisk()), SystemClock(), SystemRandom())
    try:
        with _locked(RealDisk(), [path]):
            open_directory(directory, lock=False)
            directory.check_online()
            return _repair_directory(directory, topic, partition, apply)
    except KafkaError as error:
        raise CliError(error.message) from None
    except OSError as error:
        raise CliError(f"{error.filename or path}: {error.strerror or error}; nothing was lost") from None


def _repair_directory(
    directory: LogDirectory, topic: str | None, partition: int | None, apply: bool
) -> list[dict[str, Any]]:
    from ottla.log import log_repair
    from ottla.log.directory.dir_names import DirKind, parse_dir_name
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import CLUSTER_METADATA_TOPIC

    if topic == CLUSTER_METADATA_TOPIC:
        raise CliError(f"{topic} is repaired by the quorum: move its directory away, and it is fetched again")
    reported = log_repair.damaged_partitions(directory)
    chosen = []
    if topic is None:
        chosen = reported
    else:
        for name in sorted(os.listdir(directory.path)):
            try:
                found, kind = parse_dir_name(name)
            except KafkaError:
                continue
            if kind is DirKind.CURRENT and found.topic == topic and partition in (None, found.partition):
                chosen.append(found)
    results = []
    for each in chosen:
        damage = log_repair.find_damage(directory, each)
        if damage is not None:
            copy = log_repair.repair(directory, damage) if apply else None
            results.append(_damage_facts(directory, damage, apply, copy))
        elif each in reported and apply:
            log_repair.clear_report(directory, each)
    return results


def _damage_facts(
    directory: LogDirectory, damage: Damage, repaired: bool, copy: str | None
) -> dict[str, Any]:
    lost = max(damage.last_offset + 1 - damage.end_offset, 0)
    return {
        "partition": str(damage.partition),
        "directory": directory.path,
        "file": damage.path,
        "position": damage.position,
        "reason": damage.reason,
        "repaired": repaired,
        "log_end_offset": damage.end_offset,
        "lost_offsets": f"{damage.end_offset} to {damage.last_offset}" if lost else None,
        "lost_bytes": damage.lost_bytes,
        "whole_batches_lost": damage.whole_batches,
        "first_timestamp": damage.first_timestamp,
        "last_timestamp": damage.last_timestamp,
        "kept_in": copy,
    }


@command(app, "format")
def format_directories(
    directories: Annotated[list[str] | None, Argument(metavar="[DIRECTORY...]")] = None,
    config: Annotated[
        str | None,
        Option("--config", "-c", metavar="FILE", help="server.properties: directories, node id, listeners."),
    ] = None,
    cluster_id: Annotated[
        str | None,
        Option("--cluster-id", "-t", metavar="ID", help="The cluster's id; by default a new one."),
    ] = None,
    node_id: Annotated[
        int | None, Option("--node-id", min=0, help="The node's id; by default that of --config, or 1.")
    ] = None,
    release: Annotated[
        str | None,
        Option("--release-version", "-r", metavar="VERSION", help="The metadata version, such as 4.3."),
    ] = None,
    standalone: Annotated[
        bool, Option("--standalone", "-s", help="This controller is the first voter of a dynamic quorum.")
    ] = False,
    initial_controllers: Annotated[
        str | None,
        Option(
            "--initial-controllers",
            "-I",
            metavar="LIST",
            help="The first voters of a dynamic quorum: id@host:port:directory-id, comma separated.",
        ),
    ] = None,
    no_initial_controllers: Annotated[
        bool, Option("--no-initial-controllers", "-N", help="The node joins an existing dynamic quorum.")
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        Option(
            "--add-scram",
            "-S",
            metavar="MECHANISM=[...]",
            help="A first user, such as 'SCRAM-SHA-512=[name=admin,password=...]'; repeatable.",
        ),
    ] = None,
    ignore_formatted: Annotated[
        bool, Option("--ignore-formatted", "-g", help="Skip directories that are already formatted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Prepare empty directories for a node.

    `ottla start` formats the empty directory of a single node by itself; this command sets the id of the
    cluster, on which all nodes of a cluster have to agree. The voters of a quorum are those of
    controller.quorum.voters or, in a dynamic quorum, those in the metadata log, which begins with the voters
    that are given here.
    """
    from ottla.log.directory.meta_properties import StorageError, check_not_of_zookeeper, load_directories
    from ottla.metadata.log.bootstrap_metadata import format_directory, make_durable_dir
    from ottla.protocol.names import parse_uuid, uuid_text
    from ottla.runtime.clock import SystemClock
    from ottla.runtime.disk import RealDisk
    from ottla.runtime.random import SystemRandom

    random, disk = SystemRandom(), RealDisk()
    if cluster_id is not None:
        try:
            parse_uuid(cluster_id)
        except ValueError as error:
            raise WrongUsage(f"--cluster-id {cluster_id}: {error}") from None
    plan = _plan_format(
        directories or [],
        config,
        node_id,
        standalone=standalone,
        initial_controllers=initial_controllers,
        no_initial_controllers=no_initial_controllers,
        new_directory_id=random.uuid,
    )
    try:
        chosen = cluster_id if cluster_id is not None else uuid_text(random.uuid())
        records = _bootstrap(release, add_scram or [], random)
        check_not_of_zookeeper(disk, plan.paths)
        found = load_directories(disk, plan.paths, node_id=plan.node_id, cluster_id=cluster_id)
        taken = [path for path, properties in found.items() if properties is not None]
        if taken and not ignore_formatted:
            raise CliError(f"{taken[0]} is already formatted; {_already_formatted(users=bool(add_scram))}")
        known = [properties.cluster_id for properties in found.values() if properties is not None]
        cluster = known[0] if known else chosen
        empty = [path for path in dict.fromkeys(plan.paths) if path not in taken]
        for path in empty:
            _check_empty(path, has_voters=plan.voters is not None and path == plan.metadata_path)
        for path in empty:
            make_durable_dir(disk, path)
        # Another `ottla storage format`, or a node that formats its empty directories, chooses other ids.
        with _locked(disk, empty):
            if load_directories(disk, plan.paths) != found:
                raise CliError(f"{empty[0]} was formatted by another process just now; nothing was changed")
            for path in empty:
                of_quorum = path == plan.metadata_path
                format_directory(
                    disk,
                    random,
                    SystemClock(),
                    path,
                    cluster_id=cluster,
                    node_id=plan.node_id,
                    bootstrap=records,
                    directory_id=plan.directory_id if of_quorum else None,
                    dynamic_voters=plan.voters if of_quorum else None,
                )
    except StorageError as error:
        raise CliError(str(error)) from None
    if as_json:
        print_json(
            {"cluster_id": cluster, "node_id": plan.node_id, "directories": plan.paths, "skipped": taken}
        )
    else:
        for path in plan.paths:
            print_line(
                f"{path}: " + ("already formatted" if path in taken else f"formatted for cluster {cluster}")
            )


def _already_formatted(*, users: bool) -> str:
    if not users:
        return "--ignore-formatted skips it"
    return (
        "--add-scram is for the first start of a cluster. Where a user can log in, `ottla users add` adds "
        "others; if there is none and the directory has nothing to keep, remove it and format it again; "
        "otherwise add a listener PLAINTEXT://127.0.0.1:PORT until `ottla users add` has added one"
    )


def _bootstrap(release: str | None, users: list[str], random: Random) -> Any:
    """The first records of the cluster: the newest metadata version of this release, and its first users."""
    from ottla.metadata.features import METADATA_VERSIONS
    from ottla.metadata.log.bootstrap_metadata import bootstrap_metadata_version, bootstrap_records

    if users:
        from ottla.security.sasl.add_scram import scram_records

        records = _bootstrap(release, [], random)
        if not bootstrap_metadata_version(records).scram:
            raise WrongUsage("--add-scram: SCRAM is only supported in metadata.version 3.5-IV2 or later.")
        try:
            return [*records, *scram_records(users, random)]
        except ValueError as error:
            raise WrongUsage(f"--add-scram: {error}") from None
    if release is None:
        return bootstrap_records()
    versions = list(METADATA_VERSIONS.values())
    fitting = [v for v in versions if v.release == release or v.release.startswith(f"{release}-")]
    if not fitting:
        releases = list(dict.fromkeys(v.release.partition("-")[0] for v in versions))
        raise WrongUsage(f"--release-version {release}: known are {', '.join(releases)}")
    return bootstrap_records(fitting[-1])


# What a format leaves that was killed, and one that runs at the same time shows, beside what is always there.
_UNFINISHED_FORMAT: Final = ("bootstrap.checkpoint", "bootstrap.checkpoint.tmp", "meta.properties.tmp")


def _check_empty(path: str, *, has_voters: bool) -> None:
    """Raise CliError if a directory has anything that formatting it does not write again."""
    from ottla.protocol.names import METADATA_PARTITION_DIR
    from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT

    if not os.path.isdir(path):
        return
    others = [name for name in os.listdir(path) if name not in (".lock", "lost+found", *_UNFINISHED_FORMAT)]
    if has_voters and others == [METADATA_PARTITION_DIR]:
        snapshot = BOOTSTRAP_SNAPSHOT.file_name
        unfinished = {snapshot, f"{snapshot}.tmp"}
        others = [name for name in os.listdir(os.path.join(path, *others)) if name not in unfinished]
    if others:
        raise CliError(f"{path} is not empty: it has {others[0]!r} but no meta.properties")


_DEFAULT_LISTENER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """The directories to format and their content, from the options and the node's server.properties, if
    given.
    """

    paths: list[str]
    node_id: int
    metadata_path: str
    """The directory of the metadata log, one of the paths."""
    directory_id: bytes | None = None
    """The id for the directory of the metadata log, if the voters contain it."""
    voters: VoterSet | None = None
    """The first voters of a dynamic quorum, if they are given."""


def _plan_format(
    directories: Sequence[str],
    file: str | None,
    node_id: int | None,
    *,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    new_directory_id: Callable[[], bytes],
) -> FormatPlan:
    chosen = [standalone, initial_controllers is not None, no_initial_controllers]
    if sum(chosen) > 1:
        raise WrongUsage(
            "--standalone, --initial-controllers and --no-initial-controllers exclude each other"
        )
    config = None if file is None else _read_config(file)
    paths = [os.path.abspath(path) for path in directories]
    metadata_path = paths[0] if paths else ""
    if config is not None:
        if node_id is not None and config.is_set("node.id") and config.node_id != node_id:
            raise WrongUsage(f"--node-id is {node_id}, but {file} has {config.node_id}")
        node_id = config.node_id if node_id is None else node_id
        if not paths:
            metadata_path = os.path.abspath(config.metadata_log_dir)
            paths = [os.path.abspath(path) for path in config.log_dirs]
            paths = list(dict.fromkeys((*paths, metadata_path)))
        if config.names("controller.quorum.voters") and any(chosen):
            raise WrongUsage(f"{file} sets controller.quorum.voters: the quorum is not dynamic")
        dynamic = config.is_controller and not config.alone and not config.names("controller.quorum.voters")
        if dynamic and not any(chosen):
            raise WrongUsage(
                f"{file} is for a controller without controller.quorum.voters: choose how it joins the "
                "quorum, with --standalone, --initial-controllers or --no-initial-controllers"
            )
    if not paths:
        raise WrongUsage("no directory is given: name directories, or a file with --config")
    id = 1 if node_id is None else node_id
    if standalone:
        if config is None:
            raise WrongUsage("--standalone needs --config: the voter's address is in server.properties")
        directory_id = new_directory_id()
        return FormatPlan(paths, id, metadata_path, directory_id, _only_voter(config, id, directory_id))
    if initial_controllers is not None:
        listener = config.controller_listener_names[0] if config is not None else _DEFAULT_LISTENER
        voters = _parse_controllers(initial_controllers, listener)
        own = voters.voters.get(id)
        if own is None:
            raise WrongUsage(f"--initial-controllers: node {id} is not among {voters.ids}")
        return FormatPlan(paths, id, metadata_path, own.key.directory_id, voters)
    return FormatPlan(paths, id, metadata_path)


def _read_config(file: str) -> NodeConfig:
    from ottla.cli.start import Options, UsageError, settings_of
    from ottla.node.config.definitions.config_def import ConfigError
    from ottla.node.config.node_config import NodeConfig

    try:
        return NodeConfig(settings_of(Options(file=file)))
    except UsageError as error:
        raise WrongUsage(str(error)) from None
    except ConfigError as error:
        raise CliError(f"{file}: {error}") from None


def _only_voter(config: NodeConfig, node_id: int, directory_id: bytes) -> VoterSet:
    """A voter set with this controller only."""
    from ottla.raft.voters import ReplicaKey, Voter, VoterSet
    from ottla.runtime.address import Address

    endpoints = {
        each.name: Address(each.host or "localhost", each.port) for each in config.advertised_of_controller
    }
    if not config.is_controller or not endpoints:
        raise WrongUsage("--standalone is for a controller: process.roles and listeners name none")
    return VoterSet.of(Voter(ReplicaKey(node_id, directory_id), endpoints))


def _parse_controllers(text: str, listener: str) -> VoterSet:
    """Parse `id@host:port:directory-id`, comma separated, as Kafka writes it."""
    from ottla.protocol.names import parse_uuid
    from ottla.raft.voters import ReplicaKey, Voter, VoterSet
    from ottla.runtime.address import Address

    voters: dict[int, Voter] = {}
    for item in (part.strip() for part in text.split(",")):
        id_text, at, rest = item.partition("@")
        address, colon, directory = rest.rpartition(":")
        host, port_colon, port = address.rpartition(":")
        if not (at and colon and port_colon and host and id_text.isdecimal() and port.isdecimal()):
            raise WrongUsage(f"--initial-controllers: {item!r} is not of the form id@host:port:directory-id")
        try:
            directory_id = parse_uuid(directory)
        except ValueError as error:
            raise WrongUsage(f"--initial-controllers: {item!r}: {error}") from None
        if int(id_text) in voters:
            raise WrongUsage(f"--initial-controllers: {id_text} is named twice")
        endpoint = Address(host.strip("[]"), int(port))
        voters[int(id_text)] = Voter(ReplicaKey(int(id_text), directory_id), {listener: endpoint})
    return VoterSet(voters)
