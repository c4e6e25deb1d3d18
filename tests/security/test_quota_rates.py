"""The measures of quotas: Kafka's sample windows and token buckets."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from ottla.security.quota.rate import QuotaWindows, Rate, TokenBucket
from tests.support.rows import for_each


@dataclass
class Sample:
    start: int
    last: int
    value: float = 0.0


class SampledRate:
    """A rate kept as Kafka keeps it: a ring of samples, each reset when it is obsolete."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self.ring: list[Sample] = []
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.ring:
            self.ring.append(Sample(now, now))
        sample = self.ring[self.current]
        if now - sample.start >= self.window_ms:
            self.current = (self.current + 1) % (self.samples + 1)
            if self.current >= len(self.ring):
                self.ring.append(Sample(now, now))
            else:
                self.ring[self.current] = Sample(now, now)
            sample = self.ring[self.current]
        sample.value += value
        sample.last = now

    def throttle_ms(self, bound: float, now: int) -> int:
        for at, sample in enumerate(self.ring):
            if now - sample.last >= self.samples * self.window_ms:
                self.ring[at] = Sample(now, now)
        elapsed = now - min(sample.start for sample in self.ring)
        full = elapsed // self.window_ms
        if full < self.samples - 1:
            elapsed += (self.samples - 1 - full) * self.window_ms
        elapsed = max(elapsed, 1)
        value = sum(sample.value for sample in self.ring) / (elapsed / 1000)
        return int((value - bound) / bound * elapsed + 0.5) if value > bound else 0


@for_each("seed", range(20))
def test_throttle_times_are_those_of_the_samples_of_kafka(seed: int) -> None:
    rng = random.Random(seed)
    samples, seconds = rng.choice([(11, 1), (2, 1), (3, 5), (1, 1)])
    now = rng.randrange(10**9)
    ours, theirs = Rate(QuotaWindows(samples, seconds), now), SampledRate(samples, seconds * 1000)
    bound = rng.choice([10.0, 1000.0, 0.5])
    throttled = 0
    for _ in range(500):
        value = rng.randrange(int(bound * 10) + 2)
        ours.record(value, now)
        theirs.record(value, now)
        throttle_ms = ours.throttle_ms(bound, now)
        assert throttle_ms == pytest.approx(theirs.throttle_ms(bound, now), abs=1)
        if throttle_ms and rng.random() < 0.5:
            # What a throttled fetch did not get.
            ours.record(-value, now)
            theirs.record(-value, now)
        throttled += throttle_ms > 0
        now += rng.choice([0, 1, 90, 400, 1000, 1700, throttle_ms, rng.randrange(20_000)])
    assert throttled > 10


def test_a_client_that_waits_as_long_as_it_is_told_is_at_its_quota() -> None:
    rate, now, sent = Rate(QuotaWindows(), 0), 0, 0
    while now < 60_000:
        rate.record(5_000, now)
        sent += 5_000
        now += max(1, rate.throttle_ms(1_000, now))
    # What it may take at once after a rest, and then the quota.
    assert 1_000 * 60 <= sent <= 1_000 * 60 + 15_000


def test_a_bucket_allows_a_burst_and_then_one_that_overdraws_it() -> None:
    bucket = TokenBucket(QuotaWindows(samples=10), 2.0, now_ms=0)
    bucket.take(19, 2.0, 0)
    assert bucket.throttle_ms(2.0, 0) == 0
    bucket.take(11, 2.0, 0)
    assert bucket.throttle_ms(2.0, 0) == 5_000
    assert bucket.throttle_ms(2.0, 4_000) == 1_000
    assert bucket.throttle_ms(2.0, 5_000) == 0
    # It never holds more than the burst.
    bucket.take(21, 2.0, 10**6)
    assert bucket.throttle_ms(2.0, 10**6) == 500
