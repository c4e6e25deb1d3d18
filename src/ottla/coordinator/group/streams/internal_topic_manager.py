"""The topology of a streams group completed with the topics of the cluster: Kafka's `InternalTopicManager`.

`configure_topics` decides how many partitions each internal topic has, and so how many tasks there are of
each subtopology. A repartition topic without a count of its own gets that of the subtopology which writes it;
topics that are joined (a copartition group) must have the same count; a changelog topic has a partition for
each task. The result is ready if all topics exist as they should. If not, it has a status for the members:
source topics that are missing, topics with the wrong number of partitions, or internal topics that the broker
has to create.

The counts decide where the state of a task is kept. They must be those that Kafka would choose, or a group
could not move between the two kinds of broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import Final

from ottla.coordinator.group.streams.streams_topology import StreamsTopology, source_topics_of
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import StreamsGroupTopologyTopicInfo, Subtopology
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import streams_group_describe as describe_messages
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig

# Their assignment is computed in one turn of the event loop, and written as one batch of records.
MAX_TASKS: Final = 50_000
_MOST_TOPICS_NAMED: Final = 3
_DEFAULT_REPLICATION_FACTOR: Final = -1


class StreamsStatus(IntEnum):
    """The status codes in the response to a StreamsGroupHeartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopicConfigurationError(Exception):
    """Topics that are missing or have the wrong number of partitions: the status that members get."""

    def __init__(self, status: StreamsStatus, detail: str) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.detail: Final = detail


@dataclass(frozen=True, slots=True)
class ConfiguredInternalTopic:
    name: str
    partitions: int
    replication_factor: int
    """0 for the default of the cluster."""
    configs: tuple[tuple[str, str], ...]

    def creatable(self) -> CreatableTopic:
        return CreatableTopic(
            name=self.name,
            num_partitions=self.partitions,
            replication_factor=self.replication_factor or _DEFAULT_REPLICATION_FACTOR,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in self.configs],
        )

    def describe(self) -> describe_messages.TopicInfo:
        return describe_messages.TopicInfo(
            name=self.name,
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            topic_configs=[describe_messages.KeyValue(key=key, value=value) for key, value in self.configs],
        )


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    tasks: int
    source_topics: tuple[str, ...]
    repartition_source_topics: tuple[ConfiguredInternalTopic, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[ConfiguredInternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.state_changelog_topics)

    @property
    def input_topics(self) -> list[str]:
        return [*self.source_topics, *(topic.name for topic in self.repartition_source_topics)]

    def describe(self, subtopology_id: str) -> describe_messages.Subtopology:
        return describe_messages.Subtopology(
            subtopology_id=subtopology_id,
            source_topics=sorted(self.source_topics),
            repartition_sink_topics=sorted(self.repartition_sink_topics),
            repartition_source_topics=[topic.describe() for topic in self.repartition_source_topics],
            state_changelog_topics=[topic.describe() for topic in self.state_changelog_topics],
        )


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    epoch: int
    metadata_hash: int
    """Stands for the topics of the cluster that it was completed with."""
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    """By id, sorted; None if topics are missing or have the wrong number of partitions."""
    internal_topics_to_create: tuple[ConfiguredInternalTopic, ...] = ()
    error: TopicConfigurationError | None = None

    @property
    def is_ready(self) -> bool:
        return self.error is None

    def describe(self) -> describe_messages.Topology:
        return describe_messages.Topology(
            epoch=self.epoch,
            subtopologies=[each.describe(id) for id, each in (self.subtopologies or {}).items()],
        )


def configure_topics(
    topology: StreamsTopology, metadata_hash: int, image: MetadataImage
) -> ConfiguredTopology:
    """Complete a topology with the topics of the cluster. STREAMS_INVALID_TOPOLOGY if that is impossible with
    whatever topics.
    """
    try:
        _check_source_topics(topology, image)
        counts = _PartitionCounts(topology, image)
        counts.decide()
        subtopologies = {
            id: _configured_subtopology(subtopology, counts)
            for id, subtopology in sorted(topology.subtopologies.items())
        }
        tasks = sum(each.tasks for each in subtopologies.values())
        if tasks > MAX_TASKS:
            raise _invalid(f"The topology has {tasks} tasks, and a group can have {MAX_TASKS}.")
        missing = _missing_internal_topics(subtopologies, image)
    except TopicConfigurationError as error:
        return ConfiguredTopology(topology.epoch, metadata_hash, None, error=error)
    problem = None
    if missing:
        names = summarize_topics([topic.name for topic in missing])
        problem = TopicConfigurationError(
            StreamsStatus.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}"
        )
    return ConfiguredTopology(topology.epoch, metadata_hash, subtopologies, tuple(missing), problem)


def summarize_topics(topics: Collection[str]) -> str:
    """Name the first topics, and how many more there are."""
    names = ", ".join(sorted(topics)[:_MOST_TOPICS_NAMED])
    more = len(topics) - _MOST_TOPICS_NAMED
    return f"{names} and {more} additional topics" if more > 0 else names


def _check_source_topics(topology: StreamsTopology, image: MetadataImage) -> None:
    by_name = image.topics.by_name
    missing = {
        topic
        for subtopology in topology.subtopologies.values()
        for topic in subtopology.source_topics
        if topic not in by_name
    }
    if missing:
        raise TopicConfigurationError(
            StreamsStatus.MISSING_SOURCE_TOPICS, f"Source topics {summarize_topics(missing)} are missing."
        )


class _PartitionCounts:
    """The partition counts of a topology's internal topics, decided in three steps. A topic that exists has
    the count that it has, whatever is decided for it.
    """

    __slots__ = ("_decided", "_image", "_subtopologies")

    def __init__(self, topology: StreamsTopology, image: MetadataImage) -> None:
        self._subtopologies = list(topology.subtopologies.values())
        self._image = image
        self._decided: dict[str, int] = {}

    def decide(self) -> None:
        self._decided.update(self._repartition_counts())
        self._enforce_copartitioning()
        for subtopology in self._subtopologies:
            topics = source_topics_of(subtopology)
            if not topics:
                raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
            most = max(self.of(topic) for topic in topics)
            for changelog in subtopology.state_changelog_topics:
                self._decided[changelog.name] = most

    def find(self, topic: str) -> int | None:
        known = self._image.topics.by_name.get(topic)
        return self._decided.get(topic) if known is None else len(known.partitions)

    def of(self, topic: str) -> int:
        count = self.find(topic)
        if count is None:
            raise _invalid(f"No partition count for source topic {topic}")
        return count

    def decided(self, topic: StreamsGroupTopologyTopicInfo) -> int:
        """The count of an internal topic as it should be."""
        return topic.partitions or self._decided[topic.name]

    # Repartition topics

    def _repartition_counts(self) -> dict[str, int]:
        """Follow the topology from the topics with known counts until all repartition topics have one."""
        counts = {
            topic.name: topic.partitions
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
            if topic.partitions
        }
        self._follow_sinks(counts)
        if any(
            sink not in counts
            for subtopology in self._subtopologies
            for sink in subtopology.repartition_sink_topics
        ):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops "
                "in the topology that cannot be resolved."
            )
        for subtopology in self._subtopologies:
            if any(topic.name not in counts for topic in subtopology.repartition_source_topics):
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics, because a "
                    "repartition source topic is never used as a sink topic."
                )
        return counts

    def _follow_sinks(self, counts: dict[str, int]) -> None:
        """Give the sinks of each subtopology the count of its inputs once one of them is known.

        Kafka goes over all subtopologies again and again; here each is visited when it would find something
        there, in the same order, as the counts depend on it: by the number of the sweep and its place in it.
        """
        readers: dict[str, list[int]] = {}
        queue: list[tuple[int, int]] = []
        for index, subtopology in enumerate(self._subtopologies):
            for topic in subtopology.repartition_source_topics:
                readers.setdefault(topic.name, []).append(index)
            if subtopology.repartition_sink_topics and self._input_count(subtopology, counts) is not None:
                queue.append((0, index))
        done: set[int] = set()
        while queue:
            sweep, index = heappop(queue)
            if index in done:
                continue
            done.add(index)
            subtopology = self._subtopologies[index]
            count = self._input_count(subtopology, counts)
            assert count is not None, subtopology.subtopology_id
            for sink in subtopology.repartition_sink_topics:
                if sink not in counts:
                    counts[sink] = count
                    for reader in readers.get(sink, ()):
                        if reader not in done:
                            heappush(queue, (sweep + (reader <= index), reader))

    def _input_count(self, subtopology: Subtopology, counts: Mapping[str, int]) -> int | None:
        known = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        known += [self.find(topic) for topic in subtopology.source_topics]
        return max((count for count in known if count is not None), default=None)

    # Copartition groups

    def _enforce_copartitioning(self) -> None:
        repartition = {
            topic.name: topic.partitions
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
        }
        # Copartitioning does not change them.
        fixed = {name: self.of(name) for name, partitions in sorted(repartition.items()) if partitions}
        common = list(dict.fromkeys(fixed.values()))
        fixed_count = common[0] if len(common) == 1 else None
        for subtopology in self._subtopologies:
            sources = subtopology.source_topics
            internal = [topic.name for topic in subtopology.repartition_source_topics]
            for group in subtopology.copartition_groups:
                topics = {_topic_at(sources, index) for index in group.source_topics}
                topics |= {_topic_at(internal, index) for index in group.repartition_source_topics}
                self._copartition(sorted(topics), repartition.keys(), fixed, fixed_count)

    def _copartition(
        self,
        topics: list[str],
        repartition: Collection[str],
        fixed: Mapping[str, int],
        fixed_count: int | None,
    ) -> None:
        """Give the repartition topics of a copartition group the count of the others, or a common one."""
        if not topics:
            return
        internal = {topic: self.of(topic) for topic in topics if topic in repartition}
        external = {topic: self.of(topic) for topic in topics if topic not in repartition}
        if external:
            count = _same_count(external, external)
        elif fixed:
            # All fixed counts of the topology, as in Kafka, not only those of the group.
            count = _same_count(fixed, internal) if fixed_count is None else fixed_count
        else:
            count = max(internal.values())
        for topic, partitions in internal.items():
            if topic in fixed and partitions != count:
                raise TopicConfigurationError(
                    StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{partitions}] of repartition topic [{topic}] doesn't match "
                    f"number of partitions [{count}] of the source topic.",
                )
            self._decided[topic] = count


def _topic_at(topics: list[str], index: int) -> str:
    if not 0 <= index < len(topics):
        raise _invalid(f"A copartition group has topic {index} of {len(topics)} topics")
    return topics[index]


def _same_count(counts: Mapping[str, int], named: Mapping[str, int]) -> int:
    """The count that all topics have; the error names `named`."""
    first = next(iter(counts.values()))
    if any(count != first for count in counts.values()):
        listed = ", ".join(f"{topic}={count}" for topic, count in sorted(named.items()))
        raise TopicConfigurationError(
            StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return first


def _configured_subtopology(subtopology: Subtopology, counts: _PartitionCounts) -> ConfiguredSubtopology:
    def configured(
        topics: list[StreamsGroupTopologyTopicInfo],
    ) -> tuple[ConfiguredInternalTopic, ...]:
        return tuple(
            ConfiguredInternalTopic(
                topic.name,
                counts.decided(topic),
                topic.replication_factor,
                tuple(sorted((config.key, config.value) for config in topic.topic_configs)),
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        )

    return ConfiguredSubtopology(
        max(counts.of(topic) for topic in source_topics_of(subtopology)),
        tuple(dict.fromkeys(subtopology.source_topics)),
        configured(subtopology.repartition_source_topics),
        tuple(dict.fromkeys(subtopology.repartition_sink_topics)),
        configured(subtopology.state_changelog_topics),
    )


def _missing_internal_topics(
    subtopologies: Mapping[str, ConfiguredSubtopology], image: MetadataImage
) -> list[ConfiguredInternalTopic]:
    """The internal topics that do not exist; an error if one exists with another number of partitions."""
    internal = {
        topic.name: topic
        for subtopology in subtopologies.values()
        for topic in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    }
    missing = []
    for name, topic in sorted(internal.items()):
        known = image.topics.by_name.get(name)
        if known is None:
            missing.append(topic)
        elif len(known.partitions) != topic.partitions:
            raise TopicConfigurationError(
                StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, "
                f"found {len(known.partitions)}",
            )
    return missing


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
