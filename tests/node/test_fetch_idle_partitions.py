"""A fetch reads the partitions that may have something new, and no others."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.node.fetch_harness import MANY_BYTES, TOPIC, FetchHarness, SessionClient, settle

from ottla.log.config.log_config import LogConfig
from ottla.node.fetch.session import REQUESTED_PARTITION_BYTES, SESSION_PARTITION_BYTES, CachedPartition
from ottla.protocol.acl import AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.metadata_records import TopicRecord
from ottla.security.principal import KafkaPrincipal

MANY = 2_000
FOLLOWER = 1
LAG_MS = 30_000


async def idle_session(
    monkeypatch: pytest.MonkeyPatch,
    partitions: int = 3,
    *,
    replicas: tuple[int, ...] = (0,),
    follower: int = -1,
) -> tuple[FetchHarness, SessionClient]:
    """A session in which every partition is clean."""
    broker = FetchHarness(monkeypatch, partitions, replicas=replicas)
    await broker.start()
    client = SessionClient(broker, follower)
    assert len(await client.fetch(dict.fromkeys(range(partitions), 0))) == partitions
    assert await client.fetch() == {}
    assert await client.reads() == []
    return broker, client


async def idle_follower(
    monkeypatch: pytest.MonkeyPatch, partitions: int = 3, *, replicas: tuple[int, ...] = (0, 1)
) -> tuple[FetchHarness, SessionClient]:
    return await idle_session(monkeypatch, partitions, replicas=replicas, follower=FOLLOWER)


# What is read


async def test_an_idle_session_reads_nothing_and_after_an_append_one_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await idle_session(monkeypatch, MANY)
    assert await client.reads() == []
    broker.produce(77)
    broker.reads.clear()
    response = await client.fetch()
    assert list(response) == [77]
    assert response[77].records
    assert broker.reads == [77]
    assert await client.reads({77: 1}) == [77]
    assert await client.reads() == []


@pytest.mark.slow
async def test_an_idle_follower_of_many_partitions_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, follower = await idle_follower(monkeypatch, MANY)
    assert await follower.reads() == []
    broker.produce(5)
    assert await follower.reads() == [5]
    # The next fetch says that the follower has the record: the high watermark moves.
    assert (await follower.fetch({5: 1}))[5].high_watermark == 1
    assert await follower.reads() == []


@pytest.mark.slow
async def test_a_wake_up_reads_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch, MANY)
    broker.reads.clear()
    waiting = client.begin(max_wait_ms=60_000)
    await settle()
    assert not waiting.done()
    broker.produce(3)
    assert list(await waiting) == [3]
    assert broker.reads == [3]


@pytest.mark.slow
async def test_a_fetch_without_session_reads_again_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FetchHarness(monkeypatch, MANY)
    await broker.start()
    client = SessionClient(broker)
    client.epoch = -1
    waiting = client.begin(dict.fromkeys(range(MANY), 0), max_wait_ms=60_000)
    while len(broker.reads) < MANY:
        await settle()
    broker.reads.clear()
    broker.produce(3)
    response = await waiting
    assert len(response) == MANY
    assert [index for index, data in response.items() if data.records] == [3]
    assert broker.reads == [3]
    assert client.session_id == 0
    broker.connection.kept_fetch.close()
    assert not any(partition._watchers for partition in broker.replicas)


async def test_a_fetch_looks_only_at_partitions_that_moved_to_count_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await idle_session(monkeypatch)
    waiting = client.begin(max_wait_ms=60_000, min_bytes=3_000)
    broker.reads.clear()
    for index in (0, 1, 1):
        await settle()
        assert not waiting.done()
        assert broker.reads == []
        broker.produce(index, value=bytes(1_000))
    response = await waiting
    assert {index: len(data.records or b"") > 0 for index, data in response.items()} == {0: True, 1: True}
    assert sorted(broker.reads) == [0, 1]


async def test_records_that_were_there_count_though_they_are_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(0, value=bytes(1_000))
    waiting = client.begin(max_wait_ms=60_000, min_bytes=2_000)
    await settle()
    assert not waiting.done()
    broker.produce(2, value=bytes(1_000))
    assert sorted(index for index, data in (await waiting).items() if data.records) == [0, 2]


async def test_what_moved_without_being_worth_a_response_is_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch, replicas=(0, 1, 2))
    other = SessionClient(broker, 2)
    await other.fetch({0: 0, 1: 0, 2: 0})
    broker.produce(1)
    for each in (follower, other):
        await each.fetch()
    await follower.fetch({1: 1})
    waiting = follower.begin(max_wait_ms=60_000)
    await other.fetch({1: 1})
    await settle()
    assert broker.partition(1).log.high_watermark == 1
    assert not waiting.done()
    broker.produce(2)
    response = await waiting
    assert {index: data.high_watermark for index, data in response.items()} == {1: 1, 2: 0}


async def test_limits_leave_partitions_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    for index in range(3):
        broker.produce(index, value=bytes(1_000))
    seen: list[int] = []
    for _ in range(3):
        response = await client.fetch(max_bytes=1_000)
        seen += [index for index, data in response.items() if data.records]
    assert seen == [0, 1, 2]  # a partition that had records goes to the end of the line
    assert await client.reads({0: 1, 1: 1, 2: 1}) == [0, 1, 2]
    assert await client.reads() == []


async def test_a_share_of_the_memory_leaves_partitions_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(0, value=bytes(1_000))
    broker.produce(1, value=bytes(1_000))
    broker.response_bytes = 1_000
    assert [index for index, data in (await client.fetch()).items() if data.records] == [0]
    broker.response_bytes = MANY_BYTES
    assert sorted(index for index, data in (await client.fetch({0: 1})).items() if data.records) == [1]


@pytest.mark.slow
async def test_many_partitions_are_read_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FetchHarness(monkeypatch, MANY)
    await broker.start()
    client = SessionClient(broker)
    reply = client.begin(dict.fromkeys(range(MANY), 0))
    most, before = 0, 0
    while not reply.done():
        most = max(most, len(broker.reads) - before)
        before = len(broker.reads)
        await asyncio.sleep(0)
    assert len(await reply) == len(broker.reads) == MANY
    # Under a clock that stands still a turn has 16 of them.
    assert most <= 32


@pytest.mark.slow
async def test_progress_between_the_turns_of_a_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FetchHarness(monkeypatch, MANY)
    await broker.start()
    client = SessionClient(broker)
    waiting = client.begin(dict.fromkeys(range(MANY), 0), max_wait_ms=60_000)
    await asyncio.sleep(0)
    assert 0 in broker.reads
    assert MANY - 1 not in broker.reads
    broker.produce(0)
    response = await waiting
    assert [index for index, data in response.items() if data.records] == [0]


# Clients without sessions


async def sessionless(
    monkeypatch: pytest.MonkeyPatch, partitions: int = MANY
) -> tuple[FetchHarness, SessionClient, dict[int, int]]:
    """A client that names all of its partitions in each request, and its offsets."""
    broker = FetchHarness(monkeypatch, partitions)
    await broker.start()
    client = SessionClient(broker)
    client.epoch = -1
    return broker, client, dict.fromkeys(range(partitions), 0)


async def fetch_all(client: SessionClient, offsets: dict[int, int]) -> tuple[list[int], list[int], list[int]]:
    """Fetch; the partitions that the broker read, those in the response and those with records."""
    client.broker.reads.clear()
    client.epoch = -1
    response = await client.fetch(offsets)
    assert client.session_id == 0
    return (
        list(client.broker.reads),
        sorted(response),
        [index for index, data in response.items() if data.records],
    )


@pytest.mark.slow
async def test_a_fetch_that_is_sent_again_without_a_session_reads_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client, offsets = await sessionless(monkeypatch)
    everything = list(offsets)
    assert await fetch_all(client, offsets) == (everything, everything, [])
    assert await fetch_all(client, offsets) == ([], everything, [])
    broker.produce(7)
    assert await fetch_all(client, offsets) == ([7], everything, [7])
    assert await fetch_all(client, offsets) == ([7], everything, [7])  # the client did not take it
    offsets[7] = 1
    assert await fetch_all(client, offsets) == ([7], everything, [])
    assert await fetch_all(client, offsets) == ([], everything, [])


async def test_partitions_come_and_go_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    del offsets[3]
    await fetch_all(client, offsets)
    del offsets[4]
    offsets[3] = 0
    assert await fetch_all(client, offsets) == ([3], sorted(offsets), [])
    assert broker.fetch_sessions.kept_partitions == 99
    assert not broker.partition(4)._watchers
    broker.connection.kept_fetch.close()
    assert broker.fetch_sessions.kept_partitions == 0
    assert not any(partition._watchers for partition in broker.replicas)


async def test_limits_hold_without_a_session_and_none_starves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    await fetch_all(client, offsets)
    for index in (1, 2, 3):
        broker.produce(index, value=bytes(1_000))
    seen = []
    for _ in range(3):
        client.epoch = -1
        response = await client.fetch(offsets, max_bytes=1_000)
        assert len(response) == 100
        seen += [index for index, data in response.items() if data.records]
    assert seen == [1, 2, 3]


async def test_errors_are_read_again_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    offsets[200] = 0
    await fetch_all(client, offsets)
    client.epoch = -1
    response = await client.fetch(offsets)
    assert response[200].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.write(broker.partition_record(200))
    client.epoch = -1
    assert (await client.fetch(offsets))[200].error_code == 0


async def test_connections_keep_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    broker.fetch_sessions.max_kept_partitions = 99
    everything = list(offsets)
    assert await fetch_all(client, offsets) == (everything, everything, [])
    assert await fetch_all(client, offsets) == (everything, everything, [])
    assert broker.connection.kept_fetch is None
    assert not any(partition._watchers for partition in broker.replicas)


async def test_what_is_kept_and_what_is_asked_for_count_in_the_memory_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    memory = broker.fetch_sessions._memory.clients
    await fetch_all(client, offsets)
    assert memory.sessions == 100 * SESSION_PARTITION_BYTES
    assert broker.decoded == [100 * REQUESTED_PARTITION_BYTES]
    broker.connection.kept_fetch.close()
    assert memory.sessions == 0
    # Where nothing may be kept, the request counts with all that it takes.
    broker.connection.kept_fetch = None
    broker.fetch_sessions.max_kept_partitions = 99
    await fetch_all(client, offsets)
    assert memory.sessions == 0
    assert broker.decoded[1:] == [100 * (REQUESTED_PARTITION_BYTES + SESSION_PARTITION_BYTES)]


async def test_a_second_request_at_the_same_time_is_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, offsets = await sessionless(monkeypatch, 100)
    await fetch_all(client, offsets)
    client.epoch = -1
    first = client.begin(offsets, max_wait_ms=60_000)
    await settle()
    client.epoch = -1
    assert len(await client.fetch(offsets)) == 100
    broker.produce(5)
    response = await first
    assert len(response) == 100
    assert response[5].records


# What makes a partition dirty


async def test_the_log_start_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(0, 10)
    await client.fetch({0: 10})
    assert await client.reads() == []
    broker.partition(0).delete_records_on_leader(4)
    assert (await client.fetch())[0].log_start_offset == 4
    assert await client.reads() == []


async def test_retention_moves_the_log_start(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(0, 10)
    await client.fetch({0: 10})
    assert await client.reads() == []
    log = broker.partition(0).log
    log.update_config(LogConfig(retention_ms=1_000))
    broker.clock.advance_ms(10_000)
    await broker.logs.cleanup_logs(broker.clock.wall_ms())
    assert (await client.fetch())[0].log_start_offset == 10


async def test_the_leader_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch, replicas=(0, 1))
    broker.change(1, leader=1)
    assert await client.reads() == [1]  # a consumer may also read from a follower
    assert await client.reads() == []


async def test_a_follower_is_sent_away_when_the_leader_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, follower = await idle_follower(monkeypatch)
    waiting = follower.begin(max_wait_ms=60_000)
    await settle()
    broker.change(1, leader=1)
    response = await waiting
    assert {index: data.error_code for index, data in response.items()} == {
        1: ErrorCode.NOT_LEADER_OR_FOLLOWER
    }
    # An error stays until it is gone.
    assert await follower.reads() == [1]


async def test_the_topic_is_deleted_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    waiting = client.begin(max_wait_ms=60_000)
    await settle()
    broker.delete_topic()
    gone = {index: data.error_code for index, data in (await waiting).items()}
    assert gone == dict.fromkeys(range(3), ErrorCode.UNKNOWN_TOPIC_ID)
    other = b"another-topic-id"
    broker.write(TopicRecord(name=TOPIC, topic_id=other), broker.partition_record(0, other))
    again = {index: data.error_code for index, data in (await client.fetch()).items()}
    assert again == dict.fromkeys(range(3), ErrorCode.UNKNOWN_TOPIC_ID)


async def test_a_directory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    directory = broker.partition(0).log.directory
    directory.fail("a test")
    list(broker.replicas.handle_log_dir_failure(directory))
    response = await client.fetch()
    assert {data.error_code for data in response.values()} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert len(response) == 3


async def test_a_request_names_partitions_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(1, 5)
    await client.fetch({1: 5})
    assert await client.reads() == []
    assert (await client.fetch({1: 2}))[1].records
    assert await client.reads() == [1]  # the client did not say that it has the records


async def test_partitions_join_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FetchHarness(monkeypatch, 3)
    await broker.start()
    client = SessionClient(broker)
    await client.fetch({0: 0, 1: 0})
    assert await client.reads({2: 0}, forget=(0,)) == [2]
    broker.produce(0)
    broker.produce(2)
    assert await client.reads() == [2]
    assert not broker.partition(0)._watchers


async def test_the_isolation_level_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = await idle_session(monkeypatch)
    client.isolation_level = 1
    assert await client.reads() == [0, 1, 2]
    assert await client.reads() == []


async def test_a_follower_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, follower = await idle_follower(monkeypatch)
    broker.write(broker.broker_record(FOLLOWER, epoch=9))
    stale = await follower.fetch()
    assert {data.error_code for data in stale.values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    follower.broker_epoch = 9
    assert await follower.reads() == [0, 1, 2]
    assert await follower.reads() == []
    assert [each.broker_epoch for each in broker.partition(0).remote_replicas] == [9]


async def test_a_consumer_is_sent_to_a_replica_in_its_rack_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FetchHarness(monkeypatch, 3, replicas=(0, 1))
    broker.replication.selects_nearest = True
    await broker.start()
    client = SessionClient(broker)
    client.rack = "rack-1"
    await client.fetch(dict.fromkeys(range(3), 0))
    assert await client.reads() == []
    follower = SessionClient(broker, FOLLOWER)
    await follower.fetch({1: 0})
    assert {index: each.preferred_read_replica for index, each in (await client.fetch()).items()} == {1: 1}


async def test_with_an_authorizer_partitions_are_read_again_when_permissions_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await idle_session(monkeypatch)

    class Authorizer:
        version = 1
        may_read = True

        def allowed(self, *asked: object, **options: object) -> bool:
            return self.may_read

    broker.authorizer = authorizer = Authorizer()
    assert await client.reads() == [0, 1, 2]
    assert await client.reads() == []
    # The session is continued by another client.
    broker.connection.principal = KafkaPrincipal("User", "other")
    assert await client.reads() == [0, 1, 2]
    assert await client.reads() == []
    authorizer.version, authorizer.may_read = 2, False
    refused = await client.fetch()
    assert {data.error_code for data in refused.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert set(await client.fetch()) == {0, 1, 2}
    authorizer.version, authorizer.may_read = 3, True
    assert await client.reads() == [0, 1, 2]
    assert await client.reads() == []


async def test_a_client_that_may_not_act_as_a_broker_gets_nothing_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch)

    class Authorizer:
        version = 1

        def allowed(self, *asked: object, **options: object) -> bool:
            return asked[2] == AclResourceType.TOPIC

    broker.authorizer = Authorizer()
    broker.produce(1)
    refused = await follower.fetch()
    assert {data.error_code for data in refused.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert all(not data.records for data in refused.values())


async def test_a_response_that_was_not_sent_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    broker.produce(1)
    await client.fetch({1: 1})
    broker.produce(2, value=bytes(10))
    waiting = client.begin(max_wait_ms=60_000, min_bytes=1_000_000)
    await settle()
    waiting.cancel()
    await settle()
    assert await client.reads() == [2]
    assert await client.reads({2: 1}) == [2]
    assert await client.reads() == []


async def test_a_high_watermark_that_was_read_and_not_sent_is_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch, replicas=(0, 1, 2))
    other = SessionClient(broker, 2)
    await other.fetch({0: 0, 1: 0, 2: 0})
    broker.produce(1)
    for each in (follower, other):
        await each.fetch()
    await follower.fetch({1: 1})
    await other.fetch({1: 1})
    broker.reads.clear()
    waiting = follower.begin(max_wait_ms=60_000)
    await settle()
    assert broker.reads == [1]
    assert not waiting.done()
    waiting.cancel()
    await settle()
    assert {index: data.high_watermark for index, data in (await follower.fetch()).items()} == {1: 1}
    assert await follower.reads() == []


async def test_a_request_that_is_lost_before_it_waits_watches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FetchHarness(monkeypatch, 3)
    await broker.start()
    client = SessionClient(broker)
    client.epoch = -1
    request = client.request({0: 0, 1: 0}, max_wait_ms=60_000)
    task = asyncio.ensure_future(broker.ask(request))
    task.cancel()
    await settle()
    reply = broker.handle(request)
    assert len(broker.partition(0)._watchers) == 1
    reply.close()  # type: ignore[union-attr]
    del reply
    assert not broker.partition(0)._watchers


async def test_a_request_that_continues_the_session_ends_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await idle_session(monkeypatch)
    first = asyncio.ensure_future(broker.ask(client.request(max_wait_ms=60_000)))
    await settle()
    client.epoch += 1
    second = client.begin(max_wait_ms=60_000)
    assert (await first).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    broker.produce(0)
    assert list(await second) == [0]


async def test_a_fetch_leaves_no_cycles_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FetchHarness(monkeypatch, 3)
    await broker.start()
    client = SessionClient(broker)
    client.epoch = -1
    await client.fetch({0: 0, 1: 0})  # what is made once has been made
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, CachedPartition) for each in gc.get_objects())
        for _ in range(3):
            client.epoch = -1
            waiting = client.begin({0: 0, 1: 0}, max_wait_ms=60_000)
            await settle()
            broker.partition(1)._on_progress()
            waiting.cancel()
            del waiting
            await settle()
            client.epoch = -1
            await client.fetch({0: 0, 1: 0})
        assert sum(isinstance(each, CachedPartition) for each in gc.get_objects()) == before
    finally:
        gc.enable()


async def test_sessions_that_end_watch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await idle_session(monkeypatch)
    assert all(partition._watchers for partition in broker.replicas)
    waiting = client.begin(max_wait_ms=1)
    client.epoch = -1
    await client.fetch({0: 0})
    await waiting
    assert len(broker.fetch_sessions) == 0
    assert not any(partition._watchers for partition in broker.replicas)


# Followers


def caught_up_ms(broker: FetchHarness, index: int) -> int:
    (replica,) = broker.partition(index).remote_replicas
    return replica.last_caught_up_ms


async def test_a_follower_of_an_idle_partition_is_caught_up_as_of_its_last_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch)
    for _ in range(10):
        broker.clock.advance_ms(LAG_MS)
        await follower.fetch()
    fetched_ms = broker.clock.wall_ms()
    assert caught_up_ms(broker, 0) == fetched_ms
    broker.clock.advance_ms(500)
    broker.produce(0)
    assert caught_up_ms(broker, 0) == fetched_ms
    broker.clock.advance_ms(LAG_MS - 600)
    await broker.shrink_isrs()
    assert broker.changes == []
    # From here on it has not fetched for too long.
    broker.clock.advance_ms(200)
    await broker.shrink_isrs()
    assert [change.isr for _, change in broker.changes] == [(0,)]


async def test_a_session_that_ends_does_not_make_its_follower_seem_to_lag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch)
    broker.clock.advance_ms(10 * LAG_MS)
    await follower.fetch(forget=(0,))
    forgotten_ms = broker.clock.wall_ms()
    broker.clock.advance_ms(LAG_MS)
    follower.epoch = -1
    await follower.fetch({0: 0})
    ended_ms = broker.clock.wall_ms()
    assert caught_up_ms(broker, 0) == ended_ms
    assert caught_up_ms(broker, 1) == forgotten_ms
    broker.produce(1)
    assert caught_up_ms(broker, 1) == forgotten_ms


async def test_a_follower_that_the_controller_removed_from_the_isr_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch)
    broker.change(1, isr=[0])
    assert await follower.reads() == [1]
    assert [change.isr for _, change in broker.changes] == [(0, FOLLOWER)]
    # While the controller decides, each fetch reads the partition.
    assert await follower.reads() == [1]
    broker.confirm_isr()
    assert await follower.reads() == [1]
    assert await follower.reads() == []


async def test_idle_partitions_are_not_examined_for_lagging_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, follower = await idle_follower(monkeypatch)
    await broker.shrink_isrs()
    assert list(broker.replicas._maybe_lagging) == []
    broker.produce(2)
    await broker.shrink_isrs()
    assert list(broker.replicas._maybe_lagging) == [broker.partition(2)]
    await follower.fetch()
    await follower.fetch({2: 1})
    await broker.shrink_isrs()
    assert list(broker.replicas._maybe_lagging) == []


async def test_followers_that_never_fetch_from_a_new_leader_leave_the_isr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FetchHarness(monkeypatch, 1, replicas=(0, 1))
    await broker.start()
    await broker.shrink_isrs()
    broker.clock.advance_ms(LAG_MS + 1)
    await broker.shrink_isrs()
    assert [change.isr for _, change in broker.changes] == [(0,)]


async def test_the_leaders_throttle_counts_followers_in_sync_and_holds_back_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FetchHarness(monkeypatch, 1, replicas=(0, 1, 2))
    broker.replication.is_throttled = lambda partition: True
    quota = broker.replication.leader_quota
    quota.limit = 1_000
    await broker.start()
    broker.change(0, isr=[0, 1])
    broker.produce(0, value=bytes(5_000))
    in_sync, behind = SessionClient(broker, 1), SessionClient(broker, 2)
    assert (await in_sync.fetch({0: 0}))[0].records
    assert quota.rate > 5_000
    assert quota.is_exceeded
    assert not (await behind.fetch({0: 0}))[0].records
    # Held back, it would fall out of the ISR.
    assert (await in_sync.fetch({0: 0}))[0].records
    broker.clock.advance_ms(60_000)
    assert (await behind.fetch({0: 0}))[0].records
