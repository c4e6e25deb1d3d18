"""Look through messages for those that match, within a budget, and say how much was looked at.

Forwards, a scan reads from its positions to the ends that its partitions had when it began. Backwards, to the
newest messages first, it reads windows: each is read forwards, and the next one lies before it. Windows grow
while they are cheap, so that neither 10 MB messages nor topics where few messages match cost much more than
they must. Positions move only over what was looked at, so that a scan can be continued from them.

Invariant: a match that is not returned lies at or after the position of its partition (backwards: before it).
"""

from __future__ import annotations

import base64
import binascii
import heapq
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ottla.console.messages.filters import MessageFilter
from ottla.console.messages.payload import DecodedPayload
from ottla.console.messages.source import RecordReader, RecordSource
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.clock import Clock
from ottla.runtime.turns import Turns

_FIRST_WINDOW: Final = 16
_WINDOW_GROWTH: Final = 8
_MAX_WINDOW: Final = 100_000
_WINDOW_BYTES: Final = 32 * 1024 * 1024
# Up to here, each partition is asked for as many messages as are wanted in all, so that they can be sorted.
_SORTED_PARTITIONS: Final = 8
_RECORD_OVERHEAD: Final = 32
# Characters of text in one list, and what each payload takes besides.
MAX_SHOWN: Final = 4 * 1024 * 1024
_SHOWN_OVERHEAD: Final = 100

Message = dict[str, Any]


class ScanEnd(StrEnum):
    """Why a scan ended."""

    END = "end"
    LIMIT = "limit"
    SCAN = "scan"
    BYTES = "bytes"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class ScanBudget:
    messages: int
    bytes: int = 256 * 1024 * 1024
    ms: int = 10_000


@dataclass(slots=True)
class ScanProgress:
    """How much was looked at; `remaining` is an estimate, as offsets may have no message."""

    messages: int = 0
    bytes: int = 0
    matched: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """Where to go on: the next offset of each partition (backwards: the end of what was not looked at), the
    other bound of each, and the size of the next window.
    """

    backwards: bool
    positions: dict[int, int]
    bounds: dict[int, int]
    window: int = _FIRST_WINDOW

    def encode(self) -> str:
        document = [
            int(self.backwards),
            self.window,
            [[p, at, self.bounds[p]] for p, at in self.positions.items()],
        ]
        return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> ScanCursor:
        """ValueError if the text is no cursor: it comes from a client."""
        try:
            backwards, window, entries = json.loads(base64.urlsafe_b64decode(text))
            numbers = [window, *(number for entry in entries for number in entry)]
            if any(type(number) is not int or not 0 <= number < 2**63 for number in numbers):
                raise ValueError
            return cls(
                bool(backwards),
                {partition: at for partition, at, _ in entries},
                {partition: bound for partition, _, bound in entries},
                min(max(window, 1), _MAX_WINDOW),
            )
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise ValueError("the cursor is none of this console") from None


@dataclass(slots=True)
class MessageScan:
    """One search. `show` makes of a match what is returned, which must be small: the match may be 100 MB. The
    messages before `to_ms` only. `on_match` is called with each match as it is found, and can wait.
    """

    source: RecordSource
    clock: Clock
    filter: MessageFilter
    limit: int
    budget: ScanBudget
    decode: Callable[[ConsumerRecord[bytes, bytes]], Awaitable[DecodedPayload | None]]
    show: Callable[[ConsumerRecord[bytes, bytes]], Awaitable[Message]]
    to_ms: int | None = None
    on_match: Callable[[Message], Awaitable[None]] | None = None
    progress: ScanProgress = field(default_factory=ScanProgress)
    # What was passed over, as it could not be read.
    problems: list[str] = field(default_factory=list)
    end: ScanEnd = ScanEnd.END
    _deadline_ns: int = 0
    _more_bytes: int = 0
    _turns: Turns | None = None
    # The matches of each partition by offset.
    _found: dict[int, list[Message]] = field(default_factory=dict)

    async def run(self, cursor: ScanCursor) -> tuple[list[Message], ScanCursor | None]:
        """Return the matches, sorted, and where to go on; None if all was looked at."""
        self._turns = Turns(self.clock)
        self._deadline_ns = self.clock.monotonic_ns() + self.budget.ms * 1_000_000
        self._found = {partition: [] for partition in cursor.positions}
        positions = dict(cursor.positions)
        self._estimate(positions, cursor.bounds)
        window = cursor.window
        if any(at != cursor.bounds[partition] for partition, at in positions.items()):
            async with self.source.open() as reader:
                self.problems = reader.problems
                if cursor.backwards:
                    window = await self._backwards(reader, positions, cursor)
                else:
                    await self._forwards(reader, positions, cursor.bounds)
        messages = self._taken(positions, backwards=cursor.backwards)
        self.progress.matched = len(messages)
        self._estimate(positions, cursor.bounds)
        if all(at == cursor.bounds[partition] for partition, at in positions.items()):
            self.end = ScanEnd.END
            return messages, None
        return messages, ScanCursor(cursor.backwards, positions, cursor.bounds, window)

    def _estimate(self, positions: dict[int, int], bounds: dict[int, int]) -> None:
        self.progress.remaining = sum(abs(bounds[p] - at) for p, at in positions.items())

    def _cap(self, partitions: int) -> int:
        """How many matches of one partition are enough."""
        if partitions <= _SORTED_PARTITIONS or not self.filter.is_empty:
            return self.limit
        return max(self.limit * _SORTED_PARTITIONS // partitions, 2)

    # Forwards

    async def _forwards(self, reader: RecordReader, positions: dict[int, int], ends: dict[int, int]) -> None:
        active = {p: ends[p] for p, at in positions.items() if at < ends[p]}
        reader.seek({p: positions[p] for p in active})
        cap = self._cap(len(active))
        while active:
            if self._is_over():
                return
            full: set[int] = set()
            for record in await reader.poll():
                partition = record.partition
                if partition not in active or partition in full or record.offset >= active[partition]:
                    continue
                positions[partition] = record.offset + 1
                await self._look(record)
                if len(self._found[partition]) >= cap:
                    full.add(partition)
                if self._has_enough() or self._is_over():
                    return
            for partition in full:
                del active[partition]
            for partition in _completed(reader, active):
                positions[partition] = active.pop(partition)
            if full and active:
                reader.seek({p: positions[p] for p in active})
        if any(at < ends[p] for p, at in positions.items()):
            self.end = ScanEnd.LIMIT

    # Backwards

    async def _backwards(self, reader: RecordReader, positions: dict[int, int], cursor: ScanCursor) -> int:
        """Read windows until there is enough; return the size of the next one."""
        window, starts = cursor.window, cursor.bounds
        cap = self._cap(len(positions))
        while True:
            active = [p for p, at in positions.items() if at > starts[p] and len(self._found[p]) < cap]
            if not active:
                if any(at > starts[p] for p, at in positions.items()):
                    self.end = ScanEnd.LIMIT
                return window
            if self._has_enough() or self._is_over():
                return window
            left = (self.budget.messages - self.progress.messages) // len(active)
            size = max(1, min(window, left))
            before = self.progress.messages, self.progress.bytes
            ranges = {p: (max(starts[p], positions[p] - size), positions[p]) for p in active}
            if not await self._window(reader, ranges, positions):
                if self.end is not ScanEnd.BYTES or size == 1 or any(self._found.values()):
                    return max(1, size // _WINDOW_GROWTH)
                # Very large messages: rather than nothing, show those that fit into as much again.
                self._more_bytes, self.end, window = self.progress.bytes, ScanEnd.END, 1
                continue
            looked, took = self.progress.messages - before[0], self.progress.bytes - before[1]
            mean = took / looked if looked else 1.0
            room = self.budget.bytes + self._more_bytes - self.progress.bytes
            affordable = int(min(_WINDOW_BYTES, room) / mean / len(active))
            window = max(1, min(size * _WINDOW_GROWTH, affordable, _MAX_WINDOW))

    async def _window(
        self, reader: RecordReader, ranges: dict[int, tuple[int, int]], positions: dict[int, int]
    ) -> bool:
        """Look through one window of each partition; false if the budget ended within it. What was found in
        a partition whose window was not completed is dropped: it will be found again.
        """
        found, self._found = self._found, {partition: [] for partition in self._found}
        active = {p: high for p, (_, high) in ranges.items()}
        reader.seek({p: low for p, (low, _) in ranges.items()})
        while active and not self._is_out_of_bytes_or_time():
            for record in await reader.poll():
                if record.partition in active and record.offset < active[record.partition]:
                    await self._look(record)
                    if self._is_out_of_bytes_or_time():
                        break
            else:
                for partition in _completed(reader, active):
                    positions[partition] = ranges[partition][0]
                    del active[partition]
        for partition, messages in self._found.items():
            found[partition] = ([] if partition in active else messages) + found[partition]
        self._found = found
        return not active

    # Both

    async def _look(self, record: ConsumerRecord[bytes, bytes]) -> None:
        assert self._turns is not None
        await self._turns.pause_if_due()
        self.progress.messages += 1
        self.progress.bytes += len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        self.progress.bytes += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self.to_ms is not None and record.timestamp >= self.to_ms:
            return
        if not await self.filter.matches(record, self.decode):
            return
        message = await self.show(record)
        self._found[record.partition].append(message)
        self.progress.matched += 1
        if self.on_match is not None:
            await self.on_match(message)

    def _has_enough(self) -> bool:
        """Whether a search has found what it may return; a plain list also wants to be sorted."""
        if self.filter.is_empty or sum(map(len, self._found.values())) < self.limit:
            return False
        self.end = ScanEnd.LIMIT
        return True

    def _is_over(self) -> bool:
        if self.progress.messages >= self.budget.messages:
            self.end = ScanEnd.SCAN
            return True
        return self._is_out_of_bytes_or_time()

    def _is_out_of_bytes_or_time(self) -> bool:
        if self.progress.bytes >= self.budget.bytes + self._more_bytes:
            self.end = ScanEnd.BYTES
            return True
        if self.clock.monotonic_ns() >= self._deadline_ns:
            self.end = ScanEnd.TIME
            return True
        return False

    def _taken(self, positions: dict[int, int], *, backwards: bool) -> list[Message]:
        """The matches to return, sorted by time where that keeps the order of each partition. Positions
        return to what is left over.
        """
        lists = [messages[::-1] if backwards else messages for messages in self._found.values() if messages]
        taken = _bounded(merged(lists, self.limit, backwards=backwards))
        if sum(map(len, lists)) > len(taken):
            self.end = ScanEnd.LIMIT
            counts: dict[int, int] = {}
            for message in taken:
                counts[message["partition"]] = counts.get(message["partition"], 0) + 1
            for messages in lists:
                partition = messages[0]["partition"]
                count = counts.get(partition, 0)
                if count < len(messages):
                    positions[partition] = messages[count]["offset"] + backwards
        return taken


def _bounded(messages: list[Message]) -> list[Message]:
    """The first messages, as many as make a document of bounded size; at least one."""
    size = 0
    for count, message in enumerate(messages):
        parts = [message.get("key"), message.get("value")]
        for header in message.get("headers", ()):
            size += len(header["name"]) + _SHOWN_OVERHEAD
            parts.append(header["value"])
        size += sum(len(part["text"]) + _SHOWN_OVERHEAD for part in parts if part is not None)
        if count and size > MAX_SHOWN:
            return messages[:count]
    return messages


def _completed(reader: RecordReader, ends: dict[int, int]) -> list[int]:
    """The partitions that were read to their ends."""
    reached = reader.positions()
    return [partition for partition, end in ends.items() if reached.get(partition, -1) >= end]


def merged(lists: Iterable[list[Message]], limit: int, *, backwards: bool) -> list[Message]:
    """Merge lists of single partitions by time, without changing the order within one."""
    heads: list[tuple[int, int, int, list[Message]]] = []
    sign = -1 if backwards else 1
    for number, messages in enumerate(lists):
        if messages:
            heads.append((sign * messages[0]["timestamp"], number, 0, messages))
    heapq.heapify(heads)
    result: list[Message] = []
    while heads and len(result) < limit:
        key, number, at, messages = heapq.heappop(heads)
        result.append(messages[at])
        if at + 1 < len(messages):
            # A time that goes back, within a partition, does not overtake what is before it.
            following = max(sign * messages[at + 1]["timestamp"], key)
            heapq.heappush(heads, (following, number, at + 1, messages))
    return result
