"""ListOffsets: find the offset of a timestamp, or of one of the special values.

-1 is the end of the log (for read_committed the last stable offset), -2 its start, -3 the record with the
greatest timestamp, -4 the start of what is on the local disk, -5 the end of what is in remote storage, -6 the
first offset that still waits for its upload. Where there is no such record the offset is -1.

Version 2 has the isolation level (KIP-98).
Version 4 has leader epochs (KIP-320).
Version 6 is flexible (KIP-482).
Version 7 knows -3 (KIP-734).
Version 8 knows -4 (KIP-405).
Version 9 knows -5 (KIP-1005).
Version 10 has a timeout for searches in remote storage (KIP-1075).
Version 11 knows -6 (KIP-1023).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable
from typing import Final

from ottla.log.segment.timestamp_search import TimestampSearches
from ottla.node.api.context import RequestContext
from ottla.node.fetch.partition_reader import MissingRead, PartitionReader, load, rounds
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.list_offsets import ListedOffset
from ottla.replication.partition import FetchIsolation
from ottla.runtime.heavy_work import INLINE_US
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

_CONSUMER: Final = -1
_DEBUGGING_CONSUMER: Final = -2
# Each takes some microseconds.
_PARTITIONS_AT_ONCE: Final = 200
_SINCE: Final = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}


def handle(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    lookup = _Lookup(context, request)
    if context.is_long:
        return lookup.run_in_turns()
    run_at_once(lookup.read())
    missing: list[MissingRead] = []
    lookup.attempt(_PARTITIONS_AT_ONCE, missing)
    return lookup.complete(missing) if lookup.is_incomplete else run_at_once(lookup.response())


class _Lookup:
    """One request: what was found, and what is looked up yet. Of a request for many partitions some are
    looked up in a turn of the event loop; a search that takes longer than that goes on in a thread.
    """

    def __init__(self, context: RequestContext, request: ListOffsetsRequest) -> None:
        self.context = context
        self.request = request
        self.searches = TimestampSearches(INLINE_US)
        if request.replica_id not in (_CONSUMER, _DEBUGGING_CONSUMER):
            isolation = FetchIsolation.LOG_END
        elif request.isolation_level == 1:
            isolation = FetchIsolation.TXN_COMMITTED
        else:
            isolation = FetchIsolation.HIGH_WATERMARK
        self.reader = PartitionReader(
            context.broker,
            isolation,
            only_leader=request.replica_id != _DEBUGGING_CONSUMER,
            max_wait_ms=(request.timeout_ms if context.version >= 10 else 0) or None,
        )
        # How often each partition is named.
        self._counts: Counter[tuple[str, int]] = Counter()
        self._found: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
        self._allowed: dict[str, bool] = {}
        # Those that were not looked up yet, or miss something.
        self._left: deque[tuple[str, ListOffsetsPartition]] = deque()

    def read(self) -> Steps[None]:
        """Take up what is asked for; before anything else."""
        for topic in self.request.topics:
            for part in topic.partitions:
                self._counts[topic.name, part.partition_index] += 1
                self._left.append((topic.name, part))
                yield

    async def run_in_turns(self) -> ListOffsetsResponse:
        await in_turns(self.read(), Turns(self.context.broker.runtime.clock))
        return await self.complete([])

    @property
    def is_incomplete(self) -> bool:
        return bool(self._left)

    def attempt(self, count: int, missing: list[MissingRead] | None) -> int:
        """Look up the next partitions, up to `count`, and return how many. What misses something goes behind
        the others, and adds it to the list; with None the disk is waited for.
        """
        self.searches.left_us = INLINE_US
        count = min(count, len(self._left))
        for done in range(count):
            if self.searches.left_us <= 0:
                return done
            topic, part = self._left.popleft()
            key = topic, part.partition_index
            try:
                if not self._is_allowed(topic):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if self._counts[key] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                found = _partition(self, topic, part, may_wait=missing is None)
            except KafkaError as error:
                found = _failed(part, error.code)
            if isinstance(found, ListOffsetsPartitionResponse):
                self._found[key] = found
            else:
                assert missing is not None, found
                missing.append(found)
                self._left.append((topic, part))
        return count

    def _is_allowed(self, topic: str) -> bool:
        allowed = self._allowed.get(topic)
        if allowed is None:
            allowed = self._allowed[topic] = self.context.allowed(
                AclOperation.DESCRIBE, AclResourceType.TOPIC, topic
            )
        return allowed

    async def complete(self, missing: list[MissingRead]) -> ListOffsetsResponse:
        """Look up what is left, in turns, and load what that misses; see `partition_reader`."""
        context = self.context
        for may_miss in rounds():
            left = len(self._left) - len(missing)
            while left > 0:
                await asyncio.sleep(0)
                left -= self.attempt(min(left, _PARTITIONS_AT_ONCE), missing if may_miss else None)
            if not missing:
                break
            await load(context.broker.runtime.pool, missing, context.run_heavy)
            missing = []
        return await in_turns(self.response(), Turns(context.broker.runtime.clock))

    def response(self) -> Steps[ListOffsetsResponse]:
        response = ListOffsetsResponse()
        for topic in self.request.topics:
            parts: dict[int, ListOffsetsPartitionResponse] = {}
            for part in topic.partitions:
                parts[part.partition_index] = self._found[topic.name, part.partition_index]
                yield
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=list(parts.values())))
        return response


def _failed(part: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=int(code))


def _partition(
    lookup: _Lookup, topic: str, part: ListOffsetsPartition, *, may_wait: bool
) -> ListOffsetsPartitionResponse | MissingRead:
    context, timestamp = lookup.context, part.timestamp
    if timestamp < 0 and context.version < _SINCE.get(timestamp, 99):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    found = lookup.reader.find_offset(
        context.broker.replicas.partition(TopicPartition(topic, part.partition_index)),
        timestamp,
        current_leader_epoch=part.current_leader_epoch,
        searches=lookup.searches,
        may_wait=may_wait,
    )
    if isinstance(found, KafkaError):
        return _failed(part, found.code)
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index)
    if not isinstance(found, ListedOffset):
        return found
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if context.version >= 4 else -1,
    )
