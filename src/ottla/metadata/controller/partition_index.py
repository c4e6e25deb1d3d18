"""`PartitionIndex`: which partitions a broker leads or has in sync, and which have no or not the best leader.

Kafka's `BrokersToIsrs`. A broker that is fenced or shuts down concerns the partitions in whose ISR it is, a
broker that comes back those without a leader: the controller finds them here and does not walk over all
partitions. Soft state, which follows the image by its deltas. Invariant: it is what a walk over the image
would find; the order is that in which partitions came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import NO_LEADER, PartitionRegistration, TopicImage
from ottla.metadata.image.image import MetadataImage
from ottla.runtime.steps import Steps

_Key: TypeAlias = tuple[bytes, int]


class PartitionRef(NamedTuple):
    topic: TopicImage
    number: int
    partition: PartitionRegistration


class PartitionIndex:
    def __init__(self) -> None:
        self._in_isr: dict[int, dict[_Key, None]] = {}
        self._in_elr: dict[int, dict[_Key, None]] = {}
        self._led: dict[int, dict[_Key, None]] = {}
        self._leaderless: dict[_Key, None] = {}
        self._imbalanced: dict[_Key, None] = {}  # another replica than the preferred one leads, or none

    def load(self, image: MetadataImage) -> Steps[None]:
        """Take up all partitions of an image; before that the index is empty."""
        for topic, number, partition in image.topics.partitions():
            self._add((topic.id, number), partition)
            yield

    def follow(self, delta: MetadataDelta) -> Steps[None]:
        """Follow the changes of a delta."""
        for topic in delta.deleted_topics.values():
            for number, partition in topic.partitions.items():
                self._remove((topic.id, number), partition)
                yield
        for id, changed in delta.topics.items():
            before = {} if changed.before is None else changed.before.partitions
            for number, partition in changed.changes.items():
                old = before.get(number)
                if old is not None:
                    self._remove((id, number), old)
                self._add((id, number), partition)
                yield

    def _add(self, key: _Key, partition: PartitionRegistration) -> None:
        for broker in partition.isr:
            self._in_isr.setdefault(broker, {})[key] = None
        for broker in partition.elr:
            self._in_elr.setdefault(broker, {})[key] = None
        leader = partition.leader
        if leader == NO_LEADER:
            self._leaderless[key] = None
        else:
            self._led.setdefault(leader, {})[key] = None
        if not partition.has_preferred_leader:
            self._imbalanced[key] = None

    def _remove(self, key: _Key, partition: PartitionRegistration) -> None:
        for broker in partition.isr:
            del self._in_isr[broker][key]
        for broker in partition.elr:
            del self._in_elr[broker][key]
        leader = partition.leader
        if leader == NO_LEADER:
            del self._leaderless[key]
        else:
            del self._led[leader][key]
        self._imbalanced.pop(key, None)

    def leads_anything(self, broker: int) -> bool:
        return bool(self._led.get(broker))

    def in_isr(self, image: MetadataImage, broker: int) -> Iterator[PartitionRef]:
        """The partitions in whose ISR the broker is, first those that it leads: they wait for another leader.
        The index must not change meanwhile, here and below.
        """
        in_isr, led = self._in_isr.get(broker, {}), self._led.get(broker, {})
        yield from _refs(image, (key for key in led if key in in_isr))
        yield from _refs(image, (key for key in in_isr if key not in led))

    def in_elr(self, image: MetadataImage, broker: int) -> Iterator[PartitionRef]:
        return _refs(image, self._in_elr.get(broker, ()))

    def leaderless(self, image: MetadataImage) -> Iterator[PartitionRef]:
        return _refs(image, self._leaderless)

    def imbalanced(self, image: MetadataImage) -> Iterator[PartitionRef]:
        """The partitions that their preferred replica does not lead."""
        return _refs(image, self._imbalanced)


def _refs(image: MetadataImage, keys: Iterable[_Key]) -> Iterator[PartitionRef]:
    topics = image.topics.by_id
    for id, number in keys:
        topic = topics[id]
        yield PartitionRef(topic, number, topic.partitions[number])
