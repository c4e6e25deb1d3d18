"""Leaders of share partitions that fail with records in delivery."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import MakeTopic
from tests.cluster.test_coordinators import coordinator
from tests.support import share_state
from tests.support.share_driver import ShareDriver, ShareMember
from tests.support.share_worker import ACCEPT, ShareWorker
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

GROUP = "workers"


def make_topic_with_state(cluster: LocalCluster, name: str) -> bytes:
    """Make a topic, and the state of the group for it, at whichever broker coordinates that."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for done in admin.create_topics([NewTopic(name, 1, 3)]).values():
        done.result(60)
    with WireClient(cluster.node(cluster.leader(name)).bootstrap_servers) as client:
        topics = client.get(
            MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12, MetadataResponse
        ).topics
        topic_id = bytes(topics[0].topic_id)

        def is_initialized() -> bool:
            found = client.get(share_state.find(GROUP, topic_id, [0]), 6, FindCoordinatorResponse)
            at = found.coordinators[0]
            if at.error_code:
                return False
            with WireClient(f"{at.host}:{at.port}") as coordinator:
                state = coordinator.get(
                    share_state.initialize(GROUP, topic_id, {0: (1, 0)}), 0, InitializeShareGroupStateResponse
                )
            return state.results[0].partitions[0].error_code == 0

        wait_until(is_initialized, "the state has no coordinator")
    return topic_id


def test_a_new_leader_delivers_what_was_not_accepted_and_nothing_else() -> None:
    with LocalCluster(nodes=3) as cluster:
        topic_id = make_topic_with_state(cluster, "jobs")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for value in "abcdefgh":
            producer.produce("jobs", value, partition=0)
        assert producer.flush(60) == 0
        first = cluster.leader("jobs")
        with WireClient(cluster.node(first).bootstrap_servers) as client:
            worker = ShareWorker(client, GROUP, topic_id)
            taken: list[tuple[int, str]] = []
            while len(taken) < 8:
                taken += worker.take()
            assert worker.acknowledge(0, 1, ACCEPT) is ErrorCode.NONE
            assert worker.acknowledge(4, 5, ACCEPT) is ErrorCode.NONE
        cluster.kill(first)
        wait_until(lambda: cluster.leader("jobs") != first, "the partition has no other leader")
        with WireClient(cluster.node(cluster.leader("jobs")).bootstrap_servers) as client:
            worker = ShareWorker(client, GROUP, topic_id)
            again: list[str] = []

            def has_all() -> bool:
                # Until the state has a coordinator again the partition has an error.
                again.extend(value for _, value in worker.try_take())
                return len(again) >= 4

            wait_until(has_all, "the records were not delivered again")
            assert sorted(again) == ["c", "d", "g", "h"]
            assert worker.acknowledge(2, 3, ACCEPT) is ErrorCode.NONE
            assert worker.acknowledge(6, 7, ACCEPT) is ErrorCode.NONE
            assert worker.take(max_wait_ms=100) == []


class AcceptedOnce:
    """Members that accept all they get, and what became of it."""

    def __init__(self, members: list[ShareMember]) -> None:
        self.members = members
        self.delivered: set[tuple[int, int]] = set()
        # Those of which the broker has said that they are accepted.
        self.accepted: set[tuple[int, int]] = set()

    def work_until(self, done: Callable[[], bool], seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, (len(self.delivered), len(self.accepted))
            for member in self.members:
                taken = member.poll(100)
                again = self.accepted.intersection(each[1:3] for each in taken)
                assert not again, f"accepted, and delivered again: {sorted(again)}"
                self.delivered.update(each[1:3] for each in taken)
                if taken:
                    member.acknowledge(taken)
                    results = member.commit(20_000)
                    self.accepted.update(
                        each[1:3] for each in taken if results.get(each[:2], "unknown") is None
                    )


@pytest.mark.exhaustive
@pytest.mark.kafka
def test_java_members_go_on_when_a_node_fails(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """The node that fails coordinates the group and some of its states, and leads one of its partitions."""
    topic = make_topic(partitions=3)
    group = f"workers-of-{topic}"
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.configs.alter(ResourceType.GROUP, group, set={"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

    def produce() -> None:
        for number in range(60):
            producer.produce(topic, str(number), partition=number % 3)
        assert producer.flush(60) == 0

    with ShareDriver() as driver:
        members = [
            driver.member(cluster.bootstrap_servers, group, topic, max_poll_records="10") for _ in range(2)
        ]
        work = AcceptedOnce(members)
        produce()
        work.work_until(lambda: len(work.accepted) > 20)
        cluster.kill(coordinator(cluster, group))
        produce()
        work.work_until(lambda: len(work.delivered) == 120)
        # Java's `close` would wait 30 s for the node that is dead to end the session there.
        driver.kill()
