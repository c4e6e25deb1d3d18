"""Read the partitions of a Fetch request, again and again until the response need not wait for more.

A read is Kafka's `readFromLog`: it takes the session's dirty partitions in their order, each in its present
state and all within the request's limits. It satisfies the request if there are `min_bytes` of records, an
error, a diverging epoch or a preferred replica to report. Otherwise the request waits. Progress of a
partition makes it dirty and wakes the request, and `may_be_satisfied` looks at the partitions that have moved
since the last time, and at no others, to see cheaply whether another read would find enough.

Many partitions are read in several turns of the event loop. So what a response says of a partition was true
of it at one moment, and the moments of two partitions may differ; Kafka promises no more. What moves after
its read is dirty again, for the next read or the next request.

While a request waits it holds no records: partitions that had some stay dirty and are read again. Results
without records are kept, as a response says also what is not worth a wake-up, and a full one everything.
Invariant: what was read and not sent is dirty when the request ends.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

from ottla.node.fetch.cold_reads import MissingReads
from ottla.node.fetch.remote_reads import RemoteRead, prepare_remote_read
from ottla.node.fetch.session import (
    CachedPartition,
    FetchKey,
    FetchSession,
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
from ottla.records.batch import LOG_OVERHEAD
from ottla.replication.partition import FetchIsolation, FollowerFetch, Partition
from ottla.replication.purgatory import DelayedOperationPurgatory
from ottla.runtime import invariants
from ottla.runtime.disk import NotInMemory
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.log.segment.txn_index import AbortedTxn
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.network.connection import PendingRequest
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.runtime import Runtime
    from ottla.security.principal import KafkaPrincipal

_READ_COMMITTED: Final = 1
_BY_ORDER: Final = attrgetter("order")
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
        "_cold",
        "_denied",
        "_enough",
        "_fetch",
        "_grown",
        "_high_watermarks",
        "_is_refused",
        "_is_stale",
        "_isolation",
        "_left",
        "_limit",
        "_listener",
        "_max_bytes",
        "_min_bytes",
        "_moved",
        "_only_leader",
        "_pending",
        "_permissions",
        "_rack",
        "_read_bytes",
        "_remote",
        "_replica_epoch",
        "_replica_id",
        "_reports_high_watermark",
        "_respond_now",
        "_session",
        "_to_read",
        "_turns",
        "follower",
        "results",
        "satisfied",
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
        self._listener = listener
        self._fetch = fetch
        self._replica_id = replica_id(request, version)
        self._replica_epoch = replica_epoch(request, version)
        self.follower = self._replica_id >= 0
        # Whether it says that it is a broker, and may not act as one.
        self._is_refused = self.follower and not permissions.allowed(
            AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
        )
        if (
            self.follower
            and not self._is_refused
            and broker.replicas.is_other_broker(self._replica_id, self._replica_epoch)
        ):
            pending.connection.mark_inter_broker()
        self._is_stale = self.follower and broker.replicas.is_stale(self._replica_id, self._replica_epoch)
        self._rack = (
            request.rack_id
            if version >= 11 and not self.follower and broker.replication.selects_nearest
            else ""
        )
        if self.follower:
            self._isolation = FetchIsolation.LOG_END
        else:
            self._isolation = (
                FetchIsolation.TXN_COMMITTED
                if request.isolation_level == _READ_COMMITTED
                else FetchIsolation.HIGH_WATERMARK
            )
        self._only_leader = self.follower or version < 11
        limit = request.max_bytes
        if not self.follower:
            limit = min(limit, broker.config.number("fetch.max.bytes"))
        self._max_bytes = limit
        self._min_bytes = min(request.min_bytes, limit)
        # What was read of each partition in this request, in the order of the response.
        self.results = fetch.known_results
        self._read_bytes = 0  # the size of the records in the results
        self._grown = 0  # bytes that have become readable since the last read
        self._respond_now = False
        self.satisfied = False
        # Partitions that have become dirty since the last look at them.
        self._moved: list[CachedPartition] = []
        self._cold: list[CachedPartition] = []
        # Reads of remote storage, by the partition that they are for; None if there was none.
        self._remote: dict[CachedPartition, RemoteRead] | None = None
        # Consumers that read from a follower see records once that follower knows the new high watermark, so
        # it gets a response as soon as the high watermark moves. Where consumers read from leaders only, that
        # would just double the number of fetches.
        self._reports_high_watermark = self.follower and broker.replication.selects_nearest
        # As of the first reading, if `_reports_high_watermark`.
        self._high_watermarks: dict[FetchKey, int] = {}
        self._session = session = fetch.session
        self._begin_fetch(session)
        if session.readers > 0:
            broker.replicas.purgatory.check_and_complete(session)  # the other request is outdated
        session.readers += 1
        session.on_moved = self._moved.append
        self._closed = False
        self._begin_read()

    def _begin_fetch(self, session: FetchSession) -> None:
        terms = FetchTerms(
            self._isolation,
            self._only_leader,
            self._replica_id,
            self._replica_epoch,
            self._is_stale,
            self._rack,
            self._listener if self._rack else "",
            self._broker.image.cluster.brokers if self._rack else None,
            self._permission_terms(),
        )
        session.begin_fetch(terms, self._clock.wall_ms())
        if invariants.thorough and session.readers == 0:
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
        assert self._readable_end(partition) == cached.read_end, (partition, cached.read_end)
        assert partition.leader_epoch == cached.read_leader_epoch, partition
        assert cached.requested.fetch_offset >= cached.read_end, partition
        if self.follower:
            assert self._replica_id in partition.isr, partition
        if self._rack:
            assert self._preferred_replica(partition, cached.requested) is None, partition

    def close(self, *, answered: bool = False) -> None:
        """End the request. Unless its results were sent, they are read again."""
        if self._closed:
            return
        self._closed = True
        session = self._session
        session.readers -= 1
        if session.readers == 0:
            session.on_moved = None
        if not answered:
            for key in self.results:
                cached = session.partitions.get(key)
                if cached is not None:
                    cached.end_idle()
                    session.dirty[cached] = None
        if not session.is_cached:
            session.close_if_unused()

    def __del__(self) -> None:
        # Where the connection was lost before the task of the request had its first turn.
        self.close()

    # Reading

    @property
    def has_partitions_to_read(self) -> bool:
        return bool(self._session.dirty)

    def begin_again(self) -> None:
        """Prepare another read after a wait."""
        self._session.last_fetch_ms = self._clock.wall_ms()
        self._begin_read()

    def begin_with_loaded(self) -> None:
        """Prepare a read of the partitions that were not in memory."""
        cold, self._cold = self._cold, []
        self._start(cold)

    def _begin_read(self) -> None:
        self._limit = min(self._max_bytes, self._pending.response_bytes)
        self._enough = min(self._min_bytes, self._limit)
        self._grown = 0
        self._moved.clear()
        dirty = list(self._session.dirty)
        if len(dirty) > 1:
            dirty.sort(key=_BY_ORDER)
        self._start(dirty)

    def _start(self, partitions: list[CachedPartition]) -> None:
        self._to_read = iter(partitions)
        self._left = max(0, self._limit - self._read_bytes)
        self._turns = Turns(self._clock, check_every=8) if len(partitions) > _READ_AT_ONCE else None

    def read(self, missing: MissingReads | None) -> bool:
        """Read the dirty partitions, or as many as one turn of the event loop has time for; True when all
        have been read. `satisfied` says afterwards whether the response should not wait for more.

        What is not in memory is added to `missing`; its partitions are read by the next read, after
        `begin_with_loaded`. Without a list the read waits for the disk.
        """
        session, results, turns = self._session, self.results, self._turns
        dirty = session.dirty
        if turns is not None:
            turns.begin()
        for cached in self._to_read:
            if cached not in dirty:
                continue  # forgotten meanwhile
            key = cached.key
            known = results.get(key)
            if known is not None and known.records:
                self._read_bytes -= len(known.records)
                self._left = max(0, self._limit - self._read_bytes)
            try:
                data = self._read_one(cached, may_wait=missing is None)
            except (NotInMemory, RemoteRead) as part:
                assert missing is not None
                missing.append(part.with_traceback(None))
                self._cold.append(cached)
                self._left = max(0, self._left - cached.requested.partition_max_bytes)
                continue
            results[key] = data
            if turns is not None and turns.is_due():
                self._pending.hold(self._read_bytes)
                return False
        self._pending.hold(self._read_bytes)
        self.satisfied = (
            self._respond_now
            or self._read_bytes >= self._enough
            or not session.partitions
            or not self._fetch.is_current
        )
        return True

    async def pause(self) -> None:
        """Let others have a turn between two reads."""
        if self._turns is not None:
            await self._turns.pause()

    def _read_one(self, cached: CachedPartition, *, may_wait: bool) -> PartitionData:
        topic, index = cached.key
        requested = cached.requested
        replication = self._broker.replication
        min_one_batch = self._read_bytes == 0
        partition: Partition | None = None
        try:
            partition = self._find(topic, index)
            max_bytes = min(requested.partition_max_bytes, self._left)
            if self._rack:
                preferred = self._preferred_replica(partition, requested)
                if preferred is not None:
                    self._respond_now = True
                    return preferred
            throttled = self.follower and replication.is_throttled(partition)
            if throttled and self._replica_id not in partition.isr and replication.leader_quota.is_exceeded:
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
            if (
                error.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
                and partition is not None
                and not self.follower
            ):
                return self._read_remote(cached, partition, max_bytes, min_one_batch, may_wait=may_wait)
            return self._error_data(index, partition, error)
        records, aborted = fetched.records, fetched.aborted
        if records and not min_one_batch and _is_incomplete(records):
            records, aborted = b"", None
        if throttled:
            replication.leader_quota.record(len(records))
        high_watermark = fetched.high_watermark
        if self.follower:
            # This very fetch may have moved it.
            high_watermark = partition.log.high_watermark
            if self._reports_high_watermark and high_watermark > self._high_watermarks.setdefault(
                cached.key, fetched.high_watermark
            ):
                self._respond_now = True
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
            self._respond_now = True
            data.diverging_epoch = EpochEndOffset(
                epoch=fetched.diverging_epoch.epoch, end_offset=fetched.diverging_epoch.end_offset
            )
        elif records:
            statistics = partition.statistics
            statistics.fetches += 1
            if self.follower:
                statistics.replication_bytes_out += len(records)
            else:
                statistics.bytes_out += len(records)
            self._read_bytes += len(records)
            self._left = max(0, self._left - len(records))
            if self._read_bytes < self._enough:
                cached.mark(partition, self._readable_end(partition))
        else:
            self._mark_if_clean(cached, partition)
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

    def _read_remote(
        self,
        cached: CachedPartition,
        partition: Partition,
        max_bytes: int,
        min_one_batch: bool,
        *,
        may_wait: bool,
    ) -> PartitionData:
        """Return the records that are in remote storage only, once they were read; raise RemoteRead before.
        The response does not wait for more then.
        """
        requested, log = cached.requested, partition.log
        read = None if self._remote is None else self._remote.pop(cached, None)
        if read is not None and (read.partition is not partition or read.offset != requested.fetch_offset):
            read = None
        committed = self._isolation is FetchIsolation.TXN_COMMITTED
        first = min_one_batch and not self._cold
        if read is None and not may_wait and (first or max_bytes > 0):
            try:
                read = prepare_remote_read(
                    self._broker,
                    partition,
                    requested.fetch_offset,
                    max_bytes,
                    committed=committed,
                    min_one_batch=first,
                )
            except KafkaError as error:
                return self._error_data(requested.partition, partition, error)
            if self._remote is None:
                self._remote = {}
            self._remote[cached] = read
            raise read
        records = b""
        aborted: tuple[AbortedTxn, ...] | None = () if committed else None
        if read is not None:
            self._respond_now = True
            if isinstance(read.result, KafkaError):
                return self._error_data(requested.partition, partition, read.result)
            if read.result is not None:
                records, aborted = read.result.records, read.result.aborted
                if read.result.next_local_offset is not None:
                    # Compaction, long ago, has left nothing there; and the disk may have to be waited for.
                    self._remote = {**(self._remote or {}), cached: read}
                    try:
                        found = partition.fetch_records(
                            read.result.next_local_offset,
                            max_bytes,
                            isolation=self._isolation,
                            now_ms=self._clock.wall_ms(),
                            only_leader=self._only_leader,
                            min_one_batch=min_one_batch,
                            may_wait=may_wait,
                        )
                    except KafkaError as error:  # as of a leader that has moved meanwhile
                        del self._remote[cached]
                        return self._error_data(requested.partition, partition, error)
                    del self._remote[cached]
                    records, aborted = found.records, found.aborted
        if records and not min_one_batch and _is_incomplete(records):
            records = b""
        if records:
            partition.statistics.fetches += 1
            partition.statistics.bytes_out += len(records)
            self._read_bytes += len(records)
            self._left = max(0, self._left - len(records))
        return PartitionData(
            partition_index=requested.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None
            if aborted is None
            else [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in aborted
            ],
            records=records,
        )

    def _mark_if_clean(self, cached: CachedPartition, partition: Partition) -> None:
        """Mark a partition that gave no records; it is clean unless limits held some back, or a follower's
        next fetch may still change something here.
        """
        end = self._readable_end(partition)
        cached.mark(partition, end)
        if cached.requested.fetch_offset < end:
            return
        if self.follower:
            if self._replica_id not in partition.isr:
                return
            cached.begin_idle()
        del self._session.dirty[cached]

    def _preferred_replica(self, partition: Partition, requested: FetchPartition) -> PartitionData | None:
        """The response that sends a consumer to a replica in its rack; None if it should read here."""
        brokers = self._broker.image.cluster.brokers
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
        if self._is_stale:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Broker {self._replica_id} has registered again since its epoch {self._replica_epoch}",
            )
        partition = broker.replicas.partition(TopicPartition(name, index))
        if isinstance(topic, bytes) and partition.topic_id != topic:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition.topic_partition} belongs to another topic id"
            )
        return partition

    # Waiting

    async def wait(self, purgatory: DelayedOperationPurgatory, timeout_ms: float) -> bool:
        """Wait until another read may satisfy the request; False if the response is to go out without that,
        as the time is over.
        """
        if self._read_bytes:
            for data in self.results.values():
                data.records = b""  # these partitions are dirty, so they are read again
            self._pending.hold(0)
        session = self._session
        check = partial(purgatory.check_and_complete, session)
        moved = self._moved

        def on_moved(cached: CachedPartition) -> None:
            moved.append(cached)
            check()

        session.on_moved = on_moved
        try:
            return await purgatory.try_complete_else_watch((session,), self.may_be_satisfied, timeout_ms)
        finally:
            if session.on_moved is on_moved:
                session.on_moved = moved.append
            self._read_bytes = 0

    def _readable_end(self, partition: Partition) -> int:
        log = partition.log
        if self.follower:
            return log.log_end_offset
        if self._isolation is FetchIsolation.TXN_COMMITTED:
            return log.last_stable_offset
        return log.high_watermark

    def may_be_satisfied(self) -> bool:
        """Whether to read again: enough has become readable since the last read, or a leader has changed, or
        another request has continued the session, so that the response to this one is an error.
        """
        if not self._fetch.is_current:
            return True
        for cached in self._moved:
            if self._is_worth_a_read(cached):
                return True
            cached.watch()
        self._moved.clear()
        return self._grown > 0 and self._read_bytes + self._grown >= self._min_bytes

    def _is_worth_a_read(self, cached: CachedPartition) -> bool:
        """Whether a partition that has moved is to be read in any case; if not, count how much it has grown
        since it was marked.
        """
        partition = cached.partition
        if partition is None:
            return True
        if partition.leader_epoch != cached.read_leader_epoch or partition.leader_id != cached.read_leader_id:
            return True
        log = partition.log
        if self._reports_high_watermark and log.high_watermark > cached.read_high_watermark:
            self._high_watermarks.setdefault(cached.key, cached.read_high_watermark)
            return True
        if self._readable_end(partition) > cached.read_end:
            segment = log.active_segment
            if segment.base_offset != cached.read_segment:
                return True
            self._grown += segment.size - cached.read_size - cached.grown
            cached.grown = segment.size - cached.read_size
        return False


def _is_incomplete(records: bytes) -> bool:
    """Whether not even the first batch is complete."""
    if len(records) < LOG_OVERHEAD:
        return True
    return len(records) < LOG_OVERHEAD + int.from_bytes(records[8:12], "big")
