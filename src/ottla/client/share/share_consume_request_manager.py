"""Fetch and acknowledge at the leaders of share partitions: one request in flight to each broker.

Fetches and acknowledgements of a member continue one share session with each broker, whose epochs are in
order, so a broker has one request of the member at a time, by one connection: the session ends with it. What
is acknowledged meanwhile goes with the next request: with the next fetch, or alone if there is none. Records
are fetched when the user polls and nothing is left, not ahead: what waits here is locked for all others.

An acknowledgement goes to the broker that has delivered the record, as no other knows who holds it. If that
broker leads the partition no longer, the next leader delivers the record again, and the result says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ottla.client.network_client import MetadataUpdater, NetworkClient
from ottla.client.share.acknowledgements import AcknowledgedRange, merge_ranges
from ottla.client.share.config import ShareConsumerConfig
from ottla.client.share.share_completed_fetch import ShareCompletedFetch
from ottla.client.share.share_membership_manager import NO_SHARE_GROUPS, ShareAssignment
from ottla.client.share.share_metrics import ShareConsumerMetrics
from ottla.client.share.share_session_handler import FINAL_EPOCH, ShareSessionHandler
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_acknowledge, share_fetch
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from ottla.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode
from ottla.rpc.channel import Lane
from ottla.rpc.connection import BrokerConnection
from ottla.rpc.errors import AuthenticationFailed

log = logging.getLogger(__name__)

RENEWAL_SINCE = 2
WAITS_PER_LOCK = 6
# How often an acknowledgement goes out again after the broker has denied the session.
MAX_ATTEMPTS = 3
_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_NO_SESSION = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
# The state could not be written, and the member still holds the records.
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class AcknowledgementResult(NamedTuple):
    """What became of acknowledgements of one partition."""

    partition: TopicPartition
    topic_id_partition: TopicIdPartition
    node_id: int
    ranges: tuple[AcknowledgedRange, ...]
    error: KafkaError | None


OnResult: TypeAlias = Callable[[AcknowledgementResult], object]


class SubmittedAcknowledgements:
    """Acknowledgements of one partition that are not sent yet, or that wait for the response."""

    __slots__ = ("attempts", "deadline", "done", "partition", "ranges", "refused", "renewed")

    def __init__(self, partition: TopicPartition, done: asyncio.Future[KafkaError | None], deadline: float):
        self.partition = partition
        self.done = done
        self.deadline = deadline
        self.attempts = 0
        self.ranges: list[AcknowledgedRange] = []
        # Offsets whose locks are renewed; one that is acknowledged for good needs no renewal.
        self.renewed: dict[int, None] = {}
        # Why renewals were refused that were sent with it before.
        self.refused: KafkaError | None = None

    def add(self, ranges: Iterable[AcknowledgedRange]) -> None:
        for each in ranges:
            if each.type is AcknowledgeType.RENEW:
                self.renewed.update(dict.fromkeys(range(each.first_offset, each.last_offset + 1)))
            else:
                self.ranges.append(each)
                for offset in [o for o in self.renewed if each.first_offset <= o <= each.last_offset]:
                    del self.renewed[offset]

    def merged(self) -> list[AcknowledgedRange]:
        renewed = (AcknowledgedRange(offset, offset, AcknowledgeType.RENEW) for offset in self.renewed)
        return merge_ranges([*self.ranges, *renewed])


_Pending: TypeAlias = dict[TopicIdPartition, SubmittedAcknowledgements]


class _ShareBroker:
    """A broker, the session with it, and what is to be acknowledged there."""

    __slots__ = ("connection", "node_id", "pending", "retry_at", "sent", "session", "task")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.session = ShareSessionHandler()
        self.connection: BrokerConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.pending: _Pending = {}
        # In the request in flight.
        self.sent: _Pending = {}
        self.retry_at = 0.0

    @property
    def renews(self) -> bool:
        return any(each.renewed for each in self.pending.values())


class ShareConsumeRequestManager:
    """`member_id` is empty while the consumer is not a member; `on_result` gets each result."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ShareConsumerConfig,
        updater: MetadataUpdater,
        metrics: ShareConsumerMetrics,
        on_result: OnResult,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._metadata_updater = updater
        self._metrics = metrics
        self._on_result = on_result
        self._brokers: dict[int, _ShareBroker] = {}
        self._assignment: ShareAssignment = {}
        self._names: dict[bytes, str] = {}
        self._wanted: tuple[int, ShareAcquireMode] | None = None
        self._wake = asyncio.Event()
        self._closing = False
        self._error: KafkaError | None = None
        self.member_id = ""
        # What the last response said: how long a record stays with its member.
        self.acquisition_lock_timeout_ms: int | None = None
        # Completed fetches that are not consumed, oldest first.
        self.fetches: deque[ShareCompletedFetch] = deque()
        # Set when there is something for `poll`: records, or an error.
        self.arrived = asyncio.Event()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._dispatch()
                await self._wake.wait()
        finally:
            tasks = [broker.task for broker in self._brokers.values() if broker.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            closed = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the consumer was closed")
            for broker in self._brokers.values():
                self._fail(broker, {**broker.sent, **broker.pending}, closed, in_doubt=True)
                broker.sent, broker.pending = {}, {}

    def wake(self) -> None:
        """Look for work: the assignment or metadata changed."""
        self._wake.set()

    @property
    def assignment(self) -> ShareAssignment:
        return self._assignment

    def assign(self, assignment: ShareAssignment) -> None:
        self._assignment = assignment
        self._names.update({partition.topic_id: topic for partition, topic in assignment.items()})
        self._wake.set()

    def request_records(self, most: int, mode: ShareAcquireMode) -> None:
        """Fetch from all brokers that are idle, until something has come."""
        if self._wanted != (most, mode):
            self._wanted = most, mode
            self._wake.set()

    def stop_requesting(self) -> None:
        """Begin no more fetches; those in flight may bring records for the next poll."""
        self._wanted = None

    def take_error(self) -> KafkaError | None:
        error, self._error = self._error, None
        return error

    def first_fetch(self) -> ShareCompletedFetch | None:
        """Return the oldest fetch whose locks have not expired."""
        now = asyncio.get_running_loop().time()
        while self.fetches:
            fetch = self.fetches[0]
            if fetch.is_empty or fetch.deadline <= now:
                self.fetches.popleft()
                continue
            return fetch
        return None

    def submit(
        self,
        marked: Mapping[tuple[int, TopicIdPartition], tuple[TopicPartition, Iterable[AcknowledgedRange]]],
    ) -> list[tuple[TopicPartition, asyncio.Future[KafkaError | None]]]:
        """Send acknowledgements as soon as may be; each future gets the error, or None."""
        loop = asyncio.get_running_loop()
        found: list[tuple[TopicPartition, asyncio.Future[KafkaError | None]]] = []
        for (node_id, key), (partition, ranges) in marked.items():
            broker = self._broker(node_id)
            pending = broker.pending.get(key)
            if pending is None:
                deadline = loop.time() + self._config.default_api_timeout_ms / 1000
                pending = SubmittedAcknowledgements(partition, loop.create_future(), deadline)
                broker.pending[key] = pending
            pending.add(ranges)
            found.append((partition, pending.done))
        if found:
            self._wake.set()
        return found

    async def end_sessions(self, timeout_s: float) -> None:
        """Acknowledge what is pending, and end all sessions: brokers release what the member holds."""
        self._closing = True
        self._wanted = None
        loop = asyncio.get_running_loop()
        ends = [loop.create_task(self._end_session(broker)) for broker in self._brokers.values()]
        if ends:
            _, late = await asyncio.wait(ends, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        self.fetches.clear()
        self._closing = False

    async def _end_session(self, broker: _ShareBroker) -> None:
        if broker.task is not None:
            await asyncio.wait([broker.task])
        if broker.session.is_new and not broker.pending:
            return
        try:
            connection = await self._connection(broker)
            if broker.session.is_new:
                await self._send_fetch(broker, connection, {}, None)
            await self._send_acknowledge(broker, connection, is_final=True)
        except KafkaError as error:
            log.debug("broker %d: the share session could not be ended: %s", broker.node_id, error)
            lost, broker.sent, broker.pending = {**broker.sent, **broker.pending}, {}, {}
            self._fail(broker, lost, error, in_doubt=True)
        broker.session.handle_error()

    # Requests.

    def _broker(self, node_id: int) -> _ShareBroker:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _ShareBroker(node_id)
        return broker

    def _dispatch(self) -> None:
        if self._closing:
            return
        by_node = self._partitions_by_leader()
        for node_id in by_node:
            self._broker(node_id)
        loop = asyncio.get_running_loop()
        for broker in self._brokers.values():
            if broker.task is not None:
                continue
            self._expire(broker, loop.time())
            wants = self._wanted is not None and broker.node_id in by_node
            if not (wants or broker.pending):
                continue
            if broker.retry_at > loop.time():
                loop.call_at(broker.retry_at, self._wake.set)
                continue
            work = self._work(broker, by_node.get(broker.node_id, {}))
            broker.task = loop.create_task(work, name=f"ottla-share-consumer-broker-{broker.node_id}")

    def _expire(self, broker: _ShareBroker, now: float) -> None:
        """Give up acknowledgements that could not be sent in time."""
        late = {key: each for key, each in broker.pending.items() if each.deadline <= now}
        if late:
            for key in late:
                del broker.pending[key]
            text = f"not sent within default.api.timeout.ms={self._config.default_api_timeout_ms}"
            self._fail(broker, late, KafkaError(ErrorCode.REQUEST_TIMED_OUT, text), in_doubt=False)

    def _partitions_by_leader(self) -> dict[int, dict[TopicIdPartition, None]]:
        found: dict[int, dict[TopicIdPartition, None]] = {}
        stale = set()
        metadata = self._cluster.metadata
        for partition, topic in self._assignment.items():
            info = metadata.leader(TopicPartition(topic, partition.partition))
            if info is None or metadata.topics[topic].topic_id != partition.topic_id:
                stale.add(topic)
            else:
                found.setdefault(info.leader, {})[partition] = None
        if stale and self._wanted is not None:
            self._metadata_updater.request_update(stale)
        return found

    async def _work(self, broker: _ShareBroker, partitions: dict[TopicIdPartition, None]) -> None:
        """Make one request to a broker."""
        connection: BrokerConnection | None = None
        try:
            connection = await self._connection(broker)
            wanted = self._wanted if partitions else None
            if not broker.pending:
                await self._send_fetch(broker, connection, partitions, wanted)
            elif broker.session.is_new:
                # A request that begins a session cannot acknowledge, and must not wait for records first.
                await self._send_fetch(broker, connection, {}, None)
            elif wanted is None or broker.renews or not broker.pending.keys() <= partitions.keys():
                await self._send_acknowledge(broker, connection)
            else:
                await self._send_fetch(broker, connection, partitions, wanted)
        except KafkaError as error:
            self._on_failure(broker, error, connected=connection is not None)
        except Exception as error:
            # A bug of this client: `poll` raises it, rather than wait without end.
            log.exception("share session with broker %d", broker.node_id)
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the share consumer has failed: {error!r}")
            self._on_failure(broker, failure, connected=False)
            self._stop(failure)
        finally:
            broker.task = None
            self._wake.set()

    async def _connection(self, broker: _ShareBroker) -> BrokerConnection:
        """Return the connection of the session; another one begins another session."""
        connection = await self._cluster.connection(broker.node_id, Lane.FETCH)
        if connection is not broker.connection:
            broker.connection = connection
            broker.session.handle_error()
        return connection

    def _on_failure(self, broker: _ShareBroker, error: KafkaError, *, connected: bool) -> None:
        """Handle a request without a response: what it has acknowledged may have arrived or not. A broker
        that cannot be reached at all has ended the session, and what the member held there is released.
        """
        log.debug("share session with broker %d: %s", broker.node_id, error)
        broker.session.handle_error()
        self._back_off(broker)
        lost, broker.sent = broker.sent, {}
        self._fail(broker, lost, error, in_doubt=True)
        if not connected:
            unsent, broker.pending = broker.pending, {}
            self._fail(broker, unsent, error, in_doubt=False)
        self._metadata_updater.request_update(self._assignment.values())
        if isinstance(error, AuthenticationFailed):
            self._stop(error)
        elif error.code is ErrorCode.UNSUPPORTED_VERSION:
            self._stop(KafkaError(error.code, NO_SHARE_GROUPS))

    def _back_off(self, broker: _ShareBroker) -> None:
        broker.retry_at = asyncio.get_running_loop().time() + self._config.retry_backoff_ms / 1000

    async def _send_fetch(
        self,
        broker: _ShareBroker,
        connection: BrokerConnection,
        partitions: Mapping[TopicIdPartition, None],
        wanted: tuple[int, ShareAcquireMode] | None,
    ) -> None:
        """Fetch records, and acknowledge what is pending. Without `wanted` the request only begins a
        session.
        """
        session, config = broker.session, self._config
        version = connection.version_for(ShareFetchRequest)
        added, forgotten = session.change_to(partitions)
        request = ShareFetchRequest(
            group_id=config.group_id,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_bytes=config.fetch_max_bytes,
        )
        if wanted is not None:
            request.max_wait_ms = self._max_wait_ms()
            request.min_bytes = config.fetch_min_bytes
            request.max_records = request.batch_size = wanted[0]
            request.share_acquire_mode = int(wanted[1])
        if not session.is_new:
            broker.sent, broker.pending = broker.pending, {}
        request.topics = _fetch_topics(added, broker.sent)
        for topic_id, indexes in _by_topic(forgotten).items():
            request.forgotten_topics_data.append(
                share_fetch.ForgottenTopic(topic_id=topic_id, partitions=indexes)
            )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        response = await connection.request(
            request, ShareFetchResponse, timeout_ms=config.request_timeout_ms, version=version
        )
        now = loop.time()
        self._metrics.fetches.value += 1
        self._metrics.fetch_latency.record((now - begun) * 1000, now)
        self._metrics.fetch_throttle_time.record(response.throttle_time_ms, now)
        self._handle_fetch(broker, response, now)

    def _max_wait_ms(self) -> int:
        """How long a fetch may wait for records: a renewal that has to wait for its end must not be late."""
        lock_ms = self.acquisition_lock_timeout_ms
        longest_ms = self._config.fetch_max_wait_ms
        return longest_ms if lock_ms is None else min(longest_ms, lock_ms // WAITS_PER_LOCK)

    async def _send_acknowledge(
        self, broker: _ShareBroker, connection: BrokerConnection, *, is_final: bool = False
    ) -> None:
        renews = broker.renews
        version = connection.version_for(ShareAcknowledgeRequest)
        if renews and version < RENEWAL_SINCE:
            self._refuse_renewals(broker)
            renews = False
            if not (broker.pending or is_final):
                return
        broker.sent, broker.pending = broker.pending, {}
        request = ShareAcknowledgeRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            share_session_epoch=FINAL_EPOCH if is_final else broker.session.epoch,
            is_renew_ack=renews,
            topics=_acknowledge_topics(broker.sent),
        )
        response = await connection.request(
            request,
            ShareAcknowledgeResponse,
            timeout_ms=self._config.request_timeout_ms,
            version=version,
        )
        self._handle_acknowledge(broker, response)

    def _refuse_renewals(self, broker: _ShareBroker) -> None:
        error = KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"broker {broker.node_id} cannot renew locks: that needs Kafka 4.2 or newer",
        )
        for key, each in list(broker.pending.items()):
            if each.renewed:
                self._give_up_renewals(broker, key, each, error)
                if not each.ranges:
                    del broker.pending[key]
                    if not each.done.done():
                        each.done.set_result(error)

    def _give_up_renewals(
        self, broker: _ShareBroker, key: TopicIdPartition, each: SubmittedAcknowledgements, error: KafkaError
    ) -> None:
        """Report renewals as failed, and keep what is acknowledged for good."""
        renewals = SubmittedAcknowledgements(each.partition, each.done, each.deadline)
        renewals.renewed, each.renewed = each.renewed, {}
        each.refused = error
        self._report(broker, key, renewals, error)

    # Responses.

    def _handle_fetch(self, broker: _ShareBroker, response: ShareFetchResponse, now: float) -> None:
        code = ErrorCode.of(response.error_code)
        if code:
            self._handle_error(broker, code, response.error_message)
            return
        broker.session.handle_response()
        if response.acquisition_lock_timeout_ms > 0:
            self.acquisition_lock_timeout_ms = response.acquisition_lock_timeout_ms
        deadline = now + (self.acquisition_lock_timeout_ms or 0) / 1000
        results: dict[TopicIdPartition, tuple[int, str | None]] = {}
        failed = False
        count = size = 0
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicIdPartition(bytes(topic.topic_id), data.partition_index)
                results[key] = data.acknowledge_error_code, data.acknowledge_error_message
                if data.error_code:
                    failed = True
                    self._handle_partition_error(key, ErrorCode.of(data.error_code), data.error_message)
                if data.acquired_records:
                    count += self._add_fetch(broker, key, data, deadline)
                    size += len(data.records or b"")
        if count:
            self._wanted = None
            self._metrics.fetch_size.record(size, now)
            self._metrics.records_per_request.record(count, now)
            self._metrics.bytes_consumed.value += size
            self.arrived.set()
        elif failed:
            self._back_off(broker)
        self._complete(broker, results)

    def _add_fetch(
        self,
        broker: _ShareBroker,
        key: TopicIdPartition,
        data: share_fetch.PartitionData,
        deadline: float,
    ) -> int:
        """Keep the records of a partition for the user; return how many there are."""
        topic = self._names.get(key.topic_id)
        if topic is None:
            log.warning("records of a partition that was not asked for: %s; their locks expire", key)
            return 0
        acquired = [
            (each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records
        ]
        self.fetches.append(
            ShareCompletedFetch(
                TopicPartition(topic, key.partition),
                key,
                broker.node_id,
                data.records or b"",
                acquired,
                deadline=deadline,
                check_crcs=self._config.check_crcs,
            )
        )
        return sum(last - first + 1 for first, last, _ in acquired)

    def _handle_partition_error(self, key: TopicIdPartition, code: ErrorCode, message: str | None) -> None:
        topic = self._assignment.get(key)
        if topic is None:
            return
        if code in _STALE_METADATA:
            self._metadata_updater.request_update([topic])
        elif code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            log.debug("%s-%d: %s; trying again", topic, key.partition, message or code.name)
        else:
            text = self._cluster.explain(code, AclOperation.READ, topic, message)
            self._stop(KafkaError(code, f"{topic}-{key.partition}: cannot fetch: {text}"))

    def _handle_acknowledge(self, broker: _ShareBroker, response: ShareAcknowledgeResponse) -> None:
        code = ErrorCode.of(response.error_code)
        if code:
            self._handle_error(broker, code, response.error_message)
            return
        broker.session.handle_response()
        if response.acquisition_lock_timeout_ms > 0:
            self.acquisition_lock_timeout_ms = response.acquisition_lock_timeout_ms
        self._complete(
            broker,
            {
                TopicIdPartition(bytes(topic.topic_id), data.partition_index): (
                    data.error_code,
                    data.error_message,
                )
                for topic in response.responses
                for data in topic.partitions
            },
        )

    def _handle_error(self, broker: _ShareBroker, code: ErrorCode, message: str | None) -> None:
        """Handle the error of a whole request, of which nothing was done."""
        broker.session.handle_error()
        text = self._cluster.explain(code, AclOperation.READ, self._config.group_id, message)
        error = KafkaError(code, f"group {self._config.group_id!r}: {text}")
        again: _Pending = {}
        refused: _Pending = {}
        for key, each in broker.sent.items():
            each.attempts += 1
            (again if code in _NO_SESSION and each.attempts < MAX_ATTEMPTS else refused)[key] = each
        broker.sent = {}
        self._requeue(broker, again)
        self._fail(broker, refused, error, in_doubt=False)
        if code in _NO_SESSION:
            log.debug("broker %d: %s; the session begins again", broker.node_id, code.name)
        elif code.retriable or code in (
            ErrorCode.SHARE_SESSION_LIMIT_REACHED,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ):
            log.info("broker %d: %s; trying again", broker.node_id, error)
            self._back_off(broker)
        else:
            self._back_off(broker)
            self._stop(error)

    def _complete(
        self, broker: _ShareBroker, results: Mapping[TopicIdPartition, tuple[int, str | None]]
    ) -> None:
        """Take the results of what a request has acknowledged."""
        sent, broker.sent = broker.sent, {}
        now = asyncio.get_running_loop().time()
        for key, each in sent.items():
            number, message = results.get(
                key, (int(ErrorCode.UNKNOWN_SERVER_ERROR), "the broker said nothing")
            )
            code = ErrorCode.of(number)
            if not code:
                self._finish(broker, key, each, None)
                continue
            if code in _NOT_WRITTEN and now < each.deadline and not self._closing:
                self._requeue(broker, {key: each})
                self._back_off(broker)
                continue
            if code in _STALE_METADATA:
                self._metadata_updater.request_update([each.partition.topic])
            text = self._cluster.explain(code, AclOperation.READ, each.partition.topic, message)
            error = KafkaError(code, f"{each.partition}: {text}{_advice(code)}")
            if code is ErrorCode.INVALID_RECORD_STATE and each.ranges and each.renewed and not self._closing:
                # A broker takes all for a partition or nothing, and the group may forbid renewals: what is
                # done must not be done again for that.
                self._give_up_renewals(broker, key, each, error)
                self._requeue(broker, {key: each})
                continue
            self._finish(broker, key, each, error)

    def _requeue(self, broker: _ShareBroker, again: _Pending) -> None:
        for key, each in again.items():
            later = broker.pending.get(key)
            if later is not None:
                each.add(later.merged())
                _chain(each.done, later.done)
            broker.pending[key] = each

    def _fail(self, broker: _ShareBroker, lost: _Pending, error: KafkaError, *, in_doubt: bool) -> None:
        """Complete acknowledgements with an error; in doubt is what was sent and got no response."""
        fact = "the acknowledgement may be lost" if in_doubt else "not acknowledged"
        for key, each in lost.items():
            text = f"{each.partition}: {fact}: {error.message}; the records may be delivered again"
            self._finish(broker, key, each, KafkaError(error.code, text))

    def _finish(
        self,
        broker: _ShareBroker,
        key: TopicIdPartition,
        each: SubmittedAcknowledgements,
        error: KafkaError | None,
    ) -> None:
        self._report(broker, key, each, error)
        if not each.done.done():
            each.done.set_result(error or each.refused)

    def _report(
        self,
        broker: _ShareBroker,
        key: TopicIdPartition,
        each: SubmittedAcknowledgements,
        error: KafkaError | None,
    ) -> None:
        ranges = tuple(each.merged())
        count = sum(last - first + 1 for first, last, _ in ranges)
        self._metrics.acknowledgements_send.value += count
        if error is not None:
            self._metrics.acknowledgements_error.value += count
        self._on_result(AcknowledgementResult(each.partition, key, broker.node_id, ranges, error))

    def _stop(self, error: KafkaError) -> None:
        """Have `poll` raise an error."""
        self._error = self._error or error
        self.arrived.set()


def _advice(code: ErrorCode) -> str:
    if code is ErrorCode.INVALID_RECORD_STATE:
        return (
            " The lock may have expired before the acknowledgement came: renew it while the work lasts, or "
            "set share.record.lock.duration.ms of the group."
        )
    if code in _STALE_METADATA:
        return " The next leader delivers the records again."
    return ""


def _chain(first: asyncio.Future[KafkaError | None], second: asyncio.Future[KafkaError | None]) -> None:
    """Give the result of a future to another one."""
    first.add_done_callback(lambda done: None if second.done() else second.set_result(done.result()))


def _by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in partitions:
        topics.setdefault(topic_id, []).append(index)
    return topics


def _fetch_topics(added: Iterable[TopicIdPartition], acknowledged: _Pending) -> list[share_fetch.FetchTopic]:
    """The partitions that a session gets, and those with acknowledgements."""
    topics: dict[bytes, share_fetch.FetchTopic] = {}
    for key in dict.fromkeys([*added, *acknowledged]):
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = share_fetch.FetchTopic(topic_id=key.topic_id)
        pending = acknowledged.get(key)
        topic.partitions.append(
            share_fetch.FetchPartition(
                partition_index=key.partition,
                acknowledgement_batches=[
                    share_fetch.AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=[int(type)]
                    )
                    for first, last, type in (pending.merged() if pending is not None else ())
                ],
            )
        )
    return list(topics.values())


def _acknowledge_topics(acknowledged: _Pending) -> list[share_acknowledge.AcknowledgeTopic]:
    topics: dict[bytes, share_acknowledge.AcknowledgeTopic] = {}
    for key, pending in acknowledged.items():
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = share_acknowledge.AcknowledgeTopic(topic_id=key.topic_id)
        topic.partitions.append(
            share_acknowledge.AcknowledgePartition(
                partition_index=key.partition,
                acknowledgement_batches=[
                    share_acknowledge.AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=[int(type)]
                    )
                    for first, last, type in pending.merged()
                ],
            )
        )
    return list(topics.values())
