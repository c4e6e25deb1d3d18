"""What the five APIs of the share coordinator have in common.

Their requests name share partitions of one group, by topic; their responses have a result for each of them.
Only nodes of the cluster may send them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from ottla.coordinator.share.persister import PersisterResult, ShareState, StateSummary
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicIdPartition
from ottla.runtime.clock import Clock
from ottla.runtime.turns import Turns

D = TypeVar("D")
P_co = TypeVar("P_co", covariant=True)
R = TypeVar("R", PersisterResult, ShareState, StateSummary)


class StatePartition(Protocol):
    """One partition in a request."""

    partition: int


class StateTopic(Protocol[P_co]):
    """One topic in a request."""

    topic_id: bytes

    @property
    def partitions(self) -> Sequence[P_co]: ...


def is_empty(group_id: str, topics: Sequence[StateTopic[object]]) -> bool:
    """Whether a request names no group, no topic or a topic without partitions: as in Kafka, its response is
    empty then.
    """
    return not group_id or not topics or any(not topic.partitions for topic in topics)


PartitionT = TypeVar("PartitionT", bound=StatePartition)


async def run_for_partitions(
    clock: Clock,
    topics: Iterable[StateTopic[PartitionT]],
    data: Callable[[PartitionT], D],
    run: Callable[[Mapping[TopicIdPartition, D]], Awaitable[dict[TopicIdPartition, R]]],
) -> dict[TopicIdPartition, R]:
    """Run an operation for the partitions of a request. One that it names several times is done as often,
    and has the first error among its results.
    """
    rounds: list[dict[TopicIdPartition, D]] = [{}]
    named: Counter[TopicIdPartition] = Counter()
    turns = Turns(clock)
    for topic in topics:
        for part in topic.partitions:
            tp = TopicIdPartition(topic.topic_id, part.partition)
            if named[tp] == len(rounds):
                rounds.append({})
            rounds[named[tp]][tp] = data(part)
            named[tp] += 1
            await turns.pause_if_due()
    results: dict[TopicIdPartition, R] = {}
    for each in rounds:
        for tp, result in (await run(each)).items():
            if tp not in results or results[tp].error is ErrorCode.NONE:
                results[tp] = result
            await turns.pause_if_due()
    return results


class StatePartitionResult(Protocol):
    """One partition in a response that only says whether something was done."""

    partition: int
    error_code: int
    error_message: str | None


def fill_in(
    topics: Iterable[StateTopic[StatePartitionResult]], results: Mapping[TopicIdPartition, PersisterResult]
) -> None:
    """Fill the results into a response that has their partitions."""
    for topic in topics:
        for part in topic.partitions:
            result = results[TopicIdPartition(topic.topic_id, part.partition)]
            part.error_code, part.error_message = int(result.error), result.error_message
