"""End transactions from another process than the producer that wrote them.

An end names the exact producer id and epoch of the transaction, so it cannot affect a later transaction of
the same id: a coordinator whose epoch has moved on refuses it. It is therefore safe to repeat at any time
from any process. `fence` is not: it is for ids that are not needed any more, while a task may still write
under them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from ottla.client.admin.partitions import PartitionsAdmin
from ottla.client.admin.requests import AdminRequests
from ottla.client.admin.transactions import TransactionsAdmin
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.names import TopicPartition
from ottla.spark.sink.decision_state import GENERATIONS, TaskTransaction
from ottla.spark.sink.fetch import fetch

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

LAST_VERSION_WITHOUT_EPOCH_BUMP = 4
MAX_CONCURRENT_CALLS = 64
ONGOING = "Ongoing"
EMPTY = "Empty"
# The coordinator knows the id, with another producer, epoch or outcome than the request names.
_GONE = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
_ID = re.compile(r"-L([0-9a-f]{2})-P(\d+)(?:-A\d+\.\d+)?")
_ID_AT_THE_END = re.compile(_ID.pattern + r"\Z")
BATCHES_APART = 100


def slot_of(transactional_id: str) -> int:
    """The generation, modulo `GENERATIONS`, in an id of the sink; -1 for other ids."""
    match = _ID_AT_THE_END.search(transactional_id)
    return int(match[1], 16) if match is not None else -1


def transactional_id(scope: str, generation: int, partition: int, attempt: int, batch: int) -> str:
    """The id that a task attempt writes under.

    First attempts of one generation use the same ids in each batch, so that coordinators keep few. Later
    attempts, which are rare, do not: another attempt of the previous batch may still be alive.
    """
    again = f"-A{attempt}.{batch % BATCHES_APART}" if attempt else ""
    return f"{scope}-L{generation % GENERATIONS:02x}-P{partition}{again}"


class EndResult(Enum):
    DONE = "ended as requested, now or before"
    GONE = "ended the other way, or its id was used again"


@dataclass(frozen=True, slots=True)
class OngoingTransaction:
    """A transaction that its coordinator lists as Ongoing. `started_ms` is by the coordinator's clock."""

    id: str
    slot: int
    producer_id: int
    epoch: int
    started_ms: int
    timeout_ms: int

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.id, self.producer_id, self.epoch


class TransactionEnder:
    """Ends, lists and fences the sink's transactions. `timeout_ms` bounds every call."""

    def __init__(self, cluster: NetworkClient, *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._requests = AdminRequests(cluster, timeout_ms)
        self._admin = TransactionsAdmin(self._requests, PartitionsAdmin(self._requests))

    async def end(self, transaction: TaskTransaction, *, commit: bool) -> EndResult:
        """Commit or abort the transaction of exactly this producer id and epoch."""
        coordinator = CoordinatorClient(
            self._cluster, CoordinatorType.TRANSACTION, transaction.id, timeout_ms=self._timeout_ms
        )
        versions = (await self._retrying(coordinator.connection)).versions
        bumps_epoch = versions is not None and versions.features.get("transaction.version", 0) >= 2
        answer = await coordinator.call(
            EndTxnRequest(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                committed=commit,
            ),
            EndTxnResponse,
            lambda answer: [answer.error_code],
            at_most=None if bumps_epoch else LAST_VERSION_WITHOUT_EPOCH_BUMP,
            also_later=(ErrorCode.CONCURRENT_TRANSACTIONS,),
        )
        code = ErrorCode.of(answer.error_code)
        if not code:
            return EndResult.DONE
        if code in _GONE:
            return EndResult.GONE
        what = "commit" if commit else "abort"
        raise KafkaError(code, f"cannot {what} transaction {transaction.id!r}: {code.text}")

    async def end_all(self, transactions: Sequence[TaskTransaction], *, commit: bool) -> list[EndResult]:
        """End all of them concurrently. Raises the first failure after all were tried."""
        await self.find_coordinators([each.id for each in transactions])
        return await run_concurrently(transactions, lambda transaction: self.end(transaction, commit=commit))

    async def find_coordinators(self, ids: Sequence[str]) -> dict[str, int]:
        """The coordinators of these ids, as node ids, from one request per 1000 ids."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), 1_000):
            some = list(ids[start : start + 1_000])
            request = FindCoordinatorRequest(key_type=CoordinatorType.TRANSACTION, coordinator_keys=some)

            async def ask(request: FindCoordinatorRequest = request) -> FindCoordinatorResponse:
                answer = await self._cluster.request_any(request, FindCoordinatorResponse)
                for entry in answer.coordinators:
                    if entry.error_code:
                        code = ErrorCode.of(entry.error_code)
                        raise KafkaError(code, f"transactional id {entry.key!r}: {code.text}")
                return answer

            for entry in (await self._retrying(ask)).coordinators:
                found[entry.key] = entry.node_id
        return found

    def forget_coordinators(self, ids: Iterable[str]) -> None:
        """Drop the cached coordinators of ids that are not used again."""
        for name in ids:
            self._cluster.forget_coordinator(CoordinatorType.TRANSACTION, name)

    async def find_ongoing(self, ids: Sequence[str]) -> dict[str, OngoingTransaction]:
        """The ongoing transactions of these ids, from one request to each coordinator."""

        async def ask() -> dict[str, OngoingTransaction]:
            nodes: dict[int, list[str]] = {}
            for name, node in (await self.find_coordinators(ids)).items():
                nodes.setdefault(node, []).append(name)
            answers = await asyncio.gather(
                *(
                    self._requests.node(
                        node,
                        DescribeTransactionsRequest(transactional_ids=names),
                        DescribeTransactionsResponse,
                    )
                    for node, names in nodes.items()
                )
            )
            found: dict[str, OngoingTransaction] = {}
            for entry in (state for answer in answers for state in answer.transaction_states):
                code = ErrorCode.of(entry.error_code)
                if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    continue
                if code:
                    raise KafkaError(code, f"transactional id {entry.transactional_id!r}: {code.text}")
                if entry.transaction_state == ONGOING:
                    found[entry.transactional_id] = OngoingTransaction(
                        entry.transactional_id,
                        slot_of(entry.transactional_id),
                        entry.producer_id,
                        entry.producer_epoch,
                        entry.transaction_start_time_ms,
                        entry.transaction_timeout_ms,
                    )
            return found

        return await self._retrying(ask) if ids else {}

    async def find_ongoing_in_scope(self, scope: str) -> list[OngoingTransaction]:
        """All ongoing transactions of a scope, of any run."""
        ids = await self._list_ids(scope, [ONGOING])
        return list((await self.find_ongoing(ids)).values())

    async def find_ids_in_use(self, scope: str) -> list[str]:
        """The ids of a scope that have an ongoing transaction or may have one at any moment: a producer has
        initialised the id and has not written yet.
        """
        return await self._list_ids(scope, [ONGOING, EMPTY])

    async def find_ids_of_query(self, query: str) -> list[str]:
        """The ids that tasks of this streaming query have used under any prefix, sorted."""
        listed = await self._retrying(self._admin.list)
        wanted = re.compile(".+-" + re.escape(query) + _ID.pattern)
        return sorted(each.transactional_id for each in listed if wanted.fullmatch(each.transactional_id))

    async def _list_ids(self, scope: str, states: list[str]) -> list[str]:
        listed = await self._retrying(lambda: self._admin.list(states=states))
        wanted = re.compile(re.escape(scope) + _ID.pattern)
        return [each.transactional_id for each in listed if wanted.fullmatch(each.transactional_id)]

    async def fence(self, ids: Sequence[str]) -> None:
        """Abort the transactions of these ids, and fence the producers that are about to write."""
        await self.find_coordinators(ids)
        await run_concurrently(ids, self._admin.fence)

    async def is_missing(self, transaction: TaskTransaction) -> bool:
        """Whether the records of a transaction whose outcome its coordinator no longer knows were aborted, or
        may have been. The partitions tell: a read_committed fetch lists the aborted transactions of its
        range.

        Records that the topic has deleted meanwhile, as by its retention, are not missing.
        """
        deleted = 0
        for topic, index, first, last in transaction.written_ranges:
            partition = TopicPartition(topic, index)

            async def look(partition: TopicPartition = partition, first: int = first) -> PartitionData:
                await self._cluster.topic(partition.topic, timeout_ms=self._timeout_ms)
                return await fetch(self._cluster, partition, first, max_bytes=1, read_committed=True)

            data = await self._retrying(look)
            if data.log_start_offset > first:
                deleted += 1
            elif not data.error_code and data.last_stable_offset > last:
                aborted = data.aborted_transactions or ()
                return any(
                    each.producer_id == transaction.producer_id and each.first_offset <= last
                    for each in aborted
                )
        return deleted == 0

    async def _retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await self._cluster.retrying(
            attempt, timeout_ms=self._timeout_ms, what="the sink's coordinators"
        )


async def run_concurrently(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in order. Bounds the concurrent calls; raises the first error once all have ended."""
    limit = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def one(item: T) -> R:
        async with limit:
            return await call(item)

    results = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
