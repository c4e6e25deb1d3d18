"""Which faults a cluster may suffer at the same time without breaking its guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest import mock

import pytest

from ottla.log.segment.walk import CorruptBatch
from ottla.metadata.image.delta import apply_records
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.protocol.metadata_records import PartitionRecord, RegisterBrokerRecord, TopicRecord
from ottla.sim.cluster.members import ClusterMember
from ottla.sim.cluster.run import ClusterRun
from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.loop import Process
from ottla.sim.world import SimMachine

TOPIC_ID = b"the id of orders"


class FaultHarness:
    """Three brokers that do not flush, all in the ISR; no process runs."""

    def __init__(self) -> None:
        run = ClusterRun(1, scenario=ClusterScenario(nodes=3, separate=False, synced=False, features=()))
        self.members = {member.id: member for member in run.members}
        self._faults = run._faults
        self._checker = run.checker
        self._log_handler = run.world.log_handler
        self._epochs = {1: 1, 2: 1, 3: 1}
        self.in_sync(1, 2, 3)

    def in_sync(self, *ids: int, eligible: Sequence[int] = (), last: Sequence[int] = ()) -> None:
        """Set the registration of the partition; `last` are the last known eligible leader replicas."""
        self._checker.newest = apply_records(
            MetadataImage.EMPTY,
            [
                *(RegisterBrokerRecord(broker_id=id, broker_epoch=at) for id, at in self._epochs.items()),
                TopicRecord(name="orders", topic_id=TOPIC_ID),
                PartitionRecord(
                    topic_id=TOPIC_ID,
                    replicas=[1, 2, 3],
                    isr=list(ids),
                    leader=ids[0] if ids else -1,
                    eligible_leader_replicas=list(eligible),
                    last_known_elr=list(last),
                    directories=[TOPIC_ID] * 3,
                ),
            ],
        )

    def decides(self, by: int, *isr: int) -> None:
        """Let the controller on a node decide another ISR, which is not committed yet."""
        committed = self._checker.newest
        self.in_sync(*isr)
        image, self._checker.newest = self._checker.newest, committed
        provenance = Provenance(committed.provenance.last_contained_offset + 1, 1, 0)
        self._checker.on_decided(by, replace(image, provenance=provenance))

    def is_paused(self, id: int) -> bool:
        """Pause a broker, if that is allowed; whether it was."""
        machine = self._machine(id)
        machine.process = Process(machine.name)
        self._faults.nemesis._pause(machine)
        return machine.process.paused

    def loses_power(self, id: int) -> bool:
        """Lose the power of a broker, if that is allowed; whether it was."""
        return self._faults._may_end(self._machine(id), power_loss=True)

    def rots(self, id: int) -> None:
        self._checker.rotting = id

    def is_explained(self, id: int, error: Exception) -> bool:
        """Whether a fault explains that a node logs an error."""
        return self._log_handler.is_explained(f"node{id}", error)

    def is_killed(self, id: int) -> bool:
        return self._faults._may_end(self._machine(id), power_loss=False)

    def may_move_replicas(self) -> bool:
        return self._checker.may_move_replicas()

    def comes_back(self, id: int) -> None:
        """Register the broker again, visible with the next change of the metadata."""
        self._epochs[id] += 1

    def is_asked_to_stop(self, id: int) -> bool:
        return self._faults._stop(self.members[id])

    def _machine(self, id: int) -> SimMachine:
        return self.members[id].machine


@pytest.fixture
def harness() -> Iterator[FaultHarness]:
    with mock.patch.object(ClusterMember, "is_awake", True):
        yield FaultHarness()


def test_of_three_that_do_not_sync_two_may_lose_their_power(harness: FaultHarness) -> None:
    assert harness.loses_power(3)
    assert harness.loses_power(1)
    assert not harness.loses_power(2)


def test_not_if_the_third_is_about_to_hand_over_to_them(harness: FaultHarness) -> None:
    assert harness.loses_power(3)
    assert harness.is_asked_to_stop(2)
    assert not harness.loses_power(1)


def test_rot_explains_that_its_node_finds_damage_and_nothing_else(harness: FaultHarness) -> None:
    damage = CorruptBatch("/data/a/orders-0/0.log", 0, "the batch does not have its checksum")
    assert not harness.is_explained(2, damage)
    harness.rots(2)
    assert harness.is_explained(2, damage)
    assert not harness.is_explained(1, damage)
    assert not harness.is_explained(2, OSError("input or output failed"))


def test_the_only_broker_with_everything_is_not_asked_to_stop(harness: FaultHarness) -> None:
    assert harness.loses_power(3)
    assert harness.loses_power(1)
    assert not harness.is_asked_to_stop(2)


def test_no_replica_is_dropped_before_those_that_lost_data_are_fenced(harness: FaultHarness) -> None:
    assert harness.may_move_replicas()
    assert harness.loses_power(3)
    assert not harness.may_move_replicas(), "the replica that is dropped may be the last with everything"
    harness.comes_back(3)
    harness.in_sync(1, 2)
    assert harness.may_move_replicas()


def test_a_broker_that_lost_data_counts_so_until_it_is_in_sync_again(harness: FaultHarness) -> None:
    assert harness.loses_power(2)
    harness.comes_back(2)
    harness.in_sync(eligible=[3], last=[2])
    assert not harness.is_killed(3), "it would not be eligible any more, and 2 would be"
    harness.in_sync(2, 3)
    assert harness.is_killed(3)


def test_what_a_controller_has_decided_counts_before_it_is_committed(harness: FaultHarness) -> None:
    harness.decides(1, 2, 3)
    assert harness.loses_power(3)
    assert not harness.loses_power(2), "1 is in sync only as long as the decision is not committed"


def test_a_broker_that_is_paused_is_not_counted_on(harness: FaultHarness) -> None:
    assert harness.is_paused(2)
    assert harness.loses_power(3)
    assert not harness.loses_power(1), "2 may be fenced before 1 and 3 are"


def test_the_broker_with_everything_is_not_paused_before_the_others_are_fenced(harness: FaultHarness) -> None:
    assert harness.loses_power(3)
    assert harness.loses_power(1)
    assert not harness.is_paused(2)
    harness.in_sync(2)
    assert harness.is_paused(2)
