"""The fetchers of this broker: `num.replica.fetchers` for each leader of partitions that it follows.

A partition that is followed in a new epoch moves to a fetcher of its new leader; one that this broker leads,
or no longer hosts, leaves its fetcher. A fetcher without partitions ends; one that ends by an error is logged
and started again after a pause, with its partitions. Invariant: a partition is with one fetcher at most, so
its fetches never overtake each other.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import PartitionFetchState
from ottla.replication.replica_fetcher import ReplicaFetcher, ReplicaFetcherContext
from ottla.replication.replica_manager import ReplicaChanges
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address

_log = logging.getLogger(__name__)

_FetcherKey: TypeAlias = tuple[int, int]
"""A leader, and the number of one of the fetchers from it."""

_FIRST_RESTART_MS: Final = 100
_MAX_RESTART_MS: Final = 10_000
# A fetcher that has run for this long before it failed is started again after a short pause.
_HEALTHY_MS: Final = 60_000


@dataclass(slots=True)
class FetcherStatus:
    """How a fetcher fares: for the status of the node."""

    name: str
    partitions: int = 0
    restarts: int = 0
    last_error: str | None = None  # that ended it; kept after it was started again
    last_error_ms: int | None = None  # wall clock


class RemoteLeaderEndPoint:
    """A fetcher's own connection to a leader, whose address may change with every registration."""

    __slots__ = ("_address_of", "_broker", "_channel")

    def __init__(
        self, broker: int, channel: InterNodeClient, address_of: Callable[[int], Address | None]
    ) -> None:
        self._broker: Final = broker
        self._channel: Final = channel
        self._address_of: Final = address_of

    async def send_request(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        address = self._address_of(self._broker)
        if address is None:
            raise ConnectionError(f"broker {self._broker} is not registered with an address for brokers")
        try:
            return await self._channel.request(address, request, newest_version, timeout_ms=timeout_ms)
        except TimeoutError:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        self._channel.drop_all()

    def close(self) -> None:
        self._channel.close()


class ReplicaFetcherManager:
    """`channel` makes the connections of one fetcher; `address_of` gives the address of a broker."""

    def __init__(
        self,
        context: ReplicaFetcherContext,
        channel: Callable[[], InterNodeClient],
        address_of: Callable[[int], Address | None],
        *,
        per_leader: int = 1,
    ) -> None:
        self._context: Final = context
        self._channel: Final = channel
        self._address_of: Final = address_of
        self._per_leader = per_leader
        self._fetchers: dict[
            _FetcherKey, tuple[ReplicaFetcher, RemoteLeaderEndPoint, FetcherStatus, asyncio.Task[None]]
        ] = {}
        self._partitions: dict[TopicPartition, tuple[Partition, _FetcherKey]] = {}
        # How many partitions each fetcher has.
        self._sizes: dict[_FetcherKey, int] = {}

    def on_replica_changes(self, changes: ReplicaChanges) -> None:
        """Add and remove partitions after a metadata delta."""
        for partition in changes.leaders:
            self._remove_fetcher_for_partition(partition.topic_partition)
        for tp in changes.deleted:
            self._remove_fetcher_for_partition(tp)
        for partition in changes.followers:
            self._remove_fetcher_for_partition(partition.topic_partition)
            if partition.leader_id is not None:
                self._add_fetcher_for_partition(partition, partition.leader_id)
        self._shutdown_idle_fetchers()

    def remove_fetcher_for_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching partitions that this broker can no longer write."""
        for tp in partitions:
            self._remove_fetcher_for_partition(tp)
        self._shutdown_idle_fetchers()

    def resize(self, per_leader: int) -> None:
        """Spread the partitions over another number of fetchers per leader."""
        if per_leader == self._per_leader:
            return
        self._per_leader = per_leader
        for partition, (leader, _) in list(self._partitions.values()):
            self._remove_fetcher_for_partition(partition.topic_partition)
            self._add_fetcher_for_partition(partition, leader)
        self._shutdown_idle_fetchers()

    async def close(self) -> None:
        tasks = [self._shutdown(key) for key in list(self._fetchers)]
        self._partitions.clear()  # a directory may still fail after this, and its partitions be removed
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        """How many partitions are fetched."""
        return len(self._partitions)

    def statuses(self) -> list[FetcherStatus]:
        """How each fetcher fares."""
        return [replace(status, partitions=len(fetcher)) for fetcher, _, status, _ in self._fetchers.values()]

    def _add_fetcher_for_partition(self, partition: Partition, leader: int) -> None:
        tp = partition.topic_partition
        key = leader, (zlib.crc32(tp.topic.encode()) + tp.partition) % self._per_leader
        if key not in self._fetchers:
            leader_end_point = RemoteLeaderEndPoint(leader, self._channel(), self._address_of)
            fetcher = ReplicaFetcher(leader, leader_end_point, self._context)
            status = FetcherStatus(f"fetch from broker {leader}")
            task = asyncio.get_running_loop().create_task(self._supervise(fetcher, status), name=status.name)
            self._fetchers[key] = (fetcher, leader_end_point, status, task)
        self._fetchers[key][0].add(PartitionFetchState(partition))
        self._partitions[tp] = (partition, key)
        self._sizes[key] = self._sizes.get(key, 0) + 1

    def _remove_fetcher_for_partition(self, tp: TopicPartition) -> None:
        found = self._partitions.pop(tp, None)
        if found is not None:
            partition, key = found
            self._sizes[key] -= 1
            self._fetchers[key][0].remove(partition.topic_id, tp.partition)

    def _shutdown_idle_fetchers(self) -> None:
        for key in [key for key in self._fetchers if not self._sizes[key]]:
            self._shutdown(key)

    def _shutdown(self, key: _FetcherKey) -> asyncio.Task[None]:
        _, leader_end_point, _, task = self._fetchers.pop(key)
        del self._sizes[key]
        task.cancel()
        leader_end_point.close()
        return task

    async def _supervise(self, fetcher: ReplicaFetcher, status: FetcherStatus) -> None:
        """Run a fetcher until the task is cancelled, again after each error that ended it."""
        context = self._context
        pause_ms = _FIRST_RESTART_MS
        while True:
            began_ms = context.now_ms()
            try:
                await fetcher.run()
            except Exception as error:
                if context.now_ms() - began_ms >= _HEALTHY_MS:
                    pause_ms = _FIRST_RESTART_MS
                status.restarts += 1
                status.last_error = f"{type(error).__name__}: {error}"
                status.last_error_ms = context.clock.wall_ms()
                _log.exception("%s ended and is started again in %d ms", status.name, pause_ms)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _MAX_RESTART_MS)
