"""Changes of in-sync sets go to the controller in batches, the newest of each partition, until answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.alter_partition_manager import SENT_AT_ONCE, AlterPartitionManager
from ottla.replication.partition import Partition
from ottla.runtime.tasks import TaskSupervisor
from tests.replication.partition_harness import TOPIC_ID, PartitionHarness, registration


class Controller:
    """Gives the queued answers one after the other, and then agrees to every change."""

    def __init__(self, *answers: Exception | ErrorCode) -> None:
        self.answers = list(answers)
        self.asked: list[AlterPartitionRequest] = []

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        if answer in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH):
            return AlterPartitionResponse(error_code=answer)
        (topic,) = request.topics
        (partition,) = topic.partitions
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponseTopicData(
                    topic_id=TOPIC_ID,
                    partitions=[
                        AlterPartitionResponsePartitionData(
                            error_code=answer,
                            leader_epoch=partition.leader_epoch,
                            partition_epoch=partition.partition_epoch + 1,
                            isr=[state.broker_id for state in partition.new_isr_with_epochs],
                        )
                    ],
                )
            ]
        )


def lives(leader: PartitionHarness, controller: Controller) -> None:
    async def live() -> None:
        tasks = TaskSupervisor(leader.clock, pytest.fail)
        changes = AlterPartitionManager(tasks, 0, lambda: 7, controller.ask, leader.clock)
        changes.submit(leader.partition, leader.proposals[-1])
        async with asyncio.timeout(60):
            while tasks.statuses():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)

    asyncio.run(live())


def caught_up() -> PartitionHarness:
    leader = PartitionHarness(replicas=(0, 1, 2), isr=(0,))
    leader.follow(1, 0, epoch=41)
    return leader


def test_the_controllers_answer_reaches_the_partition() -> None:
    leader, controller = caught_up(), Controller()
    lives(leader, controller)
    assert leader.partition.isr == {0, 1}
    (request,) = controller.asked
    states = request.topics[0].partitions[0].new_isr_with_epochs
    assert [(state.broker_id, state.broker_epoch) for state in states] == [(0, -1), (1, 41)]
    assert (request.broker_id, request.broker_epoch) == (0, 7)


def test_what_did_not_get_through_is_sent_again() -> None:
    leader = caught_up()
    controller = Controller(ConnectionResetError(), ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION)
    lives(leader, controller)
    assert len(controller.asked) == 4
    assert leader.partition.isr == {0, 1}


def test_an_error_of_the_program_loses_no_change() -> None:
    leader, controller = caught_up(), Controller(ValueError("not expected"))
    lives(leader, controller)
    assert len(controller.asked) == 2
    assert leader.partition.isr == {0, 1}


def test_a_refusal_that_says_we_are_behind_waits_for_the_metadata() -> None:
    leader, controller = caught_up(), Controller(ErrorCode.INVALID_UPDATE_VERSION)
    lives(leader, controller)
    assert len(controller.asked) == 1
    assert leader.partition.isr == {0}
    assert leader.partition.pending_change is not None


class ManyController:
    """Agrees to every change, or refuses those of some partitions."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.refused: dict[int, ErrorCode] = {}

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        await asyncio.sleep(0)
        (topic,) = request.topics
        self.sizes.append(len(topic.partitions))
        answers = [
            AlterPartitionResponsePartitionData(
                partition_index=asked.partition_index,
                error_code=self.refused.pop(asked.partition_index, ErrorCode.NONE),
                leader_epoch=asked.leader_epoch,
                partition_epoch=asked.partition_epoch + 1,
                isr=[state.broker_id for state in asked.new_isr_with_epochs],
            )
            for asked in topic.partitions
        ]
        return AlterPartitionResponse(
            topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=answers)]
        )


def many_caught_up(count: int) -> tuple[PartitionHarness, list[Partition]]:
    """Partitions that share a log, each of which proposes to add broker 1."""
    shared = PartitionHarness(lead=False)
    partitions = []
    for index in range(count):
        partition = Partition(TopicPartition("orders", index), TOPIC_ID, shared.log, 0, shared)
        partition.make_leader(registration(replicas=(0, 1), isr=(0,)), shared.now_ms)
        partition._submit_alter_partition(frozenset((0, 1)))
        partitions.append(partition)
    return shared, partitions


def submit_all(controller: ManyController, shared: PartitionHarness, partitions: list[Partition]) -> None:
    async def live() -> None:
        tasks = TaskSupervisor(shared.clock, pytest.fail)
        changes = AlterPartitionManager(tasks, 0, lambda: 7, controller.ask, shared.clock)
        for partition in partitions:
            change = partition.pending_change
            assert change is not None
            changes.submit(partition, change)
        async with asyncio.timeout(60):
            while tasks.statuses():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.001)

    asyncio.run(live())


def test_thousands_of_changes_go_out_in_bounded_requests() -> None:
    shared, partitions = many_caught_up(2 * SENT_AT_ONCE + 3)
    controller = ManyController()
    submit_all(controller, shared, partitions)
    assert controller.sizes == [SENT_AT_ONCE, SENT_AT_ONCE, 3]
    assert all(partition.isr == {0, 1} for partition in partitions)


def test_a_refused_change_and_one_that_fails_here_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, partitions = many_caught_up(10)
    controller = ManyController()
    controller.refused = {3: ErrorCode.NETWORK_EXCEPTION, 4: ErrorCode.INVALID_UPDATE_VERSION}
    update = Partition.handle_alter_partition_update

    def failing(partition: Partition, *answer: Any) -> None:
        if partition is partitions[1]:
            raise RuntimeError("a defect")
        update(partition, *answer)

    monkeypatch.setattr(Partition, "handle_alter_partition_update", failing)
    submit_all(controller, shared, partitions)
    assert controller.sizes == [10, 1], "only the change that may be accepted later is sent again"
    others = [partition for index, partition in enumerate(partitions) if index not in (1, 4)]
    assert all(partition.isr == {0, 1} for partition in others)
