"""The target of a consumer group: what every member shall have in the group's epoch."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.coordinator.group.consumer.assignors import ASSIGNORS
from ottla.coordinator.group.consumer.group import ConsumerGroup, Partitions
from ottla.coordinator.group.consumer.subscriptions import topic_ids
from ottla.metadata.image.image import MetadataImage


def new_target(group: ConsumerGroup, assignor: str, image: MetadataImage) -> Mapping[str, Partitions]:
    """For every member what it shall have, by the assignor, with the topics of the image."""
    subscriptions = {
        member_id: topic_ids(group.topics_of(member), image) for member_id, member in group.members.items()
    }
    counts = {
        topic_id: len(image.topics.by_id[topic_id].partitions)
        for topics in set(subscriptions.values())
        for topic_id in topics
    }
    assigned = ASSIGNORS[assignor](subscriptions, counts, group.target)
    return {
        member_id: {
            topic_id: frozenset(partitions)
            for topic_id, partitions in assigned.get(member_id, {}).items()
            if partitions
        }
        for member_id in group.members
    }
