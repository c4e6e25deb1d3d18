"""What the five APIs of the share coordinator have in common.

Their requests name share partitions of one group, by topic; their responses have a result for each of them.
Only nodes of the cluster may send them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from ottla.coordinator.share.persister import PersisterResult, ShareState, StateSummary
from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.response_errors import error_for_each_part
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.schema import Request, Response
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


PartitionT = TypeVar("PartitionT", bound=StatePartition)


def respond(
    context: RequestContext,
    request: Request,
    group_id: str,
    topics: Sequence[StateTopic[PartitionT]],
    data: Callable[[PartitionT], D],
    operation: Callable[
        [ShareCoordinatorService, str, Mapping[TopicIdPartition, D]], Awaitable[dict[TopicIdPartition, R]]
    ],
    fill_in: Callable[[Any, R], None] = lambda _part, _result: None,
) -> Response | Awaitable[Response]:
    """Run an operation of the share coordinator for the partitions of a request, with `data` of each. The
    response, there or to be awaited, has the error of each, and else what `fill_in` sets.
    """
    context.require_cluster_action()
    if not group_id or not topics or any(not topic.partitions for topic in topics):
        # As in Kafka, where no group, no topic or a topic without partitions is named.
        empty = error_for_each_part(request, ErrorCode.NONE, None)
        empty.results = []
        return cast("Response", empty)
    run = partial(operation, context.broker.coordinators.share, group_id)
    return _respond(context, request, topics, data, run, fill_in)


async def _respond(
    context: RequestContext,
    request: Request,
    topics: Sequence[StateTopic[PartitionT]],
    data: Callable[[PartitionT], D],
    run: Callable[[Mapping[TopicIdPartition, D]], Awaitable[dict[TopicIdPartition, R]]],
    fill_in: Callable[[Any, R], None],
) -> Response:
    results = await run_for_partitions(context.broker.runtime.clock, topics, data, run)
    return await context.build(_filled, request, results, fill_in)


def _filled(
    request: Request, results: Mapping[TopicIdPartition, R], fill_in: Callable[[Any, R], None]
) -> Response:
    response = error_for_each_part(request, ErrorCode.NONE, None)
    for topic in response.results:
        for part in topic.partitions:
            result = results[TopicIdPartition(topic.topic_id, part.partition)]
            if result.error is ErrorCode.NONE:
                fill_in(part, result)
            part.error_code, part.error_message = int(result.error), result.error_message
    return cast("Response", response)


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
