"""The internal topics of streams topologies: how many partitions each has, and which are missing."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.group.streams.internal_topic_manager import (
    ConfiguredTopology,
    StreamsStatus,
    configure_topics,
)
from ottla.coordinator.group.streams.streams_topology import StreamsTopology, topology_value
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_heartbeat import Topology
from tests.coordinator.group.group_harness import GroupHarness
from tests.coordinator.group.streams_topologies import STATEFUL, WORD_COUNT, subtopology, topic, topology


def configured(sent: Topology, topics: dict[str, int]) -> ConfiguredTopology:
    return configure_topics(StreamsTopology.of(topology_value(sent)), 7, GroupHarness(topics).image)


def missing(result: ConfiguredTopology) -> dict[str, int]:
    assert result.error is not None
    assert result.error.status is StreamsStatus.MISSING_INTERNAL_TOPICS
    return {each.name: each.partitions for each in result.internal_topics_to_create}


def problem(result: ConfiguredTopology) -> tuple[StreamsStatus, str]:
    assert result.error is not None
    assert not result.is_ready
    return result.error.status, result.error.detail


def test_a_changelog_topic_has_a_partition_for_each_task() -> None:
    result = configured(STATEFUL, {"lines": 6})
    assert missing(result) == {"counts-changelog": 6}
    assert result.error is not None
    assert result.error.detail == "Internal topics are missing: counts-changelog"
    assert result.subtopologies is not None
    assert result.subtopologies["0"].tasks == 6


def test_a_topology_whose_topics_all_exist_is_ready() -> None:
    result = configured(STATEFUL, {"lines": 6, "counts-changelog": 6})
    assert result.is_ready
    assert result.internal_topics_to_create == ()
    assert result.metadata_hash == 7


def test_a_repartition_topic_has_the_partitions_of_the_subtopology_that_writes_it() -> None:
    result = configured(WORD_COUNT, {"lines": 3})
    assert missing(result) == {"counts-changelog": 3, "words-repartition": 3}
    by_name = {each.name: each.creatable() for each in result.internal_topics_to_create}
    assert by_name["counts-changelog"].replication_factor == 1
    assert by_name["words-repartition"].replication_factor == -1  # the default of the cluster
    assert [(config.name, config.value) for config in by_name["counts-changelog"].configs] == [
        ("cleanup.policy", "compact")
    ]


def test_counts_follow_a_chain_of_repartition_topics_in_whatever_order() -> None:
    chain = topology(
        subtopology("0", repartition=(topic("b"),), changelogs=(topic("store"),)),
        subtopology("1", repartition=(topic("a"),), sinks=("b",)),
        subtopology("2", "lines", sinks=("a",)),
    )
    assert missing(configured(chain, {"lines": 5})) == {"a": 5, "b": 5, "store": 5}


def test_a_repartition_topic_may_have_a_count_of_its_own() -> None:
    fixed = topology(
        subtopology("0", "lines", sinks=("a",)),
        subtopology("1", repartition=(topic("a", 12),), changelogs=(topic("store"),)),
    )
    result = configured(fixed, {"lines": 5})
    assert missing(result) == {"a": 12, "store": 12}
    assert result.subtopologies is not None
    assert [each.tasks for each in result.subtopologies.values()] == [5, 12]


def test_a_repartition_topic_that_is_joined_with_a_source_topic_has_its_count() -> None:
    join = topology(
        subtopology("0", "lines", sinks=("a",)),
        subtopology("1", "table", repartition=(topic("a"),), copartition=(("table", "a"),)),
    )
    assert missing(configured(join, {"lines": 5, "table": 8})) == {"a": 8}


def test_repartition_topics_that_are_joined_get_the_greatest_count() -> None:
    join = topology(
        subtopology("0", "lines", sinks=("a",)),
        subtopology("1", "more", sinks=("b",)),
        subtopology("2", repartition=(topic("a"), topic("b")), copartition=(("a", "b"),)),
    )
    assert missing(configured(join, {"lines": 5, "more": 9})) == {"a": 9, "b": 9}


def test_a_repartition_topic_with_another_count_than_the_joined_source_topic_is_told() -> None:
    join = topology(
        subtopology("0", "lines", sinks=("a",)),
        subtopology("1", "table", repartition=(topic("a", 4),), copartition=(("table", "a"),)),
    )
    assert problem(configured(join, {"lines": 5, "table": 8})) == (
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Number of partitions [4] of repartition topic [a] doesn't match number of partitions [8] of the "
        "source topic.",
    )


def test_joined_source_topics_with_different_counts_are_told() -> None:
    join = topology(subtopology("0", "left", "right", copartition=(("left", "right"),)))
    assert problem(configured(join, {"left": 2, "right": 3})) == (
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{left=2, right=3}]",
    )


def test_missing_source_topics_are_told_but_not_all_of_them() -> None:
    many = topology(subtopology("0", "e", "d", "c", "b", "a"))
    assert problem(configured(many, {"b": 1})) == (
        StreamsStatus.MISSING_SOURCE_TOPICS,
        "Source topics a, c, d and 1 additional topics are missing.",
    )


def test_an_internal_topic_that_exists_with_another_count_is_told() -> None:
    assert problem(configured(STATEFUL, {"lines": 4, "counts-changelog": 3})) == (
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic counts-changelog has different number of partitions: expected 4, found 3",
    )


@pytest.mark.parametrize(
    ("subtopologies", "message"),
    [
        (
            (subtopology("0", repartition=(topic("a"),), sinks=("a",)),),
            "There may be loops in the topology",
        ),
        (
            (subtopology("0", "lines"), subtopology("1", repartition=(topic("a"),))),
            "a repartition source topic is never used as a sink topic",
        ),
        ((subtopology("0"),), "No source topics found for subtopology 0"),
    ],
)
def test_topologies_that_no_topics_can_complete_are_refused(
    subtopologies: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(KafkaError, match=message) as refused:
        configured(topology(*subtopologies), {"lines": 1})
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
