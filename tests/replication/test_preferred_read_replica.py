"""The replica that a consumer with a rack should fetch from."""

from __future__ import annotations

from tests.replication.partition_harness import PartitionHarness

RACKS = {0: "a", 1: "b", 2: "b"}


def led() -> PartitionHarness:
    leader = PartitionHarness(replicas=(0, 1, 2))
    leader.produce(5)
    leader.follow(1, 0)
    leader.follow(2, 0)
    leader.follow(1, 5)
    leader.follow(2, 3)
    return leader


def choose(leader: PartitionHarness, rack: str, offset: int) -> int | None:
    return leader.partition.find_preferred_read_replica(rack, RACKS, offset, leader.now_ms)


def test_a_consumer_is_sent_to_the_replica_of_its_rack_that_has_most() -> None:
    assert choose(led(), "b", 0) == 1


def test_a_replica_that_does_not_have_the_offset_does_not_count() -> None:
    leader = led()
    leader.follow(2, 5)
    leader.produce(1)
    leader.follow(2, 6)
    assert choose(leader, "b", 6) == 2
    assert choose(leader, "b", 7) is None


def test_a_consumer_in_the_rack_of_the_leader_or_of_nobody_stays() -> None:
    leader = led()
    assert choose(leader, "a", 0) is None
    assert choose(leader, "c", 0) is None
    assert choose(leader, "", 0) is None


def test_a_replica_that_is_not_in_sync_does_not_count() -> None:
    leader = PartitionHarness(replicas=(0, 1), isr=(0,))
    leader.ineligible = {1}
    leader.produce(2)
    leader.follow(1, 2)
    assert choose(leader, "b", 0) is None


def test_a_follower_sends_nobody_away() -> None:
    leader = PartitionHarness(replicas=(0, 1), lead=False)
    assert choose(leader, "b", 0) is None
