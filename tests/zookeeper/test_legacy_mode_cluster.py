"""The tests of a cluster with a quorum, on a cluster whose metadata is in ZooKeeper."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import cluster, make_topic
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
from tests.zookeeper.test_legacy_mode import shared_cluster, zookeeper

__all__ = [
    "cluster",
    "make_topic",
    "shared_cluster",
    "test_a_group_goes_on_when_its_coordinator_dies",
    "test_a_leader_that_falls_silent_is_followed_and_what_it_says_later_does_not_count",
    "test_a_node_that_is_stopped_hands_its_leaderships_over_first",
    "test_a_topic_that_is_made_through_one_node_is_known_to_all",
    "test_all_nodes_are_killed_at_once_and_everything_is_there_again",
    "test_another_controller_takes_over_and_changes_go_on",
    "test_offsets_that_were_committed_are_known_to_the_next_coordinator",
    "zookeeper",
]

pytestmark = [pytest.mark.kafka, pytest.mark.exhaustive]
