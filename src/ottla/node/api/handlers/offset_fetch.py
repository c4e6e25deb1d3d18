"""OffsetFetch: return the offsets that groups have committed.

A partition without a committed offset has offset -1 and no error. With `require_stable` a partition with an
offset in an open transaction has the error UNSTABLE_OFFSET_COMMIT. A coordinator that is cut off from the
cluster answers NOT_COORDINATOR: the offsets it has may be old.

Version 2 may ask for all topics (null) and has an error for the response (KIP-88).
Version 5 has leader epochs (KIP-320).
Version 6 is flexible (KIP-482).
Version 7 has `require_stable` (KIP-447).
Version 8 takes several groups (KIP-709).
Version 9 checks the member and its epoch (KIP-848).
Version 10 names topics by id (KIP-848).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from ottla.coordinator.group.requests import FetchOffsets
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.node.api.group_requests import add_part, parts_of
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.runtime.turns import Turns

_FIRST_VERSION_OF_BATCHES: Final = 8
_FIRST_VERSION_WITH_ERROR: Final = 2
_FIRST_VERSION_BY_ID: Final = 10


def handle(
    context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups: Sequence[OffsetFetchRequestGroup] = request.groups
    if context.version < _FIRST_VERSION_OF_BATCHES:
        groups = [
            OffsetFetchRequestGroup(
                group_id=request.group_id,
                topics=None
                if request.topics is None
                else [
                    OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                    for topic in request.topics
                ],
            )
        ]
    # A response with all offsets of a group is many times as large as the request for them; one with the
    # offsets of named topics is not.
    distinct = deduplicate_long(groups, lambda each: (each.group_id, each.topics is None or id(each)))
    if context.is_long:
        return _respond_in_turns(context, distinct, request.require_stable)
    groups = list(distinct)
    fetches = [_Fetch(context, group, request.require_stable) for group in groups]
    if all(fetch.done for fetch in fetches):
        return _respond(context, groups, [fetch.response() for fetch in fetches])
    return _respond_later(context, groups, fetches)


async def _respond_later(
    context: RequestContext, groups: Sequence[OffsetFetchRequestGroup], fetches: list[_Fetch]
) -> OffsetFetchResponse:
    for fetch in fetches:
        await fetch.wait()
    return _respond(context, groups, [fetch.response() for fetch in fetches])


async def _respond_in_turns(
    context: RequestContext, groups: Iterable[OffsetFetchRequestGroup], require_stable: bool
) -> OffsetFetchResponse:
    turns, responses = Turns(context.broker.runtime.clock), []
    answered: list[OffsetFetchRequestGroup] = []
    for group in groups:
        answered.append(group)
        response = OffsetFetchResponseGroup(group_id=group.group_id)
        parts = parts_of(group.topics, "partition_indexes") if group.topics else (group.topics,)
        for part in parts:
            fetch = _Fetch(context, group.replace(topics=part), require_stable)
            await fetch.wait()
            found = fetch.response()
            if found.error_code:
                response = found
                break
            add_part(response.topics, found.topics)
            await turns.pause_if_due()
        responses.append(response)
        await turns.pause_if_due()
    return await context.broker.runtime.pool.run(_respond, context, answered, responses)


class _Fetch:
    """The offsets of one group, once its coordinator has returned them."""

    def __init__(self, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool) -> None:
        self._context = context
        self._group = group
        self._refused: list[OffsetFetchResponseTopics] = []
        self._ticket: Ticket[OffsetFetchResponseGroup] | None = None
        self._error: KafkaError | None = None
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id):
            self._error = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return
        wanted = OffsetFetchRequestGroup(
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
            topics=None if group.topics is None else self._check_topics(group.topics),
        )
        self._ticket = context.broker.coordinators.groups.submit(
            group.group_id, FetchOffsets(wanted, require_stable)
        )

    def _check_topics(self, topics: list[OffsetFetchRequestTopics]) -> list[OffsetFetchRequestTopics]:
        known = []
        for topic in topics:
            code = ErrorCode.NONE
            if self._context.version >= _FIRST_VERSION_BY_ID:
                image = self._context.image.topics.by_id.get(topic.topic_id)
                if image is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    topic.name = image.name
            if code is ErrorCode.NONE and not self._may_describe(topic.name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code is ErrorCode.NONE:
                known.append(topic)
            else:
                self._refused.append(_error(topic, code))
        return known

    def _may_describe(self, topic: str) -> bool:
        return self._context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)

    @property
    def done(self) -> bool:
        return self._ticket is None or self._ticket.done

    async def wait(self) -> None:
        if self._ticket is not None:
            try:
                await self._ticket
            except KafkaError as error:
                self._error = error.again()

    def response(self) -> OffsetFetchResponseGroup:
        error = self._error
        if error is None and self._ticket is not None:
            try:
                found = self._ticket.result()
                if self._context.broker.coordinators.may_have_moved(self._group.group_id):
                    error = KafkaError(ErrorCode.NOT_COORDINATOR)
            except KafkaError as raised:
                error = raised.again()
        if error is not None:
            return OffsetFetchResponseGroup(group_id=self._group.group_id, error_code=int(error.code))
        if self._group.topics is None:
            found.topics = self._visible(found.topics)
        found.topics += self._refused
        return found

    def _visible(self, topics: list[OffsetFetchResponseTopics]) -> list[OffsetFetchResponseTopics]:
        """Of all topics those that the client may describe, with their current ids."""
        by_name = self._context.image.topics.by_name
        shown = [topic for topic in topics if self._may_describe(topic.name)]
        if self._context.version >= _FIRST_VERSION_BY_ID:
            shown = [topic for topic in shown if topic.name in by_name]
            for topic in shown:
                topic.topic_id = by_name[topic.name].id
        return shown


def _respond(
    context: RequestContext,
    groups: Sequence[OffsetFetchRequestGroup],
    responses: list[OffsetFetchResponseGroup],
) -> OffsetFetchResponse:
    if context.version >= _FIRST_VERSION_OF_BATCHES:
        return OffsetFetchResponse(groups=responses)
    (group,), (response,) = groups, responses
    code = response.error_code
    topics = response.topics
    if code and context.version < _FIRST_VERSION_WITH_ERROR:
        topics = [_error(topic, ErrorCode.of(code)) for topic in group.topics or ()]
    return OffsetFetchResponse(
        error_code=code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


def _error(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=partition, committed_offset=-1, metadata="", error_code=int(code)
            )
            for partition in topic.partition_indexes
        ],
    )
