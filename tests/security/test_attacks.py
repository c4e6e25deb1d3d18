"""Clients that are in, or nearly in, and want more: other principals, what ACLs deny, what others were told.

One node serves all cases. Its users log in by PLAIN, and `mallory` is the attacker: a known user, who may
read and describe the topic `open`. Attacks on logins are in `test_sasl_attacks`, on TLS in
`tls/test_attacks`; every request by every kind of user is compared with Apache Kafka in the matrix of ACLs.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.metadata.image.entities import AccessControlEntry
from ottla.node.api.config_admin_manager import Change
from ottla.node.api.routes import ROUTES
from ottla.node.network import connection
from ottla.node.network.connection import ClientConnection, ClientFaultLog, ConnectionLimits
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.api import API_BY_NAME, CONTROLLER_ONLY
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.alter_configs import AlterableConfig as ReplacedConfig
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.protocol.messages.alter_configs import AlterConfigsResource as ReplacedResource
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.messages.vote import VoteRequest
from ottla.protocol.metadata_records import ConfigRecord
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.protocol.schema import Request, Response
from ottla.records.builder import build_batch
from ottla.runtime.address import plain_host
from ottla.security.authorizer.acl_index import AclIndex
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.security.principal import KafkaPrincipal
from ottla.security.quota.client_quota_manager import ClientQuotaManager
from ottla.security.quota.rate import QuotaWindows
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode
from tests.support import certificates
from tests.support.principals import ADMIN, client_of
from tests.support.wire import CLOSED, WireClient, fetch_request, produce_request

MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS: Final = (ADMIN, "mallory", "bob")
NODE_PASSWORD: Final = "the-password-of-nodes"
STORE_PASSWORD: Final = "the-password-of-the-key"
DEADLINE_SECONDS: Final = 60.0
AUTHORIZATION_FAILED: Final = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    )
)


class Attacked:
    """The node under attack, and the addresses of its listeners."""

    def __init__(self, node: LocalNode, controller: str, certs: str) -> None:
        self.node = node
        self.users = node.bootstrap_servers
        self.controller = controller
        self.certs = certs

    def client(self, user: str = "mallory") -> WireClient:
        return client_of(self.users, user)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp("attacked")
    controller, certs = free_ports(2)
    logins = " ".join(f'user_{user}="{user}"' for user in USERS)
    jaas = (
        f'{MODULE} required username="node" password="{NODE_PASSWORD}" user_node="{NODE_PASSWORD}" {logins};'
    )
    settings: dict[str, str | int | bool] = {
        **certificates.server_settings(directory),
        "ssl.keystore.location": certificates.write_pem(
            directory, "locked", certificates.server_certificate(), STORE_PASSWORD
        ),
        "ssl.key.password": STORE_PASSWORD,
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"USERS://127.0.0.1:0,CERTS://127.0.0.1:{certs},PLAINTEXT://127.0.0.1:0,"
        f"CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": (
            "USERS:SASL_PLAINTEXT,CERTS:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
        ),
        "security.inter.broker.protocol": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": CLASS_NAME,
        "super.users": f"User:{ADMIN};User:node",
        "max.incremental.fetch.session.cache.slots": 4,
        "connection.failed.authentication.delay.ms": 10,
    }
    with LocalNode(settings) as node:
        here = Attacked(node, f"127.0.0.1:{controller}", f"127.0.0.1:{certs}")
        with here.client(ADMIN) as admin:
            names = ("open", "closed")
            made = admin.get(
                CreateTopicsRequest(
                    topics=[
                        CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names
                    ],
                    timeout_ms=60_000,
                ),
                7,
                CreateTopicsResponse,
            )
            assert [each.error_code for each in made.topics] == [0, 0]
            for name in names:
                produce(admin, name)
            create_acl(admin, acl("open", AclOperation.READ, AclPermissionType.ALLOW, "User:mallory"))
        yield here


def produce(client: WireClient, topic: str) -> int:
    """Write a record, and return the error."""
    batch = build_batch([(1_700_000_000_000, None, f"secret of {topic}".encode())])
    answer = client.get(
        produce_request(topic, batch, acks=1),
        9,
        ProduceResponse,
    )
    return answer.responses[0].partition_responses[0].error_code


def acl(topic: str, operation: int, permission: int, principal: str, host: str = "*") -> AclCreation:
    return AclCreation(
        resource_type=AclResourceType.TOPIC,
        resource_name=topic,
        resource_pattern_type=PatternType.LITERAL,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def create_acl(admin: WireClient, entry: AclCreation) -> None:
    made = admin.get(CreateAclsRequest(creations=[entry]), 3, CreateAclsResponse)
    assert [each.error_code for each in made.results] == [0]


def delete_acl(admin: WireClient, entry: AclCreation) -> None:
    gone = admin.get(
        DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=entry.resource_type,
                    resource_name_filter=entry.resource_name,
                    pattern_type_filter=entry.resource_pattern_type,
                    principal_filter=entry.principal,
                    host_filter=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission_type,
                )
            ]
        ),
        3,
        DeleteAclsResponse,
    )
    assert [len(each.matching_acls) for each in gone.filter_results] == [1]


def codes(value: Any) -> set[int]:
    """All error codes in an answer."""
    if isinstance(value, list):
        return set().union(*map(codes, value))
    if isinstance(value, dict):
        own = {code for name, code in value.items() if name.endswith("error_code") and isinstance(code, int)}
        return own.union(*(codes(each) for each in value.values()))
    return set()


def topic_id(client: WireClient, name: str) -> bytes:
    described = client.get(MetadataRequest(topics=None), 12, MetadataResponse)
    return next(bytes(topic.topic_id) for topic in described.topics if topic.name == name)


# Acting as a node


def test_a_user_gets_nothing_of_the_quorum(attacked: Attacked) -> None:
    """Each API of controllers' own listener is refused to a user who has logged in there."""
    only_nodes = [route for route in ROUTES.values() if route.listeners == CONTROLLER_ONLY]
    assert len(only_nodes) >= 12
    with client_of(attacked.controller, "mallory") as client:
        for route in [ROUTES[API_BY_NAME["Fetch"].key], *only_nodes]:
            version = route.max_version(unstable=False)
            answer = client.ask(route.api.request_class(), version)
            assert isinstance(answer, Response), route.name
            assert codes(answer.to_dict()) & AUTHORIZATION_FAILED, (route.name, answer)
    with attacked.client() as client:
        for route in only_nodes:
            assert client.ask(route.api.request_class(), route.api.min_version) is CLOSED


def forwarded(request: Request, version: int, principal: str) -> EnvelopeRequest:
    return EnvelopeRequest(
        request_data=b"".join(request_parts(version, 1, "c", request))[4:],
        request_principal=KafkaPrincipal("User", principal).encode(),
        client_host_address=b"\x7f\0\0\1",
    )


NEW_TOPIC: Final = CreateTopicsRequest(
    topics=[CreatableTopic(name="forged", num_partitions=1, replication_factor=1)], timeout_ms=60_000
)


def test_envelopes(attacked: Attacked) -> None:
    """A user cannot speak for another. A node can, and only by requests that clients may send."""
    with client_of(attacked.controller, "mallory") as client:
        answer = client.get(forwarded(NEW_TOPIC, 7, ADMIN), 0, EnvelopeResponse)
        assert (answer.error_code, answer.response_data) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    with client_of(attacked.controller, ADMIN) as node:
        inner = forwarded(NEW_TOPIC, 7, ADMIN)
        for enclosed, version in (
            (inner, 0),
            (VoteRequest(), 2),
            (FetchRequest(), 17),
            (ApiVersionsRequest(), 0),
        ):
            answer = node.get(forwarded(enclosed, version, ADMIN), 0, EnvelopeResponse)
            assert (answer.error_code, answer.response_data) == (ErrorCode.INVALID_REQUEST, None), enclosed
        # What it encloses is decided for the principal that it names.
        answer = node.get(forwarded(NEW_TOPIC, 7, "mallory"), 0, EnvelopeResponse)
        assert answer.error_code == 0
        assert answer.response_data is not None
        _, refused = read_response(API_BY_NAME["CreateTopics"], 7, answer.response_data)
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes(refused.to_dict())
    with attacked.client(ADMIN) as admin:
        named = {topic.name for topic in admin.get(MetadataRequest(topics=None), 9, MetadataResponse).topics}
        assert "forged" not in named


def fetch_of(topic: bytes, replica: int = -1, **fields: Any) -> FetchRequest:
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=-1),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=100_000,
        topics=[
            FetchTopic(topic_id=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=100_000)])
        ],
        **fields,
    )


def test_a_user_is_no_follower(attacked: Attacked) -> None:
    """It does not see the end of the log, and the sessions that it opens replace those of no other."""
    with attacked.client(ADMIN) as admin, attacked.client() as client:
        for name in ("open", "closed"):
            answer = client.get(fetch_of(topic_id(admin, name), replica=1), 17, FetchResponse)
            assert codes(answer.to_dict()) == {0, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert not any(part.records for each in answer.responses for part in each.partitions)
        topic = topic_id(admin, "open")
        kept = client.get(fetch_of(topic, session_epoch=0), 17, FetchResponse).session_id
        assert kept
        for _ in range(10):
            client.get(fetch_of(topic, replica=1, session_epoch=0), 17, FetchResponse)
        again = client.get(FetchRequest(session_id=kept, session_epoch=1, max_wait_ms=0), 17, FetchResponse)
        assert again.error_code == 0


def test_the_metadata_log_is_no_topic(attacked: Attacked) -> None:
    """It has the keys of users, and no ACL lets clients read it."""
    by_name = fetch_request(CLUSTER_METADATA_TOPIC, partition_max_bytes=9_999)
    with attacked.client(ADMIN) as admin:
        for request, version in ((by_name, 12), (fetch_of(bytes(15) + b"\1"), 17)):
            for replica in (-1, 1):
                if version == 12:
                    request.replica_id = replica
                else:
                    request.replica_state = ReplicaState(replica_id=replica, replica_epoch=-1)
                answer = admin.get(request, version, FetchResponse)
                (partition,) = (part for each in answer.responses for part in each.partitions)
                unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
                assert partition.error_code in unknown
                assert not partition.records
        assert produce(admin, CLUSTER_METADATA_TOPIC) != 0


# Settings


def test_settings_of_a_broker_are_checked_for_those_who_may_change_them(
    attacked: Attacked, tmp_path: Path
) -> None:
    """Their checks read files: no user learns by an error what there is on the disk."""
    secret = tmp_path / "secret.pem"
    secret.write_text("the content of a file")
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for name, value in (
        ("listener.name.certs.ssl.keystore.location", str(secret)),
        ("listener.name.certs.ssl.keystore.location", str(tmp_path / "none")),
        ("log.cleaner.threads", "many"),
    ):
        for address in (attacked.users, attacked.controller):
            with client_of(address, "mallory") as client:
                resource = AlterConfigsResource(
                    resource_type=4,
                    resource_name="1",
                    configs=[AlterableConfig(name=name, config_operation=0, value=value)],
                )
                answer = client.get(
                    IncrementalAlterConfigsRequest(resources=[resource], validate_only=True),
                    1,
                    IncrementalAlterConfigsResponse,
                )
                assert [(e.error_code, e.error_message) for e in answer.responses] == [
                    (refused, refused.text)
                ]
                replaced = ReplacedResource(
                    resource_type=4, resource_name="1", configs=[ReplacedConfig(name=name, value=value)]
                )
                old = client.get(
                    AlterConfigsRequest(resources=[replaced], validate_only=True), 2, AlterConfigsResponse
                )
                assert [(e.error_code, e.error_message) for e in old.responses] == [(refused, refused.text)]


@pytest.mark.parametrize("name", ["+-1", "--1", "9" * 5_000, "2147483648", "1\n", ""])
def test_ids_of_brokers_that_are_none(
    attacked: Attacked, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are refused like others, and leave no traceback in the log."""
    for kind in (4, 8):
        resource = AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[AlterableConfig(name="log.cleaner.threads", config_operation=0, value="1")],
        )
        described = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for user in ("mallory", ADMIN):
            with attacked.client(user) as client:
                altered = client.ask(
                    IncrementalAlterConfigsRequest(resources=[resource], validate_only=True), 1
                )
                assert isinstance(altered, IncrementalAlterConfigsResponse)
                assert altered.responses[0].error_code != ErrorCode.UNKNOWN_SERVER_ERROR
                answer = client.ask(DescribeConfigsRequest(resources=[described]), 4)
                assert isinstance(answer, DescribeConfigsResponse)
    assert not [record for record in caplog.records if record.exc_info]


SECRETS: Final = (NODE_PASSWORD, STORE_PASSWORD, "PRIVATE KEY")


def test_no_secret_is_described(attacked: Attacked) -> None:
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((4, "1"), (4, ""), (8, "1"), (2, "open"), (16, "m"), (32, "g"))
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    with attacked.client(ADMIN) as admin:
        admin.send(request, 4)
        answer = admin.receive_frame()
        assert answer is not None
        assert b"listener.name.users.plain.sasl.jaas.config" in answer
        for secret in SECRETS:
            assert secret.encode() not in answer, secret
        # Values that cannot be used are not repeated.
        for name in ("ssl.key.password", "ssl.keystore.key"):
            resource = AlterConfigsResource(
                resource_type=4,
                resource_name="1",
                configs=[
                    AlterableConfig(
                        name=f"listener.name.certs.{name}", config_operation=0, value="hunter2 is no key"
                    )
                ],
            )
            admin.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=True), 1)
            refusal = admin.receive_frame()
            assert refusal is not None
            assert b"hunter2" not in refusal


# Too many


def test_clients_that_do_not_log_in_do_not_keep_others_out(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold handles, of which a process has so many: the oldest of them are closed."""
    monkeypatch.setattr(connection, "_LOGIN_GRACE_SECONDS", 0.0)
    for limits in gc.get_objects():
        if isinstance(limits, ConnectionLimits):
            monkeypatch.setattr(limits, "max_logging_in", 20)
    with attacked.client() as known, ExitStack() as stack:
        assert known.ask(MetadataRequest(topics=[]), 9) is not CLOSED
        silent = []
        for number in range(50):
            one = stack.enter_context(WireClient(attacked.users))
            # Half of them say something, and wait.
            one.send(SaslHandshakeRequest(mechanism="PLAIN"), 1) if number % 2 else one.send_bytes(b"\0")
            silent.append(one)
        for one in silent[:30]:
            while one.receive_frame() is not None:
                pass
        for one in silent[31::2]:
            assert one.receive_frame() is not None
            token = b"\0bob\0bob"
            login = one.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
            assert login.error_code == 0
        assert known.ask(MetadataRequest(topics=[]), 9) is not CLOSED


# Names and texts


@pytest.mark.parametrize(
    "host",
    ["2001:db8::1", "2001:DB8::1", "2001:db8:0:0:0:0:0:1", "2001:0db8::0001", "2001:db8::1%eth0"],
)
def test_a_denied_host_may_be_written_in_any_way(host: str) -> None:
    """Java writes all digits of an address of IPv6, sockets write as few as they can."""
    allowed, denied = (
        AccessControlEntry(
            int(AclResourceType.TOPIC),
            "t",
            int(PatternType.LITERAL),
            "User:mallory",
            where,
            int(AclOperation.READ),
            int(permission),
        )
        for where, permission in (("*", AclPermissionType.ALLOW), (host, AclPermissionType.DENY))
    )
    index = AclIndex((allowed, denied))

    def is_denied() -> bool:
        peer = plain_host("2001:db8::1%eth0")
        return (
            index.find("User:mallory", peer, AclOperation.READ, AclResourceType.TOPIC, "t").deny is not None
        )

    assert is_denied()
    index.remove(denied)
    assert not is_denied()


def test_an_address_of_ipv4_is_the_same_by_a_socket_of_ipv6() -> None:
    assert [
        plain_host(each) for each in ("::ffff:10.0.0.1", "::ffff:a00:1", "10.0.0.1", "host:9092", "")
    ] == [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.1",
        "host:9092",
        "",
    ]


@pytest.mark.parametrize(
    "name", ["Admin", "admin ", "ａdmin", "admi\u200bn", "admin\u0301", "User:admin", "*", "node\0"]
)
def test_names_that_look_like_others(attacked: Attacked, name: str) -> None:
    """Names are neither normalized nor folded, so no other name logs in as a user."""
    with WireClient(attacked.users) as client:
        client.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        token = f"\0{name}\0admin".encode()
        login = client.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
        assert login.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.receive_frame() is None


def test_a_client_writes_no_lines_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Names of users and client ids are part of what is logged."""
    with caplog.at_level(logging.WARNING):
        ClientFaultLog().log_closed(
            ("h", 1), "user bob\n2026-01-01 INFO all is well\x1b[2J" + "x" * 9_000, 0.0
        )
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 2_000


def test_no_value_of_a_setting_is_in_the_text_of_a_message() -> None:
    incremental = AlterableConfig(name="ssl.key.password", config_operation=0, value="hunter2")
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[incremental])
    for shown in (
        IncrementalAlterConfigsRequest(resources=[resource]),
        ReplacedConfig(name="ssl.key.password", value="hunter2"),
        ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value="hunter2"),
        Change("ssl.key.password", 0, "hunter2"),
    ):
        assert "ssl.key.password" in repr(shown)
        assert "hunter2" not in repr(shown)
    removed = AlterableConfig(name="ssl.key.password", config_operation=1, value=None)
    assert "value=None" in repr(removed)


def test_no_secret_is_in_the_log_at_its_most_verbose(
    attacked: Attacked, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for password in ("bob", "the-wrong-password"):
            with WireClient(attacked.users) as client:
                client.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
                token = f"\0bob\0{password}".encode()
                client.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
        with attacked.client(ADMIN) as admin:
            salted = ScramCredentialUpsertion(
                name="carol",
                mechanism=1,
                iterations=4096,
                salt=b"a-salt",
                salted_password=b"a-salted-password",
            )
            request = AlterUserScramCredentialsRequest(upsertions=[salted])
            assert admin.ask(request, 0) is not CLOSED
            assert "a-salted-password" not in repr(request)
    written = "\n".join(str(record.__dict__) for record in caplog.records)
    assert "carol" in written
    for secret in (*SECRETS, "the-wrong-password", "a-salted-password"):
        assert secret not in written


def test_what_a_client_says_of_its_software_is_not_kept_without_bound(attacked: Attacked) -> None:
    """Nor is it counted, and clients that have not logged in may say it."""
    with WireClient(attacked.users) as client:
        said = ApiVersionsRequest(client_software_name="x" * 30_000, client_software_version="1")
        assert client.get(said, 3, ApiVersionsResponse).error_code == 0
        connections = (each for each in gc.get_objects() if isinstance(each, ClientConnection))
        kept = [len(each.client_software) for each in connections if each.client_software is not None]
        assert max(kept) < 1_000


def test_long_client_ids_are_not_kept() -> None:
    """An id has up to 32 kB, and sensors are kept for tens of thousands of them."""
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("client-id", None),), 1_000.0)
    manager.update((("client-id", "y" * 30_000),), 1.0)
    for number in range(100):
        name = f"{number:030000}"
        assert manager.record("u", name, 1.0, 0) == 0
        assert manager.record("u", name, 1e6, 0) > 0
    assert manager.sensors == 100
    assert manager.record("u", "y" * 30_000, 100.0, 0) > 0
    assert manager.record("u", "y" * 29_999, 100.0, 0) == 0
    table = manager._table
    assert max(len(name) for tags in table._sensors for name in tags) < 1_000
    assert all(len(name or "") < 1_000 for _, name in table._resolved)
