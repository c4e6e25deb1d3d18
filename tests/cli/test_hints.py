"""Suggestions for unknown names, and notes about topics that were created."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ottla.cli.main import main
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


@pytest.mark.parametrize("option", ["--set", "--append"])
def test_a_setting_that_does_not_exist_is_answered_with_what_may_have_been_meant(
    ottla: CommandLine, topic: str, option: str
) -> None:
    ended = ottla("configs", "alter", "--topic", topic, option, "cleanup.polcy=compact")
    assert ended.status == 1
    assert "there is no setting cleanup.polcy; did you mean cleanup.policy" in ended.err


def test_a_value_that_does_not_fit_is_reported_as_the_broker_does(ottla: CommandLine, topic: str) -> None:
    ended = ottla("configs", "alter", "--topic", topic, "--set", "retention.ms=soon")
    assert ended.status == 1
    assert "retention.ms" in ended.err
    assert "did you mean" not in ended.err


def test_settings_that_brokers_show_only_by_name_are_known(node_for_commands: LocalNode) -> None:
    ottla, topic = CommandLine(node_for_commands.bootstrap_servers), uuid4().hex
    ottla.ok("topics", "create", topic)
    assert "table.format" not in ottla.ok("configs", "describe", "--topic", topic, "--all").out
    ended = ottla("configs", "alter", "--topic", topic, "--set", "table.format=delta")
    assert "String must be one of: none, iceberg" in ended.err
    ended = ottla("configs", "alter", "--topic", topic, "--set", "table.mode=latest")
    assert "table.mode=latest needs cleanup.policy=compact" in ended.err
    (shown,) = ottla.ok("configs", "describe", "--topic", topic, "table.format", "--json").json
    assert shown["value"] == "none"
    ottla.ok("configs", "alter", "--topic", topic, "--delete", "table.format")
    ended = ottla("configs", "alter", "--topic", topic, "--delete", "table.fromat")
    assert "there is no setting table.fromat" in ended.err


def test_a_topic_that_is_created_for_a_copy_has_as_many_partitions_as_asked_for(ottla: CommandLine) -> None:
    name = uuid4().hex[:16]
    lines = '{"value": "a", "partition": 2}\n{"value": "b", "partition": 0}\n'
    made = ottla.ok("produce", name, "--create", "--partitions", "3", "--json-input", stdin=lines)
    assert f"created topic {name} with 3 partitions" in made.err
    read = ottla.ok("consume", name, "--from-beginning", "--exit", "--json").json_lines
    assert sorted((record["partition"], record["value"]) for record in read) == [(0, "b"), (2, "a")]


def test_the_number_of_partitions_is_for_topics_that_are_created(offline: CommandLine) -> None:
    ended = offline("produce", "orders", "--partitions", "3", "a")
    assert ended.status == 2
    assert "--create" in ended.err


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        ("listener.name.plaintext.ssl.keystore.password", False),
        ("some.plugin.apikey", False),
        ("log.cleaner.backoff.ms", True),
    ],
)
def test_a_change_of_settings_repeats_no_secrets(
    node_for_commands: LocalNode, name: str, is_shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["-b", node_for_commands.bootstrap_servers, "--dry-run"]
    for more in ([], ["--json"]):
        assert main(["configs", "alter", "--broker", "1", "--set", f"{name}=12345", *common, *more]) == 0
        shown = capsys.readouterr()
        assert ("12345" in shown.out + shown.err) is is_shown
        assert name in shown.out
