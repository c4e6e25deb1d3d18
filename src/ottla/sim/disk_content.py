"""The bytes of a simulated file, and what a crash may leave of those that were not synced.

The model is a page cache over a journalled file system such as ext4 or XFS, in the worst case:

- The disk is written in sectors. Each sector that unsynced operations touched may hold any of its versions,
  independently of other sectors, and one of them may be torn at any byte between two versions.
- The length is journalled on its own: it may have grown over sectors that were never written, which then read
  as zeros, or may not have grown over sectors that were.
- Truncations of a file take effect in their order. What a surviving truncation removed never comes back.
  Sectors that a lost truncation had freed cannot hold what was written after it, because the file still owns
  their old blocks; the sectors before it are written in place and can.

Invariant: a byte that was synced and not written or cut since reads the same after every crash.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

BLOCK_BYTES = 4096
_ZERO_BLOCK = bytes(BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    size: int


Change: TypeAlias = Write | Truncate


class Content:
    """A sparse file: blocks that were never written read as zeros and take no space.

    Invariant: bytes of a block beyond `size` are zero, so that growing the file never shows old data.
    """

    __slots__ = ("_blocks", "size")

    def __init__(self) -> None:
        self._blocks: dict[int, bytes] = {}
        self.size = 0

    @property
    def allocated_bytes(self) -> int:
        return len(self._blocks) * BLOCK_BYTES

    def copy(self) -> Content:
        other = Content()
        other._blocks = self._blocks.copy()
        other.size = self.size
        return other

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = self._blocks
        if first == last:
            start = first * BLOCK_BYTES
            return blocks.get(first, _ZERO_BLOCK)[offset - start : end - start]
        whole = b"".join([blocks.get(index, _ZERO_BLOCK) for index in range(first, last + 1)])
        return whole[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def write(self, data: bytes, offset: int) -> None:
        done = 0
        while done < len(data):
            index, start = divmod(offset + done, BLOCK_BYTES)
            part = data[done : done + BLOCK_BYTES - start]
            old = self._blocks.get(index, _ZERO_BLOCK)
            self._blocks[index] = (
                part if len(part) == BLOCK_BYTES else old[:start] + part + old[start + len(part) :]
            )
            done += len(part)
        if data:
            self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        if size < self.size:
            index, start = divmod(size, BLOCK_BYTES)
            for block in [block for block in self._blocks if block > index or (block == index and not start)]:
                del self._blocks[block]
            if index in self._blocks:
                self._blocks[index] = self._blocks[index][:start] + bytes(BLOCK_BYTES - start)
        self.size = size

    def apply(self, change: Change) -> None:
        if isinstance(change, Write):
            self.write(change.data, change.offset)
        else:
            self.truncate(change.size)

    def fitting(self, size: int, offset: int, free_bytes: int) -> int:
        """How much of a write of `size` bytes at `offset` fits into `free_bytes` of new blocks."""
        if size + 2 * BLOCK_BYTES <= free_bytes:
            return size
        end = offset + size
        position = offset
        while position < end:
            index = position // BLOCK_BYTES
            if index not in self._blocks:
                if free_bytes < BLOCK_BYTES:
                    break
                free_bytes -= BLOCK_BYTES
            position = min((index + 1) * BLOCK_BYTES, end)
        return position - offset


def survive(durable: Content, pending: list[Change], source: random.Random, sector_bytes: int) -> Content:
    """One of the contents that a crash may leave of `durable` with the unsynced `pending` on top."""
    if not pending:
        return durable
    match source.choice(("nothing", "everything", "prefix", "prefix", "sectors", "sectors", "sectors")):
        case "nothing":
            return durable
        case "everything":
            return _prefix(durable, pending, len(pending), 0)
        case "prefix":
            kept = source.randrange(len(pending))
            torn = pending[kept]
            cut = source.randrange(len(torn.data) + 1) if isinstance(torn, Write) else 0
            return _prefix(durable, pending, kept, cut)
        case _:
            return _Sectors(durable, pending, source, sector_bytes).pick()


def _prefix(durable: Content, pending: list[Change], kept: int, cut: int) -> Content:
    """The first `kept` changes, and `cut` bytes of the one after them."""
    content = durable.copy()
    for change in pending[:kept]:
        content.apply(change)
    if cut:
        torn = pending[kept]
        assert isinstance(torn, Write)
        content.write(torn.data[:cut], torn.offset)
    return content


class _Sectors:
    """Draws a version for each sector independently, within what the truncations allow."""

    __slots__ = ("_cuts", "_durable", "_lost_from", "_pending", "_sector_bytes", "_source", "_touching")

    def __init__(
        self, durable: Content, pending: list[Change], source: random.Random, sector_bytes: int
    ) -> None:
        self._durable = durable
        self._pending = pending
        self._source = source
        self._sector_bytes = sector_bytes
        # Positions in `pending`: of the truncations that cut something off, with the length they left, ...
        self._cuts: dict[int, int] = {}
        # ... and for each sector of the writes that reached it, in order.
        self._touching: dict[int, list[int]] = {}
        size = durable.size
        for index, change in enumerate(pending):
            if isinstance(change, Truncate):
                if change.size < size:
                    self._cuts[index] = change.size
                size = change.size
            elif change.data:
                end = change.offset + len(change.data)
                size = max(size, end)
                for sector in range(change.offset // sector_bytes, (end - 1) // sector_bytes + 1):
                    self._touching.setdefault(sector, []).append(index)
        # The position of the first cut that did not take effect.
        self._lost_from = source.choice([*self._cuts, len(pending)])

    def pick(self) -> Content:
        content = self._durable.copy()
        for index, size in self._cuts.items():
            if index < self._lost_from:
                content.truncate(min(size, content.size))
        size = self._pick_size()
        torn = self._source.choice(list(self._touching)) if self._touching else None
        for sector in self._touching:
            content.write(self._pick_version(sector, tear=sector == torn), sector * self._sector_bytes)
        content.truncate(size)
        return content

    def _pick_size(self) -> int:
        """A length that the file had since the last cut that took effect, or one on the way to it."""
        sizes = [self._durable.size]
        for index, change in enumerate(self._pending[: self._lost_from]):
            if index in self._cuts:
                sizes = [self._cuts[index]]
            else:
                end = change.size if isinstance(change, Truncate) else change.offset + len(change.data)
                if end > sizes[-1] and change != Write(end, b""):
                    sizes.append(end)
        index = self._source.randrange(len(sizes))
        if index and self._source.random() < 0.5:
            return self._source.randrange(sizes[index - 1], sizes[index] + 1)
        return sizes[index]

    def _pick_version(self, sector: int, *, tear: bool) -> bytes:
        start = sector * self._sector_bytes
        end = start + self._sector_bytes
        first, stop = 0, len(self._pending)
        reaching = self._touching[sector].copy()
        for index, size in self._cuts.items():
            if size >= end:
                continue
            reaching.append(index)
            if index < self._lost_from:
                first = index + 1
            elif size <= start:
                stop = index
                break
        reaching.sort()
        steps = [first, *(index + 1 for index in reaching if first <= index < stop)]
        chosen = self._source.randrange(len(steps))
        version = self._version(start, [index for index in reaching if index < steps[chosen]])
        if tear and chosen + 1 < len(steps):
            newer = self._version(start, [index for index in reaching if index < steps[chosen + 1]])
            changed = [index for index in range(self._sector_bytes) if newer[index] != version[index]]
            if changed:
                cut = self._source.randrange(changed[0], changed[-1] + 1)
                version = newer[:cut] + version[cut:]
        return version

    def _version(self, start: int, changes: list[int]) -> bytes:
        """The sector at `start` after these of the pending changes."""
        length = self._sector_bytes
        data = bytearray(self._durable.read(length, start).ljust(length, b"\0"))
        for index in changes:
            change = self._pending[index]
            if isinstance(change, Truncate):
                keep = max(change.size - start, 0)
                data[keep:] = bytes(length - keep)
            else:
                low, high = max(change.offset, start), min(change.offset + len(change.data), start + length)
                data[low - start : high - start] = change.data[low - change.offset : high - change.offset]
        return bytes(data)
