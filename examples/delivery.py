"""Shared code of the three delivery examples: a node, payments to book, a worker that dies, and the result.

Each of `at_most_once.py`, `at_least_once.py` and `exactly_once.py` is a worker that reads payments from one
topic and books them in another. The worker is a separate process and is killed twice in the middle of its
work; each time another takes its place. Then the bookings are counted.

A worker dies where it calls `Crash.point`. The three examples differ only in the order of two steps, or in
making them one.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine

from ottla import Admin, Consumer, LocalNode, Producer

PAYMENTS, BOOKINGS = "payments", "bookings"
COUNT = 40
BATCH = 8
# After how many payments each worker dies; the last one does not.
DEATHS = (12, 12, 0)
POLL_TIMEOUT_MS = 20_000

Worker = Callable[[str, "Crash"], Coroutine[None, None, None]]


class Crash:
    """Kills the worker, with nothing flushed or closed."""

    def __init__(self, after: int) -> None:
        self._after = after

    def point(self, done: int) -> None:
        """Kill this process, if it has done enough payments."""
        if self._after and done >= self._after:
            os.kill(os.getpid(), signal.SIGKILL)


def consumer(servers: str) -> Consumer[bytes, bytes]:
    """The worker's consumer. As a static member, its successor takes over at once."""
    return Consumer(
        servers,
        group_id="bookkeeping",
        group_instance_id="bookkeeper",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=BATCH,
    )


async def batches(reader: Consumer[bytes, bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the remaining payments in batches, up to the end of the topic."""
    reader.subscribe([PAYMENTS])
    last = COUNT - 1
    while True:
        records = await reader.poll(timeout_ms=POLL_TIMEOUT_MS)
        if records:
            yield [record.value or b"" for record in records]
        # With one partition the last offset marks the end; no records mean that all were done before.
        if not records or records[-1].offset == last:
            return


async def fill(servers: str) -> None:
    async with Admin(servers) as admin:
        for topic in (PAYMENTS, BOOKINGS):
            await admin.topics.create(topic, partitions=1)
    async with Producer(servers) as producer:
        await producer.ready(PAYMENTS)
        for number in range(COUNT):
            producer.send_nowait(PAYMENTS, b"%d" % number)
        await producer.flush()


async def bookings(servers: str, isolation_level: str) -> Counter[int]:
    """How often each payment was booked, as a reader of this isolation level sees it."""
    booked: Counter[int] = Counter()
    async with Admin(servers) as admin:
        end = (await admin.offsets.end(BOOKINGS))[0]
    reader: Consumer[bytes, bytes] = Consumer(
        servers, auto_offset_reset="earliest", isolation_level=isolation_level
    )
    async with reader:
        reader.assign([(BOOKINGS, 0)])
        while await reader.position((BOOKINGS, 0)) < end:
            for record in await reader.poll(timeout_ms=POLL_TIMEOUT_MS):
                booked[int(record.value or b"-1")] += 1
    return booked


async def account(servers: str) -> tuple[int, int]:
    """Print the result; the numbers of payments that were lost, and booked more than once."""
    booked = await bookings(servers, "read_committed")
    lost = [number for number in range(COUNT) if number not in booked]
    doubled = [number for number, times in sorted(booked.items()) if times > 1]
    print(f"payments  {COUNT}")
    print(f"lost      {len(lost)} {lost or ''}")
    print(f"doubled   {len(doubled)} {doubled or ''}")
    tried = (await bookings(servers, "read_uncommitted")).total() - booked.total()
    if tried:
        print(f"aborted   {tried} bookings are in the log, and no reader of committed records sees them")
    return len(lost), len(doubled)


def run(worker: Worker, expected: Callable[[int, int], bool]) -> int:
    """Run the example; the exit status says whether the result is as expected."""
    if len(sys.argv) == 3:
        asyncio.run(worker(sys.argv[1], Crash(int(sys.argv[2]))))
        return 0
    with LocalNode() as node:
        asyncio.run(fill(node.bootstrap_servers))
        for after in DEATHS:
            command = [sys.executable, sys.argv[0], node.bootstrap_servers, str(after)]
            status = subprocess.run(command, timeout=60, check=False).returncode
            print("a worker died" if status == -signal.SIGKILL else f"a worker ended with status {status}")
            if after == 0 and status != 0:
                return 1
        lost, doubled = asyncio.run(account(node.bootstrap_servers))
    good = expected(lost, doubled)
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1
