"""What the parts of a log share: its segments, its offsets, what it knows of producers and epochs, and
whether it can be used.

`UnifiedLog` is the face that others see. What it does is written down by kind, as functions over this core:
`log_appends`, `log_reads`, `log_flushes`, `log_cuts`.

Invariant: log start offset <= high watermark <= log end offset.
"""

from __future__ import annotations

from ottla.log.directory import checkpoints
from ottla.log.directory.directory import IoGuard, LogDirectory
from ottla.log.epochs.epoch_file import LogEpochs
from ottla.log.epochs.leader_epoch_cache import LeaderEpochCache
from ottla.log.local_log import LocalLog
from ottla.log.log_config import LogConfig
from ottla.log.log_identity import LogIdentity
from ottla.log.producers.log_producers import LogProducers
from ottla.log.producers.state_manager import ProducerStateManager
from ottla.log.segment.segment import LogSegment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.disk import Disk


class LogCore:
    __slots__ = (
        "closed",
        "epochs",
        "high_watermark",
        "identity",
        "last_flush_ms",
        "local",
        "log_start_offset",
        "producers",
        "upper",
        "verified_end",
    )

    def __init__(
        self,
        local: LocalLog,
        log_start_offset: int,
        producers: LogProducers,
        *,
        epochs: LeaderEpochCache | None,
        verified_end: bool,
        settled: bool,
        topic_id: bytes | None,
    ) -> None:
        self.local = local
        self.log_start_offset = log_start_offset
        self.high_watermark = log_start_offset
        self.producers = producers
        self.epochs = LogEpochs(local, epochs)
        self.identity = LogIdentity(local, topic_id, settled=settled)
        # False while the end of the log is taken from the checkpoint of a clean shutdown, or the log is new.
        self.verified_end = verified_end and settled
        self.last_flush_ms = local.directory.clock.wall_ms()
        # (offset, segment, position): where the upper bound of the last read lies.
        self.upper: tuple[int, LogSegment, int] | None = None
        # True once it was closed, deleted or taken offline.
        self.closed = False

    # What is asked for most

    @property
    def partition(self) -> TopicPartition:
        return self.local.partition

    @property
    def directory(self) -> LogDirectory:
        return self.local.directory

    @property
    def disk(self) -> Disk:
        return self.local.directory.disk

    @property
    def config(self) -> LogConfig:
        return self.local.config

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return self.local.segments

    @property
    def active(self) -> LogSegment:
        return self.local.active

    @property
    def log_end_offset(self) -> int:
        return self.local.log_end_offset

    @property
    def unflushed_messages(self) -> int:
        return self.local.log_end_offset - max(self.local.recovery_point, self.log_start_offset)

    # What is loaded when it is first needed

    def epoch_cache(self) -> LeaderEpochCache:
        loaded = self.epochs.loaded
        if loaded is not None:
            return loaded
        with self.guard("reading the leader epochs"):
            return self.epochs.cache(self.log_start_offset)

    def producer_state(self) -> ProducerStateManager:
        loaded = self.producers.loaded
        if loaded is not None:
            return loaded
        with self.guard("loading the producer state"):
            return self.producers.state(self.log_start_offset, self.high_watermark)

    # Whether it can be used

    def guard(self, action: str, *, fatal: bool = False) -> IoGuard:
        """A context for whatever touches the disk."""
        return IoGuard(self.local.directory, action, self.local.dir, fatal)

    def check_usable(self) -> None:
        directory = self.local.directory
        if not directory.is_online:
            directory.check_online()
        if self.closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.local.dir} is closed")

    def settle(self) -> None:
        """Make a new log part of the disk, here and now, unless it is."""
        if not self.identity.settled:
            with self.guard("settling a new log"):
                self.identity.settle()
            self.verified_end = True

    def verify_end(self) -> None:
        """Before the first change after a clean shutdown, see that the log ends where the checkpoint says;
        before the first change of a new log, settle it.
        """
        if self.verified_end:
            return
        if not self.identity.settled:
            self.settle()
            return
        with self.guard("finding the end of the log"):
            actual = self.active.next_offset()
            self.producers.mend_txn_index(self.active)
        if actual != self.log_end_offset:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.local.dir} ends at offset {actual}, but at its clean shutdown it ended at "
                f"{self.log_end_offset}: its files were changed since. Restore them, or stop the node and "
                f"remove {checkpoints.CLEAN_SHUTDOWN} in {self.directory.path} to have the log recovered",
            )
        self.verified_end = True
