"""All that this broker follows, by leader: `num.replica.fetchers` for each broker that leads something of
which it has a replica.

It goes by what following the metadata changed: a partition that is followed in a new epoch moves to a
fetcher of its new leader, one that is led here or gone leaves. A fetcher without partitions ends. Invariant:
a partition is with one fetcher at most, so its fetches never overtake each other.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
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

_Place: TypeAlias = tuple[int, int]
"""A leader, and which of the fetchers from it."""


class RemoteLeaderEndPoint:
    """A fetcher's own way to a leader, whose address may change with every new registration of it."""

    __slots__ = ("_broker", "_channel", "_where")

    def __init__(self, broker: int, channel: InterNodeClient, where: Callable[[int], Address | None]) -> None:
        self._broker: Final = broker
        self._channel: Final = channel
        self._where: Final = where

    async def ask(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        address = self._where(self._broker)
        if address is None:
            raise ConnectionError(f"broker {self._broker} is not registered with an address for brokers")
        try:
            return await self._channel.request(address, request, newest_version, timeout_ms=timeout_ms)
        except TimeoutError:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        self._channel.drop_all()

    def close(self) -> None:
        self._channel.close()


class ReplicaFetcherManager:
    """`channel` makes the connections of one fetcher; `where` knows the addresses of brokers."""

    def __init__(
        self,
        context: ReplicaFetcherContext,
        channel: Callable[[], InterNodeClient],
        where: Callable[[int], Address | None],
        *,
        per_leader: int = 1,
    ) -> None:
        self._context: Final = context
        self._channel: Final = channel
        self._where: Final = where
        self._per_leader = per_leader
        self._fetchers: dict[_Place, tuple[ReplicaFetcher, RemoteLeaderEndPoint, asyncio.Task[None]]] = {}
        self._places: dict[TopicPartition, tuple[Partition, _Place]] = {}

    def follow(self, changes: ReplicaChanges) -> None:
        """Act upon what following the metadata has changed."""
        for partition in changes.leaders:
            self._leave(partition.topic_partition)
        for tp in changes.deleted:
            self._leave(tp)
        for partition in changes.followers:
            self._leave(partition.topic_partition)
            if partition.leader_id is not None:
                self._join(partition, partition.leader_id)
        self._end_idle()

    def resigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that this broker can no longer write."""
        for tp in partitions:
            self._leave(tp)
        self._end_idle()

    def configure(self, per_leader: int) -> None:
        """Spread what is followed over another number of fetchers."""
        if per_leader == self._per_leader:
            return
        self._per_leader = per_leader
        for partition, (leader, _) in list(self._places.values()):
            self._leave(partition.topic_partition)
            self._join(partition, leader)
        self._end_idle()

    async def close(self) -> None:
        tasks = [self._end(place) for place in list(self._fetchers)]
        self._places.clear()  # a directory may still fail, and its partitions be given up
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        """How many partitions are followed."""
        return len(self._places)

    def _join(self, partition: Partition, leader: int) -> None:
        tp = partition.topic_partition
        place = leader, (zlib.crc32(tp.topic.encode()) + tp.partition) % self._per_leader
        if place not in self._fetchers:
            link = RemoteLeaderEndPoint(leader, self._channel(), self._where)
            fetcher = ReplicaFetcher(leader, link, self._context)
            task = asyncio.get_running_loop().create_task(fetcher.run(), name=f"fetch from broker {leader}")
            task.add_done_callback(_ended)
            self._fetchers[place] = (fetcher, link, task)
        self._fetchers[place][0].add(PartitionFetchState(partition))
        self._places[tp] = (partition, place)

    def _leave(self, tp: TopicPartition) -> None:
        found = self._places.pop(tp, None)
        if found is not None:
            partition, place = found
            self._fetchers[place][0].remove(partition.topic_id, tp.partition)

    def _end_idle(self) -> None:
        used = {place for _, place in self._places.values()}
        for place in [place for place in self._fetchers if place not in used]:
            self._end(place)

    def _end(self, place: _Place) -> asyncio.Task[None]:
        _, link, task = self._fetchers.pop(place)
        task.cancel()
        link.close()
        return task


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended, and with it what it followed", task.get_name(), exc_info=task.exception())
