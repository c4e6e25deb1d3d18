"""Segments are copied once and deleted once, whatever fails and whenever the broker is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from ottla.log.segment.segment import LogSegment
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.image import MetadataImage
from ottla.node.remote.remote_log_manager import _Pool, _Work
from ottla.node.remote.segment_data import uncopied_segments
from ottla.protocol.names import TopicIdPartition
from ottla.records.builder import build_batch
from ottla.remote.object_layout import LOG_SUFFIX, SUFFIXES, object_key
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from ottla.replication.replica_manager import ReplicaChanges
from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.random import SeededRandom
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop
from tests.remote.remote_harness import ID, SMALL, RemoteWorld
from tests.remote.test_topic_metadata_manager import id_of, segment
from tests.replication.partition_harness import TP, registration
from tests.support.rows import for_each

_COPY_STEPS = 20
_DELETE_STEPS = 40


def copied_world(batches: int = 14) -> RemoteWorld:
    world = RemoteWorld()
    world.produce(batches)
    world.run_lives()
    return world


def test_closed_segments_are_copied_and_the_active_one_is_not() -> None:
    world = copied_world()
    log = world.partition.log
    assert len(log.segments) > 3
    world.check_store()
    assert world.remote_log() == world.local_log()
    assert log.highest_offset_in_remote_storage == log.active_segment.base_offset - 1
    assert world.manager.lag() == []
    assert world.manager.led_topics == [TP.topic]


def test_a_segment_is_copied_when_progress_shows_that_it_was_closed() -> None:
    world = copied_world()
    puts = world.store.puts
    world.progress()
    world.run(1)
    assert world.store.puts == puts
    world.produce(4)
    world.progress()
    world.run(1)
    assert world.remote_log() == world.local_log()
    assert world.store.puts > puts


def test_records_above_the_last_stable_offset_are_not_copied() -> None:
    world = RemoteWorld()
    world.harness.partition.make_leader(
        registration(replicas=(0, 1), isr=(0, 1), leader_epoch=1, partition_epoch=1), world.harness.now_ms
    )
    world.produce(14)
    world.run_lives()
    assert not world.segments()
    world.harness.follow(1, 3)
    world.progress()
    world.run(1)
    assert world.segments()[-1].end_offset < 3
    world.harness.follow(1, world.partition.log.log_end_offset)
    world.progress()
    world.run(1)
    assert world.remote_log() == world.local_log()


@for_each("step", range(1, _COPY_STEPS + 1))
def test_a_kill_at_any_step_of_a_copy_leaves_nothing_behind(step: int) -> None:
    world = RemoteWorld()
    world.produce(8)
    world.kill_at = step
    world.run_lives()
    assert world.kills == 1
    world.check_store()
    assert world.remote_log() == world.local_log()


@for_each("step", range(1, _DELETE_STEPS + 1))
def test_a_kill_at_any_step_of_a_deletion_leaves_nothing_behind(step: int) -> None:
    world = copied_world()
    log = world.partition.log
    log.update_config(replace(SMALL, retention_bytes=0))
    world.steps, world.kill_at = 0, step
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run_lives()
    world.check_store()
    assert not world.segments()
    assert log.log_start_offset == log.active_segment.base_offset


@for_each("knows_epochs", [True, False])
@for_each("deleted", ["some", "all"])
@for_each("step", range(1, _DELETE_STEPS + 1))
def test_a_log_whose_start_was_lost_in_a_deletion_starts_where_there_are_records(
    step: int, deleted: str, knows_epochs: bool
) -> None:
    """The file with the starts of logs is written later than the event that a deletion begins; the one with
    their epochs may be written before.
    """
    world = copied_world(20)
    log = world.partition.log
    kept = replace(SMALL, local_retention_bytes=0)
    log.update_config(kept)
    log.delete_old_segments(world.harness.now_ms)
    limit = log.size + 1200 if deleted == "some" else 0
    log.update_config(replace(kept, retention_bytes=limit))
    epoch = log.leader_epoch_cache.earliest
    assert epoch is not None
    world.steps, world.kill_at = 0, step
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    # The next life goes on, and deletes no more than the last one has begun with.
    log.update_config(kept)
    if not world.is_alive:
        log.log_start_offset = log.high_watermark = 0
        if knows_epochs:
            log.leader_epoch_cache.clear()
            log.leader_epoch_cache.assign(epoch.epoch, 0)
        world.run_lives()
        assert log.log_start_offset == 0  # it does not pass the high watermark
        log.update_high_watermark(log.log_end_offset)
        world.run()
    world.check_store()
    segments = world.segments()
    assert log.log_start_offset == (segments[0].start_offset if segments else log.segments[0].base_offset)
    assert log.log_start_offset > 0 or world.kills


def test_the_kills_reach_every_step() -> None:
    world = RemoteWorld()
    world.produce(8)
    world.run_lives()
    assert world.steps <= _COPY_STEPS
    world.partition.log.update_config(replace(SMALL, retention_bytes=0))
    before = world.steps
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    assert world.steps - before <= _DELETE_STEPS


def test_a_store_that_fails_is_tried_again_under_the_same_name() -> None:
    world = RemoteWorld()
    world.store.failures = 20
    world.produce(8)
    world.run_lives()
    world.check_store()
    assert world.remote_log() == world.local_log()
    assert world.manager.statistics.copy_errors >= 10
    begun = [each for each in world.events if isinstance(each, RemoteLogSegmentMetadata)]
    assert len(begun) == len(world.segments())


def test_a_store_that_is_away_does_not_fill_the_metadata() -> None:
    world = RemoteWorld()
    world.store.failures = 1_000_000
    world.produce(8)
    world.start()
    world.run(3600)
    assert len(world.events) == 1
    assert 100 < world.manager.statistics.copy_errors < 250


@pytest.mark.slow
def test_traffic_does_not_shorten_the_pauses_of_a_store_that_fails() -> None:
    world = RemoteWorld()
    world.store.failures = 1_000_000
    world.produce(8)
    world.start()
    for _ in range(3600):
        world.run(1)
        world.produce(1)
        world.progress()
    assert 100 < world.manager.statistics.copy_errors < 250
    world.store.failures = 0
    world.run(60)
    assert world.remote_log() == world.local_log()


def test_a_leader_that_is_replaced_during_a_copy_gives_it_up() -> None:
    world = RemoteWorld()
    world.produce(4)
    world.start()
    world.run(0.015)
    assert [each.state for each in world.segments()] == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
    world.harness.partition.make_follower(
        registration(replicas=(0, 1), leader=1, leader_epoch=1, partition_epoch=1)
    )
    world.in_broker(
        lambda: world.manager.apply(MetadataImage.EMPTY, ReplicaChanges(followers=[world.partition]))
    )
    world.run()
    assert not world.segments()
    assert not world.store.memory.objects


def replace_leader(world: RemoteWorld) -> None:
    world.harness.partition.make_follower(
        registration(replicas=(0, 1), leader=1, leader_epoch=1, partition_epoch=1)
    )
    world.in_broker(
        lambda: world.manager.apply(MetadataImage.EMPTY, ReplicaChanges(followers=[world.partition]))
    )


@pytest.mark.parametrize("failures", [1, 2, 5])
@pytest.mark.parametrize("is_hosted", [True, False])
def test_what_was_given_up_is_deleted_also_when_the_store_fails_meanwhile(
    failures: int, is_hosted: bool
) -> None:
    world = RemoteWorld()
    world.produce(4)
    world.store.late_puts = 1
    world.start()
    world.run(0.015)
    assert [each.state for each in world.segments()] == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
    replace_leader(world)
    if not is_hosted:
        world.in_broker(lambda: world.manager.resign([TP]))
    world.run(1)
    # One object is under way; the next one, or its deletion, fails.
    world.store.failures = failures
    world.run()
    assert not world.store.memory.objects
    assert not is_hosted or not world.segments()
    assert not world.manager._given_up
    assert not world.manager._being_copied
    assert world.manager._given_up_deletion is None


def test_a_copy_whose_events_were_lost_is_left_to_the_next_leader() -> None:
    """That one may have found its manifest, and let the records leave its disk."""
    world = RemoteWorld()
    world.produce(4)
    world.start()
    world.run(0.015)
    (copy,) = world.segments()
    assert copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    # All of it is in the store, and its end is about to be announced.
    world.store.late_puts = 1
    replace_leader(world)

    def lose() -> None:
        world.events.clear()
        world.metadata.store.forget(ID)
        world.metadata.store.assign(ID)
        for listener in world.metadata._listeners:
            listener(ID)

    def announce_again() -> None:
        """As the next leader does, before this broker hears of it."""
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        world.events += [copy, RemoteLogSegmentMetadataUpdate(copy.id, 0, finished, 1)]

    world.in_broker(lose)
    world.in_broker(announce_again)
    world.run()
    assert world.store.memory.objects.keys() == {object_key("", copy, suffix) for suffix in SUFFIXES}
    assert not world.manager._being_copied
    assert not world.manager._lost_copies


def test_what_was_given_up_is_not_tried_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    world = RemoteWorld()
    world.produce(4)
    world.store.late_puts = 1
    world.start()
    world.run(0.015)
    replace_leader(world)
    world.run(1)
    world.store.failures = 1_000_000
    world.run(4 * 3_600)
    assert "stay in remote storage" in caplog.text
    assert not world.manager._given_up
    assert not world.manager._being_copied
    left = world.store.failures
    world.run(3_600)
    assert world.store.failures == left


def test_a_copy_of_an_earlier_epoch_that_ends_late_takes_nothing_from_the_next() -> None:
    world = RemoteWorld()
    world.produce(4)
    world.store.late_puts = 1
    world.start()
    world.run(0.015)
    assert [each.state for each in world.segments()] == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
    world.harness.partition.make_leader(registration(leader_epoch=1, partition_epoch=1), world.harness.now_ms)
    world.in_broker(
        lambda: world.manager.apply(MetadataImage.EMPTY, ReplicaChanges(leaders=[world.partition]))
    )
    world.run()
    world.check_store()
    assert world.remote_log() == world.local_log()
    assert world.partition.log.highest_offset_in_remote_storage == world.segments()[-1].end_offset


@pytest.mark.parametrize("broker_id", [7, None], ids=["another", "the-same"])
def test_what_a_dead_leader_did_not_finish_is_deleted_once_its_records_are_copied(
    broker_id: int | None,
) -> None:
    """Also by the same broker: a deletion that its earlier life has asked for may still take effect."""
    world = RemoteWorld()
    world.produce(8)
    world.kill_at = 4
    world.start()
    world.run()
    begun = world.events[0]
    assert isinstance(begun, RemoteLogSegmentMetadata)
    if broker_id is not None:
        world.events[0] = replace(begun, broker_id=broker_id)
    assert world.store.memory.objects
    world.run_lives()
    world.check_store()
    assert begun.id not in {each.id for each in world.segments()}
    assert world.remote_log() == world.local_log()


def test_a_copy_that_a_dead_leader_has_begun_is_deleted_also_if_that_is_known_late() -> None:
    """The next leader may have read the metadata before the event was there."""
    world = copied_world()
    begun = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    first = world.segments()[0]
    id = RemoteLogSegmentId(first.id.topic_id, first.id.topic_partition, b"of a dead leader")
    late = replace(first, id=id, state=begun, broker_id=7)
    world.in_broker(lambda: world.metadata._put(late))
    world.run()
    world.check_store()
    assert late.id not in {each.id for each in world.segments()}


def test_an_unfinished_copy_of_another_leader_is_kept_until_then() -> None:
    world = RemoteWorld()
    world.produce(8)
    world.kill_at = 4
    world.start()
    world.run()
    begun = world.events[0]
    assert isinstance(begun, RemoteLogSegmentMetadata)
    world.events[0] = replace(begun, broker_id=7)
    world.store.failures = 1_000_000
    world.start()
    world.run()
    assert begun.id in {each.id for each in world.segments()}
    # Its copy is finished after all.
    finished = RemoteLogSegmentMetadataUpdate(begun.id, 0, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 7)
    world.events.append(finished)
    assert begun.id in {each.id for each in world.segments()}


def test_old_segments_expire_by_time_without_anything_else_happening() -> None:
    world = copied_world()
    log = world.partition.log
    log.update_config(replace(SMALL, retention_ms=3_600_000))
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    # The clock of the broker and the timestamps of the records begin at the same time.
    world.run(1800)
    assert world.segments()
    world.run(3600)
    assert not world.segments()
    assert not world.store.memory.objects
    assert log.log_start_offset == log.active_segment.base_offset


def test_the_size_of_the_whole_log_is_kept_below_its_limit() -> None:
    world = copied_world(20)
    log = world.partition.log
    whole = log.size
    log.update_config(replace(SMALL, retention_bytes=whole // 2))
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    world.check_store()
    remote = sum(each.segment_size_in_bytes for each in world.segments())
    assert whole // 2 - 400 < remote + log.active_segment.size <= whole // 2 + 400
    assert log.log_start_offset == world.segments()[0].start_offset


def test_a_leader_that_has_lost_its_producers_takes_them_from_remote_storage() -> None:
    world = RemoteWorld()
    log = world.partition.log
    for sequence in range(14):
        data = build_batch(
            [(world.harness.now_ms, None, b"v" * 100)],
            producer_id=3,
            producer_epoch=0,
            base_sequence=sequence,
        )
        world.partition.append_records_to_leader(data, now_ms=world.harness.now_ms)
    world.run_lives()
    log.update_config(replace(SMALL, local_retention_bytes=0))
    assert log.delete_old_segments(world.harness.now_ms) > 0
    first = log.segments[0].base_offset
    # The files are lost; a truncation has the log read them again.
    log.producer_snapshots.delete_all()
    log.truncate_to(log.log_end_offset - 1)
    assert log.lacks_producers
    world.start()
    world.run()
    assert not log.lacks_producers
    assert log.producer_snapshots.is_durable(first)
    entry = log.producer_state_manager.last_entry(3)
    assert entry is not None
    assert entry.last_sequence == 12
    assert [each.producer_id for each in log.producer_snapshots.load(first)] == [3]


def test_a_leader_that_lost_its_first_epochs_deletes_nothing() -> None:
    world = copied_world()
    log = world.partition.log
    segments = world.segments()
    log.update_config(replace(SMALL, local_retention_bytes=0))
    log.delete_old_segments(world.harness.now_ms)
    first = log.segments[0].base_offset
    # Its file was damaged, and the batches on the disk know only of what is there, in a later epoch.
    log.leader_epoch_cache.clear()
    log.leader_epoch_cache.assign(4, first)
    assert log.log_start_offset < first
    world.start()
    world.run()
    assert log.log_start_offset == 0
    assert world.segments() == segments
    world.check_store()


def test_deleted_records_leave_remote_storage() -> None:
    world = copied_world()
    third = world.segments()[2]
    world.partition.delete_records_on_leader(third.start_offset + 1)
    world.progress()
    world.run()
    assert world.segments()[0].id == third.id
    world.check_store()


def test_a_deleted_topic_leaves_remote_storage_also_when_the_store_fails_for_a_while() -> None:
    world = copied_world()
    world.store.failures = 5
    world.in_broker(lambda: world.manager.apply(MetadataImage.EMPTY, ReplicaChanges(deleted=[TP])))
    world.run()
    assert not world.store.memory.objects
    assert not world.metadata.is_ready(ID)


def test_a_deleted_topic_leaves_remote_storage_also_when_its_metadata_were_lost() -> None:
    world = copied_world()
    assert world.store.memory.objects

    def lose_and_delete() -> None:
        world.events.clear()
        world.metadata.store.forget(ID)
        world.metadata.assign_partitions([ID])
        world.manager.apply(MetadataImage.EMPTY, ReplicaChanges(deleted=[TP]))

    world.in_broker(lose_and_delete)
    world.run()
    assert not world.store.memory.objects


def test_a_topic_of_many_partitions_is_deleted_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = copied_world()
    under_way, most, done = 0, 0, []

    async def delete(id: TopicIdPartition) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1)
        under_way -= 1
        done.append(id)

    monkeypatch.setattr(world.manager, "_delete_all_segments", delete)
    ids = [TopicIdPartition(ID.topic_id, partition) for partition in range(1, 31)]
    world.in_broker(lambda: world.manager.delete_partitions(ids))
    world.run()
    assert sorted(done) == ids
    assert most == 10


def test_turning_remote_storage_off_deletes_what_is_there() -> None:
    world = copied_world()
    log = world.partition.log
    off = replace(SMALL, remote_storage_enable=False, remote_log_delete_on_disable=True)
    log.update_config(off)
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    assert not world.store.memory.objects
    assert log.log_start_offset == 0
    log.update_config(SMALL)
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    world.check_store()
    assert world.remote_log() == world.local_log()


def test_copies_stop_where_they_are_turned_off_and_expiry_goes_on() -> None:
    world = copied_world()
    log = world.partition.log
    known = len(world.segments())
    log.update_config(replace(SMALL, remote_log_copy_disable=True))
    world.produce(8)
    world.progress()
    world.run()
    assert len(world.segments()) == known
    log.update_config(replace(SMALL, remote_log_copy_disable=True, retention_bytes=0))
    world.in_broker(lambda: world.manager.on_configs_changed([world.partition]))
    world.run()
    assert not world.segments()


def test_copies_keep_below_their_rate() -> None:
    world = RemoteWorld()
    world.settings["remote.log.manager.copy.max.bytes.per.second"] = "100"
    world.produce(40)
    world.start()
    world.run(30)
    copied = sum(each.segment_size_in_bytes for each in world.segments())
    assert 1000 < copied < 30 * 100 + 11 * 100 + 1200
    assert world.manager.statistics.copy_throttled_ms > 5_000


def test_a_partition_at_rest_sets_no_timer_and_takes_no_step() -> None:
    world = copied_world()
    steps, lives = world.steps, world.loop.time()
    world.run(86_400)
    assert world.steps == steps
    assert world.loop.time() >= lives + 86_400


def test_a_leader_copies_nothing_twice_when_the_metadata_have_lost_its_events() -> None:
    world = copied_world()
    log = world.partition.log
    before = {each.id for each in world.segments()}
    highest, puts = log.highest_offset_in_remote_storage, world.store.puts
    assert highest > 0

    def lose() -> None:
        del world.events[4:]
        world.metadata.store.forget(ID)
        world.metadata.store.assign(ID)
        for listener in world.metadata._listeners:
            listener(ID)
        assert log.highest_offset_in_remote_storage == -1
        world.metadata.store.forget(ID)
        world.metadata.assign_partitions([ID])
        for listener in world.metadata._listeners:
            listener(ID)

    world.in_broker(lose)
    world.run()
    world.check_store()
    assert {each.id for each in world.segments()} == before
    assert log.highest_offset_in_remote_storage == highest
    assert world.store.puts == puts
    world.produce(14)
    world.progress()
    world.run()
    assert world.remote_log() == world.local_log()
    world.check_store()


def test_a_manifest_without_its_records_is_no_segment() -> None:
    """As a broker leaves it that was paused while another one deleted its copy."""
    world = copied_world()
    storage = ObjectStorageManager(world.store.memory)

    def listed() -> list[RemoteLogSegmentId]:
        found = asyncio.run(storage.list_log_segments(ID.topic_id, TP, lambda _id: False))
        return [each.id for each in found]

    first, *others = sorted(world.segments(), key=lambda each: each.start_offset)
    assert listed() == [first.id, *(each.id for each in others)]
    del world.store.memory.objects[object_key("", first, LOG_SUFFIX)]
    assert listed() == [each.id for each in others]


@for_each("unready_ms", [5, 25])
@for_each("at_ms", range(2, 41, 3))
def test_metadata_that_are_lost_during_a_copy_count_none_that_is_given_up(
    at_ms: int, unready_ms: int
) -> None:
    world = RemoteWorld()
    world.produce(8)
    world.start()
    world.run(at_ms / 1000)

    def lose() -> None:
        world.events.clear()
        world.metadata.store.forget(ID)
        world.metadata.store.assign(ID)
        for listener in world.metadata._listeners:
            listener(ID)

    def read_again() -> None:
        world.metadata.store.forget(ID)
        world.metadata.assign_partitions([ID])
        for listener in world.metadata._listeners:
            listener(ID)

    world.in_broker(lose)
    world.run(unready_ms / 1000)
    world.in_broker(read_again)
    world.run()
    world.check_store()
    assert world.remote_log() == world.local_log()


@for_each("step", range(1, 21))
def test_a_kill_at_any_step_of_finding_lost_segments_loses_none(step: int) -> None:
    world = copied_world()
    log = world.partition.log
    log.update_config(replace(SMALL, local_retention_bytes=1, local_retention_ms=-1))
    log.delete_old_segments(world.harness.now_ms)
    before = world.remote_log()
    assert 0 == log.log_start_offset < log.local_log_start_offset
    # The broker ends, and while it is down the metadata lose all but the first segments.
    world.steps, world.kill_at = 0, 1
    world.produce(4)
    world.progress()
    world.run()
    assert not world.is_alive
    del world.events[4:]
    world.steps, world.kill_at = 0, step
    world.run_lives()
    world.check_store()
    assert log.log_start_offset == 0
    assert world.remote_log().startswith(before)
    assert log.highest_offset_in_remote_storage == log.active_segment.base_offset - 1


def test_records_without_a_leader_epoch_are_not_copied_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = RemoteWorld()
    world.produce(14)
    log = world.partition.log
    first = log.segments[1]
    # As in a log that was begun before there were leader epochs: its second segment is the first with one.
    log.leader_epoch_cache.clear()
    log.leader_epoch_cache.assign(world.partition.leader_epoch, first.base_offset + 1)
    world.run_lives()
    world.produce(4)
    world.progress()
    world.run()
    assert not world.segments()
    assert not world.store.puts
    assert log.highest_offset_in_remote_storage == -1
    reports = [each.message for each in caplog.records if "without a leader epoch" in each.message]
    assert len(reports) == 1
    assert f"The segment of 0 to {first.base_offset - 1} of {TP}" in reports[0]
    # Once its records are deleted, the rest is copied.
    world.in_broker(lambda: world.partition.delete_records_on_leader(first.base_offset + 1))
    world.progress()
    world.run()
    assert world.segments()[0].start_offset == first.base_offset
    assert log.highest_offset_in_remote_storage == log.active_segment.base_offset - 1


def test_work_of_many_partitions_gives_way_to_others() -> None:
    loop = SimLoop(1)  # type: ignore[abstract]
    clock = LoopClock(lambda: loop.now_ns)
    done: list[int] = []
    others: list[int] = []

    async def test() -> None:
        async def work(led: object) -> None:
            done.append(1)

        pool = _Pool(
            "work", clock, TaskSupervisor(clock, lambda reason: None), lambda: 2, lambda led: led.copy, work
        )
        for _ in range(1000):
            pause = ExponentialBackoff(SeededRandom(1), 100, 1000)
            pool.submit(SimpleNamespace(copy=_Work(pause), is_closed=False))  # type: ignore[arg-type]
        while len(done) < 1000:
            others.append(len(done))
            await asyncio.sleep(0)

    loop.run_until_complete(test())
    assert max(after - before for before, after in pairwise(others)) <= 64


def test_the_lag_is_looked_for_only_where_something_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = copied_world()
    looked_at: list[object] = []

    def observed(log: UnifiedLog) -> Sequence[LogSegment]:
        looked_at.append(log)
        return uncopied_segments(log)

    monkeypatch.setattr("ottla.node.remote.remote_log_manager.uncopied_segments", observed)
    assert world.manager.lag() == []
    assert not looked_at
    world.store.failures = 1_000_000
    world.produce(8)
    world.progress()
    world.run()
    ((tp, segments, size),) = world.manager.lag()
    assert tp == TP
    assert segments >= 2
    assert size > 600


def test_deletions_are_announced_before_they_wait_for_each_other() -> None:
    """A broker that dies while its store hangs leaves nothing of which the next one does not know."""
    world = RemoteWorld()
    world.start()
    world.run(1)
    deleted = [id_of(partition) for partition in range(30)]
    world.events += [segment(partition, 0) for partition in range(30)]

    async def hang(keys: Sequence[str]) -> None:
        await asyncio.sleep(1_000_000)

    world.store.delete = hang  # type: ignore[method-assign]
    world.in_broker(lambda: world.manager.delete_partitions(deleted))
    world.run(10)
    marked = {
        TopicIdPartition(each.topic_id, each.topic_partition.partition)
        for each in world.metadata.events
        if isinstance(each, RemotePartitionDeleteMetadata)
        and each.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    }
    assert marked == set(deleted)
