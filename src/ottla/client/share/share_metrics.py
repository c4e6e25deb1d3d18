"""What a share consumer counts, once for each poll, fetch or acknowledgement, under Kafka's names."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.client.metrics import ClientMetrics

_FETCHES: Final = "consumer-share-fetch-manager-metrics"


class ShareConsumerMetrics:
    """The sensors of one share consumer; they are read by its `ClientMetrics`."""

    __slots__ = (
        "_last_poll",
        "_waited",
        "acknowledgements_error",
        "acknowledgements_send",
        "bytes_consumed",
        "fetch_latency",
        "fetch_size",
        "fetch_throttle_time",
        "fetches",
        "poll_idle_ratio",
        "records_consumed",
        "records_per_request",
        "time_between_poll",
    )

    def __init__(self, metrics: ClientMetrics) -> None:
        self._last_poll: float | None = None
        self._waited = 0.0
        self.time_between_poll: Final = metrics.average_and_max("time-between-poll")
        self.poll_idle_ratio: Final = metrics.average_and_max("poll-idle-ratio")
        metrics.gauge("last-poll-seconds-ago", self._since_poll)
        self.fetches: Final = metrics.total("fetch", _FETCHES)
        self.fetch_latency: Final = metrics.average_and_max("fetch-latency", _FETCHES)
        self.fetch_size: Final = metrics.average_and_max("fetch-size", _FETCHES)
        self.fetch_throttle_time: Final = metrics.average_and_max("fetch-throttle-time", _FETCHES)
        self.records_per_request: Final = metrics.average_and_max("records-per-request", _FETCHES)
        self.bytes_consumed: Final = metrics.total("bytes-consumed", _FETCHES)
        self.records_consumed: Final = metrics.total("records-consumed", _FETCHES)
        self.acknowledgements_send: Final = metrics.total("acknowledgements-send", _FETCHES)
        self.acknowledgements_error: Final = metrics.total("acknowledgements-error", _FETCHES)

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
