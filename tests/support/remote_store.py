"""What is in remote storage, as its metadata say, and as the store has it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ottla.records.batch import iter_batches, read_records
from ottla.remote.object_layout import SUFFIXES, object_key
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    decode_event,
)

METADATA_TOPIC = "__remote_log_metadata"


def metadata_events(data_dir: str | Path) -> list[RemoteLogMetadataEvent]:
    """All events of `__remote_log_metadata` in the data directory of a node, in the order of each of its
    partitions. Read from the files: the tests ask again and again. Files may go while they are listed.
    """
    events: list[RemoteLogMetadataEvent] = []
    for partition in sorted(Path(data_dir).glob(f"{METADATA_TOPIC}-*")):
        for path in sorted(partition.glob("*.log")):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            for position, _ in iter_batches(data):
                for record in read_records(data, position):
                    assert record.key is None
                    event = decode_event(record.value or b"")
                    assert event is not None
                    events.append(event)
    return events


def knlog_lineage(events: Iterable[RemoteLogMetadataEvent]) -> list[RemoteLogSegmentMetadata]:
    """The segments that are not deleted after these events, by their start offsets."""
    found: dict[object, RemoteLogSegmentMetadata] = {}
    for event in events:
        if isinstance(event, RemoteLogSegmentMetadata):
            found.setdefault(event.id, event)
        elif isinstance(event, RemoteLogSegmentMetadataUpdate) and event.id in found:
            found[event.id] = found[event.id].with_update(event)
            if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                del found[event.id]
    return sorted(found.values(), key=lambda each: each.start_offset)


def finished_segments(data_dir: str | Path, topic: str) -> list[RemoteLogSegmentMetadata]:
    return [
        each
        for each in knlog_lineage(metadata_events(data_dir))
        if each.id.topic_partition.topic == topic
        and each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]


def objects_of(segments: Iterable[RemoteLogSegmentMetadata]) -> set[str]:
    """The keys that a store has of these segments."""
    return {object_key("", each, suffix) for each in segments for suffix in SUFFIXES}


def stored_objects(root: Path) -> set[str]:
    """The keys of a store that is a directory, also of what was not written to its end. Directories may go
    while they are listed, which `rglob` takes for an error.
    """
    return {
        (Path(directory) / name).relative_to(root).as_posix()
        for directory, _, names in os.walk(root)
        for name in names
    }


def manifests(root: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(root.rglob("*.rsm-manifest"))]


def unsettled(data_dir: str | Path, root: Path) -> list[str]:
    """Where the store has other objects than the metadata say, and which segments are under way."""
    segments = knlog_lineage(metadata_events(data_dir))
    return sorted(stored_objects(root) ^ objects_of(segments)) + [
        f"{each.id}: {each.state.name} of {each.start_offset} to {each.end_offset} by broker {each.broker_id}"
        for each in segments
        if each.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]


def is_settled(data_dir: str | Path, root: Path) -> bool:
    """Whether the store has exactly what the metadata say, and nothing is under way."""
    return not unsettled(data_dir, root)
