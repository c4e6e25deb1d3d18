"""`MetadataBatchLoader`: replay batches of the metadata log into deltas, metadata transactions included.

A transaction (BeginTransactionRecord to EndTransactionRecord) lets a change span batches: no image shows
any of it before its end, and an AbortTransactionRecord undoes it. Invariant: an image never contains part
of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.metadata.image.delta import MetadataDelta, ReplayError
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from ottla.runtime.steps import Steps, run_at_once


class MetadataBatchLoader:
    """Replay the log in order; call `publish` for the image.

    Batches are collected in one delta until `publish` is called, so that loading a long log builds one image
    and not one per batch.
    """

    def __init__(self, image: MetadataImage = MetadataImage.EMPTY) -> None:
        self._image = image  # the image at the last publish
        self._delta = MetadataDelta(image)  # what was committed since
        self._provenance = image.provenance
        self._transaction: list[MetadataRecord] | None = None  # the records of the open transaction

    @property
    def transaction_open(self) -> bool:
        return self._transaction is not None

    @property
    def changed(self) -> bool:
        return self._delta.records > 0 or self._provenance != self._image.provenance

    def replay(self, records: Iterable[MetadataRecord], provenance: Provenance) -> None:
        """Replay one batch, which ends at `provenance`."""
        run_at_once(self.replay_in_steps(records, provenance))

    def replay_in_steps(self, records: Iterable[MetadataRecord], provenance: Provenance) -> Steps[None]:
        """The same, interruptible after each record."""
        for record in records:
            if isinstance(record, BeginTransactionRecord):
                if self._transaction is not None:
                    raise ReplayError("a metadata transaction begins inside another one")
                self._transaction = []
            elif isinstance(record, EndTransactionRecord):
                for held in self._take_transaction("ends"):
                    self._delta.replay(held)
                    yield
            elif isinstance(record, AbortTransactionRecord):
                self._take_transaction("is aborted")
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                self._delta.replay(record)
            yield
        assert provenance.last_contained_epoch >= self._provenance.last_contained_epoch, (
            f"the epoch of the metadata log goes back from {self._provenance} to {provenance}"
        )
        self._provenance = provenance

    def _take_transaction(self, what: str) -> list[MetadataRecord]:
        held = self._transaction
        if held is None:
            raise ReplayError(f"a metadata transaction {what} that had not begun")
        self._transaction = None
        return held

    def fork(self) -> MetadataBatchLoader:
        """A copy that has replayed the same; call it right after `publish`."""
        assert self._delta.records == 0, "records were replayed and are not published yet"
        other = MetadataBatchLoader(self._image)
        if self._transaction is not None:
            other._transaction = list(self._transaction)
        return other

    def publish(self) -> tuple[MetadataDelta, MetadataImage]:
        """The changes since the last publish, and the image with them."""
        delta = self._delta
        image = delta.apply(self._provenance)
        self._image = image
        self._delta = MetadataDelta(image)
        return delta, image
