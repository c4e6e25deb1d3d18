"""Brokers keep the tables of topics: real nodes, real clients, and what goes wrong around them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from pyiceberg.exceptions import NoSuchTableError

from ottla.blocking import Consumer
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.node_config import NodeConfig
from ottla.node.tables.table_keeper import TableKeeper, TableState
from ottla.protocol.names import TopicPartition
from ottla.runtime.child_process import ChildTimedOut
from ottla.runtime.clock import SystemClock
from ottla.runtime.turns import Turns
from ottla.tables.catalog import open_catalog
from ottla.tables.errors import TableError
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support.table_metrics import metric
from tests.support.tiered import History, create_tiered_topic, tiered_settings, wait_until_tiered
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TABLE = {"table.format": "iceberg", "table.freshness.ms": "200"}
HTTP = {"http.listener": "http://127.0.0.1:0"}


def create(bootstrap: str, topic: str = "orders", partitions: int = 2, replicas: int = 1, **config) -> None:
    settings = TABLE | {name.replace("_", "."): value for name, value in config.items()}
    client = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(topic, partitions, replicas, config=settings)]
    client.create_topics(wanted, operation_timeout=60)[topic].result(60)


def produce(bootstrap: str, values, topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(topic, key=str(number), value=value)
    assert producer.flush(60) == 0


def set_config(bootstrap: str, topic: str = "orders", **config: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = AdminClient({"bootstrap.servers": bootstrap})
    for name, value in config.items():
        entry = ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    client.incremental_alter_configs([resource])[resource].result(60)


def rows(warehouse: str, name: str = "orders"):
    """The rows of a table, for DuckDB."""
    return open_catalog(CatalogSettings(warehouse=warehouse)).load_table(("topics", name)).scan().to_arrow()


def count_rows(warehouse: str, name: str = "orders") -> int:
    """How many rows the table has by its metadata; none as long as there is no table."""
    try:
        table = open_catalog(CatalogSettings(warehouse=warehouse)).load_table(("topics", name))
    except (NoSuchTableError, TableError, FileNotFoundError):
        return 0
    snapshot = table.current_snapshot()
    return 0 if snapshot is None or snapshot.summary is None else int(snapshot.summary["total-records"])


def query(sql: str, orders) -> list[tuple]:
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        return connection.sql(sql).fetchall()


def records(bootstrap: str, topic: str = "orders") -> list[tuple]:
    """What a consumer of committed records sees."""
    found = []
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        partitions = consumer.partitions_for(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += [(r.partition, r.offset, r.key, r.value) for r in consumer.poll(timeout_ms=1000)]
    return sorted(found)


def assert_same(bootstrap: str, warehouse: str, count: int, topic: str = "orders") -> None:
    """Wait until the table has as many rows, and compare them with the topic, record by record."""
    wait_until(lambda: count_rows(warehouse, topic) >= count, f"the table has not {count} rows", 240)
    found = query('select partition, "offset", key, value from orders order by 1, 2', rows(warehouse, topic))
    assert found == records(bootstrap, topic)
    assert len(found) == count


def test_a_table_has_what_consumers_of_committed_records_see(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(HTTP, data_dir=data) as node:
        create(node.bootstrap_servers, "orders")
        # The last transaction is open until a worker was started and has written its table.
        transactional = {"transactional.id": "t", "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, **transactional})
        producer.init_transactions(60)
        for commits in (True, False, True, False):
            producer.begin_transaction()
            for number in range(500):
                producer.produce("orders", key=str(number), value=str(number if commits else -1))
            producer.flush(60)
            producer.commit_transaction(60) if commits else producer.abort_transaction(60)
        # An open transaction holds back what comes behind it.
        producer.begin_transaction()
        producer.produce("orders", key="open", value="1", partition=0)
        assert producer.flush(60) == 0
        assert_same(node.bootstrap_servers, f"{data}-tables", 1000)
        total = "select sum(cast(decode(value) as int)) from orders"
        assert query(total, rows(f"{data}-tables")) == [(2 * sum(range(500)),)]
        producer.commit_transaction(60)
        assert_same(node.bootstrap_servers, f"{data}-tables", 1001)
        wait_until(lambda: metric(node, "ottla_table_lag_records") == 0, "the table lags", 240)
        assert metric(node, "ottla_table_rows_total") == 1001
        assert metric(node, "ottla_table_lag_seconds") < 60


def test_a_table_goes_on_after_a_restart_and_while_its_worker_is_killed(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(data_dir=data) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"1"] * 300)
        assert_same(node.bootstrap_servers, f"{data}-tables", 300)
    with LocalNode(data_dir=data) as node:
        for round in range(3):
            produce(node.bootstrap_servers, [b"2"] * 300)
            kill_workers()
            if round == 1:
                assert_same(node.bootstrap_servers, f"{data}-tables", 900)
        assert_same(node.bootstrap_servers, f"{data}-tables", 1200)
    assert not workers()


def workers() -> list[int]:
    """The worker processes of nodes in this process."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if int(status[1]) == os.getpid() and status[0] != "Z" and "ottla.tables.worker" in command:
            found.append(int(pid))
    return found


def kill_workers() -> None:
    """Kill those that are there, as soon as there is one. One that ends meanwhile is no error."""
    killed: list[int] = []

    def kill() -> bool:
        for pid in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return bool(killed)

    wait_until(kill, "there is no worker", 240)


@pytest.mark.exhaustive
def test_a_topic_may_stop_and_go_on_with_its_table(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(HTTP, data_dir=data) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"1"] * 10)
        assert_same(node.bootstrap_servers, f"{data}-tables", 10)
        set_config(node.bootstrap_servers, table_format="none")
        wait_until(lambda: metric(node, "ottla_table_rows_total") is None, "the table is still kept", 240)
        produce(node.bootstrap_servers, [b"2"] * 10)
        wait_until(lambda: not workers(), "the worker has not ended", 240)
        assert rows(f"{data}-tables").num_rows == 10
        set_config(node.bootstrap_servers, table_format="iceberg")
        assert_same(node.bootstrap_servers, f"{data}-tables", 20)


@pytest.mark.slow
def test_a_table_takes_what_is_in_remote_storage_only(tmp_path: Path) -> None:
    """Local retention has overtaken the table: it is turned on late."""
    data = str(tmp_path / "data")
    with LocalNode(tiered_settings(tmp_path / "store"), data_dir=data) as node:
        create_tiered_topic(node.bootstrap_servers, "orders")
        history = History(node.bootstrap_servers, "orders")
        history.write_plain(2 * 1024 * 1024)
        producer = history.producer(transactional_id="t")
        producer.init_transactions(60)
        producer.begin_transaction()
        history.send(producer, 20, into=history.aborted)
        producer.abort_transaction(60)
        history.write_plain(3 * 1024 * 1024)
        assert max(history.aborted) < wait_until_tiered(node.bootstrap_servers, "orders")
        set_config(node.bootstrap_servers, table_format="iceberg", table_freshness_ms="200")
        assert_same(node.bootstrap_servers, f"{data}-tables", len(history.committed))


@pytest.mark.exhaustive
def test_a_topic_that_is_made_again_gets_another_table(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(data_dir=data) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"old"] * 10)
        assert_same(node.bootstrap_servers, f"{data}-tables", 10)
        client = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        client.delete_topics(["orders"], operation_timeout=60)["orders"].result(60)
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"new"] * 4)
        wait_until(lambda: count_rows(f"{data}-tables") == 4, "the new topic has no table of its own", 240)
        assert rows(f"{data}-tables").column("value").to_pylist() == [b"new"] * 4
        catalog = open_catalog(CatalogSettings(warehouse=f"{data}-tables"))
        names = sorted(name for _, name in catalog.list_tables("topics"))
        assert names[0] == "orders"
        assert names[1].startswith("orders____")
        assert rows(f"{data}-tables", names[1]).num_rows == 10


def test_a_node_serves_while_its_tables_cannot_be_written(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.write_text("a file, not a directory")
    settings = HTTP | {"table.catalog.warehouse": str(warehouse)}
    with LocalNode(settings, data_dir=str(tmp_path / "data")) as node:
        create(node.bootstrap_servers)
        produce(node.bootstrap_servers, [b"1"] * 10)
        wait_until(lambda: metric(node, "ottla_table_failing") == 1, "the table does not fail", 240)
        wait_until(lambda: metric(node, "ottla_table_failures_total") > 1, "it is not tried again", 240)
        assert len(records(node.bootstrap_servers)) == 10
        assert metric(node, "ottla_table_lag_records") == 10
        warehouse.unlink()
        assert_same(node.bootstrap_servers, str(warehouse), 10)
        wait_until(lambda: metric(node, "ottla_table_failing") == 0, "the table still fails", 240)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"table.schema": "{}"}, "table.schema needs table.schema.type"),
        ({"table.schema.type": "json"}, "needs table.schema"),
        ({"table.schema.type": "avro", "table.schema": "{"}, "invalid table.schema"),
        ({"table.schema.type": "registry"}, "table.schema.registry.url"),
        ({"table.partition.by": "field:x"}, "has no field 'x'"),
        ({"table.partition.by": "week"}, "none, day, hour or field:NAME"),
        ({"table.format": "delta"}, "none, iceberg"),
    ],
)
def test_settings_that_no_table_can_have_are_refused(settings, problem: str) -> None:
    with LocalNode() as node:
        client = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        futures = client.create_topics([NewTopic("t", 1, 1, config=TABLE | settings)])
        with pytest.raises(Exception, match=re.escape(problem)):
            futures["t"].result(60)


@pytest.mark.slow
def test_brokers_commit_what_they_lead_and_take_over_from_each_other(tmp_path: Path) -> None:
    with LocalCluster(nodes=3, data_dir=str(tmp_path / "cluster")) as cluster:
        warehouse = str(tmp_path / "cluster" / "tables")
        create(cluster.bootstrap_servers, partitions=6, replicas=3)
        produce(cluster.bootstrap_servers, [b"1"] * 600)
        assert_same(cluster.bootstrap_servers, warehouse, 600)
        killed = cluster.leader("orders", 0)
        produce(cluster.bootstrap_servers, [b"2"] * 600)
        cluster.kill(killed)
        produce(cluster.bootstrap_servers, [b"3"] * 600)
        assert_same(cluster.bootstrap_servers, warehouse, 1800)
        cluster.start(killed)
        produce(cluster.bootstrap_servers, [b"4"] * 600)
        assert_same(cluster.bootstrap_servers, warehouse, 2400)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_broker_merges_the_small_files_of_its_tables(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    settings = HTTP | {"table.maintenance.interval.ms": "1000", "table.compaction.min.files": "3"}
    with LocalNode(settings, data_dir=data) as node:
        create(node.bootstrap_servers)
        for number in range(1, 5):
            produce(node.bootstrap_servers, [b"x"] * 10)
            wait_until(lambda n=number: metric(node, "ottla_table_rows_total") == 10 * n, "it is behind", 240)

        def files() -> int:
            table = open_catalog(CatalogSettings(warehouse=f"{data}-tables")).load_table("topics.orders")
            return len(list(table.scan().plan_files()))

        wait_until(lambda: files() < 3, "the files are not merged", 240)
        assert_same(node.bootstrap_servers, f"{data}-tables", 40)


class FakeWorker:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[str] = []

    async def request(self, head: dict, payload: bytes = b"") -> dict:
        if self.error is not None:
            raise self.error
        self.asked.append(head["op"])
        return {"ok": {}}

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [OSError("no memory"), RuntimeError("can't start new thread")])
async def test_a_worker_that_could_not_be_started_is_replaced_by_one_that_knows_its_catalog(
    error: Exception, tmp_path: Path
) -> None:
    config = NodeConfig({"log.dirs": str(tmp_path)})
    runtime = SimpleNamespace(clock=SystemClock())
    broker = SimpleNamespace(config=config, image=MetadataImage.EMPTY, runtime=runtime)
    workers = [FakeWorker(error), FakeWorker(None)]
    left = iter(workers)
    keeper = TableKeeper(broker, lambda _: next(left))
    keeper._round = lambda _: keeper._ask(keeper._fast, {"op": "open"})  # type: ignore[method-assign]
    state = TableState("orders", bytes(16), 0, 0, 0)
    await keeper._keep(state)
    assert (state.failures, state.error) == (1, str(error))
    assert state.due_ms > 0, "other tables come first"
    await keeper._keep(state)
    assert state.error is None
    assert workers[1].asked == ["configure", "open"]


async def test_a_table_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    runtime = SimpleNamespace(clock=SystemClock())
    config = NodeConfig({"log.dirs": str(tmp_path)})
    broker = SimpleNamespace(config=config, image=MetadataImage.EMPTY, runtime=runtime)
    is_mended = asyncio.Event()
    limits: list[float] = []

    class HangingWorker(FakeWorker):
        def __init__(self, timeout_seconds: float) -> None:
            super().__init__(None)
            self.timeout_seconds = timeout_seconds
            limits.append(timeout_seconds)

        async def request(self, head: dict, payload: bytes = b"") -> dict:
            if head.get("topic") == "bad":
                if self.timeout_seconds < 100:
                    raise ChildTimedOut("no answer")
                await is_mended.wait()
            return {"ok": {}}

    keeper = TableKeeper(broker, HangingWorker)
    good, bad = (TableState(topic, bytes(16), due, 0, 2**62) for topic, due in (("good", 1), ("bad", 0)))
    rounds: list[str] = []

    async def take_up() -> None:
        pass

    async def keep(state: TableState) -> bool:
        await keeper._ask(keeper._lane(state), {"op": "open", "topic": state.topic})
        rounds.append(state.topic)
        return True

    keeper._take_up, keeper._round = take_up, keep  # type: ignore[method-assign]
    keeper._tables.update(good=good, bad=bad)
    keeper._topics = {"good", "bad"}
    tasks = [asyncio.ensure_future(keeper.run()), asyncio.ensure_future(keeper.run_slow())]

    async def wait_for(is_so) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                good.due_ms = min(good.due_ms, 0)
                keeper._fast.woken.set()
                await asyncio.sleep(0.01)

    await wait_for(lambda: bad.is_slow and len(limits) == 3)
    count = len(rounds)
    await wait_for(lambda: len(rounds) > count + 3)
    assert set(rounds) == {"good"}
    # It comes back when it answers.
    is_mended.set()
    await wait_for(lambda: "bad" in rounds)
    assert not bad.is_slow
    assert bad.error is None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(limits) == [60.0, 60.0, 600.0]


async def test_no_partition_waits_for_others_that_always_have_something_new(tmp_path: Path) -> None:
    broker = SimpleNamespace(
        config=NodeConfig({"log.dirs": str(tmp_path)}),
        image=MetadataImage.EMPTY,
        runtime=SimpleNamespace(clock=SystemClock()),
    )
    taken: list[int] = []

    class FullWorker(FakeWorker):
        """Takes what two requests have, and wants a commit."""

        async def request(self, head: dict, payload: bytes = b"") -> dict:
            if head["op"] == "append":
                taken.append(head["partition"])
                return {"ok": {"next": head["offset"] + 1, "full": len(taken) % 2 == 0}}
            return {"ok": {"rows": 1, "bytes": 1}}

    async def read(partition: object, offset: int) -> SimpleNamespace:
        return SimpleNamespace(records=b"x", aborted=())

    keeper = TableKeeper(broker, lambda _: FullWorker(None))
    keeper._read = read  # type: ignore[method-assign]
    state = TableState("orders", bytes(16), 0, 0, 2**62)
    log = SimpleNamespace(log_start_offset=0, log_end_offset=100)
    led = {index: SimpleNamespace(log=log, topic_partition=f"orders-{index}") for index in range(5)}
    for _ in range(5):
        # Each partition has one record more than its table, all the time.
        assert not await keeper._send(state, led, dict.fromkeys(led, 1), {})
    assert sorted(set(taken)) == [0, 1, 2, 3, 4]


async def test_a_round_that_others_were_faster_than_is_no_failure_unless_it_always_is(tmp_path: Path) -> None:
    broker = SimpleNamespace(
        config=NodeConfig({"log.dirs": str(tmp_path)}),
        image=MetadataImage.EMPTY,
        runtime=SimpleNamespace(clock=SystemClock()),
    )
    answers: list[dict] = [{"moved": "another broker was faster"}] * 3 + [{"ok": {}}]
    answers += [{"moved": "another broker was faster"}] * 6

    class MovedWorker(FakeWorker):
        async def request(self, head: dict, payload: bytes = b"") -> dict:
            return {"ok": None} if head["op"] == "configure" else answers.pop(0)

    keeper = TableKeeper(broker, lambda _: MovedWorker(None))
    keeper._round = lambda _: keeper._ask(keeper._fast, {"op": "commit"})  # type: ignore[method-assign]
    state = TableState("orders", bytes(16), 0, 0, 2**62)
    for _ in range(3):
        await keeper._keep(state)
        assert (state.error, state.failures) == (None, 0)
        assert state.due_ms > 0
    await keeper._keep(state)
    for _ in range(5):
        await keeper._keep(state)
        assert (state.error, state.failures) == (None, 0)
    await keeper._keep(state)
    assert (state.error, state.failures) == ("another broker was faster", 1)


class ManyPartitions:
    """A topic of 10,000 partitions that this broker leads, each with one record, and a clock on which each
    look at a partition takes a tenth of a millisecond.
    """

    def __init__(self, directory: Path) -> None:
        self.looks: list[int] = []
        self.sent: list[int] = []
        self.now_ns = 0
        self.error: str | None = None
        self.partitions = [self._partition(index) for index in range(10_000)]
        topic = SimpleNamespace(name="orders", id=bytes(16), partitions=dict.fromkeys(range(10_000)))
        image = SimpleNamespace(
            topics=SimpleNamespace(by_id={bytes(16): topic}, by_name={"orders": topic}),
            config=lambda resource: {},
            provenance=MetadataImage.EMPTY.provenance,
        )
        broker = SimpleNamespace(
            cluster_id="c",
            config=NodeConfig({"log.dirs": str(directory), "table.catalog.warehouse": str(directory)}),
            image=image,
            replicas=SimpleNamespace(find=self._find),
            runtime=SimpleNamespace(
                clock=SimpleNamespace(monotonic_ns=lambda: self.now_ns, wall_ms=lambda: self.now_ns // 10**6)
            ),
        )
        self.keeper = TableKeeper(broker, lambda _: self)  # type: ignore[arg-type]

        async def read(partition: object, offset: int) -> SimpleNamespace:
            return SimpleNamespace(records=b"x", aborted=())

        self.keeper._read = read  # type: ignore[assignment]
        self.state = TableState("orders", bytes(16), 0, 0, 2**62)
        self.keeper._tables["orders"] = self.state

    def _partition(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(
            is_leader=True,
            topic_id=bytes(16),
            topic_partition=TopicPartition("orders", index),
            log=SimpleNamespace(log_start_offset=0, log_end_offset=1, last_stable_offset=1),
        )

    def _find(self, tp: TopicPartition) -> SimpleNamespace:
        self.looks.append(tp.partition)
        self.now_ns += 100_000
        return self.partitions[tp.partition]

    def append(self, index: int) -> None:
        log = self.partitions[index].log
        log.log_end_offset = log.last_stable_offset = log.last_stable_offset + 1
        self.keeper.on_partition_progress(self.partitions[index])  # type: ignore[arg-type]

    async def request(self, head: dict, payload: bytes = b"") -> dict:
        if self.error is not None and head["op"] == "commit":
            return {"error": self.error}
        if head["op"] == "append":
            self.sent.append(head["partition"])
            return {"ok": {"next": self.partitions[head["partition"]].log.last_stable_offset, "full": False}}
        return {"ok": {"rows": 1, "bytes": 1} if head["op"] == "commit" else {}}

    async def close(self) -> None:
        """Nothing is held."""

    async def keep(self) -> None:
        await self.keeper._keep(self.state)

    async def longest_turn_ms(self, work) -> float:
        """The longest time that another task has waited while the work was done."""
        longest, before = 0, self.now_ns
        doing = asyncio.ensure_future(work)
        while not doing.done():
            await asyncio.sleep(0)
            longest, before = max(longest, self.now_ns - before), self.now_ns
        await doing
        return longest / 1e6


async def test_partitions_at_rest_are_not_looked_at(tmp_path: Path) -> None:
    many = ManyPartitions(tmp_path)
    await many.keep()
    assert len(many.sent) == 10_000
    many.looks.clear()
    many.sent.clear()
    await many.keep()
    assert many.looks == []
    many.append(7)
    many.append(9_999)
    assert await many.keeper.lag_records(many.state, Turns(SystemClock())) == 2
    many.looks.clear()
    await many.keep()
    assert many.looks == many.sent == [7, 9_999]
    assert await many.keeper.lag_records(many.state, Turns(SystemClock())) == 0


async def test_what_is_being_sent_is_behind_until_it_is_committed(tmp_path: Path) -> None:
    many = ManyPartitions(tmp_path)
    lags: list[int] = []
    request = many.request

    async def observed(head: dict, payload: bytes = b"") -> dict:
        if head["op"] == "commit":
            lags.append(await many.keeper.lag_records(many.state, Turns(SystemClock())))
        return await request(head, payload)

    many.request = observed  # type: ignore[method-assign]
    await many.keep()
    many.append(7)
    await many.keep()
    assert lags == [10_000, 1]


async def test_a_partition_that_moves_away_and_comes_back_is_looked_at_again(tmp_path: Path) -> None:
    many = ManyPartitions(tmp_path)
    await many.keep()
    many.sent.clear()
    for is_leader in (False, True):
        many.partitions[3].is_leader = is_leader
        many.append(3)
        await many.keep()
        assert many.sent == [3] * is_leader


async def test_a_failure_has_all_partitions_looked_at_again(tmp_path: Path) -> None:
    many = ManyPartitions(tmp_path)
    await many.keep()
    many.append(7)
    many.error = "the catalog is away"
    await many.keep()
    assert many.state.failures == 1
    many.error = None
    many.sent.clear()
    await many.keep()
    assert len(many.sent) == 10_000
    assert await many.keeper.lag_records(many.state, Turns(SystemClock())) == 0


async def test_many_partitions_are_looked_at_in_turns(tmp_path: Path) -> None:
    many = ManyPartitions(tmp_path)
    turns = Turns(many.keeper._clock)
    assert await many.longest_turn_ms(many.keeper.lag_records(many.state, turns)) < 10
    assert await many.longest_turn_ms(many.keep()) < 10
