"""Tables that merge in pipelines: the changes of a database end as its rows, each once."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.pipelines.output import StreamingTable
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from ottla.client.blocking import Admin, Producer
from ottla.spark import debezium
from ottla.spark.merge.definitions import InvalidMerge, merge_sink
from ottla.spark.merge.options import MergeOptions
from ottla.spark.merge.writer import merge_writer
from ottla.tables.keyed_table import History
from tests.support.spark_pipelines import Pipeline, Run, WarmPipeline

MENDED = '"id long, name string, at timestamp").selectExpr("* except (name)", "upper(name) as name")'
CUSTOMERS = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from ottla.spark.debezium import APPLY_AS_DELETES, METADATA_COLUMNS, SEQUENCE_BY, debezium_changes

spark = SparkSession.active()


@dp.temporary_view
def customer_changes() -> DataFrame:
    topic = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", spark.conf.get("ottla.bootstrap.servers"))
        .option("subscribe", "NAME.customers")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20")
        .load()
    )
    return debezium_changes(topic, "id long, name string, at timestamp")


dp.create_auto_cdc_flow(
    target="customers",
    source="customer_changes",
    keys=["id"],
    sequence_by=SEQUENCE_BY,
    apply_as_deletes=APPLY_AS_DELETES,
    except_column_list=METADATA_COLUMNS,
)
dp.create_streaming_table("customers")
"""


class Database:
    """A table of customers, whose changes Debezium would write."""

    def __init__(self, producer: Producer, topic: str, *, with_schema: bool = False) -> None:
        self._producer = producer
        self._topic = topic
        self._with_schema = with_schema
        self.rows: dict[int, str] = {}
        self.changed_ms: dict[int, int] = {}
        self.now_ms = 1_000_000

    def put(self, number: int, name: str) -> None:
        before = self._row(number)
        self.rows[number] = name
        self._send(number, "u" if before else "c", before, self._row(number))

    def delete(self, number: int) -> None:
        before = self._row(number)
        del self.rows[number]
        self._send(number, "d", before, None)
        self._producer.send(self._topic, None, key=str(number).encode(), partition=number % 2)

    def _row(self, number: int) -> dict[str, Any] | None:
        name = self.rows.get(number)
        return None if name is None else {"id": number, "name": name, "at": "2026-01-31T12:00:00Z"}

    def _send(
        self, number: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        change: dict[str, Any] = {
            "before": before,
            "after": after,
            "op": op,
            "ts_ms": 1,
            "source": {"lsn": 7},
        }
        if self._with_schema:
            change = {"schema": {"type": "struct"}, "payload": change}
        self.now_ms += 1_000
        self.changed_ms[number] = self.now_ms
        value, key = json.dumps(change).encode(), str(number).encode()
        self._producer.send(self._topic, value, key=key, partition=number % 2, timestamp=self.now_ms)


def prepared(pipeline: Pipeline, name: str) -> None:
    pipeline.define("customers.py", CUSTOMERS.replace("NAME", name), cases={})
    pipeline.create_topics(f"{name}.customers:2")


def shown(pipeline: Pipeline) -> dict[int, str]:
    ended = pipeline("show", "customers", "--json", "--limit", "1000")
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def test_columns_of_a_database_are_fields() -> None:
    assert doctest.testmod(debezium).failed == 0


def cdc_flow(**changed: Any) -> AutoCdcFlow:
    from pyspark.sql.connect.functions.builtin import col, expr

    flow = AutoCdcFlow(
        name="customers",
        target="customers",
        source="customer_changes",
        keys=[col("id")],
        sequence_by=expr("change_offset"),
        apply_as_deletes=None,
        column_list=None,
        except_column_list=[col("change_op"), col("`at`")],
        stored_as_scd_type=None,
        track_history_column_list=None,
        track_history_except_column_list=None,
        spark_conf={},
        source_code_location=SourceCodeLocation("customers.py", 7),
    )
    given = {
        name: [expr(each) if "(" in each else col(each) for each in value]
        if isinstance(value, list)
        else value
        for name, value in changed.items()
    }
    return replace(flow, **given)


def streaming_table(**changed: Any) -> StreamingTable:
    where = SourceCodeLocation("customers.py", 5)
    table = StreamingTable("customers", None, where, {}, None, None, None, None)
    return replace(table, **changed)


def test_a_flow_of_changes_becomes_a_sink(tmp_path: Path) -> None:
    sink = merge_sink(cdc_flow(), streaming_table(), tmp_path)
    options = MergeOptions.from_spark({name.lower(): value for name, value in sink.options.items()})
    assert options == MergeOptions("customers", str(tmp_path), ("id",), without=("change_op", "at"))
    assert [name for name in ("ID", "name", "At", "change_op") if options.selects(name)] == ["ID", "name"]
    flow = cdc_flow(stored_as_scd_type="2", track_history_except_column_list=["at"])
    sink = merge_sink(flow, streaming_table(), tmp_path)
    options = MergeOptions.from_spark({name.lower(): value for name, value in sink.options.items()})
    assert options.history == History(untracked=("at",))


@pytest.mark.parametrize(
    ("flow", "table", "problem"),
    [
        ({"stored_as_scd_type": 3}, {}, "stored_as_scd_type=3: a table has the latest row"),
        ({"track_history_column_list": ["name"]}, {}, "tracked with stored_as_scd_type=2 only"),
        ({"keys": ["__END_AT"]}, {}, "__END_AT is a column of the table itself"),
        ({"target": "shop.customers"}, {}, "no database in its name"),
        ({"keys": ["upper(id)"]}, {}, "keys: names of columns are expected"),
        ({"keys": ["_deleted"]}, {}, "_deleted is a column of the table itself"),
        ({}, {"schema": "id long"}, "omit schema and partition_cols"),
    ],
)
def test_what_a_table_that_merges_is_not(
    flow: dict[str, Any], table: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidMerge, match=problem):
        merge_sink(cdc_flow(**flow), streaming_table(**table), tmp_path)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"name": StringType()}, "there is no column id, which is a key"),
        ({"_sequence": StructType([])}, "by which changes cannot be ordered"),
        ({"__end_at": LongType()}, "__end_at is a column of the history itself"),
        ({"missed": LongType()}, "there is no column name to be tracked"),
        ({"_deleted": StringType()}, "apply_as_deletes is string, and not true or false"),
    ],
)
def test_changes_that_cannot_be_merged(columns: dict[str, DataType], problem: str, tmp_path: Path) -> None:
    history = None if "_deleted" in columns else History(tracked=("name",))
    options = MergeOptions("customers", str(tmp_path), ("id",), history=history).to_spark()
    key: dict[str, DataType] = {} if "name" in columns else {"id": LongType()}
    given = {**key, "_sequence": LongType(), "_deleted": BooleanType(), **columns}
    schema = StructType([StructField(name, kind) for name, kind in given.items()])
    with pytest.raises(ValueError, match=problem):
        merge_writer(options, schema)


def merged_twice(pipeline: WarmPipeline, name: str, admin: Admin, producer: Producer) -> Database:
    """Run the project over a database's first rows, and over changes of them."""
    prepared(pipeline, name)
    admin.topics.create(f"{name}.customers", partitions=2)
    database = Database(producer, f"{name}.customers")
    for number in range(6):
        database.put(number, f"n{number}")
    pipeline.run()
    assert shown(pipeline) == database.rows

    database.put(1, "changed")
    database.delete(2)
    database.put(7, "new")
    database.put(2, "back")
    database.delete(3)
    assert "plan: 1 flow continues" in pipeline.run()
    assert shown(pipeline) == database.rows
    return database


@pytest.mark.slow
@pytest.mark.spark
def test_the_changes_of_a_database_end_as_its_rows(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin, producer: Producer
) -> None:
    pipeline = warm_pipeline("cdc")
    merged_twice(pipeline, "cdc", admin, producer)
    answer = pipeline(
        "sql", "SELECT count(*) AS n, max(name) AS name, min(year(at)) AS y FROM customers", "--json"
    )
    assert json.loads(answer.stdout) == {"n": 6, "name": "new", "y": 2026}, answer.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
def test_changes_are_read_again_of_some_hours_and_from_the_beginning(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin, producer: Producer
) -> None:
    pipeline = warm_pipeline("cdc_again")
    database = merged_twice(pipeline, "cdc_again", admin, producer)
    # The code is mended, and what came wrong in some hours is read again.
    said = pipeline("run", "-b", pipeline.bootstrap, "--to", "1h").stderr
    assert "--to goes with --from" in said
    pipeline.change("customers.py", '"id long, name string, at timestamp")', MENDED)
    since, until = database.changed_ms[4], database.changed_ms[7]
    pipeline.run("--from", f"@{since}", "--to", f"@{until}")
    mended = {
        number: name.upper() if since <= database.changed_ms[number] < until else name
        for number, name in database.rows.items()
    }
    assert shown(pipeline) == mended
    assert sum(name.isupper() for name in mended.values()) == 3
    assert not list(pipeline.directory.glob("pipeline-storage/_again/*"))
    pipeline.change("customers.py", MENDED, '"id long, name string, at timestamp")')

    database.put(4, "after")
    pipeline.run("--full-refresh", "customers")
    assert shown(pipeline) == database.rows

    reads = '@dp.materialized_view\ndef names() -> DataFrame:\n    return spark.read.table("customers")\n\n\n'
    pipeline.change("customers.py", "dp.create_auto_cdc_flow(", f"{reads}dp.create_auto_cdc_flow(")
    ended = pipeline("run", "-b", pipeline.bootstrap)
    assert (ended.returncode, "flow names: customers is a table that merges" in ended.stderr) == (4, True)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
def test_runs_that_are_killed_merge_each_change_once(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    pipeline = new_pipeline("killed")
    prepared(pipeline, "killed")
    pipeline.run()
    database = Database(producer, "killed.customers", with_schema=True)
    for round_ in range(4):
        for number in range(60):
            database.put(number, f"n{round_}")
            if number % 5 == round_:
                database.delete(number)
        with Run(pipeline) as run:
            run.reaches("customers: running")
            run.kill(jvm=round_ % 2 == 0)
    pipeline.run()
    assert shown(pipeline) == database.rows


@pytest.mark.slow
@pytest.mark.spark
def test_a_range_of_time_is_not_read_again_where_rows_would_be_doubled(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin
) -> None:
    pipeline = warm_pipeline("plain")
    for topic in ("plain.orders", "plain.large-orders"):
        admin.topics.create(topic)
    ended = pipeline("run", "-b", pipeline.bootstrap, "--from", "2026-01-01")
    assert ended.returncode == 4
    assert (
        "no table here merges (create_auto_cdc_flow), and rows of all others would be doubled" in ended.stderr
    )


CHANGES = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def changes() -> DataFrame:
    topic = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", spark.conf.get("ottla.bootstrap.servers"))
        .option("subscribe", "kept.customers")
        .option("startingOffsets", "earliest")
        .load()
    )
    return topic.selectExpr("string(key) as id", "string(value) as name", "offset")


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="changes",
    keys=["id"],
    sequence_by="offset",
    apply_as_deletes="name is null",
    column_list=["name"],
)
dp.create_streaming_table("names")
dp.create_auto_cdc_flow(
    target="names",
    source="changes",
    keys=["id"],
    sequence_by="offset",
    apply_as_deletes="name is null",
    column_list=["name"],
    stored_as_scd_type=2,
)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
def test_changes_that_a_table_keeps_are_merged_in_the_run_that_reads_them(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin, producer: Producer
) -> None:
    """Also in the second run, in which Spark knows the table: the flow has to wait for what fills it."""
    pipeline = warm_pipeline("kept")
    pipeline.define("changes.py", CHANGES, cases={})
    pipeline.create_topics("kept.customers")
    admin.topics.create("kept.customers")
    for key, name, expected in (
        ("1", "ada", {"1": "ada"}),
        ("2", "bob", {"1": "ada", "2": "bob"}),
        ("1", None, {"2": "bob"}),
    ):
        producer.send("kept.customers", None if name is None else name.encode(), key=key.encode())
        pipeline.run()
        ended = pipeline("show", "customers", "--json")
        rows = [json.loads(line) for line in ended.stdout.splitlines()]
        assert {row["id"]: row["name"] for row in rows} == expected
    drawn = pipeline("graph").stdout
    assert {"├─ customers (sink)", "└─ names (sink)"} <= set(drawn.splitlines())
    query = "SELECT id, name, __START_AT AS since, __END_AT AS until FROM names ORDER BY since"
    answer = pipeline("sql", query, "--json")
    assert [list(json.loads(line).values()) for line in answer.stdout.splitlines()] == [
        ["1", "ada", 0, 2],
        ["2", "bob", 1, None],
    ]
