"""Limit the connections that a server accepts, as Kafka's `ConnectionQuotas`.

`max.connections` and `max.connection.creation.rate` hold for all listeners together and, with the prefix of a
listener, for that one; at either limit no further connection is accepted until there is room, and clients
wait in the backlog of the system. `max.connections.per.ip`, with overrides, closes what is too much. The
listener of other brokers, where it is not the only one, is exempt from the limits for all: it may connect
although they are reached, and the server closes the least recently used connection of another listener.

Invariant: the counts of addresses and those of listeners are never negative, and the sum of each is the count
of all connections.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

from ottla.node.config.node_config import NodeConfig
from ottla.node.config.rules import parse_ip_overrides

_log = logging.getLogger(__name__)

_UNLIMITED = 2**31 - 1
_RETRY_SECONDS = 0.05


class ConnectionRate:
    """Connections per second over the windows of `quota.window.num` and `quota.window.size.seconds`.

    As Kafka's, all but the newest window count in full from the beginning, so that some connections may come
    at once.
    """

    __slots__ = ("_count", "_windows", "limit", "samples", "window_seconds")

    def __init__(self) -> None:
        self.limit = _UNLIMITED
        self.samples = 11
        self.window_seconds = 1.0
        # When each began, and its connections; the oldest first.
        self._windows: deque[tuple[float, int]] = deque()
        self._count = 0

    def record(self, now: float, count: int = 1) -> None:
        """Count connections; below 0, take back what was counted."""
        if self.limit >= _UNLIMITED:
            return
        if self._windows and now - self._windows[-1][0] < self.window_seconds:
            began, before = self._windows.pop()
            self._windows.append((began, before + count))
        else:
            self._windows.append((now, count))
        self._count += count

    def delay_s(self, now: float) -> float:
        """For how long none may follow, at most the length of a window."""
        if self.limit >= _UNLIMITED:
            return 0.0
        while self._windows and now - self._windows[0][0] >= self.samples * self.window_seconds:
            self._count -= self._windows.popleft()[1]
        in_newest = now - self._windows[-1][0] if self._windows else 0.0
        elapsed = (self.samples - 1) * self.window_seconds + min(in_newest, self.window_seconds)
        excess = self._count - self.limit * elapsed
        return (
            min(max(excess / max(self.limit, 1), _RETRY_SECONDS), self.window_seconds) if excess > 0 else 0.0
        )


class ListenerQuota:
    """The limits and counts of one listener; `on_accepted` decides on each connection."""

    __slots__ = ("_quotas", "connections", "max_connections", "name", "rate")

    def __init__(self, quotas: ConnectionQuotas, name: str) -> None:
        self._quotas = quotas
        self.name = name
        self.connections = 0
        self.max_connections = _UNLIMITED
        self.rate = ConnectionRate()

    def delay_s(self) -> float:
        return self._quotas.delay_s(self)

    def on_accepted(self, host: str) -> bool:
        return self._quotas.try_add(self, host)

    def on_failed(self, host: str) -> None:
        self._quotas.remove(self, host)


class ConnectionQuotas:
    def __init__(self, config: NodeConfig, protected_listener: str | None, now: Callable[[], float]) -> None:
        """`protected_listener` is that of other brokers."""
        self._now = now
        self._protected_listener = protected_listener
        self._listeners: dict[str, ListenerQuota] = {}
        self._total = 0
        self._rate = ConnectionRate()
        self._per_ip: Counter[str] = Counter()
        self._rejected = 0
        self._is_full = False
        self.configure(config)

    def configure(self, config: NodeConfig) -> None:
        self._config = config
        self._max_connections = config.number("max.connections")
        self._max_per_ip = config.number("max.connections.per.ip")
        self._per_ip_overrides = parse_ip_overrides(config.text("max.connections.per.ip.overrides"))
        self._configure_rate(self._rate, config.number("max.connection.creation.rate"))
        for listener in self._listeners.values():
            self._configure_listener(listener)

    def _configure_listener(self, listener: ListenerQuota) -> None:
        config = self._config
        listener.max_connections = config.of_listener(listener.name, "max.connections", _UNLIMITED)
        self._configure_rate(
            listener.rate, config.of_listener(listener.name, "max.connection.creation.rate", _UNLIMITED)
        )

    def _configure_rate(self, rate: ConnectionRate, limit: int) -> None:
        rate.limit = limit
        rate.samples = self._config.number("quota.window.num")
        rate.window_seconds = float(self._config.number("quota.window.size.seconds"))

    def listener(self, name: str) -> ListenerQuota:
        """The limits of a listener, which are made when it is first asked for."""
        found = self._listeners.get(name)
        if found is None:
            found = self._listeners[name] = ListenerQuota(self, name)
            self._configure_listener(found)
        return found

    def is_protected(self, listener: str) -> bool:
        """Whether a listener is that of other brokers, and not the only one."""
        return listener == self._protected_listener and len(self._listeners) > 1

    @property
    def excess(self) -> int:
        """By how much the limit for all is exceeded."""
        return max(0, self._total - self._max_connections)

    def delay_s(self, listener: ListenerQuota) -> float:
        """For how long a listener may accept no connection."""
        now = self._now()
        is_full = listener.connections >= listener.max_connections
        delay_s = listener.rate.delay_s(now)
        if not self.is_protected(listener.name):
            is_full = is_full or self._total >= self._max_connections
            delay_s = max(delay_s, self._rate.delay_s(now))
        if is_full and not self._is_full:
            _log.warning(
                "%s does not accept more connections until others are closed: it has %d of at most %d, the "
                "node %d of at most %d (max.connections)",
                listener.name,
                listener.connections,
                listener.max_connections,
                self._total,
                self._max_connections,
            )
        self._is_full = is_full
        return max(delay_s, _RETRY_SECONDS) if is_full else delay_s

    def try_add(self, listener: ListenerQuota, host: str) -> bool:
        """Count a new connection from an address; False if the address has too many."""
        host = _without_zone(host)
        allowed = self._per_ip_overrides.get(host, self._max_per_ip)
        if self._per_ip[host] >= allowed:
            self._log_rejection(host, allowed)
            return False
        now = self._now()
        listener.rate.record(now)
        if not self.is_protected(listener.name):
            self._rate.record(now)
        self._per_ip[host] += 1
        self._total += 1
        listener.connections += 1
        return True

    def remove(self, listener: ListenerQuota, host: str) -> None:
        host = _without_zone(host)
        self._per_ip[host] -= 1
        self._total -= 1
        listener.connections -= 1
        assert 0 <= self._per_ip[host] <= self._total, (host, self._per_ip[host], self._total)
        assert 0 <= listener.connections <= self._total, (listener.name, listener.connections, self._total)
        if not self._per_ip[host]:
            del self._per_ip[host]

    def _log_rejection(self, host: str, allowed: int) -> None:
        # A client that is rejected comes back at once, so not every rejection gets a line.
        self._rejected += 1
        if self._rejected & (self._rejected - 1) == 0:
            _log.warning(
                "Rejected connection from %s, address already has the configured maximum of %d connections "
                "(max.connections.per.ip; %d rejected so far)",
                host,
                allowed,
                self._rejected,
            )


def _without_zone(host: str) -> str:
    """An address without the interface that some of IPv6 are written with."""
    return host.partition("%")[0]
