"""Fetch ahead of the user: one request in flight to each broker, for all partitions that need data.

A partition needs data while few of its completed fetches wait. Memory is bounded: each broker has an equal
share of `prefetch.max.bytes`, and a request never asks for more than is left of it. (Only a single batch that
is larger is delivered all the same, as Kafka promises.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ottla.client.cluster_metadata import PartitionInfo
from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.config import ConsumerConfig, Reset
from ottla.client.consumer.consumer_metrics import ConsumerMetrics
from ottla.client.consumer.fetch_session_handler import FetchSessionHandler, Wanted
from ottla.client.consumer.subscription_state import SubscriptionState, TopicPartitionState
from ottla.client.network_client import MetadataUpdater, NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from ottla.protocol.names import TopicPartition
from ottla.rpc.channel import Lane
from ottla.rpc.connection import BrokerConnection
from ottla.rpc.errors import AuthenticationFailed

log = logging.getLogger(__name__)

FETCHES_AHEAD = 4
WITHOUT_TOPIC_IDS = 12
SECONDS_BETWEEN_STORAGE_WARNINGS = 30.0
_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class _Sent(NamedTuple):
    """A partition of a request; the response counts only if there was no seek since."""

    state: TopicPartitionState
    offset: int
    seeks: int


class Fetcher:
    """`run` is its task. `on_reset` is called when the position of a partition has to be found again."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ConsumerConfig,
        subscriptions: SubscriptionState,
        refresher: MetadataUpdater,
        on_reset: Callable[[], object],
        metrics: ConsumerMetrics,
    ) -> None:
        self._metrics = metrics
        self._cluster = cluster
        self._config = config
        self._subscriptions = subscriptions
        self._metadata_updater = refresher
        self._on_reset = on_reset
        self._wake = asyncio.Event()
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        # Completed fetches that are not consumed, oldest first, and their bytes by broker.
        self.fetches: deque[CompletedFetch] = deque()
        self._waiting_bytes: dict[int, int] = {}
        # Set when there is something for `poll`: data, or an error.
        self.arrived = asyncio.Event()
        # When a broker may next be reported that cannot read its log.
        self._next_storage_warning_at = 0.0

    def wake(self) -> None:
        """Look for work: positions, the assignment or metadata changed, or a fetch was consumed."""
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._dispatch()
                await self._wake.wait()
        finally:
            tasks = list(self._under_way.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def buffered_bytes(self) -> int:
        return sum(self._waiting_bytes.values())

    def first_readable(self) -> CompletedFetch | None:
        """Return the oldest fetch that the user may read now; drop those that are no longer needed."""
        for _ in range(len(self.fetches)):
            fetch = self.fetches[0]
            if not fetch.dropped and not fetch.is_empty:
                break
            self.finish(fetch)
        return next((fetch for fetch in self.fetches if fetch.is_readable), None)

    def readable(self, max_bytes: int | None) -> list[CompletedFetch]:
        """Return all fetches that the user may read, oldest first, until they hold `max_bytes`."""
        first = self.first_readable()
        found: list[CompletedFetch] = []
        size = 0
        for fetch in self.fetches if first is not None else ():
            if max_bytes is not None and size >= max_bytes:
                break
            if fetch.is_readable:
                found.append(fetch)
                size += fetch.size
        return found

    def finish(self, fetch: CompletedFetch) -> None:
        """Remove a fetch that is consumed or no longer needed."""
        self.fetches.remove(fetch)
        self._waiting_bytes[fetch.node_id] -= fetch.size
        assert self._waiting_bytes[fetch.node_id] >= 0, f"broker {fetch.node_id}: {self._waiting_bytes}"
        if not fetch.dropped:
            fetch.state.fetches.remove(fetch)
        self._wake.set()

    # Requests.

    def _dispatch(self) -> None:
        now = asyncio.get_running_loop().time()
        by_node: dict[int, list[tuple[TopicPartitionState, PartitionInfo]]] = {}
        full: set[int] = set()
        stale = set()
        for state in self._subscriptions:
            info = self._cluster.metadata.leader(state.partition)
            if info is None:
                stale.add(state.partition.topic)
            elif self._wants_bytes(state, info):
                by_node.setdefault(self._source(state, info, now), []).append((state, info))
            elif len(state.fetches) >= FETCHES_AHEAD and state.fetches[0].is_readable:
                full.add(self._source(state, info, now))
        if stale:
            self._metadata_updater.request_update(stale)
        nodes = len(by_node.keys() | self._under_way.keys())
        for node_id, wanting in by_node.items():
            if node_id in self._under_way:
                continue
            if node_id in full and not any(self._is_behind(state) for state, _ in wanting):
                continue  # it would wait for new data, and the others would run out of theirs
            room = self._room(node_id, nodes)
            if room > 0:
                self._ask(node_id, wanting, room)

    def _wants_bytes(self, state: TopicPartitionState, info: PartitionInfo) -> bool:
        return (
            state.position is not None
            and state.error is None
            and not (state.paused or state.revoking or state.fetching)
            and len(state.fetches) < FETCHES_AHEAD
            # A position from before a change of leader has to be validated first.
            and (state.position_epoch < 0 or state.validated_epoch >= info.leader_epoch)
        )

    def _is_behind(self, state: TopicPartitionState) -> bool:
        """Whether the partition has data beyond the fetch offset, by the last response."""
        end = state.last_stable_offset if self._config.read_committed else state.high_watermark
        return end is None or state.fetch_offset < end

    def _source(self, state: TopicPartitionState, info: PartitionInfo, now: float) -> int:
        """Return the preferred read replica while that is valid, or the leader."""
        chosen = state.preferred_replica
        if chosen < 0:
            return info.leader
        if (
            now < state.preferred_until
            and chosen in self._cluster.metadata.brokers
            and chosen not in info.offline
        ):
            return chosen
        state.preferred_replica = -1
        return info.leader

    def _room(self, node_id: int, nodes: int) -> int:
        share = self._config.prefetch_max_bytes // max(nodes, 1)
        # No tiny requests: wait until a good part of the share is free.
        most = share * 3 // 4
        if self._waiting_bytes.get(node_id, 0) > most:
            self._make_room(node_id)
        waiting = self._waiting_bytes.get(node_id, 0)
        if waiting and waiting > most:
            return 0
        return max(min(self._config.fetch_max_bytes, share - waiting), 1)

    def _make_room(self, node_id: int) -> None:
        """Drop data that is not read soon: of former positions, and of paused partitions, which fetch it
        again when they are resumed. Otherwise the partitions that are read would wait for room.
        """
        for fetch in [c for c in self.fetches if c.node_id == node_id and (c.dropped or c.state.paused)]:
            if not fetch.dropped:
                fetch.state.forget_fetched()
            self.finish(fetch)

    def _ask(self, node_id: int, wanting: list[tuple[TopicPartitionState, PartitionInfo]], room: int) -> None:
        """Send a fetch to a broker: at once if it is connected, as the broker can then work while the user
        does.
        """
        for state, info in wanting:
            if state.position_epoch < 0:
                # Nothing to compare: it is valid for this leader, also once records have given it an epoch.
                state.validated_epoch = max(state.validated_epoch, info.leader_epoch)
        sent = {state.partition: _Sent(state, state.fetch_offset, state.seeks) for state, _ in wanting}
        wanted = {
            state.partition: Wanted(
                self._topic_id(state.partition.topic),
                sent[state.partition].offset,
                info.leader_epoch,
                self._config.max_partition_fetch_bytes,
            )
            for state, info in wanting
        }
        connection = self._cluster.open_connection(node_id, Lane.FETCH)
        answer: asyncio.Future[FetchResponse] | None = None
        if connection is not None and connection.is_writable:
            try:
                answer = self._send(connection, node_id, wanted, room)
            except KafkaError:
                # It is sent again below, where the failure shows; the broker did not get this one.
                self._session(node_id).handle_error()
        for entry in sent.values():
            entry.state.fetching = True
        fetch = self._fetch(node_id, sent, wanted, room, answer)
        self._under_way[node_id] = asyncio.get_running_loop().create_task(fetch)

    def _send(
        self, connection: BrokerConnection, node_id: int, wanted: dict[TopicPartition, Wanted], room: int
    ) -> asyncio.Future[FetchResponse]:
        request = FetchRequest(
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=room,
            isolation_level=1 if self._config.read_committed else 0,
            rack_id=self._config.client_rack,
        )
        with_ids = all(want.topic_id is not None for want in wanted.values())
        version = connection.version_for(FetchRequest, at_most=None if with_ids else WITHOUT_TOPIC_IDS)
        self._session(node_id).fill(request, wanted)
        return connection.send(
            request, FetchResponse, timeout_ms=self._config.request_timeout_ms, version=version
        )

    async def _fetch(
        self,
        node_id: int,
        sent: dict[TopicPartition, _Sent],
        wanted: dict[TopicPartition, Wanted],
        room: int,
        answer: asyncio.Future[FetchResponse] | None,
    ) -> None:
        """Complete one request: connect if there is no connection, and handle the response or the failure."""
        begun = asyncio.get_running_loop().time()
        try:
            if answer is None:
                connection = await self._cluster.connection(node_id, Lane.FETCH)
                await connection.drain()
                answer = self._send(connection, node_id, wanted, room)
            response = await answer
            now = asyncio.get_running_loop().time()
            self._metrics.fetches.value += 1
            self._metrics.fetch_latency.record((now - begun) * 1000, now)
            self._metrics.fetch_throttle_time.record(response.throttle_time_ms, now)
            await self._handle_fetch_response(node_id, self._session(node_id), sent, response)
        except KafkaError as error:
            self._session(node_id).handle_error()
            await self._handle_fetch_failure(node_id, sent, error)
        except Exception as error:
            # A bug of this client: `poll` raises it, rather than wait without end.
            log.exception("fetch from broker %d", node_id)
            self._session(node_id).handle_error()
            for partition, entry in sent.items():
                what = f"{partition}: the fetcher has failed: {error!r}"
                self._stop_partition(entry.state, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, what))
        finally:
            del self._under_way[node_id]
            for entry in sent.values():
                entry.state.fetching = False
            self._wake.set()
        self._dispatch()  # before the user works on the data

    def _session(self, node_id: int) -> FetchSessionHandler:
        return self._sessions.setdefault(node_id, FetchSessionHandler())

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cluster.metadata.topics.get(name)
        return topic.topic_id if topic is not None else None

    async def _handle_fetch_failure(
        self, node_id: int, sent: dict[TopicPartition, _Sent], error: KafkaError
    ) -> None:
        log.debug("fetch from broker %d: %s", node_id, error)
        for entry in sent.values():
            entry.state.preferred_replica = -1
            if isinstance(error, AuthenticationFailed):
                self._stop_partition(entry.state, error)
        self._metadata_updater.request_update({partition.topic for partition in sent})
        await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    # Responses.

    async def _handle_fetch_response(
        self,
        node_id: int,
        session: FetchSessionHandler,
        sent: dict[TopicPartition, _Sent],
        answer: FetchResponse,
    ) -> None:
        if not session.handle_response(answer.session_id, answer.error_code):
            return
        if answer.error_code:
            error = KafkaError(ErrorCode.of(answer.error_code), f"fetch from broker {node_id}")
            await self._handle_fetch_failure(node_id, sent, error)
            return
        names = self._cluster.metadata.names_by_id
        failed, size = False, 0
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                entry = sent.get(TopicPartition(name, data.partition_index))
                if entry is None or entry.state.seeks != entry.seeks:
                    continue
                if data.error_code:
                    failed = True
                    self._handle_partition_error(node_id, entry, ErrorCode.of(data.error_code))
                else:
                    self._add_completed_fetch(node_id, entry, data)
                    size += len(data.records or b"")
        self._metrics.bytes_consumed.value += size
        self._metrics.fetch_size.record(size, asyncio.get_running_loop().time())
        wait_ms = answer.throttle_time_ms
        if failed:
            wait_ms = max(wait_ms, self._config.retry_backoff_ms)
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)

    def _add_completed_fetch(self, node_id: int, entry: _Sent, data: PartitionData) -> None:
        state = entry.state
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.preferred_replica = data.preferred_read_replica
            age = self._config.metadata_max_age_ms / 1000
            state.preferred_until = asyncio.get_running_loop().time() + age
        if not data.records:
            return
        aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()]
        try:
            fetch = CompletedFetch(
                state,
                data.records,
                fetch_offset=entry.offset,
                aborted=aborted,
                check_crcs=self._config.check_crcs,
                node_id=node_id,
                max_decompressed_bytes=self._config.max_decompressed_bytes,
            )
        except KafkaError as error:
            self._stop_partition(state, error)
            return
        state.fetches.append(fetch)
        self.fetches.append(fetch)
        self._waiting_bytes[node_id] = self._waiting_bytes.get(node_id, 0) + fetch.size
        self.arrived.set()

    def _handle_partition_error(self, node_id: int, entry: _Sent, code: ErrorCode) -> None:
        state = entry.state
        if code in _STALE_METADATA:
            state.preferred_replica = -1
            self._metadata_updater.request_update([state.partition.topic])
            if code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._warn_of_storage_error(node_id, entry)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._handle_offset_out_of_range(node_id, entry)
        elif code is ErrorCode.UNKNOWN_SERVER_ERROR or code.retriable:
            log.debug("%s: %s; trying again", state.partition, code.name)
        else:
            text = self._cluster.explain(code, AclOperation.READ, state.partition.topic)
            self._stop_partition(
                state,
                KafkaError(code, f"{state.partition}: cannot fetch from offset {entry.offset}: {text}"),
            )

    def _warn_of_storage_error(self, node_id: int, entry: _Sent) -> None:
        """Report that a read waits for a broker's disk or remote storage, for one partition now and then: no
        error is raised, so the user would see nothing.
        """
        now = asyncio.get_running_loop().time()
        if now < self._next_storage_warning_at:
            return
        self._next_storage_warning_at = now + SECONDS_BETWEEN_STORAGE_WARNINGS
        log.warning(
            "%s: broker %d cannot read offset %d from its disk or from remote storage (KAFKA_STORAGE_ERROR); "
            "it is asked again, and its log says why",
            entry.state.partition,
            node_id,
            entry.offset,
        )

    def _handle_offset_out_of_range(self, node_id: int, entry: _Sent) -> None:
        state = entry.state
        if state.preferred_replica == node_id:
            state.preferred_replica = -1  # a follower may lag behind; the leader decides
        elif state.fetches:
            pass  # the user reads what was fetched before it first
        elif self._config.reset_policy.reset is Reset.NONE:
            self._stop_partition(
                state,
                KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{state.partition}: offset {entry.offset} is not in the log, and "
                    "auto.offset.reset=none; seek to an offset that is",
                ),
            )
        else:
            log.info(
                "%s: offset %d is not in the log; starting at %s",
                state.partition,
                entry.offset,
                self._config.auto_offset_reset,
            )
            state.seek_by(self._config.reset_policy)
            self._on_reset()

    def _stop_partition(self, state: TopicPartitionState, error: KafkaError) -> None:
        state.error = error
        self.arrived.set()
