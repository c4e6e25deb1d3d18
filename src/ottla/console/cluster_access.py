"""The clients with which the console acts as one principal, and what they have found recently.

There are two admin clients: one has the metadata of all topics, the other one of those that it was asked
about, as a client that was once asked for all topics fetches all of them from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.admin import Admin
from ottla.client.cluster_metadata import TopicInfo
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.runtime import Runtime

CLIENT_ID: Final = "ottla-console"
API_TIMEOUT_MS: Final = 10_000
_TOPICS_NS: Final = 2_000_000_000
_MAX_TOPICS_NS: Final = 15_000_000_000
_TOPICS_PAUSE: Final = 20
# A client that knows this many topics is replaced: it would ask for all of them again and again.
_MAX_KNOWN_TOPICS: Final = 200
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024


class ClusterAccess:
    """`settings` are those of a client by Kafka's names, with `bootstrap.servers` and its login."""

    def __init__(self, runtime: Runtime, settings: Mapping[str, str], principal: str | None) -> None:
        self.runtime: Final = runtime
        self.principal: Final = principal
        self._settings: Final = dict(settings)
        self._admin: Admin | None = None
        self._listing: Admin | None = None
        self._producer: Producer | None = None
        self._lock: Final = asyncio.Lock()
        self._topics_lock: Final = asyncio.Lock()
        self._topics: list[TopicInfo] = []
        self._topics_at_ns: int | None = None
        self._topics_ns = _TOPICS_NS
        self._known_topics: set[str] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"ClusterAccess({self.principal!r})"

    async def admin(self, topic: str | None = None) -> Admin:
        """The client for calls about single things, connected. `topic` is the one that it will be asked
        about.
        """
        async with self._lock:
            self._check_open()
            if topic is not None:
                self._known_topics.add(topic)
            if self._admin is not None and len(self._known_topics) > _MAX_KNOWN_TOPICS:
                former, self._admin = self._admin, None
                self._known_topics = set() if topic is None else {topic}
                # Requests that are using it have the time that one may take.
                asyncio.get_running_loop().call_later(
                    3 * API_TIMEOUT_MS / 1000, lambda: asyncio.ensure_future(former.close())
                )
            if self._admin is None:
                self._admin = await self._connect()
            return self._admin

    async def listing(self) -> Admin:
        """The client that has the metadata of all topics; call `topics` first."""
        async with self._lock:
            self._check_open()
            if self._listing is None:
                self._listing = await self._connect()
            return self._listing

    async def _connect(self) -> Admin:
        admin = Admin(
            self._settings,
            runtime=self.runtime,
            client_id=CLIENT_ID,
            default_api_timeout_ms=API_TIMEOUT_MS,
            request_timeout_ms=API_TIMEOUT_MS,
            socket_connection_setup_timeout_ms=5_000,
        )
        return await admin.__aenter__()

    async def topics(self) -> list[TopicInfo]:
        """All topics by name, internal ones included, as of two seconds ago; where there are many, as of some
        more.
        """
        admin = await self.listing()
        async with self._topics_lock:
            began = self.runtime.clock.monotonic_ns()
            if self._topics_at_ns is None or began - self._topics_at_ns > self._topics_ns:
                self._topics = await admin.topics.list(include_internal=True)
                self._topics_at_ns = now = self.runtime.clock.monotonic_ns()
                # What takes long is done less often: ten thousand topics cost the cluster something too.
                self._topics_ns = min(max(_TOPICS_NS, _TOPICS_PAUSE * (now - began)), _MAX_TOPICS_NS)
            return self._topics

    def forget_topics(self) -> None:
        """Read the topics again when they are asked for: one was changed."""
        self._topics_at_ns = None

    def new_consumer(self, **settings: Any) -> Consumer[bytes, bytes]:
        self._check_open()
        return Consumer(
            self._settings,
            runtime=self.runtime,
            client_id=CLIENT_ID,
            default_api_timeout_ms=API_TIMEOUT_MS,
            request_timeout_ms=API_TIMEOUT_MS,
            **settings,
        )

    async def producer(self) -> Producer:
        async with self._lock:
            self._check_open()
            if self._producer is None:
                producer = Producer(
                    self._settings,
                    runtime=self.runtime,
                    client_id=CLIENT_ID,
                    linger_ms=0,
                    delivery_timeout_ms=API_TIMEOUT_MS,
                    request_timeout_ms=API_TIMEOUT_MS - 1_000,
                    max_request_size=MAX_REQUEST_BYTES,
                    max_block_ms=API_TIMEOUT_MS,
                )
                await producer.start()
                self._producer = producer
            return self._producer

    def _check_open(self) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the session has ended")

    async def close(self) -> None:
        self._closed = True
        for client in (self._admin, self._listing, self._producer):
            if client is not None:
                await client.close()
