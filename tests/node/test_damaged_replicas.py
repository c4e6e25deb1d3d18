"""A damaged replica is fetched again where another one leads, and never leads without what it has lost."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.support.log_harness import all_batches
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.client.admin.partitions import ElectionType
from ottla.client.producer import Producer
from ottla.log.directory import checkpoints
from ottla.log.leader_epoch_cache import read_epochs
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.entities import DIRECTORY_DAMAGED, NO_LEADER
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_offsets
from ottla.runtime.disk import remove_tree, write_file
from ottla.runtime.runtime import Runtime
from ottla.sim.disk import SimDisk

pytestmark = pytest.mark.slow

TP = TopicPartition("orders", 0)
DIR = "/data/orders-0"
LOG = f"{DIR}/00000000000000000000.log"
RECORDS = 50
APART = {1: "broker", 2: "broker", 3: "broker", 4: "controller"}


# The positions in the header of a batch: length and partition leader epoch, which no checksum covers, and the
# base timestamp.
LENGTH_AT, EPOCH_AT, TIMESTAMP_AT = 8, 12, 27


class World:
    """Three nodes with a topic of three replicas, or of one."""

    def __init__(self, replicas: int = 3, roles: dict[int, str] | None = None) -> None:
        self.replicas = replicas
        # The clocks of simulated clients are an hour apart from those of nodes.
        self.nodes = SimNodes(roles)

    def run(self, life: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            self.nodes.boot()
            await self.nodes.ready()
            await self.nodes.create("orders", 1, replicas=self.replicas)
            await self.produce()
            await life(self)

        self.nodes.run(whole())

    async def produce(self, through: int = 1, records: int = RECORDS) -> None:
        async def work(runtime: Runtime) -> None:
            async with Producer(f"node{through}:9092", runtime=runtime) as producer:
                for number in range(records):
                    await producer.send("orders", b"%d" % number * 10)

        await self.nodes.as_client(work)

    def disk(self, id: int) -> SimDisk:
        return self.nodes.machines[id].disk

    def log(self, id: int) -> UnifiedLog:
        log = self.nodes.broker(id).logs.get_log(TP)
        assert log is not None
        return log

    def isr(self, by: int) -> list[int]:
        return sorted(self.nodes.partition("orders", by=by).isr)

    def leader(self, by: int) -> int:
        return self.nodes.partition("orders", by=by).leader

    async def all_in_sync(self, by: int) -> None:
        await self.nodes.until(lambda: self.isr(by) == [1, 2, 3])

    def aside(self, id: int) -> list[str]:
        return [name for name in self.disk(id).list_dir("/data") if name.endswith("-damaged-stray")]

    def same_everywhere(self, records: int) -> bool:
        """Whether all three have the same batches, apart from the leader epochs in their headers: these are
        not in the checksum, as a leader sets them after the producer has made it. So neither this broker nor
        Apache Kafka notices that one is damaged; where the epochs begin is in a checkpoint.
        """
        logs = [self.log(id) for id in (1, 2, 3)]
        return all(log.log_end_offset == records for log in logs) and (
            without_epochs(logs[0]) == without_epochs(logs[1]) == without_epochs(logs[2])
        )


def without_epochs(log: UnifiedLog) -> list[bytes]:
    return [bytes(data[:EPOCH_AT]) + bytes(data[EPOCH_AT + 4 :]) for _, data in all_batches(log)]


def flip(disk: SimDisk, path: str, position: int) -> None:
    file = disk.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 0xFF]), position)
    file.sync()


def end_uncleanly(disk: SimDisk) -> None:
    disk.unlink(posixpath.join("/data", checkpoints.CLEAN_SHUTDOWN))
    disk.sync_dir("/data")


def test_a_damaged_follower_is_set_aside_and_fetched_again() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        leader = world.leader(by=1)
        follower = next(id for id in (1, 2, 3) if id != leader)
        await nodes.stop(follower)
        flip(world.disk(follower), LOG, second_batch(world.disk(follower)) + TIMESTAMP_AT)
        end_uncleanly(world.disk(follower))
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.all_in_sync(by=leader)
        await nodes.until(lambda: world.same_everywhere(RECORDS))
        (aside,) = world.aside(follower)
        assert checkpoints.read_damage_report(world.disk(follower), f"/data/{aside}") is not None
        directory = world.log(follower).directory.directory_id
        await nodes.until(lambda: nodes.partition("orders", by=leader).directory(follower) == directory)
        # The next start is clean, and finds nothing that is damaged.
        await nodes.stop(follower)
        assert checkpoints.read_clean_shutdown(world.disk(follower), "/data") is not None
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.all_in_sync(by=leader)
        assert nodes.broker(follower).logs.failed == {}
        assert world.aside(follower) == [aside]

    World().run(life)


async def last_in_sync_is_damaged(world: World) -> None:
    """Stop all brokers; the last one has records that no other has, and is damaged. Then start all again."""
    nodes = world.nodes
    for id in (1, 2):
        await nodes.stop(id)
    await nodes.until(lambda: world.isr(by=4) == [3])
    await world.produce(3, 10)
    await nodes.stop(3)
    flip(world.disk(3), LOG, second_batch(world.disk(3)) + TIMESTAMP_AT)
    end_uncleanly(world.disk(3))
    epoch = nodes.partition("orders", by=4).leader_epoch
    nodes.boot(1, 2, 3)
    await nodes.ready(1, 2, 3)
    # The damaged replica was not elected, not even for a moment.
    after = nodes.partition("orders", by=4)
    assert (after.leader, after.leader_epoch - epoch) == (NO_LEADER, 0)


def test_the_only_replica_in_sync_does_not_lead_with_fewer_records() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        await last_in_sync_is_damaged(world)
        assert nodes.partition("orders", by=4).directory(3) == DIRECTORY_DAMAGED
        for _ in range(100):
            assert world.leader(by=4) == NO_LEADER
            await asyncio.sleep(0.2)
        assert world.aside(3) == []
        # The operator restores the file, and nothing was lost.
        await nodes.stop(3)
        flip(world.disk(3), LOG, second_batch(world.disk(3)) + TIMESTAMP_AT)
        nodes.boot(3)
        await nodes.ready(3)
        await world.all_in_sync(by=4)
        await nodes.until(lambda: world.same_everywhere(RECORDS + 10))

    World(roles=APART).run(life)


def test_a_damaged_log_that_was_removed_by_hand_does_not_lead_empty() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        await last_in_sync_is_damaged(world)
        await nodes.stop(3)
        remove_tree(world.disk(3), DIR)
        world.disk(3).sync_dir("/data")
        nodes.boot(3)
        await nodes.ready(3)
        for _ in range(100):
            assert world.leader(by=4) == NO_LEADER
            await asyncio.sleep(0.2)
        assert not world.disk(3).exists(DIR)
        await elect_uncleanly(world)
        await world.all_in_sync(by=4)
        await nodes.until(lambda: world.same_everywhere(RECORDS))

    World(roles=APART).run(life)


def test_an_operator_may_elect_another_leader_than_the_damaged_replica() -> None:
    async def life(world: World) -> None:
        await last_in_sync_is_damaged(world)
        controller = world.nodes.nodes[4]
        assert controller.shared.unclean_elections == 0  # and some clean ones
        await elect_uncleanly(world)
        await world.all_in_sync(by=4)
        await world.nodes.until(lambda: world.same_everywhere(RECORDS))
        assert len(world.aside(3)) == 1
        assert controller.shared.unclean_elections == 1

    World(roles=APART).run(life)


async def elect_uncleanly(world: World) -> None:
    async def work(runtime: Runtime) -> None:
        async with Admin("node1:9092", runtime=runtime) as admin:
            await admin.partitions.elect_leaders(ElectionType.UNCLEAN, [TP])

    await world.nodes.as_client(work)


def test_a_damaged_log_without_another_replica_waits_for_the_operator() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        (id,) = nodes.partition("orders", by=1).replicas
        await nodes.stop(id)
        disk = world.disk(id)
        flip(disk, LOG, second_batch(disk) + TIMESTAMP_AT)
        end_uncleanly(disk)
        nodes.boot(id)
        await nodes.ready(id)
        await asyncio.sleep(10)
        with pytest.raises(KafkaError, match=f"{LOG} is damaged at position") as refused:
            nodes.broker(id).replicas.partition(TP)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert world.aside(id) == []
        # A clean stop and start leave it as it is, and so does the next.
        await nodes.stop(id)
        assert checkpoints.read_clean_shutdown(disk, "/data") is not None
        nodes.boot(id)
        await nodes.ready(id)
        assert list(nodes.broker(id).logs.failed) == [TP]
        # Once the file is restored the partition is served again.
        await nodes.stop(id)
        flip(disk, LOG, second_batch(disk) + TIMESTAMP_AT)
        nodes.boot(id)
        await nodes.ready(id)
        await nodes.until(lambda: world.leader(by=id) == id)
        assert world.log(id).log_end_offset == RECORDS

    World(replicas=1).run(life)


def test_the_topic_of_a_damaged_log_can_be_deleted_and_created_again() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        (id,) = nodes.partition("orders", by=1).replicas
        await nodes.stop(id)
        flip(world.disk(id), LOG, second_batch(world.disk(id)) + TIMESTAMP_AT)
        end_uncleanly(world.disk(id))
        nodes.boot(id)
        await nodes.ready(id)

        async def delete(runtime: Runtime) -> None:
            async with Admin(f"node{id}:9092", runtime=runtime) as admin:
                await admin.topics.delete("orders")

        await nodes.as_client(delete)
        await nodes.until(lambda: not nodes.broker(id).logs.failed)
        await nodes.create("orders", id, replicas=3)
        await world.produce(id, 10)
        await world.all_in_sync(by=id)
        await nodes.until(lambda: world.same_everywhere(10))

    World(replicas=1).run(life)


# While the node runs


def test_a_leader_that_meets_damage_gives_up_and_fetches_again() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        leader = world.leader(by=1)
        flip(world.disk(leader), LOG, second_batch(world.disk(leader)) + LENGTH_AT)
        with pytest.raises(KafkaError):
            world.log(leader).read(1, 1000)
        other = next(id for id in (1, 2, 3) if id != leader)
        await nodes.until(lambda: world.leader(by=other) not in (leader, NO_LEADER))
        await world.all_in_sync(by=other)
        await nodes.until(lambda: world.same_everywhere(RECORDS))
        assert len(world.aside(leader)) == 1

    World().run(life)


def test_a_log_that_is_alone_serves_what_can_be_read() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        (id,) = nodes.partition("orders", by=1).replicas
        flip(world.disk(id), LOG, second_batch(world.disk(id)) + TIMESTAMP_AT)
        with pytest.raises(KafkaError):
            world.log(id).read(1, 1000)
        await asyncio.sleep(10)
        assert world.leader(by=id) == id
        for offset in (0, 2, 20):
            assert next(iter_offsets(world.log(id).read(offset, 10).records))[2] == offset
        assert world.aside(id) == []

    World(replicas=1).run(life)


@pytest.mark.parametrize("at", [0, LENGTH_AT, EPOCH_AT])
def test_a_log_that_is_alone_mends_the_header_of_a_batch_that_is_whole(at: int) -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        (id,) = nodes.partition("orders", by=1).replicas
        whole = all_batches(world.log(id))
        flip(world.disk(id), LOG, second_batch(world.disk(id)) + at)
        with pytest.raises(KafkaError):
            world.log(id).read(1, 1)
        await nodes.until(lambda: not any(world.log(id).damage_of(world.log(id).segments[0])))
        assert all_batches(world.log(id)) == whole
        assert world.aside(id) == []

    World(replicas=1).run(life)


def test_a_follower_whose_last_batch_has_an_epoch_that_no_leader_had_is_fetched_again() -> None:
    """What was not known to be synced may have been of a new epoch: its leader says that there was none."""

    async def life(world: World) -> None:
        nodes = world.nodes
        leader = world.leader(by=1)
        follower = next(id for id in (1, 2, 3) if id != leader)
        last = [position for position, _ in world.log(follower).segments[0].headers()][-1]
        await nodes.stop(follower)
        flip(world.disk(follower), LOG, last + EPOCH_AT + 1)
        world.disk(follower).unlink(f"/data/{checkpoints.RECOVERY_POINTS}")
        end_uncleanly(world.disk(follower))
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.produce(leader, 5)
        await world.all_in_sync(by=leader)
        await nodes.until(lambda: world.same_everywhere(RECORDS + 5))
        assert all_batches(world.log(follower)) == all_batches(world.log(leader))
        assert len(world.aside(follower)) == 1

    World().run(life)


def test_a_follower_whose_last_batch_may_have_another_offset_fetches_it_again() -> None:
    """Above what is known to be synced nothing contradicts it. The leader has records at that offset too."""

    async def life(world: World) -> None:
        nodes = world.nodes
        leader = world.leader(by=1)
        follower = next(id for id in (1, 2, 3) if id != leader)
        last = [position for position, _ in world.log(follower).segments[0].headers()][-1]
        await nodes.stop(follower)
        await world.produce(leader, 250)
        flip(world.disk(follower), LOG, last + 7)
        world.disk(follower).unlink(f"/data/{checkpoints.RECOVERY_POINTS}")
        end_uncleanly(world.disk(follower))
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.all_in_sync(by=leader)
        await nodes.until(lambda: world.same_everywhere(RECORDS + 250))
        assert not world.aside(follower)

    World().run(life)


def test_a_log_that_was_alone_is_fetched_again_once_another_replica_is_in_sync() -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        for id in (1, 2):
            await nodes.stop(id)
        await nodes.until(lambda: world.isr(by=4) == [3])
        flip(world.disk(3), LOG, second_batch(world.disk(3)) + TIMESTAMP_AT)
        with pytest.raises(KafkaError):
            world.log(3).read(1, 1000)
        await asyncio.sleep(10)
        assert world.leader(by=4) == 3
        assert world.aside(3) == []
        # The others have all that is damaged there, and get in sync without reading it.
        nodes.boot(1, 2)
        await nodes.ready(1, 2)
        await world.all_in_sync(by=4)
        await nodes.until(lambda: len(world.aside(3)) == 1)
        await world.all_in_sync(by=4)
        await nodes.until(lambda: world.same_everywhere(RECORDS))

    World(roles=APART).run(life)


def second_batch(disk: SimDisk) -> int:
    """The position of the second batch."""
    return 12 + int.from_bytes(disk.open(LOG, writable=False).pread(4, LENGTH_AT))


@pytest.mark.parametrize("size", [0, 100, 1000])
def test_a_follower_whose_file_is_shorter_than_at_its_clean_shutdown_is_fetched_again(size: int) -> None:
    async def life(world: World) -> None:
        nodes = world.nodes
        leader = world.leader(by=1)
        follower = next(id for id in (1, 2, 3) if id != leader)
        await nodes.stop(follower)
        world.disk(follower).open(LOG).truncate(size)
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.produce(leader, 10)
        await world.all_in_sync(by=leader)
        await nodes.until(lambda: world.same_everywhere(RECORDS + 10))

    World().run(life)


# Damage anywhere


def test_a_follower_with_an_epoch_that_no_leader_knows_reads_its_batches() -> None:
    async def life(world: World) -> None:
        leader = world.leader(by=1)
        follower = next(id for id in (1, 2, 3) if id != leader)
        await world.nodes.stop(follower)
        write_file(world.disk(follower), f"{DIR}/leader-epoch-checkpoint", b"0\n1\n8 0\n")
        world.nodes.boot(follower)
        await world.nodes.ready(follower)
        await world.produce(leader, 5)
        await world.all_in_sync(by=leader)
        entries = world.log(leader).leader_epoch_cache.entries
        assert world.log(follower).leader_epoch_cache.entries == entries
        assert not world.aside(follower)
        await world.nodes.stop(follower)
        written = read_epochs(world.disk(follower), f"{DIR}/leader-epoch-checkpoint")
        assert written[0] == (entries[0].epoch, 0)

    World().run(life)


SEED = os.environ.get("OTTLA_DAMAGE_SEED", "0")

FILES = [
    f"{0:020}.log",
    f"{0:020}.index",
    f"{0:020}.timeindex",
    f"{RECORDS:020}.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    f"../{checkpoints.RECOVERY_POINTS}",
    f"../{checkpoints.HIGH_WATERMARKS}",
]


def harm(disk: SimDisk, path: str, kind: str, random: Random) -> None:
    if kind == "deleted":
        disk.unlink(path)
        disk.sync_dir(posixpath.dirname(path))
        return
    file = disk.open(path)
    size = file.size()
    at = random.randrange(size) if size else 0
    if kind == "flipped":
        data = file.pread(1, at) or b"\x00"
        file.pwrite(bytes([data[0] ^ (1 << random.randrange(8))]), at)
    elif kind == "truncated":
        file.truncate(at)
    elif kind == "zeroed":
        file.pwrite(bytes(min(512, max(size - at, 1))), at)
    file.sync()


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
@pytest.mark.parametrize("name", FILES)
def test_damage_in_any_file_of_a_follower_costs_no_record(name: str, clean: bool) -> None:
    random = Random(f"{name} {clean} {SEED}")

    async def life(world: World) -> None:
        for number, kind in enumerate(("flipped", "truncated", "zeroed", "deleted", "flipped"), 1):
            await live_with(world, name, kind, clean, random, RECORDS + 5 * number)

    World().run(life)


async def live_with(world: World, name: str, kind: str, clean: bool, random: Random, records: int) -> None:
    """Damage a file of a follower while it is down; then all three have all records again."""
    nodes = world.nodes
    leader = world.leader(by=1)
    follower = next(id for id in (1, 2, 3) if id != leader)
    disk = world.disk(follower)
    await nodes.stop(follower)
    path = posixpath.normpath(posixpath.join(DIR, name))
    harm(disk, path if disk.exists(path) else newest(disk, name), kind, random)
    if not clean:
        end_uncleanly(disk)
    nodes.boot(follower)
    await nodes.ready(follower)
    await world.produce(leader, 5)
    await world.all_in_sync(by=leader)
    if clean and name.endswith(".log"):
        # After a clean stop nothing reads old batches; the damage is found when they are read.
        await nodes.until(lambda: world.log(follower).log_end_offset == records)
        assert world.log(leader).log_end_offset == records
        await nodes.stop(follower)
        remove_tree(disk, DIR)
        nodes.boot(follower)
        await nodes.ready(follower)
        await world.all_in_sync(by=leader)
    await nodes.until(lambda: world.same_everywhere(records))
    for aside in world.aside(follower):
        remove_tree(disk, f"/data/{aside}")


def newest(disk: SimDisk, name: str) -> str:
    kind = name.rpartition(".")[2]
    return posixpath.join(DIR, max(each for each in disk.list_dir(DIR) if each.endswith(kind)))
