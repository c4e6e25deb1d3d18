"""`ottla delete-records`: delete the records of partitions before an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Argument, Option, command
from ottla.cli.errors import CliError
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    Yes,
    parse_ids,
)
from ottla.cli.output import print_json, print_table
from ottla.cli.positions import parse_position, resolve_positions
from ottla.cli.session import confirm, topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

HELP: Final = "Delete the records of partitions up to an offset."


def _refuse(problem: str) -> None:
    raise CliError(f"{problem}; --before end deletes all records, and --partitions selects partitions")


@command(None, "delete-records")
def app(
    topic: Annotated[str, Argument()],
    before: Annotated[
        str,
        Option(
            "--before",
            metavar="PLACE",
            help="Delete records before this: an offset, end, -N (keep the last N), a time or an age (7d).",
        ),
    ],
    partitions: Annotated[
        str | None, Option("--partitions", "-p", metavar="0,2-4", help="Only these partitions.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Delete the records of partitions before an offset."""
    from ottla.runtime.clock import SystemClock

    place = parse_position("--before", before, SystemClock().wall_ms())
    wanted = parse_ids("--partitions", partitions)

    async def plan(admin: Admin) -> dict[TopicPartition, int]:
        from ottla.protocol.names import TopicPartition

        info = await topic_or_fail(admin, topic)
        indexes = [p.partition for p in info.partitions] if wanted is None else wanted
        for index in indexes:
            if index >= len(info.partitions):
                raise CliError(f"topic {topic} has partitions 0 to {len(info.partitions) - 1}, not {index}")
        return await resolve_positions(
            admin, {TopicPartition(topic, index): place for index in indexes}, beyond=_refuse
        )

    targets = with_admin(common, plan)
    if not dry_run:
        shown = ", ".join(f"{partition} before {offset}" for partition, offset in targets.items())
        confirm(f"Delete the records of {shown}?", yes=yes)

    async def work(admin: Admin) -> dict[TopicPartition, int | KafkaError]:
        return await admin.offsets.delete_records(targets)

    results: dict[TopicPartition, int | KafkaError] = dict(targets)
    if not dry_run:
        results = with_admin(common, work)
    failed = [str(result) for result in results.values() if not isinstance(result, int)]
    if common.as_json:
        print_json(
            [
                {"topic": p.topic, "partition": p.partition, "dry_run": dry_run}
                | ({"beginning": result} if isinstance(result, int) else {"error": str(result)})
                for p, result in results.items()
            ]
        )
    else:
        print_table(
            ["topic", "partition", "would begin at" if dry_run else "begins at"],
            [(p.topic, p.partition, r) for p, r in results.items() if isinstance(r, int)],
        )
    if failed:
        raise CliError.of_all(failed)
