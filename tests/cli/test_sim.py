"""`ottla sim`: its output for runs without and with a violation."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


def test_a_run_is_reported_and_can_be_replayed(offline: CommandLine) -> None:
    first = offline.ok("sim", "--seed", "7", "--minutes", "0.02", "--json").json
    again = offline.ok("sim", "--seed", "7", "--minutes", "0.02", "--json").json
    assert first["lives"][0]["violations"] == []
    assert first == again


@pytest.mark.slow
def test_a_broken_guarantee_is_named_with_the_command_that_replays_it(offline: CommandLine) -> None:
    bug = "read-above-the-high-watermark"
    ended = offline("sim", "--seed", "1", "--seeds", "9", "--minutes", "0.05", "--plant", bug)
    assert ended.status == 1
    assert "a guarantee was broken" in ended.err
    assert "--minutes 0.05 --trace --plant read-above-the-high-watermark" in ended.err
    assert "VIOLATION" in ended.out
    replay = ended.err.rpartition("replay it: ottla ")[2].split()
    replayed = offline(*replay)
    assert replayed.status == 1
    assert ended.err.partition("\n")[0] == replayed.err.partition("\n")[0]


def test_an_unknown_bug_is_not_planted(offline: CommandLine) -> None:
    ended = offline("sim", "--plant", "marker-droped")
    assert ended.status == 2
    assert "did you mean marker-dropped?" in ended.err
