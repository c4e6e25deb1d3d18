"""What may be done to a cluster at the same time, so that its promises still hold."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from ottla.metadata.image import MetadataImage
from ottla.protocol.metadata_records import PartitionRecord, TopicRecord
from ottla.sim.cluster.life import ClusterLife
from ottla.sim.cluster.member import ClusterMember
from ottla.sim.cluster.plan import ClusterPlan
from ottla.sim.world import Machine

TOPIC_ID = b"the id of orders"


class Scene:
    """Three brokers that do not sync, all in sync with each other, and nobody runs."""

    def __init__(self) -> None:
        life = ClusterLife(1, plan=ClusterPlan(nodes=3, separate=False, synced=False))
        life.checker.newest = MetadataImage.EMPTY.apply(
            [
                TopicRecord(name="orders", topic_id=TOPIC_ID),
                PartitionRecord(
                    topic_id=TOPIC_ID, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1, directories=[TOPIC_ID] * 3
                ),
            ]
        )
        self.members = {member.id: member for member in life.members}
        self._harm = life._harm

    def loses_power(self, id: int) -> bool:
        """Whether it may."""
        return self._harm._may_end(self._machine(id), power_loss=True)

    def is_asked_to_stop(self, id: int) -> bool:
        return self._harm._stop(self.members[id])

    def _machine(self, id: int) -> Machine:
        return self.members[id].machine


@pytest.fixture
def scene() -> Iterator[Scene]:
    with mock.patch.object(ClusterMember, "is_awake", True):
        yield Scene()


def test_of_three_that_do_not_sync_two_may_lose_their_power(scene: Scene) -> None:
    assert scene.loses_power(3)
    assert scene.loses_power(1)
    assert not scene.loses_power(2)


def test_not_if_the_third_is_about_to_hand_over_to_them(scene: Scene) -> None:
    assert scene.loses_power(3)
    assert scene.is_asked_to_stop(2)
    assert not scene.loses_power(1)


def test_and_who_alone_has_everything_is_not_asked_to_stop(scene: Scene) -> None:
    assert scene.loses_power(3)
    assert scene.loses_power(1)
    assert not scene.is_asked_to_stop(2)
