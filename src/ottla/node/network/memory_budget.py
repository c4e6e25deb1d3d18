"""The memory that connections may make a node hold, as one budget: requests in progress, responses that were
not read, and fetch sessions.

It is divided into two pools, one for clients and one for other nodes, so that clients cannot starve
replication or the quorum. What a pool holds is counted in plain integers, by the connections themselves. The
levels of a pool:

- up to `plenty`, everything is let in, and a response may take its fair share of what is left;
- up to `limit`, only what is small, of connections that hold little, and responses for those that have read
  their former ones: a client that behaves is still served at once. Everything else waits in order, and
  connections that hold memory while nothing moves are closed, the longest stalled first, until the pool is
  below `plenty` again;
- up to `brim`, only small requests that carry no records: heartbeats, commits, and the fetches of followers
  for which requests in progress may wait. Connections are closed after a much shorter stall, and so are those
  that read so slowly that their clients would give up before the end, the slowest first;
- above it nothing is let in.

Fetch sessions stay, so they have a share of each pool that they cannot exceed, and what they take is taken
off its levels: the others share what is left. So is what heavy work takes while it runs
(`ottla.runtime.heavy_work`), of which one piece at a time takes much.

Waiting means that the client is not read from; nothing that was received is dropped. It cannot last: what is
in progress gets its response by its own timeouts, what stalls is closed, one request that is being received
may always go on, whatever is left (`_express`), and one response may be made where requests alone take all.
Beyond `brim` there is therefore at most that one request and one response, as each is counted before the next
is let in.

Invariants: `requests` and `responses` are the sums of what the connections of the pool have counted,
`sessions` is what fetch sessions have, and `work` what heavy work takes; none is ever negative. Each
connection in `unread` has responses that its client has not taken, and each in `incomplete` has a request of
which a part is still to come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

_log = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 512 * 1024 * 1024
# Eighths of the budget: for other nodes, and for requests of clients without records when there is no more.
_NODES_EIGHTHS: Final = 2
_BRIM_EIGHTHS: Final = 1
# The part of a pool that fetch sessions may take, and by how much more those that exist may grow. Other nodes
# have few requests in progress, and their sessions have all partitions that are replicated.
_SESSIONS_OF_CLIENTS: Final = 1 / 4
_SESSIONS_OF_NODES: Final = 1 / 2
_SESSION_GROWTH: Final = 3 / 2
_SMALL_BYTES: Final = 64 * 1024
_SMALL_CONTROL_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 1.0
_LOOK_WHEN_SHORT_SECONDS: Final = 0.1
# How long nothing may move on a connection that holds memory, while memory is short and while there is none.
_STALL_SECONDS: Final = 10.0
_STALL_WHEN_FULL_SECONDS: Final = 1.0
# While there is none, how long the responses of a connection may take at the rate at which its client reads:
# clients give up a request after `request.timeout.ms`, 30 s unless they are configured otherwise.
_LONGEST_DRAIN_SECONDS: Final = 30.0
# Connections that are looked at in one turn of the loop.
_LOOKS_PER_TURN: Final = 500


class MemoryHolder(Protocol):
    """A connection, as a pool sees it."""

    @property
    def held_bytes(self) -> int:
        """The bytes of requests and responses that it has counted."""
        ...

    @property
    def last_taken(self) -> float:
        """When its client was last seen to take bytes of its responses."""
        ...

    @property
    def last_active(self) -> float:
        """When bytes last moved in either direction."""
        ...

    @property
    def is_reading_paused(self) -> bool: ...

    def has_unread(self) -> bool: ...

    def drain_seconds(self, now: float) -> float:
        """How long its client would take to read its responses at the rate of late; 0 if that is not known
        yet.
        """
        ...

    def look_at_unread(self, now: float) -> None: ...

    def on_memory_available(self) -> None: ...

    def abort_because(self, reason: str) -> None: ...


class ResponseWaiter(Protocol):
    """A request whose response takes much memory."""

    @property
    def connection(self) -> MemoryHolder: ...

    def wake(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a pool holds, and what it has done about it."""

    limit: int
    requests: int
    responses: int
    sessions: int
    work: int
    unread_connections: int
    incomplete_requests: int
    waiting: int
    slow_readers_closed: int
    slow_senders_closed: int

    @property
    def used(self) -> int:
        return self.requests + self.responses + self.sessions + self.work


class MemoryPool:
    """The part of the budget for one kind of connections."""

    __slots__ = (
        "_brim",
        "_express",
        "_growing",
        "_max_brim",
        "_max_limit",
        "_max_requests",
        "_reading",
        "_session_part",
        "_slow_readers_closed",
        "_slow_senders_closed",
        "_small_starting",
        "_starting",
        "_timer",
        "_wake_scheduled",
        "_waking",
        "has_waiting",
        "incomplete",
        "is_short",
        "limit",
        "plenty",
        "requests",
        "responses",
        "sessions",
        "small",
        "unasked",
        "unread",
        "work",
    )

    def __init__(self, session_part: float = _SESSIONS_OF_CLIENTS) -> None:
        self.requests = 0
        self.responses = 0
        self.sessions = 0
        self.work = 0
        self._session_part: Final = session_part
        # Set by `configure`; what sessions take is taken off.
        self._max_limit = self._max_brim = DEFAULT_BYTES
        # A connection does not ask before it holds more while all is below `unasked`.
        self.limit = self.plenty = self.unasked = self._brim = DEFAULT_BYTES
        self.small = _SMALL_BYTES
        self.is_short = False
        # In the order in which they began to hold something.
        self.unread: dict[MemoryHolder, None] = {}
        self.incomplete: dict[MemoryHolder, None] = {}
        # Above 0, the bytes of requests alone at which no other is let in (`queued.max.request.bytes`).
        self._max_requests = -1
        # Connections that wait to receive more of a request and to start one; responses that wait to be made.
        self._growing: deque[MemoryHolder] = deque()
        self._starting: deque[MemoryHolder] = deque()
        self._small_starting: deque[MemoryHolder] = deque()
        self._reading: dict[ResponseWaiter, None] = {}
        self.has_waiting = False
        # The one connection whose incomplete request may grow although there is no memory.
        self._express: MemoryHolder | None = None
        self._wake_scheduled = False
        self._waking = False
        self._timer: asyncio.TimerHandle | None = None
        self._slow_readers_closed = 0
        self._slow_senders_closed = 0

    def configure(self, limit: int, brim: int, max_requests: int) -> None:
        self._max_limit = limit
        self._max_brim = brim
        self.small = min(_SMALL_BYTES, max(1, limit // 64))
        self._max_requests = max_requests
        self._set_levels()

    def _set_levels(self) -> None:
        # The limit may have been lowered below what sessions take.
        taken = min(self.sessions + self.work, self._max_limit * 3 // 4)
        self.limit = self._max_limit - taken
        self.plenty = self.limit * 3 // 4
        self._brim = self._max_brim - taken
        # With a limit for requests alone each one asks.
        self.unasked = self.plenty if self._max_requests <= 0 else -1
        self.on_released()

    @property
    def used(self) -> int:
        """What requests and responses take of the limit."""
        return self.requests + self.responses

    def use(self) -> MemoryUse:
        return MemoryUse(
            limit=self._max_limit,
            requests=self.requests,
            responses=self.responses,
            sessions=self.sessions,
            work=self.work,
            unread_connections=len(self.unread),
            incomplete_requests=len(self.incomplete),
            waiting=self.waiting,
            slow_readers_closed=self._slow_readers_closed,
            slow_senders_closed=self._slow_senders_closed,
        )

    @property
    def waiting(self) -> int:
        """How many connections wait to receive requests, and how many responses to be made."""
        return len(self._growing) + len(self._starting) + len(self._small_starting) + len(self._reading)

    # Fetch sessions

    def may_hold_session(self, size: int, *, exists: bool) -> bool:
        """Whether a new fetch session, or one that `exists` and grows, may take so many bytes more."""
        most = self._max_limit * self._session_part * (_SESSION_GROWTH if exists else 1)
        return self.sessions + size <= most

    def hold_session(self, size: int) -> None:
        """Count so many bytes more for a fetch session."""
        self.sessions += size
        self._set_levels()

    def release_session(self, size: int) -> None:
        self.sessions -= size
        assert self.sessions >= 0, self.sessions
        self._set_levels()

    def count_work(self, size: int) -> None:
        """Count so many bytes more for heavy work, or fewer if that is below 0."""
        self.work += size
        assert self.work >= 0, self.work
        self._set_levels()

    # Requests

    def try_start(self, connection: MemoryHolder, size: int, *, has_records: bool) -> bool:
        """Whether the connection may hold so much more for a request that begins; otherwise it waits for
        `on_memory_available`. Called only if that would take more than `unasked`.
        """
        if self.requests == 0:
            return True  # One is let in alone, whatever its size.
        used = self.requests + self.responses
        is_small = size + connection.held_bytes <= (self.small if has_records else _SMALL_CONTROL_BYTES)
        if used + size > self.plenty:
            self._begin_shortage()
        if used + size <= (self.plenty if not is_small else self.limit if has_records else self._brim) and (
            not 0 < self._max_requests <= self.requests
        ):
            return True
        self._wait(self._small_starting if is_small else self._starting, connection)
        return False

    def try_grow(self, connection: MemoryHolder, size: int) -> bool:
        """Whether the connection may hold so much more of a request that it receives; otherwise it waits for
        `on_memory_available`.
        """
        if self.requests + self.responses + size > self.plenty:
            self._begin_shortage()
            if self._express is None:
                self._express = connection
            if self._express is not connection:
                self._wait(self._growing, connection)
                return False
        return True

    def on_complete(self, connection: MemoryHolder) -> None:
        """A request is not received any more: it is complete, or was dropped."""
        self.incomplete.pop(connection, None)
        if self._express is connection:
            self._express = None
            self.on_released()

    # Responses

    def may_read(self, connection: MemoryHolder) -> bool:
        """Whether a response may be made for the connection. Called only above `unasked`."""
        used = self.requests + self.responses
        if used < self.plenty:
            return True
        self._begin_shortage()
        # Where requests alone take all, they would wait for each other: one response at a time is made.
        return (used < self.limit or self.responses == 0) and not connection.has_unread()

    def wait_to_read(self, request: ResponseWaiter) -> None:
        """Wake the request when responses may be made again."""
        self._reading[request] = None
        self.has_waiting = True

    def response_bytes(self) -> int:
        """How large a response should be at most, if one may be made: half of what is left while there is
        much, then the share of one among the connections that hold responses.
        """
        free = self.plenty - self.requests - self.responses
        if free > self.plenty // 2:
            return max(free // 2, self.small)
        return max(min(free, self.plenty // (1 + len(self.unread))), self.small)

    # Waiting

    def _wait(self, queue: deque[MemoryHolder], connection: MemoryHolder) -> None:
        self.has_waiting = True
        if self._waking:
            queue.appendleft(connection)
        else:
            queue.append(connection)

    def on_released(self) -> None:
        """Let those go on that wait for memory, after some was released."""
        if self.has_waiting and not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Let those go on that wait, in their order, until one has to wait again."""
        self._wake_scheduled = False
        self._waking = True
        try:
            for queue in (self._growing, self._small_starting, self._starting):
                while queue:
                    connection = queue.popleft()
                    connection.on_memory_available()
                    if queue and queue[0] is connection:
                        break
        finally:
            self._waking = False
        room = max(0, self.limit - self.requests - self.responses) // self.small
        if self.responses == 0:
            room = max(room, 1)
        for request in list(islice(self._reading, room)):
            del self._reading[request]
            request.wake()
        self.has_waiting = self.waiting > 0

    def forget(self, connection: MemoryHolder) -> None:
        """Drop a connection that has ended, or belongs to another pool now."""
        self.unread.pop(connection, None)
        self.on_complete(connection)
        for queue in (self._growing, self._small_starting, self._starting):
            if connection in queue:
                queue.remove(connection)
        for request in [each for each in self._reading if each.connection is connection]:
            del self._reading[request]
            request.wake()
        self.has_waiting = self.waiting > 0
        self.on_released()

    # Connections that stall

    def watch(self) -> None:
        """Look at connections that hold memory, again and again while there are any."""
        if self._timer is None:
            delay = _LOOK_WHEN_SHORT_SECONDS if self.is_short else _LOOK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _begin_shortage(self) -> None:
        if not self.is_short:
            self.is_short = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.watch()

    def _look(self) -> None:
        self._look_at(list(self.unread), 0)

    def _look_at(self, connections: list[MemoryHolder], start: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = start + _LOOKS_PER_TURN
        if end < len(connections):
            loop.call_soon(self._look_at, connections, end)
        else:
            self._timer = None
            loop.call_soon(self._after_look, now)
        for connection in connections[start:end]:
            connection.look_at_unread(now)

    def _after_look(self, now: float) -> None:
        if self.unread or self.incomplete or self.is_short:
            self.watch()  # first, so that no error ends the looks
        was_short = self.is_short
        self.is_short = self.used > self.plenty or bool(self._express or self._growing)
        if self.is_short:
            self._close_stalled(now)
        if was_short and not self.is_short:
            _log.info("memory of connections suffices again: %d of %d bytes", self.used, self.limit)
        self.on_released()

    def _close_stalled(self, now: float) -> None:
        """Close connections that hold memory while nothing moves, the longest stalled first, and where there
        is none left also those that read too slowly, until there is enough; in any case the one that may
        grow, if it does not and others wait for that.
        """
        is_full = self.used >= self.limit or self.waiting > 0
        stall_seconds = _STALL_WHEN_FULL_SECONDS if is_full else _STALL_SECONDS
        since = now - stall_seconds
        stalled = [
            (each.last_taken, each, f"it read nothing of its responses for {now - each.last_taken:.0f} s")
            for each in self.unread
            if each.last_taken <= since
        ]
        stalled += [
            (
                each.last_active,
                each,
                f"it sent nothing more of its request for {now - each.last_active:.0f} s",
            )
            for each in self.incomplete
            if each.last_active <= since and not each.is_reading_paused
        ]
        stalled.sort(key=lambda entry: entry[0])
        if is_full:
            slow = [(each.drain_seconds(now), each) for each in self.unread]
            slow.sort(key=lambda entry: entry[0], reverse=True)
            stalled += [
                (now, each, f"it would take {seconds:.0f} s to read its responses as slowly as it does")
                for seconds, each in slow
                if seconds > _LONGEST_DRAIN_SECONDS
            ]
        closed: set[MemoryHolder] = set()
        left = self.used
        for _, connection, reason in stalled:
            if len(closed) >= _LOOKS_PER_TURN:
                break
            holds_others_up = connection is self._express and bool(self._growing)
            if connection in closed or (left <= self.plenty and not holds_others_up):
                continue
            closed.add(connection)
            held = connection.held_bytes
            left -= held
            if connection in self.unread:
                self._slow_readers_closed += 1
            else:
                self._slow_senders_closed += 1
            connection.abort_because(
                f"{reason}, and memory for connections is short: it held {held} bytes, all hold {self.used} "
                f"of {self.limit} (connections.memory.max.bytes)"
            )


class MemoryBudget:
    """The pools of a node, and the limit that they share."""

    __slots__ = ("clients", "nodes")

    def __init__(self, limit: int = DEFAULT_BYTES, max_requests: int = -1) -> None:
        self.clients: Final = MemoryPool()
        self.nodes: Final = MemoryPool(_SESSIONS_OF_NODES)
        self.configure(limit, max_requests)

    @property
    def used(self) -> int:
        return self.clients.use().used + self.nodes.use().used

    def configure(self, limit: int, max_requests: int) -> None:
        """Set the bytes for all, and, above 0, those for requests of clients alone."""
        nodes, brim = limit * _NODES_EIGHTHS // 8, limit * _BRIM_EIGHTHS // 8
        self.clients.configure(limit - nodes - brim, limit - nodes, max_requests)
        self.nodes.configure(nodes, nodes, -1)
