"""What principals get who may, may not, or may not even know: as from Apache Kafka, for every API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API, ListenerType
from ottla.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryResponse
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode
from tests.kafka.acl_matrix import (
    ACLS,
    NO_NODES,
    PRECIOUS,
    REFUSED,
    SHARE_KEY,
    TOPICS,
    USERS,
    controller_requests,
    creations,
    requests,
)
from tests.kafka.scripts.kit import batch_of, fill, make_topic, new_producer
from tests.support import share_state
from tests.support.apache_kafka import TWIN_SETTINGS, ApacheKafka
from tests.support.differential import Entry, Session, compare
from tests.support.principals import ADMIN, client_of, controller_settings, own_settings, sasl_settings

# What depends on how often a request succeeded before.
HIDDEN = ("base_offset", "high_watermark", "last_stable_offset", "offset", "log_start_offset")
# What the matrix does not ask, and where its answers are tested. Answers about delegation tokens always
# differ, so a test of their own compares them with those of Apache Kafka.
ELSEWHERE = {
    "ApiVersions": "tests/security/test_sasl_kafka.py",
    "SaslHandshake": "tests/security/test_sasl_kafka.py",
    "SaslAuthenticate": "tests/security/test_sasl_kafka.py",
    "CreateDelegationToken": "tests/kafka/test_tokens_beside_kafka.py",
    "RenewDelegationToken": "tests/kafka/test_tokens_beside_kafka.py",
    "ExpireDelegationToken": "tests/kafka/test_tokens_beside_kafka.py",
    "DescribeDelegationToken": "tests/kafka/test_tokens_beside_kafka.py",
    # No ACL is asked for; Apache Kafka serves them with a plugin that takes the metrics only.
    "GetTelemetrySubscriptions": "tests/node/test_telemetry.py",
    "PushTelemetry": "tests/node/test_telemetry.py",
    # Kafka does not have them.
    "DescribeShareRecords": "tests/node/test_share_records.py",
    "AlterShareRecords": "tests/node/test_share_records.py",
    # Kafka 4.3 does not have them.
    "UnregisterController": "tests/node/test_kafka_4_4_cluster.py",
    "StreamsGroupTopologyDescriptionUpdate": "tests/node/test_kafka_4_4_cluster.py",
}
# Settings of topics that Kafka 4.4 has added.
OF_KAFKA_4_4 = ["*Response.*.configs[[]errors.deadletterqueue.*[]]*"]
# Apache Kafka announces it on the listener of controllers, and fails.
NOT_AT_CONTROLLERS = {"DescribeUserScramCredentials"}


def session_of(address: str, user: str, answers: Session | None = None) -> Session:
    """A session of a user, which knows the ids of another one."""
    session = Session(address)
    session._client = client_of(address, user)
    if answers is not None:
        session._answers, session.entries = answers._answers, answers.entries
    return session


def set_scene(admin: Session) -> dict[str, bytes]:
    """Make topics, groups with offsets, and the ACLs; return the ids of the topics."""
    ids = {name: make_topic(admin, name) for name in (*TOPICS, PRECIOUS)}
    new_producer(admin)
    for name in TOPICS:
        fill(admin, name, batch_of(b"one", b"two"))
    for group in ("open-g", "shown-g", "hidden-g"):
        admin.until(
            FindCoordinatorRequest(coordinator_keys=[group]),
            FindCoordinatorResponse,
            lambda answer: answer.coordinators[0].error_code == 0,
        )
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
                ],
            )
            for name in TOPICS
        ]
        admin.until(
            OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
            ),
            OffsetCommitResponse,
            lambda answer: all(p.error_code == 0 for t in answer.topics for p in t.partitions),
            version=9,
        )
    for kind, key in ((1, "open-t"), (2, SHARE_KEY)):
        admin.until(
            FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]),
            FindCoordinatorResponse,
            lambda answer: answer.coordinators[0].error_code == 0,
        )
    admin.until(
        share_state.summary(SHARE_KEY.partition(":")[0], ids["open"], [0]),
        ReadShareGroupStateSummaryResponse,
        lambda answer: answer.results[0].partitions[0].error_code == 0,
    )
    made = admin.get(CreateAclsRequest(creations=creations()), CreateAclsResponse)
    assert all(result.error_code == 0 for result in made.results), made
    admin.until(
        DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        DescribeAclsResponse,
        lambda answer: sum(len(each.acls) for each in answer.resources) == len(creations()),
    )
    return ids


def run_matrix(address: str, controller: str) -> list[Entry]:
    """Ask everything: on the listener of clients, and on that of controllers."""
    admin = session_of(address, ADMIN)
    ids = set_scene(admin)
    sessions = [admin]
    try:
        for user in NO_NODES:
            session = session_of(controller, user, admin)
            sessions.append(session)
            for label, kind, make in controller_requests(ids):
                for version in session.versions(kind):
                    session.ask(f"controller, {user}: {label}", make(version), version, hide=HIDDEN)
        for user in USERS:
            session = session_of(address, user, admin)
            sessions.append(session)
            for label, kind, make in requests(ids):
                if user == ADMIN and label.startswith(REFUSED):
                    continue
                for version in session.versions(kind):
                    session.ask(f"{user}: {label}", make(version), version, hide=HIDDEN)
    finally:
        for session in sessions:
            session.close()
    return admin.entries


@pytest.fixture(scope="module")
def kafka_entries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[Entry]]:
    (port,) = free_ports(1)

    def ask() -> list[Entry]:
        properties = {
            **sasl_settings(ACLS, "users"),
            **controller_settings(ACLS),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,USERS:SASL_PLAINTEXT"
            ),
        }
        kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), properties=properties)
        kafka.port, kafka.controller_port = free_ports(2)
        kafka._properties["listeners"] = (
            f"PLAINTEXT://127.0.0.1:{kafka.port},USERS://127.0.0.1:{port},"
            f"CONTROLLER://127.0.0.1:{kafka.controller_port}"
        )
        kafka._properties["advertised.listeners"] = (
            f"PLAINTEXT://127.0.0.1:{kafka.port},USERS://127.0.0.1:{port}"
        )
        with kafka:
            return run_matrix(f"127.0.0.1:{port}", f"127.0.0.1:{kafka.controller_port}")

    return ask


@contextmanager
def running_ottla() -> Iterator[tuple[str, str]]:
    """The addresses of the two listeners of a node."""
    (controller,) = free_ports(1)
    settings = {
        **TWIN_SETTINGS,
        **own_settings(ACLS),
        **controller_settings(ACLS),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": (
            f"SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}"
        ),
    }
    with LocalNode(settings) as node:
        yield node.bootstrap_servers, f"127.0.0.1:{controller}"


def test_every_api_is_asked() -> None:
    """A new API is not left out: its checks are compared with those of Apache Kafka, on both listeners."""
    ids = {name: bytes(16) for name in (*TOPICS, PRECIOUS)}
    for listener, asked in (
        (ListenerType.BROKER, requests(ids)),
        (ListenerType.CONTROLLER, controller_requests(ids)),
    ):
        served = {API[key].name for key, route in ROUTES.items() if listener in route.listeners}
        missing = served - ELSEWHERE.keys() - {API[kind.API_KEY].name for _, kind, _ in asked}
        assert missing == (NOT_AT_CONTROLLERS if listener is ListenerType.CONTROLLER else set())
    root = Path(__file__).parents[2]
    for name, path in ELSEWHERE.items():
        assert name in (root / path).read_text(), f"{path} does not test {name}"


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)  # hundreds of answers of two brokers: much for a machine that is busy
def test_every_answer_is_that_of_apache_kafka(
    kafka_entries: Callable[[], list[Entry]],
) -> None:
    expected = kafka_entries()
    with running_ottla() as (address, controller):
        actual = run_matrix(address, controller)
    assert len(actual) > 1_500
    assert [str(each) for each in compare(expected, actual, allowed=OF_KAFKA_4_4)] == []
