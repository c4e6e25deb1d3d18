"""`/metrics`: the text of the registry over HTTP. Scrapes that come while one is made share the next."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.runtime.clock import Clock
from ottla.runtime.http_server import HttpMount, HttpRoute, HttpServerRequest, HttpServerResponse
from ottla.runtime.metrics import CONTENT_TYPE, MetricsRegistry
from ottla.runtime.turns import Turns

# A scrape is never urgent: requests of clients get most of the event loop meanwhile.
_TURN_MS: Final = 2.0


class MetricsEndpoint:
    def __init__(self, registry: MetricsRegistry, clock: Clock) -> None:
        self._registry: Final = registry
        self._clock: Final = clock
        self._making: Final = asyncio.Lock()
        # When the last text was begun, and the text, while others wait that may have it.
        self._begun_ns = -1
        self._text = b""
        self._waiting = 0

    def routes(self) -> HttpMount:
        return HttpMount((HttpRoute("GET", "/metrics", self._answer),))

    async def _answer(self, request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse(200, await self.text(), CONTENT_TYPE)

    async def text(self) -> bytes:
        """The metrics as they are after this call, or a little later."""
        asked_ns = self._clock.monotonic_ns()
        self._waiting += 1
        try:
            async with self._making:
                if self._begun_ns < asked_ns:
                    self._begun_ns = self._clock.monotonic_ns()
                    self._text = await self._registry.render(
                        Turns(self._clock, budget_ms=_TURN_MS, check_every=4)
                    )
                return self._text
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._text = b""
                self._begun_ns = -1
