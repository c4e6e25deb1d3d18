"""Reports to the controller in which data directory each replica lies (AssignReplicasToDirs).

The controller needs it to know what is lost when a directory fails. A broker with several directories chooses
where a new replica goes, and may move it later; one whose only disk was replaced has all of them elsewhere. A
replica that moves is reported before it does: in the directory that the controller knows, it is or is about
to be. A replica whose log is damaged is in none of them, so that it cannot lead. Invariant: what differs from
the metadata is reported again until the controller has written it, or the replica is gone; either one ends
the waits of all that announced it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import DIRECTORY_DAMAGED, TopicImage
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.5
# A request of that many is made and decided in a few milliseconds.
_MAX_REPLICAS_PER_REQUEST: Final = 1_000


_Key: TypeAlias = tuple[bytes, int]


class DamagedReplica(NamedTuple):
    """A replica that is not served, because its log is damaged."""

    topic_id: bytes
    topic_partition: TopicPartition
    broker_id: int


_Replica: TypeAlias = Partition | DamagedReplica


@dataclass(frozen=True, slots=True)
class _Announcement:
    """Where a replica is about to be, and who waits until the controller has written that."""

    directory: bytes | None
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def complete(self) -> None:
        for each in self.waiting:
            if not each.done():
                each.set_result(None)

    def fail(self, replica: _Replica) -> None:
        for each in self.waiting:
            if not each.done():
                each.set_exception(_not_here(replica))


class AssignmentsManager:
    def __init__(
        self,
        tasks: TaskSupervisor,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller: ControllerChannel,
        metadata: MetadataCache,
    ) -> None:
        self._tasks: Final = tasks
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._controller: Final = controller
        self._metadata: Final = metadata
        self._waiting: dict[_Key, _Replica] = {}  # to be reported
        # Replicas that are about to lie in another directory, and its id.
        self._moving: dict[_Key, bytes] = {}
        # To be reported whatever the metadata say: an earlier report may be on its way.
        self._changed: set[_Key] = set()
        self._announced: dict[_Key, _Announcement] = {}
        self._task: SupervisedTask | None = None

    def report(self, partitions: Iterable[Partition]) -> None:
        """Report the replicas that are not where the metadata say."""
        topics = self._metadata.image.topics.by_id
        nothing_pending = not self._moving and not self._changed
        for partition in partitions:
            # Nearly all are where they are known to be, and a start comes by here with every one of them.
            directory = partition.log.directory.directory_id
            if not (
                nothing_pending and _known_directory(topics, partition) == directory
            ) and self._must_report(partition):
                self._waiting[_key(partition)] = partition
        self._start_sending()

    def _start_sending(self) -> None:
        if self._waiting and (self._task is None or self._task.is_done):
            # What was not answered is still waiting, so that it may start again after an error.
            self._task = self._tasks.start("assignment of replicas to directories", self._send_all)

    async def announce(self, partition: Partition, directory: bytes) -> None:
        """Have the controller write where a replica is about to be, and return once it has. KafkaError if it
        refuses: the replica is not assigned to this broker any more.
        """
        if not self._metadata.image.metadata_version.directory_assignment:
            return
        self._moving[_key(partition)] = directory
        await self._announce(partition)

    async def announce_damaged(self, replica: DamagedReplica) -> None:
        """Have the controller write that a replica's log is damaged, and return once it has: from then on the
        replica cannot be elected, and is not in sync if another one is. KafkaError as above.
        """
        if not self._metadata.image.metadata_version.directory_assignment:
            return
        self._moving.pop(_key(replica), None)
        await self._announce(replica)

    async def _announce(self, replica: _Replica) -> None:
        key, directory = _key(replica), self._directory(replica)
        announcement = self._announced.get(key)
        if announcement is None or announcement.directory != directory:
            if announcement is not None:
                announcement.fail(replica)
            announcement = self._announced[key] = _Announcement(directory)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        announcement.waiting.append(done)
        self._changed.add(key)
        if self._must_report(replica):
            self._waiting[key] = replica
            self._start_sending()
        else:
            done.set_exception(_not_here(replica))
        try:
            await done
        finally:
            announcement.waiting.remove(done)
            if not announcement.waiting and self._announced.get(key) is announcement:
                del self._announced[key]

    def is_announced(self, partition: Partition) -> bool:
        """Whether the controller may know of a directory where the replica is not yet."""
        return _key(partition) in self._moving

    def on_move_ended(self, partition: Partition) -> None:
        """End a move: the replica lies where its log is, and is not about to lie elsewhere."""
        key = _key(partition)
        if self._moving.pop(key, None) not in (None, partition.log.directory.directory_id):
            self._changed.add(key)
            self.report([partition])

    def _directory(self, replica: _Replica) -> bytes | None:
        if isinstance(replica, DamagedReplica):
            return DIRECTORY_DAMAGED
        return self._moving.get(_key(replica)) or replica.log.directory.directory_id

    def _must_report(self, partition: _Replica) -> bool:
        key, directory = _key(partition), self._directory(partition)
        image = self._metadata.image
        if directory is None or not image.metadata_version.directory_assignment:
            return False
        known = _known_directory(image.topics.by_id, partition)
        if known is None:
            self._changed.discard(key)
            return False
        return key in self._changed or known != directory

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _send_all(self) -> None:
        while True:
            reported = self._next_report()
            if not reported:
                return
            answers = await self._send(reported)
            if answers is None:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._on_answers(reported, answers)

    def _next_report(self) -> dict[_Key, bytes]:
        """The directories of as many replicas as one request takes: thousands may be waiting. Those that need
        no report any more are dropped, and what waits for their reports is completed.
        """
        reported: dict[_Key, bytes] = {}
        dropped: list[_Key] = []
        for key, replica in self._waiting.items():
            if not self._must_report(replica):
                dropped.append(key)
                continue
            reported[key] = self._directory(replica) or b""
            if len(reported) == _MAX_REPLICAS_PER_REQUEST:
                break
        topics = self._metadata.image.topics.by_id
        for key in dropped:
            replica = self._waiting.pop(key)
            self._complete(replica, written=_known_directory(topics, replica) == self._directory(replica))
        return reported

    def _complete(self, replica: _Replica, *, written: bool) -> None:
        """End the waits for a report of the replica."""
        announcement = self._announced.get(_key(replica))
        if announcement is None:
            return
        if written:
            announcement.complete()
        else:
            announcement.fail(replica)

    async def _send(self, reported: dict[_Key, bytes]) -> dict[_Key, ErrorCode] | None:
        """Send a report; return the code of each replica, or None if the controller did not take it."""
        try:
            response = await self._controller.request(self._make_request(reported), 0)
        except OSError as error:
            _log.info("the controller could not be asked to assign replicas to directories: %s", error)
            return None
        assert isinstance(response, AssignReplicasToDirsResponse)
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode.of(response.error_code).name
            _log.info("the controller refused to assign replicas to directories: %s", code)
            return None
        return {
            (bytes(topic.topic_id), partition.partition_index): ErrorCode.of(partition.error_code)
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
        }

    def _on_answers(self, reported: dict[_Key, bytes], answers: dict[_Key, ErrorCode]) -> None:
        """Forget what was reported. Replicas that the controller refuses are gone."""
        for key, directory in reported.items():
            partition = self._waiting[key]
            if self._directory(partition) != directory:
                self._changed.add(key)  # it has changed meanwhile
                continue
            del self._waiting[key]
            self._changed.discard(key)
            self._complete(partition, written=answers.get(key) is ErrorCode.NONE)

    def _make_request(self, reported: dict[_Key, bytes]) -> AssignReplicasToDirsRequest:
        directories: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory in reported.items():
            directories.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        return AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
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


def _not_here(partition: _Replica) -> KafkaError:
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {partition.broker_id} has no replica of {partition.topic_partition} any more",
    )


def _known_directory(topics: Mapping[bytes, TopicImage], partition: _Replica) -> bytes | None:
    """The directory of the replica by the metadata; None if there is no such replica."""
    topic = topics.get(partition.topic_id)
    registration = None if topic is None else topic.partitions.get(partition.topic_partition.partition)
    if registration is None or partition.broker_id not in registration.replicas:
        return None
    return registration.directory(partition.broker_id)


def _key(partition: _Replica) -> _Key:
    return partition.topic_id, partition.topic_partition.partition
