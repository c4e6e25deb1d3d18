"""Limit the connections that a server accepts: `max.connections` and `max.connections.per.ip`, with
overrides.

Invariant: the count of an address is never negative, and their sum is the count of all connections.
"""

from __future__ import annotations

import logging
from collections import Counter

from ottla.node.config.node_config import NodeConfig
from ottla.node.config.rules import parse_ip_overrides

_log = logging.getLogger(__name__)


class ConnectionQuotas:
    def __init__(self, config: NodeConfig) -> None:
        self._total = 0
        self._per_ip: Counter[str] = Counter()
        self._rejected = 0
        self.configure(config)

    def configure(self, config: NodeConfig) -> None:
        self._max_connections = config.number("max.connections")
        self._max_per_ip = config.number("max.connections.per.ip")
        self._per_ip_overrides = parse_ip_overrides(config.text("max.connections.per.ip.overrides"))

    def try_add(self, host: str) -> bool:
        """Count a new connection from an address; False if the address or the server has too many."""
        allowed = self._per_ip_overrides.get(host, self._max_per_ip)
        if self._total >= self._max_connections:
            self._log_rejection(host, "the node", self._max_connections, "max.connections")
            return False
        if self._per_ip[host] >= allowed:
            self._log_rejection(host, "address", allowed, "max.connections.per.ip")
            return False
        self._per_ip[host] += 1
        self._total += 1
        return True

    def remove(self, host: str) -> None:
        self._per_ip[host] -= 1
        self._total -= 1
        assert 0 <= self._per_ip[host] <= self._total, (host, self._per_ip[host], self._total)
        if not self._per_ip[host]:
            del self._per_ip[host]

    def _log_rejection(self, host: str, holder: str, maximum: int, setting: str) -> None:
        # A client that is rejected comes back at once, so not every rejection gets a line.
        self._rejected += 1
        if self._rejected & (self._rejected - 1) == 0:
            _log.warning(
                "Rejected connection from %s, %s already has the configured maximum of %d connections "
                "(%s; %d rejected so far)",
                host,
                holder,
                maximum,
                setting,
                self._rejected,
            )
