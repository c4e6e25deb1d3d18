"""An admin client's settings, with Kafka's names, meanings and defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["AdminConfig"]


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """A call is repeated while it fails for a passing reason, within `default_api_timeout_ms`."""

    bootstrap_servers: str | Iterable[str] = "localhost:9092"
    client_id: str | None = "ottla-admin"
    default_api_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 300_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    metadata_max_age_ms: int = 300_000
