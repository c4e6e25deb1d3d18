"""Acquired records as columns, with their topic, partition and number of deliveries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from ottla.client.consumer.arrow import arrow_schema as consumer_schema
from ottla.client.share.share_completed_fetch import ShareCompletedFetch
from ottla.records.arrow import repeated

_DELIVERY_COUNT = pa.field("deliveryCount", pa.int16(), nullable=False)
_SOURCE = ("topic", "partition", "deliveryCount")


@lru_cache(maxsize=64)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of a table with these columns, in their order."""
    others = consumer_schema(tuple(name for name in columns if name != _DELIVERY_COUNT.name))
    return pa.schema(
        [_DELIVERY_COUNT if name == _DELIVERY_COUNT.name else others.field(name) for name in columns]
    )


def decode_fetch(
    fetch: ShareCompletedFetch, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, tuple[tuple[int, int], ...]]]:
    """Yield the rows of each acquired range, and the ranges of their offsets."""
    schema = arrow_schema(tuple(columns))
    for rows in fetch.decode_arrow([name for name in columns if name not in _SOURCE]):
        values = {
            "topic": fetch.partition.topic,
            "partition": fetch.partition.partition,
            "deliveryCount": rows.delivery_count,
        }
        arrays = [
            repeated(values[field.name], field.type, rows.batch.num_rows)
            if field.name in values
            else rows.batch.column(field.name)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema), rows.offsets
