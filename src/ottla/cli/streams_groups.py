"""`ottla streams-groups`: show streams groups, their tasks and lag, reset or delete their offsets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.groups import (
    DeletedTopics,
    Execute,
    Group,
    ResetFile,
    ResetOutcome,
    ResetTo,
    ResetTopics,
    States,
    committed_lag,
    delete_committed,
    delete_groups,
    group_json,
    group_or_fail,
    parse_scope,
    parse_target,
    refuse_if_active,
    reset_committed,
    show_deleted,
    show_deleted_offsets,
    show_groups,
    show_lag,
    show_reset,
)
from ottla.cli.options import (
    COMMON,
    Common,
    Yes,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table
from ottla.cli.session import confirm, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.groups import GroupInfo
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

HELP: Final = "See streams groups, their topologies, tasks and lag; move or delete their offsets."
STREAMS: Final = "streams"
_NOT_READY: Final = "NotReady"
app = group("streams-groups", HELP)


@command(app, "list")
def list_groups(
    states: States = None,
    common: Common = COMMON,
) -> None:
    """List streams groups."""
    show_groups(common, (STREAMS,), states)


@command(app, "describe")
def describe(
    name: Group,
    common: Common = COMMON,
) -> None:
    """Show a streams group: its state, topology, members and their tasks.

    A task is SUBTOPOLOGY_PARTITION. Those in brackets are assigned and not taken over yet. Of a group that is
    NotReady, it says which topics are missing.
    """

    async def work(admin: Admin) -> tuple[GroupInfo, list[str]]:
        info = await group_or_fail(admin, name, STREAMS)
        return info, await _missing_topics(admin, info) if info.state == _NOT_READY else []

    info, missing = with_admin(common, work)
    if common.as_json:
        print_json({**_json(info), **({"missing_topics": missing} if info.state == _NOT_READY else {})})
        return
    print_pairs(
        [
            ("group", info.group_id),
            ("state", info.state),
            ("epoch", info.epoch),
            ("assignment epoch", info.assignment_epoch),
            ("topology epoch", info.topology_epoch),
            ("members", len(info.members)),
        ]
    )
    if info.subtopologies:
        print_line()
        print_table(
            ["subtopology", "sources", "repartition sources", "repartition sinks", "changelogs"],
            [
                (
                    each.subtopology_id,
                    " ".join(each.source_topics) or None,
                    " ".join(each.repartition_source_topics) or None,
                    " ".join(each.repartition_sink_topics) or None,
                    " ".join(each.state_changelog_topics) or None,
                )
                for each in info.subtopologies
            ],
        )
    if info.members:
        print_line()
        print_table(
            ["member", "client", "process", "host", "epoch", "active", "standby", "warmup"],
            [
                (
                    m.instance_id or m.member_id,
                    m.client_id,
                    m.process,
                    m.host,
                    m.epoch,
                    *(_tasks(m.tasks.get(kind, ()), m.target_tasks.get(kind, ())) for kind in m.tasks),
                )
                for m in info.members
            ],
        )
    if info.state == _NOT_READY:
        _note_missing(info, missing)


async def _missing_topics(admin: Admin, info: GroupInfo) -> list[str]:
    """The topics of the group's topology that do not exist."""
    known = {topic.name for topic in await admin.topics.list(include_internal=True)}
    wanted = {
        topic
        for each in info.subtopologies
        for topic in (
            *each.source_topics,
            *each.repartition_source_topics,
            *each.repartition_sink_topics,
            *each.state_changelog_topics,
        )
    }
    return sorted(wanted - known)


def _note_missing(info: GroupInfo, missing: list[str]) -> None:
    """Say what a group that is not ready waits for. Source topics come first: the coordinator creates the
    internal ones when these are there.
    """
    sources = {topic for each in info.subtopologies for topic in each.source_topics}
    first = [topic for topic in missing if topic in sources]
    if first:
        note(
            f"not ready: source topics are missing, or hidden from this user: {', '.join(first)}; "
            "`ottla topics create` creates them"
        )
    elif missing:
        note(
            f"not ready: internal topics are missing: {', '.join(missing)}; the coordinator creates them if "
            "the user of the application may create topics"
        )
    else:
        note(
            "not ready: all its topics exist; topics that are joined need the same number of partitions, see "
            "`ottla topics list`"
        )


def _tasks(now: tuple[str, ...], target: tuple[str, ...]) -> str | None:
    coming = [f"[{task}]" for task in target if task not in now]
    return " ".join([*now, *coming]) or None


def _json(info: GroupInfo) -> dict[str, Any]:
    document = group_json(info)
    document["assignment_epoch"] = info.assignment_epoch
    document["topology_epoch"] = info.topology_epoch
    document["subtopologies"] = [asdict(each) for each in info.subtopologies]
    for member, shown in zip(info.members, document["members"], strict=True):
        shown["target_tasks"] = dict(member.target_tasks)
        shown["process"] = member.process
        shown["endpoint"] = member.endpoint
    return document


@command(app, "lag")
def lag(
    name: Group,
    topics: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Show the committed offsets of a streams group and its lag."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        info = await group_or_fail(admin, name, STREAMS)
        rows = await committed_lag(admin, info, topics)
        owners = {
            (topic, int(task.rpartition("_")[2])): m.instance_id or m.member_id
            for m in info.members
            for task in m.tasks.get("active", ())
            for each in info.subtopologies
            if each.subtopology_id == task.rpartition("_")[0]
            for topic in (*each.source_topics, *each.repartition_source_topics)
        }
        return [{**row, "member": owners.get((row["topic"], row["partition"]))} for row in rows]

    show_lag(name, with_admin(common, work), as_json=common.as_json)


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
    """Reset a streams group's offsets: without --execute only show the plan.

    The group must have no members. State stores are as they were: `delete --internal-topics` removes them.
    """
    target = parse_target(to, shift, file, has_scope=bool(topics) != all_topics)
    scope = [parse_scope(each) for each in topics or ()]

    async def work(admin: Admin) -> ResetOutcome:
        info = await group_or_fail(admin, name, STREAMS)
        return await reset_committed(admin, name, info, target, scope, execute=execute)

    show_reset(with_admin(common, work), execute=execute, as_json=common.as_json)


@command(app, "delete")
def delete(
    names: Annotated[list[str], Argument(metavar="GROUP...")],
    internal_topics: Annotated[
        bool,
        Option("--internal-topics", help="Delete their repartition and changelog topics too."),
    ] = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete streams groups without members, with all their offsets."""
    what = "all offsets and internal topics" if internal_topics else "all offsets"
    confirm(f"Delete {', '.join(names)} with {what}?", yes=yes)

    async def work(admin: Admin) -> dict[str, str | None]:
        topics: dict[str, set[str]] = {}
        for name in names:
            info = await group_or_fail(admin, name, STREAMS)
            refuse_if_active(info)
            topics[name] = {
                topic
                for each in info.subtopologies
                for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
            }
        outcome = await delete_groups(admin, names)
        if internal_topics:
            known = {topic.name for topic in await admin.topics.list(include_internal=True)}
            for name, error in outcome.items():
                for topic in sorted(topics[name] & known) if error is None else ():
                    await admin.topics.delete(topic)
        return outcome

    show_deleted(with_admin(common, work), as_json=common.as_json)


@command(app, "delete-offsets")
def delete_offsets(
    name: Group,
    topics: DeletedTopics,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete the committed offsets of a streams group for a topic."""
    scope = [parse_scope(each) for each in topics]
    confirm(f"Delete the offsets of {', '.join(topics)} in streams group {name}?", yes=yes)

    async def work(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        await group_or_fail(admin, name, STREAMS)
        return await delete_committed(admin, name, scope)

    show_deleted_offsets(with_admin(common, work), lambda p: p._asdict(), as_json=common.as_json)
