"""Changes of a real PostgreSQL, brought by Debezium, end as its rows in tables that merge, through kills."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from ottla.client.blocking import Admin, Consumer
from tests.spark.test_pipelines_merge import CUSTOMERS
from tests.support.postgres import POSTGRES_SKIP, Connect, PostgresServer, missing_requirement
from tests.support.spark_pipelines import SECONDS, Pipeline, Run, WarmPipeline
from tests.support.waiting import wait_until

MISSING = missing_requirement()
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(MISSING is not None, reason=f"{POSTGRES_SKIP}{MISSING}"),
]

TABLE = "CREATE TABLE customers (id bigint PRIMARY KEY, name text, at timestamptz NOT NULL DEFAULT now())"
HISTORY = """\
dp.create_streaming_table("names")
dp.create_auto_cdc_flow(
    target="names",
    source="customer_changes",
    keys=["id"],
    sequence_by=SEQUENCE_BY,
    apply_as_deletes=APPLY_AS_DELETES,
    except_column_list=[*METADATA_COLUMNS, "at"],
    stored_as_scd_type=2,
)
"""
PARTITIONS = 3


class Shop:
    """The database, its topic, and what is written to it."""

    def __init__(self, server: PostgresServer, connect: Connect, bootstrap: str, prefix: str) -> None:
        self.server = server
        self.connect = connect
        self.topic = f"{prefix}.public.customers"
        self._bootstrap = bootstrap
        self._random = Random(33)
        self._next = 0

    def change(self, count: int) -> None:
        """Insert, change, move to another key, delete and bring back rows, in transactions of a few."""
        for _ in range(count // 4):
            self.server.execute(*(self._statement() for _ in range(4)))

    def _statement(self) -> str:
        row, name = self._random.randrange(60), f"n{self._random.randrange(10_000)}"
        kind = self._random.random()
        if kind < 0.25:
            return f"DELETE FROM customers WHERE id = {row}"
        if kind < 0.35:  # for Debezium a delete and a new row
            other = self._random.randrange(60, 120)
            return (
                f"UPDATE customers SET id = {other} WHERE id = {row} "
                f"AND NOT EXISTS (SELECT 1 FROM customers WHERE id = {other})"
            )
        return (
            f"INSERT INTO customers (id, name) VALUES ({row}, '{name}') "
            "ON CONFLICT (id) DO UPDATE SET name = excluded.name"
        )

    def rows(self) -> dict[int, str]:
        return {int(number): name for number, name in self.server.execute("SELECT id, name FROM customers")}

    def await_all(self) -> None:
        """Wait until the topic has a row that is written now, in each partition: all before it are there."""
        self._next += 1
        number = 1_000_000 + self._next
        self.server.execute(f"INSERT INTO customers (id, name) VALUES ({number}, 'last')")
        with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(self.topic, partition) for partition in range(PARTITIONS)])
            seen: set[int] = set()

            def arrived() -> bool:
                self.connect.check()
                for record in consumer.poll(timeout_ms=200):
                    change = json.loads(record.value or b"{}")
                    seen.add((change.get("after") or {}).get("id", 0))
                return number in seen

            # One task of Connect sends in the order of the log, and waits for what it has sent.
            wait_until(arrived, f"{self.topic} does not get row {number}", SECONDS)


@contextmanager
def shop(directory: Path, bootstrap: str, admin: Admin, prefix: str) -> Iterator[Shop]:
    with PostgresServer() as server:
        server.execute(TABLE)
        server.execute("INSERT INTO customers SELECT each, 'n' || each FROM generate_series(0, 39) AS each")
        admin.topics.create(f"{prefix}.public.customers", partitions=PARTITIONS)
        with Connect(directory / "connect", bootstrap, server, prefix) as connect:
            yield Shop(server, connect, bootstrap, prefix)


def define(pipeline: Pipeline, prefix: str) -> None:
    text = CUSTOMERS.replace("NAME.customers", f"{prefix}.public.customers")
    pipeline.define("customers.py", text + HISTORY, cases={})
    pipeline.create_topics(f"{prefix}.public.customers:{PARTITIONS}")


def shown(pipeline: Pipeline, table: str) -> dict[int, str]:
    """The rows of a table now; of a history those that are still true."""
    ended = pipeline("show", table, "--json", "--limit", "100000")
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    rows = [row for row in rows if row.get("__END_AT") is None]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def test_a_table_equals_the_database_after_kills_of_all_parts(
    new_pipeline: Callable[[str], Pipeline],
    warm_pipeline: Callable[[str], WarmPipeline],
    admin: Admin,
    tmp_path: Path,
) -> None:
    killed = new_pipeline("postgres")
    pipeline = warm_pipeline("postgres-warm")  # the same project, undisturbed runs of it
    pipeline.directory = killed.directory
    define(pipeline, "pg")
    with shop(tmp_path, pipeline.bootstrap, admin, "pg") as database:
        database.await_all()  # the snapshot
        pipeline.run()
        assert shown(pipeline, "customers") == database.rows()

        database.change(80)
        database.connect.kill()  # it sends again what it has not noted
        database.change(80)
        database.connect.start()
        database.await_all()
        with Run(killed) as run:
            run.reaches("customers: running")
            run.kill()
        database.change(80)
        database.server.crash()
        database.connect.kill()
        database.server.start()
        database.connect.start()
        database.change(80)
        database.await_all()
        pipeline.run()
        expected = database.rows()
        for table in ("customers", "names"):
            assert shown(pipeline, table) == expected
        # From the beginning, which is another order of partitions and batches, to the same end.
        pipeline.run("--full-refresh", "customers", "--full-refresh", "names")
        for table in ("customers", "names"):
            assert shown(pipeline, table) == expected
