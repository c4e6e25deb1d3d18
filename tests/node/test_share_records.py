"""DescribeShareRecords and AlterShareRecords on a running node, by requests that are proper or hostile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.node.test_share_node import GROUP, make_topic, produce
from tests.support.principals import UserClient, own_settings
from tests.support.share_worker import ACCEPT, ShareWorker
from tests.support.wire import WireClient

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_records import (
    AlterShareRecordsRequest,
    AlterShareRecordsRequestPartition,
    AlterShareRecordsRequestRange,
    AlterShareRecordsRequestTopic,
    AlterShareRecordsResponse,
    AlterShareRecordsResponsePartition,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsRequestPartition,
    DescribeShareRecordsRequestTopic,
    DescribeShareRecordsResponse,
    DescribeShareRecordsResponsePartition,
)
from ottla.testing.local_node import LocalNode

SKIP, RELEASE, REJECT = 0, 2, 3
AVAILABLE, HELD = 0, 1


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


@pytest.fixture
def client(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as client:
        yield client


def describe(
    client: WireClient,
    topic: str,
    *partitions: tuple[int, int],
    most: int = 1_000,
    states: tuple[int, ...] = (),
) -> list[DescribeShareRecordsResponsePartition]:
    asked = [
        DescribeShareRecordsRequestPartition(partition_index=index, start_offset=offset)
        for index, offset in partitions or ((0, 0),)
    ]
    request = DescribeShareRecordsRequest(
        group_id=GROUP,
        states=list(states),
        max_ranges=most,
        topics=[DescribeShareRecordsRequestTopic(name=topic, partitions=asked)],
    )
    response = client.get(request, 0, DescribeShareRecordsResponse)
    assert response.error_code == 0, response
    return response.topics[0].partitions


def alter(
    client: WireClient, topic: str, type: int, *ranges: tuple[int, int, int], partition: int = 0
) -> AlterShareRecordsResponsePartition:
    asked = [
        AlterShareRecordsRequestRange(first_offset=first, last_offset=last, delivery_count=count)
        for first, last, count in ranges
    ]
    part = AlterShareRecordsRequestPartition(partition_index=partition, ranges=asked)
    request = AlterShareRecordsRequest(
        group_id=GROUP,
        acknowledge_type=type,
        topics=[AlterShareRecordsRequestTopic(name=topic, partitions=[part])],
    )
    response = client.get(request, 0, AlterShareRecordsResponse)
    assert response.error_code == 0, response
    return response.topics[0].partitions[0]


def test_only_own_clients_hear_of_the_requests(client: WireClient) -> None:
    for name, hears in (("ottla", True), ("apache-kafka-java", False), ("ottla-like", False)):
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        keys = {each.api_key for each in client.get(request, 3, ApiVersionsResponse).api_keys}
        assert (10_000 in keys and 10_001 in keys) == hears
        assert max(keys - {10_000, 10_001}) == 94


def test_the_count_that_was_seen_guards_a_record_that_was_delivered_again(
    node: LocalNode, client: WireClient
) -> None:
    topic_id = make_topic(node, "guarded")
    produce(node, "guarded", *"abcd")
    worker = ShareWorker(client, GROUP, topic_id, "first")
    assert len(worker.take()) == 4
    (part,) = describe(client, "guarded")
    assert [(each.first_offset, each.last_offset, each.state) for each in part.ranges] == [(0, 3, HELD)]
    assert part.ranges[0].member_id == worker.name
    assert 0 <= part.ranges[0].age_ms <= 30_000
    assert (part.held, part.waiting, part.dead, part.next_offset) == (4, 0, 0, -1)
    # Another operator has released two of them, and they were delivered again.
    assert alter(client, "guarded", RELEASE, (1, 2, 1)).records == 2
    assert [offset for offset, _ in worker.take()] == [1, 2]
    assert alter(client, "guarded", SKIP, (0, 3, 1)).records == 2
    assert alter(client, "guarded", SKIP, (0, 3, 1)).records == 0
    (part,) = describe(client, "guarded")
    assert [(each.first_offset, each.last_offset, each.delivery_count) for each in part.ranges] == [(1, 2, 2)]
    assert worker.acknowledge(3, 3, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert worker.acknowledge(1, 2, ACCEPT) is ErrorCode.NONE
    assert describe(client, "guarded")[0].ranges == []


def test_answers_come_in_pages(node: LocalNode, client: WireClient) -> None:
    topic_id = make_topic(node, "paged")
    produce(node, "paged", *(str(number) for number in range(20)))
    worker = ShareWorker(client, GROUP, topic_id, "pager")
    assert len(worker.take()) == 20
    for offset in range(0, 20, 2):
        assert worker.acknowledge(offset, offset, RELEASE) is ErrorCode.NONE
    seen, offset = [], 0
    while offset >= 0:
        (part,) = describe(client, "paged", (0, offset), most=3)
        assert len(part.ranges) <= 3
        seen += [each.first_offset for each in part.ranges]
        assert part.next_offset == -1 or part.next_offset > offset
        offset = part.next_offset
    assert seen == list(range(20))
    # Nothing is left for the second partition that is named: it has its own start.
    parts = describe(client, "paged", (0, 0), (0, 7), most=3)
    assert parts[1].next_offset == 7
    held = describe(client, "paged", states=(HELD,))[0].ranges
    assert [each.first_offset for each in held] == list(range(1, 20, 2))
    assert describe(client, "paged", states=(77,))[0].ranges == []
    assert alter(client, "paged", SKIP, (0, 2**62, -1)).records == 20


def test_hostile_requests_change_nothing(node: LocalNode, client: WireClient) -> None:
    topic_id = make_topic(node, "hostile")
    produce(node, "hostile", *"ab")
    assert len(ShareWorker(client, GROUP, topic_id, "victim").take()) == 2
    for ranges in (((1, 0, -1),), ((-5, 1, -1),), ((0, 1, -1), (1, 1, -1)), ((5, 9, -1), (0, 1, -1))):
        assert alter(client, "hostile", SKIP, *ranges).error_code == ErrorCode.INVALID_REQUEST
    assert alter(client, "hostile", SKIP).records == 0
    for topic, partition in (("nosuch", 0), ("hostile", 9), ("hostile", -1)):
        answer = alter(client, topic, SKIP, (0, 1, -1), partition=partition)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for type in (1, 4, 99, -1):
        request = AlterShareRecordsRequest(group_id=GROUP, acknowledge_type=type)
        assert client.get(request, 0, AlterShareRecordsResponse).error_code == ErrorCode.INVALID_REQUEST
    request = AlterShareRecordsRequest(group_id="", acknowledge_type=SKIP)
    assert client.get(request, 0, AlterShareRecordsResponse).error_code == ErrorCode.INVALID_GROUP_ID
    # As many parts as a frame has place for are each answered, in turns, and the looks have an end.
    parts = [AlterShareRecordsRequestRange(first_offset=2 * n, last_offset=2 * n) for n in range(4_000)]
    part = AlterShareRecordsRequestPartition(partition_index=0, ranges=parts[1:])
    request = AlterShareRecordsRequest(
        group_id=GROUP,
        acknowledge_type=SKIP,
        topics=[AlterShareRecordsRequestTopic(name="hostile", partitions=[part] * 20)],
    )
    answers = client.get(request, 0, AlterShareRecordsResponse).topics[0].partitions
    assert [each.next_offset > 0 for each in answers] == [True] * 20
    assert describe(client, "hostile", (0, -7), most=-1)[0].next_offset == 0
    (part_now,) = describe(client, "hostile")
    assert [(each.first_offset, each.last_offset, each.state) for each in part_now.ranges] == [(0, 1, HELD)]


def test_they_take_the_rights_of_a_member() -> None:
    with LocalNode(own_settings(["bob"])) as node, UserClient(node.bootstrap_servers, "bob") as client:
        described = client.get(DescribeShareRecordsRequest(group_id=GROUP), 0, DescribeShareRecordsResponse)
        assert described.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        altered = client.get(AlterShareRecordsRequest(group_id=GROUP), 0, AlterShareRecordsResponse)
        assert altered.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
