"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where a log begins, ends and was at a time."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.records.batch import Codec
from tests.kafka.scripts.kit import (
    EARLIEST,
    LATEST,
    TIMEOUT_MS,
    TIMESTAMP,
    batch_of,
    fetch_request,
    fill,
    list_offsets_request,
    make_topic,
    script,
)
from tests.support.differential import Session

# Latest, earliest, maximum timestamp, earliest local, latest tiered, earliest pending upload, one too many.
SPECIAL = (-1, -2, -3, -4, -5, -6, -7)


@script
def list_offsets(session: Session) -> None:
    make_topic(session, "offsets", partitions=2)
    fill(
        session,
        "offsets",
        batch_of(b"a", b"b", b"c", timestamp=TIMESTAMP + 100),
        batch_of(b"d", b"e", timestamp=TIMESTAMP + 500, codec=Codec.ZSTD),
        batch_of(b"f", timestamp=TIMESTAMP + 50),
        batch_of(b"g", b"h", timestamp=TIMESTAMP + 501),
    )
    for version in session.versions(ListOffsetsRequest):
        for special in SPECIAL:
            # A version before the one that brought a special timestamp takes it for a time.
            session.ask(
                f"timestamp {special}", list_offsets_request("offsets", {0: special, 1: special}), version
            )
        for delta in (-1000, 0, 50, 51, 100, 101, 102, 103, 500, 501, 502, 503, 10_000):
            request = list_offsets_request("offsets", {0: TIMESTAMP + delta, 1: TIMESTAMP + delta})
            session.ask(f"time {delta}", request, version)
        for timestamp in (0, 1, 2**63 - 1):
            session.ask(f"timestamp {timestamp}", list_offsets_request("offsets", {0: timestamp}), version)
        for partition in (2, -1):
            session.ask(
                f"partition {partition}", list_offsets_request("offsets", {partition: LATEST}), version
            )
        session.ask("unknown topic", list_offsets_request("offsets-none", {0: LATEST}), version)
        session.ask("no topics", ListOffsetsRequest(replica_id=-1, topics=[]), version)
        if version >= 2:
            for special in (LATEST, EARLIEST, TIMESTAMP + 200):
                request = list_offsets_request("offsets", {0: special}, isolation_level=1)
                session.ask(f"committed, timestamp {special}", request, version)
        if version >= 4:
            for epoch in (-1, 0, 1):
                wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=LATEST)
                topic = ListOffsetsTopic(name="offsets", partitions=[wanted])
                session.ask(f"epoch {epoch}", ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        twice = [ListOffsetsPartition(partition_index=0, timestamp=each) for each in (LATEST, EARLIEST)]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="offsets", partitions=twice)]
        )
        session.ask("one partition twice", request, version)


@script
def list_offsets_as_a_replica(session: Session) -> None:
    make_topic(session, "offsets-replica")
    fill(session, "offsets-replica", batch_of(b"a"))
    for version in session.versions(ListOffsetsRequest):
        for replica_id in (-2, 1, 9):
            request = list_offsets_request("offsets-replica", {0: LATEST})
            request.replica_id = replica_id
            session.ask(f"replica {replica_id}", request, version)


@script
def offset_for_leader_epoch(session: Session) -> None:
    make_topic(session, "epochs", partitions=2)
    fill(session, "epochs", batch_of(b"a"), batch_of(b"b"))

    def ask(
        label: str, version: int, *, topic: str = "epochs", partition: int = 0, epoch: int, current: int = -1
    ) -> None:
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        for replica_id in (-2, -1, 1) if version >= 3 else (-2,):
            request = OffsetForLeaderEpochRequest(
                replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
            )
            session.ask(f"{label}, replica {replica_id}", request, version)

    for version in session.versions(OffsetForLeaderEpochRequest):
        for epoch in (-2, -1, 0, 1, 5):
            ask(f"epoch {epoch}", version, epoch=epoch)
            ask(f"epoch {epoch} of an empty log", version, partition=1, epoch=epoch)
        for current in (-1, 0, 1):
            ask(f"current epoch {current}", version, epoch=0, current=current)
        ask("unknown partition", version, partition=9, epoch=0)
        ask("unknown topic", version, topic="epochs-none", epoch=0)


@script
def delete_records(session: Session) -> None:
    for version in session.versions(DeleteRecordsRequest):
        topic = f"trim-{version}"
        topic_id = make_topic(session, topic, partitions=2)
        fill(session, topic, *[batch_of(b"a", b"b", b"c") for _ in range(4)])

        def ask(label: str, offsets: Mapping[int, int], name: str = topic, version: int = version) -> None:
            partitions = [
                DeleteRecordsPartition(partition_index=index, offset=offset)
                for index, offset in offsets.items()
            ]
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=name, partitions=partitions)], timeout_ms=TIMEOUT_MS
            )
            session.ask(label, request, version)

        ask("inside a batch", {0: 4})
        session.ask("start then", list_offsets_request(topic, {0: EARLIEST}))
        session.ask("before the start", fetch_request(topic_id, 3))
        session.ask("at the start", fetch_request(topic_id, 4))
        session.ask("by time", list_offsets_request(topic, {0: TIMESTAMP}))
        ask("again", {0: 4})
        ask("back", {0: 1})
        ask("to zero", {0: 0})
        ask("beyond the end", {0: 13})
        ask("negative", {0: -2})
        ask("empty partition", {1: 0})
        ask("empty partition, all", {1: -1})
        ask("two partitions", {0: 6, 1: 5})
        ask("unknown partition", {9: 0})
        ask("unknown topic", {0: 0}, "trim-none")
        ask("invalid topic", {0: 0}, "a/b")
        ask("all", {0: -1})
        session.ask("start in the end", list_offsets_request(topic, {0: EARLIEST}))
        session.ask("log in the end", fetch_request(topic_id, 12))
        session.ask("no topics", DeleteRecordsRequest(topics=[], timeout_ms=TIMEOUT_MS), version)
    for policy in ("compact", "compact,delete"):
        topic = f"trim-{policy.replace(',', '-')}"
        make_topic(session, topic, configs={"cleanup.policy": policy})
        fill(session, topic, batch_of(b"a", b"b"))
        partitions = [DeleteRecordsPartition(partition_index=0, offset=1)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=TIMEOUT_MS
        )
        session.ask(f"policy {policy}", request)
