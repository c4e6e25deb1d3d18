"""A partition's leader: commits, the in-sync set, errors. Each test is a short dialogue."""

from __future__ import annotations

import errno

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.replication.partition import EpochEndOffset, FetchIsolation
from ottla.runtime import invariants
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import Op
from tests.replication.partition_harness import PartitionHarness, registration


def refused_with(code: ErrorCode, error: pytest.ExceptionInfo[KafkaError]) -> bool:
    return error.value.code is code


class TestAlone:
    def test_a_record_is_committed_as_soon_as_it_is_appended(self) -> None:
        leader = PartitionHarness()
        required = leader.produce(3)
        assert leader.high_watermark == required == 3
        assert leader.partition.check_enough_replicas_reach_offset(required) is ErrorCode.NONE

    def test_consumers_read_up_to_the_high_watermark(self) -> None:
        leader = PartitionHarness()
        leader.produce(2)
        fetched = leader.consume()
        assert [header.count for _, header in iter_batches(fetched.records)] == [2]
        assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (2, 2, 0)
        assert leader.consume(2).records == b""

    def test_an_offset_beyond_the_end_is_out_of_range(self) -> None:
        leader = PartitionHarness()
        leader.produce(2)
        with pytest.raises(KafkaError) as error:
            leader.consume(3)
        assert refused_with(ErrorCode.OFFSET_OUT_OF_RANGE, error)

    def test_min_insync_replicas_above_the_replication_factor_counts_as_all_of_them(self) -> None:
        leader = PartitionHarness(config=LogConfig(min_insync_replicas=3))
        assert leader.partition.check_enough_replicas_reach_offset(leader.produce()) is ErrorCode.NONE

    def test_delete_records_moves_the_log_start(self) -> None:
        leader = PartitionHarness()
        leader.produce(5)
        assert leader.partition.delete_records_on_leader(3) == 3
        assert leader.partition.low_watermark == 3
        with pytest.raises(KafkaError) as error:
            leader.consume(2)
        assert refused_with(ErrorCode.OFFSET_OUT_OF_RANGE, error)
        assert leader.partition.delete_records_on_leader(-1) == 5
        for offset in (6, -2):
            with pytest.raises(KafkaError) as error:
                leader.partition.delete_records_on_leader(offset)
            assert refused_with(ErrorCode.OFFSET_OUT_OF_RANGE, error)

    def test_records_of_a_compacted_topic_are_not_deleted(self) -> None:
        leader = PartitionHarness(config=LogConfig(cleanup_policy=frozenset({"compact"})))
        with pytest.raises(KafkaError) as error:
            leader.partition.delete_records_on_leader(-1)
        assert refused_with(ErrorCode.POLICY_VIOLATION, error)


class TestEpochs:
    def test_requests_of_another_leader_epoch_are_refused(self) -> None:
        leader = PartitionHarness(lead=False)
        leader.partition.make_leader(registration(leader_epoch=5, partition_epoch=7), leader.now_ms)
        for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            with pytest.raises(KafkaError) as error:
                leader.partition.fetch_records(
                    0, 100, isolation=FetchIsolation.HIGH_WATERMARK, now_ms=0, current_leader_epoch=epoch
                )
            assert refused_with(code, error)
        leader.partition.check_leader(5)
        leader.partition.check_leader(-1)

    def test_a_running_node_leads_even_where_the_metadata_leave_it_out_of_the_isr(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The metadata are durable and may be inherited: a node that refused them could never start."""
        leader = PartitionHarness(replicas=(0, 1), lead=False)
        outside = registration(replicas=(0, 1), isr=(1,))
        with pytest.raises(AssertionError):
            leader.partition.make_leader(outside, leader.now_ms)
        monkeypatch.setattr(invariants, "thorough", False)
        assert leader.partition.make_leader(outside, leader.now_ms)
        assert leader.partition.is_leader

    def test_a_follower_neither_takes_nor_serves_records(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        leader.partition.make_follower(
            registration(replicas=(0, 1), leader=1, leader_epoch=1, partition_epoch=1)
        )
        for attempt in (leader.produce, leader.consume):
            with pytest.raises(KafkaError) as error:
                attempt()
            assert refused_with(ErrorCode.NOT_LEADER_OR_FOLLOWER, error)
        assert leader.partition.check_enough_replicas_reach_offset(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_news_that_is_older_than_what_is_known_is_ignored(self) -> None:
        leader = PartitionHarness()
        leader.partition.make_leader(registration(leader_epoch=2, partition_epoch=4), leader.now_ms)
        assert not leader.partition.make_follower(registration(leader=1, leader_epoch=1, partition_epoch=3))
        assert leader.partition.is_leader
        assert leader.partition.leader_epoch == 2

    def test_each_leader_epoch_begins_where_the_log_ended(self) -> None:
        leader = PartitionHarness()
        leader.produce(3)
        leader.partition.make_leader(registration(leader_epoch=1, partition_epoch=1), leader.now_ms)
        leader.produce(2)
        assert leader.partition.last_offset_for_leader_epoch(0) == EpochEndOffset(0, 3)
        assert leader.partition.last_offset_for_leader_epoch(1) == EpochEndOffset(1, 5)
        assert leader.partition.last_offset_for_leader_epoch(9).is_unknown

    def test_a_reader_that_saw_another_history_is_told_where_it_diverges(self) -> None:
        leader = PartitionHarness()
        leader.produce(3)
        leader.partition.make_leader(registration(leader_epoch=2, partition_epoch=1), leader.now_ms)
        leader.produce(2)
        fetched = leader.partition.fetch_records(
            4, 1000, isolation=FetchIsolation.HIGH_WATERMARK, now_ms=0, last_fetched_epoch=1
        )
        assert fetched.diverging_epoch == EpochEndOffset(0, 3)
        assert fetched.records == b""
        agreed = leader.partition.fetch_records(
            4, 1000, isolation=FetchIsolation.HIGH_WATERMARK, now_ms=0, last_fetched_epoch=2
        )
        assert agreed.diverging_epoch is None
        assert agreed.records


class TestReplicated:
    def test_the_high_watermark_waits_for_the_in_sync_set(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2))
        required = leader.produce(4)
        assert leader.high_watermark == 0
        assert leader.partition.check_enough_replicas_reach_offset(required) is None
        leader.follow(1, 4)
        assert leader.high_watermark == 0
        leader.follow(2, 3)
        assert leader.high_watermark == 3
        assert leader.partition.check_enough_replicas_reach_offset(required) is None
        leader.follow(2, 4)
        assert leader.high_watermark == 4
        assert leader.partition.check_enough_replicas_reach_offset(required) is ErrorCode.NONE

    def test_consumers_do_not_see_what_is_not_committed(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        leader.produce(2)
        assert leader.consume().records == b""
        assert leader.follow(1, 0).records != b""

    def test_who_reads_committed_records_does_not_see_those_of_an_open_transaction(self) -> None:
        leader = PartitionHarness()
        leader.produce(2)
        records = build_batch(
            [(leader.now_ms, None, b"open")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        guard = leader.log.producer_state_manager.maybe_start_verification(
            7, 0, 0, supports_epoch_bump=False, now_ms=leader.now_ms
        )
        leader.partition.append_records_to_leader(records, now_ms=leader.now_ms, guard=guard)
        leader.produce()
        for isolation, end in ((FetchIsolation.HIGH_WATERMARK, 4), (FetchIsolation.TXN_COMMITTED, 2)):
            found = leader.consume(isolation=isolation)
            assert [header.next_offset for _, header in iter_batches(found.records)][-1] == end
            assert (found.high_watermark, found.last_stable_offset) == (4, 2)

    def test_a_replica_outside_the_in_sync_set_is_not_waited_for(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.clock.advance_ms(60_000)
        assert leader.high_watermark == 0
        leader.produce(2)
        assert leader.high_watermark == 2

    def test_acks_all_needs_min_insync_replicas_before_the_append(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2), isr=(0,), config=LogConfig(min_insync_replicas=2))
        with pytest.raises(KafkaError) as error:
            leader.produce(acks=-1)
        assert refused_with(ErrorCode.NOT_ENOUGH_REPLICAS, error)
        assert leader.log.log_end_offset == 0
        leader.produce(acks=1)
        assert leader.log.log_end_offset == 1
        assert leader.high_watermark == 0, "nothing is committed by fewer than min.insync.replicas"

    def test_a_set_that_shrank_after_the_append_is_told(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2), config=LogConfig(min_insync_replicas=2))
        required = leader.produce(2)
        leader.follow(1, 2)
        leader.follow(2, 2)
        assert leader.high_watermark == 2
        leader.partition.make_leader(
            registration(replicas=(0, 1, 2), isr=(0,), partition_epoch=1), leader.now_ms
        )
        assert (
            leader.partition.check_enough_replicas_reach_offset(required)
            is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        )

    def test_a_broker_that_is_no_replica_is_refused(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        with pytest.raises(KafkaError) as error:
            leader.follow(7, 0)
        assert refused_with(ErrorCode.UNKNOWN_LEADER_EPOCH, error)


class TestFirstBatchesThatWereRefused:
    """The log takes any sequence of a producer that it does not know, so the batch after a refused first one
    has to wait for it.
    """

    def short_of_replicas(self) -> PartitionHarness:
        return PartitionHarness(replicas=(0, 1, 2), isr=(0,), config=LogConfig(min_insync_replicas=2))

    def send(self, leader: PartitionHarness, sequence: int, epoch: int = 0) -> ErrorCode:
        record = (leader.now_ms, None, b"%d" % sequence)
        data = build_batch([record], producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        try:
            leader.partition.append_records_to_leader(bytearray(data), now_ms=leader.now_ms)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def recover(self, leader: PartitionHarness) -> None:
        leader.partition.make_leader(registration(replicas=(0, 1, 2), partition_epoch=1), leader.now_ms)

    def test_the_next_one_waits_until_it_has_come_again(self) -> None:
        leader = self.short_of_replicas()
        assert self.send(leader, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
        self.recover(leader)
        assert self.send(leader, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [self.send(leader, sequence) for sequence in (0, 1, 2)] == [ErrorCode.NONE] * 3
        assert leader.log.log_end_offset == 3

    def test_a_full_disk_refuses_it_too(self) -> None:
        leader = PartitionHarness()
        leader.produce(1)
        disk = leader.log.directory.disk
        assert isinstance(disk, SimDisk)
        full = disk.fail(errno.ENOSPC, ops=[Op.WRITE], times=None)
        assert self.send(leader, 0) is ErrorCode.KAFKA_STORAGE_ERROR
        disk.heal(full)
        assert self.send(leader, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [self.send(leader, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2

    def test_another_epoch_begins_where_it_likes(self) -> None:
        leader = self.short_of_replicas()
        assert self.send(leader, 5) is ErrorCode.NOT_ENOUGH_REPLICAS
        self.recover(leader)
        assert self.send(leader, 0, epoch=1) is ErrorCode.NONE

    def test_a_client_that_has_given_it_up_may_go_on_after_a_while(self) -> None:
        leader = self.short_of_replicas()
        assert self.send(leader, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
        self.recover(leader)
        leader.clock.advance_ms(119_000)
        assert self.send(leader, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        leader.clock.advance_ms(1_000)
        assert self.send(leader, 1) is ErrorCode.NONE

    def test_a_producer_that_is_gone_costs_others_nothing_after_a_while(self) -> None:
        leader = self.short_of_replicas()
        assert self.send(leader, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
        self.recover(leader)
        leader.clock.advance_ms(120_000)
        leader.produce()
        assert leader.partition._refused_sequences is None

    def test_a_partition_knows_a_bounded_number_of_them(self) -> None:
        leader = self.short_of_replicas()
        for producer_id in range(1_100):
            data = build_batch([(0, None, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            with pytest.raises(KafkaError):
                leader.partition.append_records_to_leader(bytearray(data), now_ms=leader.now_ms)
        assert len(leader.partition._refused_sequences or ()) == 1_000


class TestInSyncSet:
    def test_a_follower_that_caught_up_is_proposed_and_counts_at_once(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.clock.advance_ms(60_000)
        leader.produce(3)
        leader.follow(1, 0)
        assert leader.proposals == []
        leader.follow(1, 3)
        [proposal] = leader.proposals
        assert proposal.isr == (0, 1)
        required = leader.produce()
        assert leader.high_watermark == 3, "the newcomer is waited for although the controller has not agreed"
        leader.confirm()
        assert leader.partition.isr == {0, 1}
        leader.follow(1, required)
        assert leader.high_watermark == required

    def test_a_newcomer_that_the_controller_refuses_is_no_longer_waited_for(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.clock.advance_ms(60_000)
        leader.follow(1, 0)
        leader.ineligible.add(1)
        assert not leader.refuse(ErrorCode.INELIGIBLE_REPLICA)
        required = leader.produce()
        assert leader.high_watermark == required

    def test_a_fenced_broker_is_not_proposed(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.ineligible.add(1)
        leader.follow(1, 0)
        assert leader.proposals == []

    def test_a_follower_below_the_start_of_the_epoch_is_not_proposed(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.clock.advance_ms(60_000)
        leader.produce(5)
        leader.partition.make_leader(
            registration(replicas=(0, 1), isr=(0,), leader_epoch=1, partition_epoch=1), leader.now_ms
        )
        leader.follow(1, 4)
        assert leader.proposals == []
        leader.follow(1, 5)
        assert len(leader.proposals) == 1

    def test_a_silent_follower_is_dropped_only_when_the_controller_agrees(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        required = leader.produce()
        leader.clock.advance_ms(30_001)
        leader.partition.maybe_shrink_isr(leader.now_ms)
        [proposal] = leader.proposals
        assert proposal.isr == (0,)
        assert leader.high_watermark == 0
        leader.confirm()
        assert leader.high_watermark == required

    def test_all_silent_followers_are_dropped_at_once(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2, 3))
        leader.produce()
        leader.clock.advance_ms(30_001)
        leader.follow(2, 1)
        leader.partition.maybe_shrink_isr(leader.now_ms)
        assert [proposal.isr for proposal in leader.proposals] == [(0, 2)]

    def test_a_leader_is_followed_as_long_as_all_of_its_in_sync_followers_fetch(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2), isr=(0, 1))
        assert not leader.partition.is_followed_since(leader.now_ms)
        leader.clock.advance_ms(10)
        leader.follow(1, 0)
        assert leader.partition.is_followed_since(leader.now_ms)
        leader.clock.advance_ms(10)
        leader.follow(2, 0)  # which is not in sync
        assert not leader.partition.is_followed_since(leader.now_ms)
        assert leader.partition.is_followed_since(leader.now_ms - 10)
        alone = PartitionHarness(replicas=(0, 1), isr=(0,))
        assert alone.partition.is_followed_since(alone.now_ms)

    def test_a_follower_that_is_one_fetch_behind_a_busy_leader_stays_in_sync(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        for offset in range(20):
            leader.produce()
            leader.clock.advance_ms(10_000)
            leader.follow(1, offset)
        leader.partition.maybe_shrink_isr(leader.now_ms)
        assert leader.proposals == []

    def test_one_proposal_at_a_time(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2), isr=(0,))
        leader.follow(1, 0)
        leader.follow(2, 0)
        assert [proposal.isr for proposal in leader.proposals] == [(0, 1)]
        leader.confirm()
        leader.follow(2, 0)
        assert [proposal.isr for proposal in leader.proposals] == [(0, 1), (0, 1, 2)]

    def test_an_answer_from_before_an_election_is_ignored(self) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.follow(1, 0)
        proposal = leader.proposals[-1]
        leader.partition.make_leader(
            registration(replicas=(0, 1), isr=(0,), leader_epoch=1, partition_epoch=1), leader.now_ms
        )
        leader.partition.handle_alter_partition_update(proposal, (0, 1), 0, 1, leader.now_ms)
        assert leader.partition.isr == {0}

    @pytest.mark.parametrize(
        ("error", "again"),
        [
            (ErrorCode.FENCED_LEADER_EPOCH, False),
            (ErrorCode.INVALID_UPDATE_VERSION, False),
            (ErrorCode.NETWORK_EXCEPTION, True),
            (ErrorCode.NOT_CONTROLLER, True),
        ],
    )
    def test_what_a_refusal_means(self, error: ErrorCode, again: bool) -> None:
        leader = PartitionHarness(replicas=(0, 1), isr=(0,))
        leader.follow(1, 0)
        assert leader.refuse(error) is again
        assert leader.partition.pending_change is not None


class TestFollower:
    def test_a_follower_takes_the_leaders_batches_and_its_high_watermark(self) -> None:
        leader = PartitionHarness(replicas=(0, 1))
        leader.produce(3)
        records = leader.follow(1, 0).records
        follower = PartitionHarness(lead=False)
        follower.partition.make_follower(registration(replicas=(0, 1), leader=1))
        follower.partition.append_records_to_follower(records, 0, now_ms=0)
        assert follower.log.log_end_offset == 3
        follower.partition.follow_leader_offsets(2, 0)
        assert follower.high_watermark == 2
        follower.partition.follow_leader_offsets(9, 1)
        assert (follower.high_watermark, follower.log.log_start_offset) == (3, 1)

    def test_low_watermark_is_that_of_the_slowest_live_replica(self) -> None:
        leader = PartitionHarness(replicas=(0, 1, 2))
        leader.produce(5)
        for broker in (1, 2):
            leader.follow(broker, 5)
        leader.partition.delete_records_on_leader(4)
        assert leader.partition.low_watermark == 0
        leader.follow(1, 5, log_start=4)
        leader.ineligible.add(2)
        assert leader.partition.low_watermark == 4


def test_resigning_wakes_those_who_wait() -> None:
    leader = PartitionHarness()
    before = leader.progress
    leader.partition.resign()
    assert leader.progress == before + 1
    with pytest.raises(KafkaError) as error:
        leader.produce()
    assert refused_with(ErrorCode.NOT_LEADER_OR_FOLLOWER, error)


def test_what_follows_on_a_batch_that_found_no_room_is_refused_for_the_same_reason() -> None:
    leader = PartitionHarness()
    disk = leader.log.directory.disk
    assert isinstance(disk, SimDisk)

    def refusal(sequence: int) -> ErrorCode | None:
        written = build_batch(
            [(leader.now_ms, None, b"record")], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        try:
            leader.partition.append_records_to_leader(written, now_ms=leader.now_ms)
        except KafkaError as error:
            return error.code
        return None

    assert refusal(0) is None
    assert refusal(2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    full = disk.fail(errno.ENOSPC, ops=[Op.WRITE], times=None)
    assert refusal(1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(2) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.heal(full)
    assert [refusal(sequence) for sequence in (1, 2)] == [None, None]


@pytest.mark.parametrize("config", [LogConfig(flush_messages=1), LogConfig(durability="disk")])
def test_records_whose_flush_is_due_are_in_the_log_and_wait_for_the_flush(config: LogConfig) -> None:
    lab = PartitionHarness(config=config)
    assert lab.produce() == 1
    assert (lab.log.log_end_offset, lab.high_watermark) == (1, 0)
    assert lab.flushes_due == 1
    assert lab.progress > 0, "a follower is to fetch them"
    lab.log.flush()
    lab.partition.on_flush(lab.now_ms)
    assert lab.high_watermark == 1


def test_a_new_leader_has_the_flush_done_that_it_lacked_as_a_follower() -> None:
    lab = PartitionHarness(config=LogConfig(flush_messages=1), lead=False)
    batch = build_batch([(lab.now_ms, None, b"value")])
    lab.partition.append_records_to_follower(batch, 0, now_ms=lab.now_ms)
    lab.partition.make_leader(registration(leader_epoch=1), lab.now_ms)
    assert (lab.flushes_due, lab.high_watermark) == (1, 0)
