"""Looks into the node that a console runs in. The node's state belongs to its loop, and is read there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import nlargest
from itertools import accumulate
from typing import Any, Final, TypeVar

from ottla.console.files.inspector import NodeCounters, PartitionState, ScrubState
from ottla.console.files.partition_files import MAX_PRODUCERS
from ottla.log.directory.dir_names import dir_name
from ottla.log.producers.state_manager import ProducerStateManager
from ottla.node.network.request_statistics import TIME_BOUNDS_MS, RequestStatistics
from ottla.node.server.broker_server import BrokerServer
from ottla.node.server.shared_server import SharedServer
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.runtime.tasks import TaskStatus

# Requests that wait for new data or for members: how long they take says nothing of the node.
_WAITING: Final = ("Fetch", "ShareFetch", "JoinGroup", "SyncGroup")

T = TypeVar("T")


def _producers(state: ProducerStateManager) -> list[dict[str, Any]]:
    """The producers of a log, those with an open transaction first, then those that wrote last."""
    found = nlargest(
        MAX_PRODUCERS,
        state.active_producers.values(),
        key=lambda each: (each.current_txn_first_offset is not None, each.last_data_offset),
    )
    return [
        {
            "producerId": each.producer_id,
            "producerEpoch": each.producer_epoch,
            "lastSequence": each.last_sequence,
            "lastOffset": each.last_data_offset,
            "lastTimestamp": each.last_timestamp,
            "currentTxnFirstOffset": each.current_txn_first_offset,
        }
        for each in found
    ]


class RunningNodeInspector:
    """Made on the node's loop; used on that of the console."""

    def __init__(self, shared: SharedServer, broker: BrokerServer) -> None:
        self._shared: Final = shared
        self._broker: Final = broker
        self._loop: Final = asyncio.get_running_loop()

    @property
    def node_id(self) -> int:
        return self._shared.config.node_id

    async def _ask(self, question: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return question()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop))

    async def directory_of(self, partition: TopicPartition) -> str | None:
        return await self._ask(lambda: self._directory_of(partition))

    def _directory_of(self, partition: TopicPartition) -> str | None:
        if partition.topic == CLUSTER_METADATA_TOPIC:
            if partition.partition:
                return None
            return f"{self._shared.config.metadata_log_dir}/{dir_name(partition)}"
        log = self._broker.logs.get_log(partition)
        return None if log is None else log.dir

    async def state_of(self, partition: TopicPartition) -> PartitionState | None:
        return await self._ask(lambda: self._state_of(partition))

    def _state_of(self, partition: TopicPartition) -> PartitionState | None:
        log = self._broker.logs.get_log(partition)
        if log is None:
            return None
        return PartitionState(
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.recovery_point,
            None if log.loaded_producer_state is None else _producers(log.loaded_producer_state),
        )

    async def tasks(self) -> list[TaskStatus]:
        return await self._ask(self._shared.tasks.statuses)

    async def scrub(self) -> ScrubState | None:
        return await self._ask(self._scrub)

    def _scrub(self) -> ScrubState | None:
        scrubber = self._broker.tasks.scrubber
        if scrubber is None:
            return None
        return ScrubState(
            scrubber.passes,
            scrubber.progress,
            None if scrubber.scrubbing is None else str(scrubber.scrubbing),
            scrubber.last_pass_ms,
            scrubber.bytes_read,
            tuple(
                {
                    "foundMs": each.found_ms,
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "kind": each.finding.kind,
                    "path": each.finding.path,
                    "detail": each.finding.detail,
                    "mended": each.is_mended,
                }
                for each in reversed(scrubber.findings)
            ),
        )

    async def counters(self) -> NodeCounters:
        return await self._ask(self._counters)

    def _counters(self) -> NodeCounters:
        topics = self._broker.replicas.topic_statistics
        everything = [topics.retired, *topics.topics.values()]
        answered = RequestStatistics()
        for listener in self._shared.network_statistics.listeners.values():
            for (name, _), statistics in listener.requests.items():
                if not name.startswith(_WAITING):
                    answered.merge(statistics)
        spent_ns = answered.queue_ns + answered.local_ns + answered.remote_ns + answered.send_ns
        return NodeCounters(
            bytes_in=sum(each.bytes_in for each in everything),
            bytes_out=sum(each.bytes_out for each in everything),
            requests=answered.count,
            request_ms=spent_ns / 1e6,
            request_buckets=tuple(
                zip((*TIME_BOUNDS_MS, float("inf")), accumulate(answered.times), strict=True)
            ),
        )

    async def uptime_ms(self) -> int:
        return max(self._shared.runtime.clock.wall_ms() - self._shared.started_ms, 0)
