"""The demo: orders go through a topic; the node is killed and comes back; nothing is lost or doubled.

Run it with `make demo`. It starts a real node as a process of its own, sends orders with the idempotent
producer, kills the node with SIGKILL in the middle, starts it again on the same data, reads everything back
as Arrow columns, and counts. It ends by itself; exit status 0 means that the counts were right.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import ottla
from ottla.client.producer import Delivery

ORDERS = 200_000
CUSTOMERS = 5_000
PARTITIONS = 3
TOPIC = "orders"
ITEMS = ("tea", "coffee", "bread", "honey", "apples", "cheese")


class NodeProcess:
    """`ottla start` as a process: to be killed and started again on the same data and port."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[str] | None = None
        self._listen = "127.0.0.1:0"

    @property
    def bootstrap_servers(self) -> str:
        return self._listen

    def start(self) -> str:
        """Starts the node and returns the line that it prints when ready."""
        command = [sys.executable, "-m", "ottla", "start"]
        command += [
            "--data-dir",
            self._data_dir,
            "--listen",
            self._listen,
            "--set",
            f"num.partitions={PARTITIONS}",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if "ready" not in line:
            raise SystemExit(f"the node did not start: {line or 'see above'}")
        self._listen = next(word for word in line.replace(",", " ").split() if word.startswith("127.0.0.1:"))
        return line

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


def orders(seed: int = 7) -> Iterator[tuple[bytes, bytes]]:
    """Orders as JSON, keyed by customer; a few customers order far more often than the others."""
    draw = random.Random(seed)
    for number in range(ORDERS):
        customer = int(CUSTOMERS * draw.random() ** 3)
        order = {
            "number": number,
            "customer": customer,
            "item": draw.choice(ITEMS),
            "cents": draw.randrange(100, 5_000),
        }
        yield str(customer).encode(), json.dumps(order).encode()


async def produce(node: NodeProcess) -> tuple[float, list[str]]:
    """Sends all orders, with a kill of the node half-way. Returns the seconds it took and the failures."""
    failures: list[str] = []

    def delivered(handle: Delivery) -> None:
        if (error := handle.exception()) is not None:
            failures.append(str(error))

    begin = time.perf_counter()
    async with ottla.Producer(node.bootstrap_servers, linger_ms=5, batch_size=65_536) as producer:
        for number, (key, value) in enumerate(orders()):
            if number % 100 == 0:
                await producer.ready(TOPIC)
                await asyncio.sleep(0)
            producer.send_nowait(TOPIC, value, key=key).add_done_callback(delivered)
            if number == ORDERS // 2:
                say(f"{number:,} orders sent; kill -9 of the node")
                node.kill()
                say("  back: " + await asyncio.to_thread(node.start))
        await producer.flush()
    return time.perf_counter() - begin, failures


async def consume(node: NodeProcess) -> tuple[float, Counter[int], Counter[int], bool]:
    """Reads the topic to its end. Returns the seconds, how often each order came, the turnover by customer in
    cents, and whether each customer's orders came in the order they were sent.
    """
    seen: Counter[int] = Counter()
    turnover: Counter[int] = Counter()
    last: dict[int, int] = {}
    in_order = True
    async with ottla.Admin(node.bootstrap_servers) as admin:
        ends = await admin.offsets.end(TOPIC)
    begin = time.perf_counter()
    async with ottla.Consumer(node.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition) for partition in ends])
        left = sum(ends.values())
        while left > 0:
            table = await consumer.poll_arrow(timeout_ms=5_000)
            if table.num_rows == 0:
                raise SystemExit(f"nothing came for 5 s with {left:,} records left to read")
            left -= table.num_rows
            for value in table.column("value").to_pylist():
                order = json.loads(value)
                number, customer = order["number"], order["customer"]
                seen[number] += 1
                turnover[customer] += order["cents"]
                in_order &= last.get(customer, -1) < number
                last[customer] = number
    return time.perf_counter() - begin, seen, turnover, in_order


def size_of(directory: str) -> int:
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(directory) for f in files)


def say(text: str) -> None:
    print(text, flush=True)


async def main(data_dir: str) -> int:
    node = NodeProcess(data_dir)
    say(node.start())
    try:
        async with ottla.Admin(node.bootstrap_servers) as admin:
            await admin.topics.create(TOPIC, partitions=PARTITIONS)
        sent_in, failures = await produce(node)
        read_in, seen, turnover, in_order = await consume(node)
    finally:
        status = node.stop()
    lost = ORDERS - len(seen)
    doubled = sum(1 for count in seen.values() if count > 1)
    records = sum(seen.values())
    say("")
    say(f"sent      {ORDERS:,} orders in {sent_in:.1f} s, {ORDERS / sent_in:,.0f} a second, kill included")
    say(f"read      {records:,} records in {read_in:.1f} s, {records / read_in:,.0f} a second")
    say(f"failed    {len(failures)}")
    say(f"lost      {lost}")
    say(f"doubled   {doubled}")
    say(f"in order  {'yes' if in_order else 'no'}, for each customer")
    best = ", ".join(f"{who} ({cents / 100:,.2f})" for who, cents in turnover.most_common(3))
    say(f"best customers: {best}")
    say(f"on disk   {size_of(data_dir) / 1e6:.1f} MB in Kafka's own file format")
    good = not failures and not lost and not doubled and in_order and status == 0
    say("OK: every order exactly once" if good else f"FAILED (first failures: {failures[:3]}, exit {status})")
    return 0 if good else 1


if __name__ == "__main__":
    directory = tempfile.mkdtemp(prefix="ottla-demo-")
    try:
        sys.exit(asyncio.run(main(directory)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
