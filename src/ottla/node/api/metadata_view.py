"""The metadata image as a client sees it: brokers that it can reach by the listener that it uses itself,
partitions with the error that their state means to a client, and current leaders for a client that knows an
old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ottla.metadata.image.entities import NO_LEADER, BrokerRegistration, PartitionRegistration
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.context import ApiRequestContext, RequestContext
from ottla.protocol.errors import ErrorCode

# A response with one of these names the current leader, in versions that can.
LEADER_CHANGED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


def broker_address(context: RequestContext, broker: BrokerRegistration) -> BrokerAddress | None:
    """Return the broker's address on the listener that the client uses itself; None if it has none there.

    A node that is bound to every interface and advertises no address is reached where the client found it.
    """
    endpoint = broker.listeners.get(context.listener.name)
    if endpoint is None:
        return None
    host, port = endpoint.host, endpoint.port
    if broker.id == context.config.node_id and context.services.node.endpoints.advertises_nothing(
        context.listener.name
    ):
        host = context.local_address[0] or host
    return BrokerAddress(broker.id, host, port, broker.rack, broker.fenced)


def advertised_controller_id(context: ApiRequestContext) -> int:
    """The broker that clients take for the controller: any one will do, as each forwards requests."""
    own, brokers = context.config.node_id, context.image.cluster.brokers
    if own in brokers and not brokers[own].fenced:
        return own
    return min((broker.id for broker in brokers.values() if not broker.fenced), default=-1)


def live_brokers(context: RequestContext, image: MetadataImage) -> Iterator[BrokerAddress]:
    for broker in image.cluster.brokers.values():
        if not broker.fenced:
            address = broker_address(context, broker)
            if address is not None:
                yield address


@dataclass(slots=True)
class PartitionView:
    error: ErrorCode
    leader: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class TopicView:
    """Partitions of one image, as clients of one listener see them."""

    __slots__ = ("_image", "_listener", "_reachable", "_version")

    def __init__(self, image: MetadataImage, listener: str, metadata_version: int = 99) -> None:
        self._image = image
        self._listener = listener
        # Metadata version 0 hides replicas that are not available; versions below 6 lack LISTENER_NOT_FOUND.
        self._version = metadata_version
        self._reachable: dict[int, bool] = {}

    def _is_reachable(self, broker: int) -> bool:
        known = self._reachable.get(broker)
        if known is None:
            registration = self._image.cluster.brokers.get(broker)
            known = (
                registration is not None
                and not registration.fenced
                and self._listener in registration.listeners
            )
            self._reachable[broker] = known
        return known

    def partition(self, partition: PartitionRegistration) -> PartitionView:
        replicas, isr = list(partition.replicas), list(partition.isr)
        offline = [replica for replica in replicas if self._is_offline(partition, replica)]
        error, leader = ErrorCode.NONE, partition.leader
        if not self._is_reachable(leader):
            known = leader in self._image.cluster.brokers
            error = (
                ErrorCode.LISTENER_NOT_FOUND
                if known and self._version >= 6
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
            leader = NO_LEADER
        if self._version == 0:
            present = [replica for replica in replicas if self._is_reachable(replica)]
            in_sync = [replica for replica in isr if self._is_reachable(replica)]
            if error is ErrorCode.NONE and (len(present) < len(replicas) or len(in_sync) < len(isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
            replicas, isr = present, in_sync
        return PartitionView(error, leader, replicas, isr, offline)

    def _is_offline(self, partition: PartitionRegistration, replica: int) -> bool:
        if not self._is_reachable(replica):
            return True
        broker = self._image.cluster.brokers[replica]
        return not broker.has_online_directory(partition.directory(replica))


class CurrentLeaders:
    """The leaders that a response names to a client that asked another broker, and their addresses."""

    __slots__ = ("_context", "addresses")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self.addresses: dict[int, BrokerAddress] = {}

    def current_leader(self, topic: bytes | str, partition: int) -> tuple[int, int] | None:
        """The leader and its epoch, as this broker knows them."""
        image = self._context.image
        topics = image.topics
        found = topics.by_id.get(topic) if isinstance(topic, bytes) else topics.by_name.get(topic)
        registration = None if found is None else found.partitions.get(partition)
        if registration is None:
            return None
        broker = image.cluster.brokers.get(registration.leader)
        if broker is not None and broker.id not in self.addresses:
            address = broker_address(self._context, broker)
            if address is not None:
                self.addresses[broker.id] = address
        return registration.leader, registration.leader_epoch
