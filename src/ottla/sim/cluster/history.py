"""The committed records of a partition, as the first replica whose high watermark passed them had them.

Other replicas and clients are compared with it: a replica whose high watermark passes an offset must have the
same batch there, and a record that a client has read or written must be in it. Which records `read_committed`
may show follows from the markers in the history. Invariant: a history only grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.records._kernel import Record
from ottla.records.batch import BatchHeader, read_records
from ottla.records.control import ControlType


class Mismatch(AssertionError):
    """A replica has another batch than the one that was committed."""


class _Batch(NamedTuple):
    next_offset: int
    epoch: int
    crc: int


class CommittedRecord:
    """A record below the high watermark. `decided` is None while its transaction is open, then whether it
    committed.
    """

    __slots__ = ("decided", "offset", "value")

    def __init__(self, offset: int, value: bytes | None, decided: bool | None) -> None:
        self.offset = offset
        self.value = value
        self.decided = decided

    def __repr__(self) -> str:
        return f"<{self.value!r} at {self.offset}>"


class PartitionHistory:
    """The committed batches and records of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._batches: dict[int, _Batch] = {}
        self.end = 0
        self.entries: dict[int, CommittedRecord] = {}
        self._open: dict[int, list[CommittedRecord]] = {}  # producer id -> records of its open transaction
        # Called with each record, in order, as it is committed.
        self.on_record: Callable[[Record], None] | None = None

    @property
    def last_stable_offset(self) -> int:
        return min((entries[0].offset for entries in self._open.values() if entries), default=self.end)

    def on_committed(
        self, data: bytes, position: int, header: BatchHeader, who: str, *, is_compacted: bool = False
    ) -> None:
        """Compare a batch below the high watermark of a replica, and add it if it is new. Of a compacted
        topic a replica may have less than was committed, and nothing else.
        """
        if is_compacted and header.base_offset < self.end:
            self._compare_records(data, position, header, who)
            return
        batch = _Batch(header.next_offset, header.leader_epoch, header.crc)
        known = self._batches.get(header.base_offset)
        if known is not None:
            if known != batch:
                raise Mismatch(
                    f"{who} has {batch} at {header.base_offset} of {self.name}, where {known} was committed"
                )
            return
        if header.base_offset < self.end:
            raise Mismatch(
                f"{who} has a batch at {header.base_offset} of {self.name} that begins where none did; "
                f"everything below {self.end} is committed"
            )
        self._batches[header.base_offset] = batch
        self.end = header.next_offset
        self._take(data, position, header)

    def _compare_records(self, data: bytes, position: int, header: BatchHeader, who: str) -> None:
        for record in () if header.is_control else read_records(data, position):
            entry = self.entries.get(record.offset)
            value = None if record.value is None else bytes(record.value)
            if entry is None or entry.value != value:
                raise Mismatch(
                    f"{who} has {value!r} at {record.offset} of {self.name}, where {entry} was committed"
                )

    def _take(self, data: bytes, position: int, header: BatchHeader) -> None:
        records = read_records(data, position)
        if header.is_control:
            kinds = {ControlType.of_key(record.key) for record in records}
            if kinds & {ControlType.COMMIT, ControlType.ABORT}:
                for entry in self._open.pop(header.producer_id, []):
                    entry.decided = ControlType.COMMIT in kinds
            return
        for record in records:
            value = None if record.value is None else bytes(record.value)
            entry = CommittedRecord(record.offset, value, None if header.is_transactional else True)
            self.entries[record.offset] = entry
            if self.on_record is not None:
                self.on_record(record)
            if header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(entry)

    def leader_epochs(self) -> list[tuple[int, int]]:
        """The base offset and the leader epoch of each batch, in order."""
        return [(base, batch.epoch) for base, batch in self._batches.items()]

    def visible(self) -> list[CommittedRecord]:
        """The records that a `read_committed` consumer sees now, in order."""
        stable = self.last_stable_offset
        return [entry for entry in self.entries.values() if entry.decided and entry.offset < stable]
