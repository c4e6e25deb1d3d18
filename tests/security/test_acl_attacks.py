"""Ways around ACLs that lead nowhere: sessions, groups, patterns, kept responses and waiting requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ottla.protocol.acl import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.messages import consumer_group_describe as described_groups
from ottla.protocol.messages import consumer_group_heartbeat as heartbeats
from ottla.protocol.messages import streams_group_describe as described_streams
from ottla.protocol.messages import streams_group_heartbeat as streams
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.builder import build_batch
from ottla.records.types import FIRST_BROKER_PRODUCER_ID
from ottla.testing.local_node import LocalNode
from tests.support.principals import ADMIN, UserClient, client_of, own_settings
from tests.support.waiting import wait_until
from tests.support.wire import CLOSED, produce_request

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
MISSING_INTERNAL_TOPICS = 3
BATCH = build_batch([(1_700_000_000_000, None, b"secret")])


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(own_settings(["alice", "bob"])) as running:
        yield running


@pytest.fixture(scope="module")
def ids(node: LocalNode) -> dict[str, bytes]:
    """Topics with a record each, and their ids."""
    names = ("open", "closed", "team-a", "team-b")
    with client_of(node.bootstrap_servers, ADMIN) as admin:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        made = admin.get(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7, CreateTopicsResponse)
        for name in names:
            produce(admin, name)
        find = FindCoordinatorRequest(coordinator_keys=["pattern", "shared"])
        wait_until(
            lambda: (
                not any(each.error_code for each in admin.get(find, 6, FindCoordinatorResponse).coordinators)
            ),
            "there is no coordinator",
        )
    return {topic.name: bytes(topic.topic_id) for topic in made.topics}


@pytest.fixture
def admin(node: LocalNode, ids: dict[str, bytes]) -> Iterator[UserClient]:
    with client_of(node.bootstrap_servers, ADMIN) as client:
        every = DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        client.get(DeleteAclsRequest(filters=[every]), 3, DeleteAclsResponse)
        yield client


@pytest.fixture
def alice(node: LocalNode) -> Iterator[UserClient]:
    with client_of(node.bootstrap_servers, "alice") as client:
        yield client


@pytest.fixture
def bob(node: LocalNode) -> Iterator[UserClient]:
    with client_of(node.bootstrap_servers, "bob") as client:
        yield client


def grant(
    admin: UserClient,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
    *,
    user: str = "alice",
    deny: bool = False,
    prefixed: bool = False,
) -> None:
    acl = AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )
    made = admin.get(CreateAclsRequest(creations=[acl]), 3, CreateAclsResponse)
    assert made.results[0].error_code == 0


def produce(client: UserClient, name: str, batch: bytes = BATCH) -> ErrorCode:
    request = produce_request(name, batch, timeout_ms=30_000)
    answer = client.get(request, 12, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def fetch(
    *topic_ids: bytes, session: int = 0, epoch: int = 0, offset: int = 0, wait_ms: int = 0
) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=each, partitions=[part]) for each in topic_ids],
    )


def results(answer: FetchResponse) -> dict[bytes, tuple[ErrorCode, bytes]]:
    """Of each topic the error and the records."""
    return {
        bytes(topic.topic_id): (ErrorCode(part.error_code), bytes(part.records or b""))
        for topic in answer.responses
        for part in topic.partitions
    }


def test_a_session_that_was_opened_before_a_denial(
    admin: UserClient, alice: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, READ, TOPIC, "open")
    opened = alice.get(fetch(ids["open"], offset=1), 17, FetchResponse)
    assert opened.session_id
    assert alice.get(fetch(session=opened.session_id, epoch=1), 17, FetchResponse).responses == []
    grant(admin, READ, TOPIC, "open", deny=True)
    produce(admin, "open")
    refused = alice.get(fetch(session=opened.session_id, epoch=2), 17, FetchResponse)
    assert results(refused) == {ids["open"]: (DENIED, b"")}


def test_a_session_of_another_client(
    admin: UserClient, alice: UserClient, bob: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, READ, TOPIC, "closed")
    opened = alice.get(fetch(ids["closed"]), 17, FetchResponse)
    assert results(opened)[ids["closed"]][0] is ErrorCode.NONE
    stolen = bob.get(fetch(session=opened.session_id, epoch=1), 17, FetchResponse)
    assert results(stolen) == {ids["closed"]: (DENIED, b"")}


def test_a_fetch_that_waits_when_it_is_denied(
    admin: UserClient, alice: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, READ, TOPIC, "team-a")
    at_end = alice.get(fetch(ids["team-a"]), 17, FetchResponse).responses[0].partitions[0].high_watermark
    request = fetch(ids["team-a"], offset=at_end, wait_ms=60_000)
    alice.send(request, 17)
    answers: list[FetchResponse] = []

    def receive() -> None:
        frame = alice.receive_frame()
        assert frame is not None
        answer = read_response(API[request.API_KEY], 17, frame)[1]
        assert isinstance(answer, FetchResponse)
        answers.append(answer)

    receiving = threading.Thread(target=receive)
    receiving.start()
    grant(admin, READ, TOPIC, "team-a", deny=True)
    assert produce(admin, "team-a") is ErrorCode.NONE
    receiving.join(60)
    assert results(answers[0]) == {ids["team-a"]: (DENIED, b"")}


def test_a_denial_decides_the_next_record(
    admin: UserClient, alice: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, AclOperation.WRITE, TOPIC, "open")
    assert produce(alice, "open") is ErrorCode.NONE
    grant(admin, AclOperation.WRITE, TOPIC, "op", deny=True, prefixed=True)
    assert produce(alice, "open") is DENIED


def test_responses_that_are_kept_are_those_of_one_principal(
    admin: UserClient, alice: UserClient, bob: UserClient, ids: dict[str, bytes]
) -> None:
    def topics(client: UserClient) -> set[str | None]:
        answer = client.get(MetadataRequest(topics=None), 12, MetadataResponse)
        return {topic.name for topic in answer.topics}

    grant(admin, DESCRIBE, TOPIC, "team-", prefixed=True)
    for _ in range(3):
        assert topics(alice) == {"team-a", "team-b"}
        assert topics(bob) == set()
        assert topics(admin) >= set(ids)
    grant(admin, DESCRIBE, TOPIC, "team-b", deny=True)
    assert topics(alice) == {"team-a"}


def test_a_pattern_finds_only_what_may_be_described(
    admin: UserClient, alice: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, READ, GROUP, "*")
    grant(admin, READ, TOPIC, "team-a")
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    epoch = 0

    def assigned() -> list[bytes]:
        nonlocal epoch
        request = heartbeats.ConsumerGroupHeartbeatRequest(
            group_id="pattern",
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topic_regex="team-.*|closed",
            topic_partitions=[] if epoch == 0 else None,
        )
        answer = alice.get(request, 1, heartbeats.ConsumerGroupHeartbeatResponse)
        if answer.error_code in LOADING:
            return []
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        if answer.assignment is None:
            return []
        return [bytes(each.topic_id) for each in answer.assignment.topic_partitions]

    found: set[bytes] = set()

    def is_assigned() -> bool:
        found.update(assigned())
        return bool(found)

    wait_until(is_assigned, "nothing was assigned")
    assert found == {ids["team-a"]}


def test_a_group_with_a_topic_that_may_not_be_described(
    admin: UserClient, alice: UserClient, bob: UserClient, ids: dict[str, bytes]
) -> None:
    grant(admin, READ, GROUP, "shared")
    grant(admin, READ, TOPIC, "closed")
    grant(admin, DESCRIBE, GROUP, "shared", user="bob")

    def join() -> bool:
        request = heartbeats.ConsumerGroupHeartbeatRequest(
            group_id="shared",
            member_id="AAAAAAAAAAAAAAAAAAAAAg",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["closed"],
            topic_partitions=[],
        )
        answer = alice.get(request, 1, heartbeats.ConsumerGroupHeartbeatResponse)
        assert answer.error_code in (0, *LOADING), answer
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    wait_until(join, "nothing was assigned")
    request = described_groups.ConsumerGroupDescribeRequest(group_ids=["shared"])
    shown = alice.get(request, 1, described_groups.ConsumerGroupDescribeResponse).groups[0]
    assert (shown.error_code, len(shown.members)) == (0, 1)
    hidden = bob.get(request, 1, described_groups.ConsumerGroupDescribeResponse).groups[0]
    assert (hidden.error_code, hidden.members) == (DENIED, [])


def test_internal_topics_of_a_streams_group_are_created_with_the_permissions_of_the_member(
    admin: UserClient, alice: UserClient, bob: UserClient, ids: dict[str, bytes]
) -> None:
    topology = streams.Topology(
        subtopologies=[
            streams.Subtopology(
                subtopology_id="0",
                source_topics=["open"],
                state_changelog_topics=[streams.TopicInfo(name="app-store-changelog")],
            )
        ]
    )
    request = streams.StreamsGroupHeartbeatRequest(
        group_id="shared-app",
        member_id="m",
        rebalance_timeout_ms=60_000,
        topology=topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )

    def join() -> streams.StreamsGroupHeartbeatResponse:
        answers = [alice.get(request, 0, streams.StreamsGroupHeartbeatResponse)]

        def is_loaded() -> bool:
            answers.append(alice.get(request, 0, streams.StreamsGroupHeartbeatResponse))
            return answers[-1].error_code not in LOADING

        wait_until(is_loaded, "there is no coordinator")
        return answers[-1]

    def missing() -> list[str]:
        """What the status says of missing internal topics."""
        statuses = join().status or []
        return [each.status_detail for each in statuses if each.status_code == MISSING_INTERNAL_TOPICS]

    assert join().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    grant(admin, READ, GROUP, "shared-app")
    grant(admin, READ, TOPIC, "open")
    assert join().error_code == DENIED
    grant(admin, DESCRIBE, TOPIC, "app-", prefixed=True)
    (detail,) = missing()
    assert detail.endswith("; Unauthorized to CREATE on topics app-store-changelog.")
    grant(admin, AclOperation.CREATE, TOPIC, "app-", prefixed=True)
    wait_until(lambda: not missing(), "the changelog topic is still missing")
    # To describe the group takes its topics as well.
    grant(admin, DESCRIBE, GROUP, "shared-app", user="bob")
    describe = described_streams.StreamsGroupDescribeRequest(group_ids=["shared-app"])
    shown = alice.get(describe, 0, described_streams.StreamsGroupDescribeResponse).groups[0]
    assert (shown.error_code, len(shown.members)) == (0, 1)
    hidden = bob.get(describe, 0, described_streams.StreamsGroupDescribeResponse).groups[0]
    assert (hidden.error_code, hidden.members, hidden.topology) == (DENIED, [], None)


def test_an_envelope_on_the_listener_of_clients(alice: UserClient, admin: UserClient) -> None:
    for client in (alice, admin):
        assert client.ask(EnvelopeRequest(request_data=b"", client_host_address=b"\x7f\0\0\1"), 0) is CLOSED


def test_names_are_compared_as_they_are(admin: UserClient, alice: UserClient, ids: dict[str, bytes]) -> None:
    for name in ("Alice", "alice ", "alic", "*alice"):
        grant(admin, AclOperation.ALL, TOPIC, "open", user=name)
    grant(admin, AclOperation.ALL, TOPIC, "OPEN")
    grant(admin, AclOperation.ALL, AclResourceType.CLUSTER, CLUSTER_NAME, user="Alice")
    assert produce(alice, "open") is DENIED


def test_a_writer_of_a_topic_does_not_pass_for_a_broker_that_writes_dead_letters(
    admin: UserClient, alice: UserClient
) -> None:
    grant(admin, AclOperation.WRITE, TOPIC, "open")
    own = build_batch([(0, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    forged = build_batch(
        [(0, None, b"x")], producer_id=FIRST_BROKER_PRODUCER_ID | 7, producer_epoch=0, base_sequence=0
    )
    assert produce(alice, "open", own) is ErrorCode.NONE
    assert produce(alice, "open", forged) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    grant(admin, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
    assert produce(alice, "open", forged) is ErrorCode.NONE
