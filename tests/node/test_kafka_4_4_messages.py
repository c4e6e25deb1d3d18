"""What Kafka 4.4 has added to requests that Kafka 4.3 has, by hand-made frames, proper and hostile ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic

from ottla import blocking
from ottla.client.admin.groups import StreamsNode
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.testing.local_node import LocalNode


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


@pytest.fixture
def client(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as client:
        yield client


@pytest.fixture
def cluster_id(client: WireClient) -> str:
    return client.get(DescribeClusterRequest(), 1, DescribeClusterResponse).cluster_id


@pytest.fixture(scope="module")
def coordinators(node: LocalNode) -> None:
    """The coordinators of groups and of transactions are there."""
    with WireClient(node.bootstrap_servers) as client:
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])

            def is_there(request: FindCoordinatorRequest = request) -> bool:
                found = client.get(request, 6, FindCoordinatorResponse).coordinators
                return found[0].error_code == 0

            wait_until(is_there)


# ApiVersions 5 (KIP-1242)


def compact(text: str | None) -> bytes:
    data = (text or "").encode()
    return b"\0" if text is None else bytes([len(data) + 1]) + data


def api_versions(cluster_id: str | None, node_id: int) -> bytes:
    header = struct.pack(">hhih", 18, 5, 7, -1) + b"\0"
    return header + compact("a") + compact("1") + compact(cluster_id) + struct.pack(">i", node_id) + b"\0"


def ask(client: WireClient, frame: bytes) -> ApiVersionsResponse:
    client.send_frame(frame)
    answer = client.receive_frame()
    assert answer is not None
    _, response = read_response(API[18], 5, answer)
    assert isinstance(response, ApiVersionsResponse)
    return response


def test_a_client_that_means_this_node_gets_its_versions(client: WireClient, cluster_id: str) -> None:
    for named, node_id in ((cluster_id, 1), (None, -1), (None, 99)):
        response = ask(client, api_versions(named, node_id))
        assert response.error_code == 0
        assert {key.api_key: key.max_version for key in response.api_keys}[18] == 5


def test_a_client_that_means_another_node_is_sent_back_to_its_bootstrap_servers(
    client: WireClient, cluster_id: str
) -> None:
    for other, node_id in ((cluster_id, 2), (cluster_id, -1), ("other", 1), ("", 1), ("\0\ufffd", 1)):
        response = ask(client, api_versions(other, node_id))
        assert response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
        assert response.api_keys == []


@pytest.mark.parametrize(
    "body",
    [
        compact("a") + compact("1") + b"\xff\xff\xff\xff\x0f" + struct.pack(">i", 1) + b"\0",
        compact("a") + compact("1") + compact("x") + b"\0\0",
        compact("a") + compact("1") + compact("x") + struct.pack(">i", 1),
    ],
    ids=["a length beyond the frame", "half a node id", "no tags"],
)
def test_what_cannot_be_read_closes_its_connection(client: WireClient, body: bytes) -> None:
    client.send_frame(struct.pack(">hhih", 18, 5, 7, -1) + b"\0" + body)
    assert client.receive_frame() is None


# DeleteGroups 3


@pytest.mark.usefixtures("coordinators")
def test_a_group_that_cannot_be_deleted_says_why(client: WireClient) -> None:
    request = DeleteGroupsRequest(groups_names=["no-such-group"])
    for version in range(3):
        (result,) = client.get(request, version, DeleteGroupsResponse).results
        assert (result.error_code, result.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, None)
    (result,) = client.get(request, 3, DeleteGroupsResponse).results
    assert result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "no-such-group" in str(result.error_message)


@pytest.mark.usefixtures("coordinators")
def test_a_group_that_is_deleted_has_no_message(client: WireClient) -> None:
    create_topic(client, "deleted-group")
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name="deleted-group", partitions=[offset])
    commit = OffsetCommitRequest(group_id="deleted", topics=[topic])
    wait_until(lambda: commit_codes(client.get(commit, 8, OffsetCommitResponse)) == [0])
    request = DeleteGroupsRequest(groups_names=["deleted"])
    (result,) = client.get(request, 3, DeleteGroupsResponse).results
    assert (result.error_code, result.error_message) == (0, None)


# TxnOffsetCommit 6 (KIP-1319)


def commit_codes(response: OffsetCommitResponse | TxnOffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


_COMING = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Transaction:
    """A producer that commits offsets of a group to its transaction."""

    def __init__(self, client: WireClient, name: str) -> None:
        self.client, self.name = client, name
        init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        self.id, self.epoch = -1, -1

        def is_ready() -> bool:
            answer = client.get(init, 5, InitProducerIdResponse)
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            return answer.error_code == 0

        wait_until(is_ready)

    def commit(
        self, version: int, *, name: str = "", topic_id: bytes = bytes(16), epoch: int = -1
    ) -> TxnOffsetCommitResponse:
        offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
        topic = TxnOffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[offset])
        return self.send(version, [topic], generation_id_or_member_epoch=epoch)

    def send(
        self, version: int, topics: list[TxnOffsetCommitRequestTopic], **other: Any
    ) -> TxnOffsetCommitResponse:
        fields = {"group_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | other
        request = TxnOffsetCommitRequest(transactional_id=self.name, topics=topics, **fields)
        found: list[TxnOffsetCommitResponse] = []

        def is_answered() -> bool:
            found[:] = [self.client.get(request, version, TxnOffsetCommitResponse)]
            return not _COMING & set(commit_codes(found[0]))

        wait_until(is_answered)
        return found[0]

    def end(self) -> None:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=True
        )
        assert self.client.get(request, 5, EndTxnResponse).error_code == 0


@pytest.mark.usefixtures("coordinators")
def test_offsets_of_a_transaction_are_committed_by_topic_id(client: WireClient) -> None:
    topic_id = create_topic(client, "by-id")
    transaction = Transaction(client, "commits-by-id")
    response = transaction.commit(6, topic_id=topic_id)
    assert [(topic.name, topic.topic_id) for topic in response.topics] == [("", topic_id)]
    assert commit_codes(response) == [0]
    transaction.end()
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id="commits-by-id", topics=[topic])
    fetched: list[OffsetFetchResponse] = []

    def is_committed() -> bool:
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        fetched[:] = [client.get(request, 10, OffsetFetchResponse)]
        return fetched[0].groups[0].topics[0].partitions[0].error_code == 0

    wait_until(is_committed, "the transaction has not ended")
    assert fetched[0].groups[0].topics[0].partitions[0].committed_offset == 5


@pytest.mark.usefixtures("coordinators")
def test_a_topic_that_was_created_again_takes_no_offsets_of_the_former(client: WireClient) -> None:
    former = create_topic(client, "again")
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="again")], timeout_ms=60_000)
    client.get(delete, 6, DeleteTopicsResponse)
    create_topic(client, "again")
    transaction = Transaction(client, "commits-to-the-former")
    for topic_id in (former, bytes(16), b"\xff" * 16):
        response = transaction.commit(6, topic_id=topic_id)
        assert commit_codes(response) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert response.topics[0].topic_id == topic_id


@pytest.mark.usefixtures("coordinators")
def test_a_generation_of_no_group_is_an_error_that_the_version_knows(client: WireClient) -> None:
    topic_id = create_topic(client, "no-group")
    transaction = Transaction(client, "in-no-group")
    assert commit_codes(transaction.commit(5, name="no-group", epoch=3)) == [ErrorCode.ILLEGAL_GENERATION]
    assert commit_codes(transaction.commit(6, topic_id=topic_id, epoch=3)) == [ErrorCode.GROUP_ID_NOT_FOUND]


@pytest.mark.usefixtures("coordinators")
def test_each_topic_of_a_transaction_has_the_errors_of_its_id(client: WireClient) -> None:
    one, other, unknown = create_topic(client, "some"), create_topic(client, "others"), b"x" * 16
    transaction = Transaction(client, "commits-many")

    def commit(
        *topics: tuple[bytes, str, dict[int, str]], version: int = 6, **member: Any
    ) -> list[tuple[bytes, list[tuple[int, ErrorCode]]]]:
        asked = [
            TxnOffsetCommitRequestTopic(
                topic_id=topic_id,
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=1, committed_metadata=metadata
                    )
                    for index, metadata in partitions.items()
                ],
            )
            for topic_id, name, partitions in topics
        ]
        answer = transaction.send(version, asked, **member)
        return [
            (
                topic.topic_id,
                [(each.partition_index, ErrorCode.of(each.error_code)) for each in topic.partitions],
            )
            for topic in answer.topics
        ]

    none, missing = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(
        (one, "", {0: "", 99: "", -1: ""}), (unknown, "", {0: ""}), (other, "", {0: "m" * 5_000})
    ) == [
        (one, [(0, none), (99, missing), (-1, missing)]),
        (other, [(0, ErrorCode.OFFSET_METADATA_TOO_LARGE)]),
        (unknown, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]
    for error, wrong in (
        (ErrorCode.INVALID_PRODUCER_EPOCH, {"producer_epoch": 99}),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, {"producer_id": 999_999}),
        (ErrorCode.INVALID_GROUP_ID, {"group_id": ""}),
    ):
        assert commit((one, "", {0: ""}), (other, "", {0: ""}), **wrong) == [
            (one, [(0, error)]),
            (other, [(0, error)]),
        ]
    join = ConsumerGroupHeartbeatRequest(
        group_id="stale",
        member_id="m",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["some"],
        topic_partitions=[],
    )
    member: dict[str, Any] = {"group_id": "stale", "member_id": "m"}
    assert client.get(join, 1, ConsumerGroupHeartbeatResponse).error_code == 0
    for version, name, code in (
        (5, "some", ErrorCode.ILLEGAL_GENERATION),
        (6, "", ErrorCode.STALE_MEMBER_EPOCH),
    ):
        ((_, found),) = commit(
            (one, name, {0: ""}), version=version, generation_id_or_member_epoch=77, **member
        )
        assert found == [(0, code)]


# Streams groups (KIP-1331, KIP-1357)


def text(value: str) -> bytes:
    return compact(value)


def description_update(group: str, member: str, description: bytes, epoch: int = 0) -> bytes:
    header = struct.pack(">hhih", 93, 0, 7, -1) + b"\0"
    return header + text(group) + text(member) + struct.pack(">i", epoch) + description + b"\0"


# A source without successors: name, type, topics, no sink, no stores, no successors, no tags.
NODE = text("in") + b"\x01" + b"\x02" + text("streamed") + b"\0" + b"\x01" + b"\x01" + b"\0"
# One subtopology of one node, and no global store.
TOPOLOGY = b"\x02" + text("0") + b"\x02" + NODE + b"\0" + b"\x01" + b"\0"


def update(client: WireClient, frame: bytes) -> tuple[int, str | None]:
    client.send_frame(frame)
    answer = client.receive_frame()
    assert answer is not None
    _, response = read_response(API[93], 0, answer)
    assert isinstance(response, StreamsGroupTopologyDescriptionUpdateResponse)
    return response.error_code, response.error_message


@pytest.mark.usefixtures("coordinators")
def test_a_member_that_is_asked_describes_its_application(node: LocalNode, client: WireClient) -> None:
    create_topic(client, "streamed")
    topology = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=["streamed"])])
    join = StreamsGroupHeartbeatRequest(
        group_id="app",
        member_id="m",
        rebalance_timeout_ms=60_000,
        topology=topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )
    found: list[StreamsGroupHeartbeatResponse] = []

    def is_member() -> bool:
        found[:] = [client.get(join, 1, StreamsGroupHeartbeatResponse)]
        return found[0].error_code == 0

    wait_until(is_member)
    beat = StreamsGroupHeartbeatRequest(group_id="app", member_id="m", member_epoch=found[0].member_epoch)
    assert client.get(beat, 1, StreamsGroupHeartbeatResponse).topology_description_required
    describe = StreamsGroupDescribeRequest(group_ids=["app"], include_topology_description=True)

    def described() -> DescribedGroup:
        (group,) = client.get(describe, 1, StreamsGroupDescribeResponse).groups
        return group

    assert (described().topology_description_status, described().topology_description) == (1, None)
    assert update(client, description_update("app", "m", TOPOLOGY)) == (0, None)
    group = described()
    assert group.topology_description_status == 3
    assert group.topology_description is not None
    (source,) = group.topology_description.subtopologies[0].nodes
    assert (source.name, source.node_type, source.source_topics) == ("in", 1, ["streamed"])
    assert group.assignor_name == "sticky"
    with blocking.Admin(node.bootstrap_servers) as admin:
        assert admin.groups.describe_streams("app").assignor == "sticky"
        (shown,) = admin.groups.streams_nodes("app") or ()
    assert shown == StreamsNode("0", "in", "source", ("streamed",), None, (), ())
    # Version 0 has none of it.
    plain = StreamsGroupDescribeRequest(group_ids=["app"])
    assert client.get(plain, 0, StreamsGroupDescribeResponse).groups[0].assignor_name is None


@pytest.mark.usefixtures("coordinators")
def test_descriptions_without_a_member_are_refused(client: WireClient) -> None:
    for group, member, code in (
        ("", "m", ErrorCode.INVALID_REQUEST),
        ("no-app", "", ErrorCode.INVALID_REQUEST),
        ("no-app", "m", ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        error, message = update(client, description_update(group, member, TOPOLOGY))
        assert error == code
        assert message


@pytest.mark.parametrize(
    "description",
    [
        b"\xff\xff\xff\xff\x0f" + TOPOLOGY[1:],
        b"\x02" + text("0") + b"\xff\xff\xff\xff\x07" + NODE + b"\0\x01\0",
        b"\x02" + text("0") + b"\0" + b"\0\x01\0",
        TOPOLOGY[:-4],
        b"\0" + b"\x01\0",
    ],
    ids=[
        "subtopologies beyond the frame",
        "nodes beyond the frame",
        "no nodes",
        "cut off",
        "no subtopologies",
    ],
)
def test_descriptions_that_cannot_be_read_close_their_connection(
    client: WireClient, description: bytes
) -> None:
    client.send_frame(description_update("app", "m", description))
    assert client.receive_frame() is None
