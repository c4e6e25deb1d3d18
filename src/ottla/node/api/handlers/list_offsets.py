"""ListOffsets: find the offset of a timestamp, or of one of the special values.

-1 is the end of the log (for read_committed the last stable offset), -2 its start, -3 the record with the
greatest timestamp, -4 the start of what is on the local disk, -5 the end of what is in remote storage, -6 the
first offset that still waits for its upload. Where there is no such record the offset is -1.

Version 2 added the isolation level; 4 leader epochs; 6 is flexible; 7 added -3; 8 added -4; 9 added -5; 10 a
timeout for searches in remote storage; 11 added -6.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable
from typing import Final

from ottla.log.segment.timestamp_search import SearchTooLong, TimestampSearches
from ottla.node.api.context import RequestContext
from ottla.node.fetch.cold_reads import MissingReads, load, rounds
from ottla.node.fetch.remote_reads import RemoteOffsetSearch
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
from ottla.replication.list_offsets import fetch_offset_for_timestamp, is_search_in_remote_storage
from ottla.replication.partition import FetchIsolation
from ottla.runtime.disk import NotInMemory
from ottla.runtime.heavy_work import INLINE_US

_CONSUMER: Final = -1
_DEBUGGING_CONSUMER: Final = -2
# Each takes some microseconds.
_PARTITIONS_AT_ONCE: Final = 200
_SINCE: Final = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}


def handle(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    lookup = _Lookup(context, request)
    missing: MissingReads = []
    lookup.attempt(_PARTITIONS_AT_ONCE, missing)
    return lookup.complete(missing) if lookup.is_incomplete else lookup.response()


class _Lookup:
    """One request: what was found, and what is looked up yet. Of a request for many partitions some are
    looked up in a turn of the event loop; a search that takes longer than that goes on in a thread.
    """

    def __init__(self, context: RequestContext, request: ListOffsetsRequest) -> None:
        self.context = context
        self.request = request
        self.searches = TimestampSearches(INLINE_US)
        # The searches in remote storage for this request, with what they have found.
        self.remote: dict[tuple[str, int], RemoteOffsetSearch] = {}
        self._counts = Counter(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
        self._found: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
        self._allowed: dict[str, bool] = {}
        # Those that were not looked up yet, or miss something.
        self._left: deque[tuple[str, ListOffsetsPartition]] = deque(
            (topic.name, part) for topic in request.topics for part in topic.partitions
        )

    @property
    def is_incomplete(self) -> bool:
        return bool(self._left)

    def attempt(self, count: int, missing: MissingReads | None) -> int:
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
                self._found[key] = _partition(self, topic, part, may_wait=missing is None)
            except (NotInMemory, RemoteOffsetSearch, SearchTooLong) as data:
                if missing is None:
                    # It has just left the disk, or what is searched has changed: the next try finds it.
                    self._found[key] = _failed(part, ErrorCode.OFFSET_NOT_AVAILABLE)
                    continue
                missing.append(data.with_traceback(None))
                self._left.append((topic, part))
            except KafkaError as error:
                self._found[key] = _failed(part, error.code)
        return count

    def _is_allowed(self, topic: str) -> bool:
        allowed = self._allowed.get(topic)
        if allowed is None:
            allowed = self._allowed[topic] = self.context.allowed(
                AclOperation.DESCRIBE, AclResourceType.TOPIC, topic
            )
        return allowed

    async def complete(self, missing: MissingReads) -> ListOffsetsResponse:
        """Look up what is left, in turns, and load what that misses; see `cold_reads`."""
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
        return self.response()

    def response(self) -> ListOffsetsResponse:
        found = self._found
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        found[topic.name, index]
                        for index in dict.fromkeys(part.partition_index for part in topic.partitions)
                    ],
                )
                for topic in self.request.topics
            ]
        )


def _failed(part: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=int(code))


def _partition(
    lookup: _Lookup, topic: str, part: ListOffsetsPartition, *, may_wait: bool
) -> ListOffsetsPartitionResponse:
    context, request, remote = lookup.context, lookup.request, lookup.remote
    timestamp = part.timestamp
    if timestamp < 0 and context.version < _SINCE.get(timestamp, 99):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    partition = context.broker.replicas.partition(TopicPartition(topic, part.partition_index))
    if request.replica_id not in (_CONSUMER, _DEBUGGING_CONSUMER):
        isolation = FetchIsolation.LOG_END
    elif request.isolation_level == 1:
        isolation = FetchIsolation.TXN_COMMITTED
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    only_leader = request.replica_id != _DEBUGGING_CONSUMER
    in_remote_storage = None
    if is_search_in_remote_storage(partition, timestamp):
        partition.check_replica(part.current_leader_epoch, only_leader=only_leader)
        search = remote.get((topic, part.partition_index))
        if search is None:
            reader = context.broker.replication.remote_log_reader
            if reader is None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            timeout_ms = request.timeout_ms if context.version >= 10 else 0
            search = remote[topic, part.partition_index] = RemoteOffsetSearch(
                reader,
                partition,
                timestamp,
                timeout_ms or context.broker.config.number("remote.list.offsets.request.timeout.ms"),
            )
            raise search
        if isinstance(search.result, KafkaError):
            raise search.result
        in_remote_storage = search.result
    found = fetch_offset_for_timestamp(
        partition,
        timestamp,
        isolation=isolation,
        current_leader_epoch=part.current_leader_epoch,
        only_leader=only_leader,
        may_wait=may_wait,
        in_remote_storage=in_remote_storage,
        searches=lookup.searches,
    )
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index)
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if context.version >= 4 else -1,
    )
