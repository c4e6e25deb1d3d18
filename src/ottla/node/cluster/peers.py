"""The way to the other brokers: by the listener that brokers use among themselves, where the metadata says
that it is.

What one part of the node waits for must not hold up another, and answers come in the order of the questions;
so each part that asks has a line of its own, and each fetcher too.
"""

from __future__ import annotations

from typing import Final

from ottla.metadata.image.cache import MetadataCache
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.listeners import SecurityProtocol
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.network import Network


def inter_broker_listener(config: NodeConfig) -> str:
    """The name of the listener by which brokers talk to each other."""
    name = config["inter.broker.listener.name"]
    if name is not None:
        return str(name).upper()
    protocol = SecurityProtocol[config.text("security.inter.broker.protocol").upper()]
    for endpoint in config.advertised_listeners:
        if endpoint.protocol is protocol:
            return endpoint.name
    return protocol.name


class PeerBrokers:
    def __init__(self, network: Network, config: DynamicBrokerConfig, metadata: MetadataCache) -> None:
        self._network: Final = network
        self._config: Final = config
        self._metadata: Final = metadata

    def address(self, broker: int) -> Address | None:
        """Where a broker is reached, as it has registered last."""
        registration = self._metadata.image.cluster.brokers.get(broker)
        if registration is None:
            return None
        endpoint = registration.listeners.get(inter_broker_listener(self._config.current))
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def channel(self, purpose: str) -> InterNodeClient:
        """Connections that nobody else uses; `purpose` is how the other side sees them."""
        return InterNodeClient(self._network, f"broker-{self._config.current.node_id}-{purpose}")

    def peer_channel(self, purpose: str) -> PeerChannel:
        return PeerChannel(self, self.channel(purpose))


class PeerChannel:
    """Questions of one kind to any broker."""

    __slots__ = ("_channel", "_peers")

    def __init__(self, peers: PeerBrokers, channel: InterNodeClient) -> None:
        self._peers: Final = peers
        self._channel: Final = channel

    async def ask(self, broker: int, request: Request, newest_version: int, *, timeout_ms: int) -> Response:
        """OSError if the broker cannot be reached or does not answer in time; KafkaError if it does not
        speak a version that can carry the request.
        """
        address = self._peers.address(broker)
        if address is None:
            raise ConnectionError(f"broker {broker} is not registered with an address for brokers")
        return await self._channel.request(address, request, newest_version, timeout_ms=timeout_ms)

    def close(self) -> None:
        self._channel.close()
