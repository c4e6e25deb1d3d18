"""The node's side of transactions: markers in local partitions, and the question before each first write.

Before a producer's first write of a transaction to a partition, its leader asks the coordinator (KIP-890).
With version 2 the question adds the partition; with version 1 it only verifies that the client has added it.
Either way nothing lands in a partition that the coordinator does not know of, so nothing is left there
without a marker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.coordinator.engine_effects import Producer
from ottla.coordinator.engine_shard import Ticket
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.requests import AddPartitions, VerifyPartitions, WriteMarkers
from ottla.coordinator.transaction.service import TransactionService
from ottla.log.files import TopicPartition
from ottla.log.producer_state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.node.auto_topics import CONSUMER_OFFSETS
from ottla.node.config import NodeConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.node.context import RequestContext
    from ottla.node.node import Node
    from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

Codes = Mapping[TopicPartition, ErrorCode]

_VERSION_2: Final = 2
_NOT_READY: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
_FIRST_OFFSETS_THAT_ADD: Final = 5
_FIRST_OFFSETS_THAT_CAN_ABORT: Final = 4


def transaction_config(config: NodeConfig) -> TransactionConfig:
    number = config.number
    return TransactionConfig(
        transactional_id_expiration_ms=number("transactional.id.expiration.ms"),
        transaction_max_timeout_ms=number("transaction.max.timeout.ms"),
        abort_timed_out_interval_ms=number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        remove_expired_interval_ms=number("transaction.remove.expired.transaction.cleanup.interval.ms"),
        two_phase_commit_enabled=config.flag("transaction.two.phase.commit.enable"),
    )


class NodeTransactions:
    def __init__(self, node: Node) -> None:
        config = node.config
        self._node: Final = node
        self.service: Final = TransactionService(
            node.runtime,
            transaction_config(config),
            self,
            node.producer_ids.next,
            commit_timeout_ms=config.number("request.timeout.ms"),
            load_bytes=config.number("transaction.state.log.load.buffer.size"),
        )

    # Markers

    def exists(self, partition: TopicPartition) -> bool:
        topic = self._node.image.topics.by_name.get(partition.topic)
        return topic is not None and partition.partition in topic.partitions

    def write(self, marker: WriteMarkers, partitions: frozenset[TopicPartition]) -> Codes | Awaitable[Codes]:
        """Write a marker to partitions that this node leads. One that another node leads is told apart by
        NOT_LEADER_OR_FOLLOWER.
        """
        codes: dict[TopicPartition, ErrorCode] = {}
        tickets: dict[TopicPartition, Ticket] = {}
        appended: dict[TopicPartition, tuple[Partition, int]] = {}
        for tp in partitions:
            if tp.topic == CONSUMER_OFFSETS:
                ticket = self._node.groups.end_transaction(
                    tp.partition,
                    marker.writer,
                    commit=marker.commit,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.client_version,
                )
                if ticket.done:
                    codes[tp] = _code_of(ticket)
                else:
                    tickets[tp] = ticket
                continue
            try:
                partition, end_offset = self._append(marker, tp)
            except KafkaError as error:
                codes[tp] = error.code
                continue
            outcome = partition.replicated(end_offset)
            if outcome is None:
                appended[tp] = partition, end_offset
            else:
                codes[tp] = outcome
        return self._confirmed(codes, tickets, appended) if tickets or appended else codes

    def _append(self, marker: WriteMarkers, tp: TopicPartition) -> tuple[Partition, int]:
        node = self._node
        partition = node.replicas.partition(tp)
        now_ms = node.now_ms()
        kind = ControlType.COMMIT if marker.commit else ControlType.ABORT
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, marker.coordinator_epoch),
            producer_id=marker.writer.id,
            producer_epoch=marker.writer.epoch,
            timestamp=now_ms,
        )
        try:
            info = partition.append(
                batch,
                now_ms=now_ms,
                origin=AppendOrigin.COORDINATOR,
                transaction_version=marker.client_version,
            )
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp}: {error}") from error
        if info.rolled:
            node.flush_later(partition.log)
        return partition, info.last_offset + 1

    async def _confirmed(
        self,
        codes: dict[TopicPartition, ErrorCode],
        tickets: Mapping[TopicPartition, Ticket],
        appended: Mapping[TopicPartition, tuple[Partition, int]],
    ) -> Codes:
        """Wait for the replicas, as long as any request may."""
        timeout_ms = self._node.config.number("request.timeout.ms")
        await self._node.replicas.purgatory.wait(
            appended,
            lambda: all(partition.replicated(end) is not None for partition, end in appended.values()),
            timeout_ms,
        )
        for tp, (partition, end_offset) in appended.items():
            outcome = partition.replicated(end_offset)
            codes[tp] = ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome
        for tp, ticket in tickets.items():
            with contextlib.suppress(KafkaError):
                await ticket
            codes[tp] = _code_of(ticket)
        return codes

    # Before the first write

    def must_ask(self, *, version_2: bool) -> bool:
        """Whether the coordinator is asked at all; with version 2 it has to know of the partition."""
        return version_2 or self._node.config.flag("transaction.partition.verification.enable")

    def begin_verification(
        self, partition: Partition, producer: Producer, sequence: int, *, version_2: bool
    ) -> VerificationGuard:
        """The guard to present with the write; the sentinel if the transaction is open there already."""
        return partition.log.producers.maybe_start_verification(
            producer.id,
            sequence,
            producer.epoch,
            supports_epoch_bump=version_2,
            now_ms=self._node.now_ms(),
        )

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
        can_abort: bool,
    ) -> Codes | Awaitable[Codes]:
        """Ask the coordinator about partitions, in the words that a producer understands."""
        ticket = self._submit(transactional_id, producer, partitions, version_2=version_2)
        if ticket.done:
            codes = _told(ticket, partitions, can_abort=can_abort)
            if not (version_2 and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()):
                return codes
        return self._ask_again(
            ticket, transactional_id, producer, partitions, version_2=version_2, can_abort=can_abort
        )

    async def _ask_again(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
        can_abort: bool,
    ) -> Codes:
        """While the last transaction is being ended, a short wait here spares the client a long one."""
        loop = asyncio.get_running_loop()
        config = self._node.config
        deadline = loop.time() + config.number("add.partitions.to.txn.retry.backoff.max.ms") / 1000
        pause = config.number("add.partitions.to.txn.retry.backoff.ms") / 1000
        while True:
            with contextlib.suppress(KafkaError):
                await ticket
            codes = _told(ticket, partitions, can_abort=can_abort)
            busy = version_2 and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not busy or loop.time() >= deadline:
                return codes
            await asyncio.sleep(pause)
            ticket = self._submit(transactional_id, producer, partitions, version_2=version_2)

    def _submit(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
    ) -> Ticket:
        if version_2:
            return self.service.submit(AddPartitions(transactional_id, producer, partitions, _VERSION_2))
        return self.service.submit(VerifyPartitions(transactional_id, producer, partitions))

    async def verify_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest, tp: TopicPartition
    ) -> VerificationGuard:
        """For TxnOffsetCommit: the guard with which the offsets may be written, or the error to answer."""
        producer = Producer(request.producer_id, request.producer_epoch)
        version_2 = context.version >= _FIRST_OFFSETS_THAT_ADD
        try:
            partition = self._node.replicas.partition(tp)
            partition.check_leader()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None
        guard = self.begin_verification(partition, producer, -1, version_2=version_2)
        if guard is SENTINEL_GUARD or not self.must_ask(version_2=version_2):
            return guard
        codes = self.ask(
            request.transactional_id,
            producer,
            frozenset((tp,)),
            version_2=version_2,
            can_abort=context.version >= _FIRST_OFFSETS_THAT_CAN_ABORT,
        )
        if not isinstance(codes, Mapping):
            codes = await codes
        code = codes[tp]
        if code is ErrorCode.CONCURRENT_TRANSACTIONS and not version_2:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # which clients of that age know to wait for
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"the offsets cannot be added to {request.transactional_id!r}")
        return guard


def _code_of(ticket: Ticket) -> ErrorCode:
    """What became of a marker in a partition of groups."""
    try:
        ticket.result()
    except KafkaError as error:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_READY else error.code
    return ErrorCode.NONE


def _told(ticket: Ticket, partitions: frozenset[TopicPartition], *, can_abort: bool) -> Codes:
    """The coordinator's answer, as producers expect it."""
    try:
        answer = ticket.result()
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return dict.fromkeys(partitions, code)
    if answer is None:
        return dict.fromkeys(partitions, ErrorCode.NONE)
    codes: dict[TopicPartition, ErrorCode] = answer
    if can_abort:
        return codes
    return {
        tp: ErrorCode.INVALID_TXN_STATE if code is ErrorCode.TRANSACTION_ABORTABLE else code
        for tp, code in codes.items()
    }


def as_known(error: KafkaError, *, fencing: bool) -> KafkaError:
    """The error as the client knows it: older ones have only INVALID_PRODUCER_EPOCH for being fenced."""
    if error.code is ErrorCode.PRODUCER_FENCED and not fencing:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    return error
