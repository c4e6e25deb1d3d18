"""The topology of a streams group, as its members sent it when they joined.

A topology consists of subtopologies, which run independently of each other and exchange records only through
repartition topics. A subtopology has one task for each partition of its source topics, and a task keeps its
state in the same partition of the subtopology's changelog topics. The topology says only what the application
knows; `internal_topic_manager` completes it with the partitions of the topics that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.protocol.consumer_offsets_records import (
    CopartitionGroup,
    StreamsGroupTopologyTopicInfo,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicConfig,
)
from ottla.protocol.messages import streams_group_describe as describe_messages
from ottla.protocol.messages import streams_group_heartbeat as heartbeat_messages


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    epoch: int
    subtopologies: Mapping[str, Subtopology]
    """By id, in the order of the numbers that Kafka Streams gives them."""
    source_topics: Mapping[str, str]
    """By topic, also repartition topics: the id of the subtopology that reads it."""
    required_topics: frozenset[str]
    """Source, repartition source and changelog topics of all subtopologies."""

    @classmethod
    def of(cls, value: StreamsGroupTopologyValue) -> StreamsTopology:
        """Read the topology from its record."""
        ordered = sorted(value.subtopologies, key=lambda each: _order(each.subtopology_id))
        sources: dict[str, str] = {}
        required: set[str] = set()
        for subtopology in ordered:
            names = source_topics_of(subtopology)
            sources.update(dict.fromkeys(names, subtopology.subtopology_id))
            required.update(names)
            required.update(topic.name for topic in subtopology.state_changelog_topics)
        return cls(value.epoch, {each.subtopology_id: each for each in ordered}, sources, frozenset(required))

    def is_same(self, other: StreamsTopology) -> bool:
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies

    def describe(self) -> describe_messages.Topology:
        """Describe the topology without what only the topics of the cluster tell."""
        return describe_messages.Topology(
            epoch=self.epoch,
            subtopologies=[
                describe_messages.Subtopology(
                    subtopology_id=id,
                    source_topics=sorted(subtopology.source_topics),
                    repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
                    repartition_source_topics=_described_topics(subtopology.repartition_source_topics),
                    state_changelog_topics=_described_topics(subtopology.state_changelog_topics),
                )
                for id, subtopology in sorted(self.subtopologies.items())
            ],
        )


def _order(subtopology_id: str) -> tuple[int, str]:
    """The place of a subtopology: ids are numbers without leading zeros."""
    return len(subtopology_id), subtopology_id


def source_topics_of(subtopology: Subtopology) -> list[str]:
    """The topics that a subtopology reads, repartition topics last."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def topology_value(topology: heartbeat_messages.Topology) -> StreamsGroupTopologyValue:
    """The record of a topology that a member sends (Kafka's `convertToStreamsGroupTopologyRecord`)."""
    return StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=list(each.source_topics),
                source_topic_regex=list(each.source_topic_regex),
                state_changelog_topics=[_topic_info(topic) for topic in each.state_changelog_topics],
                repartition_sink_topics=list(each.repartition_sink_topics),
                repartition_source_topics=[_topic_info(topic) for topic in each.repartition_source_topics],
                copartition_groups=[
                    CopartitionGroup(
                        source_topics=list(group.source_topics),
                        source_topic_regex=list(group.source_topic_regex),
                        repartition_source_topics=list(group.repartition_source_topics),
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _topic_info(topic: heartbeat_messages.TopicInfo) -> StreamsGroupTopologyTopicInfo:
    return StreamsGroupTopologyTopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[TopicConfig(key=config.key, value=config.value) for config in topic.topic_configs],
    )


def _described_topics(topics: list[StreamsGroupTopologyTopicInfo]) -> list[describe_messages.TopicInfo]:
    return [
        describe_messages.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[
                describe_messages.KeyValue(key=config.key, value=config.value)
                for config in topic.topic_configs
            ],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]
