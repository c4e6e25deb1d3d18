"""Completed fetches as columns, with their topic and partition.

All functions here may run outside the event loop: they read fetches and change none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import pyarrow as pa

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.arrow import arrow_schema as record_schema
from ottla.records.arrow import repeated

_SOURCE = {
    "topic": pa.field("topic", pa.string(), nullable=False),
    "partition": pa.field("partition", pa.int32(), nullable=False),
}


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of a table with these columns, in their order."""
    inner = record_schema([name for name in columns if name not in _SOURCE])
    return pa.schema([_SOURCE[name] if name in _SOURCE else inner.field(name) for name in columns])


def decode_fetches(
    fetches: Iterable[tuple[CompletedFetch, int]], columns: Sequence[str]
) -> tuple[list[pa.RecordBatch], KafkaError | None]:
    """Decode each fetch, from the position given with it, to one batch; stop at the first that cannot be
    decoded, and return its error.
    """
    schema = arrow_schema(tuple(columns))
    inner = [name for name in columns if name not in _SOURCE]
    batches: list[pa.RecordBatch] = []
    for fetch, position in fetches:
        try:
            batch = fetch.decode_arrow(inner, position)
        except KafkaError as error:
            return batches, error
        batches.append(_with_source(batch, fetch.state.partition, schema))
    return batches, None


def _with_source(batch: pa.RecordBatch, partition: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    values = {"topic": partition.topic, "partition": partition.partition}
    arrays = [
        repeated(values[field.name], field.type, batch.num_rows)
        if field.name in values
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
