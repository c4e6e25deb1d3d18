"""Changes of single entries of a checkpoint that must be durable before the work on a log may go on.

Truncations come in crowds: after an election every partition of a broker that was away may need one, and each
needs its entry in the checkpoint of the directory first. Changes that come while the file is written share
the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.log.directory.checkpoints import OffsetCheckpoint, StagedOffsets
from ottla.protocol.names import TopicPartition
from ottla.runtime.pool import Pool


class OffsetChanges:
    """Belongs to the event loop. Invariant: one write at a time, and it changes no other entries."""

    __slots__ = ("_checkpoint", "_only_lowers", "_staged", "_waiting", "_written")

    def __init__(self, checkpoint: OffsetCheckpoint, *, only_lowers: bool) -> None:
        """With `only_lowers` an entry that is low enough stays as it is."""
        self._checkpoint: Final = checkpoint
        self._only_lowers: Final = only_lowers
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
        if self._only_lowers:
            return not checkpoint.may_hold_above(partition, offset)
        return checkpoint.holds(partition, offset)

    async def _write_waiting(self, pool: Pool) -> None:
        checkpoint = self._checkpoint
        async with checkpoint.staging:
            version = checkpoint.begin()
            offsets = dict(checkpoint.offsets)
            for tp, (offset, is_wanted) in self._waiting.items():
                if is_wanted():
                    offsets[tp] = min(offset, offsets.get(tp, 0)) if self._only_lowers else offset
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
