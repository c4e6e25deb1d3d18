"""A pipeline of seven flows that stays open: how long a record takes to what a flow makes of it.

The flows of an online shop: two tables from topics, orders cleaned, bad records set aside, orders joined with
their payments, sums by window, and large orders read from a table, so over two steps. Orders and payments
arrive steadily. A flow into a topic is timed from the producer's call until a `read_committed` consumer has
the result, a table until the commit of its batch is on disk. A join is timed from the later one of its two
records, a window from the first order that closes it: a flow cannot know the result before.

The peer is the same project with `--runs`, which runs all flows again and again on one warm session.
"""

import collections
import contextlib
import functools
import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow.parquet
from confluent_kafka import Consumer, Producer

from bench.brokers import Broker, ottla
from bench.harness import Row, fewer, markdown, quick, scaled
from bench.loads import create

PARTITIONS = 2
EVERY_S = 0.05
"""One order; a twentieth is bad, and the others are paid for."""
PAID_AFTER = 10
WINDOW_MS = 2_000
DELAY_MS = 1_000
LARGE_CENTS = 5_000
WARM_UP_S = scaled(120, 30)
MEASURED_S = scaled(180, 60)
DEADLINE_S = 600.0
AIM = "< 3"
PEER = "the same, all flows again and again (--runs)"
TABLES = ("orders", "payments")
INTO_TOPICS = {
    "clean_orders": "shop.clean-orders",
    "find_bad_records": "shop.dead-letters",
    "pay_orders": "shop.paid-orders",
    "sum_up": "shop.revenue",
    "find_large_orders": "shop.large-orders",
}
DESCRIPTIONS = {
    "orders": "topic to table",
    "payments": "topic to table",
    "clean_orders": "topic to topic",
    "find_bad_records": "two topics to topic",
    "pay_orders": "join of two topics",
    "sum_up": "sums of a window",
    "find_large_orders": "topic to table to topic",
}
DEFINITIONS = f'''\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")
EVENT = "number long, customer string, item string, cents long, at long"


def events(topics: str) -> DataFrame:
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .option("columns", "value")
        .load()
    )
    event = F.from_json(F.col("value").cast("string"), EVENT)
    return records.select("value", event.alias("event")).select("value", "event.*")


def good(topic: str) -> DataFrame:
    rows = events(topic).where("number is not null and cents > 0")
    return rows.withColumn("time", F.timestamp_millis("at"))


def sink(name: str, topic: str) -> None:
    dp.create_sink(name, "ottla", {{"kafka.bootstrap.servers": BROKERS, "topic": topic}})


sink("cleaned", "shop.clean-orders")
sink("dead_letters", "shop.dead-letters")
sink("paid", "shop.paid-orders")
sink("revenue", "shop.revenue")
sink("large", "shop.large-orders")


@dp.table
def orders() -> DataFrame:
    return good("shop.orders").select("number", "customer", "item", "cents", "time")


@dp.table
def payments() -> DataFrame:
    return good("shop.payments").select("number", "customer", "cents", "time")


@dp.append_flow(target="cleaned")
def clean_orders() -> DataFrame:
    tidied = good("shop.orders").withColumn("item", F.lower(F.trim("item")))
    return tidied.selectExpr("customer AS key", "to_json(struct(number, customer, item, cents)) AS value")


@dp.append_flow(target="dead_letters")
def find_bad_records() -> DataFrame:
    return events("shop.orders,shop.payments").where("number is null or cents <= 0").select("value")


@dp.append_flow(target="paid")
def pay_orders() -> DataFrame:
    ordered = good("shop.orders").select("number", "customer", F.col("time").alias("ordered"))
    paid = good("shop.payments").select(F.col("number").alias("order"), "cents", F.col("time").alias("paid"))
    joined = ordered.withWatermark("ordered", "10 seconds").join(
        paid.withWatermark("paid", "10 seconds"),
        F.expr("number = order and paid between ordered and ordered + interval 10 seconds"),
    )
    return joined.selectExpr("customer AS key", "to_json(struct(number, cents)) AS value")


@dp.append_flow(target="revenue")
def sum_up() -> DataFrame:
    sums = (
        good("shop.orders")
        .withWatermark("time", "{DELAY_MS} milliseconds")
        .groupBy(F.window("time", "{WINDOW_MS} milliseconds"), "item")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
    value = "to_json(struct(unix_millis(window.start) AS number, item, orders, cents)) AS value"
    return sums.selectExpr("item AS key", value)


@dp.append_flow(target="large")
def find_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("cents >= {LARGE_CENTS}")
    return large.selectExpr("customer AS key", "to_json(struct(number, item, cents)) AS value")
'''
SPEC: Final = """\
name: shop
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  ottla.bootstrap.servers: "{brokers}"
  spark.sql.shuffle.partitions: "{partitions}"
"""


@dataclass
class Shop:
    """What was sent and what has come out, in seconds since the epoch. `expected` has for each flow the time
    from which each of its results is possible; `seen` when it was there.
    """

    expected: dict[str, dict[int, float]] = field(
        default_factory=lambda: {name: {} for name in (*TABLES, *INTO_TOPICS)}
    )
    seen: dict[str, dict[int, float]] = field(
        default_factory=lambda: {name: {} for name in (*TABLES, *INTO_TOPICS)}
    )
    repeated: collections.Counter[str] = field(default_factory=collections.Counter)
    items: dict[int, set[str]] = field(default_factory=dict)
    """Those of each window of `sum_up` that have come out."""
    next_close_ms: int = 0
    """The event time that closes the next window."""

    def is_complete(self, begin: float, end: float) -> bool:
        """Whether there is everything that was possible in between."""
        return all(
            number in self.seen[name]
            for name in self.expected
            for number, at in list(self.expected[name].items())
            if begin <= at < end
        )

    def seconds(self, name: str, begin: float, end: float) -> list[float]:
        seen = self.seen[name]
        return [seen[number] - at for number, at in self.expected[name].items() if begin <= at < end]


@contextlib.contextmanager
def producing(broker: Broker, shop: Shop) -> Iterator[None]:
    """Send orders and payments during the block, at the same pace whatever happens to them."""
    stopped = threading.Event()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def send(topic: str, number: int, cents: int) -> float:
        now = time.time()
        event = {"number": number, "customer": f"c{number % 97}", "item": f" Item{number % 4} "}
        event |= {"cents": cents, "at": int(now * 1000)}
        producer.produce(topic, json.dumps(event), key=event["customer"])
        producer.poll(0)
        return now

    def order(number: int) -> None:
        is_good = number % 20 != 0
        cents = 1_000 + number % 10 * 1_000 if is_good else -1
        now = send("shop.orders", number, cents)
        if not is_good:
            shop.expected["find_bad_records"][number] = now
            return
        shop.expected["orders"][number] = shop.expected["clean_orders"][number] = now
        if cents >= LARGE_CENTS:
            shop.expected["find_large_orders"][number] = now
        now_ms = int(now * 1000)
        if not shop.next_close_ms:
            shop.next_close_ms = now_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS + DELAY_MS
        while shop.next_close_ms <= now_ms:
            shop.expected["sum_up"][shop.next_close_ms - DELAY_MS - WINDOW_MS] = now
            shop.next_close_ms += WINDOW_MS

    def pay(number: int) -> None:
        if number >= 0 and number % 20:
            now = send("shop.payments", number, 1_000 + number % 10 * 1_000)
            shop.expected["payments"][number] = shop.expected["pay_orders"][number] = now

    def run() -> None:
        began = time.monotonic()
        for number in itertools.count():
            if stopped.wait(max(0.0, began + number * EVERY_S - time.monotonic())):
                return
            order(number)
            pay(number - PAID_AFTER)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        producer.flush(10)


@contextlib.contextmanager
def consuming(broker: Broker, shop: Shop) -> Iterator[None]:
    """Note during the block when each result can be read."""
    stopped = threading.Event()
    flows = {topic: name for name, topic in INTO_TOPICS.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "results",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(list(flows))

    def run() -> None:
        while not stopped.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            now = time.time()
            name, value = flows[message.topic() or ""], json.loads(message.value() or b"null")
            number = value["number"]
            if name == "sum_up":
                items = shop.items.setdefault(number, set())
                is_new = value["item"] not in items
                items.add(value["item"])
            else:
                is_new = number not in shop.seen[name]
            if is_new:
                shop.seen[name][number] = now
            else:
                shop.repeated[name] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        consumer.close()


def write_project(directory: Path, broker: Broker) -> None:
    (directory / "transformations").mkdir()
    (directory / "transformations" / "shop.py").write_text(DEFINITIONS)
    storage = (directory / "storage").as_uri()
    spec = SPEC.format(storage=storage, brokers=broker.bootstrap, partitions=PARTITIONS)
    (directory / "spark-pipeline.yml").write_text(spec)


@contextlib.contextmanager
def pipeline(directory: Path, *arguments: str) -> Iterator[psutil.Process]:
    """The command in a process of its own, during the block."""
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "--continuous", *arguments]
    with (directory / "said.txt").open("w") as said:
        process = subprocess.Popen(command, cwd=directory, stdout=said, stderr=said)
        try:
            yield psutil.Process(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        finally:
            process.kill()
            process.wait()


def cpu_seconds(process: psutil.Process) -> float:
    """The processor time of a process and all that it has started, as far as it lives."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class TableWatch:
    """Notes when each row of the streaming tables was committed: the time of the first file in Spark's log of
    the table that names the row's file.
    """

    def __init__(self, directory: Path, shop: Shop) -> None:
        self._warehouse = directory / "spark-warehouse"
        self._shop = shop
        self._known: set[Path] = set()

    def look(self) -> None:
        for name in TABLES:
            log = self._warehouse / name / "_spark_metadata"
            batches = [file for file in log.glob("[0-9]*") if file not in self._known]
            for batch in sorted(batches, key=lambda file: int(file.stem)):
                self._known.add(batch)
                self._read(name, batch)

    def _read(self, name: str, batch: Path) -> None:
        committed_at = batch.stat().st_mtime
        seen = self._shop.seen[name]
        for line in batch.read_text().splitlines()[1:]:
            file = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            if file in self._known:  # every tenth batch names all files again
                continue
            self._known.add(file)
            for number in pyarrow.parquet.read_table(file, columns=["number"])["number"].to_pylist():
                self._shop.repeated[name] += number in seen
                seen[number] = committed_at


@dataclass(frozen=True)
class Measured:
    seconds: dict[str, list[float]]
    cores: float
    """The processor time of a second, of all processes of the pipeline."""


def measure(*arguments: str) -> Measured:
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    shop = Shop()
    try:
        with ottla() as broker:
            for topic in ("shop.orders", "shop.payments", *INTO_TOPICS.values()):
                create(broker, topic, PARTITIONS)
            write_project(directory, broker)
            with (
                consuming(broker, shop),
                producing(broker, shop),
                pipeline(directory, *arguments) as process,
            ):
                wait = functools.partial(wait_until, watch=TableWatch(directory, shop).look, process=process)
                wait(lambda: "run complete" in (directory / "said.txt").read_text())
                wait(lambda: all(shop.seen.values()))
                time.sleep(WARM_UP_S)
                begin, cpu = time.time(), cpu_seconds(process)
                time.sleep(MEASURED_S)
                end, cpu = time.time(), cpu_seconds(process) - cpu
                wait(lambda: shop.is_complete(begin, end))
        if shop.repeated.total():
            raise RuntimeError(f"results that came twice: {dict(shop.repeated)}")
        seconds = {name: shop.seconds(name, begin, end) for name in shop.expected}
        return Measured(seconds, cpu / (end - begin))
    except BaseException:
        sys.stderr.write((directory / "said.txt").read_text()[-3000:])
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_until(what: Callable[[], bool], *, watch: Callable[[], None], process: psutil.Process) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        if process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            raise RuntimeError("the pipeline has ended, or its results do not arrive")
        time.sleep(0.2)
        watch()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def rows() -> Iterator[Row]:
    ours = measure()
    theirs = None if quick() else measure("--runs", "100000")

    def row(name: str, unit: str, of: Callable[[Measured], float], aim: str = "") -> Row:
        return fewer(name, unit, of(ours), None if theirs is None else of(theirs), PEER, aim)

    def every(measured: Measured) -> list[float]:
        return [each for seconds in measured.seconds.values() for each in seconds]

    yield row("all flows, median", "s", lambda of: statistics.median(every(of)), AIM)
    yield row("all flows, p95", "s", lambda of: percentile(every(of), 0.95))
    for name, what in DESCRIPTIONS.items():
        label = f"{name} ({what})"
        yield row(f"{label}, median", "s", lambda of: statistics.median(of.seconds[name]), AIM)  # noqa: B023
        yield row(f"{label}, p95", "s", lambda of: percentile(of.seconds[name], 0.95))  # noqa: B023
    yield row("processors in use", "cores", lambda of: of.cores)


if __name__ == "__main__":
    print(markdown(list(rows())))
