"""The controller of a node: its listeners and its registration. `metadata/controller` has what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.node.cluster.controller_registration_manager import ControllerRegistrationManager
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.config.listeners import Endpoint
from ottla.node.network.connection import ClientConnection
from ottla.node.server.shared_server import SharedServer
from ottla.node.server.socket_servers import SocketServers
from ottla.protocol.api import ListenerType


class ControllerServer:
    def __init__(self, shared: SharedServer, sockets: SocketServers, cluster_id: str) -> None:
        self._shared: Final = shared
        self.server: Final = sockets.make(
            ListenerType.CONTROLLER, shared.controller_gate, cluster_id, self._on_connection_closed
        )

    async def listen(self) -> Sequence[Endpoint]:
        """Open the listeners; return where other nodes reach this controller. Their requests wait until the
        node takes part in the quorum, which needs these addresses.
        """
        shared, config = self._shared, self._shared.config
        await shared.endpoints.open(self.server, config.listeners_of_controller)
        shared.stop_sequence.add(self.server.stop)
        shared.endpoints.warn_of_open_controllers(is_authorized=shared.authorizer is not None)
        return shared.endpoints.reachable(config.advertised_of_controller)

    def register(self, quorum: QuorumMember, endpoints: Sequence[Endpoint]) -> ControllerRegistrationManager:
        """Register this controller in the background, and keep it registered."""
        shared = self._shared
        registration = ControllerRegistrationManager(
            shared.config.node_id, shared.incarnation_id, endpoints, quorum.metadata, quorum.controllers
        )
        shared.stop_sequence.add(shared.tasks.start("controller registration", registration.run).stop)
        return registration

    def _on_connection_closed(self, connection: ClientConnection) -> None:
        services = self._shared.controller_gate.services
        if services is not None:
            services.controller.liveness.on_connection_closed(connection)
