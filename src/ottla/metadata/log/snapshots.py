"""An image of the metadata as a snapshot: everything that the log below its offset says, in fewer records."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import encode_record
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.raft.voters import VoterSet


def snapshot_id(image: MetadataImage) -> SnapshotId:
    provenance = image.provenance
    return SnapshotId(provenance.last_contained_offset + 1, provenance.last_contained_epoch)


def snapshot_batches(
    image: MetadataImage, *, kraft_version: int, voters: VoterSet | None, now_ms: int
) -> Iterator[bytes]:
    version = image.metadata_version
    return encode_snapshot(
        (encode_record(record, version) for record in image.records()),
        epoch=snapshot_id(image).epoch,
        timestamp=now_ms,
        last_contained_log_timestamp=image.provenance.last_contained_log_time_ms,
        kraft_version=kraft_version,
        voters=voters,
    )
