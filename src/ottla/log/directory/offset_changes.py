"""Changes of single entries of a checkpoint that must be durable before the work on a log may go on.

Truncations come in crowds: after an election every partition of a broker that was away may need one, and each
needs its entry in the checkpoint of the directory first. Changes that come while the file is written share
the next write. A swap of compacted segments needs its recovery point in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from ottla.log.directory.checkpoints import OffsetCheckpoint, StagedOffsets
from ottla.protocol.names import TopicPartition
from ottla.runtime.pool import Pool


class OffsetChange(Enum):
    """How an entry is changed: to the offset, or only if it is above it, or below it."""

    SET = auto()
    LOWER = auto()
    RAISE = auto()


class OffsetChanges:
    """Belongs to the event loop. Invariant: one write at a time, and it changes no other entries."""

    __slots__ = ("_checkpoint", "_kind", "_staged", "_waiting", "_written")

    def __init__(self, checkpoint: OffsetCheckpoint, kind: OffsetChange) -> None:
        self._checkpoint: Final = checkpoint
        self._kind: Final = kind
        self._waiting: dict[TopicPartition, tuple[int, Callable[[], bool]]] = {}
        self._staged: StagedOffsets | None = None
        # Set at the end of the write that is under way; None if there is none.
        self._written: asyncio.Event | None = None

    async def write(
        self, partition: TopicPartition, offset: int, is_wanted: Callable[[], bool], pool: Pool
    ) -> None:
        """Return once the file holds the entry for good, or it is no longer wanted. The caller sees to it
        that content which is collected from now on has the entry too.
        """
        checkpoint = self._checkpoint
        if self._staged is None or not checkpoint.is_newest(self._staged.version):
            checkpoint.drop_staged()  # it was collected before
        while is_wanted() and not self._is_settled(partition, offset):
            self._waiting[partition] = offset, is_wanted
            if self._written is not None:
                await self._written.wait()
                continue
            self._written = asyncio.Event()
            try:
                await self._write_waiting(pool)
            finally:
                self._written.set()
                self._written = self._staged = None

    def _is_settled(self, partition: TopicPartition, offset: int) -> bool:
        checkpoint = self._checkpoint
        match self._kind:
            case OffsetChange.LOWER:
                return not checkpoint.may_hold_above(partition, offset)
            case OffsetChange.RAISE:
                return not checkpoint.may_hold_below(partition, offset)
            case OffsetChange.SET:
                return checkpoint.holds(partition, offset)

    def _changed(self, known: int, offset: int) -> int:
        match self._kind:
            case OffsetChange.LOWER:
                return min(offset, known)
            case OffsetChange.RAISE:
                return max(offset, known)
            case OffsetChange.SET:
                return offset

    async def _write_waiting(self, pool: Pool) -> None:
        checkpoint = self._checkpoint
        async with checkpoint.staging:
            version = checkpoint.begin()
            offsets = dict(checkpoint.offsets)
            for tp, (offset, is_wanted) in self._waiting.items():
                if is_wanted():
                    offsets[tp] = self._changed(offsets.get(tp, 0), offset)
            self._waiting.clear()
            staged = self._staged = checkpoint.stage(offsets, version)
            if staged is None:
                return
            await pool.run(staged.write)
            if checkpoint.install(staged):
                await pool.run(staged.sync_name)
                checkpoint.on_synced(staged)
            else:
                await pool.run(staged.drop)
