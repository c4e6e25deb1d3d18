"""`ottla groups`: lists, lag, and offsets that are reset or deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from ottla.cli.groups import GROUP_STATES
from ottla.cli.transactions import TRANSACTION_STATES
from ottla.coordinator.group.classic.classic_group import ClassicGroupState
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroupState
from ottla.coordinator.group.share.share_group import ShareGroupState
from ottla.coordinator.group.streams.streams_group import StreamsGroupState
from ottla.coordinator.transaction.transaction_metadata import TransactionState
from tests.support.command_line import CommandLine

DEADLINE_S = 120.0


@contextmanager
def member(ottla: CommandLine, group: str, topic: str, *, read: int) -> Iterator[None]:
    """A member that has read and committed this many records, and stays during the block."""
    consumer = Consumer(
        {
            "bootstrap.servers": ottla.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "the-reader",
        }
    )
    try:
        consumer.subscribe([topic])
        seen = 0
        deadline = time.monotonic() + DEADLINE_S
        while seen < read:
            assert time.monotonic() < deadline, f"{seen} of {read} records came"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                consumer.commit(message, asynchronous=False)
                seen += 1
        yield
    finally:
        consumer.close()


@pytest.fixture
def group(ottla: CommandLine, topic: str) -> str:
    """A group without members that has committed offset 3 of 5 in partition 0."""
    ottla.ok("produce", topic, *"abcde", "-p", "0")
    name = f"readers-of-{topic}"
    with member(ottla, name, topic, read=3):
        pass
    return name


def committed(ottla: CommandLine, group: str) -> dict[int, int | None]:
    rows = ottla.ok("groups", "lag", group, "--json").json["partitions"]
    return {row["partition"]: row["committed"] for row in rows}


@pytest.mark.witness
def test_a_group_with_a_member_is_described(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "a", "-p", "0")
    name = f"active-{topic}"
    with member(ottla, name, topic, read=1):
        info = ottla.ok("groups", "describe", name, "--json").json
        assert info["state"] == "Stable"
        (reader,) = info["members"]
        assert reader["client_id"] == "the-reader"
        assert sorted(p["partition"] for p in reader["assignment"]) == [0, 1]
        assert [(p["partition"], p["lag"]) for p in info["partitions"]] == [(0, 0), (1, None)]
        shown = ottla.ok("groups", "describe", name).out
        assert "the-reader" in shown
        assert [topic, "0", "1", "1", "0"] in [line.split()[:5] for line in shown.splitlines()]
        refused = ottla("groups", "reset-offsets", name, "--to", "end", "--all-topics", "--execute")
        assert refused.status == 1
        assert "the-reader" in refused.err
    assert [name, "Empty"] in [[row[0], row[-1]] for row in ottla.ok("groups", "list").rows]
    assert name not in ottla.ok("groups", "list", "--state", "Stable").out
    assert name in ottla.ok("groups", "list", "--state", "empty", "--type", "Classic").out


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("groups", "PreparingRebalance, CompletingRebalance, Stable, Empty, Dead, Assigning"),
        ("share-groups", "Stable, Empty, Dead"),
        ("streams-groups", "NotReady, Assigning, Reconciling, Stable, Empty, Dead"),
        ("transactions", "Empty, Ongoing"),
    ],
)
def test_a_state_that_does_not_exist_is_refused(offline: CommandLine, command: str, known: str) -> None:
    refused = offline(command, "list", "--state", "Foo")
    assert refused.status == 2
    assert f"--state Foo: known are {known}" in refused.err


def test_a_type_or_a_state_that_no_such_group_has_is_refused(offline: CommandLine) -> None:
    assert (
        "--type Foo: known are classic, consumer, share, streams"
        in offline("groups", "list", "--type", "Foo").err
    )
    refused = offline("groups", "list", "--type", "SHARE", "--state", "NotReady")
    assert "--state NotReady: known are Stable, Empty, Dead" in refused.err


def test_all_states_of_groups_and_transactions_are_known() -> None:
    states: dict[str, type[Enum]] = {
        "classic": ClassicGroupState,
        "consumer": ConsumerGroupState,
        "share": ShareGroupState,
        "streams": StreamsGroupState,
    }
    for type, group_states in states.items():
        assert {state.value for state in group_states} <= set(GROUP_STATES[type])
    assert [state.title for state in TransactionState] == list(TRANSACTION_STATES)


def test_lag_is_what_lies_before_the_committed_offset(ottla: CommandLine, topic: str, group: str) -> None:
    found = ottla.ok("groups", "lag", group, "--json").json
    assert found["lag"] == 2
    assert found["partitions"][0] == {
        "topic": topic,
        "partition": 0,
        "committed": 3,
        "end": 5,
        "lag": 2,
        "member": None,
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to", "beginning"], 0),
        (["--to", "end"], 5),
        (["--to", "1"], 1),
        (["--to", "99"], 5),
        (["--to", "-1"], 4),
        (["--to", "1h"], 0),
        (["--to", "2100-01-01"], 5),
        (["--to", "current"], 3),
        (["--shift-by", "-2"], 1),
        (["--shift-by", "1"], 4),
        (["--shift-by", "-99"], 0),
    ],
)
def test_offsets_are_reset_to_every_target(
    ottla: CommandLine, topic: str, group: str, target: list[str], expected: int
) -> None:
    planned = ottla.ok("groups", "reset-offsets", group, *target, "--topic", f"{topic}:0", "--json").json
    assert [(row["current"], row["new"], row["executed"]) for row in planned] == [(3, expected, False)]
    assert committed(ottla, group)[0] == 3
    ottla.ok("groups", "reset-offsets", group, *target, "--topic", f"{topic}:0", "--execute")
    assert committed(ottla, group)[0] == expected


@pytest.mark.witness
def test_offsets_are_reset_from_a_file(ottla: CommandLine, topic: str, group: str, tmp_path: Path) -> None:
    (tmp_path / "plan.csv").write_text(f"{topic},0,2\n{topic},1,0\n")
    ottla.ok("groups", "reset-offsets", group, "--from-file", str(tmp_path / "plan.csv"), "--execute")
    assert committed(ottla, group) == {0: 2, 1: 0}
    (tmp_path / "plan.csv").write_text(f"{topic},zero,2\n")
    assert ottla("groups", "reset-offsets", group, "--from-file", str(tmp_path / "plan.csv")).status == 2


@pytest.mark.witness
def test_offsets_are_forgotten(ottla: CommandLine, topic: str, group: str) -> None:
    assert (
        ottla.ok("groups", "delete-offsets", group, "--topic", topic, "--yes").out == f"{topic}-0: deleted\n"
    )
    assert committed(ottla, group) == {}
    again = ottla("groups", "delete-offsets", group, "--topic", topic, "--yes")
    assert again.status == 1
    assert "has no offsets" in again.err


def test_a_group_is_deleted_once(ottla: CommandLine, group: str) -> None:
    assert ottla("groups", "delete", group).status == 1
    ottla.ok("groups", "delete", group, "--yes")
    assert group not in ottla.ok("groups", "list").out
    gone = ottla("groups", "delete", group, "--yes")
    assert gone.status == 1
    assert "does not exist" in gone.err


def test_a_mistyped_group_is_answered_with_a_suggestion(ottla: CommandLine, group: str) -> None:
    ended = ottla("groups", "describe", group[:-1])
    assert ended.status == 1
    assert f"did you mean {group}" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--all-topics"],
        ["--to", "end"],
        ["--to", "end", "--all-topics", "--topic", "t"],
        ["--to", "end", "--shift-by", "1", "--all-topics"],
    ],
)
def test_a_reset_says_what_and_where_to(offline: CommandLine, arguments: list[str]) -> None:
    assert offline("groups", "reset-offsets", "g", *arguments).status == 2
