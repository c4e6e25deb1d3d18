"""Records of a share group, worked on by tasks of Spark.

A source of Spark cannot acknowledge records soundly: it never learns whether the rows that it gave were
written (docs/spark/source.md). Here a task does all of it: it is a member of the group, gives what it gets to
a function, and acknowledges that when the function returns. No rows leave the task, so a task may be repeated
at any time: what an attempt has acknowledged is done, and all else is delivered again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["foreach_shared"]

_SCHEMA: Final = "accepted long"
_POLL_MS: Final = 500.0


def foreach_shared(
    spark: SparkSession,
    function: Callable[[pa.Table], object],
    *,
    topic: str | list[str],
    group: str,
    options: Mapping[str, Any],
    tasks: int = 1,
    idle_ms: float = 10_000,
    max_records: int | None = None,
) -> list[int]:
    """Have `tasks` tasks call `function` with tables of records of a share group, and accept each table when
    the function returns: at least once. A table has the columns of `ShareConsumer.poll_arrow`. Returns how
    many records each task has accepted.

    `options` are settings of `ShareConsumer`. A task ends when nothing came for `idle_ms`, or when it has
    accepted `max_records`. A function that raises releases its table and fails its task.
    """
    if tasks < 1:
        raise ValueError(f"tasks={tasks} must be at least 1")
    settings = {**options, "group.id": group, "share.acknowledgement.mode": "explicit"}

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            accepted = [_work(settings, topic, function, idle_ms, max_records) for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_pydict({"accepted": accepted})

    found = spark.range(0, tasks, 1, tasks).mapInArrow(work, _SCHEMA).collect()
    return [row["accepted"] for row in found]


def _work(
    settings: Mapping[str, Any],
    topic: str | list[str],
    function: Callable[[pa.Table], object],
    idle_ms: float,
    max_records: int | None,
) -> int:
    """Be a member of the group until there is nothing to do; return how many records were accepted."""
    from ottla.client.blocking import ShareConsumer
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.share import AcknowledgeType
    from ottla.runtime.clock import SystemClock

    clock = SystemClock()
    accepted = 0
    with ShareConsumer[bytes, bytes](dict(settings)) as consumer:
        consumer.subscribe(topic)
        heard_ns = clock.monotonic_ns()
        while max_records is None or accepted < max_records:
            table = consumer.poll_arrow(timeout_ms=min(_POLL_MS, idle_ms))
            if not table.num_rows:
                if clock.monotonic_ns() - heard_ns >= idle_ms * 1e6:
                    break
                continue
            try:
                function(table)
            except BaseException:
                # The function's error is the one to raise, also where the locks have expired meanwhile.
                with contextlib.suppress(KafkaError):
                    consumer.acknowledge_arrow(table, AcknowledgeType.RELEASE)
                    consumer.commit()
                raise
            consumer.acknowledge_arrow(table)
            failed = [error for error in consumer.commit().values() if error is not None]
            if failed:
                raise failed[0]
            accepted += table.num_rows
            heard_ns = clock.monotonic_ns()
    return accepted
