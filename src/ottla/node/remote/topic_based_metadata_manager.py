"""The metadata of remote segments, kept in `__remote_log_metadata` (Kafka's
`TopicBasedRemoteLogMetadataManager`).

A partition's events are in one partition of the topic. This broker reads those partitions of the topic that
have events of partitions which it leads or follows, each from its beginning and then as it grows, and applies
the events to caches. A partition that is assigned later than others is brought up to them by a second read,
before the first goes on. It is ready once all has been read that was committed when its reading began.

Events may be lost: by an unclean election of a partition of the topic, which the leader epoch of the last
event shows, or because the topic was deleted. Then the partitions whose events were there are not ready any
more, their listeners are called, and all is read again.

A change is appended, and returns once it has been read back: so changes take effect in the order of the topic
on every broker. Invariant: a cache is the result of the events below the reader's position, and of no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from ottla.node.cluster.internal_topic import InternalTopic, TopicRead
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.names import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition
from ottla.records.batch import iter_batches, read_records, verify_crc
from ottla.remote.metadata_manager import RemotePartitionMetadataStore, metadata_partition, partition_of
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemoteStorageError,
    RemoteStorageNotReady,
    decode_event,
    encode_event,
)
from ottla.replication.partition import NO_EPOCH
from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 100
_MAX_PAUSE_MS: Final = 10_000
_MAX_CREATION_PAUSE_MS: Final = 30_000
# A topic that was just created may take a moment to be seen.
_FAILURES_TO_WARN: Final = 4
_DENIED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
DEFAULT_CONSUME_WAIT_MS: Final = 120_000


class _MetadataPartitionReader:
    """Reads one partition of the topic for all partitions whose events it has."""

    __slots__ = ("active", "changed", "epoch", "new", "position", "task", "unready", "waiting")

    def __init__(self) -> None:
        # Events below it have been applied; None before the first read.
        self.position: int | None = None
        # The leader epoch of the last of them.
        self.epoch = NO_EPOCH
        # Partitions whose events are applied.
        self.active: dict[TopicIdPartition, None] = {}
        # Those of them that are not ready, and the position at which each is; -1 until the next read says.
        self.unready: dict[TopicIdPartition, int] = {}
        # Partitions that have to be brought up to `position` first.
        self.new: dict[TopicIdPartition, None] = {}
        # Set when `new` has grown.
        self.changed: Final = asyncio.Event()
        # Those that wait until an offset has been applied.
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.task: SupervisedTask | None = None

    def wake_waiting(self) -> None:
        if self.waiting:
            position = self.position or 0
            for offset, future in self.waiting:
                if offset < position and not future.done():
                    future.set_result(None)
            self.waiting = [each for each in self.waiting if not each[1].done()]

    def give_up(self) -> None:
        for _, future in self.waiting:
            if not future.done():
                future.set_exception(RemoteStorageNotReady("the remote log metadata is not read any more"))
                future.exception()  # marks it as retrieved: its waiter may be gone
        self.waiting.clear()


class TopicBasedRemoteLogMetadataManager:
    """`RemoteLogMetadataManager` over the topic."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        topic: InternalTopic,
        *,
        consume_wait_ms: int = DEFAULT_CONSUME_WAIT_MS,
    ) -> None:
        self._runtime: Final = runtime
        self._tasks: Final = tasks
        self._topic: Final = topic
        self._consume_wait_ms: Final = consume_wait_ms
        self._store: Final = RemotePartitionMetadataStore()
        # By partition of the topic.
        self._readers: dict[int, _MetadataPartitionReader] = {}
        # Assigned while there was no topic.
        self._unplaced: dict[TopicIdPartition, None] = {}
        self._creation: SupervisedTask | None = None
        # The id and the number of partitions of the topic whose partitions are read; None if none are.
        self._placed_in: tuple[bytes | None, int] | None = None
        self._restart: SupervisedTask | None = None
        self._ready: dict[TopicIdPartition, asyncio.Event] = {}
        self._listeners: list[Callable[[TopicIdPartition], None]] = []
        self._closed = False
        # True once it was reported that this broker may not use the topic.
        self._is_denied = False

    async def close(self) -> None:
        """Stop reading. Those that wait are answered that it is not ready: it never will be."""
        self._closed = True
        for ready in self._ready.values():
            ready.set()
        tasks = [reader.task for reader in self._readers.values() if reader.task is not None]
        others = [each for each in (self._creation, self._restart) if each is not None]
        await self._tasks.stop([*tasks, *others])
        for reader in self._readers.values():
            reader.give_up()
        await self._topic.close()

    def add_listener(self, listener: Callable[[TopicIdPartition], None]) -> None:
        self._listeners.append(listener)

    # Assignment

    def assign_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            if partition in self._store:
                continue
            self._store.assign(partition)
            self._ready[partition] = asyncio.Event()
            if self._topic.partition_count:
                self._place(partition)
            else:
                self._unplaced[partition] = None
        self._create_if_needed()

    def _create_if_needed(self) -> None:
        if self._unplaced and (self._creation is None or self._creation.is_done):
            self._creation = self._tasks.start("creation of the remote log metadata topic", self._create)

    def _place(self, partition: TopicIdPartition) -> None:
        if self._placed_in is None:
            self._placed_in = self._topic.topic_id, self._topic.partition_count
        index = metadata_partition(partition, self._topic.partition_count)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = _MetadataPartitionReader()
        reader.new[partition] = None
        reader.changed.set()
        if reader.task is None or reader.task.is_done:
            reader.task = self._tasks.start(f"remote log metadata {index}", lambda: self._read(index, reader))

    async def _create(self) -> None:
        """Have the topic created, and place the partitions that wait for it."""
        turns = Turns(self._runtime.clock)
        while self._unplaced:
            await self._create_topic()
            while self._unplaced and self._topic.partition_count:
                partition = next(iter(self._unplaced))
                del self._unplaced[partition]
                self._place(partition)
                if turns.is_due():
                    await turns.pause()

    async def _create_topic(self) -> None:
        pauses = ExponentialBackoff(self._runtime.random, _FIRST_PAUSE_MS, _MAX_CREATION_PAUSE_MS)
        failures = 0
        while not self._topic.partition_count:
            with contextlib.suppress(KafkaError, OSError):
                await self._topic.create()
            if not self._topic.partition_count:
                failures += 1
                if failures == _FAILURES_TO_WARN:
                    _log.warning(
                        "%s could not be created, and nothing goes to remote storage before: are there as "
                        "many brokers as rlmm.config.remote.log.metadata.topic.replication.factor says?",
                        REMOTE_LOG_METADATA_TOPIC,
                    )
                await asyncio.sleep(pauses.next_ms() / 1000)

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            if partition not in self._store:
                continue
            self._store.forget(partition)
            # Those that wait are answered that it is not ready.
            self._ready.pop(partition).set()
            if partition in self._unplaced:
                del self._unplaced[partition]
                continue
            index = metadata_partition(partition, self._topic.partition_count or 1)
            reader = self._readers.get(index)
            if reader is None:
                continue
            for group in (reader.active, reader.unready, reader.new):
                group.pop(partition, None)
            if not reader.active and not reader.new and reader.task is not None:
                reader.task.cancel()
                reader.give_up()
                del self._readers[index]

    def on_topic_changed(self) -> None:
        """Called after new metadata of the cluster. A topic that is gone, or another one of the same name,
        has not the events that were read; with another number of partitions they are elsewhere.
        """
        known = self._placed_in
        if known is None or self._closed or known == (self._topic.topic_id, self._topic.partition_count):
            return
        _log.error(
            "%s was deleted or replaced: what is in remote storage is looked for there",
            REMOTE_LOG_METADATA_TOPIC,
        )
        self._placed_in = None
        for reader in self._readers.values():
            if reader.task is not None:
                reader.task.cancel()
            reader.give_up()
        self._readers.clear()
        if self._restart is not None:
            self._restart.cancel()
        self._restart = self._tasks.start(
            "reading of the remote log metadata from another topic", self._start_over
        )

    async def _start_over(self) -> None:
        """Place all partitions in the topic that there is now."""
        turns = Turns(self._runtime.clock)
        for partition in self._store:
            if partition in self._store:
                self._on_events_lost(partition)
                if self._topic.partition_count:
                    self._unplaced.pop(partition, None)
                    self._place(partition)
                else:
                    self._unplaced[partition] = None
            if turns.is_due():
                await turns.pause()
        self._create_if_needed()

    def _on_events_lost(self, partition: TopicIdPartition) -> None:
        """Forget what is known of a partition, and have those know that use it."""
        self._store.forget(partition)
        self._store.assign(partition)
        self._ready[partition].clear()
        self._notify(partition)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self._store.is_ready(partition)

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        ready = self._ready.get(partition)
        if ready is not None and not self._closed:
            await ready.wait()
        self._store.cache(partition)

    # Reading

    async def _read(self, index: int, reader: _MetadataPartitionReader) -> None:
        """Read a partition of the topic as long as there are partitions whose events it has."""
        pauses = ExponentialBackoff(self._runtime.random, _FIRST_PAUSE_MS, _MAX_PAUSE_MS)
        while True:
            try:
                reader.changed.clear()
                if reader.new:
                    await self._bring_up(index, reader)
                assert reader.position is not None
                found = await self._read_or_change(index, reader)
                if found is None:
                    continue
                if found.is_truncated:
                    await self._begin_again(index, reader)
                    continue
                position = max(reader.position, found.log_start_offset)
                reader.position, epoch = await self._apply(found, position, None, reader.active)
                reader.epoch = reader.epoch if epoch is None else epoch
                await self._complete(index, reader)
                pauses.reset()
            except (KafkaError, OSError) as error:
                self._report(f"partition {index} of the remote log metadata could not be read", error)
                await asyncio.sleep(pauses.next_ms() / 1000)

    def _report(self, what: str, error: KafkaError | OSError) -> None:
        """Log an error, after which it is tried again; one that no retry helps is for the operator."""
        if not isinstance(error, KafkaError) or error.code not in _DENIED:
            _log.info("%s: %s", what, error)
        elif not self._is_denied:
            self._is_denied = True
            _log.error(
                "%s: %s. The principal by which brokers reach each other needs the ACLs Read, Write and "
                "Describe on the topic %s, or has to be in super.users",
                what,
                error,
                REMOTE_LOG_METADATA_TOPIC,
            )

    async def _read_or_change(self, index: int, reader: _MetadataPartitionReader) -> TopicRead | None:
        """Read from the position on; None if partitions were assigned meanwhile."""
        assert reader.position is not None
        read = asyncio.ensure_future(
            self._topic.read(index, reader.position, waits=not reader.unready, last_epoch=reader.epoch)
        )
        change = asyncio.ensure_future(reader.changed.wait())
        try:
            await asyncio.wait((read, change), return_when=asyncio.FIRST_COMPLETED)
            return read.result() if read.done() else None
        finally:
            for each in (read, change):
                if not each.done():
                    each.cancel()
            await asyncio.gather(read, change, return_exceptions=True)

    async def _bring_up(self, index: int, reader: _MetadataPartitionReader) -> None:
        """Apply the events below the position to the partitions that are new."""
        new = list(reader.new)
        turns = Turns(self._runtime.clock)
        # An attempt before, that failed half-way, may have applied some of them already.
        for partition in new:
            if partition in reader.new:
                self._store.forget(partition)
                self._store.assign(partition)
            if turns.is_due():
                await turns.pause()
        position = 0
        wanted = dict.fromkeys(new)
        while reader.position is not None and position < reader.position:
            found = await self._topic.read(index, position, waits=False)
            position = max(position, found.log_start_offset)
            if position >= found.high_watermark and position < reader.position:
                # The leader does not know yet how much is committed, or events are lost.
                at_position = await self._topic.read(
                    index, reader.position, waits=False, last_epoch=reader.epoch
                )
                if at_position.is_truncated:
                    await self._begin_again(index, reader)
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"it ends at {found.high_watermark} now")
            if position < reader.position:
                position, _ = await self._apply(found, position, reader.position, wanted)
        if reader.position is None:
            reader.position = 0
            reader.epoch = NO_EPOCH
        for partition in new:
            if partition in reader.new:
                del reader.new[partition]
                reader.active[partition] = None
                reader.unready[partition] = -1

    async def _begin_again(self, index: int, reader: _MetadataPartitionReader) -> None:
        """Read the partition from its beginning: it has lost events, as an unclean election may do."""
        _log.error("partition %d of the remote log metadata has lost events; it is read again", index)
        reader.position, reader.epoch = None, NO_EPOCH
        # Whether their events are among the lost ones is not known.
        reader.give_up()
        turns = Turns(self._runtime.clock)
        while reader.active:
            partition, _ = reader.active.popitem()
            reader.unready.pop(partition, None)
            reader.new[partition] = None
            self._on_events_lost(partition)
            if turns.is_due():
                await turns.pause()

    async def _apply(
        self,
        found: TopicRead,
        position: int,
        end: int | None,
        wanted: dict[TopicIdPartition, None],
    ) -> tuple[int, int | None]:
        """Apply the events from `position` to before `end`, and return the position behind them and the
        leader epoch of the last one; None if there are none.
        """
        turns = Turns(self._runtime.clock)
        epoch: int | None = None
        data = found.records
        for at, header in iter_batches(data):
            if header.next_offset <= position:
                continue
            if end is not None and header.base_offset >= end:
                return end, epoch
            verify_crc(data, at, header)
            if not header.is_control:
                for record in read_records(data, at):
                    if record.offset >= position and (end is None or record.offset < end):
                        self._apply_record(record.value, record.offset, wanted)
                    if turns.is_due():
                        await turns.pause()
            position, epoch = header.next_offset, header.leader_epoch
        return position, epoch

    def _apply_record(
        self,
        value: bytes | None,
        offset: int,
        wanted: dict[TopicIdPartition, None],
    ) -> None:
        if value is None:
            return
        try:
            event = decode_event(value)
        except (MalformedMessage, UnsupportedVersion) as error:
            _log.warning("remote log metadata: the record at offset %d is skipped: %s", offset, error)
            return
        if event is None or partition_of(event) not in wanted:
            return
        try:
            self._store.apply(event)
        except ValueError as error:
            _log.warning("remote log metadata: the record at offset %d is skipped: %s", offset, error)
            return
        if self._store.is_ready(partition_of(event)):
            self._notify(partition_of(event))

    async def _complete(self, index: int, reader: _MetadataPartitionReader) -> None:
        """Note what is ready at this position, and wake what waits for it."""
        reader.wake_waiting()
        if not reader.unready:
            return
        # Not the high watermark of a read: after an election it may be behind what was committed before, and
        # segments that are not known would be taken for lost.
        end = -1
        if any(target < 0 for target in reader.unready.values()):
            end = await self._topic.committed_end(index)
        position = reader.position
        assert position is not None
        turns = Turns(self._runtime.clock)
        for partition in list(reader.unready):
            target = reader.unready.get(partition)
            if target is None:
                continue  # it was given up meanwhile
            if target < 0:
                reader.unready[partition] = target = end
            if position >= target:
                del reader.unready[partition]
                self._store.assign(partition).is_initialized = True
                self._ready[partition].set()
                self._notify(partition)
            if turns.is_due():
                await turns.pause()

    def _notify(self, partition: TopicIdPartition) -> None:
        for listener in self._listeners:
            listener(partition)

    # Changes

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._publish(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        await self._publish(update)

    async def put_remote_partition_delete_metadata(self, event: RemotePartitionDeleteMetadata) -> None:
        await self._publish(event)

    async def _publish(self, event: RemoteLogMetadataEvent) -> None:
        """Append an event, again where that fails for a while, and wait until it is applied here."""
        partition = partition_of(event)
        await self.wait_until_ready(partition)
        index = metadata_partition(partition, self._topic.partition_count)
        try:
            async with asyncio.timeout(self._consume_wait_ms / 1000):
                offset = await self._append(index, encode_event(event))
                reader = self._readers.get(index)
                if reader is None or self._closed:
                    raise RemoteStorageNotReady(f"{event} was written while its partition was given up")
                if reader.position is None or offset >= reader.position:
                    applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    reader.waiting.append((offset, applied))
                    await applied
        except TimeoutError:
            raise RemoteStorageError(
                f"{event} could not be written to the remote log metadata within {self._consume_wait_ms} ms"
            ) from None

    async def _append(self, index: int, value: bytes) -> int:
        pauses = ExponentialBackoff(self._runtime.random, _FIRST_PAUSE_MS, _MAX_PAUSE_MS)
        while True:
            try:
                return await self._topic.append(index, value)
            except (KafkaError, OSError) as error:
                self._report("an event of the remote log metadata could not be written", error)
            await asyncio.sleep(pauses.next_ms() / 1000)

    # Lookups

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._store.cache(partition).remote_log_segment_metadata(leader_epoch, offset)

    def newest_epoch_of(self, partition: TopicIdPartition, offset: int) -> int | None:
        return self._store.cache(partition).newest_epoch_of(offset)

    def segment_by_id(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._store.cache(id.topic_id_partition).get(id)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        return self._store.cache(partition).list_remote_log_segments(leader_epoch)

    def first_start_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._store.cache(partition).first_start_offset(leader_epoch)

    def first_offset_from(self, partition: TopicIdPartition, offset: int) -> int | None:
        return self._store.cache(partition).first_offset_from(offset)

    def unfinished_copies(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return self._store.cache(partition).unfinished_copies()
