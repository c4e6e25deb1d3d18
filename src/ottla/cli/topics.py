"""`ottla topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.config_names import check_removed_names
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    Yes,
    named_values,
)
from ottla.cli.output import ids_text, print_json, print_line, print_pairs, print_table
from ottla.cli.session import cli_error, confirm, no_such_topic, topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import PartitionInfo, TopicInfo

HELP: Final = "Create, list, describe, change and delete topics."
app = group("topics", HELP)

Names = Annotated[list[str], Argument(metavar="TOPIC...")]
Configs = Annotated[
    list[str] | None,
    Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
]


_MAY_STILL: Final = "it may still be done: `ottla topics list` shows it"


@command(app, "create")
def create(
    topics: Names,
    partitions: Annotated[
        int | None,
        Option(
            "--partitions",
            "-p",
            min=1,
            help="The number of partitions; by default num.partitions of the broker.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        Option(
            "--replication-factor", "-r", min=1, help="By default default.replication.factor of the broker."
        ),
    ] = None,
    config: Configs = None,
    replicas: Annotated[
        str | None,
        Option(
            "--replica-assignment",
            metavar="0:1,1:2",
            help="The brokers of each partition, instead of counts: partitions by comma, replicas by colon.",
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, Option("--if-not-exists", help="Do not fail if the topic exists.")
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Create topics."""
    assignments = _parse_assignment(replicas)
    if assignments and (partitions is not None or replication_factor is not None):
        raise WrongUsage(
            "--replica-assignment contains the counts; omit --partitions and --replication-factor"
        )
    configs = named_values("--config", config or ())

    async def work(admin: Admin) -> dict[str, str]:
        from ottla.client.admin.topics import NewTopic
        from ottla.client.errors import RequestTimedOut
        from ottla.protocol.errors import ErrorCode

        wanted = [
            NewTopic(name, partitions or -1, replication_factor or -1, configs, assignments)
            for name in topics
        ]
        try:
            results = await admin.topics.create_many(wanted, validate_only=dry_run)
        except RequestTimedOut as late:
            raise CliError(f"{cli_error(late)}; {_MAY_STILL}") from None
        outcome: dict[str, str] = {}
        for name in topics:
            error = results.get(name)
            if error is None:
                outcome[name] = "would be created" if dry_run else "created"
            elif if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                outcome[name] = "already exists"
            elif error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                outcome[name] = f"failed: Topic '{name}' already exists. --if-not-exists accepts that"
            elif error.code is ErrorCode.REQUEST_TIMED_OUT:
                outcome[name] = f"failed: {error.message}; {_MAY_STILL}"
            else:
                outcome[name] = f"failed: {error.message}"
        return outcome

    _report(with_admin(common, work), as_json=common.as_json)


def _parse_assignment(text: str | None) -> dict[int, list[int]]:
    if text is None:
        return {}
    found: dict[int, list[int]] = {}
    for index, brokers in enumerate(text.split(",")):
        ids = brokers.split(":")
        if not all(each.strip().isdecimal() for each in ids):
            raise WrongUsage(f"--replica-assignment {text}: expected broker ids such as 0:1,1:2")
        found[index] = [int(each) for each in ids]
    return found


def _report(outcome: Mapping[str, str], *, as_json: bool) -> None:
    """Print the result of each topic; one failure fails the command."""
    failed = [f"{text.removeprefix('failed: ')}" for text in outcome.values() if text.startswith("failed: ")]
    done = {name: text for name, text in outcome.items() if not text.startswith("failed: ")}
    if as_json:
        print_json([{"topic": name, "result": text} for name, text in outcome.items()])
    else:
        for name, text in done.items():
            print_line(f"{name}: {text}")
    if failed:
        raise CliError.of_all(failed)


@command(app, "list")
def list_topics(
    pattern: Annotated[
        str | None, Argument(help="Only names that contain this, or match a pattern with *?[].")
    ] = None,
    internal: Annotated[bool, Option("--internal", help="Include internal topics.")] = False,
    names: Annotated[bool, Option("--names", help="Print only names, one per line.")] = False,
    common: Common = COMMON,
) -> None:
    """List topics."""

    async def work(admin: Admin) -> list[TopicInfo]:
        return await admin.topics.list(include_internal=internal)

    topics = [topic for topic in with_admin(common, work) if _matches(topic.name, pattern)]
    if common.as_json:
        print_json([_summary(topic) for topic in topics])
    elif names:
        for topic in topics:
            print_line(topic.name)
    else:
        print_table(
            ["topic", "partitions", "replicas", "state"],
            [(t.name, len(t.partitions), _replication(t), _state(t)) for t in topics],
        )


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    if any(c in pattern for c in "*?["):
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern)
    return pattern in name


def _replication(topic: TopicInfo) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def _state(topic: TopicInfo) -> str:
    """The state of a topic; the worst problem if there is one."""
    if topic.error:
        return topic.error.text
    leaderless = sum(p.leader < 0 for p in topic.partitions)
    short = sum(len(p.isr) < len(p.replicas) for p in topic.partitions)
    if leaderless:
        return f"{leaderless} without a leader"
    return f"{short} under-replicated" if short else "ok"


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": _id_text(topic),
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication(topic),
        "state": _state(topic),
    }


def _id_text(topic: TopicInfo) -> str | None:
    from ottla.protocol.names import uuid_text

    return uuid_text(topic.topic_id) if topic.topic_id is not None else None


@command(app, "describe")
def describe(
    topics: Names,
    common: Common = COMMON,
) -> None:
    """Show a topic's partitions, offsets and settings."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [await _describe_topic(admin, name) for name in topics]

    described = with_admin(common, work)
    if common.as_json:
        print_json(described)
        return
    for n, topic in enumerate(described):
        if n:
            print_line()
        print_pairs(
            [
                ("topic", topic["name"]),
                ("id", topic["id"]),
                *([("internal", True)] if topic["internal"] else []),
                ("partitions", len(topic["partitions"])),
                ("replication factor", topic["replication_factor"]),
                *((name, value) for name, value in topic["configs"].items()),
            ]
        )
        print_line()
        print_table(
            ["partition", "leader", "epoch", "replicas", "in sync", "first", "end"],
            [
                (
                    p["partition"],
                    p["leader"],
                    p["leader_epoch"],
                    ids_text(p["replicas"]),
                    ids_text(p["isr"]),
                    p["beginning_offset"],
                    p["end_offset"],
                )
                for p in topic["partitions"]
            ],
        )


async def _describe_topic(admin: Admin, name: str) -> dict[str, Any]:
    from ottla.client.admin.configs import ConfigSource, ResourceType
    from ottla.client.admin.offsets import OffsetSpec
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

    topic = await topic_or_fail(admin, name)
    led = [TopicPartition(name, p.partition) for p in topic.partitions if p.leader >= 0]
    first = await admin.offsets.list(dict.fromkeys(led, OffsetSpec.EARLIEST))
    end = await admin.offsets.list(dict.fromkeys(led, OffsetSpec.LATEST))
    configs = await admin.configs.describe(ResourceType.TOPIC, name)

    def offset(found: Mapping[TopicPartition, Any], partition: PartitionInfo) -> int | None:
        result = found.get(TopicPartition(name, partition.partition))
        return None if result is None or isinstance(result, KafkaError) else result.offset

    return {
        **_summary(topic),
        "configs": {c.name: c.value for c in configs.values() if c.source is ConfigSource.TOPIC},
        "partitions": [
            {
                "partition": p.partition,
                "leader": p.leader if p.leader >= 0 else None,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline": list(p.offline),
                "beginning_offset": offset(first, p),
                "end_offset": offset(end, p),
            }
            for p in topic.partitions
        ],
    }


@command(app, "alter")
def alter(
    topic: Annotated[str, Argument()],
    partitions: Annotated[
        int | None, Option("--partitions", "-p", min=1, help="Increase the number of partitions to this.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, Option("--delete-config", metavar="NAME", help="Reset to the default.")
    ] = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Add partitions to a topic, or change its settings."""
    configs = named_values("--config", config or ())
    removed = list(delete_config or ())
    if partitions is None and not configs and not removed:
        raise WrongUsage("nothing to change: give --partitions, --config or --delete-config")

    async def work(admin: Admin) -> list[str]:
        from ottla.client.admin.configs import ResourceType

        info = await topic_or_fail(admin, topic)
        await check_removed_names(admin, ResourceType.TOPIC, topic, removed)
        done: list[str] = []
        if partitions is not None:
            if partitions == len(info.partitions):
                raise CliError(f"topic {topic} already has {partitions} partitions")
            await admin.topics.add_partitions(topic, partitions, validate_only=dry_run)
            done.append(f"{len(info.partitions)} partitions to {partitions}")
        if configs or removed:
            await admin.configs.alter(
                ResourceType.TOPIC, topic, set=configs, delete=removed, validate_only=dry_run
            )
            done += [f"{name}={value}" for name, value in configs.items()]
            done += [f"{name} to its default" for name in removed]
        return done

    done = with_admin(common, work)
    if common.as_json:
        print_json({"topic": topic, "dry_run": dry_run, "changes": done})
    else:
        print_line(f"{topic}: {'would change' if dry_run else 'changed'}: {'; '.join(done)}")


@command(app, "delete")
def delete(
    topics: Names,
    yes: Yes = False,
    if_exists: Annotated[
        bool, Option("--if-exists", help="Do not fail if the topic does not exist.")
    ] = False,
    common: Common = COMMON,
) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes=yes)

    async def work(admin: Admin) -> dict[str, str]:
        from ottla.protocol.errors import ErrorCode

        results = await admin.topics.delete_many(topics)
        outcome: dict[str, str] = {}
        for name in topics:
            error = results.get(name)
            if error is None:
                outcome[name] = "deleted"
            elif error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                outcome[name] = f"failed: {error.message}"
            elif if_exists:
                outcome[name] = "does not exist"
            else:
                outcome[name] = f"failed: {await no_such_topic(admin, name)}"
        return outcome

    _report(with_admin(common, work), as_json=common.as_json)
