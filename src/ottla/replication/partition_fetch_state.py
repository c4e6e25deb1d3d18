"""One partition that this broker fetches from its leader: the next request, and what a response does.

The log decides. The next fetch begins at its end and names the epoch of its last record. A leader that ended
that epoch earlier, or never had it, answers with its own end of the epoch (the diverging epoch). The follower
then truncates its log to the last offset that both may have in common before it fetches again. Records are
appended exactly as they came. Invariant: the records below the offset of a fetch are, up to the last epoch
named with it, the same in both logs, or are about to be truncated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.log.truncation import LogTruncation
from ottla.log.unified_log import UnexpectedAppendOffset, UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.replication.partition import NO_EPOCH, Partition
from ottla.replication.replica_fetch_session import Key

if TYPE_CHECKING:
    from ottla.replication.tier_state_machine import TieredStart

_log = logging.getLogger(__name__)


def common_end_offset(log: UnifiedLog, epoch: int, end_offset: int) -> int:
    """The offset up to which a log may agree with another one that ended `epoch` at `end_offset`.

    If the log never had that epoch, the end of its own greatest epoch below it is the next candidate.
    """
    own_epoch, own_end = log.end_offset_for_epoch(epoch)
    if own_epoch == epoch:
        target = min(own_end, end_offset)
    elif own_epoch >= 0:
        target = own_end
    else:
        target = end_offset
    return min(target, log.log_end_offset)


class AfterFetch(Enum):
    """The next step of a fetcher for a partition after a response."""

    FETCH = "fetch again at once"
    NAME_AGAIN = "fetch again at once, as if new to the session: not all that the answer said was taken in"
    PAUSE = "fetch again after a pause"
    TRUNCATE = "truncate the log first, in the background"
    FETCH_OFFSETS = "ask for the bounds of the leader's log first"
    BUILD_AUXILIARY_STATE = "find in remote storage where to begin, in the background"
    STOP = "stop until the metadata changes"


# The leader, or this broker, does not know the newest leader epoch yet, but will soon.
_TRANSIENT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    }
)


_FIRST_PAUSE_MS: Final = 20


class PartitionFetchState:
    """One partition in one leader epoch. A new epoch makes a new object, so late responses are dropped."""

    __slots__ = (
        "_due_truncation",
        "_last_error",
        "_listener",
        "_pause_ms",
        "has_caught_up",
        "lag",
        "leader_epoch",
        "leader_id",
        "partition",
        "paused_until_ms",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition: Final = partition
        self.leader_epoch: Final = partition.leader_epoch
        self.leader_id: Final = partition.leader_id
        self.paused_until_ms = 0  # of a monotonic clock
        self.has_caught_up = False  # with the leader's high watermark, as of the last answer
        self.lag = 0  # records below the leader's high watermark that are not here, as of the last answer
        self._pause_ms = 0
        self._listener: Callable[[], None] | None = None
        self._due_truncation: Callable[[], LogTruncation | None] | None = None
        self._last_error: str | None = None  # of this broker, since the last good response

    def __repr__(self) -> str:
        return f"<fetch state of {self.partition.topic_partition} in epoch {self.leader_epoch}>"

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and partition.leader_id == self.leader_id

    @property
    def key(self) -> Key:
        return self.partition.topic_id, self.partition.topic_partition.partition

    def follow_log(self, listener: Callable[[], None]) -> None:
        """Call the listener when the request changes by something else than a response."""
        self.partition.log.request_listener = self._listener = listener

    def unfollow_log(self) -> None:
        log = self.partition.log
        if log.request_listener is self._listener:
            log.request_listener = None

    def next_attempt_ms(self, now_ms: int, longest_ms: int) -> int:
        """Count a failure and return the time of the next fetch: shortly after the first, as errors right
        after an election mostly pass at once, then up to `replica.fetch.backoff.ms` later.
        """
        self._pause_ms = min(max(2 * self._pause_ms, _FIRST_PAUSE_MS), longest_ms)
        return now_ms + self._pause_ms

    def reset_backoff(self) -> None:
        """Note a good response: the next pause is a short one again."""
        self._pause_ms = 0
        self._last_error = None

    def note_error(self, error: Exception) -> bool:
        """Note an error of this broker's log; True if the last one had another cause, so that it is to be
        logged.
        """
        cause = f"{type(error).__name__}: {error}"
        known, self._last_error = self._last_error, cause
        return known != cause

    @property
    def is_flush_due(self) -> bool:
        """Whether the log is to be flushed before the next request."""
        return self.partition.log.is_flush_due

    @property
    def lacks_auxiliary_state(self) -> bool:
        """Whether the log begins behind what is in remote storage, empty, and does not know of it: a crash
        has interrupted that, or a truncation has left nothing here. Then it is to begin again at the log
        start, from where the leader sends it on.
        """
        log = self.partition.log
        if not (log.has_no_records and (log.lacks_auxiliary_state or log.lacks_producers)):
            return False
        start = log.log_start_offset
        self._due_truncation = lambda: log.begin_full_truncation(start)
        return True

    @property
    def has_doubtful_end(self) -> bool:
        """Whether the last batch of the log is to be removed, and fetched again: recovery cannot say that its
        offset is the right one. Not of a replica in sync, which the controller counts on.
        """
        partition, log = self.partition, self.partition.log
        offset = log.doubtful_from
        if offset is None or partition.is_in_sync_follower:
            return False
        self._due_truncation = lambda: log.begin_truncation(offset)
        return True

    def fetch_request(self, max_bytes: int) -> FetchPartition:
        """The next request. It says that this replica has what is below its offset, so no flush may be
        due.
        """
        log = self.partition.log
        assert not self.is_flush_due, f"{self}: durable below {log.recovery_point} of {log.log_end_offset}"
        log.check_leader_epochs(self.leader_epoch)
        epoch = log.latest_epoch
        return FetchPartition(
            partition=self.partition.topic_partition.partition,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=NO_EPOCH if epoch is None else epoch,
            log_start_offset=log.log_start_offset,
            # The records of a response go into one segment.
            partition_max_bytes=min(max_bytes, log.config.segment_bytes),
        )

    def process_partition_data(self, asked_offset: int, answer: PartitionData, now_ms: int) -> AfterFetch:
        """Apply a response to the log. KafkaError: the log could not, and its directory has noted why."""
        if answer.error_code != ErrorCode.NONE:
            return self._on_error(ErrorCode.of(answer.error_code))
        log = self.partition.log
        if asked_offset != log.log_end_offset:
            # The log end has moved since the request, so the records do not follow on it.
            return AfterFetch.NAME_AGAIN
        if answer.diverging_epoch.epoch >= 0:
            diverging = answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset
            self._due_truncation = lambda: self._begin_truncation_to_diverging_epoch(*diverging)
            return AfterFetch.TRUNCATE
        if answer.records:
            try:
                self.partition.append_records_to_follower(answer.records, self.leader_epoch, now_ms=now_ms)
            except UnexpectedAppendOffset as error:
                _log.warning(
                    "%s: the leader sent records that do not follow on the log end: %s", self, error.message
                )
                return AfterFetch.PAUSE
            except KafkaError as error:
                if error.code not in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
                    raise
                _log.warning("%s: the leader sent corrupt records: %s", self, error.message)
                return AfterFetch.PAUSE
        self.partition.follow_leader_offsets(answer.high_watermark, answer.log_start_offset)
        self.lag = max(0, answer.high_watermark - log.log_end_offset)
        self.has_caught_up = not self.lag
        return AfterFetch.FETCH

    def _on_error(self, error: ErrorCode) -> AfterFetch:
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return AfterFetch.FETCH_OFFSETS
        if error is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE and self.partition.log.config.is_remote:
            return AfterFetch.BUILD_AUXILIARY_STATE
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            # There is a newer leader; the metadata log names it, and a new object is made for it.
            return AfterFetch.STOP
        if error not in _TRANSIENT:
            _log.warning("%s: the leader answers %s", self, error.name)
        return AfterFetch.PAUSE

    def on_leader_bounds(self, leader_start: int, leader_end: int) -> AfterFetch:
        """Note the bounds of the leader's log, which does not have the offset of the last fetch."""
        self._due_truncation = lambda: self._begin_truncation_to_bounds(leader_start, leader_end)
        return AfterFetch.TRUNCATE

    def on_tiered_start(self, start: TieredStart) -> None:
        """Note where to begin: the records before are in remote storage only."""
        self._due_truncation = lambda: self._begin_at_tiered_start(start)

    def on_producers(self, snapshot: bytes) -> None:
        """Note the producers where the log begins on this disk, which it lacks."""
        self._due_truncation = lambda: self.partition.log.begin_restoring_producers(snapshot)

    def _begin_at_tiered_start(self, start: TieredStart) -> LogTruncation:
        _log.info(
            "%s begins at %d: its leader has the records from %d on in remote storage only",
            self,
            start.offset,
            start.log_start_offset,
        )
        return self.partition.log.begin_full_truncation(
            start.offset, start.log_start_offset, start.auxiliary_state
        )

    def begin_truncation(self) -> LogTruncation | None:
        """Begin the truncation that the last response asked for; None if there is nothing to do."""
        begin, self._due_truncation = self._due_truncation, None
        return None if begin is None else begin()

    def _begin_truncation_to_diverging_epoch(
        self, leader_epoch: int, leader_end_offset: int
    ) -> LogTruncation | None:
        """Truncate the log to the part that it may share with a leader whose `leader_epoch` ended there; the
        next fetch checks whether the logs agree. Kafka's `truncateOnFetchResponse`.
        """
        log = self.partition.log
        target = common_end_offset(log, leader_epoch, leader_end_offset)
        if target < log.high_watermark:
            _log.warning(
                "%s is truncated to %d, below its high watermark %d: the leader was elected without them",
                self,
                target,
                log.high_watermark,
            )
        _log.info("%s is truncated from %d to %d", self, log.log_end_offset, target)
        return self._begin_truncation(target)

    def _begin_truncation_to_bounds(self, leader_start: int, leader_end: int) -> LogTruncation | None:
        """Move the log end into the leader's log, from `leader_start` to `leader_end`."""
        log = self.partition.log
        end = log.log_end_offset
        if leader_end < end:
            # The leader was elected without records that this log has. Epochs cannot tell where the logs
            # diverge, since the leader no longer knows them.
            _log.warning("%s is truncated from %d to the end of its leader's log, %d", self, end, leader_end)
            return self._begin_truncation(leader_end)
        if leader_start > end:
            _log.info(
                "%s starts again at %d: its leader has deleted the records from %d on",
                self,
                leader_start,
                end,
            )
            return log.begin_full_truncation(leader_start)
        return None

    def _begin_truncation(self, offset: int) -> LogTruncation:
        log = self.partition.log
        if offset >= log.log_start_offset:
            return log.begin_truncation(offset)
        return log.begin_full_truncation(offset)
