"""Forward what clients push to an OpenTelemetry collector, by OTLP over HTTP.

Pushes are queued, and one task sends those that wait as one request: messages of OTLP one after the other are
one message. A collector that is slow or away costs a bounded amount of memory: the oldest pushes are dropped,
and counted. What the collector refuses for good is dropped too; what it cannot take now is tried again.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final

from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.http import HttpError, HttpRequest, http_fetch
from ottla.runtime.metrics import MetricsText
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
_MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
# Statuses after which OTLP says to try again.
_TRY_AGAIN: Final = frozenset((429, 502, 503, 504))
_TRIES: Final = 5


class OtlpForwarder:
    """`add` queues; `run` is the task that sends."""

    def __init__(self, runtime: Runtime, url: str, headers: Mapping[str, str]) -> None:
        self._runtime: Final = runtime
        self._url: Final = url
        self._headers: Final = {
            **headers,
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
        }
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake: Final = asyncio.Event()
        self.sent = 0
        self.dropped = 0
        self._is_failing = False

    def add(self, metrics: bytes) -> None:
        """Queue one push; the oldest make room for it."""
        if not metrics:
            return
        self._queue.append(metrics)
        self._queued_bytes += len(metrics)
        while self._queued_bytes > MAX_QUEUED_BYTES:
            self._queued_bytes -= len(self._queue.popleft())
            self.dropped += 1
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._send(self._take())

    def _take(self) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0]) <= _MAX_REQUEST_BYTES):
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._queued_bytes -= size
        return taken

    async def _send(self, pushes: list[bytes]) -> None:
        backoff = ExponentialBackoff(self._runtime.random, 1_000, 30_000)
        for _ in range(_TRIES):
            problem, is_final = await self._runtime.pool.run(self._post, b"".join(pushes))
            if problem is None:
                self.sent += len(pushes)
                if self._is_failing:
                    _log.info("client metrics are forwarded to %s again", self._url)
                self._is_failing = False
                return
            if not self._is_failing:
                _log.warning("client metrics cannot be forwarded: %s", problem)
            self._is_failing = True
            if is_final:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
        self.dropped += len(pushes)

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Return why the collector did not take it, and whether that is final."""
        request = HttpRequest(
            self._url, method="POST", headers=self._headers, body=gzip.compress(body, compresslevel=1)
        )
        try:
            status = http_fetch(request).status
        except HttpError as error:
            return str(error), False
        if 200 <= status < 300:
            return None, True
        return f"{self._url} answered {status}", status not in _TRY_AGAIN

    def collect(self, text: MetricsText) -> None:
        """Write how forwarding does."""
        text.counter("ottla_otlp_forwarded_pushes_total", "Pushes of clients that were forwarded", self.sent)
        text.counter(
            "ottla_otlp_dropped_pushes_total", "Pushes of clients that could not be forwarded", self.dropped
        )
        text.gauge("ottla_otlp_queued_bytes", "Bytes of pushes that wait to be forwarded", self._queued_bytes)
