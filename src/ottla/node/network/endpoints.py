"""The addresses at which a node listens, and those by which it is reached.

Ports may be chosen by the system, and a listener on every interface is no address; so what is registered and
sent to clients is put together here, from what was configured and what is really open.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.network.server import SocketServer
from ottla.runtime.network import Network

log = logging.getLogger(__name__)


class NodeEndpoints:
    def __init__(self, network: Network, config: DynamicBrokerConfig) -> None:
        self._network: Final = network
        self._config: Final = config
        # By the names of listeners, with the ports that they really have.
        self._open: dict[str, Endpoint] = {}

    async def check(self) -> None:
        """Find what would stop the node from serving before it touches a disk: an empty directory stays
        empty, and the operator does not wait for a long recovery to learn of a port in use. No port is open
        yet when this returns: many clients take a port that answers for a node that serves.
        """
        with _port_errors():
            for endpoint in self._config.current.listeners:
                await self._network.check_listen(endpoint.host, endpoint.port)

    async def open(self, server: SocketServer, endpoints: Iterable[Endpoint]) -> None:
        with _port_errors():
            self._open |= await server.listen(endpoints)

    async def open_unknown(self, server: SocketServer) -> None:
        """Open the broker's listeners whose ports the system chooses; at the others clients need not connect
        yet.
        """
        await self.open(server, [each for each in self._of_broker() if not each.port])
        for endpoint in self._of_broker():
            self._open.setdefault(endpoint.name, endpoint)

    async def open_known(self, server: SocketServer) -> None:
        """Open the other listeners of the broker."""
        await self.open(server, [each for each in self._of_broker() if each.port])

    def _of_broker(self) -> list[Endpoint]:
        config = self._config.current
        of_controller = config.controller_listener_names
        return [each for each in config.listeners if each.name not in of_controller]

    def reachable(self, advertised: Iterable[Endpoint]) -> list[Endpoint]:
        """The addresses to register: as advertised, with the ports that are really open."""
        host_name = self._network.host_name()
        return [
            Endpoint(
                endpoint.name,
                endpoint.protocol,
                host_name if endpoint.wildcard else endpoint.host,
                endpoint.port or self._open[endpoint.name].port,
            )
            for endpoint in advertised
        ]

    def advertises_nothing(self, listener: str) -> bool:
        """Whether the listener is bound to every interface and no setting says how it is reached."""
        endpoint = self._open.get(listener)
        return (
            self._config.current["advertised.listeners"] is None
            and endpoint is not None
            and endpoint.wildcard
        )

    def for_clients(self) -> list[Endpoint]:
        """Where clients connect, with the ports that are really open."""
        return [self._open[endpoint.name] for endpoint in self._config.current.advertised_listeners]

    def for_operators(self) -> list[Endpoint]:
        """Where this node is reached: by clients, or, if it is a controller alone, by other nodes."""
        config = self._config.current
        if config.is_broker:
            return self.for_clients()
        return [self._open[endpoint.name] for endpoint in config.listeners_of_controller]

    def warn_of_open_listeners(self, *, is_authorized: bool) -> None:
        """Warn of listeners that other machines reach and that ask no client who it is."""
        if not is_authorized:
            self._warn_of_open(self._of_broker(), "may read, write and delete")

    def warn_of_open_controllers(self, *, is_authorized: bool) -> None:
        """Warn of listeners of the controller in the same way: what comes by them is from other nodes, and
        may name any user.
        """
        if not is_authorized:
            listeners = self._config.current.listeners_of_controller
            self._warn_of_open(listeners, "may act as a node of the cluster, in the name of any user")

    def _warn_of_open(self, listeners: Iterable[Endpoint], may: str) -> None:
        opened = [self._open[each.name] for each in listeners]
        exposed = [each for each in opened if not each.is_loopback and not self._asks(each)]
        if exposed:
            networks = "every network" if any(each.wildcard for each in exposed) else "the network"
            log.warning(
                "%s is open to %s of this machine, and every client that reaches it %s; `ottla secure init` "
                "makes certificates and settings, or bind it to 127.0.0.1",
                ", ".join(map(str, exposed)),
                networks,
                may,
            )

    def _asks(self, endpoint: Endpoint) -> bool:
        """Whether a listener serves only clients that it knows."""
        config = self._config.current
        client_auth = config.with_listener_prefix(endpoint.name, "ssl.client.auth")
        return endpoint.protocol.sasl or (endpoint.protocol.tls and client_auth == "required")


@contextlib.contextmanager
def _port_errors() -> Iterator[None]:
    """Turn what the system says of a port into one line for the operator."""
    try:
        yield
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        hint = "; is another node running there? --listen chooses another port" if taken else ""
        raise NodeFailed(f"Socket server failed to bind: {error.strerror or error}{hint}") from None
