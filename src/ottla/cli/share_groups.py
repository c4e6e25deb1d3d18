"""`ottla share-groups`: show share groups, where they are and what they have in delivery, and change that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import UNREACHABLE, CliError, WrongUsage
from ottla.cli.groups import (
    Execute,
    Group,
    ResetFile,
    ResetOutcome,
    ResetTo,
    ResetTopics,
    ShareLag,
    States,
    delete_groups,
    group_json,
    group_or_fail,
    known_group,
    offset_reset_of,
    parse_scope,
    parse_target,
    plan_reset,
    refuse_if_active,
    share_lag,
    show_deleted,
    show_deleted_offsets,
    show_groups,
    show_reset,
)
from ottla.cli.node_http import Http, ask, checked_url
from ottla.cli.options import (
    COMMON,
    Common,
    Yes,
    known_values,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table
from ottla.cli.session import confirm, with_admin

if TYPE_CHECKING:
    from ottla.cli.share_records import RecordChoice
    from ottla.client.admin import Admin
    from ottla.client.admin.groups import DeliveredRange, GroupInfo
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

HELP: Final = "See share groups, their members, records and lag; move or delete their offsets."
SHARE: Final = "share"
_HELD: Final = "kafka_server_sharepartitionmetrics_acquiredmessagecount"
app = group("share-groups", HELP)


@command(app, "list")
def list_groups(
    states: States = None,
    common: Common = COMMON,
) -> None:
    """List share groups."""
    show_groups(common, (SHARE,), states)


@command(app, "describe")
def describe(
    name: Group,
    deliveries: Annotated[
        bool,
        Option(
            "--deliveries",
            help="Show which records wait for another delivery, or are done before others, and how often "
            "they were delivered.",
        ),
    ] = False,
    http: Http = None,
    common: Common = COMMON,
) -> None:
    """Show a share group: its state, members, start offsets and lag.

    All records before START are done. DONE counts those from START on that are, and LAG those that are not:
    in delivery, or not delivered yet. What members hold right now only the leader of a partition knows: with
    --http, HELD counts it, from the metrics of these nodes. Where START is missing, the group has not
    acknowledged a record yet.
    """

    urls = [checked_url(url) for url in http or ()]

    async def work(
        admin: Admin,
    ) -> tuple[
        GroupInfo,
        list[ShareLag],
        dict[TopicPartition, tuple[DeliveredRange, ...] | KafkaError],
        str | None,
        dict[TopicPartition, int],
    ]:
        info = await group_or_fail(admin, name, SHARE)
        rows = await share_lag(admin, name)
        found = {}
        if deliveries:
            for row in rows:
                found[row.partition] = await admin.groups.share_deliveries(name, row.partition)
        reset = await offset_reset_of(admin, name) if any(row.is_fresh for row in rows) else None
        return info, rows, found, reset, await _held(urls, name)

    info, rows, ranges, reset, held = with_admin(common, work)
    if common.as_json:
        print_json(_json(info, rows, ranges if deliveries else None, held if urls else None))
        return
    lag = [row.lag for row in rows if row.lag is not None]
    print_pairs(
        [
            ("group", info.group_id),
            ("state", info.state),
            ("assignor", info.assignor or None),
            ("epoch", info.epoch),
            ("members", len(info.members)),
            ("lag", sum(lag) if lag else None),
        ]
    )
    if info.members:
        print_line()
        print_table(
            ["member", "client", "host", "epoch", "partitions"],
            [
                (m.member_id, m.client_id, m.host, m.epoch, " ".join(map(str, sorted(m.assignment))))
                for m in info.members
            ],
        )
    if rows:
        print_line()
        print_table(
            ["topic", "partition", "start", "done", "end", "lag", *(["held"] if urls else ())],
            [
                (
                    r.partition.topic,
                    r.partition.partition,
                    r.start,
                    r.done,
                    r.end,
                    r.lag,
                    *([held.get(r.partition)] if urls else ()),
                )
                for r in rows
            ],
        )
    if deliveries:
        _print_deliveries(ranges)
    for row in rows:
        if row.error is not None:
            note(f"{row.partition}: {row.error}")
    if reset is not None:
        note(f"where START is missing, the group begins by share.auto.offset.reset={reset}")


async def _held(urls: list[str], group: str) -> dict[TopicPartition, int]:
    """How many records members hold, by the metrics of these nodes. One that is not there has no leader among
    them, no member has fetched of it, or it is beyond `metrics.max.group.partitions`.
    """
    from ottla.protocol.names import TopicPartition
    from ottla.runtime.http import HttpError
    from ottla.runtime.metrics_text import parse_metrics

    held: dict[TopicPartition, int] = {}
    for url in urls:
        try:
            answer = await ask(f"{url}/metrics")
        except HttpError as error:
            raise CliError(str(error), status=UNREACHABLE) from None
        if answer.status != 200:
            raise CliError(f"{url}: its metrics are answered with status {answer.status}")
        for _, labels, value in parse_metrics(answer.body.decode(errors="replace"), (_HELD,)):
            if labels["group"] == group:
                held[TopicPartition(labels["topic"], int(labels["partition"]))] = int(value)
    return held


def _print_deliveries(
    ranges: dict[TopicPartition, tuple[DeliveredRange, ...] | KafkaError],
) -> None:
    rows = [
        (p.topic, p.partition, each.first_offset, each.last_offset, each.state, each.delivery_count)
        for p, found in sorted(ranges.items())
        if isinstance(found, tuple)
        for each in found
    ]
    if rows:
        print_line()
        print_table(["topic", "partition", "first", "last", "state", "deliveries"], rows)
    else:
        note("no record waits for another delivery, or is done before others")
    for partition, found in sorted(ranges.items()):
        if not isinstance(found, tuple):
            note(f"{partition}: {found.message}")


def _json(
    info: GroupInfo,
    rows: list[ShareLag],
    ranges: dict[TopicPartition, tuple[DeliveredRange, ...] | KafkaError] | None,
    held: dict[TopicPartition, int] | None,
) -> dict[str, Any]:
    document = group_json(info)
    document["partitions"] = [
        {
            **row.partition._asdict(),
            **{k: v for k, v in asdict(row).items() if k != "partition"},
            "done": row.done,
            **({} if held is None else {"held": held.get(row.partition)}),
        }
        for row in rows
    ]
    if ranges is not None:
        document["deliveries"] = [
            {**partition._asdict(), **each._asdict()}
            for partition, found in sorted(ranges.items())
            if isinstance(found, tuple)
            for each in found
        ]
    return document


Topic = Annotated[
    str | None, Option("--topic", "-t", metavar="TOPIC", help="Only dead letters of records of this topic.")
]
Reason = Annotated[
    str | None, Option("--reason", metavar="TEXT", help="Only dead letters whose message has this text.")
]


@command(app, "dead-letters")
def dead_letters(
    name: Group,
    topic: Topic = None,
    reason: Reason = None,
    most: Annotated[int, Option("--max", metavar="N", help="Show the last N of them.")] = 100,
    common: Common = COMMON,
) -> None:
    """List the dead letters of a share group: which records they are, why, and how old."""
    from collections import deque

    from ottla.cli.dead_letters import Choice, DeadLetter, dead_letter_topic, read_dead_letters
    from ottla.runtime.clock import SystemClock

    choice = Choice(topic, reason)

    async def work(admin: Admin) -> tuple[int, deque[DeadLetter]]:
        found, last = 0, deque[DeadLetter](maxlen=max(most, 0))
        where = await dead_letter_topic(admin, name)
        async for letters, _ in read_dead_letters(common.bootstrap, where, name, {}):
            chosen = [letter for letter in letters if letter in choice]
            found += len(chosen)
            last.extend(chosen)
        return found, last

    found, last = with_admin(common, work)
    now_ms = SystemClock().wall_ms()
    rows = [
        {
            "topic": letter.source.topic,
            "partition": letter.source.partition,
            "offset": letter.source_offset,
            "deliveries": letter.deliveries,
            "age_s": max(0, now_ms - letter.timestamp) // 1000,
            "message": letter.message,
        }
        for letter in last
    ]
    if common.as_json:
        print_json({"group": name, "count": found, "dead_letters": rows})
        return
    if rows:
        print_table(
            ["topic", "partition", "offset", "deliveries", "age (s)", "message"],
            [tuple(row.values()) for row in rows],
        )
    note(
        f"{found} dead letters" + (f", of which the last {len(rows)} are shown" if found > len(rows) else "")
    )


@command(app, "redrive")
def redrive_dead_letters(
    name: Group,
    topic: Topic = None,
    reason: Reason = None,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Send the dead letters of a share group again, to the topics that they come from.

    Each once: the next redrive begins behind those that this one has sent, as the offsets of the consumer
    group GROUP.redrive say. With --topic or --reason it sends those that no redrive of all has sent, and the
    next one sees them again. Where dead letters have no copy of their record, it is read in its topic.
    """
    from ottla.cli.dead_letters import Choice, Redriven, dead_letter_topic, redrive

    confirm(f"Send dead letters of share group {name} again?", yes=yes)

    async def work(admin: Admin) -> Redriven:
        where = await dead_letter_topic(admin, name)
        return await redrive(admin, common.bootstrap, where, name, Choice(topic, reason))

    done = with_admin(common, work)
    if common.as_json:
        gone = [{**letter.source._asdict(), "offset": letter.source_offset} for letter in done.gone]
        foreign = [{**letter.at._asdict(), "offset": letter.offset} for letter in done.foreign]
        print_json({"group": name, "sent": dict(done.sent), "gone": gone, "foreign": foreign})
        return
    for each, count in sorted(done.sent.items()):
        print_line(f"{each}: {count} sent again")
    for letter in done.gone:
        note(f"{letter.source} no longer has offset {letter.source_offset}, and its dead letter has no copy")
    for letter in done.foreign:
        note(
            f"{letter.at} at offset {letter.offset} claims to come from topic {letter.source.topic}, which "
            "the group does not read: it is not sent"
        )
    if not done.sent:
        note("no dead letter was sent")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options that say which records in delivery are meant; all without any."""

    topic: Annotated[
        str | None, Option("--topic", "-t", metavar="TOPIC", help="Only records of this topic.")
    ] = None
    partition: Annotated[
        int | None, Option("--partition", "-p", metavar="N", min=0, help="Only records of this partition.")
    ] = None
    offsets: Annotated[
        str | None,
        Option("--offsets", metavar="FIRST[-LAST]", help="Only these; with --topic and --partition."),
    ] = None
    states: Annotated[
        list[str] | None,
        Option("--state", metavar="STATE", help="Only records that are held, waiting, available or dead."),
    ] = None
    member: Annotated[
        str | None, Option("--member", metavar="ID", help="Only records that this member holds.")
    ] = None
    older_than: Annotated[
        float,
        Option("--older-than", metavar="SECONDS", min=0, help="Only records that are held or wait so long."),
    ] = 0

    def choice(self) -> RecordChoice:
        from ottla.cli.share_records import STATES, RecordChoice

        if self.partition is not None and self.topic is None:
            raise WrongUsage("--partition: name its --topic too")
        wanted: tuple[int, int] | None = None
        if self.offsets is not None:
            first, dash, last = self.offsets.partition("-")
            if self.partition is None:
                raise WrongUsage("--offsets: name their --topic and --partition too")
            if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
                raise WrongUsage(f"--offsets {self.offsets}: expected FIRST or FIRST-LAST")
            wanted = int(first), int(last or first)
        states = tuple(known_values("--state", self.states, STATES))
        return RecordChoice(
            self.topic, self.partition, wanted, states, self.member, int(self.older_than * 1000)
        )


ALL_RECORDS: Final = RecordOptions()


@command(app, "records")
def records(
    name: Group,
    wanted: RecordOptions = ALL_RECORDS,
    most: Annotated[int, Option("--max", metavar="N", min=0, help="Show the first N ranges.")] = 100,
    common: Common = COMMON,
) -> None:
    """List the records that a share group has in delivery: who holds them, how long, and what waits.

    "held" is with a member for AGE, and its lock ends in LEFT; "waiting" is for a retry; "available" was
    delivered before and goes to the next member that polls; "dead" is to be written to the dead-letter topic.
    """
    from ottla.cli.share_records import InDelivery, list_records, rows_of

    choice = wanted.choice()

    async def work(admin: Admin) -> InDelivery:
        await group_or_fail(admin, name, SHARE)
        return await list_records(admin, name, choice, most)

    found = with_admin(common, work)
    rows = rows_of(found.shown)
    if common.as_json:
        problems = [{**at._asdict(), "problem": text} for at, text in found.problems.items()]
        print_json({"group": name, "counts": found.counts, "records": rows, "dead_letter_problems": problems})
        return
    if rows:
        titles = [
            "topic",
            "partition",
            "first",
            "last",
            "records",
            "state",
            "deliveries",
            "age (s)",
            "left (s)",
        ]
        print_table([*titles, "member"], [tuple(row.values()) for row in rows])
    total = sum(found.counts.values())
    parts = ", ".join(f"{count} {state}" for state, count in found.counts.items() if count)
    note(f"{total} records in delivery" + (f": {parts}" if parts else ""))
    for at, text in found.problems.items():
        note(f"{at}: dead letters wait: {text}")


def _alter(name: str, choice: RecordChoice, action: str, common: Common, *, yes: bool) -> None:
    from ottla.cli.share_records import alter_records
    from ottla.client.admin.groups import ShareRecordsAction

    verb = ShareRecordsAction[action.upper()]
    confirm(f"{action.capitalize()} records that share group {name} has in delivery?", yes=yes)

    async def work(admin: Admin) -> dict[TopicPartition, int | KafkaError]:
        await group_or_fail(admin, name, SHARE)
        return await alter_records(admin, name, choice, verb)

    from ottla.protocol.errors import KafkaError

    done = with_admin(common, work)
    errors = {at: result for at, result in done.items() if isinstance(result, KafkaError)}
    counts = {at: result for at, result in done.items() if isinstance(result, int) and result}
    participle = {"release": "released", "reject": "rejected", "skip": "skipped"}[action]
    if common.as_json:
        print_json(
            {
                "group": name,
                participle: [{**at._asdict(), "records": count} for at, count in sorted(counts.items())],
                "errors": [{**at._asdict(), "error": each.message} for at, each in sorted(errors.items())],
            }
        )
    else:
        for at, count in sorted(counts.items()):
            print_line(f"{at}: {count} {participle}")
        if not counts:
            note(f"no record was {participle}")
    if errors:
        raise CliError("; ".join(each.message for each in errors.values()))


@command(app, "release")
def release(
    name: Group,
    wanted: RecordOptions = ALL_RECORDS,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Make records in delivery available now: what members hold, and what waits for a retry.

    A member from which a record is taken cannot acknowledge it any more. One that was delivered as often as
    the group allows is not available again, but dead.
    """
    _alter(name, wanted.choice(), "release", common, yes=yes)


@command(app, "reject")
def reject(
    name: Group,
    wanted: RecordOptions = ALL_RECORDS,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Reject records in delivery, held or not: they become dead letters, if the group has them."""
    _alter(name, wanted.choice(), "reject", common, yes=yes)


@command(app, "skip")
def skip(
    name: Group,
    wanted: RecordOptions = ALL_RECORDS,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Have records in delivery not delivered again, held or not, and without a dead letter."""
    _alter(name, wanted.choice(), "skip", common, yes=yes)


@command(app, "reset-offsets")
def reset_offsets(
    name: Group,
    to: ResetTo = None,
    shift: Annotated[
        int | None, Option("--shift-by", metavar="N", help="Shift the start offsets; negative is back.")
    ] = None,
    file: ResetFile = None,
    topics: ResetTopics = None,
    all_topics: Annotated[bool, Option("--all-topics", help="All topics that the group reads.")] = False,
    execute: Execute = False,
    common: Common = COMMON,
) -> None:
    """Reset a share group's start offsets: without --execute only show the plan.

    All records from there on are delivered again, also those that were done. The group must have no members.
    One that does not exist yet is created, and begins there.
    """
    target = parse_target(to, shift, file, has_scope=bool(topics) != all_topics)
    scope = [parse_scope(each) for each in topics or ()]

    async def work(admin: Admin) -> ResetOutcome:
        info = await known_group(admin, name)
        starts = {}
        if info is not None:
            await group_or_fail(admin, name, SHARE)
            rows = await share_lag(admin, name)
            starts = {row.partition: row.start for row in rows if row.start is not None}
        plan = await plan_reset(admin, name, target, scope, starts)
        results: dict[TopicPartition, KafkaError | None] = {}
        refuse_if_active(info, dry_run=not execute)
        if execute:
            results = await admin.groups.alter_share_offsets(name, {row["at"]: row["new"] for row in plan})
        return plan, results

    show_reset(with_admin(common, work), execute=execute, as_json=common.as_json)


@command(app, "delete-offsets")
def delete_offsets(
    name: Group,
    topics: Annotated[
        list[str], Option("--topic", "-t", metavar="TOPIC", help="The topic; may be repeated.")
    ],
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Have a share group forget topics: where it was, and what was in delivery."""
    confirm(f"Delete the offsets of {', '.join(topics)} in share group {name}?", yes=yes)

    async def work(admin: Admin) -> dict[str, KafkaError | None]:
        refuse_if_active(await group_or_fail(admin, name, SHARE))
        return await admin.groups.delete_share_offsets(name, topics)

    show_deleted_offsets(
        with_admin(common, work),
        lambda topic: {"topic": topic},
        as_json=common.as_json,
    )


@command(app, "delete")
def delete(
    names: Annotated[list[str], Argument(metavar="GROUP...")],
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete share groups without members, with all their state."""
    confirm(f"Delete {', '.join(names)} with all offsets?", yes=yes)

    async def work(admin: Admin) -> dict[str, str | None]:
        for name in names:
            refuse_if_active(await group_or_fail(admin, name, SHARE))
        return await delete_groups(admin, names)

    show_deleted(with_admin(common, work), as_json=common.as_json)
