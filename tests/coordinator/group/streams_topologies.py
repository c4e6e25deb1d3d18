"""Topologies of streams applications for tests, as the clients send them."""

from __future__ import annotations

from ottla.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    Subtopology,
    TopicInfo,
    Topology,
)


def topic(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replicas,
        topic_configs=[KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def subtopology(
    id: str,
    *sources: str,
    sinks: tuple[str, ...] = (),
    repartition: tuple[TopicInfo, ...] = (),
    changelogs: tuple[TopicInfo, ...] = (),
    copartition: tuple[tuple[str, ...], ...] = (),
) -> Subtopology:
    names = [each.name for each in repartition]
    return Subtopology(
        subtopology_id=id,
        source_topics=list(sources),
        source_topic_regex=[],
        state_changelog_topics=list(changelogs),
        repartition_sink_topics=list(sinks),
        repartition_source_topics=list(repartition),
        copartition_groups=[
            CopartitionGroup(
                source_topics=[sources.index(name) for name in group if name in sources],
                source_topic_regex=[],
                repartition_source_topics=[names.index(name) for name in group if name in names],
            )
            for group in copartition
        ],
    )


def topology(*subtopologies: Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch=epoch, subtopologies=list(subtopologies))


STATELESS = topology(subtopology("0", "lines"))
"""Reads `lines`, keeps nothing."""
STATEFUL = topology(subtopology("0", "lines", changelogs=(topic("counts-changelog"),)))
WORD_COUNT = topology(
    subtopology("0", "lines", sinks=("words-repartition",)),
    subtopology(
        "1",
        repartition=(topic("words-repartition", cleanup_policy="delete"),),
        changelogs=(topic("counts-changelog", replicas=1, cleanup_policy="compact"),),
        copartition=(("words-repartition",),),
    ),
)
