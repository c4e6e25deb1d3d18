"""Produce: append batches to partitions and return their offsets.

Each partition is appended to on its own: one that fails does not hold up the others. With acks=all the
response waits until the in-sync replicas have the records, or `timeout_ms` is over; with acks=1 it goes out
when the leader has them; with acks=0 there is none, and a failure closes the connection. A batch that an
idempotent producer sends again is answered with the offsets that it got the first time.

The way of a request, in `handle`: have the coordinator confirm its transaction, append to every partition,
flush the logs whose settings ask for it, wait for the in-sync replicas, and name the leaders of partitions
that have moved. Most requests never wait, and are answered without a task of their own; a batch whose check
takes long, as one that decompresses to much or has to be compressed again, is checked in a thread
(`heavy_work`). Records of one connection are appended in the order in which they were sent, as producers rely
on: while a request waits before its append, those behind it on the same connection wait for it
(`ClientConnection.last_produce`).

Version 4 can return KAFKA_STORAGE_ERROR (KIP-112).
Version 5 returns log start offsets (KIP-107).
Version 7 allows zstd (KIP-110).
Version 8 names the records that were rejected (KIP-467).
Version 9 is flexible (KIP-482).
Version 10 names the new leader (KIP-951).
Version 11 can return TRANSACTION_ABORTABLE (KIP-890).
Version 12 is for transactions of version 2 (KIP-890).
Version 13 names topics by id (KIP-516).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.log.producers.state_entry import SENTINEL_GUARD
from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import LEADER_CHANGED
from ottla.node.api.produce_outcome import name_leaders
from ottla.node.network.connection import ProtocolViolation
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.names import INTERNAL_TOPICS, TopicPartition
from ottla.records.batch import MAGIC, BatchHeader
from ottla.records.cost import check_cost, ordinary_bytes
from ottla.records.types import FIRST_BROKER_PRODUCER_ID
from ottla.records.validation import BatchCheck, BatchTooCostly, RecordErrors, check_produce_records
from ottla.replication.partition import Partition
from ottla.runtime.disk import Buffer
from ottla.runtime.heavy_work import INLINE_US
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

if TYPE_CHECKING:
    from ottla.node.coordinators.add_partitions_to_txn import ProduceVerification

_log = logging.getLogger(__name__)

ProduceReply: TypeAlias = ProduceResponse | Awaitable[ProduceResponse | None] | None

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
# The lower byte of a batch's attributes, and its bit of transactional batches.
_ATTRIBUTES_AT: Final = 22
_TRANSACTIONAL: Final = 0x10
_CODEC: Final = 0x07
# Members of an enum take longer to find.
_WRITE: Final = int(AclOperation.WRITE)
_TOPIC: Final = int(AclResourceType.TOPIC)
_ADMIN_CLIENT: Final = "__admin_client"
# A request for more partitions or bytes than these appends in turns: the first records of a new partition may
# take milliseconds, and other connections should not wait for all of them.
_MAX_PARTITIONS_AT_ONCE: Final = 32
_MAX_BYTES_AT_ONCE: Final = 2 * 1024 * 1024
# Kafka finds these errors before it looks at the log, so its responses have no log start offset then.
# Requests with acks=0 that have to wait: their connections may be lost before they are done.
_without_acknowledgement: Final[set[asyncio.Future[ProduceResponse | None]]] = set()
_ERRORS_BEFORE_THE_LOG: Final = frozenset((ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE))


def handle(context: RequestContext, request: ProduceRequest) -> ProduceReply:
    if request.acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    produce = _Produce(context, request)
    if not produce.is_wide and context.services.node.authorizer is not None:
        run_at_once(produce.check_transactional_id())
    connection = context.pending.connection
    predecessor = connection.last_produce
    verified: Awaitable[None] | None = None
    if predecessor is None and not produce.is_wide:
        if request.transactional_id is not None:
            verified = run_at_once(produce.verify_transaction(request.transactional_id))
        if verified is None and not produce.has_to_wait_for_logs():
            produce.append_all()
            if not produce.heavy:
                return produce.reply()
    appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.last_produce = appended
    work = _append_in_order(produce, predecessor, verified, appended)
    # Without acknowledgement its client may be gone before it is done; what was received is appended all the
    # same.
    return _to_the_end(work) if request.acks == 0 else work


async def _to_the_end(work: Coroutine[Any, Any, ProduceResponse | None]) -> ProduceResponse | None:
    """Do the work to its end, also if the connection is lost meanwhile."""
    task = asyncio.ensure_future(work)
    _without_acknowledgement.add(task)
    task.add_done_callback(_without_acknowledgement.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_failure)
        raise


def _log_failure(task: asyncio.Future[ProduceResponse | None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("a Produce with acks=0 failed, and its client is gone: %s", error)


async def _append_in_order(
    produce: _Produce,
    predecessor: asyncio.Future[None] | None,
    verified: Awaitable[None] | None,
    appended: asyncio.Future[None],
) -> ProduceResponse | None:
    """Append once the request before it on the connection has, and the transaction is verified. `appended`
    lets the next request go on, whatever becomes of this one.
    """
    try:
        clock = produce.context.broker.runtime.clock
        if produce.is_wide:
            await in_turns(produce.check_transactional_id(), Turns(clock))
        if predecessor is not None:
            await asyncio.wait((predecessor,))
        transactional_id = produce.request.transactional_id
        if transactional_id is not None and (predecessor is not None or produce.is_wide):
            verified = await in_turns(produce.verify_transaction(transactional_id), Turns(clock))
        if verified is not None:
            await verified
        if produce.has_to_wait_for_logs():
            await produce.complete_new_logs()
        if not produce.heavy:  # else the rest is appended
            if produce.is_wide:
                await produce.append_in_turns()
            else:
                produce.append_all()
        await produce.append_heavy()
    finally:
        connection = produce.context.pending.connection
        if connection.last_produce is appended:
            connection.last_produce = None
        if not appended.done():
            appended.set_result(None)
    reply = produce.reply()
    return reply if reply is None or isinstance(reply, ProduceResponse) else await reply


def failure_response(request: ProduceRequest, code: int, _message: str | None) -> ProduceResponse:
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


class _Produce:
    """One request: its response as it takes shape, and what has to be waited for before it is complete."""

    __slots__ = (
        "_authorized",
        "_awaiting_flush",
        "_awaiting_replication",
        "_broker",
        "_by_id",
        "_clock",
        "_decided",
        "_failure",
        "_moved",
        "_response",
        "_verification",
        "context",
        "heavy",
        "is_wide",
        "request",
    )

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self.context = context
        self.request = request
        broker = context.services.broker
        assert broker is not None
        self._broker = broker
        self._clock = broker.runtime.clock
        # Whether no authorizer has to be asked.
        self._authorized = broker.authorizer is None
        # Which topics the client may write, once that is known.
        self._decided: dict[str, bool] = {}
        self._by_id = context.version >= 13
        # Whether the request has too many partitions or bytes to append to all of them at once.
        self.is_wide = self._is_wide()
        self._response = ProduceResponse()
        self._verification: ProduceVerification | None = None
        # (partition, offset that its high watermark must reach, its part of the response): with acks=all,
        # those that were appended and are not decided. What is decided stays, whatever becomes of the
        # partition while others are waited for.
        self._awaiting_replication: list[tuple[Partition, int, PartitionProduceResponse]] = []
        # (flush, partition, its part of the response): those whose settings ask for it before the response.
        self._awaiting_flush: list[tuple[asyncio.Future[None], Partition, PartitionProduceResponse]] = []
        # (topic, batch, its part of the response): those that are to be checked in a thread first.
        self.heavy: list[tuple[TopicProduceData, PartitionProduceData, PartitionProduceResponse]] = []
        # (topic, its part of the response): those that this broker does not lead, or not in that epoch.
        self._moved: list[tuple[bytes | str, PartitionProduceResponse]] = []
        # What went wrong last, for the log; a producer with acks=0 gets no response that could say it.
        self._failure: str | None = None

    def _is_wide(self) -> bool:
        topics = self.request.topic_data
        count = len(topics) if len(topics) > _MAX_PARTITIONS_AT_ONCE else 0
        for topic in topics[:_MAX_PARTITIONS_AT_ONCE]:
            count += len(topic.partition_data)
        return count > _MAX_PARTITIONS_AT_ONCE or (
            count > 1 and self.context.pending.size > _MAX_BYTES_AT_ONCE
        )

    # The transaction

    def check_transactional_id(self) -> Steps[None]:
        """Check that the client may use its transactional id, if it sent records of a transaction."""
        if self._authorized:
            return
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                if _is_transactional(data.records):
                    _check_transactional_id(self.context, self.request)
                    return
                yield

    def verify_transaction(self, transactional_id: str) -> Steps[Awaitable[None] | None]:
        """Have the coordinator confirm that the partitions belong to the transaction; None if nothing has to
        be waited for.
        """
        from ottla.node.coordinators.add_partitions_to_txn import ProduceVerification

        version = self.context.version
        verification = ProduceVerification(
            self._broker.coordinators.transactions.add_partitions, transactional_id, version
        )
        self._verification = verification
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                yield
                try:
                    partition = self._find_partition(topic, data.index)
                    header = _read_header(data.records, version)
                    if header.is_transactional:
                        _check_transactional_id(self.context, self.request)
                        verification.add(partition, header)
                except KafkaError:
                    continue  # the append finds the error again, and reports it
        return verification.start()

    # The append

    def has_to_wait_for_logs(self) -> bool:
        """Whether there are new logs, perhaps of this request."""
        return bool(self._broker.logs.new_logs)

    async def complete_new_logs(self) -> None:
        """Have the pool make the creation of logs durable, which their first records wait for otherwise."""
        logs = self._broker.logs
        # Those of a start or of a move too: all requests would take this way until the metadata change.
        logs.complete_log_creations()
        turns = Turns(self._clock)
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                await turns.pause_if_due()
                try:
                    log = self._find_partition(topic, data.index).log
                except KafkaError:
                    continue  # the append finds the error again, and reports it
                if log.is_new:
                    await logs.complete_creation(log)

    def append_all(self) -> None:
        appended = self.context.pending.appended
        if appended is not None:
            self._append_the_rest(iter(appended))
            return
        self._response.responses = [
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[self.append_partition(topic, data) for data in topic.partition_data],
            )
            for topic in self.request.topic_data
        ]

    def _append_the_rest(self, appended: Iterator[tuple[int, int, int]]) -> None:
        """Append what the lane could not, after some batches that it has appended in this turn."""
        for topic in self.request.topic_data:
            answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            self._response.responses.append(answer)
            for data in topic.partition_data:
                done = next(appended, None)
                if done is None:
                    answer.partition_responses.append(self.append_partition(topic, data))
                    continue
                base_offset, next_offset, log_start = done
                response = PartitionProduceResponse(
                    index=data.index, base_offset=base_offset, log_start_offset=log_start
                )
                answer.partition_responses.append(response)
                if self.request.acks == -1:
                    partition = self._find_partition(topic, data.index)
                    self._awaiting_replication.append((partition, next_offset, response))

    async def append_in_turns(self) -> None:
        """Append, and let other connections have their turn in between."""
        turns = Turns(self._clock)
        for topic in self.request.topic_data:
            answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            self._response.responses.append(answer)
            for data in topic.partition_data:
                answer.partition_responses.append(self.append_partition(topic, data))
                await turns.pause_if_due()

    async def append_heavy(self) -> None:
        """Have the batches checked that were too much for a turn, one after the other, and append them."""
        for topic, data, response in self.heavy:
            try:
                partition = self._find_partition(topic, data.index)
                header = _read_header(data.records, self.context.version)
                assert data.records is not None
                check = partition.log.begin_check(data.records, header, self._clock.wall_ms())
            except KafkaError as error:
                self._reject(topic, response, error)
                continue
            while not check.is_done:
                await self.context.run_heavy(check.cost_us, check.run, memory_bytes=check.plain_bytes)
            self.append_partition(topic, data, response, check)
        self.heavy = []

    def append_partition(
        self,
        topic: TopicProduceData,
        data: PartitionProduceData,
        response: PartitionProduceResponse | None = None,
        check: BatchCheck | None = None,
    ) -> PartitionProduceResponse:
        """Append a batch, and fill its part of the response; one whose check was not done yet is only
        appended where that is no more than a turn allows.
        """
        if response is None:
            response = PartitionProduceResponse(index=data.index, base_offset=-1)
        max_cost_us: int | None = None
        try:
            partition = self._find_partition(topic, data.index)
            header = _read_header(data.records, self.context.version)
            assert data.records is not None
            if header.producer_id >= FIRST_BROKER_PRODUCER_ID and not self._authorized:
                self.context.require_cluster_action()
            config = partition.log.local_log.config
            if (header.attributes & _CODEC or config.target_codec is not None) and check is None:
                # What takes more all the same ends where it has cost what a turn allows (`max_cost_us`).
                cost_us = check_cost(header, ordinary_bytes(header), config.target_codec, config.target_level)
                if not self._broker.heavy_work.fits_turn(cost_us):
                    self.heavy.append((topic, data, response))
                    return response
                max_cost_us = INLINE_US
            guard = SENTINEL_GUARD
            if header.is_transactional:
                _check_transactional_id(self.context, self.request)
                assert self._verification is not None
                guard = self._verification.guard(partition)
        except KafkaError as error:
            self._reject(topic, response, error)
            if (error.code is ErrorCode.CORRUPT_MESSAGE and _is_no_batch(data.records)) or (
                self._verification is not None and self._verification.explains(error)
            ):
                response.error_message = error.message
            return response
        acks = self.request.acks
        try:
            info = partition.append_records_to_leader(
                data.records,
                now_ms=self._clock.wall_ms(),
                acks=acks,
                guard=guard,
                max_cost_us=max_cost_us,
                check=check,
            )
        except BatchTooCostly:
            self.heavy.append((topic, data, response))
            return response
        except KafkaError as error:
            partition.statistics.failed_produces += 1
            if error.code not in _ERRORS_BEFORE_THE_LOG:
                response.log_start_offset = partition.log.log_start_offset
            self._reject(topic, response, error)
            return response
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time
        response.log_start_offset = info.log_start_offset
        if acks == -1:
            self._awaiting_replication.append((partition, info.last_offset + 1, response))
        if info.rolled:
            self._broker.log_flushes.flush_closed_segments(partition.log)
        if info.last_offset >= partition.log.committable_offset:
            self._awaiting_flush.append((self._broker.log_flushes.flush(partition), partition, response))
        return response

    def _find_partition(self, topic: TopicProduceData, index: int) -> Partition:
        name = topic.name
        if self._by_id:
            found = self._broker.image.topics.by_id.get(bytes(topic.topic_id))
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        if not self._authorized and not self._may_write(topic, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if name in INTERNAL_TOPICS and self.context.client_id != _ADMIN_CLIENT:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Cannot append to internal topic {name}: only the cluster itself writes it",
            )
        partition = self._broker.replicas.partition(TopicPartition(name, index))
        partition.check_leader()
        return partition

    def _may_write(self, topic: TopicProduceData, name: str) -> bool:
        decided = self._decided.get(name)
        if decided is None:
            decided = self._decided[name] = self.context.allowed(
                _WRITE, _TOPIC, name, count=len(topic.partition_data)
            )
        return decided

    def _reject(self, topic: TopicProduceData, response: PartitionProduceResponse, error: KafkaError) -> None:
        response.error_code = int(error.code)
        self.context.count_error(response.error_code)
        if isinstance(error, RecordErrors):
            response.error_message = error.message
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=each.index, batch_index_error_message=each.message)
                for each in error.errors
            ]
        if error.code in LEADER_CHANGED:
            self._moved.append((bytes(topic.topic_id) if self._by_id else topic.name, response))
        self._failure = f"{topic.name or topic.topic_id.hex()}-{response.index}: {error}"

    # The response

    def reply(self) -> ProduceReply:
        """The response, if it is complete now, or an awaitable of it."""
        acks = self.request.acks
        if acks == 0:
            if self._awaiting_flush:
                return self._flush_without_response()
            self._check_without_response()
            return None
        if self._awaiting_flush or (acks == -1 and self._must_wait_for_replicas()):
            return self._complete()
        return self._with_leaders()

    async def _flush_without_response(self) -> None:
        # The flushes are due even if another partition of the request failed: consumers may wait for them.
        await self._flush()
        self._check_without_response()

    def _check_without_response(self) -> None:
        if self._failure is not None:
            raise ProtocolViolation(f"its Produce with acks=0 failed: {self._failure}")

    async def _complete(self) -> ProduceResponse:
        """Flush and, with acks=all, wait for the in-sync replicas: Kafka's `DelayedProduce`."""
        await self._flush()
        if self.request.acks == -1:
            done = await self._broker.replicas.purgatory.try_complete_else_watch(
                [partition.topic_partition for partition, _, _ in self._awaiting_replication],
                lambda: not self._must_wait_for_replicas(),
                self.request.timeout_ms,
            )
            if not done and self._must_wait_for_replicas():
                for _, _, response in self._awaiting_replication:
                    response.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
                    self.context.count_error(response.error_code)
        return self._with_leaders()

    async def _flush(self) -> None:
        """Wait for the flushes that are due; those that are done have made their partitions commit. Where one
        fails the records stay, but their producer gets an error.
        """
        for flush, partition, response in self._awaiting_flush:
            try:
                await asyncio.shield(flush)
            except KafkaError as error:
                response.error_code, response.base_offset = int(error.code), -1
                self.context.count_error(response.error_code)
                self._awaiting_replication = [
                    each for each in self._awaiting_replication if each[2] is not response
                ]
                self._failure = f"{partition.topic_partition}: {error}"

    def _must_wait_for_replicas(self) -> bool:
        """Decide the partitions that can be, each once; True while some are left."""
        undecided = []
        for each in self._awaiting_replication:
            partition, offset, response = each
            outcome = partition.check_enough_replicas_reach_offset(offset)
            if outcome is None:
                undecided.append(each)
                continue
            response.error_code = int(outcome)
            if outcome:
                self.context.count_error(response.error_code)
            if outcome in LEADER_CHANGED:
                tp = partition.topic_partition
                self._moved.append((partition.topic_id if self._by_id else tp.topic, response))
        self._awaiting_replication = undecided
        return bool(undecided)

    def _with_leaders(self) -> ProduceResponse:
        if self._moved:
            name_leaders(self.context, self._response, self._moved)
        return self._response


def _is_transactional(records: Buffer | None) -> bool:
    return (
        records is not None
        and len(records) > _ATTRIBUTES_AT
        and bool(records[_ATTRIBUTES_AT] & _TRANSACTIONAL)
        and records[_MAGIC_AT] == MAGIC
    )


def _check_transactional_id(context: RequestContext, request: ProduceRequest) -> None:
    transactional_id = request.transactional_id
    if transactional_id is None or not context.allowed(
        AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        if request.acks == 0:
            raise ProtocolViolation("its Produce with acks=0 failed: it may not use its transactional id")
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _read_header(records: Buffer | None, version: int) -> BatchHeader:
    """Check that the records are one batch as producers send them, and read its header."""
    try:
        return check_produce_records(records, version)
    except KafkaError as error:
        magic = records[_MAGIC_AT] if records is not None and len(records) > _MAGIC_AT else MAGIC
        if error.code is ErrorCode.CORRUPT_MESSAGE and 0 <= magic < MAGIC:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"Produce requests with version {version} are only allowed to contain record batches with "
                f"magic version {MAGIC}, not {magic}",
            ) from None
        raise


def _is_no_batch(records: Buffer | None) -> bool:
    """Whether the bytes are not even a batch that was damaged: a negative length, or an unknown magic."""
    return (
        records is not None
        and len(records) > _MAGIC_AT
        and (records[_LENGTH_AT] >= 0x80 or records[_MAGIC_AT] > MAGIC)
    )
