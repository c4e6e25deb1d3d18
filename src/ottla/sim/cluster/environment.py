"""The environment that the clients of a simulated cluster share: its address, the checker and the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ottla.protocol.errors import KafkaError
from ottla.runtime.random import Random
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.journal import Journal, OperationState, SentRecord
from ottla.sim.world import World

# Topics: written with any acks; written by idempotent producers only; copies of the orders; one with many
# partitions, if the scenario has one; one that is deleted and created again, for share groups; and one whose
# records expire, where topics are tiered.
EVENTS, ORDERS, COPIES, MANY, JOBS, EXPIRING = "events", "orders", "copies", "many", "jobs", "expiring"
# One that is compacted, whose records have a key each.
LATEST = "latest"
_KEYS = 6


@dataclass(slots=True)
class ClusterEnvironment:
    world: World
    checker: ClusterChecker
    servers: str | Mapping[str, str]
    """Where it is, and how to log in there."""
    brokers: tuple[int, ...]
    # The topics that are there from the beginning, and the number of their partitions.
    topics: Mapping[str, int]
    # The settings of new topics.
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    # `stopping`: writers and administrators finish. `draining`, after that: readers read the rest and finish.
    stopping: bool = False
    draining: bool = False
    ended: set[str] = field(default_factory=set)

    def trace(self, who: str, text: str) -> None:
        self.world.trace.add(who, text)

    def on_sent(self, sent: SentRecord) -> None:
        self.journal.sent.append(sent)
        self.trace(sent.session, f"sends {sent.value!r} to {sent.topic}-{sent.partition}")

    def on_delivered(self, sent: SentRecord, offset: int) -> None:
        self.trace(sent.session, f"{sent.value!r} is acknowledged at {sent.topic}-{sent.partition} {offset}")
        sent.state, sent.offset = OperationState.DONE, offset
        self.checker.on_acknowledged(sent)

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic in the newest metadata image."""
        image = self.checker.newest.topics.by_name.get(topic)
        return 0 if image is None else len(image.partitions)


def keyed(value: str, random: Random) -> bytes:
    """A value of a record of the compacted topic, which says what its key is."""
    return f"k{random.randrange(0, _KEYS)}={value}".encode()


def key_of(value: bytes | None) -> bytes:
    return (value or b"").partition(b"=")[0]


class SimClient(Protocol):
    """A client on a machine of its own, which runs `main` whenever it boots."""

    name: str

    async def main(self, runtime: Runtime) -> None: ...


async def attempt(environment: ClusterEnvironment, who: str, what: Callable[[], Awaitable[None]]) -> bool:
    """Await `what`; False if it failed with an error that faults of the cluster explain."""
    try:
        await what()
    except (KafkaError, OSError) as error:
        environment.trace(who, f"gives up: {error}")
        return False
    return True
