"""Takes batches that are due to the leaders of their partitions, and settles them by what the brokers answer.

Order and exactly-once rest on three rules. A partition's batches leave in order, at most five of them
unanswered. A batch keeps the sequence number it was first sent with, so a broker recognises a retry. And
while a failed batch waits to be tried again, nothing behind it overtakes it. When a batch was given up, the
partition's sequence may have a hole. Then the broker refuses what comes after it, so none of that was
written, and the partition starts over in a new epoch as soon as nothing of it is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.producer.accumulator import Accumulator, PartitionQueue, is_before
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import ProducerIdentity
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.schema import ZERO_UUID

__all__ = ["Sender"]

log = logging.getLogger(__name__)

IDLE_CHECK_S = 1.0
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
# The broker did not write the batch, because one before it, or the producer's past, is missing there.
_OUT_OF_PLACE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Sender:
    """One task, `run`, wakes when there may be work; answers are taken as they come."""

    def __init__(
        self, cluster: Cluster, config: ProducerConfig, accumulator: Accumulator, identity: ProducerIdentity
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._identity = identity
        self._wake = asyncio.Event()
        self._in_flight: dict[int, int] = {}  # requests by broker
        self._connecting: dict[int, asyncio.Task[Connection]] = {}
        self._refreshing: asyncio.Task[object] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._closing = False

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing:
            self._wake.clear()
            wait = await self._step(loop.time())
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        tasks = [*self._answers, *self._connecting.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)  # type: ignore[arg-type]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self, now: float) -> float:
        """Sends what is due; the seconds until the next look, if nothing wakes the sender before."""
        accumulator = self._accumulator
        for batch in accumulator.expired(now):
            self._expire(batch)
        if self._config.idempotent and accumulator.waiting and not self._identity.is_known:
            try:
                await self._identity.obtain()
            except KafkaError as error:
                log.debug("no producer id yet: %s", error)
                return self._config.retry_backoff_ms / 1000
        wait = IDLE_CHECK_S
        due: dict[int, list[PartitionQueue]] = {}
        for queue in list(accumulator.waiting.values()):
            ready_at = accumulator.ready_at(queue)
            if ready_at > now:
                wait = min(wait, ready_at - now)
            elif self._may_send(queue):
                leader = self._cluster.view.leader(queue.partition)
                if leader is None:
                    self._refresh_metadata([queue.partition.topic])
                else:
                    due.setdefault(leader.leader, []).append(queue)
        for node_id, queues in due.items():
            connection = self._cluster.open_connection(node_id)
            if connection is None:
                self._connect(node_id)
            else:
                self._send_to(node_id, connection, queues)
        return max(wait, 0.001)

    def _may_send(self, queue: PartitionQueue) -> bool:
        """Whether order allows the queue's first batch to go now."""
        under_way, first = queue.in_flight, queue.batches[0]
        if not self._config.idempotent:
            # Nothing but idempotence lets a broker put retries in order.
            most = self._config.max_in_flight_requests_per_connection
            return not under_way or (len(under_way) < most and not first.attempts)
        if queue.lost_place:
            if under_way:
                return False
            queue.begin_new_epoch(self._identity)
            if not self._identity.is_known:
                return False
        if not under_way:
            return True
        if first.base_sequence >= 0:
            return is_before(first.base_sequence, under_way[0].base_sequence)
        return len(under_way) < self._config.max_in_flight_requests_per_connection

    # To the brokers.

    def _send_to(self, node_id: int, connection: Connection, queues: list[PartitionQueue]) -> None:
        limit = self._config.max_in_flight_requests_per_connection
        while queues and self._in_flight.get(node_id, 0) < limit:
            batches: list[tuple[PartitionQueue, ProducerBatch]] = []
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

    def _send(
        self, node_id: int, connection: Connection, batches: list[tuple[PartitionQueue, ProducerBatch]]
    ) -> None:
        # Without a topic id, as on older brokers or for a topic that was just deleted, names have to do.
        ids = {name: self._topic_id(name) for name in {queue.partition.topic for queue, _ in batches}}
        version = connection.version_for(ProduceRequest, at_most=13 if all(ids.values()) else 12)
        topics: dict[str, TopicProduceData] = {}
        for queue, batch in batches:
            if self._config.idempotent:
                queue.number(batch, self._identity)
            batch.attempts += 1
            queue.in_flight.append(batch)
            data = batch.builder.build(
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
            )
            queue.ratio = batch.builder.compression_ratio
            topic = topics.get(batch.partition.topic)
            if topic is None:
                name = batch.partition.topic
                topic = topics[name] = TopicProduceData(name=name, topic_id=ids[name] or ZERO_UUID)
            topic.partition_data.append(PartitionProduceData(index=batch.partition.partition, records=data))
        request = ProduceRequest(
            acks=self._config.required_acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        if self._config.required_acks == 0:
            self._send_without_answer(connection, request, version, batches)
            return
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        task = asyncio.get_running_loop().create_task(
            self._exchange(node_id, connection, request, version, [batch for _, batch in batches])
        )
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cluster.view.topics.get(name)
        return topic.topic_id if topic is not None else None

    def _send_without_answer(
        self,
        connection: Connection,
        request: ProduceRequest,
        version: int,
        batches: list[tuple[PartitionQueue, ProducerBatch]],
    ) -> None:
        error: KafkaError | None = None
        try:
            connection.send_and_forget(request, version=version)
        except KafkaError as failure:
            error = failure
        for queue, batch in batches:
            queue.in_flight.remove(batch)
            self._settle(batch, error)

    async def _exchange(
        self,
        node_id: int,
        connection: Connection,
        request: ProduceRequest,
        version: int,
        batches: list[ProducerBatch],
    ) -> None:
        try:
            answer = await connection.request(
                request, ProduceResponse, timeout_ms=self._config.request_timeout_ms, version=version
            )
        except KafkaError as error:
            for batch in batches:
                self._failed(batch, error)
            self._refresh_metadata({batch.partition.topic for batch in batches})
        else:
            self._answered(batches, answer)
        finally:
            self._in_flight[node_id] -= 1
            self._wake.set()

    def _answered(self, batches: list[ProducerBatch], answer: ProduceResponse) -> None:
        names = self._cluster.view.names_by_id
        results = {
            (topic.name or names.get(topic.topic_id, ""), result.index): result
            for topic in answer.responses
            for result in topic.partition_responses
        }
        stale = set()
        for batch in batches:
            result = results.get((batch.partition.topic, batch.partition.partition))
            if result is None:
                missing = f"{batch.partition}: the answer has no result for it"
                self._failed(batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, missing))
            elif result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._leave(batch)
                batch.settle(result.base_offset, result.log_append_time_ms)
                self._accumulator.settled(batch)
            else:
                error = _error_of(batch, result)
                self._failed(batch, error)
                if error.code in _STALE_METADATA:
                    stale.add(batch.partition.topic)
        if stale:
            self._refresh_metadata(stale)

    # Failures.

    def _failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        self._leave(batch)
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            size = batch.builder.uncompressed_size
            self._accumulator.split(batch, batch.split(min(size // 2, self._config.batch_size)))
        elif self._is_worth_another_try(batch, error):
            backoff = min(
                self._config.retry_backoff_ms << min(batch.attempts - 1, 20),
                self._config.retry_backoff_max_ms,
            )
            batch.not_before = asyncio.get_running_loop().time() + backoff / 1000
            log.debug("%s: %s; trying again in %d ms", batch.partition, error, backoff)
            self._accumulator.put_back([batch])
        else:
            self._settle(batch, error)

    def _leave(self, batch: ProducerBatch) -> None:
        self._accumulator.queue(batch.partition).in_flight.remove(batch)

    def _is_worth_another_try(self, batch: ProducerBatch, error: KafkaError) -> bool:
        now = asyncio.get_running_loop().time()
        if now - batch.created_at > self._config.delivery_timeout_ms / 1000:
            return False
        if batch.attempts > self._config.retries:
            return False
        if error.code in _OUT_OF_PLACE and self._config.idempotent:
            queue = self._accumulator.queue(batch.partition)
            numbered = [b.base_sequence for b in (*queue.in_flight, *queue.batches) if b.base_sequence >= 0]
            if not any(is_before(sequence, batch.base_sequence) for sequence in numbered):
                queue.lost_place = True
            return True
        return error.retriable

    def _expire(self, batch: ProducerBatch) -> None:
        error = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{batch.partition}: {batch.count} record(s) not delivered within "
            f"delivery.timeout.ms={self._config.delivery_timeout_ms} after {batch.attempts} attempt(s)",
        )
        self._settle(batch, error)

    def _settle(self, batch: ProducerBatch, error: KafkaError | None) -> None:
        if error is None:
            batch.settle(-1, -1)
        else:
            batch.fail(error)
        self._accumulator.settled(batch)

    # Connections and metadata.

    def _connect(self, node_id: int) -> None:
        if node_id in self._connecting:
            return
        task = asyncio.get_running_loop().create_task(self._cluster.connection(node_id))
        self._connecting[node_id] = task

        def connected(done: asyncio.Task[Connection]) -> None:
            self._connecting.pop(node_id, None)
            if not done.cancelled() and isinstance(done.exception(), KafkaError):
                self._refresh_metadata([])
            self._wake.set()

        task.add_done_callback(connected)

    def _refresh_metadata(self, topics: Iterable[str]) -> None:
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(set(topics)))

    async def _refresh(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh(topics=topics)
        except KafkaError as error:
            log.debug("metadata: %s", error)
        finally:
            # Held for the back-off, so that a topic without a leader is asked for at a decent pace.
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)
            self._refreshing = None
            self._wake.set()


def _error_of(batch: ProducerBatch, result: PartitionProduceResponse) -> KafkaError:
    code = ErrorCode.of(result.error_code)
    text = result.error_message or code.text
    refused = [
        f"record {item.batch_index}: {item.batch_index_error_message or 'refused'}"
        for item in result.record_errors
    ]
    return KafkaError(code, f"{batch.partition}: " + "; ".join([text, *refused]))
