"""The transaction of one Produce request, confirmed by its coordinator before anything is appended.

All partitions in which the transaction is not open yet are asked about at once. What the coordinator says of
a partition is what its append gets: a guard that lets it through, or an error that the producer knows what
to do with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.node.coordinators.marker_sender import Codes
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.node.coordinators.transactions import NodeTransactions

_FIRST_VERSION_THAT_CAN_ABORT: Final = 11
_FIRST_VERSION_THAT_ADDS: Final = 12
# What producers of any age answer with a retry, without looking for another leader.
_RETRY: Final = ErrorCode.NOT_ENOUGH_REPLICAS
_COORDINATOR_NOT_READY: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


class Verification:
    __slots__ = (
        "_can_abort",
        "_errors",
        "_guards",
        "_producer",
        "_transactional_id",
        "_transactions",
        "_version_2",
    )

    def __init__(self, transactions: NodeTransactions, transactional_id: str, produce_version: int) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._version_2 = produce_version >= _FIRST_VERSION_THAT_ADDS
        self._can_abort = produce_version >= _FIRST_VERSION_THAT_CAN_ABORT
        self._producer: ProducerIdAndEpoch | None = None
        self._guards: dict[TopicPartition, VerificationGuard] = {}
        self._errors: dict[TopicPartition, KafkaError] = {}

    def want(self, partition: Partition, header: BatchHeader) -> None:
        """This batch is to be appended there."""
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        tp = partition.topic_partition
        if self._producer is not None and producer != self._producer:
            self._errors[tp] = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request holds batches of one producer only"
            )
            return
        self._producer = producer
        try:
            guard = self._transactions.begin_verification(
                partition, producer, header.base_sequence, version_2=self._version_2
            )
        except KafkaError as error:
            self._errors[tp] = error
            return
        if guard is not SENTINEL_GUARD:
            self._guards[tp] = guard

    def run(self) -> Awaitable[None] | None:
        """Ask the coordinator; None if all is answered already."""
        transactions = self._transactions
        if not self._guards or not transactions.must_ask(version_2=self._version_2):
            return None
        assert self._producer is not None
        codes = transactions.ask(
            self._transactional_id,
            self._producer,
            frozenset(self._guards),
            version_2=self._version_2,
            can_abort=self._can_abort,
        )
        if isinstance(codes, Mapping):
            self._take(codes)
            return None
        return self._later(codes)

    async def _later(self, codes: Awaitable[Codes]) -> None:
        self._take(await codes)

    def _take(self, codes: Codes) -> None:
        for tp, code in codes.items():
            if code is not ErrorCode.NONE:
                self._errors[tp] = self._told(code)

    def _told(self, code: ErrorCode) -> KafkaError:
        name = self._transactional_id
        if code in _COORDINATOR_NOT_READY or (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._version_2
        ):
            return KafkaError(_RETRY, f"the transaction of {name!r} could not be verified: {code.name}")
        return KafkaError(code, f"the partition is not part of the transaction of {name!r}")

    def explains(self, error: KafkaError) -> bool:
        """Whether the producer is told why in words, as the code alone says something else."""
        return error.code in (_RETRY, ErrorCode.INVALID_TXN_STATE) and error in self._errors.values()

    def guard(self, partition: Partition) -> VerificationGuard:
        """What the append of the partition presents; raises if it must not happen."""
        error = self._errors.get(partition.topic_partition)
        if error is not None:
            raise error
        return self._guards.get(partition.topic_partition, SENTINEL_GUARD)
