"""From the files of the metadata log to images: a snapshot, and the batches that come after it.

What was not committed is not replayed, but a voter alone commits all that it has. Invariant: what is
replayed is exactly what the snapshot and the log say, in their order.
"""

from __future__ import annotations

from ottla.metadata.image import Provenance
from ottla.metadata.replay import Replayer
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.disk_log import DiskLog, LoadedSnapshot
from ottla.records.batch import iter_batches, read_records


def replay_snapshot(replayer: Replayer, snapshot: LoadedSnapshot | None) -> int:
    """Take in a snapshot, if there is one; the offset to go on from."""
    if snapshot is None:
        return 0
    id, content = snapshot.id, snapshot.content
    if content.values:
        provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
        replayer.replay([decode_metadata_record(value)[0] for value in content.values], provenance)
    return id.offset


def replay_log(replayer: Replayer, log: DiskLog, start: int, end: int) -> int:
    """Take in the batches of the log from ``start`` to ``end``; how many bytes of records there were."""
    size = 0
    for data in log.batches(start, end):
        for position, header in iter_batches(data):
            provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
            if header.is_control:
                replayer.replay([], provenance)
                continue
            records = read_records(data, position)
            replayer.replay([decode_metadata_record(each.value or b"")[0] for each in records], provenance)
            size += header.size
    return size
