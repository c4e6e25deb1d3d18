"""From the files of the metadata log to images: a snapshot, then the committed batches that come after it.

Every node has one, leader or not: what is committed is replayed here and nowhere else, and handed to
subscribers in its order. If the log begins anew behind a snapshot, so does the loader, and subscribers see
one step from the image before to that of the snapshot. What was replayed is published in a step of its own,
so that others can get ready for it. Invariant: what is published is exactly what the snapshot and the
committed part of the log say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import MetadataDelta, ReplayError
from ottla.metadata.image.difference import records_between
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.driver.disk_log import DiskLog, LoadedSnapshot
from ottla.records.batch import iter_batches, read_records

Step = tuple[MetadataDelta, MetadataImage]
Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class MetadataLoader:
    """``next_offset`` is the first one that was not published yet. What cannot be replayed raises
    StorageError: then nothing more is to be built upon this log.
    """

    def __init__(self, log: DiskLog, snapshot: LoadedSnapshot | None) -> None:
        self._log: Final = log
        self._subscribers: list[Subscriber] = []
        self._replayer = MetadataBatchLoader()
        self.next_offset = 0
        self._replayed_end = 0  # beyond next_offset exactly if there is something to publish
        self._next: Step | None = None
        self._image = MetadataImage.EMPTY
        if snapshot is not None:
            self._take_snapshot(snapshot)
        _, self._image = self._replayer.publish()

    @property
    def image(self) -> MetadataImage:
        return self._image

    @property
    def transaction_open(self) -> bool:
        """Whether the image leaves out records before ``next_offset``, as their transaction is not over, or
        may do so, as more was replayed since.
        """
        return self._replayer.transaction_open or self._next is not None

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call ``subscriber`` with every delta and image from here on; gives the image to start from."""
        self._subscribers.append(subscriber)
        return self._image

    def fork(self) -> MetadataBatchLoader:
        """What was replayed, to go on from by oneself."""
        return self._replayer.fork()

    def replay(self, end: int, max_bytes: int) -> int:
        """Take in what is committed below ``end``, or about ``max_bytes`` of it, to be published next; the
        bytes of records that there were.
        """
        assert self._next is None, "what was replayed before is not published yet"
        size = read = 0
        try:
            for data in self._log.batches(self.next_offset, end):
                size += self._replay_batches(data)
                read += len(data)
                if read >= max_bytes:
                    break
        except (ReplayError, KafkaError) as error:
            raise StorageError(
                f"{self._log.dir}: the metadata log cannot be replayed from offset {self._replayed_end} on: "
                f"{error}"
            ) from error
        if read:
            self._next = self._replayer.publish()
        return size

    @property
    def next_step(self) -> Step | None:
        """What was replayed and is not published yet."""
        return self._next

    def publish(self) -> None:
        """Hand out what was replayed."""
        step, self._next = self._next, None
        self.next_offset = self._replayed_end
        if step is not None:
            self._publish(*step)

    def _replay_batches(self, data: bytes) -> int:
        size = 0
        for position, header in iter_batches(data):
            provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
            if header.is_control:
                self._replayer.replay([], provenance)
            else:
                records = read_records(data, position)
                self._replayer.replay(
                    [decode_metadata_record(each.value or b"")[0] for each in records], provenance
                )
                size += header.size
            self._replayed_end = header.next_offset
        return size

    def begin_anew(self, snapshot: LoadedSnapshot) -> None:
        """The log begins behind this snapshot: what is known becomes what it says."""
        self.publish()
        before = self._image
        self._replayer = MetadataBatchLoader()
        self._take_snapshot(snapshot)
        _, image = self._replayer.publish()
        delta = before.delta()
        for record in records_between(before, image):
            delta.replay(record)
        self._publish(delta, image)

    def _take_snapshot(self, snapshot: LoadedSnapshot) -> None:
        id, content = snapshot.id, snapshot.content
        self.next_offset = self._replayed_end = id.offset
        if not content.values:
            return
        provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
        try:
            self._replayer.replay([decode_metadata_record(value)[0] for value in content.values], provenance)
        except (ReplayError, KafkaError) as error:
            raise StorageError(
                f"{self._log.dir}/{id.file_name}: the metadata snapshot cannot be replayed: {error}"
            ) from error

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        for subscriber in self._subscribers:
            subscriber(delta, image)
