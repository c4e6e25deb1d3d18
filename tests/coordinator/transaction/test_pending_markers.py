"""Markers are written until every partition has confirmed, or another broker coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.pending_markers import (
    MarkerResults,
    PendingTransactionMarkers,
)
from ottla.coordinator.transaction.requests import WriteMarkers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition

from .transaction_harness import A, B

CONFIG = TransactionConfig(marker_retry_backoff_ms=1, marker_retry_backoff_max_ms=2)
MARKER = WriteMarkers("txn", ProducerIdAndEpoch(1, 1), True, frozenset({A, B}), 0, 2)


class Writer:
    """Gives the queued results, and then confirms every marker."""

    def __init__(self, *answers: Mapping[TopicPartition, ErrorCode] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[frozenset[TopicPartition]] = []
        self.deleted: set[TopicPartition] = set()
        self.later = False

    def write(
        self, marker: WriteMarkers, partitions: frozenset[TopicPartition]
    ) -> MarkerResults | Awaitable[MarkerResults]:
        self.asked.append(partitions)
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            if self.later:
                return self._fail(answer)
            raise answer
        results = {partition: answer.get(partition, ErrorCode.NONE) for partition in partitions}
        return self._later(results) if self.later else results

    async def _later(self, results: MarkerResults) -> MarkerResults:
        await asyncio.sleep(0)
        return results

    async def _fail(self, error: Exception) -> MarkerResults:
        raise error

    def exists(self, partition: TopicPartition) -> bool:
        return partition not in self.deleted


class Desk:
    def __init__(self, writer: Writer) -> None:
        self.written: list[tuple[int, WriteMarkers]] = []
        self.manager = PendingTransactionMarkers(
            writer, lambda: CONFIG, lambda *done: self.written.append(done)
        )

    async def drain(self) -> None:
        async with asyncio.timeout(60):
            while len(self.manager):  # noqa: ASYNC110  its end has no event of its own
                await asyncio.sleep(0.001)


async def test_what_can_be_written_at_once_is_confirmed_at_once() -> None:
    desk = Desk(Writer())
    desk.manager.add_markers(3, MARKER)
    assert desk.written == [(3, MARKER)]


async def test_a_transaction_without_partitions_needs_no_marker() -> None:
    writer = Writer()
    desk = Desk(writer)
    nothing = WriteMarkers("txn", ProducerIdAndEpoch(1, 1), False, frozenset(), 0, 2)
    desk.manager.add_markers(0, nothing)
    assert (desk.written, writer.asked) == ([(0, nothing)], [])


async def test_only_what_was_not_confirmed_is_written_again() -> None:
    for later in (False, True):
        writer = Writer(
            {B: ErrorCode.NOT_LEADER_OR_FOLLOWER},
            {B: ErrorCode.NOT_ENOUGH_REPLICAS},
            {B: ErrorCode.KAFKA_STORAGE_ERROR},
        )
        writer.later = later
        desk = Desk(writer)
        desk.manager.add_markers(0, MARKER)
        assert desk.written == []
        await desk.drain()
        assert desk.written == [(0, MARKER)]
        assert writer.asked == [frozenset({A, B}), frozenset({B}), frozenset({B}), frozenset({B})]


async def test_an_error_that_nobody_expects_is_not_taken_for_an_end() -> None:
    writer = Writer({A: ErrorCode.UNKNOWN_SERVER_ERROR}, {A: ErrorCode.CORRUPT_MESSAGE})
    desk = Desk(writer)
    desk.manager.add_markers(0, MARKER)
    await desk.drain()
    assert (len(writer.asked), len(desk.written)) == (3, 1)


async def test_a_partition_that_was_deleted_is_left_out() -> None:
    writer = Writer({A: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, {A: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    desk = Desk(writer)
    desk.manager.add_markers(0, MARKER)
    assert desk.written == []  # it is in the metadata: its leader may not know it yet
    writer.deleted.add(A)
    await desk.drain()
    assert desk.written == [(0, MARKER)]


async def test_a_partition_with_a_higher_epoch_has_nothing_to_end() -> None:
    desk = Desk(Writer({A: ErrorCode.INVALID_PRODUCER_EPOCH}))
    desk.manager.add_markers(0, MARKER)
    assert desk.written == [(0, MARKER)]


async def test_a_newer_coordinator_takes_over() -> None:
    for later in (False, True):
        writer = Writer({A: ErrorCode.TRANSACTION_COORDINATOR_FENCED, B: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        writer.later = later
        desk = Desk(writer)
        desk.manager.add_markers(0, MARKER)
        await desk.drain()
        assert (desk.written, len(writer.asked)) == ([], 1)


async def test_who_resigns_stops_trying() -> None:
    writer = Writer(*[{A: ErrorCode.NOT_LEADER_OR_FOLLOWER}] * 1000)
    desk = Desk(writer)
    desk.manager.add_markers(0, MARKER)
    desk.manager.add_markers(1, MARKER)
    desk.manager.remove_markers(0)
    assert len(desk.manager) == 1
    await desk.manager.close()
    assert (len(desk.manager), desk.written) == (0, [])


async def test_the_markers_of_a_decision_are_added_once() -> None:
    """A coordinator that was loaded again sends the same markers; the first run must stop."""
    writer = Writer({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    desk = Desk(writer)
    desk.manager.add_markers(0, MARKER)
    again = WriteMarkers("txn", ProducerIdAndEpoch(1, 1), True, frozenset({A, B}), 1, 2)
    desk.manager.add_markers(0, again)
    await desk.drain()
    assert desk.written == [(0, again)]


@pytest.mark.parametrize("later", [False, True])
async def test_an_error_of_the_program_leaves_no_transaction_open(later: bool) -> None:
    writer = Writer(ValueError("not expected"), ValueError("again"))
    writer.later = later
    desk = Desk(writer)
    desk.manager.add_markers(3, MARKER)
    await desk.drain()
    assert desk.written == [(3, MARKER)]
    assert writer.asked == [MARKER.partitions] * 3
