"""Records that should be there and are not: fail or log, as `failOnDataLoss` says."""

from __future__ import annotations

import logging

from ottla.protocol.names import TopicPartition

log = logging.getLogger(__name__)


class DataLoss(RuntimeError):
    """Records that were to be read are gone. The text names them and what the user can do."""


class DataLossPolicy:
    """Raises `DataLoss`, or logs it and lets the read continue with what is there."""

    __slots__ = ("_fail",)

    def __init__(self, fail_on_data_loss: bool) -> None:
        self._fail = fail_on_data_loss

    def report(self, what: str) -> None:
        if self._fail:
            raise DataLoss(
                f"{what}. Set failOnDataLoss to false to continue with what is there, or start a new query "
                "(a new checkpoint) from where data is"
            )
        log.warning("%s; continuing, as failOnDataLoss is false", what)

    def report_expired(self, partition: TopicPartition, start: int, end: int, log_start: int) -> None:
        lost = min(end, log_start)
        self.report(
            f"{partition}: offsets {start} to {lost - 1} are no longer in the log, which begins at "
            f"{log_start} (deleted by retention, compaction or DeleteRecords)"
        )

    def report_beyond_end(self, partition: TopicPartition, wanted: int, log_end: int) -> None:
        self.report(
            f"{partition}: offset {wanted} lies beyond the end of the log, {log_end} "
            "(truncated, or the partition was deleted and created again)"
        )

    def report_recreated(self, topic: str) -> None:
        self.report(
            f"topic {topic!r} was deleted and created again, or these are other brokers than before: it has "
            "another topic id than the one that was read, whose offsets mean nothing in it"
        )

    def report_deleted(self, partitions: list[TopicPartition]) -> None:
        names = ", ".join(map(str, partitions[:10])) + (", …" if len(partitions) > 10 else "")
        self.report(f"{names} no longer exist (was the topic deleted?); records in them may have been missed")
