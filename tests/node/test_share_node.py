"""Share consumption on a running node, request by request: state that survives a restart, transactions,
permissions, metrics.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support import share_state
from tests.support.principals import UserClient, own_settings
from tests.support.share_worker import ACCEPT, RELEASE, ShareWorker
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryResponse
from ottla.testing.local_node import LocalNode

GROUP = "workers"
_GROUP_RESOURCE = 32


def make_topic(node: LocalNode, name: str) -> bytes:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic(name, 1, 1)]).values():
        done.result(60)
    with WireClient(node.bootstrap_servers) as client:
        topic_id = topic_id_of(client, name)
        client.get(share_state.find(GROUP, topic_id, [0]), 6, FindCoordinatorResponse)

        def is_initialized() -> bool:
            request = share_state.initialize(GROUP, topic_id, {0: (1, 0)})
            state = client.get(request, 0, InitializeShareGroupStateResponse)
            return state.results[0].partitions[0].error_code == 0

        wait_until(is_initialized, "the state has no coordinator")
    return topic_id


def topic_id_of(client: WireClient, name: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return bytes(client.get(request, 12, MetadataResponse).topics[0].topic_id)


def produce(node: LocalNode, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as running:
        yield running


def test_workers_share_a_partition_and_a_lost_worker_gives_back(node: LocalNode) -> None:
    topic_id = make_topic(node, "jobs")
    with WireClient(node.bootstrap_servers) as one, WireClient(node.bootstrap_servers) as other:
        first, second = (
            ShareWorker(one, GROUP, topic_id, "first"),
            ShareWorker(other, GROUP, topic_id, "second"),
        )
        produce(node, "jobs", "a", "b", "c")
        assert [value for _, value in first.take()] == ["a", "b", "c"]
        assert second.take(max_wait_ms=50) == []
        assert first.acknowledge(0, 1, ACCEPT) is ErrorCode.NONE
        assert second.acknowledge(2, 2, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
        one.close()
        assert second.take() == [(2, "c")]
        produce(node, "jobs", "d")
        assert second.take((2, 2, ACCEPT)) == [(3, "d")]
        assert second.fetch((3, 3, ACCEPT), max_wait_ms=0).acquisition_lock_timeout_ms == 30_000
        summary = other.get(
            share_state.summary(GROUP, topic_id, {0: -1}), 1, ReadShareGroupStateSummaryResponse
        )
        assert summary.results[0].partitions[0].start_offset in (3, 4)


def test_records_of_aborted_transactions_are_left_out_where_the_group_says_so(node: LocalNode) -> None:
    topic_id = make_topic(node, "ledger")
    setting = AlterableConfig(name="share.isolation.level", value="read_committed")
    change = AlterConfigsResource(resource_type=_GROUP_RESOURCE, resource_name=GROUP, configs=[setting])
    with WireClient(node.bootstrap_servers) as client:
        changed = client.get(
            IncrementalAlterConfigsRequest(resources=[change]), 1, IncrementalAlterConfigsResponse
        )
        assert changed.responses[0].error_code == 0, changed
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": "ledger"})
    producer.init_transactions(60)
    for value, commits in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce("ledger", value, partition=0)
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    with WireClient(node.bootstrap_servers) as client:
        worker = ShareWorker(client, GROUP, topic_id)
        # A commit is answered when it is decided, and its marker may come later.
        taken: list[str] = []
        while len(taken) < 2:
            more = worker.take()
            assert more, "nothing came in time"
            taken += [value for _, value in more]
        assert taken == ["a", "c"]


def test_state_and_deliveries_survive_a_restart(tmp_path: Path) -> None:
    with LocalNode(data_dir=str(tmp_path)) as node:
        topic_id = make_topic(node, "jobs")
        produce(node, "jobs", *"abcdef")
        with WireClient(node.bootstrap_servers) as client:
            worker = ShareWorker(client, GROUP, topic_id)
            assert len(worker.take()) == 6
            assert worker.acknowledge(1, 2, ACCEPT) is ErrorCode.NONE
            assert worker.acknowledge(4, 4, RELEASE) is ErrorCode.NONE
    with LocalNode(data_dir=str(tmp_path)) as node, WireClient(node.bootstrap_servers) as client:
        worker = ShareWorker(client, GROUP, topic_id)
        taken: list[str] = []
        while len(taken) < 4:
            more = worker.take()
            assert more, "nothing came in time"
            taken += [value for _, value in more]
        assert taken == ["a", "d", "e", "f"]
        assert worker.acknowledge(0, 0, ACCEPT) is ErrorCode.NONE
        assert worker.acknowledge(3, 5, ACCEPT) is ErrorCode.NONE
        assert worker.take(max_wait_ms=50) == []


def test_a_user_needs_to_read_the_group() -> None:
    with LocalNode(own_settings(["bob"])) as node, UserClient(node.bootstrap_servers, "bob") as client:
        response = ShareWorker(client, GROUP, bytes(16)).fetch()
        assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_an_operator_sees_what_is_in_delivery(node: LocalNode) -> None:
    topic_id = make_topic(node, "seen")
    produce(node, "seen", *"abc")
    with WireClient(node.bootstrap_servers) as client:
        assert len(ShareWorker(client, GROUP, topic_id).take()) == 3
        with urllib.request.urlopen(f"{node.http_url}/metrics") as answer:
            text = answer.read().decode()
    labels = '{group="workers",topic="seen",partition="0"}'
    assert f"kafka_server_sharepartitionmetrics_inflightmessagecount{labels} 3" in text
    assert "kafka_server_sharesessioncache_sharesessionscount" in text
