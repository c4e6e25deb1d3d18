"""`ottla log-dirs`: data directories of brokers, their replicas, and moving a replica to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import FAILED, CliError
from ottla.cli.options import (
    COMMON,
    Common,
    parse_ids,
    parse_partition,
)
from ottla.cli.output import note, print_json, print_line, print_table, size_text
from ottla.cli.session import topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.log_dirs import LogDir

HELP: Final = "Show the data directories of brokers and their replicas."
app = group("log-dirs", HELP)


@command(app, "describe")
def describe(
    topics: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    brokers: Annotated[str | None, Option("--brokers", metavar="0,1", help="Only these brokers.")] = None,
    replicas: Annotated[bool, Option("--replicas", help="Show a line for each replica.")] = False,
    common: Common = COMMON,
) -> None:
    """Show directories, their space and their replicas."""
    ids = parse_ids("--brokers", brokers)

    async def work(admin: Admin) -> list[LogDir]:
        for name in topics or ():
            await topic_or_fail(admin, name)
        known = [broker.node_id for broker in (await admin.cluster.describe()).brokers]
        for broker in ids or ():
            if broker not in known:
                raise CliError(f"there is no broker {broker}; there are {', '.join(map(str, known))}")
        return await admin.log_dirs.describe(brokers=ids, topics=topics or None)

    dirs = with_admin(common, work)
    if common.as_json:
        print_json([_document(each) for each in dirs])
    elif replicas:
        print_table(
            ["broker", "partition", "size", "lag", "directory"],
            [
                (
                    d.broker_id,
                    str(p),
                    size_text(r.size_bytes),
                    r.offset_lag,
                    d.path + (" (future)" if r.is_future else ""),
                )
                for d in dirs
                for p, r in sorted(d.replicas.items())
            ],
        )
    else:
        print_table(
            ["broker", "directory", "replicas", "size", "free", "total"],
            [
                (
                    d.broker_id,
                    d.path,
                    len(d.replicas),
                    size_text(sum(r.size_bytes for r in d.replicas.values())),
                    size_text(d.usable_bytes),
                    size_text(d.total_bytes),
                )
                for d in dirs
            ],
        )
    offline = [d for d in dirs if d.error]
    if offline:
        for each in offline:
            note(f"ottla: broker {each.broker_id}, {each.path}: {each.error.text}")
        raise click.exceptions.Exit(FAILED)


def _document(directory: LogDir) -> dict[str, Any]:
    return {
        "broker": directory.broker_id,
        "path": directory.path,
        "error": directory.error.name if directory.error else None,
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "replicas": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "size_bytes": replica.size_bytes,
                "offset_lag": replica.offset_lag,
                "future": replica.is_future,
            }
            for partition, replica in sorted(directory.replicas.items())
        ],
    }


@command(app, "move")
def move(
    partition: Annotated[str, Argument(metavar="TOPIC:PARTITION")],
    directory: Annotated[str, Argument(help="A data directory of the broker.")],
    broker: Annotated[int, Option("--broker", help="The broker that holds the replica.")],
    common: Common = COMMON,
) -> None:
    """Move a replica to another directory of its broker."""
    topic, index = parse_partition("partition", partition)

    async def work(admin: Admin) -> None:
        from ottla.protocol.names import TopicPartition

        await topic_or_fail(admin, topic)
        moved = TopicPartition(topic, index)
        error = (await admin.log_dirs.move(broker, {moved: directory}))[moved]
        if error is not None:
            raise error

    with_admin(common, work)
    if common.as_json:
        print_json({"topic": topic, "partition": index, "broker": broker, "directory": directory})
    else:
        print_line(
            f"{topic}-{index} is moving to {directory} on broker {broker}; "
            "`ottla log-dirs describe --replicas` shows the progress"
        )
