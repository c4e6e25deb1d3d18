"""The operations on share groups that wait: for the persister, and for the ends of partitions.

The group coordinator's shard decides and writes; this part asks the persister in between. What the shard
sends out is done in the background, so that a heartbeat never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

from ottla.coordinator.group.requests import (
    AlterShareGroupOffsets,
    CompleteDeleteShareGroupOffsets,
    DeleteGroup,
    DeleteShareGroupOffsets,
    InitializedSharePartitions,
    ShareStatesInitialized,
    ShareStatesToInitialize,
)
from ottla.coordinator.group.service import GroupCoordinatorService
from ottla.coordinator.share.persister import (
    UNINITIALIZED_DELIVERY_COMPLETE_COUNT,
    UNINITIALIZED_START_OFFSET,
    InitialState,
    Persister,
    PersisterResult,
    StateSummary,
)
from ottla.metadata.image.cache import MetadataCache
from ottla.node.coordinators.partition_metadata_client import LatestOffset, PartitionMetadataClient
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import cancel
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

_UNKNOWN_LAG: Final = -1
_MAX_LAG: Final = 2**63 - 1
_ANY_LEADER_EPOCH: Final = -1
_NOT_ALTERED: Final = PersisterResult(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.text
)


class ShareGroupOperations:
    def __init__(
        self,
        groups: Callable[[], GroupCoordinatorService],
        metadata: MetadataCache,
        persister: Callable[[], Persister],
        latest_offsets: Callable[[], PartitionMetadataClient],
        clock: Clock,
    ) -> None:
        self._clock: Final = clock
        self._groups: Final = groups
        self._metadata: Final = metadata
        self._persister: Final = persister
        self._latest_offsets: Final = latest_offsets
        self._tasks: Final[dict[asyncio.Task[None], None]] = {}

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    # States of partitions that a group begins to read

    def on_sends(self, _index: int, work: list[Any]) -> None:
        for each in work:
            if isinstance(each, ShareStatesToInitialize):
                task = asyncio.get_running_loop().create_task(
                    self._initialize(each), name=f"share states of group {each.group_id}"
                )
                self._tasks[task] = None
                task.add_done_callback(partial(self._tasks.pop))

    async def _initialize(self, work: ShareStatesToInitialize) -> None:
        """Have states made, and tell the group's coordinator. Its heartbeats repeat what does not succeed."""
        try:
            state = InitialState(work.state_epoch)
            results = await self._persister().initialize_state(
                work.group_id, dict.fromkeys(work.partitions, state)
            )
            await self._on_initialized(work.group_id, results)
        except KafkaError as error:
            _log.info("The share states of group %s were not noted: %s", work.group_id, error)
        except Exception:
            _log.exception("The share states of group %s could not be initialized", work.group_id)

    async def _on_initialized(
        self, group_id: str, results: Mapping[TopicIdPartition, PersisterResult]
    ) -> None:
        initialized: list[TopicIdPartition] = []
        failed: list[TopicIdPartition] = []
        turns = Turns(self._clock, check_every=8)
        for each, result in results.items():
            (initialized if result.error is ErrorCode.NONE else failed).append(each)
            if turns.is_due():
                await turns.pause()
        operation = ShareStatesInitialized(group_id, tuple(initialized), tuple(failed))
        unneeded = await self._groups().submit(group_id, operation)
        if unneeded:
            await self._persister().delete_state(group_id, unneeded)

    # DeleteGroups

    async def delete_group(self, group_id: str) -> None:
        """Delete a group of any kind; the states of a share group first."""
        partitions = await self._groups().submit(group_id, DeleteGroup(group_id))
        if not partitions:
            return
        results = await self._persister().delete_state(group_id, partitions)
        for result in results.values():
            if result.error is not ErrorCode.NONE:
                raise KafkaError(result.error, result.error_message or result.error.text)
        await self._groups().submit(group_id, DeleteGroup(group_id, states_deleted=True))

    # DescribeShareGroupOffsets

    async def describe_offsets(
        self, group_id: str, topics: Sequence[DescribeShareGroupOffsetsRequestTopic]
    ) -> DescribeShareGroupOffsetsResponseGroup:
        """The start offsets of partitions; where there are none, this is no error, as in OffsetFetch."""
        by_name = self._metadata.image.topics.by_name
        asked: list[TopicIdPartition] = []
        unknown: list[DescribeShareGroupOffsetsResponseTopic] = []
        turns = Turns(self._clock)
        for topic in topics:
            known = by_name.get(topic.topic_name)
            if turns.is_due():
                await turns.pause()
            if known is not None:
                asked += map(TopicIdPartition._make, zip(repeat(known.id), topic.partitions, strict=False))
                continue
            unknown.append(
                DescribeShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    partitions=[
                        DescribeShareGroupOffsetsResponsePartition(
                            partition_index=partition, start_offset=UNINITIALIZED_START_OFFSET
                        )
                        for partition in topic.partitions
                    ],
                )
            )
        response = await self._read_summary(group_id, asked)
        response.topics += unknown
        return response

    async def describe_all_offsets(self, group_id: str) -> DescribeShareGroupOffsetsResponseGroup:
        """The start offsets of all partitions that the group has states of."""
        partitions = await self._groups().submit(group_id, InitializedSharePartitions(group_id))
        return await self._read_summary(group_id, partitions)

    async def _read_summary(
        self, group_id: str, partitions: Sequence[TopicIdPartition]
    ) -> DescribeShareGroupOffsetsResponseGroup:
        response = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        if not partitions:
            return response
        by_id = self._metadata.image.topics.by_id
        names: dict[bytes, str] = {}
        asked: dict[TopicIdPartition, int] = {}
        turns = Turns(self._clock, check_every=8)
        for each in partitions:
            if each.topic_id not in names:
                image = by_id.get(each.topic_id)
                if image is None:
                    continue
                names[each.topic_id] = image.name
            asked[each] = _ANY_LEADER_EPOCH
            if turns.is_due():
                await turns.pause()
        summaries = await self._persister().read_summary(group_id, asked)
        turns.begin()
        to_list: list[TopicPartition] = []
        for each, summary in summaries.items():
            if _has_lag(summary):
                to_list.append(TopicPartition(names[each.topic_id], each.partition))
            if turns.is_due():
                await turns.pause()
        latest = await self._latest_offsets().list_latest_offsets(to_list)
        turns.begin()
        topics: dict[bytes, DescribeShareGroupOffsetsResponseTopic] = {}
        for each, summary in summaries.items():
            topic = topics.get(each.topic_id)
            if topic is None:
                topic = DescribeShareGroupOffsetsResponseTopic(
                    topic_name=names[each.topic_id], topic_id=each.topic_id
                )
                topics[each.topic_id] = topic
            end = latest.get(TopicPartition(names[each.topic_id], each.partition))
            topic.partitions.append(_described_partition(each.partition, summary, end))
            if turns.is_due():
                await turns.pause()
        response.topics += topics.values()
        return response

    # AlterShareGroupOffsets

    async def alter_offsets(self, request: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
        """Have the states of partitions begin again at other offsets: the group's coordinator notes which,
        then their states are made.
        """
        turns = Turns(self._clock, check_every=8)
        wanted: dict[str, set[int]] = {}
        for topic in request.topics:
            indexes = wanted.setdefault(topic.topic_name, set())
            for part in topic.partitions:
                indexes.add(part.partition_index)
                if turns.is_due():
                    await turns.pause()
        names = {name: frozenset(partitions) for name, partitions in wanted.items()}
        operation = AlterShareGroupOffsets(request.group_id, names)
        altered = await self._groups().submit(request.group_id, operation)
        ids = {topic.name: id for id, topic in altered.topics.items()}
        states: dict[TopicIdPartition, InitialState] = {}
        turns.begin()
        for topic in request.topics:
            topic_id = ids.get(topic.topic_name)
            if topic_id is None:
                continue
            existing = altered.topics[topic_id].partitions
            for part in topic.partitions:
                if part.partition_index in existing:
                    at = TopicIdPartition(topic_id, part.partition_index)
                    states[at] = InitialState(altered.state_epoch, part.start_offset)
                if turns.is_due():
                    await turns.pause()
        results: dict[TopicIdPartition, PersisterResult] = {}
        if states:
            results = await self._persister().initialize_state(request.group_id, states)
            await self._on_initialized(request.group_id, results)
        response = AlterShareGroupOffsetsResponse()
        turns.begin()
        for topic in request.topics:
            known = self._metadata.image.topics.by_name.get(topic.topic_name)
            topic_id = ids.get(topic.topic_name, bytes(16) if known is None else known.id)
            answered = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=topic_id)
            response.responses.append(answered)
            for part in topic.partitions:
                result = results.get(TopicIdPartition(topic_id, part.partition_index), _NOT_ALTERED)
                answered.partitions.append(
                    AlterShareGroupOffsetsResponsePartition(
                        partition_index=part.partition_index,
                        error_code=int(result.error),
                        error_message=result.error_message if result.error else None,
                    )
                )
                if turns.is_due():
                    await turns.pause()
        return response

    # DeleteShareGroupOffsets

    async def delete_offsets(
        self, version: int, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        names = {
            topic.id: topic.name
            for each in request.topics
            if (topic := self._metadata.image.topics.by_name.get(each.topic_name)) is not None
        }
        begun = await self._groups().submit(group_id, DeleteShareGroupOffsets(request, version))
        response = DeleteShareGroupOffsetsResponse(responses=list(begun.refused))
        if not begun.partitions:
            return response
        results = await self._persister().delete_state(group_id, begun.partitions)
        errors: dict[bytes, ErrorCode] = {}
        turns = Turns(self._clock, check_every=8)
        for each, result in results.items():
            if turns.is_due():
                await turns.pause()
            if errors.get(each.topic_id, ErrorCode.NONE) is ErrorCode.NONE:
                errors[each.topic_id] = result.error
        deleted = frozenset(id for id, error in errors.items() if error is ErrorCode.NONE)
        if deleted:
            await self._groups().submit(group_id, CompleteDeleteShareGroupOffsets(group_id, deleted))
        for topic_id, error in errors.items():
            response.responses.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=names.get(topic_id, ""),
                    topic_id=topic_id,
                    error_code=int(error),
                    error_message=None if error is ErrorCode.NONE else error.text,
                )
            )
        return response


def _has_lag(summary: StateSummary) -> bool:
    return (
        summary.error is ErrorCode.NONE
        and summary.start_offset != UNINITIALIZED_START_OFFSET
        and summary.delivery_complete_count != UNINITIALIZED_DELIVERY_COMPLETE_COUNT
    )


def _described_partition(
    index: int, summary: StateSummary, end: LatestOffset | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if summary.error is not ErrorCode.NONE:
        # There is nothing to describe, which is no error for the client.
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=UNINITIALIZED_START_OFFSET, lag=_UNKNOWN_LAG
        )
    if end is not None and end.error is not ErrorCode.NONE:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=int(end.error), error_message=end.error.text
        )
    lag = _UNKNOWN_LAG
    if end is not None:
        # A start offset is whatever an operator has said, a negative one too.
        lag = min(end.offset - summary.start_offset - summary.delivery_complete_count, _MAX_LAG)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch, lag=lag
    )
