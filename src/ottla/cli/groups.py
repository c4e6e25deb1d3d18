"""`ottla groups`: show groups and their lag, reset or delete their committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    Yes,
    known_values,
    parse_ids,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table
from ottla.cli.positions import PartitionPosition, PositionKind, parse_position, resolve_positions
from ottla.cli.session import confirm, topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.groups import GroupInfo, ListedGroupInfo, MemberDescription
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

HELP: Final = "See groups and their lag, move or delete their offsets."
app = group("groups", HELP)

T = TypeVar("T")
Scope: TypeAlias = Sequence[tuple[str, list[int] | None]]
"""Topics, each with the partitions that are meant, or all of them."""

GROUP_STATES: Final = {
    "classic": ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead"),
    "consumer": ("Assigning", "Reconciling", "Stable", "Empty", "Dead"),
    "share": ("Stable", "Empty", "Dead"),
    "streams": ("NotReady", "Assigning", "Reconciling", "Stable", "Empty", "Dead"),
}
"""The states that groups of each type can have."""

Group = Annotated[str, Argument(metavar="GROUP")]
States = Annotated[
    list[str] | None, Option("--state", metavar="STATE", help="Only groups in this state, such as Stable.")
]
# The options of the three `reset-offsets`.
ResetTo = Annotated[
    str | None,
    Option(
        "--to",
        metavar="PLACE",
        help="beginning, end, current, an offset, -N (before the end), a time, or an age (6h).",
    ),
]
ResetFile = Annotated[
    str | None, Option("--from-file", metavar="CSV", help="Lines of topic,partition,offset.")
]
ResetTopics = Annotated[
    list[str] | None,
    Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="The topic to reset; may be repeated."),
]
DeletedTopics = Annotated[
    list[str], Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="The topic; may be repeated.")
]
Execute = Annotated[bool, Option("--execute", help="Do it. Otherwise only show the plan.")]
ResetOutcome: TypeAlias = "tuple[list[dict[str, Any]], dict[TopicPartition, KafkaError | None]]"
"""The plan of a reset, and the results if it was executed."""


async def group_or_fail(admin: Admin, name: str, type: str | None = None) -> GroupInfo:
    """The group. If it does not exist, or is of another type, the error says what there is."""
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        info = await admin.groups.describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    else:
        if type is not None and info.type != type:
            raise CliError(
                f"group {name} is not a {type} group but a {info.type} group; see {_command(info)}"
            )
        return info
    known = [each.group_id for each in await admin.groups.list(types=() if type is None else (type,))]
    raise CliError(f"group {name} does not exist{did_you_mean(name, known)}")


def _command(info: GroupInfo) -> str:
    """The command for groups of this type."""
    own = {"share": "share-groups", "streams": "streams-groups"}.get(info.type, "groups")
    return f"`ottla {own} describe {info.group_id}`"


async def refuse_other_types(admin: Admin, name: str, *types: str) -> None:
    """Raise CliError if a group of another type has this name: no member of these types can join it."""
    from ottla.protocol.errors import KafkaError

    try:
        info = await admin.groups.describe(name)
    except KafkaError:
        # It does not exist. Or the user may not describe it: then joining says what is missing.
        return
    if info.type not in types:
        how = {
            "share": f"`ottla consume --share {name}` reads in it",
            "streams": "applications of Kafka Streams read in it",
        }.get(info.type, f"`ottla consume --group {name}` reads in it")
        raise CliError(f"group {name} is a {info.type} group: {how}")


async def offset_reset_of(admin: Admin, name: str) -> str | None:
    """Where a share group begins on a partition; None if the user may not see its settings."""
    from ottla.client.admin.configs import ResourceType
    from ottla.protocol.errors import KafkaError

    setting = "share.auto.offset.reset"
    try:
        found = await admin.configs.describe(ResourceType.GROUP, name, keys=[setting])
    except KafkaError:
        return None
    return found[setting].value if setting in found else None


@command(app, "list")
def list_groups(
    states: States = None,
    types: Annotated[
        list[str] | None, Option("--type", metavar="TYPE", help="Only groups of this type, such as consumer.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """List groups."""
    show_groups(common, known_values("--type", types, GROUP_STATES), states)


def show_groups(common: Common, types: Sequence[str], states: list[str] | None) -> None:
    """Print the groups of these types, or of all, in these states, or in any."""
    possible = [state for type in types or GROUP_STATES for state in GROUP_STATES[type]]
    wanted = known_values("--state", states, possible)

    async def work(admin: Admin) -> list[ListedGroupInfo]:
        return await admin.groups.list(states=wanted, types=types)

    found = with_admin(common, work)
    if common.as_json:
        print_json([each._asdict() for each in found])
    else:
        print_table(
            ["group", "type", "protocol", "state"],
            [(g.group_id, g.type or None, g.protocol_type or None, g.state or None) for g in found],
        )


@command(app, "describe")
def describe(
    name: Group,
    common: Common = COMMON,
) -> None:
    """Show a group's state, its members and their assignments, its committed offsets and lag."""

    async def work(admin: Admin) -> tuple[GroupInfo, list[dict[str, Any]]]:
        info = await group_or_fail(admin, name)
        return info, [] if _has_own_command(info) else await committed_lag(admin, info, None)

    info, rows = with_admin(common, work)
    if common.as_json:
        print_json(group_json(info) | ({} if _has_own_command(info) else {"partitions": rows}))
        return
    print_pairs(
        [
            ("group", info.group_id),
            ("type", info.type),
            ("state", info.state),
            ("assignor", info.assignor or None),
            ("members", len(info.members)),
            *([] if _has_own_command(info) else [("lag", sum(row["lag"] or 0 for row in rows))]),
        ]
    )
    if info.members:
        print_line()
        print_table(
            ["member", "client", "host", "tasks" if info.type == "streams" else "partitions"],
            [(m.instance_id or m.member_id, m.client_id, m.host, _assigned(m)) for m in info.members],
        )
    if rows:
        print_line()
        _print_lag(rows)
    if _has_own_command(info):
        note(f"{_command(info)} shows more")


def _has_own_command(info: GroupInfo) -> bool:
    return info.type in ("share", "streams")


def _assigned(member: MemberDescription) -> str:
    if member.tasks:
        return " ".join(f"{kind}:{','.join(tasks)}" for kind, tasks in member.tasks.items() if tasks)
    return " ".join(map(str, sorted(member.assignment)))


def group_json(info: GroupInfo) -> dict[str, Any]:
    """A group and its members as JSON."""
    return {
        "group_id": info.group_id,
        "type": info.type,
        "protocol_type": info.protocol_type,
        "state": info.state,
        "assignor": info.assignor,
        "epoch": info.epoch,
        "members": [
            {
                "member_id": m.member_id,
                "instance_id": m.instance_id,
                "client_id": m.client_id,
                "host": m.host,
                "epoch": m.epoch,
                "assignment": [p._asdict() for p in m.assignment],
                **({"tasks": dict(m.tasks)} if info.type == "streams" else {}),
            }
            for m in info.members
        ],
    }


@command(app, "lag")
def lag(
    name: Group,
    topics: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Show the committed offsets of a group and its lag; of a share group, its start offsets."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        info = await group_or_fail(admin, name)
        if info.type == "share":
            rows = [
                {
                    "topic": row.partition.topic,
                    "partition": row.partition.partition,
                    "committed": row.start,
                    "end": row.end,
                    "lag": row.lag,
                    "member": None,  # a partition has many
                }
                for row in await share_lag(admin, name)
            ]
            return [row for row in rows if not topics or row["topic"] in topics]
        return await committed_lag(admin, info, topics)

    show_lag(name, with_admin(common, work), as_json=common.as_json)


def show_lag(name: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    total = sum(row["lag"] or 0 for row in rows)
    if as_json:
        print_json({"group_id": name, "lag": total, "partitions": rows})
        return
    _print_lag(rows)
    unknown = sum(row["lag"] is None for row in rows)
    note(
        f"{total} records behind" + (f", without {unknown} partitions that have no offset" if unknown else "")
    )


def _print_lag(rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        ["topic", "partition", "committed", "end", "lag", "member"],
        [(r["topic"], r["partition"], r["committed"], r["end"], r["lag"], r["member"]) for r in rows],
    )


@dataclass(frozen=True, slots=True)
class ShareLag:
    """Where a share group is in a partition: `done` records from its start offset on are done too."""

    partition: TopicPartition
    start: int | None
    end: int | None
    lag: int | None
    error: str | None

    @property
    def is_fresh(self) -> bool:
        """No record was acknowledged there, and no offset set."""
        return self.start is None and self.error is None

    @property
    def done(self) -> int | None:
        if self.start is None or self.end is None or self.lag is None:
            return None
        return max(self.end - self.start - self.lag, 0)


async def share_lag(admin: Admin, name: str) -> list[ShareLag]:
    """Where a share group is, in all partitions that it reads."""
    from ottla.client.admin.offsets import OffsetSpec
    from ottla.protocol.errors import KafkaError

    found = await admin.groups.share_offsets(name)
    ends = await admin.offsets.list(dict.fromkeys(found, OffsetSpec.LATEST))
    rows = []
    for partition in sorted(found):
        at, end = found[partition], ends[partition]
        if isinstance(at, KafkaError):
            rows.append(ShareLag(partition, None, None, None, at.message))
        else:
            offset = None if isinstance(end, KafkaError) else end.offset
            rows.append(ShareLag(partition, at.start_offset, offset, at.lag, None))
    return rows


async def committed_lag(admin: Admin, info: GroupInfo, topics: list[str] | None) -> list[dict[str, Any]]:
    from ottla.client.admin.offsets import OffsetSpec
    from ottla.protocol.errors import KafkaError

    committed = await admin.groups.offsets(info.group_id)
    owners = {p: m.instance_id or m.member_id for m in info.members for p in m.assignment}
    partitions = sorted(p for p in {*committed, *owners} if not topics or p.topic in topics)
    ends = await admin.offsets.list(dict.fromkeys(partitions, OffsetSpec.LATEST))
    rows = []
    for p in partitions:
        found = ends[p]
        end = None if isinstance(found, KafkaError) else found.offset
        offset = committed[p].offset if p in committed else None
        rows.append(
            {
                "topic": p.topic,
                "partition": p.partition,
                "committed": offset,
                "end": end,
                "lag": max(end - offset, 0) if end is not None and offset is not None else None,
                "member": owners.get(p),
            }
        )
    return rows


@command(app, "reset-offsets")
def reset_offsets(
    name: Group,
    to: ResetTo = None,
    shift: Annotated[
        int | None, Option("--shift-by", metavar="N", help="Shift the committed offsets; negative is back.")
    ] = None,
    file: ResetFile = None,
    topics: ResetTopics = None,
    all_topics: Annotated[bool, Option("--all-topics", help="All topics with committed offsets.")] = False,
    execute: Execute = False,
    common: Common = COMMON,
) -> None:
    """Reset a group's offsets: without --execute only show the plan.

    The group must have no members: they would not notice, and commit over it.
    """
    target = parse_target(to, shift, file, has_scope=bool(topics) != all_topics)
    scope = [parse_scope(each) for each in topics or ()]

    async def work(admin: Admin) -> ResetOutcome:
        info = await known_group(admin, name)
        if info is not None and info.type == "share":
            raise CliError(f"group {name} is a share group: `ottla share-groups reset-offsets` moves it")
        return await reset_committed(admin, name, info, target, scope, execute=execute)

    show_reset(with_admin(common, work), execute=execute, as_json=common.as_json)


def show_reset(outcome: ResetOutcome, *, execute: bool, as_json: bool) -> None:
    """Print the plan of a reset, and what failed."""
    plan, results = outcome
    failed = [str(error) for error in results.values() if error is not None]
    if as_json:
        print_json(
            [
                {
                    "topic": row["at"].topic,
                    "partition": row["at"].partition,
                    "current": row["current"],
                    "new": row["new"],
                    "executed": execute and results.get(row["at"]) is None,
                }
                for row in plan
            ]
        )
    else:
        print_table(
            ["topic", "partition", "current", "new", "change"],
            [
                (
                    row["at"].topic,
                    row["at"].partition,
                    row["current"],
                    row["new"],
                    None if row["current"] is None else row["new"] - row["current"],
                )
                for row in plan
            ],
        )
        if not execute:
            note("Nothing was changed; --execute does it.")
    if failed:
        raise CliError.of_all(failed)


def parse_scope(text: str) -> tuple[str, list[int] | None]:
    topic, _, partitions = text.partition(":")
    return topic, parse_ids("--topic", partitions) if partitions else None


async def known_group(admin: Admin, name: str) -> GroupInfo | None:
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        return await admin.groups.describe(name)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def refuse_if_active(info: GroupInfo | None, *, dry_run: bool = False) -> None:
    """Refuse groups with members, and name them; for a plan only say it."""
    from ottla.client.admin.groups import active_group_message

    message = None if info is None else active_group_message(info)
    if message is None:
        return
    if not dry_run:
        raise CliError(message)
    note(message)


@command(app, "delete-offsets")
def delete_offsets(
    name: Group,
    topics: DeletedTopics,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete the committed offsets of a group for a topic."""
    scope = [parse_scope(each) for each in topics]
    confirm(f"Delete the offsets of {', '.join(topics)} in group {name}?", yes=yes)

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        await group_or_fail(admin, name)
        return await delete_committed(admin, name, scope)

    show_deleted_offsets(with_admin(common, work), lambda p: p._asdict(), as_json=common.as_json)


async def delete_committed(admin: Admin, name: str, scope: Scope) -> dict[TopicPartition, KafkaError | None]:
    """Delete the committed offsets of partitions that have some; the errors of those where it failed."""
    chosen = [
        p
        for p in sorted(await admin.groups.offsets(name))
        for topic, ids in scope
        if p.topic == topic and (not ids or p.partition in ids)
    ]
    if not chosen:
        raise CliError(f"group {name} has no offsets of {', '.join(topic for topic, _ in scope)}")
    return await admin.groups.delete_offsets(name, chosen)


def show_deleted_offsets(
    results: Mapping[T, KafkaError | None], as_dict: Callable[[T], dict[str, Any]], *, as_json: bool
) -> None:
    """Show of which partitions, or topics, the offsets are deleted."""
    if as_json:
        print_json([{**as_dict(place), "deleted": error is None} for place, error in results.items()])
    else:
        for place, error in results.items():
            if error is None:
                print_line(f"{place}: deleted")
    failed = [str(error) for error in results.values() if error is not None]
    if failed:
        raise CliError.of_all(failed)


@command(app, "delete")
def delete(
    names: Annotated[list[str], Argument(metavar="GROUP...")],
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete groups without members, with all their offsets."""
    confirm(f"Delete {', '.join(names)} with all offsets?", yes=yes)
    show_deleted(
        with_admin(common, lambda admin: delete_groups(admin, names)),
        as_json=common.as_json,
    )


async def delete_groups(admin: Admin, names: Sequence[str]) -> dict[str, str | None]:
    """Delete groups, and return why one could not be."""
    from ottla.protocol.errors import ErrorCode

    outcome: dict[str, str | None] = {}
    for name, error in (await admin.groups.delete_many(names)).items():
        if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            known = [each.group_id for each in await admin.groups.list()]
            outcome[name] = f"group {name} does not exist{did_you_mean(name, known)}"
        else:
            outcome[name] = None if error is None else error.message
    return outcome


def show_deleted(outcome: Mapping[str, str | None], *, as_json: bool) -> None:
    if as_json:
        print_json([{"group_id": name, "deleted": e is None, "error": e} for name, e in outcome.items()])
    else:
        for name, error in outcome.items():
            if error is None:
                print_line(f"{name}: deleted")
    failed = [error for error in outcome.values() if error is not None]
    if failed:
        raise CliError.of_all(failed)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of a reset: a position, a shift from the committed offset, or given offsets."""

    position: PartitionPosition | None = None
    shift: int | None = None
    offsets: Mapping[tuple[str, int], int] | None = None


def parse_target(to: str | None, shift: int | None, file: str | None, *, has_scope: bool) -> ResetTarget:
    """The target that options name; WrongUsage if they name none or several, or no topics."""
    if sum((to is not None, shift is not None, file is not None)) != 1:
        raise WrongUsage("no target: give one of --to, --shift-by and --from-file")
    if file is None and not has_scope:
        raise WrongUsage("no topics to reset: give either --topic or --all-topics")
    from ottla.runtime.clock import SystemClock

    return ResetTarget(
        position=None
        if to is None or to == "current"
        else parse_position("--to", to, SystemClock().wall_ms()),
        shift=shift if shift is not None else (0 if to == "current" else None),
        offsets=read_offsets_file(file) if file is not None else None,
    )


def read_offsets_file(path: str) -> dict[tuple[str, int], int]:
    """Parse a file with lines of topic,partition,offset."""
    import csv

    found: dict[tuple[str, int], int] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row:
                continue
            if len(row) != 3 or not row[1].strip().isdecimal() or not row[2].strip().isdecimal():
                raise WrongUsage(f"{path}, line {number}: expected topic,partition,offset")
            found[row[0].strip(), int(row[1])] = int(row[2])
    if not found:
        raise WrongUsage(f"{path} is empty")
    return found


async def plan_reset(
    admin: Admin,
    group: str,
    target: ResetTarget,
    scope: Scope,
    committed: Mapping[TopicPartition, int],
) -> list[dict[str, Any]]:
    """The plan of a reset: for each partition (`at`) the committed offset (`current`) and the new one, which
    is kept within the log. Without a scope, all partitions with committed offsets.
    """
    from ottla.protocol.names import TopicPartition

    if target.offsets is not None:
        wanted = {
            TopicPartition(*p): PartitionPosition(PositionKind.OFFSET, o) for p, o in target.offsets.items()
        }
    else:
        chosen = await _choose_partitions(admin, group, committed, scope)
        if target.position is not None:
            wanted = dict.fromkeys(chosen, target.position)
        else:
            missing = [p for p in chosen if p not in committed]
            if missing:
                raise CliError(
                    f"group {group} has committed nothing for {missing[0]}: nothing to shift or keep"
                )
            wanted = {
                p: PartitionPosition(PositionKind.OFFSET, max(committed[p] + (target.shift or 0), 0))
                for p in chosen
            }
    for topic in {p.topic for p in wanted}:
        await topic_or_fail(admin, topic)
    offsets = await resolve_positions(admin, wanted)
    return [{"at": p, "current": committed.get(p), "new": offsets[p]} for p in sorted(offsets)]


async def reset_committed(
    admin: Admin, group: str, info: GroupInfo | None, target: ResetTarget, scope: Scope, *, execute: bool
) -> ResetOutcome:
    """Plan a reset of committed offsets, and carry it out if asked to. Without `info` the group is new."""
    committed = {p: c.offset for p, c in (await admin.groups.offsets(group)).items()}
    plan = await plan_reset(admin, group, target, scope, committed)
    refuse_if_active(info, dry_run=not execute)
    if not execute:
        return plan, {}
    return plan, await admin.groups.alter_offsets(group, {row["at"]: row["new"] for row in plan})


async def _choose_partitions(
    admin: Admin,
    group: str,
    committed: Mapping[TopicPartition, int],
    scope: Scope,
) -> list[TopicPartition]:
    from ottla.protocol.names import TopicPartition

    if not scope:
        if not committed:
            raise CliError(f"group {group} has committed nothing; name topics with --topic")
        return sorted(committed)
    chosen: list[TopicPartition] = []
    for topic, wanted in scope:
        info = await topic_or_fail(admin, topic)
        indexes = wanted if wanted is not None else [p.partition for p in info.partitions]
        for index in indexes:
            if index >= len(info.partitions):
                raise CliError(f"topic {topic} has partitions 0 to {len(info.partitions) - 1}, not {index}")
        chosen += [TopicPartition(topic, index) for index in indexes]
    return list(dict.fromkeys(chosen))
