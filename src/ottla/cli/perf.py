"""`ottla perf`: measure throughput and latency, with the names and meanings of Kafka's own tools.

The numbers are those of one client in one process. If the client is the limit and not the broker, run
several.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, Interrupted
from ottla.cli.options import COMMON, ClientSettings, Common, client_settings, settings_checked
from ottla.cli.output import print_json, print_pairs
from ottla.cli.session import ensure_topic, open_admin, run, topic_or_fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.producer import Producer
    from ottla.client.producer.producer_batch import Delivery

HELP: Final = "Measure throughput and latency."
MEBIBYTE: Final = 1024 * 1024
BURST: Final = 256
"""The most records between two checks of the clock and of the room in the buffer."""
MAX_WAITING: Final = 200_000
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
app = group("perf", HELP)

Topic = Annotated[str, Argument(metavar="TOPIC")]


class Latencies:
    """Percentiles of times in nanoseconds, from a uniform sample of at most a million."""

    LIMIT = 1_000_000

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._seen = 0
        self._total = 0
        self._largest = 0

    def add(self, nanoseconds: int) -> None:
        self._seen += 1
        self._total += nanoseconds
        self._largest = max(self._largest, nanoseconds)
        if len(self._samples) < self.LIMIT:
            self._samples.append(nanoseconds)
        else:
            from random import randrange

            at = randrange(self._seen)
            if at < self.LIMIT:
                self._samples[at] = nanoseconds

    def summary(self) -> dict[str, float]:
        """Milliseconds by name; empty if nothing was measured."""
        if not self._samples:
            return {}
        ordered = sorted(self._samples)
        found = {"mean_ms": self._total / self._seen / 1e6}
        for percentile in PERCENTILES:
            at = min(int(len(ordered) * percentile / 100), len(ordered) - 1)
            found[f"p{percentile:g}_ms"] = ordered[at] / 1e6
        return found | {"max_ms": self._largest / 1e6}


@contextmanager
def _progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _report(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print what was measured. If that was ended by Ctrl-C, so is the command."""
    if as_json:
        print_json(facts)
    else:
        print_pairs((name.replace("_", " "), _format_value(value)) for name, value in facts.items())
    if facts.get("interrupted"):
        raise Interrupted


def _format_value(value: Any) -> str:
    return (
        f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _rates(records: int, size: int, seconds: float) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "records": records,
        "seconds": seconds,
        "records_per_second": records / seconds,
        "mib_per_second": size / seconds / MEBIBYTE,
    }


Create = Annotated[bool, Option("--create", help="Create the topic if it does not exist.")]


@command(app, "produce")
def produce(
    topic: Topic,
    records: Annotated[
        int, Option("--records", "-n", min=1, help="The number of records to send.")
    ] = 1_000_000,
    size: Annotated[int, Option("--size", "-s", metavar="BYTES", min=0, help="The size of a value.")] = 100,
    rate: Annotated[
        int | None, Option("--throughput", min=1, metavar="N", help="At most this many records per second.")
    ] = None,
    key_size: Annotated[
        int | None, Option("--key-size", min=1, metavar="BYTES", help="Give records keys of this size.")
    ] = None,
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
    create: Create = False,
    settings: ClientSettings = None,
    common: Common = COMMON,
) -> None:
    """Send records as fast as possible, or at a rate; latency is from sending to the broker's answer."""
    chosen = client_settings(settings)
    options: dict[str, Any] = {
        "client_id": "ottla-perf",
        "acks": acks,
        "compression_type": compression,
        **chosen,
    }

    async def measure() -> dict[str, Any]:
        from ottla.client.producer import Producer

        async with open_admin(common.bootstrap, common.timeout) as admin:
            await ensure_topic(admin, topic, create=create)
        with settings_checked(chosen):
            producer = Producer(connect_to(common.bootstrap), **options)
        return await _produce(producer, topic, records, size, key_size, rate)

    _report(run(measure(), fast_loop=True), as_json=common.as_json)


def _on_interrupt() -> dict[str, Any]:
    """Go on after Ctrl-C, to report what was measured before; the fact that says so."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    return {"interrupted": True}


async def _produce(
    producer: Producer, topic: str, records: int, size: int, key_size: int | None, rate: int | None
) -> dict[str, Any]:
    import asyncio
    from collections import deque
    from time import perf_counter_ns

    values = _payloads(size)
    keys = _payloads(key_size) if key_size is not None else None
    # At a slow rate a burst would add its own waiting time to the latencies.
    burst = BURST if rate is None else max(min(BURST, rate // 50), 1)
    latencies = Latencies()
    ended: dict[str, Any] = {}
    waiting: deque[tuple[Delivery, int]] = deque()

    def take_answered() -> None:
        """Record the latency of answered records. Those of one partition are answered in order."""
        now = perf_counter_ns()
        while waiting and waiting[0][0].done():
            delivery, sent_at = waiting.popleft()
            delivery.result()
            latencies.add(now - sent_at)

    began = perf_counter_ns()
    with _progress(records, "producing") as show:
        async with producer:
            await producer.ready(topic)
            began, sent = perf_counter_ns(), 0
            try:
                for at in range(records):
                    if at % burst == 0:
                        await producer.ready(topic)
                        take_answered()
                        show(at)
                        ahead_s = at / rate - (perf_counter_ns() - began) / 1e9 if rate is not None else 0
                        await asyncio.sleep(max(ahead_s, 0))
                        if len(waiting) > MAX_WAITING:
                            await producer.flush()
                    key = keys[at % len(keys)] if keys is not None else None
                    waiting.append(
                        (producer.send_nowait(topic, values[at % len(values)], key=key), perf_counter_ns())
                    )
                    sent = at + 1
            except asyncio.CancelledError:
                ended = _on_interrupt()
            await producer.flush()
            seconds = (perf_counter_ns() - began) / 1e9
            for delivery, _ in waiting:
                await delivery
            take_answered()
    return ended | _rates(sent, sent * (size + (key_size or 0)), seconds) | latencies.summary()


def _payloads(size: int) -> list[bytes]:
    """A few values that compress about as well as real data."""
    from random import Random

    random = Random(size)
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [bytes(random.choices(letters, k=size)) for _ in range(64 if size < 100_000 else 4)]


@command(app, "consume")
def consume(
    topic: Topic,
    records: Annotated[
        int | None, Option("--records", "-n", min=1, help="The number of records; all by default.")
    ] = None,
    settings: ClientSettings = None,
    common: Common = COMMON,
) -> None:
    """Read a topic from its beginning as fast as possible."""
    chosen = client_settings(settings)
    _report(
        run(_consume(topic, records, common.bootstrap, chosen, common.timeout), fast_loop=True),
        as_json=common.as_json,
    )


async def _consume(
    topic: str, records: int | None, bootstrap: str, settings: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    import asyncio
    from time import perf_counter_ns

    from ottla.client.consumer import Consumer
    from ottla.protocol.names import TopicPartition

    async with open_admin(bootstrap, timeout_s) as admin:
        info = await topic_or_fail(admin, topic)
        first = await admin.offsets.beginning(topic)
        end = await admin.offsets.end(topic)
    partitions = [
        TopicPartition(topic, p.partition) for p in info.partitions if end[p.partition] > first[p.partition]
    ]
    there = sum(end[p.partition] - first[p.partition] for p in partitions)
    if not there:
        raise CliError(f"topic {topic} is empty; `ottla perf produce {topic}` fills it")
    wanted = min(records or there, there)
    options = {"client_id": "ottla-perf", "max_poll_records": 5_000, "auto_offset_reset": "earliest"}
    with settings_checked(settings):
        consumer: Consumer[bytes, bytes] = Consumer(connect_to(bootstrap), **{**options, **settings})
    read = size = 0
    ended: dict[str, Any] = {}
    with _progress(wanted, "consuming") as show:
        async with consumer:
            began = perf_counter_ns()
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            while read < wanted:
                try:
                    batch = await consumer.poll(timeout_ms=timeout_s * 1000)
                except asyncio.CancelledError:
                    ended = _on_interrupt()
                    break
                if not batch:
                    # The remaining offsets have no records: transaction markers, or compacted records.
                    break
                read += len(batch)
                size += sum(
                    (0 if record.value is None else len(record.value))
                    + (0 if record.key is None else len(record.key))
                    for record in batch
                )
                show(min(read, wanted))
            seconds = (perf_counter_ns() - began) / 1e9
    return ended | _rates(read, size, seconds)


@command(app, "latency")
def latency(
    topic: Topic,
    records: Annotated[int, Option("--records", "-n", min=1, help="The number of round trips.")] = 1_000,
    size: Annotated[int, Option("--size", "-s", metavar="BYTES", min=8, help="The size of a value.")] = 100,
    acks: Annotated[
        str,
        Option(
            "--acks",
            choices=("all", "1"),
            help="The replicas that must have a record: all in sync, the leader or none.",
        ),
    ] = "all",
    create: Create = False,
    common: Common = COMMON,
) -> None:
    """Send one record at a time and wait until a consumer has it: end-to-end latency."""

    async def measure() -> dict[str, Any]:
        async with open_admin(common.bootstrap, common.timeout) as admin:
            await ensure_topic(admin, topic, create=create)
        return await _latency(topic, records, size, acks, common.bootstrap, common.timeout)

    _report(run(measure(), fast_loop=True), as_json=common.as_json)


async def _latency(
    topic: str, records: int, size: int, acks: str, bootstrap: str, timeout_s: float
) -> dict[str, Any]:
    from time import perf_counter_ns

    from ottla.client.consumer import Consumer
    from ottla.client.producer import Producer
    from ottla.protocol.names import TopicPartition

    partition = TopicPartition(topic, 0)
    servers = connect_to(bootstrap)
    consumer: Consumer[bytes, bytes] = Consumer(servers, client_id="ottla-perf", fetch_min_bytes=1)
    latencies = Latencies()
    began = perf_counter_ns()
    with _progress(records, "measuring") as show:
        async with Producer(servers, client_id="ottla-perf", acks=acks, linger_ms=0) as producer, consumer:
            consumer.assign([partition])
            consumer.seek_to_end()
            await consumer.position(partition)
            filler = bytes(size - 8)
            for at in range(records):
                marker = at.to_bytes(8, "big") + filler
                sent_at = perf_counter_ns()
                await producer.send(topic, marker, partition=0)
                while not any(
                    record.value == marker for record in await consumer.poll(timeout_ms=timeout_s * 1000)
                ):
                    if (perf_counter_ns() - sent_at) / 1e9 > timeout_s:
                        raise CliError(
                            f"a record sent to {partition} did not come back within {timeout_s:g} s"
                        )
                latencies.add(perf_counter_ns() - sent_at)
                if at % 16 == 0:
                    show(at)
    seconds = (perf_counter_ns() - began) / 1e9
    return {"records": records, "seconds": seconds} | latencies.summary()
