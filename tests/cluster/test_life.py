"""Three nodes form a cluster, and go on without any one of them.

Each test does to a node what happens to machines, under the writes of an idempotent producer, and holds what
is there afterwards against what was acknowledged.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla import blocking
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.testing.local_cluster import ClusterNode, LocalCluster, ProcessState, send_request
from tests.cluster.conftest import MakeTopic
from tests.support.acknowledged_workload import Load
from tests.support.waiting import wait_until


def brokers_by(node: ClusterNode) -> dict[int, int]:
    """The brokers that a node lists, with their ports."""
    answer = send_request(node.port, DescribeClusterRequest(), 0, DescribeClusterResponse, timeout_s=30)
    return {broker.broker_id: broker.port for broker in answer.brokers}


@pytest.mark.slow
def test_every_node_describes_the_same_cluster(cluster: LocalCluster) -> None:
    everyone = {each.id: each.port for each in cluster.nodes}
    for node in cluster.nodes:
        # One that did not get the processor for as long as its session lasts is missing for a moment.
        wait_until(lambda node=node: brokers_by(node) == everyone, f"node {node.id} lists others")  # type: ignore[misc]
        answer = send_request(node.port, DescribeClusterRequest(), 0, DescribeClusterResponse, timeout_s=30)
        assert answer.cluster_id == cluster.cluster_id
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        assert {voter.replica_id for voter in admin.cluster.quorum().voters} == {1, 2, 3}
        wait_until(lambda: admin.cluster.quorum().leader_id == cluster.controller(), "they name two leaders")


@pytest.mark.slow
def test_a_topic_that_is_made_through_one_node_is_known_to_all(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        with blocking.Admin(node.bootstrap_servers) as admin:
            admin.topics.create(f"through-{node.id}", partitions=3, replication_factor=3)
    for node in cluster.nodes:
        with blocking.Admin(node.bootstrap_servers) as admin:
            for name in (f"through-{number}" for number in (1, 2, 3)):
                wait_until(
                    lambda name=name, admin=admin: name in {t.name for t in admin.topics.list()},  # type: ignore[misc]
                    f"node {node.id} does not know {name}",
                )
    for number in (1, 2, 3):
        found = [cluster.partition(f"through-{number}", partition) for partition in range(3)]
        # By the preferred leaders: another one leads where a broker was missed for a moment.
        assert {each.replica_nodes[0] for each in found} == {1, 2, 3}
        assert all(sorted(each.replica_nodes) == [1, 2, 3] for each in found)


@pytest.mark.slow
def test_leaders_that_are_killed_are_followed_by_others_and_nothing_is_lost(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    with Load(cluster.bootstrap_servers, topic, 3, per_second=2000) as load:
        for _ in range(2):
            load.wait_for_more(1000)
            leader = cluster.leader(topic)
            cluster.kill(leader)
            wait_until(lambda leader=leader: cluster.leader(topic) != leader, "no new leader")  # type: ignore[misc]
            load.wait_for_more(1000)
            wait_until(
                lambda leader=leader: leader not in cluster.partition(topic).isr_nodes,  # type: ignore[misc]
                "who is dead seems in sync",
            )
            cluster.start(leader)
            cluster.wait_in_sync()
        load.finish()
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
def test_another_controller_takes_over_and_changes_go_on(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    before = make_topic()
    controller = cluster.controller()
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        cluster.kill(controller)
        admin.topics.create("made-meanwhile", partitions=3, replication_factor=2)
        wait_until(
            lambda: {before, "made-meanwhile"} <= {topic.name for topic in admin.topics.list()},
            "the brokers do not know of it",
        )
    # A broker that was not asked to change anything may hear of it later.
    wait_until(lambda: cluster.controller() != controller, "a broker names the one that is dead")
    cluster.start(controller)
    with blocking.Admin(cluster.node(controller).bootstrap_servers) as admin:
        wait_until(
            lambda: "made-meanwhile" in {topic.name for topic in admin.topics.list()},
            "the former controller does not learn what it missed",
        )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_leader_that_falls_silent_is_followed_and_what_it_says_later_does_not_count(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with Load(cluster.bootstrap_servers, topic, 1, per_second=1000) as load:
        load.wait_for_more(300)
        leader = cluster.leader(topic)
        cluster.pause(leader)
        wait_until(lambda: cluster.leader(topic) != leader, "no new leader")
        load.wait_for_more(300)
        cluster.resume(leader)
        cluster.wait_ready()
        cluster.wait_in_sync()
        load.wait_for_more(300)
        load.finish()
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rolling_restart_disturbs_no_client(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    with Load(cluster.bootstrap_servers, topic, 3, per_second=2000) as load:
        for node in cluster.nodes:
            load.wait_for_more(500)
            cluster.restart(node)
            cluster.wait_in_sync()
        load.finish()
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
def test_a_node_that_is_stopped_hands_its_leaderships_over_first(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=6)
    # Not the controller: whether its successor is there at once is another question.
    leaders = {cluster.leader(topic, partition) for partition in range(6)}
    leaving = next(node for node in cluster.nodes if node.id in leaders and node.id != cluster.controller())
    began = time.monotonic()
    cluster.stop(leaving)
    took = time.monotonic() - began
    wait_until(
        lambda: leaving.id not in {cluster.leader(topic, partition) for partition in range(6)},
        "the others do not know of it",
    )
    assert took < 45


@pytest.mark.slow
def test_all_nodes_are_killed_at_once_and_everything_is_there_again(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    with Load(cluster.bootstrap_servers, topic, 2, per_second=2000) as load:
        load.wait_for_more(1000)
        for node in cluster.nodes:
            cluster.kill(node)
        assert [node.state for node in cluster.nodes] == [ProcessState.DOWN] * 3
        cluster.start_all()
        load.wait_for_more(500)
        load.finish()
    cluster.wait_in_sync()
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
def test_brokers_and_controllers_may_be_nodes_of_their_own(tmp_path: Path) -> None:
    with LocalCluster(nodes=2, controllers=1, data_dir=str(tmp_path / "kept")) as cluster:
        assert [node.is_broker for node in cluster.nodes] == [True, True, False]
        assert cluster.controller() == 3
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create("apart", partitions=2, replication_factor=2)
            assert [broker.node_id for broker in admin.cluster.describe().brokers] == [1, 2]
        with Load(cluster.bootstrap_servers, "apart", 2, per_second=1000) as load:
            load.wait_for_more(200)
            cluster.restart(3)
            load.wait_for_more(200)
            load.finish()
    with LocalCluster(data_dir=str(tmp_path / "kept")) as cluster:
        load.check(cluster.bootstrap_servers)
