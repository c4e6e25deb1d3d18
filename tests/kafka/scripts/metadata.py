"""Metadata, DescribeTopicPartitions, DescribeCluster: what a broker tells of the cluster."""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.kafka.scripts.kit import UNKNOWN_ID, keep_topics, make_topic, script
from tests.support.differential import Session


def _named(*names: str | None, **fields: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def _by_id(topic_id: bytes, name: str | None = None) -> MetadataRequest:
    topic = MetadataRequestTopic(topic_id=topic_id, name=name)
    return MetadataRequest(topics=[topic], allow_auto_topic_creation=False)


@script
def metadata_by_name(session: Session) -> None:
    make_topic(session, "metadata-a", partitions=3)
    make_topic(session, "metadata-b")
    for version in session.versions(MetadataRequest):
        fields: dict[str, Any] = {"allow_auto_topic_creation": False} if version >= 4 else {}
        session.ask("two topics", _named("metadata-b", "metadata-a", **fields), version)
        session.ask("one topic twice", _named("metadata-b", "metadata-b", **fields), version)
        everything = MetadataRequest(topics=[] if version == 0 else None, **fields)
        session.ask("all topics", everything, version, edit=keep_topics("metadata-"))
        if version >= 1:
            session.ask("no topics", MetadataRequest(topics=[], **fields), version)
        if version >= 8:
            fields["include_topic_authorized_operations"] = True
        if 8 <= version <= 10:
            fields["include_cluster_authorized_operations"] = True
        session.ask("authorized operations", _named("metadata-b", **fields), version)


@script
def metadata_of_topics_that_do_not_exist(session: Session) -> None:
    names = ("metadata-none", "", ".", "..", "with space", "a/b", "x" * 250, "ü")
    for version in session.versions(MetadataRequest):
        for name in names:
            if version >= 4:
                request = _named(name, allow_auto_topic_creation=False)
                session.ask(f"unknown topic {name[:20]!r}", request, version)
            elif name != "metadata-none":
                session.ask(f"unknown topic {name[:20]!r}", _named(name), version)
        if version in (10, 11):
            session.ask("null name and no id", _named(None, allow_auto_topic_creation=False), version)


@script
def metadata_by_id(session: Session) -> None:
    topic_id = make_topic(session, "metadata-by-id", partitions=2)
    for version in range(10, 14):
        session.ask("known id", _by_id(topic_id), version)
        session.ask("unknown id", _by_id(UNKNOWN_ID), version)
        session.ask("id and name", _by_id(topic_id, "metadata-by-id"), version)
        session.ask("unknown id and known name", _by_id(UNKNOWN_ID, "metadata-by-id"), version)
        both = [
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(name="metadata-by-id"),
        ]
        session.ask("one by id, one by name", MetadataRequest(topics=both), version)


@script
def metadata_creates_topics(session: Session) -> None:
    """With auto creation an unknown topic is created, and the client has to try again."""
    for version in session.versions(MetadataRequest):
        name = f"metadata-made-{version}"
        session.ask("first", _named(name), version)
        session.until(_named(name), MetadataResponse, lambda answer: answer.topics[0].error_code == 0)
        session.ask("then", _named(name), version)
        session.ask("invalid name", _named(f"metadata made {version}"), version)


@script
def describe_topic_partitions(session: Session) -> None:
    make_topic(session, "partitions-a", partitions=3)
    make_topic(session, "partitions-b", partitions=2)
    make_topic(session, "partitions-c")

    def ask(label: str, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> None:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        session.ask(label, request, edit=keep_topics("partitions-"))

    ask("three topics", "partitions-c", "partitions-a", "partitions-b")
    ask("one topic twice", "partitions-b", "partitions-b")
    ask("all topics")
    ask("unknown topic", "partitions-none", "partitions-a")
    ask("invalid topic", "a/b")
    for limit in (1, 2, 3, 4, 5, 6, 0, -1):
        ask(f"limit {limit}", "partitions-a", "partitions-b", "partitions-c", limit=limit)
    for topic, index in (("partitions-a", 2), ("partitions-b", 0), ("partitions-bb", 1), ("partitions-c", 7)):
        cursor = Cursor(topic_name=topic, partition_index=index)
        ask(f"from {topic} {index}", "partitions-a", "partitions-b", "partitions-c", cursor=cursor)
    ask("from the end", "partitions-a", cursor=Cursor(topic_name="z", partition_index=0))
    ask(
        "from a negative partition",
        "partitions-a",
        cursor=Cursor(topic_name="partitions-a", partition_index=-1),
    )


@script
def describe_cluster(session: Session) -> None:
    for version in session.versions(DescribeClusterRequest):
        session.ask("plain", DescribeClusterRequest(), version)
        session.ask("operations", DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        if version >= 1:
            for endpoint_type in (0, 2, 3):
                session.ask(
                    f"endpoint type {endpoint_type}",
                    DescribeClusterRequest(endpoint_type=endpoint_type),
                    version,
                )
        if version >= 2:
            session.ask("fenced brokers", DescribeClusterRequest(include_fenced_brokers=True), version)
