"""Share sessions: a member of a share group names its partitions to a broker once, and then only what changes
(Kafka's `ShareSession`, `ShareSessionContext` and `ShareSessionCache`).

A session belongs to a member of a group and begins with epoch 0; each request carries the next epoch, so that
a lost or repeated one is noticed, and -1 ends the session. As the members of a group hold records, a session
ends also with the connection that it was begun by: then its member is gone, and what it holds goes to others.

A session never makes room for another: a broker that has as many as it may have refuses new ones. Sessions
count in the memory budget of connections, each partition with a fixed size.

A fetch costs what has changed, not what the session holds. A partition of a session is dirty or clean, and a
fetch looks at the dirty ones only, in their order: one whose records were sent goes to the end. A clean one
had nothing to acquire at the last look, and its share partition has not changed since: that one knows the
session (`ShareSource`), and makes the partition dirty again when it changes.

Invariants: the cache holds at most one session of a member, and the connection that began it knows of it; a
partition that is not dirty has a share partition that knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from ottla.node.fetch.session import FINAL_EPOCH, INITIAL_EPOCH, next_epoch
from ottla.node.network.connection import KeptForClient
from ottla.node.network.memory_budget import MemoryPool
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_fetch import PartitionData
from ottla.protocol.names import TopicIdPartition
from ottla.runtime.turns import Turns

# What a session and each of its partitions take: objects and places in dicts, as measured.
SESSION_BYTES: Final = 1000
SESSION_PARTITION_BYTES: Final = 400
# From this many share partitions on that a member has acquired from, those it is done with are forgotten.
_FORGET_FROM: Final = 64

ShareResults: TypeAlias = dict[TopicIdPartition, PartitionData]
"""The data of each partition, in the order of the response."""


class ShareSessionKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSource(Protocol):
    """A share partition, as the sessions that read it know it."""

    def unsubscribe(self, cached: CachedSharePartition, /) -> None:
        """Do not tell the session of changes any longer."""

    def has_locks_of(self, member_id: str, /) -> bool:
        """Whether the member holds records."""

    def serve_next(self) -> None:
        """Wake another fetch, if there is something left to acquire."""


class CachedSharePartition:
    """A partition of a session."""

    __slots__ = ("partition", "requires_update_in_response", "session", "source")

    def __init__(self, session: ShareSession, partition: TopicIdPartition, *, is_new: bool) -> None:
        self.session: Final = session
        self.partition: Final = partition
        # Whether the next response is to mention it, although there may be nothing to say.
        self.requires_update_in_response = is_new
        # None until it is found, and where this broker cannot serve it.
        self.source: ShareSource | None = None

    def leave_source(self) -> None:
        if self.source is not None:
            self.source.unsubscribe(self)
            self.source = None


class ShareFetchWaiter:
    """A fetch that waits; the share partition that has woken it expects it to look, or to pass that on."""

    __slots__ = ("future", "woken_by")

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self.future: Final = future
        self.woken_by: ShareSource | None = None


class ShareSession:
    """The partitions of a member on this broker."""

    __slots__ = (
        "_forget_from",
        "_sources",
        "connection",
        "counted",
        "dirty",
        "epoch",
        "is_cached",
        "key",
        "partitions",
        "readers",
        "terms",
        "version",
        "waiters",
    )

    def __init__(self, key: ShareSessionKey, partitions: Iterable[TopicIdPartition]) -> None:
        self.key: Final = key
        self.partitions: dict[TopicIdPartition, CachedSharePartition] = {}
        self.dirty: dict[CachedSharePartition, None] = {}
        # Changes whenever a partition becomes dirty: a fetch that has looked at all may wait if it has not.
        self.version = 0
        # Of the next request.
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.connection: ConnectionSessions | None = None
        self.is_cached = False
        # The bytes of it that are counted in the memory budget.
        self.counted = 0
        # On what depends, besides the share partitions, what a fetch finds; None before the first.
        self.terms: object = None
        # Fetches under way, and those of them that wait: more than one only if a client does not wait for its
        # response.
        self.readers = 0
        self.waiters: dict[ShareFetchWaiter, None] = {}
        # Where the member may hold records.
        self._sources: dict[ShareSource, None] = {}
        self._forget_from = _FORGET_FROM
        for each in partitions:
            self.add(each, is_new=False)

    def update(self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]) -> None:
        for each in added:
            self.add(each, is_new=True)
        for each in forgotten:
            self.forget(each)

    def add(self, partition: TopicIdPartition, *, is_new: bool) -> None:
        if partition not in self.partitions:
            cached = self.partitions[partition] = CachedSharePartition(self, partition, is_new=is_new)
            self.mark_dirty(cached)

    def forget(self, partition: TopicIdPartition) -> None:
        gone = self.partitions.pop(partition, None)
        if gone is not None:
            gone.leave_source()
            self.dirty.pop(gone, None)

    def mark_dirty(self, cached: CachedSharePartition) -> None:
        """Have the next look of a fetch include a partition."""
        self.dirty[cached] = None
        self.version += 1

    def wake(self, source: ShareSource) -> bool:
        """Have the fetch look that waits; False if none does."""
        waiters, self.waiters = self.waiters, {}
        woken = False
        for waiter in waiters:
            if not waiter.future.done():
                waiter.woken_by = source
                waiter.future.set_result(True)
                woken = True
        return woken

    def note_acquired(self, source: ShareSource) -> None:
        """Note that the member holds records of a share partition."""
        self._sources[source] = None
        if len(self._sources) >= self._forget_from:
            held = [each for each in self._sources if each.has_locks_of(self.key.member_id)]
            self._sources = dict.fromkeys(held)
            self._forget_from = max(_FORGET_FROM, 2 * len(held))

    @property
    def sources_held(self) -> list[ShareSource]:
        """The share partitions of which the member may hold records, also where the session has forgotten the
        partition.
        """
        return list(self._sources)

    def take_over(self, former: ShareSession) -> None:
        """Follow on a session of the same member, which goes on to hold what it has acquired."""
        self._sources = former._sources
        self._forget_from = former._forget_from

    def close(self) -> None:
        """Leave the share partitions, and no cycles of references."""
        for cached in self.partitions.values():
            cached.leave_source()
        self.partitions.clear()
        self.dirty.clear()

    @property
    def size_bytes(self) -> int:
        return SESSION_BYTES + SESSION_PARTITION_BYTES * len(self.partitions)


class ShareSessionContext:
    """A request that begins a session, or continues one."""

    __slots__ = ("_epoch", "is_first", "session")

    def __init__(self, session: ShareSession, *, is_first: bool) -> None:
        self.session: Final = session
        self.is_first: Final = is_first
        self._epoch = session.epoch

    @property
    def error(self) -> ErrorCode:
        """The error of the response, if another request has continued the session since."""
        if self.is_first or self.session.epoch == self._epoch:
            return ErrorCode.NONE
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH

    def update_and_generate_response_data(self, results: ShareResults) -> ShareResults:
        """Return those of the results that the response is to have."""
        if self.is_first:
            return results
        if self.error:
            return {}
        known = self.session.partitions
        included: ShareResults = {}
        for key, data in results.items():
            cached = known.get(key)
            if data.records or data.error_code or (cached is not None and cached.requires_update_in_response):
                included[key] = data
            if cached is not None:
                cached.requires_update_in_response = bool(data.error_code)
        return included


class FinalContext:
    """A request that ends its session: it acknowledges, and fetches nothing."""

    __slots__ = ()

    @property
    def session(self) -> None:
        return None

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.NONE

    def update_and_generate_response_data(self, results: ShareResults) -> ShareResults:
        return results


ShareFetchContext: TypeAlias = ShareSessionContext | FinalContext


class SharingConnection(Protocol):
    """The connection that share requests come by."""

    kept_share_sessions: KeptForClient | None


class ConnectionSessions:
    """The sessions that were begun by a connection, and end with it."""

    __slots__ = ("_cache", "groups", "sessions")

    def __init__(self, cache: ShareSessionCache) -> None:
        self._cache = cache
        self.sessions: dict[ShareSessionKey, ShareSession] = {}
        # Of all sessions that it has begun, without those whose last member has left.
        self.groups: dict[str, None] = {}

    def close(self) -> None:
        """End with the connection."""
        self._cache.on_disconnect(self)


class ShareSessionCache:
    __slots__ = (
        "_max_sessions",
        "_members",
        "_memory",
        "_on_group_empty",
        "_on_member_leave",
        "_on_session_end",
        "_sessions",
        "evictions",
        "partitions",
    )

    def __init__(
        self,
        max_sessions: Callable[[], int],
        memory: MemoryPool,
        on_member_leave: Callable[[ShareSession], None],
        on_group_empty: Callable[[str], None],
        on_session_end: Callable[[ShareSession], None],
    ) -> None:
        """`max_sessions` is `group.share.max.share.sessions`. The first two listeners are called as
        connections close: with each session that was not ended before, and then with each group that has no
        session left. The third is called with every session that is not used any longer.
        """
        self._max_sessions: Final = max_sessions
        self._memory: Final = memory
        self._on_member_leave: Final = on_member_leave
        self._on_group_empty: Final = on_group_empty
        self._on_session_end: Final = on_session_end
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        # By group: how many sessions it has; none that has none.
        self._members: dict[str, int] = {}
        # Sessions that ended with their connection.
        self.evictions = 0
        # Of all sessions.
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ShareSessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has a session."""
        return group_id in self._members

    def new_context(
        self,
        key: ShareSessionKey,
        epoch: int,
        requested: Mapping[TopicIdPartition, object],
        forgotten: Iterable[TopicIdPartition],
        connection: SharingConnection,
        *,
        acknowledges: bool,
        growth: int = 0,
    ) -> ShareFetchContext:
        """Begin, continue or end the session of a ShareFetch; KafkaError if that cannot be. `growth` is how
        many partitions come in addition, by `update_in_turns`.
        """
        if epoch == FINAL_EPOCH:
            self._find(key)
            return FinalContext()
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "A request that begins a share session acknowledges nothing."
                )
            return ShareSessionContext(self._begin(key, requested, connection, growth), is_first=True)
        session = self._check_epoch(key, epoch)
        if (requested or growth) and not self._may_grow(session, requested, growth):
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session.epoch = next_epoch(session.epoch)
        session.update(requested, forgotten)
        self._count(session)
        return ShareSessionContext(session, is_first=False)

    async def update_in_turns(
        self,
        context: ShareSessionContext,
        added: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
        turns: Turns,
    ) -> None:
        """Change the partitions of a session by more than one turn of the event loop has time for."""
        session = context.session
        for change, partitions in (
            (partial(session.add, is_new=not context.is_first), added),
            (session.forget, forgotten),
        ):
            for each in partitions:
                change(each)
                if turns.is_due():
                    self._count(session)
                    await turns.pause()
        self._count(session)

    def acknowledge_session_update(self, key: ShareSessionKey, epoch: int) -> None:
        """Continue the session of a ShareAcknowledge; of one that ends its session, check that it exists."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == FINAL_EPOCH:
            self._find(key)
        else:
            session = self._check_epoch(key, epoch)
            session.epoch = next_epoch(session.epoch)

    def _find(self, key: ShareSessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _check_epoch(self, key: ShareSessionKey, epoch: int) -> ShareSession:
        session = self._find(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session

    def _may_grow(
        self, session: ShareSession, requested: Mapping[TopicIdPartition, object], growth: int
    ) -> bool:
        new = growth + sum(key not in session.partitions for key in requested)
        return new == 0 or self._memory.may_hold_session(new * SESSION_PARTITION_BYTES, exists=True)

    def _begin(
        self,
        key: ShareSessionKey,
        requested: Mapping[TopicIdPartition, object],
        connection: SharingConnection,
        growth: int,
    ) -> ShareSession:
        former = self.remove(key)
        session = ShareSession(key, requested)
        if len(self._sessions) >= self._max_sessions() or not self._memory.may_hold_session(
            session.size_bytes + growth * SESSION_PARTITION_BYTES, exists=False
        ):
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        if former is not None:
            session.take_over(former)
        session.is_cached = True
        self._sessions[key] = session
        self._members[key.group_id] = self._members.get(key.group_id, 0) + 1
        self.partitions += len(session.partitions)
        session.counted = session.size_bytes
        self._memory.hold_session(session.counted)
        kept = connection.kept_share_sessions
        if kept is None:
            connection.kept_share_sessions = kept = ConnectionSessions(self)
        assert isinstance(kept, ConnectionSessions)
        kept.sessions[key] = session
        kept.groups[key.group_id] = None
        session.connection = kept
        return session

    def _count(self, session: ShareSession) -> None:
        """Count what a session has now, unless it has ended."""
        more = session.size_bytes - session.counted
        if more and session.is_cached:
            self.partitions += more // SESSION_PARTITION_BYTES
            session.counted += more
            if more > 0:
                self._memory.hold_session(more)
            else:
                self._memory.release_session(-more)

    def end(self, key: ShareSessionKey) -> ShareSession | None:
        """End a session as its member asks; None if there is none."""
        known = self._sessions.get(key)
        connection = None if known is None else known.connection
        session = self.remove(key)
        if connection is not None and key.group_id not in self._members:
            # A connection may go on for long, with one group after the other.
            connection.groups.pop(key.group_id, None)
        return session

    def remove(self, key: ShareSessionKey) -> ShareSession | None:
        """Take a session out; None if there is none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        self.partitions -= (session.counted - SESSION_BYTES) // SESSION_PARTITION_BYTES
        self._memory.release_session(session.counted)
        left = self._members[key.group_id] - 1
        if left:
            self._members[key.group_id] = left
        else:
            del self._members[key.group_id]
        if session.connection is not None:
            session.connection.sessions.pop(key, None)
            session.connection = None
        session.is_cached = False
        self.close_if_unused(session)
        return session

    def close_if_unused(self, session: ShareSession) -> None:
        """Let go of a session that has ended, once no fetch goes on with it."""
        if not session.is_cached and session.readers == 0:
            self._on_session_end(session)

    def on_disconnect(self, connection: ConnectionSessions) -> None:
        for key, session in list(connection.sessions.items()):
            assert self._sessions.get(key) is session, key
            self.evictions += 1
            self.remove(key)
            self._on_member_leave(session)
        for group_id in connection.groups:
            if group_id not in self._members:
                self._on_group_empty(group_id)
