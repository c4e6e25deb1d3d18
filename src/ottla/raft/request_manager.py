"""Questions under way: at most one to each peer, and a rest after one that failed."""

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
    number: int
    node_id: int
    address: Address
    request: Request
    sent_ms: int


@dataclass(slots=True)
class _Peer:
    exchange: InflightRequest | None = None
    rest_until_ms: int = -1


class RequestManager:
    def __init__(self, config: QuorumConfig, bootstrap: Sequence[Address] = ()) -> None:
        self._config: Final = config
        self.bootstrap: Final = {FIRST_BOOTSTRAP_ID - n: address for n, address in enumerate(bootstrap)}
        self._peers: dict[int, _Peer] = {}
        self._exchanges: dict[int, InflightRequest] = {}
        self._number = 0

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        peer = self._peers.get(node_id)
        return peer is None or (peer.exchange is None and now_ms >= peer.rest_until_ms)

    def is_resting(self, node_id: int, now_ms: int) -> bool:
        """Whether the last question failed a short while ago."""
        peer = self._peers.get(node_id)
        return peer is not None and now_ms < peer.rest_until_ms

    def is_asking(self) -> bool:
        return bool(self._exchanges)

    def begin(self, node_id: int, address: Address, request: Request, now_ms: int) -> int:
        self._number += 1
        exchange = InflightRequest(self._number, node_id, address, request, now_ms)
        self._peers.setdefault(node_id, _Peer()).exchange = exchange
        self._exchanges[exchange.number] = exchange
        return exchange.number

    def end(self, number: int, now_ms: int, *, failed: bool) -> InflightRequest | None:
        """Take note of an answer, or of none; the question, unless nobody waits for it any more."""
        exchange = self._exchanges.pop(number, None)
        if exchange is None:
            return None
        peer = self._peers[exchange.node_id]
        peer.exchange = None
        peer.rest_until_ms = now_ms + self._config.retry_backoff_ms if failed else -1
        return exchange

    def rest(self, node_id: int, now_ms: int) -> None:
        """Let a peer be for a moment: its answer was of no use."""
        self._peers.setdefault(node_id, _Peer()).rest_until_ms = now_ms + self._config.retry_backoff_ms

    def under_way(self, node_id: int) -> list[InflightRequest]:
        return [exchange for exchange in self._exchanges.values() if exchange.node_id == node_id]

    def overdue(self, now_ms: int) -> list[InflightRequest]:
        limit = now_ms - self._config.request_timeout_ms
        return [exchange for exchange in self._exchanges.values() if exchange.sent_ms <= limit]

    def next_ms(self, now_ms: int) -> int | None:
        """When a question becomes overdue, or a rest is over."""
        times = [each.sent_ms + self._config.request_timeout_ms for each in self._exchanges.values()]
        times += [peer.rest_until_ms for peer in self._peers.values() if peer.rest_until_ms > now_ms]
        return min(times, default=None)

    def reset(self) -> None:
        """Another epoch, other questions: answers to the old ones come too late."""
        self._exchanges.clear()
        self._peers.clear()
