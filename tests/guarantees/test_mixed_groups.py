"""Members of different clients in one group: each partition has one owner, and nothing is lost.

They are killed, which the group learns by their silence; paused for longer than their session, so that the
group goes on without them, and woken; and restarted as static members, which the group does not notice. Each
suffers one of these, or with `OTTLA_THOROUGH=1` all of them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from ottla.testing.local_node import LocalNode
from tests.guarantees.group_workload import GroupWorkload
from tests.guarantees.member import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from tests.support.effort import THOROUGH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 16
SETTINGS = {
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
}
PYTHON = ("librdkafka", "aiokafka", "kafka-python", "ottla")


@pytest.fixture
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture
def workload(node: LocalNode, tmp_path: Path) -> Iterator[GroupWorkload]:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic("shared", PARTITIONS, 1)]).values():
        done.result(60)
    with GroupWorkload(node.bootstrap_servers, "workload", "shared", PARTITIONS, tmp_path) as workload:
        yield workload


CLASSIC = (*PYTHON, "java")
ALL_CLIENTS = (*CLASSIC, "librdkafka-modern", "ottla-modern", "java-modern")
CLIENT_MIXES = [
    ("python", PYTHON, pytest.mark.exhaustive),
    ("python-java", CLASSIC, [pytest.mark.kafka, pytest.mark.exhaustive]),
    ("both-protocols", ALL_CLIENTS, pytest.mark.kafka),
]


@pytest.mark.parametrize(
    "clients",
    [pytest.param(clients, id=name, marks=mark) for name, clients, mark in CLIENT_MIXES],
)
def test_members_die_pause_and_return_and_nothing_is_lost(
    workload: GroupWorkload, clients: tuple[str, ...]
) -> None:
    members = [workload.join(client) for client in clients]
    member_count = len(members)
    ids = set(workload.settle(member_count, "a share for every member"))
    for member in members if THOROUGH else members[1::2]:
        member.kill()
        # The dead one is missed when its session is over; its successor is there before that.
        member.start()
        ids = set(workload.settle(member_count, f"{member.client} has a successor", unlike=ids))
    for member in members[::2]:
        member.signal(signal.SIGSTOP)
        workload.settle(member_count - 1, f"the group goes on without {member.client}")
        member.signal(signal.SIGCONT)
        workload.settle(member_count, f"{member.client} has been woken")
    workload.finish()


def test_static_members_are_restarted_without_a_rebalance(workload: GroupWorkload) -> None:
    members = [workload.join(client, instance=f"the-{client}") for client in PYTHON]
    workload.settle(len(members), "a share for every member")

    def shares() -> dict[str, frozenset[int]]:
        return {
            member.group_instance_id or "": frozenset(
                place.partition for place in member.assignment.topic_partitions
            )
            for member in workload.describe().members
        }

    before, ids = shares(), set(workload.owned())
    assert set(before) == {f"the-{client}" for client in PYTHON}
    for member in members:
        member.kill()
        member.start()
        # Its successor has a member id of its own, which is how its return shows.
        ids = set(workload.settle(len(members), f"{member.client} is back", unlike=ids))
        assert shares() == before
    workload.finish()


def test_topics_and_partitions_that_come_under_a_pattern_find_owners(
    node: LocalNode, workload: GroupWorkload
) -> None:
    workload.subscription = "^shared.*"
    for client in PYTHON:
        workload.join(client)
    workload.settle(len(PYTHON), "a share of the topic that is there")
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic("shared-more", 4, 1)]).values():
        done.result(60)
    workload.places |= {("shared-more", number) for number in range(4)}
    workload.settle(len(PYTHON), "the topic that came is shared, too")
    for done in admin.create_partitions([NewPartitions("shared-more", 6)]).values():
        done.result(60)
    workload.places |= {("shared-more", number) for number in (4, 5)}
    workload.settle(len(PYTHON), "the partitions that came are shared, too")
    workload.finish()
