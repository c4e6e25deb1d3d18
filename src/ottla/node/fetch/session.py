"""Incremental fetch sessions (KIP-227): a fetcher names its partitions once and then only what changes.

A session remembers what was asked of each partition and what was last told. A fetch that goes on with a
session covers all of its partitions, and its response holds those with news: records, another high
watermark or log start, an error. Each request carries the next epoch of its session, so that a lost or
repeated one is noticed.

The cache has a fixed number of places. A new session takes the place of one that has not been used for
two minutes, or of one with fewer partitions that is older than that; sessions of followers give way to
followers only. Where there is no place the fetcher is told session 0 and goes on with full fetches.
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
Key: TypeAlias = tuple[Topic, int]
Results: TypeAlias = dict[Key, PartitionData]


def next_epoch(epoch: int) -> int:
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class CachedPartition:
    """What a session knows of one partition."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        # What the fetcher was last told; -1 makes the next response tell it again.
        self.high_watermark = -1
        self.log_start_offset = -1

    def tell(self, data: PartitionData) -> bool:
        """Note what a response would say, and whether there is any news in it."""
        news = bool(data.records) or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0
        if self.high_watermark != data.high_watermark:
            self.high_watermark = data.high_watermark
            news = True
        if self.log_start_offset != data.log_start_offset:
            self.log_start_offset = data.log_start_offset
            news = True
        if data.error_code:
            self.high_watermark = -1
            news = True
        return news


@dataclass(slots=True)
class FetchSession:
    id: int
    privileged: bool
    by_id: bool
    partitions: dict[Key, CachedPartition]
    created_ms: int
    used_ms: int
    epoch: int

    def update(self, asked: Mapping[Key, FetchPartition], forgotten: Iterable[Key]) -> None:
        for key, partition in asked.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = CachedPartition(partition)
            else:
                known.asked = partition
        for key in forgotten:
            self.partitions.pop(key, None)


class SessionError:
    """A fetch whose session is not what the fetcher believes."""

    __slots__ = ("error",)

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def partitions(self) -> Iterator[tuple[Key, FetchPartition]]:
        return iter(())

    def respond(self, results: Results) -> tuple[ErrorCode, int, Results]:
        return self.error, NO_SESSION, {}


class FullFetch:
    """A fetch that names all of its partitions; it may begin a session."""

    __slots__ = ("_asked", "_by_id", "_cache", "_privileged")

    def __init__(
        self,
        cache: FetchSessionCache | None,
        asked: Mapping[Key, FetchPartition],
        *,
        by_id: bool = False,
        privileged: bool = False,
    ) -> None:
        self._cache = cache
        self._asked = asked
        self._by_id = by_id
        self._privileged = privileged

    def partitions(self) -> Iterator[tuple[Key, FetchPartition]]:
        return iter(self._asked.items())

    def respond(self, results: Results) -> tuple[ErrorCode, int, Results]:
        if self._cache is None:
            return ErrorCode.NONE, NO_SESSION, results
        session = self._cache.create(self._asked, results, by_id=self._by_id, privileged=self._privileged)
        return ErrorCode.NONE, NO_SESSION if session is None else session.id, results


class IncrementalFetch:
    """A fetch that goes on with a session."""

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._epoch = session.epoch

    def partitions(self) -> Iterator[tuple[Key, FetchPartition]]:
        return ((key, cached.asked) for key, cached in self._session.partitions.items())

    def respond(self, results: Results) -> tuple[ErrorCode, int, Results]:
        session = self._session
        if session.epoch != self._epoch:
            # Another request went on with the session while this one waited.
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, {}
        news: Results = {}
        for key, data in results.items():
            cached = session.partitions.get(key)
            if cached is None or not cached.tell(data):
                continue
            news[key] = data
            if data.records:
                # Partitions that had their share go to the end of the line.
                session.partitions[key] = session.partitions.pop(key)
        return ErrorCode.NONE, session.id, news


Fetch: TypeAlias = SessionError | FullFetch | IncrementalFetch


class FetchSessionCache:
    __slots__ = ("_clock", "_eviction_ms", "_random", "_sessions", "evictions", "slots")

    def __init__(self, slots: int, random: Random, clock: Clock, eviction_ms: int = MIN_EVICTION_MS) -> None:
        self.slots = slots
        self.evictions = 0
        self._random = random
        self._clock = clock
        self._eviction_ms = eviction_ms
        # Least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def cached_partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def begin(
        self,
        session_id: int,
        epoch: int,
        asked: Mapping[Key, FetchPartition],
        forgotten: Iterable[Key],
        *,
        by_id: bool,
        privileged: bool,
    ) -> Fetch:
        """What a fetch request is a fetch of."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FullFetch(None, asked)
            return FullFetch(self, asked, by_id=by_id, privileged=privileged)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return SessionError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(asked, forgotten)
        if not session.partitions:
            del self._sessions[session_id]
            return FullFetch(None, asked)
        session.used_ms = self._clock.wall_ms()
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetch(session)

    def create(
        self, asked: Mapping[Key, FetchPartition], told: Results, *, by_id: bool, privileged: bool
    ) -> FetchSession | None:
        """A session for a full fetch that was answered so; None if there is no place for it."""
        now_ms = self._clock.wall_ms()
        if len(self._sessions) >= self.slots and not self._evict(len(told), privileged, now_ms):
            return None
        partitions: dict[Key, CachedPartition] = {}
        for key, data in told.items():
            partitions[key] = cached = CachedPartition(asked[key])
            cached.tell(data)
        session = FetchSession(
            self._new_id(), privileged, by_id, partitions, now_ms, now_ms, next_epoch(INITIAL_EPOCH)
        )
        self._sessions[session.id] = session
        return session

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, size: int, privileged: bool, now_ms: int) -> bool:
        """Make room for a session of so many partitions, if it is worth more than one that is there."""
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
