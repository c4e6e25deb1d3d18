"""The metadata log on a disk that forgets what was not synced: start, commit, crash, snapshot, trim."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from ottla.log.directory.meta_properties import StorageError, read_meta_properties
from ottla.metadata.controller.quorum_controller import ActiveController, QuorumController
from ottla.metadata.controller.state import ControllerSettings
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.bootstrap_metadata import format_directory, read_bootstrap
from ottla.metadata.log.loader import MetadataLoader
from ottla.metadata.log.metadata_log import MetadataLog, MetadataLogConfig
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.metadata_records import BeginTransactionRecord, EndTransactionRecord, TopicRecord
from ottla.raft.driver.kafka_raft_log import LoadedSnapshot
from ottla.raft.driver.snapshots import SnapshotStore
from ottla.raft.snapshot import SnapshotContent, SnapshotId
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.network import RealNetwork
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import SimCrash
from tests.metadata.controller_harness import CLUSTER_ID, SmallSchema, registration, topic
from tests.support.rows import for_each
from tests.support.waiting import until

DIR = "/data"
PARTITION = f"{DIR}/__cluster_metadata-0"


class Node:
    """A controller over a simulated disk that can be stopped, crashed and started again."""

    def __init__(self, *, config: MetadataLogConfig | None = None, voters: VoterSet | None = None) -> None:
        self.clock = SimClock()
        self.disk = SimDisk(7, clock=self.clock)
        self.config = config or MetadataLogConfig()
        self.runtime = Runtime(self.clock, SeededRandom(3), self.disk, InlinePool(), RealNetwork())
        format_directory(
            self.disk,
            self.runtime.random,
            self.clock,
            DIR,
            cluster_id=CLUSTER_ID,
            node_id=0,
            directory_id=b"the-directory-id",
            dynamic_voters=voters,
        )
        self.log: MetadataLog
        self.active_controller: ActiveController

    @property
    def qc(self) -> QuorumController:
        return self.active_controller.require()

    async def start(self) -> QuorumController:
        self.log = log = await MetadataLog.open(
            self.runtime,
            DIR,
            node_id=0,
            directory_id=b"the-directory-id",
            endpoints={"CONTROLLER": Address("127.0.0.1", 9093)},
            config=self.config,
        )
        self.active_controller = ActiveController(
            log,
            lambda: QuorumController.activate(
                self.runtime,
                log,
                ControllerSettings(node_id=0, cluster_id=CLUSTER_ID),
                SmallSchema(),
                read_bootstrap(self.disk, DIR),
            ),
        )
        log.start()
        await log.until(
            lambda: self.active_controller.current is not None and log.is_caught_up and not log.image.is_empty
        )
        return self.qc

    async def crash(self) -> QuorumController:
        self.disk.crash()
        return await self.start()

    async def restart(self) -> QuorumController:
        await self.log.close()
        return await self.start()

    async def register(self, incarnation: int = 1) -> None:
        await self.qc.register_broker(registration(0, incarnation=incarnation))

    async def create(self, name: str) -> int:
        request = CreateTopicsRequest(topics=[topic(name, assignments=[[0]])])
        response = await self.qc.decide(lambda controller: controller.create_topics(request))
        return response.topics[0].error_code

    async def fill(self, count: int, prefix: str = "topic") -> None:
        for number in range(count):
            assert await self.create(f"{prefix}{number}") == ErrorCode.NONE

    def quorum_state(self) -> dict[str, object]:
        state: dict[str, object] = json.loads(self.disk.contents()[f"{PARTITION}/quorum-state"])
        return state

    def syncs(self) -> int:
        return sum(entry.op.value == "sync" for entry in self.disk.trace.entries())

    def snapshot_files(self) -> list[str]:
        return [
            name for name in self.disk.list_dir(PARTITION) if "checkpoint" in name and "leader" not in name
        ]


async def started(**options: object) -> Node:
    node = Node(**options)  # type: ignore[arg-type]
    await node.start()
    await node.register()
    await node.qc.process_broker_heartbeat(heartbeat(node))
    return node


def heartbeat(node: Node) -> BrokerHeartbeatRequest:
    broker = node.qc.controller.image.cluster.brokers[0]
    return BrokerHeartbeatRequest(
        broker_id=0, broker_epoch=broker.epoch, current_metadata_offset=node.log.next_offset
    )


async def test_a_formatted_directory_starts_with_the_bootstrap_levels() -> None:
    node = Node()
    qc = await node.start()
    assert qc.image.features.finalized_versions() == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert node.quorum_state() == {
        "clusterId": "",
        "leaderId": 0,
        "leaderEpoch": 1,
        "votedId": 0,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 0}],
        "data_version": 0,
    }


async def test_each_start_is_a_new_epoch() -> None:
    node = await started()
    assert node.log.epoch == 1
    await node.restart()
    assert node.log.epoch == 2
    await node.crash()
    assert node.log.epoch == 3
    assert node.quorum_state()["leaderEpoch"] == 3


async def test_what_was_acknowledged_is_there_after_a_restart_and_after_a_crash() -> None:
    node = await started()
    await node.fill(3)
    before = node.log.image
    await node.restart()
    assert node.log.image == before
    await node.create("one-more")
    before = node.log.image
    await node.crash()
    assert node.log.image == before
    assert "one-more" in node.log.image.topics.by_name


async def create_until_power_fails(node: Node) -> list[str]:
    """Create topics, with snapshots in between; the names whose creation was acknowledged."""
    acknowledged: list[str] = []
    for number in range(30):
        try:
            assert await node.create(f"topic{number}") == ErrorCode.NONE
            acknowledged.append(f"topic{number}")
            await node.log.maybe_snapshot()
        except (SimCrash, KafkaError):
            return acknowledged
    raise AssertionError("the power did not fail")


@for_each("operations", range(40))
async def test_a_crash_at_any_point_loses_nothing_that_was_acknowledged(operations: int) -> None:
    node = await started(
        config=MetadataLogConfig(max_record_bytes_between_snapshots=400, max_retention_bytes=0)
    )
    node.disk.crash_after(operations)
    acknowledged = await create_until_power_fails(node)
    await node.crash()
    names = set(node.log.image.topics.by_name)
    assert set(acknowledged) <= names
    assert len(names) <= len(acknowledged) + 1


async def test_answers_wait_for_the_disk_and_share_a_sync() -> None:
    node = await started()
    before = node.syncs()
    answers = [asyncio.ensure_future(node.create(f"topic{number}")) for number in range(20)]
    await asyncio.sleep(0)
    assert not any(answer.done() for answer in answers)
    assert await asyncio.gather(*answers) == [ErrorCode.NONE] * 20
    assert 1 <= node.syncs() - before <= 2


async def test_subscribers_see_an_image_before_the_answer_goes_out() -> None:
    node = await started()
    seen: list[set[str]] = []
    node.log.subscribe(lambda delta, image: seen.append({t.name for t in delta.created_topics()}))
    await node.create("orders")
    assert seen == [{"orders"}]
    assert "orders" in node.log.image.topics.by_name


async def test_a_subscriber_that_fails_ends_neither_the_log_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = await started()
    seen: list[MetadataImage] = []

    def fails(delta: MetadataDelta, image: MetadataImage) -> None:
        raise OSError("a bad sector")

    node.log.subscribe(fails)
    node.log.subscribe(lambda _, image: seen.append(image))
    await node.create("first")
    await node.create("second")
    assert node.log.failure is None
    assert "second" in seen[-1].topics.by_name
    assert "a bad sector" in caplog.text


async def test_a_publisher_that_fails_does_not_end_the_log(caplog: pytest.LogCaptureFixture) -> None:
    node = await started()

    async def fail(delta: MetadataDelta, image: MetadataImage, turns: Turns) -> None:
        raise OSError("a bad sector")

    await node.log.publish_to(do_nothing, fail)
    assert await node.create("first") == ErrorCode.NONE
    assert node.log.failure is None
    assert "first" in node.log.image.topics.by_name
    assert node.log.published_offset == node.log.image.provenance.last_contained_offset
    assert "a bad sector" in caplog.text


async def test_a_decision_without_records_waits_for_those_it_rests_on() -> None:
    node = await started()
    first = asyncio.ensure_future(node.create("orders"))
    second = asyncio.ensure_future(node.create("orders"))
    assert list(await asyncio.gather(first, second)) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


async def do_nothing(image: MetadataImage, turns: Turns) -> None:
    pass


class SlowPublisher:
    """Applies each delta with topics when the test wants it to."""

    def __init__(self, node: Node) -> None:
        self.begun = asyncio.Event()
        self.enough = asyncio.Event()
        self.applied: list[set[str]] = []
        node.log.publish_to(do_nothing, self.apply)

    async def apply(self, delta: MetadataDelta, image: MetadataImage, turns: Turns) -> None:
        if delta.topics:
            self.begun.set()
            await self.enough.wait()
            self.applied.append(set(image.topics.by_name))


async def test_a_client_is_answered_when_what_it_asked_for_is_published() -> None:
    node = await started()
    publisher = SlowPublisher(node)
    first = asyncio.create_task(node.create("first"))
    await publisher.begun.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not first.done()
    assert set(node.log.image.topics.by_name) == {"first"}
    assert node.log.is_caught_up
    assert node.log.published_offset < node.log.image.provenance.last_contained_offset
    publisher.enough.set()
    assert await first == ErrorCode.NONE
    assert node.log.published_offset == node.log.image.provenance.last_contained_offset


async def test_neither_brokers_nor_other_clients_wait_for_a_publication_that_takes_long() -> None:
    node = await started()
    await node.register()
    publisher = SlowPublisher(node)
    first = asyncio.create_task(node.create("first"))
    await publisher.begun.wait()
    reply = await node.qc.process_broker_heartbeat(heartbeat(node))
    assert not reply.is_fenced
    assert await node.create("second") == ErrorCode.NONE
    ids = AllocateProducerIdsRequest(broker_id=0, broker_epoch=node.qc.image.cluster.brokers[0].epoch)
    allocated = await node.qc.decide(
        lambda controller: controller.allocate_producer_ids(ids), for_client=False
    )
    assert allocated.producer_id_len > 0
    assert not first.done()
    publisher.enough.set()
    assert await first == ErrorCode.NONE
    await until(lambda: publisher.applied == [{"first"}, {"first", "second"}])


async def test_heartbeats_do_not_wait_for_a_decision_about_many_partitions() -> None:
    node = await started()
    request = CreateTopicsRequest(topics=[topic("many", 2_000, 1)])
    creating = asyncio.create_task(node.qc.decide(lambda controller: controller.create_topics(request)))
    await until(lambda: not node.qc._decisions.is_idle)
    answered = 0
    before = node.log.next_offset
    while not node.qc._decisions.is_idle:
        reply = await node.qc.process_broker_heartbeat(heartbeat(node))
        assert not reply.is_fenced
        answered += 1
        await asyncio.sleep(0)
    assert answered > 2_000 // 16
    assert node.log.next_offset > before
    assert (await creating).topics[0].error_code == ErrorCode.NONE


async def test_decisions_are_made_in_order_though_each_takes_turns() -> None:
    node = await started()
    requests = [CreateTopicsRequest(topics=[topic("same", 500, 1)]) for _ in range(3)]
    responses = await asyncio.gather(
        *(node.qc.decide(lambda controller, each=each: controller.create_topics(each)) for each in requests)  # type: ignore[misc]
    )
    codes = [response.topics[0].error_code for response in responses]
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(node.log.image.topics.by_name["same"].partitions) == 500


async def test_a_decision_that_need_not_be_one_batch_is_split_and_complete() -> None:
    node = await started()
    for number in range(2):
        request = CreateTopicsRequest(topics=[topic(f"many{number}", 3_000, 1)])
        await node.qc.decide(lambda controller: controller.create_topics(request))  # noqa: B023
    before = node.log.next_offset
    fencing = heartbeat(node)
    fencing.want_fence = True
    assert (await node.qc.process_broker_heartbeat(fencing)).is_fenced
    assert node.log.next_offset - before == 6_001
    await until(lambda: node.log.is_caught_up)
    leaders = {partition.leader for _, _, partition in node.log.image.topics.partitions()}
    assert leaders == {-1}
    assert (await node.restart()).image.cluster.brokers[0].fenced


async def test_an_idle_controller_moves_the_offsets_and_a_busy_one_need_not() -> None:
    node = await started()
    qc = node.qc
    await qc.maybe_write_no_op_record()
    before, image = node.log.next_offset, node.log.image
    await qc.maybe_write_no_op_record()
    assert node.log.next_offset == before + 1
    await until(lambda: node.log.is_caught_up)
    assert node.log.image == image
    assert node.log.published_offset == before
    await node.create("orders")
    before = node.log.next_offset
    await qc.maybe_write_no_op_record()
    assert node.log.next_offset == before


async def test_a_new_controller_does_not_wait_for_a_publication() -> None:
    node = await started()
    publisher = SlowPublisher(node)
    creating = asyncio.create_task(node.create("first"))
    await publisher.begun.wait()
    node.active_controller._on_leave()
    node.log._led_epoch = -1
    node.log._maybe_lead()
    assert "first" in node.qc.controller.image.topics.by_name
    publisher.enough.set()
    await creating


async def test_what_is_half_published_is_left_so_when_publishing_stops() -> None:
    node = await started()
    publisher = SlowPublisher(node)
    creating = asyncio.create_task(node.create("first"))
    await publisher.begun.wait()
    await node.log.stop_publishing()
    assert await creating == ErrorCode.NONE
    assert publisher.applied == []
    publisher.enough.set()
    assert await node.create("second") == ErrorCode.NONE
    assert publisher.applied == []


async def test_no_snapshot_parts_a_transaction() -> None:
    node = await started(config=MetadataLogConfig(max_record_bytes_between_snapshots=1))
    before = node.snapshot_files()
    first = TopicRecord(name="first", topic_id=bytes(range(16)))
    append(node, BeginTransactionRecord(), first)
    await node.log.wait_for_commit(node.log.next_offset)
    await until(lambda: node.log.is_caught_up)
    await node.log.maybe_snapshot()
    assert node.snapshot_files() == before
    append(node, EndTransactionRecord())
    await node.log.wait_for_commit(node.log.next_offset)
    await until(lambda: node.log.is_caught_up)
    await node.log.maybe_snapshot()
    assert node.snapshot_files() != before
    assert set((await node.restart()).image.topics.by_name) == {"first"}


def append(node: Node, *records: MetadataRecord) -> None:
    version = node.log.image.metadata_version
    node.log.append([encode_record(record, version) for record in records])


async def test_a_log_that_is_closed_during_a_publication_has_the_delta_at_the_next_start() -> None:
    node = await started()
    publisher = SlowPublisher(node)
    creating = asyncio.create_task(node.create("first"))
    await publisher.begun.wait()
    qc = await node.restart()
    assert set(qc.image.topics.by_name) == {"first"}
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)


async def test_a_snapshot_replaces_the_log_before_it() -> None:
    config = MetadataLogConfig(max_record_bytes_between_snapshots=2_000, max_retention_bytes=0)
    node = await started(config=config)
    for number in range(60):
        await node.create(f"topic{number}")
        await node.log.maybe_snapshot()
    await node.qc.decide(
        lambda controller: controller.delete_topics(DeleteTopicsRequest(topic_names=["topic7"]))
    )
    newest = node.log.snapshots.newest
    assert newest is not None
    assert node.snapshot_files() == [newest.file_name]
    assert node.log.start_offset == newest.offset
    assert f"{PARTITION}/{0:020d}.log" not in node.disk.contents()
    before = node.log.image
    await node.restart()
    assert node.log.image == before
    await node.crash()
    assert node.log.image == before


async def test_snapshots_are_kept_while_retention_has_room() -> None:
    node = await started(config=MetadataLogConfig(max_record_bytes_between_snapshots=1_000))
    for number in range(40):
        await node.create(f"topic{number}")
        await node.log.maybe_snapshot()
    assert len(node.snapshot_files()) > 2
    assert node.log.start_offset == 0
    node.clock.advance_ms(8 * 24 * 3600 * 1000)
    node.log.trim()
    assert len(node.snapshot_files()) == 1


async def test_an_idle_log_is_snapshotted_once_an_interval() -> None:
    node = await started()
    await node.fill(1)
    await node.log.maybe_snapshot()
    assert node.snapshot_files() == []
    node.clock.advance_ms(3_600_000)
    await node.qc.process_broker_heartbeat(heartbeat(node))
    await node.log.maybe_snapshot()
    assert len(node.snapshot_files()) == 1
    node.clock.advance_ms(3_600_000)
    await node.qc.process_broker_heartbeat(heartbeat(node))
    await node.log.maybe_snapshot()
    assert len(node.snapshot_files()) == 1


async def test_a_damaged_snapshot_is_passed_over_when_an_older_one_and_the_log_remain() -> None:
    node = await started(config=MetadataLogConfig(max_record_bytes_between_snapshots=1_000))
    for number in range(30):
        await node.create(f"topic{number}")
        await node.log.maybe_snapshot()
    before = node.log.image
    newest = node.log.snapshots.newest
    assert newest is not None
    await node.log.close()
    path = f"{PARTITION}/{newest.file_name}"
    file = node.disk.open(path)
    file.truncate(node.disk.size(path) - 10)
    file.close()
    await node.start()
    assert node.log.image == before


async def test_a_log_whose_beginning_is_gone_without_a_snapshot_is_refused() -> None:
    config = MetadataLogConfig(max_record_bytes_between_snapshots=1_000, max_retention_bytes=0)
    node = await started(config=config)
    for number in range(30):
        await node.create(f"topic{number}")
        await node.log.maybe_snapshot()
    await node.log.close()
    for name in node.snapshot_files():
        node.disk.unlink(f"{PARTITION}/{name}")
    with pytest.raises(StorageError, match="no usable snapshot"):
        await node.start()


async def test_a_log_that_contradicts_itself_is_refused_in_one_line() -> None:
    node = await started()
    append(node, TopicRecord(name="twin", topic_id=b"a" * 16), TopicRecord(name="twin", topic_id=b"b" * 16))
    with pytest.raises(KafkaError, match="cannot be replayed"):
        await node.log.wait_for_publication(node.log.next_offset)
    await node.log.close()
    with pytest.raises(
        StorageError, match=r"__cluster_metadata-0: the metadata log cannot be replayed .*twin"
    ):
        await node.start()


async def test_a_directory_whose_voters_are_others_is_refused() -> None:
    other = Voter(ReplicaKey(9, b"another-director"), {})
    node = Node(voters=VoterSet.of(other))
    with pytest.raises(StorageError, match=r"node 0 is not the only voter .* \(9,\)"):
        await node.start()


async def test_a_failed_sync_ends_the_controller() -> None:
    node = await started()
    node.disk.fail(errno.EIO, prefix=PARTITION, ops=["sync"])
    with pytest.raises(KafkaError) as failed:
        await node.create("lost")
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.log.failure is not None
    assert "lost" not in node.log.image.topics.by_name
    with pytest.raises(KafkaError):
        await node.create("refused")


async def test_a_snapshot_for_which_there_is_no_room_leaves_nothing_behind() -> None:
    node = await started()
    await node.fill(3)
    node.disk.fail(errno.ENOSPC, prefix=PARTITION, ops=["write"])
    with pytest.raises(OSError, match="No space"):
        await node.log.write_snapshot(node.log.image)
    assert node.snapshot_files() == []
    await node.log.write_snapshot(node.log.image)
    assert len(node.snapshot_files()) == 1


async def test_dynamic_voters_are_kept_in_the_log_and_in_snapshots() -> None:
    local = Voter(ReplicaKey(0, b"the-directory-id"), {"CONTROLLER": Address("localhost", 9093)})
    node = await started(
        voters=VoterSet.of(local), config=MetadataLogConfig(max_record_bytes_between_snapshots=100)
    )
    assert node.log.kraft_version == 1
    assert node.quorum_state()["data_version"] == 1
    assert node.log.voters.voters[0].endpoints == {"CONTROLLER": Address("127.0.0.1", 9093)}
    await node.fill(3)
    await node.log.maybe_snapshot()
    newest = node.log.snapshots.newest
    assert newest is not None
    assert node.log.snapshots.read(newest).voters == node.log.voters
    await node.restart()
    assert node.log.kraft_version == 1
    assert node.log.voters.voters[0].key.directory_id == b"the-directory-id"


async def test_an_interrupted_metadata_transaction_is_aborted_at_the_next_start() -> None:
    node = await started()
    append(node, BeginTransactionRecord(name="half"), TopicRecord(name="ghost", topic_id=b"g" * 16))
    await node.log.wait_for_commit(node.log.next_offset)
    await node.crash()
    assert "ghost" not in node.log.image.topics.by_name
    assert await node.create("orders") == ErrorCode.NONE
    before = node.log.image
    await node.crash()
    assert node.log.image == before


def test_formatting_writes_what_kafka_expects() -> None:
    node = Node()
    text = node.disk.contents()[f"{DIR}/meta.properties"].decode()
    assert "version=1\n" in text
    assert "cluster.id=test-cluster\n" in text
    assert "node.id=0\n" in text
    assert "directory.id=dGhlLWRpcmVjdG9yeS1pZA\n" in text
    properties = read_meta_properties(node.disk, DIR)
    assert properties is not None
    assert (properties.cluster_id, properties.node_id) == (CLUSTER_ID, 0)
    with pytest.raises(StorageError, match="formatted already"):
        format_directory(node.disk, node.runtime.random, node.clock, DIR, cluster_id="x", node_id=0)


def test_snapshot_names_sort_by_offset_and_epoch() -> None:
    assert SnapshotId(1234, 5).file_name == "00000000000000001234-0000000005.checkpoint"
    assert SnapshotId(10, 1) < SnapshotId(10, 2) < SnapshotId(11, 0)


def test_the_empty_image_has_no_metadata_version() -> None:
    with pytest.raises(LookupError, match="bootstrap records"):
        MetadataImage.EMPTY.records()


async def test_a_snapshot_is_read_in_the_pool_and_not_loaded_if_another_one_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await started(config=MetadataLogConfig(max_record_bytes_between_snapshots=1_000))
    for number in range(40):
        await node.create(f"topic{number}")
        await node.log.maybe_snapshot()
    older, newest = node.log.snapshots.ids[-2:]
    reads: list[tuple[SnapshotId, bool]] = []
    read, run = SnapshotStore.read, InlinePool.run
    in_pool = False

    def noted(store: SnapshotStore, id: SnapshotId) -> SnapshotContent:
        reads.append((id, in_pool))
        return read(store, id)

    async def noting(pool: InlinePool, fn: Any, *args: Any) -> Any:
        nonlocal in_pool
        await asyncio.sleep(0)
        in_pool = True
        try:
            result = await run(pool, fn, *args)
        finally:
            in_pool = False
        await asyncio.sleep(0)
        return result

    monkeypatch.setattr(SnapshotStore, "read", noted)
    monkeypatch.setattr(InlinePool, "run", noting)
    loaded: list[SnapshotId] = []
    load = MetadataLoader.load_snapshot

    def loading(loader: MetadataLoader, snapshot: LoadedSnapshot) -> Any:
        loaded.append(snapshot.id)
        return load(loader, snapshot)

    monkeypatch.setattr(MetadataLoader, "load_snapshot", loading)
    before = node.log.image
    node.log.on_load_snapshot(older)
    await asyncio.sleep(0)
    node.log.on_load_snapshot(newest)
    await node.log.until(lambda: bool(loaded) and node.log.image == before)
    assert loaded == [newest]
    assert reads == [(older, True), (newest, True)]
