"""Whole topics as Arrow tables, and tables as records: what notebooks and scripts do in one call each.

A topic is read to the ends that its partitions have when the call begins. Counting rows would not do:
markers of transactions and compacted records have offsets, and no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ottla.client.admin.offsets import FoundOffset
from ottla.client.consumer import ARROW_COLUMNS, Consumer
from ottla.client.consumer.consumer import Partition
from ottla.client.producer import Producer
from ottla.client.settings import Servers
from ottla.protocol.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


TOPIC_WAIT_MS = 5_000
Offsets = int | Mapping[int, int]
"""An offset for all partitions, or for some by their numbers."""
Time = datetime | int
"""A time, or milliseconds since 1970; without a time zone it is local, as `datetime` has it."""


async def read_topic(
    bootstrap_servers: Servers,
    topic: str,
    *,
    partitions: Iterable[int] | None = None,
    start_offsets: Offsets | None = None,
    end_offsets: Offsets | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    columns: Sequence[str] = ARROW_COLUMNS,
    **settings: Any,
) -> pa.Table:
    """Read a topic to its end, as the end is when the call begins, and return one table with the columns of
    Spark's Kafka source; records of a partition are in their order.

    Ranges end before `end_offsets` and `end_time`. A time means the first record at or after it, as
    everywhere in Kafka. `settings` are those of a consumer: with `isolation_level="read_committed"` the end
    is that of completed transactions, and aborted records are left out. All rows are in memory at once;
    `Consumer.read_arrow` yields them in parts.
    """
    if start_offsets is not None and start_time is not None:
        raise ValueError("start_offsets and start_time exclude each other")
    if end_offsets is not None and end_time is not None:
        raise ValueError("end_offsets and end_time exclude each other")
    import_pyarrow("read_topic")
    import pyarrow as pa

    from ottla.client.consumer.arrow import arrow_schema

    schema = arrow_schema(tuple(columns))
    settings = {"auto_offset_reset": "earliest", "allow_auto_create_topics": False, **settings}
    async with Consumer[bytes, bytes](bootstrap_servers, **settings) as consumer:
        # A topic that was just created may not be known yet; one that is misspelt never is.
        wanted = await consumer.partitions_for(topic, timeout_ms=TOPIC_WAIT_MS)
        if partitions is not None:
            wanted = _chosen(topic, wanted, partitions)
        last = await consumer.end_offsets(wanted)
        first = await consumer.beginning_offsets(wanted)
        starts = await _positions(consumer, start_offsets, start_time, missing=first, at_a_late_time=last)
        ends = await _positions(consumer, end_offsets, end_time, missing=last, at_a_late_time=last)
        consumer.assign(wanted)
        until: dict[Partition, int] = {}
        for partition in wanted:
            start, end = max(starts[partition], first[partition]), min(ends[partition], last[partition])
            if start < end:
                consumer.seek(partition, start)
                until[partition] = end
        if not until:
            return schema.empty_table()
        tables = [table async for table in consumer.read_arrow(until, columns=columns)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


async def write_topic(bootstrap_servers: Servers, topic: str, data: Any, **settings: Any) -> int:
    """Send the rows of a table to a topic, wait until the brokers have them, and return how many.

    `data` is a table or batch of Arrow, a DataFrame of pandas or Polars, a relation of DuckDB, or what else
    has Arrow's C interface; its columns are those of `Producer.send_arrow`. `settings` are those of a
    producer (`acks` is `all`); with a `transactional_id` all rows become visible together or not at all. The
    first error is raised after all batches were tried, with a note that says how many rows were delivered.
    """
    table = as_table(data)
    async with Producer(bootstrap_servers, **settings) as producer:
        if producer.config.transactional_id is None:
            sent = await producer.send_arrow(topic, table)
        else:
            async with producer.transaction():
                sent = await producer.send_arrow(topic, table)
    return sum(batch.rows for batch in sent)


def import_pyarrow(caller: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{caller} needs pyarrow: pip install "ottla[arrow]"') from error


def as_table(data: Any) -> pa.Table:
    """Return rows as a table of Arrow, without a copy where the other side has Arrow's memory too."""
    import_pyarrow("write_topic")
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise TypeError(f"rows to send are a table of Arrow, pandas, Polars or DuckDB, not {type(data).__name__}")


def _chosen(topic: str, existing: list[TopicPartition], numbers: Iterable[int]) -> list[TopicPartition]:
    wanted = [TopicPartition(topic, number) for number in dict.fromkeys(numbers)]
    unknown = [partition.partition for partition in wanted if partition not in existing]
    if unknown:
        raise ValueError(
            f"topic {topic!r} has {len(existing)} partitions, and none of the number {unknown[0]}"
        )
    return wanted


async def _positions(
    consumer: Consumer[bytes, bytes],
    offsets: Offsets | None,
    time: Time | None,
    *,
    missing: Mapping[TopicPartition, int],
    at_a_late_time: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return an offset for each partition of `missing`, which has it where nothing else is given."""
    if time is not None:
        milliseconds = int(time.timestamp() * 1000) if isinstance(time, datetime) else time
        found: Mapping[TopicPartition, FoundOffset | None] = await consumer.offsets_for_times(
            dict.fromkeys(missing, milliseconds)
        )
        return {
            partition: at_a_late_time[partition] if at is None else at.offset
            for partition, at in found.items()
        }
    if isinstance(offsets, Mapping):
        numbers = {partition.partition for partition in missing}
        if unknown := [number for number in offsets if number not in numbers]:
            raise ValueError(f"offsets are given for partition {unknown[0]}, which is not read")
        return {partition: offsets.get(partition.partition, offset) for partition, offset in missing.items()}
    return dict(missing) if offsets is None else dict.fromkeys(missing, offsets)
