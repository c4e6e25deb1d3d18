"""The fetchers of this broker: `num.replica.fetchers` for each leader of partitions that it follows.

A partition that is followed in a new epoch moves to a fetcher of its new leader; one that this broker leads,
or no longer hosts, leaves its fetcher. A fetcher without partitions ends; one that an error ends is started
again with its partitions (`TaskSupervisor`). Invariant: a partition is with one fetcher at most, so its
fetches never overtake each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import PartitionFetchState
from ottla.replication.replica_fetcher import ReplicaFetcher, ReplicaFetcherContext
from ottla.replication.replica_manager import ReplicaChanges
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

_FetcherKey: TypeAlias = tuple[int, int]
"""A leader, and the number of one of the fetchers from it."""


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
        tasks: TaskSupervisor,
        context: ReplicaFetcherContext,
        channel: Callable[[], InterNodeClient],
        address_of: Callable[[int], Address | None],
        *,
        per_leader: int = 1,
    ) -> None:
        self._tasks: Final = tasks
        self._context: Final = context
        self._channel: Final = channel
        self._address_of: Final = address_of
        self._per_leader = per_leader
        self._fetchers: dict[_FetcherKey, tuple[ReplicaFetcher, RemoteLeaderEndPoint, SupervisedTask]] = {}
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
        await self._tasks.stop(tasks)
        # What they find may still be truncated to.
        await self._context.tier_lookups.close()
        await self._context.truncations.close()

    def __len__(self) -> int:
        """How many partitions are fetched."""
        return len(self._partitions)

    def states(self) -> Iterator[PartitionFetchState]:
        """The partitions that are fetched, with how far they are."""
        for fetcher, _, _ in self._fetchers.values():
            yield from fetcher.states()

    @property
    def fetchers(self) -> int:
        return len(self._fetchers)

    def _add_fetcher_for_partition(self, partition: Partition, leader: int) -> None:
        tp = partition.topic_partition
        key = leader, (zlib.crc32(tp.topic.encode()) + tp.partition) % self._per_leader
        if key not in self._fetchers:
            leader_end_point = RemoteLeaderEndPoint(leader, self._channel(), self._address_of)
            fetcher = ReplicaFetcher(leader, leader_end_point, self._context)
            task = self._tasks.start(f"fetch from broker {leader}", fetcher.run)
            self._fetchers[key] = (fetcher, leader_end_point, task)
            self._sizes[key] = 0
        self._fetchers[key][0].add(PartitionFetchState(partition))
        self._partitions[tp] = (partition, key)
        self._sizes[key] += 1

    def _remove_fetcher_for_partition(self, tp: TopicPartition) -> None:
        found = self._partitions.pop(tp, None)
        if found is not None:
            partition, key = found
            self._sizes[key] -= 1
            self._fetchers[key][0].remove(partition.topic_id, tp.partition)

    def _shutdown_idle_fetchers(self) -> None:
        for key in [key for key in self._fetchers if not self._sizes[key]]:
            self._shutdown(key)

    def _shutdown(self, key: _FetcherKey) -> SupervisedTask:
        _, leader_end_point, task = self._fetchers.pop(key)
        del self._sizes[key]
        task.cancel()
        leader_end_point.close()
        return task
