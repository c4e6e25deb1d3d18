"""Messages of a topic: lists, searches, the live tail, single ones; and to produce one."""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.console.api.streams import event_stream
from ottla.console.api_request import ApiRequest, ConsoleError, bad_request, not_available, parse_partitions
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.files.metadata_log import MetadataLogSource
from ottla.console.messages.filters import MessageFilter, header_filter
from ottla.console.messages.json_path import JsonPath, JsonPathError
from ottla.console.messages.payload import (
    FORMATS,
    MAX_LIST_TEXT,
    MAX_ONE_TEXT,
    DecodedPayload,
    internal_payloads,
)
from ottla.console.messages.scan import MessageScan, ScanBudget, ScanCursor
from ottla.console.messages.source import RecordSource, TopicSource
from ottla.protocol.acl import AclOperation
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.http_server import HttpServerResponse
from ottla.schemas.errors import WrongData

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
MAX_EXPORT: Final = 100_000
DEFAULT_SCAN: Final = 10_000
MAX_SCAN: Final = 1_000_000
MAX_HEADERS: Final = 50
MAX_HEADER_TEXT: Final = 2_000
MAX_LISTED_HEADER_TEXT: Final = 400
MAX_PRODUCED_BYTES: Final = 8 * 1024 * 1024
_MAX_TAIL_SECONDS: Final = 3_600
_TAIL_PER_SECOND: Final = 50
_PROGRESS_SECONDS: Final = 0.5
_STREAM_SECONDS: Final = 60
_STREAM_BYTES: Final = 1024 * 1024 * 1024
_EXPORT_SECONDS: Final = 120
_EXPORT_BYTES: Final = 1024 * 1024 * 1024
# More than the time after which the server gives up a client that does not read.
_UNREAD_SECONDS: Final = 60.0
# A multiple of three, so that the pieces of base64 can be joined.
_PIECE_BYTES: Final = 192 * 1024
_FROM: Final = ("newest", "beginning", "offset", "time")
_PARTS: Final = ("value", "key", "header", "message")

Record = ConsumerRecord[bytes, bytes]


@dataclass(frozen=True, slots=True)
class MessageView:
    """How messages are shown: their formats, and how much of each."""

    context: ApiContext
    topic: str
    key_format: str = "auto"
    value_format: str = "auto"
    max_text: int = MAX_LIST_TEXT

    @classmethod
    def of(cls, context: ApiContext, request: ApiRequest, max_text: int = MAX_LIST_TEXT) -> MessageView:
        return cls(
            context,
            request.params["topic"],
            request.choice("keyFormat", FORMATS),
            request.choice("valueFormat", FORMATS),
            max_text,
        )

    async def decode_value(self, record: Record) -> DecodedPayload | None:
        internal = internal_payloads(self.topic, record.key, record.value)
        if internal is not None and self.value_format == "auto":
            return internal[1]
        decoder = self.context.services.decoder
        return await decoder.decode(self.topic, "value", record.value, self.value_format)

    async def show(self, record: Record) -> dict[str, Any]:
        decoder = self.context.services.decoder
        internal = internal_payloads(self.topic, record.key, record.value)
        if internal is not None and self.key_format == self.value_format == "auto":
            key, value = internal
        else:
            if self.topic == CLUSTER_METADATA_TOPIC:
                raise bad_request("records of the metadata log are shown decoded only: they hold secrets")
            key = await decoder.decode(self.topic, "key", record.key, self.key_format)
            value = await decoder.decode(self.topic, "value", record.value, self.value_format)
        most_header = MAX_HEADER_TEXT if self.max_text > MAX_LIST_TEXT else MAX_LISTED_HEADER_TEXT
        headers = [
            {
                "name": name[:most_header],
                "value": _json(await decoder.decode(self.topic, "header", data), most_header),
            }
            for name, data in record.headers[:MAX_HEADERS]
        ]
        shown: dict[str, Any] = {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": "LogAppendTime" if record.timestamp_type else "CreateTime",
            "leaderEpoch": record.leader_epoch if record.leader_epoch >= 0 else None,
            "key": _json(key, self.max_text),
            "value": _json(value, self.max_text),
            "headers": headers,
            "size": message_size(record),
        }
        if len(record.headers) > MAX_HEADERS:
            shown["headersTotal"] = len(record.headers)
        return shown


def _json(payload: DecodedPayload | None, max_text: int) -> dict[str, Any] | None:
    return None if payload is None else payload.to_json(max_text)


def message_size(record: Record) -> int:
    return (
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(value or b"") for name, value in record.headers)
    )


async def source_of(context: ApiContext, request: ApiRequest) -> RecordSource:
    topic = request.params["topic"]
    if topic == CLUSTER_METADATA_TOPIC:
        inspector = context.services.inspector
        directory = None
        if inspector is not None:
            await context.require_cluster(AclOperation.ALTER)
            directory = await inspector.directory_of(TopicPartition(topic, 0))
        if directory is None:
            raise not_available(
                "the metadata log is no topic that clients can read: it is shown by a console in a node, "
                "or with --data-dir"
            )
        return MetadataLogSource(context.runtime.disk, context.runtime.pool, directory)
    committed = request.choice("isolation", ("read_uncommitted", "read_committed")) == "read_committed"
    admin = await context.access.admin(topic)
    return TopicSource(topic, admin, context.access.new_consumer, committed=committed)


def filter_of(request: ApiRequest) -> MessageFilter:
    try:
        path = JsonPath.parse(request.text("path")) if request.text("path") else None
    except JsonPathError as error:
        raise bad_request(str(error)) from None
    key, value, header = (request.text(name) for name in ("key", "value", "header"))
    return MessageFilter(
        key.encode().lower() if key else None,
        value.encode().lower() if value else None,
        header_filter(header) if header else None,
        path,
        request.query.get("pathValue") or None,
    )


async def cursor_of(context: ApiContext, request: ApiRequest, source: RecordSource) -> ScanCursor:
    """Where a scan begins: at the cursor of the last answer, or at the place that is asked for."""
    if request.text("cursor"):
        try:
            return ScanCursor.decode(context.session.cursors.expand(request.text("cursor")))
        except ValueError as error:
            raise bad_request(str(error)) from None
    bounds = await source.bounds(parse_partitions(request.text("partitions")))
    starts = {partition: first for partition, (first, _) in bounds.items()}
    ends = {partition: end for partition, (_, end) in bounds.items()}
    place = request.choice("from", (*_FROM, "live"))
    if place == "live":
        return ScanCursor(False, dict(ends), ends)
    if place == "newest":
        return ScanCursor(True, ends, starts)
    if place == "offset":
        offset = request.integer("offset")
        starts = {p: min(max(offset, first), ends[p]) for p, first in starts.items()}
    elif place == "time":
        found = await source.offsets_at(starts, request.integer("time"))
        starts = {p: ends[p] if at is None else min(max(at, starts[p]), ends[p]) for p, at in found.items()}
    return ScanCursor(False, starts, ends)


def _next(context: ApiContext, cursor: ScanCursor | None) -> str | None:
    return None if cursor is None else context.session.cursors.shorten(cursor.encode())


def scan_of(
    context: ApiContext, request: ApiRequest, source: RecordSource, view: MessageView, budget: ScanBudget
) -> MessageScan:
    return MessageScan(
        source,
        context.runtime.clock,
        filter_of(request),
        request.integer("limit", DEFAULT_LIMIT, low=1, high=MAX_LIMIT),
        budget,
        view.decode_value,
        view.show,
        request.optional_integer("to"),
    )


async def list_messages(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    view = MessageView.of(context, request)
    budget = ScanBudget(request.integer("scan", DEFAULT_SCAN, low=1, high=MAX_SCAN))
    limits = context.services.limits
    async with limits.one_of(limits.searches):
        source = await source_of(context, request)
        cursor = await cursor_of(context, request, source)
        scan = scan_of(context, request, source, view, budget)
        began = context.runtime.clock.monotonic_ns()
        messages, following = await scan.run(cursor)
    return {
        "items": messages,
        "looked": {
            "messages": scan.progress.messages,
            "bytes": scan.progress.bytes,
            "ms": (context.runtime.clock.monotonic_ns() - began) // 1_000_000,
            "limit": budget.messages,
            "limitBytes": budget.bytes,
            "reason": scan.end.value,
        },
        "remaining": scan.progress.remaining,
        "next": _next(context, following),
        "problems": scan.problems,
    }


# Streams


async def stream_messages(context: ApiContext, request: ApiRequest) -> HttpServerResponse:
    view = MessageView.of(context, request)
    filter_of(request)
    if request.text("from") == "live":
        return event_stream(context, _tail(context, request, view))
    return event_stream(context, _search(context, request, view))


async def _search(
    context: ApiContext, request: ApiRequest, view: MessageView
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """A search that sends what it finds as it finds it."""
    limits = context.services.limits
    budget = ScanBudget(
        request.integer("scan", DEFAULT_SCAN, low=1, high=MAX_SCAN),
        bytes=_STREAM_BYTES,
        ms=_STREAM_SECONDS * 1_000,
    )
    clock = context.runtime.clock
    async with limits.one_of(limits.searches):
        source = await source_of(context, request)
        cursor = await cursor_of(context, request, source)
        scan = scan_of(context, request, source, view, budget)
        found: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=20)
        sent = 0
        if not scan.filter.is_empty:
            scan.on_match = found.put
        began = clock.monotonic_ns()

        def progress() -> dict[str, Any]:
            return {
                "messages": scan.progress.messages,
                "bytes": scan.progress.bytes,
                "matched": scan.progress.matched,
                "limit": budget.messages,
                "remaining": max(scan.progress.remaining, 0),
                "dropped": 0,
                "ms": (clock.monotonic_ns() - began) // 1_000_000,
            }

        running = asyncio.ensure_future(scan.run(cursor))
        try:
            while not running.done() or not found.empty():
                waiting = asyncio.ensure_future(found.get())
                try:
                    await asyncio.wait(
                        (waiting, running), timeout=_PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    if waiting.done():
                        if sent < scan.limit:
                            sent += 1
                            yield "message", waiting.result()
                    elif not running.done():
                        yield "progress", progress()
                finally:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
            messages, following = running.result()
            if scan.on_match is None:
                for message in messages:
                    yield "message", message
            document = {
                "reason": scan.end.value,
                "next": _next(context, following),
                "problems": scan.problems,
            }
            yield "end", {**progress(), **document}
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _tail(
    context: ApiContext, request: ApiRequest, view: MessageView
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Messages as they arrive, at most some per second; the others are counted."""
    limits = context.services.limits
    clock = context.runtime.clock
    wanted = filter_of(request)
    async with limits.one_of(limits.tails):
        source = await source_of(context, request)
        cursor = await cursor_of(context, request, source)
        began = clock.monotonic_ns()
        seen = size = matched = dropped = 0
        allowance, refilled_ns = float(_TAIL_PER_SECOND), began
        reported_ns = 0
        async with source.open(live=True) as reader:
            reader.seek(cursor.positions)
            while clock.monotonic_ns() - began < _MAX_TAIL_SECONDS * 1_000_000_000:
                for record in await reader.poll():
                    seen += 1
                    size += message_size(record)
                    if not await wanted.matches(record, view.decode_value):
                        continue
                    matched += 1
                    now = clock.monotonic_ns()
                    refill = (now - refilled_ns) / 1e9 * _TAIL_PER_SECOND
                    allowance, refilled_ns = min(allowance + refill, _TAIL_PER_SECOND), now
                    if allowance < 1:
                        dropped += 1
                        continue
                    allowance -= 1
                    yield "message", await view.show(record)
                now = clock.monotonic_ns()
                if now - reported_ns >= _PROGRESS_SECONDS * 1e9:
                    reported_ns = now
                    yield (
                        "progress",
                        {
                            "messages": seen,
                            "bytes": size,
                            "matched": matched,
                            "limit": None,
                            "remaining": None,
                            "dropped": dropped,
                            "ms": (now - began) // 1_000_000,
                        },
                    )
        yield "end", {"reason": "time", "next": None}


# Single messages


async def _one(context: ApiContext, request: ApiRequest) -> Record:
    """The message at exactly an offset. 404 if there is none."""
    partition, offset = request.integer("partition", high=2**31 - 1), request.integer("offset")
    source = await source_of(context, request)
    bounds = await source.bounds([partition])
    first, end = bounds[partition]
    if first <= offset < end:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 15.0
        async with source.open(whole=True) as reader:
            reader.seek({partition: offset})
            while loop.time() < deadline and reader.positions().get(partition, offset) <= offset:
                for record in await reader.poll():
                    if record.offset == offset:
                        return record
                    if record.offset > offset:
                        break
    raise ConsoleError(404, "NOT_FOUND", f"partition {partition} has no message at offset {offset}")


async def one_message(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    view = MessageView.of(context, request, MAX_ONE_TEXT)
    limits = context.services.limits
    await limits.take_whole()
    try:
        return {"message": await view.show(await _one(context, request))}
    finally:
        limits.wholes.release()


async def download(context: ApiContext, request: ApiRequest) -> HttpServerResponse:
    limits = context.services.limits
    await limits.take_whole()
    try:
        name, pieces, length = await _downloaded(context, request)
    except BaseException:
        limits.wholes.release()
        raise
    return attachment(name, _HeldPieces(pieces, limits.wholes), length)


class _HeldPieces:
    """The pieces of a body, for which a place is held until the last one is sent or the client is gone. A
    body that nothing reads, as its request was cancelled before, is given up after a while.
    """

    def __init__(self, pieces: Iterator[bytes], place: asyncio.Semaphore) -> None:
        self._pieces: Iterator[bytes] | None = pieces
        self._place: Final = place
        self._loop: Final = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_UNREAD_SECONDS, self._release)

    def __aiter__(self) -> _HeldPieces:
        return self

    async def __anext__(self) -> bytes:
        if self._pieces is None:
            raise ConnectionAbortedError("the body was not read in time")
        self._timer.cancel()
        piece = next(self._pieces, None)
        if piece is None:
            self._release()
            raise StopAsyncIteration
        self._timer = self._loop.call_later(_UNREAD_SECONDS, self._release)
        return piece

    async def aclose(self) -> None:
        self._release()

    def _release(self) -> None:
        self._timer.cancel()
        if self._pieces is not None:
            self._pieces = None
            self._place.release()


async def _downloaded(context: ApiContext, request: ApiRequest) -> tuple[str, Iterator[bytes], int | None]:
    """The name of the file, its content, and its size where that is known."""
    part = request.choice("part", _PARTS)
    topic = request.params["topic"]
    record = await _one(context, request)
    name = f"{topic}-{record.partition}-{record.offset}"
    if topic == CLUSTER_METADATA_TOPIC:
        shown = await MessageView(context, topic, max_text=MAX_ONE_TEXT).show(record)
        return f"{name}.json", iter((json.dumps(shown).encode(),)), None
    if part == "message":
        return f"{name}.json", joined(export_line(record)), None
    if part == "header":
        index = request.integer("index", 0, high=10_000)
        if index >= len(record.headers):
            raise ConsoleError(404, "NOT_FOUND", f"the message has {len(record.headers)} headers")
        data = record.headers[index][1]
    else:
        data = record.key if part == "key" else record.value
    if data is None:
        raise ConsoleError(404, "NOT_FOUND", f"the message has no {part}")
    return f"{name}-{part}.bin", _pieces(data), len(data)


def attachment(name: str, body: AsyncIterator[bytes], length: int | None = None) -> HttpServerResponse:
    """A file to save. Names of topics are letters, digits, dots, dashes and underscores."""
    return HttpServerResponse(
        200,
        body,
        "application/octet-stream",
        {"Content-Disposition": f'attachment; filename="{name}"'},
        length,
    )


def joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts, and keep the size of a piece bounded.

    >>> [len(piece) for piece in joined([b"a", b"bc", b"x" * 300_000, b"d"])]
    [3, 300000, 1]
    """
    held: list[bytes] = []
    size = 0
    for part in parts:
        if held and size + len(part) > _PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(part)
        size += len(part)
    if held:
        yield b"".join(held)


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))


def export_line(record: Record) -> Iterator[bytes]:
    """A whole message as a line of JSON, which `ottla produce` reads, in pieces: to encode 100 MB at once
    would hold the interpreter, and with it the node.
    """
    place = {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}
    yield json.dumps(place, separators=(",", ":")).encode()[:-1] + b","
    yield from _exported("key", record.key)
    yield b","
    yield from _exported("value", record.value)
    yield b',"headers":['
    for number, (name, value) in enumerate(record.headers):
        yield b"%b{%b:%b," % (b"," if number else b"", b'"name"', json.dumps(name).encode())
        yield from _exported("value", value)
        yield b"}"
    yield b"]}\n"


def _exported(name: str, data: bytes | None) -> Iterator[bytes]:
    if data is None:
        yield b'"%b":null' % name.encode()
    elif _is_utf8(data):
        yield b'"%b":"' % name.encode()
        decoder = codecs.getincrementaldecoder("utf-8")()
        for piece in _pieces(data):
            yield json.dumps(decoder.decode(piece))[1:-1].encode()
        yield b'"'
    else:
        yield b'"%b_base64":"' % name.encode()
        yield from map(base64.b64encode, _pieces(data))  # each but the last is a multiple of three bytes
        yield b'"'


def _is_utf8(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in _pieces(data):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


async def export(context: ApiContext, request: ApiRequest) -> HttpServerResponse:
    topic = request.params["topic"]
    if topic == CLUSTER_METADATA_TOPIC:
        raise not_available("the metadata log is shown decoded only: it holds secrets; use `ottla log dump`")
    view = MessageView.of(context, request)
    limit = request.integer("limit", DEFAULT_LIMIT, low=1, high=MAX_EXPORT)
    wanted, to_ms = filter_of(request), request.optional_integer("to")
    source = await source_of(context, request)
    cursor = await cursor_of(context, request, source)
    positions, ends = dict(cursor.positions), dict(cursor.bounds)
    if cursor.backwards:
        # The newest ones, in the order in which they were written.
        each = -(-limit // max(len(positions), 1))
        ends = dict(cursor.positions)
        positions = {p: max(cursor.bounds[p], at - each) for p, at in ends.items()}
    limits = context.services.limits

    async def lines() -> AsyncIterator[bytes]:
        left, size = limit, 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _EXPORT_SECONDS
        active = {p: end for p, end in ends.items() if positions[p] < end}
        async with limits.one_of(limits.exports), source.open(whole=True) as reader:
            reader.seek({p: positions[p] for p in active})
            while active and left and size < _EXPORT_BYTES and loop.time() < deadline:
                for record in await reader.poll():
                    if record.offset >= active.get(record.partition, -1):
                        continue
                    if to_ms is not None and record.timestamp >= to_ms:
                        continue
                    if not await wanted.matches(record, view.decode_value):
                        continue
                    for piece in joined(export_line(record)):
                        yield piece
                        size += len(piece)
                    left -= 1
                    if not left:
                        return
                reached = reader.positions()
                active = {p: end for p, end in active.items() if reached.get(p, -1) < end}

    return attachment(f"{topic}.jsonl", lines())


async def produce(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    topic = request.params["topic"]
    body = request.body()
    if topic == CLUSTER_METADATA_TOPIC:
        raise not_available("the metadata log is written by controllers only")
    await (await context.access.admin(topic)).topics.describe(topic)
    headers: list[tuple[str, bytes | None]] = []
    given = body.raw("headers") or []
    if not isinstance(given, list):
        raise bad_request("headers has to be a list")
    for each in given:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise bad_request("each header needs a name")
        headers.append((each["name"], _payload(context, topic, "header", each.get("value"))))
    producer = await context.access.producer()
    sent = await producer.send(
        topic,
        _payload(context, topic, "value", body.raw("value")),
        key=_payload(context, topic, "key", body.raw("key")),
        partition=body.optional_integer("partition"),
        timestamp=body.optional_integer("timestamp"),
        headers=headers,
    )
    return {"partition": sent.partition, "offset": sent.offset, "timestamp": sent.timestamp}


def _payload(context: ApiContext, topic: str, part: str, given: Any) -> bytes | None:
    """The bytes of a payload: text, base64, or JSON that the topic's schema encodes."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise bad_request(f"the {part} has to be an object with text, base64 or json")
    text = given.get("text")
    if isinstance(text, str):
        return _utf8(text, part)
    if isinstance(encoded := given.get("base64"), str):
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"the {part} is no base64") from None
    document = given.get("json")
    if not isinstance(document, str):
        raise bad_request(f"the {part} has to be an object with text, base64 or json")
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the {part} is no JSON: {error}") from None
    if not given.get("encode"):
        return _utf8(document, part)
    schema = context.services.decoder.schemas.of(topic, part)
    if schema is None:
        raise bad_request(f"no schema is set for the {part}s of {topic}")
    try:
        return schema.encode(value)
    except (WrongData, RecursionError) as error:
        raise bad_request(f"the {part} does not fit {schema.name}: {error}") from None


def _utf8(text: str, part: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"the {part} has half a character, which is no text of UTF-8") from None


_PATH: Final = "/api/topics/{topic}/messages"
ROUTES: Final = (
    ConsoleRoute("GET", _PATH, list_messages, payloads=True),
    ConsoleRoute("POST", _PATH, produce, max_body_bytes=MAX_PRODUCED_BYTES),
    ConsoleRoute("GET", f"{_PATH}/stream", stream_messages, payloads=True),
    ConsoleRoute("GET", f"{_PATH}/one", one_message, payloads=True),
    ConsoleRoute("GET", f"{_PATH}/download", download, payloads=True),
    ConsoleRoute("GET", f"{_PATH}/export", export, payloads=True),
)
