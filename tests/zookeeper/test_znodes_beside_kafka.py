"""Every znode that both write, beside Apache Kafka 3.9.1: the same changes by the same clients.

One broker of each kind on one ZooKeeper, each below a path of its own, with the same login and
`zookeeper.set.acl=true`, so that the ACLs of the znodes are compared too. What must differ is replaced by a
word: ids, times, addresses and epochs; and Ottla's additions are removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.support.zookeeper import (
    SASL_SETTINGS,
    ApacheZooKeeper,
    ZooKeeperKafka,
    client_jaas,
    jaas_option,
    server_jaas,
)

pytestmark = [pytest.mark.kafka, pytest.mark.exhaustive]

USER, PASSWORD = "kafka", "of-the-brokers"
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def fill(bootstrap: str) -> None:
    """The same life for both."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [
        NewTopic("plain", 2, 1),
        NewTopic("configured", 1, 1, config={"retention.ms": "86400000", "cleanup.policy": "compact"}),
        NewTopic("deleted", 3, 1),
    ]
    for future in admin.create_topics(new).values():
        future.result(60)
    admin.create_partitions([NewPartitions("plain", 3)])["plain"].result(60)
    admin.delete_topics(["deleted"])["deleted"].result(60)

    def alter(type: Any, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(type, name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)

    alter(ConfigResource.Type.TOPIC, "plain", "max.message.bytes", "2000000")
    alter(ConfigResource.Type.BROKER, "1", "log.cleaner.threads", "2")
    acls = [
        AclBinding(ResourceType.TOPIC, name, kind, user, "*", operation, AclPermissionType.ALLOW)
        for name, kind, user, operation in (
            ("plain", ResourcePatternType.LITERAL, "User:alice", AclOperation.READ),
            ("plain", ResourcePatternType.LITERAL, "User:alice", AclOperation.DESCRIBE),
            ("pre", ResourcePatternType.PREFIXED, "User:bob", AclOperation.WRITE),
        )
    ]
    for done in admin.create_acls(acls).values():
        done.result(60)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("carol", credential, b"secret", b"salt-of-carol")
    for done in admin.alter_user_scram_credentials([user]).values():
        done.result(60)
    with blocking.Admin(bootstrap) as ours:
        for entity, quotas in (
            ({"user": "CN=a b"}, {"producer_byte_rate": 1024.0, "request_percentage": 50.0}),
            ({"user": "CN=a b", "client-id": "app"}, {"consumer_byte_rate": 2048.0}),
            ({"client-id": None}, {"producer_byte_rate": 4096.0}),
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 7.0}),
        ):
            ours.quotas.alter(entity, set=quotas)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("plain", b"value", partition=0)
    producer.commit_transaction(60)


def tree(client: KazooClient, root: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(path: str) -> None:
        data, stat = client.get(root + path)
        acls = [(acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(root + path)[0]]
        found[path or "/"] = (*_normalised(path, data, stat), acls)
        for name in client.get_children(root + path):
            walk(f"{path}/{name}")

    walk("")
    return found


def _normalised(path: str, data: bytes | None, stat: Any) -> Any:
    ephemeral = "ephemeral" if stat.ephemeralOwner else "persistent"
    if not data:
        return ephemeral, None
    try:
        value = json.loads(data)
    except ValueError:
        return ephemeral, data.decode()
    if path in ("/controller_epoch", "/feature"):
        return ephemeral, type(value).__name__
    if isinstance(value, dict):
        for name in ("timestamp", "topic_id", "id", "port", "endpoints", "jmx_port"):
            if name in value:
                value[name] = type(value[name]).__name__
        if path.startswith("/brokers/ids/"):
            value["features"] = type(value["features"]).__name__
        if "controller_epoch" in value:
            value["controller_epoch"] = "epoch"
        for name in [name for name in value if name.startswith("ottla_")]:
            del value[name]
        if "SCRAM-SHA-256" in value.get("config", {}):
            parts = value["config"]["SCRAM-SHA-256"].split(",")
            value["config"]["SCRAM-SHA-256"] = [part.partition("=")[0] for part in parts]
        if "acls" in value:
            value["acls"] = sorted(value["acls"], key=json.dumps)
    return ephemeral, value


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("beside")
    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    standard = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    # Nothing is killed here, and a busy machine may say nothing for long.
    secured = {**SETTINGS, "zookeeper.set.acl": "true", "zookeeper.session.timeout.ms": "60000"}
    login = {
        "zookeeper.login.scheme": "sasl-digest",
        "zookeeper.login.user": USER,
        "zookeeper.login.password": PASSWORD,
    }
    of_server = jaas_option(directory / "server.jaas", server_jaas(USER, PASSWORD))
    of_client = jaas_option(directory / "client.jaas", client_jaas(USER, PASSWORD))
    with (
        ApacheZooKeeper(
            directory / "zookeeper",
            settings={**SASL_SETTINGS, "maxSessionTimeout": "60000"},
            jvm=(of_server,),
        ) as zookeeper,
        ZooKeeperKafka(
            directory / "kafka",
            f"{zookeeper.connect}/kafka",
            properties={**secured, **authorizer},
            jvm=(of_client,),
        ) as kafka,
        LocalCluster(
            nodes=1, settings={**secured, **login, **standard}, zookeeper=f"{zookeeper.connect}/ottla"
        ) as ottla,
    ):
        sasl = {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD}
        client = KazooClient(zookeeper.connect, sasl_options=sasl)
        client.start()
        for bootstrap in (kafka.bootstrap, ottla.bootstrap_servers):
            fill(bootstrap)
        for root in ("/kafka", "/ottla"):
            wait_until(
                lambda root=root: client.exists(f"{root}/brokers/topics/deleted") is None,  # type: ignore[misc]
                "the topic is not deleted",
            )
            wait_until(
                lambda root=root: not client.get_children(f"{root}/admin/delete_topics"),  # type: ignore[misc]
                "the deletion does not end",
            )
        yield tree(client, "/kafka"), tree(client, "/ottla")
        client.stop()
        client.close()


# What Apache Kafka has and Ottla has no use for: the counters of ZooKeeper's notifications start elsewhere.
NOT_WRITTEN = ("/migration", "/log_dir_event_notification", "/delegation_token")


def compared(path: str) -> bool:
    return not path.startswith(
        ("/ottla", "/config/changes/", "/kafka-acl-changes/", "/kafka-acl-extended-changes/")
    )


def test_the_same_changes_leave_the_same_znodes(trees: tuple[dict[str, Any], dict[str, Any]]) -> None:
    kafka, ottla = trees
    theirs = {path: value for path, value in kafka.items() if compared(path)}
    ours = {path: value for path, value in ottla.items() if compared(path)}
    missing = [path for path in theirs if path not in ours and not path.startswith(NOT_WRITTEN)]
    assert [path for path in ours if path not in theirs] == []
    assert missing == []
    different = {path: (theirs[path], ours[path]) for path in ours if theirs[path] != ours[path]}
    assert different == {}


def test_passwords_are_readable_to_the_brokers_alone(
    trees: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """The comparison above would not notice if neither had set an ACL."""
    (every, world) = ("sasl", USER, 31), ("world", "anyone", 1)
    for found in trees:
        assert found["/config/users/carol"][2] == [every]
        assert found["/config/brokers/1"][2] == [every]
        assert found["/brokers/topics/plain"][2] == [every, world]
        assert found["/brokers/topics/plain/partitions/0/state"][2] == [every, world]
        assert found["/controller"][2] == [every, world]
        assert found["/brokers/ids/1"][2] == [every, world]
        assert found["/consumers"][2] == [("world", "anyone", 31)]


def test_the_same_changes_leave_the_same_notifications(
    trees: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    kafka, ottla = trees

    def notifications(found: dict[str, Any], above: str) -> set[str]:
        return {str(value) for path, value in found.items() if path.startswith(above + "/")}

    for above in ("/config/changes", "/kafka-acl-changes", "/kafka-acl-extended-changes"):
        assert notifications(ottla, above) == notifications(kafka, above)
