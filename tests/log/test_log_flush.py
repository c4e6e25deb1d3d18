"""What is durable, and what it costs."""

from __future__ import annotations

import errno

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.unified_log import LogAppendInfo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from tests.support.log_harness import LogHarness, all_batches, check_log


def synced(lab: LogHarness) -> list[str]:
    return [
        each.path.rsplit("/", 1)[1]
        for each in lab.sim_disk.trace.entries()
        if each.op in ("sync", "sync_dir")
    ]


def test_an_append_syncs_nothing() -> None:
    lab = LogHarness()
    lab.fill(1)  # the first one makes the log itself durable
    before = len(synced(lab))
    lab.fill(9)
    assert len(synced(lab)) == before
    assert lab.log.recovery_point == 0
    assert lab.log.unflushed_messages == 10


def test_what_was_flushed_survives_a_crash() -> None:
    for seed in range(20):
        lab = LogHarness(LogConfig(segment_bytes=500), seed=seed)
        lab.fill(20)
        lab.log.flush()
        content = [data for _, data in all_batches(lab.log)]
        assert lab.log.recovery_point == 20
        lab.fill(5)
        lab.crash()
        assert [data for _, data in all_batches(lab.log)][:20] == content


def test_a_flush_syncs_the_active_segment_without_its_indexes() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    lab.fill(10)
    lab.log.flush()
    lab.put(b"x")
    before = len(synced(lab))
    lab.log.flush()
    assert synced(lab)[before:] == [lab.log.active_segment.path(".log").rsplit("/", 1)[1]]
    lab.log.flush()
    assert len(synced(lab)) == before + 1


def test_a_flush_up_to_an_offset_leaves_the_rest() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    lab.fill(10)
    base = lab.log.active_segment.base_offset
    lab.log.flush(base)
    assert lab.log.recovery_point == base
    assert lab.log.active_segment.path(".log").rsplit("/", 1)[1] not in synced(lab)


def test_a_flush_is_due_once_there_are_so_many_unflushed_records() -> None:
    lab = LogHarness(LogConfig(flush_messages=3))
    lab.fill(2)
    assert not lab.log.is_flush_due
    lab.fill(1)
    assert lab.log.is_flush_due
    lab.log.flush()
    assert not lab.log.is_flush_due


@pytest.mark.parametrize("config", [LogConfig(flush_messages=1), LogConfig(durability="disk")])
def test_a_flush_does_not_count_for_what_is_appended_meanwhile(config: LogConfig) -> None:
    lab = LogHarness(config)
    data = bytearray(build_batch([(lab.now_ms, None, b"x")]))
    lab.log.append_as_leader(data, 0, now_ms=lab.now_ms)
    assert lab.log.is_flush_due
    assert lab.log.recovery_point == 0
    plan = lab.log.prepare_flush()
    assert plan is not None
    lab.log.run_flush(plan)
    # Appended meanwhile: not part of what was synced.
    lab.log.append_as_leader(bytearray(data), 0, now_ms=lab.now_ms)
    lab.log.complete_flush(plan)
    assert lab.log.recovery_point == lab.log.committable_offset == 1
    assert lab.log.is_flush_due


def test_a_flush_of_a_log_that_was_cut_meanwhile_moves_nothing() -> None:
    lab = LogHarness()
    lab.fill(10)
    plan = lab.log.prepare_flush()
    assert plan is not None
    lab.log.truncate_to(5)
    lab.fill(10)
    lab.log.run_flush(plan)
    lab.log.complete_flush(plan)
    assert lab.log.recovery_point == 0


def test_the_epochs_are_durable_before_the_recovery_point_passes_them() -> None:
    for seed in range(20):
        lab = LogHarness(LogConfig(segment_bytes=500), seed=seed)
        for epoch in range(5):
            lab.fill(4, epoch=epoch)
        lab.log.flush()
        lab.checkpoint()
        entries = lab.log.leader_epoch_cache.entries
        lab.crash()
        assert lab.log.leader_epoch_cache.entries == entries


def test_a_sync_that_fails_takes_the_directory_offline() -> None:
    lab = LogHarness()
    lab.fill(3)
    lab.sim_disk.fail(errno.EIO, ops=["sync"])
    with pytest.raises(KafkaError, match=r"flushing .* failed") as refused:
        lab.log.flush()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert lab.log.recovery_point == 0
    assert not lab.directory.is_online
    # A second sync might succeed and say nothing of what the first has lost.
    with pytest.raises(KafkaError, match="is offline"):
        lab.log.flush()
    with pytest.raises(KafkaError, match="is offline"):
        lab.put(b"x")
    with pytest.raises(KafkaError, match="is offline"):
        lab.log.read(0, 100)


def test_even_a_lack_of_room_in_a_sync_is_fatal() -> None:
    lab = LogHarness()
    lab.fill(3)
    lab.sim_disk.fail(errno.ENOSPC, ops=["sync"], prefix="/data/orders-3/0")
    with pytest.raises(KafkaError):
        lab.log.flush()
    assert not lab.directory.is_online


def test_a_clean_shutdown_makes_everything_durable() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    lab.fill(20)
    lab.close()
    assert lab.sim_disk.contents() == lab.sim_disk.durable_contents()
    lab.sim_disk.crash()
    lab.reload(clean=True)
    assert lab.log.log_end_offset == 20


def test_a_log_whose_files_were_changed_after_a_clean_shutdown_takes_no_appends() -> None:
    lab = LogHarness()
    lab.fill(20)
    lab.close()
    lab.directory.write_recovery_points({lab.log.topic_partition: 19})
    lab.reload(clean=True)
    with pytest.raises(KafkaError, match="ends at offset 20, but at its clean shutdown it ended at 19"):
        lab.put(b"x")


def test_an_untouched_log_is_closed_without_a_write() -> None:
    lab = LogHarness()
    lab.fill(5)
    lab.close()
    lab.reload(clean=True)
    assert lab.log.read(2, 100).records
    before = lab.sim_disk.operations
    lab.log.close()
    assert lab.sim_disk.operations == before


def test_a_closed_log_can_no_longer_be_used() -> None:
    lab = LogHarness()
    lab.log.close()
    for use in (
        lambda: lab.put(b"x"),
        lambda: lab.log.read(0, 10),
        lab.log.flush,
        lambda: lab.log.truncate_to(0),
    ):
        with pytest.raises(KafkaError, match="is closed"):
            use()


def test_after_a_clean_shutdown_a_log_is_loaded_by_its_names() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    lab.fill(20)
    lab.close()
    before = len(lab.sim_disk.trace.entries())
    lab.reload(clean=True)
    asked = [str(each.op) for each in lab.sim_disk.trace.entries()[before:] if "/orders-3" in each.path]
    assert asked == ["list_dir"]


def idempotent(lab: LogHarness) -> bytearray:
    return bytearray(
        build_batch([(lab.now_ms, None, b"x")], producer_id=4, producer_epoch=0, base_sequence=0)
    )


def test_a_flush_without_room_leaves_the_records_and_the_next_attempt_asks_for_it_again() -> None:
    lab = LogHarness(LogConfig(flush_messages=1))
    fault = lab.sim_disk.fail(errno.ENOSPC, ops=["write"], prefix="/data/orders-3/leader-epoch", times=None)
    for attempt in range(3):
        lab.log.append_as_leader(idempotent(lab), 0, now_ms=lab.now_ms)
        assert lab.log.is_flush_due, attempt
        with pytest.raises(KafkaError, match=r"no room .* for flushing"):
            lab.log.flush()
        assert lab.directory.is_online, attempt
        assert (lab.log.log_end_offset, lab.log.recovery_point) == (1, 0), attempt
    lab.sim_disk.heal(fault)
    info = lab.log.append_as_leader(idempotent(lab), 0, now_ms=lab.now_ms)
    assert info.duplicate
    assert info.first_offset == 0
    lab.log.flush()
    assert lab.log.recovery_point == 1
    check_log(lab.log)


def test_a_batch_that_is_sent_again_is_to_be_flushed_only_if_it_is_not() -> None:
    lab = LogHarness(LogConfig(flush_messages=1))

    def append() -> LogAppendInfo:
        return lab.log.append_as_leader(idempotent(lab), 0, now_ms=lab.now_ms)

    first, again = append(), append()
    assert again.duplicate
    assert first.last_offset == again.last_offset >= lab.log.committable_offset
    lab.log.flush()
    lab.fill(1)
    assert append().last_offset < lab.log.committable_offset


def test_records_that_wait_for_a_flush_are_not_to_be_committed() -> None:
    lab = LogHarness(LogConfig(flush_messages=3))

    def append() -> int:
        data = bytearray(build_batch([(lab.now_ms, None, b"x")]))
        lab.log.append_as_leader(data, 0, now_ms=lab.now_ms)
        return lab.log.committable_offset

    assert [append() for _ in range(4)] == [1, 2, 0, 0]
    lab.log.flush()
    assert lab.log.committable_offset == 4
    assert append() == 5
