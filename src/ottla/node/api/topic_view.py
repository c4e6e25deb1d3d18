"""Topics and brokers as a client sees them: only brokers it can reach by its own listener, each partition
with the error that its state is to a client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ottla.metadata.image.entities import NO_LEADER, BrokerRegistration, PartitionRegistration
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.context import ApiRequestContext, RequestContext
from ottla.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


def broker_address(context: RequestContext, broker: BrokerRegistration) -> BrokerAddress | None:
    """Where the client reaches the broker by the listener it uses itself; None if it cannot.

    This node, bound to all interfaces and with nothing advertised, is where the client has found it.
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
    """The broker that clients are to take for the controller: any one will do, as each forwards requests."""
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
    """How a client of one listener sees partitions, at one image."""

    __slots__ = ("_image", "_listener", "_reachable", "_version")

    def __init__(self, image: MetadataImage, listener: str, metadata_version: int = 99) -> None:
        self._image = image
        self._listener = listener
        # Metadata: version 0 hides replicas that are away; versions below 6 know no LISTENER_NOT_FOUND.
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
