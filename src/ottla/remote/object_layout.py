"""The names and the content of a segment's objects: the layout of Aiven's tiered storage for Apache Kafka.

A segment is three objects, which are written in this order: `.log`, its records as they are on disk;
`.indexes`, the indexes one after the other; and `.rsm-manifest`, a JSON document that says where each index
is. A segment without its manifest is not complete. `docs/tiered-storage.md` describes every byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from ottla.protocol.names import TopicPartition, parse_uuid, uuid_text
from ottla.protocol.primitives import read_uvarint
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteStorageError
from ottla.remote.storage_manager import IndexType, LogSegmentData

LOG_SUFFIX: Final = "log"
INDEXES_SUFFIX: Final = "indexes"
MANIFEST_SUFFIX: Final = "rsm-manifest"
SUFFIXES: Final = (LOG_SUFFIX, INDEXES_SUFFIX, MANIFEST_SUFFIX)

DEFAULT_CHUNK_SIZE: Final = 4 * 1024 * 1024
MANIFEST_VERSION: Final = "1"
# In the order in which they stand in the object.
_INDEX_ORDER: Final = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
    IndexType.TRANSACTION,
)
# The fields of the custom metadata that change where a segment is.
_OBJECT_PREFIX_TAG: Final = 1
_OBJECT_KEY_TAG: Final = 2


def main_path(metadata: RemoteLogSegmentMetadata) -> str:
    """The key of the segment's objects without prefix and suffix.

    `orders-MWJ6FHTfRYy67jzwZdeqSQ/7/00000000000000001234-tqimKeZwStOEOwRzT3L5oQ`, for example.
    """
    id = metadata.id
    topic, partition = id.topic_partition
    return f"{topic}-{uuid_text(id.topic_id)}/{partition}/{metadata.start_offset:020d}-{uuid_text(id.id)}"


def partition_prefix(prefix: str, topic_id: bytes, topic_partition: TopicPartition) -> str:
    """What the keys of all objects of a partition begin with, unless its metadata name another place."""
    topic, partition = topic_partition
    return f"{prefix}{topic}-{uuid_text(topic_id)}/{partition}/"


def object_key(prefix: str, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """The key of one of the segment's objects. The metadata of a segment may name another place."""
    path = ""
    if metadata.custom_metadata:
        fields = _tagged_strings(metadata.custom_metadata)
        prefix = fields.get(_OBJECT_PREFIX_TAG, prefix)
        path = fields.get(_OBJECT_KEY_TAG, "")
    return f"{prefix}{path or main_path(metadata)}.{suffix}"


def _tagged_strings(data: bytes) -> dict[int, str]:
    """The texts among the tagged fields of custom metadata: a count, then tag, size and value of each."""
    found: dict[int, str] = {}
    try:
        count, at = read_uvarint(data, 0)
        for _ in range(count):
            tag, at = read_uvarint(data, at)
            size, at = read_uvarint(data, at)
            if tag in (_OBJECT_PREFIX_TAG, _OBJECT_KEY_TAG):
                length, begin = read_uvarint(data, at)
                found[tag] = data[begin : begin + length - 1].decode()
            at += size
    except (IndexError, UnicodeDecodeError):
        raise RemoteStorageError("the custom metadata of a segment is not readable") from None
    return found


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """What the manifest says: the size of the records, and the place of each index in its object."""

    log_size: int
    chunk_size: int
    indexes: dict[IndexType, tuple[int, int]]
    """Position and size; a type that the segment does not have is missing."""


def indexes_object(data: LogSegmentData) -> tuple[bytes, dict[IndexType, tuple[int, int]]]:
    """Return the content of the indexes object, and the place of each index in it."""
    contents = {
        IndexType.OFFSET: data.offset_index,
        IndexType.TIMESTAMP: data.time_index,
        IndexType.PRODUCER_SNAPSHOT: data.producer_snapshot,
        IndexType.LEADER_EPOCH: data.leader_epochs,
        IndexType.TRANSACTION: data.transaction_index,
    }
    parts: list[bytes] = []
    places: dict[IndexType, tuple[int, int]] = {}
    position = 0
    for index_type in _INDEX_ORDER:
        content = contents[index_type]
        if content is not None:
            places[index_type] = (position, len(content))
            parts.append(content)
            position += len(content)
    return b"".join(parts), places


def encode_manifest(manifest: SegmentManifest, metadata: RemoteLogSegmentMetadata) -> bytes:
    """Return the manifest object: JSON without white space, with the fields in this order."""
    chunk, size = manifest.chunk_size, manifest.log_size
    final_chunk = size - (max(0, size - 1) // chunk) * chunk
    topic, partition = metadata.id.topic_partition
    document = {
        "version": MANIFEST_VERSION,
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": chunk,
            "originalFileSize": size,
            "transformedChunkSize": chunk,
            "finalTransformedChunkSize": final_chunk,
        },
        "segmentIndexes": {
            index_type.value: _place(manifest.indexes.get(index_type)) for index_type in _INDEX_ORDER
        },
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": uuid_text(metadata.id.topic_id),
                    "topicPartition": {"topic": topic, "partition": partition},
                },
                "id": uuid_text(metadata.id.id),
            },
            "startOffset": metadata.start_offset,
            "endOffset": metadata.end_offset,
            "maxTimestampMs": metadata.max_timestamp_ms,
            "brokerId": metadata.broker_id,
            "eventTimestampMs": metadata.event_timestamp_ms,
            "segmentLeaderEpochs": {
                str(epoch): metadata.segment_leader_epochs[epoch] for epoch in metadata.leader_epochs
            },
        },
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _place(place: tuple[int, int] | None) -> dict[str, int] | None:
    return None if place is None else {"position": place[0], "size": place[1]}


def decode_manifest(data: bytes, key: str) -> SegmentManifest:
    """Read a manifest; `RemoteStorageError` if it is damaged, or of a segment that was transformed."""
    try:
        document: Any = json.loads(data)
        version = document["version"]
        if version != MANIFEST_VERSION:
            raise RemoteStorageError(f"{key} is a manifest of version {version}; only 1 can be read")
        for transformation in ("compression", "encryption"):
            if document.get(transformation):
                raise RemoteStorageError(
                    f"{key} belongs to a segment with {transformation}, which Ottla does not read; "
                    f"segments of uploads without {transformation} are read"
                )
        chunks = document["chunkIndex"]
        places = document["segmentIndexes"]
        return SegmentManifest(
            log_size=int(chunks["originalFileSize"]),
            chunk_size=int(chunks["originalChunkSize"]),
            indexes={
                index_type: (int(places[index_type.value]["position"]), int(places[index_type.value]["size"]))
                for index_type in _INDEX_ORDER
                if places.get(index_type.value) is not None
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteStorageError(f"{key} is not a manifest: {error!r}") from None


def decode_manifest_metadata(data: bytes, key: str) -> RemoteLogSegmentMetadata:
    """Read the metadata of its segment from a manifest, as they were when its copy began;
    `RemoteStorageError` if it cannot be read.
    """
    manifest = decode_manifest(data, key)
    try:
        described: Any = json.loads(data)["remoteLogSegmentMetadata"]
        id = described["remoteLogSegmentId"]
        at = id["topicIdPartition"]
        place = at["topicPartition"]
        return RemoteLogSegmentMetadata(
            id=RemoteLogSegmentId(
                parse_uuid(at["topicId"]),
                TopicPartition(str(place["topic"]), int(place["partition"])),
                parse_uuid(id["id"]),
            ),
            start_offset=int(described["startOffset"]),
            end_offset=int(described["endOffset"]),
            max_timestamp_ms=int(described["maxTimestampMs"]),
            broker_id=int(described["brokerId"]),
            event_timestamp_ms=int(described["eventTimestampMs"]),
            segment_size_in_bytes=manifest.log_size,
            segment_leader_epochs={
                int(epoch): int(offset) for epoch, offset in described["segmentLeaderEpochs"].items()
            },
            txn_index_empty=IndexType.TRANSACTION not in manifest.indexes,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteStorageError(f"{key} does not describe its segment: {error!r}") from None
