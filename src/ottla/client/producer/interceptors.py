"""Seeing and changing records before they are sent, and hearing what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ottla.client.producer.batch import Delivery

__all__ = ["ProducerInterceptor", "ProducerRecord"]


@dataclass(slots=True)
class ProducerRecord:
    """A record as its sender gave it, before serializers."""

    topic: str
    value: Any
    key: Any
    partition: int | None
    timestamp: int | None
    headers: Any


class ProducerInterceptor(Protocol):
    """`on_send` gives the record to send, its own or another; what it raises, the sender of the record gets.
    `on_acknowledgement` gets the handle once it is done, on the event loop.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord: ...

    def on_acknowledgement(self, delivery: Delivery) -> None: ...
