"""A fetch that waits is answered when enough becomes readable, also if that was written before."""

from __future__ import annotations

from confluent_kafka import Producer
from tests.support.wire import WireClient, fetch_request

from ottla.protocol.api import API
from ottla.protocol.headers import read_response
from ottla.protocol.messages.fetch import FetchResponse
from ottla.testing.local_node import LocalNode

DEADLINE_S = 60
VERSION = 11
READ_COMMITTED = 1


def test_records_that_a_commit_makes_readable_complete_a_fetch_though_they_were_written_before() -> None:
    with LocalNode() as node, WireClient(node.bootstrap_servers, timeout_s=DEADLINE_S) as client:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": "late"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("late", bytes(5_000))
        assert producer.flush(DEADLINE_S) == 0
        # It wants more than the marker of a commit has, and would wait for twice the deadline.
        request = fetch_request(
            "late", max_wait_ms=2 * DEADLINE_S * 1000, min_bytes=4_000, isolation_level=READ_COMMITTED
        )
        client.send(request, VERSION)
        producer.commit_transaction(DEADLINE_S)
        frame = client.receive_frame()
        assert frame is not None
        _, response = read_response(API[request.API_KEY], VERSION, frame)
        assert isinstance(response, FetchResponse)
        assert len(response.responses[0].partitions[0].records or b"") > 5_000
