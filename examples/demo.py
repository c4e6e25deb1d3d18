"""The demo: an online shop on topics and Spark. A task and the node are killed; nothing is lost or doubled.

Run it with `make demo`. It starts a node as a process of its own, registers the schema of orders, sends the
shop's events with the idempotent producer, and runs the pipeline of `examples/shop/pipeline.py` over them:
typed columns, clean, dead-letter, join, window, aggregate, exactly once. Half-way it kills the Python workers
of Spark's tasks and then the node, both with SIGKILL. At the end everything is read back and counted against
what the generator knows, and a page with charts is written to demo-output/. Exit status 0 means that every
count was right.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shop.events import HOUR, ORDER_SCHEMA, SHOP_DAY, TOPICS, Event, Order, Shop
from shop.report import Measured, Outcome, write_report

import ottla
from ottla.client.consumer import TopicPartition
from ottla.client.producer import Delivery
from ottla.runtime.disk import RealDisk
from ottla.serdes import Avro
from ottla.testing.cluster_plan import free_ports

EVENTS = int(os.environ.get("DEMO_EVENTS", "150000"))
EVENTS_PER_SECOND = 3_000
PARTITIONS = 3
OUTPUT = Path("demo-output")
CLEAN = tuple(f"shop.clean.{topic}" for topic in TOPICS)
CLEAN_ORDERS = CLEAN[0]
QUERIES = 4
DEAD_LETTERS, REVENUE = "shop.dead-letters", "shop.revenue"
BEGAN = time.perf_counter()


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {text}", flush=True)


@contextlib.contextmanager
def own_page() -> Iterator[Path]:
    """The page for the charts: not one that another demo, here at the same time, writes."""
    OUTPUT.mkdir(exist_ok=True)
    try:
        lock = RealDisk().lock(str(OUTPUT / ".lock"))
    except BlockingIOError:
        yield OUTPUT / f"report-{os.getpid()}.html"
        return
    try:
        yield OUTPUT / "report.html"
    finally:
        lock.release()


class NodeProcess:
    """`ottla start` as a process, which can be killed and restarted on the same data and port."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.log = data_dir.with_name("node.log")
        self._process: subprocess.Popen[str] | None = None
        # None that the system gives to others while the node is away.
        port, http_port = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._http = f"http://127.0.0.1:{http_port}"
        self.registry = f"{self._http}/schema-registry"

    def start(self) -> str:
        """Start the node; returns the line that it prints when it is ready."""
        command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(self._data_dir)]
        command += ["--listen", self.bootstrap_servers, "--set", f"http.listener={self._http}"]
        command += ["--set", f"table.schema.registry.url={self.registry}"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if "ready" not in line:
            self._process.wait()
            raise SystemExit(
                f"the node did not start: {line or self.log.read_text(errors='replace')[-4000:]}"
            )
        return line

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._close()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._close()

    def _close(self) -> None:
        assert self._process is not None
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


class SparkProcess:
    """The pipeline as a separate process; its output lines are printed as they arrive."""

    def __init__(self, node: NodeProcess, work: Path) -> None:
        self.log = work / "spark.log"
        self.batches: Counter[str] = Counter()
        self.restarts = 0
        self.started: set[str] = set()
        program = Path(__file__).parent / "shop" / "pipeline.py"
        command = [sys.executable, str(program), node.bootstrap_servers, node.registry]
        command += [str(work / "checkpoints"), str(work / "table")]
        self._log_file = self.log.open("w")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
            process_group=0,
        )

    async def follow(self) -> None:
        """Read its lines to the end."""
        assert self.process.stdout is not None
        while line := await asyncio.to_thread(self.process.stdout.readline):
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if "started" in facts:
                self.started.add(facts["started"])
            if "batch" in facts:
                self.batches[facts["query"]] += 1
            if "restarted" in facts:
                self.restarts += 1
                say(f"query {facts['restarted']} was started again: {facts['error'].splitlines()[0][:120]}")

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("finish\n")
        self.process.stdin.flush()

    def task_workers(self) -> list[int]:
        """The processes that run its tasks: forks of Spark's daemon, itself a fork of Ottla's server."""
        lines = subprocess.run(
            ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout
        table = [line.split(None, 2) for line in lines.splitlines()[1:]]
        parents = {int(row[0]): int(row[1]) for row in table}
        commands = {int(row[0]): row[2] for row in table if len(row) > 2}
        servers = {pid for pid, text in commands.items() if "ottla.spark.worker.fork_server" in text}
        daemons = {pid for pid in servers if parents[pid] in servers}
        daemons |= {pid for pid, text in commands.items() if text.endswith("pyspark.daemon pyspark.worker")}

        def is_ours(pid: int) -> bool:
            while pid > 1:
                if pid == self.process.pid:
                    return True
                pid = parents.get(pid, 0)
            return False

        return [pid for pid in daemons if parents.get(pid) in daemons and is_ours(pid)]

    def lost_tasks(self) -> int:
        return self.log.read_text(errors="replace").count("Lost task")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log_file):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass(slots=True)
class Watch:
    """A reader of the clean orders while the pipeline runs: samples for the charts."""

    produced: int = 0
    seen: int = 0
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    latencies: list[tuple[float, int]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def now(self) -> float:
        return time.perf_counter() - BEGAN

    async def sample(self) -> None:
        while True:
            self.samples.append((self.now(), self.produced, self.seen))
            await asyncio.sleep(0.5)

    async def tail(self, node: NodeProcess, orders: Avro) -> None:
        """Read committed records, as any consumer would, and measure the time since they were sent."""
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        async with ottla.Consumer(node.bootstrap_servers, **settings) as consumer:
            consumer.assign(
                [(topic, partition) for topic in (*CLEAN, DEAD_LETTERS) for partition in range(PARTITIONS)]
            )
            while True:
                table = await consumer.poll_arrow(timeout_ms=500, columns=("topic", "value"))
                self.seen += table.num_rows
                now_ms = int(time.time() * 1000)
                # One in fifty is enough, and takes little CPU time.
                for row in table.to_pylist()[::50]:
                    sent_ms = time_sent(row["topic"], row["value"], orders)
                    if sent_ms is not None:
                        self.latencies.append((self.now(), now_ms - sent_ms))


def time_sent(topic: str, value: bytes, orders: Avro) -> int | None:
    """When a clean event was sent; None for a dead letter."""
    if topic == CLEAN_ORDERS:
        return int(orders.decode(topic, value).sent.timestamp() * 1000)
    _, found, sent = value.rpartition(b'"sent":')
    return int(sent.rstrip(b"}")) if found else None


def register_orders(node: NodeProcess) -> None:
    """Register the schema of orders, as an operator does before programs that use it are deployed."""
    for topic in ("orders", CLEAN_ORDERS):
        command = [sys.executable, "-m", "ottla", "schemas", "register", f"{topic}-value", str(ORDER_SCHEMA)]
        done = subprocess.run([*command, "--registry", node.registry], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the schema was not registered: {done.stderr}")
        say(f"schema registered: {done.stdout.strip()}")


async def produce(
    node: NodeProcess,
    shop: Shop,
    orders: Avro,
    watch: Watch,
    half: asyncio.Event,
    go_on: asyncio.Event,
) -> list[str]:
    """Send the events of the day at their pace; calls back at noon. Returns failures, of which there should
    be none.
    """
    failures: list[str] = []

    def delivered(handle: Delivery) -> None:
        if (error := handle.exception()) is not None:
            failures.append(str(error))

    settings = {"linger_ms": 20, "batch_size": 65_536, "delivery_timeout_ms": 120_000}
    async with (
        ottla.Producer(node.bootstrap_servers, **settings) as plain,
        ottla.Producer(node.bootstrap_servers, value_serializer=orders, **settings) as typed,
    ):

        def send(event: Event) -> None:
            producer = typed if isinstance(event.value, Order) else plain
            handle = producer.send_nowait(
                event.topic, event.value, key=event.key, timestamp=event.timestamp_ms
            )
            handle.add_done_callback(delivered)

        began = time.perf_counter()
        for number, event in enumerate(shop):
            if number % 100 == 0:
                await typed.ready("orders")
                for topic in TOPICS:
                    await plain.ready(topic)
                ahead = number / EVENTS_PER_SECOND - (time.perf_counter() - began)
                await asyncio.sleep(max(ahead, 0))
                watch.produced = number
            send(event)
            if number == EVENTS // 2:
                half.set()
                paused = time.perf_counter()
                await go_on.wait()
                began += time.perf_counter() - paused
        for event in shop.closing():
            send(event)
        await plain.flush()
        await typed.flush()
        watch.produced = sum(shop.truth.sent.values())
    return failures


async def kill_things(node: NodeProcess, spark: SparkProcess, watch: Watch) -> None:
    """Kill a task of Spark, by killing the processes that run its Python; then the node."""
    lost = spark.lost_tasks()
    watch.marks.append((watch.now(), "task killed"))
    killed = 0
    deadline = time.perf_counter() + 30
    while spark.lost_tasks() == lost:
        for pid in spark.task_workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if time.perf_counter() > deadline:
            raise SystemExit("no task noticed that its process was killed")
        await asyncio.sleep(0.05)
    say(f"kill -9 of {killed} Python workers; tasks that Spark repeats for it: {spark.lost_tasks() - lost}")
    await asyncio.sleep(2)
    watch.marks.append((watch.now(), "node killed"))
    node.kill()
    say("kill -9 of the node")
    await asyncio.sleep(1)
    line = await asyncio.to_thread(node.start)
    watch.marks.append((watch.now(), "node back"))
    took = next((part for part in line.split(", ") if part.endswith(" ms")), "it took a while")
    say(f"the node is back: {took} to start on the same data")


async def read_all(node: NodeProcess, topic: str) -> list[dict[str, object]]:
    """All committed records of a topic, as rows."""
    async with ottla.Admin(node.bootstrap_servers) as admin:
        ends = await admin.offsets.end(topic)
    rows: list[dict[str, object]] = []
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with ottla.Consumer(node.bootstrap_servers, **settings) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in ends]
        consumer.assign(partitions)
        while True:
            table = await consumer.poll_arrow(timeout_ms=2_000, columns=("value", "headers"))
            rows += table.to_pylist()
            if all([await consumer.position(each) >= ends[each.partition] for each in partitions]):
                return rows
            if not table.num_rows:
                raise SystemExit(f"{topic}: nothing came for 2 s before its end")


async def count(node: NodeProcess, shop: Shop, orders: Avro, table: Path) -> Outcome:
    """Compare all output of the pipeline with the truth of the generator."""
    import pyarrow.dataset as ds

    truth = shop.truth
    outcome = Outcome()
    for topic in TOPICS:
        name = f"shop.clean.{topic}"
        values = [row["value"] for row in await read_all(node, name)]
        if topic == "orders":
            ids = Counter(orders.decode(name, value).id for value in values)
        else:
            ids = Counter(json.loads(value)["id"] for value in values)
        outcome.compare(name, truth.good[topic], ids)
    dead = await read_all(node, DEAD_LETTERS)
    reasons: Counter[str] = Counter()
    letters: Counter[tuple[str, bytes]] = Counter()
    for row in dead:
        headers = {header["key"]: header["value"].decode() for header in row["headers"]}
        reasons[headers["ottla.expectation"]] += 1
        letters[headers["ottla.source.topic"], row["value"]] += 1
    outcome.compare(DEAD_LETTERS, truth.bad, letters)
    outcome.check("reasons of dead letters", dict(truth.reasons), dict(reasons))
    windows = [json.loads(row["value"]) for row in await read_all(node, REVENUE)]
    found = Counter((each["window"], each["category"]) for each in windows)
    outcome.compare(REVENUE, set(truth.revenue), found)
    totals = {(each["window"], each["category"]): [each["orders"], each["cents"]] for each in windows}
    outcome.check("orders and cents of every window", dict(truth.revenue), totals)
    outcome.windows = sorted((key[0], key[1], cents) for key, (_, cents) in totals.items())
    files = files_of(table)
    rows = ds.dataset(files, format="parquet").to_table(columns=["id"]).column("id").to_pylist()
    outcome.compare("Parquet table of orders", truth.good["orders"], Counter(rows))
    return outcome


SQL = """
select category, count(*) as orders, sum(cents) as cents
from orders group by category order by cents desc limit 1
"""


async def query_as_table(node: NodeProcess, shop: Shop, outcome: Outcome, warehouse: Path) -> str:
    """Have the node keep the clean orders as a table, and ask SQL of it. Returns a line for the reader."""
    import duckdb

    from ottla.client.admin.configs import ResourceType
    from ottla.tables.catalog import has_catalog, open_catalog
    from ottla.tables.settings import CatalogSettings, table_name

    topic = CLEAN_ORDERS
    settings = {"table.format": "iceberg", "table.freshness.ms": "500", "table.schema.type": "registry"}
    async with ottla.Admin(node.bootstrap_servers) as admin:
        await admin.configs.alter(ResourceType.TOPIC, topic, set=settings)
    wanted, catalog = len(shop.truth.good["orders"]), CatalogSettings(warehouse=str(warehouse))
    deadline = time.perf_counter() + 120
    found = None
    while time.perf_counter() < deadline:
        await asyncio.sleep(0.5)
        if not has_catalog(catalog):
            continue
        opened = await asyncio.to_thread(open_catalog, catalog)
        if opened.table_exists(("topics", table_name(topic))):
            found = opened.load_table(("topics", table_name(topic)))
            snapshot = found.current_snapshot()
            if snapshot is not None and int(snapshot.summary["total-records"]) >= wanted:
                break
    rows = {} if found is None else found.scan(selected_fields=("id", "category", "cents")).to_arrow()
    ids = Counter() if found is None else Counter(rows.column("id").to_pylist())
    outcome.compare("Iceberg table of shop.clean.orders", shop.truth.good["orders"], ids)
    if found is None:
        return "the topic has not become a table"
    with duckdb.connect() as connection:
        connection.register("orders", rows)
        ((category, orders, cents),) = connection.sql(SQL).fetchall()
    return (
        f"SQL over the topic as an Iceberg table, {len(ids):,} rows: most was sold of {category}, {orders:,} "
        f"orders for {cents / 100:,.2f}"
    )


def files_of(table: Path) -> list[str]:
    """The files of the table, by Spark's own log: files of a killed task are ignored."""
    logs = [path for path in (table / "_spark_metadata").iterdir() if path.name.split(".")[0].isdecimal()]
    compacted = [int(path.name.split(".")[0]) for path in logs if path.name.endswith(".compact")]
    newest = max(compacted, default=-1)
    found: list[str] = []
    for path in logs:
        if int(path.name.split(".")[0]) > newest or path.name == f"{newest}.compact":
            entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            found += [entry["path"].removeprefix("file://") for entry in entries]
    return found


async def main(work: Path, page: Path) -> int:
    node = NodeProcess(work / "node")
    say(node.start().partition(", data")[0])
    spark: SparkProcess | None = None
    watch = Watch()
    orders = Avro(node.registry, ORDER_SCHEMA.read_text(), type=Order)
    # The day is in the past: brokers refuse timestamps that are too far in the future.
    shop = Shop(
        EVENTS,
        int(time.time() * 1000) - SHOP_DAY - 6 * HOUR,
        lambda order: orders.encode("orders", order)[0],
    )
    try:
        async with ottla.Admin(node.bootstrap_servers) as admin:
            for topic in (*TOPICS, *CLEAN, DEAD_LETTERS, REVENUE):
                await admin.topics.create(topic, partitions=PARTITIONS)
        register_orders(node)
        say("starting Spark and its four queries, which takes a minute on a slow machine")
        spark = SparkProcess(node, work)
        background = [
            asyncio.create_task(each) for each in (spark.follow(), watch.sample(), watch.tail(node, orders))
        ]
        follow = background[0]
        await until(lambda: len(spark.started) == QUERIES, 180, "Spark did not start", spark)
        say(f"Spark runs {QUERIES} queries: {', '.join(sorted(spark.started))}")
        half, go_on = asyncio.Event(), asyncio.Event()
        began = time.perf_counter()
        sending = asyncio.create_task(produce(node, shop, orders, watch, half, go_on))
        say(f"sending {EVENTS:,} events of a day in the shop, {EVENTS_PER_SECOND:,} a second")
        await asyncio.wait(
            [sending, noon := asyncio.create_task(half.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        noon.cancel()
        await until(lambda: watch.seen > EVENTS // 20, 180, "the pipeline has written nothing", spark)
        say(f"half-way: {EVENTS // 2:,} sent, {watch.seen:,} cleaned and committed")
        go_on.set()
        await kill_things(node, spark, watch)
        failures = await sending
        say(f"all {watch.produced:,} events are sent; the pipeline finishes")
        spark.finish()
        await asyncio.wait_for(follow, 240)
        took = time.perf_counter() - began
        status = await asyncio.to_thread(spark.process.wait, 60)
        say(f"the pipeline is through, {sum(spark.batches.values())} batches; now counting")
        for task in background[1:]:
            task.cancel()
        outcome = await count(node, shop, orders, work / "table")
        answer = await query_as_table(node, shop, outcome, work / "node-tables")
        outcome.check("failed sends", [], failures)
        outcome.check("exit status of the pipeline", 0, status)
    finally:
        if spark is not None:
            spark.stop()
        node.stop()
    measured = Measured(took, watch.produced, watch.samples, watch.latencies, watch.marks, spark.restarts)
    status = conclude(shop, outcome, measured, page)
    say(answer)
    return status


async def until(condition, seconds: float, problem: str, spark: SparkProcess) -> None:
    deadline = time.perf_counter() + seconds
    while not condition():
        if spark.process.poll() is not None or time.perf_counter() > deadline:
            log = spark.log.read_text(errors="replace")[-4000:]
            raise SystemExit(f"{problem} within {seconds:.0f} s; the end of its log:\n{log}")
        await asyncio.sleep(0.1)


def conclude(shop: Shop, outcome: Outcome, measured: Measured, page: Path) -> int:
    say("")
    for line in [
        *outcome.lines(),
        *measured.lines(),
        f"{shop.truth.late:,} events were late, and in time for their windows",
    ]:
        print(f"          {line}")
    write_report(page, outcome, measured)
    verdict = "OK: nothing was lost or doubled" if outcome.is_right else "FAILED: see above"
    say(f"{verdict}; charts in {page}")
    return 0 if outcome.is_right else 1


def interrupt(*_: object) -> None:
    """End the demo as Ctrl-C does, with its processes."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        with own_page() as page:
            status = asyncio.run(main(directory, page))
    except KeyboardInterrupt:
        say("interrupted; all processes are ended")
        status = 130
    finally:
        if os.environ.get("DEMO_KEEP"):
            say(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(status)
