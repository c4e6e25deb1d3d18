"""Dead letters of a share group: read from their topic, and sent to the topics that they come from again.

What is sent again belongs to a transaction with the offsets of a consumer group, `GROUP.redrive`: a command
that is killed has sent nothing or all of a batch, and the next one goes on behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cli.command_config import connect_to
from ottla.cli.errors import CliError
from ottla.protocol.names import TopicPartition

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.consumer import Consumer, ConsumerRecord

_PREFIX: Final = "__dlq.errors."
_SETTING: Final = "errors.deadletterqueue.topic.name"
_AT_A_TIME: Final = 500
_POLL_MS: Final = 1_000
# So many polls in a row may bring nothing.
_MAX_EMPTY_POLLS: Final = 60


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a share group could not process, and where its dead letter is."""

    at: TopicPartition
    offset: int
    source: TopicPartition
    source_offset: int
    deliveries: int | None
    message: str
    timestamp: int
    record: ConsumerRecord[bytes, bytes]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that the record had."""
        return [(name, value) for name, value in self.record.headers if not name.startswith(_PREFIX)]

    @property
    def is_copied(self) -> bool:
        """Whether it has the content of its record. One that had none looks as one that was not copied."""
        return self.record.value is not None or self.record.key is not None or bool(self.headers)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant; all of the group if nothing is said."""

    topic: str | None = None
    message: str | None = None

    def __contains__(self, letter: DeadLetter) -> bool:
        return (self.topic is None or letter.source.topic == self.topic) and (
            self.message is None or self.message.lower() in letter.message.lower()
        )


@dataclass(slots=True)
class Redriven:
    """What a redrive has done, by topic; dead letters whose records are gone; and those that claim to come
    from topics which the group does not read, as any client that may write to their topic can claim.
    """

    sent: Counter[str] = field(default_factory=Counter)
    gone: list[DeadLetter] = field(default_factory=list)
    foreign: list[DeadLetter] = field(default_factory=list)


async def dead_letter_topic(admin: Admin, group: str) -> str:
    """Find the dead-letter topic of a group."""
    from ottla.client.admin.configs import ResourceType

    found = await admin.configs.describe(ResourceType.GROUP, group, keys=[_SETTING])
    name = found[_SETTING].value if _SETTING in found else None
    if not name:
        raise CliError(f"share group {group!r} has no dead-letter topic: {_SETTING} is not set")
    return name


async def read_dead_letters(
    bootstrap: str, topic: str, group: str, starts: dict[TopicPartition, int]
) -> AsyncIterator[tuple[list[DeadLetter], dict[TopicPartition, int]]]:
    """Read the dead letters of a group, up to where the topic ends now: some at a time, each with the offsets
    behind them.
    """
    from ottla.client.consumer import Consumer

    async with Consumer[bytes, bytes](connect_to(bootstrap), auto_offset_reset="earliest") as consumer:
        where = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(where)
        consumer.assign(where)
        for partition in where:
            if partition in starts:
                consumer.seek(partition, starts[partition])
        left = {partition for partition in where if starts.get(partition, 0) < ends[partition]}
        positions = dict(starts)
        empty_polls = 0
        while left:
            records = await consumer.poll(_AT_A_TIME, timeout_ms=_POLL_MS)
            before, positions = positions, {each: await consumer.position(each) for each in where}
            left = {partition for partition in left if positions[partition] < ends[partition]}
            empty_polls = empty_polls + 1 if before == positions else 0
            if left and empty_polls == _MAX_EMPTY_POLLS:
                raise CliError(
                    f"{min(left)} cannot be read: nothing came for {_MAX_EMPTY_POLLS * _POLL_MS // 1000} s. "
                    "Look at its leader with `ottla topics describe`, and run the command again"
                )
            yield [letter for each in records if (letter := _parse(each, group)) is not None], positions


def _parse(record: ConsumerRecord[bytes, bytes], group: str) -> DeadLetter | None:
    found = {
        name.removeprefix(_PREFIX): b"" if value is None else value
        for name, value in record.headers
        if name.startswith(_PREFIX)
    }
    if found.get("group", b"").decode(errors="replace") != group:
        return None
    try:
        source = TopicPartition(found["topic"].decode(), int(found["partition"]))
        count = found.get("delivery.count")
        return DeadLetter(
            TopicPartition(record.topic, record.partition),
            record.offset,
            source,
            int(found["offset"]),
            None if count is None else int(count),
            found.get("message", b"").decode(errors="replace"),
            record.timestamp,
            record,
        )
    except (KeyError, ValueError):
        return None  # it was not written by a broker


async def redrive(admin: Admin, bootstrap: str, topic: str, group: str, choice: Choice) -> Redriven:
    """Send dead letters to their topics again. Without a choice the group goes on behind them, and the next
    call begins there; with one all are looked at that no call without one has sent.
    """
    from ottla.client.consumer import CommittedOffset, Consumer
    from ottla.client.producer import Producer

    done, marks = Redriven(), f"{group}.redrive"
    async with (
        Producer(connect_to(bootstrap), transactional_id=f"ottla-redrive-{group}") as producer,
        Consumer[bytes, bytes](connect_to(bootstrap), auto_offset_reset="earliest") as originals,
    ):
        # After the producer has begun: another redrive of the group is fenced by now.
        starts = {at: found.offset for at, found in (await admin.groups.offsets(marks)).items()}
        topics = {each.topic for each in await admin.groups.share_offsets(group)}
        async for letters, positions in read_dead_letters(bootstrap, topic, group, starts):
            async with producer.transaction() as transaction:
                for letter in letters:
                    if letter not in choice:
                        continue
                    if letter.source.topic not in topics:
                        done.foreign.append(letter)
                        continue
                    record = letter.record if letter.is_copied else await _original(originals, letter)
                    if record is None:
                        done.gone.append(letter)
                        continue
                    headers = letter.headers if letter.is_copied else list(record.headers)
                    await producer.ready(letter.source.topic)
                    producer.send_nowait(
                        letter.source.topic,
                        record.value,
                        key=record.key,
                        partition=letter.source.partition,
                        headers=headers,
                    )
                    done.sent[letter.source.topic] += 1
                if choice == Choice():
                    commits = {at: CommittedOffset(offset) for at, offset in positions.items()}
                    await transaction.send_offsets(commits, marks)
    return done


async def _original(
    consumer: Consumer[bytes, bytes], letter: DeadLetter
) -> ConsumerRecord[bytes, bytes] | None:
    """Read the record of a dead letter in its topic; None if it is gone there."""
    consumer.assign([letter.source])
    begin = (await consumer.beginning_offsets([letter.source]))[letter.source]
    end = (await consumer.end_offsets([letter.source]))[letter.source]
    if not begin <= letter.source_offset < end:
        return None
    consumer.seek(letter.source, letter.source_offset)
    for _ in range(_MAX_EMPTY_POLLS):
        for record in await consumer.poll(1, timeout_ms=_POLL_MS):
            return record if record.offset == letter.source_offset else None
        if await consumer.position(letter.source) > letter.source_offset:
            return None
    raise CliError(f"{letter.source} cannot be read at offset {letter.source_offset}; run the command again")
