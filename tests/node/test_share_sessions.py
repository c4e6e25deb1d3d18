"""A ShareFetch costs what has changed, and misses nothing of it: whatever makes records available reaches a
session with many partitions, at whatever moment it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from tests.node.fetch_harness import TOPIC_ID, settle
from tests.node.share_harness import ACCEPT, GROUP, REJECT, RELEASE, Member, ShareHarness, ranges_of
from tests.replication.partition_harness import batch

from ottla.node.share import share_fetch
from ottla.node.share.share_partition import SharePartition
from ottla.node.share.share_partition_manager import SharePartitionLeader
from ottla.node.share.share_session import CachedSharePartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_fetch import PartitionData
from ottla.protocol.names import TopicIdPartition
from ottla.runtime.disk import NotInMemory
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop

# So many that a look at all of them takes several turns, as turns have a number of items in virtual time.
MANY = 200
LONG_MS = 1_000_000
_SESSION_ENDED = (ErrorCode.INVALID_SHARE_SESSION_EPOCH, ErrorCode.SHARE_SESSION_NOT_FOUND)


def run(
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[ShareHarness], Awaitable[None]],
    *,
    partitions: int = MANY,
    seed: int = 1,
) -> None:
    """In virtual time: a wait that nothing ends shows at once."""
    loop = SimLoop(seed)  # type: ignore[abstract]
    broker = ShareHarness(monkeypatch, partitions, clock=LoopClock(lambda: loop.now_ns))
    broker.settings({"group.share.record.lock.duration.ms": 1000})

    async def all_of_it() -> None:
        await broker.start()
        await scenario(broker)
        check_sessions(broker)
        await broker.share_partitions.close()

    loop.run_until_complete(all_of_it())


def leader_of(broker: ShareHarness, index: int) -> SharePartitionLeader:
    leader = broker.share_partitions.find(GROUP, TopicIdPartition(TOPIC_ID, index))
    assert leader is not None
    return leader


async def begun(broker: ShareHarness, name: str = "member", *indexes: int) -> Member:
    """A member with a session of which everything is loaded and clean."""
    member = broker.member(name)
    await member.fetch(*(indexes or range(MANY)), max_records=1)
    await loaded(broker)
    return member


async def loaded(broker: ShareHarness) -> None:
    while any(each.share is None for each in broker.share_partitions):
        await settle()


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that fetches look at, from now on."""
    looks: list[int] = []
    look = SharePartitionLeader.on_look

    def counted(leader: SharePartitionLeader, cached: CachedSharePartition) -> None:
        looks.append(leader.key.partition)
        look(leader, cached)

    monkeypatch.setattr(SharePartitionLeader, "on_look", counted)
    return looks


def check_sessions(broker: ShareHarness) -> None:
    """Assert that no partition is clean that should not be, and that no fetch waits for what is there."""
    for key in list(broker.share_partitions.sessions._sessions):
        session = broker.share_partitions.sessions.get(key)
        assert session is not None
        for cached in session.partitions.values():
            source = cached.source
            if cached not in session.dirty or session.waiters:
                assert isinstance(source, SharePartitionLeader), cached.partition
                assert cached in source._seen or cached in source._unseen, cached.partition
                assert source._watching, cached.partition
            if cached not in session.dirty:
                assert isinstance(source, SharePartitionLeader), cached.partition
                assert not source.has_acquirable(), cached.partition
            if session.waiters and isinstance(source, SharePartitionLeader):
                assert not source.has_acquirable(), (key, cached.partition)


def test_a_fetch_looks_at_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        looks = count_looks(monkeypatch)
        assert await member.fetch() == {}
        assert len(looks) <= MANY  # what was loaded since the first fetch
        looks.clear()
        assert await member.fetch() == {}
        assert await member.fetch(max_wait_ms=500) == {}
        assert looks == []
        broker.produce(7, 3)
        assert list(await member.fetch()) == [7]
        assert set(looks) == {7}
        looks.clear()
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
        await settle()
        broker.produce(9)
        assert list(await waits) == [9]
        assert set(looks) <= {7, 9}

    run(monkeypatch, scenario)


def test_a_fetch_reads_no_more_partitions_than_it_takes_records_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        for index in range(MANY):
            broker.produce(index, 2)
        looks = count_looks(monkeypatch)
        broker.reads.clear()
        assert len(await member.fetch(max_records=20)) == 10
        assert len(broker.reads) <= 20
        assert len(looks) <= 60

    run(monkeypatch, scenario)


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker, "member", 0, 1, 2)
        for index in range(3):
            for _ in range(4):
                broker.produce(index)
        served = [next(iter(await member.fetch(max_records=1))) for _ in range(12)]
        assert served == [0, 1, 2] * 4

    run(monkeypatch, scenario, partitions=3)


def test_all_partitions_are_served_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        for index in range(MANY):
            broker.produce(index, 3)
        got: list[int] = []
        for _ in range(MANY // 10):
            data = await member.fetch(max_records=30)
            assert all(ranges_of(each) == [(0, 2, 1)] for each in data.values())
            got += data
        assert sorted(got) == list(range(MANY))
        assert await member.fetch() == {}

    run(monkeypatch, scenario)


@pytest.mark.slow
def test_min_bytes_are_added_up_over_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        value = b"v" * 100
        size = MANY * len(batch(1, broker.clock.wall_ms(), value))
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS, min_bytes=size, max_records=1))
        for index in range(MANY):
            assert not waits.done()
            await settle()
            broker.produce(index, value=value)
        assert len(await waits) == 1
        assert len(await member.fetch(max_wait_ms=100, min_bytes=1_000_000, max_records=MANY)) == MANY - 1

    run(monkeypatch, scenario)


def _produce(broker: ShareHarness, holder: Member) -> None:
    broker.produce(5)


def _expire(broker: ShareHarness, holder: Member) -> None:
    """Nothing: time does it."""


def _disconnect(broker: ShareHarness, holder: Member) -> None:
    holder.disconnect()


async def _release(broker: ShareHarness, holder: Member) -> None:
    assert await holder.acknowledge(0, 0, RELEASE, index=5) is ErrorCode.NONE


async def _end_session(broker: ShareHarness, holder: Member) -> None:
    holder.epoch = -1
    assert await holder.acknowledge(0, 0, RELEASE, index=5) is ErrorCode.NONE


async def _roll_back(broker: ShareHarness, holder: Member) -> None:
    """A write that fails after the lock has expired."""
    broker.persister.opened.clear()
    pending = asyncio.ensure_future(holder.acknowledge(0, 0, ACCEPT, index=5))
    await asyncio.sleep(2)
    broker.persister.error = ErrorCode.UNKNOWN_SERVER_ERROR
    broker.persister.opened.set()
    await pending


@pytest.mark.parametrize("event", [_produce, _expire, _disconnect, _release, _end_session, _roll_back])
def test_what_makes_records_available_wakes_a_fetch(
    monkeypatch: pytest.MonkeyPatch,
    event: Callable[[ShareHarness, Member], Awaitable[None] | None],
) -> None:
    async def scenario(broker: ShareHarness) -> None:
        holder = await begun(broker, "holder", 5)
        member = await begun(broker)
        broker.produce(5)
        assert ranges_of((await holder.fetch())[5]) == [(0, 0, 1)]
        assert await member.fetch() == {}
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
        await settle()
        check_sessions(broker)
        done = event(broker, holder)
        if done is not None:
            await done
        assert list(await asyncio.wait_for(waits, 100)) == [5]

    run(monkeypatch, scenario)


def test_an_acknowledgement_that_makes_room_wakes_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        broker.settings({"group.share.partition.max.record.locks": 2})
        holder = await begun(broker, "holder", 5)
        member = await begun(broker)
        for _ in range(3):
            broker.produce(5)
        assert ranges_of((await holder.fetch())[5]) == [(0, 1, 1)]
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
        await settle()
        assert not waits.done()
        assert await holder.acknowledge(0, 0, ACCEPT, index=5) is ErrorCode.NONE
        assert ranges_of((await asyncio.wait_for(waits, 0.5))[5]) == [(2, 2, 1)]

    run(monkeypatch, scenario)


def test_settings_that_change_are_looked_at_by_the_next_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        broker.settings({"group.share.partition.max.record.locks": 1})
        holder = await begun(broker, "holder", 5)
        member = await begun(broker)
        broker.produce(5)
        broker.produce(5)
        assert ranges_of((await holder.fetch())[5]) == [(0, 0, 1)]
        assert await member.fetch() == {}
        broker.settings({"group.share.partition.max.record.locks": 2})
        assert ranges_of((await member.fetch())[5]) == [(1, 1, 1)]

    run(monkeypatch, scenario)


def test_a_leader_that_changes_wakes_a_fetch_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=500))
        await settle()
        directory = bytes(15) + b"\x01"
        broker.change(5, leader=1, isr=[1], replicas=[0, 1], directories=[directory] * 2)
        broker.change(6, leader=0)  # elected again
        data = await waits
        assert {index: each.error_code for index, each in data.items()} == {
            5: ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        assert data[5].current_leader.leader_id == 1
        # It says so again until the session forgets the partition.
        assert list(await member.fetch()) == [5]
        broker.change(5, leader=0, isr=[0], replicas=[0], directories=[directory])
        broker.produce(5)
        broker.produce(6)
        assert sorted(await member.fetch(max_wait_ms=LONG_MS, min_bytes=100)) == [5, 6]
        assert await member.fetch(forget=(5,)) == {}

    run(monkeypatch, scenario)


def test_a_leader_that_is_elected_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member, other = await begun(broker), await begun(broker, "other")
        waits = [
            asyncio.ensure_future(each.fetch(max_wait_ms=LONG_MS, max_records=1)) for each in (member, other)
        ]
        await settle()
        loads = broker.persister.reads
        for _ in range(3):
            broker.change(5, leader=0)  # progress, but nothing to acquire
            await settle()
        broker.produce(5)
        broker.produce(6)
        first, second = await asyncio.wait_for(asyncio.gather(*waits), 10)
        assert sorted((*first, *second)) == [5, 6]
        holder = member if 5 in first else other
        assert await holder.acknowledge(0, 0, ACCEPT, index=5) is ErrorCode.NONE
        assert broker.persister.reads == loads

    run(monkeypatch, scenario)


@pytest.mark.parametrize("turns", range(1, 16))
def test_what_a_fetch_has_acquired_when_it_is_given_up_goes_to_others(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(share_fetch, "_READS_AT_ONCE", 4)  # so that it takes several turns to acquire all

    async def scenario(broker: ShareHarness) -> None:
        first, second = await begun(broker, "first"), await begun(broker, "second")
        for index in range(MANY):
            broker.produce(index)
        given_up = asyncio.ensure_future(first.fetch())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not given_up.done()
        given_up.cancel()
        await asyncio.wait((given_up,))
        assert len(await second.fetch()) == MANY

    run(monkeypatch, scenario)


def test_a_session_of_errors_only_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
        await settle()
        broker.delete_topic()
        data = await asyncio.wait_for(waits, 1)
        assert {each.error_code for each in data.values()} == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert len(data) == MANY

    run(monkeypatch, scenario)


@pytest.mark.parametrize("turns", range(1, 15, 2))
def test_what_comes_while_a_fetch_looks_is_not_missed(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        await member.fetch()
        broker.settings({"group.share.delivery.count.limit": 4})  # so that it looks at everything
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
        for _ in range(turns):
            await asyncio.sleep(0)
        broker.produce(0)
        broker.produce(MANY - 1)
        got = set(await asyncio.wait_for(waits, 10))
        if len(got) < 2:
            got |= set(await asyncio.wait_for(member.fetch(max_wait_ms=LONG_MS), 10))
        assert got == {0, MANY - 1}

    run(monkeypatch, scenario)


def test_what_comes_while_cold_records_are_loaded_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker)
        other = await begun(broker, "other", 0)
        broker.produce(5)
        loaded = asyncio.Event()
        loading = asyncio.Event()
        is_cold = True

        class Pool:
            async def run(self, function: Callable[..., object], *args: object) -> None:
                nonlocal is_cold
                loading.set()
                await loaded.wait()
                is_cold = False

        broker.runtime.pool = Pool()
        fetch = type(broker.partition(5)).fetch_records

        def cold(partition: object, *args: object, may_wait: bool, **options: object) -> object:
            if partition is broker.partition(5) and is_cold:
                assert not may_wait
                raise NotInMemory(broker, 1, 0)  # type: ignore[arg-type]
            return fetch(partition, *args, may_wait=may_wait, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(NotInMemory, "__init__", lambda *_: None)
        monkeypatch.setattr(type(broker.partition(5)), "fetch_records", cold)
        waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS, max_records=1))
        await asyncio.wait_for(loading.wait(), 10)
        # Meanwhile others are served, and what they do not take is not lost.
        broker.produce(0)
        assert list(await other.fetch()) == [0]
        broker.produce(0)
        loaded.set()
        assert list(await asyncio.wait_for(waits, 10)) == [5]
        assert list(await asyncio.wait_for(member.fetch(max_wait_ms=LONG_MS), 10)) == [0]

    run(monkeypatch, scenario)


def test_a_fetch_that_is_given_up_passes_on_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment of it: a connection may be lost at any."""

    async def scenario(broker: ShareHarness) -> None:
        first, second = await begun(broker, "first"), await begun(broker, "second")
        for turns in range(12):
            given_up = asyncio.ensure_future(first.fetch(max_wait_ms=LONG_MS))
            await settle()
            waits = asyncio.ensure_future(second.fetch(max_wait_ms=LONG_MS))
            await settle()
            broker.produce(turns)
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait((given_up,))
            if given_up.cancelled():
                assert list(await asyncio.wait_for(waits, 0.5)) == [turns]
            else:
                waits.cancel()
                await asyncio.wait((waits,))
            await settle()

    run(monkeypatch, scenario)


def test_a_session_that_ends_is_forgotten_by_its_share_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member, other = await begun(broker), await begun(broker, "other")
        broker.produce(3)
        assert list(await member.fetch()) == [3]
        await other.fetch()
        member.disconnect()
        await settle()
        leader = leader_of(broker, 7)
        assert [each.session.key.member_id for each in (*leader._seen, *leader._unseen)] == ["other"]
        other.disconnect()
        await settle()
        assert len(broker.share_partitions) == 0
        assert broker.share_partitions.sessions.partitions == 0
        assert broker.memory.sessions == 0

    run(monkeypatch, scenario)


@pytest.mark.slow
def test_a_request_may_name_very_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await begun(broker, "member", *range(2000))
        assert broker.share_partitions.sessions.partitions == 2000
        held = broker.memory.sessions
        broker.produce(1999)
        assert list(await member.fetch(forget=tuple(range(1500)))) == [1999]
        assert broker.share_partitions.sessions.partitions == 500
        assert broker.memory.sessions < held
        broker.produce(3)
        assert list(await member.fetch(*range(1500), max_wait_ms=LONG_MS)) == [3]
        assert broker.share_partitions.sessions.partitions == 2000
        assert broker.memory.sessions == held
        # One that does not fit is not begun at all.
        monkeypatch.setattr(type(broker.memory), "may_hold_session", lambda *_args, **_options: False)
        with pytest.raises(KafkaError) as refused:
            await broker.member("other").fetch(*range(2000))
        assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
        member.disconnect()
        await asyncio.sleep(1)
        assert len(broker.share_partitions) == 0
        assert broker.memory.sessions == 0

    run(monkeypatch, scenario, partitions=2000)


@pytest.mark.parametrize("seed", range(12))
def test_no_fetch_waits_for_what_is_there(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Members with partitions in common produce, take, release, come and go; whenever nothing is left to do,
    no fetch waits for a partition that has something to acquire.
    """
    random = Random(seed)
    partitions = 40

    async def life(broker: ShareHarness, name: str) -> None:
        while True:
            member = broker.member(name)
            count = random.choice((1, 5, partitions))
            named: tuple[int, ...] = tuple(random.sample(range(partitions), count))
            try:
                for _ in range(random.randrange(1, 15)):
                    data = await member.fetch(
                        *named,
                        max_wait_ms=random.choice((0, 300, LONG_MS)),
                        max_records=random.choice((1, 3, 500)),
                        min_bytes=1,
                    )
                    named = ()
                    if random.random() < 0.1:
                        named = (random.randrange(partitions),)
                    for index, each in data.items():
                        kind = random.choice((ACCEPT, ACCEPT, RELEASE, REJECT, None))
                        if kind is None:
                            continue  # its lock expires
                        for first, last, _ in ranges_of(each):
                            await member.acknowledge(first, last, kind, index=index)
            except KafkaError as error:
                if error.code not in _SESSION_ENDED:
                    raise
            member.disconnect()
            await asyncio.sleep(random.random() / 10)

    async def scenario(broker: ShareHarness) -> None:
        names = [f"member-{index}" for index in range(6)]
        lives = {name: asyncio.ensure_future(life(broker, name)) for name in names}
        for step in range(150):
            for _ in range(random.choice((0, 0, 1, 1, 1, 10))):
                broker.produce(random.randrange(partitions), random.choice((1, 1, 4)))
            draw = random.random()
            if draw < 0.1:
                name = random.choice(names)
                lives[name].cancel()
                await asyncio.wait((lives[name],))
                session = broker.share_partitions.sessions
                for key in [key for key in session._sessions if key.member_id == name]:
                    broker.share_partitions.release_session(key)
                lives[name] = asyncio.ensure_future(life(broker, name))
            elif draw < 0.15:
                leader = broker.share_partitions.find(
                    GROUP, TopicIdPartition(TOPIC_ID, random.randrange(partitions))
                )
                if leader is not None:
                    broker.share_partitions.drop(leader)
            await asyncio.sleep(random.choice((0, 0, 0.01, 0.2)))
            if step % 5 == 0:
                for _ in range(10):
                    await settle()
                check_sessions(broker)
        for each in lives.values():
            if each.done():
                each.result()
            each.cancel()
        await asyncio.wait(lives.values())

    run(monkeypatch, scenario, partitions=partitions, seed=seed)


async def _most_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], Awaitable[object]]
) -> tuple[int, int]:
    """How often a method of share partitions is called during some work, and at most in one turn."""
    calls = most = in_this_turn = 0
    method = getattr(SharePartition, name)

    def counted(*args: Any) -> Any:
        nonlocal calls, in_this_turn
        calls, in_this_turn = calls + 1, in_this_turn + 1
        return method(*args)

    monkeypatch.setattr(SharePartition, name, counted)
    task = asyncio.ensure_future(work())
    while not task.done() or in_this_turn:
        most, in_this_turn = max(most, in_this_turn), 0
        await asyncio.sleep(0)
    await task
    return calls, most


async def _holding_one_of_each(broker: ShareHarness) -> Member:
    member = await begun(broker)
    for index in range(MANY):
        broker.produce(index)
    held = 0
    while held < MANY:
        held += len(await member.fetch(max_records=MANY))
    return member


def test_others_have_their_turns_while_very_many_partitions_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await _holding_one_of_each(broker)
        accepted = {index: [(0, 0, ACCEPT)] for index in range(MANY)}
        results: dict[int, PartitionData] = {}

        async def work() -> None:
            results.update(await member.fetch(acknowledge=accepted))

        calls, most = await _most_in_one_turn(monkeypatch, "acknowledge", work)
        assert (calls, len(results)) == (MANY, MANY)
        assert not any(each.acknowledge_error_code for each in results.values())
        assert most <= MANY // 4

    run(monkeypatch, scenario)


def test_others_have_their_turns_while_a_member_that_left_gives_back_very_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await _holding_one_of_each(broker)

        async def work() -> None:
            member.disconnect()
            while len(broker.share_partitions):
                await settle()

        calls, most = await _most_in_one_turn(monkeypatch, "release_acquired_records", work)
        assert calls == MANY
        assert most <= MANY // 4
        # All were persisted before the share partitions were dropped: available, and delivered once.
        states = broker.persister.states
        assert [states[TopicIdPartition(TOPIC_ID, index)] for index in range(MANY)] == [{0: (0, 1)}] * MANY

    run(monkeypatch, scenario)


def test_a_member_that_comes_back_while_it_is_released_holds_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: ShareHarness) -> None:
        member = await _holding_one_of_each(broker)
        again = broker.member()
        member.disconnect()
        for _ in range(2):
            await asyncio.sleep(0)
        await again.fetch(*range(MANY), max_records=0)
        await settle()
        kept = [index for index in range(MANY) if leader_of(broker, index).has_locks_of("member")]
        assert 0 < len(kept) < MANY
        assert await again.acknowledge(0, 0, ACCEPT, index=kept[0]) is ErrorCode.NONE
        again.disconnect()
        while len(broker.share_partitions):
            await settle()
        states = broker.persister.states
        assert {states[TopicIdPartition(TOPIC_ID, index)][0][0] for index in kept[1:]} == {0}

    run(monkeypatch, scenario)
