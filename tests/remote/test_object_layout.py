"""The objects of a segment have the names and the bytes of Aiven's tiered storage for Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from ottla.protocol.names import TopicPartition, parse_uuid
from ottla.remote.object_layout import (
    SegmentManifest,
    decode_manifest,
    encode_manifest,
    indexes_object,
    object_key,
)
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from ottla.remote.storage_manager import IndexType, LogSegmentData
from ottla.runtime.object_store import MemoryStore

TOPIC_ID = parse_uuid("lZ6vvmajTWKDBUTV6SQAtQ")
SEGMENT_ID = parse_uuid("adh9f8BMS4anaUnD8KWfWg")


def metadata(custom: bytes | None = None, size: int = 1000) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        id=RemoteLogSegmentId(TOPIC_ID, TopicPartition("topic1", 42), SEGMENT_ID),
        start_offset=0,
        end_offset=1000,
        max_timestamp_ms=1_000_000_000,
        broker_id=2,
        event_timestamp_ms=2_000_000_000,
        segment_size_in_bytes=size,
        segment_leader_epochs={2: 300, 0: 100, 1: 200},
        custom_metadata=custom,
    )


def data(log: bytes, transaction_index: bytes | None = b"tx") -> LogSegmentData:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(log), 7):
            yield log[at : at + 7]

    return LogSegmentData(pieces, len(log), b"offset", b"time", b"producers", b"epochs", transaction_index)


def test_the_keys_of_a_segment() -> None:
    assert (
        object_key("some/prefix-", metadata(), "log")
        == "some/prefix-topic1-lZ6vvmajTWKDBUTV6SQAtQ/42/00000000000000000000-adh9f8BMS4anaUnD8KWfWg.log"
    )


def test_the_custom_metadata_of_a_segment_may_name_another_place() -> None:
    # Tagged fields: 0 is the size, 1 the prefix, 2 the key.
    custom = b"\x03\x00\x01\x0a\x01\x04\x04old\x02\x05\x05else"
    assert object_key("new", metadata(custom), "log") == "oldelse.log"
    assert object_key("new", metadata(b"\x01\x00\x01\x0a"), "log").startswith("newtopic1-")
    with pytest.raises(RemoteStorageError):
        object_key("new", metadata(b"\x02\x01"), "log")


def test_the_manifest_is_the_one_that_the_plugin_writes() -> None:
    manifest = SegmentManifest(
        1000,
        100,
        {each: (index, 1) for index, each in enumerate(IndexType)},
    )
    of_segment = (
        '"remoteLogSegmentMetadata":{"remoteLogSegmentId":{"topicIdPartition":'
        '{"topicId":"lZ6vvmajTWKDBUTV6SQAtQ","topicPartition":{"topic":"topic1","partition":42}},'
        '"id":"adh9f8BMS4anaUnD8KWfWg"},"startOffset":0,"endOffset":1000,"maxTimestampMs":1000000000,'
        '"brokerId":2,"eventTimestampMs":2000000000,"segmentLeaderEpochs":{"0":100,"1":200,"2":300}}}'
    )
    assert encode_manifest(manifest, metadata()).decode() == (
        '{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":100,"originalFileSize":1000,'
        '"transformedChunkSize":100,"finalTransformedChunkSize":100},"segmentIndexes":{"offset":'
        '{"position":0,"size":1},"timestamp":{"position":1,"size":1},"producerSnapshot":{"position":2,"size":1},'
        '"leaderEpoch":{"position":3,"size":1},"transaction":{"position":4,"size":1}},"compression":false,'
        + of_segment
    )
    assert decode_manifest(encode_manifest(manifest, metadata()), "key") == manifest


@pytest.mark.parametrize(("size", "final"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 1), (250, 50)])
def test_the_last_chunk_is_as_long_as_what_is_left(size: int, final: int) -> None:
    document = json.loads(encode_manifest(SegmentManifest(size, 100, {}), metadata()))
    assert document["chunkIndex"]["finalTransformedChunkSize"] == final
    assert document["segmentIndexes"]["transaction"] is None


def test_the_indexes_stand_one_after_the_other() -> None:
    content, places = indexes_object(data(b""))
    assert content == b"offsettimeproducersepochstx"
    assert [content[at : at + size] for at, size in places.values()] == [
        b"offset",
        b"time",
        b"producers",
        b"epochs",
        b"tx",
    ]
    assert IndexType.TRANSACTION not in indexes_object(data(b"", None))[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "2"}, "version 2"),
        ({"compression": True}, "compression"),
        ({"encryption": {"aad": "CgsMDQ=="}}, "encryption"),
        ({"chunkIndex": {}}, "not a manifest"),
        ({"segmentIndexes": None}, "not a manifest"),
    ],
)
def test_what_cannot_be_read_is_refused(change: dict[str, object], message: str) -> None:
    document = json.loads(encode_manifest(SegmentManifest(10, 100, {}), metadata()))
    with pytest.raises(RemoteStorageError, match=message):
        decode_manifest(json.dumps({**document, **change}).encode(), "the key")
    with pytest.raises(RemoteStorageError, match="the key is not a manifest"):
        decode_manifest(b"[", "the key")


async def test_a_segment_comes_back_as_it_was_copied() -> None:
    store = MemoryStore()
    manager = ObjectStorageManager(store, prefix="p/", chunk_size=4)
    log = bytes(range(100))
    segment = metadata(size=len(log))
    assert await manager.copy_log_segment_data(segment, data(log)) is None
    assert sorted(key.rpartition(".")[2] for key in store.objects) == ["indexes", "log", "rsm-manifest"]
    assert await manager.fetch_log_segment(segment, 10, 20) == log[10:20]
    assert await manager.fetch_log_segment(segment, 90, 1000) == log[90:]
    assert await manager.fetch_log_segment(segment, 100, 1000) == b""
    assert await manager.fetch_index(segment, IndexType.LEADER_EPOCH) == b"epochs"
    assert await manager.fetch_index(segment, IndexType.TRANSACTION) == b"tx"
    await manager.copy_log_segment_data(segment, data(log))
    await manager.delete_log_segment_data(segment)
    assert not store.objects
    await manager.delete_log_segment_data(segment)
    with pytest.raises(RemoteResourceNotFound):
        await manager.fetch_index(segment, IndexType.OFFSET)
    with pytest.raises(RemoteResourceNotFound):
        await manager.fetch_log_segment(segment, 0, 10)


async def test_a_segment_without_aborted_transactions_has_no_such_index() -> None:
    manager = ObjectStorageManager(MemoryStore())
    await manager.copy_log_segment_data(metadata(size=3), data(b"abc", None))
    with pytest.raises(RemoteResourceNotFound, match="no TRANSACTION index"):
        await manager.fetch_index(metadata(size=3), IndexType.TRANSACTION)


async def test_an_upload_of_the_wrong_size_is_refused() -> None:
    store = MemoryStore()
    short = data(b"abc")
    wrong = LogSegmentData(short.log, 4, b"", b"", b"", b"")
    with pytest.raises(RemoteStorageError, match="should have 4 bytes"):
        await ObjectStorageManager(store).copy_log_segment_data(metadata(size=4), wrong)
    assert not store.objects
