"""The producer state of a log together with its snapshots on disk.

The state is loaded when it is first needed: from the newest snapshot that is whole, and the batches of the
log after it. Snapshots are written at every roll, at the base offset of the new segment, and at a clean
shutdown; they are synced with the next flush, as a torn one is told by its checksum and an older one serves
in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla.log.local_log import LocalLog
from ottla.log.producers.replay import batches_between
from ottla.log.producers.snapshot import CorruptSnapshotError, ProducerSnapshots
from ottla.log.producers.state_manager import ProducerStateManager
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.txn_index import CorruptTxnIndexError
from ottla.protocol.names import TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerStateManagerConfig:
    """What the broker says about producers and their transactions."""

    producer_id_expiration_ms: int = 86_400_000
    max_transaction_timeout_ms: int = 900_000
    transaction_verification: bool = True


DEFAULT_PRODUCER_STATE_CONFIG = ProducerStateManagerConfig()


def new_producers(partition: TopicPartition, config: ProducerStateManagerConfig) -> ProducerStateManager:
    return ProducerStateManager(
        str(partition),
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        max_transaction_timeout_ms=config.max_transaction_timeout_ms,
        transaction_verification=config.transaction_verification,
    )


class LogProducers:
    __slots__ = ("_config", "_local", "_snapshots", "_state", "_unsynced")

    def __init__(
        self,
        local: LocalLog,
        config: ProducerStateManagerConfig,
        state: ProducerStateManager | None = None,
        snapshots: ProducerSnapshots | None = None,
    ) -> None:
        self._local = local
        self._config = config
        self._state = state
        self._snapshots = snapshots
        self._unsynced: list[int] = []

    @property
    def loaded(self) -> ProducerStateManager | None:
        """The state, if it has been needed so far."""
        return self._state

    @property
    def snapshots(self) -> ProducerSnapshots:
        if self._snapshots is None:
            self._snapshots = ProducerSnapshots(self._local.directory.disk, self._local.dir)
        return self._snapshots

    def state(self, log_start_offset: int, high_watermark: int) -> ProducerStateManager:
        """The state at the end of the log."""
        if self._state is None:
            state = new_producers(self._local.partition, self._config)
            self.snapshots.remove_stray(segment.base_offset for segment in self._local.segments)
            self._reload(state, log_start_offset, high_watermark, self._local.log_end_offset)
            self._state = state
        return self._state

    def truncate(self, log_start_offset: int, high_watermark: int) -> None:
        """The log was cut: go back to the state at its new end."""
        if self._state is None:
            self.state(log_start_offset, high_watermark)
        else:
            # A snapshot knows nothing of transactions whose end is not replicated yet.
            bound = max(min(self._local.log_end_offset, high_watermark), log_start_offset)
            self._reload(self._state, log_start_offset, high_watermark, bound)
        self._unsynced = [offset for offset in self._unsynced if offset in self.snapshots.offsets]

    def _reload(
        self, state: ProducerStateManager, log_start_offset: int, high_watermark: int, snapshot_bound: int
    ) -> None:
        local = self._local
        now_ms = local.directory.clock.wall_ms()
        state.truncate_and_reload(self.snapshots, log_start_offset, snapshot_bound, now_ms)
        start_offset = max(state.map_end_offset, log_start_offset)
        if start_offset < local.log_end_offset:
            segments = local.segments_from(start_offset)
            for batch in batches_between(segments, start_offset, local.log_end_offset):
                state.replay([batch])
        state.map_end_offset = local.log_end_offset
        state.on_high_watermark_updated(high_watermark)

    def mend_txn_index(self, segment: LogSegment) -> None:
        """See that the transaction index of the segment can be read. A damaged one is made anew from the
        markers, with the transactions that were open where the segment begins.
        """
        try:
            segment.txn_index.entries  # noqa: B018 - reads the file
            return
        except CorruptTxnIndexError as error:
            _log.warning("a transaction index is damaged and will be built anew from the log: %s", error)
        segments = self._local.segments
        following = [other.base_offset for other in segments if other.base_offset > segment.base_offset]
        state = new_producers(self._local.partition, self._config)
        start = self._load_newest(state, segment.base_offset)
        aborted = []
        for batch in batches_between(segments, start, min([*following, self._local.log_end_offset])):
            ended = state.replay([batch])
            if batch[0].base_offset >= segment.base_offset:
                aborted += ended
        segment.txn_index.reset(aborted)
        segment.txn_index.flush()

    def _load_newest(self, state: ProducerStateManager, offset: int) -> int:
        """Load the newest whole snapshot at or below `offset`; where the batches after it begin."""
        for at in reversed([known for known in self.snapshots.offsets if known <= offset]):
            try:
                entries = self.snapshots.load(at)
            except CorruptSnapshotError:
                continue
            state.load(entries, self._local.directory.clock.wall_ms())
            return at
        return self._local.segments[0].base_offset

    def forget(self) -> None:
        """Drop the state in memory; it is loaded again when it is needed."""
        self._state = None

    def start_anew(self, offset: int) -> None:
        """The log was emptied and goes on at `offset`."""
        self.snapshots.delete_all()
        self._unsynced.clear()
        if self._state is None:
            self._state = new_producers(self._local.partition, self._config)
        self._state.truncate_fully_and_start_at(offset)

    def take_snapshot(self) -> None:
        """Write the loaded state to a file, if the newest file is older."""
        if self._state is not None:
            written = self._state.take_snapshot(self.snapshots)
            if written is not None:
                self._unsynced.append(written)
                self._local.names_changed()

    @property
    def unsynced(self) -> tuple[int, ...]:
        """The snapshots that are not durable."""
        return tuple(self._unsynced)

    def synced(self, offsets: Sequence[int]) -> None:
        """Note that these are."""
        self._unsynced = [offset for offset in self._unsynced if offset not in offsets]

    def sync_snapshots(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.snapshots.sync(offset)

    def drop_snapshots(self, segments: Sequence[LogSegment]) -> None:
        """The segments are gone, and the snapshots at their base offsets go too."""
        snapshots = self.snapshots
        marked = (snapshots.mark_deleted(segment.base_offset) for segment in segments)
        local = self._local
        local.directory.delete_later(
            [path for path in marked if path is not None], local.config.file_delete_delay_ms
        )

    def moved_to(self, dir: str) -> None:
        if self._snapshots is not None:
            self._snapshots.dir = dir
