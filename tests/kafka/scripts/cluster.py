"""Log directories, producers, elections, reassignments, the quorum and features: what operators ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.protocol.messages import describe_producers as producers
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.kafka.scripts.kit import TIMEOUT_MS, batch_of, fill, make_topic, new_producer, script
from tests.support.differential import Session


@script
def describe_log_dirs(session: Session) -> None:
    make_topic(session, "dirs-a", partitions=2)
    make_topic(session, "dirs-b")
    fill(session, "dirs-a", batch_of(b"some bytes"), batch_of(b"more"))

    def ours(answer: Any) -> None:
        for result in answer.results:
            result.topics = [each for each in result.topics if each.name.startswith("dirs-")]

    def topics(*wanted: tuple[str, Sequence[int]]) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=list(indexes)) for name, indexes in wanted]
        )

    for version in session.versions(DescribeLogDirsRequest):
        session.ask("all", DescribeLogDirsRequest(topics=None), version, edit=ours)
        session.ask("none", topics(), version)
        session.ask("two partitions", topics(("dirs-a", [0]), ("dirs-b", [0])), version)
        session.ask("unknown partition", topics(("dirs-a", [1, 7])), version)
        session.ask("unknown topic", topics(("dirs-none", [0])), version)


@script
def alter_replica_log_dirs(session: Session) -> None:
    make_topic(session, "move")
    found = session.get(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    here = found.results[0].log_dir

    def ask(label: str, version: int, path: str, topic: str = "move", partition: int = 0) -> None:
        moved = AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[moved])])
        session.ask(label, request, version)

    for version in session.versions(AlterReplicaLogDirsRequest):
        ask("where it is", version, here)
        ask("unknown folder", version, "/no/such/folder")
        ask("relative folder", version, "folder")
        ask("unknown topic", version, here, "move-none")
        ask("unknown partition", version, here, "move", 5)
        session.ask("nothing", AlterReplicaLogDirsRequest(dirs=[]), version)


@script
def describe_producers(session: Session) -> None:
    make_topic(session, "producers", partitions=2)
    producer_id = new_producer(session)
    for sequence in (0, 2):
        batch = batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        fill(session, "producers", batch)
    fill(session, "producers", batch_of(b"without an id"), partition=1)
    for topic, partitions in (("producers", [0, 1, 5]), ("producers-none", [0]), ("a/b", [0])):
        wanted = producers.TopicRequest(name=topic, partition_indexes=partitions)
        session.ask(f"producers of {topic}", DescribeProducersRequest(topics=[wanted]))
    session.ask("no topics", DescribeProducersRequest(topics=[]))


@script
def elect_leaders(session: Session) -> None:
    make_topic(session, "elect", partitions=2)

    def ours(answer: Any) -> None:
        results = answer.replica_election_results
        answer.replica_election_results = [each for each in results if each.topic.startswith("elect")]

    def ask(label: str, version: int, kind: int, topics: list[TopicPartitions] | None) -> None:
        fields: dict[str, Any] = {"election_type": kind} if version >= 1 else {}
        request = ElectLeadersRequest(topic_partitions=topics, timeout_ms=TIMEOUT_MS, **fields)
        session.ask(f"{label}, type {kind}", request, version, edit=ours)

    for version in session.versions(ElectLeadersRequest):
        for kind in (0, 1) if version >= 1 else (0,):
            ask("not needed", version, kind, [TopicPartitions(topic="elect", partitions=[0, 1])])
            ask("unknown partition", version, kind, [TopicPartitions(topic="elect", partitions=[7])])
            ask("unknown topic", version, kind, [TopicPartitions(topic="elect-none", partitions=[0])])
            ask("all", version, kind, None)
            ask("none", version, kind, [])


@script
def partition_reassignments(session: Session) -> None:
    make_topic(session, "reassign", partitions=2)

    def ask(
        label: str, version: int, replicas: Sequence[int] | None, topic: str = "reassign", partition: int = 0
    ) -> None:
        moved = ReassignablePartition(
            partition_index=partition, replicas=None if replicas is None else list(replicas)
        )
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[moved])], timeout_ms=TIMEOUT_MS
        )
        session.ask(label, request, version)

    for version in session.versions(AlterPartitionReassignmentsRequest):
        ask("where it is", version, [1])
        ask("nothing to cancel", version, None)
        ask("unknown broker", version, [9])
        ask("one broker more", version, [1, 9])
        ask("no broker", version, [])
        ask("one broker twice", version, [1, 1])
        ask("negative broker", version, [-1])
        ask("unknown partition", version, [1], "reassign", 7)
        ask("unknown topic", version, [1], "reassign-none")
        session.ask("nothing", AlterPartitionReassignmentsRequest(topics=[], timeout_ms=TIMEOUT_MS), version)
    fixed = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=False,
        topics=[
            ReassignableTopic(
                name="reassign", partitions=[ReassignablePartition(partition_index=0, replicas=[1, 9])]
            )
        ],
        timeout_ms=TIMEOUT_MS,
    )
    session.ask("the factor stays", fixed, 1)
    listed = ListPartitionReassignmentsTopics(name="reassign", partition_indexes=[0, 1, 9])
    unknown = ListPartitionReassignmentsTopics(name="reassign-none", partition_indexes=[0])
    for label, topics in {"all": None, "some": [listed], "unknown": [unknown], "none": []}.items():
        session.ask(f"list {label}", ListPartitionReassignmentsRequest(topics=topics, timeout_ms=TIMEOUT_MS))


@script
def describe_quorum(session: Session) -> None:
    progress = ("leader_epoch", "high_watermark", "log_end_offset")
    for version in session.versions(DescribeQuorumRequest):
        for topic, partition in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("quorum-none", 0)):
            wanted = DescribeQuorumRequestTopicData(
                topic_name=topic, partitions=[DescribeQuorumRequestPartitionData(partition_index=partition)]
            )
            session.ask(
                f"{topic} {partition}", DescribeQuorumRequest(topics=[wanted]), version, hide=progress
            )
        session.ask("no topics", DescribeQuorumRequest(topics=[]), version, hide=progress)


@script
def update_features(session: Session) -> None:
    """Nothing here changes a level: that would last."""
    for version in session.versions(UpdateFeaturesRequest):

        def ask(label: str, *updates: tuple[str, int, int], version: int = version) -> None:
            keys = [
                FeatureUpdateKey(
                    feature=feature,
                    max_version_level=level,
                    **({"allow_downgrade": kind > 1} if version == 0 else {"upgrade_type": kind}),
                )
                for feature, level, kind in updates
            ]
            fields: dict[str, Any] = {"validate_only": True} if version >= 1 else {}
            session.ask(
                label, UpdateFeaturesRequest(feature_updates=keys, timeout_ms=TIMEOUT_MS, **fields), version
            )

        ask("where it is", ("transaction.version", 2, 1))
        ask("too high", ("transaction.version", 99, 1))
        ask("negative", ("transaction.version", -1, 1))
        ask("unknown feature", ("no.such.feature", 1, 1))
        ask("no feature", ("", 1, 1))
        ask("lower as an upgrade", ("transaction.version", 1, 1))
        ask("metadata too high", ("metadata.version", 99, 1))
        ask("metadata too low", ("metadata.version", 1, 2))
        ask("metadata where it is", ("metadata.version", 30, 1))
        ask("upgrade as a downgrade", ("metadata.version", 31, 2))
        ask("no update")
        if version >= 1:
            ask("unknown kind", ("transaction.version", 1, 9))
            ask("kind zero", ("transaction.version", 1, 0))
            ask("lower, safely", ("transaction.version", 1, 2))
            ask("off", ("share.version", 0, 2))
