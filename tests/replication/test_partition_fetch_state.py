"""Replicas follow, fall behind, lead and truncate: committed records stay, and logs become equal."""

from __future__ import annotations

import random

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import EpochEndOffset, PartitionData
from ottla.records.batch import read_records
from ottla.replication.partition import FetchIsolation, FollowerFetch, Partition, PendingPartitionChange
from ottla.replication.partition_fetch_state import AfterFetch, PartitionFetchState
from tests.replication.partition_harness import PartitionHarness, batch, registration
from tests.support.rows import for_each

REPLICAS = (0, 1, 2)


class Replica(PartitionHarness):
    """The replica of one broker."""

    def __init__(self, broker: int) -> None:
        super().__init__(lead=False)
        self.partition = Partition(
            self.partition.topic_partition, self.partition.topic_id, self.log, broker, self
        )
        self.following: PartitionFetchState | None = None

    def values(self, upto: int | None = None) -> list[tuple[int, bytes | None]]:
        end = self.log.log_end_offset if upto is None else upto
        found: list[tuple[int, bytes | None]] = []
        at = self.log.log_start_offset
        while at < end:
            data = self.log.read(at, 1_000_000, upper_offset=self.log.log_end_offset).records
            position = 0
            while position < len(data):
                records = read_records(data, position)
                found += [(record.offset, record.value) for record in records]
                position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            at = found[-1][0] + 1
        return [each for each in found if self.log.log_start_offset <= each[0] < end]


def answer(leader: Replica, follower: Replica, following: PartitionFetchState) -> PartitionData:
    """The leader's response to the follower's fetch."""
    asked = following.fetch_request(1_000_000)
    try:
        fetched = leader.partition.fetch_records(
            asked.fetch_offset,
            1_000_000,
            isolation=FetchIsolation.LOG_END,
            now_ms=leader.now_ms,
            current_leader_epoch=asked.current_leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
            follower=FollowerFetch(follower.partition.broker_id, asked.log_start_offset),
        )
    except KafkaError as error:
        return PartitionData(error_code=error.code)
    diverging = fetched.diverging_epoch
    return PartitionData(
        high_watermark=fetched.high_watermark,
        log_start_offset=fetched.log_start_offset,
        diverging_epoch=EpochEndOffset()
        if diverging is None
        else EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset),
        records=fetched.records,
    )


def truncate(state: PartitionFetchState) -> None:
    truncation = state.begin_truncation()
    if truncation is not None:
        truncation.finish()
        state.partition.on_truncation()


class Cluster:
    """Three replicas and a controller, which elects leaders and confirms in-sync sets."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replicas = [Replica(broker) for broker in REPLICAS]
        self.leader = 0
        self.isr = set(REPLICAS)
        self.epoch = self.partition_epoch = 0
        self.cut_off: set[int] = set()
        self.committed: dict[int, bytes | None] = {}
        self.number = 0
        self.announce()

    def announce(self, *, leave_out: set[int] | None = None) -> None:
        told = registration(
            replicas=REPLICAS,
            isr=tuple(sorted(self.isr)),
            leader=self.leader,
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
        )
        for broker, replica in enumerate(self.replicas):
            if broker in (leave_out or ()):
                continue
            if broker == self.leader:
                replica.partition.make_leader(told, replica.now_ms)
                replica.following = None
            elif replica.partition.make_follower(told) or replica.following is None:
                replica.following = PartitionFetchState(replica.partition)

    def elect(self) -> None:
        """Elect another in-sync replica; the former leader may not know it yet."""
        candidates = sorted(self.isr - {self.leader})
        if candidates:
            former, self.leader = self.leader, self.random.choice(candidates)
            self.epoch += 1
            self.partition_epoch += 1
            self.announce(leave_out={former} if self.random.random() < 0.5 else None)

    def produce(self) -> None:
        """Produce to every replica that believes to be the leader; that may be two."""
        believers = [replica for replica in self.replicas if replica.partition.is_leader]
        replica = self.random.choice(believers)
        self.number += 1
        replica.partition.append_records_to_leader(
            batch(self.random.randrange(1, 4), replica.now_ms, b"%d" % self.number),
            now_ms=replica.now_ms,
            acks=1,
        )

    def fetch(self, broker: int) -> None:
        replica, leader = self.replicas[broker], self.replicas[self.leader]
        if broker == self.leader:
            return
        if replica.following is None or not replica.following.is_current:
            if replica.partition.leader_epoch < self.epoch:
                self.announce()
            return
        asked = replica.following.fetch_request(1_000_000).fetch_offset
        then = replica.following.process_partition_data(
            asked, answer(leader, replica, replica.following), replica.now_ms
        )
        if then is AfterFetch.FETCH_OFFSETS:
            then = replica.following.on_leader_bounds(leader.log.log_start_offset, leader.log.log_end_offset)
        if then is AfterFetch.TRUNCATE:
            truncate(replica.following)
        self.settle_proposals()

    def settle_proposals(self) -> None:
        leader = self.replicas[self.leader]
        for proposal in leader.proposals:
            self.decide(leader, proposal)
        leader.proposals.clear()

    def decide(self, leader: Replica, proposal: PendingPartitionChange) -> None:
        if (proposal.leader_epoch, proposal.partition_epoch) == (self.epoch, self.partition_epoch):
            self.isr = set(proposal.isr)
            self.partition_epoch += 1
            leader.partition.handle_alter_partition_update(
                proposal, proposal.isr, self.epoch, self.partition_epoch, leader.now_ms
            )
        else:
            leader.partition.handle_alter_partition_error(proposal, ErrorCode.INVALID_UPDATE_VERSION)
            self.announce()

    def step(self) -> None:
        what = self.random.random()
        if what < 0.35:
            self.produce()
        elif what < 0.9:
            self.fetch(self.random.choice(REPLICAS))
        elif what < 0.95:
            self.elect()
        else:
            for replica in self.replicas:
                replica.clock.advance_ms(20_000)
            self.replicas[self.leader].partition.maybe_shrink_isr(self.replicas[self.leader].now_ms)
            self.settle_proposals()
        self.check()

    def check(self) -> None:
        """Records that a leader has committed stay, and are the same in the log of every later leader."""
        leader = self.replicas[self.leader]
        seen = dict(leader.values())
        for offset, value in self.committed.items():
            assert seen.get(offset) == value, f"offset {offset} was {value!r} and is {seen.get(offset)!r}"
        self.committed = {offset: seen[offset] for offset in seen if offset < leader.high_watermark} | (
            self.committed
        )

    def heal(self) -> None:
        self.announce()
        for _ in range(20):
            for broker in REPLICAS:
                self.fetch(broker)


@for_each("seed", range(60))
def test_what_is_committed_survives_every_election(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(150):
        cluster.step()
    cluster.heal()
    first, *others = [replica.values() for replica in cluster.replicas]
    assert first
    assert all(other == first for other in others)
    ends = {replica.high_watermark for replica in cluster.replicas}
    assert ends == {cluster.replicas[0].log.log_end_offset}
    assert cluster.isr == set(REPLICAS)


def pair() -> tuple[Replica, Replica, PartitionFetchState]:
    cluster = Cluster(1)
    cluster.isr = {0, 1}
    leader, follower = cluster.replicas[:2]
    assert follower.following is not None
    return leader, follower, follower.following


def test_a_follower_behind_the_leaders_start_begins_there() -> None:
    leader, follower, state = pair()
    leader.produce(5, acks=1)
    leader.log.update_high_watermark(5)
    leader.partition.delete_records_on_leader(3)
    assert state.process_partition_data(0, answer(leader, follower, state), 0) is AfterFetch.FETCH_OFFSETS
    state.on_leader_bounds(leader.log.log_start_offset, leader.log.log_end_offset)
    truncate(state)
    assert follower.log.log_start_offset == 3
    assert state.process_partition_data(3, answer(leader, follower, state), 0) is AfterFetch.FETCH
    assert [offset for offset, _ in follower.values()] == [3, 4]


def test_a_follower_beyond_the_leaders_end_is_cut_to_it() -> None:
    leader, follower, state = pair()
    leader.produce(2, acks=1)
    follower.partition.append_records_to_follower(build(5), 0, now_ms=0)
    state.on_leader_bounds(leader.log.log_start_offset, leader.log.log_end_offset)
    truncate(state)
    assert follower.log.log_end_offset == 2


def build(count: int) -> bytes:
    return batch(1, 0) if count == 1 else b"".join(_at(n) for n in range(count))


def _at(offset: int) -> bytes:
    data = bytearray(batch(1, 0))
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = bytes(4)
    return bytes(data)


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, AfterFetch.PAUSE),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, AfterFetch.PAUSE),
        (ErrorCode.UNKNOWN_TOPIC_ID, AfterFetch.PAUSE),
        (ErrorCode.CORRUPT_MESSAGE, AfterFetch.PAUSE),
        (ErrorCode.OFFSET_OUT_OF_RANGE, AfterFetch.FETCH_OFFSETS),
        (ErrorCode.FENCED_LEADER_EPOCH, AfterFetch.STOP),
    ],
)
def test_what_an_error_means(error: ErrorCode, then: AfterFetch) -> None:
    _, _, state = pair()
    assert state.process_partition_data(0, PartitionData(error_code=error), 0) is then


def test_broken_records_are_not_taken_and_asked_for_again() -> None:
    leader, follower, state = pair()
    leader.produce(2, acks=1)
    good = answer(leader, follower, state)
    assert good.records
    broken = bytearray(good.records)
    broken[-1] ^= 1
    assert state.process_partition_data(0, PartitionData(records=bytes(broken)), 0) is AfterFetch.PAUSE
    assert follower.log.log_end_offset == 0
    assert state.process_partition_data(0, good, 0) is AfterFetch.FETCH
    assert follower.log.log_end_offset == 2


def test_records_that_came_too_late_are_left() -> None:
    leader, follower, state = pair()
    leader.produce(2, acks=1)
    late = answer(leader, follower, state)
    assert state.process_partition_data(0, late, 0) is AfterFetch.FETCH
    assert state.process_partition_data(0, late, 0) is AfterFetch.NAME_AGAIN
    assert follower.log.log_end_offset == 2


def test_a_follower_fetches_on_only_once_it_has_flushed_what_it_has() -> None:
    """Its fetch offset says that it has everything below; with `flush.messages=1`, on its disk."""
    replica = PartitionHarness(config=LogConfig(flush_messages=1), lead=False)
    following = PartitionFetchState(replica.partition)
    replica.partition.append_records_to_follower(batch(1, replica.now_ms), 0, now_ms=0)
    assert replica.log.log_end_offset == 1
    assert following.is_flush_due
    with pytest.raises(AssertionError, match="durable below 0 of 1"):
        following.fetch_request(1_000_000)
    replica.log.flush()
    assert not following.is_flush_due
    assert following.fetch_request(1_000_000).fetch_offset == 1
    assert replica.log.recovery_point == 1
