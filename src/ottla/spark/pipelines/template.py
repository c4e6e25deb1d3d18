"""The project that `ottla pipeline init` writes: the smallest one with every part of a pipeline over topics.

Orders are read from a topic into a streaming table and summed up in a materialized view; large ones are
written to another topic, exactly once. It is a standard project of Spark's declarative pipelines.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from ottla.spark.pipelines.project import ProjectError, check_path

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SPEC: Final = """\
name: {name}
# Checkpoints: of this directory, unless it is a URI. Spark's own `spark-pipelines` takes URIs only.
storage: pipeline-storage
libraries:
  - glob:
      include: transformations/**
configuration:
  # Where the topics are. `ottla pipeline run` sets another value with --bootstrap-server or --embedded.
  ottla.bootstrap.servers: "localhost:9092"
  # Topics that `ottla pipeline run` creates if they are missing, with their partitions.
  ottla.create.topics: "{source}:2, {sink}:2"
  spark.sql.shuffle.partitions: "2"
"""
_ORDERS: Final = '''\
"""Orders from a topic in a streaming table; records that are not orders are left out."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")
ORDER = "number long, customer string, item string, cents long"


@dp.table
def orders() -> DataFrame:
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "{source}")
        .option("startingOffsets", "earliest")
        .option("columns", "value,timestamp")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), ORDER)
    return (
        records.select(order.alias("order"), F.col("timestamp").alias("arrived"))
        .where("order.number is not null and order.cents > 0")
        .select("order.*", "arrived")
    )
'''
_TURNOVER: Final = """\
-- The turnover of each item so far; computed from scratch in every run.
CREATE MATERIALIZED VIEW turnover AS
SELECT item, count(*) AS orders, sum(cents) / 100 AS amount
FROM orders
GROUP BY item
"""
_LARGE: Final = '''\
"""Write large orders to their own topic, each exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")

dp.create_sink("large_orders", "ottla", {{"kafka.bootstrap.servers": BROKERS, "topic": "{sink}"}})


@dp.append_flow(target="large_orders")
def find_large_orders() -> DataFrame:
    return (
        spark.readStream.table("orders")
        .where("cents >= 5000")
        .select(F.col("customer").alias("key"), F.to_json(F.struct("number", "item", "cents")).alias("value"))
    )
'''
_README: Final = """\
# {name}

A pipeline of Spark over topics of Ottla, or of any Kafka.

    ottla pipeline run --embedded            # with its own node, whose data stays in .ottla/
    ottla pipeline run -b localhost:9092     # with brokers that are running
    ottla pipeline run --continuous          # and on with what arrives, until Ctrl-C
    ottla pipeline status
    ottla pipeline show turnover             # rows of a table
    ottla pipeline graph                     # what reads what
    ottla pipeline test                      # plays the cases in tests/
    ottla pipeline test --kill               # and kills the pipeline at each point of its writes

The first run finds an empty topic, and its node stops with it. Orders are lines of JSON in `{source}`.
To send some, start the same node in another terminal; the project expects it at localhost:9092:

    ottla start --data-dir .ottla/node

    echo '{{"number": 1, "customer": "ada", "item": "tea", "cents": 7250}}' | ottla produce {source} --create
    ottla pipeline run
    ottla consume {sink} --from-beginning --exit

`transformations/` has the flows: `orders.py` reads the topic into a table, `turnover.sql` sums it up,
`large_orders.py` writes a topic. Spark's own `spark-pipelines run` runs the same project, once `storage` in
`spark-pipeline.yml` is a URI, as `file:///srv/{name}/pipeline-storage`.
"""
_TEST: Final = """\
# A case for `ottla pipeline test`: records in, rows out. Each case has its own node, topics and tables.
steps:
  - send:
      {source}:
        - value: {{number: 1, customer: ada, item: tea, cents: 7250}}
        - value: {{number: 2, customer: bob, item: tea, cents: 350}}
        - value: no order
    expect:
      tables:
        orders:  # columns that no row here names are not compared
          - {{number: 1, item: tea}}
          - {{number: 2, item: tea}}
        turnover:
          - {{item: tea, orders: 2, amount: 76.0}}
      topics:
        {sink}: large_orders.jsonl
  - send:
      {source}:
        - {{value: {{number: 3, customer: eve, item: pot, cents: 5000}}, timestamp: 2026-01-31T12:00:00Z}}
    expect:
      tables:
        turnover:
          - {{item: tea, orders: 2, amount: 76.0}}
          - {{item: pot, orders: 1, amount: 50.0}}
"""
_TEST_ROWS: Final = """\
{{"key": "ada", "value": {{"number": 1, "item": "tea", "cents": 7250}}}}
"""
_PARTS: Final = ("transformations", "tests")
_IGNORED: Final = ".ottla/\npipeline-storage*/\nspark-warehouse*/\nmetastore_db/\n__pycache__/\n"


def write_project(directory: Path) -> list[Path]:
    """Write the project into a new or empty directory; returns its files."""
    directory = directory.resolve()
    name = directory.name
    if not _NAME.fullmatch(name):
        raise ProjectError(
            f"{name!r} is not a name for a project: letters, digits, dots, dashes, at most 100"
        )
    check_path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ProjectError(f"{directory} already exists, and is not an empty directory; choose another name")
    topics = {"source": f"{name}.orders", "sink": f"{name}.large-orders"}
    files = {
        "spark-pipeline.yml": _SPEC.format(name=name, **topics),
        "transformations/orders.py": _ORDERS.format(**topics),
        "transformations/turnover.sql": _TURNOVER,
        "transformations/large_orders.py": _LARGE.format(**topics),
        "tests/large_orders.yml": _TEST.format(**topics),
        "tests/large_orders.jsonl": _TEST_ROWS.format(),
        "README.md": _README.format(name=name, **topics),
        ".gitignore": _IGNORED,
    }
    was_there = directory.exists()
    try:
        for part in _PARTS:
            (directory / part).mkdir(parents=True)
        for relative, text in files.items():
            (directory / relative).write_text(text)
    except OSError:  # leave nothing that the next attempt would refuse, as on a full disk
        for part in _PARTS if was_there else (".",):
            shutil.rmtree(directory / part, ignore_errors=True)
        for relative in files:
            (directory / relative).unlink(missing_ok=True)
        raise
    return [directory / relative for relative in files]
