"""What each release has left on a disk opens in the present code, and says the same."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.sink.decision_state import DecisionState
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.golden import GOLDEN, SETTINGS, SINK_QUERY, SINK_TOPIC, contents
from tests.support.spark_sink_harness import Query, committed_values

RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """The data directory of a release, and what was read of it."""
    with tarfile.open(GOLDEN / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data", json.loads((GOLDEN / f"{request.param}.json").read_text())


def test_there_is_one_of_the_first_release() -> None:
    assert "0.1.0" in RELEASES
    assert all((GOLDEN / f"{each}.tar.xz").stat().st_size < 100_000 for each in RELEASES)


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_a_node_of_today_serves_what_a_release_left(release: tuple[Path, Any], clean: bool) -> None:
    data, expected = release
    if not clean:
        (data / ".kafka_cleanshutdown").unlink()
    for _ in range(2):  # also what the first node of today has left
        with LocalNode(SETTINGS, data_dir=str(data)) as node:
            assert contents(CommandLine(node.bootstrap_servers)) == expected


@pytest.mark.slow
def test_files_of_a_release_are_sound(release: tuple[Path, Any]) -> None:
    data, _ = release
    line = CommandLine("127.0.0.1:1")
    for directory in sorted(path for path in data.iterdir() if path.is_dir()):
        assert line.ok("log", "dump", "--verify", str(directory)).out == ""
    dumped = line.ok("log", "dump", "--records", str(data / "__cluster_metadata-0")).out
    assert "UserScramCredentialRecord" in dumped


@pytest.mark.slow
def test_a_query_goes_on_where_its_decisions_in_a_release_end(release: tuple[Path, Any]) -> None:
    data, _ = release
    with LocalNode(SETTINGS, data_dir=str(data)) as node:
        query = Query(node.bootstrap_servers, SINK_TOPIC, name=SINK_QUERY)
        state: DecisionState = query.client.call(query.client.decision_log.read(query.scope))
        assert state.owner == "run"
        before = committed_values(node.bootstrap_servers, SINK_TOPIC)
        # Repeated, as by a driver that has not seen the commit: it is decided already.
        query.batch("run", 2, [[f"batch 2, task {task}"] for task in range(2)])
        assert committed_values(node.bootstrap_servers, SINK_TOPIC) == before
        query.batch("run", 3, [[f"batch 3, task {task}"] for task in range(2)])
        after = committed_values(node.bootstrap_servers, SINK_TOPIC)
        assert set((after - before).values()) == {1}
        assert len(after - before) == 2
