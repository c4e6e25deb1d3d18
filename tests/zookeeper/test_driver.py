"""Records to znodes and back: what a controller writes is what the next one reads, also after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import apply_records
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    AccessControlEntry,
    ConfigResource,
    ConfigResourceType,
    config_record,
)
from ottla.metadata.image.image import MetadataImage, quota_record
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import (
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey, Voter
from ottla.records.builder import build_batch
from ottla.runtime.steps import run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.zookeeper import (
    CreateZNode,
    DeleteZNode,
    KazooSession,
    SetZNode,
    ZNode,
    ZNodeStat,
    ZooKeeperError,
    ZooKeeperOperation,
)
from ottla.sim.clock import SimClock
from ottla.sim.world import World
from ottla.sim.zookeeper import SimZooKeeper
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import RegisteredBroker
from ottla.zookeeper.driver.cluster_znodes import prepare_cluster
from ottla.zookeeper.driver.metadata_stream import MetadataStream, first_offset
from ottla.zookeeper.driver.znode_reader import STORED_METADATA_VERSION, ReadMetadata, ZNodeReader
from ottla.zookeeper.driver.znode_writer import (
    MAX_OPERATIONS,
    ZNodeWriter,
    check_storable,
    transactions,
)
from ottla.zookeeper.driver.zookeeper_controller import ControllerWatches
from ottla.zookeeper.driver.zookeeper_log_driver import ElectedController, LedEpoch, ZooKeeperLogDriver

CLUSTER = "NjX7PqHSRUmpKQSZEDlZuw"
EPOCH = 7
TOPIC, OTHER = b"topic-id-0000001", b"topic-id-0000002"
MEMBERS = [1, 2, 3]


class DirectSession:
    """The model of ZooKeeper without its network."""

    session_id = 1

    def __init__(self) -> None:
        self.listeners: list[object] = []
        self.server = SimZooKeeper(World(1))
        for path in znodes.PERSISTENT_PATHS:
            self._create(path)
        self._create(znodes.CONTROLLER_EPOCH, str(EPOCH).encode())

    def _create(self, path: str, data: bytes = b"") -> None:
        above = path.rpartition("/")[0]
        if above and self.server.data(above) is None:
            self._create(above)
        self.apply([CreateZNode(path, data)])

    def apply(self, operations: Sequence[ZooKeeperOperation]) -> list[Any]:
        return self.server._multi(operations, 0)

    async def get(self, path: str, watch: object = None) -> ZNode:
        node = self.server._find(path)
        return ZNode(node.data, node.stat())

    async def exists(self, path: str, watch: object = None) -> ZNodeStat | None:
        try:
            return self.server._find(path).stat()
        except ZooKeeperError:
            return None

    async def children(self, path: str, watch: object = None) -> list[str]:
        return sorted(self.server._find(path).children)

    async def create(self, path: str, data: bytes = b"") -> str:
        return str(self.apply([CreateZNode(path, data)])[0])

    async def delete(self, path: str, version: int = -1) -> None:
        self.apply([DeleteZNode(path, version)])

    async def multi(self, operations: Sequence[ZooKeeperOperation]) -> list[Any]:
        return self.server._multi(operations, self.session_id)

    def add_listener(self, listener: object) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: object) -> None:
        self.listeners.remove(listener)


class Store:
    """A controller's writer on a ZooKeeper."""

    def __init__(self) -> None:
        self.session = DirectSession()
        self.writer = ZNodeWriter(MetadataImage.EMPTY, self.read().paths, EPOCH)
        self.write(
            [
                FeatureLevelRecord(name="metadata.version", feature_level=STORED_METADATA_VERSION.level),
                FeatureLevelRecord(name="group.version", feature_level=1),
            ]
        )

    def translate(self, records: Sequence[MetadataRecord]) -> list[ZooKeeperOperation]:
        return run_at_once(self.writer.translate(records))

    def write(self, records: Sequence[MetadataRecord]) -> None:
        for part in transactions(self.translate(records)):
            self.session.apply(part)

    def read(self) -> ReadMetadata:
        async def read() -> ReadMetadata:
            turns = Turns(SimClock())
            return await ZNodeReader(self.session, EPOCH, lambda: OTHER, turns).read()  # type: ignore[arg-type]

        return asyncio.run(read())

    def read_image(self) -> MetadataImage:
        return apply_records(MetadataImage.EMPTY, self.read().records)


def topic(name: str = "orders", id: bytes = TOPIC, partitions: int = 2) -> list[MetadataRecord]:
    return [
        TopicRecord(name=name, topic_id=id),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=id,
                replicas=MEMBERS,
                isr=MEMBERS,
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for index in range(partitions)
        ),
    ]


def everything() -> list[MetadataRecord]:
    resource = ConfigResource(ConfigResourceType.TOPIC, "orders")
    entry = AccessControlEntry(
        AclResourceType.TOPIC,
        "or",
        PatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    return [
        *topic(),
        config_record(resource, "retention.ms", "1000"),
        config_record(ConfigResource(ConfigResourceType.BROKER, "1"), "log.cleaner.threads", "2"),
        config_record(CLUSTER_DEFAULT, "log.cleaner.threads", "3"),
        quota_record((("user", "CN=a b"),), "producer_byte_rate", 1024.0),
        quota_record((("client-id", None), ("user", "CN=a b")), "request_percentage", 12.5),
        quota_record((("ip", "10.0.0.1"),), "connection_creation_rate", 3.0),
        UserScramCredentialRecord(
            name="CN=a b", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        ),
        entry.to_record(b"an-id-of-the-acl"),
        DelegationTokenRecord(
            token_id="t1",
            owner="User:alice",
            requester="User:bob",
            renewers=["User:carol"],
            issue_timestamp=1,
            max_timestamp=3,
            expiration_timestamp=2,
        ),
        ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=3000),
    ]


def same(found: MetadataImage, expected: MetadataImage) -> bool:
    """Whether two images say the same, apart from the ids of ACLs, which ZooKeeper does not have."""
    return (
        found.features == expected.features
        and found.topics == expected.topics
        and found.configs == expected.configs
        and found.client_quotas == expected.client_quotas
        and found.scram == expected.scram
        and found.delegation_tokens == expected.delegation_tokens
        and found.next_producer_id == expected.next_producer_id
        and list(found.acls.values()) == list(expected.acls.values())
    )


def test_the_next_controller_reads_what_this_one_has_written() -> None:
    store = Store()
    store.write(everything())
    assert same(store.read_image(), store.writer.image)
    changes: list[MetadataRecord] = [
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=[1, 2]),
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=[2], leader=2),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC, replicas=[1, 2], removing_replicas=[2]),
        ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=None),
        quota_record((("user", "CN=a b"),), "producer_byte_rate", None),
        *topic("other", OTHER, 3),
    ]
    store.write(changes)
    read = store.read_image()
    assert same(read, store.writer.image)
    partition = read.topics.by_name["orders"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (2, 1, 2)
    store.write([RemoveTopicRecord(topic_id=TOPIC)])
    assert same(store.read_image(), store.writer.image)
    assert store.session.server.data("/config/topics/orders") is None


def test_a_state_that_another_has_changed_is_not_replaced() -> None:
    store = Store()
    store.write(topic())
    operations = store.translate([PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=[1])])
    store.session.server._set("/brokers/topics/orders/partitions/0/state", _state())
    with pytest.raises(ZooKeeperError, match="bad version"):
        store.session.apply(operations)


def _state() -> bytes:
    return znodes.TopicPartitionStateZNode(3, 9, (3,), EPOCH).encode()


def test_a_topic_whose_creation_was_cut_off_is_completed() -> None:
    store = Store()
    operations = store.translate(topic(partitions=4))
    store.session.apply(operations[: len(operations) - 3])
    found = store.read()
    store.session.apply(found.writes)
    read = apply_records(MetadataImage.EMPTY, found.records)
    partitions = read.topics.by_name["orders"].partitions
    assert sorted(partitions) == [0, 1, 2, 3]
    assert partitions[0].leader == 1
    assert partitions[3].leader == -1, "no broker lives that could lead it"
    assert same(read, store.read_image())


def test_a_large_topic_is_noted_before_its_deletion_begins() -> None:
    store = Store()
    store.write(topic(partitions=MAX_OPERATIONS))
    first, *others = transactions(store.translate([RemoveTopicRecord(topic_id=TOPIC)]))
    assert others, "it takes several transactions"
    store.session.apply(first)
    assert asyncio.run(store.session.children("/admin/delete_topics")) == ["orders"]
    for part in others:
        store.session.apply(part)
    assert asyncio.run(store.session.children("/admin/delete_topics")) == []
    assert store.read_image().topics.by_name == {}


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord(resource_type=32, resource_name="group", name="consumer.session.timeout.ms", value="1"),
        FeatureLevelRecord(name="share.version", feature_level=1),
        FeatureLevelRecord(name="metadata.version", feature_level=20),
    ],
)
def test_what_has_no_znode_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(KafkaError, match=r"metadata.store=zookeeper"):
        check_storable(record)


def batch(offset: int, values: int = 1) -> bytes:
    return build_batch([(0, None, b"value")] * values, base_offset=offset, leader_epoch=EPOCH)


def test_a_stream_starts_after_a_snapshot_and_gives_out_only_what_is_committed() -> None:
    stream, first = MetadataStream(), first_offset(EPOCH)
    stream.start_after(SnapshotId(first, EPOCH), b"snapshot")
    stream.append(batch(first, 2))
    assert stream.read_committed(first, 1000) == b""
    stream.update_high_watermark(first + 2)
    assert stream.read_committed(first, 1000) == batch(first, 2)
    stream.append(batch(first + 2))
    stream.truncate_to_high_watermark()
    assert stream.end == (first + 2, EPOCH)
    stream.append(batch(first + 2, 3))
    stream.update_high_watermark(first + 5)
    assert b"".join(stream.batches(first + 2)) == batch(first + 2, 3)
    assert stream.read_committed(first, 1) == batch(first, 2), "one batch at least"


def test_a_newer_snapshot_replaces_the_records_before_it() -> None:
    stream, first = MetadataStream(), first_offset(EPOCH)
    stream.start_after(SnapshotId(first, EPOCH), b"snapshot")
    for number in range(10):
        stream.append(batch(first + number))
    stream.update_high_watermark(first + 10)
    newer = SnapshotId(first + 6, EPOCH)
    stream.snapshots.write(newer, [b"newer"])
    stream.on_snapshot_written(newer)
    assert stream.start_offset == first + 6
    assert stream.snapshots.ids == [newer]
    assert stream.snapshots.data(newer) == b"newer"
    assert stream.read_committed(first + 6, 100_000) == b"".join(batch(first + each) for each in range(6, 10))


def test_a_snapshot_that_a_later_controllers_has_replaced_is_said_to_be_gone() -> None:
    stream, before = MetadataStream(), SnapshotId(first_offset(EPOCH), EPOCH)
    stream.start_after(before, b"snapshot")
    stream.start_after(SnapshotId(first_offset(EPOCH + 1), EPOCH + 1), b"newer")
    # `MetadataLog`, which may be reading the first one, then goes on to the second one.
    with pytest.raises(KafkaError, match=r"is not kept any more"):
        stream.snapshots.read(before)


async def test_a_zookeeper_that_does_not_know_the_topics_of_a_broker_is_left_alone() -> None:
    session = DirectSession()
    with pytest.raises(StorageError, match=r"this broker has /data/orders-0.*Nothing was changed"):
        await prepare_cluster(session, CLUSTER, log="/data/orders-0", new_id="first")  # type: ignore[arg-type]
    assert await session.exists(znodes.CLUSTER_ID) is None


async def test_metadata_that_began_anew_are_not_those_of_a_broker_that_was_there_before() -> None:
    """ZooKeeper has lost its data, and a broker without logs, of the same cluster, starts first."""
    before, after = DirectSession(), DirectSession()
    noted = await prepare_cluster(before, CLUSTER, new_id="before")  # type: ignore[arg-type]
    assert await prepare_cluster(before, CLUSTER, log="/d/t-0", metadata_id=noted, new_id="x") == noted  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"has noted that its topics are in ZooKeeper.*restore it"):
        await prepare_cluster(after, CLUSTER, metadata_id=noted, new_id="second")  # type: ignore[arg-type]
    assert await prepare_cluster(after, CLUSTER, new_id="after") == "after"  # type: ignore[arg-type]
    for log in ("/data/orders-0", None):
        with pytest.raises(StorageError, match=r"in the metadata before, and ZooKeeper has after.*No log is"):
            await prepare_cluster(after, CLUSTER, log=log, metadata_id=noted, new_id="third")  # type: ignore[arg-type]


async def test_the_first_broker_of_a_new_cluster_is_registered_at_once() -> None:
    session = DirectSession()
    await prepare_cluster(session, CLUSTER, new_id="id")  # type: ignore[arg-type]
    read = await ZNodeReader(session, EPOCH, lambda: OTHER, Turns(SimClock())).read()  # type: ignore[arg-type]
    writer = ZNodeWriter(MetadataImage.EMPTY, read.paths, EPOCH)
    session.apply(run_at_once(writer.translate([RegisterBrokerRecord(broker_id=1, incarnation_id=OTHER)])))
    assert await session.children("/ottla") == ["brokers", "metadata_id"]


async def test_another_cluster_is_left_alone() -> None:
    session = DirectSession()
    await prepare_cluster(session, CLUSTER, new_id="first")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=f"The Cluster ID {CLUSTER} doesn't match stored clusterId other"):
        await prepare_cluster(session, "other", new_id="second")  # type: ignore[arg-type]
    assert (await session.get(znodes.CLUSTER_ID)).data == znodes.encode_cluster_id(CLUSTER)


def driver_on(session: DirectSession, clock: SimClock, metadata_id: str = "id") -> ZooKeeperLogDriver:
    listener = SimpleNamespace(on_commit=lambda _: None, on_leader_change=lambda *_: None)
    return ZooKeeperLogDriver(
        SimpleNamespace(clock=clock, random=SimpleNamespace(uuid=lambda: OTHER)),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        session,  # type: ignore[arg-type]
        MetadataStream(),
        Voter(ReplicaKey(1, OTHER), {}),
        listener,  # type: ignore[arg-type]
        cluster_id=CLUSTER,
        config=None,  # type: ignore[arg-type]
        listener_name="CONTROLLER",
        session_timeout_ms=18_000,
        channel=None,  # type: ignore[arg-type]
        metadata_id=metadata_id,
    )


async def test_znodes_that_cannot_be_read_are_not_tried_in_a_loop() -> None:
    session, clock = DirectSession(), SimClock(0)
    await prepare_cluster(session, CLUSTER, new_id="id")  # type: ignore[arg-type]
    await session.create(znodes.topic_path("orders"), b"no json")
    driver = driver_on(session, clock)

    async def look() -> int:
        """Look as often as a watch may tell to, and return the epoch."""
        for _ in range(10):
            await driver._look_at_controller()
        return int((await session.get(znodes.CONTROLLER_EPOCH)).data)

    assert await look() == EPOCH + 1
    assert await look() == EPOCH + 1, "another one may stand now"
    assert await session.exists(znodes.CONTROLLER) is None
    assert not driver.is_leader
    assert driver.failure is None, "the broker goes on, and may be mended"
    text = driver.describe_missing_leader("1")
    assert text.startswith("there is no controller: /brokers/topics/orders")
    assert "mend the znode, or delete it" in text
    for number in range(2, 15):
        clock.advance_ms(30_000)
        assert await look() == EPOCH + number
    clock.advance_ms(29_000)
    assert await look() == EPOCH + 14
    driver._stand_again_ns = 0
    session.apply([DeleteZNode(znodes.topic_path("orders"))])
    with pytest.raises(AttributeError):  # it comes to use what this test has not
        await look()


async def test_a_node_neither_leads_nor_follows_on_other_metadata_or_older_ones() -> None:
    session, clock = DirectSession(), SimClock(0)
    await prepare_cluster(session, CLUSTER, new_id="of-another-time")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"in the metadata id, and ZooKeeper has of-another-time"):
        await driver_on(session, clock)._look_at_controller()
    session.apply([DeleteZNode("/ottla/metadata_id")])
    with pytest.raises(StorageError, match=r"ZooKeeper has none at /ottla/metadata_id"):
        await driver_on(session, clock)._look_at_controller()
    await session.create("/ottla/metadata_id", b"id")
    driver = driver_on(session, clock)
    driver._epoch = EPOCH + 3
    with pytest.raises(StorageError, match=r"has gone back from 10 to 7"):
        await driver._look_at_controller()
    elected = ElectedController(2, EPOCH + 1).encode(0)
    session.apply([CreateZNode(znodes.CONTROLLER, elected)])
    with pytest.raises(StorageError, match=r"has gone back from 10 to 8"):
        await driver._look_at_controller()
    assert await session.exists(znodes.CONTROLLER) is not None
    session.apply([SetZNode(znodes.CONTROLLER, b'{"version":1,"brokerid":9,"timestamp":"1"}')])
    await driver._look_at_controller()
    assert "cannot share one ZooKeeper path" in driver.describe_missing_leader("1")


class FailingWriter:
    """One whose first translation has a mistake."""

    image = MetadataImage.EMPTY

    def __init__(self) -> None:
        self.calls = 0

    def translate(self, records: Sequence[MetadataRecord]) -> Any:
        self.calls += 1
        yield from ()
        if self.calls == 1:
            raise ZeroDivisionError
        return []


async def test_nothing_is_committed_behind_a_batch_whose_write_ended_by_any_error() -> None:
    """The task of the writes is started again: it must not go on with the next batch."""
    stream, first, committed = MetadataStream(), first_offset(EPOCH), []
    stream.start_after(SnapshotId(first, EPOCH), b"snapshot")
    listener = SimpleNamespace(on_commit=committed.append, on_leader_change=lambda *_: None)
    session = SimpleNamespace(add_listener=lambda _: None)
    driver = ZooKeeperLogDriver(
        SimpleNamespace(clock=SimClock(0)),  # type: ignore[arg-type]
        *(None, session, stream, None, listener),  # type: ignore[arg-type]
        cluster_id="id",
        config=None,  # type: ignore[arg-type]
        listener_name="CONTROLLER",
        session_timeout_ms=18_000,
        channel=None,  # type: ignore[arg-type]
    )
    driver._led = led = LedEpoch(EPOCH, 0, FailingWriter(), {})  # type: ignore[arg-type]
    value = encode_record(NoOpRecord(), STORED_METADATA_VERSION)
    driver.append(build_batch([(0, None, value)], base_offset=first, leader_epoch=EPOCH))
    with pytest.raises(ZeroDivisionError):
        await driver._write_queued(led)
    assert not driver.is_leader
    await driver._write_queued(led)
    assert committed == []
    assert stream.end.offset == first


class FakeController:
    """A controller that agrees to everything, and is active until a test ends that."""

    epoch = EPOCH
    decided_image = MetadataImage.EMPTY

    def __init__(self) -> None:
        self.log = SimpleNamespace(led_epoch=EPOCH)
        self.live: dict[int, bytes] = {}
        self.decided = 0

    async def decide(self, work: object, *, for_client: bool) -> bool:
        self.decided += 1
        return False


def watches_on(session: DirectSession) -> tuple[ControllerWatches, FakeController]:
    controller = FakeController()
    led = LedEpoch(EPOCH, 1, None, {})  # type: ignore[arg-type]
    watches = ControllerWatches(SimClock(0), session, controller, led)  # type: ignore[arg-type]
    return watches, controller


def broker_data(id: int) -> bytes:
    return RegisteredBroker(znodes.BrokerIdZNode(id, (), None), OTHER).encode()


async def test_a_broker_whose_znode_cannot_be_read_does_not_hide_the_others() -> None:
    session = DirectSession()
    watches, controller = watches_on(session)
    await session.create(znodes.broker_path(1), broker_data(1))
    await session.create(znodes.broker_path(2), b"no json")
    incarnation = znodes.decode_json("", broker_data(3))
    bad = {key: "?" if isinstance(value, str) else value for key, value in incarnation.items()}
    await session.create(znodes.broker_path(3), znodes.encode_json(bad))
    await session.create(f"{znodes.BROKER_IDS}/\u00b2", broker_data(9))
    await session.create(znodes.broker_path(4), broker_data(4))
    await watches._look_at_brokers()
    assert controller.live == {1: OTHER, 4: OTHER}


async def test_an_error_of_one_look_ends_neither_it_nor_the_others() -> None:
    session = DirectSession()
    watches, controller = watches_on(session)
    looked: list[str] = []

    async def look(name: str) -> None:
        looked.append(name)
        if looked.count(name) == 1:
            raise ZeroDivisionError
        if len(looked) == 2 * len(names):
            controller.log.led_epoch = None

    names = list(watches._looks)
    watches._looks = {name: lambda name=name: look(name) for name in names}  # type: ignore[misc]
    async with asyncio.timeout(60):
        await watches.run()
    assert looked == [*names, *names]
    assert session.listeners == [], "a controller that is over is kept by nothing"


async def test_a_configuration_waits_for_the_writes_of_the_controller_and_nothing_else_does() -> None:
    session = DirectSession()
    watches, controller = watches_on(session)
    change = znodes.encode_json({"version": 2, "entity_path": "topics/orders"})
    await session.create(f"{znodes.CONFIG_CHANGES}/config_change_0000000001", change)
    async with asyncio.timeout(60):
        await watches._look_at_config_changes()  # its answer is that there was another write, each time
    assert controller.decided
    assert not watches._notifications, "it is looked at again"


async def test_an_election_goes_on_after_any_error() -> None:
    session, clock = DirectSession(), SimClock(0)
    driver = driver_on(session, clock)
    looked = asyncio.Event()

    async def fail() -> None:
        raise ZeroDivisionError

    async def look() -> None:
        looked.set()

    driver._look_at_controller = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await driver._elect()
    driver._look_at_controller = look  # type: ignore[method-assign]
    again = asyncio.create_task(driver._elect())
    async with asyncio.timeout(60):
        await looked.wait()
    again.cancel()


async def test_a_znode_that_is_looked_at_again_and_again_has_one_watch() -> None:
    pytest.importorskip("kazoo")
    session = KazooSession(None, None, asyncio.get_running_loop())  # type: ignore[arg-type]
    watches, _ = watches_on(session)  # type: ignore[arg-type]
    driver = driver_on(DirectSession(), SimClock(0))
    found = {session._watcher(watches._watch(znodes.REASSIGN_PARTITIONS)) for _ in range(10)}
    assert len(found) == 1
    assert len({session._watcher(driver._on_watch) for _ in range(10)}) == 1
    assert len({session._watcher(watches._watch(name)) for name in watches._looks}) == len(watches._looks)
