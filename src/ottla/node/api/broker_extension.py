"""The one way by which an optional part gets into a broker.

Remote storage, tables of topics, metrics of clients, the schema registry and the console are extensions: the
broker does not name them, serves without them, and calls each at the points below. An extension is made once
its broker has all own parts, and before it starts. It then adds what it needs: paths of an HTTP listener,
metrics, tasks, listeners of replicas. What takes time or memory to import, it imports when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ottla.metadata.image.delta import MetadataDelta
    from ottla.metadata.image.image import MetadataImage
    from ottla.protocol.messages.create_topics import CreatableTopic
    from ottla.protocol.names import TopicPartition
    from ottla.replication.replica_manager import ReplicaChanges


class BrokerExtension:
    """Each method does nothing by default. They are called in this order, with `apply` and `resign` as often
    as the replicas of the broker change.
    """

    name: ClassVar[str] = "an extension"
    """What it is, in the words of the log."""

    async def prepare(self, image: MetadataImage) -> None:
        """Get ready before the logs are loaded. NodeFailed keeps the broker from starting."""

    def apply_replicas(self, image: MetadataImage, changes: ReplicaChanges) -> None:
        """Follow changes of replicas: a few of them at a time, so that other requests are served between."""

    def apply_metadata(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        """Follow new metadata, after all changes of replicas. The first have no delta."""

    def resign(self, partitions: list[TopicPartition]) -> None:
        """Give up replicas, as their directory has failed."""

    def start(self) -> None:
        """Begin to work: the broker serves other brokers and may lead."""

    async def close(self) -> None:
        """Stop: the replicas do not change any more, and the logs are still open."""

    def announced_apis(self) -> frozenset[int]:
        """The keys of the optional APIs (`ApiRoute.is_optional`) that clients are to know of."""
        return frozenset()

    def internal_topic(self, name: str) -> CreatableTopic | None:
        """Describe a topic of its own, to be created when it is first needed; None for any other topic."""
        return None

    def topic_status(self, topic: str) -> Mapping[str, str]:
        """What DescribeConfigs shows of a topic beside its settings."""
        return {}


def creatable_topic(name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> CreatableTopic:
    from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig

    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
