"""Where the leader went: what a client that asked the wrong broker, or knew an old epoch, is told."""

from __future__ import annotations

from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.topic_view import BrokerAddress, broker_address
from ottla.protocol.errors import ErrorCode

MOVED: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class LeaderHints:
    """Collects the leaders that a response names, and their addresses."""

    __slots__ = ("_context", "addresses")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self.addresses: dict[int, BrokerAddress] = {}

    def leader(self, topic: bytes | str, partition: int) -> tuple[int, int] | None:
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
