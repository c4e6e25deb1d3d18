"""Records that a share group has in delivery: which of them an operator means, and what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cli.errors import CliError

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.groups import ShareRecords, ShareRecordsAction
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition

STATES: Final = ("held", "waiting", "available", "dead")


@dataclass(frozen=True, slots=True)
class RecordChoice:
    """Which records are meant; all that are in delivery if nothing is said."""

    topic: str | None = None
    partition: int | None = None
    offsets: tuple[int, int] | None = None
    states: tuple[str, ...] = ()
    member: str | None = None
    older_than_ms: int = 0

    def has_partition(self, at: TopicPartition) -> bool:
        return self.topic in (None, at.topic) and self.partition in (None, at.partition)

    def of(self, records: ShareRecords) -> ShareRecords | None:
        """The part of these that is meant."""
        if self.member not in (None, records.member_id):
            return None
        if self.older_than_ms and (records.age_ms is None or records.age_ms < self.older_than_ms):
            return None
        if self.offsets is None:
            return records
        first = max(records.first_offset, self.offsets[0])
        last = min(records.last_offset, self.offsets[1])
        return records._replace(first_offset=first, last_offset=last) if first <= last else None


@dataclass(slots=True)
class InDelivery:
    """What a group has in delivery: how many records by state, and those that are shown."""

    shown: list[ShareRecords] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    problems: dict[TopicPartition, str] = field(default_factory=dict)

    def add(self, records: ShareRecords, most: int) -> None:
        self.counts[records.state] = self.counts.get(records.state, 0) + records.size
        if len(self.shown) < most:
            self.shown.append(records)


async def list_records(admin: Admin, group: str, choice: RecordChoice, most: int) -> InDelivery:
    """List what a group has in delivery: how many there are, and the first of them."""
    found = InDelivery()
    async for records in _records(admin, group, choice, found.problems):
        for each in records:
            found.add(each, most)
    return found


async def alter_records(
    admin: Admin, group: str, choice: RecordChoice, action: ShareRecordsAction
) -> dict[TopicPartition, int | KafkaError]:
    """Release, reject or skip records; how many were changed, by partition. Each page is changed before the
    next one is listed.
    """
    from ottla.protocol.errors import KafkaError

    done: dict[TopicPartition, int | KafkaError] = {}
    async for records in _records(admin, group, choice, {}):
        altered = await admin.groups.alter_share_records(group, action, records)
        for at, result in altered.items():
            so_far = done.get(at, 0)
            if isinstance(result, KafkaError) or isinstance(so_far, KafkaError):
                done[at] = result if isinstance(result, KafkaError) else so_far
            else:
                done[at] = so_far + result
    return done


async def _records(
    admin: Admin, group: str, choice: RecordChoice, problems: dict[TopicPartition, str]
) -> AsyncIterator[list[ShareRecords]]:
    known = await admin.groups.share_offsets(group)
    first = 0 if choice.offsets is None else choice.offsets[0]
    starts = dict.fromkeys((at for at in known if choice.has_partition(at)), first)
    if not starts:
        raise CliError(
            f"share group {group} reads {_what(choice)}: see `ottla share-groups describe {group}`"
        )
    while starts:
        page = await admin.groups.share_records(group, starts, states=choice.states)
        for error in page.errors.values():
            raise error
        problems |= page.problems
        chosen = [part for each in page.records if (part := choice.of(each)) is not None]
        if chosen:
            yield chosen
        last = None if choice.offsets is None else choice.offsets[1]
        starts = {at: offset for at, offset in page.next.items() if last is None or offset <= last}


def _what(choice: RecordChoice) -> str:
    if choice.topic is None:
        return "no topic"
    return f"no topic {choice.topic}" + (
        "" if choice.partition is None else f" with partition {choice.partition}"
    )


def rows_of(records: Iterable[ShareRecords]) -> list[dict[str, str | int | None]]:
    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "first": each.first_offset,
            "last": each.last_offset,
            "records": each.size,
            "state": each.state,
            "deliveries": each.delivery_count,
            "age_s": None if each.age_ms is None else each.age_ms // 1000,
            "left_s": None if each.left_ms is None else -(-each.left_ms // 1000),
            "member": each.member_id,
        }
        for each in records
    ]
