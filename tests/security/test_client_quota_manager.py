"""Which quota holds for a client, and what is kept of clients."""

from __future__ import annotations

import random
import sys

import pytest

from ottla.metadata.image.entities import QuotaEntity
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.quota import client_quota_manager
from ottla.security.quota.client_quota_manager import ClientQuotaManager
from ottla.security.quota.limits import QuotaLimits, QuotaTags
from ottla.security.quota.quota_managers import QuotaManagers
from ottla.security.quota.rate import QuotaWindows

# From the most specific to the least, with those that share the quota of alice's client `app`.
ORDER: list[tuple[QuotaEntity, tuple[str, str]]] = [
    ((("client-id", "app"), ("user", "alice")), ("alice", "app")),
    ((("client-id", None), ("user", "alice")), ("alice", "app")),
    ((("user", "alice"),), ("alice", "")),
    ((("client-id", "app"), ("user", None)), ("alice", "app")),
    ((("client-id", None), ("user", None)), ("alice", "app")),
    ((("user", None),), ("alice", "")),
    ((("client-id", "app"),), ("", "app")),
    ((("client-id", None),), ("", "app")),
]


def test_the_most_specific_quota_holds() -> None:
    limits = QuotaLimits()
    for number, (entity, tags) in reversed(list(enumerate(ORDER))):
        limits.update(entity, float(number + 1))
        assert limits.find("alice", "app") == (QuotaTags(*tags), number + 1), entity
    for number, (entity, _) in enumerate(ORDER):
        assert limits.find("alice", "app") == (QuotaTags(*ORDER[number][1]), number + 1)
        limits.update(entity, None)
    assert limits.find("alice", "app") is None
    assert not limits


def test_another_client_is_not_concerned() -> None:
    limits = QuotaLimits()
    for number, (entity, _) in enumerate(ORDER):
        if all(name is not None for _, name in entity):
            limits.update(entity, float(number + 1))
    assert limits.find("bob", "other") is None
    assert limits.find("alice", "other") == (QuotaTags("alice", ""), 3)
    assert limits.find("bob", "app") == (QuotaTags("", "app"), 7)


def test_a_client_without_an_id_has_the_quotas_of_its_user_only() -> None:
    limits = QuotaLimits()
    for entity, _ in ORDER:
        if entity != (("user", "alice"),):
            limits.update(entity, 5.0)
    limits.update((("user", None),), 6.0)
    assert limits.find("alice", "") == (QuotaTags("alice", ""), 6.0)
    limits.update((("user", None),), None)
    assert limits.find("alice", "") is None


def test_a_default_holds_for_each_client_by_itself_and_a_user_shares() -> None:
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("client-id", None),), 10.0)
    assert manager.record("u", "a", 1_000, 0) > 0
    assert manager.record("u", "b", 50, 0) == 0
    manager.update((("user", "u"),), 10.0)
    assert manager.record("u", "a", 60, 0) == 0
    assert manager.record("u", "b", 60, 0) > 0


def test_a_changed_quota_holds_at_once_and_what_was_measured_stays() -> None:
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("user", "u"),), 1_000.0)
    assert manager.record("u", "a", 5_000, 0) == 0
    manager.update((("user", "u"),), 100.0)
    assert manager.record("u", "a", 1, 0) > 0
    manager.update((("user", "u"),), None)
    assert not manager.is_enabled
    assert manager.record("u", "a", 10**9, 0) == 0


def test_sensors_of_clients_that_are_gone_expire() -> None:
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("client-id", None),), 1_000.0)
    for number in range(10_000):
        manager.record("u", f"client-{number}", 1, 0)
    assert manager.sensors == 10_000
    manager.record("u", "client-0", 1, 3_600_000)
    assert manager.sensors == 1
    assert manager.record("u", "client-1", 1, 3_600_001) == 0
    assert manager.sensors == 2


def test_a_flood_of_client_ids_is_bounded_and_spares_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quota_manager, "MAX_SENSORS", 1_000)
    monkeypatch.setattr(client_quota_manager, "_MAX_RESOLVED", 2_000)
    monkeypatch.setattr(client_quota_manager, "_EVICTED_AT_ONCE", 100)
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("client-id", None),), 10.0)
    assert manager.record("u", "busy", 10_000, 0) > 0
    for number in range(20_000):
        manager.record("u", f"client-{number}", 1, number // 100)
        assert manager.record("u", "busy", 0, number // 100) > 0
        assert manager.sensors <= 1_000
    assert len(manager._table._resolved) <= 2_000


def test_a_sensor_takes_less_than_two_kilobytes() -> None:
    manager = ClientQuotaManager(QuotaWindows())
    manager.update((("client-id", None),), 1e9)
    rng = random.Random(1)
    for second in range(30):
        manager.record("u", "c", rng.random() * 1e6, second * 1000)
    [sensor] = manager._table._sensors.values()
    rate = sensor.measure
    held = sys.getsizeof(sensor) + sys.getsizeof(rate) + sys.getsizeof(rate._older)
    held += sum(sys.getsizeof(window) + sum(map(sys.getsizeof, window)) for window in rate._older)
    assert held < 2048


class ManualClock:
    def __init__(self) -> None:
        self.ms = 0

    def wall_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000


def quotas_of(clock: ManualClock, **values: float) -> QuotaManagers:
    quotas = QuotaManagers(clock)
    entity = (("user", "u"),)
    quotas.update({entity: values}, [entity])
    return quotas


def test_a_strict_mutation_quota_refuses_what_comes_while_tokens_are_owed() -> None:
    clock = ManualClock()
    quotas = quotas_of(clock, controller_mutation_rate=1.0)
    first = quotas.mutation_quota("u", "c", is_strict=True)
    first.record(20)  # more than the burst of 11: only the next is refused
    assert first.throttle_ms == 0
    second = quotas.mutation_quota("u", "c", is_strict=True)
    with pytest.raises(KafkaError) as refused:
        second.record(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.throttle_ms == 9_000
    clock.ms = 4_000
    assert second.throttle_ms == 5_000
    clock.ms = 9_000
    quotas.mutation_quota("u", "c", is_strict=True).record(1)


def test_a_permissive_mutation_quota_lets_all_pass_and_throttles() -> None:
    quotas = quotas_of(ManualClock(), controller_mutation_rate=1.0)
    quota = quotas.mutation_quota("u", "c", is_strict=False)
    quota.record(20)
    assert quota.throttle_ms == 9_000
    quota.record(5)
    assert quota.throttle_ms == 14_000


def test_without_limits_nothing_is_active() -> None:
    quotas = quotas_of(ManualClock(), request_percentage=float("inf"))
    assert not quotas.is_active
    entity = (("ip", "192.0.2.1"),)
    quotas.update({entity: {"connection_creation_rate": 1.0}}, [entity])
    assert not quotas.is_active


def test_the_share_of_time_is_throttled_for_one_window_at_most() -> None:
    quotas = quotas_of(ManualClock(), request_percentage=1.0)
    assert quotas.request.record("u", "c", 10_000.0, 0) == 1_000
