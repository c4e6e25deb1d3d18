"""Send the changes of in-sync sets to the controller (AlterPartition).

Changes that are submitted while a request is under way go together in the next ones, only the newest of each
partition and a bounded number in each request. The response goes to the partition, which knows whether it
still counts; a change that the controller could not process now is sent again, behind those that wait.
Invariant: at most one request is under way, so the controller sees the changes of a partition in their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition, PendingPartitionChange
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

RETRY_MS: Final = 50
SENT_AT_ONCE: Final = 500
"""Changes in one request."""

_Changes: TypeAlias = dict[TopicPartition, tuple[Partition, PendingPartitionChange]]


class AlterPartitionManager:
    def __init__(
        self,
        tasks: TaskSupervisor,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send_request: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]],
        clock: Clock,
    ) -> None:
        """`send_request` sends to the active controller; OSError if it cannot, or gets no response."""
        self._tasks: Final = tasks
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._send_request: Final = send_request
        self._clock: Final = clock
        self._waiting: _Changes = {}
        self._task: SupervisedTask | None = None

    def submit(self, partition: Partition, change: PendingPartitionChange) -> None:
        self._waiting[partition.topic_partition] = (partition, change)
        if self._task is None or self._task.is_done:
            self._task = self._tasks.start("in-sync sets", self._send_all)

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _send_all(self) -> None:
        while self._waiting:
            sent = self._take()
            unsent = sent
            try:
                unsent = await self._send(sent)
            finally:
                # After an error all of them are sent again: the partitions know which still count.
                for tp, each in unsent.items():
                    self._waiting.setdefault(tp, each)
            if unsent:
                await asyncio.sleep(RETRY_MS / 1000)

    def _take(self) -> _Changes:
        """Take the changes of one request off those that wait, without those that have lapsed."""
        taken = {tp: self._waiting[tp] for tp in islice(self._waiting, SENT_AT_ONCE)}
        if len(taken) == len(self._waiting):
            self._waiting = {}
        else:
            for tp in taken:
                del self._waiting[tp]
        return {tp: each for tp, each in taken.items() if each[0].pending_change is each[1]}

    async def _send(self, current: _Changes) -> _Changes:
        """Send these changes; returns those to send again."""
        if not current:
            return {}
        try:
            response = await self._send_request(self._request([change for _, change in current.values()]))
        except OSError as error:
            _log.info("cannot send in-sync sets to the controller: %s", error)
            return current
        if response.error_code != ErrorCode.NONE:
            # Not the controller, or this broker's registration is outdated: the metadata log will bring the
            # new state.
            _log.info("the controller answers AlterPartition with %s", ErrorCode.of(response.error_code).name)
            return current
        answers = {
            (bytes(topic.topic_id), answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        again = {}
        turns = Turns(self._clock)
        for tp, (partition, change) in current.items():
            found = answers.get((change.topic_id, tp.partition))
            try:
                if found is None or self._handle_response(partition, change, found):
                    again[tp] = (partition, change)
            except Exception:
                # The controller has decided: to ask again would be in vain, and hold up the others. If the
                # change was made, the metadata log brings it too.
                _log.exception("%s: the controller's response could not be processed", tp)
            await turns.pause_if_due()
        return again

    def _handle_response(
        self,
        partition: Partition,
        change: PendingPartitionChange,
        answer: AlterPartitionResponsePartitionData,
    ) -> bool:
        """Pass the result on to the partition; True if the change is to be sent again."""
        if answer.error_code != ErrorCode.NONE:
            return partition.handle_alter_partition_error(change, ErrorCode.of(answer.error_code))
        now = self._clock.wall_ms()
        partition.handle_alter_partition_update(
            change, answer.isr, answer.leader_epoch, answer.partition_epoch, now
        )
        return False

    def _request(self, changes: list[PendingPartitionChange]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for change in changes:
            topic = topics.setdefault(
                change.topic_id, AlterPartitionRequestTopicData(topic_id=change.topic_id)
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=change.partition.partition,
                    leader_epoch=change.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=id, broker_epoch=epoch)
                        for id, epoch in zip(change.isr, change.broker_epochs, strict=True)
                    ],
                    partition_epoch=change.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )
