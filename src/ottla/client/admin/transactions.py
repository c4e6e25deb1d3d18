"""Transactions: list and describe them, find hanging ones, and abort these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.admin.partitions import PartitionsAdmin
from ottla.client.admin.requests import AdminRequests
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_producers import ProducerState
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.names import TopicPartition


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """`started_ms` is None while no transaction is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction of a partition. `transactional_id` is None if no coordinator knows it."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None = None


class TransactionsAdmin:
    __slots__ = ("_partitions", "_requests")

    def __init__(self, caller: AdminRequests, partitions: PartitionsAdmin) -> None:
        self._requests = caller
        self._partitions = partitions

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """The transactions of all coordinators, by their ids; only those that match all filters."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        answers = await self._requests.every_broker(
            request, ListTransactionsResponse, lambda answer: answer.error_code, "list transactions"
        )
        found: dict[str, ListedTransaction] = {}
        for answer in answers:
            for entry in answer.transaction_states:
                found[entry.transactional_id] = ListedTransaction(
                    entry.transactional_id, entry.producer_id, entry.transaction_state
                )
        return [found[name] for name in sorted(found)]

    async def describe(self, transactional_id: str) -> TransactionInfo:
        """One transactional id as its coordinator knows it; TRANSACTIONAL_ID_NOT_FOUND if it does not."""
        answer = await self._coordinator(transactional_id).call(
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            DescribeTransactionsResponse,
            lambda answer: [entry.error_code for entry in answer.transaction_states],
        )
        entry = answer.transaction_states[0]
        if entry.error_code:
            code = ErrorCode.of(entry.error_code)
            raise KafkaError(code, f"transactional id {transactional_id!r}: {code.text}")
        return TransactionInfo(
            entry.transactional_id,
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_state,
            entry.transaction_timeout_ms,
            entry.transaction_start_time_ms if entry.transaction_start_time_ms >= 0 else None,
            tuple(TopicPartition(topic.topic, index) for topic in entry.topics for index in topic.partitions),
        )

    async def fence(self, transactional_id: str) -> tuple[int, int]:
        """Fence the producer of this transactional id and abort its open transaction; returns the producer id
        and epoch that the next producer would get.
        """
        answer = await self._coordinator(transactional_id).call(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1),
            InitProducerIdResponse,
            lambda answer: [answer.error_code],
            also_later=[ErrorCode.CONCURRENT_TRANSACTIONS],
        )
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            text = self._requests.cluster.explain(code, AclOperation.WRITE, transactional_id)
            raise KafkaError(code, f"transactional id {transactional_id!r}: {text}")
        return answer.producer_id, answer.producer_epoch

    def _coordinator(self, transactional_id: str) -> CoordinatorClient:
        return CoordinatorClient(
            self._requests.cluster,
            CoordinatorType.TRANSACTION,
            transactional_id,
            timeout_ms=self._requests.timeout_ms,
        )

    async def find_hanging(
        self, partitions: Iterable[TopicPartition], *, now_ms: int, longer_than_ms: int
    ) -> Sequence[OpenTransaction]:
        """Transactions that are open in these partitions, had no write for a time, and that no coordinator
        will end: it does not know the producer, or not that the partition is part of its transaction.
        """
        described = await self._partitions.producers(partitions)
        candidates = []
        for partition, producers in described.items():
            if isinstance(producers, KafkaError):
                raise producers
            candidates += [
                OpenTransaction(partition, producer)
                for producer in producers
                if producer.current_txn_start_offset >= 0
                and now_ms - producer.last_timestamp >= longer_than_ms
            ]
        if not candidates:
            return []
        known = await self.list(producer_ids=sorted({c.producer.producer_id for c in candidates}))
        infos: dict[int, TransactionInfo] = {}
        for listed in known:
            try:
                infos[listed.producer_id] = await self.describe(listed.transactional_id)
            except KafkaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
        hanging = []
        for candidate in candidates:
            info = infos.get(candidate.producer.producer_id)
            if info is None:
                hanging.append(candidate)
            elif candidate.partition not in info.partitions:
                hanging.append(
                    OpenTransaction(candidate.partition, candidate.producer, info.transactional_id)
                )
        return hanging

    async def open_at(self, partition: TopicPartition, start_offset: int) -> ProducerState:
        """The producer whose transaction in this partition began at an offset; INVALID_TXN_STATE if
        none did.
        """
        producers = (await self._partitions.producers([partition]))[partition]
        if isinstance(producers, KafkaError):
            raise producers
        for producer in producers:
            if producer.current_txn_start_offset == start_offset:
                return producer
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"{partition}: no open transaction begins at offset {start_offset}"
        )

    async def abort(self, partition: TopicPartition, producer: ProducerState) -> None:
        """Abort a producer's open transaction in one partition, without its coordinator."""
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            # -1 is the epoch of a coordinator that never wrote to this partition.
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])

        async def ask(node_id: int, owned: list[TopicPartition]) -> dict[TopicPartition, bool | KafkaError]:
            answer = await self._requests.cluster.request(node_id, request, WriteTxnMarkersResponse)
            code = ErrorCode.of(answer.markers[0].topics[0].partitions[0].error_code)
            return {owned[0]: KafkaError(code, f"{partition}: {code.text}") if code else True}

        result = (await self._requests.by_leader([partition], ask, "WriteTxnMarkers"))[partition]
        if isinstance(result, KafkaError):
            raise result
