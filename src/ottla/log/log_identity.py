"""Which topic a log belongs to, and whether a new log is part of the disk yet.

The topic's id is in `partition.metadata`, which is read when it is first asked for. A new log is settled,
here and now or off the event loop (`settlement`), before its first record is written.
"""

from __future__ import annotations

import posixpath

from ottla.log.directory import checkpoints
from ottla.log.directory.log_creation import Settlement
from ottla.log.files import PARTITION_METADATA
from ottla.log.local_log import LocalLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import uuid_text


class LogIdentity:
    __slots__ = ("_local", "_topic_id", "settled")

    def __init__(self, local: LocalLog, topic_id: bytes | None, *, settled: bool) -> None:
        self._local = local
        self._topic_id = topic_id
        # False while a crash may leave anything, or nothing, of a new log; then it is empty.
        self.settled = settled

    def topic_id(self) -> bytes | None:
        if self._topic_id is None:
            dir = self._local.dir
            try:
                self._topic_id = checkpoints.read_topic_id(self._local.directory.disk, self._path)
            except checkpoints.CorruptCheckpoint as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{error}; without it nobody can say which topic the data in {dir} belongs to",
                ) from None
        return self._topic_id

    def assign(self, topic_id: bytes) -> None:
        """INCONSISTENT_TOPIC_ID if the log is known to be another topic's."""
        known = self.topic_id()
        if known is None:
            checkpoints.write_topic_id(self._local.directory.disk, self._path, topic_id)
            self._topic_id = topic_id
        elif known != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{self._local.dir} belongs to the topic id {uuid_text(known)}, not {uuid_text(topic_id)}",
            )

    def settlement(self) -> Settlement | None:
        """What would settle the log without blocking; None if that is not needed."""
        if self.settled or self._topic_id is None:
            return None
        local = self._local
        return Settlement(local.directory.disk, local.dir, self._topic_id, local.names_version)

    def settle(self) -> None:
        """Settle the log here and now."""
        local = self._local
        if self._topic_id is not None:
            checkpoints.write_topic_id(local.directory.disk, self._path, self._topic_id)
            local.note_names_synced(local.names_version)
        else:
            local.sync_names()
        self.settled = True

    @property
    def _path(self) -> str:
        return posixpath.join(self._local.dir, PARTITION_METADATA)
