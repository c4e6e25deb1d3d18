"""`MetadataLoader`: replay the metadata log into images, a snapshot first, then the committed batches.

Every node has one, leader or not: committed records are replayed here and nowhere else, and published to the
subscribers in order. If the log starts over after a snapshot, so does the loader, and subscribers get one
delta from the image before to that of the snapshot. Replaying and publishing are two steps, so that the node
can prepare for a delta in between. Invariant: a published image is exactly the snapshot with the committed
records of the log after it. A subscriber's error is logged, and neither the log nor other subscribers learn
of it: what is committed stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import MetadataDelta, ReplayError
from ottla.metadata.image.difference import records_between
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog, LoadedSnapshot
from ottla.records.batch import iter_batches, read_records
from ottla.runtime import invariants

_log = logging.getLogger(__name__)

Step = tuple[MetadataDelta, MetadataImage]
Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class MetadataLoader:
    """`next_offset` is the first offset that was not published yet. A record that cannot be replayed raises
    StorageError; the log must not be used any more then.
    """

    def __init__(self, log: KafkaRaftLog, snapshot: LoadedSnapshot | None) -> None:
        self._log: Final = log
        self._subscribers: list[Subscriber] = []
        self._batch_loader = MetadataBatchLoader()
        self.next_offset = 0
        self._replayed_end = 0  # greater than next_offset exactly if there is something to publish
        self._next: Step | None = None
        self.image = MetadataImage.EMPTY
        if snapshot is not None:
            self._replay_snapshot(snapshot)
        _, self.image = self._batch_loader.publish()

    @property
    def transaction_open(self) -> bool:
        """Whether the image lacks records before `next_offset` because their transaction is open, or may lack
        them because more was replayed since.
        """
        return self._batch_loader.transaction_open or self._next is not None

    def subscribe(self, subscriber: Subscriber) -> MetadataImage:
        """Call `subscriber` with every delta and image from here on; returns the image to start from."""
        self._subscribers.append(subscriber)
        return self.image

    def fork(self) -> MetadataBatchLoader:
        """A copy of the batch loader that has replayed the same records."""
        return self._batch_loader.fork()

    def replay(self, end: int, max_bytes: int) -> int:
        """Replay the committed records below `end`, or about `max_bytes` of them, to be published next; the
        size of the records in bytes.
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
            self._next = self._batch_loader.publish()
        return size

    @property
    def next_step(self) -> Step | None:
        """The delta and image that were replayed and are not published yet."""
        return self._next

    def publish(self) -> None:
        """Publish what was replayed to the subscribers."""
        assert self._replayed_end >= self.next_offset, (
            f"the published offset would go back from {self.next_offset} to {self._replayed_end}"
        )
        step, self._next = self._next, None
        self.next_offset = self._replayed_end
        if step is not None:
            self._publish(*step)

    def _replay_batches(self, data: bytes) -> int:
        size = 0
        for position, header in iter_batches(data):
            provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
            if header.is_control:
                self._batch_loader.replay([], provenance)
            else:
                records = read_records(data, position)
                self._batch_loader.replay(
                    [decode_metadata_record(each.value or b"")[0] for each in records], provenance
                )
                size += header.size
            self._replayed_end = header.next_offset
        return size

    def load_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace the image by that of a snapshot after which the log starts over."""
        self.publish()
        before = self.image
        self._batch_loader = MetadataBatchLoader()
        self._replay_snapshot(snapshot)
        _, image = self._batch_loader.publish()
        delta = MetadataDelta(before)
        for record in records_between(before, image):
            delta.replay(record)
        self._publish(delta, image)

    def _replay_snapshot(self, snapshot: LoadedSnapshot) -> None:
        id, content = snapshot.id, snapshot.content
        self.next_offset = self._replayed_end = id.offset
        if not content.values:
            return
        provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
        try:
            self._batch_loader.replay(
                [decode_metadata_record(value)[0] for value in content.values], provenance
            )
        except (ReplayError, KafkaError) as error:
            raise StorageError(
                f"{self._log.dir}/{id.file_name}: the metadata snapshot cannot be replayed: {error}"
            ) from error

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        for subscriber in self._subscribers:
            try:
                subscriber(delta, image)
            except Exception as error:
                if invariants.thorough and isinstance(error, AssertionError):
                    raise
                offset = image.provenance.last_contained_offset
                _log.exception("a part of the node did not follow the metadata up to offset %d", offset)
