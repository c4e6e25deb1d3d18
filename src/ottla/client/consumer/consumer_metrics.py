"""What a consumer counts, once for each poll, fetch, commit or rebalance, under Kafka's names."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Final

from ottla.client.consumer.subscription_state import SubscriptionState
from ottla.client.metrics import ClientMetrics, Measured

_FETCHES: Final = "consumer-fetch-manager-metrics"
_COORDINATOR: Final = "consumer-coordinator-metrics"
# Partitions whose lag is shown one by one.
MAX_PARTITIONS: Final = 1_000


class ConsumerMetrics:
    """The sensors of one consumer; they are read by its `ClientMetrics`."""

    __slots__ = (
        "_joining_since",
        "_last_poll",
        "_metrics",
        "_read_committed",
        "_subscriptions",
        "_waited",
        "bytes_consumed",
        "commit_latency",
        "commits",
        "fetch_latency",
        "fetch_size",
        "fetch_throttle_time",
        "fetches",
        "poll_idle_ratio",
        "rebalance_latency",
        "rebalance_latency_total",
        "rebalances",
        "records_consumed",
        "time_between_poll",
    )

    def __init__(
        self,
        metrics: ClientMetrics,
        subscriptions: SubscriptionState,
        *,
        read_committed: bool,
    ) -> None:
        self._metrics: Final = metrics
        self._subscriptions: Final = subscriptions
        self._read_committed: Final = read_committed
        self._last_poll: float | None = None
        self._waited = 0.0
        self._joining_since: float | None = None
        self.time_between_poll: Final = metrics.average_and_max("time-between-poll")
        self.poll_idle_ratio: Final = metrics.average_and_max("poll-idle-ratio")
        metrics.gauge("last-poll-seconds-ago", self._since_poll)
        self.fetches: Final = metrics.total("fetch", _FETCHES)
        self.fetch_latency: Final = metrics.average_and_max("fetch-latency", _FETCHES)
        self.fetch_size: Final = metrics.average_and_max("fetch-size", _FETCHES)
        self.fetch_throttle_time: Final = metrics.average_and_max("fetch-throttle-time", _FETCHES)
        self.bytes_consumed: Final = metrics.total("bytes-consumed", _FETCHES)
        self.records_consumed: Final = metrics.total("records-consumed", _FETCHES)
        self.commits: Final = metrics.total("commit", _COORDINATOR)
        self.commit_latency: Final = metrics.average_and_max("commit-latency", _COORDINATOR)
        self.rebalances: Final = metrics.total("rebalance", _COORDINATOR)
        self.rebalance_latency_total: Final = metrics.total("rebalance-latency", _COORDINATOR)
        self.rebalance_latency: Final = metrics.average_and_max("rebalance-latency", _COORDINATOR)
        metrics.gauge("assigned-partitions", lambda: len(subscriptions.partitions), _COORDINATOR)
        metrics.add_source(self._lags)

    # Polls

    def on_poll(self) -> None:
        """A call of the user begins."""
        now = asyncio.get_running_loop().time()
        if self._last_poll is not None:
            between = now - self._last_poll
            self.time_between_poll.record(between * 1000, now)
            if between > 0:
                self.poll_idle_ratio.record(min(self._waited / between, 1.0), now)
        self._last_poll, self._waited = now, 0.0

    def on_poll_done(self, records: int) -> None:
        """The call returns; the time since it began was spent within it."""
        self.records_consumed.value += records
        if self._last_poll is not None:
            self._waited = asyncio.get_running_loop().time() - self._last_poll

    def _since_poll(self) -> float:
        if self._last_poll is None:
            return -1
        return asyncio.get_running_loop().time() - self._last_poll

    # Rebalances

    def on_rebalance_begins(self) -> None:
        if self._joining_since is None:
            self._joining_since = asyncio.get_running_loop().time()

    def on_rebalance_done(self) -> None:
        if self._joining_since is None:
            return
        now = asyncio.get_running_loop().time()
        took_ms = (now - self._joining_since) * 1000
        self._joining_since = None
        self.rebalances.value += 1
        self.rebalance_latency_total.value += took_ms
        self.rebalance_latency.record(took_ms, now)

    # Lags, which are read and not counted

    def _lags(self, _now: float) -> Iterator[Measured]:
        largest = math.nan
        for index, state in enumerate(self._subscriptions):
            end = state.last_stable_offset if self._read_committed else state.high_watermark
            if end is None or state.position is None:
                continue
            lag, partition = max(end - state.position, 0), state.partition
            largest = lag if math.isnan(largest) else max(largest, lag)
            if index < MAX_PARTITIONS:
                tags = (("topic", partition.topic), ("partition", str(partition.partition)))
                yield self._metrics.number("records-lag", lag, _FETCHES, tags)
        yield self._metrics.number("records-lag-max", largest, _FETCHES)
