"""The error codes that metrics find in a response, wherever its message has a place for them."""

from ottla.node.api.response_errors import error_codes
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


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
