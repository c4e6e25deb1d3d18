"""All that this broker follows, by leader: a fetcher for each broker that leads something of which it has a
replica.

It goes by what following the metadata changed: a partition that is followed in a new epoch moves to the
fetcher of its new leader, one that is led here or deleted leaves. A fetcher without partitions ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ottla.log.files import TopicPartition
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Request, Response
from ottla.raft.channel import Channel
from ottla.raft.voters import Address
from ottla.replication.fetcher import Fetcher, FetcherConfig
from ottla.replication.following import Following
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)


class _Broker:
    """The way to a broker: where it is may change with every new registration of it."""

    def __init__(self, channel: Channel, where: Callable[[], Address | None], broker: int) -> None:
        self._channel: Final = channel
        self._where: Final = where
        self._broker: Final = broker

    async def ask(self, request: Request, newest_version: int, timeout_ms: int) -> Response:
        address = self._where()
        if address is None:
            raise ConnectionError(f"broker {self._broker} is not registered with an address for brokers")
        try:
            return await self._channel.ask(address, request, newest_version, timeout_ms=timeout_ms)
        except TimeoutError:
            self._channel.drop(address)
            raise


class Fetchers:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        channel: Channel,
        clock: Clock,
        listener: str,
        config: FetcherConfig,
        *,
        failed: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        """``listener`` is the name of the one by which brokers talk to each other."""
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._channel: Final = channel
        self._clock: Final = clock
        self._listener: Final = listener
        self._config: Final = config
        self._failed: Final = failed
        self._image = MetadataImage.EMPTY
        self._fetchers: dict[int, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._where: dict[TopicPartition, tuple[bytes, int]] = {}  # topic id, leader

    def follow(self, image: MetadataImage, changes: ReplicaChanges) -> None:
        """Act upon what following the image has changed."""
        self._image = image
        for partition in changes.leaders:
            self._leave(partition.topic_partition)
        for tp in changes.deleted:
            self._leave(tp)
        for partition in changes.followers:
            self._leave(partition.topic_partition)
            if partition.leader_id is not None:
                self._join(partition, partition.leader_id)
        for leader in [leader for leader, (fetcher, _) in self._fetchers.items() if not len(fetcher)]:
            self._end(leader)

    def _join(self, partition: Partition, leader: int) -> None:
        if leader not in self._fetchers:
            fetcher = self._fetcher(leader)
            task = asyncio.get_running_loop().create_task(fetcher.run(), name=f"fetch from broker {leader}")
            task.add_done_callback(_ended)
            self._fetchers[leader] = (fetcher, task)
        self._fetchers[leader][0].add(Following(partition))
        self._where[partition.topic_partition] = (partition.topic_id, leader)

    def _fetcher(self, leader: int) -> Fetcher:
        return Fetcher(
            leader,
            _Broker(self._channel, lambda: self._address(leader), leader),
            self._broker_id,
            self._broker_epoch,
            self._clock,
            self._config,
            failed=self._failed,
        )

    def _address(self, broker: int) -> Address | None:
        registration = self._image.cluster.brokers.get(broker)
        endpoint = None if registration is None else registration.listeners.get(self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def _leave(self, tp: TopicPartition) -> None:
        topic_id, leader = self._where.pop(tp, (b"", -1))
        if leader in self._fetchers:
            self._fetchers[leader][0].remove(topic_id, tp.partition)

    def _end(self, leader: int) -> asyncio.Task[None]:
        _, task = self._fetchers.pop(leader)
        task.cancel()
        return task

    async def close(self) -> None:
        tasks = [self._end(leader) for leader in list(self._fetchers)]
        await asyncio.gather(*tasks, return_exceptions=True)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended, and with it what it followed", task.get_name(), exc_info=task.exception())
