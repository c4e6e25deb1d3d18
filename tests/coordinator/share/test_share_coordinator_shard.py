"""One partition of `__share_group_state`: states of share partitions, fencing, snapshots and pruning."""

from __future__ import annotations

import random

import pytest

from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.share.persister import PersisterResult, ShareState, StateSummary, WriteState
from ottla.coordinator.share.requests import WriteSharePartitions
from ottla.coordinator.share.share_group_offset import ShareGroupOffset
from ottla.log.dump.internal_records import decode_record
from ottla.protocol.coordinator_records import decode_value, encode_value
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import SHARE_GROUP_STATE_TOPIC, SharePartitionKey, TopicIdPartition, uuid_text
from ottla.protocol.share_state_records import ShareSnapshotValue, ShareUpdateValue
from tests.coordinator.share.share_harness import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    EVENTS,
    GROUP,
    ORDERS,
    WALL_MS,
    A,
    B,
    C,
    ShareHarness,
    batch,
)
from tests.support.rows import for_each

OK = PersisterResult()
MINUTES = 60_000


class TestStates:
    def test_a_state_is_read_as_it_was_initialized_and_written(self) -> None:
        lab = ShareHarness()
        assert lab.initialize(A, state_epoch=3, start=100) == OK
        assert lab.write(A, batch(100, 109), batch(110, 110, AVAILABLE, 2), state_epoch=3, complete=10) == OK
        state = ShareState(
            state_epoch=3, start_offset=100, batches=(batch(100, 109), batch(110, 110, AVAILABLE, 2))
        )
        assert lab.read(A) == state
        assert lab.summary(A) == StateSummary(
            state_epoch=3, leader_epoch=0, start_offset=100, delivery_complete_count=10
        )
        lab.reload()
        assert lab.read(A) == state

    def test_the_start_offset_moves_up_and_drops_the_batches_below(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        lab.write(A, batch(0, 9), complete=10)
        lab.write(A, start=5, complete=5)
        assert lab.read(A) == ShareState(state_epoch=1, start_offset=5, batches=(batch(5, 9),))
        lab.write(A, batch(10, 10, ARCHIVED, 5), start=10, complete=1)
        lab.reload()
        assert lab.read(A) == ShareState(
            state_epoch=1, start_offset=10, batches=(batch(10, 10, ARCHIVED, 5),)
        )

    def test_a_state_without_a_start_offset_has_no_count_of_deliveries(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, start=-1)
        assert lab.summary(A).delivery_complete_count == -1
        lab.initialize(B, start=0)
        assert lab.summary(B).delivery_complete_count == 0

    def test_a_share_partition_must_be_initialized_before_it_is_read_or_written(self) -> None:
        lab = ShareHarness()
        assert lab.read(A).error is ErrorCode.INVALID_REQUEST
        assert lab.read(A).error_message == "Read operation on uninitialized share partition not allowed."
        assert lab.write(A).error is ErrorCode.INVALID_REQUEST
        assert lab.summary(A) == StateSummary(), "a summary says that there is nothing"
        assert lab.log == []

    def test_each_group_has_a_state_of_its_own(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, start=1)
        lab.initialize(A, start=2, group="others")
        lab.write(A, batch(2, 3), group="others")
        assert lab.read(A).batches == ()
        assert lab.read(A, group="others").start_offset == 2

    def test_a_deleted_state_is_gone_and_deleting_again_is_no_error(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, state_epoch=7)
        assert lab.delete(A) == OK
        assert lab.delete(A) == OK
        assert lab.values() == ["snapshot", "tombstone"]
        lab.reload()
        assert lab.summary(A) == StateSummary()
        assert lab.initialize(A, state_epoch=1) == OK, "a deleted state fences nothing"

    @pytest.mark.parametrize("unknown", [TopicIdPartition(b"?" * 16, 0), TopicIdPartition(ORDERS, 2)])
    def test_partitions_that_do_not_exist_have_no_state(self, unknown: TopicIdPartition) -> None:
        lab = ShareHarness()
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert lab.initialize(unknown).error is code
        assert lab.summary(unknown).error is code
        assert lab.delete(unknown).error is code
        assert lab.log == []

    def test_a_negative_partition_is_an_invalid_request(self) -> None:
        lab = ShareHarness()
        negative = TopicIdPartition(ORDERS, -1)
        for answer in (
            lab.initialize(negative),
            lab.write(negative),
            lab.read(negative),
            lab.summary(negative),
            lab.delete(negative),
        ):
            assert answer.error is ErrorCode.INVALID_REQUEST
            assert answer.error_message == "The partition id cannot be a negative number."

    def test_the_partitions_of_a_request_succeed_and_fail_one_by_one(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        write = WriteState(1, 0, 0, 1, (batch(0, 0),))
        keys = SharePartitionKey(GROUP, *A), SharePartitionKey(GROUP, *B)
        results = lab.submit(WriteSharePartitions([(key, write) for key in keys]))
        assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert lab.read(A).batches == (batch(0, 0),)

    def test_writes_of_one_share_partition_that_come_together_are_one_record(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        lab.read(A, leader_epoch=2)
        key = SharePartitionKey(GROUP, *A)
        results = lab.submit(
            WriteSharePartitions(
                [
                    (key, WriteState(1, 2, 3, 1, (batch(3, 3), batch(9, 9)))),
                    (key, WriteState(1, 1, 7, 9, (batch(0, 100),))),
                    (key, WriteState(1, 2, 5, 2, (batch(5, 6),))),
                    (key, WriteState(1, 2, -1, 3, (batch(8, 8, AVAILABLE, 2),))),
                ]
            )
        )
        assert [result.error for result in results] == [
            ErrorCode.NONE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.NONE,
            ErrorCode.NONE,
        ]
        assert lab.values() == ["snapshot", "update", "update"]
        assert lab.read(A, leader_epoch=2) == ShareState(
            state_epoch=1, start_offset=5, batches=(batch(5, 6), batch(8, 8, AVAILABLE, 2), batch(9, 9))
        )
        assert lab.summary(A).delivery_complete_count == 3


class TestFencing:
    def test_a_new_leader_fences_the_one_before_it(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        lab.read(A, leader_epoch=3)
        lab.write(A, batch(0, 9), leader_epoch=3)
        assert lab.read(A, leader_epoch=4).batches == (batch(0, 9),)
        assert lab.write(A, batch(10, 19), leader_epoch=3).error is ErrorCode.FENCED_LEADER_EPOCH
        assert lab.read(A, leader_epoch=3).error is ErrorCode.FENCED_LEADER_EPOCH
        lab.reload()
        assert lab.write(A, batch(10, 19), leader_epoch=3).error is ErrorCode.FENCED_LEADER_EPOCH
        assert lab.write(A, batch(10, 19), leader_epoch=4) == OK

    def test_the_first_read_of_a_leader_writes_its_epoch_and_others_write_nothing(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, start=-1)
        for _ in range(3):
            lab.read(A, leader_epoch=2)
        assert lab.values() == ["snapshot", "update"]
        assert lab.summary(A) == StateSummary(state_epoch=1, leader_epoch=2)

    def test_a_write_does_not_change_the_leader_epoch(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        lab.write(A, batch(0, 0), leader_epoch=9)
        assert lab.summary(A).leader_epoch == 0

    def test_a_state_that_was_initialized_again_fences_those_who_do_not_know_it(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, state_epoch=1)
        lab.write(A, batch(0, 9))
        assert lab.initialize(A, state_epoch=5, start=50) == OK
        assert lab.write(A, batch(10, 19)).error is ErrorCode.FENCED_STATE_EPOCH
        assert lab.initialize(A, state_epoch=4).error is ErrorCode.FENCED_STATE_EPOCH
        assert lab.read(A) == ShareState(state_epoch=5, start_offset=50)
        lab.reload()
        assert lab.write(A, batch(50, 59)).error is ErrorCode.FENCED_STATE_EPOCH
        assert lab.write(A, batch(50, 59), state_epoch=5) == OK

    def test_a_write_that_comes_late_does_not_move_the_start_offset_back(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, start=0)
        lab.write(A, batch(0, 4), start=0)
        lab.write(A, batch(8, 9), start=5, complete=2)
        assert lab.write(A, batch(0, 6), start=0, complete=7) == OK, (
            "its first copy was lost, or so it seemed"
        )
        assert lab.read(A) == ShareState(state_epoch=1, start_offset=5, batches=(batch(5, 6), batch(8, 9)))
        assert lab.summary(A).delivery_complete_count == 2
        lab.reload()
        assert lab.read(A) == ShareState(state_epoch=1, start_offset=5, batches=(batch(5, 6), batch(8, 9)))

    def test_a_state_in_use_is_not_emptied_by_a_late_request_to_make_it(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, state_epoch=1, start=-1)
        lab.write(A, batch(0, 4), start=0, state_epoch=1)
        for epoch in (1, 2):
            assert lab.initialize(A, state_epoch=epoch, start=-1) == OK
        assert lab.read(A) == ShareState(state_epoch=1, start_offset=0, batches=(batch(0, 4),))
        assert lab.initialize(A, state_epoch=1, start=3) == OK, "the offsets are altered"
        assert lab.read(A) == ShareState(state_epoch=1, start_offset=3)

    def test_what_has_no_epochs_is_never_fenced(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, state_epoch=5)
        lab.read(A, leader_epoch=5)
        assert lab.write(A, batch(0, 0), state_epoch=-1, leader_epoch=-1) == OK
        assert lab.read(A, leader_epoch=4).error is ErrorCode.FENCED_LEADER_EPOCH
        assert lab.read(A, leader_epoch=-1).error is ErrorCode.NONE


class TestSnapshots:
    def test_a_snapshot_is_written_after_so_many_updates(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=3))
        lab.initialize(A)
        for offset in range(8):
            lab.write(A, batch(offset, offset), complete=offset + 1)
        assert lab.values() == ["snapshot", *["update"] * 3, "snapshot", *["update"] * 3, "snapshot"]
        lab.reload()
        lab.write(A, batch(8, 8))
        assert lab.values()[-1] == "update"
        assert lab.read(A).batches == (batch(0, 8),)

    def test_records_carry_the_epoch_of_their_snapshot(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=1))
        lab.initialize(A, start=7)
        lab.write(A, batch(7, 8), complete=2)
        lab.write(A, batch(9, 9, AVAILABLE, 2), complete=2)
        values = [value for _, value in lab.records]
        first, update, second = values
        assert isinstance(first, ShareSnapshotValue)
        assert (first.snapshot_epoch, first.start_offset, first.create_timestamp) == (0, 7, WALL_MS)
        assert isinstance(update, ShareUpdateValue)
        assert (update.snapshot_epoch, update.start_offset, update.delivery_complete_count) == (0, -1, 2)
        assert isinstance(second, ShareSnapshotValue)
        assert (second.snapshot_epoch, second.start_offset, len(second.state_batches)) == (1, 7, 2)
        lab.initialize(A, state_epoch=2)
        assert lab.shard.partitions[SharePartitionKey(GROUP, *A)].offset.snapshot_epoch == 2

    def test_the_batches_of_a_snapshot_are_neither_copied_to_be_written_nor_to_be_replayed(self) -> None:
        """There may be `group.share.partition.max.record.locks` of them, in one turn of the event loop."""
        batches = [batch(at, at, ACKNOWLEDGED if at % 2 else ARCHIVED) for at in range(100)]
        offset = ShareGroupOffset(1, 0, 0, 0, 0, batches, WALL_MS, WALL_MS)
        record = offset.snapshot_record(SharePartitionKey(GROUP, *A))
        assert isinstance(record.value, ShareSnapshotValue)
        replayed = ShareGroupOffset.from_snapshot(record.value)
        assert all(one is other for one, other in zip(replayed.batches, batches, strict=True))
        read = decode_value(ShareSnapshotValue, encode_value(record.value, record.version))
        assert ShareGroupOffset.from_snapshot(read) == offset

    def test_with_no_updates_between_them_every_write_is_a_snapshot(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=0))
        lab.initialize(A)
        lab.write(A, batch(0, 0))
        lab.read(A, leader_epoch=1)
        assert lab.values() == ["snapshot"] * 3
        assert lab.read(A, leader_epoch=1).batches == (batch(0, 0),)

    def test_cold_share_partitions_get_a_new_snapshot_while_others_are_in_use(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=10))
        lab.initialize(A)
        lab.initialize(B)
        before = lab.read(B)
        lab.advance(4 * MINUTES)
        for offset in range(11):
            lab.write(A, batch(offset, offset))
        written = len(lab.log)
        lab.advance(2 * MINUTES)
        assert len(lab.log) == written + 1, "only that of B is old"
        _, value = lab.records[-1]
        assert isinstance(value, ShareSnapshotValue)
        assert value.create_timestamp == WALL_MS
        assert value.write_timestamp == WALL_MS + 5 * MINUTES
        assert value.snapshot_epoch == 1
        assert lab.read(B) == before
        lab.reload()
        assert lab.read(B) == before

    def test_a_shard_that_is_not_in_use_has_no_deadline(self) -> None:
        lab = ShareHarness()
        assert lab.shard.next_deadline_ms() is None
        lab.initialize(A)
        lab.write(A, batch(0, 9))
        assert lab.shard.next_deadline_ms() == 5 * MINUTES
        lab.advance(60 * MINUTES)
        assert lab.shard.next_deadline_ms() is None
        assert lab.values() == ["snapshot", "update", "snapshot"], "one last snapshot, and then nothing"
        assert lab.log_start == 2, "which makes all before it redundant"

    def test_many_cold_share_partitions_get_their_snapshots_in_parts(self) -> None:
        lab = ShareHarness()
        for number in range(250):
            lab.initialize(A, group=f"g{number}")
        lab.advance(5 * MINUTES)
        assert len(lab.log) == 350
        lab.advance(2)
        assert len(lab.log) == 500
        lab.advance(60 * MINUTES)
        assert len(lab.log) == 500

    def test_the_dump_tool_shows_snapshots_updates_and_tombstones(self) -> None:
        lab = ShareHarness()
        lab.initialize(A, start=7)
        lab.write(A, batch(7, 9, ARCHIVED, 5), complete=3)
        lab.delete(A)
        shown = [decode_record(SHARE_GROUP_STATE_TOPIC, key, value) for key, value in lab.log]
        assert [(each["key"]["type"], each["value"] and each["value"]["type"]) for each in shown] == [
            ("ShareSnapshotKey", "ShareSnapshotValue"),
            ("ShareUpdateKey", "ShareUpdateValue"),
            ("ShareSnapshotKey", None),
        ]
        assert shown[1]["key"]["data"] == {"groupId": GROUP, "topicId": uuid_text(ORDERS), "partition": 0}
        assert shown[1]["value"]["data"] == {
            "snapshotEpoch": 0,
            "leaderEpoch": 0,
            "startOffset": -1,
            "deliveryCompleteCount": 3,
            "stateBatches": [{"firstOffset": 7, "lastOffset": 9, "deliveryState": 4, "deliveryCount": 5}],
        }


class TestPruning:
    def test_records_below_the_last_snapshots_of_all_are_redundant(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=2))
        lab.initialize(A)
        lab.initialize(B)
        assert lab.shard.last_redundant_offset() == 0
        for offset in range(3):
            lab.write(A, batch(offset, offset))
        assert lab.shard.last_redundant_offset() == 1, "B needs its first snapshot"
        for offset in range(3):
            lab.write(B, batch(offset, offset))
        assert lab.shard.last_redundant_offset() == 4, "A needs its second"

    def test_a_deleted_share_partition_holds_nothing_back(self) -> None:
        lab = ShareHarness()
        assert lab.shard.last_redundant_offset() is None
        lab.initialize(A)
        lab.initialize(B)
        lab.delete(A)
        assert lab.shard.last_redundant_offset() == 1
        lab.delete(B)
        assert lab.shard.last_redundant_offset() == 3
        lab.advance(5 * MINUTES)
        assert lab.log_start == 3

    def test_the_same_records_are_pruned_once(self) -> None:
        lab = ShareHarness(ShareCoordinatorConfig(cold_partition_snapshot_interval_ms=100 * MINUTES))
        lab.initialize(A)
        lab.initialize(A, state_epoch=2)
        lab.advance(5 * MINUTES)
        assert lab.log_start == 1
        lab.write(A, batch(0, 0), state_epoch=2)
        lab.advance(5 * MINUTES)
        assert lab.log_start == 1


class TestDeletedTopics:
    def test_the_states_of_a_deleted_topic_are_deleted(self) -> None:
        lab = ShareHarness()
        for tp in (A, B, C):
            lab.initialize(tp)
        lab.delete_topic(ORDERS)
        assert lab.values() == ["snapshot"] * 3 + ["tombstone"] * 2
        assert lab.summary(A).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert lab.read(C).error is ErrorCode.NONE

    def test_so_are_those_of_a_topic_that_was_deleted_while_nobody_coordinated_it(self) -> None:
        lab = ShareHarness()
        lab.initialize(A)
        lab.initialize(C)
        topics = lab.image
        lab.delete_topic(EVENTS)
        lab.image = topics
        lab.initialize(C)
        lab.image = ShareHarness().image
        lab.delete_topic(ORDERS)
        lab.log.pop()
        lab.reload()
        assert lab.values()[-1] == "tombstone"
        assert [key.topic_id for key in lab.shard.partitions] == [EVENTS]


@for_each("seed", range(50))
def test_a_state_that_is_loaded_from_what_pruning_left_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    lab = ShareHarness(
        ShareCoordinatorConfig(
            snapshot_update_records_per_snapshot=rng.choice((0, 1, 5, 20)),
            prune_interval_ms=rng.choice((1_000, 10_000)),
            cold_partition_snapshot_interval_ms=rng.choice((1_000, 10_000)),
        )
    )
    partitions = (A, B, C)
    epochs = dict.fromkeys(partitions, 0)
    for step in range(300):
        tp = rng.choice(partitions)
        match rng.randrange(10):
            case 0:
                epochs[tp] += 1
                lab.initialize(tp, state_epoch=epochs[tp], start=rng.randrange(100))
            case 1:
                lab.read(tp, leader_epoch=step // 50)
            case 2 if rng.random() < 0.3:
                lab.delete(tp)
            case 3:
                lab.advance(rng.randrange(3_000))
            case _:
                first = rng.randrange(100)
                lab.write(
                    tp,
                    batch(first, first + rng.randrange(5), rng.choice((0, 2, 4)), rng.randrange(1, 5)),
                    state_epoch=epochs[tp],
                    leader_epoch=step // 50,
                    start=rng.choice((-1, rng.randrange(100))),
                    complete=step,
                )
        if step % 20 == 0:
            before = {key: state.offset for key, state in lab.shard.partitions.items()}
            lab.reload()
            loaded = {key: state.offset for key, state in lab.shard.partitions.items()}
            assert {key: _whole(offset) for key, offset in loaded.items()} == {
                key: _whole(offset) for key, offset in before.items()
            }
    lab.advance(100_000)
    live = len(lab.shard.partitions)
    assert len(lab.log) - lab.log_start <= max(1, live) * 25, "pruned to the last snapshots and their updates"


def _whole(offset: object) -> tuple[object, ...]:
    return tuple(
        tuple(value) if isinstance(value := getattr(offset, name), list) else value
        for name in offset.__slots__  # type: ignore[attr-defined]
    )
