"""Server-sent events of endpoints: JSON documents under the names of events, and the end of each stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from ottla.console.api_request import ConsoleError, error_of
from ottla.console.context import ApiContext
from ottla.protocol.errors import KafkaError
from ottla.runtime.http_server import HttpServerResponse, SseEvent, sse_stream


def event_stream(
    context: ApiContext, events: AsyncIterator[tuple[str, dict[str, Any]]]
) -> HttpServerResponse:
    """Send events, and `end` or `error` as the last one: a browser would otherwise connect again."""
    return sse_stream(_ended(context, events))


async def _ended(
    context: ApiContext, events: AsyncIterator[tuple[str, dict[str, Any]]]
) -> AsyncIterator[SseEvent]:
    limits = context.services.limits
    last = ("end", dict[str, Any]())
    try:
        async with limits.one_of(limits.streams):
            async for name, document in events:
                if name == "end":
                    last = name, document
                    break
                yield _event(name, document)
    except ConsoleError as error:
        last = "error", {"code": error.code, "message": error.message}
    except KafkaError as error:
        found = error_of(error)
        last = "error", {"code": found.code, "message": found.message}
    finally:
        if (aclose := getattr(events, "aclose", None)) is not None:
            await aclose()
    yield _event(*last)


def _event(name: str, document: dict[str, Any]) -> SseEvent:
    return SseEvent(json.dumps(document, separators=(",", ":")), name)
