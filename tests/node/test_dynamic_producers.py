"""Settings of producers that change while the node runs."""

from __future__ import annotations

import time

from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.builder import build_batch
from ottla.testing.local_node import LocalNode

_BROKER_RESOURCE = 4


def producers(wire: WireClient) -> int:
    topics = [TopicRequest(name="t", partition_indexes=[0])]
    response = wire.get(DescribeProducersRequest(topics=topics), 0, DescribeProducersResponse)
    return len(response.topics[0].partitions[0].active_producers)


def test_producers_expire_by_a_setting_that_was_changed_since_the_start() -> None:
    with (
        LocalNode({"producer.id.expiration.check.interval.ms": 10}) as node,
        WireClient(node.bootstrap_servers) as wire,
    ):
        create_topic(wire, "t")
        now_ms = int(time.time() * 1000)
        batch = build_batch([(now_ms, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
        wire.get(produce_request("t", batch, acks=1), 9, ProduceResponse)
        assert producers(wire) == 1
        changed = AlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1")
        resource = AlterConfigsResource(resource_type=_BROKER_RESOURCE, resource_name="", configs=[changed])
        answer = wire.get(
            IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse
        )
        assert answer.responses[0].error_code == ErrorCode.NONE
        wait_until(lambda: producers(wire) == 0, "the producer has not expired")
