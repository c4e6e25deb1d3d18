"""Throttles of replication: which replicas they name, and when they are exceeded."""

from __future__ import annotations

import pytest

from ottla.replication.replication_quota_manager import ReplicationQuotaManager, is_throttled
from ottla.sim.clock import SimClock


@pytest.mark.parametrize(
    ("replicas", "index", "broker", "throttled"),
    [
        ((), 0, 1, False),
        (("*",), 7, 3, True),
        (("0:1", "1:2"), 0, 1, True),
        (("0:1", "1:2"), 1, 1, False),
        (("0:1", "1:2"), 1, 2, True),
    ],
)
def test_a_topic_names_its_throttled_replicas(
    replicas: tuple[str, ...], index: int, broker: int, throttled: bool
) -> None:
    assert is_throttled(replicas, index, broker) is throttled


def test_a_quota_is_exceeded_until_enough_time_has_passed() -> None:
    clock = SimClock()
    quota = ReplicationQuotaManager(clock, 1_000)
    assert not quota.is_exceeded
    quota.record(1_000)
    assert not quota.is_exceeded
    quota.record(2_000)
    assert quota.is_exceeded
    clock.advance_ms(2_900)
    assert quota.is_exceeded
    clock.advance_ms(100)
    assert not quota.is_exceeded


def test_a_quota_forgets_what_is_older_than_its_windows() -> None:
    clock = SimClock()
    quota = ReplicationQuotaManager(clock, 1_000, samples=3)
    quota.record(50_000)
    clock.advance_ms(2_999)
    assert quota.rate > 16_000
    clock.advance_ms(1)
    assert quota.rate == 0


def test_a_window_counts_as_long_as_its_last_bytes_do() -> None:
    clock = SimClock()
    quota = ReplicationQuotaManager(clock, 1_000, samples=3)
    quota.record(6_000)
    clock.advance_ms(900)
    quota.record(6_000)
    clock.advance_ms(2_900)
    assert quota.rate == pytest.approx(12_000 / 3.8)
    clock.advance_ms(100)
    assert quota.rate == 0


def test_a_quota_without_a_limit_is_never_exceeded() -> None:
    quota = ReplicationQuotaManager(SimClock())
    quota.record(2**62)
    assert not quota.is_exceeded
