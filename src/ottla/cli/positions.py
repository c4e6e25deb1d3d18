"""Positions in a partition, as users write them.

`beginning` and `end`; an offset, `42`; a number of records before the end, `-10`; a time,
`2026-01-31T12:00:00Z` or `@1767225600000` (milliseconds); or an age, `90s`, `15m`, `6h`, `2d`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.cli.errors import WrongUsage
from ottla.cli.output import time_text

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.protocol.names import TopicPartition

_AGE: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_AGE_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MAX_OFFSET: Final = 2**63 - 1


class PositionKind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before the end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A position. `number` is the offset, the count before the end, or the time in milliseconds."""

    kind: PositionKind
    number: int = 0

    def __str__(self) -> str:
        if self.kind is PositionKind.OFFSET:
            return f"offset {self.number}"
        if self.kind is PositionKind.BEFORE_END:
            return f"{self.number} before the end"
        return time_text(self.number) or "" if self.kind is PositionKind.TIME else f"the {self.kind.value}"


def parse_position(option: str, text: str, now_ms: int) -> PartitionPosition:
    """
    >>> parse_position("--from", "-10", 0)
    PartitionPosition(kind=<PositionKind.BEFORE_END: 'before the end'>, number=10)
    >>> parse_position("--from", "15m", 1_000_000).number
    100000
    """
    plain = text.strip().lower()
    if plain in ("beginning", "earliest", "start", "first"):
        return PartitionPosition(PositionKind.BEGINNING)
    if plain in ("end", "latest"):
        return PartitionPosition(PositionKind.END)
    if plain.isdecimal() and int(plain) <= MAX_OFFSET:
        return PartitionPosition(PositionKind.OFFSET, int(plain))
    if plain[:1] == "-" and plain[1:].isdecimal() and int(plain[1:]) <= MAX_OFFSET:
        return PartitionPosition(PositionKind.BEFORE_END, int(plain[1:]))
    time_ms = _time_ms(plain, now_ms)
    if time_ms is None:
        raise WrongUsage(
            f"{option} {text}: expected beginning, end, an offset (42), a count before the end (-10), a time "
            "(2026-01-31T12:00:00Z or @ and milliseconds) or an age (15m, 6h, 2d)"
        )
    return PartitionPosition(PositionKind.TIME, time_ms)


def parse_time(option: str, text: str, now_ms: int, other: Iterable[str] = ()) -> int:
    """Parse a time or an age; in milliseconds since 1970. `other`: words that are also allowed."""
    time_ms = _time_ms(text.strip().lower(), now_ms)
    if time_ms is None:
        *first, last = "a time (2026-01-31T12:00:00Z, @ms)", "an age (15m, 6h, 2d)", *other
        raise WrongUsage(f"{option} {text}: expected {', '.join(first)} or {last}")
    return time_ms


def _time_ms(plain: str, now_ms: int) -> int | None:
    if plain[:1] == "@" and plain[1:].isdecimal() and int(plain[1:]) <= MAX_OFFSET:
        return int(plain[1:])
    age = _AGE.fullmatch(plain)
    if age is not None:
        return max(now_ms - int(age[1]) * _AGE_MS[age[2]], 0)
    try:
        moment = datetime.fromisoformat(plain.upper())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(round(moment.timestamp() * 1000), 0)


async def resolve_positions(
    admin: Admin,
    partitions: Mapping[TopicPartition, PartitionPosition],
    *,
    read_committed: bool = False,
    beyond: Callable[[str], None] = lambda _: None,
) -> dict[TopicPartition, int]:
    """The offsets of positions, kept within the logs. Raises the error of a partition.

    `beyond` is called with a message for each given offset that is after the end.
    """
    from ottla.client.admin.offsets import OffsetSpec, all_or_raise

    first = all_or_raise(
        await admin.offsets.list(
            dict.fromkeys(partitions, OffsetSpec.EARLIEST), read_committed=read_committed
        )
    )
    end = all_or_raise(
        await admin.offsets.list(dict.fromkeys(partitions, OffsetSpec.LATEST), read_committed=read_committed)
    )
    times = {p: position.number for p, position in partitions.items() if position.kind is PositionKind.TIME}
    by_time = all_or_raise(await admin.offsets.list(times, read_committed=read_committed)) if times else {}
    found: dict[TopicPartition, int] = {}
    for partition, position in partitions.items():
        low, high = first[partition].offset, end[partition].offset
        offset = {
            PositionKind.BEGINNING: low,
            PositionKind.END: high,
            PositionKind.OFFSET: position.number,
            PositionKind.BEFORE_END: high - position.number,
            PositionKind.TIME: by_time[partition].offset if partition in by_time else high,
        }[position.kind]
        if position.kind is PositionKind.TIME and offset < 0:
            offset = high
        if position.kind is PositionKind.OFFSET and offset > high:
            beyond(f"{partition} ends at {high}, before {offset}")
        found[partition] = min(max(offset, low), high)
    return found
