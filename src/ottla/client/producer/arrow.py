"""Rows of Arrow tables to record batches: partitioned and encoded by columns, without a Python object for
each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.client.producer.partitioner import RecordRouter, TopicRoute
from ottla.records.arrow import encode_rows, partitions_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.records._kernel import Encoder


RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
_IGNORED = frozenset({"topic", "offset", "timestampType"})


def encoders_of(
    data: pa.Table | pa.RecordBatch, route: TopicRoute, router: RecordRouter, *, now_ms: int, batch_bytes: int
) -> Iterator[tuple[int, Encoder]]:
    """Yield (partition, encoded records of one batch) for all rows; rows of one partition keep their order.

    A `partition` column chooses the partition of a row; where it is null or missing, the key does, and rows
    without either go to one partition after the other, one batch each.
    """
    import pyarrow as pa

    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    unknown = set(table.column_names).difference(RECORD_COLUMNS, _IGNORED, {"partition"})
    if unknown:
        raise ValueError(
            f"columns {sorted(unknown)} cannot be sent; those that can are "
            "key, value, headers, timestamp and partition"
        )
    for batch in table.to_batches():
        if batch.num_rows:
            yield from _of_batch(batch, route, router, now_ms, batch_bytes)


def _of_batch(
    batch: pa.RecordBatch, route: TopicRoute, router: RecordRouter, now_ms: int, batch_bytes: int
) -> Iterator[tuple[int, Encoder]]:
    import pyarrow.compute as pc

    places = _places(batch, route)
    records = _without_views(batch.select([name for name in RECORD_COLUMNS if name in batch.schema.names]))
    if places is None or places.null_count == batch.num_rows:
        for encoder in encode_rows(records, default_timestamp=now_ms, max_batch_bytes=batch_bytes):
            yield router.sticky(route, encoder.size), encoder
        return
    if route.count == 1 and not places.null_count:
        for encoder in encode_rows(records, default_timestamp=now_ms, max_batch_bytes=batch_bytes):
            yield 0, encoder
        return
    # Sorted by partition, each partition's rows are one slice; the sort is stable.
    order = pc.array_sort_indices(places)
    places, records = places.take(order), records.take(order)
    counts = pc.value_counts(places.drop_null())
    at = 0
    for entry in counts:
        partition, count = entry["values"].as_py(), entry["counts"].as_py()
        rows = records.slice(at, count)
        at += count
        for encoder in encode_rows(rows, default_timestamp=now_ms, max_batch_bytes=batch_bytes):
            yield partition, encoder
    rest = records.slice(at)
    if rest.num_rows:
        for encoder in encode_rows(rest, default_timestamp=now_ms, max_batch_bytes=batch_bytes):
            yield router.sticky(route, encoder.size), encoder


def _without_views(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return bytes and texts in the layout that rows can be sorted in; Polars has another one."""
    import pyarrow as pa

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
            return pa.large_binary()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(plain(kind.value_type))
        if pa.types.is_struct(kind):
            return pa.struct(
                [(kind.field(n).name, plain(kind.field(n).type)) for n in range(kind.num_fields)]
            )
        return kind

    wanted = pa.schema([(field.name, plain(field.type)) for field in records.schema])
    return records if wanted.types == records.schema.types else records.cast(wanted)


def _places(batch: pa.RecordBatch, route: TopicRoute) -> pa.Array | None:
    """Return the partition of each row, null where any will do; None where any will do for all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen: pa.Array | None = None
    names = batch.schema.names
    if "key" in names and not pa.types.is_null(batch.schema.field("key").type):
        chosen = partitions_of(batch.column("key"), route.count)
    if "partition" in names:
        explicit = batch.column("partition").cast(pa.int32())
        if explicit.null_count < len(explicit):
            lowest, highest = pc.min_max(explicit).values()
            RecordRouter.check_partition(route, lowest.as_py())
            RecordRouter.check_partition(route, highest.as_py())
        chosen = explicit if chosen is None else pc.coalesce(explicit, chosen)
    return chosen
