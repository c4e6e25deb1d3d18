"""The requests in flight: at most one to each node, and a backoff after one that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.raft.config import QuorumConfig
from ottla.raft.messages import Request
from ottla.runtime.address import Address

# Bootstrap servers are known by address only; they get ids that no node has.
FIRST_BOOTSTRAP_ID: Final = -2


@dataclass(slots=True)
class InflightRequest:
    correlation_id: int
    node_id: int
    address: Address
    request: Request
    sent_ms: int


@dataclass(slots=True)
class _Peer:
    inflight: InflightRequest | None = None
    backoff_until_ms: int = -1


class RequestManager:
    def __init__(self, config: QuorumConfig, bootstrap: Sequence[Address] = ()) -> None:
        self._config: Final = config
        self.bootstrap: Final = {FIRST_BOOTSTRAP_ID - n: address for n, address in enumerate(bootstrap)}
        self._peers: dict[int, _Peer] = {}
        self._inflight: dict[int, InflightRequest] = {}  # by correlation id
        self._last_correlation_id = 0

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request can be sent to the node now."""
        peer = self._peers.get(node_id)
        return peer is None or (peer.inflight is None and now_ms >= peer.backoff_until_ms)

    def is_backing_off(self, node_id: int, now_ms: int) -> bool:
        """Whether the last request to the node failed a short while ago."""
        peer = self._peers.get(node_id)
        return peer is not None and now_ms < peer.backoff_until_ms

    @property
    def has_any_inflight_request(self) -> bool:
        return bool(self._inflight)

    def on_request_sent(self, node_id: int, address: Address, request: Request, now_ms: int) -> int:
        """Note a request as in flight; its correlation id."""
        self._last_correlation_id += 1
        inflight = InflightRequest(self._last_correlation_id, node_id, address, request, now_ms)
        peer = self._peers.setdefault(node_id, _Peer())
        assert peer.inflight is None, f"node {node_id} has not answered {peer.inflight}"
        peer.inflight = inflight
        self._inflight[inflight.correlation_id] = inflight
        return inflight.correlation_id

    def on_response(self, correlation_id: int, now_ms: int, *, failed: bool) -> InflightRequest | None:
        """Note a response, or that there is none; the request, unless it belongs to an earlier epoch."""
        inflight = self._inflight.pop(correlation_id, None)
        if inflight is None:
            return None
        peer = self._peers[inflight.node_id]
        peer.inflight = None
        peer.backoff_until_ms = now_ms + self._config.retry_backoff_ms if failed else -1
        return inflight

    def back_off(self, node_id: int, now_ms: int) -> None:
        """Send nothing to the node for a moment: its response was of no use."""
        self._peers.setdefault(node_id, _Peer()).backoff_until_ms = now_ms + self._config.retry_backoff_ms

    def is_inflight(self, correlation_id: int) -> bool:
        return correlation_id in self._inflight

    def inflight_to(self, node_id: int) -> list[InflightRequest]:
        return [inflight for inflight in self._inflight.values() if inflight.node_id == node_id]

    def timed_out_requests(self, now_ms: int) -> list[InflightRequest]:
        limit = now_ms - self._config.request_timeout_ms
        return [inflight for inflight in self._inflight.values() if inflight.sent_ms <= limit]

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When the next request times out or the next backoff ends; None if neither will happen."""
        times = [each.sent_ms + self._config.request_timeout_ms for each in self._inflight.values()]
        times += [peer.backoff_until_ms for peer in self._peers.values() if peer.backoff_until_ms > now_ms]
        return min(times, default=None)

    def reset_all(self) -> None:
        """Forget every request: responses to requests of an earlier state are ignored."""
        self._inflight.clear()
        self._peers.clear()
