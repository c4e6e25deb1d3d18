"""Limit the connections that a server accepts, as Kafka's `ConnectionQuotas`.

`max.connections` and `max.connection.creation.rate` hold for all listeners together and, with the prefix of a
listener, for that one; at either limit no further connection is accepted until there is room, and clients
wait in the backlog of the system. `max.connections.per.ip`, with overrides, closes what is too much; a quota
of an address on the connections that it makes per second (`connection_creation_rate`) closes them too, after
the time that the address has to wait. The
listener of other brokers, where it is not the only one, is exempt from the limits for all: it may connect
although they are reached, and the server closes the least recently used connection of another listener.

Invariant: the counts of addresses and those of listeners are never negative, and the sum of each is the count
of all connections.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from ottla.node.config.node_config import NodeConfig
from ottla.node.config.rules import parse_ip_overrides
from ottla.runtime.address import plain_host
from ottla.security.quota.rate import QuotaWindows, Rate

_log = logging.getLogger(__name__)

UNLIMITED: Final = 2**31 - 1
_RETRY_SECONDS: Final = 0.05
_MAX_IPS: Final = 20_000


class ConnectionRate:
    """Connections per second over the windows of `quota.window.num` and `quota.window.size.seconds`."""

    __slots__ = ("_rate", "_windows", "limit")

    def __init__(self, windows: QuotaWindows | None = None) -> None:
        self.limit = UNLIMITED
        self._windows = windows or QuotaWindows()
        self._rate: Rate | None = None

    def record(self, now: float, count: int = 1) -> None:
        """Count connections; below 0, take back what was counted."""
        if self.limit >= UNLIMITED:
            return
        now_ms = int(now * 1000)
        if self._rate is None:
            self._rate = Rate(self._windows, now_ms)
        self._rate.record(count, now_ms)

    def delay_s(self, now: float) -> float:
        """For how long none may follow, at most the length of a window."""
        if self.limit >= UNLIMITED or self._rate is None:
            return 0.0
        delay_ms = self._rate.throttle_ms(max(self.limit, 1), int(now * 1000))
        return min(delay_ms, self._windows.window_ms) / 1000


class IpRates:
    """Connections per second of single addresses, by the quotas of addresses. At most `_MAX_IPS` addresses
    are remembered, those that connected last.
    """

    __slots__ = ("_default", "_limits", "_rates", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows: Final = windows
        self._default: int | None = None
        self._limits: Final[dict[str, int]] = {}
        # The one that connected last at the end.
        self._rates: Final[dict[str, ConnectionRate]] = {}

    def update(self, ip: str | None, limit: float | None) -> None:
        """Set the quota of an address, or the default with None; without a limit, remove it."""
        whole = None if limit is None or not math.isfinite(limit) else int(limit)
        if ip is None:
            self._default = whole
        elif whole is None:
            self._limits.pop(ip, None)
        else:
            self._limits[ip] = whole

    def try_record(self, host: str, now: float) -> float | None:
        """Count a connection of an address; if that is too much, for how long it has to wait instead."""
        limit = self._limits.get(host, self._default)
        if limit is None:
            return None
        rate = self._rates.pop(host, None)
        if rate is None:
            rate = ConnectionRate(self._windows)
            if len(self._rates) >= _MAX_IPS:
                del self._rates[next(iter(self._rates))]
        self._rates[host] = rate
        rate.limit = limit
        rate.record(now)
        delay_s = rate.delay_s(now)
        if delay_s <= 0:
            return None
        rate.record(now, -1)
        return delay_s


class ListenerQuota:
    """The limits and counts of one listener; `on_accepted` decides on each connection."""

    __slots__ = ("_quotas", "connections", "is_full", "max_connections", "name", "rate")

    def __init__(self, quotas: ConnectionQuotas, name: str, rate: ConnectionRate) -> None:
        self._quotas = quotas
        self.name = name
        self.connections = 0
        self.max_connections = UNLIMITED
        self.rate = rate
        # Whether it was logged that it accepts no more.
        self.is_full = False

    def delay_s(self) -> float:
        return self._quotas.delay_s(self)

    def on_accepted(self, host: str) -> float | None:
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
        self._windows = QuotaWindows(
            config.number("quota.window.num"), config.number("quota.window.size.seconds")
        )
        self._rate = ConnectionRate(self._windows)
        self._ip_rates = IpRates(self._windows)
        self._per_ip: Counter[str] = Counter()
        self._rejected = 0
        self.configure(config)

    def configure(self, config: NodeConfig) -> None:
        self._config = config
        self._max_connections = config.number("max.connections")
        self._max_per_ip = config.number("max.connections.per.ip")
        self._per_ip_overrides = parse_ip_overrides(config.text("max.connections.per.ip.overrides"))
        self._rate.limit = config.number("max.connection.creation.rate")
        for listener in self._listeners.values():
            self._configure_listener(listener)

    def _configure_listener(self, listener: ListenerQuota) -> None:
        config = self._config
        listener.max_connections = config.of_listener(listener.name, "max.connections", UNLIMITED)
        rate = config.of_listener(listener.name, "max.connection.creation.rate", UNLIMITED)
        listener.rate.limit = rate

    def update_ip_quota(self, ip: str | None, limit: float | None) -> None:
        """Set the connections per second of an address, or of each without a quota of its own."""
        self._ip_rates.update(None if ip is None else plain_host(ip), limit)

    def listener(self, name: str) -> ListenerQuota:
        """The limits of a listener, which are made when it is first asked for."""
        found = self._listeners.get(name)
        if found is None:
            found = self._listeners[name] = ListenerQuota(self, name, ConnectionRate(self._windows))
            self._configure_listener(found)
        return found

    def connections_by_listener(self) -> dict[str, int]:
        """The connections of each listener by its name."""
        return {name: listener.connections for name, listener in self._listeners.items()}

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
        if is_full and not listener.is_full:
            _log.warning(
                "%s does not accept more connections until others are closed: it has %d of at most %d, the "
                "node %d of at most %d (max.connections)",
                listener.name,
                listener.connections,
                listener.max_connections,
                self._total,
                self._max_connections,
            )
        listener.is_full = is_full
        return max(delay_s, _RETRY_SECONDS) if is_full else delay_s

    def try_add(self, listener: ListenerQuota, host: str) -> float | None:
        """Count a new connection from an address and return None; or if the address has too many or they
        come too fast, after how long it is to be closed.
        """
        host = _without_zone(host)
        now = self._now()
        delay_s = self._ip_rates.try_record(host, now)
        if delay_s is not None:
            return delay_s
        allowed = self._per_ip_overrides.get(host, self._max_per_ip)
        if self._per_ip[host] >= allowed:
            self._log_rejection(host, allowed)
            return 0.0
        listener.rate.record(now)
        if not self.is_protected(listener.name):
            self._rate.record(now)
        self._per_ip[host] += 1
        self._total += 1
        listener.connections += 1
        return None

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
