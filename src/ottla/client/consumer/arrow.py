"""Decoded columns with the topic and the partition that they come from."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from ottla.client.view import TopicPartition
from ottla.records.arrow import arrow_schema as record_schema

__all__ = ["arrow_schema", "with_source"]

_SOURCE = {
    "topic": pa.field("topic", pa.string(), nullable=False),
    "partition": pa.field("partition", pa.int32(), nullable=False),
}


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of a table with these columns, in their order."""
    inner = record_schema([name for name in columns if name not in _SOURCE])
    return pa.schema([_SOURCE[name] if name in _SOURCE else inner.field(name) for name in columns])


def with_source(batch: pa.RecordBatch, partition: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    values = {"topic": partition.topic, "partition": partition.partition}
    arrays = [
        pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
        if field.name in values
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
