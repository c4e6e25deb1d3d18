"""Incremental fetch sessions: what a response includes and leaves out, and which sessions are evicted."""

from ottla.node.fetch.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MIN_EVICTION_MS,
    NO_SESSION,
    SESSION_PARTITION_BYTES,
    FetchContext,
    FetchKey,
    FetchSessionCache,
    FullFetchContext,
    IncrementalFetchContext,
    SessionErrorContext,
    next_epoch,
)
from ottla.node.network.memory_budget import MemoryBudget
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import EpochEndOffset, FetchPartition, PartitionData
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock

TOPIC = bytes(range(16))


class Fetcher:
    """A client of a cache, which knows its session and epoch as a real one does."""

    def __init__(self, slots: int = 10, memory: MemoryBudget | None = None) -> None:
        self.clock = SimClock()
        self.cache = FetchSessionCache(slots, SeededRandom(7), self.clock, memory=memory)

    def begin(
        self,
        session: int,
        epoch: int,
        *indexes: int,
        forget: tuple[int, ...] = (),
        by_id: bool = True,
        follower: bool = False,
        offset: int = 0,
    ) -> FetchContext:
        asked = {(TOPIC, index): FetchPartition(partition=index, fetch_offset=offset) for index in indexes}
        return self.cache.new_context(
            session,
            epoch,
            asked,
            [(TOPIC, index) for index in forget],
            by_id=by_id,
            privileged=follower,
        )

    def new_session(self, *indexes: int, follower: bool = False) -> int:
        fetch = self.begin(NO_SESSION, INITIAL_EPOCH, *indexes, follower=follower)
        _, session, _ = fetch.update_and_generate_response_data(quiet(*indexes))
        return session


def key(index: int) -> FetchKey:
    return TOPIC, index


def quiet(*indexes: int, high_watermark: int = 5) -> dict[FetchKey, PartitionData]:
    return {
        key(index): PartitionData(
            partition_index=index, high_watermark=high_watermark, log_start_offset=0, records=b""
        )
        for index in indexes
    }


def to_read(fetch: FetchContext) -> dict[int, FetchPartition]:
    """The partitions that a fetch reads, in their order."""
    assert not isinstance(fetch, SessionErrorContext)
    dirty = sorted(fetch.session.dirty, key=lambda cached: cached.order)
    return {cached.key[1]: cached.requested for cached in dirty}


def included(fetch: FetchContext, results: dict[FetchKey, PartitionData]) -> list[int]:
    error, _, data = fetch.update_and_generate_response_data(results)
    assert error is ErrorCode.NONE
    return [index for _, index in data]


def test_a_full_fetch_is_answered_in_full_and_begins_a_session() -> None:
    fetcher = Fetcher()
    fetch = fetcher.begin(NO_SESSION, INITIAL_EPOCH, 0, 1)
    assert isinstance(fetch, FullFetchContext)
    assert list(to_read(fetch)) == [0, 1]
    error, session, included = fetch.update_and_generate_response_data(quiet(0, 1))
    assert (error, list(included)) == (ErrorCode.NONE, [key(0), key(1)])
    assert session != NO_SESSION
    assert len(fetcher.cache) == 1


def test_an_incremental_fetch_covers_the_whole_session_and_returns_only_changes() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0, 1, 2)
    fetch = fetcher.begin(session, 1)
    assert isinstance(fetch, IncrementalFetchContext)
    assert list(to_read(fetch)) == [0, 1, 2]
    assert included(fetch, quiet(0, 1, 2)) == []
    results = quiet(0, 1, 2)
    results[key(1)].records = b"some"
    results[key(2)].high_watermark = 6
    assert included(fetcher.begin(session, 2), results) == [1, 2]
    assert included(fetcher.begin(session, 3), quiet(0, 1) | quiet(2, high_watermark=6)) == []


def test_an_error_is_returned_and_its_end_too() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)
    failing = {key(0): PartitionData(partition_index=0, error_code=6, high_watermark=-1, log_start_offset=0)}
    assert included(fetcher.begin(session, 1), failing) == [0]
    assert included(fetcher.begin(session, 2), failing) == [0]
    assert included(fetcher.begin(session, 3), quiet(0)) == [0]
    assert included(fetcher.begin(session, 4), quiet(0)) == []


def test_a_diverging_epoch_and_a_preferred_replica_are_returned() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)
    results = quiet(0)
    results[key(0)].diverging_epoch = EpochEndOffset(epoch=1, end_offset=3)
    assert included(fetcher.begin(session, 1), results) == [0]
    results = quiet(0)
    results[key(0)].preferred_read_replica = 2
    assert included(fetcher.begin(session, 2), results) == [0]


def test_partitions_join_change_and_leave_a_session() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0, 1)
    fetch = fetcher.begin(session, 1, 1, 2, forget=(0,), offset=9)
    assert {index: asked.fetch_offset for index, asked in to_read(fetch).items()} == {1: 9, 2: 9}
    assert included(fetch, quiet(1, 2)) == [2]
    empty = fetcher.begin(session, 2, forget=(1, 2))
    assert isinstance(empty, FullFetchContext)
    assert empty.update_and_generate_response_data({})[:2] == (ErrorCode.NONE, NO_SESSION)
    assert len(fetcher.cache) == 0


def test_partitions_that_had_records_are_read_last_the_next_time() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0, 1, 2)
    fetch = fetcher.begin(session, 1)
    results = quiet(0, 1, 2)
    results[key(0)].records = b"some"
    included(fetch, results)
    assert list(to_read(fetcher.begin(session, 2))) == [1, 2, 0]


def test_a_session_that_is_not_there_and_an_epoch_that_is_not_next_are_refused() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)

    def error(fetch: FetchContext) -> ErrorCode:
        assert isinstance(fetch, SessionErrorContext)
        return fetch.update_and_generate_response_data({})[0]

    assert error(fetcher.begin(session + 1, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert error(fetcher.begin(session, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert error(fetcher.begin(session, 1, by_id=False)) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert isinstance(fetcher.begin(session, 1), IncrementalFetchContext)


def test_a_fetch_overtaken_by_the_next_one_is_refused() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)
    slow = fetcher.begin(session, 1)
    fetcher.begin(session, 2)
    assert slow.update_and_generate_response_data(quiet(0)) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        session,
        {},
    )


def test_a_final_fetch_ends_the_session() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)
    fetch = fetcher.begin(session, FINAL_EPOCH, 0)
    assert fetch.update_and_generate_response_data(quiet(0))[1] == NO_SESSION
    assert isinstance(fetcher.begin(session, 1), SessionErrorContext)


def test_a_new_session_with_the_id_of_an_old_one_ends_it() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0)
    fetcher.begin(session, INITIAL_EPOCH, 0).update_and_generate_response_data(quiet(0))
    assert isinstance(fetcher.begin(session, 1), SessionErrorContext)
    assert len(fetcher.cache) == 1


def test_a_full_cache_refuses_sessions_but_serves_the_fetch() -> None:
    fetcher = Fetcher(slots=1)
    first = fetcher.new_session(0)
    fetch = fetcher.begin(NO_SESSION, INITIAL_EPOCH, 0)
    assert fetch.update_and_generate_response_data(quiet(0)) == (ErrorCode.NONE, NO_SESSION, quiet(0))
    assert isinstance(fetcher.begin(first, 1), IncrementalFetchContext)
    assert Fetcher(slots=0).new_session(0) == NO_SESSION


def test_a_stale_session_is_evicted() -> None:
    fetcher = Fetcher(slots=1)
    first = fetcher.new_session(0, 1, 2)
    fetcher.clock.advance_ms(MIN_EVICTION_MS + 1)
    assert fetcher.new_session(0) != NO_SESSION
    assert isinstance(fetcher.begin(first, 1), SessionErrorContext)
    assert fetcher.cache.evictions == 1


def test_an_old_session_that_is_used_is_evicted_only_by_a_larger_one() -> None:
    fetcher = Fetcher(slots=1)
    first = fetcher.new_session(0, 1)
    fetcher.clock.advance_ms(MIN_EVICTION_MS + 1)
    fetcher.begin(first, 1)
    assert fetcher.new_session(0) == NO_SESSION
    assert fetcher.new_session(0, 1, 2) != NO_SESSION


def test_followers_displace_consumers_and_not_the_other_way_round() -> None:
    fetcher = Fetcher(slots=1)
    fetcher.new_session(0, 1, 2)
    follower = fetcher.new_session(0, follower=True)
    assert follower != NO_SESSION
    fetcher.clock.advance_ms(MIN_EVICTION_MS + 1)
    fetcher.begin(follower, 1)
    assert fetcher.new_session(0, 1, 2, 3) == NO_SESSION
    assert fetcher.new_session(0, 1, follower=True) != NO_SESSION


def test_epochs_wrap_around_to_one() -> None:
    assert next_epoch(INITIAL_EPOCH) == 1
    assert next_epoch(2**31 - 1) == 1
    assert next_epoch(FINAL_EPOCH) == FINAL_EPOCH


def test_a_partition_that_was_idle_keeps_its_place_before_those_that_had_records() -> None:
    fetcher = Fetcher()
    session = fetcher.new_session(0, 1, 2)
    fetch = fetcher.begin(session, 1)
    assert isinstance(fetch, IncrementalFetchContext)
    results = quiet(0, 1, 2)
    results[key(1)].records = b"some"
    included(fetch, results)
    idle = fetch.session.partitions[key(0)]
    del fetch.session.dirty[idle]  # it is clean, and then named again
    assert list(to_read(fetcher.begin(session, 2, 0))) == [0, 2, 1]


# Memory


def budget_for(partitions: int) -> MemoryBudget:
    """A budget in which the new sessions of clients may have so many partitions."""
    return MemoryBudget(partitions * SESSION_PARTITION_BYTES * 4 * 8 // 5)


def test_sessions_count_in_the_memory_budget_until_they_end() -> None:
    memory = budget_for(1000)
    fetcher = Fetcher(memory=memory)
    limit = memory.clients.limit
    session = fetcher.new_session(*range(600))
    assert memory.clients.sessions == 600 * SESSION_PARTITION_BYTES
    assert memory.clients.limit == limit - memory.clients.sessions
    fetcher.begin(session, 1, *range(600, 700))
    assert memory.clients.sessions == 700 * SESSION_PARTITION_BYTES
    fetcher.begin(session, 2, forget=tuple(range(650)))
    assert memory.clients.sessions == 50 * SESSION_PARTITION_BYTES
    fetcher.begin(session, FINAL_EPOCH)
    assert memory.used == 0
    assert memory.clients.limit == limit


def test_beyond_a_share_of_the_memory_there_are_no_new_sessions_and_none_grows() -> None:
    memory = budget_for(1000)
    fetcher = Fetcher(memory=memory)
    first, second = fetcher.new_session(*range(600)), fetcher.new_session(*range(300))
    assert fetcher.new_session(*range(200)) == NO_SESSION
    assert fetcher.new_session(*range(100)) != NO_SESSION
    # Those that exist may grow a little beyond that.
    assert isinstance(fetcher.begin(first, 1, *range(400, 1000)), IncrementalFetchContext)
    refused = fetcher.begin(second, 1, *range(300, 500))
    assert isinstance(refused, SessionErrorContext)
    assert refused.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    # It is gone, and its fetcher begins again.
    assert memory.clients.sessions == (1000 + 100) * SESSION_PARTITION_BYTES
    assert isinstance(fetcher.begin(first, 2), IncrementalFetchContext)


def test_one_session_cannot_grow_without_bound() -> None:
    memory = budget_for(1000)
    fetcher = Fetcher(memory=memory)
    session = fetcher.new_session(0)
    epoch = 1
    while isinstance(
        fetcher.begin(session, epoch, *range(epoch * 100, epoch * 100 + 100)), IncrementalFetchContext
    ):
        epoch += 1
        assert memory.clients.sessions <= 1500 * SESSION_PARTITION_BYTES
    assert memory.used == 0


def test_followers_have_memory_of_their_own() -> None:
    memory = budget_for(1000)
    fetcher = Fetcher(memory=memory)
    assert fetcher.new_session(*range(1000)) != NO_SESSION
    assert fetcher.new_session(*range(500), follower=True) != NO_SESSION
    assert memory.nodes.sessions == 500 * SESSION_PARTITION_BYTES


def test_sessions_that_have_long_been_idle_make_room_for_new_ones() -> None:
    memory = budget_for(1000)
    fetcher = Fetcher(memory=memory)
    old = fetcher.new_session(*range(800))
    fetcher.clock.advance_ms(MIN_EVICTION_MS + 1)
    assert fetcher.new_session(*range(900)) != NO_SESSION
    assert isinstance(fetcher.begin(old, 1), SessionErrorContext)
    assert memory.clients.sessions == 900 * SESSION_PARTITION_BYTES
