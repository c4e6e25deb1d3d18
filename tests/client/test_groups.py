"""Groups by both protocols: sharing, handing over, committing, and staying alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import CommittedOffset, Consumer, Stalled, TopicPartition
from ottla.client.consumer.consumer_coordinator import ClassicHeartbeatSender
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.support.waiting import wait_until

PROTOCOLS = [
    {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    {"group_protocol": "classic", "partition_assignment_strategy": "roundrobin"},
    {"group_protocol": "classic", "partition_assignment_strategy": "sticky"},
    {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
]
# No session ends in these tests, however long the machine pauses.
QUICK = {"heartbeat_interval_ms": 100, "session_timeout_ms": 60_000, "auto_offset_reset": "earliest"}


@pytest.fixture(params=PROTOCOLS, ids=lambda p: p.get("partition_assignment_strategy", "consumer"))
def protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**QUICK, **request.param}


@pytest.fixture(params=[PROTOCOLS[3], PROTOCOLS[4]], ids=["cooperative-sticky", "consumer"])
def one_protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**QUICK, **request.param}


class Journal:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[TopicPartition]]] = []

    def with_partitions(self) -> list[str]:
        """The calls about partitions; one with no partitions is possible too."""
        return [name for name, partitions in self.events if partitions]

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", partitions))


async def until(
    condition: Callable[[], bool], *turns: Callable[[], Awaitable[Any]], seconds: float = 60
) -> None:
    """Takes turns (polls, mostly) until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.gather(*(turn() for turn in turns))


async def fill(servers: str, topic: str, count: int) -> None:
    async with Producer(servers) as producer:
        await producer.ready(topic)
        for n in range(count):
            producer.send_nowait(topic, b"%d" % n, partition=n % 3)
        await producer.flush()


async def test_a_member_alone_gets_everything(
    servers: str, topic: str, fresh_name: str, protocol: dict[str, Any]
) -> None:
    await fill(servers, topic, 30)
    journal = Journal()
    async with Consumer(servers, group_id=fresh_name, **protocol) as consumer:
        consumer.subscribe(topic, listener=journal)
        values: list[bytes] = []

        async def turn() -> None:
            values.extend(record.value for record in await consumer.poll(timeout_ms=200))

        await until(lambda: len(values) >= 30, turn)
        assert sorted(values, key=int) == [b"%d" % n for n in range(30)]
    assert journal.events[-1] == ("assigned", [TopicPartition(topic, p) for p in range(3)])


@pytest.mark.witness
async def test_members_share_and_take_over(
    servers: str, topic: str, fresh_name: str, protocol: dict[str, Any]
) -> None:
    everything = {TopicPartition(topic, p) for p in range(3)}
    async with Consumer(servers, group_id=fresh_name, **protocol) as first:
        first.subscribe([topic])

        async def turn_first() -> None:
            await first.poll(timeout_ms=50)

        await until(lambda: len(first.assignment()) == 3, turn_first)
        second = Consumer(servers, group_id=fresh_name, **protocol)
        async with second:
            second.subscribe([topic])

            async def turn_second() -> None:
                await second.poll(timeout_ms=50)

            def shared() -> bool:
                mine, theirs = set(first.assignment()), set(second.assignment())
                return bool(mine) and bool(theirs) and not mine & theirs and mine | theirs == everything

            await until(shared, turn_first, turn_second)
        await until(lambda: set(first.assignment()) == everything, turn_first)


async def test_the_next_member_goes_on_where_the_last_one_stopped(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    await fill(servers, topic, 30)
    seen: list[bytes] = []
    async with Consumer(servers, group_id=fresh_name, max_poll_records=7, **one_protocol) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 10:
                break
    async with Consumer(servers, group_id=fresh_name, **one_protocol) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 30:
                break
    assert sorted(seen, key=int) == [b"%d" % n for n in range(30)]


async def test_without_automatic_commits_only_what_was_committed_counts(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    await fill(servers, topic, 3)
    settings = {**one_protocol, "enable_auto_commit": False}
    async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []

        async def turn() -> None:
            records.extend(await consumer.poll(timeout_ms=200))

        await until(lambda: len(records) == 3, turn)
        partition = TopicPartition(topic, 1)
        await consumer.commit({partition: CommittedOffset(1, metadata="here")})
        committed = await consumer.committed()
        assert committed[partition] == CommittedOffset(1, -1, "here")
        assert committed[TopicPartition(topic, 0)] is None
    async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
        consumer.subscribe([topic])
        again: list[Any] = []

        async def turn_again() -> None:
            again.extend(await consumer.poll(timeout_ms=200))

        await until(lambda: len(again) == 2, turn_again)
        assert {record.partition for record in again} == {0, 2}


async def test_a_pattern_finds_topics_that_come_later(
    servers: str, admin: Admin, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    await admin.topics.create(f"{fresh_name}.a", partitions=1)
    async with Consumer(servers, group_id=fresh_name, metadata_max_age_ms=200, **one_protocol) as consumer:
        consumer.subscribe(pattern=rf"{fresh_name}\..*")

        async def turn() -> None:
            await consumer.poll(timeout_ms=50)

        await until(lambda: consumer.assignment() == [TopicPartition(f"{fresh_name}.a", 0)], turn)
        await admin.topics.create(f"{fresh_name}.b", partitions=1)
        await until(lambda: len(consumer.assignment()) == 2, turn)


@pytest.mark.slow
async def test_heartbeats_go_on_while_the_users_loop_is_blocked(
    servers: str, topic: str, fresh_name: str
) -> None:
    journal = Journal()
    async with Consumer(servers, group_id=fresh_name, **QUICK) as consumer:
        consumer.subscribe([topic], listener=journal)

        async def turn() -> None:
            await consumer.poll(timeout_ms=50)

        await until(lambda: len(consumer.assignment()) == 3, turn)
        beats: ClassicHeartbeatSender = consumer._membership._heartbeats  # type: ignore[union-attr]
        joined = beats._last_answer
        await until(lambda: beats._last_answer > joined, turn)
        before = beats._last_answer
        block_the_loop(lambda: beats._last_answer > before + 0.5)
        await turn()
        assert journal.with_partitions() == ["assigned"]


def block_the_loop(until: Callable[[], bool]) -> None:
    """As a user's long computation does: nothing else of this loop runs meanwhile."""
    wait_until(until, "nothing goes on while the loop is blocked")


def is_out(consumer: Consumer[Any, Any]) -> bool:
    try:
        consumer.group_member()
    except KafkaError as error:
        return error.code is ErrorCode.UNKNOWN_MEMBER_ID
    return False


@pytest.mark.slow
async def test_who_does_not_poll_leaves_and_learns_it_with_the_next_poll(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    journal = Journal()
    stalls: list[tuple[Stalled, str]] = []
    settings = {**one_protocol, "max_poll_interval_ms": 2500, "enable_auto_commit": False}

    def stalled(stall: Stalled) -> None:
        stalls.append((stall, threading.current_thread().name))
        raise RuntimeError("a listener's own trouble")

    async with Consumer(servers, group_id=fresh_name, on_stalled=stalled, **settings) as consumer:
        consumer.subscribe([topic], listener=journal)

        async def turn() -> None:
            await consumer.poll(timeout_ms=50)

        async def idle() -> None:
            await asyncio.sleep(0.02)

        await until(lambda: len(consumer.assignment()) == 3, turn)
        await until(lambda: is_out(consumer) and bool(stalls), idle)
        told = list(stalls)  # more than one if the machine paused while it joined
        with pytest.raises(KafkaError, match="not a member"):
            await consumer.commit({TopicPartition(topic, 0): 0})
        async with Producer(servers, transactional_id=fresh_name) as producer:
            with pytest.raises(KafkaError, match="not a member"):
                async with producer.transaction() as transaction:
                    # Nor without a member, which a group accepts, over the commits of the new owner.
                    await transaction.send_offsets(consumer)
        assert stalls == told, "told once"
        await until(lambda: len(journal.with_partitions()) >= 3, turn)
        assert journal.with_partitions()[:3] == ["assigned", "lost", "assigned"]
    stall, thread = told[-1]
    assert stall.group_id == fresh_name
    assert stall.member_id
    assert stall.silent_ms >= 2500
    assert thread == "ottla-heartbeats", "told even while the user's loop is stuck"


async def test_a_new_subscription_brings_its_own_listener(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    first, second = Journal(), Journal()
    settings = {**one_protocol, "allow_auto_create_topics": False}
    async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
        consumer.subscribe([topic], listener=first)

        async def turn() -> None:
            await consumer.poll(timeout_ms=50)

        await until(lambda: len(consumer.assignment()) == 3, turn)
        consumer.subscribe([f"{topic}-unknown"], listener=second)
        await until(lambda: not consumer.assignment(), turn)
    assert first.with_partitions() == ["assigned"]
    assert second.with_partitions() == ["revoked"]


async def test_a_static_member_gets_its_partitions_back(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    settings = {**one_protocol, "group_instance_id": "me"}
    for _ in range(2):
        async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
            consumer.subscribe([topic])

            async def turn(consumer: Consumer[Any, Any] = consumer) -> None:
                await consumer.poll(timeout_ms=50)

            await until(lambda consumer=consumer: len(consumer.assignment()) == 3, turn)


@pytest.mark.slow
@pytest.mark.witness
async def test_commits_pass_while_the_group_rebalances(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    """Those who keep their partitions through a rebalance keep the right to commit them."""
    await fill(servers, topic, 3)
    settings = {**one_protocol, "group_id": fresh_name, "enable_auto_commit": False}
    async with Consumer(servers, **settings) as first:
        first.subscribe([topic])
        commits = 0

        async def turn_first() -> None:
            nonlocal commits
            await first.poll(timeout_ms=10)
            if first.assignment():
                await first.commit(dict.fromkeys(first.assignment(), 1))
                commits += 1

        await until(lambda: len(first.assignment()) == 3 and commits > 0, turn_first)
        before = commits
        async with Consumer(servers, **settings) as second:
            second.subscribe([topic])

            async def turn_second() -> None:
                await second.poll(timeout_ms=10)

            await until(lambda: bool(second.assignment()), turn_first, turn_second)
        await until(lambda: len(first.assignment()) == 3, turn_first)
        assert commits > before


async def test_listeners_are_called_by_the_task_that_polls(
    servers: str, topic: str, fresh_name: str, one_protocol: dict[str, Any]
) -> None:
    """So what that task has locked is locked for them, and no second task can wait for them in turn."""
    tasks: list[asyncio.Task[Any] | None] = []

    class Listener(Journal):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            tasks.append(asyncio.current_task())

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            tasks.append(asyncio.current_task())

    async with Consumer(servers, group_id=fresh_name, **one_protocol) as consumer:
        consumer.subscribe([topic], listener=Listener())
        async with asyncio.timeout(60):
            while len(consumer.assignment()) < 3:
                await consumer.poll(timeout_ms=50)
        await consumer.unsubscribe()
    assert tasks
    assert set(tasks) == {asyncio.current_task()}


async def test_interceptors_see_records_and_commits(servers: str, topic: str, fresh_name: str) -> None:
    await fill(servers, topic, 9)
    committed: list[Any] = []

    class OnlyEven:
        def on_consume(self, records: list[Any]) -> list[Any]:
            return [record for record in records if int(record.value) % 2 == 0]

        def on_commit(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
            committed.append(offsets)

    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "interceptors": [OnlyEven()]}
    async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in await consumer.poll(timeout_ms=60_000)] == [b"0", b"6"]
        await consumer.commit()
    assert [{p: o.offset for p, o in offsets.items()} for offsets in committed] == [
        {TopicPartition(topic, 0): 3}
    ]


async def test_commits_need_a_group(servers: str, topic: str) -> None:
    async with Consumer(servers) as consumer:
        with pytest.raises(ValueError, match=r"group\.id"):
            consumer.subscribe([topic])
        with pytest.raises(ValueError, match=r"group\.id"):
            await consumer.commit({TopicPartition(topic, 0): 1})


async def test_an_assigned_consumer_commits_in_its_groups_name(
    servers: str, topic: str, fresh_name: str
) -> None:
    await fill(servers, topic, 9)
    for expected in (3, 0):
        async with Consumer(servers, group_id=fresh_name, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            assert len(await consumer.poll(timeout_ms=60_000 if expected else 500)) == expected


async def test_commits_beside_the_work_are_made_in_the_order_of_the_calls(
    servers: str, topic: str, fresh_name: str
) -> None:
    partition = TopicPartition(topic, 0)
    async with Consumer(servers, group_id=fresh_name, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        tasks = [consumer.commit_nowait({partition: n}) for n in range(20)]
        assert await tasks[5] == {partition: CommittedOffset(5)}
        # Closing waits for the others.
    async with Consumer(servers, group_id=fresh_name) as consumer:
        assert await consumer.committed([partition]) == {partition: CommittedOffset(19)}
    assert all(task.done() and not task.cancelled() for task in tasks)


async def test_automatic_commits_stay_behind_what_is_being_worked_on(
    servers: str, topic: str, fresh_name: str
) -> None:
    await fill(servers, topic, 30)
    settings = {**QUICK, "auto_commit_interval_ms": 0, "group_id": fresh_name}
    async with Consumer(servers, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert len(await consumer.poll(4, timeout_ms=60_000)) == 4
        found = 0

        async def committed() -> None:
            nonlocal found
            offset = (await consumer.committed())[TopicPartition(topic, 0)]
            found = offset.offset if offset is not None else 0

        await committed()
        assert found == 0
        assert len(await consumer.poll(4, timeout_ms=60_000)) == 4
        await until(lambda: found > 0, committed)
        assert found == 4
    async with Consumer(servers, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert await consumer.position((topic, 0)) == 8
