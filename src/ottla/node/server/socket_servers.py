"""The socket servers of a node: one for the listeners of its broker, one for those of its controller.

What they share is made here: the logins of SASL listeners, the dispatchers of requests, the memory for
connections, and the tracer of requests where that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.node.api.context import RequestListener
from ottla.node.api.dispatch import Dispatcher
from ottla.node.api.request_gate import RequestGate
from ottla.node.config.listeners import Endpoint
from ottla.node.network.connection import ClientConnection, RequestDispatcher
from ottla.node.network.server import SocketServer
from ottla.node.server.node_metrics import add_network_collectors
from ottla.node.server.shared_server import SharedServer
from ottla.protocol.api import ListenerType

if TYPE_CHECKING:
    from ottla.node.network.login import SaslListener
    from ottla.node.tracing.tracing import Tracing


class SocketServers:
    def __init__(self, shared: SharedServer) -> None:
        """NodeFailed names a setting of a login that cannot be used."""
        self._shared: Final = shared
        self._logins: Final = _make_logins(shared)
        self._tracing: Tracing | None = None
        self._servers: Final[list[SocketServer]] = []
        add_network_collectors(
            shared.metrics,
            shared.runtime.clock,
            self._servers,
            shared.network_statistics,
            shared.memory,
            self._logins,
            shared.authorizer,
        )

    def make(
        self,
        kind: ListenerType,
        gate: RequestGate,
        cluster_id: str,
        on_closed: Callable[[ClientConnection], None] | None = None,
    ) -> SocketServer:
        """Make the server of the listeners of one kind, whose requests wait at a gate."""
        shared = self._shared
        if self._tracing is None and shared.config.flag("telemetry.traces.enable"):
            self._tracing = _open_tracing(shared, cluster_id)
        server = SocketServer(
            shared.runtime.network,
            shared.config,
            lambda endpoint: self._dispatcher(kind, gate, endpoint),
            on_closed,
            memory=shared.memory,
            tls_for=shared.security.listener_tls,
            login_for=lambda endpoint: self._logins.get(endpoint.name),
            statistics=shared.network_statistics,
        )
        shared.dynamic_config.add_reconfigurable(server.configure)
        self._servers.append(server)
        return server

    def _dispatcher(self, kind: ListenerType, gate: RequestGate, endpoint: Endpoint) -> RequestDispatcher:
        shared = self._shared
        statistics = None
        if shared.network_statistics.now_ns is not None:
            statistics = shared.network_statistics.listener(endpoint.name)
        listener = RequestListener(endpoint.name, kind, shared.config.flag("unstable.api.versions.enable"))
        dispatcher = Dispatcher(gate, listener, shared.quotas, statistics, shared.network_statistics.now_ns)
        if shared.config.flag("native.lane.enable"):
            dispatcher.open_lane()
        if self._tracing is None:
            return dispatcher
        from ottla.node.tracing.request_spans import TracingDispatcher

        return TracingDispatcher(dispatcher, self._tracing.tracer, endpoint.name)


def _open_tracing(shared: SharedServer, cluster_id: str) -> Tracing:
    from ottla.node.tracing.tracing import open_tracing

    tracing = open_tracing(shared.config, cluster_id)

    async def flush() -> None:
        await shared.runtime.pool.run(tracing.flush)

    shared.stop_sequence.add(flush)
    return tracing


def _make_logins(shared: SharedServer) -> dict[str, SaslListener]:
    """Make what SASL listeners ask of clients, by the names of listeners."""
    if not any(endpoint.protocol.sasl for endpoint in shared.config.listeners):
        return {}
    from ottla.node.network.login import sasl_listeners
    from ottla.security.sasl.scram_credentials import MetadataScramCredentials, users_of_records
    from ottla.security.secret import Secret

    tokens = None
    if secret_key := shared.config["delegation.token.secret.key"]:
        from ottla.security.sasl.token_credentials import TokenCredentials

        tokens = TokenCredentials(Secret(str(secret_key)), shared.runtime.clock)
    users = MetadataScramCredentials(
        shared.image, lambda: users_of_records(shared.formatted_records()), tokens
    )
    return sasl_listeners(
        shared.config,
        shared.runtime,
        users,
        shared.tasks,
        opened=shared.broker_gate.opened,
        opened_to_nodes=shared.controller_gate.opened,
    )
