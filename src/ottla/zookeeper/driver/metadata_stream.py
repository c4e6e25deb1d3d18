"""`MetadataStream`: the metadata records of one controller epoch, in memory.

With ZooKeeper the znodes are what lasts. Records are how the active controller tells the other nodes: its
stream starts with a snapshot of what the znodes said when it was elected, and has the records that it has
committed since. The offsets of an epoch follow from the epoch, so those of a later controller are always
larger, though no log continues. Invariant: what is below the high watermark is stored in znodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.snapshot import SnapshotContent, SnapshotId, decode_snapshot
from ottla.records.batch import iter_batches

# The records of an epoch have offsets from `epoch << _EPOCH_SHIFT` on.
_EPOCH_SHIFT: Final = 32
_READ_BYTES: Final = 1024 * 1024


def first_offset(epoch: int) -> int:
    """The first offset of a controller's epoch."""
    return epoch << _EPOCH_SHIFT


class StreamSnapshots:
    """The snapshots from which the stream, or a part of it, can be followed."""

    def __init__(self) -> None:
        self.ids: list[SnapshotId] = []  # oldest first
        self._data: dict[SnapshotId, bytes] = {}

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def read(self, id: SnapshotId) -> SnapshotContent:
        data = self._data.get(id)
        if data is None:
            # The stream has started over meanwhile, after the snapshot of a later controller.
            raise KafkaError(ErrorCode.SNAPSHOT_NOT_FOUND, f"{id} is not kept any more")
        return decode_snapshot(data)

    def data(self, id: SnapshotId) -> bytes | None:
        """The bytes of a snapshot; None if it is not kept any more."""
        return self._data.get(id)

    def write(self, id: SnapshotId, batches: Iterable[bytes]) -> None:
        self._data[id] = b"".join(batches)

    def add(self, id: SnapshotId) -> None:
        if id not in self.ids:
            self.ids.append(id)
            self.ids.sort()

    def remove(self, id: SnapshotId) -> None:
        self.ids.remove(id)
        self._data.pop(id, None)

    def replace_all(self, id: SnapshotId, data: bytes) -> None:
        self.ids = [id]
        self._data = {id: data}


class MetadataStream:
    """A `MetadataRecordStore`. It is small: a snapshot replaces the records before it."""

    def __init__(self) -> None:
        self.dir: Final = "the metadata of the active controller"
        self.snapshots: Final = StreamSnapshots()
        self.start_offset = 0
        self.high_watermark = 0
        self.end = OffsetAndEpoch(0, 0)
        # (first offset, offset after the last, bytes) of each batch, in order.
        self._batches: list[tuple[int, int, bytes]] = []

    def start_after(self, id: SnapshotId, data: bytes) -> None:
        """Start over after a snapshot."""
        self.snapshots.replace_all(id, data)
        self._batches = []
        self.start_offset = self.high_watermark = id.offset
        self.end = OffsetAndEpoch(id.offset, id.epoch)

    def append(self, data: bytes) -> None:
        """Append whole batches."""
        for position, header in iter_batches(data):
            assert header.base_offset == self.end.offset, (
                f"a batch of offset {header.base_offset} does not follow on {self.end}"
            )
            self._batches.append(
                (header.base_offset, header.next_offset, bytes(data[position : position + header.size]))
            )
            self.end = OffsetAndEpoch(header.next_offset, header.leader_epoch)

    def update_high_watermark(self, offset: int) -> None:
        assert self.high_watermark <= offset <= self.end.offset, (
            f"the high watermark would move from {self.high_watermark} to {offset}, and the end is {self.end}"
        )
        self.high_watermark = offset

    def truncate_to_high_watermark(self) -> None:
        """Drop what is not committed."""
        while self._batches and self._batches[-1][1] > self.high_watermark:
            self._batches.pop()
        self.end = OffsetAndEpoch(self.high_watermark, self.end.epoch)

    def batches(self, start: int, end: int | None = None) -> Iterator[bytes]:
        """Read from `start` on and below `end`, in pieces of whole batches."""
        limit = self.end.offset if end is None else end
        piece: list[bytes] = []
        size = 0
        for first, following, data in self._batches[self._find(start) :]:
            if first >= limit:
                break
            assert following <= limit, f"offset {limit} is in the middle of a batch"
            piece.append(data)
            size += len(data)
            if size >= _READ_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)

    def read_committed(self, offset: int, max_bytes: int) -> bytes:
        """Read committed batches from `offset` on: at least one if there is one, then up to `max_bytes`."""
        found: list[bytes] = []
        size = 0
        for _, following, data in self._batches[self._find(offset) :]:
            if following > self.high_watermark or (found and size + len(data) > max_bytes):
                break
            found.append(data)
            size += len(data)
        return b"".join(found)

    def _find(self, offset: int) -> int:
        """The index of the first batch that ends after `offset`."""
        low, high = 0, len(self._batches)
        while low < high:
            middle = (low + high) // 2
            if self._batches[middle][1] <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def on_snapshot_written(self, id: SnapshotId) -> None:
        """Note that a snapshot of committed records is there; what is before it is dropped."""
        self.snapshots.add(id)
        self.trim()

    def trim(self) -> None:
        newest = self.snapshots.newest
        if newest is None:
            return
        for older in self.snapshots.ids[:-1]:
            self.snapshots.remove(older)
        del self._batches[: self._find(newest.offset)]
        self.start_offset = max(self.start_offset, newest.offset)

    def release(self) -> None:
        pass
