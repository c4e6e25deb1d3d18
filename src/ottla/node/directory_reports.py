"""Tells the controller in which of the data directories each replica lies (AssignReplicasToDirs).

The controller needs it to know what is lost when a directory fails. A broker with one directory need not
tell; one with several chooses where a new replica goes, and may move it later. Invariant: what the metadata
says differently is told again until the controller has written it down, or the replica is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.node.node import Node

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.5
_MOST_AT_ONCE: Final = 2_000


class DirectoryReports:
    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self._waiting: dict[tuple[bytes, int], Partition] = {}
        self._task: asyncio.Task[None] | None = None

    def check(self, partitions: Iterable[Partition]) -> None:
        """Tell of those that the metadata does not know where they are."""
        for partition in partitions:
            if self._is_news(partition):
                self._waiting[partition.topic_id, partition.topic_partition.partition] = partition
        if self._waiting and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell_all(), name="directory reports")

    def _is_news(self, partition: Partition) -> bool:
        image = self._node.image
        topic = image.topics.by_id.get(partition.topic_id)
        registration = None if topic is None else topic.partitions.get(partition.topic_partition.partition)
        directory = partition.log.directory.directory_id
        if registration is None or directory is None or partition.broker_id not in registration.replicas:
            return False
        if not image.metadata_version.directory_assignment:
            return False
        return registration.directory(partition.broker_id) != directory

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell_all(self) -> None:
        try:
            while True:
                keys = [key for key, partition in self._waiting.items() if self._is_news(partition)]
                told = {key: self._waiting[key] for key in keys[:_MOST_AT_ONCE]}
                if not told:
                    self._waiting.clear()
                    return
                if await self._tell(told):
                    for key in told:
                        self._waiting.pop(key, None)
                else:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._task = None

    async def _tell(self, told: dict[tuple[bytes, int], Partition]) -> bool:
        """Whether the controller has heard; what it refuses is about replicas that are gone."""
        try:
            response = await self._node.controllers.ask(self._request(told), 0)
        except OSError as error:
            _log.info("the controller could not be told of directories: %s", error)
            return False
        assert isinstance(response, AssignReplicasToDirsResponse)
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode.of(response.error_code).name
            _log.info("the controller does not want to hear of directories: %s", code)
            return False
        return True

    def _request(self, told: dict[tuple[bytes, int], Partition]) -> AssignReplicasToDirsRequest:
        directories: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), partition in told.items():
            directory = partition.log.directory.directory_id
            assert directory is not None
            directories.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        return AssignReplicasToDirsRequest(
            broker_id=self._node.config.node_id,
            broker_epoch=self._node.broker_epoch,
            directories=[
                AssignReplicasToDirsRequestDirectoryData(
                    id=directory,
                    topics=[
                        AssignReplicasToDirsRequestTopicData(
                            topic_id=topic_id,
                            partitions=[
                                AssignReplicasToDirsRequestPartitionData(partition_index=index)
                                for index in indexes
                            ],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory, topics in directories.items()
            ],
        )
