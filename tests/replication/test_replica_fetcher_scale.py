"""A fetcher of many partitions: a round costs by what changed, and sessions grow in bounded steps."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import PartitionFetchState
from ottla.replication.replica_fetch_session import Key
from ottla.replication.replica_fetcher import (
    NAMED_AT_ONCE,
    ReplicaFetcher,
    ReplicaFetcherConfig,
    ReplicaFetcherContext,
    ReplicaTruncations,
)
from ottla.replication.replication_quota_manager import UNLIMITED, ReplicationQuotaManager
from ottla.runtime import invariants
from ottla.runtime.clock import SystemClock
from ottla.runtime.pool import InlinePool, Pool
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import Op
from tests.replication.partition_harness import TOPIC_ID, PartitionHarness, registration

T = TypeVar("T")
FOLLOWER = 1


class SessionLeader:
    """A leader of any number of partitions, with one fetch session: answers what is new to the session."""

    def __init__(self, *, has_sessions: bool = True) -> None:
        self.has_sessions = has_sessions
        self.session: dict[Key, FetchPartition] = {}
        self.epoch = 0
        self.told: dict[Key, int] = {}  # high watermark as last answered
        self.records: dict[Key, list[bytes]] = {}
        self.errors: dict[Key, ErrorCode] = {}
        self.diverging: dict[Key, int] = {}  # where the logs differ: from there on the leader has none
        self.requests: list[FetchRequest] = []
        self.lose_session = False
        self.fail: OSError | None = None
        self.waiting: asyncio.Future[None] | None = None

    async def send_request(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        await asyncio.sleep(0)
        assert isinstance(request, FetchRequest)
        self.requests.append(request)
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        if request.session_epoch == 0:
            self.session, self.told, self.epoch = {}, {}, 1
        elif self.lose_session or request.session_epoch != self.epoch:
            self.lose_session = False
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        else:
            self.epoch += 1
        for topic in request.topics:
            for asked in topic.partitions:
                self.session[bytes(topic.topic_id), asked.partition] = asked
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                key = bytes(gone.topic_id), index
                del self.session[key]
                self.told.pop(key, None)
        answers = self._answers()
        if not answers and request.max_wait_ms:
            await self._wait(request.max_wait_ms)
            answers = self._answers()
        topics: dict[bytes, FetchableTopicResponse] = {}
        for key, data in answers.items():
            topic_answer = topics.setdefault(key[0], FetchableTopicResponse(topic_id=key[0]))
            topic_answer.partitions.append(data)
        return FetchResponse(session_id=9 if self.has_sessions else 0, responses=list(topics.values()))

    def _answers(self) -> dict[Key, PartitionData]:
        answers = {}
        for key, asked in self.session.items():
            error = self.errors.get(key)
            if error is not None:
                answers[key] = PartitionData(partition_index=key[1], error_code=error)
                self.told.pop(key, None)
                continue
            if asked.fetch_offset > self.diverging.get(key, asked.fetch_offset):
                end = EpochEndOffset(epoch=0, end_offset=self.diverging[key])
                answers[key] = PartitionData(partition_index=key[1], diverging_epoch=end)
                continue
            records = b"".join(self.records.get(key, [])[asked.fetch_offset :])
            high_watermark = asked.fetch_offset
            if records or self.told.get(key) != high_watermark:
                self.told[key] = high_watermark
                answers[key] = PartitionData(
                    partition_index=key[1],
                    high_watermark=high_watermark,
                    log_start_offset=0,
                    records=records or None,
                )
        return answers

    def append(self, key: Key) -> None:
        known = self.records.setdefault(key, [])
        data = bytearray(build_batch([(0, None, b"value")]))
        data[:8] = len(known).to_bytes(8, "big")
        data[12:16] = bytes(4)
        known.append(bytes(data))
        self.wake()

    async def _wait(self, max_wait_ms: int) -> None:
        self.waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                await self.waiting
        except TimeoutError:
            pass
        finally:
            self.waiting = None

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def disconnect(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionResetError("hung up"))


class Fetchers:
    """A fetcher and its leader; idle partitions share one log, as nothing is ever written to it."""

    def __init__(self, leader: SessionLeader, *, wait_max_ms: int = 60_000, pool: Pool | None = None) -> None:
        self.leader = leader
        self.shared, self.hot = PartitionHarness(lead=False), PartitionHarness(lead=False)
        self.context = ReplicaFetcherContext(
            FOLLOWER,
            lambda: 7,
            SystemClock(),
            ReplicaFetcherConfig(wait_max_ms=wait_max_ms, backoff_ms=20),
            ReplicationQuotaManager(SystemClock(), UNLIMITED),
            ReplicaTruncations(pool or InlinePool()),
            self.hot.manager.commit,
            self.hot.manager.complete_creation,
            lambda tp, error: None,
        )
        self.fetcher = ReplicaFetcher(0, leader, self.context)

    def add_idle(self, indexes: range) -> None:
        for index in indexes:
            self.follow(TopicPartition("orders", index), self.shared)

    def follow(self, tp: TopicPartition, harness: PartitionHarness) -> Partition:
        partition = Partition(tp, TOPIC_ID, harness.log, FOLLOWER, harness)
        partition.make_follower(registration(replicas=(0, FOLLOWER)))
        self.fetcher.add(PartitionFetchState(partition))
        return partition

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  of two sides, neither of which tells
                await asyncio.sleep(0.001)

    async def until_idle(self, partitions: int) -> None:
        """Until the session has all partitions, and a fetch waits at the leader."""
        await self.until(lambda: len(self.leader.session) == partitions and self.leader.waiting is not None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.fetcher.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def lives(part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(part())


def named(request: FetchRequest) -> list[int]:
    return [asked.partition for topic in request.topics for asked in topic.partitions]


def test_partitions_join_a_session_in_bounded_steps_that_do_not_wait() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)
    count = 3 * NAMED_AT_ONCE + 1

    async def part() -> None:
        many.add_idle(range(count))
        async with many.running():
            await many.until_idle(count)

    lives(part)
    assert [len(named(request)) for request in leader.requests[:5]] == [NAMED_AT_ONCE] * 3 + [1, 0]
    assert [request.max_wait_ms > 0 for request in leader.requests[:4]] == [False, False, False, True]


def test_a_round_touches_no_idle_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "thorough", False)
    leader = SessionLeader()
    many = Fetchers(leader)
    asked_for: list[PartitionFetchState] = []
    fetch_request = PartitionFetchState.fetch_request

    def counted(state: PartitionFetchState, max_bytes: int) -> FetchPartition:
        asked_for.append(state)
        return fetch_request(state, max_bytes)

    monkeypatch.setattr(PartitionFetchState, "fetch_request", counted)

    async def part() -> None:
        many.add_idle(range(1, 2_000))
        hot = many.follow(TopicPartition("orders", 0), many.hot)
        async with many.running():
            await many.until_idle(2_000)
            asked_for.clear()
            leader.requests.clear()
            for number in range(1, 11):
                leader.append((TOPIC_ID, 0))
                await many.until(lambda end=number: hot.log.log_end_offset == end)  # type: ignore[misc]
            await many.until_idle(2_000)

    lives(part)
    assert {state.partition.topic_partition.partition for state in asked_for} == {0}
    assert len(asked_for) <= 20
    assert all(named(request) in ([], [0]) for request in leader.requests)


def test_a_hot_partition_does_not_wait_for_those_that_join() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)

    async def part() -> None:
        hot = many.follow(TopicPartition("orders", 0), many.hot)
        async with many.running():
            await many.until_idle(1)
            leader.append((TOPIC_ID, 0))
            many.add_idle(range(1, 4 * NAMED_AT_ONCE))
            await many.until(lambda: hot.log.log_end_offset == 1)
            assert len(leader.session) < 4 * NAMED_AT_ONCE
            await many.until_idle(4 * NAMED_AT_ONCE)

    lives(part)


def test_a_lost_session_is_built_again_in_steps_with_the_partitions_first_that_were_active() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)
    count = 2 * NAMED_AT_ONCE

    async def part() -> None:
        many.add_idle(range(1, count))
        hot = many.follow(TopicPartition("orders", 0), many.hot)
        async with many.running():
            await many.until_idle(count)
            leader.append((TOPIC_ID, 0))
            await many.until(lambda: hot.log.log_end_offset == 1)
            await many.until_idle(count)
            leader.requests.clear()
            leader.lose_session = True
            leader.wake()
            await many.until(lambda: not leader.lose_session)
            await many.until_idle(count)

    lives(part)
    first = next(index for index, request in enumerate(leader.requests) if request.session_epoch == 0)
    assert [len(named(request)) for request in leader.requests[first : first + 2]] == [NAMED_AT_ONCE] * 2
    assert named(leader.requests[first])[0] == 0


def test_the_trouble_of_one_partition_names_no_other_again() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)
    bad = (TOPIC_ID, 7)

    async def part() -> None:
        many.add_idle(range(100))
        async with many.running():
            await many.until_idle(100)
            leader.requests.clear()
            leader.errors[bad] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            leader.wake()
            await many.until(lambda: sum(named(request) == [7] for request in leader.requests) > 3)
            del leader.errors[bad]
            await many.until_idle(100)

    lives(part)
    assert {index for request in leader.requests for index in named(request)} == {7}
    assert all(request.session_epoch > 0 for request in leader.requests)


def test_a_log_start_that_retention_moves_is_told_to_the_leader() -> None:
    leader = SessionLeader()
    many = Fetchers(leader, wait_max_ms=50)
    harness = PartitionHarness(lead=False)

    async def part() -> None:
        key = (TOPIC_ID, 0)
        partition = many.follow(TopicPartition("orders", 0), harness)
        async with many.running():
            leader.append(key)
            leader.append(key)
            await many.until(lambda: partition.log.log_end_offset == 2)
            partition.log.update_high_watermark(2)
            partition.log.maybe_increment_log_start_offset(1, "retention")
            await many.until(lambda: leader.session[key].log_start_offset == 1)

    lives(part)


def test_a_leader_without_a_place_for_a_session_is_asked_for_the_partitions_in_turn() -> None:
    leader = SessionLeader(has_sessions=False)
    many = Fetchers(leader, wait_max_ms=100)
    count = 3 * NAMED_AT_ONCE

    async def part() -> None:
        many.add_idle(range(count))
        async with many.running():
            await many.until(lambda: len(leader.requests) > 8)

    lives(part)
    for at in (0, 3):
        rounds = [named(request) for request in leader.requests[at : at + 3]]
        assert [len(each) for each in rounds] == [NAMED_AT_ONCE] * 3
        assert sorted(index for each in rounds for index in each) == list(range(count))
    assert all(request.max_wait_ms > 0 for request in leader.requests[2:8])


def test_where_more_requests_change_than_one_may_name_the_others_are_forgotten_for_a_while() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)
    count = NAMED_AT_ONCE + 20

    async def part() -> None:
        many.add_idle(range(count + 1))
        async with many.running():
            await many.until_idle(count + 1)
            leader.requests.clear()
            many.add_idle(range(count))  # as in a new epoch
            leader.wake()
            await many.until(lambda: len(leader.requests) >= 3)
            await many.until_idle(count + 1)
            assert all(len(named(request)) <= NAMED_AT_ONCE for request in leader.requests)
            assert sum(len(named(request)) for request in leader.requests) == count

    lives(part)


class SlowPool(InlinePool):
    """Calls wait until they are let go; counts those that wait at the same time."""

    __slots__ = ("held", "most", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.waiting = self.most = 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.held.wait()
            return await super().run(fn, *args)
        finally:
            self.waiting -= 1


def diverging(count: int, many: Fetchers) -> list[Partition]:
    """Followers whose last record the leader does not have."""
    partitions = []
    for index in range(1, count + 1):
        harness = PartitionHarness(lead=False)
        key = (TOPIC_ID, index)
        for _ in range(3):
            many.leader.append(key)
        harness.log.append_as_follower(b"".join(many.leader.records[key]), 0, now_ms=0)
        many.leader.records[key].pop()
        many.leader.diverging[key] = 2
        partitions.append(many.follow(TopicPartition("orders", index), harness))
    return partitions


def test_many_truncations_run_in_the_background_a_few_at_a_time() -> None:
    leader, pool = SessionLeader(), SlowPool()
    many = Fetchers(leader, pool=pool)
    followers = diverging(30, many)
    hot = many.follow(TopicPartition("orders", 0), many.hot)

    async def part() -> None:
        async with many.running():
            await many.until(lambda: pool.waiting > 0)
            for number in range(1, 6):
                leader.append((TOPIC_ID, 0))
                await many.until(lambda end=number: hot.log.log_end_offset == end)  # type: ignore[misc]
            assert leader.session.keys() == {(TOPIC_ID, 0)}, "what is truncated is not fetched meanwhile"
            assert all(follower.log.log_end_offset == 3 for follower in followers)
            pool.held.set()
            await many.until(lambda: all(follower.log.log_end_offset == 2 for follower in followers))
            for follower in followers:
                leader.append((TOPIC_ID, follower.topic_partition.partition))
            await many.until(lambda: all(follower.log.log_end_offset == 3 for follower in followers))

    lives(part)
    assert 1 < pool.most <= 4


def test_a_follower_that_becomes_the_leader_has_its_truncation_finished_first() -> None:
    leader, pool = SessionLeader(), SlowPool()
    many = Fetchers(leader, pool=pool)
    (follower,) = diverging(1, many)

    async def part() -> None:
        async with many.running():
            await many.until(lambda: pool.waiting > 0)
            assert follower.log.is_truncating
            elected = registration(replicas=(0, FOLLOWER), leader=FOLLOWER, leader_epoch=1, partition_epoch=1)
            follower.make_leader(elected, 0)
            assert not follower.log.is_truncating
            assert follower.leader_epoch_start_offset == follower.log.log_end_offset == 2
            many.fetcher.remove(TOPIC_ID, 1)
            follower.append_records_to_leader(
                bytearray(build_batch([(0, None, b"of the new leader")])), now_ms=0, acks=1
            )
            pool.held.set()
            await many.until(lambda: pool.waiting == 0)
        await many.context.truncations.close()
        assert follower.log.log_end_offset == 3

    lives(part)


def test_a_truncation_that_fails_pauses_its_partition_and_is_tried_again() -> None:
    leader = SessionLeader()
    many = Fetchers(leader)
    follower, other = diverging(2, many)
    follower.log.flush()
    directory = follower.log.directory
    directory.raise_recovery_points({follower.log.topic_partition: 3})
    disk = directory.disk
    assert isinstance(disk, SimDisk)

    async def part() -> None:
        full = disk.fail(errno.ENOSPC, ops=[Op.WRITE], times=None)
        async with many.running():
            await many.until(lambda: other.log.log_end_offset == 2)
            await many.until(lambda: disk.failures[errno.ENOSPC] > 2)
            assert follower.log.log_end_offset == 3
            disk.heal(full)
            await many.until(lambda: follower.log.log_end_offset == 2)

    lives(part)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_session_has_what_is_followed_in_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.replication.replica_fetcher.NAMED_AT_ONCE", 3)
    chance = random.Random(seed)
    leader = SessionLeader()
    many = Fetchers(leader, wait_max_ms=20)
    harnesses = [PartitionHarness(lead=False) for _ in range(8)]

    async def part() -> None:
        partitions: dict[int, Partition] = {}
        async with many.running():
            for _ in range(300):
                index = chance.randrange(8)
                key = (TOPIC_ID, index)
                what = chance.random()
                if what < 0.25:
                    partitions[index] = many.follow(TopicPartition("orders", index), harnesses[index])
                elif what < 0.35:
                    partitions.pop(index, None)
                    many.fetcher.remove(*key)
                elif what < 0.65:
                    leader.append(key)
                elif what < 0.7:
                    leader.errors[key] = chance.choice(
                        [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH]
                    )
                elif what < 0.75:
                    leader.errors.clear()
                elif what < 0.8:
                    leader.lose_session = True
                elif what < 0.83:
                    leader.fail = ConnectionResetError("reset")
                elif index in partitions:
                    log = partitions[index].log
                    if log.high_watermark > log.log_start_offset:
                        log.maybe_increment_log_start_offset(log.log_start_offset + 1, "retention")
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            leader.errors.clear()
            leader.lose_session = False

            def has_settled() -> bool:
                return leader.session.keys() == {(TOPIC_ID, index) for index in partitions} and all(
                    partition.log.log_end_offset == len(leader.records.get((TOPIC_ID, index), ()))
                    and leader.session[TOPIC_ID, index].fetch_offset == partition.log.log_end_offset
                    and leader.session[TOPIC_ID, index].log_start_offset == partition.log.log_start_offset
                    and partition.log.high_watermark == partition.log.log_end_offset
                    for index, partition in partitions.items()
                )

            await many.until(has_settled)

    lives(part)
