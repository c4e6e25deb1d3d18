"""A broker applies metadata deltas: partitions are created, moved, changed and deleted with the image."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from typing import Any

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.metadata_records import PartitionChangeRecord
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager
from ottla.runtime.pool import InlinePool
from ottla.runtime.turns import Turns
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import DiskOperation, Op
from tests.metadata.controller_harness import ControllerHarness
from tests.replication.partition_harness import batch, log_manager


class Broker:
    """Broker 0 of a cluster whose controller is a `ControllerHarness`."""

    def __init__(
        self, world: ControllerHarness, disk: SimDisk | None = None, dirs: tuple[str, ...] = ("/data",)
    ) -> None:
        self.world = world
        self.disk = disk or SimDisk(5)
        self.logs = log_manager(self.disk, dirs)
        self.replicas = ReplicaManager(0, self.logs, self.config_of)
        self.image = MetadataImage.EMPTY
        self.seen = 0
        self.turns = Turns(SimClock())

    def config_of(self, topic: str) -> LogConfig:
        configs = self.world.image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
        return LogConfig(retention_ms=int(configs.get("retention.ms", "604800000")))

    async def start(self) -> ReplicaChanges:
        await self.logs.start(self.config_of)
        self.image = self.world.image
        self.seen = self.world.next_offset
        return await self.replicas.start(self.image, lambda: 0, self.turns)

    async def catch_up(self) -> ReplicaChanges:
        """Apply what was written to the metadata log since, as one delta."""
        return await self.follow(self.delta())

    def delta(self) -> MetadataDelta:
        records: list[MetadataRecord] = self.world.log[self.seen :]
        self.seen = self.world.next_offset
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        return delta

    async def follow(self, delta: MetadataDelta) -> ReplicaChanges:
        self.image = delta.apply(self.world.image.provenance)
        return await self.replicas.apply_delta(delta, self.image, lambda: 0, self.turns)

    async def retry_offline(self) -> ReplicaChanges:
        return await self.replicas.retry_offline(lambda: 0, self.turns)

    def hosted(self) -> set[str]:
        return {str(partition.topic_partition) for partition in self.replicas}

    def refusal(self, topic: str, index: int = 0) -> ErrorCode:
        with pytest.raises(KafkaError) as error:
            self.replicas.partition(TopicPartition(topic, index))
        return error.value.code


def delete(world: ControllerHarness, *names: str) -> None:
    world.do(world.controller.delete_topics(DeleteTopicsRequest(topic_names=list(names))))


async def test_partitions_come_and_go_with_their_topics() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=2, replicas=1)
    changes = await broker.catch_up()
    assert broker.hosted() == {"orders-0", "orders-1"}
    assert all(partition.is_leader for partition in changes.leaders)
    assert len(changes.leaders) == 2
    assert "/data/orders-0/00000000000000000000.log" in broker.disk.contents()
    delete(world, "orders")
    changes = await broker.catch_up()
    assert {str(tp) for tp in changes.deleted} == {"orders-0", "orders-1"}
    assert broker.hosted() == set()
    assert broker.refusal("orders") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_that_is_deleted_and_made_again_is_another_one() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    tp = TopicPartition("orders", 0)
    old = broker.replicas.partition(tp)
    old.append_records_to_leader(batch(3, 0), now_ms=0)
    delete(world, "orders")
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    new = broker.replicas.partition(tp)
    assert new.topic_id != old.topic_id
    assert new.log.log_end_offset == 0
    assert not old.is_leader
    with pytest.raises(KafkaError) as error:
        broker.replicas.partition_by_id(old.topic_id, 0)
    assert error.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.replicas.partition_by_id(new.topic_id, 0) is new


async def test_many_new_logs_are_made_in_turns() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=100, replicas=1, configs={"retention.ms": "1000"})
    seen: list[int] = []
    applying = asyncio.ensure_future(broker.catch_up())
    while not applying.done():
        await asyncio.sleep(0)
        seen.append(len(broker.hosted()))
    steps = [after - before for before, after in pairwise([0, *seen])]
    assert sum(steps) == 100
    assert max(steps) <= 16
    assert {partition.log.config.retention_ms for partition in broker.replicas} == {1000}
    assert len((await applying).leaders) == 100


async def test_many_logs_are_deleted_in_turns_and_made_again_without_their_offsets() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=50, replicas=1)
    await broker.catch_up()
    for partition in broker.replicas:
        partition.append_records_to_leader(batch(3, 0), now_ms=0)
        partition.log.flush()
    await broker.logs.checkpoint_log_recovery_offsets()
    delete(world, "orders")
    world.create("orders", partitions=50, replicas=1)
    turns_before = broker.turns.taken
    await broker.catch_up()
    assert broker.turns.taken - turns_before > 50 // 16
    assert {partition.log.log_end_offset for partition in broker.replicas} == {0}
    (directory,) = broker.logs.directories
    assert directory.recovery_points.offsets == {}
    assert not any("staged.tmp" in path for path in broker.disk.contents())


async def test_a_directory_that_fails_between_turns_is_not_served() -> None:
    world = ControllerHarness()
    broker = Broker(world, dirs=("/a", "/b"))
    await broker.start()
    world.create("orders", partitions=100, replicas=1)
    applying = asyncio.ensure_future(broker.catch_up())
    while len(broker.hosted()) < 32:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    failed = broker.logs.directories[0]
    failed.fail("on purpose")
    list(broker.replicas.handle_log_dir_failure(failed))
    changes = await applying
    hosted = {partition.log.directory.path for partition in broker.replicas}
    assert hosted == {"/b"}
    assert {partition.log.directory.path for partition in changes.leaders} == {"/b"}
    assert len(broker.hosted()) + len(broker.replicas.offline) == 100


async def test_a_topic_grows() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="orders", count=3, assignments=None)]
    )
    world.do(world.controller.create_partitions(request))
    changes = await broker.catch_up()
    assert {partition.topic_partition.partition for partition in changes.leaders} == {1, 2}
    assert broker.hosted() == {"orders-0", "orders-1", "orders-2"}


async def test_partitions_of_other_brokers_are_not_hosted() -> None:
    world = ControllerHarness(brokers=3)
    broker = Broker(world)
    await broker.start()
    world.create("orders", assignments=[[1, 2], [1, 0]])
    changes = await broker.catch_up()
    assert broker.hosted() == {"orders-1"}
    assert [partition.leader_id for partition in changes.followers] == [1]
    assert broker.refusal("orders", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_leadership_follows_the_image() -> None:
    world = ControllerHarness(brokers=2)
    broker = Broker(world)
    await broker.start()
    world.create("orders", assignments=[[1, 0]])
    await broker.catch_up()
    partition = broker.replicas.partition(TopicPartition("orders", 0))
    assert not partition.is_leader
    world.heartbeat(1, want_fence=True)
    changes = await broker.catch_up()
    assert changes.leaders == [partition]
    assert partition.is_leader
    assert partition.leader_epoch == 1


async def test_configs_reach_the_logs_while_they_run() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    log = broker.replicas.partition(TopicPartition("orders", 0)).log
    assert log.config.retention_ms == 604_800_000
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name="orders",
                configs=[AlterableConfig(name="retention.ms", config_operation=0, value="5000")],
            )
        ]
    )
    world.do(world.controller.incremental_alter_configs(request))
    await broker.catch_up()
    assert log.config.retention_ms == 5000


async def test_after_a_restart_the_logs_are_taken_up_with_their_records() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    broker.replicas.partition(TopicPartition("orders", 0)).append_records_to_leader(batch(7, 0), now_ms=0)
    await broker.logs.shutdown()
    again = Broker(world, broker.disk)
    changes = await again.start()
    partition = again.replicas.partition(TopicPartition("orders", 0))
    assert changes.leaders == [partition]
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (7, 7)


async def test_a_log_that_the_cluster_does_not_know_is_set_aside() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    await broker.logs.shutdown()
    delete(world, "orders")
    world.create("orders", partitions=1, replicas=1)
    again = Broker(world, broker.disk)
    await again.start()
    assert again.replicas.partition(TopicPartition("orders", 0)).log.log_end_offset == 0
    assert any(path.endswith("-stray") for path in again.logs.strays)


async def test_a_partition_for_which_there_was_no_room_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    broker.disk.fail(errno.ENOSPC, prefix="/data/orders-0", times=None)
    world.create("orders", partitions=1, replicas=1)
    await broker.catch_up()
    assert broker.refusal("orders") is ErrorCode.KAFKA_STORAGE_ERROR
    assert not (await broker.retry_offline()).leaders
    assert caplog.text.count("orders-0 is offline") == 1
    broker.disk.heal()
    changes = await broker.retry_offline()
    assert [str(partition.topic_partition) for partition in changes.leaders] == ["orders-0"]
    assert broker.replicas.offline == {}


async def test_a_failed_directory_takes_its_partitions_offline_and_leaves_the_others() -> None:
    world = ControllerHarness()
    broker = Broker(world, dirs=("/a", "/b"))
    await broker.start()
    world.create("orders", partitions=4, replicas=1)
    await broker.catch_up()
    assert len(broker.hosted()) == 4
    failed = broker.logs.directories[0]
    failed.fail(f"[Errno {errno.EIO}] on purpose")
    gone = list(broker.replicas.handle_log_dir_failure(failed))
    assert len(gone) == 2
    assert len(broker.hosted()) == 2
    assert broker.refusal(gone[0].topic, gone[0].partition) is ErrorCode.KAFKA_STORAGE_ERROR


async def two_disks(*, records: int = 3) -> tuple[ControllerHarness, Broker]:
    """A world with a topic whose four partitions lie on two disks, and a broker that was stopped cleanly."""
    world = ControllerHarness()
    broker = Broker(world, dirs=("/a", "/b"))
    await broker.start()
    world.create("orders", partitions=4, replicas=1)
    await broker.catch_up()
    for partition in broker.replicas:
        partition.append_records_to_leader(batch(records, 0), now_ms=0)
    await broker.logs.shutdown()
    return world, broker


def in_directory(broker: Broker, path: str) -> set[str]:
    return {str(log.topic_partition) for log in broker.logs.logs() if log.directory.path == path}


@pytest.mark.parametrize("file", ["leader-epoch-checkpoint", "partition.metadata"])
async def test_a_file_that_cannot_be_read_at_the_start_takes_its_directory_and_no_other_offline(
    file: str,
) -> None:
    world, stopped = await two_disks()
    again = Broker(world, stopped.disk, dirs=("/a", "/b"))
    await again.logs.start(again.config_of)
    bad, good = in_directory(again, "/b"), in_directory(again, "/a")
    victim = min(bad)
    again.disk.fail(errno.EIO, prefix=f"/b/{victim}/{file}", times=None)
    again.image = world.image
    changes = await again.replicas.start(again.image, lambda: 0, again.turns)
    assert good <= again.hosted()
    assert victim not in again.hosted()
    assert again.refusal("orders", int(victim[-1])) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [each.path for each in again.logs.live_directories] == ["/a"]
    list(again.replicas.handle_log_dir_failure(again.logs.directories[1]))
    assert again.hosted() == good
    assert {str(each.topic_partition) for each in changes.leaders} >= good


async def test_a_leader_that_cannot_read_its_epochs_does_not_keep_the_rest_of_a_delta_from_others() -> None:
    world = ControllerHarness(brokers=2)
    broker = Broker(world, dirs=("/a", "/b"))
    await broker.start()
    world.create("orders", assignments=[[1, 0]] * 4)
    await broker.catch_up()
    await broker.logs.shutdown()
    again = Broker(world, broker.disk, dirs=("/a", "/b"))
    await again.start()
    bad, good = in_directory(again, "/b"), in_directory(again, "/a")
    again.disk.fail(errno.EIO, prefix=f"/b/{min(bad)}/leader-epoch-checkpoint", times=None)
    world.heartbeat(1, want_fence=True)
    changes = await again.catch_up()
    assert {str(each.topic_partition) for each in changes.leaders} >= good
    assert min(bad) in {str(tp) for tp in changes.offline}
    assert not again.logs.directories[1].is_online
    assert again.replicas.image is again.image


async def test_a_lack_of_file_handles_takes_a_partition_offline_until_there_are_some() -> None:
    world, stopped = await two_disks()
    again = Broker(world, stopped.disk, dirs=("/a", "/b"))
    await again.logs.start(again.config_of)
    victim = min(in_directory(again, "/b"))
    again.disk.fail(errno.EMFILE, prefix=f"/b/{victim}/leader-epoch-checkpoint", times=None)
    again.image = world.image
    await again.replicas.start(again.image, lambda: 0, again.turns)
    assert again.hosted() == {f"orders-{n}" for n in range(4)} - {victim}
    assert len(again.logs.live_directories) == 2
    assert not (await again.retry_offline()).leaders
    again.disk.heal()
    changes = await again.retry_offline()
    assert [str(each.topic_partition) for each in changes.leaders] == [victim]
    assert changes.leaders[0].log.log_end_offset == 3


async def test_an_error_that_no_check_expects_takes_one_partition_offline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    make_leader = Partition.make_leader

    def fails_once(self: Partition, *args: Any) -> bool:
        if self.topic_partition.partition == 1:
            raise RuntimeError("a defect")
        return make_leader(self, *args)

    monkeypatch.setattr(Partition, "make_leader", fails_once)
    world.create("orders", partitions=3, replicas=1)
    changes = await broker.catch_up()
    assert broker.hosted() == {"orders-0", "orders-2"}
    assert broker.refusal("orders", 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [str(tp) for tp in changes.offline] == ["orders-1"]
    assert "a defect" in caplog.text
    monkeypatch.undo()
    assert len((await broker.retry_offline()).leaders) == 1
    assert len(broker.hosted()) == 3


async def test_the_logs_of_new_partitions_are_created_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    in_pool = False
    outside: list[str] = []
    run = broker.logs._pool.run

    async def watched(fn: Any, *args: Any) -> Any:
        nonlocal in_pool
        in_pool = True
        try:
            return await run(fn, *args)
        finally:
            in_pool = False

    def note(operation: DiskOperation) -> None:
        if not in_pool and operation.op in (Op.CREATE, Op.MAKE_DIR):
            outside.append(operation.path)

    monkeypatch.setattr(type(broker.logs._pool), "run", lambda self, fn, *args: watched(fn, *args))
    broker.disk.hook = note
    world.create("orders", partitions=150, replicas=1)
    changes = await broker.catch_up()
    assert len(changes.leaders) == len(broker.hosted()) == 150
    assert outside == []


async def test_a_partition_leads_once_its_truncation_has_ended_in_the_pool_and_delays_no_other() -> None:
    world = ControllerHarness()
    broker = Broker(world)
    await broker.start()
    world.create("orders", partitions=3, replicas=1)
    await broker.catch_up()
    partitions = sorted(broker.replicas, key=lambda each: each.topic_partition)
    log = partitions[0].log
    for _ in range(3):
        partitions[0].append_records_to_leader(batch(1, 0), now_ms=0)
    gate, is_in_pool = asyncio.Event(), False

    class GatedPool(InlinePool):
        async def run(self, fn: Any, *args: Any) -> Any:
            nonlocal is_in_pool
            await gate.wait()
            is_in_pool = True
            try:
                return await super().run(fn, *args)
            finally:
                is_in_pool = False

    truncating = asyncio.create_task(log.begin_truncation(1).run(GatedPool()))
    await asyncio.sleep(0)
    assert log.is_truncating
    waits: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if not is_in_pool and operation.op in (Op.SYNC, Op.SYNC_DIR):
            waits.append(operation)

    broker.disk.hook = note
    topic = broker.image.topics.by_name["orders"]
    for index in range(3):
        change = PartitionChangeRecord(partition_id=index, topic_id=topic.id, leader=0)
        world.log.append(change)
    applying = asyncio.create_task(broker.catch_up())
    for _ in range(20):
        await asyncio.sleep(0)
    assert [each.leader_epoch for each in partitions] == [0, 1, 1]
    assert not applying.done()
    gate.set()
    changes = await applying
    await truncating
    assert [each.leader_epoch for each in partitions] == [1, 1, 1]
    assert len(changes.leaders) == 3
    assert log.log_end_offset == 1
    assert waits == []
