"""Markers that end transactions: written to partitions that this broker leads, and sent to other leaders.

The markers for one broker go together (WriteTxnMarkers). The coordinator sends markers that were not
confirmed again, and each attempt goes to the current leader of the partition. A marker for a partition of
`__consumer_offsets` goes through the groups in it, whose pending offsets it commits or drops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.coordinator.transaction.requests import WriteMarkers
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.rpc.request_batcher import RequestBatcher
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Deferred

if TYPE_CHECKING:
    from ottla.coordinator.group.service import GroupCoordinatorService

_log = logging.getLogger(__name__)

Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]

_VERSION: Final = 2
_NOT_READY: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


class TransactionMarkerChannelManager:
    def __init__(
        self,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        log_flushes: LogFlushScheduler,
        clock: Clock,
        groups: Callable[[], GroupCoordinatorService],
    ) -> None:
        self._broker_id: Final = config.current.node_id
        self._config: Final = config
        self._metadata: Final = metadata
        self._replicas: Final = replicas
        self._log_flushes: Final = log_flushes
        self._clock: Final = clock
        self._groups: Final = groups
        self._channel: Final = peers.peer_channel("markers")
        self._batcher: Final = RequestBatcher(self._send, lambda marker: marker.producer_id)

    def exists(self, partition: TopicPartition) -> bool:
        topic = self._metadata.image.topics.by_name.get(partition.topic)
        return topic is not None and partition.partition in topic.partitions

    def on_broker_gone(self, broker: int) -> None:
        self._batcher.on_broker_gone(broker)

    async def close(self) -> None:
        await self._batcher.close()
        self._channel.close()

    def write(self, marker: WriteMarkers, partitions: frozenset[TopicPartition]) -> Codes | Awaitable[Codes]:
        """Have the current leader of each partition write a marker; return a code for each."""
        own_id = self._broker_id
        led: dict[int, list[TopicPartition]] = {}
        for tp in sorted(partitions):
            led.setdefault(self._leader(tp), []).append(tp)
        here = frozenset(led.pop(own_id, ()))
        nowhere = led.pop(NO_LEADER, ())
        answers = {
            broker: self._send_to_leader(broker, marker, elsewhere) for broker, elsewhere in led.items()
        }
        written = self.write_here(marker, here)
        codes = dict.fromkeys(nowhere, ErrorCode.LEADER_NOT_AVAILABLE)
        if isinstance(written, Mapping) and not answers:
            return {**codes, **written}
        return Deferred(partial(self._gather_codes, codes, written, answers, led))

    def _leader(self, tp: TopicPartition) -> int:
        """The leader of a partition; this broker if the partition is unknown, as its answer says so."""
        topic = self._metadata.image.topics.by_name.get(tp.topic)
        registration = None if topic is None else topic.partitions.get(tp.partition)
        return self._broker_id if registration is None else registration.leader

    # On other brokers

    def _send_to_leader(
        self, broker: int, marker: WriteMarkers, partitions: Iterable[TopicPartition]
    ) -> asyncio.Future[Codes]:
        return self._batcher.submit(
            broker,
            WritableTxnMarker(
                producer_id=marker.writer.id,
                producer_epoch=marker.writer.epoch,
                transaction_result=marker.commit,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.client_version,
            ),
        )

    async def _send(self, broker: int, markers: Sequence[WritableTxnMarker]) -> Sequence[Codes]:
        request = WriteTxnMarkersRequest(markers=list(markers))
        timeout_ms = self._config.current.number("request.timeout.ms")
        response = await self._channel.request(broker, request, _VERSION, timeout_ms=timeout_ms)
        assert isinstance(response, WriteTxnMarkersResponse)
        found: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for result in response.markers:
            codes = found.setdefault(result.producer_id, {})
            for topic in result.topics:
                for each in topic.partitions:
                    codes[TopicPartition(topic.name, each.partition_index)] = ErrorCode.of(each.error_code)
        return [found.get(marker.producer_id, {}) for marker in markers]

    async def _gather_codes(
        self,
        codes: dict[TopicPartition, ErrorCode],
        written: Codes | Awaitable[Codes],
        answers: Mapping[int, asyncio.Future[Codes]],
        led: Mapping[int, Iterable[TopicPartition]],
    ) -> Codes:
        codes |= written if isinstance(written, Mapping) else await written
        for broker, answer in answers.items():
            confirmed: Codes = {}
            try:
                confirmed = await answer
            except OSError as error:
                _log.info("markers could not be sent to broker %d: %s", broker, error)
            codes |= {tp: confirmed.get(tp, ErrorCode.NETWORK_EXCEPTION) for tp in led[broker]}
        return codes

    # On this broker

    def write_here(
        self, marker: WriteMarkers, partitions: frozenset[TopicPartition]
    ) -> Codes | Awaitable[Codes]:
        """Write a marker to partitions that this broker leads. The code of one that another broker leads is
        NOT_LEADER_OR_FOLLOWER.
        """
        codes: dict[TopicPartition, ErrorCode] = {}
        tickets: dict[TopicPartition, Ticket[None]] = {}
        appended: dict[TopicPartition, tuple[Partition, int]] = {}
        for tp in sorted(partitions):
            if tp.topic == CONSUMER_OFFSETS_TOPIC:
                ticket = self._groups().runtime.complete_transaction(
                    tp.partition,
                    marker.writer,
                    commit=marker.commit,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.client_version,
                )
                if ticket.done:
                    codes[tp] = _code_of(ticket)
                else:
                    tickets[tp] = ticket
                continue
            try:
                partition, end_offset = self._append(marker, tp)
            except KafkaError as error:
                codes[tp] = error.code
                continue
            outcome = partition.check_enough_replicas_reach_offset(end_offset)
            if outcome is None:
                appended[tp] = partition, end_offset
            else:
                codes[tp] = outcome
        if not tickets and not appended:
            return codes
        return Deferred(partial(self._wait_for_replicas, codes, tickets, appended))

    def _append(self, marker: WriteMarkers, tp: TopicPartition) -> tuple[Partition, int]:
        partition = self._replicas.partition(tp)
        now_ms = self._clock.wall_ms()
        kind = ControlType.COMMIT if marker.commit else ControlType.ABORT
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, marker.coordinator_epoch),
            producer_id=marker.writer.id,
            producer_epoch=marker.writer.epoch,
            timestamp=now_ms,
        )
        try:
            info = partition.append_records_to_leader(
                batch,
                now_ms=now_ms,
                origin=AppendOrigin.COORDINATOR,
                transaction_version=marker.client_version,
            )
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp}: {error}") from error
        if info.rolled:
            self._log_flushes.flush_closed_segments(partition.log)
        return partition, info.last_offset + 1

    async def _wait_for_replicas(
        self,
        codes: dict[TopicPartition, ErrorCode],
        tickets: Mapping[TopicPartition, Ticket[None]],
        appended: Mapping[TopicPartition, tuple[Partition, int]],
    ) -> Codes:
        """Wait for the replicas, at most for `request.timeout.ms`."""
        timeout_ms = self._config.current.number("request.timeout.ms")
        await self._replicas.purgatory.try_complete_else_watch(
            appended,
            lambda: all(
                partition.check_enough_replicas_reach_offset(end) is not None
                for partition, end in appended.values()
            ),
            timeout_ms,
        )
        for tp, (partition, end_offset) in appended.items():
            outcome = partition.check_enough_replicas_reach_offset(end_offset)
            codes[tp] = ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome
        for tp, ticket in tickets.items():
            with contextlib.suppress(KafkaError):
                await ticket
            codes[tp] = _code_of(ticket)
        return codes


def _code_of(ticket: Ticket[None]) -> ErrorCode:
    """The outcome of a marker in a partition of `__consumer_offsets`."""
    try:
        ticket.result()
    except KafkaError as error:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_READY else error.code
    return ErrorCode.NONE
