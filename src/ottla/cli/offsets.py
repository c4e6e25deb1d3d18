"""`ottla offsets`: the first and end offsets of partitions, or the offsets at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from ottla.cli.commands import Argument, Option, command
from ottla.cli.errors import FAILED, CliError
from ottla.cli.options import (
    COMMON,
    Common,
    parse_ids,
)
from ottla.cli.output import note, print_json, print_table, time_text
from ottla.cli.positions import parse_time
from ottla.cli.session import topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin

HELP: Final = "Show offsets of partitions: first, end, or at a time."
# As `OffsetSpec` of the client has them, by the names that kafka-get-offsets.sh takes.
_SPECIAL: Final = {"max": -3, "earliest-local": -4, "latest-tiered": -5, "earliest-pending-upload": -6}


@command(None, "offsets")
def app(
    topics: Annotated[
        list[str] | None, Argument(metavar="[TOPIC]...", help="All topics if none is named.")
    ] = None,
    partitions: Annotated[
        str | None, Option("--partitions", "-p", metavar="0,2-4", help="Only these partitions.")
    ] = None,
    at: Annotated[
        str | None,
        Option(
            "--at",
            metavar="TIME|AGE|max|...",
            help="The first record at or after a time (2026-01-31T12:00:00Z, @ms, or an age such as 15m), or "
            "the one with the greatest timestamp. Of topics with tiered storage: earliest-local, the first "
            "on the leader's disk; latest-tiered, the last in the store; earliest-pending-upload, the first "
            "that is not there.",
        ),
    ] = None,
    committed: Annotated[
        bool, Option("--read-committed", help="The end as a read_committed consumer sees it.")
    ] = False,
    common: Common = COMMON,
) -> None:
    """Show offsets of partitions: first, end, or at a time."""
    from ottla.runtime.clock import SystemClock

    wanted = parse_ids("--partitions", partitions)
    special = None
    if at is not None:
        special = _SPECIAL.get(at.lower())
        if special is None:
            special = parse_time("--at", at, SystemClock().wall_ms(), _SPECIAL)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        if topics:
            infos = [await topic_or_fail(admin, name) for name in topics]
        else:
            infos = await admin.topics.list()
        return await _offsets(
            admin,
            {info.name: len(info.partitions) for info in infos},
            wanted,
            special,
            read_committed=committed,
        )

    found = with_admin(common, work)
    if common.as_json:
        print_json(found)
    elif at is None:
        print_table(
            ["topic", "partition", "first", "end", "offsets"],
            [(f["topic"], f["partition"], f.get("beginning"), f.get("end"), f.get("records")) for f in found],
        )
    else:
        print_table(
            ["topic", "partition", "offset", "timestamp"],
            [(f["topic"], f["partition"], f.get("offset"), time_text(f.get("timestamp"))) for f in found],
        )
    failed = [f for f in found if "error" in f]
    if failed:
        if not common.as_json:
            for each in failed:
                note(f"ottla: {each['error']}")
        raise click.exceptions.Exit(FAILED)


async def _offsets(
    admin: Admin,
    topics: dict[str, int],
    wanted: list[int] | None,
    special: int | None,
    *,
    read_committed: bool,
) -> list[dict[str, Any]]:
    from ottla.client.admin.offsets import FoundOffset, OffsetSpec
    from ottla.protocol.names import TopicPartition

    partitions = [
        TopicPartition(name, index)
        for name, count in topics.items()
        for index in (range(count) if wanted is None else wanted)
    ]
    for name, index in partitions:
        if index >= topics[name]:
            raise CliError(f"topic {name} has partitions 0 to {topics[name] - 1}, not {index}")
    if special is not None:
        at = await admin.offsets.list(dict.fromkeys(partitions, special), read_committed=read_committed)
        return [
            {
                "topic": p.topic,
                "partition": p.partition,
                **(
                    {"offset": f.offset if f.offset >= 0 else None, "timestamp": f.timestamp}
                    if isinstance(f := at[p], FoundOffset)
                    else {"error": str(f)}
                ),
            }
            for p in partitions
        ]
    first = await admin.offsets.list(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    end = await admin.offsets.list(
        dict.fromkeys(partitions, OffsetSpec.LATEST), read_committed=read_committed
    )
    rows: list[dict[str, Any]] = []
    for p in partitions:
        low, high = first[p], end[p]
        row: dict[str, Any] = {"topic": p.topic, "partition": p.partition}
        if not isinstance(low, FoundOffset):
            row["error"] = str(low)
        elif not isinstance(high, FoundOffset):
            row["error"] = str(high)
        else:
            row |= {"beginning": low.offset, "end": high.offset, "records": max(high.offset - low.offset, 0)}
        rows.append(row)
    return rows
