"""Tests of clusters that do not speak of the quorum, with the metadata in ZooKeeper: the legacy mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import SETTINGS, cluster, make_topic
from tests.cluster.test_coordinators import (
    test_a_group_goes_on_when_its_coordinator_dies,
    test_offsets_that_were_committed_are_known_to_the_next_coordinator,
)
from tests.cluster.test_life import (
    test_a_leader_that_falls_silent_is_followed_and_what_it_says_later_does_not_count,
    test_a_node_that_is_stopped_hands_its_leaderships_over_first,
    test_a_topic_that_is_made_through_one_node_is_known_to_all,
    test_all_nodes_are_killed_at_once_and_everything_is_there_again,
    test_another_controller_takes_over_and_changes_go_on,
)
from tests.support.zookeeper import ApacheZooKeeper

__all__ = [
    "cluster",
    "make_topic",
    "test_a_group_goes_on_when_its_coordinator_dies",
    "test_a_leader_that_falls_silent_is_followed_and_what_it_says_later_does_not_count",
    "test_a_node_that_is_stopped_hands_its_leaderships_over_first",
    "test_a_topic_that_is_made_through_one_node_is_known_to_all",
    "test_all_nodes_are_killed_at_once_and_everything_is_there_again",
    "test_another_controller_takes_over_and_changes_go_on",
    "test_offsets_that_were_committed_are_known_to_the_next_coordinator",
]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    settings = {**SETTINGS, "zookeeper.session.timeout.ms": 3_000}
    with (
        ApacheZooKeeper(directory) as zookeeper,
        LocalCluster(nodes=3, settings=settings, zookeeper=f"{zookeeper.connect}/kafka") as running,
    ):
        yield running
