"""Read the partitions of a Fetch request, again and again until the response need not wait for more.

Each read is Kafka's `readFromLog`: it covers all partitions, in their present state and within the request's
limits. It satisfies the request if there are `min_bytes` of records, an error, a diverging epoch or a
preferred replica to report. A read that does not satisfy it marks where each partition stood, and
`may_be_satisfied` compares that with the present state to see cheaply whether another read would find more.
Invariant: right after a read `may_be_satisfied` is False.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.node.fetch.cold_reads import Missing
from ottla.node.fetch.session import FetchContext, FetchKey, FetchResults
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    PartitionData,
)
from ottla.protocol.names import TopicPartition
from ottla.records.batch import LOG_OVERHEAD
from ottla.replication.partition import FetchIsolation, FollowerFetch, Partition
from ottla.runtime import invariants
from ottla.runtime.disk import NotInMemory

if TYPE_CHECKING:
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.network.connection import PendingRequest
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.runtime import Runtime

_READ_COMMITTED: Final = 1
_UNKNOWN: Final = frozenset(
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
)


class FetchServices(Protocol):
    """The parts of a broker that reading for a Fetch uses."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def replicas(self) -> ReplicaManager: ...

    @property
    def replication(self) -> BrokerReplication: ...

    @property
    def authorizer(self) -> object | None:
        """None where every client may read everything."""
        ...

    @property
    def runtime(self) -> Runtime: ...


class Permissions(Protocol):
    """The permissions of the client that sent a Fetch."""

    def allowed(self, operation: int, resource_type: int, name: str) -> bool: ...


def replica_id(request: FetchRequest, version: int) -> int:
    """The broker that fetches as a follower; -1 of a consumer."""
    return request.replica_state.replica_id if version >= 15 else request.replica_id


class FetchReader:
    """The readings for one Fetch request."""

    __slots__ = (
        "_authorized",
        "_broker",
        "_clock",
        "_committed",
        "_fetch",
        "_high_watermarks",
        "_is_stale",
        "_isolation",
        "_listener",
        "_marks",
        "_max_bytes",
        "_min_bytes",
        "_only_leader",
        "_partitions",
        "_pending",
        "_permissions",
        "_rack",
        "_read_bytes",
        "_replica_epoch",
        "_replica_id",
        "_reports_high_watermark",
        "follower",
        "keys",
        "satisfied",
    )

    def __init__(
        self,
        request: FetchRequest,
        version: int,
        fetch: FetchContext,
        broker: FetchServices,
        permissions: Permissions,
        pending: PendingRequest,
        listener: str,
    ) -> None:
        self._broker = broker
        self._clock = broker.runtime.clock
        # Whether no authorizer has to be asked.
        self._authorized = broker.authorizer is None
        self._permissions = permissions
        self._pending = pending
        self._listener = listener
        self._fetch = fetch
        self._replica_id = replica_id(request, version)
        self._replica_epoch = request.replica_state.replica_epoch if version >= 15 else -1
        self.follower = self._replica_id >= 0
        if self.follower and not permissions.allowed(
            AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
        ):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        self._is_stale = self.follower and broker.replicas.is_stale(self._replica_id, self._replica_epoch)
        self._rack = "" if self.follower or version < 11 else request.rack_id
        self._committed = request.isolation_level == _READ_COMMITTED and not self.follower
        if self.follower:
            self._isolation = FetchIsolation.LOG_END
        else:
            self._isolation = (
                FetchIsolation.TXN_COMMITTED if self._committed else FetchIsolation.HIGH_WATERMARK
            )
        self._only_leader = self.follower or version < 11
        limit = (
            request.max_bytes
            if self.follower
            else min(request.max_bytes, broker.config.number("fetch.max.bytes"))
        )
        self._max_bytes = limit
        self._min_bytes = min(request.min_bytes, limit)
        self._partitions: list[Partition] = []
        self.keys: list[TopicPartition] = []
        # Where each partition stood when it was read: (partition, leader and its epoch, readable end, active
        # segment's base offset and size, high watermark); a base offset of -1 where the log went on beyond
        # the readable end.
        self._marks: list[tuple[Partition, int | None, int, int, int, int, int]] = []
        self._read_bytes = 0
        self.satisfied = False
        # Consumers that read from a follower see records once that follower knows the new high watermark, so
        # it gets a response as soon as the high watermark moves. Where consumers read from leaders only, that
        # would just double the number of fetches.
        self._reports_high_watermark = self.follower and broker.replication.selects_nearest
        # As of the first reading, if `_reports_high_watermark`.
        self._high_watermarks: dict[FetchKey, int] = {}

    def read(self, missing: Missing | None) -> FetchResults:
        """Read every partition; `satisfied` says afterwards whether the response should not wait for more.

        What is not in memory is added to `missing`, and the results are of no use then. Without a list the
        reading waits for the disk.
        """
        results: FetchResults = {}
        self.keys.clear()
        self._marks.clear()
        self._partitions.clear()
        self._read_bytes = 0
        left = min(self._max_bytes, self._pending.response_bytes)
        enough = min(self._min_bytes, left)
        now = False
        empty = True
        for key, requested in self._fetch.partitions():
            try:
                data = self._read_one(
                    key, requested, left, min_one_batch=self._read_bytes == 0, may_wait=missing is None
                )
            except NotInMemory as part:
                assert missing is not None
                missing.append(part)
                left = max(0, left - requested.partition_max_bytes)
                continue
            results[key] = data
            empty = False
            if data.error_code or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
                now = True
            if self._reports_high_watermark and data.high_watermark > self._high_watermarks.get(key, 0):
                now = True
            size = len(data.records or b"")
            self._read_bytes += size
            left = max(0, left - size)
        self.satisfied = now or empty or self._read_bytes >= enough
        if not self.satisfied:
            for partition in self._partitions:
                self._mark(partition)
            if invariants.thorough:
                assert not self.may_be_satisfied(), f"right after reading {self.keys} there is more to read"
        return results

    def _read_one(
        self, key: FetchKey, requested: FetchPartition, left: int, *, min_one_batch: bool, may_wait: bool
    ) -> PartitionData:
        topic, index = key
        replication = self._broker.replication
        try:
            partition = self._find(topic, index)
            max_bytes = min(requested.partition_max_bytes, left)
            if self._rack:
                preferred = self._preferred_replica(partition, requested)
                if preferred is not None:
                    return preferred
            throttled = self.follower and replication.is_throttled(partition, self._replica_id)
            if throttled and replication.leader_quota.is_exceeded:
                max_bytes, min_one_batch = 0, False
            fetched = partition.fetch_records(
                requested.fetch_offset,
                max_bytes,
                isolation=self._isolation,
                now_ms=self._clock.wall_ms(),
                current_leader_epoch=requested.current_leader_epoch,
                last_fetched_epoch=requested.last_fetched_epoch,
                follower=FollowerFetch(self._replica_id, requested.log_start_offset, self._replica_epoch)
                if self.follower
                else None,
                only_leader=self._only_leader,
                min_one_batch=min_one_batch,
                may_wait=may_wait,
            )
        except KafkaError as error:
            return PartitionData(
                partition_index=index,
                error_code=int(error.code),
                high_watermark=-1,
                aborted_transactions=[] if error.code in _UNKNOWN else None,
                records=b"",
            )
        self._partitions.append(partition)
        records, aborted = fetched.records, fetched.aborted
        if records and not min_one_batch and _is_incomplete(records):
            records, aborted = b"", None
        if throttled:
            replication.leader_quota.record(len(records))
        high_watermark = fetched.high_watermark
        if self.follower:
            if self._reports_high_watermark:
                self._high_watermarks.setdefault(key, high_watermark)
            # This very fetch may have moved it.
            high_watermark = partition.log.high_watermark
        data = PartitionData(
            partition_index=index,
            high_watermark=high_watermark,
            last_stable_offset=fetched.last_stable_offset,
            log_start_offset=fetched.log_start_offset,
            aborted_transactions=None
            if aborted is None or fetched.diverging_epoch is not None
            else [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in aborted
            ],
            records=records,
        )
        if fetched.diverging_epoch is not None:
            data.diverging_epoch = EpochEndOffset(
                epoch=fetched.diverging_epoch.epoch, end_offset=fetched.diverging_epoch.end_offset
            )
        return data

    def _preferred_replica(self, partition: Partition, requested: FetchPartition) -> PartitionData | None:
        """The response that sends a consumer to a replica in its rack; None if it should read here."""
        broker = self._broker
        if not broker.replication.selects_nearest:
            return None
        brokers = broker.image.cluster.brokers
        reachable = {
            id: brokers[id].rack
            for id in partition.replicas
            if id in brokers and not brokers[id].fenced and self._listener in brokers[id].listeners
        }
        chosen = partition.find_preferred_read_replica(
            self._rack, reachable, requested.fetch_offset, self._clock.wall_ms()
        )
        if chosen is None:
            return None
        partition.check_replica(requested.current_leader_epoch, only_leader=False)
        log = partition.log
        return PartitionData(
            partition_index=requested.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            preferred_read_replica=chosen,
            records=b"",
        )

    def _find(self, topic: bytes | str, index: int) -> Partition:
        broker = self._broker
        if isinstance(topic, bytes):
            found = broker.image.topics.by_id.get(topic)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        else:
            name = topic
        if not (self._authorized or self.follower) and not self._permissions.allowed(
            AclOperation.READ, AclResourceType.TOPIC, name
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self._is_stale:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {self._replica_id} has registered again since its epoch {self._replica_epoch}",
            )
        return broker.replicas.partition(TopicPartition(name, index))

    # Whether to read again

    def _mark(self, partition: Partition) -> None:
        self.keys.append(partition.topic_partition)
        segment = partition.log.active_segment
        end = self._readable_end(partition)
        # If the log goes on beyond the readable end, what becomes readable next is there already, and the
        # segment's growth would not show it.
        base_offset = segment.base_offset if end == partition.log.log_end_offset else -1
        self._marks.append(
            (
                partition,
                partition.leader_id,
                partition.leader_epoch,
                end,
                base_offset,
                segment.size,
                partition.log.high_watermark,
            )
        )

    def _readable_end(self, partition: Partition) -> int:
        log = partition.log
        if self.follower:
            return log.log_end_offset
        return log.last_stable_offset if self._committed else log.high_watermark

    def may_be_satisfied(self) -> bool:
        """Whether to read again: enough has become readable since the last read, or a leader has changed.
        False right after a read.
        """
        grown = self._read_bytes
        for partition, leader_id, epoch, end, base_offset, size, high_watermark in self._marks:
            if partition.leader_epoch != epoch or partition.leader_id != leader_id:
                return True
            if self._reports_high_watermark and partition.log.high_watermark > high_watermark:
                return True
            if self._readable_end(partition) <= end:
                continue
            segment = partition.log.active_segment
            if segment.base_offset != base_offset:
                return True
            grown += segment.size - size
        return grown > self._read_bytes and grown >= self._min_bytes


def _is_incomplete(records: bytes) -> bool:
    """Whether not even the first batch is complete."""
    if len(records) < LOG_OVERHEAD:
        return True
    return len(records) < LOG_OVERHEAD + int.from_bytes(records[8:12], "big")
