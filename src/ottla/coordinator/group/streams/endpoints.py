"""The endpoints of a streams group's processes, with the partitions that each serves.

A member that has an endpoint (`application.server`) names it when it joins. The coordinator gives each member
all endpoints when they have changed, so that the application can ask the process that has the state of a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.coordinator.group.streams.internal_topic_manager import ConfiguredSubtopology
from ottla.coordinator.group.streams.streams_group import StreamsGroup, StreamsGroupMember, Tasks
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.messages.streams_group_heartbeat import Endpoint, EndpointToPartitions, TopicPartition


def endpoint_to_partitions(group: StreamsGroup, image: MetadataImage) -> list[EndpointToPartitions]:
    """The endpoints of a group. The group keeps each until its member changes."""
    found = []
    for member in group.members.values():
        if member.user_endpoint is not None:
            known = group.endpoints.get(member.member_id)
            if known is None:
                known = group.endpoints[member.member_id] = _endpoint(group, member, image)
            found.append(known)
    return found


def _endpoint(group: StreamsGroup, member: StreamsGroupMember, image: MetadataImage) -> EndpointToPartitions:
    assert member.user_endpoint is not None, member.member_id
    subtopologies = (group.configured.subtopologies if group.configured is not None else None) or {}
    active = {id: frozenset(tasks) for id, tasks in member.assigned.active.items()}
    return EndpointToPartitions(
        user_endpoint=Endpoint(host=member.user_endpoint.host, port=member.user_endpoint.port),
        active_partitions=list(_partitions(active, subtopologies, image)),
        standby_partitions=list(_partitions(member.assigned.standby, subtopologies, image)),
    )


def _partitions(
    tasks: Tasks, subtopologies: Mapping[str, ConfiguredSubtopology], image: MetadataImage
) -> Iterable[TopicPartition]:
    """The partitions of the source topics that these tasks read. Topics of a subtopology may have different
    numbers of partitions.
    """
    for id, partitions in sorted(tasks.items()):
        subtopology = subtopologies.get(id)
        for topic in sorted(set(subtopology.input_topics)) if subtopology is not None else ():
            known = image.topics.by_name.get(topic)
            if known is not None:
                yield TopicPartition(
                    topic=topic,
                    partitions=sorted(partition for partition in partitions if partition in known.partitions),
                )
