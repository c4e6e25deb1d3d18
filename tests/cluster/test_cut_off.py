"""Nodes that live and are cut off from the others: there are never two who are right.

Records that a leader without followers takes are not acknowledged, and afterwards its log equals the others'.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import blocking
from ottla.client.admin.partitions import ElectionType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.messages.produce import (
    ProduceResponse,
)
from ottla.records.builder import build_batch
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load, read_all
from tests.support.network_namespaces import SeparableCluster, missing_requirement
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, produce_request

MISSING = missing_requirement()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=f"nodes cannot be cut off here: {MISSING}"),
]
TOPIC = "cut"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeparableCluster]:
    directory: Path = tmp_path_factory.mktemp("separable")
    # A session of three seconds is short beside the usual fetches of half a second: decision 0089.
    settings = {**SETTINGS, "offsets.topic.num.partitions": 6, "replica.fetch.wait.max.ms": 200}
    with SeparableCluster(directory, settings) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: SeparableCluster) -> str:
    name = f"{TOPIC}-{time.time_ns()}"
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create(name, partitions=1, replication_factor=3)
    wait_until(
        lambda: all(cluster.leader(name, asked=node) in cluster.nodes for node in cluster.nodes),
        "no leader",
    )
    return name


def leader_and_other(cluster: SeparableCluster, topic: str) -> tuple[int, int]:
    """The leader, and another broker."""
    leader = cluster.leader(topic, asked=1)
    assert leader is not None
    return leader, next(node for node in cluster.nodes if node != leader)


def write(
    cluster: SeparableCluster, node: int, topic: str, value: bytes, *, timeout_ms: int = 30_000
) -> tuple[ErrorCode, int]:
    """What a node says to one record with acks=all: the error, and the offset."""
    batch = build_batch([(time.time_ns() // 1_000_000, None, value)])
    with WireClient(cluster.address(node)) as wire:
        request = produce_request(topic, batch, timeout_ms=timeout_ms)
        answer = wire.get(request, 11, ProduceResponse)
    (partition,) = answer.responses[0].partition_responses
    return ErrorCode.of(partition.error_code), partition.base_offset


def controller(cluster: SeparableCluster, asked: int) -> int:
    with blocking.Admin(cluster.address(asked)) as admin:
        return admin.cluster.quorum().leader_id


def check_after(cluster: SeparableCluster, topic: str, load: Load) -> None:
    """Healed: every replica is back in sync, and what was acknowledged is there once."""
    cluster.heal()
    for node in cluster.nodes:
        wait_until(
            lambda node=node: cluster.in_sync(topic, asked=node) == set(cluster.nodes),  # type: ignore[misc]
            f"node {node} does not see all in sync again",
            DEADLINE_S,
        )
    load.wait_for_more(100)
    load.finish()
    load.check(cluster.bootstrap_servers)


def test_a_leader_that_is_cut_off_is_followed_and_its_word_does_not_count(
    cluster: SeparableCluster, topic: str
) -> None:
    leader, other = leader_and_other(cluster, topic)
    before = write(cluster, leader, topic, b"before")
    assert before == (ErrorCode.NONE, 0)
    cluster.cut_off(leader, from_clients=False)
    wait_until(lambda: cluster.leader(topic, asked=other) not in (None, leader), "no new leader", DEADLINE_S)
    # It does not know better, and cannot do harm.
    assert cluster.leader(topic, asked=leader) == leader
    refused, _ = write(cluster, leader, topic, b"to the wrong one", timeout_ms=1000)
    assert refused in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    successor = cluster.leader(topic, asked=other)
    assert successor is not None
    wait_until(lambda: cluster.leader(topic, asked=successor) == successor, "it does not know that it leads")
    assert write(cluster, successor, topic, b"to the right one") == (ErrorCode.NONE, 1)
    cluster.heal()
    wait_until(
        lambda: cluster.in_sync(topic, asked=other) == set(cluster.nodes), "it does not come back", DEADLINE_S
    )
    assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"before", 1: b"to the right one"}
    logs = [cluster.log_of(node, f"{topic}-0") for node in cluster.nodes]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.exhaustive
def test_a_leader_that_nobody_reaches_is_followed(cluster: SeparableCluster, topic: str) -> None:
    with Load(cluster.bootstrap_servers, topic, 1, per_second=500) as load:
        load.wait_for_more(200)
        leader, other = leader_and_other(cluster, topic)
        cluster.cut_off(leader)
        wait_until(
            lambda: cluster.leader(topic, asked=other) not in (None, leader), "no new leader", DEADLINE_S
        )
        load.wait_for_more(300)
        check_after(cluster, topic, load)


@pytest.mark.exhaustive
def test_a_controller_that_is_cut_off_is_followed(cluster: SeparableCluster, topic: str) -> None:
    first = controller(cluster, asked=1)
    others = [node for node in cluster.nodes if node != first]
    with Load(cluster.bootstrap_servers, topic, 1, per_second=500) as load:
        load.wait_for_more(100)
        cluster.cut_off(first)
        with blocking.Admin(",".join(map(cluster.address, others))) as admin:
            wait_until(lambda: admin.cluster.quorum().leader_id in others, "no new leader", DEADLINE_S)
            admin.topics.create(f"{topic}-meanwhile", partitions=1, replication_factor=2)
        load.wait_for_more(200)
        check_after(cluster, topic, load)
    wait_until(
        lambda: cluster.leader(f"{topic}-meanwhile", asked=first) is not None,
        "it does not learn what it missed",
    )


@pytest.mark.exhaustive
def test_a_follower_that_is_cut_off_does_not_hold_up_writes(cluster: SeparableCluster, topic: str) -> None:
    leader = cluster.leader(topic, asked=1)
    assert leader is not None
    active = controller(cluster, asked=leader)
    follower = next(node for node in cluster.nodes if node not in (leader, active))
    with Load(cluster.bootstrap_servers, topic, 1, per_second=500) as load:
        load.wait_for_more(100)
        cluster.cut_off(follower)
        wait_until(
            lambda: cluster.in_sync(topic, asked=leader) == set(cluster.nodes) - {follower},
            "the follower is not missed",
            DEADLINE_S,
        )
        load.wait_for_more(300)
        check_after(cluster, topic, load)


def coordinator(cluster: SeparableCluster, group: str, *, asked: int) -> int | None:
    with WireClient(cluster.address(asked)) as wire:
        answer = wire.get(FindCoordinatorRequest(coordinator_keys=[group]), 4, FindCoordinatorResponse)
    (found,) = answer.coordinators
    return None if found.error_code else found.node_id


def commit(cluster: SeparableCluster, node: int, topic: str, group: str, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    with WireClient(cluster.address(node)) as wire:
        answer = wire.get(OffsetCommitRequest(group_id=group, topics=topics), 8, OffsetCommitResponse)
    return ErrorCode.of(answer.topics[0].partitions[0].error_code)


def committed(cluster: SeparableCluster, node: int, topic: str, group: str) -> int | ErrorCode:
    """The offset of a group as a node says it, or its error."""
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    with WireClient(cluster.address(node)) as wire:
        (answer,) = wire.get(request, 8, OffsetFetchResponse).groups
    return ErrorCode.of(answer.error_code) or answer.topics[0].partitions[0].committed_offset


def group_of(cluster: SeparableCluster, topic: str, node: int) -> str:
    """A group that a node coordinates: one of the offsets' partitions at least prefers it."""
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.partitions.elect_leaders(ElectionType.PREFERRED)
    groups = [f"readers-{number}-of-{topic}" for number in range(60)]

    def found() -> str | None:
        return next((group for group in groups if coordinator(cluster, group, asked=1) == node), None)

    wait_until(lambda: found() is not None, f"node {node} coordinates no group", DEADLINE_S)
    group = found()
    assert group is not None
    return group


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_controller", [False, True], ids=["without controller", "with its controller"])
def test_a_coordinator_that_is_cut_off_does_not_say_old_offsets(
    cluster: SeparableCluster, topic: str, is_controller: bool
) -> None:
    wait_until(lambda: coordinator(cluster, "first", asked=1) is not None, "no coordinator", DEADLINE_S)
    active = controller(cluster, asked=1)
    first = active if is_controller else next(node for node in cluster.nodes if node != active)
    group = group_of(cluster, topic, first)
    other = next(node for node in cluster.nodes if node != first)
    wait_until(
        lambda: (
            commit(cluster, first, topic, group, 1) is ErrorCode.NONE
            and committed(cluster, first, topic, group) == 1
        ),
        "no commit",
        DEADLINE_S,
    )
    cluster.cut_off(first, from_clients=False)

    def is_committed_elsewhere() -> bool:
        # The answer may be old: that node may not know yet that the first one was elected.
        second = coordinator(cluster, group, asked=other)
        return second not in (None, first) and commit(cluster, second, topic, group, 2) is ErrorCode.NONE

    wait_until(is_committed_elsewhere, "no other coordinator takes offsets", DEADLINE_S)
    # It does not know that there is another one.
    assert coordinator(cluster, group, asked=first) == first
    assert committed(cluster, first, topic, group) is ErrorCode.NOT_COORDINATOR
    cluster.heal()
    wait_until(
        lambda: cluster.in_sync(topic, asked=other) == set(cluster.nodes), "it does not come back", DEADLINE_S
    )

    def says_the_new_offset() -> bool:
        last = coordinator(cluster, group, asked=first)
        return last is not None and committed(cluster, last, topic, group) == 2

    wait_until(says_the_new_offset, "the offset is not there", DEADLINE_S)
