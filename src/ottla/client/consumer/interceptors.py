"""Seeing and changing records before the user gets them, and hearing of his commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ottla.client.group_offsets import CommittedOffset
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import ConsumerRecord

__all__ = ["ConsumerInterceptor"]


class ConsumerInterceptor(Protocol):
    """Asked within `poll` and `async for`, not by `poll_arrow`."""

    def on_consume(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]: ...

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None: ...
