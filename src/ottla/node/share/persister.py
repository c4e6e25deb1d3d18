"""The state of share partitions, kept by their coordinators (Kafka's `DefaultStatePersister`
over a `PersisterStateManager`).

The coordinator of a share partition is the leader of its partition of `__share_group_state`. Requests for
other brokers are batched, by broker and kind: while one is in flight, the next gathers what comes meanwhile.
What this broker coordinates does not pass through the network. Very many share partitions are gone through in
turns.

A coordinator that is loading, has moved or cannot be reached is asked again, after a pause that grows, and a
limited number of times; then its error is the answer. Every operation can be repeated: a write says what the
state of offsets is, not how it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.coordinator.runtime.partitioning import partition_for
from ottla.coordinator.share.persister import (
    InitialState,
    Persister,
    PersisterResult,
    PersisterStateBatch,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from ottla.protocol.names import SHARE_GROUP_STATE_TOPIC, SharePartitionKey, TopicIdPartition
from ottla.protocol.schema import Request, Response
from ottla.protocol.share import DeadLetterPlace
from ottla.rpc.backoff import ExponentialBackoff
from ottla.rpc.request_batcher import RequestBatcher
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.coordinator.share.service import ShareCoordinatorService

_log = logging.getLogger(__name__)

D = TypeVar("D")
R = TypeVar("R", PersisterResult, ShareState, StateSummary)

# All attempts together take as long as those of Kafka, about 15 seconds, but the first pauses are shorter.
_FIRST_PAUSE_MS: Final = 100
_MAX_PAUSE_MS: Final = 5_000
_ATTEMPTS: Final = 9
# Requests in flight to one broker, each for a group.
_GROUPS_AT_A_TIME: Final = 20

# More share partitions than these are gone through in turns.
_AT_ONCE: Final = 100

_RETRIABLE: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


@dataclass(frozen=True, slots=True)
class _Item(Generic[D]):
    """One share partition of a request."""

    group_id: str
    partition: TopicIdPartition
    data: D


@dataclass(frozen=True, slots=True)
class _StateApi(Generic[D, R]):
    """One kind of request: how it is written, read, and carried out by a coordinator on this broker."""

    name: str
    newest_version: int
    request: Callable[[str, Mapping[bytes, list[tuple[int, D]]]], Request]
    results: Callable[[Any], Iterable[tuple[TopicIdPartition, R]]]
    failure: Callable[[ErrorCode, str], R]
    local: Callable[[Persister, str, Mapping[TopicIdPartition, D]], Awaitable[dict[TopicIdPartition, R]]]


class DefaultStatePersister:
    """`local` is the coordinator of this broker; `create_topic` has an internal topic created."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        *,
        local: Callable[[], ShareCoordinatorService],
        create_topic: Callable[[str], Awaitable[object]],
    ) -> None:
        self._random: Final = runtime.random
        self._clock: Final = runtime.clock
        self._broker_id: Final = config.current.node_id
        self._config: Final = config
        self._metadata: Final = metadata
        self._local: Final = local
        self._create_topic: Final = create_topic
        self._creating: Final = asyncio.Lock()
        self._channel: Final = peers.peer_channel("share-state")
        self._batchers: Final[dict[str, RequestBatcher[_Item[Any], Any]]] = {
            api.name: RequestBatcher(partial(self._send, api), _key_of) for api in _APIS
        }
        self._closed = False

    def on_broker_gone(self, broker: int) -> None:
        """Give up the requests to a broker that was fenced or has left; its successor is asked instead."""
        for batcher in self._batchers.values():
            batcher.on_broker_gone(broker)

    async def close(self) -> None:
        self._closed = True
        for batcher in self._batchers.values():
            await batcher.close()
        self._channel.close()

    # The operations

    async def initialize_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, InitialState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        return await self._run(_INITIALIZE, group_id, partitions)

    async def read_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, ShareState]:
        return await self._run(_READ, group_id, partitions)

    async def write_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, WriteState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        return await self._run(_WRITE, group_id, partitions)

    async def delete_state(
        self, group_id: str, partitions: Iterable[TopicIdPartition], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        return await self._run(_DELETE, group_id, dict.fromkeys(partitions))

    async def read_summary(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, StateSummary]:
        return await self._run(_READ_SUMMARY, group_id, partitions)

    # Attempts

    async def _run(
        self, api: _StateApi[D, R], group_id: str, partitions: Mapping[TopicIdPartition, D]
    ) -> dict[TopicIdPartition, R]:
        """Ask the coordinators of share partitions, and those again whose answer may change."""
        results: dict[TopicIdPartition, R] = {}
        left = partitions
        turns = self._turns_for(partitions)
        pauses: ExponentialBackoff | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            answers = await self._attempt(api, group_id, left)
            again: dict[TopicIdPartition, D] = {}
            if turns is not None:
                turns.begin()
            for tp, answer in answers.items():
                results[tp] = answer
                if self._may_change(tp, answer.error):
                    again[tp] = left[tp]
                if turns is not None and turns.is_due():
                    await turns.pause()
            left = again
            if not left or attempt == _ATTEMPTS or self._closed:
                break
            if pauses is None:
                pauses = ExponentialBackoff(self._random, _FIRST_PAUSE_MS, _MAX_PAUSE_MS)
            await asyncio.sleep(pauses.next_ms() / 1000)
        if left:
            tp = next(iter(left))
            _log.warning(
                "%s of group %s failed for %d partitions after %d attempts; the first error is %s: %s",
                api.name,
                group_id,
                len(left),
                attempt,
                results[tp].error.name,
                results[tp].error_message,
            )
        ordered: dict[TopicIdPartition, R] = {}
        for tp in partitions:
            ordered[tp] = results[tp]
            if turns is not None and turns.is_due():
                await turns.pause()
        return ordered

    def _turns_for(self, partitions: Mapping[TopicIdPartition, object]) -> Turns | None:
        return Turns(self._clock, check_every=4) if len(partitions) > _AT_ONCE else None

    def _may_change(self, tp: TopicIdPartition, error: ErrorCode) -> bool:
        """Whether it makes sense to ask again. A partition that this broker does not know either is gone."""
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return self._metadata.image.topics.partition(tp.topic_id, tp.partition) is not None
        return error in _RETRIABLE

    async def _attempt(
        self, api: _StateApi[D, R], group_id: str, partitions: Mapping[TopicIdPartition, D]
    ) -> dict[TopicIdPartition, R]:
        if SHARE_GROUP_STATE_TOPIC not in self._metadata.image.topics.by_name:
            await self._create_state_topic()
        results: dict[TopicIdPartition, R] = {}
        here: dict[TopicIdPartition, D] = {}
        sent: list[tuple[TopicIdPartition, asyncio.Future[R]]] = []
        batcher: RequestBatcher[_Item[Any], R] = self._batchers[api.name]
        turns = self._turns_for(partitions)
        for tp, data in partitions.items():
            broker = self._coordinator(SharePartitionKey(group_id, *tp))
            if broker == self._broker_id:
                here[tp] = data
            elif broker == NO_LEADER or self._closed:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                results[tp] = api.failure(code, "Error in find coordinator. " + code.text)
            else:
                sent.append((tp, batcher.submit(broker, _Item(group_id, tp, data))))
            if turns is not None and turns.is_due():
                await turns.pause()
        if here:
            results |= await api.local(self._local(), group_id, here)
        if turns is not None:
            turns.begin()
        for tp, answer in sent:
            if turns is not None and turns.is_due():
                await turns.pause()
            try:
                results[tp] = await answer
            except OSError as error:
                code = ErrorCode.REQUEST_TIMED_OUT if isinstance(error, TimeoutError) else _UNREACHABLE
                results[tp] = api.failure(code, f"Error in {api.name}. {error}")
        return results

    def _coordinator(self, key: SharePartitionKey) -> int:
        """The broker that coordinates a share partition; NO_LEADER if none does now."""
        image = self._metadata.image
        topic = image.topics.by_name.get(SHARE_GROUP_STATE_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_for(key.coordinator_key, len(topic.partitions))].leader

    async def _create_state_topic(self) -> None:
        async with self._creating:
            if SHARE_GROUP_STATE_TOPIC in self._metadata.image.topics.by_name or self._closed:
                return
            try:
                await self._create_topic(SHARE_GROUP_STATE_TOPIC)
            except (KafkaError, OSError) as error:
                _log.info("%s could not be created: %s", SHARE_GROUP_STATE_TOPIC, error)

    # On other brokers

    async def _send(self, api: _StateApi[Any, R], broker: int, items: Sequence[_Item[Any]]) -> list[R]:
        """Send a batch to a broker: one request for each group in it."""
        groups: dict[str, dict[bytes, list[tuple[int, Any]]]] = {}
        for item in items:
            topics = groups.setdefault(item.group_id, {})
            topics.setdefault(item.partition.topic_id, []).append((item.partition.partition, item.data))
        found: dict[tuple[str, TopicIdPartition], R] = {}
        waiting = list(groups.items())
        while waiting:
            part, waiting = waiting[:_GROUPS_AT_A_TIME], waiting[_GROUPS_AT_A_TIME:]
            responses = await asyncio.gather(
                *(self._request(api, broker, api.request(group_id, topics)) for group_id, topics in part)
            )
            for (group_id, _), response in zip(part, responses, strict=True):
                found |= {(group_id, tp): result for tp, result in api.results(response)}
        missing = api.failure(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"Broker {broker} did not answer {api.name} for the partition"
        )
        return [found.get((item.group_id, item.partition), missing) for item in items]

    async def _request(self, api: _StateApi[Any, R], broker: int, request: Request) -> Response:
        timeout_ms = self._config.current.number("request.timeout.ms")
        return await self._channel.request(broker, request, api.newest_version, timeout_ms=timeout_ms)


_UNREACHABLE: Final = ErrorCode.NETWORK_EXCEPTION


def _key_of(item: _Item[Any]) -> tuple[str, TopicIdPartition]:
    return item.group_id, item.partition


# The five kinds of requests


def _request(
    request: Callable[..., Request], topic: Callable[..., Any], partition: Callable[[int, D], Any]
) -> Callable[[str, Mapping[bytes, list[tuple[int, D]]]], Request]:
    """Requests of a kind, from the classes of their message."""

    def build(group_id: str, topics: Mapping[bytes, list[tuple[int, D]]]) -> Request:
        return request(
            group_id=group_id,
            topics=[
                topic(topic_id=topic_id, partitions=[partition(index, data) for index, data in partitions])
                for topic_id, partitions in topics.items()
            ],
        )

    return build


def _results(result: Callable[[Any], R]) -> Callable[[Any], Iterable[tuple[TopicIdPartition, R]]]:
    """How the results of all partitions are read from a response."""

    def read(response: Any) -> Iterable[tuple[TopicIdPartition, R]]:
        for topic in response.results:
            for part in topic.partitions:
                yield TopicIdPartition(topic.topic_id, part.partition), result(part)

    return read


def _write_partition(partition: int, state: WriteState) -> write_share_group_state.PartitionData:
    module = write_share_group_state
    data = module.PartitionData(
        partition=partition,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        state_batches=[
            module.StateBatch(
                first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
            )
            for first, last, delivery_state, count in state.batches
        ],
    )
    if state.dead_letter_place is not None:
        state.dead_letter_place.put(data)
    return data


def _outcome(part: Any) -> PersisterResult:
    """The result of a request that is answered by an error code alone."""
    return PersisterResult(ErrorCode.of(part.error_code), part.error_message)


def _state(part: read_share_group_state.PartitionResult) -> ShareState:
    return ShareState(
        ErrorCode.of(part.error_code),
        part.error_message,
        part.state_epoch,
        part.start_offset,
        tuple(
            PersisterStateBatch(
                batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
            )
            for batch in part.state_batches
        ),
        DeadLetterPlace.of(part),
    )


def _summary(part: read_share_group_state_summary.PartitionResult) -> StateSummary:
    return StateSummary(
        ErrorCode.of(part.error_code),
        part.error_message,
        part.state_epoch,
        part.leader_epoch,
        part.start_offset,
        part.delivery_complete_count,
    )


_INITIALIZE: Final[_StateApi[InitialState, PersisterResult]] = _StateApi(
    "InitializeShareGroupState",
    0,
    _request(
        initialize_share_group_state.InitializeShareGroupStateRequest,
        initialize_share_group_state.InitializeStateData,
        lambda partition, state: initialize_share_group_state.PartitionData(
            partition=partition, state_epoch=state.state_epoch, start_offset=state.start_offset
        ),
    ),
    _results(_outcome),
    PersisterResult,
    lambda coordinator, group_id, partitions: coordinator.initialize_state(group_id, partitions),
)
_READ: Final[_StateApi[int, ShareState]] = _StateApi(
    "ReadShareGroupState",
    0,
    _request(
        read_share_group_state.ReadShareGroupStateRequest,
        read_share_group_state.ReadStateData,
        lambda partition, epoch: read_share_group_state.PartitionData(
            partition=partition, leader_epoch=epoch
        ),
    ),
    _results(_state),
    ShareState,
    lambda coordinator, group_id, partitions: coordinator.read_state(group_id, partitions),
)
_WRITE: Final[_StateApi[WriteState, PersisterResult]] = _StateApi(
    "WriteShareGroupState",
    1,
    _request(
        write_share_group_state.WriteShareGroupStateRequest,
        write_share_group_state.WriteStateData,
        _write_partition,
    ),
    _results(_outcome),
    PersisterResult,
    lambda coordinator, group_id, partitions: coordinator.write_state(group_id, partitions),
)
_DELETE: Final[_StateApi[None, PersisterResult]] = _StateApi(
    "DeleteShareGroupState",
    0,
    _request(
        delete_share_group_state.DeleteShareGroupStateRequest,
        delete_share_group_state.DeleteStateData,
        lambda partition, _: delete_share_group_state.PartitionData(partition=partition),
    ),
    _results(_outcome),
    PersisterResult,
    lambda coordinator, group_id, partitions: coordinator.delete_state(group_id, partitions),
)
_READ_SUMMARY: Final[_StateApi[int, StateSummary]] = _StateApi(
    "ReadShareGroupStateSummary",
    1,
    _request(
        read_share_group_state_summary.ReadShareGroupStateSummaryRequest,
        read_share_group_state_summary.ReadStateSummaryData,
        lambda partition, epoch: read_share_group_state_summary.PartitionData(
            partition=partition, leader_epoch=epoch
        ),
    ),
    _results(_summary),
    StateSummary,
    lambda coordinator, group_id, partitions: coordinator.read_summary(group_id, partitions),
)
_APIS: Final[tuple[_StateApi[Any, Any], ...]] = (_INITIALIZE, _READ, _WRITE, _DELETE, _READ_SUMMARY)
