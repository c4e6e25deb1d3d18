"""Transactions before the first write to a partition: added to, or verified with, their coordinator.

Before a producer's first write of a transaction to a partition, the leader of the partition asks the
transaction's coordinator (KIP-890), which may be on another broker. With transaction version 2 the request
adds the partition; with version 1 it only verifies that the client has added it. Either way no record is
written to a partition that the coordinator does not know of, so none stays there without a marker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.runtime.partitioning import partition_for
from ottla.coordinator.transaction.requests import AddPartitions, VerifyPartitions
from ottla.coordinator.transaction.service import TransactionCoordinatorService
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.coordinators.transaction_marker_channel_manager import Codes, by_topic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.names import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.records.batch import BatchHeader
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.rpc.request_batcher import RequestBatcher
from ottla.runtime.clock import Clock

if TYPE_CHECKING:
    from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

_PartitionsTicket: TypeAlias = Ticket[None] | Ticket[dict[TopicPartition, ErrorCode]] | Ticket[Codes]
"""The reply about partitions: a code for each, or None if all were added."""

_VERSION_2: Final = 2
_REQUEST_VERSION: Final = 5
_FIRST_OFFSETS_THAT_ADD: Final = 5
_FIRST_OFFSETS_THAT_CAN_ABORT: Final = 4
_FIRST_PRODUCE_THAT_CAN_ABORT: Final = 11
_FIRST_PRODUCE_THAT_ADDS: Final = 12
# What producers of any age answer with a retry, without looking for another leader.
_RETRY: Final = ErrorCode.NOT_ENOUGH_REPLICAS
_COORDINATOR_NOT_READY: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


class AddPartitionsToTxnManager:
    """Asks the coordinators of transactions before a leader writes, whether they are here or elsewhere."""

    def __init__(
        self,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        service: TransactionCoordinatorService,
        clock: Clock,
    ) -> None:
        self._broker_id: Final = config.current.node_id
        self._config: Final = config
        self._metadata: Final = metadata
        self._replicas: Final = replicas
        self._service: Final = service
        self._clock: Final = clock
        self._channel: Final = peers.peer_channel("transactions")
        self._batcher: Final = RequestBatcher(self._send, lambda transaction: transaction.transactional_id)

    # Before the first write of a transaction

    def must_verify(self, *, version_2: bool) -> bool:
        """Whether the coordinator is asked at all; with version 2 the partition has to be added."""
        return version_2 or self._config.current.flag("transaction.partition.verification.enable")

    def maybe_start_verification(
        self, partition: Partition, producer: ProducerIdAndEpoch, sequence: int, *, version_2: bool
    ) -> VerificationGuard:
        """Return the guard to present with the write; the sentinel if the transaction is open there."""
        return partition.log.producer_state_manager.maybe_start_verification(
            producer.id,
            sequence,
            producer.epoch,
            supports_epoch_bump=version_2,
            now_ms=self._clock.wall_ms(),
        )

    def add_or_verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
        can_abort: bool,
    ) -> Codes | Awaitable[Codes]:
        """Add partitions to a transaction, or verify that they were added; return codes that a producer
        understands.
        """
        ticket = self._submit(transactional_id, producer, partitions, version_2=version_2)
        if ticket.done:
            codes = _codes_for_producer(ticket, partitions, can_abort=can_abort)
            if not (version_2 and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()):
                return codes
        return self._retry(
            ticket, transactional_id, producer, partitions, version_2=version_2, can_abort=can_abort
        )

    async def _retry(
        self,
        ticket: _PartitionsTicket,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
        can_abort: bool,
    ) -> Codes:
        """Retry while the previous transaction is being ended: a short wait here spares the client a long
        one.
        """
        loop = asyncio.get_running_loop()
        config = self._config.current
        deadline = loop.time() + config.number("add.partitions.to.txn.retry.backoff.max.ms") / 1000
        pause = config.number("add.partitions.to.txn.retry.backoff.ms") / 1000
        while True:
            with contextlib.suppress(KafkaError):
                await ticket
            codes = _codes_for_producer(ticket, partitions, can_abort=can_abort)
            busy = version_2 and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not busy or loop.time() >= deadline:
                return codes
            await asyncio.sleep(pause)
            ticket = self._submit(transactional_id, producer, partitions, version_2=version_2)

    def _submit(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        version_2: bool,
    ) -> _PartitionsTicket:
        coordinator = self._coordinator(transactional_id)
        if coordinator is not None and coordinator != self._broker_id:
            return self._send_to_coordinator(coordinator, transactional_id, producer, partitions, version_2)
        if version_2:
            return self._service.submit(AddPartitions(transactional_id, producer, partitions, _VERSION_2))
        return self._service.submit(VerifyPartitions(transactional_id, producer, partitions))

    # Coordinators on other brokers

    def _coordinator(self, transactional_id: str) -> int | None:
        """The broker that coordinates, as far as this one knows."""
        topic = self._metadata.image.topics.by_name.get(TRANSACTION_STATE_TOPIC)
        if topic is None or not transactional_id:
            return None
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return None if leader == NO_LEADER else leader

    def _send_to_coordinator(
        self,
        coordinator: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        version_2: bool,
    ) -> Ticket[Codes]:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=not version_2,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic(partitions).items()
            ],
        )
        ticket: Ticket[Codes] = Ticket()
        answer = self._batcher.submit(coordinator, transaction)
        answer.add_done_callback(lambda done: ticket.resolve(_answer_of(done, coordinator, partitions)))
        return ticket

    async def _send(
        self, broker: int, transactions: Sequence[AddPartitionsToTxnTransaction]
    ) -> Sequence[Codes | ErrorCode]:
        """Send transactions to a coordinator; return the codes of each, or one for all its partitions."""
        request = AddPartitionsToTxnRequest(transactions=list(transactions))
        timeout_ms = self._config.current.number("request.timeout.ms")
        response = await self._channel.request(broker, request, _REQUEST_VERSION, timeout_ms=timeout_ms)
        assert isinstance(response, AddPartitionsToTxnResponse)
        if response.error_code:
            return [ErrorCode.of(response.error_code)] * len(transactions)
        found = {
            result.transactional_id: {
                TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
                for topic in result.topic_results
                for each in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }
        return [found.get(each.transactional_id, ErrorCode.UNKNOWN_SERVER_ERROR) for each in transactions]

    def on_broker_gone(self, broker: int) -> None:
        """Give up the requests to a broker that was fenced or has left."""
        self._batcher.on_broker_gone(broker)

    async def close(self) -> None:
        await self._batcher.close()
        self._channel.close()

    # Offsets of a transaction

    async def verify_offsets(
        self, request: TxnOffsetCommitRequest, version: int, tp: TopicPartition
    ) -> VerificationGuard:
        """For TxnOffsetCommit: return the guard to write the offsets with, or raise the error to answer."""
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        version_2 = version >= _FIRST_OFFSETS_THAT_ADD
        try:
            partition = self._replicas.partition(tp)
            partition.check_leader()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None
        guard = self.maybe_start_verification(partition, producer, -1, version_2=version_2)
        if guard is SENTINEL_GUARD or not self.must_verify(version_2=version_2):
            return guard
        codes = self.add_or_verify(
            request.transactional_id,
            producer,
            frozenset((tp,)),
            version_2=version_2,
            can_abort=version >= _FIRST_OFFSETS_THAT_CAN_ABORT,
        )
        if not isinstance(codes, Mapping):
            codes = await codes
        code = codes[tp]
        if code is ErrorCode.CONCURRENT_TRANSACTIONS and not version_2:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # older clients wait and retry on this code
        if code is not ErrorCode.NONE:
            raise KafkaError(
                code, f"the offsets cannot be added to the transaction of {request.transactional_id!r}"
            )
        return guard


class ProduceVerification:
    """The transaction of one Produce request, verified with its coordinator before any batch is appended.

    All partitions in which the transaction is not open yet are verified together. The outcome for a partition
    is what its append gets: a guard that lets it through, or an error that the producer knows how to handle.
    """

    __slots__ = (
        "_can_abort",
        "_errors",
        "_guards",
        "_manager",
        "_producer",
        "_transactional_id",
        "_version_2",
    )

    def __init__(
        self, manager: AddPartitionsToTxnManager, transactional_id: str, produce_version: int
    ) -> None:
        self._manager = manager
        self._transactional_id = transactional_id
        self._version_2 = produce_version >= _FIRST_PRODUCE_THAT_ADDS
        self._can_abort = produce_version >= _FIRST_PRODUCE_THAT_CAN_ABORT
        self._producer: ProducerIdAndEpoch | None = None
        self._guards: dict[TopicPartition, VerificationGuard] = {}
        self._errors: dict[TopicPartition, KafkaError] = {}

    def add(self, partition: Partition, header: BatchHeader) -> None:
        """Add a batch that is to be appended to the partition."""
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        tp = partition.topic_partition
        if self._producer is not None and producer != self._producer:
            self._errors[tp] = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request holds batches of one producer only"
            )
            return
        self._producer = producer
        try:
            guard = self._manager.maybe_start_verification(
                partition, producer, header.base_sequence, version_2=self._version_2
            )
        except KafkaError as error:
            self._errors[tp] = error.again()
            return
        if guard is not SENTINEL_GUARD:
            self._guards[tp] = guard

    def start(self) -> Awaitable[None] | None:
        """Ask the coordinator; None if the outcome is known already."""
        if not self._guards or not self._manager.must_verify(version_2=self._version_2):
            return None
        assert self._producer is not None
        codes = self._manager.add_or_verify(
            self._transactional_id,
            self._producer,
            frozenset(self._guards),
            version_2=self._version_2,
            can_abort=self._can_abort,
        )
        if isinstance(codes, Mapping):
            self._on_codes(codes)
            return None
        return self._await_codes(codes)

    async def _await_codes(self, codes: Awaitable[Codes]) -> None:
        self._on_codes(await codes)

    def _on_codes(self, codes: Codes) -> None:
        for tp, code in codes.items():
            if code is not ErrorCode.NONE:
                self._errors[tp] = self._error_for(code)

    def _error_for(self, code: ErrorCode) -> KafkaError:
        name = self._transactional_id
        if code in _COORDINATOR_NOT_READY or (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._version_2
        ):
            return KafkaError(_RETRY, f"the transaction of {name!r} could not be verified: {code.name}")
        return KafkaError(code, f"the partition is not part of the transaction of {name!r}")

    def explains(self, error: KafkaError) -> bool:
        """Whether the response needs the message, as the error code alone says something else."""
        return error.code in (_RETRY, ErrorCode.INVALID_TXN_STATE) and error in self._errors.values()

    def guard(self, partition: Partition) -> VerificationGuard:
        """Return the guard for the append to the partition; raise the error if it must not happen."""
        error = self._errors.get(partition.topic_partition)
        if error is not None:
            raise error
        return self._guards.get(partition.topic_partition, SENTINEL_GUARD)


def _answer_of(
    done: asyncio.Future[Codes | ErrorCode], coordinator: int, partitions: frozenset[TopicPartition]
) -> Codes | KafkaError:
    """Convert the answer of another broker to what the coordinator of this one would give."""
    error = ConnectionError("this node stops") if done.cancelled() else done.exception()
    if error is not None:
        return KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator on broker {coordinator}: {error}"
        )
    codes = done.result()
    if isinstance(codes, ErrorCode):
        return KafkaError(codes, f"broker {coordinator} answers {codes.name}")
    return {tp: codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in sorted(partitions)}


def _codes_for_producer(
    ticket: _PartitionsTicket, partitions: frozenset[TopicPartition], *, can_abort: bool
) -> Codes:
    """Convert the coordinator's answer to codes that producers expect."""
    try:
        codes: Codes | None = ticket.result()
    except KafkaError as error:
        codes = dict.fromkeys(sorted(partitions), error.code)
    if codes is None:
        return dict.fromkeys(sorted(partitions), ErrorCode.NONE)
    return {tp: _code_for_producer(code, can_abort=can_abort) for tp, code in codes.items()}


def _code_for_producer(code: ErrorCode, *, can_abort: bool) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not can_abort:
        return ErrorCode.INVALID_TXN_STATE
    return code
