"""Where a node listens, and by which addresses it is reached.

Ports may be chosen by the system, and a listener on every interface is no address; so what is registered and
told to clients is put together here, from what was configured and what is really open.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint, SecurityProtocol
from ottla.node.network.server import SocketServer

if TYPE_CHECKING:
    from ottla.node.node import Node

log = logging.getLogger(__name__)


class NodeEndpoints:
    def __init__(self, node: Node) -> None:
        self._node: Final = node
        # By the names of listeners, with the ports that they really have.
        self._open: dict[str, Endpoint] = {}

    async def check(self) -> None:
        """Find what would stop the node from serving before it touches a disk: an empty directory stays one,
        and nobody waits for a long recovery to hear of a port in use. Nor does anybody get in before the node
        is there: many take a port that answers for a node that serves.
        """
        listeners = self._node.config.listeners
        for endpoint in listeners:
            if endpoint.protocol is not SecurityProtocol.PLAINTEXT:
                raise NodeFailed(
                    f"listener {endpoint} asks for {endpoint.protocol.name}, which is not served yet"
                )
        with _told_of_ports():
            await self._node.server.check(listeners)

    async def open(self, server: SocketServer, endpoints: Iterable[Endpoint]) -> None:
        with _told_of_ports():
            self._open |= await server.listen(endpoints)

    async def open_unknown(self, server: SocketServer) -> None:
        """Open those of the broker's whose ports are not known before; where they are, clients need not come
        yet.
        """
        await self.open(server, [each for each in self._of_broker() if not each.port])
        for endpoint in self._of_broker():
            self._open.setdefault(endpoint.name, endpoint)

    async def open_known(self, server: SocketServer) -> None:
        """Open the rest of the broker's."""
        await self.open(server, [each for each in self._of_broker() if each.port])

    def _of_broker(self) -> list[Endpoint]:
        of_controller = self._node.config.controller_listener_names
        return [each for each in self._node.config.listeners if each.name not in of_controller]

    def reachable(self, advertised: Iterable[Endpoint]) -> list[Endpoint]:
        """The addresses to register: as advertised, with the ports that are really open."""
        host_name = self._node.runtime.network.host_name()
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
        """Whether the listener is bound to every interface and nobody said how it is reached."""
        endpoint = self._open.get(listener)
        return (
            self._node.config["advertised.listeners"] is None and endpoint is not None and endpoint.wildcard
        )

    def for_clients(self) -> list[Endpoint]:
        """Where clients connect, with the ports that are really open."""
        return [self._open[endpoint.name] for endpoint in self._node.config.advertised_listeners]

    def for_anybody(self) -> list[Endpoint]:
        """Where this node is reached: by clients, or, if it is a controller alone, by the others."""
        if self._node.config.is_broker:
            return self.for_clients()
        return [self._open[endpoint.name] for endpoint in self._node.config.listeners_of_controller]

    def warn_of_open_ones(self) -> None:
        for bound in self.for_clients():
            if bound.wildcard and not bound.protocol.sasl and self._node.authorizer is None:
                log.warning(
                    "%s is open to every network of this machine, and whoever reaches it may read, write and "
                    "delete; bind it to one address, as 127.0.0.1, or guard it with a firewall",
                    bound,
                )


@contextlib.contextmanager
def _told_of_ports() -> Iterator[None]:
    """What the system says of a port, as one line for whoever starts the node."""
    try:
        yield
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        hint = "; is another node running there? --listen chooses another port" if taken else ""
        raise NodeFailed(f"{error.strerror or error}{hint}") from None
