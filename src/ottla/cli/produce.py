"""`ottla produce`: write records to a topic, from the command line, a file or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Argument, Option, command
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.formats import DESERIALIZERS, bytes_of_json, encode_raw, encoder
from ottla.cli.options import COMMON, ClientSettings, Common, client_settings, settings_checked
from ottla.cli.output import note, print_json_line
from ottla.cli.session import ensure_topic, open_admin, run

if TYPE_CHECKING:
    from ottla.client.producer import Producer
    from ottla.client.producer.producer_batch import Delivery

CHUNK_BYTES: Final = 64 * 1024
WAIT_S: Final = 0.1
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
MAX_WAITING: Final = 10_000
"""The most records that wait for their answers."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


@command(None, "produce")
def app(
    topic: Annotated[str, Argument()],
    values: Annotated[
        list[str] | None,
        Argument(metavar="[VALUE]...", help="Values; read from standard input if none is given."),
    ] = None,
    key: Annotated[str | None, Option("--key", "-k", help="The key of all records.")] = None,
    headers: Annotated[
        list[str] | None, Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    partition: Annotated[
        int | None,
        Option("--partition", "-p", min=0, help="The partition; by default chosen by key, or any."),
    ] = None,
    timestamp: Annotated[
        int | None, Option("--timestamp", metavar="MS", min=0, help="The timestamp; by default now.")
    ] = None,
    file: Annotated[
        str | None, Option("--file", "-f", metavar="PATH", help="Read records from a file.")
    ] = None,
    delimiter: Annotated[
        str, Option("--delimiter", "-D", help="What ends each record of the input.")
    ] = "\\n",
    separator: Annotated[
        str | None,
        Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="What is between key and value in a record of the input.",
        ),
    ] = None,
    json_input: Annotated[
        bool,
        Option(
            "--json-input",
            help="Input lines are JSON objects with key, value, headers, partition and timestamp, as "
            "`consume --json` prints them.",
        ),
    ] = False,
    whole: Annotated[bool, Option("--whole", help="The whole input is one record.")] = False,
    key_format: Annotated[
        str, Option("--key-format", choices=DESERIALIZERS, help="The format of keys.")
    ] = "text",
    value_format: Annotated[
        str, Option("--value-format", choices=DESERIALIZERS, help="The format of values.")
    ] = "text",
    tombstone: Annotated[bool, Option("--tombstone", help="A record without a value; needs --key.")] = False,
    acks: Annotated[
        str,
        Option(
            "--acks",
            choices=("all", "1", "0"),
            help="The replicas that must have a record: all in sync, the leader or none.",
        ),
    ] = "all",
    compression: Annotated[
        str,
        Option(
            "--compression",
            "-z",
            choices=("none", "gzip", "snappy", "lz4", "zstd"),
            help="The codec of batches.",
        ),
    ] = "none",
    create: Annotated[bool, Option("--create", help="Create the topic if it does not exist.")] = False,
    create_partitions: Annotated[
        int | None,
        Option("--partitions", metavar="N", min=1, help="With --create: the number of partitions."),
    ] = None,
    chosen: ClientSettings = None,
    common: Common = COMMON,
) -> None:
    """Write records to a topic.

    Without values, each line of standard input is a record. With --json, a line of JSON shows the
    partition and offset of each record.
    """
    if tombstone and (values or key is None):
        raise WrongUsage("--tombstone is a record with a key and no value: give --key and no values")
    if sum((bool(values) or tombstone, file is not None)) > 1:
        raise WrongUsage("give values or --file, not both")
    if json_input and (separator is not None or whole):
        raise WrongUsage("--json-input contains the keys; it excludes --key-separator and --whole")
    if create_partitions is not None and not create:
        raise WrongUsage("--partitions is for a new topic; it needs --create")
    make_key, make_value = encoder(key_format), encoder(value_format)
    defaults = Outgoing(
        None,
        make_key(key) if key is not None else None,
        tuple(_header(each) for each in headers or ()),
        partition,
        timestamp,
    )

    def parse(data: bytes) -> Outgoing:
        if json_input:
            return _from_json(data, defaults)
        return _from_text(data, defaults, separator, make_key, make_value)

    end = _delimiter(delimiter)
    given = client_settings(chosen)
    settings: dict[str, Any] = {
        "client_id": "ottla-cli",
        "acks": acks,
        "compression_type": compression,
        "max_block_ms": int(common.timeout * 1000),
        # Half of the time for one request, so that one that gets no answer is tried once more.
        "request_timeout_ms": max(int(common.timeout * 500), 1),
        "delivery_timeout_ms": max(int(common.timeout * 1000), 20),
        **given,
    }

    async def produce(source: AsyncIterator[Outgoing]) -> int:
        from ottla.client.producer import Producer

        async with open_admin(common.bootstrap, common.timeout) as admin:
            await ensure_topic(admin, topic, create=create, partitions=create_partitions)
        with settings_checked(given):
            producer = Producer(connect_to(common.bootstrap), **settings)
        return await _produce(producer, topic, source, as_json=common.as_json)

    with contextlib.ExitStack() as opened:
        if tombstone:
            source = _these([defaults])
        elif values:
            source = _these([parse(value.encode("utf-8", "surrogateescape")) for value in values])
        else:
            stream = sys.stdin.buffer if file is None else opened.enter_context(open(file, "rb"))
            source = _read(stream, end, parse, whole=whole)
        sent = run(produce(source), fast_loop=True)
    if not common.as_json and sys.stderr.isatty():
        note(f"{sent} record{'' if sent == 1 else 's'} sent to {topic}")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise WrongUsage(f"--header {text}: expected NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape") if equals else None


def _delimiter(text: str) -> bytes:
    try:
        found = text.encode().decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise WrongUsage(f"--delimiter {text}: expected text with \\n, \\t, \\0 or \\xNN") from None
    if not found:
        raise WrongUsage("--delimiter must not be empty")
    return found


def _from_text(
    data: bytes,
    defaults: Outgoing,
    separator: str | None,
    make_key: Callable[[str], bytes],
    make_value: Callable[[str], bytes],
) -> Outgoing:
    key = defaults.key
    if separator is not None:
        before, found, data = data.partition(separator.encode())
        if not found:
            raise CliError(f"{_shorten(before)} has no key separator {separator!r}")
        key = make_key(before.decode(errors="surrogateescape"))
    # Text is passed on unchanged, so that bytes that are not UTF-8 stay the same.
    value = data if make_value is encode_raw else make_value(data.decode(errors="surrogateescape"))
    return Outgoing(value, key, defaults.headers, defaults.partition, defaults.timestamp)


def _from_json(data: bytes, defaults: Outgoing) -> Outgoing:
    import json

    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError("an object is needed")
        headers = document.get("headers") or ()
        partition = document.get("partition", defaults.partition)
        timestamp = document.get("timestamp", defaults.timestamp)
        if not all(each is None or (isinstance(each, int) and each >= 0) for each in (partition, timestamp)):
            raise ValueError("partition and timestamp are numbers")
        return Outgoing(
            bytes_of_json(document, "value"),
            bytes_of_json(document, "key") if "key" in document or "key_base64" in document else defaults.key,
            (*defaults.headers, *((str(each["key"]), bytes_of_json(each, "value")) for each in headers)),
            partition,
            timestamp,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CliError(f"{_shorten(data)} is not a record in JSON: {error}") from None


def _shorten(data: bytes) -> str:
    text = data[:60].decode(errors="backslashreplace")
    return repr(text + ("..." if len(data) > 60 else ""))


async def _these(records: Iterable[Outgoing]) -> AsyncIterator[Outgoing]:
    for record in records:
        yield record


async def _read(
    stream: BinaryIO, delimiter: bytes, parse: Callable[[bytes], Outgoing], *, whole: bool
) -> AsyncIterator[Outgoing]:
    """Yield records of the input as they arrive, read in a thread so that sending continues meanwhile."""
    import asyncio

    if stream.isatty():
        note("Each line is a record; Ctrl-D ends the input.")
    held = bytearray()
    while (chunk := await asyncio.to_thread(_read_some, stream)) != b"":
        if chunk is None:
            continue
        # A delimiter may have begun with the last bytes of what was searched.
        begin, search = 0, max(0, len(held) - len(delimiter) + 1)
        held += chunk
        while not whole and (end := held.find(delimiter, search)) >= 0:
            yield parse(bytes(held[begin:end]))
            begin = search = end + len(delimiter)
        del held[:begin]
        if len(held) > MAX_RECORD_BYTES:
            raise CliError(f"a record of the input is larger than {MAX_RECORD_BYTES} bytes")
    if held or whole:
        yield parse(bytes(held))


def _read_some(stream: Any) -> bytes | None:
    """Input that has arrived, empty at the end; None if nothing arrives for a moment.

    A thread that blocks in a read cannot be cancelled, and Ctrl-C would have to wait for it.
    """
    import io
    from select import select

    try:
        ready, _, _ = select([stream], [], [], WAIT_S)
    except io.UnsupportedOperation:  # not a file of the operating system
        ready = [stream]
    return bytes(stream.read1(CHUNK_BYTES)) if ready else None


async def _produce(producer: Producer, topic: str, source: AsyncIterator[Outgoing], *, as_json: bool) -> int:
    sent = 0
    waiting: list[Delivery] = []
    async with producer:
        async for record in source:
            waiting.append(await _send(producer, topic, record))
            sent += 1
            if len(waiting) >= MAX_WAITING:
                await producer.flush()
                await _settle(waiting, as_json=as_json)
        await producer.flush()
        await _settle(waiting, as_json=as_json)
    return sent


async def _send(producer: Producer, topic: str, record: Outgoing) -> Delivery:
    await producer.ready(topic)
    return producer.send_nowait(
        topic,
        record.value,
        key=record.key,
        partition=record.partition,
        timestamp=record.timestamp,
        headers=record.headers,
    )


async def _settle(waiting: list[Delivery], *, as_json: bool) -> None:
    for delivery in waiting:
        result = await delivery
        if as_json:
            print_json_line(
                {
                    "topic": result.topic,
                    "partition": result.partition,
                    "offset": result.offset,
                    "timestamp": result.timestamp,
                }
            )
    waiting.clear()
