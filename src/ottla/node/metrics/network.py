"""Listeners, connections, their memory, logins and quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.node.network.server import SocketServer
from ottla.runtime.metrics import MetricsText
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.node.network.login import SaslListener
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

_PREFIX: Final = "kafka_server_socket_server_metrics_"
_LISTENER: Final = ("listener",)


class NetworkCollector:
    def __init__(
        self,
        servers: Sequence[SocketServer],
        statistics: NetworkStatistics,
        memory: MemoryBudget,
        logins: Mapping[str, SaslListener],
        authorizer: StandardAuthorizer | None,
    ) -> None:
        self._servers: Final = servers
        self._statistics: Final = statistics
        self._memory: Final = memory
        self._logins: Final = logins
        self._authorizer: Final = authorizer

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        servers = self._servers
        connections: dict[str, int] = {}
        for server in servers:
            connections |= server.connections_by_listener()
        text.gauge(
            f"{_PREFIX}connection_count",
            "Open connections",
            [((name,), count) for name, count in connections.items()],
            _LISTENER,
        )
        listeners = list(self._statistics.listeners.values())
        text.counter(
            f"{_PREFIX}connection_creation_total",
            "Connections that were accepted",
            [((each.name,), each.accepted) for each in listeners],
            _LISTENER,
        )
        for name, what, attribute in (
            ("incoming_byte_total", "Bytes of requests that were answered", "request_bytes"),
            ("outgoing_byte_total", "Bytes of responses", "response_bytes"),
        ):
            text.counter(
                _PREFIX + name,
                what,
                [
                    ((each.name,), sum(getattr(one, attribute) for one in each.requests.values()))
                    for each in listeners
                ],
                _LISTENER,
            )
        logins = self._logins
        text.counter(
            f"{_PREFIX}successful_authentication_total",
            "Logins of clients",
            [((name,), login.logins) for name, login in logins.items()],
            _LISTENER,
        )
        text.counter(
            f"{_PREFIX}failed_authentication_total",
            "Logins that failed",
            [((name,), login.failed_logins) for name, login in logins.items()],
            _LISTENER,
        )
        text.counter(
            "ottla_network_closed_for_fault_total",
            "Connections that were closed for a fault of their client",
            sum(server.closed_for_faults for server in servers),
        )
        text.gauge(
            "kafka_network_requestchannel_requestqueuesize",
            "Requests in progress: started, and not answered yet",
            sum(server.requests_in_progress for server in servers),
        )
        self._write_memory(text)
        if self._authorizer is not None:
            denials = self._authorizer.audit.denials
            text.counter("ottla_authorizer_denials_total", "Operations that were denied", denials)

    def _write_memory(self, text: MetricsText) -> None:
        memory = self._memory
        uses = [("clients", memory.clients.use()), ("nodes", memory.nodes.use())]
        text.gauge(
            "ottla_connection_memory_bytes",
            "Bytes that connections make the node hold, by the pool that they count in",
            [
                ((pool, kind), value)
                for pool, use in uses
                for kind, value in (
                    ("requests", use.requests),
                    ("responses", use.responses),
                    ("sessions", use.sessions),
                )
            ],
            ("pool", "kind"),
        )
        text.gauge(
            "ottla_connection_memory_limit_bytes",
            "The most bytes that connections may make the node hold",
            [((pool,), use.limit) for pool, use in uses],
            ("pool",),
        )
        text.gauge(
            "ottla_connection_memory_waiting",
            "Requests that wait for memory",
            [((pool,), use.waiting) for pool, use in uses],
            ("pool",),
        )
        text.counter(
            "ottla_connection_stalled_closed_total",
            "Connections that were closed because nothing moved while memory was short",
            [((pool,), use.slow_readers_closed + use.slow_senders_closed) for pool, use in uses],
            ("pool",),
        )
