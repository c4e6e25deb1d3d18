"""The console as an extension of a broker: its listener for HTTP answers for it below `/`.

It is imported with the first request for it, also `in_node`, which makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.api.broker_extension import BrokerExtension
from ottla.node.http.mounts import MountAccess

if TYPE_CHECKING:
    from ottla.node.server.broker_server import BrokerServer
    from ottla.runtime.http_server import HttpMount


class ConsoleExtension(BrokerExtension):
    """There is none where `http.console.enable` is false."""

    name = "the console"

    def __init__(self, broker: BrokerServer) -> None:
        self._broker: Final = broker
        if broker.shared.config.flag("http.console.enable"):
            broker.shared.http.mount("/", self._load, MountAccess.OWN)

    async def _load(self) -> HttpMount:
        from ottla.console.in_node import load_console

        return await load_console(self._broker)
