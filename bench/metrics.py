"""What metrics cost: a node with them beside one without (`metrics.enable`), and a scrape of many partitions.

Producing and consuming should be within 2 % of a node that does not time its requests, and take at most 3 MB
more; a request for each record is the worst case. `/metrics` of 10,000 partitions should be there in 100 ms,
and hold the event loop for 5 ms at most. Differences of 2 % are smaller than the noise of most machines:
besides throughput, the processor time of the node for the same work is compared, which is steadier. Run it by
`python -m bench metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator

from bench.brokers import Broker, ottla
from bench.harness import Row, fewer, markdown, scaled
from bench.loads import Load, consuming, create, producing, requesting
from bench.versus import TICK_S
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.runtime.loop import run
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns
from ottla.testing.local_cluster import send_request

ROUNDS = scaled(9, 5)
WITHOUT = "without metrics"
PARTITIONS = 10_000


def rows() -> Iterator[Row]:
    with ottla(http_listener="") as with_metrics, ottla(http_listener="", metrics_enable="false") as without:
        both = (with_metrics, without)
        count = scaled(2_000_000, 500_000)
        requests = scaled(20_000, 5_000)
        for broker in both:
            create(broker, "measured", 1)
        yield from _beside("produce", both, lambda at: producing(at, "measured", 100, count), count)
        yield from _beside("consume", both, lambda at: consuming(at, "measured", 1, count), count)
        yield from _beside(
            "a request for each record", both, lambda at: requesting(at, "measured", requests), requests
        )
        memory = [broker.resident_megabytes() for broker in both]
        yield fewer("memory after this", "MB", memory[0], memory[1], WITHOUT, "≤ 3 more")
    yield from scrapes()


def _beside(
    name: str,
    brokers: tuple[Broker, Broker],
    load: Callable[[Broker], Load],
    amount: float,
) -> Iterator[Row]:
    """Speed and processor time of one load on both nodes, in interleaved rounds."""
    loads: list[tuple[Broker, Load, list[float], list[float]]] = [
        (broker, load(broker), [], []) for broker in brokers
    ]
    for _, work, _, _ in loads:
        work()
    for turn in range(ROUNDS):
        for broker, work, speeds, costs in loads if turn % 2 == 0 else reversed(loads):
            before = broker.cpu_seconds()
            speeds.append(work())
            costs.append(max(broker.cpu_seconds() - before, TICK_S) / amount * 1e6)
    (_, _, speeds, costs), (_, _, other_speeds, other_costs) = loads
    for title, unit, ours, theirs, ratios in (
        (name, "/s", speeds, other_speeds, [a / b for a, b in zip(speeds, other_speeds, strict=True)]),
        (
            f"{name}: broker CPU",
            "s per million",
            costs,
            other_costs,
            [b / a for a, b in zip(costs, other_costs, strict=True)],
        ),
    ):
        ratios.sort()
        yield Row(
            title,
            unit,
            statistics.median(ours),
            statistics.median(theirs),
            WITHOUT,
            statistics.median(ratios),
            ratios[0],
            ratios[-1],
            "≥ 0.98",
        )


def scrapes() -> Iterator[Row]:
    """A scrape of a node with many partitions, in this process: its time, its longest turn, its size."""
    for named in (2_000, PARTITIONS):
        took, spent, longest, size, series = run(_scrape(named))
        shown = f"{named:,} of {PARTITIONS:,} partitions with series of their own"
        yield fewer(f"/metrics, {shown}", "ms", took, None, "–", "≤ 100")
        yield fewer(f"/metrics, {shown}: CPU", "ms", spent, None, "–", "")
        yield fewer(f"/metrics, {shown}: longest turn", "ms", longest, None, "–", "≤ 5")
        yield fewer(f"/metrics, {shown}: series", "", series, None, "–", "≤ 1,000,000")
        yield fewer(f"/metrics, {shown}: size", "MB", size, None, "–", "")


async def _scrape(named: int) -> tuple[float, float, float, float, int]:
    runtime = Runtime.real()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        settings = {"metrics.max.partitions": str(named), "log.dirs": directory}
        node = Node(runtime, NodeConfig({**settings, "listeners": "PLAINTEXT://127.0.0.1:0"}))
        await node.start()
        try:
            port = node.client_endpoints()[0].port
            for begin in range(0, PARTITIONS, 2_500):
                topic = CreatableTopic(name=f"t{begin}", num_partitions=2_500, replication_factor=1)
                request = CreateTopicsRequest(topics=[topic], timeout_ms=120_000)
                await asyncio.to_thread(send_request, port, request, 7, CreateTopicsResponse, timeout_s=120)
            while len(node.broker.replicas) < PARTITIONS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            times, costs, turns = [], [], []
            text = b""
            for _ in range(5):
                async with _longest_turn() as longest:
                    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
                    text = await node.shared.metrics.render(Turns(runtime.clock, budget_ms=2))
                    times.append((time.perf_counter() - begin_s) * 1e3)
                    costs.append((time.thread_time() - begin_cpu_s) * 1e3)
                turns.append(longest[0])
            series = sum(not line.startswith(b"#") for line in text.splitlines())
            # The first one imports what it needs, and asks the disk for sizes.
            return min(times[1:]), min(costs[1:]), max(turns[1:]), len(text) / 1e6, series
        finally:
            await node.stop()
            runtime.close()


@contextlib.asynccontextmanager
async def _longest_turn() -> AsyncIterator[list[float]]:
    """The longest processor time of this thread, in milliseconds, until another task got its turn."""
    longest = [0.0]

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], (now - last) * 1e3)
            last = now

    watcher = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    try:
        yield longest
    finally:
        watcher.cancel()


if __name__ == "__main__":
    print(markdown(list(rows())))
