"""`ottla topics`."""

from __future__ import annotations

from unittest.mock import AsyncMock

import pytest

from ottla.client.admin.topics import TopicsAdmin
from ottla.client.errors import RequestTimedOut
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


def test_a_creation_that_took_too_long_may_still_be_done(
    node_for_commands: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = AsyncMock(side_effect=RequestTimedOut("CreateTopics: no answer within 5000 ms"))
    monkeypatch.setattr(TopicsAdmin, "create_many", late)
    ended = CommandLine(node_for_commands.bootstrap_servers)("topics", "create", "orders")
    assert ended.status == 1
    assert "it may still be done: `ottla topics list`" in ended.err


@pytest.mark.witness
def test_a_new_topic_is_listed_and_described(ottla: CommandLine, topic: str) -> None:
    assert [topic, "2", "1", "ok"] in ottla.ok("topics", "list").rows
    described = ottla.ok("topics", "describe", topic, "--json").json[0]
    assert described["name"] == topic
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert {(p["beginning_offset"], p["end_offset"]) for p in described["partitions"]} == {(0, 0)}
    assert described["configs"] == {}


def test_a_description_for_people_names_settings_and_partitions(ottla: CommandLine, topic: str) -> None:
    ottla.ok("topics", "alter", topic, "--config", "retention.ms=86400000")
    text = ottla.ok("topics", "describe", topic).out
    assert "retention.ms" in text
    assert "86400000" in text
    assert "PARTITION" in text


def test_names_alone_can_be_listed_and_filtered(ottla: CommandLine, topic: str) -> None:
    assert ottla.ok("topics", "list", topic[:-2], "--names").out.split() == [topic]
    assert ottla.ok("topics", "list", f"{topic[:-1]}*", "--names").out.split() == [topic]
    assert ottla.ok("topics", "list", "no-such-*", "--names").out == ""


def test_a_topic_that_exists_is_refused_unless_that_is_fine(ottla: CommandLine, topic: str) -> None:
    refused = ottla("topics", "create", topic)
    assert refused.status == 1
    assert f"Topic '{topic}' already exists." in refused.err
    assert "already exists" in ottla.ok("topics", "create", topic, "--if-not-exists").out


def test_settings_and_assignments_of_a_new_topic(ottla: CommandLine, topic: str) -> None:
    name = f"{topic}-assigned"
    broker = ottla.ok("cluster", "describe", "--json").json["brokers"][0]["id"]
    ottla.ok(
        "topics",
        "create",
        name,
        "--replica-assignment",
        f"{broker},{broker},{broker}",
        "-c",
        "cleanup.policy=compact",
    )
    described = ottla.ok("topics", "describe", name, "--json").json[0]
    assert len(described["partitions"]) == 3
    assert described["configs"] == {"cleanup.policy": "compact"}


def test_a_dry_run_creates_nothing(ottla: CommandLine, topic: str) -> None:
    name = f"{topic}-dry"
    assert "would be created" in ottla.ok("topics", "create", name, "--dry-run").out
    assert ottla("topics", "describe", name).status == 1


@pytest.mark.witness
def test_a_topic_grows_and_changes_settings_at_once(ottla: CommandLine, topic: str) -> None:
    ottla.ok("topics", "alter", topic, "-p", "3", "-c", "retention.ms=5000")
    described = ottla.ok("topics", "describe", topic, "--json").json[0]
    assert len(described["partitions"]) == 3
    assert described["configs"] == {"retention.ms": "5000"}
    ottla.ok("topics", "alter", topic, "--delete-config", "retention.ms")
    assert ottla.ok("topics", "describe", topic, "--json").json[0]["configs"] == {}


def test_deleting_asks_and_without_a_terminal_wants_yes(ottla: CommandLine, topic: str) -> None:
    asked = ottla("topics", "delete", topic)
    assert asked.status == 1
    assert "--yes" in asked.err
    assert ottla.ok("topics", "delete", topic, "--yes").out == f"{topic}: deleted\n"
    gone = ottla("topics", "delete", topic, "--yes")
    assert gone.status == 1
    assert "does not exist" in gone.err
    ottla.ok("topics", "delete", topic, "--yes", "--if-exists")


@pytest.mark.parametrize("command", [["topics", "describe"], ["offsets"], ["consume"], ["produce"]])
def test_a_mistyped_topic_is_answered_with_a_suggestion(
    ottla: CommandLine, topic: str, command: list[str]
) -> None:
    ended = ottla(*command, topic[:-1], *(["x"] if command == ["produce"] else []))
    assert ended.status == 1
    assert f"topic {topic[:-1]} does not exist; did you mean {topic}?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create", "t", "--config", "nonsense"], "expected NAME=VALUE"),
        (["create", "t", "--replica-assignment", "a"], "expected broker ids"),
        (["create", "t", "--replica-assignment", "1", "-p", "2"], "contains the counts"),
        (["alter", "t"], "nothing to change"),
        (["create", "t", "-p", "0"], "-p"),
        (["create"], "TOPIC"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_request(
    offline: CommandLine, arguments: list[str], complaint: str
) -> None:
    ended = offline("topics", *arguments)
    assert ended.status == 2
    assert complaint in ended.err
