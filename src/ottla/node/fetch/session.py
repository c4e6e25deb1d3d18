"""Incremental fetch sessions (KIP-227): a fetcher names its partitions once and then only what changes.

A session holds what was requested of each partition and what the last response said of it. A fetch that
continues a session covers all of its partitions, and its response holds those that changed: records, another
high watermark or log start offset, an error. Each request carries the next epoch of its session, so that the
broker notices a lost or repeated one.

The cache has a fixed number of slots. When it is full, a new session replaces the least recently used one if
that has been idle for more than two minutes. Otherwise it replaces the least valuable of the sessions that
are older than two minutes (a follower's session may also replace a younger one of a consumer), unless that
one is worth more than the new session. Sessions of followers are worth more than those of consumers, then the
number of partitions counts. Where there is no slot the response has session id 0, and the fetcher goes on
with full fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.runtime.clock import Clock
from ottla.runtime.random import Random

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0
MIN_EVICTION_MS: Final = 120_000
_MAX_EPOCH: Final = 2**31 - 1

Topic: TypeAlias = bytes | str
"""A topic's id, or its name where the version of the request knows no ids."""
FetchKey: TypeAlias = tuple[Topic, int]
FetchResults: TypeAlias = dict[FetchKey, PartitionData]
"""The data read of each partition, in the order of the response."""


def next_epoch(epoch: int) -> int:
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class CachedPartition:
    """The state of one partition in a session: the request for it, and the offsets last sent."""

    __slots__ = ("high_watermark", "log_start_offset", "requested")

    def __init__(self, requested: FetchPartition) -> None:
        self.requested = requested
        # As the last response said; -1 makes the next response say it again.
        self.high_watermark = -1
        self.log_start_offset = -1

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


@dataclass(slots=True)
class FetchSession:
    id: int
    # Whether the fetcher is a follower.
    privileged: bool
    # Whether its requests name topics by id; a session may not mix both ways.
    by_id: bool
    # In the order in which the next fetch reads them.
    partitions: dict[FetchKey, CachedPartition]
    created_ms: int
    used_ms: int
    epoch: int

    def update(self, requested: Mapping[FetchKey, FetchPartition], forgotten: Iterable[FetchKey]) -> None:
        for key, partition in requested.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = CachedPartition(partition)
            else:
                known.requested = partition
        for key in forgotten:
            self.partitions.pop(key, None)


class SessionErrorContext:
    """A fetch whose session does not exist, or is in another epoch."""

    __slots__ = ("error",)

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def partitions(self) -> Iterator[tuple[FetchKey, FetchPartition]]:
        return iter(())

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        return self.error, NO_SESSION, {}


class FullFetchContext:
    """A fetch that names all of its partitions; with a cache it may begin a session."""

    __slots__ = ("_by_id", "_cache", "_privileged", "_requested")

    def __init__(
        self,
        cache: FetchSessionCache | None,
        requested: Mapping[FetchKey, FetchPartition],
        *,
        by_id: bool = False,
        privileged: bool = False,
    ) -> None:
        self._cache = cache
        self._requested = requested
        self._by_id = by_id
        self._privileged = privileged

    def partitions(self) -> Iterator[tuple[FetchKey, FetchPartition]]:
        return iter(self._requested.items())

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        if self._cache is None:
            return ErrorCode.NONE, NO_SESSION, results
        session = self._cache.maybe_create_session(
            self._requested, results, by_id=self._by_id, privileged=self._privileged
        )
        return ErrorCode.NONE, NO_SESSION if session is None else session.id, results


class IncrementalFetchContext:
    """A fetch that continues a session."""

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._epoch = session.epoch

    def partitions(self) -> Iterator[tuple[FetchKey, FetchPartition]]:
        return ((key, cached.requested) for key, cached in self._session.partitions.items())

    def update_and_generate_response_data(self, results: FetchResults) -> tuple[ErrorCode, int, FetchResults]:
        session = self._session
        if session.epoch != self._epoch:
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
                session.partitions[key] = session.partitions.pop(key)
        return ErrorCode.NONE, session.id, included


FetchContext: TypeAlias = SessionErrorContext | FullFetchContext | IncrementalFetchContext


class FetchSessionCache:
    __slots__ = ("_clock", "_eviction_ms", "_random", "_sessions", "evictions", "slots")

    def __init__(self, slots: int, random: Random, clock: Clock, eviction_ms: int = MIN_EVICTION_MS) -> None:
        self.slots = slots
        self.evictions = 0
        self._random = random
        self._clock = clock
        self._eviction_ms = eviction_ms
        # Least recently used first, and never more than `slots`.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def cached_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def new_context(
        self,
        session_id: int,
        epoch: int,
        requested: Mapping[FetchKey, FetchPartition],
        forgotten: Iterable[FetchKey],
        *,
        by_id: bool,
        privileged: bool,
    ) -> FetchContext:
        """Find the session that a request continues, or the full fetch that it is."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FullFetchContext(None, requested)
            return FullFetchContext(self, requested, by_id=by_id, privileged=privileged)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionErrorContext(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return SessionErrorContext(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(requested, forgotten)
        if not session.partitions:
            del self._sessions[session_id]
            return FullFetchContext(None, requested)
        session.used_ms = self._clock.wall_ms()
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetchContext(session)

    def maybe_create_session(
        self,
        requested: Mapping[FetchKey, FetchPartition],
        results: FetchResults,
        *,
        by_id: bool,
        privileged: bool,
    ) -> FetchSession | None:
        """Begin a session with a full fetch and its results; None if there is no slot for it."""
        now_ms = self._clock.wall_ms()
        if len(self._sessions) >= self.slots and not self._try_evict(len(results), privileged, now_ms):
            return None
        partitions: dict[FetchKey, CachedPartition] = {}
        for key, data in results.items():
            partitions[key] = cached = CachedPartition(requested[key])
            cached.maybe_update_response_data(data)
        session = FetchSession(
            self._new_id(), privileged, by_id, partitions, now_ms, now_ms, next_epoch(INITIAL_EPOCH)
        )
        self._sessions[session.id] = session
        assert len(self._sessions) <= self.slots, f"{len(self._sessions)} sessions in {self.slots} slots"
        return session

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
        del self._sessions[oldest.id]
        self.evictions += 1
        return True


def _value(session: FetchSession) -> tuple[bool, int]:
    return session.privileged, len(session.partitions)
