"""A partition whose manager of remote storage can be killed at any step, in virtual time.

The log, the objects and the events of the metadata survive; the manager, and what it knows, do not. A step is
a change of the store or of the metadata: a kill comes before it, or after it and before the manager hears of
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ottla.log.config.log_config import LogConfig
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.node.remote.remote_log_manager import RemoteLogManager
from ottla.protocol.names import TopicIdPartition
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.object_layout import LOG_SUFFIX, SUFFIXES, object_key
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_cache import RemoteSegmentCache, SegmentCacheLimits
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges
from ottla.runtime.object_store import MemoryStore, ObjectStoreError, StoredObject
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import Process, SimLoop
from tests.replication.partition_harness import TOPIC_ID, TP, PartitionHarness, batch
from tests.support.remote_metadata import InMemoryRemoteLogMetadataManager

T = TypeVar("T")

ID = TopicIdPartition(TOPIC_ID, TP.partition)
SMALL = replace(LogConfig.from_settings({"remote.storage.enable": "true"}), segment_bytes=600)


class Killed(Exception):
    """The process ends here."""


class FaultyStore:
    """A store that counts its steps, may end its process at one of them, and may fail."""

    def __init__(self, world: RemoteWorld) -> None:
        self._world = world
        self.memory = MemoryStore()
        # How many of the next operations fail.
        self.failures = 0
        # How many of the next objects take a minute.
        self.late_puts = 0
        self.puts = 0

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        self.puts += 1
        await self._fail()
        if self.late_puts:
            self.late_puts -= 1
            await asyncio.sleep(60)
        await self._world.step()
        await self.memory.put(key, chunks, size)
        await self._world.step()

    async def get(self, key: str) -> bytes:
        await self._fail()
        return await self.memory.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._fail()
        return await self.memory.get_range(key, start, end)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._fail()
        for key in keys:
            await self._world.step()
            await self.memory.delete([key])
        await self._world.step()

    async def list_objects(self, prefix: str) -> list[StoredObject]:
        return await self.memory.list_objects(prefix)

    async def _fail(self) -> None:
        await asyncio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise ObjectStoreError("503 Slow Down")

    def close(self) -> None:
        """Nothing is held."""


class SteppedMetadata(InMemoryRemoteLogMetadataManager):
    """The metadata of one life of the broker, from the events of all lives."""

    def __init__(self, world: RemoteWorld) -> None:
        super().__init__()
        self._world = world

    def assign_partitions(self, partitions: Any) -> None:
        for partition in partitions:
            if partition not in self.store:
                cache = self.store.assign(partition)
                for event in self._world.events:
                    self.store.apply(event)
                cache.is_initialized = True

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._append(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        await self._append(update)

    async def _append(self, event: RemoteLogMetadataEvent) -> None:
        await self._world.step()
        self._world.events.append(event)
        await self._world.step()
        self._put(event)


class RemoteWorld:
    """`run` drives it; `start` begins a life of the broker."""

    def __init__(self, config: LogConfig = SMALL, *, seed: int = 1) -> None:
        self.harness = PartitionHarness(config=config)
        self.loop = SimLoop(seed)  # type: ignore[abstract]
        self.events: list[RemoteLogMetadataEvent] = []
        self.store = FaultyStore(self)
        self.steps = 0
        self.kill_at: int | None = None
        self.kills = 0
        self._process: Process | None = None
        self.manager: RemoteLogManager
        self.metadata: SteppedMetadata
        self._lives = 0
        self.settings: dict[str, str] = {}

    async def step(self) -> None:
        """A point at which the process may end."""
        self.steps += 1
        if self.kill_at is not None and self.steps == self.kill_at:
            self.kill_at = None
            self.kills += 1
            assert self._process is not None
            process, self._process = self._process, None
            self.loop.call_soon(self.loop.kill, process)
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    def start(self) -> None:
        """Begin a life of the broker: it leads the partition."""
        self._lives += 1
        self._process = Process(f"broker {self._lives}")
        self.loop.add(self._process)
        life = self.loop.spawn(self._process, self._live(), "broker")
        life.add_done_callback(lambda done: done.cancelled() or done.result())

    async def _live(self) -> None:
        clock = LoopClock(lambda: self.loop.now_ns)
        runtime = Runtime(
            clock=clock,
            random=SeededRandom(self._lives),
            disk=self.harness.manager.directories[0].disk,
            pool=InlinePool(),
            network=None,  # type: ignore[arg-type]
        )
        config = DynamicBrokerConfig(
            NodeConfig({"remote.log.storage.system.enable": "true", "node.id": "0", **self.settings})
        )
        self.metadata = SteppedMetadata(self)
        storage = ObjectStorageManager(self.store)
        limits = SegmentCacheLimits(loads_at_once=2)
        self.manager = RemoteLogManager(
            runtime,
            TaskSupervisor(clock, lambda reason: None),
            config,
            self.metadata,
            storage,
            RemoteLogReader(self.metadata, RemoteSegmentCache(storage, limits), runtime.pool),
        )
        self.manager.apply(MetadataImage.EMPTY, ReplicaChanges(leaders=[self.partition]))

    @property
    def partition(self) -> Partition:
        return self.harness.partition

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def produce(self, batches: int, size: int = 100) -> None:
        for _ in range(batches):
            now_ms = self.harness.now_ms
            self.partition.append_records_to_leader(batch(1, now_ms, b"v" * size), now_ms=now_ms)

    def progress(self) -> None:
        """Have the manager hear of what the partition has made."""
        self.in_broker(lambda: self.manager.on_partition_progress(self.partition))

    def in_broker(self, work: Any) -> None:
        async def call() -> None:
            work()

        if self._process is not None:
            self.loop.spawn(self._process, call(), "call")

    def run(self, seconds: float = 600) -> None:
        """Let this much time pass."""
        self.loop.run_until_complete(self._sleep(seconds))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def run_lives(self) -> None:
        """Live, and live again after a kill, until nothing is left to do."""
        if not self.is_alive:
            self.start()
        self.run()
        while not self.is_alive:
            self.start()
            self.run()

    def result(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # What there is in the end

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return self.metadata.list_remote_log_segments(ID)

    def check_store(self) -> None:
        """The store has exactly the objects of the segments that are known, and all are finished."""
        expected = {object_key("", each, suffix) for each in self.segments() for suffix in SUFFIXES}
        assert self.store.memory.objects.keys() == expected
        assert all(each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED for each in self.segments())

    def remote_log(self) -> bytes:
        """The records of all segments, one after the other, which leave no gap."""
        records = b""
        expected = None
        for each in self.segments():
            assert expected is None or each.start_offset == expected
            expected = each.end_offset + 1
            records += self.store.memory.objects[object_key("", each, LOG_SUFFIX)]
        return records

    def local_log(self) -> bytes:
        """The records of all closed segments on the disk."""
        return b"".join(each.read(0, each.size) for each in self.partition.log.segments[:-1])
