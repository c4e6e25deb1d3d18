"""`ottla consume --group`: reading as a member of a group, from where the group is, and committing what was
shown.

Invariant: an offset is committed after the records before it were printed, never before.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.cli.errors import WrongUsage
from ottla.cli.formats import ShownRecord
from ottla.cli.output import note
from ottla.cli.session import open_admin, topic_or_fail

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.group_offsets import CommittedOffset
    from ottla.protocol.names import TopicPartition

    Offsets: TypeAlias = dict[TopicPartition, CommittedOffset]

POLL_MS: Final = 200
RESETS: Final = {None: "latest", "end": "latest", "beginning": "earliest"}
"""Where a group begins that has committed nothing yet, by what `--from` says."""


def check_usage(start: str | None, *, until: bool, partitions: bool) -> None:
    """A group decides itself who reads what, and from where."""
    if start not in RESETS:
        raise WrongUsage(
            f"--from {start}: a group goes on where it was, so --from is beginning or end, for partitions "
            "of which it has read nothing yet; `ottla groups reset-offsets` moves a group"
        )
    if until or partitions:
        raise WrongUsage(
            "--group shares the partitions among its members for as long as they read: it goes with neither "
            "--partitions nor --until and --exit; --count and --idle end it"
        )


async def consume_in_group(
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
    from ottla.client.consumer import Consumer

    async with open_admin(bootstrap, timeout_s) as admin:
        for topic in topics:
            await topic_or_fail(admin, topic)
    consumer: Consumer[bytes, bytes] = Consumer(
        bootstrap,
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
            if records or consumer.assignment() != assigned:
                heard_at, assigned = clock(), consumer.assignment()
            # Until it has a partition, a member waits for the group, which has its own time.
            patience_s = idle_s if assigned or idle_s is None else max(idle_s, timeout_s)
            if patience_s is not None and clock() - heard_at >= patience_s:
                return


def _first_of_each(records: Sequence[ShownRecord]) -> Offsets:
    """Where those who go on have to begin, to see these records."""
    from ottla.client.group_offsets import CommittedOffset
    from ottla.protocol.names import TopicPartition

    return {
        TopicPartition(record.topic, record.partition): CommittedOffset(record.offset)
        for record in reversed(records)
    }


async def _commit(consumer: Consumer[bytes, bytes], offsets: Offsets) -> None:
    """Who has lost a partition meanwhile cannot commit for it; its next reader shows the records again."""
    from ottla.protocol.errors import KafkaError

    if not offsets:
        return
    try:
        await consumer.commit({partition: place for partition, place in offsets.items()})  # noqa: C416
    except KafkaError as error:
        note(f"not committed, and read again by the group: {error}")
