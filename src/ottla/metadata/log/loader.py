"""`MetadataLoader`: replay the metadata log into images, a snapshot first, then the committed batches.

Every node has one, leader or not: committed records are replayed here and nowhere else, and images go to the
`MetadataLog` in order. If the log starts over after a snapshot, so does the loader, with one delta from the
image before to that of the snapshot. Replaying gives way between records (`Steps`): a piece of the log
becomes an image, with its delta, once all of it has been replayed. Invariant: an image is exactly the
snapshot with the committed records of the log after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import MetadataDelta, ReplayError
from ottla.metadata.image.difference import records_between
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.log.log_driver import MetadataRecordStore
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.driver.kafka_raft_log import LoadedSnapshot
from ottla.records.batch import iter_batches, read_records
from ottla.runtime.steps import Steps, run_at_once

Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class MetadataLoader:
    """`next_offset` is the first offset that is not in the image yet. A record that cannot be replayed raises
    StorageError; the log must not be used any more then.
    """

    def __init__(self, log: MetadataRecordStore, snapshot: LoadedSnapshot | None) -> None:
        self._log: Final = log
        # Called with each image and its delta.
        self.on_image: Subscriber | None = None
        self._batch_loader = MetadataBatchLoader()
        self.next_offset = 0
        self._replayed_end = 0
        # Whether records were replayed that are not in the image yet.
        self.is_replaying = False
        # Whether the image lacks records before `next_offset` because their transaction is open.
        self.transaction_open = False
        self.image = MetadataImage.EMPTY
        if snapshot is not None:
            run_at_once(self._replay_snapshot(snapshot))
        _, self.image = self._batch_loader.publish()

    def fork(self) -> MetadataBatchLoader:
        """A copy of the batch loader that has replayed the same records; not while it is replaying."""
        return self._batch_loader.fork()

    def replay(self, end: int, max_bytes: int, is_abandoned: Callable[[], bool]) -> Steps[int]:
        """Replay the committed records below `end`, or about `max_bytes` of them, into the next image; the
        size of the records in bytes. What was replayed is dropped if `is_abandoned`, which says that the log
        has started over meanwhile; `load_snapshot` has to follow then.
        """
        size = read = 0
        self.is_replaying = True
        try:
            for data in self._log.batches(self.next_offset, end):
                size += yield from self._replay_batches(data)
                read += len(data)
                if is_abandoned():
                    return 0
                if read >= max_bytes:
                    break
        except (ReplayError, KafkaError) as error:
            raise StorageError(
                f"{self._log.dir}: the metadata log cannot be replayed from offset {self._replayed_end} on: "
                f"{error}"
            ) from error
        self.is_replaying = False
        if read:
            delta, image = self._batch_loader.publish()
            self._publish(delta, image)
        return size

    def _replay_batches(self, data: bytes) -> Steps[int]:
        size = 0
        for position, header in iter_batches(data):
            provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
            if header.is_control:
                yield from self._batch_loader.replay_in_steps((), provenance)
            else:
                records = read_records(data, position)
                yield from self._batch_loader.replay_in_steps(
                    (decode_metadata_record(each.value or b"")[0] for each in records), provenance
                )
                size += header.size
            self._replayed_end = header.next_offset
        return size

    def load_snapshot(self, snapshot: LoadedSnapshot) -> Steps[None]:
        """Replace the image by that of a snapshot after which the log starts over."""
        before = self.image
        self.is_replaying = True
        self._batch_loader = MetadataBatchLoader()
        yield from self._replay_snapshot(snapshot)
        _, image = self._batch_loader.publish()
        delta = MetadataDelta(before)
        for record in records_between(before, image):
            delta.replay(record)
            yield
        self.is_replaying = False
        self._publish(delta, image)

    def _replay_snapshot(self, snapshot: LoadedSnapshot) -> Steps[None]:
        id, content = snapshot.id, snapshot.content
        self._replayed_end = id.offset
        if content.values:
            provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
            try:
                yield from self._batch_loader.replay_in_steps(
                    (decode_metadata_record(value)[0] for value in content.values), provenance
                )
            except (ReplayError, KafkaError) as error:
                raise StorageError(
                    f"{self._log.dir}/{id.file_name}: the metadata snapshot cannot be replayed: {error}"
                ) from error
        self.next_offset = id.offset

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        self.next_offset = self._replayed_end
        self.transaction_open = self._batch_loader.transaction_open
        if self.on_image is not None:
            self.on_image(delta, image)
