"""`ottla cluster status` on three nodes: what is wrong, for any process that knows the directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import MakeTopic
from tests.support.acknowledged_workload import Load
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until


class Status:
    """The command, asked again and again."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._ottla = CommandLine(cluster.bootstrap_servers)
        self._directory = cluster.data_dir

    def __call__(self) -> tuple[int, Any]:
        ended = self._ottla("cluster", "status", "-d", self._directory, "--json")
        return ended.status, ended.json

    def until(self, good: Callable[[Any], bool], otherwise: str) -> Any:
        """What it says as soon as that is good."""
        seen: list[Any] = []

        def look() -> bool:
            seen[:] = [self()[1]]
            return good(seen[0])

        wait_until(look, otherwise)
        return seen[0]

    def node(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self()[1]["nodes"][number - 1]
        return found


@pytest.mark.slow
def test_all_is_well_and_then_a_node_is_gone(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    look = Status(cluster)
    seen = look.until(
        lambda seen: seen["well"] and seen["quorum"]["leader"] == cluster.controller(),
        "all is well, and status does not say so",
    )
    assert [node["state"] for node in seen["nodes"]] == ["running"] * 3
    assert sorted(node["quorum"] for node in seen["nodes"]) == ["leader", "voter", "voter"]
    of_topic = [p for p in seen["partitions"] if p["topic"] == topic]
    assert sorted(p["replicas"][0] for p in of_topic) == [1, 2, 3]
    # A broker that was missed for a moment leads no more.
    assert {p["leader"] for p in of_topic} <= {1, 2, 3}

    cluster.kill(3)
    seen = look.until(
        lambda seen: (
            bool(seen["partitions"])
            and all(p["in_sync"] and 3 not in p["in_sync"] for p in seen["partitions"] if 3 in p["replicas"])
        ),
        "the replicas of a dead node seem in sync",
    )
    assert seen["nodes"][2]["out_of_sync"] >= 3
    assert (look()[0], seen["well"]) == (1, False)
    dead = look.node(3)
    assert (dead["state"], dead["pid"], dead["leads"]) == ("down", None, 0)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_node_that_is_silent_is_shown_as_paused_and_catches_up(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    look = Status(cluster)
    follower = next(node.id for node in cluster.nodes if node.id != cluster.leader(topic))
    with Load(cluster.bootstrap_servers, topic, 1, per_second=500) as load:
        load.wait_for_more(100)
        cluster.pause(follower)
        assert look.node(follower)["state"] == "paused"
        wait_until(lambda: look.node(follower)["out_of_sync"] > 0, "a silent follower seems in sync")
        load.wait_for_more(100)
        cluster.resume(follower)
        wait_until(lambda: look.node(follower)["out_of_sync"] == 0, "it does not catch up")
        load.finish()
    wait_until(lambda: look.node(follower)["lag"] == 0, "it stays behind")
