"""Have damaged replicas of this broker fetched again from their leaders, without an operator.

A replica whose log is damaged lacks records that it has acknowledged. Were it elected, the others would
truncate to it. So it is first reported to the controller, which takes it out of the in-sync and the eligible
replicas and does not let it lead; before a broker that starts is unfenced, that is done. Only once the image
shows that another broker leads, and that this one is neither in sync nor eligible, the damaged log is set
aside and the partition created again, empty, as a follower. It is in sync again when it has fetched
everything. Without another leader the damaged log stays where it is, and the operator decides.

Damage that is met while a log is served is confirmed by a second look at the file. Where another replica is
in sync, or leads, this one is given up and fetched again in the same way. Where none is, headers of batches
are mended if their records are whole, and the log goes on to serve what can be read, until another one is.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.log.directory.dir_names import DirKind, parse_dir_name
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import DIRECTORY_DAMAGED, NO_LEADER, PartitionRegistration, TopicImage
from ottla.node.cluster.assignments_manager import AssignmentsManager, DamagedReplica
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.replica_manager import is_led_without
from ottla.runtime.pool import Pool
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

_log = logging.getLogger(__name__)


class DamagedReplicas:
    def __init__(
        self,
        tasks: TaskSupervisor,
        broker_id: int,
        metadata: MetadataCache,
        logs: LogManager,
        assignments: AssignmentsManager,
        pool: Pool,
        host_again: Callable[[], Awaitable[None]],
        give_up: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        """`host_again` has the partitions hosted whose damaged logs were set aside, `give_up` ends the
        service of a partition.
        """
        self._tasks: Final = tasks
        self._broker_id: Final = broker_id
        self._metadata: Final = metadata
        self._logs: Final = logs
        self._assignments: Final = assignments
        self._pool: Final = pool
        self._host_again: Final = host_again
        self._give_up: Final = give_up
        self._task: SupervisedTask | None = None
        self._examination: SupervisedTask | None = None
        # Why replicas could not be set aside, as it was last logged.
        self._refused: dict[TopicPartition, str] = {}
        # Logs in which damage was met while they are served, and the first error of each.
        self._met: dict[UnifiedLog, KafkaError] = {}
        # Those of them that are damaged indeed, and are served because no other replica has their records.
        self._examined: dict[UnifiedLog, None] = {}

    async def announce(self) -> None:
        """Report all damaged replicas that the controller does not know; return once it has written that."""
        reports = [
            self._assignments.announce_damaged(DamagedReplica(topic.id, tp, self._broker_id))
            for tp, topic, registration in self._registered()
            if not self._is_known(registration)
        ]
        for result in await asyncio.gather(*reports, return_exceptions=True):
            if isinstance(result, KafkaError):
                _log.info("a damaged replica was not reported: %s", result.message)
            elif isinstance(result, BaseException):
                raise result

    def check(self) -> None:
        """See whether damaged replicas are to be reported, or can be fetched again: the metadata, or what is
        damaged, has changed. Costs nothing where nothing is damaged.
        """
        if self._examined:
            self._give_up_examined()
        if self._logs.has_failed and (self._task is None or self._task.is_done):
            self._task = self._tasks.start("repair of damaged replicas", self._repair)

    def on_damage(self, log_dir: str, error: KafkaError) -> None:
        """Examine a log in which damage was met, once."""
        try:
            tp, kind = parse_dir_name(posixpath.basename(log_dir))
            log = self._logs.get_log(tp) if kind is DirKind.CURRENT else None
        except KafkaError:
            return  # it is not served any more
        if log is None or log.dir != log_dir or log in self._met:
            return
        self._met[log] = error
        if self._examination is None or self._examination.is_done:
            self._examination = self._tasks.start("examination of damaged logs", self._examine)

    async def _examine(self) -> None:
        while pending := [log for log in self._met if log not in self._examined]:
            log, error = pending[0], self._met[pending[0]]
            found = await self._pool.run(log.confirm_damage, error)
            tp = log.topic_partition
            if found is None or (not self._has_another(tp) and await self._mend(log)):
                del self._met[log]
                continue
            self._examined[log] = None
            if not log.is_closed and not self._has_another(tp):
                _log.error("%s is damaged, and no other replica has its records: %s", tp, found)
            self.check()

    async def _mend(self, log: UnifiedLog) -> bool:
        """Mend what can be mended without another replica; whether that was all."""
        try:
            return not log.is_closed and await self._pool.run(log.mend_headers)
        except (KafkaError, OSError) as error:
            _log.error("%s could not be mended: %s", log.topic_partition, error)
            return False

    def _give_up_examined(self) -> None:
        """Give up the damaged logs whose records another replica has by now; forget those that are closed."""
        for log in list(self._examined):
            if log.is_closed:
                del self._examined[log], self._met[log]
            elif self._has_another(log.topic_partition):
                error = self._met.pop(log)
                del self._examined[log]
                self._give_up(log.topic_partition, error)

    def _has_another(self, tp: TopicPartition) -> bool:
        """Whether another replica leads the partition, or is in sync or eligible, so that it can lead."""
        topic = self._metadata.image.topics.by_name.get(tp.topic)
        found = None if topic is None else topic.partitions.get(tp.partition)
        return found is not None and (
            found.leader not in (NO_LEADER, self._broker_id)
            or bool({*found.isr, *found.elr} - {self._broker_id})
        )

    async def stop(self) -> None:
        if self._examination is not None:
            await self._examination.stop()
        if self._task is not None:
            await self._task.stop()

    async def _repair(self) -> None:
        await self.announce()
        aside = False
        for tp, _, registration in self._registered():
            if self._is_known(registration) and is_led_without(registration, self._broker_id):
                try:
                    await self._logs.set_aside(tp)
                except KafkaError as error:
                    if self._refused.get(tp) != error.message:
                        self._refused[tp] = error.message
                        _log.error("%s is not fetched again: %s", tp, error.message)
                else:
                    self._refused.pop(tp, None)
                    aside = True
        if aside:
            await self._host_again()

    def _registered(self) -> list[tuple[TopicPartition, TopicImage, PartitionRegistration]]:
        """The damaged replicas that the newest image assigns to this broker."""
        found = []
        for tp in self._logs.failed:
            topic = self._metadata.image.topics.by_name.get(tp.topic)
            registration = None if topic is None else topic.partitions.get(tp.partition)
            if topic is not None and registration is not None and self._broker_id in registration.replicas:
                found.append((tp, topic, registration))
        return found

    def _is_known(self, registration: PartitionRegistration) -> bool:
        """Whether the controller knows that the replica is damaged, if it can know that at all."""
        return (
            registration.directory(self._broker_id) == DIRECTORY_DAMAGED
            or not self._metadata.image.metadata_version.directory_assignment
        )
