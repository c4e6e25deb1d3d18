"""`StripedReplicaPlacer`: place new replicas evenly over brokers, and spread them over racks.

Kafka's striped placement: brokers of a rack form a ring, racks form a ring, and each partition starts
one step further on both, so leaders and followers spread evenly. Fenced brokers are taken last and never
lead. Randomness is passed in. Invariant: the replicas of a partition are distinct, and its first one is an
unfenced broker.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.steps import Steps

T = TypeVar("T")


class RandomSource(Protocol):
    def randrange(self, start: int, stop: int) -> int: ...


@dataclass(frozen=True, slots=True)
class UsableBroker:
    id: int
    rack: str | None
    fenced: bool


class _Ring:
    """A circular list of brokers that starts one broker later for every partition."""

    __slots__ = ("brokers", "index", "offset", "stripe")

    def __init__(self) -> None:
        self.brokers: list[int] = []
        self.offset = 0
        self.index = 0  # how many this stripe has taken; never above len(brokers)
        self.stripe = 0

    def next(self, stripe: int) -> int | None:
        if not self.brokers:
            return None
        if stripe != self.stripe:
            self.stripe = stripe
            self.index = 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        broker = self.brokers[(self.index + self.offset) % len(self.brokers)]
        self.index += 1
        return broker


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self) -> None:
        self.fenced = _Ring()
        self.unfenced = _Ring()

    def next(self, stripe: int) -> int | None:
        broker = self.unfenced.next(stripe)
        return self.fenced.next(stripe) if broker is None else broker


class StripedReplicaPlacer:
    """The state of one placement; call `place_replicas` instead of using it directly."""

    def __init__(self, brokers: Iterable[UsableBroker], random: RandomSource) -> None:
        self._random = random
        racks: dict[str | None, _Rack] = {}
        self.total = 0
        self.unfenced = 0
        for broker in sorted(brokers, key=lambda b: b.id):
            rack = racks.setdefault(broker.rack, _Rack())
            (rack.fenced if broker.fenced else rack.unfenced).brokers.append(broker.id)
            self.total += 1
            self.unfenced += not broker.fenced
        self._racks = [racks[name] for name in sorted(racks, key=lambda name: (name is not None, name or ""))]
        for rack in self._racks:
            for ring in (rack.fenced, rack.unfenced):
                if ring.brokers:
                    ring.offset = random.randrange(0, len(ring.brokers))
        self._offset = random.randrange(0, len(self._racks)) if self._racks else 0
        self._stripe = 0

    def place(self, replication_factor: int) -> list[int]:
        # Shuffle after as many partitions as there are brokers; otherwise the same pairs would repeat.
        if self._stripe == self.unfenced and self.unfenced > 1:
            self._shuffle()
            self._stripe = 0
        if self._offset >= len(self._racks):
            self._offset = 0
        count = len(self._racks)
        first = self._offset
        while (leader := self._racks[first].unfenced.next(self._stripe)) is None:
            first = (first + 1) % count
        replicas = [leader]
        rack = self._offset
        skip: int | None = first  # the leader's rack is skipped for one round
        while len(replicas) < replication_factor:
            if rack == skip:
                skip = None
            else:
                broker = self._racks[rack].next(self._stripe)
                if broker is not None:
                    replicas.append(broker)
            rack = (rack + 1) % count
        self._stripe += 1
        self._offset += 1
        return replicas

    def _shuffle(self) -> None:
        self._permute(self._racks)
        for rack in self._racks:
            self._permute(rack.fenced.brokers)
            self._permute(rack.unfenced.brokers)

    def _permute(self, items: MutableSequence[T]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self._random.randrange(0, i + 1)
            items[i], items[j] = items[j], items[i]


def place_replicas(
    brokers: Iterable[UsableBroker], partitions: int, replication_factor: int, random: RandomSource
) -> Steps[list[list[int]]]:
    """Place the replicas of new partitions; INVALID_REPLICATION_FACTOR says why there is no placement."""
    placer = StripedReplicaPlacer(brokers, random)
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Invalid replication factor {replication_factor}: the replication factor must be positive.",
        )
    if placer.unfenced == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "All brokers are currently fenced or have all their log directories cordoned.",
        )
    if replication_factor > placer.total:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{placer.total} broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        )
    placement = []
    for _ in range(partitions):
        placement.append(placer.place(replication_factor))
        yield
    return placement
