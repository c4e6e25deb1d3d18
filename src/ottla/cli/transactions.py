"""`ottla transactions`: list transactions, find hanging ones, and abort them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    Yes,
    known_values,
    parse_partition,
)
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table, time_text
from ottla.cli.session import confirm, topic_or_fail, with_admin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.admin import Admin
    from ottla.client.admin.transactions import ListedTransaction, OpenTransaction, TransactionInfo
    from ottla.protocol.messages.describe_producers import ProducerState

HELP: Final = "See transactions, find and abort those that hang."
DEFAULT_HANGING_MINUTES: Final = 15.0
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
app = group("transactions", HELP)


@command(app, "list")
def list_transactions(
    states: Annotated[
        list[str] | None, Option("--state", metavar="STATE", help="Only in this state, such as Ongoing.")
    ] = None,
    producers: Annotated[
        list[int] | None, Option("--producer-id", metavar="ID", help="Only of this producer id.")
    ] = None,
    longer: Annotated[
        float | None,
        Option("--longer-than", metavar="SECONDS", min=0, help="Only transactions that are open for longer."),
    ] = None,
    pattern: Annotated[
        str | None, Option("--pattern", metavar="REGEX", help="Only transactional ids that match.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """List transactional ids and the state of their transactions."""
    wanted = known_values("--state", states, TRANSACTION_STATES)

    async def work(admin: Admin) -> list[ListedTransaction]:
        return await admin.transactions.list(
            states=wanted,
            producer_ids=producers or (),
            longer_than_ms=None if longer is None else int(longer * 1000),
            pattern=pattern,
        )

    found = with_admin(common, work)
    if common.as_json:
        print_json([each._asdict() for each in found])
    else:
        print_table(
            ["transactional id", "producer id", "state"],
            [(t.transactional_id, t.producer_id, t.state) for t in found],
        )


@command(app, "describe")
def describe(
    transactional_id: Annotated[str, Argument(metavar="TRANSACTIONAL_ID")],
    common: Common = COMMON,
) -> None:
    """Show the producer, state and partitions of a transactional id."""

    async def work(admin: Admin) -> TransactionInfo:
        from ottla.protocol.errors import ErrorCode, KafkaError

        try:
            return await admin.transactions.describe(transactional_id)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
        known = [each.transactional_id for each in await admin.transactions.list()]
        raise CliError(
            f"transactional id {transactional_id} is not known{did_you_mean(transactional_id, known)}"
        )

    info = with_admin(common, work)
    if common.as_json:
        print_json(
            {
                "transactional_id": info.transactional_id,
                "producer_id": info.producer_id,
                "producer_epoch": info.producer_epoch,
                "state": info.state,
                "timeout_ms": info.timeout_ms,
                "started_ms": info.started_ms,
                "partitions": [p._asdict() for p in info.partitions],
            }
        )
        return
    print_pairs(
        [
            ("transactional id", info.transactional_id),
            ("producer id", info.producer_id),
            ("producer epoch", info.producer_epoch),
            ("state", info.state),
            ("timeout", f"{info.timeout_ms} ms"),
            ("started", time_text(info.started_ms)),
            ("partitions", " ".join(map(str, sorted(info.partitions))) or None),
        ]
    )


@command(app, "find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None, Argument(metavar="[TOPIC]...", help="All topics if none is named.")
    ] = None,
    minutes: Annotated[
        float,
        Option(
            "--longer-than",
            metavar="MINUTES",
            min=0,
            help="Only those without a record for longer; more than transaction.max.timeout.ms.",
        ),
    ] = DEFAULT_HANGING_MINUTES,
    common: Common = COMMON,
) -> None:
    """Find transactions that no coordinator will end, and that block read_committed readers."""
    from ottla.runtime.clock import SystemClock

    async def work(admin: Admin) -> Sequence[OpenTransaction]:
        from ottla.protocol.names import TopicPartition

        if topics:
            infos = [await topic_or_fail(admin, name) for name in topics]
        else:
            infos = await admin.topics.list(include_internal=True)
        partitions = [
            TopicPartition(i.name, p.partition) for i in infos for p in i.partitions if p.leader >= 0
        ]
        return await admin.transactions.find_hanging(
            partitions, now_ms=SystemClock().wall_ms(), longer_than_ms=int(minutes * 60_000)
        )

    found = with_admin(common, work)
    if common.as_json:
        print_json(
            [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "producer_id": each.producer.producer_id,
                    "producer_epoch": each.producer.producer_epoch,
                    "start_offset": each.producer.current_txn_start_offset,
                    "last_timestamp_ms": each.producer.last_timestamp,
                    "transactional_id": each.transactional_id,
                }
                for each in found
            ]
        )
        return
    print_table(
        ["partition", "producer id", "epoch", "start offset", "last record"],
        [
            (
                str(each.partition),
                each.producer.producer_id,
                each.producer.producer_epoch,
                each.producer.current_txn_start_offset,
                time_text(each.producer.last_timestamp),
            )
            for each in found
        ],
    )
    if found:
        at, offset = found[0].partition, found[0].producer.current_txn_start_offset
        note(f"`ottla transactions abort {at.topic}:{at.partition} --start-offset {offset}` aborts the first")


@command(app, "abort")
def abort(
    partition: Annotated[str, Argument(metavar="TOPIC:PARTITION")],
    start_offset: Annotated[
        int, Option("--start-offset", min=0, help="The first offset of the transaction in this partition.")
    ],
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Abort a hanging transaction in one partition; read_committed readers never see its records there."""
    topic, index = parse_partition("partition", partition)
    confirm(f"Abort the transaction of {partition} that began at {start_offset}?", yes=yes)

    async def work(admin: Admin) -> ProducerState:
        from ottla.protocol.names import TopicPartition

        info = await topic_or_fail(admin, topic)
        if index >= len(info.partitions):
            raise CliError(f"topic {topic} has partitions 0 to {len(info.partitions) - 1}, not {index}")
        at = TopicPartition(topic, index)
        producer = await admin.transactions.open_at(at, start_offset)
        await admin.transactions.abort(at, producer)
        return producer

    producer = with_admin(common, work)
    if common.as_json:
        print_json(
            {
                "topic": topic,
                "partition": index,
                "start_offset": start_offset,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
            }
        )
    else:
        print_line(
            f"{topic}-{index}: aborted the transaction of producer {producer.producer_id} at {start_offset}"
        )
