"""`ottla configs`, `offsets`, `delete-records`, `log-dirs`, `cluster` and `quorum`."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


def test_only_what_was_set_is_described_unless_all_is_wanted(ottla: CommandLine, topic: str) -> None:
    assert ottla.ok("configs", "describe", "--topic", topic).rows == []
    ottla.ok("configs", "alter", "--topic", topic, "--set", "retention.ms=7000", "--set", "segment.ms=9000")
    assert ottla.ok("configs", "describe", "--topic", topic).rows == [
        ["retention.ms", "7000", "topic"],
        ["segment.ms", "9000", "topic"],
    ]
    ottla.ok("configs", "alter", "--topic", topic, "--delete", "segment.ms")
    names = [row["name"] for row in ottla.ok("configs", "describe", "--topic", topic, "--all", "--json").json]
    assert "segment.ms" in names
    assert len(names) > 20


def test_one_setting_with_its_synonyms_and_meaning(ottla: CommandLine, topic: str) -> None:
    (found,) = ottla.ok("configs", "describe", "--topic", topic, "segment.bytes", "--docs", "--json").json
    assert found["source"] == "DEFAULT"
    assert {s["name"] for s in found["synonyms"]} == {"log.segment.bytes"}
    assert found["documentation"]


@pytest.mark.witness
def test_lists_are_appended_to_and_subtracted_from(ottla: CommandLine, topic: str) -> None:
    ottla.ok("configs", "alter", "--topic", topic, "--append", "cleanup.policy=compact")
    (found,) = ottla.ok("configs", "describe", "--topic", topic, "cleanup.policy", "--json").json
    assert found["value"] == "delete,compact"
    ottla.ok("configs", "alter", "--topic", topic, "--subtract", "cleanup.policy=delete")
    (found,) = ottla.ok("configs", "describe", "--topic", topic, "cleanup.policy", "--json").json
    assert found["value"] == "compact"


def test_a_value_that_is_not_allowed_changes_nothing(ottla: CommandLine, topic: str) -> None:
    ended = ottla("configs", "alter", "--topic", topic, "--set", "retention.ms=soon")
    assert ended.status == 1
    assert "retention.ms" in ended.err
    assert ottla.ok("configs", "describe", "--topic", topic).rows == []


def test_a_dry_run_of_a_change_changes_nothing(ottla: CommandLine, topic: str) -> None:
    changed = ottla.ok("configs", "alter", "--topic", topic, "--set", "retention.ms=1", "--dry-run")
    assert "would change" in changed.out
    assert ottla.ok("configs", "describe", "--topic", topic).rows == []


def test_a_mistyped_setting_or_broker_is_reported(ottla: CommandLine, topic: str) -> None:
    ended = ottla("configs", "describe", "--topic", topic, "retention.msx")
    assert "did you mean retention.ms" in ended.err
    ended = ottla("configs", "describe", "--broker", "4711")
    assert ended.status == 1
    assert "there is no broker 4711" in ended.err


def test_a_setting_that_does_not_exist_cannot_go_back_to_its_default(ottla: CommandLine, topic: str) -> None:
    for command in (
        ["configs", "alter", "--topic", topic, "--delete", "retention.msx"],
        ["configs", "alter", "--broker", "default", "--delete", "log.retention.msx"],
        ["topics", "alter", topic, "--delete-config", "retention.msx"],
    ):
        ended = ottla(*command)
        assert ended.status == 1
        assert f"there is no setting {command[-1]}; did you mean {command[-1][:-1]}" in ended.err
    ottla.ok("configs", "alter", "--topic", topic, "--delete", "retention.ms")
    ottla.ok("configs", "alter", "--broker", "default", "--delete", "log.retention.ms")


def test_a_topic_named_without_its_option_is_understood(offline: CommandLine) -> None:
    ended = offline("configs", "describe", "topic", "orders")
    assert ended.status == 2
    assert "did you mean --topic orders?" in ended.err


def test_a_broker_describes_its_listeners(ottla: CommandLine) -> None:
    broker = ottla.ok("cluster", "describe", "--json").json["brokers"][0]["id"]
    names = [row[0] for row in ottla.ok("configs", "describe", "--broker", str(broker)).rows]
    assert "listeners" in names
    assert ["broker", str(broker)] in ottla.ok("configs", "list").rows


@pytest.mark.parametrize("scope", [[], ["--topic", "a", "--broker", "1"], ["--broker", "one"]])
def test_settings_are_of_one_thing(offline: CommandLine, scope: list[str]) -> None:
    assert offline("configs", "describe", *scope).status == 2


def test_offsets_before_and_after_records(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "a", "b", "c", "--partition", "1")
    assert ottla.ok("offsets", topic).rows == [[topic, "0", "0", "0", "0"], [topic, "1", "0", "3", "3"]]
    # Offsets, and not records: markers of transactions have some, too.
    assert ottla.ok("offsets", topic).out.splitlines()[0].split() == [
        *("TOPIC", "PARTITION", "FIRST", "END", "OFFSETS")
    ]
    found = ottla.ok("offsets", topic, "-p", "1", "--json").json
    assert found == [{"topic": topic, "partition": 1, "beginning": 0, "end": 3, "records": 3}]


@pytest.mark.witness
def test_offsets_by_time(ottla: CommandLine, topic: str) -> None:
    for timestamp in (1_000, 2_000, 3_000):
        ottla.ok("produce", topic, "x", "--partition", "0", "--timestamp", str(timestamp))
    assert ottla.ok("offsets", topic, "-p", "0", "--at", "@1500", "--json").json == [
        {"topic": topic, "partition": 0, "offset": 1, "timestamp": 2_000}
    ]
    assert ottla.ok("offsets", topic, "-p", "0", "--at", "max", "--json").json[0]["offset"] == 2
    assert ottla.ok("offsets", topic, "-p", "0", "--at", "earliest-local", "--json").json[0]["offset"] == 0
    assert ottla.ok("offsets", topic, "-p", "0", "--at", "latest-tiered", "--json").json[0]["offset"] is None
    assert ottla.ok("offsets", topic, "-p", "0", "--at", "1s", "--json").json[0]["offset"] is None
    assert ottla("offsets", topic, "-p", "7").status == 1
    assert "max, earliest-local, latest-tiered or " in ottla("offsets", topic, "--at", "latest_tiered").err


@pytest.mark.witness
def test_records_are_deleted_up_to_an_offset_or_but_for_the_last(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, *"abcdef", "--partition", "0")
    planned = ottla.ok("delete-records", topic, "--before", "2", "-p", "0", "--dry-run")
    assert planned.rows == [[topic, "0", "2"]]
    assert ottla("delete-records", topic, "--before", "2").status == 1
    assert ottla.ok("offsets", topic, "-p", "0").rows == [[topic, "0", "0", "6", "6"]]
    ottla.ok("delete-records", topic, "--before", "2", "-p", "0", "--yes")
    assert ottla.ok("offsets", topic, "-p", "0").rows == [[topic, "0", "2", "6", "4"]]
    ottla.ok("delete-records", topic, "--before", "-1", "--yes")
    assert ottla.ok("offsets", topic, "-p", "0").rows == [[topic, "0", "5", "6", "1"]]


def test_records_that_are_not_there_cannot_be_deleted(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, *"abc", "--partition", "0")
    ended = ottla("delete-records", topic, "--before", "4", "-p", "0", "--yes")
    assert ended.status == 1
    assert f"{topic}-0 ends at 3, before 4" in ended.err
    assert ottla.ok("offsets", topic, "-p", "0").rows == [[topic, "0", "0", "3", "3"]]


@pytest.mark.witness
def test_directories_and_the_replicas_in_them(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "x" * 1000, "--partition", "1")
    (directory,) = ottla.ok("log-dirs", "describe", "--topic", topic, "--json").json
    assert directory["usable_bytes"] > 0
    sizes = {r["partition"]: r["size_bytes"] for r in directory["replicas"]}
    assert sizes[0] == 0
    assert sizes[1] > 1000
    assert len(ottla.ok("log-dirs", "describe", "--topic", topic, "--replicas").rows) == 2
    assert ottla.ok("log-dirs", "describe").rows[0][1] == directory["path"]


@pytest.mark.witness
def test_the_cluster_its_features_apis_and_quorum(ottla: CommandLine) -> None:
    cluster = ottla.ok("cluster", "describe", "--json").json
    (broker,) = cluster["brokers"]
    assert f"{broker['host']}:{broker['port']}" == ottla.bootstrap_servers
    assert cluster["cluster_id"] in ottla.ok("cluster", "describe").out
    features = {f["feature"]: f for f in ottla.ok("cluster", "features", "--json").json}
    assert features["metadata.version"]["level"] > 0
    apis = {a["name"]: a for a in ottla.ok("cluster", "apis", "--json").json}
    assert apis["Fetch"]["max"] >= 17
    quorum = ottla.ok("quorum", "--json").json
    assert quorum["leader"] == broker["id"]
    assert {m["role"] for m in quorum["members"]} >= {"leader"}
    assert "high watermark" in ottla.ok("quorum").out
