"""ListOffsets: find the offset of a timestamp, or of one of the special values.

-1 is the end of the log (for read_committed the last stable offset), -2 its start, -3 the record with the
greatest timestamp, -4 the start of what is on the local disk, -5 the end of what is in remote storage, -6 the
first offset that still waits for its upload. Where there is no such record the offset is -1.

Version 2 added the isolation level; 4 leader epochs; 6 is flexible; 7 added -3; 8 added -4; 9 added -5; 10 a
timeout for searches in remote storage; 11 added -6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.fetch.cold_reads import Missing, load_and_retry
from ottla.node.fetch.remote_reads import RemoteOffsetSearch
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.list_offsets import fetch_offset_for_timestamp, is_search_in_remote_storage
from ottla.replication.partition import FetchIsolation
from ottla.runtime.disk import NotInMemory

_CONSUMER: Final = -1
_DEBUGGING_CONSUMER: Final = -2
_SINCE: Final = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}


def handle(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    counts = Counter(
        (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
    )

    # The searches in remote storage for this request, with what they have found.
    remote: dict[tuple[str, int], RemoteOffsetSearch] = {}

    def search(missing: Missing | None) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[_topic(context, request, topic, counts, remote, missing) for topic in request.topics]
        )

    missing: Missing = []
    response = search(missing)
    return load_and_retry(context.broker.runtime.pool, missing, search) if missing else response


def failure_response(request: ListOffsetsRequest, code: int, _message: str | None) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=int(code))
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _topic(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: ListOffsetsTopic,
    counts: Counter[tuple[str, int]],
    remote: dict[tuple[str, int], RemoteOffsetSearch],
    missing: Missing | None,
) -> ListOffsetsTopicResponse:
    allowed = context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name)
    results: dict[int, ListOffsetsPartitionResponse] = {}
    for part in topic.partitions:
        try:
            if not allowed:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if counts[topic.name, part.partition_index] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            results[part.partition_index] = _partition(
                context, request, topic.name, part, remote, may_wait=missing is None
            )
        except (NotInMemory, RemoteOffsetSearch) as data:
            assert missing is not None
            missing.append(data.with_traceback(None))
        except KafkaError as error:
            results[part.partition_index] = ListOffsetsPartitionResponse(
                partition_index=part.partition_index, error_code=int(error.code)
            )
    return ListOffsetsTopicResponse(name=topic.name, partitions=list(results.values()))


def _partition(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    part: ListOffsetsPartition,
    remote: dict[tuple[str, int], RemoteOffsetSearch],
    *,
    may_wait: bool,
) -> ListOffsetsPartitionResponse:
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
        if search is None and may_wait:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE
            )  # it has just left the disk: the next try finds it
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
    )
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index)
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if context.version >= 4 else -1,
    )
