"""Read the partitions of a Fetch request, again and again until the response need not wait for more.

A read is Kafka's `readFromLog`: it takes the session's dirty partitions in their order, each in its present
state and all within the request's limits. It satisfies the request if there are `min_bytes` of records, an
error, a diverging epoch or a preferred replica to report. Otherwise the request waits. Progress of a
partition makes it dirty and wakes the request, and `may_be_satisfied` looks at the partitions that have moved
since the last time, and at no others, to see cheaply whether another read would find enough.

Each partition is read by `partition_reader`: what it misses is loaded, and those partitions are read again.
Many partitions are read in several turns of the event loop. So what a response says of a partition was true
of it at one moment, and the moments of two partitions may differ; Kafka promises no more. What moves after
its read is dirty again, for the next read or the next request.

While a request waits it holds no records: partitions that had some stay dirty and are read again. Results
without records are kept, as a response says also what is not worth a wake-up, and a full one everything.
Invariant: what was read and not sent is dirty when the request ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from ottla.node.fetch.partition_reader import MissingRead, PartitionReader, load, rounds
from ottla.node.fetch.session import (
    CachedPartition,
    FetchKey,
    FetchTerms,
    ReadContext,
)
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
from ottla.replication.partition import FetchIsolation, FollowerFetch, LogReadInfo, Partition
from ottla.runtime import invariants
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.log.log_manager import LogManager
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.network.connection import PendingRequest
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.runtime import Runtime
    from ottla.security.principal import KafkaPrincipal

_READ_COMMITTED: Final = 1
# More partitions than these are read in turns that are bounded by time.
_READ_AT_ONCE: Final = 64
# Members of an enum take longer to find.
_READ: Final = int(AclOperation.READ)
_TOPIC: Final = int(AclResourceType.TOPIC)
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
    def logs(self) -> LogManager: ...

    @property
    def replicas(self) -> ReplicaManager: ...

    @property
    def replication(self) -> BrokerReplication: ...

    @property
    def authorizer(self) -> VersionedAuthorizer | None:
        """None where every client may read everything."""
        ...

    @property
    def runtime(self) -> Runtime: ...


class VersionedAuthorizer(Protocol):
    @property
    def version(self) -> int:
        """Changes whenever a decision may be another than before."""
        ...


class Permissions(Protocol):
    """The permissions of the client that sent a Fetch, and who it is."""

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def client_host(self) -> str: ...

    def allowed(self, operation: int, resource_type: int, name: str, *, log_denied: bool = True) -> bool: ...

    def count_error(self, code: int) -> None:
        """Count an error of one partition."""


def replica_id(request: FetchRequest, version: int) -> int:
    """The broker that fetches as a follower; -1 of a consumer."""
    return request.replica_state.replica_id if version >= 15 else request.replica_id


def replica_epoch(request: FetchRequest, version: int) -> int:
    """The epoch of the broker that fetches as a follower; -1 where the version has none."""
    return request.replica_state.replica_epoch if version >= 15 else -1


class FetchReader:
    """The readings for one Fetch request, which must be closed at its end."""

    __slots__ = (
        "_authorized",
        "_broker",
        "_clock",
        "_closed",
        "_denied",
        "_enough",
        "_fetch",
        "_high_watermarks",
        "_is_refused",
        "_left",
        "_limit",
        "_max_bytes",
        "_max_wait_ms",
        "_min_bytes",
        "_missing",
        "_partition_reader",
        "_pending",
        "_permissions",
        "_read_bytes",
        "_respond_now",
        "_session",
        "_terms",
        "_to_read",
        "_turns",
        "follower",
        "results",
    )

    def __init__(
        self,
        request: FetchRequest,
        version: int,
        fetch: ReadContext,
        broker: FetchServices,
        permissions: Permissions,
        pending: PendingRequest,
        listener: str,
    ) -> None:
        self._closed = True  # until the session knows of this reader
        self._broker = broker
        self._clock = broker.runtime.clock
        # Whether no authorizer has to be asked.
        self._authorized = broker.authorizer is None
        self._denied: set[str] = set()  # the topics for which that was logged
        self._permissions = permissions
        self._pending = pending
        self._fetch = fetch
        id, epoch = replica_id(request, version), replica_epoch(request, version)
        self.follower = id >= 0
        # Whether it says that it is a broker, and may not act as one.
        self._is_refused = self.follower and not permissions.allowed(
            AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
        )
        if self.follower and not self._is_refused and broker.replicas.is_other_broker(id, epoch):
            pending.connection.mark_inter_broker()
        selects_nearest = broker.replication.selects_nearest
        limit = request.max_bytes
        if self.follower:
            isolation, rack = FetchIsolation.LOG_END, ""
        else:
            isolation = (
                FetchIsolation.TXN_COMMITTED
                if request.isolation_level == _READ_COMMITTED
                else FetchIsolation.HIGH_WATERMARK
            )
            rack = request.rack_id if version >= 11 and selects_nearest else ""
            limit = min(limit, broker.config.number("fetch.max.bytes"))
        self._max_bytes = limit
        self._min_bytes = min(request.min_bytes, limit)
        self._max_wait_ms = request.max_wait_ms
        self._terms = terms = FetchTerms(
            isolation,
            self.follower or version < 11,
            id,
            epoch,
            self.follower and broker.replicas.is_stale(id, epoch),
            rack,
            listener if rack else "",
            broker.image.cluster.brokers if rack else None,
            self._permission_terms(),
        )
        self._partition_reader = PartitionReader(broker, isolation, only_leader=terms.only_leader)
        # What was read of each partition in this request, in the order of the response.
        self.results = fetch.known_results
        self._read_bytes = 0  # the size of the records in the results
        self._limit = self._enough = self._left = 0
        self._respond_now = False
        # What is being read; None before the first read. And what it has found missing.
        self._to_read: Iterator[CachedPartition] | None = None
        self._missing: dict[CachedPartition, MissingRead] = {}
        self._turns: Turns | None = None
        # Consumers that read from a follower see records once that follower knows the new high watermark, so
        # it gets a response as soon as the high watermark moves. Where consumers read from leaders only, that
        # would just double the number of fetches. As of the first reading.
        self._high_watermarks: dict[FetchKey, int] | None = {} if self.follower and selects_nearest else None
        self._session = session = fetch.session
        is_outdated = session.readers > 0
        session.begin_fetch(terms, self._clock.wall_ms())
        self._closed = False
        if is_outdated:
            broker.replicas.purgatory.check_and_complete(session)  # of the other request
        elif invariants.thorough:
            for cached in session.partitions.values():
                if cached not in session.dirty:
                    self._check_clean(cached)

    def _permission_terms(self) -> tuple[int, KafkaPrincipal, str] | None:
        """On what depends which topics may be read: a session may go on under other ACLs, or be continued by
        another client.
        """
        authorizer = self._broker.authorizer
        if authorizer is None:
            return None
        return authorizer.version, self._permissions.principal, self._permissions.client_host

    def _check_clean(self, cached: CachedPartition) -> None:
        """Assert that a read would find nothing that the fetcher does not know."""
        try:
            partition = self._find(*cached.key)
        except KafkaError as error:
            raise AssertionError(f"{cached.key} is clean, but a read gives {error.code.name}") from error
        assert partition is cached.partition, cached.key
        assert cached.is_watching, cached.key
        if not partition.is_leader:
            return  # a follower's log may be truncated in the pool at the moment
        log = partition.log
        known = self.results.get(cached.key, cached)
        assert log.high_watermark == known.high_watermark, (partition, known.high_watermark)
        assert log.log_start_offset == known.log_start_offset, (partition, known.log_start_offset)
        assert self._terms.readable_end(partition) == cached.read_end, (partition, cached.read_end)
        assert partition.leader_epoch == cached.read_leader_epoch, partition
        assert cached.requested.fetch_offset >= cached.read_end, partition
        if self.follower:
            assert self._terms.replica_id in partition.isr, partition
        if self._terms.rack:
            assert self._preferred_replica(partition, cached.requested) is None, partition

    def close(self, *, answered: bool = False) -> None:
        """End the request. Unless its results were sent, they are read again."""
        if not self._closed:
            self._closed = True
            self._session.end_fetch(() if answered else self.results)

    def __del__(self) -> None:
        # Where the connection was lost before the task of the request had its first turn.
        self.close()

    # Reading

    def read_now(self) -> bool:
        """Begin to read; whether that was all, and the response may go out in this turn of the event loop."""
        if not self._pending.is_turn:
            return False
        self._begin_read()
        return (
            self._read_on(may_wait=False)
            and not self._missing
            and (self._max_wait_ms <= 0 or self._is_satisfied())
        )

    async def read(self) -> None:
        """Finish the read, or begin, and read again until the response may go out."""
        deadline_ns = self._clock.monotonic_ns() + self._max_wait_ms * 1_000_000
        if self._to_read is None and not await self._begin_when_due():
            return
        is_late = False
        while True:
            await self._finish_read()
            left_ms = (deadline_ns - self._clock.monotonic_ns()) / 1_000_000
            if left_ms <= 0 or is_late or self._is_satisfied():
                return
            is_late = not await self._wait(left_ms)
            if not await self._begin_when_due():
                return

    async def _begin_when_due(self) -> bool:
        """Begin a read when the response may be made; False if another request has continued the session."""
        if self._to_read is None or self._session.dirty:
            await self._pending.wait_for_turn()
        if not self._fetch.is_current:
            return False
        self._begin_read()
        return True

    def _is_satisfied(self) -> bool:
        """Whether the response should not wait for more, after a read."""
        return (
            self._respond_now
            or self._read_bytes >= self._enough
            or not self._session.partitions
            or not self._fetch.is_current
        )

    def _begin_read(self) -> None:
        self._limit = min(self._max_bytes, self._pending.response_bytes)
        self._enough = min(self._min_bytes, self._limit)
        self._start(self._session.begin_read(self._clock.wall_ms()))

    def _start(self, partitions: list[CachedPartition]) -> None:
        self._to_read = iter(partitions)
        self._left = max(0, self._limit - self._read_bytes)
        self._turns = Turns(self._clock, check_every=8) if len(partitions) > _READ_AT_ONCE else None

    async def _finish_read(self) -> None:
        """Read what is left to read, in turns; what is missing is loaded, round by round."""
        for may_miss in rounds():
            while not self._read_on(may_wait=not may_miss):
                assert self._turns is not None
                await self._turns.pause()
            missing = self._missing
            if not missing:
                return
            began_ns = self._clock.monotonic_ns()
            await load(self._broker.runtime.pool, missing.values())
            self._broker.logs.statistics.cold_reads.observe(self._clock.monotonic_ns() - began_ns)
            self._missing = {}
            self._start(list(missing))

    def _read_on(self, *, may_wait: bool) -> bool:
        """Read the dirty partitions, or as many as one turn of the event loop has time for; True when all
        have been read. Those that miss something are read in the next round.
        """
        session, results, turns, to_read = self._session, self.results, self._turns, self._to_read
        dirty = session.dirty
        assert to_read is not None
        if turns is not None:
            turns.begin()
        for cached in to_read:
            if cached not in dirty:
                continue  # forgotten meanwhile
            key = cached.key
            known = results.get(key)
            if known is not None and known.records:
                self._read_bytes -= len(known.records)
                self._left = max(0, self._limit - self._read_bytes)
            data = self._read_one(cached, may_wait=may_wait)
            if isinstance(data, PartitionData):
                results[key] = data
            else:
                self._missing[cached] = data
                self._left = max(0, self._left - cached.requested.partition_max_bytes)
            if turns is not None and turns.is_due():
                self._pending.hold(self._read_bytes)
                return False
        self._pending.hold(self._read_bytes)
        return True

    def _read_one(self, cached: CachedPartition, *, may_wait: bool) -> PartitionData | MissingRead:
        topic, index = cached.key
        requested, terms = cached.requested, self._terms
        partition: Partition | None = None
        try:
            partition = self._find(topic, index)
            preferred = self._preferred_replica(partition, requested) if terms.rack else None
        except KafkaError as error:
            return self._error_data(index, partition, error)
        if preferred is not None:
            self._respond_now = True
            return preferred
        max_bytes, min_one_batch = min(requested.partition_max_bytes, self._left), self._read_bytes == 0
        follower, throttled, now_ms = None, False, 0
        if self.follower:
            now_ms = self._clock.wall_ms()
            follower = FollowerFetch(terms.replica_id, requested.log_start_offset, terms.replica_epoch)
            replication = self._broker.replication
            throttled = replication.is_throttled(partition)
            if throttled and terms.replica_id not in partition.isr and replication.leader_quota.is_exceeded:
                max_bytes, min_one_batch = 0, False
        fetched = self._partition_reader.read(
            partition,
            requested.fetch_offset,
            max_bytes,
            now_ms=now_ms,
            current_leader_epoch=requested.current_leader_epoch,
            last_fetched_epoch=requested.last_fetched_epoch,
            follower=follower,
            min_one_batch=min_one_batch,
            # What is missing of others may come to more than a batch each.
            min_one_remote_batch=min_one_batch and not self._missing,
            may_wait=may_wait,
        )
        if not isinstance(fetched, LogReadInfo):
            if isinstance(fetched, KafkaError):
                return self._error_data(index, partition, fetched)
            return fetched
        records, high_watermark, diverging = fetched.records, fetched.high_watermark, fetched.diverging_epoch
        if throttled:
            self._broker.replication.leader_quota.record(len(records))
        if self.follower:
            # This very fetch may have moved it.
            known, high_watermark = high_watermark, partition.log.high_watermark
            if self._high_watermarks is not None and high_watermark > self._high_watermarks.setdefault(
                cached.key, known
            ):
                self._respond_now = True
        data = PartitionData(
            partition_index=index,
            high_watermark=high_watermark,
            last_stable_offset=fetched.last_stable_offset,
            log_start_offset=fetched.log_start_offset,
            aborted_transactions=None
            if fetched.aborted is None or diverging is not None
            else [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in fetched.aborted
            ],
            records=records,
        )
        if diverging is not None:
            self._respond_now = True
            data.diverging_epoch = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
            return data
        if records:
            statistics = partition.statistics
            statistics.fetches += 1
            if self.follower:
                statistics.replication_bytes_out += len(records)
            else:
                statistics.bytes_out += len(records)
            self._read_bytes += len(records)
            self._left = max(0, self._left - len(records))
        if fetched.is_remote:
            self._respond_now = True
        elif not records:
            cached.mark_without_records(partition)
        elif self._read_bytes < self._enough:
            cached.mark(partition)
        return data

    def _error_data(self, index: int, partition: Partition | None, error: KafkaError) -> PartitionData:
        self._respond_now = True
        self._permissions.count_error(int(error.code))
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and partition is not None:
            partition.statistics.failed_fetches += 1
        data = PartitionData(
            partition_index=index,
            error_code=int(error.code),
            high_watermark=-1,
            aborted_transactions=[] if error.code in _UNKNOWN else None,
            records=b"",
        )
        if error.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE and partition is not None:
            # The follower goes on at the start of what is on the disk here, and knows where the log starts.
            data.log_start_offset = partition.log.log_start_offset
        return data

    def _preferred_replica(self, partition: Partition, requested: FetchPartition) -> PartitionData | None:
        """The response that sends a consumer to a replica in its rack; None if it should read here."""
        terms, brokers = self._terms, self._broker.image.cluster.brokers
        reachable = {
            id: brokers[id].rack
            for id in partition.replicas
            if id in brokers and not brokers[id].fenced and terms.listener in brokers[id].listeners
        }
        chosen = partition.find_preferred_read_replica(
            terms.rack, reachable, requested.fetch_offset, self._clock.wall_ms()
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
        if self._is_refused:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if isinstance(topic, bytes):
            found = broker.image.topics.by_id.get(topic)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        else:
            name = topic
        if not (self._authorized or self.follower) and not self._permissions.allowed(
            _READ, _TOPIC, name, log_denied=name not in self._denied
        ):
            self._denied.add(name)
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self._terms.is_stale:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {self._terms.replica_id} has registered again since its epoch "
                f"{self._terms.replica_epoch}",
            )
        partition = broker.replicas.partition(TopicPartition(name, index))
        if isinstance(topic, bytes) and partition.topic_id != topic:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition.topic_partition} belongs to another topic id"
            )
        return partition

    # Waiting

    async def _wait(self, timeout_ms: float) -> bool:
        """Wait until another read may satisfy the request; False if the response is to go out without that,
        as the time is over.
        """
        if self._read_bytes:
            for data in self.results.values():
                data.records = b""  # these partitions are dirty, so they are read again
            self._pending.hold(0)
        try:
            return await self._session.wait(
                self._broker.replicas.purgatory, self.may_be_satisfied, timeout_ms
            )
        finally:
            self._read_bytes = 0

    def may_be_satisfied(self) -> bool:
        """Whether to read again: enough has become readable since the last read, or a leader has changed, or
        another request has continued the session, so that the response to this one is an error.
        """
        if not self._fetch.is_current:
            return True
        grown = self._session.growth(self._high_watermarks)
        return grown is None or (grown > 0 and self._read_bytes + grown >= self._min_bytes)
