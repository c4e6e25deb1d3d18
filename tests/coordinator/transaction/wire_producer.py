"""A transactional producer whose requests a test composes one by one."""

from __future__ import annotations

import time
from typing import Any

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from tests.support.wire import WireClient, create_topic, fetch_request, produce_request

DEADLINE_S = 60.0
TOPIC = "t"


class WireProducer:
    """One connection, and the requests of a producer of transactions of version 2."""

    def __init__(self, address: str, name: str) -> None:
        self.client = WireClient(address)
        self.name = name
        self.topic = f"{TOPIC}-{name}"

    def make_topic(self) -> bytes:
        return create_topic(self.client, self.topic, 2)

    def find(self) -> None:
        self._until(
            FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]),
            6,
            FindCoordinatorResponse,
            lambda answer: answer.coordinators[0].error_code == 0,
        )

    def _until(self, request: Any, version: int, kind: Any, done: Any) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not done(answer := self.client.get(request, version, kind)):
            assert time.monotonic() < deadline, answer
        return answer

    def init(self, **fields: Any) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            **{"transactional_id": self.name, "transaction_timeout_ms": 60_000, **fields}
        )
        busy = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        answer = self._until(request, 6, InitProducerIdResponse, lambda answer: answer.error_code not in busy)
        assert isinstance(answer, InitProducerIdResponse)
        return answer

    def begin(self, **fields: Any) -> ProducerIdAndEpoch:
        answer = self.init(**fields)
        assert answer.error_code == 0
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def write(
        self,
        producer: ProducerIdAndEpoch,
        value: bytes,
        *,
        sequence: int = 0,
        partition: int = 0,
        version: int = 12,
        age_ms: int = 0,
    ) -> ErrorCode:
        """Write one record, which claims to be so old."""
        batch = build_batch(
            [(time.time_ns() // 1_000_000 - age_ms, None, value)],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(
            self.topic, batch, partition=partition, transactional_id=self.name, timeout_ms=10_000
        )
        answer = self.client.get(request, version, ProduceResponse)
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 5) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        return self.client.get(request, version, EndTxnResponse)

    def state(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        answer = self.client.get(request, 0, DescribeTransactionsResponse)
        return answer.transaction_states[0].transaction_state

    def await_state(self, state: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (now := self.state()) != state:
            assert time.monotonic() < deadline, f"{now}, not {state}"

    def read(self, partition: int = 0) -> tuple[list[bytes | None], int]:
        """The values that a read_committed fetch returns, and the number of aborted transactions in it."""
        request = fetch_request(self.topic, partition=partition, isolation_level=1, max_bytes=1 << 20)
        answer = self.client.get(request, 12, FetchResponse)
        data = answer.responses[0].partitions[0]
        aborted = data.aborted_transactions or []
        open_aborts = {each.producer_id: each.first_offset for each in aborted}
        values = []
        for position, header in iter_batches(data.records or b""):
            aborted_from = open_aborts.get(header.producer_id, 1 << 60)
            if header.is_control and header.base_offset > aborted_from:
                del open_aborts[header.producer_id]
            elif not header.is_control and header.base_offset < aborted_from:
                values += [record.value for record in read_records(data.records or b"", position)]
        return values, len(aborted)
