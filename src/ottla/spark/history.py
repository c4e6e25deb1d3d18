"""A topic's whole history as one DataFrame, with the files of its table read by Spark itself.

A source in Python hands every row from a worker to Spark's JVM, wherever it comes from. Files of a table need
not take that way: Spark's own reader of Parquet decodes them where the rows are used, and only the columns
that a query needs. The plan is the one of `readFrom=auto`: one snapshot of the table, and the offsets behind
it from segments and brokers, by `format("ottla")`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.spark.source.offset_ranges import OffsetRange
    from ottla.spark.source.options import SourceOptions
    from ottla.spark.source.topic_table_files import FileRange


_FILE_SCHEMA = (
    "partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
# Those that say what is read, and where it begins and ends: the plan has them already.
_PLANNED = ("subscribe", "subscribepattern", "assign", "readfrom", "pushdown")


def read_topic(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read what `format("ottla")` reads with these options and `readFrom=auto`, or `table` if it is given."""
    from ottla.spark.source.batch_reader import BatchReader, FilePartition, SegmentPartition
    from ottla.spark.source.columns import spark_schema
    from ottla.spark.source.options import source_options

    named = {name.lower(): str(value) for name, value in options.items()}
    parsed = source_options({**named, "readfrom": named.get("readfrom", "auto")}, streaming=False)
    if not parsed.read_from.takes_tables:
        raise ValueError(f'readFrom={parsed.read_from.value}: use format("ottla"), or auto or table here')
    files: dict[tuple[str, bool], FileRange] = {}
    rest: list[OffsetRange] = []
    for each in BatchReader(parsed).partitions():
        if isinstance(each, FilePartition):
            # Spark divides files into tasks itself.
            found: FileRange = each.value
            key = found.topic, found.is_exact
            files[key] = replace(found, paths=files[key].paths + found.paths) if key in files else found
        else:
            rest.append(each.value.offsets if isinstance(each, SegmentPartition) else each.value)
    frames = [_of_files(spark, parsed, each) for each in files.values()]
    if rest:
        frames.append(_of_ranges(spark, named, rest))
    if not frames:
        return spark.createDataFrame([], spark_schema(parsed.columns))
    return reduce(lambda one, other: one.unionByName(other), frames)


def _of_files(spark: SparkSession, options: SourceOptions, files: FileRange) -> DataFrame:
    from pyspark.sql import functions as f

    rows = spark.read.schema(_FILE_SCHEMA).parquet(*files.paths)
    if not files.is_exact:
        wanted = [
            f"(partition = {partition} and offset >= {start} and offset < {end})"
            for partition, (start, end) in sorted(files.bounds.items())
        ]
        rows = rows.where(" or ".join(wanted))
    columns = {
        "topic": f.nullif(f.lit(files.topic), f.lit("")),  # which may be null, as in the source's schema
        "timestampType": f.col("timestamp_type"),
        "headers": f.when(f.size("headers") > 0, f.col("headers")),
    }
    return rows.select(*(columns.get(name, f.col(name)).alias(name) for name in options.columns))


def _of_ranges(spark: SparkSession, named: Mapping[str, str], ranges: Iterable[OffsetRange]) -> DataFrame:
    """The offsets that no table has: for each partition they are one range, however many tasks read it."""
    start: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for each in ranges:
        topic, index = each.partition.topic, str(each.partition.partition)
        begins, ends = start.setdefault(topic, {}), end.setdefault(topic, {})
        begins[index] = min(begins.get(index, each.start), each.start)
        ends[index] = max(ends.get(index, each.end), each.end)
    kept = {
        name: value
        for name, value in named.items()
        if name not in _PLANNED and not name.startswith(("starting", "ending", "table.catalog."))
    }
    has_store = any(name.startswith("rsm.config.") for name in named)
    return (
        spark.read.format("ottla")
        .options(**kept)
        .option("kafka.isolation.level", "read_committed")
        .option("readFrom", "tier" if has_store else "brokers")
        .option("assign", json.dumps({topic: sorted(map(int, offsets)) for topic, offsets in start.items()}))
        .option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
        .load()
    )
