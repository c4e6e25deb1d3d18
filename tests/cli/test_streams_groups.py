"""`ottla streams-groups`: topologies, tasks, lag, and offsets that are reset or deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.client.settings import ConnectionConfig
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.runtime import Runtime
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0


async def beat(coordinator: CoordinatorClient, **fields: Any) -> StreamsGroupHeartbeatResponse:
    answer = await coordinator.call(
        StreamsGroupHeartbeatRequest(**fields), StreamsGroupHeartbeatResponse, lambda each: [each.error_code]
    )
    assert answer.error_code == 0, answer
    return answer


async def join(servers: str, group: str, topic: str, *, leave: bool) -> None:
    """Be a member that gets both tasks; stay if it is not to leave."""
    runtime = Runtime.real(pool_workers=1)
    cluster = NetworkClient(runtime, ConnectionConfig(servers, client_id="a-stream"))
    coordinator = CoordinatorClient(cluster, CoordinatorType.GROUP, group, timeout_ms=60_000)
    try:
        member: dict[str, Any] = {"group_id": group, "member_id": "member-1"}
        tasks: list[TaskIds] = []
        answer = await beat(
            coordinator,
            **member,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            process_id="process-1",
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            topology=Topology(
                epoch=1,
                subtopologies=[
                    Subtopology(
                        subtopology_id="0",
                        source_topics=[topic],
                        state_changelog_topics=[TopicInfo(name=f"{group}-counts-changelog")],
                    )
                ],
            ),
        )
        async with asyncio.timeout(DEADLINE_S):
            while True:
                tasks = answer.active_tasks or tasks
                if tasks and len(tasks[0].partitions) == 2:
                    break
                answer = await beat(coordinator, **member, member_epoch=answer.member_epoch)
        await beat(
            coordinator,
            **member,
            member_epoch=answer.member_epoch,
            active_tasks=tasks,
            standby_tasks=[],
            warmup_tasks=[],
        )
        if leave:
            await beat(coordinator, **member, member_epoch=-1)
    finally:
        await cluster.close()
        runtime.close()


@pytest.fixture
def group(ottla: CommandLine, topic: str) -> str:
    """A streams group without members that has committed offset 3 of 5 in partition 0."""
    name = f"streams-of-{topic}"
    ottla.ok("produce", topic, *"abcde", "-p", "0")

    async def make() -> None:
        await join(ottla.bootstrap_servers, name, topic, leave=True)
        async with Admin(ottla.bootstrap_servers) as admin:
            results = await admin.groups.alter_offsets(name, {TopicPartition(topic, 0): 3})
            assert results == {TopicPartition(topic, 0): None}

    asyncio.run(make())
    return name


def test_a_group_is_described_with_its_topology_and_tasks(ottla: CommandLine, topic: str) -> None:
    name = f"streams-of-{topic}"
    asyncio.run(join(ottla.bootstrap_servers, name, topic, leave=False))
    document = ottla.ok("streams-groups", "describe", name, "--json").json
    (part,) = document["subtopologies"]
    assert part["source_topics"] == [topic]
    assert part["state_changelog_topics"] == [f"{name}-counts-changelog"]
    (member,) = document["members"]
    assert (member["client_id"], member["process"]) == ("a-stream", "process-1")
    assert member["target_tasks"]["active"] == ["0_0", "0_1"]
    shown = ottla.ok("streams-groups", "describe", name).out
    assert f"{name}-counts-changelog" in shown
    assert "0_0" in shown
    assert "0_0" in ottla.ok("groups", "describe", name).out
    refused = ottla.fails("streams-groups", "delete", name, "--yes")
    assert "a-stream" in refused.err


def test_a_group_that_is_not_ready_names_the_topics_that_are_missing(ottla: CommandLine) -> None:
    name, missing = "streams-not-ready", "streams-nosuch"

    async def join_once() -> None:
        runtime = Runtime.real(pool_workers=1)
        cluster = NetworkClient(runtime, ConnectionConfig(ottla.bootstrap_servers))
        coordinator = CoordinatorClient(cluster, CoordinatorType.GROUP, name, timeout_ms=60_000)
        try:
            await beat(
                coordinator,
                group_id=name,
                member_id="member-1",
                member_epoch=0,
                rebalance_timeout_ms=30_000,
                process_id="process-1",
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
                topology=Topology(
                    epoch=1, subtopologies=[Subtopology(subtopology_id="0", source_topics=[missing])]
                ),
            )
        finally:
            await cluster.close()
            runtime.close()

    asyncio.run(join_once())
    shown = ottla.ok("streams-groups", "describe", name)
    assert f"source topics are missing, or hidden from this user: {missing};" in shown.err
    document = ottla.ok("streams-groups", "describe", name, "--json").json
    assert (document["state"], document["missing_topics"]) == ("NotReady", [missing])


def test_a_group_is_listed_and_its_lag_is_shown(ottla: CommandLine, topic: str, group: str) -> None:
    assert group in ottla.ok("streams-groups", "list").out
    lag = ottla.ok("streams-groups", "lag", group, "--json").json
    assert lag["lag"] == 2
    assert lag == ottla.ok("groups", "lag", group, "--json").json


@pytest.mark.witness
def test_offsets_are_reset_and_deleted(ottla: CommandLine, topic: str, group: str) -> None:
    reset = ("streams-groups", "reset-offsets", group, "--to", "beginning", "--topic", f"{topic}:0")
    assert "Nothing was changed" in ottla.ok(*reset).err
    ottla.ok(*reset, "--execute")
    assert ottla.ok("streams-groups", "lag", group, "--json").json["lag"] == 5
    ottla.ok("streams-groups", "delete-offsets", group, "--topic", topic, "--yes")
    assert ottla.ok("streams-groups", "lag", group, "--json").json["partitions"] == []


def test_a_group_is_deleted_with_its_internal_topics(ottla: CommandLine, topic: str, group: str) -> None:
    changelog = f"{group}-counts-changelog"
    ottla.ok("topics", "describe", changelog)
    ottla.ok("streams-groups", "delete", group, "--internal-topics", "--yes")
    assert "does not exist" in ottla.fails("streams-groups", "describe", group).err
    # What the controller has deleted, the broker may tell of a moment later.
    wait_until(
        lambda: "does not exist" in ottla("topics", "describe", changelog).err, f"{changelog} is still there"
    )
