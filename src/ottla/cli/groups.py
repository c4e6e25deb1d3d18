"""`ottla groups`: show groups and their lag, reset or delete their committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    Yes,
    parse_ids,
)
from ottla.cli.output import note, print_json, print_pairs, print_table
from ottla.cli.positions import PartitionPosition, PositionKind, parse_position, resolve_positions
from ottla.cli.session import confirm, topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.groups import GroupInfo, ListedGroupInfo
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

HELP: Final = "See groups and their lag, move or delete their offsets."
app = group("groups", HELP)

Group = Annotated[str, Argument(metavar="GROUP")]


async def _group_or_fail(admin: Admin, name: str) -> GroupInfo:
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        return await admin.groups.describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    known = [each.group_id for each in await admin.groups.list()]
    raise CliError(f"group {name} does not exist{did_you_mean(name, known)}")


@command(app, "list")
def list_groups(
    states: Annotated[
        list[str] | None,
        Option("--state", metavar="STATE", help="Only groups in this state, such as Stable."),
    ] = None,
    types: Annotated[
        list[str] | None, Option("--type", metavar="TYPE", help="Only groups of this type, such as consumer.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List groups."""

    async def work(admin: Admin) -> list[ListedGroupInfo]:
        return await admin.groups.list(states=states or (), types=types or ())

    found = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json([each._asdict() for each in found])
    else:
        print_table(
            ["group", "type", "protocol", "state"],
            [(g.group_id, g.type or None, g.protocol_type or None, g.state or None) for g in found],
        )


@command(app, "describe")
def describe(
    name: Group,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a group's state, its members and their assignments."""

    async def work(admin: Admin) -> GroupInfo:
        return await _group_or_fail(admin, name)

    info = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json(
            {
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
                    }
                    for m in info.members
                ],
            }
        )
        return
    print_pairs(
        [
            ("group", info.group_id),
            ("type", info.type),
            ("state", info.state),
            ("assignor", info.assignor or None),
            ("members", len(info.members)),
        ]
    )
    if info.members:
        print()
        print_table(
            ["member", "client", "host", "partitions"],
            [
                (m.instance_id or m.member_id, m.client_id, m.host, " ".join(map(str, sorted(m.assignment))))
                for m in info.members
            ],
        )


@command(app, "lag")
def lag(
    name: Group,
    topics: Annotated[
        list[str] | None, Option("--topic", "-t", help="Only this topic; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the committed offsets of a group and its lag."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return await _lag(admin, await _group_or_fail(admin, name), topics)

    rows = with_admin(bootstrap, timeout, work)
    total = sum(row["lag"] or 0 for row in rows)
    if as_json:
        print_json({"group_id": name, "lag": total, "partitions": rows})
        return
    print_table(
        ["topic", "partition", "committed", "end", "lag", "member"],
        [(r["topic"], r["partition"], r["committed"], r["end"], r["lag"], r["member"]) for r in rows],
    )
    note(f"{total} records behind")


async def _lag(admin: Admin, info: GroupInfo, topics: list[str] | None) -> list[dict[str, Any]]:
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
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="PLACE",
            help="beginning, end, current, an offset, -N (before the end), a time, or an age (6h).",
        ),
    ] = None,
    shift: Annotated[
        int | None, Option("--shift-by", metavar="N", help="Shift the committed offsets; negative is back.")
    ] = None,
    file: Annotated[
        str | None, Option("--from-file", metavar="CSV", help="Lines of topic,partition,offset.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="The topic to reset; may be repeated."),
    ] = None,
    all_topics: Annotated[bool, Option("--all-topics", help="All topics with committed offsets.")] = False,
    execute: Annotated[bool, Option("--execute", help="Do it. Otherwise only show the plan.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Reset a group's offsets: without --execute only show the plan.

    The group must have no members: they would not notice, and commit over it.
    """
    if sum((to is not None, shift is not None, file is not None)) != 1:
        raise WrongUsage("no target: give one of --to, --shift-by and --from-file")
    if file is None and bool(topics) == all_topics:
        raise WrongUsage("nothing to reset: give --topic or --all-topics")
    from ottla.runtime.clock import SystemClock

    target = ResetTarget(
        position=None
        if to is None or to == "current"
        else parse_position("--to", to, SystemClock().wall_ms()),
        shift=shift if shift is not None else (0 if to == "current" else None),
        offsets=read_offsets_file(file) if file is not None else None,
    )
    scope = [_scope(each) for each in topics or ()]

    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[TopicPartition, KafkaError | None]]:
        plan = await plan_reset(admin, name, target, scope)
        results: dict[TopicPartition, KafkaError | None] = {}
        if execute:
            await _refuse_if_active(admin, name)
            results = await admin.groups.alter_offsets(name, {row["at"]: row["new"] for row in plan})
        return plan, results

    plan, results = with_admin(bootstrap, timeout, work)
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
        raise CliError("\nottla: ".join(failed))


def _scope(text: str) -> tuple[str, list[int] | None]:
    topic, _, partitions = text.partition(":")
    return topic, parse_ids("--topic", partitions) if partitions else None


async def _refuse_if_active(admin: Admin, name: str) -> None:
    """Refuse groups with members, and name them: the broker refuses without their names."""
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        info = await admin.groups.describe(name)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return
        raise
    if info.members:
        who = ", ".join(f"{m.client_id} at {m.host.lstrip('/')}" for m in info.members[:5])
        raise CliError(
            f"group {name} is {info.state} with {len(info.members)} members ({who}); stop them first"
        )


@command(app, "delete-offsets")
def delete_offsets(
    name: Group,
    topics: Annotated[
        list[str], Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="The topic; may be repeated.")
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete the committed offsets of a group for a topic."""
    scope = [_scope(each) for each in topics]
    confirm(f"Delete the offsets of {', '.join(topics)} in group {name}?", yes=yes)

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        await _group_or_fail(admin, name)
        committed = await admin.groups.offsets(name)
        chosen = [
            p
            for p in sorted(committed)
            for topic, ids in scope
            if p.topic == topic and (not ids or p.partition in ids)
        ]
        if not chosen:
            raise CliError(f"group {name} has no offsets of {', '.join(topics)}")
        return await admin.groups.delete_offsets(name, chosen)

    results = with_admin(bootstrap, timeout, work)
    failed = [str(error) for error in results.values() if error is not None]
    done = [partition for partition, error in results.items() if error is None]
    if as_json:
        print_json([{**partition._asdict(), "deleted": partition in done} for partition in results])
    else:
        for partition in done:
            print(f"{partition}: deleted")
    if failed:
        raise CliError("\nottla: ".join(failed))


@command(app, "delete")
def delete(
    names: Annotated[list[str], Argument(metavar="GROUP...")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete groups without members, with all their offsets."""
    confirm(f"Delete {', '.join(names)} with all offsets?", yes=yes)

    async def work(admin: Admin) -> dict[str, str | None]:
        from ottla.protocol.errors import ErrorCode

        outcome: dict[str, str | None] = {}
        for name, error in (await admin.groups.delete_many(names)).items():
            if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                known = [each.group_id for each in await admin.groups.list()]
                outcome[name] = f"group {name} does not exist{did_you_mean(name, known)}"
            else:
                outcome[name] = None if error is None else error.message
        return outcome

    outcome = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json([{"group_id": name, "deleted": e is None, "error": e} for name, e in outcome.items()])
    else:
        for name, error in outcome.items():
            if error is None:
                print(f"{name}: deleted")
    failed = [error for error in outcome.values() if error is not None]
    if failed:
        raise CliError("\nottla: ".join(failed))


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of a reset: a position, a shift from the committed offset, or given offsets."""

    position: PartitionPosition | None = None
    shift: int | None = None
    offsets: Mapping[tuple[str, int], int] | None = None


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
    admin: Admin, group: str, target: ResetTarget, scope: Sequence[tuple[str, list[int] | None]]
) -> list[dict[str, Any]]:
    """The plan of a reset: for each partition (`at`) the committed offset (`current`) and the new one, which
    is kept within the log. Without a scope, all partitions with committed offsets.
    """
    from ottla.protocol.names import TopicPartition

    committed = {p: c.offset for p, c in (await admin.groups.offsets(group)).items()}
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


async def _choose_partitions(
    admin: Admin,
    group: str,
    committed: Mapping[TopicPartition, int],
    scope: Sequence[tuple[str, list[int] | None]],
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
