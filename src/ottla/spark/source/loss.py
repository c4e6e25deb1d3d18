"""Data that should be there and is not: a failure, or a line in the log, as `failOnDataLoss` says."""

from __future__ import annotations

import logging

from ottla.protocol.names import TopicPartition

__all__ = ["DataLoss", "LossPolicy"]

log = logging.getLogger(__name__)


class DataLoss(RuntimeError):
    """Records that were to be read are gone. The text names them and the choices there are."""


class LossPolicy:
    __slots__ = ("_fail",)

    def __init__(self, fail_on_data_loss: bool) -> None:
        self._fail = fail_on_data_loss

    def report(self, what: str) -> None:
        """Raises, or logs and lets the read go on with what is there."""
        if self._fail:
            raise DataLoss(
                f"{what}. Set failOnDataLoss to false to go on with what is there, or start a new query "
                "(a new checkpoint) from where data is"
            )
        log.warning("%s; going on, as failOnDataLoss is false", what)

    def expired(self, partition: TopicPartition, start: int, end: int, log_start: int) -> None:
        lost = min(end, log_start)
        self.report(
            f"{partition}: offsets {start} to {lost - 1} are no longer in the log, which begins at "
            f"{log_start} (deleted by retention, compaction or DeleteRecords)"
        )

    def beyond_the_end(self, partition: TopicPartition, wanted: int, log_end: int) -> None:
        self.report(
            f"{partition}: offset {wanted} lies beyond the end of the log, {log_end} "
            "(truncated, or a partition that was made anew)"
        )

    def recreated(self, topic: str) -> None:
        self.report(
            f"topic {topic!r} was deleted and created again, or these are other brokers than before: it has "
            "another topic id than the one that was read, and the offsets of that one mean nothing in it"
        )

    def gone(self, partitions: list[TopicPartition]) -> None:
        names = ", ".join(map(str, partitions[:10])) + (", …" if len(partitions) > 10 else "")
        self.report(f"{names} no longer exist (was the topic deleted?); records in them may have been missed")
