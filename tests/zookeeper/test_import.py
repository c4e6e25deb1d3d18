"""The import of a cluster from ZooKeeper: from znodes to records, and what is written through crashes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.log.directory.checkpoints import read_topic_id, write_topic_id
from ottla.log.directory.meta_properties import (
    StorageError,
    check_metadata_store,
    check_not_of_zookeeper,
    mark_of_zookeeper,
    read_meta_properties,
)
from ottla.metadata.features import DEFAULT_METADATA_VERSION, METADATA_VERSIONS
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    NO_LEADER,
    ConfigResource,
    ConfigResourceType,
    ScramUser,
)
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.protocol.names import TopicPartition, parse_uuid, uuid_text
from ottla.raft.snapshot import decode_snapshot
from ottla.runtime.disk import write_file
from ottla.runtime.properties import parse_properties
from ottla.runtime.zookeeper import ZNode, ZNodeStat, ZooKeeperError, ZooKeeperErrorCode
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import SimCrash
from ottla.zookeeper import znodes
from ottla.zookeeper.migration import cluster_reader
from ottla.zookeeper.migration.cluster_reader import ZooKeeperCluster, read_cluster
from ottla.zookeeper.migration.importer import (
    OLD_META_PROPERTIES,
    ImportNode,
    ImportPlan,
    check_cluster,
    locked_directories,
    plan_import,
    write_import,
)
from ottla.zookeeper.migration.kraft_properties import ControllerVoter, controller_address, kraft_properties
from ottla.zookeeper.migration.metadata_records import ImportedMetadata, import_metadata
from ottla.zookeeper.migration.password_encoder import decode_password, is_encoded
from ottla.zookeeper.znodes import (
    AclZNodeEntry,
    DelegationTokenZNode,
    PartitionAssignment,
    ProducerIdBlockZNode,
    ScramZNodeCredential,
    TopicPartitionStateZNode,
    TopicZNode,
)

CLUSTER_ID = "NjX7PqHSRUmpKQSZEDlZuw"
ORDERS_ID = "1y8N55JZS7-UKFp5YmSX_w"
# A password of a broker's setting, as Apache Kafka 3.9.1 wrote it with the secret "encoder".
ENCRYPTED = (
    "initializationVector:NUZmwkYGTKb9YlThiBQ4WA==,keyLength:128,salt:/x8YBkwjLAnpKqy6wdxy4mb671ikPZ+Bl9Ed74oAFwu6j5qZ"
    "bhlTxVUIs/EOV9KJGyDxGVKUO34C02NBDg+ee1SGh1XRkpR10x0cIS+6lWDy7IktQ/eSJtUNTEbBwsWOXkJYuaEKwbYHt33dKd1umYN7s0j2"
    "RFwrByfeBqlhFOwEaW31I11Oh813yY0MKcR1yMA3qXfV8oLt3/GfqteDx/2r3RNvun5dtjpRjQSfSaIR3Hd1ZM3LUgTZ1SGNu+/xfVBgdpfU"
    "esEc4hMD+EqtNStJ5m1n9G69UdqrlVuzwKa9wCubM8LLIDZnBS3ieSsid6zWtNn/Rkk03H+ysAf5bw==,keyFactoryAlgorithm:"
    "PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:5,"
    "encryptedPassword:lsHBTau6kecYbeeeaks4wA=="
)


class Znodes:
    """A tree of znodes that can be read; parents of what is put exist."""

    def __init__(self, nodes: Mapping[str, bytes] | None = None) -> None:
        self.nodes: dict[str, tuple[bytes, int, int]] = {}
        for path, data in (nodes or {}).items():
            self.put(path, data)

    def put(self, path: str, data: bytes, *, version: int = 0) -> None:
        while (parent := path.rpartition("/")[0]) and parent not in self.nodes:
            self.nodes[parent] = (b"", 0, len(self.nodes))
            if "/" not in parent[1:]:
                break
            for above in itertools.accumulate(parent.split("/")[1:], lambda a, b: f"{a}/{b}"):
                self.nodes.setdefault(f"/{above}", (b"", 0, len(self.nodes)))
            break
        self.nodes[path] = (data, version, len(self.nodes))

    async def get(self, path: str, watch: Any = None) -> ZNode:
        if path not in self.nodes:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        data, version, zxid = self.nodes[path]
        return ZNode(data, ZNodeStat(version, zxid, zxid, 0, 1_700_000_000_000 + zxid, 0, 0, 0))

    async def children(self, path: str, watch: Any = None) -> list[str]:
        if path not in self.nodes:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        below = (name.removeprefix(f"{path}/") for name in self.nodes if name.startswith(f"{path}/"))
        return sorted({name for name in below if "/" not in name})


def with_topic(
    tree: Znodes,
    name: str,
    replicas: Mapping[int, PartitionAssignment],
    *,
    id: str | None = None,
    **state: Any,
) -> None:
    tree.put(
        znodes.topic_path(name),
        TopicZNode(name, replicas, None if id is None else parse_uuid(id)).encode(),
    )
    for number, assignment in replicas.items():
        values = {"leader": -1, "leader_epoch": 5, "isr": assignment.replicas, "controller_epoch": 3} | state
        tree.put(
            znodes.partition_state_path(TopicPartition(name, number)),
            TopicPartitionStateZNode(**values).encode(),
            version=9,
        )


@pytest.fixture
def tree() -> Znodes:
    tree = Znodes({znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER_ID), znodes.CONTROLLER_EPOCH: b"3"})
    with_topic(tree, "orders", {0: PartitionAssignment((1,)), 1: PartitionAssignment((1,))}, id=ORDERS_ID)
    return tree


async def imported_from(
    tree: Znodes, release: int = DEFAULT_METADATA_VERSION.level, secret: str | None = None
) -> tuple[ZooKeeperCluster, ImportedMetadata]:
    cluster = await read_cluster(tree)
    decode = None if secret is None else lambda value: decode_password(value, secret)
    return cluster, import_metadata(cluster, METADATA_VERSIONS[release], decode)


# From znodes to records


async def test_partitions_keep_their_epochs_and_wait_for_an_election(tree: Znodes) -> None:
    _, imported = await imported_from(tree)
    topic = imported.image.topics.by_name["orders"]
    assert uuid_text(topic.id) == ORDERS_ID
    partition = topic.partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (NO_LEADER, 5, 9)
    assert (partition.replicas, partition.isr) == ((1,), (1,))
    assert imported.findings.problems == []


async def test_a_reassignment_goes_on(tree: Znodes) -> None:
    with_topic(tree, "moving", {0: PartitionAssignment((2, 3, 1), adding=(2, 3), removing=(1,))}, isr=(1, 2))
    _, imported = await imported_from(tree)
    partition = imported.image.topics.by_name["moving"].partitions[0]
    assert (partition.adding_replicas, partition.removing_replicas, partition.isr) == ((2, 3), (1,), (1, 2))


async def test_topics_without_an_id_get_the_same_one_each_time(tree: Znodes) -> None:
    with_topic(tree, "old", {0: PartitionAssignment((1,))})
    ids = {(await imported_from(tree))[1].topic_ids["old"] for _ in range(2)}
    assert len(ids) == 1
    tree.nodes.pop(znodes.topic_path("old"))
    with_topic(tree, "old", {0: PartitionAssignment((1,))})  # deleted and created again
    assert (await imported_from(tree))[1].topic_ids["old"] not in ids


async def test_topics_in_deletion_and_what_is_of_no_topic_stay_behind(tree: Znodes) -> None:
    with_topic(tree, "doomed", {0: PartitionAssignment((1,))})
    tree.put(znodes.delete_topic_path("doomed"), b"")
    tree.put("/config/topics/doomed", znodes.encode_config({"retention.ms": "1"}))
    tree.put("/config/topics/never", znodes.encode_config({"retention.ms": "1"}))
    tree.put(
        znodes.REASSIGN_PARTITIONS,
        b'{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[2]}]}',
    )
    _, imported = await imported_from(tree)
    assert list(imported.image.topics.by_name) == ["orders"]
    assert imported.image.configs == {}
    assert imported.findings.left_behind == [
        "topics in deletion: doomed; brokers put their logs aside as -stray",
        "the requested reassignment of orders-0 to [2], which has not begun",
        "the configuration of 'never', which is no topic",
    ]


async def test_what_looks_wrong_is_said(tree: Znodes) -> None:
    with_topic(tree, "empty", {0: PartitionAssignment((1, 2))}, isr=(7,))
    with_topic(tree, "half", {0: PartitionAssignment((1, 2))})
    tree.nodes.pop(znodes.partition_state_path(TopicPartition("half", 0)))
    _, imported = await imported_from(tree)
    assert imported.image.topics.by_name["half"].partitions[0].isr == (1, 2)
    assert imported.findings.warnings == [
        "empty-0 has [7] in sync, which are no replicas of it",
        "half-0: no state, as their creation was interrupted; all their replicas begin in sync",
        "empty-0: no in-sync replica; offline until an unclean election",
    ]


async def test_a_damaged_znode_is_a_problem_and_the_rest_is_read(tree: Znodes) -> None:
    tree.put(znodes.topic_path("broken"), b"?")
    tree.put("/config/brokers/1", b"[]")
    _, imported = await imported_from(tree)
    assert [line.split(":")[0] for line in imported.findings.problems] == [
        "/brokers/topics/broken is not a JSON object",
        "/config/brokers/1 is not a JSON object",
    ]
    assert "orders" in imported.image.topics.by_name


async def test_configurations_come_over_without_those_that_were_dropped(tree: Znodes) -> None:
    topic = {"retention.ms": "5", "message.format.version": "2.8", "message.downconversion.enable": "false"}
    tree.put("/config/topics/orders", znodes.encode_config(topic))
    tree.put("/config/brokers/<default>", znodes.encode_config({"message.max.bytes": "2"}))
    tree.put("/config/brokers/1", znodes.encode_config({"ssl.key.password": ENCRYPTED}))
    _, imported = await imported_from(tree, secret="encoder")
    assert imported.image.configs == {
        ConfigResource(ConfigResourceType.TOPIC, "orders"): {"retention.ms": "5"},
        CLUSTER_DEFAULT: {"message.max.bytes": "2"},
        ConfigResource(ConfigResourceType.BROKER, "1"): {"ssl.key.password": "pw123"},
    }
    assert imported.findings.left_behind == [
        "message.downconversion.enable of orders: Apache Kafka dropped it in 4.0",
        "message.format.version of orders: Apache Kafka dropped it in 4.0",
    ]


async def test_an_encrypted_password_needs_its_secret(tree: Znodes) -> None:
    assert is_encoded(ENCRYPTED)
    tree.put("/config/brokers/1", znodes.encode_config({"ssl.key.password": ENCRYPTED}))
    _, without = await imported_from(tree)
    assert "give the server.properties with its password.encoder.secret" in without.findings.problems[0]
    _, wrong = await imported_from(tree, secret="another")
    assert "password.encoder.secret is not the one" in wrong.findings.problems[0]


async def test_users_quotas_acls_tokens_and_producer_ids_come_over(tree: Znodes) -> None:
    credential = ScramZNodeCredential(b"salt", b"stored", b"server", 4096)
    user = {"SCRAM-SHA-256": credential.encode(), "producer_byte_rate": "1024.0"}
    tree.put("/config/users/CN%3Da%20b", znodes.encode_config(user))
    tree.put("/config/users/<default>", znodes.encode_config({"request_percentage": "50"}))
    tree.put("/config/users/CN%3Da%20b/clients/<default>", znodes.encode_config({"consumer_byte_rate": "7"}))
    tree.put("/config/clients/app", znodes.encode_config({"controller_mutation_rate": "3"}))
    tree.put("/config/ips/10.0.0.1", znodes.encode_config({"connection_creation_rate": "9"}))
    tree.put("/kafka-acl/Topic/*", znodes.encode_acls([AclZNodeEntry("User:a", 3, 3, "*")]))
    token = DelegationTokenZNode("id", "User:a", "User:b", ("User:c",), 1, 2, 3)
    tree.put("/delegation_token/tokens/id", token.encode())
    tree.put(znodes.LATEST_PRODUCER_ID_BLOCK, ProducerIdBlockZNode(1, 4000, 4999).encode())
    _, imported = await imported_from(tree)
    image = imported.image
    assert image.client_quotas == {
        (("user", None),): {"request_percentage": 50.0},
        (("user", "CN=a b"),): {"producer_byte_rate": 1024.0},
        (("client-id", "app"),): {"controller_mutation_rate": 3.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 9.0},
        (("client-id", None), ("user", "CN=a b")): {"consumer_byte_rate": 7.0},
    }
    assert list(image.scram) == [ScramUser(1, "CN=a b")]
    assert [(acl.principal, acl.resource_name) for acl in image.acls.values()] == [("User:a", "*")]
    assert image.delegation_tokens["id"].requester == "User:b"
    assert image.next_producer_id == 5000
    _, early = await imported_from(tree, release=METADATA_VERSIONS[8].level)
    assert early.findings.problems == [
        "1 SCRAM credentials need metadata.version 3.5-IV2 or later, not 3.4-IV0",
        "1 delegation tokens need metadata.version 3.6-IV2 or later, not 3.4-IV0",
    ]


async def test_the_levels_of_features_of_the_legacy_mode_do_not_go_down(tree: Znodes) -> None:
    levels = {"group.version": 1, "transaction.version": 2, "unheard.of": 7}
    tree.put(znodes.FEATURE, znodes.FeatureZNode(True, levels).encode())
    _, imported = await imported_from(tree, release=METADATA_VERSIONS[14].level)
    found = imported.image.features.finalized_versions()
    assert (found["group.version"], found["transaction.version"]) == (1, 2)
    assert imported.findings.left_behind == [
        "the finalized features unheard.of: the metadata.version decides instead"
    ]


async def test_a_broker_that_starts_while_the_znodes_are_read_is_seen(tree: Znodes) -> None:
    class StartsMeanwhile(Znodes):
        async def children(self, path: str, watch: Any = None) -> list[str]:
            if path == znodes.CONFIG_TOPICS:
                for each, data in late.items():
                    self.put(each, data)
            return await super().children(path, watch)

    late = {"/brokers/ids/7": b"{}"}
    started = StartsMeanwhile()
    started.nodes = dict(tree.nodes)
    assert "brokers are running: 7" in check_cluster(await read_cluster(started))[0]
    late = {"/controller": znodes.ControllerZNode(7, 2).encode()}
    started.nodes = dict(tree.nodes)
    assert "/controller names 7" in check_cluster(await read_cluster(started))[0]
    late = {"/controller_epoch": b"4"}  # it has come and gone
    started.nodes = dict(tree.nodes)
    assert "a controller has run" in check_cluster(await read_cluster(started))[0]


async def test_a_cluster_that_runs_is_refused(tree: Znodes) -> None:
    assert check_cluster(await read_cluster(tree)) == []
    tree.put("/controller", znodes.ControllerZNode(1, 2).encode())
    assert "a controller is running" in check_cluster(await read_cluster(tree))[0]
    tree.put("/brokers/ids/1", b'{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}')
    assert "brokers are running: 1" in check_cluster(await read_cluster(tree))[0]
    tree.put(
        "/migration",
        b'{"version":0,"kraft_metadata_offset":1,"kraft_controller_id":3000,"kraft_metadata_epoch":1,'
        b'"kraft_controller_epoch":1}',
    )
    assert "a migration to KRaft by Apache Kafka has begun" in check_cluster(await read_cluster(tree))[0]
    assert "there is no /cluster/id" in check_cluster(await read_cluster(Znodes()))[0]


# What is written

NODE = ImportNode(1, ("/a", "/b"), is_controller=True)
OLD = f"#\nversion=0\nbroker.id=1\ncluster.id={CLUSTER_ID}\n".encode()


def broker_disk(*partitions: str, seed: int = 0) -> SimDisk:
    disk = SimDisk(seed=seed)
    for path in ("/a", "/b"):
        disk.make_dirs(path)
        write_file(disk, f"{path}/meta.properties", OLD)
    for name in partitions or ("/a/orders-0", "/b/orders-1"):
        disk.make_dirs(name)
        write_file(disk, f"{name}/partition.metadata", f"version: 0\ntopic_id: {ORDERS_ID}\n".encode())
    disk.sync_all()
    return disk


async def planned(disk: SimDisk, tree: Znodes, *nodes: ImportNode) -> ImportPlan:
    cluster, imported = await imported_from(tree)
    return plan_import(disk, cluster, imported, DEFAULT_METADATA_VERSION, nodes or [NODE])


def image_of(disk: SimDisk, directory: str = "/a/__cluster_metadata-0") -> MetadataImage:
    (name,) = disk.list_dir(directory)
    delta = MetadataDelta(MetadataImage.EMPTY)
    for value in decode_snapshot(disk.contents()[f"{directory}/{name}"]).values:
        delta.replay(decode_metadata_record(value)[0])
    return delta.apply(MetadataImage.EMPTY.provenance)


async def test_an_import_writes_a_snapshot_and_the_identity_of_each_directory(tree: Znodes) -> None:
    disk = broker_disk()
    before = disk.contents()
    plan = await planned(disk, tree)
    assert disk.contents() == before
    write_import(disk, plan)
    _, imported = await imported_from(tree)
    assert image_of(disk) == imported.image
    properties = [read_meta_properties(disk, path) for path in ("/a", "/b")]
    assert [(each.version, each.cluster_id, each.node_id) for each in properties if each is not None] == [
        (1, CLUSTER_ID, 1)
    ] * 2
    assert len({each.directory_id for each in properties if each is not None}) == 2
    assert disk.contents()[f"/a/{OLD_META_PROPERTIES}"] == OLD
    after = disk.contents()
    again = await planned(disk, tree)
    assert again.pending == []
    write_import(disk, again)
    assert disk.contents() == after


async def test_the_directories_of_the_legacy_mode_are_of_a_quorum_after_the_import(tree: Znodes) -> None:
    disk = broker_disk()
    for path in NODE.paths:
        mark_of_zookeeper(disk, path)
    # A broker that is no controller gets no metadata log.
    broker, controller = ImportNode(1, NODE.paths), ImportNode(100, ("/c",), False, True)
    plan = await planned(disk, tree, broker, controller)
    with pytest.raises(StorageError, match="in ZooKeeper"):
        check_metadata_store(disk, broker.paths, zookeeper=False)
    with locked_directories(disk, ["/c"], create=True):
        write_import(disk, plan)
    check_metadata_store(disk, broker.paths, zookeeper=False)
    assert (await planned(disk, tree, broker, controller)).pending == []


async def test_the_controllers_of_a_cluster_get_the_same_bytes(tree: Znodes) -> None:
    one, other = await planned(broker_disk(), tree), await planned(broker_disk(), tree)
    assert one.snapshot == other.snapshot
    assert one.bootstrap == other.bootstrap


async def test_a_change_in_zookeeper_replaces_an_import_that_was_not_started(tree: Znodes) -> None:
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    tree.nodes.pop(znodes.topic_path("orders"))
    with_topic(tree, "orders", {0: PartitionAssignment((1,))}, id=ORDERS_ID)
    plan = await planned(disk, tree)
    write_import(disk, plan)
    assert len(image_of(disk).topics.by_name["orders"].partitions) == 1


async def test_a_directory_in_which_a_node_has_started_is_not_changed(tree: Znodes) -> None:
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    write_file(disk, "/a/__cluster_metadata-0/quorum-state", b"{}")
    plan = await planned(disk, tree)
    assert "node 1 has started since the import" in plan.findings.problems[0]


async def test_logs_whose_topic_had_no_id_get_it_before_anything_else(tree: Znodes) -> None:
    """Apache Kafka 4 puts a log without an id aside, as a stray."""
    with_topic(tree, "old", {0: PartitionAssignment((1,)), 1: PartitionAssignment((2,))})
    cluster, imported = await imported_from(tree)
    for operation in itertools.count():
        disk = broker_disk(seed=operation)
        for path in ("/a/old-0", "/a/old-1", "/b/unknown-0"):
            disk.make_dirs(path)
        disk.sync_all()
        plan = plan_import(disk, cluster, imported, DEFAULT_METADATA_VERSION, [NODE])
        assert plan.pending[0] == "partition.metadata of 1 partitions in /a"
        disk.crash_after(operation)
        try:
            write_import(disk, plan)
            complete = True
        except SimCrash:
            complete = False
        disk = disk.after_crash(operation)
        properties = read_meta_properties(disk, "/a")
        assert properties is not None
        if disk.is_dir("/a/__cluster_metadata-0") or properties.version == 1:
            assert read_topic_id(disk, "/a/old-0/partition.metadata") == imported.topic_ids["old"]
        assert not disk.exists("/a/old-1/partition.metadata"), "no replica of this broker"
        assert not disk.exists("/b/unknown-0/partition.metadata")
        if complete:
            plan = plan_import(disk, cluster, imported, DEFAULT_METADATA_VERSION, [NODE])
            assert (plan.findings.problems, plan.pending) == ([], [])
            return


async def test_a_node_that_starts_after_the_plan_was_made_keeps_what_it_has(tree: Znodes) -> None:
    """The plan may be made before all locks are held: what it decided is looked at again."""
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    tree.nodes.pop(znodes.topic_path("orders"))
    plan = await planned(disk, tree)
    write_file(disk, "/a/__cluster_metadata-0/quorum-state", b"{}")
    before = disk.contents()
    with pytest.raises(StorageError, match=r"node 1 has started since the import.*Nothing was written"):
        write_import(disk, plan)
    assert disk.contents() == before
    disk = broker_disk()
    plan = await planned(disk, tree)
    write_file(disk, "/b/meta.properties", OLD.replace(b"broker.id=1", b"broker.id=2"))
    before = disk.contents()
    with pytest.raises(StorageError, match="was changed just now"):
        write_import(disk, plan)
    assert disk.contents() == before


async def test_another_order_of_directories_does_not_hide_a_node_that_has_started(tree: Znodes) -> None:
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    turned = ImportNode(1, ("/b", "/a"), is_controller=True)
    plan = await planned(disk, tree, turned)
    assert plan.findings.problems == [
        "/a/__cluster_metadata-0 is of an import when /a was the first of log.dirs: put it first again, or "
        "remove the metadata there"
    ]
    write_file(disk, "/a/__cluster_metadata-0/00000000000000000007.log", b"")
    plan = await planned(disk, tree, turned)
    assert "node 1 has started since the import" in plan.findings.problems[0]


async def test_a_broker_that_is_no_controller_any_more_has_no_metadata_left(tree: Znodes) -> None:
    """It would begin with the metadata of the first import, which the controllers do not have."""
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    broker, controller = ImportNode(1, NODE.paths), ImportNode(100, ("/c",), False, True)
    disk.make_dirs("/c")
    plan = await planned(disk, tree, broker, controller)
    assert "/a/__cluster_metadata-0 (removed)" in plan.pending
    write_import(disk, plan)
    assert not disk.is_dir("/a/__cluster_metadata-0")
    assert disk.is_dir("/c/__cluster_metadata-0")
    assert (await planned(disk, tree, broker, controller)).pending == []


LEGACY = f"#\ncluster.id={CLUSTER_ID}\ndirectory.id=1y8N55JZS7-UKFp5YmSX_w\nnode.id=1\nversion=1\n".encode()


async def test_a_second_import_of_the_legacy_mode_is_harmless_at_any_operation(tree: Znodes) -> None:
    """Its properties are the same before and after: a node refuses the directory by the mark."""
    node = ImportNode(1, ("/a",), is_controller=True)
    _, first = await imported_from(tree)
    changed = Znodes()
    changed.nodes = dict(tree.nodes)
    with_topic(changed, "more", {0: PartitionAssignment((1,))}, id="AAAAAAAAAAAAAAAAAAAAAQ")
    cluster, second = await imported_from(changed)
    for operation in itertools.count():
        disk = SimDisk(seed=operation)
        disk.make_dirs("/a/orders-0")
        write_topic_id(disk, "/a/orders-0/partition.metadata", parse_uuid(ORDERS_ID))
        write_file(disk, "/a/meta.properties", LEGACY)
        mark_of_zookeeper(disk, "/a")
        disk.sync_all()
        write_import(disk, await planned(disk, tree, node))
        check_metadata_store(disk, ["/a"], zookeeper=False)
        plan = plan_import(disk, cluster, second, DEFAULT_METADATA_VERSION, [node])
        disk.crash_after(operation)
        try:
            write_import(disk, plan)
            complete = True
        except SimCrash:
            complete = False
        disk = disk.after_crash(operation)
        assert disk.contents()["/a/meta.properties"] == LEGACY, "the directory keeps its id"
        try:
            check_metadata_store(disk, ["/a"], zookeeper=False)
        except StorageError:
            pass
        else:
            assert image_of(disk) in (first.image, second.image)
        plan = plan_import(disk, cluster, second, DEFAULT_METADATA_VERSION, [node])
        assert plan.findings.problems == []
        write_import(disk, plan)
        assert image_of(disk) == second.image
        assert sorted(disk.list_dir("/a")) == [
            *("__cluster_metadata-0", "bootstrap.checkpoint", "meta.properties", "orders-0"),
        ]
        if complete:
            assert operation > 10
            return


async def test_a_crash_at_any_operation_is_harmless(tree: Znodes) -> None:
    """A node refuses the directories until the metadata is complete, and a second run ends the same."""
    cluster, imported = await imported_from(tree)

    def plan_for(disk: SimDisk) -> ImportPlan:
        return plan_import(disk, cluster, imported, DEFAULT_METADATA_VERSION, [NODE])

    for operation in itertools.count():
        disk = broker_disk(seed=operation)
        plan = plan_for(disk)
        disk.crash_after(operation)
        try:
            write_import(disk, plan)
            complete = True
        except SimCrash:
            complete = False
        disk = disk.after_crash(operation)
        try:
            check_not_of_zookeeper(disk, NODE.paths)
        except StorageError:
            pass
        else:
            assert image_of(disk) == imported.image
        write_import(disk, plan_for(disk))
        assert image_of(disk) == imported.image
        assert plan_for(disk).pending == []
        assert sorted(disk.list_dir("/a")) == [
            *("__cluster_metadata-0", "bootstrap.checkpoint", "meta.properties"),
            *("meta.properties.zookeeper", "orders-0"),
        ]
        if complete:
            assert operation > 10
            return


async def test_an_import_that_was_undone_and_left_is_not_started_with(tree: Znodes) -> None:
    """The broker may have run on ZooKeeper since, with topics that this metadata does not know."""
    disk = broker_disk()
    write_import(disk, await planned(disk, tree))
    check_not_of_zookeeper(disk, NODE.paths)
    for path in NODE.paths:  # the way back, without the removal of the metadata log
        disk.rename(f"{path}/{OLD_META_PROPERTIES}", f"{path}/meta.properties")
    with pytest.raises(StorageError, match="__cluster_metadata-0 is of an import that was interrupted"):
        check_not_of_zookeeper(disk, NODE.paths)
    # A broker that Apache Kafka has migrated has run with its metadata log, and keeps its properties.
    write_file(disk, "/a/__cluster_metadata-0/quorum-state", b"{}")
    check_not_of_zookeeper(disk, NODE.paths)


async def test_a_controller_without_data_gets_a_directory_of_its_own(tree: Znodes) -> None:
    disk = broker_disk()
    controller = ImportNode(100, ("/c",), is_broker=False, is_controller=True)
    broker = ImportNode(1, ("/a", "/b"))
    plan = await planned(disk, tree, broker, controller)
    assert plan.findings.problems == []
    with locked_directories(disk, ["/c"], create=True):
        write_import(disk, plan)
    assert image_of(disk, "/c/__cluster_metadata-0").topics.by_name.keys() == {"orders"}
    properties = read_meta_properties(disk, "/c")
    assert properties is not None
    assert properties.node_id == 100
    assert not disk.is_dir("/a/__cluster_metadata-0")


async def test_directories_of_others_are_refused(tree: Znodes) -> None:
    disk = broker_disk()
    write_file(disk, "/b/meta.properties", b"version=0\nbroker.id=2\ncluster.id=another\n")
    plan = await planned(disk, tree)
    assert [line.split(":")[0] for line in plan.findings.problems] == [
        f"/b/meta.properties has cluster.id another, and the one in ZooKeeper is {CLUSTER_ID}",
        "/b/meta.properties belongs to broker 2, not to 1",
    ]
    missing = await planned(disk, tree, ImportNode(1, ("/a", "/nowhere")))
    assert missing.findings.problems[0].startswith("/nowhere, a directory of broker 1, does not exist: ")


async def test_a_directory_in_use_is_refused() -> None:
    disk = broker_disk()
    lock = disk.lock("/b/.lock")
    with (
        pytest.raises(StorageError, match="a broker runs there"),
        locked_directories(disk, NODE.paths, create=False),
    ):
        pass
    lock.release()
    with locked_directories(disk, NODE.paths, create=False):
        assert not disk.exists("/a/.lock")


async def test_logs_are_compared_with_the_metadata(tree: Znodes) -> None:
    disk = broker_disk("/a/orders-0", "/b/orders-0", "/b/unknown-3")
    plan = await planned(disk, tree)
    assert plan.findings.problems == [
        "orders-0 is in /a and in /b: no broker starts with both; move the older one away"
    ]
    assert plan.findings.warnings[0].endswith("as -stray: unknown-3")
    assert "in sync for partitions of which it has no log: orders-1" in plan.findings.warnings[1]


async def test_the_log_of_an_older_topic_of_that_name_is_refused(tree: Znodes) -> None:
    disk = broker_disk()
    write_file(disk, "/a/orders-0/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    plan = await planned(disk, tree)
    assert "is of an older topic of that name" in plan.findings.problems[0]


async def test_segments_in_old_formats_are_reported(tree: Znodes) -> None:
    disk = broker_disk()
    write_file(disk, "/a/orders-0/00000000000000000000.log", bytes(16) + b"\x01" + bytes(20))
    write_file(disk, "/a/orders-0/00000000000000000009.log", bytes(16) + b"\x02" + bytes(60))
    plan = await planned(disk, tree)
    assert plan.findings.warnings[0].startswith("1 segments on broker 1 have records in a format from before")


# The new settings


def test_the_settings_of_a_broker_are_rewritten() -> None:
    given = {
        "broker.id": "1",
        "zookeeper.connect": "zk:2181",
        "listeners": "INTERNAL://:9094,EXTERNAL://:9092",
        "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SASL_SSL",
        "inter.broker.listener.name": "INTERNAL",
        "inter.broker.protocol.version": "3.9",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "delegation.token.master.key": "k",
        "log.dirs": "/a,/b",
    }
    voters = [
        ControllerVoter(1, "one", 9093),
        ControllerVoter(2, "two", 9093),
        ControllerVoter(3, "::1", 9093),
    ]
    rewritten = kraft_properties(given, 1, voters)
    assert parse_properties(rewritten.text()) == {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@one:9093,2@two:9093,3@[::1]:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "INTERNAL://:9094,EXTERNAL://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SASL_SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "delegation.token.secret.key": "k",
        "log.dirs": "/a,/b",
    }
    alone = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    settings = kraft_properties(alone, 1, [ControllerVoter(1, "localhost", 9093)]).settings
    assert settings["listeners"] == "PLAINTEXT://:9092,CONTROLLER://localhost:9093"
    assert settings["share.coordinator.state.topic.replication.factor"] == "1"
    broker = kraft_properties(given, 4, voters).settings
    assert broker["process.roles"] == "broker"
    assert broker["listeners"] == given["listeners"]


def test_the_listener_of_the_control_plane_goes() -> None:
    """Many have called it CONTROLLER."""
    given = {
        "listeners": "CLIENTS://:9092,CONTROLLER://:9094",
        "advertised.listeners": "CLIENTS://kafka-1:9092,CONTROLLER://kafka-1:9094",
        "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "control.plane.listener.name": "CONTROLLER",
    }
    settings = kraft_properties(given, 1, [ControllerVoter(1, "kafka-1", 9093)]).settings
    assert settings["listeners"] == "CLIENTS://:9092,CONTROLLER://:9093"
    assert settings["advertised.listeners"] == "CLIENTS://kafka-1:9092"
    assert settings["listener.security.protocol.map"] == "CLIENTS:SSL,CONTROLLER:SSL"
    del given["control.plane.listener.name"]  # then it is a listener for clients
    settings = kraft_properties(given, 1, [ControllerVoter(1, "kafka-1", 9093)]).settings
    assert settings["listeners"] == "CLIENTS://:9092,CONTROLLER://:9094,KRAFT_CONTROLLER://:9093"
    assert settings["controller.listener.names"] == "KRAFT_CONTROLLER"


def test_the_settings_of_kafka_2_are_understood() -> None:
    given = {
        "port": "9192",
        "host.name": "10.0.0.1",
        "advertised.host.name": "kafka-1",
        "quota.producer.default": "1024",
        "metadata.log.dir": "/elsewhere",
    }
    rewritten = kraft_properties(given, 1, [ControllerVoter(9, "nine", 9093)])
    assert rewritten.settings["listeners"] == "PLAINTEXT://10.0.0.1:9192"
    assert rewritten.settings["advertised.listeners"] == "PLAINTEXT://kafka-1:9192"
    assert sorted(rewritten.removed) == sorted(given)
    assert "ottla quotas set --default-client-id producer_byte_rate=1024" in rewritten.warnings[0]


def test_the_settings_of_the_legacy_mode_lose_zookeeper_and_keep_their_controllers() -> None:
    given = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "metadata.store": "zookeeper",
        "zookeeper.connect": "zk:2181",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/a",
    }
    assert controller_address(given) == ("127.0.0.1", 9093)
    voters = [ControllerVoter(1, "127.0.0.1", 9093)]
    assert kraft_properties(given, 1, voters).settings == {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": given["listeners"],
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        "log.dirs": "/a",
    }
    broker = kraft_properties(given, 1, [ControllerVoter(2, "two", 9093)]).settings
    assert (broker["process.roles"], broker["listeners"]) == ("broker", "PLAINTEXT://127.0.0.1:9092")
    alone = given | {"process.roles": "controller", "listeners": "CONTROLLER://:9093"}
    controller = kraft_properties(alone, 1, voters).settings
    assert (controller["process.roles"], controller["listeners"]) == (
        "controller",
        "CONTROLLER://127.0.0.1:9093",
    )
    assert controller_address(alone) is None


def test_values_survive_the_new_file() -> None:
    odd = {"sasl.jaas.config": ' a "b\\c" \\', "x": "tab\tü"}
    assert parse_properties(kraft_properties(odd, 1, []).text()).items() >= odd.items()


async def test_a_zookeeper_that_does_not_answer_any_more_is_not_waited_for(
    tree: Znodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Znodes):
        async def children(self, path: str, watch: Any = None) -> list[str]:
            if path == znodes.TOPICS:
                await asyncio.Event().wait()
            return await super().children(path, watch)

    monkeypatch.setattr(cluster_reader, "_REQUEST_TIMEOUT_S", 0.05)
    silent = Silent()
    silent.nodes = dict(tree.nodes)
    with pytest.raises(ZooKeeperError, match=r"no answer within 0.05 s for /brokers/topics"):
        await read_cluster(silent)
