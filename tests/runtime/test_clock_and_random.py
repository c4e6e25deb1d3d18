"""The system's clocks and generators keep what their protocols promise."""

from __future__ import annotations

import base64
import time

import pytest

from ottla.runtime.clock import SystemClock
from ottla.runtime.random import Random, SeededRandom, SystemRandom


def test_the_wall_clock_is_the_systems_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().wall_ms()
    assert before <= now <= time.time_ns() // 1_000_000


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic_ns() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.fixture(params=["system", "seeded"])
def source(request: pytest.FixtureRequest) -> Random:
    return SystemRandom() if request.param == "system" else SeededRandom(1)


def test_numbers_stay_within_their_range(source: Random) -> None:
    assert {source.randrange(-2, 3) for _ in range(500)} == {-2, -1, 0, 1, 2}
    with pytest.raises(ValueError):
        source.randrange(3, 3)
    assert all(0.0 <= source.random() < 1.0 for _ in range(100))
    assert len(source.randbytes(33)) == 33


def test_uuids_are_version_4_and_never_begin_with_a_dash(source: Random) -> None:
    seen = [source.uuid() for _ in range(5000)]
    assert len(set(seen)) == len(seen)
    for value in seen:
        assert len(value) == 16
        assert value[6] >> 4 == 4
        assert value[8] >> 6 == 0b10
        assert not base64.urlsafe_b64encode(value).startswith(b"-")
    # All first bytes but the four that read as a dash.
    assert len({value[0] for value in seen}) == 252


def test_a_seed_replays() -> None:
    def draw(source: Random) -> list[object]:
        return [source.randrange(0, 1 << 40), source.random(), source.randbytes(8), source.uuid()]

    assert draw(SeededRandom(7)) == draw(SeededRandom(7))
    assert draw(SeededRandom(7)) != draw(SeededRandom(8))
