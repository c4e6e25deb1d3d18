"""Incremental fetch sessions (KIP-227): a fetcher names its partitions once and then only what changes.

A session holds what was requested of each partition and what the last response said of it. A fetch that
continues a session covers all of its partitions, and its response holds those that changed: records, another
high watermark or log start offset, an error. Each request carries the next epoch of its session, so that the
broker notices a lost or repeated one.

A fetch costs what has changed, not what the session holds. Partitions are dirty or clean. A fetch reads the
dirty ones only. A partition becomes clean when a read has found nothing beyond what the response says, and
from then on it watches its `Partition`. It becomes dirty again with any progress there, when a request names
it again, and when the session's fetches change in a way that concerns all partitions (`FetchTerms`).
Invariant: a read of a clean partition would find nothing that the fetcher does not know.

A fetch without a session has the same object for the time of the request, so that it reads again only what
changed while it waits. Clients that never use sessions (librdkafka) name all of their partitions in each
request. If these are many, the connection keeps them (`KeptFetch`) for the next request, with what was read.

A follower's clean partitions are those that it is in the ISR of and has all records of. While it fetches in
the session it still has all of them: `last_fetch_ms` tells the partitions so.

The cache has a fixed number of slots. When it is full, a new session replaces the least recently used one if
that has been idle for more than two minutes. Otherwise it replaces the least valuable of the sessions that
are older than two minutes (a follower's session may also replace a younger one of a consumer), unless that
one is worth more than the new session. Sessions of followers are worth more than those of consumers, then the
number of partitions counts. Where there is no slot the response has session id 0, and the fetcher goes on
with full fetches.

Sessions count in the memory budget of connections, each partition with a fixed size. Those that have been
idle for more than two minutes make room for new ones. Where there is no room the response has session id 0 as
well, and a session that would grow beyond what is left is dropped: its fetcher begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

from ottla.metadata.image.entities import BrokerRegistration
from ottla.node.network.connection import KeptForClient
from ottla.node.network.memory_budget import MemoryBudget, MemoryPool
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.replication.partition import FetchIsolation, Partition
from ottla.replication.purgatory import DelayedOperationPurgatory
from ottla.runtime.clock import Clock
from ottla.runtime.random import Random
from ottla.security.principal import KafkaPrincipal

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0
MIN_EVICTION_MS: Final = 120_000
# Fetches of fewer partitions are not worth keeping.
_KEEP_FROM: Final = 64
# Partitions that connections may keep in all.
MAX_KEPT_PARTITIONS: Final = 100_000
# What a partition takes in a session: its objects and its places in dicts, as measured.
SESSION_PARTITION_BYTES: Final = 640
# What a partition of a request takes in addition until the response is out: the request's and the response's.
REQUESTED_PARTITION_BYTES: Final = 400
# Requests for fewer partitions are not worth counting.
_COUNT_FROM: Final = 64
_MAX_EPOCH: Final = 2**31 - 1
_BY_ORDER: Final = attrgetter("order")

Topic: TypeAlias = bytes | str
"""A topic's id, or its name where the version of the request knows no ids."""
FetchKey: TypeAlias = tuple[Topic, int]
FetchResults: TypeAlias = dict[FetchKey, PartitionData]
"""The data read of each partition, in the order of the response."""


def next_epoch(epoch: int) -> int:
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class FetchTerms(NamedTuple):
    """The parts of a fetch, besides its partitions, on which depends what a read of a partition finds. Where
    they change from one fetch of a session to the next, all partitions are dirty.
    """

    isolation: FetchIsolation
    only_leader: bool
    replica_id: int = -1
    replica_epoch: int = -1
    # Whether the follower has registered again since it got its epoch.
    is_stale: bool = False
    # Set where consumers are sent to the nearest replica.
    rack: str = ""
    listener: str = ""
    brokers: Mapping[int, BrokerRegistration] | None = None
    # Set where an authorizer decides what a consumer may read.
    permissions: tuple[int, KafkaPrincipal, str] | None = None

    def readable_end(self, partition: Partition) -> int:
        """The offset up to which the fetcher may read a partition."""
        log = partition.log
        if self.isolation is FetchIsolation.HIGH_WATERMARK:
            return log.high_watermark
        return log.log_end_offset if self.isolation is FetchIsolation.LOG_END else log.last_stable_offset


class CachedPartition:
    """The state of one partition in a session: the request for it, the offsets last sent, and where the
    partition stood when it was last read.
    """

    __slots__ = (
        "grown",
        "high_watermark",
        "is_watching",
        "key",
        "log_start_offset",
        "order",
        "partition",
        "read_end",
        "read_high_watermark",
        "read_leader_epoch",
        "read_leader_id",
        "read_segment",
        "read_size",
        "requested",
        "session",
    )

    def __init__(self, session: FetchSession, key: FetchKey, requested: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.requested = requested
        # Its place among the partitions of the session: one whose records were sent goes to the end.
        self.order = session.next_order()
        # As the last response said; -1 makes the next response say it again.
        self.high_watermark = -1
        self.log_start_offset = -1
        # Set by `mark` and None before: the partition, and where it stood. The segment is the base offset of
        # the active one, or -1 where its growth would not say how much becomes readable.
        self.partition: Partition | None = None
        self.is_watching = False
        self.read_leader_id: int | None = None
        self.read_leader_epoch = -1
        self.read_high_watermark = -1
        self.read_end = -1
        self.read_segment = -1
        self.read_size = 0
        # Bytes that have become readable since.
        self.grown = 0

    def maybe_update_response_data(self, data: PartitionData) -> bool:
        """Note what a response would say of the partition; whether that is anything new to the fetcher."""
        changed = bool(data.records) or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0
        if self.high_watermark != data.high_watermark:
            self.high_watermark = data.high_watermark
            changed = True
        if self.log_start_offset != data.log_start_offset:
            self.log_start_offset = data.log_start_offset
            changed = True
        if data.error_code:
            self.high_watermark = -1
            changed = True
        return changed

    def mark(self, partition: Partition) -> None:
        """Note where the partition stands, right after a read, and watch it from here on."""
        log = partition.log
        readable_end = self.session.readable_end(partition)
        if self.partition is not partition:
            if self.is_watching:
                self.unwatch()
            self.partition = partition
        self.read_leader_id = partition.leader_id
        self.read_leader_epoch = partition.leader_epoch
        self.read_high_watermark = log.high_watermark
        self.read_end = readable_end
        self.read_segment = -1
        # If the log goes on beyond the readable end, what becomes readable next is there already.
        if readable_end == log.log_end_offset:
            segment = log.active_segment
            self.read_segment = segment.base_offset
            self.read_size = segment.size
            self.grown = 0
        if not self.is_watching:
            self.is_watching = True
            partition.watch(self)

    def mark_without_records(self, partition: Partition) -> None:
        """Note where the partition stands, right after a read that gave no records. It is clean unless limits
        held some back, or a follower's next fetch may still change something at its leader.
        """
        self.mark(partition)
        if self.requested.fetch_offset < self.read_end:
            return
        session = self.session
        if session.replica_id >= 0:
            if session.replica_id not in partition.isr:
                return
            self.begin_idle()
        del session.dirty[self]

    def grow(self) -> int | None:
        """How many bytes more have become readable since the last call, or since the last read; None where it
        is to be read in any case. Watch it from here on.
        """
        partition = self.partition
        if (
            partition is None
            or partition.leader_epoch != self.read_leader_epoch
            or partition.leader_id != self.read_leader_id
        ):
            return None
        more = 0
        if self.session.readable_end(partition) > self.read_end:
            segment = partition.log.active_segment
            if segment.base_offset != self.read_segment:
                return None
            grown = segment.size - self.read_size
            more, self.grown = grown - self.grown, grown
        self.watch()
        return more

    def watch(self) -> None:
        """Become dirty with the next progress of the partition."""
        if not self.is_watching and self.partition is not None:
            self.is_watching = True
            self.partition.watch(self)

    def unwatch(self) -> None:
        if self.is_watching and self.partition is not None:
            self.is_watching = False
            self.partition.unwatch(self)
            self.end_idle()

    def begin_idle(self) -> None:
        """Be clean for a follower."""
        if self.partition is not None:
            self.partition.begin_idle_session(self.session.replica_id, self.session)

    def end_idle(self) -> None:
        if self.session.privileged and self.partition is not None:
            self.partition.end_idle_session(self.session.replica_id, self.session)

    def on_partition_progress(self) -> None:
        self.is_watching = False
        self.session.on_progress(self)


class FetchSession:
    """The partitions of a fetcher. Invariant: each is dirty, or watches its `Partition`."""

    __slots__ = (
        "by_id",
        "counted",
        "created_ms",
        "dirty",
        "epoch",
        "grown",
        "id",
        "is_cached",
        "last_fetch_ms",
        "last_order",
        "moved",
        "partitions",
        "privileged",
        "readers",
        "terms",
        "used_ms",
        "wake",
    )

    def __init__(
        self,
        requested: Mapping[FetchKey, FetchPartition],
        *,
        by_id: bool,
        privileged: bool,
    ) -> None:
        self.id = NO_SESSION
        # Whether the fetcher is a follower.
        self.privileged = privileged
        # Whether its requests name topics by id; a session may not mix both ways.
        self.by_id = by_id
        self.last_order = 0
        self.partitions = {key: CachedPartition(self, key, each) for key, each in requested.items()}
        # A fetch reads them in the order of their places.
        self.dirty: dict[CachedPartition, None] = dict.fromkeys(self.partitions.values())
        # The partitions of it that are counted in the memory budget.
        self.counted = 0
        self.created_ms = 0
        self.used_ms = 0
        self.epoch = INITIAL_EPOCH
        self.is_cached = False
        self.last_fetch_ms = 0
        self.terms: FetchTerms | None = None
        # Requests that read it at the moment: more than one only if a fetcher does not wait for its response.
        self.readers = 0
        # While there are any: the partitions that have become dirty since the last read, or since the last
        # look at them; the bytes that had become readable then; and what wakes the request that waits.
        self.moved: list[CachedPartition] = []
        self.grown = 0
        self.wake: Callable[[], None] | None = None

    def next_order(self) -> int:
        self.last_order += 1
        return self.last_order

    @property
    def replica_id(self) -> int:
        return -1 if self.terms is None else self.terms.replica_id

    def readable_end(self, partition: Partition) -> int:
        assert self.terms is not None, self.id
        return self.terms.readable_end(partition)

    def update(self, requested: Mapping[FetchKey, FetchPartition], forgotten: Iterable[FetchKey]) -> None:
        for key, partition in requested.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = known = CachedPartition(self, key, partition)
            else:
                known.requested = partition
                known.end_idle()
            self.dirty[known] = None
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                gone.unwatch()
                self.dirty.pop(gone, None)

    # A request

    def begin_fetch(self, terms: FetchTerms, now_ms: int) -> None:
        """Begin a request for the session's partitions."""
        if self.terms is None:
            self.terms = terms
        elif self.terms != terms:
            self.mark_all_dirty()
            self.terms = terms
        self.last_fetch_ms = now_ms
        self.readers += 1

    def begin_read(self, now_ms: int) -> list[CachedPartition]:
        """Return what is to be read, in its order."""
        self.last_fetch_ms = now_ms
        self.moved.clear()
        self.grown = 0
        dirty = list(self.dirty)
        if len(dirty) > 1:
            dirty.sort(key=_BY_ORDER)
        return dirty

    async def wait(
        self, purgatory: DelayedOperationPurgatory, condition: Callable[[], bool], timeout_ms: float
    ) -> bool:
        """Wait until the condition holds; False if the time is over. It is looked at whenever a partition has
        become dirty.
        """
        self.wake = wake = partial(purgatory.check_and_complete, self)
        try:
            return await purgatory.try_complete_else_watch((self,), condition, timeout_ms)
        finally:
            if self.wake is wake:
                self.wake = None

    def growth(self, high_watermarks: dict[FetchKey, int] | None) -> int | None:
        """How many bytes have become readable since the last read, of the partitions that have moved; None
        where one of them is to be read in any case. With `high_watermarks` it is, if its high watermark has
        moved; the former one is added to them.
        """
        for cached in self.moved:
            partition, known = cached.partition, cached.read_high_watermark
            if high_watermarks is not None and partition is not None and partition.log.high_watermark > known:
                high_watermarks.setdefault(cached.key, known)
                return None
            more = cached.grow()
            if more is None:
                return None
            self.grown += more
        self.moved.clear()
        return self.grown

    def end_fetch(self, unsent: Iterable[FetchKey]) -> None:
        """End a request; what was read of these partitions was not sent, so they are read again."""
        self.readers -= 1
        if self.readers == 0:
            self.moved.clear()
            self.wake = None
        for key in unsent:
            cached = self.partitions.get(key)
            if cached is not None:
                cached.end_idle()
                self.dirty[cached] = None
        if not self.is_cached:
            self.close_if_unused()

    def mark_all_dirty(self) -> None:
        for cached in self.partitions.values():
            cached.end_idle()
            self.dirty[cached] = None

    def on_progress(self, cached: CachedPartition) -> None:
        self.dirty[cached] = None
        if self.readers:
            self.moved.append(cached)
            if self.wake is not None:
                self.wake()

    def on_removed_from_cache(self) -> None:
        self.is_cached = False
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Watch nothing any longer and leave no cycles of references, unless the session goes on."""
        if not self.is_cached and self.readers == 0:
            for cached in self.partitions.values():
                if cached.is_watching:
                    cached.unwatch()
            self.partitions.clear()
            self.dirty.clear()


class SessionErrorContext:
    """A fetch whose session does not exist, or is in another epoch."""

    __slots__ = ("error",)

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        return self.error, NO_SESSION, {}

    def throttled_response_data(self) -> tuple[ErrorCode, int]:
        return self.error, NO_SESSION


class FullFetchContext:
    """A fetch that names all of its partitions; with a cache it may begin a session."""

    __slots__ = ("_cache", "session")

    def __init__(
        self,
        cache: FetchSessionCache | None,
        requested: Mapping[FetchKey, FetchPartition],
        *,
        by_id: bool = False,
        privileged: bool = False,
    ) -> None:
        self._cache = cache
        self.session: Final = FetchSession(requested, by_id=by_id, privileged=privileged)

    @property
    def is_current(self) -> bool:
        return True

    @property
    def known_results(self) -> FetchResults:
        return {}

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        if self._cache is not None:
            self._cache.maybe_add_session(self.session, results)
        return ErrorCode.NONE, self.session.id, results

    def throttled_response_data(self) -> tuple[ErrorCode, int]:
        """The error and session of a response without data: no session begins."""
        return ErrorCode.NONE, NO_SESSION


class IncrementalFetchContext:
    """A fetch that continues a session."""

    __slots__ = ("_epoch", "session")

    def __init__(self, session: FetchSession) -> None:
        self.session: Final = session
        self._epoch = session.epoch

    @property
    def is_current(self) -> bool:
        """Whether no other request has continued the session since."""
        return self.session.epoch == self._epoch

    @property
    def known_results(self) -> FetchResults:
        """What the response is to say of partitions that need not be read."""
        return {}

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        session = self.session
        if not self.is_current:
            # Another request continued the session while this one waited.
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, {}
        included: FetchResults = {}
        for key, data in results.items():
            cached = session.partitions.get(key)
            if cached is None or not cached.maybe_update_response_data(data):
                continue
            included[key] = data
            if data.records:
                # The next fetch reads the other partitions first.
                cached.order = session.next_order()
        return ErrorCode.NONE, session.id, included

    def throttled_response_data(self) -> tuple[ErrorCode, int]:
        """The error and session of a response without data: the fetcher knows what it knew before."""
        return ErrorCode.NONE if self.is_current else ErrorCode.INVALID_FETCH_SESSION_EPOCH, self.session.id


class KeptFetch:
    """The partitions of the last fetch on a connection whose client uses no sessions, and what was read of
    them. Invariant: the results hold no records, and have every clean partition.
    """

    __slots__ = ("_cache", "results", "session")

    def __init__(self, cache: FetchSessionCache, requested: Mapping[FetchKey, FetchPartition]) -> None:
        self._cache = cache
        self.session: Final = FetchSession(requested, by_id=False, privileged=False)
        self.session.is_cached = True
        self.results: FetchResults = {}
        cache.kept_partitions += len(requested)
        cache.count_partitions(self.session)

    def update(self, requested: Mapping[FetchKey, FetchPartition]) -> None:
        """Take up the next request: partitions that it names as before stay clean."""
        session = self.session
        known = session.partitions
        before = len(known)
        changed = {}
        common = 0
        for key, partition in requested.items():
            cached = known.get(key)
            if cached is None:
                changed[key] = partition
            else:
                common += 1
                if not _is_same_request(cached.requested, partition):
                    changed[key] = partition
        gone = [] if common == before else [key for key in known if key not in requested]
        session.update(changed, gone)
        for key in gone:
            self.results.pop(key, None)
        self._cache.kept_partitions += len(known) - before
        self._cache.count_partitions(session)

    def close(self) -> None:
        """End with the connection."""
        self._cache.kept_partitions -= len(self.session.partitions)
        self._cache.uncount_partitions(self.session)
        self.session.on_removed_from_cache()


def _is_same_request(a: FetchPartition, b: FetchPartition) -> bool:
    return (
        a.fetch_offset == b.fetch_offset
        and a.current_leader_epoch == b.current_leader_epoch
        and a.last_fetched_epoch == b.last_fetched_epoch
        and a.partition_max_bytes == b.partition_max_bytes
        and a.log_start_offset == b.log_start_offset
    )


class FetchingConnection(Protocol):
    """The connection that a fetch comes by."""

    kept_fetch: KeptForClient | None


class KeptFetchContext:
    """A fetch that names all of its partitions, of a client that will do so again."""

    __slots__ = ("_kept", "session")

    def __init__(self, kept: KeptFetch) -> None:
        self._kept = kept
        self.session: Final = kept.session

    @property
    def is_current(self) -> bool:
        return True

    @property
    def known_results(self) -> FetchResults:
        return self._kept.results

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        included = dict(results)
        for cached in self.session.dirty:
            data = results.pop(cached.key, None)
            if data is not None and data.records:
                # The next fetch reads the other partitions first.
                cached.order = self.session.next_order()
        return ErrorCode.NONE, NO_SESSION, included

    def throttled_response_data(self) -> tuple[ErrorCode, int]:
        """The error and session of a response without data; called when all results are to be read again."""
        self._kept.results.clear()
        return ErrorCode.NONE, NO_SESSION


ReadContext: TypeAlias = FullFetchContext | IncrementalFetchContext | KeptFetchContext
FetchContext: TypeAlias = SessionErrorContext | ReadContext


class FetchSessionCache:
    __slots__ = (
        "_clock",
        "_eviction_ms",
        "_memory",
        "_random",
        "_sessions",
        "evictions",
        "kept_partitions",
        "max_kept_partitions",
        "slots",
    )

    def __init__(
        self,
        slots: int,
        random: Random,
        clock: Clock,
        eviction_ms: int = MIN_EVICTION_MS,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`memory` is the budget of the node; without it the cache has one by itself."""
        self.slots = slots
        self.evictions = 0
        self._memory = memory if memory is not None else MemoryBudget()
        self._random = random
        self._clock = clock
        self._eviction_ms = eviction_ms
        # Least recently used first, and never more than `slots`.
        self._sessions: dict[int, FetchSession] = {}
        # Of all connections whose clients use no sessions.
        self.kept_partitions = 0
        self.max_kept_partitions = MAX_KEPT_PARTITIONS

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self,
        session_id: int,
        epoch: int,
        requested: Mapping[FetchKey, FetchPartition],
        forgotten: Iterable[FetchKey],
        *,
        by_id: bool,
        privileged: bool,
        connection: FetchingConnection | None = None,
    ) -> FetchContext:
        """Find the session that a request continues, or the full fetch that it is."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if (
                connection is not None
                and len(requested) >= _KEEP_FROM
                and epoch == FINAL_EPOCH
                and session_id == NO_SESSION
                and not privileged
            ):
                kept = self._keep(connection, requested)
                if kept is not None:
                    return KeptFetchContext(kept)
            if session_id != NO_SESSION:
                self._remove(session_id)
            if epoch == FINAL_EPOCH:
                return FullFetchContext(None, requested, by_id=by_id, privileged=privileged)
            return FullFetchContext(self, requested, by_id=by_id, privileged=privileged)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionErrorContext(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if requested and not self._may_grow(session, requested):
            self._remove(session_id)
            return SessionErrorContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(requested, forgotten)
        self.count_partitions(session)
        if not session.partitions:
            self._remove(session_id)
            return FullFetchContext(None, requested, by_id=by_id, privileged=privileged)
        session.used_ms = self._clock.wall_ms()
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetchContext(session)

    def _keep(
        self, connection: FetchingConnection, requested: Mapping[FetchKey, FetchPartition]
    ) -> KeptFetch | None:
        """Have the connection keep the partitions of a fetch; None if there is no room, or if another request
        of this connection is in progress with them.
        """
        kept = connection.kept_fetch
        assert kept is None or isinstance(kept, KeptFetch)
        known = 0 if kept is None else len(kept.session.partitions)
        more = len(requested) - known
        if self.kept_partitions + more > self.max_kept_partitions or (
            more > 0 and not self._has_memory(self._memory.clients, more, exists=False)
        ):
            return None
        if kept is None:
            kept = connection.kept_fetch = KeptFetch(self, requested)
        elif kept.session.readers > 0:
            return None
        else:
            kept.update(requested)
        return kept

    def maybe_add_session(self, session: FetchSession, results: FetchResults) -> None:
        """Keep the partitions of a full fetch as a session, if there is a slot for it."""
        now_ms = self._clock.wall_ms()
        if len(self._sessions) >= self.slots and not self._try_evict(
            len(session.partitions), session.privileged, now_ms
        ):
            return
        if not self._try_make_room(session, now_ms):
            return
        for key, data in results.items():
            session.partitions[key].maybe_update_response_data(data)
        session.id = self._new_id()
        session.created_ms = session.used_ms = now_ms
        session.epoch = next_epoch(INITIAL_EPOCH)
        session.is_cached = True
        self._sessions[session.id] = session
        assert len(self._sessions) <= self.slots, f"{len(self._sessions)} sessions in {self.slots} slots"

    # Memory

    def requested_bytes(self, requested: int, context: FetchContext) -> int:
        """What a request for so many partitions takes until it is answered, besides what is counted for its
        session; 0 if that is little.
        """
        if requested < _COUNT_FROM or isinstance(context, SessionErrorContext):
            return 0
        is_alone = isinstance(context, FullFetchContext)
        return requested * (REQUESTED_PARTITION_BYTES + (SESSION_PARTITION_BYTES if is_alone else 0))

    def count_partitions(self, session: FetchSession) -> None:
        """Count in the budget what a session has now, for which there is memory."""
        more = len(session.partitions) - session.counted
        if more < 0:
            self._pool(session).release_session(-more * SESSION_PARTITION_BYTES)
        elif more > 0:
            self._pool(session).hold_session(more * SESSION_PARTITION_BYTES)
        session.counted += more

    def uncount_partitions(self, session: FetchSession) -> None:
        self._pool(session).release_session(session.counted * SESSION_PARTITION_BYTES)
        session.counted = 0

    def _pool(self, session: FetchSession) -> MemoryPool:
        return self._memory.nodes if session.privileged else self._memory.clients

    def _has_memory(self, pool: MemoryPool, partitions: int, *, exists: bool) -> bool:
        return pool.may_hold_session(partitions * SESSION_PARTITION_BYTES, exists=exists)

    def _may_grow(self, session: FetchSession, requested: Mapping[FetchKey, FetchPartition]) -> bool:
        known = session.partitions
        new = sum(key not in known for key in requested)
        return new == 0 or self._has_memory(self._pool(session), new, exists=True)

    def _try_make_room(self, session: FetchSession, now_ms: int) -> bool:
        """Find memory for a new session and count it; sessions that have long been idle make room."""
        pool = self._pool(session)
        while not self._has_memory(pool, len(session.partitions), exists=False):
            oldest = next((each for each in self._sessions.values() if self._pool(each) is pool), None)
            if oldest is None or now_ms - oldest.used_ms <= self._eviction_ms:
                return False
            self._remove(oldest.id)
            self.evictions += 1
        self.count_partitions(session)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.uncount_partitions(session)
            session.on_removed_from_cache()

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id

    def _try_evict(self, size: int, privileged: bool, now_ms: int) -> bool:
        """Evict a session in favour of one of `size` partitions; False if none is worth less than that."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms <= self._eviction_ms:
            candidates = [
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > self._eviction_ms or (privileged and not session.privileged)
            ]
            oldest = min(candidates, key=_value, default=None)
            if oldest is None or (privileged, size) < _value(oldest):
                return False
        self._remove(oldest.id)
        self.evictions += 1
        return True


def _value(session: FetchSession) -> tuple[bool, int]:
    return session.privileged, len(session.partitions)
