"""A transactional producer that sends single requests, so that a test can stop anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.schema import Request, Response
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from tests.support.wire import WireClient, fetch_request, produce_request

DEADLINE_S: Final = 60.0
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
_NOT_YET: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}

R = TypeVar("R", bound=Response)
T = TypeVar("T")


def until(what: str, attempt: Callable[[], T], done: Callable[[T], bool]) -> T:
    """Repeats an attempt until its outcome is as wanted."""
    deadline = time.monotonic() + DEADLINE_S
    while not done(outcome := attempt()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {what}; last {outcome!r}"
        time.sleep(0.01)
    return outcome


class RawProducer:
    """Producer id and epoch of one transactional id, of transactions version 2 or, if asked, 1."""

    def __init__(self, address: str, transactional_id: str) -> None:
        self.wire = WireClient(address)
        self.transactional_id = transactional_id
        self.id = -1
        self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self.wire.close()

    def _get(self, request: Request, version: int, kind: type[R]) -> R:
        return self.wire.get(request, version, kind)

    def find(self, key_type: int, key: str) -> None:
        until(
            f"a coordinator of {key}",
            lambda: self._get(
                FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6, FindCoordinatorResponse
            ),
            lambda answer: answer.coordinators[0].error_code == 0,
        )

    def init(self, timeout_ms: int = 60_000) -> None:
        self.find(TRANSACTION_KEY, self.transactional_id)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        answer = until(
            "a producer id",
            lambda: self._get(request, 5, InitProducerIdResponse),
            lambda each: ErrorCode(each.error_code) not in _NOT_YET,
        )
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def produce(self, topic: str, topic_id: bytes, *values: bytes, partition: int = 0) -> ErrorCode:
        sequence = self._sequences.get((topic, partition), 0)
        batch = build_batch(
            [(time.time_ns() // 1_000_000, None, value) for value in values],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(
            topic_id, batch, partition=partition, transactional_id=self.transactional_id
        )
        # The transaction before may not have all its markers yet.
        answer = until(
            "the record in the transaction",
            lambda: self._get(request, 13, ProduceResponse),
            lambda each: ErrorCode(each.responses[0].partition_responses[0].error_code) not in _NOT_YET,
        )
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return code

    def send_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0, **fields: Any
    ) -> ErrorCode:
        """TxnOffsetCommit of version 5, which adds the group's partition to the transaction by itself."""
        self.find(GROUP_KEY, group)
        place = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
            **fields,
        )
        answer = until(
            "the offset in the transaction",
            lambda: self._get(request, 5, TxnOffsetCommitResponse),
            lambda each: ErrorCode(each.topics[0].partitions[0].error_code) not in _NOT_YET,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool) -> ErrorCode:
        """EndTxn of version 5; the next transaction goes on with the epoch that the answer gives."""
        answer = self._get(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            5,
            EndTxnResponse,
        )
        if answer.error_code == 0:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return ErrorCode(answer.error_code)


def committed_offset(
    wire: WireClient, group: str, topic: str, *, partition: int = 0, require_stable: bool = False
) -> tuple[ErrorCode, int]:
    """What OffsetFetch says of one partition, once the coordinator is loaded."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=require_stable
    )
    answer = until(
        "a loaded coordinator",
        lambda: wire.get(request, 9, OffsetFetchResponse),
        lambda each: ErrorCode(each.groups[0].error_code) not in _NOT_YET,
    )
    (found,) = answer.groups[0].topics[0].partitions
    return ErrorCode(found.error_code), found.committed_offset


def read_all(
    wire: WireClient, topic_id: bytes, *, partition: int = 0, committed: bool = False
) -> list[bytes]:
    """The values of a partition that a consumer of this isolation level is shown, from one fetch."""
    request = fetch_request(
        topic_id,
        partition=partition,
        partition_max_bytes=10_000_000,
        max_bytes=10_000_000,
        isolation_level=1 if committed else 0,
    )
    answer = wire.get(request, 17, FetchResponse)
    (data,) = answer.responses[0].partitions
    assert data.error_code == 0, ErrorCode(data.error_code)
    aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
    hidden: set[int] = set()
    values = []
    records = bytes(data.records or b"")
    for position, header in iter_batches(records):
        if header.is_control:
            hidden.discard(header.producer_id)
            continue
        while aborted and aborted[0][0] <= header.last_offset:
            hidden.add(aborted.pop(0)[1])
        if header.is_transactional and header.producer_id in hidden:
            continue
        values += [record.value or b"" for record in read_records(records, position)]
    return values
