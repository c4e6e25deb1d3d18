"""The guarantees of tiered storage, checked while a cluster runs and when it is quiescent.

- A copy that is announced as finished is in the store at that moment, whole.
- An object of a finished copy is not deleted before that is announced, and what topics that keep everything
  have in the store is not deleted while no other copy has its records.
- What has left the disk of a replica, leader or follower, is in finished copies, without a hole. At the end
  each replica knows the leader epochs of these records.
- At the end everything that can be copied is copied, a consumer of either isolation level reads the same
  records as were committed, once, in order, none missing, and the store has no object that no metadata name.

The checker makes its own model of the segments, from the committed records of `__remote_log_metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from ottla.log.producers.snapshot import CorruptSnapshotError, decode_snapshot
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.image import MetadataImage
from ottla.node.remote.segment_data import next_segment_to_copy
from ottla.node.server.broker_server import BrokerServer
from ottla.protocol.names import TopicIdPartition
from ottla.records._kernel import Record
from ottla.remote.object_layout import LOG_SUFFIX, SUFFIXES, object_key
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    decode_event,
    is_valid_transition,
)
from ottla.replication.partition import Partition
from ottla.sim.cluster.history import PartitionHistory
from ottla.sim.loop import Process
from ottla.sim.object_store import SimObjectStore
from ottla.sim.world import SimMachine, World

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class TierTerms:
    """The settings of tiered topics and of the store in one run."""

    segment_bytes: int
    index_interval_bytes: int
    local_retention_bytes: int
    local_retention_ms: int
    retention_check_ms: int
    # Of the topic that expires.
    retention_bytes: int
    metadata_partitions: int
    # A store that is a directory has no cache on the disks of brokers.
    url: str
    part_bytes: int
    error_rate: float

    @classmethod
    def draw(cls, random: Random) -> TierTerms:
        return cls(
            segment_bytes=random.choice((300, 600, 1_500)),
            index_interval_bytes=random.choice((0, 100, 4_096)),
            local_retention_bytes=random.choice((1, 1, 500, 2_000)),
            local_retention_ms=random.choice((-2, 100, 1_000)),
            retention_check_ms=random.choice((100, 300, 1_000)),
            retention_bytes=random.choice((1_500, 4_000)),
            metadata_partitions=random.choice((1, 3)),
            url=random.choice(("s3://tier/clusters/1", "file:///tier")),
            part_bytes=random.choice((200, 700, 1 << 20)),
            error_rate=random.choice((0.0, 0.02, 0.1)),
        )

    def node_settings(self, replication_factor: int, min_insync: int) -> dict[str, str]:
        topic = "rlmm.config.remote.log.metadata.topic."
        return {
            "remote.log.storage.system.enable": "true",
            "rsm.config.storage.url": self.url,
            f"{topic}num.partitions": str(self.metadata_partitions),
            f"{topic}replication.factor": str(replication_factor),
            f"{topic}min.isr": str(min_insync),
            "rlmm.config.remote.log.metadata.consume.wait.ms": "10000",
            "remote.log.manager.task.retry.backoff.ms": "50",
            "remote.log.manager.task.retry.backoff.max.ms": "1000",
            "log.initial.task.delay.ms": "100",
            "log.retention.check.interval.ms": str(self.retention_check_ms),
        }

    def topic_settings(self, *, expires: bool = False) -> dict[str, str]:
        return {
            "remote.storage.enable": "true",
            "internal.segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": str(self.index_interval_bytes),
            "local.retention.bytes": str(min(self.local_retention_bytes, self.retention_bytes)),
            "local.retention.ms": str(self.local_retention_ms),
            **({"retention.bytes": str(self.retention_bytes)} if expires else {}),
        }


class TieredNode(Protocol):
    """A node as far as the checker looks at it: None while it is down."""

    id: int
    machine: SimMachine

    @property
    def broker(self) -> BrokerServer | None: ...


class TierChecker:
    """`refresh` has the committed metadata of all replicas noted, before something is judged by them."""

    def __init__(
        self,
        world: World,
        terms: TierTerms,
        store: SimObjectStore,
        keeps_all: Sequence[str],
        refresh: Callable[[], None],
    ) -> None:
        self._world = world
        self.terms = terms
        self.store = store
        # Topics whose records neither expire nor are deleted.
        self._keeps_all = frozenset(keeps_all)
        self._refresh = refresh
        self._prefix = "clusters/1/" if terms.url.startswith("s3") else ""
        # All that there was, with the state of each.
        self.segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._by_key: dict[str, RemoteLogSegmentId] = {}
        # Offsets that were in finished copies at some time: the first and the last one of each.
        self._copied: dict[TopicIdPartition, dict[int, int]] = {}
        # Where the local part of a log began when it was checked last.
        self._checked: dict[tuple[int, TopicIdPartition], int] = {}
        # Files that have rotted: machine and path.
        self.rotten: dict[tuple[str, str], None] = {}
        # Objects of deleted copies that a process has written which did not know that: it deletes them.
        self._revived: dict[str, Process] = {}
        store.on_deleted = self._on_object_deleted
        store.on_written = self._on_object_written

    # The metadata

    def on_metadata_record(self, record: Record) -> None:
        """Apply a committed record of `__remote_log_metadata`. They come in order."""
        event = None if record.value is None else decode_event(bytes(record.value))
        if isinstance(event, RemoteLogSegmentMetadata):
            if event.id not in self.segments:
                self.segments[event.id] = event
                for key in self._keys(event):
                    self._by_key[key] = event.id
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            known = self.segments.get(event.id)
            if known is None:
                self._world.report_violation(f"{event} is committed, and its segment was not announced")
            elif known.state is not event.state and is_valid_transition(known.state, event.state):
                self.segments[event.id] = replace(known, state=event.state)
                if event.state is _FINISHED:
                    self._on_finished(known)
                elif event.state is _DELETING and known.state is _FINISHED:
                    self._on_delete_started(known)

    def _keys(self, metadata: RemoteLogSegmentMetadata) -> list[str]:
        return [object_key(self._prefix, metadata, suffix) for suffix in SUFFIXES]

    def _on_finished(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._world.coverage["tier: copies"] += 1
        for key in self._keys(metadata):
            if key not in self.store.objects:
                self._world.report_violation(
                    f"{_name(metadata)} is announced as finished, and {key} is not in the store"
                )
                return
        size = len(self.store.objects[object_key(self._prefix, metadata, LOG_SUFFIX)])
        if size != metadata.segment_size_in_bytes:
            self._world.report_violation(
                f"{_name(metadata)} has {metadata.segment_size_in_bytes} bytes, and {size} are in the store"
            )
        copied = self._copied.setdefault(metadata.id.topic_id_partition, {})
        copied[metadata.start_offset] = max(metadata.end_offset, copied.get(metadata.start_offset, -1))

    def _on_delete_started(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._world.coverage["tier: deletions of finished copies"] += 1
        if metadata.id.topic_partition.topic not in self._keeps_all:
            return
        others = {
            each.start_offset: each.end_offset
            for each in sorted(self.segments.values(), key=lambda each: (each.start_offset, each.end_offset))
            if each.id.topic_id_partition == metadata.id.topic_id_partition and each.state is _FINISHED
        }
        if _covered_end(others, metadata.start_offset) < metadata.end_offset:
            self._world.report_violation(
                f"{_name(metadata)} is to be deleted, and no other copy has all of its records"
            )

    # The store

    def _on_object_deleted(self, key: str) -> None:
        id = self._by_key.get(key)
        if id is None or self.segments[id].state is not _FINISHED:
            return
        self._refresh()
        if self.segments[id].state is _FINISHED:
            self._world.report_violation(
                f"{key} is deleted, and the metadata say that {_name(self.segments[id])} is there"
            )

    def _on_object_written(self, key: str, process: Process) -> None:
        id = self._by_key.get(key)
        if id is not None and self.segments[id].state in (_DELETING, _DELETED):
            self._revived[key] = process

    def _is_allowed(self, key: str) -> bool:
        """Whether an object may stay: the process that would have deleted it is dead."""
        writer = self._revived.get(key)
        return self.store.is_late(key) or (writer is not None and writer.dead)

    def reason_store_not_clean(self, image: MetadataImage | None = None) -> str | None:
        """The first object that is in the store for no reason: that no metadata name, or of a copy that was
        deleted, or of a topic that is not in this image.
        """
        keys = [*self.store.objects, *(key for key, _ in self.store.parts)]
        for key in sorted(dict.fromkeys(keys)):
            id = self._by_key.get(key)
            if self._is_allowed(key):
                continue
            if id is None:
                return f"{key} is in the store, and no metadata name it"
            if self.segments[id].state is _DELETED:
                return f"{key} is in the store, and {_name(self.segments[id])} is deleted"
            if image is not None and id.topic_id not in image.topics.by_id:
                return f"{key} is in the store, and its topic is deleted"
        return None

    def missing_objects(self, image: MetadataImage) -> Iterator[str]:
        """The objects of finished copies that are not in the store."""
        for metadata in self.segments.values():
            if metadata.state is _FINISHED and metadata.id.topic_id in image.topics.by_id:
                yield from (key for key in self._keys(metadata) if key not in self.store.objects)

    # Replicas

    def check_replicas(self, member: TieredNode) -> None:
        """Check that what has left the disk of a node is in finished copies, and that a power loss cannot
        take what it has to know of it.
        """
        for partition in _remote(member.broker):
            log = partition.log
            if partition.topic_id is None or log.is_closed or log.is_truncating:
                continue
            id = TopicIdPartition(partition.topic_id, partition.topic_partition.partition)
            local = log.segments[0].base_offset
            if log.log_start_offset >= local or self._checked.get((member.id, id)) == local:
                continue
            self._checked[member.id, id] = local
            if not log.has_no_records:  # otherwise it may be about to begin again
                self._check_base_snapshot(member, log)
            end = self._copied_end(id, log.log_start_offset)
            if end < local - 1:
                self._refresh()
                end = self._copied_end(id, log.log_start_offset)
            if end < local - 1:
                self._world.report_violation(
                    f"{partition.topic_partition} on node {member.id} starts at {log.log_start_offset} and "
                    f"is on its disk from {local} on; what is copied ends at {end}"
                )

    def _check_base_snapshot(self, member: TieredNode, log: UnifiedLog) -> None:
        """Check that the producers where the log begins on the disk survive a power loss. Rot may take them:
        then remote storage has them.
        """
        local = log.segments[0].base_offset
        path = log.producer_snapshots.path(local)
        if (member.machine.name, path) in self.rotten:
            return
        data = member.machine.disk.durable_content(path)
        try:
            decode_snapshot(b"" if data is None else data)
        except CorruptSnapshotError as error:
            self._world.report_violation(
                f"{log.topic_partition} on node {member.id} is on its disk from {local} on; the producer "
                f"snapshot there is not durable: {'it has no name' if data is None else error}"
            )

    def _copied_end(self, id: TopicIdPartition, start: int) -> int:
        return _covered_end(self._copied.get(id, {}), start)

    def reason_not_copied(self, members: Sequence[TieredNode]) -> str | None:
        """The first segment that a leader could copy, and has not."""
        for member in members:
            for partition in _led_remote(member.broker):
                log = partition.log
                found = next_segment_to_copy(log, log.highest_offset_in_remote_storage)
                if found is not None:
                    return (
                        f"node {member.id} has not copied {partition.topic_partition} from "
                        f"{found.segment.base_offset} to {found.end_offset}"
                    )
        return None

    def reason_epochs_unknown(
        self, members: Sequence[TieredNode], histories: Mapping[tuple[bytes, int], PartitionHistory]
    ) -> str | None:
        """The first record in the store only whose leader epoch a replica does not know."""
        for member in members:
            for partition in _remote(member.broker):
                log, tp = partition.log, partition.topic_partition
                history = histories.get((partition.topic_id or b"", tp.partition))
                for base, epoch in () if history is None else history.leader_epochs():
                    if not log.log_start_offset <= base < log.local_log_start_offset:
                        continue
                    known = log.leader_epoch_cache.epoch_for_offset(base)
                    if known != epoch:
                        return (
                            f"node {member.id} takes {tp} {base}, which is in the store only, for a record "
                            f"of leader epoch {known}, not {epoch}"
                        )
        return None

    def count_tiered(self, members: Sequence[TieredNode]) -> None:
        """Count the offsets that are in remote storage only, at their leaders."""
        for member in members:
            for partition in _led_remote(member.broker):
                log = partition.log
                tiered = log.local_log_start_offset - log.log_start_offset
                self._world.coverage["tier: offsets in the store only"] += tiered


def _remote(broker: BrokerServer | None) -> list[Partition]:
    """The replicas of tiered topics."""
    if broker is None:
        return []
    return [each for each in broker.replicas if each.log.config.is_remote]


def _led_remote(broker: BrokerServer | None) -> list[Partition]:
    return [each for each in _remote(broker) if each.is_leader]


def _covered_end(copied: Mapping[int, int], start: int) -> int:
    """The last offset up to which there is no hole from `start` on; below `start` if it is not there."""
    end = start - 1
    for first in sorted(copied):
        if first > end + 1:
            break
        end = max(end, copied[first])
    return end


def _name(metadata: RemoteLogSegmentMetadata) -> str:
    return f"{metadata.id} ({metadata.start_offset} to {metadata.end_offset}, {metadata.state.name})"
