"""The leader epochs of a log together with their file.

The cache is read from `leader-epoch-checkpoint` when it is first needed; where that is damaged, empty or
lost, from the batches. It is written by flushes, before the recovery point passes the start of an epoch that
the file does not have. Flushes may overlap: each write has a number, and the last one to be planned wins.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from functools import partial

from ottla.log.directory import checkpoints
from ottla.log.epochs.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.log.files import LEADER_EPOCH_CHECKPOINT
from ottla.log.flush import FlushPlan
from ottla.log.local_log import LocalLog
from ottla.log.segment.segment import LogSegment
from ottla.runtime.disk import Disk

_log = logging.getLogger(__name__)


def read_epochs(disk: Disk, dir: str, segments: Sequence[LogSegment]) -> LeaderEpochCache:
    """The leader epochs of the checkpoint; where that is damaged, empty or lost, of the batches."""
    try:
        entries = checkpoints.read_epochs(disk, posixpath.join(dir, LEADER_EPOCH_CHECKPOINT))
    except checkpoints.CorruptCheckpoint as error:
        _log.error("the leader epochs are read from the log, as their file is damaged: %s", error)
        entries = []
    epochs = LeaderEpochCache(entries)
    if not entries:
        for segment in segments:
            for _, header in segment.headers():
                epochs.reconcile(header.leader_epoch, header.base_offset)
    return epochs


class LogEpochs:
    __slots__ = ("_cache", "_local", "_writes")

    def __init__(self, local: LocalLog, cache: LeaderEpochCache | None = None) -> None:
        self._local = local
        self._cache = cache
        # How many writes of the file have been planned.
        self._writes = 0

    @property
    def loaded(self) -> LeaderEpochCache | None:
        """The epochs, if they have been needed so far."""
        return self._cache

    def cache(self, log_start_offset: int) -> LeaderEpochCache:
        if self._cache is None:
            local = self._local
            cache = read_epochs(local.directory.disk, local.dir, local.segments)
            cache.fit(log_start_offset, local.log_end_offset)
            self._cache = cache
        return self._cache

    @property
    def dirty(self) -> bool:
        """True if the file does not have what the cache has."""
        return self._cache is not None and self._cache.dirty

    def prepare(self, plan: FlushPlan) -> None:
        """Let a flush write the file."""
        assert self._cache is not None
        self._writes += 1
        plan.epochs, plan.epochs_version = self._cache.entries, self._writes
        plan.writes.append(partial(self._write, self._local.dir, plan.epochs, plan.epochs_version))
        if self._local.dir not in plan.dirs:
            plan.dirs.insert(0, self._local.dir)

    def _write(self, dir: str, entries: Sequence[EpochEntry], version: int) -> None:
        """Write the file, in any thread, unless a later flush has set out to do the same. The flush goes on
        to sync its name.
        """
        disk = self._local.directory.disk
        path = posixpath.join(dir, LEADER_EPOCH_CHECKPOINT)
        staged = checkpoints.stage_epochs(disk, path, entries, version)
        if version == self._writes:
            disk.rename(staged, path)
        else:
            disk.unlink(staged)

    def complete(self, plan: FlushPlan) -> bool:
        """Note what a flush has written; False if another one has passed it."""
        cache = self._cache
        if plan.epochs is None or cache is None:
            return True
        if plan.epochs_version != self._writes:
            # Which of the two came last to the file nobody knows.
            cache.dirty = True
            return False
        if cache.entries == plan.epochs:
            cache.dirty = False
        return True
