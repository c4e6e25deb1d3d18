"""What a write is worth: which are taken, which refused and with what error, and which survive whose death.

Three brokers and a controller of its own, so that any number of brokers may die. Every topic has its replicas
on all three, led by broker 1; followers die in the order 3, 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.testing.local_cluster import LocalCluster, ProcessState
from tests.cluster import plain
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import read_all
from tests.support.unread import unread_bytes
from tests.support.waiting import came_true, wait_until

pytestmark = pytest.mark.slow

LEADER = 1
FOLLOWERS = (2, 3)
ALL = -1
FETCH_WAIT_S = 3.0  # more than replica.fetch.wait.max.ms, on a busy machine too; less than a session
# Who falls silent is missed later than elsewhere: a test does something meanwhile.
PATIENT = {**SETTINGS, "broker.session.timeout.ms": 6_000, "replica.lag.time.max.ms": 6_000}


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, settings=PATIENT, controllers=1) as cluster:
        yield cluster


def revive(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        if node.state is ProcessState.PAUSED:
            cluster.resume(node)
        elif node.state is ProcessState.DOWN:
            cluster.start(node)
    cluster.wait_ready()
    cluster.wait_in_sync()


def new_topic(cluster: LocalCluster, **configs: str) -> str:
    topic = f"t-{uuid4().hex[:12]}"
    plain.create(cluster, topic, [[LEADER, *FOLLOWERS]], **configs)
    return topic


def has_an_answer(cluster: LocalCluster, follower: int) -> bool:
    """Whether something from the leader lies unread at a follower."""
    pid = cluster.node(follower).pid
    return pid is not None and unread_bytes(pid, cluster.node(LEADER).port) > 0


def isr(cluster: LocalCluster, topic: str) -> set[int]:
    return set(cluster.partition(topic).isr_nodes)


def kill_followers(cluster: LocalCluster, topic: str, *followers: int) -> None:
    for follower in followers:
        if cluster.node(follower).state is not ProcessState.DOWN:
            cluster.kill(follower)
    alive = {LEADER, *FOLLOWERS} - set(followers)
    wait_until(lambda: isr(cluster, topic) == alive, f"the in-sync set is not {alive}")


@pytest.fixture(scope="module", params=[0, 1, 2], ids=lambda dead: f"{dead} followers dead")
def mourning(brokers: LocalCluster, request: pytest.FixtureRequest) -> Iterator[tuple[int, dict[int, str]]]:
    """So many followers are dead; a topic for each min.insync.replicas."""
    revive(brokers)
    topics = {least: new_topic(brokers, min_insync_replicas=str(least)) for least in (1, 2, 3)}
    dead: int = request.param
    for topic in topics.values():
        kill_followers(brokers, topic, *FOLLOWERS[::-1][:dead])
    yield dead, topics
    revive(brokers)


@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("acks", [0, 1, ALL])
def test_a_write_is_taken_if_as_many_replicas_are_in_sync_as_it_asks_for(
    brokers: LocalCluster, mourning: tuple[int, dict[int, str]], least: int, acks: int
) -> None:
    dead, topics = mourning
    leader, topic = brokers.node(LEADER), topics[least]
    if acks == 0:
        plain.produce_unheard(leader, topic, b"unheard")
        return
    code, offset = plain.produce(leader, topic, b"heard", acks=acks)
    if acks == ALL and 3 - dead < least:
        assert (code, offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    else:
        assert code is ErrorCode.NONE
        assert offset >= 0


@pytest.fixture
def cluster(brokers: LocalCluster) -> Iterator[LocalCluster]:
    revive(brokers)
    yield brokers
    revive(brokers)


@pytest.mark.exhaustive
def test_a_write_that_is_under_way_when_too_many_die_is_not_acknowledged(cluster: LocalCluster) -> None:
    """The followers are silent, so the record waits; then the cluster gives them up."""
    topic = new_topic(cluster, min_insync_replicas="2")
    for follower in FOLLOWERS:
        cluster.pause(follower)
    code, _ = plain.produce(cluster.node(LEADER), topic, b"in doubt", timeout_ms=12_000)
    assert code is ErrorCode.REQUEST_TIMED_OUT
    wait_until(lambda: isr(cluster, topic) == {LEADER}, "the followers are not missed")
    code, _ = plain.produce(cluster.node(LEADER), topic, b"refused")
    assert code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert plain.end_offset(cluster.node(LEADER), topic, 0) == 0, "no consumer reads what is in doubt"
    revive(cluster)
    wait_until(
        lambda: plain.end_offset(cluster.node(LEADER), topic, 0) == 1, "what was in doubt is committed now"
    )


def test_what_all_have_survives_the_death_of_the_leader(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, min_insync_replicas="2")
    assert plain.produce(cluster.node(LEADER), topic, b"kept") == (ErrorCode.NONE, 0)
    cluster.kill(LEADER)
    wait_until(lambda: cluster.leader(topic) in FOLLOWERS, "no leader")
    assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"kept"}


@pytest.mark.exhaustive
def test_what_two_have_survives_the_death_of_the_leader_while_another_is_dead(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, min_insync_replicas="2")
    kill_followers(cluster, topic, 3)
    assert plain.produce(cluster.node(LEADER), topic, b"kept") == (ErrorCode.NONE, 0)
    cluster.kill(LEADER)
    plain.wait_for_leader(cluster, topic, among=[2])
    code, _ = plain.produce(cluster.node(2), topic, b"refused")
    assert code is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.start(3)
    wait_until(lambda: isr(cluster, topic) == {2, 3}, "the other does not follow")
    assert plain.produce(cluster.node(2), topic, b"more")[0] is ErrorCode.NONE
    assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"kept", 1: b"more"}


def test_what_only_the_leader_had_is_lost_with_it_and_cut_off_when_it_comes_back(
    cluster: LocalCluster,
) -> None:
    """The price of acks=1."""

    def topic_with_more_on_its_leader() -> str:
        topic = new_topic(cluster)
        leader = cluster.node(LEADER)
        assert plain.produce(leader, topic, b"kept") == (ErrorCode.NONE, 0)
        wait_until(lambda: plain.end_offset(leader, topic, 0) == 1, "not committed")
        for follower in FOLLOWERS:
            cluster.pause(follower)
        # Their fetches still wait at the leader, which would answer them with the record. When each has an
        # answer that it cannot read, no request asks any more; and there is none for one that was paused
        # between two.
        came_true(lambda: all(has_an_answer(cluster, each) for each in FOLLOWERS), FETCH_WAIT_S)
        assert plain.produce(leader, topic, b"lost", acks=1) == (ErrorCode.NONE, 1)
        return topic

    # The leader dies before the silent followers are missed; on a busy machine they may be, meanwhile.
    for _ in range(5):
        topic = topic_with_more_on_its_leader()
        if isr(cluster, topic) == {LEADER, *FOLLOWERS}:
            break
        revive(cluster)
    cluster.kill(LEADER)
    for follower in FOLLOWERS:
        cluster.resume(follower)
    new_leader = plain.wait_for_leader(cluster, topic, among=FOLLOWERS)
    assert plain.produce(new_leader, topic, b"in its place") == (ErrorCode.NONE, 1)
    revive(cluster)
    assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"kept", 1: b"in its place"}
    cluster.kill(new_leader)
    wait_until(lambda: cluster.leader(topic) != new_leader.id, "no leader")
    assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"kept", 1: b"in its place"}


@pytest.mark.parametrize(
    "unclean",
    [
        pytest.param(False, marks=pytest.mark.exhaustive, id="clean elections"),
        pytest.param(True, id="unclean elections"),
    ],
)
def test_the_last_in_sync_replica_takes_the_partition_with_it_unless_elections_may_be_unclean(
    cluster: LocalCluster, unclean: bool
) -> None:
    topic = new_topic(
        cluster, min_insync_replicas="1", unclean_leader_election_enable="true" if unclean else "false"
    )
    assert plain.produce(cluster.node(LEADER), topic, b"everywhere") == (ErrorCode.NONE, 0)
    kill_followers(cluster, topic, *FOLLOWERS)
    assert plain.produce(cluster.node(LEADER), topic, b"on one only") == (ErrorCode.NONE, 1)
    cluster.kill(LEADER)
    for follower in FOLLOWERS:
        cluster.start(follower)
    if unclean:
        new_leader = plain.wait_for_leader(cluster, topic, among=FOLLOWERS)
        assert plain.produce(new_leader, topic, b"other") == (ErrorCode.NONE, 1)
        revive(cluster)
        assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"everywhere", 1: b"other"}
    else:
        wait_until(
            lambda: plain.produce(cluster.node(2), topic, b"no")[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "a replica that lacks records leads",
        )
        cluster.start(LEADER)
        wait_until(lambda: cluster.leader(topic) == LEADER, "the leader does not come back")
        assert read_all(cluster.bootstrap_servers, topic, 0) == {0: b"everywhere", 1: b"on one only"}
