"""ShareFetch and ShareAcknowledge: sessions, waits, writes of state, and leaders that change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest
import pytest_asyncio
from tests.node.fetch_harness import TOPIC_ID, settle
from tests.node.share_harness import ACCEPT, GROUP, RELEASE, RENEW, Member, ShareHarness, ranges_of

from ottla.metadata.image.entities import ConfigResourceType
from ottla.node.share.share_partition_manager import FetchAdmission
from ottla.node.share.share_session import SESSION_PARTITION_BYTES
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.metadata_records import ConfigRecord
from ottla.protocol.names import TopicIdPartition
from ottla.records.batch import iter_batches
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop

PARTITION = TopicIdPartition(TOPIC_ID, 0)
LONG_MS = 60_000


@pytest_asyncio.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ShareHarness]:
    harness = ShareHarness(monkeypatch, 2)
    await harness.start()
    yield harness
    await harness.share_partitions.close()
    assert harness.memory.sessions >= 0


def in_virtual_time(
    monkeypatch: pytest.MonkeyPatch, scenario: Callable[[ShareHarness], Awaitable[None]]
) -> None:
    """For what depends on how long a lock lasts: a busy machine does not let it expire."""
    loop = SimLoop(1)  # type: ignore[abstract]
    broker = ShareHarness(monkeypatch, 2, clock=LoopClock(lambda: loop.now_ns))

    async def run() -> None:
        await broker.start()
        await scenario(broker)
        await broker.share_partitions.close()

    loop.run_until_complete(run())


async def begun(broker: ShareHarness, name: str = "member", *indexes: int) -> Member:
    """A member with a session, and the share partitions loaded."""
    member = broker.member(name)
    await member.fetch(*(indexes or (0,)), max_records=0)
    for index in indexes or (0,):
        broker.share_partitions.get_or_load(GROUP, TopicIdPartition(TOPIC_ID, index))
    await settle()
    return member


async def until(condition: Callable[[], bool]) -> None:
    """Let one turn of the loop after the other run until a condition holds."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def waiting(broker: ShareHarness) -> int:
    leader = broker.share_partitions.find(GROUP, PARTITION)
    return 0 if leader is None else leader.waiting


async def test_records_are_acquired_acknowledged_and_persisted(broker: ShareHarness) -> None:
    member = await begun(broker)
    broker.produce(0, 5)
    broker.produce(0, 5)
    data = (await member.fetch())[0]
    assert ranges_of(data) == [(0, 9, 1)]
    assert [header.base_offset for _, header in iter_batches(data.records)] == [0, 5]
    assert await member.fetch() == {}
    broker.produce(0)
    data = (await member.fetch(acknowledge={0: [(0, 4, ACCEPT), (5, 9, RELEASE)]}))[0]
    assert data.acknowledge_error_code == 0
    assert ranges_of(data) == [(10, 10, 1)]
    assert broker.persister.starts[PARTITION] == 0
    assert await member.take() == [(5, 9, 2)]
    assert await member.acknowledge(5, 10, ACCEPT) is ErrorCode.NONE
    assert broker.share().start_offset == 11
    assert broker.share_partitions.acknowledged == {0: 0, 1: 11, 2: 5, 3: 0, 4: 0}


async def test_a_response_has_only_the_batches_with_acquired_records(broker: ShareHarness) -> None:
    for _ in range(5):
        broker.produce(0, 10)
    member = await begun(broker)
    first = (await member.fetch(max_records=15))[0]
    assert ranges_of(first) == [(0, 19, 1)]
    assert [header.base_offset for _, header in iter_batches(first.records)] == [0, 10]
    other = await begun(broker, "other")
    second = (await other.fetch(max_records=3, mode=1))[0]
    assert ranges_of(second) == [(20, 22, 1)]
    assert [header.base_offset for _, header in iter_batches(second.records)] == [20]
    third = (await other.fetch(max_records=3, mode=1))[0]
    assert ranges_of(third) == [(23, 25, 1)]
    assert [header.base_offset for _, header in iter_batches(third.records)] == [20]


async def test_each_request_of_a_session_carries_the_next_epoch(broker: ShareHarness) -> None:
    member = broker.member()
    member.epoch = 1
    with pytest.raises(KafkaError) as unknown:
        await member.fetch()
    assert unknown.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
    member.epoch = -1
    with pytest.raises(KafkaError):
        await member.fetch()
    member.epoch = 0
    assert await member.fetch(0) == {}
    member.epoch = 5
    with pytest.raises(KafkaError) as wrong:
        await member.fetch()
    assert wrong.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 0
    with pytest.raises(KafkaError) as beginning:
        await member.acknowledge(0, 0, ACCEPT)
    assert beginning.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 0
    with pytest.raises(KafkaError) as acknowledging:
        await member.fetch(acknowledge={0: [(0, 0, ACCEPT)]})
    assert acknowledging.value.code is ErrorCode.INVALID_REQUEST


async def test_partitions_join_and_leave_a_session(broker: ShareHarness) -> None:
    member = await begun(broker)
    broker.produce(1)
    assert await member.fetch() == {}
    assert ranges_of((await member.fetch(1, max_wait_ms=LONG_MS))[1]) == [(0, 0, 1)]
    assert broker.share_partitions.sessions.partitions == 2
    broker.produce(1)
    assert await member.fetch(forget=(1,)) == {}
    assert broker.share_partitions.sessions.partitions == 1


async def test_the_end_of_a_session_releases_what_the_member_holds(broker: ShareHarness) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    other = await begun(broker, "other")
    assert await member.take() == [(0, 9, 1)]
    member.epoch = -1
    assert await member.acknowledge(0, 4, ACCEPT) is ErrorCode.NONE
    await settle()
    assert await other.take() == [(5, 9, 2)]
    assert len(broker.share_partitions.sessions) == 1


async def test_a_lost_connection_releases_what_the_member_holds(broker: ShareHarness) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    other = await begun(broker, "other")
    assert await member.take() == [(0, 9, 1)]
    waits = asyncio.ensure_future(other.take(max_wait_ms=LONG_MS))
    await settle()
    member.disconnect()
    assert await waits == [(0, 9, 2)]
    assert broker.share_partitions.sessions.evictions == 1
    other.disconnect()
    await settle()
    # No member of the group is left on this broker.
    assert len(broker.share_partitions) == 0
    assert broker.memory.sessions == 0


async def test_the_end_of_a_session_releases_also_what_it_has_forgotten(broker: ShareHarness) -> None:
    broker.produce(0, 3)
    member = await begun(broker)
    other = await begun(broker, "other")
    assert await member.take() == [(0, 2, 1)]
    await member.fetch(forget=(0,))
    member.disconnect()
    assert await other.take(max_wait_ms=LONG_MS) == [(0, 2, 2)]


async def test_the_last_session_of_a_group_leaves_no_state_behind_that_may_be_altered(
    broker: ShareHarness,
) -> None:
    broker.produce(0, 3)
    member = await begun(broker)
    assert await member.take() == [(0, 2, 1)]
    member.epoch = -1
    assert await member.acknowledge(0, 2, ACCEPT) is ErrorCode.NONE
    await settle()
    assert len(broker.share_partitions) == 0
    assert not member.connection.kept_share_sessions.groups
    # As `ottla share-groups reset-offsets` does, while the member is still connected.
    broker.persister.states.clear()
    broker.persister.starts[PARTITION] = 0
    member.epoch = 0
    assert await member.take(0, max_wait_ms=LONG_MS) == [(0, 2, 1)]


async def test_a_session_that_began_again_elsewhere_outlives_its_first_connection(
    broker: ShareHarness,
) -> None:
    member = await begun(broker)
    again = await begun(broker, "member")
    member.disconnect()
    broker.produce(0)
    assert await again.take() == [(0, 0, 1)]


async def test_a_waiting_fetch_gets_what_is_produced(broker: ShareHarness) -> None:
    member = await begun(broker)
    waits = asyncio.ensure_future(member.take(max_wait_ms=LONG_MS))
    await settle()
    assert waiting(broker) == 1
    broker.produce(0)
    assert await waits == [(0, 0, 1)]
    assert waiting(broker) == 0
    assert await member.take(max_wait_ms=20) == []


async def test_an_append_wakes_as_many_members_as_get_records(broker: ShareHarness) -> None:
    members = [await begun(broker, f"member-{index}") for index in range(100)]
    waits = [asyncio.ensure_future(member.take(max_wait_ms=LONG_MS)) for member in members]
    await settle()
    assert waiting(broker) == 100
    broker.reads.clear()
    broker.produce(0, 1)
    await settle()
    assert [task.done() for task in waits] == [True] + [False] * 99
    assert len(broker.reads) == 1
    for _ in range(99):
        broker.produce(0, 1)
        await settle()
    assert [await task for task in waits] == [[(index, index, 1)] for index in range(100)]
    # Several appends in one turn, to members that take one record each.
    waits = [
        asyncio.ensure_future(member.take(max_wait_ms=LONG_MS, max_records=1)) for member in members[:10]
    ]
    await settle()
    for _ in range(10):
        broker.produce(0, 1)
    assert sorted(await asyncio.gather(*waits)) == [[(100 + index, 100 + index, 1)] for index in range(10)]


async def test_a_fetch_that_is_given_up_after_it_was_woken_wakes_the_next(broker: ShareHarness) -> None:
    first = await begun(broker, "first")
    second = await begun(broker, "second")
    given_up = asyncio.ensure_future(first.take(max_wait_ms=LONG_MS))
    await settle()
    waits = asyncio.ensure_future(second.take(max_wait_ms=LONG_MS))
    await settle()
    leader = broker.share_partitions.find(GROUP, PARTITION)
    assert leader is not None
    broker.produce(0)
    await until(lambda: leader.waiting == 1)
    given_up.cancel()
    assert await waits == [(0, 0, 1)]


async def test_released_records_go_to_a_member_that_waits(broker: ShareHarness) -> None:
    broker.produce(0, 3)
    first = await begun(broker, "first")
    second = await begun(broker, "second")
    assert await first.take() == [(0, 2, 1)]
    waits = asyncio.ensure_future(second.take(max_wait_ms=LONG_MS))
    await settle()
    assert await first.acknowledge(1, 1, RELEASE) is ErrorCode.NONE
    assert await waits == [(1, 1, 2)]


def test_expired_locks_go_to_a_member_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        broker.settings({"group.share.record.lock.duration.ms": 400})
        broker.produce(0, 3)
        first = await begun(broker, "first")
        second = await begun(broker, "second")
        assert await first.take() == [(0, 2, 1)]
        assert await second.take(max_wait_ms=LONG_MS) == [(0, 2, 2)]
        assert await first.acknowledge(0, 2, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
        assert await second.acknowledge(0, 2, ACCEPT) is ErrorCode.NONE
        assert broker.share_partitions.counts.expired == 3
        assert broker.persister.states[PARTITION][0] == (2, 2)

    in_virtual_time(monkeypatch, scenario)


def test_a_shorter_lock_expires_before_a_longer_one_that_was_taken_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: ShareHarness) -> None:
        broker.settings({"group.share.record.lock.duration.ms": 30_000})
        broker.produce(0, 3)
        first = await begun(broker, "first")
        second = await begun(broker, "second")
        assert await first.take() == [(0, 2, 1)]
        broker.settings({"group.share.record.lock.duration.ms": 400})
        broker.produce(0, 3)
        assert await second.take() == [(3, 5, 1)]
        assert await first.take(max_wait_ms=800) == [(3, 5, 2)]

    in_virtual_time(monkeypatch, scenario)


def test_a_renewed_lock_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        broker.settings({"group.share.record.lock.duration.ms": 400})
        broker.produce(0, 2)
        first = await begun(broker, "first")
        second = await begun(broker, "second")
        assert await first.take() == [(0, 1, 1)]
        waits = asyncio.ensure_future(second.take(max_wait_ms=LONG_MS))
        for _ in range(8):
            await asyncio.sleep(0.39)
            assert not waits.done()
            data = (await first.fetch(acknowledge={0: [(0, 1, RENEW)]}, renew=True))[0]
            assert data.acknowledge_error_code == 0
        assert await first.acknowledge(1, 1, RENEW) is ErrorCode.INVALID_REQUEST
        assert await first.acknowledge(0, 1, RELEASE) is ErrorCode.NONE
        assert await waits == [(0, 1, 2)]

    in_virtual_time(monkeypatch, scenario)


async def test_min_bytes_are_waited_for_and_then_all_is_taken(broker: ShareHarness) -> None:
    member = await begun(broker)
    broker.produce(0)
    waits = asyncio.ensure_future(member.take(max_wait_ms=LONG_MS, min_bytes=200))
    await settle()
    assert not waits.done()
    broker.produce(0)
    broker.produce(0)
    assert await waits == [(0, 2, 1)]
    broker.produce(0)
    assert await member.take(max_wait_ms=20, min_bytes=1_000_000) == [(3, 3, 1)]


async def test_min_bytes_are_found_also_where_few_records_are_wanted(broker: ShareHarness) -> None:
    member = await begun(broker)
    for _ in range(1_000):
        broker.produce(0, 10)
    assert await member.take(max_records=10) == [(0, 9, 1)]
    size = broker.share_partitions.find(GROUP, PARTITION).partition.log.size  # type: ignore[union-attr]
    assert size > 100_000, "it takes more than one small read"
    taken = member.take(max_wait_ms=600_000, min_bytes=100_000, max_records=10)
    assert await asyncio.wait_for(taken, LONG_MS / 1000) == [(10, 19, 1)]


async def test_acknowledgements_that_come_during_a_write_share_the_next(broker: ShareHarness) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    assert await member.take() == [(0, 9, 1)]
    broker.persister.opened.clear()
    tasks = [asyncio.ensure_future(member.acknowledge(0, 0, ACCEPT))]
    await settle()
    tasks += [asyncio.ensure_future(member.acknowledge(at, at, ACCEPT)) for at in range(1, 10)]
    await settle()
    broker.persister.opened.set()
    assert set(await asyncio.gather(*tasks)) == {ErrorCode.NONE}
    assert len(broker.persister.writes) == 2
    assert broker.share().start_offset == 10


async def test_fetches_that_come_together_are_attempted_in_several_turns_and_in_order() -> None:
    admission = FetchAdmission()
    turn = 0
    done: list[tuple[int, int]] = []

    async def attempt(number: int) -> None:
        if not admission.is_open():
            await admission.wait()
        done.append((turn, number))

    tasks = [asyncio.ensure_future(attempt(number)) for number in range(100)]
    tasks[50].cancel()
    await asyncio.sleep(0)
    tasks[70].cancel()
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert [number for _, number in done] == [number for number in range(100) if number not in (50, 70)]
    assert max(Counter(turn for turn, _ in done).values()) <= 32
    assert admission.is_open()


async def test_an_acknowledgement_that_comes_as_a_write_ends_is_written(broker: ShareHarness) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    assert await member.take() == [(0, 9, 1)]
    broker.persister.opened.clear()
    first = asyncio.ensure_future(member.acknowledge(0, 4, ACCEPT))
    await settle()
    broker.persister.opened.set()
    # In the same turn of the event loop, once the write has ended.
    second = asyncio.ensure_future(member.acknowledge(5, 9, ACCEPT))
    assert await first is ErrorCode.NONE
    assert await second is ErrorCode.NONE
    assert broker.share().start_offset == 10


async def test_a_write_that_fails_is_taken_back_and_can_be_repeated(broker: ShareHarness) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    other = await begun(broker, "other")
    assert await member.take() == [(0, 9, 1)]
    broker.persister.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await member.acknowledge(0, 9, ACCEPT) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await other.take() == []
    broker.persister.error = ErrorCode.NONE
    assert await member.acknowledge(0, 9, ACCEPT) is ErrorCode.NONE
    assert broker.share().start_offset == 10


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_a_fenced_share_partition_is_loaded_again(broker: ShareHarness, error: ErrorCode) -> None:
    broker.produce(0, 10)
    member = await begun(broker)
    assert await member.take() == [(0, 9, 1)]
    broker.persister.error = error
    assert await member.acknowledge(0, 9, ACCEPT) is not ErrorCode.NONE
    assert broker.share_partitions.find(GROUP, PARTITION) is None
    assert await member.acknowledge(0, 9, ACCEPT) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.persister.error = ErrorCode.NONE
    reads = broker.persister.reads
    assert await member.take(max_wait_ms=LONG_MS) == [(0, 9, 1)]
    assert broker.persister.reads == reads + 1


async def test_a_load_waits_for_the_last_write_of_the_state_that_it_replaces(broker: ShareHarness) -> None:
    broker.produce(0, 5)
    member = await begun(broker)
    assert await member.take() == [(0, 4, 1)]
    broker.persister.opened.clear()
    acknowledged = asyncio.ensure_future(member.acknowledge(0, 4, ACCEPT))
    await settle()
    leader = broker.share_partitions.find(GROUP, PARTITION)
    assert leader is not None
    broker.share_partitions.drop(leader)
    other = broker.member("other")
    fetched = asyncio.ensure_future(other.take(0, max_wait_ms=200))
    await settle()
    broker.persister.opened.set()
    assert await acknowledged is ErrorCode.NONE
    assert await fetched == []
    await until(lambda: broker.share() is not None)
    assert broker.share().start_offset == 5


async def test_a_load_that_fails_is_the_error_of_its_partition(broker: ShareHarness) -> None:
    broker.persister.error = ErrorCode.NOT_COORDINATOR
    member = broker.member()
    data = (await member.fetch(0, max_wait_ms=LONG_MS))[0]
    assert data.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.persister.error = ErrorCode.NONE
    broker.produce(0)
    assert await member.take(max_wait_ms=LONG_MS) == [(0, 0, 1)]


async def test_a_leader_that_changes_is_named_to_members_that_wait(broker: ShareHarness) -> None:
    member = await begun(broker)
    waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
    await settle()
    broker.change(0, leader=1, replicas=[0, 1], isr=[1], directories=[bytes(15) + b"\x01"] * 2)
    data = (await waits)[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 1)
    assert broker.share_partitions.find(GROUP, PARTITION) is None


async def test_a_topic_that_is_deleted_is_the_end_of_its_share_partitions(broker: ShareHarness) -> None:
    member = await begun(broker)
    waits = asyncio.ensure_future(member.fetch(max_wait_ms=LONG_MS))
    await settle()
    broker.delete_topic()
    data = (await waits)[0]
    assert data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID)
    assert (await member.fetch())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.share_partitions.find(GROUP, PARTITION) is None


async def test_records_below_the_log_start_are_passed(broker: ShareHarness) -> None:
    for _ in range(4):
        broker.produce(0, 5)
    member = await begun(broker)
    broker.partition(0).delete_records_on_leader(10)
    assert await member.take() == [(10, 19, 1)]
    assert broker.share().start_offset == 10


async def test_as_many_sessions_as_allowed_begin(broker: ShareHarness) -> None:
    broker.settings({"group.share.max.share.sessions": 2})
    first = await begun(broker, "first")
    await begun(broker, "second")
    with pytest.raises(KafkaError) as refused:
        await broker.member("third").fetch(0)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    first.disconnect()
    await broker.member("third").fetch(0)


async def test_a_session_does_not_grow_beyond_the_memory_of_sessions(
    broker: ShareHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await begun(broker)
    monkeypatch.setattr(
        type(broker.memory),
        "may_hold_session",
        lambda _self, size, *, exists: size <= SESSION_PARTITION_BYTES,
    )
    await member.fetch(1)
    with pytest.raises(KafkaError) as refused:
        await member.fetch(2, 3)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert broker.share_partitions.sessions.partitions == 2
    member.epoch -= 1  # the refused request has not continued the session
    await member.fetch(0, 1)


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("earliest", [(0, 4, 1)]), ("latest", []), ("by_duration:PT1H", [(0, 4, 1)]), (None, [])],
)
async def test_a_group_without_a_start_offset_begins_where_its_setting_says(
    broker: ShareHarness, reset: str | None, expected: list[tuple[int, int, int]]
) -> None:
    broker.persister.starts.clear()
    if reset is not None:
        broker.write(
            ConfigRecord(
                resource_type=ConfigResourceType.GROUP,
                resource_name=GROUP,
                name="share.auto.offset.reset",
                value=reset,
            )
        )
    now_ms = broker.runtime.clock.wall_ms()
    broker.clock.advance_ms(now_ms - broker.clock.wall_ms()) if hasattr(broker.clock, "advance_ms") else None
    broker.produce(0, 5)
    member = await begun(broker)
    assert await member.take() == expected


async def test_requests_that_make_no_sense_are_refused(broker: ShareHarness) -> None:
    broker.produce(0, 5)
    member = await begun(broker)
    assert await member.take() == [(0, 4, 1)]
    assert await member.acknowledge(3, 2, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert await member.acknowledge(0, 4, ACCEPT, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert await member.acknowledge(0, 4, 9) is ErrorCode.INVALID_REQUEST
    assert await member.acknowledge(0, 4) is ErrorCode.INVALID_REQUEST
    assert await member.acknowledge(0, 0, ACCEPT, index=7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name in ("", "m" * 37):
        with pytest.raises(KafkaError) as refused:
            await broker.member(name).fetch(0)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_a_member_reads_only_the_topics_that_it_may(broker: ShareHarness) -> None:
    broker.produce(0, 5)
    member = await begun(broker)
    assert await member.take() == [(0, 4, 1)]
    denied = {AclResourceType.TOPIC}

    def allowed(requester: object, operation: int, resource_type: int, name: str, **_: object) -> bool:
        assert operation == AclOperation.READ
        return resource_type not in denied

    broker.authorizer = SimpleNamespace(allowed=allowed, version=1)
    data = (await member.fetch(acknowledge={0: [(0, 4, ACCEPT)]}))[0]
    assert data.error_code == data.acknowledge_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await member.acknowledge(0, 4, ACCEPT) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.clear()
    broker.authorizer.version = 2
    assert await member.fetch() == {}
    denied.add(AclResourceType.TOPIC)
    broker.authorizer.version = 3
    # Also of a partition that has had nothing to say since.
    assert (await member.fetch())[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await member.fetch(max_records=0))[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.clear()
    broker.authorizer.version = 4
    assert await member.acknowledge(0, 4, ACCEPT) is ErrorCode.NONE
    denied.add(AclResourceType.GROUP)
    with pytest.raises(KafkaError) as refused:
        await member.fetch()
    assert refused.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_what_a_throttled_client_does_not_get_is_available_at_once(broker: ShareHarness) -> None:
    broker.produce(0, 5)
    member = await begun(broker)
    other = await begun(broker, "other")
    member.meter = SimpleNamespace(
        most_fetch_bytes=lambda: 50_000_000, throttles_fetch=lambda size: size > 50
    )
    assert await member.fetch() == {}
    assert await other.take() == [(0, 4, 1)]


def retries_wait(broker: ShareHarness, backoff_ms: int) -> None:
    broker.write(
        ConfigRecord(
            resource_type=int(ConfigResourceType.GROUP),
            resource_name=GROUP,
            name="share.retry.backoff.ms",
            value=str(backoff_ms),
        )
    )


def test_a_released_record_is_delivered_again_after_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        retries_wait(broker, 3000)
        member, other = await begun(broker), await begun(broker, "other")
        broker.produce(0, 4)
        assert await member.take() == [(0, 3, 1)]
        loop = asyncio.get_running_loop()
        released_at = loop.time()
        assert await member.acknowledge(1, 2, RELEASE) is ErrorCode.NONE
        assert await other.take() == []
        # It waits in one fetch, which is woken when the records are.
        assert await other.take(max_wait_ms=LONG_MS) == [(1, 2, 2)]
        assert 3.0 <= loop.time() - released_at < 3.1
        assert await member.acknowledge(0, 0, ACCEPT) is ErrorCode.NONE
        assert await other.acknowledge(1, 2, ACCEPT) is ErrorCode.NONE

    in_virtual_time(monkeypatch, scenario)


def test_a_leader_that_loads_the_state_begins_the_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ShareHarness) -> None:
        retries_wait(broker, 3000)
        member = await begun(broker)
        broker.produce(0, 2)
        assert await member.take() == [(0, 1, 1)]
        assert await member.acknowledge(0, 1, RELEASE) is ErrorCode.NONE
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2)
        leader = broker.share_partitions.find(GROUP, PARTITION)
        assert leader is not None
        broker.share_partitions.drop(leader)
        loaded_at = loop.time()
        assert await member.take(max_wait_ms=LONG_MS) == [(0, 0, 2), (1, 1, 2)]
        assert 3.0 <= loop.time() - loaded_at < 3.1

    in_virtual_time(monkeypatch, scenario)
