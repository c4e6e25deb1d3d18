"""Requests to other brokers, by the inter-broker listener that each of them has registered.

Responses come in the order of the requests, and one part of the node must not wait for the requests of
another; so each part that sends some has connections of its own, and each fetcher too.
"""

from __future__ import annotations

from typing import Final

from ottla.metadata.image.cache import MetadataCache
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import PLAINTEXT, ConnectionSecurity
from ottla.runtime.address import Address
from ottla.runtime.network import Network


class PeerBrokers:
    def __init__(
        self,
        network: Network,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        self._network: Final = network
        self._security: Final = security
        self._config: Final = config
        self._metadata: Final = metadata

    def address(self, broker: int) -> Address | None:
        """The address of a broker, as it has registered last; None if there is none."""
        registration = self._metadata.image.cluster.brokers.get(broker)
        if registration is None:
            return None
        endpoint = registration.listeners.get(self._config.current.inter_broker_listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def channel(self, purpose: str) -> InterNodeClient:
        """Make connections for one part of the node; `purpose` is part of their client id."""
        client_id = f"broker-{self._config.current.node_id}-{purpose}"
        return InterNodeClient(self._network, client_id, self._security)

    def peer_channel(self, purpose: str) -> PeerChannel:
        return PeerChannel(self, self.channel(purpose))


class PeerChannel:
    """Requests of one part of the node to any broker, by its id."""

    __slots__ = ("_channel", "_peers")

    def __init__(self, peers: PeerBrokers, channel: InterNodeClient) -> None:
        self._peers: Final = peers
        self._channel: Final = channel

    async def request(
        self, broker: int, request: Request, newest_version: int, *, timeout_ms: int
    ) -> Response:
        """Return the response of a broker. OSError if it cannot be reached or does not answer in time;
        KafkaError if it does not speak a version that can carry the request.
        """
        address = self._peers.address(broker)
        if address is None:
            raise ConnectionError(f"broker {broker} is not registered with an address for brokers")
        return await self._channel.request(address, request, newest_version, timeout_ms=timeout_ms)

    def close(self) -> None:
        self._channel.close()
