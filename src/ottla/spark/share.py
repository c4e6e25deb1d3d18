"""Records of a share group, worked on by tasks of Spark.

A source of Spark cannot acknowledge records soundly: it never learns whether the rows that it gave were
written (docs/spark/source.md). Here a task does all of it: it is a member of the group, gives what it gets to
a function, and acknowledges that when the function returns. No rows leave the task, so a task may be repeated
at any time: what an attempt has acknowledged is done, and all else is delivered again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ottla.client.blocking import Admin


log = logging.getLogger(__name__)

_SCHEMA: Final = "accepted long"
_POLL_MS: Final = 500.0
_ASSIGNMENT_MS: Final = 60_000.0


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
    accepted `max_records`. A function that raises releases its table and fails its task. A topic that does
    not exist raises UNKNOWN_TOPIC_OR_PARTITION. A new group begins at the end of its topics, unless its
    setting `share.auto.offset.reset` says otherwise.
    """
    if tasks < 1:
        raise ValueError(f"tasks={tasks} must be at least 1")
    settings = {
        **options,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "allow.auto.create.topics": False,
    }
    topics = [topic] if isinstance(topic, str) else list(topic)
    with _open_admin(options) as admin:
        _check_topics(admin, topics)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            accepted = [
                _work(settings, topics, function, idle_ms, max_records) for _ in range(batch.num_rows)
            ]
            yield pa.RecordBatch.from_pydict({"accepted": accepted})

    found = spark.range(0, tasks, 1, tasks).mapInArrow(work, _SCHEMA).collect()
    accepted = [row["accepted"] for row in found]
    if not any(accepted):
        with _open_admin(options) as admin:
            _log_beginning(admin, group, topics)
    return accepted


def _open_admin(options: Mapping[str, Any]) -> Admin:
    """An admin client with those of the settings of a share consumer that it has too."""
    from ottla.client.admin import AdminConfig
    from ottla.client.blocking import Admin
    from ottla.client.settings import is_about_security

    known = AdminConfig.__dataclass_fields__
    return Admin(
        {
            name: value
            for name, value in options.items()
            if name.replace(".", "_") in known or is_about_security(name)
        }
    )


def _check_topics(admin: Admin, topics: Sequence[str]) -> None:
    """Raise for a topic that does not exist: a mistyped name is not an empty queue."""
    from ottla.protocol.errors import ErrorCode, KafkaError

    for name in topics:
        try:
            admin.topics.describe(name)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise KafkaError(
                error.code, f"Topic {name!r} does not exist; `ottla topics create {name}` creates it."
            ) from None


def _log_beginning(admin: Admin, group: str, topics: Sequence[str]) -> None:
    """Log why a group may have got nothing: it has no offsets, and begins at the end of its topics."""
    from ottla.client.admin.configs import ResourceType
    from ottla.protocol.errors import KafkaError

    setting = "share.auto.offset.reset"
    try:
        reset = admin.configs.describe(ResourceType.GROUP, group, keys=[setting])[setting].value
    except (KafkaError, KeyError):
        reset = None  # the user may not see it
    if reset not in ("latest", None):
        return
    try:
        found = admin.groups.share_offsets(group)
    except KafkaError:
        return
    begun = {p.topic for p, at in found.items() if isinstance(at, KafkaError) or at.start_offset is not None}
    fresh = sorted(set(topics) - begun)
    if fresh:
        log.warning(
            "share group %s has accepted nothing, and has no offsets of %s: it begins at the end%s. To begin "
            "with the first record: `ottla configs alter --group %s --set %s=earliest`",
            group,
            ", ".join(fresh),
            "" if reset is not None else f", unless its setting {setting} says otherwise",
            group,
            setting,
        )


def _work(
    settings: Mapping[str, Any],
    topics: list[str],
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
        consumer.subscribe(topics)
        heard_ns, assigned = clock.monotonic_ns(), consumer.assignment()
        while max_records is None or accepted < max_records:
            table = consumer.poll_arrow(timeout_ms=min(_POLL_MS, idle_ms))
            if not table.num_rows:
                if consumer.assignment() != assigned:
                    heard_ns, assigned = clock.monotonic_ns(), consumer.assignment()
                # Without a partition yet, a member waits for its assignment.
                limit_ms = idle_ms if assigned else max(idle_ms, _ASSIGNMENT_MS)
                if clock.monotonic_ns() - heard_ns >= limit_ms * 1e6:
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
