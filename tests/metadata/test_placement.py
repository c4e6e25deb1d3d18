"""Placement: distinct replicas, even leaders, spread over racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.controller.placement import UsableBroker, place_replicas
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.random import SeededRandom
from ottla.runtime.steps import run_at_once

brokers = st.lists(
    st.builds(
        UsableBroker,
        id=st.integers(0, 50),
        rack=st.none() | st.sampled_from(["a", "b", "c"]),
        fenced=st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda broker: broker.id,
)


@given(brokers, st.integers(0, 12), st.integers(1, 12), st.integers(0, 5))
def test_a_placement_is_valid_or_refused(
    cluster: list[UsableBroker], count: int, factor: int, seed: int
) -> None:
    unfenced = {broker.id for broker in cluster if not broker.fenced}
    if factor > len(cluster) or not unfenced:
        with pytest.raises(KafkaError) as error:
            run_at_once(place_replicas(cluster, count, factor, SeededRandom(seed)))
        assert error.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
        return
    placed = run_at_once(place_replicas(cluster, count, factor, SeededRandom(seed)))
    assert len(placed) == count
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert replicas[0] in unfenced
        assert set(replicas) <= {broker.id for broker in cluster}


def test_leaders_and_replicas_are_even() -> None:
    cluster = [UsableBroker(id, None, False) for id in range(5)]
    placed = run_at_once(place_replicas(cluster, 100, 3, SeededRandom(1)))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {20}
    assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {60}


def test_each_rack_gets_a_replica() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    cluster = [UsableBroker(id, rack, False) for id, rack in racks.items()]
    for replicas in run_at_once(place_replicas(cluster, 30, 3, SeededRandom(2))):
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}


def test_fenced_brokers_come_last() -> None:
    cluster = [UsableBroker(0, None, True), UsableBroker(1, None, False), UsableBroker(2, None, False)]
    for replicas in run_at_once(place_replicas(cluster, 10, 2, SeededRandom(3))):
        assert set(replicas) == {1, 2}


@pytest.mark.parametrize(
    ("cluster", "factor", "words"),
    [
        ([], 1, "All brokers are currently fenced or have all their log directories cordoned."),
        ([UsableBroker(0, None, True)], 1, "All brokers are currently fenced"),
        (
            [UsableBroker(0, None, False)],
            2,
            "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered",
        ),
        ([UsableBroker(0, None, False)], 0, "Invalid replication factor 0: the replication factor must be"),
    ],
)
def test_why_there_is_no_placement(cluster: list[UsableBroker], factor: int, words: str) -> None:
    with pytest.raises(KafkaError) as error:
        run_at_once(place_replicas(cluster, 1, factor, SeededRandom(0)))
    assert words in (error.value.message or "")
