"""The coordinator runtime: when replies are given, what survives, and that every request gets a reply."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.runtime.loader import load_partition
from ottla.protocol.consumer_offsets_records import OffsetCommitKey
from ottla.protocol.coordinator_records import encode_key
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from tests.coordinator.runtime_harness import Fail, Get, Put, RuntimeHarness, Wait


def code(ticket: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        ticket.result()  # type: ignore[attr-defined]
    return caught.value.code


async def test_a_write_is_answered_at_once_where_it_is_committed_at_once() -> None:
    lab = await RuntimeHarness.open()
    ticket = lab.put(a=1)
    assert ticket.result() == "put"
    assert lab.runtime.submit(0, Get("a")).result() == 1
    assert lab.sent == [{"a": 1}]


async def test_a_write_is_answered_when_the_high_watermark_has_passed_it() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    ticket = lab.put(a=1)
    assert not ticket.done
    assert lab.sent == []
    lab.replicate()
    assert await ticket == "put"
    assert lab.sent == [{"a": 1}]


async def test_nobody_is_told_of_what_could_still_be_lost() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    lab.put(a=1)
    read = lab.runtime.submit(0, Get("a"))
    failure = lab.runtime.submit(0, Fail(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)))
    assert not read.done
    assert not failure.done
    lab.replicate()
    assert read.result() == 1
    assert code(failure) is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.runtime.submit(0, Get("a")).done


async def test_answers_come_in_the_order_of_the_writes() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    first = lab.put(a=1)
    lab.replicate()
    second = lab.put(a=2)
    assert first.done
    assert not second.done


async def test_records_of_one_event_are_one_batch() -> None:
    lab = await RuntimeHarness.open()
    lab.runtime.submit(0, Put({"a": 1, "b": 2}))
    batches = list(lab.partition.log.segments)
    assert len(batches) == 1
    assert lab.partition.log.log_end_offset == 2
    with pytest.raises(KafkaError):
        lab.partition.log.read(3, 1)


async def test_what_need_not_be_atomic_is_spread_over_batches_of_bounded_size() -> None:
    lab = await RuntimeHarness.open()
    numbers = {f"{index:05}" + "x" * 200: index for index in range(6_000)}
    with_limit = lab.runtime.submit(0, Put(numbers))
    assert code(with_limit) is ErrorCode.UNKNOWN_SERVER_ERROR  # over max.message.bytes in one batch
    assert lab.shard.numbers == {}
    assert lab.runtime.submit(0, Put(numbers, atomic=False)).result() == "put"
    assert lab.shard.numbers == numbers


async def test_a_failed_write_changes_nothing_and_is_told() -> None:
    lab = await RuntimeHarness.open()
    waiting = lab.runtime.submit(0, Wait("a"))
    lab.partition.resign()
    ticket = lab.put(a=1)
    assert code(ticket) is ErrorCode.NOT_COORDINATOR
    assert code(waiting) is ErrorCode.NOT_COORDINATOR  # its answer was part of the write
    assert lab.shard.numbers == {}
    assert lab.shard.events == ["loaded", "failed NOT_COORDINATOR"]


async def test_too_few_replicas_mean_that_the_coordinator_is_not_available() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    config = lab.partition.log.config
    lab.partition.log.update_config(type(config)(min_insync_replicas=2))
    lab.maybe_shrink_isr()
    assert code(lab.put(a=1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_value_that_cannot_be_written_fails_its_request_alone() -> None:
    lab = await RuntimeHarness.open()
    assert code(lab.put(a=2**70)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert lab.put(a=1).result() == "put"


async def test_an_error_in_a_machine_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    lab = await RuntimeHarness.open()
    with caplog.at_level(logging.CRITICAL):
        assert code(lab.runtime.submit(0, Fail(ZeroDivisionError("bug")))) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert lab.put(a=1).result() == "put"


async def test_requests_are_told_to_wait_while_a_partition_loads() -> None:
    lab = await RuntimeHarness.open(load=False)
    assert code(lab.put(a=1)) is ErrorCode.NOT_COORDINATOR
    lab.runtime.load(lab.partition)
    assert code(lab.put(a=1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await lab.runtime.wait_until_loaded(0)
    assert lab.put(a=1).result() == "put"


async def test_loading_gives_the_state_that_was_before() -> None:
    lab = await RuntimeHarness.open(load_bytes=200)
    for number in range(300):
        lab.put(**{f"n{number % 7}": number})
    before = dict(lab.shard.numbers)
    await lab.reelect()
    assert len(lab.shards) == 2
    assert lab.shard.numbers == before
    assert lab.shard.events == ["loaded"]


async def test_what_a_new_leader_loads_is_told_only_once_it_is_committed() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    lost = lab.put(a=1)
    await lab.reelect()
    assert code(lost) is ErrorCode.NOT_COORDINATOR
    read = lab.runtime.submit(0, Get("a"))
    assert not read.done
    lab.replicate()
    assert read.result() == 1


async def test_transactions_count_by_their_markers_now_and_after_loading() -> None:
    lab = await RuntimeHarness.open()
    for id, commit in ((1, True), (2, False), (3, None)):
        producer = ProducerIdAndEpoch(id, 0)
        lab.runtime.submit(0, Put({f"t{id}": id}, producer))
        if commit is not None:
            assert (
                lab.runtime.complete_transaction(
                    0, producer, commit=commit, coordinator_epoch=0, transaction_version=1
                ).result()
                is None
            )
    for _ in range(2):
        assert lab.shard.numbers == {"t1": 1}
        assert lab.shard.pending == {3: {"t3": 3}}
        await lab.reelect()
    lab.runtime.complete_transaction(
        0, ProducerIdAndEpoch(3, 0), commit=True, coordinator_epoch=0, transaction_version=1
    )
    assert lab.shard.numbers == {"t1": 1, "t3": 3}


async def test_a_marker_waits_for_the_replicas() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    marker = lab.runtime.complete_transaction(
        0, ProducerIdAndEpoch(1, 0), commit=True, coordinator_epoch=0, transaction_version=1
    )
    assert not marker.done
    lab.replicate()
    assert marker.done


async def test_records_of_the_future_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    lab = await RuntimeHarness.open()
    lab.put(a=1)
    lab.partition.append_records_to_leader(build_batch([(0, b"\x7f\x00future", b"?")]), now_ms=0)
    with caplog.at_level(logging.WARNING):
        await lab.reelect()
    assert lab.shard.numbers == {"a": 1}
    assert "offset 1 is skipped" in caplog.text


async def test_a_record_that_cannot_be_read_fails_the_load_and_names_its_offset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = await RuntimeHarness.open()
    lab.put(a=1)
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
    lab.partition.append_records_to_leader(build_batch([(0, key, b"\x00\x03rubbish")]), now_ms=0)
    with caplog.at_level(logging.ERROR):
        await lab.reelect()
    assert "__consumer_offsets-0: the record at offset 1 cannot be read" in caplog.text
    assert code(lab.put(a=2)) is ErrorCode.NOT_COORDINATOR


async def test_a_load_that_failed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = await RuntimeHarness.open()
    lab.put(a=1)
    loads = 0

    async def flaky(*how: Any) -> int:
        nonlocal loads
        loads += 1
        if loads < 3:
            raise OSError(errno.EMFILE, "no file handle is left")
        return await load_partition(*how)

    monkeypatch.setattr("ottla.coordinator.runtime.coordinator_runtime.load_partition", flaky)
    with caplog.at_level(logging.CRITICAL):
        await lab.reelect()
        assert code(lab.put(b=2)) is ErrorCode.NOT_COORDINATOR
        async with asyncio.timeout(60):
            while loads < 3 or not lab.runtime._contexts[0].is_active:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.01)
    assert lab.shard.numbers == {"a": 1}
    assert lab.put(b=2).result() == "put"


async def test_a_machine_that_cannot_take_its_own_record_is_loaded_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = await RuntimeHarness.open()
    lab.put(a=1)
    lab.shard.poison = 13
    with caplog.at_level(logging.CRITICAL):
        ticket = lab.put(b=13)
    assert code(ticket) is ErrorCode.NOT_COORDINATOR
    await lab.runtime.wait_until_loaded(0)
    assert lab.shard.numbers == {"a": 1, "b": 13}  # the log had it


async def test_all_who_wait_are_told_when_the_partition_moves_away() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1))
    waiting = lab.runtime.submit(0, Wait("a"))
    writing = lab.put(b=1)
    lab.runtime.unload(0, leader_epoch=0)
    assert not waiting.done  # it was not lost in that epoch
    lab.runtime.unload(0, leader_epoch=1)
    assert code(waiting) is ErrorCode.NOT_COORDINATOR
    assert code(writing) is ErrorCode.NOT_COORDINATOR
    assert lab.shards[0].events[-1] == "unloaded"
    assert lab.sent == []


async def test_resigning_while_loading_stops_the_load() -> None:
    lab = await RuntimeHarness.open(load=False)
    lab.runtime.load(lab.partition)
    lab.runtime.unload(0)
    await asyncio.sleep(0)
    assert code(lab.put(a=1)) is ErrorCode.NOT_COORDINATOR
    assert "loaded" not in lab.shards[0].events


async def test_a_write_that_the_replicas_do_not_take_in_time_is_told_so() -> None:
    lab = await RuntimeHarness.open(replicas=(0, 1), commit_timeout_ms=5)
    ticket = lab.put(a=1)
    lab.clock.advance_ms(5)
    with pytest.raises(KafkaError) as caught:
        await asyncio.wait_for(ticket, 60)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.replicate()
    assert lab.sent == [{"a": 1}]  # it was written all the same
    assert lab.runtime.submit(0, Get("a")).result() == 1


async def test_deadlines_of_machines_are_kept_by_the_one_timer() -> None:
    lab = await RuntimeHarness.open()
    long = lab.runtime.submit(0, Wait("long", timeout_ms=50))
    short = lab.runtime.submit(0, Wait("short", timeout_ms=5))
    lab.clock.advance_ms(5)
    assert await asyncio.wait_for(short, 60) == "time is up"
    assert not long.done
    lab.clock.advance_ms(45)
    assert await asyncio.wait_for(long, 60) == "time is up"


async def test_an_answer_to_somebody_who_has_gone_does_no_harm() -> None:
    lab = await RuntimeHarness.open()
    ticket = lab.runtime.submit(0, Wait("a"))

    async def wait() -> None:
        await ticket

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert lab.put(a=1).result() == "put"


async def test_every_request_is_answered_when_the_runtime_closes() -> None:
    lab = await RuntimeHarness.open()
    waiting = lab.runtime.submit(0, Wait("a"))
    await lab.runtime.close()
    assert code(waiting) is ErrorCode.NOT_COORDINATOR
    assert lab.runtime.partitions == []


async def test_every_loaded_machine_hears_what_is_for_all() -> None:
    lab = await RuntimeHarness.open()
    lab.runtime.notify(Put({"a": 1}))
    assert lab.shard.numbers == {"a": 1}
    assert [ticket.result() for ticket in lab.runtime.submit_all(Get("a"))] == [1]
