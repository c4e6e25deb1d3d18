"""Znodes as Apache Kafka 3.9.1 wrote them, byte for byte, and those of older versions."""

from __future__ import annotations

import pytest

from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.names import TopicPartition, parse_uuid
from ottla.zookeeper import znodes
from ottla.zookeeper.znodes import (
    AclZNodeEntry,
    BrokerIdZNode,
    BrokerZNodeEndpoint,
    ControllerZNode,
    DelegationTokenZNode,
    FeatureZNode,
    MigrationZNode,
    PartitionAssignment,
    ProducerIdBlockZNode,
    ScramZNodeCredential,
    TopicPartitionStateZNode,
    TopicZNode,
    ZNodeFormatError,
)

ORDERS_0 = TopicPartition("orders", 0)


def test_the_cluster_id_is_read_and_written() -> None:
    data = b'{"version":"1","id":"NjX7PqHSRUmpKQSZEDlZuw"}'
    assert znodes.decode_cluster_id(data) == "NjX7PqHSRUmpKQSZEDlZuw"
    assert znodes.encode_cluster_id("NjX7PqHSRUmpKQSZEDlZuw") == data


def test_a_broker_is_read_and_written() -> None:
    data = (
        b'{"features":{},"listener_security_protocol_map":{"EXTERNAL":"SASL_PLAINTEXT","PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["EXTERNAL://127.0.0.1:29191","PLAINTEXT://[::1]:29192"],"rack":"r1","jmx_port":-1,'
        b'"port":29192,"host":"::1","version":5,"timestamp":"1794919919616"}'
    )
    broker = BrokerIdZNode.decode(1, data)
    assert broker == BrokerIdZNode(
        id=1,
        endpoints=(
            BrokerZNodeEndpoint("EXTERNAL", "127.0.0.1", 29191, "SASL_PLAINTEXT"),
            BrokerZNodeEndpoint("PLAINTEXT", "::1", 29192, "PLAINTEXT"),
        ),
        rack="r1",
        timestamp_ms=1794919919616,
    )
    assert broker.encode() == data


def test_a_broker_without_a_plaintext_listener_has_no_address_for_old_clients() -> None:
    broker = BrokerIdZNode(2, (BrokerZNodeEndpoint("SSL", "a", 9093, "SSL"),))
    assert b'"port":-1,"host":null,' in broker.encode()
    assert BrokerIdZNode.decode(2, broker.encode()) == broker


def test_brokers_of_old_versions_are_read() -> None:
    first = b'{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    assert BrokerIdZNode.decode(3, first).endpoints == (
        BrokerZNodeEndpoint("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),
    )
    third = (
        b'{"version":3,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1",'
        b'"endpoints":["PLAINTEXT://h:9092","SSL://h:9093"],"rack":"dc1"}'
    )
    assert BrokerIdZNode.decode(3, third).endpoints[1] == BrokerZNodeEndpoint("SSL", "h", 9093, "SSL")


def test_a_topic_is_read_and_written() -> None:
    data = (
        b'{"partitions":{"0":[1,2,3],"1":[2]},"topic_id":"1y8N55JZS7-UKFp5YmSX_w",'
        b'"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]},"version":3}'
    )
    topic = TopicZNode.decode("orders", data)
    assert topic.topic_id == parse_uuid("1y8N55JZS7-UKFp5YmSX_w")
    assert topic.assignment == {0: PartitionAssignment((1, 2, 3), (3,), (1,)), 1: PartitionAssignment((2,))}
    assert topic.encode() == data


def test_topics_of_old_versions_are_read() -> None:
    first = TopicZNode.decode("orders", b'{"version":1,"partitions":{"12":[0],"2":[1,0]}}')
    assert first == TopicZNode(
        "orders", {2: PartitionAssignment((1, 0)), 12: PartitionAssignment((0,))}, topic_id=None
    )
    second = b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{},"removing_replicas":{}}'
    assert TopicZNode.decode("orders", second).topic_id is None


def test_the_state_of_a_partition_is_read_and_written() -> None:
    data = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":7,"isr":[1,3]}'
    state = TopicPartitionStateZNode.decode(ORDERS_0, data)
    assert state == TopicPartitionStateZNode(leader=1, leader_epoch=7, isr=(1, 3), controller_epoch=1)
    assert state.encode() == data
    recovering = TopicPartitionStateZNode(1, 7, (1,), 2, leader_recovery_state=1)
    assert TopicPartitionStateZNode.decode(ORDERS_0, recovering.encode()) == recovering


def test_the_controller_and_its_epoch_are_read_and_written() -> None:
    data = b'{"version":2,"brokerid":1,"timestamp":"1794919919907","kraftControllerEpoch":-1}'
    controller = ControllerZNode.decode(data)
    assert controller == ControllerZNode(1, 1794919919907)
    assert controller.encode() == data
    assert ControllerZNode.decode(b'{"version":1,"brokerid":4,"timestamp":"5"}') == ControllerZNode(4, 5)
    assert znodes.decode_controller_epoch(b"17") == 17
    assert znodes.encode_controller_epoch(17) == b"17"


def test_configurations_and_their_changes_are_read_and_written() -> None:
    data = b'{"version":1,"config":{"retention.ms":"123456789"}}'
    assert znodes.decode_config("/config/topics/orders", data) == {"retention.ms": "123456789"}
    assert znodes.encode_config({"retention.ms": "123456789"}) == data
    assert znodes.decode_config("/config/users/alice", b"") == {}
    change = b'{"version":2,"entity_path":"users/CN%3Da%20b/clients/<default>"}'
    assert znodes.decode_config_change("/config/changes/x", change) == "users/CN%3Da%20b/clients/<default>"
    assert znodes.encode_config_change("users/CN%3Da%20b/clients/<default>") == change
    old = b'{"version":1,"entity_type":"topics","entity_name":"orders"}'
    assert znodes.decode_config_change("/config/changes/x", old) == "topics/orders"


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("alice", "alice"),
        ("CN=a b,O=*~", "CN%3Da%20b%2CO%3D%2A%7E"),
        ("a/ü+", "a%2F%C3%BC%2B"),
        ("_.-", "_.-"),
    ],
)
def test_names_of_users_are_escaped_in_paths(name: str, sanitized: str) -> None:
    assert znodes.sanitize(name) == sanitized
    assert znodes.desanitize(sanitized) == name


def test_scram_credentials_are_read_and_written() -> None:
    text = (
        "salt=W7BNhhuP+8OTK8zzV9zx/N1njT0AaKs7ehZ0TtxDxYGMr4BRAkS1C9tVcqqOuvsq5gE6VYHxxmSencNGUbBIng==,"
        "stored_key=51MIIh0MqkfT3bm7TtFYiXUU+T6GsVvLVjIz1yCgVCs=,"
        "server_key=EFWZXGeDnZZoxdgmZksIB6hmzfQNI8X6GNs7w8euKhk=,iterations=4096"
    )
    credential = ScramZNodeCredential.decode("/config/users/alice", text)
    assert (len(credential.salt), len(credential.stored_key), credential.iterations) == (64, 32, 4096)
    assert credential.encode() == text
    with pytest.raises(ZNodeFormatError, match="/config/users/alice has a SCRAM credential"):
        ScramZNodeCredential.decode("/config/users/alice", "salt=x")


def test_admin_znodes_are_read() -> None:
    reassign = b'{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2]}]}'
    assert znodes.decode_reassign_partitions(reassign) == {ORDERS_0: (1, 2)}
    elect = b'{"version":1,"partitions":[{"topic":"orders","partition":0}]}'
    assert znodes.decode_partitions(znodes.PREFERRED_REPLICA_ELECTION, elect) == [ORDERS_0]


def test_the_block_of_producer_ids_is_read_and_written() -> None:
    data = b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'
    assert ProducerIdBlockZNode.decode(data) == ProducerIdBlockZNode(1, 1000, 1999)
    assert ProducerIdBlockZNode(1, 1000, 1999).encode() == data


def test_acls_are_read_and_written() -> None:
    data = (
        b'{"acls":[{"principal":"User:bob","permissionType":"Deny","host":"10.0.0.1",'
        b'"operation":"DescribeConfigs"}],"version":1}'
    )
    entry = AclZNodeEntry("User:bob", AclPermissionType.DENY, AclOperation.DESCRIBE_CONFIGS, "10.0.0.1")
    path = znodes.acl_path(PatternType.PREFIXED, AclResourceType.TOPIC, "or")
    assert path == "/kafka-acl-extended/prefixed/Topic/or"
    assert znodes.decode_acls(path, data) == [entry]
    assert znodes.encode_acls([entry]) == data
    literal = znodes.acl_path(PatternType.LITERAL, AclResourceType.TRANSACTIONAL_ID, "tx")
    assert literal == "/kafka-acl/TransactionalId/tx"


def test_changes_of_acls_are_written() -> None:
    assert (
        znodes.encode_acl_change(PatternType.LITERAL, AclResourceType.TRANSACTIONAL_ID, "tx")
        == b"TRANSACTIONAL_ID:tx"
    )
    assert (
        znodes.encode_acl_change(PatternType.PREFIXED, AclResourceType.TOPIC, "or")
        == b'{"version":1,"resourceType":"TOPIC","name":"or","patternType":"PREFIXED"}'
    )


def test_delegation_tokens_are_read_and_written() -> None:
    data = (
        b'{"issueTimestamp":1794920097505,"renewers":["User%3Arenewer"],"tokenRequester":"User%3Aalice",'
        b'"tokenId":"f4-ob_tgSouab7Zy43bJVQ","owner":"User%3Aalice","expiryTimestamp":1794923697505,'
        b'"maxTimestamp":1794923697506,"version":3}'
    )
    token = DelegationTokenZNode.decode("/delegation_token/tokens/f4-ob_tgSouab7Zy43bJVQ", data)
    assert token == DelegationTokenZNode(
        token_id="f4-ob_tgSouab7Zy43bJVQ",
        owner="User:alice",
        requester="User:alice",
        renewers=("User:renewer",),
        issue_timestamp_ms=1794920097505,
        expiry_timestamp_ms=1794923697505,
        max_timestamp_ms=1794923697506,
    )
    assert token.encode() == data


def test_features_are_read_and_written() -> None:
    data = b'{"features":{},"version":2,"status":1}'
    assert FeatureZNode.decode(data) == FeatureZNode()
    assert FeatureZNode().encode() == data
    first = b'{"version":1,"status":0,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    assert FeatureZNode.decode(first) == FeatureZNode(enabled=False, features={"f": 3})


def test_the_state_of_a_migration_is_read() -> None:
    data = (
        b'{"version":0,"kraft_metadata_offset":100,"kraft_controller_id":3000,"kraft_metadata_epoch":4,'
        b'"kraft_controller_epoch":5}'
    )
    assert MigrationZNode.decode(data) == MigrationZNode(3000, 5, 100, 4)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"version":3}', b'{"partitions":{"x":[1]}}'])
def test_what_is_no_topic_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(ZNodeFormatError, match="/brokers/topics/orders"):
        TopicZNode.decode("orders", data)
