"""`ottla share-groups`, and `ottla consume --share`: records that go to one member, and where a group is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla import LocalNode, blocking
from ottla.cli.options import BOOTSTRAP_VARIABLE
from ottla.protocol.names import TopicPartition
from ottla.protocol.share import AcknowledgeType
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from tests.support.apache_kafka import ApacheKafka
from tests.support.command_line import CommandLine

TIMEOUT = ("--timeout", "60")
# Where nothing is to come.
IDLE = ("--idle", "2", *TIMEOUT)


@pytest.fixture
def group(ottla: CommandLine, topic: str) -> str:
    """A share group without members that has accepted three of five records of partition 0."""
    name = f"workers-of-{topic}"
    ottla.ok("configs", "alter", "--group", name, "--set", "share.auto.offset.reset=earliest")
    ottla.ok("produce", topic, *"abcde", "-p", "0")
    assert ottla.ok("consume", topic, "--share", name, "--count", "3", *TIMEOUT).out.split() == [
        "a",
        "b",
        "c",
    ]
    return name


def lag(ottla: CommandLine, group: str) -> dict[int, int | None]:
    rows = ottla.ok("share-groups", "describe", group, "--json").json["partitions"]
    return {row["partition"]: row["lag"] for row in rows}


def test_a_group_goes_on_where_it_is(ottla: CommandLine, topic: str, group: str) -> None:
    assert lag(ottla, group)[0] == 2
    rest = ottla.ok("consume", topic, "--share", group, "--count", "2", "--json", *TIMEOUT).json_lines
    assert [(each["value"], each["offset"]) for each in rest] == [("d", 3), ("e", 4)]
    assert all(each["delivery_count"] >= 1 for each in rest)
    assert lag(ottla, group)[0] == 0


@pytest.mark.witness
def test_a_group_is_listed_and_described(ottla: CommandLine, topic: str, group: str) -> None:
    assert group in ottla.ok("share-groups", "list").out
    listed = ottla.ok("groups", "list", "--type", "share", "--json").json
    assert {"group_id": group, "protocol_type": "share", "state": "Empty", "type": "share"} in listed
    shown = ottla.ok("share-groups", "describe", group, "--deliveries")
    assert "state     Empty" in shown.out
    assert "LAG" in shown.out
    assert ottla.ok("groups", "describe", group).out.splitlines()[1].split() == ["type", "share"]
    assert "share-groups describe" in ottla.ok("groups", "describe", group).err
    rows = ottla.ok("groups", "lag", group, "--json").json
    assert rows["lag"] == 2


def test_a_member_and_the_deliveries_of_its_records_are_shown(
    ottla: CommandLine, topic: str, group: str
) -> None:
    with blocking.ShareConsumer[bytes, bytes](
        ottla.bootstrap_servers, group_id=group, client_id="a-worker", share_acknowledgement_mode="explicit"
    ) as consumer:
        consumer.subscribe(topic)
        while not (records := consumer.poll()):
            pass
        consumer.release(*records)
        consumer.commit()
        document = ottla.ok("share-groups", "describe", group, "--deliveries", "--json").json
        (member,) = document["members"]
        assert member["client_id"] == "a-worker"
        assert {"topic": topic, "partition": 0} in member["assignment"]
        released = [each for each in document["deliveries"] if each["state"] == "available"]
        assert released
        assert all(each["delivery_count"] >= 1 for each in released)
        for refused in (
            ("reset-offsets", group, "--to", "beginning", "--all-topics", "--execute"),
            ("delete-offsets", group, "--topic", topic, "--yes"),
            ("delete", group, "--yes"),
        ):
            said = ottla.fails("share-groups", *refused).err
            assert "is Stable with 1 member (a-worker at" in said
            assert "stop it first. A member that was killed is gone when its session times out" in said
        plan = ottla.ok("share-groups", "reset-offsets", group, "--to", "beginning", "--all-topics")
        assert "stop it first. A member that was killed is gone when its session times out" in plan.err


def test_a_reset_is_shown_and_then_done(ottla: CommandLine, topic: str, group: str) -> None:
    plan = ("share-groups", "reset-offsets", group, "--to", "beginning", "--topic", f"{topic}:0")
    shown = ottla.ok(*plan)
    assert "Nothing was changed" in shown.err
    assert lag(ottla, group)[0] == 2
    (row,) = ottla.ok(*plan, "--execute", "--json").json
    assert (row["new"], row["executed"]) == (0, True)
    described = ottla.ok("share-groups", "describe", group, "--deliveries")
    assert "DELIVERIES" not in described.out
    assert "no record waits for another delivery" in described.err
    again = ottla.ok("consume", topic, "--share", group, "--count", "5", *TIMEOUT).out.split()
    assert again == list("abcde")


@pytest.mark.witness
def test_offsets_and_groups_are_deleted(ottla: CommandLine, topic: str, group: str) -> None:
    assert ottla.ok("share-groups", "delete-offsets", group, "--topic", topic, "--yes").out.split() == [
        f"{topic}:",
        "deleted",
    ]
    assert lag(ottla, group).get(0) is None
    ottla.ok("share-groups", "delete", group, "--yes")
    assert "does not exist" in ottla.fails("share-groups", "describe", group).err


def test_a_group_that_does_not_exist_yet_begins_where_it_is_reset(ottla: CommandLine, topic: str) -> None:
    name = f"new-{topic}"
    reset = ("share-groups", "reset-offsets", name, "--to", "beginning", "--topic", f"{topic}:0")
    ottla.ok("produce", topic, *"ab", "-p", "0")
    ottla.ok(*reset)
    assert "does not exist" in ottla.fails("share-groups", "describe", name).err
    ottla.ok(*reset, "--execute")
    assert lag(ottla, name) == {0: 2}


@pytest.mark.slow
def test_a_new_group_says_that_it_begins_at_the_end(ottla: CommandLine, topic: str, group: str) -> None:
    setting = ("--set", "share.auto.offset.reset=earliest")
    name = f"late-{topic}"
    read = ("consume", topic, "--share", name)
    said = ottla.ok(*read, *IDLE)
    assert (said.out, f"{name} has no offsets of {topic} yet" in said.err) == ("", True)
    assert "share.auto.offset.reset=earliest" in said.err
    shown = ottla.ok("share-groups", "describe", name).err
    assert "where START is missing, the group begins by share.auto.offset.reset=latest" in shown
    assert "without 2 partitions that have no offset" in ottla.ok("groups", "lag", name).err
    ottla.ok("configs", "alter", "--group", name, *setting)
    assert ottla.ok(*read, "--count", "5", *TIMEOUT).err == ""
    assert ottla.ok(*read, *IDLE).err == ""


@pytest.mark.slow
def test_a_user_who_may_not_see_the_setting_gets_the_hint_too() -> None:
    settings = {
        "authorizer.class.name": CLASS_NAME,
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalNode(settings) as node:
        command = CommandLine(node.bootstrap_servers)
        command.ok("topics", "create", "letters")
        user = ("--principal", "ANONYMOUS", "--group", "mailers")
        command.ok("acls", "add", *user, "--operation", "read", "--operation", "describe")
        said = command.ok("consume", "letters", "--share", "mailers", *IDLE).err
    assert "begins at the end, unless its setting share.auto.offset.reset says otherwise;" in said
    assert "--group mailers --set share.auto.offset.reset=earliest" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_ended_leaves_its_group(
    ottla: CommandLine, topic: str, group: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "ottla", "consume", topic, "--share", group]
    process = subprocess.Popen(
        command,
        env=os.environ | {BOOTSTRAP_VARIABLE: ottla.bootstrap_servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        text=True,
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["d\n", "e\n"]
        process.send_signal(number)
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
    document = ottla.ok("share-groups", "describe", group, "--json").json
    assert (document["members"], document["state"]) == ([], "Empty")


def test_groups_of_another_type_are_refused(ottla: CommandLine, topic: str, group: str) -> None:
    joined = ottla.fails("consume", topic, "--group", group)
    assert f"group {group} is a share group: `ottla consume --share {group}`" in joined.err
    ottla.ok("consume", topic, "--group", f"other-{group}", "--from-beginning", "--count", "1", *TIMEOUT)
    assert "is a classic group" in ottla.fails("consume", topic, "--share", f"other-{group}").err
    assert "not a streams group" in ottla.fails("streams-groups", "describe", group).err
    moved = ottla.fails("groups", "reset-offsets", group, "--to", "end", "--topic", topic)
    assert "share-groups reset-offsets" in moved.err
    assert group not in ottla.ok("streams-groups", "list").out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--from-beginning"], "share.auto.offset.reset=earliest"),
        (["--group", "g"], "--group does not go with --share"),
        (["--partitions", "0"], "--partitions does not go with --share"),
        (["--exit"], "--until does not go with --share"),
        (["--grep", "x"], "--grep does not go with --share"),
        (["--share", ""], "the group has no name"),
    ],
)
def test_what_contradicts_a_share_group_is_refused(
    offline: CommandLine, options: list[str], text: str
) -> None:
    assert text in offline.fails("consume", "jobs", "--share", "workers", *options, status=2).err


def test_what_members_hold_is_shown_from_the_metrics_of_the_nodes() -> None:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.http_url is not None
        command = CommandLine(node.bootstrap_servers)
        command.ok("topics", "create", "tasks")
        command.ok("configs", "alter", "--group", "workers", "--set", "share.auto.offset.reset=earliest")
        command.ok("produce", "tasks", *"abc")
        with blocking.ShareConsumer[bytes, bytes](
            node.bootstrap_servers, group_id="workers", share_acknowledgement_mode="explicit"
        ) as consumer:
            consumer.subscribe("tasks")
            while not (records := consumer.poll()):
                pass
            describe = ("share-groups", "describe", "workers", "--http", node.http_url)
            (row,) = command.ok(*describe, "--json").json["partitions"]
            assert row["held"] == len(records)
            assert "HELD" in command.ok(*describe).out


@pytest.fixture
def upgraded() -> Iterator[CommandLine]:
    """A node with dead letters, as Apache Kafka has none before 4.4."""
    with LocalNode() as node:
        line = CommandLine(node.bootstrap_servers)
        line.ok("cluster", "features", "--set", "share.version=2")
        yield line


def make_dead_letters(ottla: CommandLine, topic: str) -> str:
    """Have a share group reject the first and the third of four records, without a copy."""
    name = f"careful-{topic}"
    ottla.ok("topics", "create", topic)
    ottla.ok("topics", "create", f"dlq.{topic}", "--config", "errors.deadletterqueue.group.enable=true")
    ottla.ok("configs", "alter", "--group", name, "--set", "share.auto.offset.reset=earliest")
    ottla.ok("configs", "alter", "--group", name, "--set", f"errors.deadletterqueue.topic.name=dlq.{topic}")
    ottla.ok("produce", topic, *"abcd", "-p", "0")
    settings = {"group_id": name, "share_acknowledgement_mode": "explicit"}
    with blocking.ShareConsumer[bytes, bytes](ottla.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(topic)
        left = 4
        while left:
            for record in consumer.poll(timeout_ms=500):
                is_bad = record.value in (b"a", b"c")
                consumer.acknowledge(record, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT)
                left -= 1
        consumer.commit()
    found = 0
    while found < 2:
        found = ottla.ok("share-groups", "dead-letters", name, "--json").json["count"]
    return name


@pytest.mark.witness
def test_dead_letters_are_listed_and_sent_again_once(upgraded: CommandLine) -> None:
    ottla, topic = upgraded, "tasks"
    dead = make_dead_letters(ottla, topic)
    listed = ottla.ok("share-groups", "dead-letters", dead, "--json").json["dead_letters"]
    assert sorted((each["topic"], each["offset"], each["deliveries"]) for each in listed) == [
        (topic, 0, 1),
        (topic, 2, 1),
    ]
    assert {each["message"] for each in listed} == {"Rejected by a consumer."}
    none = ottla.ok("share-groups", "redrive", dead, "--reason", "as often", "--yes", "--json").json
    assert none["sent"] == {}
    assert ottla.ok("share-groups", "redrive", dead, "--yes", "--json").json["sent"] == {topic: 2}
    assert ottla.ok("share-groups", "redrive", dead, "--yes", "--json").json["sent"] == {}
    read = ottla.ok("consume", topic, "--from-beginning", "-p", "0", "--count", "6", *TIMEOUT).out.split()
    assert sorted(read) == ["a", "a", "b", "c", "c", "d"]


@pytest.mark.exhaustive
def test_of_two_redrives_at_once_one_is_fenced_or_finds_nothing(upgraded: CommandLine) -> None:
    dead = make_dead_letters(upgraded, "jobs")
    command = [sys.executable, "-m", "ottla", "share-groups", "redrive", dead, "--yes", "--json"]
    command += ["--bootstrap-server", upgraded.bootstrap_servers]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for each in both:
        _, said = each.communicate(timeout=120)
        assert each.returncode == 0 or b"PRODUCER_FENCED" in said, said
    upgraded.ok("share-groups", "redrive", dead, "--yes")
    read = upgraded.ok("consume", "jobs", "--from-beginning", "-p", "0", "--idle", "2", *TIMEOUT).out.split()
    assert sorted(read) == ["a", "a", "b", "c", "c", "d"]


@pytest.mark.slow
def test_a_forged_dead_letter_reaches_no_topic_that_the_group_does_not_read(upgraded: CommandLine) -> None:
    ottla = upgraded
    dead = make_dead_letters(ottla, "jobs")
    ottla.ok("topics", "create", "secrets")
    claims = {"topic": "secrets", "partition": "0", "offset": "0", "group": dead}
    headers = [(f"__dlq.errors.{name}", value.encode()) for name, value in claims.items()]
    with blocking.Producer(ottla.bootstrap_servers) as producer:
        producer.send("dlq.jobs", b"forged", partition=0, headers=headers)
        producer.flush()
    redriven = ottla.ok("share-groups", "redrive", dead, "--yes", "--json").json
    assert redriven["sent"] == {"jobs": 2}
    assert [each["topic"] for each in redriven["foreign"]] == ["dlq.jobs"]
    with blocking.Consumer[bytes, bytes](ottla.bootstrap_servers) as consumer:
        place = TopicPartition("secrets", 0)
        assert consumer.end_offsets([place]) == {place: 0}


def test_a_group_without_a_dead_letter_topic_has_nothing_to_send(ottla: CommandLine, group: str) -> None:
    assert "has no dead-letter topic" in ottla.fails("share-groups", "redrive", group, "--yes").err


@pytest.fixture
def own_node(node_for_commands: LocalNode) -> CommandLine:
    """Apache Kafka does not show what members hold."""
    return CommandLine(node_for_commands.bootstrap_servers)


def in_delivery(ottla: CommandLine, group: str, *options: str) -> list[tuple[int, int, str, int]]:
    found = ottla.ok("share-groups", "records", group, *options, "--json").json
    shown = [(each["first"], each["last"], each["state"], each["deliveries"]) for each in found["records"]]
    counts = {state: count for state, count in found["counts"].items() if count}
    by_state: dict[str, int] = {}
    for first, last, state, _ in shown:
        by_state[state] = by_state.get(state, 0) + last - first + 1
    assert by_state == counts
    return shown


def test_records_in_delivery_are_seen_released_rejected_and_skipped(own_node: CommandLine) -> None:
    ottla, topic = own_node, "seen-jobs"
    ottla.ok("topics", "create", topic)
    group = f"workers-of-{topic}"
    ottla.ok("configs", "alter", "--group", group, "--set", "share.auto.offset.reset=earliest")
    ottla.ok("configs", "alter", "--group", group, "--set", "share.retry.backoff.ms=600000")
    ottla.ok("produce", topic, *"abcdef", "-p", "0")
    settings = {"group_id": group, "share_acknowledgement_mode": "explicit"}
    with blocking.ShareConsumer[bytes, bytes](ottla.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(topic)
        held = []
        while len(held) < 6:
            held += consumer.poll()
        consumer.release(held[0], held[1])
        consumer.commit()
        assert in_delivery(ottla, group) == [(0, 1, "waiting", 1), (2, 5, "held", 1)]
        shown = ottla.ok("share-groups", "records", group)
        assert "6 records in delivery: 4 held, 2 waiting" in shown.err
        (waits,) = ottla.ok("share-groups", "records", group, "--state", "waiting", "--json").json["records"]
        assert 0 < waits["left_s"] <= 600
        assert waits["age_s"] + waits["left_s"] >= 600
        where = ("-t", topic, "-p", "0", "--offsets")

        # Two that wait: one goes on at once, the other never.
        assert (
            ottla.ok("share-groups", "release", group, *where, "0", "--yes").out == f"{topic}-0: 1 released\n"
        )
        assert ottla.ok("share-groups", "skip", group, *where, "1", "--yes").out == f"{topic}-0: 1 skipped\n"
        assert "no record was skipped" in ottla.ok("share-groups", "skip", group, *where, "1", "--yes").err
        # What a member holds is taken from it.
        assert ottla.ok("share-groups", "reject", group, *where, "2-3", "--yes", "--json").json["rejected"]
        consumer.accept(held[2], held[4])
        (result,) = consumer.commit().values()
        assert result is not None
        assert in_delivery(ottla, group, "--member", "another") == []
        ottla.ok("share-groups", "release", group, "--state", "held", "--yes")
        again = []
        while len(again) < 3:
            again += consumer.poll()
        assert sorted((each.offset, each.delivery_count) for each in again) == [(0, 2), (4, 2), (5, 2)]
        for each in again:
            consumer.accept(each)
        consumer.commit()
    assert lag(ottla, group)[0] == 0


def test_records_of_a_group_without_members_are_altered_too(own_node: CommandLine) -> None:
    ottla, topic = own_node, "left-jobs"
    ottla.ok("topics", "create", topic)
    group = f"workers-of-{topic}"
    ottla.ok("configs", "alter", "--group", group, "--set", "share.auto.offset.reset=earliest")
    ottla.ok("produce", topic, *"abc", "-p", "0")
    settings = {"group_id": group, "share_acknowledgement_mode": "explicit"}
    with blocking.ShareConsumer[bytes, bytes](ottla.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(topic)
        while not consumer.poll():
            pass
    assert in_delivery(ottla, group) == [(0, 2, "available", 1)]
    where = ("-t", topic, "-p", "0", "--offsets", "0-1")
    assert ottla.ok("share-groups", "skip", group, *where, "--yes").out == f"{topic}-0: 2 skipped\n"
    assert in_delivery(ottla, group) == [(2, 2, "available", 1)]
    rest = ottla.ok("consume", topic, "--share", group, "--count", "1", "--json", *TIMEOUT).json_lines
    assert [(each["offset"], each["delivery_count"]) for each in rest] == [(2, 2)]


@pytest.mark.kafka
@pytest.mark.exhaustive
def test_apache_kafka_does_not_show_records_in_delivery(apache_kafka: ApacheKafka) -> None:
    ottla = CommandLine(apache_kafka.bootstrap, apache_kafka.settle)
    ottla.ok("topics", "create", "plain-jobs")
    ottla.ok("configs", "alter", "--group", "plain", "--set", "share.auto.offset.reset=earliest")
    ottla.ok("produce", "plain-jobs", *"ab", "-p", "0")
    ottla.ok("consume", "plain-jobs", "--share", "plain", "--count", "1", *TIMEOUT)
    assert "does not offer DescribeShareRecords" in ottla.fails("share-groups", "records", "plain").err


def test_records_are_asked_for_with_care(ottla: CommandLine, topic: str, group: str) -> None:
    assert "does not exist" in ottla.fails("share-groups", "records", "no-such-group").err
    assert "reads no topic nosuch" in ottla.fails("share-groups", "skip", group, "-t", "nosuch", "--yes").err
    assert "--topic" in ottla.fails("share-groups", "skip", group, "--offsets", "1", "--yes", status=2).err
    assert (
        "expected FIRST"
        in ottla.fails(
            "share-groups", "skip", group, "-t", topic, "-p", "0", "--offsets", "9-1", "--yes", status=2
        ).err
    )
    assert "known are held" in ottla.fails("share-groups", "records", group, "--state", "lost", status=2).err
