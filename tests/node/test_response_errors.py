"""The error codes that metrics find in a response, wherever its message has a place for them."""

import pytest
from tests.support.wire import WireClient

from ottla.node.api.response_errors import error_codes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.testing.local_node import LocalNode


def test_codes_are_found_at_the_top_and_in_parts_of_parts() -> None:
    assert error_codes(HeartbeatResponse()) == []
    assert error_codes(HeartbeatResponse(error_code=25)) == [25]
    assert error_codes(ApiVersionsResponse(error_code=35)) == [35]
    described = DescribeGroupsResponse(groups=[DescribedGroup(error_code=16), DescribedGroup()])
    assert error_codes(described) == [16]
    topic = MetadataResponseTopic(
        error_code=3, partitions=[MetadataResponsePartition(error_code=5), MetadataResponsePartition()]
    )
    assert error_codes(MetadataResponse(topics=[topic])) == [3, 5]


def test_a_response_of_many_parts_is_looked_at_up_to_a_bound() -> None:
    topics = [MetadataResponseTopic(error_code=3) for _ in range(10_000)]
    assert len(error_codes(MetadataResponse(topics=topics))) == 200


@pytest.mark.slow
def test_a_message_that_quotes_too_much_is_shortened() -> None:
    """Otherwise the client gets no answer, and the log of the node all that the client has sent."""
    names = [f"not a name {number}" for number in range(5_000)]
    subtopology = Subtopology(subtopology_id="0", source_topics=names)
    request = StreamsGroupHeartbeatRequest(
        group_id="quoting",
        member_id="00000000000000000000000000000001",
        rebalance_timeout_ms=60_000,
        topology=Topology(epoch=0, subtopologies=[subtopology]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="process",
        client_tags=[],
    )
    with LocalNode() as node, WireClient(node.bootstrap_servers) as wire:
        response = wire.get(request, 0, StreamsGroupHeartbeatResponse)
    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert response.error_message is not None
    assert "not a name 0" in response.error_message
    assert len(response.error_message) < 3_000
