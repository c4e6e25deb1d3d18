"""Keeps metadata fresh behind a client's back: when something was found to be stale, and by age.

However many ask, one refresh runs at a time and the next begins no sooner than the back-off allows, so a
topic without a leader is asked for at a decent pace. `on_update` is told after each that worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ottla.client.cluster import Cluster
from ottla.protocol.errors import KafkaError

__all__ = ["Refresher"]

log = logging.getLogger(__name__)


class Refresher:
    """Works while its task `run` does."""

    def __init__(self, cluster: Cluster, on_update: Callable[[], object]) -> None:
        self._cluster = cluster
        self._on_update = on_update
        self._asked = asyncio.Event()
        self._topics: set[str] = set()
        self.last_error: KafkaError | None = None

    def ask(self, topics: Iterable[str] = ()) -> None:
        """Something is stale: refresh soon, these topics included."""
        self._topics.update(topics)
        self._asked.set()

    async def run(self) -> None:
        backoff = self._cluster.new_backoff()
        while True:
            await self._wait_for_a_reason()
            self._asked.clear()
            topics, self._topics = self._topics, set()
            try:
                await self._cluster.refresh(topics=topics)
                self.last_error = None
            except KafkaError as error:
                log.debug("metadata: %s", error)
                self.last_error = error
                self.ask(topics)
            else:
                self._on_update()
                if not self._asked.is_set():
                    backoff.reset()
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _wait_for_a_reason(self) -> None:
        age = self._cluster.metadata_age_ms or 0.0
        left = max(self._cluster.config.metadata_max_age_ms - age, 0.0) / 1000
        try:
            async with asyncio.timeout(left):
                await self._asked.wait()
        except TimeoutError:
            pass
