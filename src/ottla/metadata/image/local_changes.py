"""What a delta does to topics, and what that asks of one broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.metadata.image.entities import PartitionRegistration, TopicImage
from ottla.protocol.names import TopicPartition


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """A partition as one of its brokers sees it after a delta."""

    topic_id: bytes
    partition: PartitionRegistration


@dataclass(slots=True)
class LocalReplicaChanges:
    """What a delta asks of one broker. ``elected_leaders`` is the part of ``leaders`` whose leader epoch is
    new.
    """

    deletes: dict[TopicPartition, bytes] = field(default_factory=dict)  # -> topic id
    elected_leaders: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    leaders: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    followers: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    directories: dict[TopicPartition, bytes] = field(default_factory=dict)  # new or moved -> directory id

    def __bool__(self) -> bool:
        return bool(self.deletes or self.leaders or self.followers or self.directories)


@dataclass(slots=True)
class TopicDelta:
    """A topic being changed; ``before`` is None for a new one. ``changes`` holds the partitions written so
    far.
    """

    name: str
    id: bytes
    before: TopicImage | None
    changes: dict[int, PartitionRegistration] = field(default_factory=dict)

    def partition(self, partition: int) -> PartitionRegistration | None:
        found = self.changes.get(partition)
        if found is None and self.before is not None:
            found = self.before.partitions.get(partition)
        return found

    def image(self) -> TopicImage:
        if self.before is None:
            return TopicImage(self.name, self.id, self.changes)
        if not self.changes:
            return self.before
        return TopicImage(self.name, self.id, {**self.before.partitions, **self.changes})

    def collect_local_changes(self, broker: int, out: LocalReplicaChanges) -> None:
        previous = {} if self.before is None else self.before.partitions
        for index, now in self.changes.items():
            tp = TopicPartition(self.name, index)
            old = previous.get(index)
            if broker not in now.replicas:
                if old is not None and broker in old.replicas:
                    out.deletes[tp] = self.id
                continue
            if old is None or old.partition_epoch != now.partition_epoch:
                replica = LocalReplica(self.id, now)
                if now.leader == broker:
                    out.leaders[tp] = replica
                    if old is None or old.leader_epoch != now.leader_epoch:
                        out.elected_leaders[tp] = replica
                else:
                    out.followers[tp] = replica
            directory = now.directory(broker)
            if old is None or broker not in old.replicas or old.directory(broker) != directory:
                out.directories[tp] = directory
