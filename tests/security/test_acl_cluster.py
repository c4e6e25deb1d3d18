"""Three nodes with ACLs: requests that a broker forwards are decided for the client, not for the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import incremental_alter_configs as configs
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.runtime.runtime import Runtime
from ottla.security.authorizer.audit_log import LOGGER_NAME
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.security.principal import KafkaPrincipal
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import FOR_TESTS
from tests.kafka.acl_matrix import request_frame
from tests.security.test_sasl_cluster import format_node
from tests.support.principals import UserClient, client_of
from tests.support.waiting import wait_until

USERS = ("nodes", "admin", "alice", "mallory")
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def node_settings(node_id: int, directory: Path, ports: list[int]) -> dict[str, str]:
    logins = " ".join(f'user_{user}="{user}"' for user in USERS)
    jaas = f'{MODULE} required username="nodes" password="nodes" {logins};'
    return {
        **FOR_TESTS,
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{ports[n + 2]}" for n in (1, 2, 3)),
        "listeners": f"CLIENTS://127.0.0.1:{ports[node_id - 1]},CONTROLLER://127.0.0.1:{ports[node_id + 2]}",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": CLASS_NAME,
        "super.users": "User:nodes;User:admin",
        "delegation.token.secret.key": "key of tokens",
        "log.dirs": str(directory),
    }


def allow(name: str, *, deny: bool = False, host: str = "127.0.0.1") -> AclCreation:
    """Let alice create topics that begin with a name, from this machine; or deny it."""
    return AclCreation(
        resource_type=AclResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=PatternType.PREFIXED,
        principal="User:alice",
        host=host,
        operation=AclOperation.ALL if deny else AclOperation.CREATE,
        permission_type=AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )


def creation(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def on_three_nodes(tmp_path: Path, work: Callable[[list[int]], None]) -> None:
    """Run a function with the ports of three brokers and those of their controllers."""

    async def run() -> None:
        ports, runtime = free_ports(6), Runtime.real(guest=True)
        nodes = []
        for node_id in (1, 2, 3):
            directory = tmp_path / str(node_id)
            format_node(runtime, directory, node_id)
            nodes.append(Node(runtime, NodeConfig(node_settings(node_id, directory, ports))))
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            await asyncio.to_thread(work, ports)
        finally:
            await asyncio.gather(*(node.stop() for node in reversed(nodes)))
            runtime.close()

    asyncio.run(run())


def test_a_forwarded_request_is_that_of_its_client(tmp_path: Path) -> None:
    on_three_nodes(tmp_path, attack)


def test_a_forwarded_change_has_one_line_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That of the controller, whichever broker the client asks."""
    caplog.set_level(logging.INFO, LOGGER_NAME)

    def changes() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == LOGGER_NAME]
        caplog.clear()
        return [each.partition(" changed ")[2].partition(" from host")[0] for each in found]

    def work(ports: list[int]) -> None:
        brokers = [f"127.0.0.1:{port}" for port in ports[:3]]
        with client_of(brokers[0], "admin") as client:
            client.get(creation("t"), 7, CreateTopicsResponse)
        assert changes() == ["Topic:t, created"]
        retention = configs.AlterableConfig(name="retention.ms", config_operation=0, value="1000000")
        resource = configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=[retention])
        alter = configs.IncrementalAlterConfigsRequest(resources=[resource])
        token = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
        for broker in brokers:
            with client_of(broker, "admin") as client:
                altered = client.get(alter, 1, configs.IncrementalAlterConfigsResponse)
                assert [each.error_code for each in altered.responses] == [0]
                assert changes() == ["Topic:t, settings retention.ms"]
                assert client.get(token, 3, CreateDelegationTokenResponse).error_code == 0
                assert changes() == ["a delegation token of User:admin"]

    on_three_nodes(tmp_path, work)


def attack(ports: list[int]) -> None:
    brokers = [f"127.0.0.1:{port}" for port in ports[:3]]

    def create(user: str, name: str) -> list[ErrorCode]:
        """The outcome at each broker, of which two forward it."""
        codes = []
        for number, broker in enumerate(brokers):
            with client_of(broker, user) as client:
                answer = client.get(creation(f"{name}-{number}"), 7, CreateTopicsResponse)
                codes.append(ErrorCode(answer.topics[0].error_code))
        return codes

    def grant(acl: AclCreation) -> None:
        with client_of(brokers[2], "admin") as admin:
            made = admin.get(CreateAclsRequest(creations=[acl]), 3, CreateAclsResponse)
            assert [each.error_code for each in made.results] == [0]

    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert create("alice", "first") == [denied] * 3
    assert create("admin", "admins") == [ErrorCode.NONE] * 3
    grant(allow("from-elsewhere", host="10.9.9.9"))
    grant(allow("mine"))
    # The controller decides by what it has appended, also before other brokers know of it.
    assert create("alice", "mine") == [ErrorCode.NONE] * 3
    assert create("alice", "from-elsewhere") == [denied] * 3
    assert create("mallory", "mine-too") == [denied] * 3
    grant(allow("mine", deny=True))
    assert create("alice", "mine-again") == [denied] * 3
    # Every broker obeys once it has applied it; what it shows of the topic ends then.
    for broker in brokers:
        with client_of(broker, "alice") as client:
            wait_until(partial(is_denied, client, "mine-0"), "a denial is not obeyed")
    forge(ports)


def describe(client: UserClient, name: str) -> ErrorCode:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return ErrorCode(client.get(request, 12, MetadataResponse).topics[0].error_code)


def is_denied(client: UserClient, topic: str) -> bool:
    return describe(client, topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def forge(ports: list[int]) -> None:
    """A client that reaches the controllers' listener cannot speak for another one."""
    envelope = EnvelopeRequest(
        request_data=request_frame(creation("forged"), 7),
        request_principal=KafkaPrincipal("User", "admin").encode(),
        client_host_address=bytes([127, 0, 0, 1]),
    )
    for port in ports[3:]:
        with client_of(f"127.0.0.1:{port}", "alice") as client:
            answer = client.get(envelope, 0, EnvelopeResponse)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert not answer.response_data
    with client_of(f"127.0.0.1:{ports[0]}", "admin") as admin:
        assert describe(admin, "forged") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
