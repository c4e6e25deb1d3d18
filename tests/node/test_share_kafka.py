"""Apache Kafka's share consumers against a node: the Java client, the console and the verifiable one."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.node.test_share_clients import has_members
from tests.support import java
from tests.support.java_driver import JavaDriver, Message
from tests.support.node_process import NodeProcess
from tests.support.share_driver import Delivery, ShareDriver
from tests.support.waiting import wait_until

from ottla import blocking
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
SETTINGS = {
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.record.lock.duration.ms": 60_000,
    "group.share.max.record.lock.duration.ms": 600_000,
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[ShareDriver]:
    with ShareDriver() as running:
        yield running


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        done.result(60)


def configure(java_driver: JavaDriver, bootstrap: str, group: str, *settings: str) -> None:
    alter = ("--alter", "--entity-type", "groups", "--entity-name", group)
    java_driver.tool(CONFIGS, "--bootstrap-server", bootstrap, *alter, "--add-config", ",".join(settings))


def begin(node: LocalNode, java_driver: JavaDriver, name: str, partitions: int = 1, *settings: str) -> None:
    """Make a topic, and a share group of the same name that begins at its start."""
    make_topic(node.bootstrap_servers, name, partitions)
    configure(java_driver, node.bootstrap_servers, name, "share.auto.offset.reset=earliest", *settings)


def produce(bootstrap: str, topic: str, values: list[str], partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(60) == 0


def lag(node: LocalNode, java_driver: JavaDriver, group: str) -> int:
    """The lag of a group, as Kafka's tool shows it."""
    describe = ("--describe", "--group", group)
    shown = java_driver.tool(GROUPS, "--bootstrap-server", node.bootstrap_servers, *describe).text
    lags = [line.split()[-1] for line in shown.splitlines() if line.startswith(group)]
    assert lags, shown
    return sum(int(each) for each in lags)


@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_the_java_share_consumer_acknowledges_in_every_way(
    node: LocalNode, mode: str, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    group = f"ways-{mode}"
    begin(node, java_driver, group, 2)
    produce(
        node.bootstrap_servers, group, ["accept"] * 20 + ["release", "reject", "renew", "poison", "accept"], 2
    )
    member = driver.member(
        node.bootstrap_servers, group, group, share_acquire_mode=mode, max_poll_records="5"
    )
    deliveries: list[Delivery] = []
    expected = {"accept": 21, "release": 2, "reject": 1, "renew": 2, "poison": 5}
    deadline = time.monotonic() + 60
    while Counter(each.value for each in deliveries) != expected:
        assert time.monotonic() < deadline, Counter(each.value for each in deliveries)
        for each in member.poll():
            deliveries.append(each)
            is_first = sum(one[:3] == each[:3] for one in deliveries) == 1
            types = {"reject": "REJECT", "poison": "RELEASE"}
            if is_first:
                types |= {"release": "RELEASE", "renew": "RENEW"}
            member.acknowledge([each], types.get(each.value, "ACCEPT"))
        assert set(member.commit().values()) <= {None}
    # A renewed record comes again with the next poll, and that is no other delivery.
    counts = {value: max(each.deliveries for each in deliveries if each.value == value) for value in expected}
    assert counts == {"accept": 1, "release": 2, "reject": 1, "renew": 1, "poison": 5}
    assert member.lock_timeout_ms() == 60_000
    assert member.poll(500) == []
    assert not [each for each in member.said if each.error], member.said
    member.close()
    assert lag(node, java_driver, group) == 0


def test_what_is_polled_is_accepted_by_the_next_poll(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    begin(node, java_driver, "implicit", 2)
    produce(node.bootstrap_servers, "implicit", [str(number) for number in range(100)], 2)
    member = driver.member(
        node.bootstrap_servers,
        "implicit",
        "implicit",
        share_acknowledgement_mode="implicit",
        max_poll_records="7",
    )
    taken = member.take_until(lambda all: len(all) >= 100, accept=False)
    assert Counter(each.value for each in taken) == Counter(str(number) for number in range(100))
    assert member.poll(500) == []
    wait_until(lambda: lag(node, java_driver, "implicit") == 0, "the last poll has accepted nothing")
    member.close()
    assert lag(node, java_driver, "implicit") == 0


def test_what_a_member_that_died_had_goes_to_others(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    begin(node, java_driver, "dying", 1, "share.record.lock.duration.ms=600000")
    produce(node.bootstrap_servers, "dying", ["done", "left", "left"])
    with ShareDriver() as dying:
        member = dying.member(node.bootstrap_servers, "dying", "dying")
        taken = member.take()
        assert [each.value for each in taken] == ["done", "left", "left"]
        member.acknowledge(taken[:1])
        member.commit()
        dying.kill()
    # At once, and not when the locks of ten minutes end.
    other = driver.member(node.bootstrap_servers, "dying", "dying")
    again = other.take_until(lambda all: len(all) == 2)
    assert [(each.value, each.deliveries) for each in again] == [("left", 2)] * 2
    other.close()
    assert lag(node, java_driver, "dying") == 0


@pytest.mark.exhaustive
def test_a_renewed_lock_does_not_expire(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    lock_s = 8
    begin(node, java_driver, "kept", 1)
    renewing = driver.member(node.bootstrap_servers, "kept", "kept")

    def set_lock(seconds: int) -> None:
        setting = f"share.record.lock.duration.ms={seconds * 1000}"
        configure(java_driver, node.bootstrap_servers, "kept", setting)

    with blocking.Admin(node.bootstrap_servers) as admin:
        # It has joined before there is a lock.
        wait_until(lambda: renewing.poll() == [] and has_members(admin, "kept", 1), "it does not join")
        produce(node.bootstrap_servers, "kept", ["kept"])
        while True:
            set_lock(lock_s)
            asked_at = time.monotonic()
            kept = renewing.take()
            # The lock that is renewed is not to end, whatever the machine does.
            set_lock(60)
            renewing.acknowledge(kept, "RENEW")
            if renewing.commit() == {("kept", 0): None}:
                break
            assert time.monotonic() > asked_at + lock_s, "a lock was not renewed in its time"
        would_have_ended = time.monotonic() + lock_s
        rival = driver.member(node.bootstrap_servers, "kept", "kept")

        def is_time() -> bool:
            assert rival.poll() == []
            return time.monotonic() > would_have_ended and has_members(admin, "kept", 2)

        wait_until(is_time, "the rival does not join")
    # What is renewed is there again, for this member alone.
    assert renewing.poll() == kept
    assert rival.poll() == []
    renewing.acknowledge(kept)
    assert renewing.commit() == {("kept", 0): None}
    for member in (renewing, rival):
        member.close()
    assert lag(node, java_driver, "kept") == 0


def test_a_late_acknowledgement_is_refused(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    begin(node, java_driver, "late", 1, "share.record.lock.duration.ms=1000")
    produce(node.bootstrap_servers, "late", ["late"])
    slow = driver.member(node.bootstrap_servers, "late", "late")
    taken = slow.take()
    # The second lock is not to end too.
    configure(java_driver, node.bootstrap_servers, "late", "share.record.lock.duration.ms=60000")
    other = driver.member(node.bootstrap_servers, "late", "late")
    again = other.take()
    assert [(each.value, each.deliveries) for each in again] == [("late", taken[0].deliveries + 1)]
    slow.acknowledge(taken)
    assert slow.commit() == {("late", 0): "InvalidRecordStateException"}
    other.acknowledge(again)
    assert other.commit() == {("late", 0): None}
    slow.close()
    other.close()


def test_several_members_share_one_partition(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    begin(node, java_driver, "several", 1, "share.record.lock.duration.ms=60000")
    members = [
        driver.member(node.bootstrap_servers, "several", "several", max_poll_records="50") for _ in range(3)
    ]
    taken: Counter[int] = Counter()
    shares = [0] * len(members)
    sent = 0
    deadline = time.monotonic() + 120
    # A member that joins last may find nothing left of the first records, so more follow until each had some.
    while sent < 2000 or len(taken) < sent or not min(shares):
        assert time.monotonic() < deadline, (sent, shares)
        if len(taken) == sent:
            for number in range(20):
                produce(node.bootstrap_servers, "several", [str(number)] * 100)
            sent += 2000
        for index, member in enumerate(members):
            polled = member.poll(100)
            taken.update(each.offset for each in polled)
            shares[index] += len(polled)
            member.acknowledge(polled)
            member.commit_async()
    # No lock has ended, so none was delivered twice.
    assert set(taken.values()) == {1}
    for member in members:
        member.close()
        assert not [each for each in member.said if each.error], member.said
    assert lag(node, java_driver, "several") == 0


def test_members_that_read_committed_records_see_no_others(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    topic = "committed"
    begin(node, java_driver, topic, 1, "share.isolation.level=read_committed")
    configure(java_driver, node.bootstrap_servers, "uncommitted", "share.auto.offset.reset=earliest")
    everything = driver.member(node.bootstrap_servers, "uncommitted", topic)
    member = driver.member(node.bootstrap_servers, topic, topic)
    first = java_driver.producer(node.bootstrap_servers, transactional_id="share-first")
    lasting = {"transactional_id": "share-second", "transaction_timeout_ms": "600000"}
    second = java_driver.producer(node.bootstrap_servers, **lasting)
    for producer in (first, second):
        producer.init_transactions()
    for number, commit in enumerate((True, False, False, True)):
        first.begin()
        first.send([Message(topic, f"{number} {commit}".encode())])
        (first.commit if commit else first.abort)()
    second.begin()
    second.send([Message(topic, b"open")])
    produce(node.bootstrap_servers, topic, ["plain"])
    values = [each.value for each in everything.take_until(lambda all: len(all) == 6)]
    assert values == ["0 True", "1 False", "2 False", "3 True", "open", "plain"]
    assert [each.value for each in member.take_until(lambda all: len(all) == 2)] == ["0 True", "3 True"]
    assert member.poll(500) == []
    second.abort()
    assert [each.value for each in member.take_until(lambda all: len(all) == 1)] == ["plain"]
    for each in (first, second, member, everything):
        each.close()
    assert lag(node, java_driver, topic) == 0


def test_a_topic_is_deleted_and_made_again_under_a_group(
    node: LocalNode, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    begin(node, java_driver, "again", 2)
    produce(node.bootstrap_servers, "again", ["old"] * 4, 2)
    member = driver.member(node.bootstrap_servers, "again", "again", metadata_max_age_ms="500")
    taken = member.take()
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.delete_topics(["again"]).values():
        done.result(60)
    make_topic(node.bootstrap_servers, "again")
    produce(node.bootstrap_servers, "again", ["new"] * 3)
    member.acknowledge(taken)
    # The acknowledgements of what is gone fail, or are answered by the new topic's error.
    member.commit(2_000)
    fresh = member.take_until(lambda all: sum(each.value == "new" for each in all) >= 3)
    assert [each.deliveries for each in fresh if each.value == "new"] == [1, 1, 1]
    member.close()
    assert lag(node, java_driver, "again") == 0


@pytest.mark.exhaustive
def test_a_node_that_is_killed_goes_on_with_what_was_not_accepted(
    tmp_path: Path, java_driver: JavaDriver, driver: ShareDriver
) -> None:
    (port,) = free_ports(1)  # which no client takes while the node is down
    with NodeProcess(tmp_path / "data", listen=f"127.0.0.1:{port}") as first:
        make_topic(first.bootstrap, "killed")
        configure(java_driver, first.bootstrap, "killed", "share.auto.offset.reset=earliest")
        produce(first.bootstrap, "killed", [str(number) for number in range(10)])
        member = driver.member(first.bootstrap, "killed", "killed")
        taken = member.take_until(lambda all: len(all) == 10, accept=False)
        member.acknowledge(taken[:3] + taken[5:6])
        assert member.commit() == {("killed", 0): None}
        first.kill()
    with NodeProcess(tmp_path / "data", listen=f"127.0.0.1:{port}") as second:
        produce(second.bootstrap, "killed", ["10"])
        # The same member, with records of before: the broker may have given them to it again meanwhile.
        member.acknowledge(taken[3:5] + taken[6:], "RELEASE")
        member.commit()
        left = {3, 4, 6, 7, 8, 9, 10}
        again = member.take_until(lambda all: left <= {int(each.value) for each in all})
        assert {int(each.value) for each in again} == left
        assert member.poll(500) == []
        member.close()


def test_the_console_share_consumer(node: LocalNode, java_driver: JavaDriver) -> None:
    begin(node, java_driver, "console", 2)
    values = [f"value-{number}" for number in range(50)]
    produce(node.bootstrap_servers, "console", values, 2)
    address = ("--bootstrap-server", node.bootstrap_servers, "--topic", "console", "--group", "console")
    read = java.run_tool(CONSOLE, *address, "--max-messages", "50", "--timeout-ms", "60000")
    assert sorted(read.out.split()) == sorted(values)
    assert lag(node, java_driver, "console") == 0
    # Rejected records are not delivered again, and released ones are.
    produce(node.bootstrap_servers, "console", ["bad"])
    limits = ("--max-messages", "1", "--timeout-ms", "60000")
    assert java.run_tool(CONSOLE, *address, *limits, "--release").out.split() == ["bad"]
    assert java.run_tool(CONSOLE, *address, *limits, "--reject").out.split() == ["bad"]
    assert lag(node, java_driver, "console") == 0


@pytest.mark.exhaustive
def test_the_verifiable_share_consumer(node: LocalNode, java_driver: JavaDriver) -> None:
    begin(node, java_driver, "verifiable", 2)
    produce(node.bootstrap_servers, "verifiable", [str(number) for number in range(300)], 2)
    address = ("--bootstrap-server", node.bootstrap_servers)
    member = ("--topic", "verifiable", "--group-id", "verifiable")
    limits = ("--max-messages", "300", "--acknowledgement-mode", "sync")
    read = java.run_tool(VERIFIABLE, *address, *member, *limits)
    events = [json.loads(line) for line in read.out.splitlines() if line.startswith("{")]
    acknowledged = sum(event["count"] for event in events if event["name"] == "offsets_acknowledged")
    assert acknowledged >= 300
    assert all(event.get("success", True) for event in events), events
    wait_until(lambda: lag(node, java_driver, "verifiable") == 0, "records are left")
