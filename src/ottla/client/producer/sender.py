"""Sends batches that are ready to the leaders of their partitions, and completes them by the responses.

Order and exactly-once rest on three rules. A partition's batches are sent in order, at most five of them
without response, and in a new epoch only one until it is acknowledged. A batch keeps the sequence number with
which it was first sent, so a broker recognises a retry. And while a failed batch waits for its retry, no
later batch overtakes it.

When a batch is given up, the partition's sequence may have a gap. Then the broker refuses later batches, so
none of them is written, and the partition starts over in a new epoch as soon as nothing of it is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from ottla.client.network_client import MetadataUpdater, NetworkClient
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import ProducerIdentity
from ottla.client.producer.producer_batch import ProducerBatch
from ottla.client.producer.producer_metrics import ProducerMetrics
from ottla.client.producer.record_accumulator import PartitionQueue, RecordAccumulator
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.schema import ZERO_UUID
from ottla.rpc.connection import BrokerConnection
from ottla.rpc.errors import AuthenticationFailed

log = logging.getLogger(__name__)

IDLE_CHECK_S = 1.0
# While the previous transaction is ending, which takes milliseconds.
BRIEF_WAIT_MS = 20
WITHOUT_TOPIC_IDS = 12
_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
# The broker did not write the batch, because it lacks an earlier one, or the producer's state.
_OUT_OF_PLACE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

Batches = list[tuple[PartitionQueue, ProducerBatch]]


class Sender:
    """One task, `run`, wakes when there may be work; responses are handled as they arrive."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        identity: ProducerIdentity,
        refresher: MetadataUpdater,
        metrics: ProducerMetrics,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._config = config
        self._accumulator = accumulator
        self._identity = identity
        self._identity_error: KafkaError | None = None  # why there is no producer id yet
        # Why a batch was last put back; None once one is written.
        self._retried_error: KafkaError | None = None
        self._metadata_updater = refresher
        self._wake = asyncio.Event()
        self._in_flight: dict[int, int] = {}  # requests by broker
        # Until when each broker throttles this client.
        self._muted_until: dict[int, float] = {}
        self._connecting: dict[int, asyncio.Task[BrokerConnection]] = {}
        self._draining: dict[asyncio.Task[None], None] = {}

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                wait = await self._step(loop.time())
                timer = loop.call_later(wait, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
        finally:
            tasks: list[asyncio.Task[object]] = [*self._connecting.values(), *self._draining]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, now: float) -> float:
        """Send what is ready; return the seconds until the next step, if nothing wakes the sender before."""
        accumulator = self._accumulator
        for batch in accumulator.take_expired(now):
            self._expire(batch)
        if not accumulator.waiting:
            return IDLE_CHECK_S
        if self._config.idempotent and not self._identity.is_known:
            try:
                await self._identity.obtain()
            except AuthenticationFailed as error:
                self._fail_waiting(error)
                return self._config.retry_backoff_ms / 1000
            except KafkaError as error:
                if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    self._fail_waiting(error)
                    return IDLE_CHECK_S
                log.debug("no producer id yet: %s", error)
                self._identity_error = error.again()
                return self._config.retry_backoff_ms / 1000
        wait = IDLE_CHECK_S
        due: dict[int, list[PartitionQueue]] = {}
        for queue in list(accumulator.waiting.values()):
            ready_at = accumulator.ready_at(queue)
            if ready_at > now:
                wait = min(wait, ready_at - now)
            elif self._may_send(queue):
                leader = self._cluster.metadata.leader(queue.partition)
                if leader is None:
                    self._metadata_updater.request_update([queue.partition.topic])
                else:
                    due.setdefault(leader.leader, []).append(queue)
        for node_id, queues in due.items():
            muted_until = self._muted_until.get(node_id, 0.0)
            connection = self._cluster.open_connection(node_id)
            if muted_until > now:
                wait = min(wait, muted_until - now)
            elif connection is None:
                self._connect(node_id)
            elif self._config.required_acks == 0 and not connection.is_writable:
                self._send_when_drained(connection)
            else:
                self._send_to(node_id, connection, queues)
        return max(wait, 0.001)

    def _may_send(self, queue: PartitionQueue) -> bool:
        """Whether order, and the state of a transaction, allow the queue's first batch to be sent now."""
        under_way, first = queue.in_flight, queue.batches[0]
        if not self._config.idempotent:
            # Only with idempotence can a broker put retries in order.
            most = self._config.max_in_flight_requests_per_connection
            return not under_way or (len(under_way) < most and not first.attempts)
        if not self._identity.may_send_to(queue.partition):
            return False
        if queue.lost_place:
            if under_way:
                return False
            queue.begin_new_epoch(self._identity)
            if not self._identity.is_known:
                return False
        if not under_way:
            return True
        if not queue.is_established:
            return False
        if first.base_sequence >= 0:
            return first.order < under_way[0].order
        return len(under_way) < self._config.max_in_flight_requests_per_connection

    # Requests.

    def _send_to(self, node_id: int, connection: BrokerConnection, queues: list[PartitionQueue]) -> None:
        limit = self._config.max_in_flight_requests_per_connection
        while queues and self._in_flight.get(node_id, 0) < limit and connection.is_open:
            batches: Batches = []
            left: list[PartitionQueue] = []
            size = 0
            for queue in queues:
                first = queue.batches[0]
                if batches and size + first.builder.estimated_size > self._config.max_request_size:
                    left.append(queue)
                    continue
                batch = self._accumulator.take(queue)
                size += batch.builder.estimated_size
                batches.append((queue, batch))
            self._send(node_id, connection, batches)
            now = asyncio.get_running_loop().time()
            again = [
                queue
                for queue, _ in batches
                if queue.batches and self._accumulator.ready_at(queue) <= now and self._may_send(queue)
            ]
            queues = left + again

    def _send(self, node_id: int, connection: BrokerConnection, batches: Batches) -> None:
        # Without a topic id, as on older brokers or for a topic that was just deleted, the name is used.
        names = dict.fromkeys(queue.partition.topic for queue, _ in batches)
        ids = {name: self._topic_id(name) for name in names}
        topics: dict[str, TopicProduceData] = {}
        now, metrics, records = asyncio.get_running_loop().time(), self._metrics, 0
        for queue, batch in batches:
            if self._config.idempotent:
                queue.number(batch, self._identity)
            batch.attempts += 1
            batch.is_closed = True
            queue.in_flight.append(batch)
            data = batch.builder.build(
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=self._identity.is_transactional,
            )
            queue.ratio = batch.builder.compression_ratio
            records += batch.count
            metrics.batch_size.record(len(data), now)
            if batch.attempts == 1:
                metrics.record_queue_time.record((now - batch.created_at) * 1000, now)
            else:
                metrics.record_retries.value += batch.count
            topic = topics.get(batch.partition.topic)
            if topic is None:
                name = batch.partition.topic
                topic = topics[name] = TopicProduceData(name=name, topic_id=ids[name] or ZERO_UUID)
            topic.partition_data.append(PartitionProduceData(index=batch.partition.partition, records=data))
        request = ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=self._config.required_acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        metrics.record_sends.value += records
        metrics.records_per_request.record(records, now)
        with_ids = all(ids.values())
        at_most = self._identity.produce_version(None if with_ids else WITHOUT_TOPIC_IDS)
        try:
            version = connection.version_for(ProduceRequest, at_most=at_most)
            if self._config.required_acks == 0:
                connection.send_and_forget(request, version=version)
            else:
                timeout_ms = self._config.request_timeout_ms
                answer = connection.send(request, ProduceResponse, timeout_ms=timeout_ms, version=version)
        except KafkaError as error:
            self._handle_disconnect([batch for _, batch in batches], error)
            return
        if self._config.required_acks == 0:
            for queue, batch in batches:
                queue.in_flight.remove(batch)
                self._complete(batch, None)
            return
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        answer.add_done_callback(
            partial(self._on_produce_done, node_id, [batch for _, batch in batches], now)
        )

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cluster.metadata.topics.get(name)
        return topic.topic_id if topic is not None else None

    # Responses.

    def _on_produce_done(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        sent_at: float,
        answer: asyncio.Future[ProduceResponse],
    ) -> None:
        self._in_flight[node_id] -= 1
        error = answer.exception()
        if error is None:
            now = asyncio.get_running_loop().time()
            self._metrics.request_latency.record((now - sent_at) * 1000, now)
            throttle_ms = answer.result().throttle_time_ms
            self._metrics.produce_throttle_time.record(throttle_ms, now)
            if throttle_ms > 0:
                self._muted_until[node_id] = now + throttle_ms / 1000
            self._handle_produce_response(batches, answer.result())
        elif isinstance(error, KafkaError):
            self._handle_disconnect(batches, error)
        else:
            raise error
        self._wake.set()

    def _handle_disconnect(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            self._fail_or_retry(batch, error)
        self._metadata_updater.request_update({batch.partition.topic for batch in batches})

    def _handle_produce_response(self, batches: list[ProducerBatch], answer: ProduceResponse) -> None:
        names = self._cluster.metadata.names_by_id
        results = {
            (topic.name or names.get(topic.topic_id, ""), result.index): result
            for topic in answer.responses
            for result in topic.partition_responses
        }
        stale = set()
        for batch in batches:
            result = results.get((batch.partition.topic, batch.partition.partition))
            if result is None:
                # It may be written or not: only a retry with the same numbers can show it.
                missing = f"{batch.partition}: the answer has no result for it"
                self._fail_or_retry(batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, missing))
                stale.add(batch.partition.topic)
            elif result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                queue = self._remove_in_flight(batch)
                if (batch.producer_id, batch.producer_epoch) == (queue.producer_id, queue.epoch):
                    queue.is_established = True
                self._identity.on_written(batch.partition)
                self._retried_error = None
                if not batch.is_done:
                    batch.complete(result.base_offset, result.log_append_time_ms)
                    self._accumulator.deallocate(batch)
            else:
                error = _error_of(self._cluster, batch, result)
                self._fail_or_retry(batch, error)
                if error.code in _STALE_METADATA:
                    stale.add(batch.partition.topic)
        if stale:
            self._metadata_updater.request_update(stale)

    # Failures.

    def _fail_or_retry(self, batch: ProducerBatch, error: KafkaError) -> None:
        self._remove_in_flight(batch)
        if batch.is_done:
            return  # given up meanwhile, by an aborted transaction or by `close`
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            size = batch.builder.uncompressed_size
            self._accumulator.split_and_reenqueue(
                batch, batch.split(max(min(size // 2, self._config.batch_size), 1))
            )
        elif self._can_retry(batch, error):
            backoff = min(
                self._config.retry_backoff_ms << min(batch.attempts - 1, 20),
                self._config.retry_backoff_max_ms,
            )
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                backoff = min(backoff, BRIEF_WAIT_MS)
            batch.not_before = asyncio.get_running_loop().time() + backoff / 1000
            batch.last_error = self._retried_error = error.again()
            log.debug("%s: %s; trying again in %d ms", batch.partition, error, backoff)
            self._accumulator.reenqueue(batch)
        else:
            self._complete(batch, error)

    def _remove_in_flight(self, batch: ProducerBatch) -> PartitionQueue:
        queue = self._accumulator.queue(batch.partition)
        queue.in_flight.remove(batch)
        return queue

    def _can_retry(self, batch: ProducerBatch, error: KafkaError) -> bool:
        now = asyncio.get_running_loop().time()
        if now - batch.created_at > self._config.delivery_timeout_ms / 1000:
            return False
        if batch.attempts > self._config.retries:
            return False
        if error.code in _OUT_OF_PLACE and self._config.idempotent:
            if self._identity.is_transactional:
                return self._is_behind_another(batch)
            if not self._is_behind_another(batch):
                self._accumulator.queue(batch.partition).lost_place = True
            return True
        return error.retriable

    def _is_behind_another(self, batch: ProducerBatch) -> bool:
        """Whether an earlier batch is still to be written, which explains the refusal of this one."""
        queue = self._accumulator.queue(batch.partition)
        return any(other.order < batch.order for other in (*queue.in_flight, *queue.batches))

    def why_nothing_is_sent(self) -> str:
        """The end of a message about records that wait; empty if no attempt has failed."""
        return self._why(self._retried_error)

    def _why(self, refusal: KafkaError | None) -> str:
        last = self._metadata_updater.last_error or refusal
        if last is None and self._config.idempotent and not self._identity.is_known:
            last = self._identity_error
        return f"; last: {last}" if last is not None else ""

    def _expire(self, batch: ProducerBatch) -> None:
        why = self._why(batch.last_error)
        error = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{batch.partition}: {batch.count} record(s) not delivered within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms} after {batch.attempts} attempt(s){why}",
        )
        self._complete(batch, error)

    def _complete(self, batch: ProducerBatch, error: KafkaError | None) -> None:
        if error is None:
            batch.complete(-1, -1)
        else:
            self._identity.on_failed(batch.partition, error)
            self._metrics.record_errors.value += batch.count
            batch.fail(error)
        self._accumulator.deallocate(batch)

    # Connections.

    def _connect(self, node_id: int) -> None:
        if node_id in self._connecting:
            return
        task = asyncio.get_running_loop().create_task(self._cluster.connection(node_id))
        self._connecting[node_id] = task

        def on_connected(done: asyncio.Task[BrokerConnection]) -> None:
            self._connecting.pop(node_id, None)
            error = None if done.cancelled() else done.exception()
            if isinstance(error, AuthenticationFailed):
                self._fail_waiting(error, node_id)
            if isinstance(error, KafkaError):
                self._metadata_updater.request_update()
            self._wake.set()

        task.add_done_callback(on_connected)

    def _fail_waiting(self, error: KafkaError, node_id: int | None = None) -> None:
        """Fail the batches that wait, of all partitions or of those that a broker leads: it does not let this
        client in, or write, and would not later.
        """
        for queue in list(self._accumulator.waiting.values()):
            leader = self._cluster.metadata.leader(queue.partition)
            if node_id is None or (leader is not None and leader.leader == node_id):
                while queue.batches:
                    self._complete(self._accumulator.take(queue), error)

    def _send_when_drained(self, connection: BrokerConnection) -> None:
        """Send again when the transport's buffer has room: nothing else limits requests with acks=0."""
        if self._draining:
            return
        task = asyncio.get_running_loop().create_task(connection.drain())
        self._draining[task] = None
        task.add_done_callback(lambda done: self._draining.pop(done, None))
        task.add_done_callback(lambda _: self._wake.set())


def _error_of(cluster: NetworkClient, batch: ProducerBatch, result: PartitionProduceResponse) -> KafkaError:
    code = ErrorCode.of(result.error_code)
    text = cluster.explain(code, AclOperation.WRITE, batch.partition.topic, result.error_message)
    refused = [
        f"record {item.batch_index}: {item.batch_index_error_message or 'refused'}"
        for item in result.record_errors
    ]
    return KafkaError(code, f"{batch.partition}: " + "; ".join([text, *refused]))
