"""`ottla sim`: its output for runs without and with a violation."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support.command_line import CommandLine


@pytest.mark.slow
def test_a_run_is_reported_and_can_be_replayed(offline: CommandLine) -> None:
    first = offline.ok("sim", "--seed", "7", "--minutes", "0.02", "--json").json
    again = offline.ok("sim", "--seed", "7", "--minutes", "0.02", "--json").json
    assert first["lives"][0]["violations"] == []
    assert first == again


@pytest.mark.slow
def test_a_broken_guarantee_is_named_with_the_command_that_replays_it(offline: CommandLine) -> None:
    bug = "read-above-the-high-watermark"
    ended = offline(
        "sim", "--seed", "1", "--seeds", "9", "--minutes", "0.05", "--plant", bug, "--shrink", "0"
    )
    assert ended.status == 1
    assert "a guarantee was broken" in ended.err
    assert "--minutes 0.05 --trace --plant read-above-the-high-watermark" in ended.err
    assert "VIOLATION" in ended.out
    replay = ended.err.rpartition("replay it: ottla ")[2].split()
    replayed = offline(*replay, "--shrink", "0")
    assert replayed.status == 1
    assert ended.err.partition("\n")[0] == replayed.err.partition("\n")[0]


@pytest.mark.slow
def test_a_bug_is_planted_in_the_scenario_in_which_it_is_found(offline: CommandLine) -> None:
    """In one of the legacy mode, though nothing asks for that but the name of the bug."""
    ended = offline("sim", "--plant", "brokers-not-watched", "--shrink", "0")
    assert ended.status == 1, ended
    assert "--minutes 0.13 --trace --plant brokers-not-watched" in ended.err
    assert "--nodes" not in ended.err


def test_a_bug_that_no_run_found_is_told(offline: CommandLine) -> None:
    ended = offline("sim", "--plant", "marker-dropped", "--minutes", "0.01", "--seeds", "1", "--nodes", "1")
    assert ended.status == 0, ended
    assert "the bug marker-dropped was not found in 1 run: try more --seeds" in ended.err


def test_an_unknown_bug_is_not_planted(offline: CommandLine) -> None:
    ended = offline("sim", "--plant", "marker-droped")
    assert ended.status == 2
    assert "did you mean marker-dropped?" in ended.err


@pytest.mark.slow
def test_features_are_drawn_forced_and_forbidden(offline: CommandLine) -> None:
    options = ("sim", "--seed", "3", "--minutes", "0.01", "--json")
    forced = offline.ok(*options, "--secured", "--without", "tiered").json["lives"][0]["features"]
    assert "secured" in forced
    assert "tiered" not in forced
    listed = offline.ok(*options, "--features", "secured", "--clients", "idempotent").json["lives"][0][
        "features"
    ]
    assert "secured" in listed
    assert not {"tiered", "share-groups", "zookeeper", "deleted-topics"} & set(listed)


def test_features_that_exclude_each_other_are_refused(offline: CommandLine) -> None:
    ended = offline("sim", "--zookeeper", "--share-groups")
    assert ended.status == 2
    assert "share-groups is not possible beside zookeeper" in ended.err
    assert "there is no feature teired" in offline("sim", "--without", "teired").err
    assert (
        "there are no clients idempotnet: there are acks-0, " in offline("sim", "--clients", "idempotnet").err
    )


@pytest.mark.slow
def test_the_coverage_shows_which_pairs_no_run_had(offline: CommandLine) -> None:
    options = ("sim", "--seed", "3", "--minutes", "0.01", "--features", "secured,tiered", "--coverage")
    pairs = offline.ok(*options, "--json").json["pairs"]
    met = {tuple(each["pair"]) for each in pairs["counts"] if each["runs"]}
    assert ("secured", "tiered") in met
    assert ("secured", "share-groups") not in met
    assert 0 < pairs["share"] < 1
    assert "secured and share-groups" in offline.ok(*options).out


@pytest.mark.slow
def test_a_broken_guarantee_is_told_as_a_short_story_that_can_be_replayed(offline: CommandLine) -> None:
    bug = "read-above-the-high-watermark"
    ended = offline(
        "sim", "--seed", "1", "--seeds", "9", "--minutes", "0.05", "--plant", bug, "--shrink", "30"
    )
    assert ended.status == 1
    story = ended.out.partition("The shortest story of it")[2]
    assert "VIOLATION" in story
    replay = ended.err.rpartition("replay the short story: ottla ")[2]
    replayed = offline(*shlex.split(replay), "--shrink", "0")
    assert replayed.status == 1
    assert story.splitlines()[-1] in replayed.out.splitlines()


@pytest.mark.slow
def test_a_bug_is_looked_for_in_drawn_scenarios_that_have_its_features(offline: CommandLine) -> None:
    options = ("--plant", "prepared-not-kept", "--drawn", "--minutes", "0.01", "--seeds", "2", "--json")
    ended = offline("sim", *options)
    lives = json.loads(ended.out)["lives"]
    assert all("two-phase" in each["features"] for each in lives)
    assert len({tuple(each["features"]) for each in lives}) > 1 or len(lives) == 1
