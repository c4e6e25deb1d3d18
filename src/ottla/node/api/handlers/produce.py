"""Produce: append batches to partitions and say where they lie.

Each partition is appended to on its own: one that fails does not hold up the others. With acks=all the
response waits until the in-sync replicas have the records, or `timeout_ms` is over; with acks=1 it goes
out when the leader has them; with acks=0 there is none, and a failure closes the connection. A batch that
an idempotent producer sends again is answered with the offsets it got the first time.

Version 4 can say KAFKA_STORAGE_ERROR; 5 returns log start offsets; 7 allows zstd; 8 says which records
were refused; 9 is flexible; 10 names the new leader; 11 and 12 are for transactions of version 2; 13
names topics by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from ottla.log.producers.state_entry import SENTINEL_GUARD
from ottla.log.unified_log import LogAppendInfo
from ottla.node.api.context import RequestContext
from ottla.node.api.leader_hints import MOVED, LeaderHints
from ottla.node.network.connection import ClientConnection, ProtocolViolation
from ottla.protocol.acl import AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.names import INTERNAL_TOPICS, TopicPartition
from ottla.records.batch import MAGIC, BatchHeader
from ottla.records.validation import RecordErrors, check_produce_records
from ottla.replication.partition import Partition
from ottla.runtime.disk import Buffer

if TYPE_CHECKING:
    from ottla.node.coordinators.add_partitions_to_txn import ProduceVerification

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_ADMIN_CLIENT: Final = "__admin_client"
_MANY_PARTITIONS: Final = 32
# How long a request for many partitions appends before others have their turn.
_TURN_SECONDS: Final = 0.01
# Errors that Kafka finds before it looks at the log, so it does not know where the log starts.
_BEFORE_THE_LOG: Final = frozenset((ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE))


def handle(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks not in (-1, 0, 1):
        return failed(request, ErrorCode.INVALID_REQUIRED_ACKS, None)
    line = context.connection
    before = line.last_produce
    if before is not None:
        return _in_line(context, request, _join(line), before)
    appends = _Appends(context, request)
    verified = appends.verify(request.transactional_id) if request.transactional_id is not None else None
    if verified is not None:
        return _once_verified(context, request, _join(line), appends, verified)
    if _is_wide(request):
        return _in_turns(context, request, _join(line), appends)
    return _append(context, request, appends)


def _is_wide(request: ProduceRequest) -> bool:
    """Whether it names so many partitions that others should not have to wait for all of them. The first
    records of a new partition may take milliseconds.
    """
    count = 0
    for topic in request.topic_data:
        count += len(topic.partition_data)
    return count > _MANY_PARTITIONS


# The records of one connection are appended in the order in which they came: a producer counts on that. While
# the transaction of one request is being confirmed, or many partitions are appended to, those after it stand
# in line.


def _join(line: ClientConnection) -> asyncio.Future[None]:
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    line.last_produce = place
    return place


def _leave(context: RequestContext, place: asyncio.Future[None]) -> None:
    line = context.connection
    if line.last_produce is place:
        line.last_produce = None
    if not place.done():
        place.set_result(None)


async def _in_line(
    context: RequestContext,
    request: ProduceRequest,
    place: asyncio.Future[None],
    before: asyncio.Future[None],
) -> ProduceResponse | None:
    try:
        await asyncio.wait((before,))
        appends = _Appends(context, request)
        if request.transactional_id is not None:
            verified = appends.verify(request.transactional_id)
            if verified is not None:
                await verified
        response = await _append_in_turns(context, request, appends)
    finally:
        _leave(context, place)
    return response if response is None or isinstance(response, ProduceResponse) else await response


async def _in_turns(
    context: RequestContext, request: ProduceRequest, place: asyncio.Future[None], appends: _Appends
) -> ProduceResponse | None:
    try:
        response = await _append_in_turns(context, request, appends)
    finally:
        _leave(context, place)
    return response if response is None or isinstance(response, ProduceResponse) else await response


async def _once_verified(
    context: RequestContext,
    request: ProduceRequest,
    place: asyncio.Future[None],
    appends: _Appends,
    verified: Awaitable[None],
) -> ProduceResponse | None:
    try:
        await verified
        response = await _append_in_turns(context, request, appends)
    finally:
        _leave(context, place)
    return response if response is None or isinstance(response, ProduceResponse) else await response


async def _append_in_turns(
    context: RequestContext, request: ProduceRequest, appends: _Appends
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append, and let others have their turn meanwhile."""
    if not _is_wide(request):
        return _append(context, request, appends)
    loop = asyncio.get_running_loop()
    turn_ends = loop.time() + _TURN_SECONDS
    response = ProduceResponse()
    for topic in request.topic_data:
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(answer)
        for data in topic.partition_data:
            answer.partition_responses.append(appends.partition(topic, data))
            if loop.time() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = loop.time() + _TURN_SECONDS
    return _appended(context, request, appends, response)


def _append(
    context: RequestContext, request: ProduceRequest, appends: _Appends
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    response = ProduceResponse(responses=[appends.topic(topic) for topic in request.topic_data])
    return _appended(context, request, appends, response)


def _appended(
    context: RequestContext, request: ProduceRequest, appends: _Appends, response: ProduceResponse
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    acks = request.acks
    if acks == 0:
        if appends.flushing:
            return _flush_unheard(appends)
        if appends.failure is not None:
            raise ProtocolViolation(f"its Produce with acks=0 failed: {appends.failure}")
        return None
    if appends.flushing or (acks == -1 and appends.must_wait()):
        return _finish(context, request, appends, response)
    return _with_leaders(context, appends, response)


def failed(request: ProduceRequest, code: int, _message: str | None) -> ProduceResponse:
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        # Java clients take this one for final and may then write twice; this one they retry.
        code = ErrorCode.KAFKA_STORAGE_ERROR
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=partition.index, error_code=int(code), base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _one_batch(records: Buffer | None, version: int) -> BatchHeader:
    try:
        return check_produce_records(records, version)
    except KafkaError as error:
        magic = records[_MAGIC_AT] if records is not None and len(records) > _MAGIC_AT else MAGIC
        if error.code is ErrorCode.CORRUPT_MESSAGE and 0 <= magic < MAGIC:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"the batch has magic {magic}; producers send {MAGIC}"
            ) from None
        raise


def _is_no_batch(records: Buffer | None) -> bool:
    """Whether the bytes are not even a batch that was damaged: a negative length, or an unknown magic."""
    return (
        records is not None
        and len(records) > _MAGIC_AT
        and (records[_LENGTH_AT] >= 0x80 or records[_MAGIC_AT] > MAGIC)
    )


class _Appends:
    """The appends of one request, and what is still to be waited for."""

    __slots__ = (
        "_by_id",
        "_context",
        "_request",
        "_verification",
        "failure",
        "flushing",
        "moved",
        "waiting",
    )

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        self._by_id = context.version >= 13
        # (partition, offset that the high watermark must reach, its part of the response)
        self.waiting: list[tuple[Partition, int, PartitionProduceResponse]] = []
        # Those whose settings ask for a flush before the answer, and their parts of it.
        self.flushing: list[tuple[Partition, PartitionProduceResponse]] = []
        # (topic, its part of the response) where the leader is another.
        self.moved: list[tuple[bytes | str, PartitionProduceResponse]] = []
        self.failure: str | None = None
        self._verification: ProduceVerification | None = None

    def verify(self, transactional_id: str) -> Awaitable[None] | None:
        """Have the coordinator confirm the request's transaction; None if that is done already."""
        from ottla.node.coordinators.add_partitions_to_txn import ProduceVerification

        self._verification = verification = ProduceVerification(
            self._context.broker.transactions.add_partitions, transactional_id, self._context.version
        )
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                try:
                    partition = self._find(topic, data.index)
                    header = _one_batch(data.records, self._context.version)
                    if header.is_transactional:
                        self._check_transaction()
                        verification.want(partition, header)
                except KafkaError:
                    continue  # the append finds it again, and tells
        return verification.run()

    def topic(self, topic: TopicProduceData) -> TopicProduceResponse:
        return TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[self.partition(topic, data) for data in topic.partition_data],
        )

    def partition(self, topic: TopicProduceData, data: PartitionProduceData) -> PartitionProduceResponse:
        response = PartitionProduceResponse(index=data.index, base_offset=-1)
        partition: Partition | None = None
        try:
            partition = self._find(topic, data.index)
            header = _one_batch(data.records, self._context.version)
            assert data.records is not None
            guard = SENTINEL_GUARD
            if header.is_transactional:
                self._check_transaction()
                assert self._verification is not None
                guard = self._verification.guard(partition)
        except KafkaError as error:
            self._refuse(topic, response, error)
            if (error.code is ErrorCode.CORRUPT_MESSAGE and _is_no_batch(data.records)) or (
                self._verification is not None and self._verification.explains(error)
            ):
                response.error_message = error.message
            return response
        try:
            info = partition.append_records_to_leader(
                data.records,
                now_ms=self._context.broker.now_ms(),
                acks=self._request.acks,
                guard=guard,
                inline_flush=False,
            )
        except KafkaError as error:
            if error.code not in _BEFORE_THE_LOG:
                response.log_start_offset = partition.log.log_start_offset
            self._refuse(topic, response, error)
            return response
        self._appended(partition, info, response)
        return response

    def _find(self, topic: TopicProduceData, index: int) -> Partition:
        context = self._context
        replicas = context.broker.replicas
        if self._by_id:
            found = context.image.topics.by_id.get(bytes(topic.topic_id))
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        else:
            name = topic.name
        if not context.allowed(AclOperation.WRITE, ResourceType.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if name in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the cluster itself only"
            )
        partition = replicas.partition(TopicPartition(name, index))
        partition.check_leader()
        return partition

    def _check_transaction(self) -> None:
        transactional_id = self._request.transactional_id
        if transactional_id is None or not self._context.allowed(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def _appended(
        self, partition: Partition, info: LogAppendInfo, response: PartitionProduceResponse
    ) -> None:
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time
        response.log_start_offset = info.log_start_offset
        if self._request.acks == -1:
            self.waiting.append((partition, info.last_offset + 1, response))
        if info.rolled:
            self._context.broker.log_flushes.flush_closed_segments(partition.log)
        if info.flush_due:
            self.flushing.append((partition, response))

    def _refuse(self, topic: TopicProduceData, response: PartitionProduceResponse, error: KafkaError) -> None:
        response.error_code = int(error.code)
        if isinstance(error, RecordErrors):
            response.error_message = error.message
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=each.index, batch_index_error_message=each.message)
                for each in error.errors
            ]
        if error.code in MOVED:
            self.moved.append((bytes(topic.topic_id) if self._by_id else topic.name, response))
        self.failure = f"{topic.name or topic.topic_id.hex()}-{response.index}: {error}"

    async def flush(self) -> None:
        """Do the flushes that are due. Where one fails the records stay, but nobody may rely on them."""
        for partition, response in self.flushing:
            try:
                await self._context.broker.log_flushes.flush(partition)
            except KafkaError as error:
                response.error_code, response.base_offset = int(error.code), -1
                self.waiting = [each for each in self.waiting if each[2] is not response]
                self.failure = f"{partition.topic_partition}: {error}"

    def must_wait(self) -> bool:
        """Take over what has become of the records; True while some are not yet replicated."""
        undecided = False
        for partition, offset, response in self.waiting:
            outcome = partition.check_enough_replicas_reach_offset(offset)
            if outcome is None:
                undecided = True
            else:
                response.error_code = int(outcome)
        return undecided


async def _flush_unheard(appends: _Appends) -> None:
    """The flushes are due even if something else in the request failed: others may wait for them."""
    await appends.flush()
    if appends.failure is not None:
        raise ProtocolViolation(f"its Produce with acks=0 failed: {appends.failure}")


async def _finish(
    context: RequestContext, request: ProduceRequest, appends: _Appends, response: ProduceResponse
) -> ProduceResponse:
    await appends.flush()
    if request.acks == -1:
        keys = [partition.topic_partition for partition, _, _ in appends.waiting]
        done = await context.broker.replicas.purgatory.wait(
            keys, lambda: not appends.must_wait(), request.timeout_ms
        )
        if not done:
            for partition, offset, part in appends.waiting:
                if partition.check_enough_replicas_reach_offset(offset) is None:
                    part.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
    return _with_leaders(context, appends, response)


def _with_leaders(context: RequestContext, appends: _Appends, response: ProduceResponse) -> ProduceResponse:
    if appends.moved and context.version >= 10:
        hints = LeaderHints(context)
        for topic, part in appends.moved:
            leader = hints.leader(topic, part.index)
            if leader is not None:
                part.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        response.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in hints.addresses.values()
        ]
    return response
