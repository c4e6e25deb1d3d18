"""The console in a node with many topics and groups: how long its pages take, and what clients notice.

Lists of 10,000 topics should be there in a second, and a client's request should not wait for them: the
console has a thread of its own, but shares the interpreter. Run it by `python -m bench console`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from bench.brokers import Broker, ottla
from bench.harness import Row, fewer, markdown, scaled
from ottla.client.admin import Admin
from ottla.client.admin.topics import NewTopic
from ottla.client.producer import Producer
from ottla.protocol.names import TopicPartition
from ottla.runtime.loop import run
from ottla.testing.cluster_plan import free_ports

TOPICS = scaled(10_000, 2_000)
GROUPS = scaled(1_000, 200)
MESSAGES = scaled(200_000, 50_000)
AT_ONCE = 1_000
# Longer than the console remembers its topics.
FORGOTTEN_S = 16.0


def rows() -> Iterator[Row]:
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    with ottla(http_listener=url) as broker:
        run(_fill(broker))
        before = broker.resident_megabytes()
        first = _took(url, "/api/topics?pageSize=50")
        yield fewer("first page that is asked for", "ms", first, None, "–", "≤ 3,000")
        time.sleep(FORGOTTEN_S)
        for name, path, aim in (
            (f"list of {TOPICS:,} topics", "/api/topics?pageSize=50", "≤ 1,000"),
            ("the next page of it", "/api/topics?pageSize=50&page=2", "≤ 200"),
            ("its largest topics", "/api/topics?sort=size&order=desc", "≤ 2,000"),
            (f"list of {GROUPS:,} groups", "/api/groups", "≤ 1,000"),
            ("overview", "/api/overview", "≤ 1,000"),
            ("newest messages", "/api/topics/searched/messages", "≤ 200"),
        ):
            yield fewer(name, "ms", _took(url, path), None, "–", aim)
        yield _search(url)
        yield from _waits(broker, url)
        yield fewer("memory of the console", "MB", broker.resident_megabytes() - before, None, "–", "")


def _get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=120) as answer:
        return json.loads(answer.read())


def _took(url: str, path: str) -> float:
    began = time.perf_counter()
    _get(url, path)
    return (time.perf_counter() - began) * 1e3


def _search(url: str) -> Row:
    """How many messages a search looks at in a second."""
    path = f"/api/topics/searched/messages?from=beginning&path=$.n&pathValue=-1&scan={MESSAGES}"
    rates = []
    for _ in range(3):
        looked = _get(url, path)["looked"]
        rates.append(looked["messages"] / max(looked["ms"], 1) * 1e3)
    return Row(
        "search by a JSON path", "messages/s", statistics.median(rates), None, "–", None, None, None, ""
    )


def _waits(broker: Broker, url: str) -> Iterator[Row]:
    """The longest that a small request of a client takes, alone and while topics are listed."""
    longest = [0.0]
    stop = threading.Event()

    async def ask() -> None:
        async with Admin(broker.bootstrap) as admin:
            while not stop.is_set():
                began = time.perf_counter()
                await admin.cluster.api_versions()
                longest[0] = max(longest[0], (time.perf_counter() - began) * 1e3)
                await asyncio.sleep(0.002)

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    time.sleep(FORGOTTEN_S)
    alone, longest[0] = longest[0], 0.0
    _get(url, "/api/topics")
    listed = longest[0]
    stop.set()
    thread.join()
    yield fewer("longest wait of a client while topics are listed", "ms", listed, alone, "nothing to do", "")


async def _fill(broker: Broker) -> None:
    async with Admin(broker.bootstrap, request_timeout_ms=120_000, default_api_timeout_ms=300_000) as admin:
        names = [f"topic-{n:05d}" for n in range(TOPICS)]
        for begin in range(0, TOPICS, AT_ONCE):
            results = await admin.topics.create_many(
                NewTopic(name, 1, 1) for name in names[begin : begin + AT_ONCE]
            )
            assert not any(results.values())
        await admin.topics.create("searched", partitions=4)
    async with Admin(broker.bootstrap) as admin:
        places = asyncio.Semaphore(20)

        async def commit(number: int) -> None:
            async with places:
                at = TopicPartition(names[number % len(names)], 0)
                await admin.groups.alter_offsets(f"group-{number:04d}", {at: 0})

        await asyncio.gather(*(commit(number) for number in range(GROUPS)))
    async with Producer(broker.bootstrap) as producer:
        for n in range(MESSAGES):
            await producer.ready("searched")
            producer.send_nowait("searched", b'{"n": %d, "text": "some words"}' % n, key=b"%d" % n)


if __name__ == "__main__":
    print(markdown(list(rows())))
