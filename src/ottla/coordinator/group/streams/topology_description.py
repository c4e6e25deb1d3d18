"""What a member of a streams group tells of its application (KIP-1331), for those who look at the group.

Kafka gives a description to a plugin, if an operator has configured one. Here the coordinator of a group
keeps that of the group's topology in memory, and asks a member for it while it has none: after it has moved,
the next coordinator asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
    TopologyDescriptionNode,
)

MAX_BYTES: Final = 1024 * 1024
# How long a member that was asked may take, before another one is asked.
ASK_AGAIN_MS: Final = 60_000


class TopologyDescriptionStatus(IntEnum):
    NOT_REQUESTED = 0
    NOT_STORED = 1
    ERROR = 2
    AVAILABLE = 3


class _NodeType(IntEnum):
    SOURCE = 1
    PROCESSOR = 2
    SINK = 3


class HeldTopologyDescription:
    """The description of a group's topology; `epoch` is that of the topology, -1 before there is any."""

    __slots__ = ("_asked_epoch", "_asked_until_ms", "description", "epoch")

    def __init__(self) -> None:
        self.epoch = -1
        # None also where it was too large to be kept.
        self.description: TopologyDescription | None = None
        self._asked_epoch = -1
        self._asked_until_ms = 0

    def ask(self, topology_epoch: int, now_ms: int) -> bool:
        """Whether to ask the member whose heartbeat is answered; the others are not asked for a while."""
        if topology_epoch == self.epoch:
            return False
        if topology_epoch == self._asked_epoch and now_ms < self._asked_until_ms:
            return False
        self._asked_epoch, self._asked_until_ms = topology_epoch, now_ms + ASK_AGAIN_MS
        return True

    def put(self, request: StreamsGroupTopologyDescriptionUpdateRequest) -> None:
        """Keep a description; KafkaError if it has no sense, or is too large."""
        description = request.topology_description
        _check(description)
        self.epoch, self.description = request.topology_epoch, None
        size = len(request.encode(0))
        if size > MAX_BYTES:
            raise KafkaError(
                ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
                f"The description has {size} bytes; {MAX_BYTES} are kept at most.",
            )
        self.description = description


def nodes_of(description: TopologyDescription | None) -> Iterator[TopologyDescriptionNode]:
    """All nodes of a description, those of global stores included."""
    if description is not None:
        for subtopology in description.subtopologies:
            yield from subtopology.nodes
        for store in description.global_stores:
            yield store.source
            yield store.processor


def _check(description: TopologyDescription) -> None:
    known = frozenset(_NodeType)
    for node in nodes_of(description):
        if node.node_type not in known:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown topology node type: {node.node_type}")
    for store in description.global_stores:
        kinds = (store.source.node_type, store.processor.node_type)
        if kinds != (_NodeType.SOURCE, _NodeType.PROCESSOR):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Global store must be composed of a source and a processor node."
            )
