"""`ottla tables`: the Iceberg tables of topics, their state and lag, their files; merging and repairing them.

The catalog is the one of the brokers, whose settings are asked for; where they hide its address, or have it
on another machine, it is named by options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    named_values,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table, size_text, time_text
from ottla.cli.session import with_admin

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import TopicInfo
    from ottla.tables.describe import TableInfo
    from ottla.tables.settings import CatalogSettings

HELP: Final = "Show the Iceberg tables of topics, merge and repair."
app = group("tables", HELP)

Catalog: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--catalog",
        metavar="NAME=VALUE",
        help="A setting table.catalog.NAME, such as uri=... or s3.endpoint=...; may be repeated. Without "
        "one, the catalog is that of the brokers; with uri=..., so are its type and warehouse.",
    ),
]
_SHOWN_SNAPSHOTS: Final = 10
# Those that do not answer cost the time limit each.
_ASKED_BROKERS: Final = 3
# Of the partitions, or brokers, with the same problem.
_SHOWN_NUMBERS: Final = 10
# A broker of an earlier version, or one that has not seen the setting yet.
_NO_REASON: Final = "its first commit comes after table.freshness.ms; the log of the node says if it fails"
_NOT_KEPT: Final = "not kept yet"
_BEHIND: Final = "behind"


class _Topic:
    """What the cluster says of a topic with a table. `missing` are the partitions whose end offset cannot be
    had, with why; `statuses` is what each leader of a partition says of the table.
    """

    __slots__ = ("ends", "format", "missing", "statuses", "topic_id")

    def __init__(self, format: str, topic_id: str) -> None:
        self.format: Final = format
        self.topic_id: Final = topic_id
        self.ends: Final[dict[int, int]] = {}
        self.missing: Final[dict[int, str]] = {}
        self.statuses: Final[dict[int, str]] = {}

    def reason(self) -> str | None:
        """Why the table does not have all records; None if no broker says so."""
        found: dict[str, list[str]] = {}
        for partition, problem in sorted(self.missing.items()):
            found.setdefault(problem, []).append(str(partition))
        texts = [f"partition {_some(each)}: {problem}" for problem, each in found.items()]
        said: dict[str, list[str]] = {}
        for broker, status in sorted(self.statuses.items()):
            said.setdefault(" ".join(status.split()), []).append(str(broker))
        if len(said) == 1 and not texts:
            return next(iter(said))
        texts += [f"broker {_some(each)}: {text}" for text, each in said.items()]
        return "; ".join(texts) or None


def _some(numbers: list[str]) -> str:
    more = len(numbers) - _SHOWN_NUMBERS
    return ", ".join(numbers[:_SHOWN_NUMBERS]) + (f" and {more:,} more" if more > 0 else "")


def _ask_cluster(
    common: Common, catalog: list[str] | None, topic: str | None
) -> tuple[CatalogSettings, dict[str, _Topic]]:
    """The catalog, and the topics that have a table, or this one."""
    from ottla.tables.settings import CATALOG_PREFIX, CatalogSettings

    given = {CATALOG_PREFIX + name: value for name, value in _catalog_values(catalog).items()}

    async def work(admin: Admin) -> tuple[CatalogSettings, dict[str, _Topic]]:
        from ottla.protocol.errors import ErrorCode, KafkaError
        from ottla.protocol.names import uuid_text

        shown: dict[str, str | None] = {}
        try:
            shown = await _ask_a_broker(admin)
        except KafkaError as error:
            if not given or error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
        try:
            settings = CatalogSettings.from_broker(shown, given)
        except ValueError as error:
            raise CliError(
                f"{error}: give it with --catalog uri=..., and --catalog NAME=VALUE for what else the "
                "catalog needs, as s3.endpoint"
            ) from None
        listed = {each.name: each for each in await admin.topics.list() if topic in (None, each.name)}
        found: dict[str, _Topic] = {}
        for name, configs in (await admin.configs.describe_topics(listed, keys=["table.format"])).items():
            if isinstance(configs, KafkaError):
                if configs.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # it was deleted meanwhile
                raise configs
            shown_format = configs["table.format"].value if "table.format" in configs else None
            if topic is not None or shown_format not in (None, "none"):
                id = uuid_text(listed[name].topic_id or bytes(16))
                found[name] = _Topic(shown_format or "none", id)
        await _ask_leaders(admin, {name: listed[name] for name in found}, found)
        return settings, found

    return with_admin(common, work)


async def _ask_a_broker(admin: Admin) -> dict[str, str | None]:
    """The settings of tables, as the first broker has them that can be reached: one that was killed is a
    member of the cluster until its session is over.
    """
    from ottla.client.admin.configs import ResourceType
    from ottla.rpc.errors import ClientFailure
    from ottla.tables.settings import BROKER_SETTINGS

    brokers = sorted(each.node_id for each in (await admin.cluster.describe()).brokers)
    for at, broker in enumerate(brokers, 1):
        try:
            described = await admin.configs.describe(ResourceType.BROKER, str(broker), keys=BROKER_SETTINGS)
            return {name: each.value for name, each in described.items()}
        except ClientFailure:
            if at == min(len(brokers), _ASKED_BROKERS):
                raise
    raise CliError("the cluster has no broker")


def _catalog_values(catalog: list[str] | None) -> dict[str, str]:
    """The values of --catalog by their names; WrongUsage for a misspelled one."""
    from ottla.tables.settings import CATALOG_PREFIX, meant_property

    found: dict[str, str] = {}
    for name, value in named_values("--catalog", catalog or ()).items():
        # As brokers have it.
        short = name.removeprefix(CATALOG_PREFIX)
        if (meant := meant_property(short)) is not None:
            raise WrongUsage(f"--catalog {name}: there is no setting {name}; did you mean {meant}?")
        found[short] = value
    return found


async def _ask_leaders(admin: Admin, listed: Mapping[str, TopicInfo], topics: Mapping[str, _Topic]) -> None:
    """Ask the leaders of partitions for the ends of their logs, and how far behind their tables are."""
    from ottla.client.admin.offsets import OffsetSpec
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition
    from ottla.tables.settings import TABLE_STATUS

    led: dict[int, list[str]] = {}
    wanted: dict[TopicPartition, int] = {}
    for name, info in listed.items():
        for each in info.partitions:
            if each.leader < 0:
                topics[name].missing[each.partition] = "it has no leader"
            else:
                wanted[TopicPartition(name, each.partition)] = OffsetSpec.LATEST
        if topics[name].format != "none":
            for leader in {each.leader for each in info.partitions if each.leader >= 0}:
                led.setdefault(leader, []).append(name)
    for (name, partition), end in (await admin.offsets.list(wanted, read_committed=True)).items():
        if isinstance(end, KafkaError):
            topics[name].missing[partition] = end.code.text.rstrip(".")
        else:
            topics[name].ends[partition] = end.offset
    for leader, names in led.items():
        try:
            answers = await admin.configs.describe_topics(names, keys=[TABLE_STATUS], broker=leader)
        except KafkaError as error:
            answers = dict.fromkeys(names, error)
        for name, answer in answers.items():
            if isinstance(answer, KafkaError):
                topics[name].statuses[leader] = answer.message or answer.code.text
            elif (status := answer.get(TABLE_STATUS)) is not None and status.value is not None:
                topics[name].statuses[leader] = status.value


def _load(settings: CatalogSettings, is_needed: bool = True) -> dict[str, Table]:
    """The tables of topics in the catalog, by the names of topics."""
    from ottla.tables.catalog import has_catalog, open_catalog
    from ottla.tables.errors import TableError
    from ottla.tables.topic_table import TOPIC

    try:
        if not is_needed and not has_catalog(settings):
            return {}
        catalog = open_catalog(settings)
        if not catalog.namespace_exists(settings.namespace):
            return {}
        found: dict[str, Table] = {}
        for identifier in catalog.list_tables(settings.namespace):
            table = catalog.load_table(identifier)
            # Those of deleted topics of the same name have a suffix.
            name = table.properties.get(TOPIC)
            if name is not None:
                found[table.name()[-1] if name in found or "__" in table.name()[-1] else name] = table
        return found
    except TableError as error:
        raise CliError(str(error)) from None
    except Exception as error:  # of the catalog or its store
        raise CliError(f"the catalog cannot be read: {type(error).__name__}: {error}") from None


@contextlib.contextmanager
def _changing(topic: str) -> Iterator[None]:
    """Turn what others do to the table at the same time into a message."""
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException

    from ottla.tables.errors import TableError

    try:
        yield
    except NoSuchTableError:
        raise CliError(f"the table of {topic} was dropped or renamed meanwhile") from None
    except (CommitFailedException, ValidationException, FileNotFoundError):
        raise CliError(f"the table of {topic} was changed by others meanwhile: try again") from None
    except TableError as error:
        raise CliError(f"{topic}: {error}") from None


def _table(topic: str, settings: CatalogSettings, topics: dict[str, _Topic], is_needed: bool) -> Table:
    """The table of a topic. `is_needed`: the catalog was named, so it has to be there."""
    tables = _load(settings, is_needed)
    if topic in tables:
        return tables[topic]
    known = topics.get(topic)
    if known is None:
        hint = did_you_mean(topic, tables) or "; `ottla tables list` shows those that do"
        raise CliError(f"topic {topic} does not exist, and has left no table{hint}")
    if known.format == "none":
        raise CliError(
            f"topic {topic} has no table; "
            f"`ottla configs alter --topic {topic} --set table.format=iceberg` gives it one"
        )
    if not known.missing and not any(known.ends.values()):
        raise CliError(f"topic {topic} has no table yet: it has no records")
    raise CliError(f"topic {topic} has no table yet: {known.reason() or _NO_REASON}")


def _lag(info: TableInfo, topic: _Topic | None) -> int | None:
    if topic is None or topic.topic_id != info.topic_id:
        return None
    return sum(max(end - info.offsets.get(partition, 0), 0) for partition, end in topic.ends.items())


def _state(info: TableInfo | None, topic: _Topic | None) -> str:
    if topic is None:
        return "topic deleted"
    if info is None:
        has_records = bool(topic.missing) or any(topic.ends.values())
        return _NOT_KEPT if has_records else "waiting for records"
    if topic.topic_id != info.topic_id:
        return "of a deleted topic"
    if topic.format == "none":
        return "stopped"
    return "complete" if _lag(info, topic) == 0 and not topic.missing else _BEHIND


def _reason(info: TableInfo | None, topic: _Topic | None) -> str | None:
    """Why a table is not kept, or behind; None if it is neither."""
    state = _state(info, topic)
    if topic is None or state not in (_NOT_KEPT, _BEHIND):
        return None
    return topic.reason() or (_NO_REASON if state == _NOT_KEPT else None)


@command(app, "list")
def list_tables(
    catalog: Catalog = None,
    common: Common = COMMON,
) -> None:
    """Show the tables of topics: how far they are, their rows, files and sizes."""
    from ottla.tables.describe import describe_table

    settings, topics = _ask_cluster(common, catalog, None)
    is_needed = bool(catalog)  # without one, that no topic has had a table yet is no failure
    tables = {name: describe_table(table) for name, table in _load(settings, is_needed).items()}
    names = sorted({*tables, *topics})
    known = {name: topics.get(name) for name in names}
    if missing := [name for name in tables if known[name] is None]:
        # A topic whose table.format is none again is not among those that have one.
        for name in missing:
            known[name] = _ask_cluster(common, catalog, name)[1].get(name)
    documents = [_document(name, tables.get(name), known[name]) for name in names]
    if common.as_json:
        print_json(documents)
        return
    if not documents:
        note(
            "no topic has a table: `ottla topics create NAME --config table.format=iceberg` creates one with "
            "a table, `ottla configs alter --topic NAME --set table.format=iceberg` gives one to a topic"
        )
    print_table(
        ["topic", "table", "state", "rows", "lag", "files", "size", "committed"],
        [
            (
                each["topic"],
                each["table"],
                each["state"],
                each["rows"],
                each["lag"],
                each["files"],
                size_text(each["bytes"]),
                time_text(each["committed_ms"]),
            )
            for each in documents
        ],
    )
    for each in documents:
        if each["reason"] is not None:
            note(f"{each['topic']} is {each['state']}: {each['reason']}")


def _document(name: str, info: TableInfo | None, topic: _Topic | None) -> dict[str, Any]:
    return {
        "topic": name,
        "table": None if info is None else info.name,
        "state": _state(info, topic),
        "reason": _reason(info, topic),
        "rows": None if info is None else info.rows,
        "lag": None if info is None else _lag(info, topic),
        "files": None if info is None else info.files,
        "bytes": None if info is None else info.bytes,
        "committed_ms": None if info is None else info.committed_ms,
    }


TopicName: TypeAlias = Annotated[str, Argument(metavar="TOPIC")]


@command(app, "show")
def show(
    topic: TopicName,
    catalog: Catalog = None,
    common: Common = COMMON,
) -> None:
    """Show a table: its place, columns, offsets, files and snapshots."""
    from ottla.tables.describe import describe_table

    settings, topics = _ask_cluster(common, catalog, topic)
    info = describe_table(_table(topic, settings, topics, bool(catalog)))
    known = topics.get(topic)
    if common.as_json:
        ends = {} if known is None else dict(known.ends)
        state = {"state": _state(info, known), "reason": _reason(info, known), "lag": _lag(info, known)}
        print_json(info.to_json() | state | {"end_offsets": ends})
        return
    reason = _reason(info, known)
    print_pairs(
        [
            ("table", info.name),
            ("state", _state(info, known)),
            *([] if reason is None else [("reason", reason)]),
            ("lag (records)", _lag(info, known)),
            ("location", info.location),
            ("metadata", info.metadata_location),
            ("mode", info.mode),
            ("partitioned by", info.partitioning),
            ("columns", ", ".join(f"{name} {kind}" for name, kind in info.columns.items())),
            ("rows", info.rows),
            ("files", info.files),
            ("size", size_text(info.bytes)),
        ]
    )
    print_line()
    partitions = sorted({*info.offsets, *(() if known is None else known.ends)})
    ends = {} if known is None else dict(known.ends)
    print_table(
        ["partition", "table", "topic"],
        [(each, info.offsets.get(each), ends.get(each)) for each in partitions],
    )
    print_line()
    print_table(
        ["snapshot", "committed", "operation", "rows added", "files added"],
        [
            (str(each.id), time_text(each.committed_ms), each.operation, each.added_rows, each.added_files)
            for each in info.snapshots[-_SHOWN_SNAPSHOTS:]
        ],
    )


@command(app, "compact")
def compact(
    topic: TopicName,
    target: Annotated[
        int, Option("--target-bytes", metavar="BYTES", min=1024, help="The size of files to aim for.")
    ] = 33_554_432,
    catalog: Catalog = None,
    common: Common = COMMON,
) -> None:
    """Merge the small files of a table. Brokers do this by themselves, now and then."""
    from ottla.tables.describe import describe_table
    from ottla.tables.maintenance import compact as merge

    settings, topics = _ask_cluster(common, catalog, topic)
    table = _table(topic, settings, topics, bool(catalog))
    merged = 0
    with _changing(topic):
        while found := merge(table, target, 2):
            merged += found
        files = describe_table(table.refresh()).files
    if common.as_json:
        print_json({"topic": topic, "merged": merged, "files": files})
    else:
        print_line(f"{merged} files of {topic} were merged; the table has {files}")


@command(app, "expire")
def expire(
    topic: TopicName,
    keep: Annotated[int, Option("--keep", metavar="N", min=1, help="Snapshots to keep.")] = 10,
    orphan_age: Annotated[
        int,
        Option("--orphan-age", metavar="SECONDS", min=60, help="How old a file without a snapshot must be."),
    ] = 86_400,
    catalog: Catalog = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Drop old snapshots of a table, and remove old files that no snapshot has."""
    from ottla.runtime.clock import SystemClock
    from ottla.tables.maintenance import expire as drop
    from ottla.tables.maintenance import remove_orphans

    settings, topics = _ask_cluster(common, catalog, topic)
    table = _table(topic, settings, topics, bool(catalog))
    now_ms = SystemClock().wall_ms()
    dropped = max(len(table.metadata.snapshots) - keep, 0)
    with _changing(topic):
        if not dry_run:
            dropped = drop(table, 1 << 62, keep, now_ms)
        removed = remove_orphans(table, orphan_age * 1000, now_ms, dry_run=dry_run)
    if common.as_json:
        print_json({"topic": topic, "expired": dropped, "removed": removed, "dry_run": dry_run})
    else:
        would = "would be " if dry_run else ""
        print_line(f"{dropped} snapshots of {topic} {would}dropped, {removed} files {would}removed")


@command(app, "repair")
def repair(
    topic: TopicName,
    catalog: Catalog = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Check a table against its own rows, and mend its offsets if they were lost or are behind.

    Records that are there twice are reported.
    """
    from ottla.tables.maintenance import check_rows, repair_offsets

    settings, topics = _ask_cluster(common, catalog, topic)
    table = _table(topic, settings, topics, bool(catalog))
    with _changing(topic):
        found = check_rows(table)
        needed = found.offsets_are_lost or any(
            found.last.get(partition, -1) >= offset for partition, offset in found.offsets.items()
        )
        if needed and not dry_run:
            repair_offsets(table)
    if common.as_json:
        print_json(
            {
                "topic": topic,
                "rows": found.rows,
                "duplicates": found.duplicates,
                "offsets": {str(each): offset for each, offset in found.offsets.items()},
                "repaired": needed and not dry_run,
                "needs_repair": needed,
            }
        )
    else:
        print_line(f"{topic}: {found.rows} rows, {found.duplicates} of them twice")
        if needed:
            print_line("its offsets were not those of its rows" + ("" if dry_run else ": they are now"))
    if found.duplicates:
        raise CliError(f"the table of {topic} has records twice: was it written by another program?")
