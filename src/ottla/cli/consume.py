"""`ottla consume`: read records of topics and print them.

With `--group` it reads as a member of the group, from the group's offsets, and commits what it has printed.
With `--share` it is a member of a share group, and accepts each record that it has printed. The invariant: an
offset is committed, and a record accepted, after the records were printed, never before.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Argument, Option, command
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.formats import (
    DESERIALIZERS,
    ShownRecord,
    WrongFormat,
    compile_format,
    encode_raw,
    json_bytes,
    make_formatter,
    plain,
    readable,
    unchanged,
)
from ottla.cli.options import (
    COMMON,
    Common,
    parse_ids,
)
from ottla.cli.output import check_reader, note, print_json_line, printable
from ottla.cli.positions import PartitionPosition, PositionKind, parse_position, resolve_positions
from ottla.cli.session import open_admin, run, terminable, topic_or_fail

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.consumer import Consumer
    from ottla.client.group_offsets import CommittedOffset
    from ottla.protocol.names import TopicPartition

    Offsets: TypeAlias = dict[TopicPartition, CommittedOffset]

POLL_RECORDS: Final = 2_000
POLL_MS: Final = 200
HELP: Final = """Read records of topics.

    Starts at the end and shows new records; --from changes that. A position is beginning, end, an offset
    (42), a count before the end (-10), a time (2026-01-31T12:00:00Z, or @ and milliseconds) or an age (15m,
    6h, 2d). Records of Kafka's internal topics, such as __consumer_offsets, are decoded.
    """


@dataclass(frozen=True, slots=True)
class ConsumeLimits:
    """When to stop, at the first of these; None sets no limit."""

    count: int | None
    idle_s: float | None
    until: PartitionPosition | None


@command(None, "consume", help=HELP)
def app(
    topics: Annotated[list[str], Argument(metavar="TOPIC...")],
    start: Annotated[
        str | None, Option("--from", "-o", metavar="PLACE", help="Where to begin.  [default: end]")
    ] = None,
    from_beginning: Annotated[bool, Option("--from-beginning", help="Short for --from beginning.")] = False,
    until: Annotated[
        str | None, Option("--until", "-u", metavar="PLACE", help="Stop before this place, as it is now.")
    ] = None,
    exit_at_end: Annotated[bool, Option("--exit", "-e", help="Short for --until end.")] = False,
    count: Annotated[int | None, Option("--count", "-n", min=1, help="Stop after so many records.")] = None,
    idle: Annotated[
        float | None,
        Option("--idle", metavar="SECONDS", min=0.001, help="Stop when nothing came for so long."),
    ] = None,
    partitions: Annotated[
        str | None, Option("--partitions", "-p", metavar="0,2-4", help="Only these partitions.")
    ] = None,
    group: Annotated[
        str | None,
        Option(
            "--group",
            metavar="NAME",
            help="Read as a member of a group, from where it is; what was shown is committed.",
        ),
    ] = None,
    share: Annotated[
        str | None,
        Option(
            "--share",
            metavar="GROUP",
            help="Read as a member of a share group: each record goes to one member; what was shown is done.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        Option(
            "--format",
            "-f",
            help="%t topic, %p partition, %o offset, %T timestamp, %d the same as date, %k key, %s value, %h "
            "headers, %K %S sizes; \\n, \\t.",
        ),
    ] = None,
    show_key: Annotated[bool, Option("--key", "-k", help="Show keys, before a tab.")] = False,
    show_headers: Annotated[bool, Option("--headers", help="Show headers, before a tab.")] = False,
    show_position: Annotated[
        bool, Option("--offsets", help="Show partition, offset and time, before a tab each.")
    ] = False,
    key_format: Annotated[
        str, Option("--key-format", choices=DESERIALIZERS, help="The format of keys.")
    ] = "text",
    value_format: Annotated[
        str, Option("--value-format", choices=DESERIALIZERS, help="The format of values.")
    ] = "text",
    grep: Annotated[
        str | None,
        Option("--grep", "-g", metavar="REGEX", help="Only records with a match in key, value or headers."),
    ] = None,
    committed: Annotated[
        bool, Option("--read-committed", help="Hide records of open and aborted transactions.")
    ] = False,
    raw: Annotated[
        bool,
        Option(
            "--raw",
            help="Write keys and values as the bytes that they are, and nothing after a record but what "
            "--format says.",
        ),
    ] = False,
    common: Common = COMMON,
) -> None:
    if from_beginning and start is not None:
        raise WrongUsage("--from and --from-beginning contradict each other")
    if exit_at_end and until is not None:
        raise WrongUsage("--until and --exit contradict each other")
    if common.as_json and (format is not None or raw):
        raise WrongUsage(f"--json and {'--raw' if raw else '--format'} contradict each other")
    if raw and (key_format, value_format) != ("text", "text"):
        raise WrongUsage(
            "--raw is the bytes as they are: it goes with neither --key-format nor --value-format"
        )
    if share is not None:
        _check_share_usage(
            share,
            start="beginning" if from_beginning else start,
            others={
                "--group": group,
                "--until": until or exit_at_end,
                "--partitions": partitions,
                "--grep": grep,
                "--read-committed": committed,
            },
        )
    elif group is not None:
        start = "beginning" if from_beginning else start
        _check_group_usage(start, until=exit_at_end or until is not None, partitions=partitions is not None)
    from ottla.runtime.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    begin = parse_position("--from", "beginning" if from_beginning else start or "end", now_ms)
    end = "end" if exit_at_end else until
    limits = ConsumeLimits(count, idle, parse_position("--until", end, now_ms) if end is not None else None)
    malformed = MalformedData()
    if common.as_json:
        show = _json_printer(key_format, value_format, malformed)
    else:
        if format is None:
            format = (
                ("%p\\t%o\\t%d\\t" if show_position else "")
                + ("%h\\t" if show_headers else "")
                + ("%k\\t" if show_key else "")
                + ("%s" if raw else "%s\\n")
            )
        if raw:
            show = _raw_printer(format)
        else:
            show = _text_printer(
                compile_format(
                    format,
                    malformed.formatter("key", key_format),
                    malformed.formatter("value", value_format),
                    printable if sys.stdout.isatty() else str,
                )
            )
    if share is not None:
        work = _consume_in_share_group(
            share, topics, show, common.bootstrap, common.timeout, count=count, idle_s=idle
        )
    elif group is not None:
        work = _consume_in_group(
            group,
            topics,
            start,
            show,
            _filter(grep),
            common.bootstrap,
            common.timeout,
            count=count,
            idle_s=idle,
            read_committed=committed,
        )
    else:
        work = _consume(
            topics,
            parse_ids("--partitions", partitions),
            begin,
            limits,
            show,
            _filter(grep),
            common.bootstrap,
            common.timeout,
            read_committed=committed,
        )
    # A member leaves its group; otherwise the group would wait for it until its session ends.
    is_member = group is not None or share is not None
    try:
        with terminable() if is_member else contextlib.nullcontext():
            run(work, fast_loop=True)
    finally:
        malformed.report()


class MalformedData:
    """Counts keys and values without their format, which are shown unchanged, for a report at the end."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def add(self, what: str, format: str, problem: WrongFormat) -> None:
        subject = f"{what}s with --{what}-format {format}"
        self._counts[subject] = self._counts.get(subject, 0) + 1
        self._first.setdefault(subject, str(problem))

    def formatter(self, what: str, format: str) -> Callable[[bytes | None], Any]:
        """A function that shows data of this format, and other data as text."""
        show = make_formatter(format)

        def format_or_text(data: bytes | None) -> Any:
            try:
                return show(data)
            except WrongFormat as problem:
                self.add(what, format, problem)
                return readable(data or b"")

        return format_or_text

    def report(self) -> None:
        for subject, count in self._counts.items():
            note(f"{count} {subject} did not fit and are shown unchanged; the first: {self._first[subject]}")


def _filter(pattern: str | None) -> Callable[[ShownRecord], bool]:
    if pattern is None:
        return lambda _: True
    import re

    try:
        search = re.compile(pattern.encode()).search
    except re.error as error:
        raise WrongUsage(f"--grep {pattern}: {error}") from None

    def matches(record: ShownRecord) -> bool:
        texts = [record.key, record.value]
        for name, value in record.headers:
            texts += [name.encode(), value]
        return any(text is not None and search(text) is not None for text in texts)

    return matches


def _text_printer(text: Callable[[ShownRecord], str]) -> Callable[[ShownRecord], None]:
    write = sys.stdout.write

    def show(record: ShownRecord) -> None:
        decoded = _decode_internal(record)
        write(text(record) if decoded is None else decoded + "\n")

    return show


def _raw_printer(format: str) -> Callable[[ShownRecord], None]:
    def data(found: bytes | None) -> str:
        return unchanged(found or b"")

    text = compile_format(format, data, data, raw=True)
    write = sys.stdout.buffer.write

    def show(record: ShownRecord) -> None:
        write(encode_raw(text(record)))

    return show


def _decode_internal(record: ShownRecord) -> str | None:
    """The line of a record of an internal topic; None for other topics."""
    if not record.topic.startswith("__"):
        return None
    from ottla.log.dump.internal_records import DECODABLE_TOPICS, decode_record

    if record.topic not in DECODABLE_TOPICS:
        return None
    found = decode_record(record.topic, record.key, record.value)
    fields = (printable(plain(found[name])) for name in found)
    return "\t".join((str(record.partition), str(record.offset), *fields))


def _json_printer(
    key_format: str, value_format: str, malformed: MalformedData
) -> Callable[[ShownRecord], None]:
    def show(record: ShownRecord) -> None:
        document: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [{"key": name, **json_bytes("value", value)} for name, value in record.headers],
        }
        deliveries = getattr(record, "delivery_count", None)
        if deliveries is not None:
            document["delivery_count"] = deliveries
        decoded = None
        if record.topic.startswith("__"):
            from ottla.log.dump.internal_records import DECODABLE_TOPICS, decode_record

            if record.topic in DECODABLE_TOPICS:
                decoded = decode_record(record.topic, record.key, record.value)
        if decoded is not None and "error" not in decoded:
            document |= decoded
        else:
            document |= _json_field("key", record.key, key_format, malformed)
            document |= _json_field("value", record.value, value_format, malformed)
        print_json_line(document)

    return show


def _json_field(name: str, data: bytes | None, format: str, malformed: MalformedData) -> dict[str, Any]:
    """A key or value in its format; one that does not fit as bytes, with the reason."""
    if format == "text":
        return json_bytes(name, data)
    try:
        return {name: make_formatter(format)(data)}
    except WrongFormat as problem:
        malformed.add(name, format, problem)
        return {**json_bytes(name, data), f"{name}_error": str(problem)}


async def _consume(
    topics: Sequence[str],
    wanted: list[int] | None,
    begin: PartitionPosition,
    limits: ConsumeLimits,
    show: Callable[[ShownRecord], None],
    matches: Callable[[ShownRecord], bool],
    bootstrap: str,
    timeout_s: float,
    *,
    read_committed: bool,
) -> None:
    import asyncio

    from ottla.client.consumer import Consumer
    from ottla.protocol.names import TopicPartition

    async with open_admin(bootstrap, timeout_s) as admin:
        partitions = await _partitions(admin, topics, wanted)
        beyond: list[str] = []
        starts = await resolve_positions(
            admin, dict.fromkeys(partitions, begin), read_committed=read_committed, beyond=beyond.append
        )
        if partitions and len(beyond) == len(partitions):
            note(f"{beyond[0]}: reading from the end")
        ends: dict[TopicPartition, int] | None = None
        if limits.until is not None:
            ends = await resolve_positions(
                admin, dict.fromkeys(partitions, limits.until), read_committed=read_committed
            )
    if ends is not None:
        partitions = [p for p in partitions if starts[p] < ends[p]]
    elif begin.kind is PositionKind.END and sys.stderr.isatty():
        note("Waiting for new records; --from-beginning shows those that are there. Ctrl-C ends it.")
    nothing = f"{', '.join(topics)}: nothing to show from {begin} to {limits.until}" + (
        "; --from-beginning shows what is there" if begin.kind is PositionKind.END else ""
    )
    if not partitions:
        note(nothing)
        return
    consumer: Consumer[bytes, bytes] = Consumer(
        connect_to(bootstrap),
        client_id="ottla-cli",
        auto_offset_reset="earliest",
        isolation_level="read_committed" if read_committed else "read_uncommitted",
        allow_auto_create_topics=False,
        max_poll_records=POLL_RECORDS,
        max_partition_fetch_bytes=4 * 1024 * 1024,
    )
    async with consumer:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, starts[partition])
        clock = asyncio.get_running_loop().time
        shown = 0
        open_ends = {p: ends[p] for p in partitions} if ends is not None else None
        heard_at = clock()
        while open_ends is None or open_ends:
            for record in await consumer.poll(timeout_ms=POLL_MS):
                heard_at = clock()
                partition = TopicPartition(record.topic, record.partition)
                if open_ends is not None and record.offset >= open_ends.get(partition, -1):
                    continue
                if matches(record):
                    show(record)
                    shown += 1
                    if limits.count is not None and shown >= limits.count:
                        return
            sys.stdout.flush()
            if open_ends is not None:
                await _drop_finished(consumer, open_ends)
            check_reader()
            if limits.idle_s is not None and clock() - heard_at >= limits.idle_s:
                return
        if not shown:
            note(nothing)


async def _drop_finished(consumer: Consumer[bytes, bytes], ends: dict[TopicPartition, int]) -> None:
    """Stop reading partitions that are read to their end. The position decides, not the last record: the last
    offset may be a transaction marker, or compacted.
    """
    for partition, end in list(ends.items()):
        if await consumer.position(partition) >= end:
            del ends[partition]
            consumer.pause(partition)


async def _partitions(admin: Admin, topics: Sequence[str], wanted: list[int] | None) -> list[TopicPartition]:
    from ottla.protocol.names import TopicPartition

    found: list[TopicPartition] = []
    for topic in topics:
        info = await topic_or_fail(admin, topic)
        for index in wanted if wanted is not None else [p.partition for p in info.partitions]:
            if index >= len(info.partitions):
                raise CliError(f"topic {topic} has partitions 0 to {len(info.partitions) - 1}, not {index}")
            found.append(TopicPartition(topic, index))
    return found


RESETS: Final = {None: "latest", "end": "latest", "beginning": "earliest"}
"""Where a group without committed offsets begins, by the value of `--from`."""


def _check_group_usage(start: str | None, *, until: bool, partitions: bool) -> None:
    """Refuse options that contradict a group, which assigns partitions and offsets itself."""
    if start not in RESETS:
        raise WrongUsage(
            f"--from {start}: a group continues at its committed offsets, so --from is beginning or end, for "
            "partitions without one; `ottla groups reset-offsets` changes them"
        )
    if until or partitions:
        raise WrongUsage(
            "--group shares the partitions among its members for as long as they read: it goes with neither "
            "--partitions nor --until and --exit; --count and --idle end it"
        )


async def _consume_in_group(
    group: str,
    topics: Sequence[str],
    start: str | None,
    show: Callable[[ShownRecord], None],
    matches: Callable[[ShownRecord], bool],
    bootstrap: str,
    timeout_s: float,
    *,
    count: int | None,
    idle_s: float | None,
    read_committed: bool,
) -> None:
    from ottla.cli.groups import refuse_other_types
    from ottla.client.consumer import Consumer

    async with open_admin(bootstrap, timeout_s) as admin:
        for topic in topics:
            await topic_or_fail(admin, topic)
        # A consumer waits for its coordinator for as long as it takes; this says why there is none.
        await admin.groups.coordinator(group)
        await refuse_other_types(admin, group, "classic", "consumer")
    if start is None and sys.stderr.isatty():
        note("Waiting for records; where the group has no offset yet, --from-beginning shows what is there.")
    consumer: Consumer[bytes, bytes] = Consumer(
        connect_to(bootstrap),
        client_id="ottla-cli",
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset=RESETS[start],
        isolation_level="read_committed" if read_committed else "read_uncommitted",
        allow_auto_create_topics=False,
    )
    clock = asyncio.get_running_loop().time
    async with consumer:
        consumer.subscribe(topics)
        shown, heard_at, assigned = 0, clock(), consumer.assignment()
        committed: Offsets = {}
        while count is None or shown < count:
            records = await consumer.poll(timeout_ms=POLL_MS)
            offsets = consumer.positions()
            for number, record in enumerate(records, 1):
                if matches(record):
                    show(record)
                    shown += 1
                    if count is not None and shown >= count:
                        offsets |= _first_of_each(records[number:])
                        break
            sys.stdout.flush()
            if offsets != committed:
                await _commit(consumer, offsets)
                committed = offsets
            check_reader()
            if records or consumer.assignment() != assigned:
                heard_at, assigned = clock(), consumer.assignment()
            # Without a partition yet, a member waits for the rebalance of the group.
            limit_s = idle_s if assigned or idle_s is None else max(idle_s, timeout_s)
            if limit_s is not None and clock() - heard_at >= limit_s:
                return


def _check_share_usage(group: str, *, start: str | None, others: Mapping[str, object]) -> None:
    """Refuse options that contradict a share group, whose members get the records that are next."""
    if not group:
        raise WrongUsage("--share: the group has no name; is a variable of the shell empty?")
    if start is not None:
        reset = {"beginning": "earliest", "end": "latest"}.get(start, start)
        raise WrongUsage(
            f"--from {start}: all members of a share group go on where the group is; where a new one begins "
            f"is its setting: `ottla configs alter --group {group} --set share.auto.offset.reset={reset}`"
        )
    given = [name for name, value in others.items() if value]
    if given:
        raise WrongUsage(
            f"{given[0]} does not go with --share: the members of a share group get the records that are "
            "next, whichever these are; --count and --idle end it"
        )


async def _consume_in_share_group(
    group: str,
    topics: Sequence[str],
    show: Callable[[ShownRecord], None],
    bootstrap: str,
    timeout_s: float,
    *,
    count: int | None,
    idle_s: float | None,
) -> None:
    from ottla.cli.groups import refuse_other_types
    from ottla.client.share import ShareConsumer

    async with open_admin(bootstrap, timeout_s) as admin:
        partitions = await _partitions(admin, topics, None)
        # A consumer waits for its coordinator for as long as it takes; this says why there is none.
        await admin.groups.coordinator(group)
        await refuse_other_types(admin, group, "share")
        await _note_beginning(admin, group, partitions)
    consumer: ShareConsumer[bytes, bytes] = ShareConsumer(
        connect_to(bootstrap),
        client_id="ottla-cli",
        group_id=group,
        share_acknowledgement_mode="explicit",
        share_acquire_mode="record_limit",
        allow_auto_create_topics=False,
    )
    clock = asyncio.get_running_loop().time
    async with consumer:
        consumer.subscribe(topics)
        shown, heard_at, assigned = 0, clock(), consumer.assignment()
        while count is None or shown < count:
            left = consumer.config.max_poll_records if count is None else count - shown
            records = await consumer.poll(min(left, consumer.config.max_poll_records), timeout_ms=POLL_MS)
            for record in records:
                show(record)
            sys.stdout.flush()
            shown += len(records)
            consumer.accept(*records)
            for error in (await consumer.commit()).values():
                if error is not None:
                    note(f"not accepted; the group gets these records again: {error}")
            check_reader()
            if records or consumer.assignment() != assigned:
                heard_at, assigned = clock(), consumer.assignment()
            # Without a partition yet, a member waits for its assignment.
            limit_s = idle_s if assigned or idle_s is None else max(idle_s, timeout_s)
            if limit_s is not None and clock() - heard_at >= limit_s:
                return


async def _note_beginning(admin: Admin, group: str, partitions: Sequence[TopicPartition]) -> None:
    """Say so if a share group begins at the end: what is there already is not shown, nor what comes while the
    group has no members and has accepted nothing yet.
    """
    from ottla.cli.groups import offset_reset_of
    from ottla.protocol.errors import ErrorCode, KafkaError

    reset = await offset_reset_of(admin, group)
    if reset not in ("latest", None):
        return
    try:
        found = await admin.groups.share_offsets(group, partitions)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return  # it may have begun
        found = {}  # a new group
    begun = {p for p, at in found.items() if isinstance(at, KafkaError) or at.start_offset is not None}
    fresh = sorted({partition.topic for partition in partitions if partition not in begun})
    if fresh:
        note(
            f"group {group} has no offsets of {', '.join(fresh)} yet and begins at the end"
            + (", unless its setting share.auto.offset.reset says otherwise" if reset is None else "")
            + "; to begin with the first record: "
            f"`ottla configs alter --group {group} --set share.auto.offset.reset=earliest`"
        )


def _first_of_each(records: Sequence[ShownRecord]) -> Offsets:
    """The offsets at which the next reader sees these records."""
    from ottla.client.group_offsets import CommittedOffset
    from ottla.protocol.names import TopicPartition

    return {
        TopicPartition(record.topic, record.partition): CommittedOffset(record.offset)
        for record in reversed(records)
    }


async def _commit(consumer: Consumer[bytes, bytes], offsets: Offsets) -> None:
    """Commit, unless the member has lost the partition: then its next reader shows the records again."""
    from ottla.protocol.errors import KafkaError

    if not offsets:
        return
    try:
        await consumer.commit({partition: offset for partition, offset in offsets.items()})  # noqa: C416
    except KafkaError as error:
        note(f"not committed; the group reads these records again: {error}")
