"""What the clients of a simulated cluster share: where it is, what is wanted of them, and whom they tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from ottla.protocol.errors import KafkaError
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.journal import Journal, OperationState, SentRecord
from ottla.sim.world import World

__all__ = ["COPIES", "EVENTS", "ORDERS", "SimClient", "ClusterEnvironment", "attempt"]

# Written by anybody, with any acks; only by those who double nothing; only by those who copy the orders.
EVENTS, ORDERS, COPIES = "events", "orders", "copies"


@dataclass(slots=True)
class ClusterEnvironment:
    world: World
    checker: ClusterChecker
    servers: str
    brokers: tuple[int, ...]
    topics: tuple[str, ...] = (EVENTS, ORDERS, COPIES)
    journal: Journal = field(default_factory=Journal)
    # Writers and administrators are to come to an end; then readers are to read the rest.
    stopping: bool = False
    draining: bool = False
    ended: set[str] = field(default_factory=set)

    def tell(self, who: str, text: str) -> None:
        self.world.trace.add(who, text)

    def delivered(self, sent: SentRecord, offset: int) -> None:
        sent.state, sent.offset = OperationState.DONE, offset
        self.checker.acknowledged(sent)

    def partitions(self, topic: str) -> int:
        """How many there are, as far as anybody has followed the metadata."""
        image = self.checker.newest.topics.by_name.get(topic)
        return 0 if image is None else len(image.partitions)


class SimClient(Protocol):
    """A program on a machine of its own; ``main`` runs in each of its lives."""

    name: str

    async def main(self, runtime: Runtime) -> None: ...


async def attempt(environment: ClusterEnvironment, who: str, what: Callable[[], Awaitable[None]]) -> bool:
    """Do what may fail as any request to a cluster in trouble does; whether it worked."""
    try:
        await what()
    except (KafkaError, OSError) as error:
        environment.tell(who, f"gives up: {error}")
        return False
    return True
