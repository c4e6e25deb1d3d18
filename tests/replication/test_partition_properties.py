"""Invariants of a leader under any order of fetches, appends, responses of the controller and time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.replication.partition import FetchIsolation
from tests.replication.partition_harness import PartitionHarness, registration

REPLICAS = (0, 1, 2)
followers = st.sampled_from([1, 2])


class LeadersLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leader = PartitionHarness(replicas=REPLICAS, config=LogConfig(min_insync_replicas=2))
        self.followers = dict.fromkeys((1, 2), 0)  # what each really has
        self.high_watermark = 0
        self.acknowledged: list[int] = []  # end offsets of produces that acks=all confirmed
        self.waiting: list[int] = []

    @rule(count=st.integers(1, 3), acks=st.sampled_from([-1, 1]))
    def produce(self, count: int, acks: int) -> None:
        if acks == -1 and len(self.leader.partition.isr) < 2:
            with pytest.raises(KafkaError) as error:
                self.leader.produce(count, acks=acks)
            assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            return
        required = self.leader.produce(count, acks=acks)
        if acks == -1:
            self.waiting.append(required)

    @rule(broker=followers, take=st.integers(0, 4))
    def follow(self, broker: int, take: int) -> None:
        fetched = self.leader.follow(broker, self.followers[broker])
        for _, header in list(iter_batches(fetched.records))[:take]:
            self.followers[broker] = header.next_offset

    @rule(ms=st.integers(1, 40_000))
    def time_passes(self, ms: int) -> None:
        self.leader.clock.advance_ms(ms)
        self.leader.partition.maybe_shrink_isr(self.leader.now_ms)

    @rule(agree=st.booleans())
    def controller_answers(self, agree: bool) -> None:
        proposal = self.leader.partition.pending_change
        if proposal is None:
            return
        if agree:
            self.leader.confirm()
        else:
            self.leader.refuse(ErrorCode.INELIGIBLE_REPLICA)

    @rule(broker=followers, eligible=st.booleans())
    def broker_is_fenced_or_not(self, broker: int, eligible: bool) -> None:
        (self.leader.ineligible.discard if eligible else self.leader.ineligible.add)(broker)

    @rule()
    def elected_again(self) -> None:
        partition = self.leader.partition
        new = registration(
            replicas=REPLICAS,
            isr=tuple(sorted(partition.isr)),
            leader_epoch=partition.leader_epoch + 1,
            partition_epoch=partition.partition_epoch + 1,
        )
        partition.make_leader(new, self.leader.now_ms)

    @invariant()
    def the_high_watermark_never_goes_back_nor_past_the_log(self) -> None:
        assert self.high_watermark <= self.leader.high_watermark <= self.leader.log.log_end_offset
        self.high_watermark = self.leader.high_watermark

    @invariant()
    def what_is_committed_is_on_every_confirmed_in_sync_replica(self) -> None:
        for broker in self.leader.partition.isr - {0}:
            assert self.followers[broker] >= self.leader.high_watermark

    @invariant()
    def what_was_acknowledged_stays_committed(self) -> None:
        for required in list(self.waiting):
            outcome = self.leader.partition.check_enough_replicas_reach_offset(required)
            if outcome is ErrorCode.NONE:
                self.waiting.remove(required)
                self.acknowledged.append(required)
        assert all(required <= self.leader.high_watermark for required in self.acknowledged)

    @invariant()
    def consumers_see_nothing_above_the_high_watermark(self) -> None:
        fetched = self.leader.consume(0, FetchIsolation.HIGH_WATERMARK)
        ends = [header.next_offset for _, header in iter_batches(fetched.records)]
        assert all(end <= self.leader.high_watermark for end in ends)


LeadersLife.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLeadersLife = pytest.mark.slow(LeadersLife.TestCase)
