"""Changes of a database as Debezium writes them to topics, for `create_auto_cdc_flow`.

    from ottla.spark.debezium import debezium_changes

    @dp.temporary_view
    def customer_changes() -> DataFrame:
        topic = spark.readStream.format("ottla").option("subscribe", "db.public.customers")...load()
        return debezium_changes(topic, "id long, name string")

    dp.create_streaming_table("customers")
    dp.create_auto_cdc_flow(
        target="customers", source="customer_changes", keys=["id"], sequence_by=SEQUENCE_BY,
        apply_as_deletes=APPLY_AS_DELETES, except_column_list=METADATA_COLUMNS,
    )

The envelopes are JSON, with or without their schema (`value.converter.schemas.enable`), or typed: Avro, or
any format that the source reads, whose columns its schema has. Tombstones, which follow deletes for the
log cleaner, and messages that are no changes of rows are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METADATA_COLUMNS: Final = ["change_op", "change_time_ms", "change_offset"]
SEQUENCE_BY: Final = "change_offset"
"""The offset: all changes of a row have one key, and so are in one partition, in their order."""
APPLY_AS_DELETES: Final = "change_op = 'd'"
_OPERATIONS: Final = ("c", "u", "d", "r")


def debezium_changes(records: DataFrame, columns: str | None = None) -> DataFrame:
    """The rows of a table in the database, one for each change, with `change_op` (`c`, `u`, `d`, or `r` of a
    snapshot), `change_time_ms` and `change_offset`. `columns` are those of the table, as `id long, name
    string`; of a row that was deleted only its key may be known. Records of a stream with `valueFormat` have
    their columns. `records` needs `value` and `offset`.
    """
    from pyspark.sql import functions as F

    if columns is None:
        return _rows(records.select(F.col("value").alias("change"), F.col("offset")))
    envelope = f"op string, ts_ms long, before struct<{_struct(columns)}>, after struct<{_struct(columns)}>"
    text = F.col("value").cast("string")
    bare, wrapped = F.from_json(text, envelope), F.from_json(text, f"payload struct<{_struct(envelope)}>")
    change = F.coalesce(wrapped.getField("payload"), bare)
    return _rows(records.select(change.alias("change"), F.col("offset")))


def _rows(changes: DataFrame) -> DataFrame:
    """The rows of envelopes in a column `change`."""
    from pyspark.sql import functions as F

    row = F.when(F.col("change.op") == "d", F.col("change.before")).otherwise(F.col("change.after"))
    return (
        changes.where(F.col("change.op").isin(*_OPERATIONS))
        .select(
            row.alias("row"),
            F.col("change.op").alias("change_op"),
            F.col("change.ts_ms").alias("change_time_ms"),
            F.col("offset").alias("change_offset"),
        )
        .where("row is not null")
        .select("row.*", *METADATA_COLUMNS)
    )


def _struct(columns: str) -> str:
    """Columns as the fields of a struct: `id: long, name: string`.

    >>> _struct("id long, a struct<x: int, y: int>, b decimal(10, 2)")
    'id: long, a: struct<x: int, y: int>, b: decimal(10, 2)'
    """
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(columns):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append(columns[start:at])
            start = at + 1
    parts.append(columns[start:])
    fields = (part.strip().partition(" ") for part in parts if part.strip())
    return ", ".join(f"{name.rstrip(':')}: {kind.strip()}" for name, _, kind in fields)
