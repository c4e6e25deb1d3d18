"""The sink's two phases without Spark: tasks and drivers as plain calls, so that each can be left out,
repeated or come too late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from ottla.client.blocking import Admin, Consumer
from ottla.spark.sink.client import SinkClient, sink_client
from ottla.spark.sink.commit_coordinator import CommitCoordinator
from ottla.spark.sink.commit_messages import TaskCommitMessage
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.options import SinkOptions, sink_options
from ottla.spark.sink.task_writer import TaskIdentity, write_transaction
from tests.support.waiting import wait_until

MARKER_SECONDS = 120


class Query:
    """A streaming query: the calls that Spark would make."""

    def __init__(self, bootstrap: str, topic: str, *, name: str, **options: str) -> None:
        self.options: SinkOptions = sink_options(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                **{key.replace("__", "."): value for key, value in options.items()},
            }
        )
        self.scope = f"{self.options.prefix}-{name}"

    @property
    def client(self) -> SinkClient:
        return sink_client(self.options)

    @property
    def coordinator(self) -> CommitCoordinator:
        return CommitCoordinator(self.client, SinkListener())

    def task(
        self, run: str, batch: int, partition: int, values: Iterable[str], *, attempt: int = 0
    ) -> TaskCommitMessage:
        identity = TaskIdentity(self.scope, run, partition, attempt, batch)
        rows = pa.record_batch({"value": pa.array(list(values), pa.string())})
        return write_transaction(self.options, ("value",), identity, [rows], SinkListener())

    def commit(self, messages: Sequence[TaskCommitMessage | None], batch: int) -> None:
        self.client.call(self.coordinator.commit(messages, batch, streaming=True))

    def abort(self, messages: Sequence[TaskCommitMessage | None], batch: int) -> None:
        self.client.call(self.coordinator.abort(messages, batch))

    def batch(self, run: str, batch: int, parts: Sequence[Sequence[str]]) -> list[TaskCommitMessage]:
        """Run all tasks of a batch and commit it."""
        messages = [self.task(run, batch, index, values) for index, values in enumerate(parts)]
        self.commit(messages, batch)
        return messages

    def write_task(
        self, run: str, partition: int, values: Iterable[str], *, attempt: int = 0
    ) -> TaskCommitMessage:
        """Run a task of a batch write, in its own scope."""
        identity = TaskIdentity(f"{self.scope}-{run}", run, partition, attempt)
        rows = pa.record_batch({"value": pa.array(list(values), pa.string())})
        return write_transaction(self.options, ("value",), identity, [rows], SinkListener())

    def commit_write(self, messages: Sequence[TaskCommitMessage | None]) -> None:
        self.client.call(self.coordinator.commit(messages, 0, streaming=False))

    def abort_batch_write(self, run: str) -> None:
        """Abort as Spark does when no task has ended."""
        self.client.call(self.coordinator.abort_batch_write(f"{self.scope}-{run}", run))

    def write_batch(self, parts: Sequence[Sequence[str]], *, run: str) -> None:
        """Run a batch write and commit it."""
        self.commit_write([self.write_task(run, index, values) for index, values in enumerate(parts)])

    def open_transactions(self, run: str = "") -> list[str]:
        """The open transactions of the query, or of one of its batch writes."""
        scope = f"{self.scope}-{run}" if run else self.scope
        return sorted(
            each.id for each in self.client.call(self.client.transactions.find_ongoing_in_scope(scope))
        )


def await_markers(bootstrap: str | dict[str, str], topic: str) -> None:
    """Wait until the partitions of `topic` have the markers, which are written after the commit's answer."""
    with Admin(bootstrap) as admin:
        wait_until(
            lambda: not [each for each in _ending(admin) if _concerns(admin, each, topic)],
            f"{topic} still waits for the ends of transactions",
            MARKER_SECONDS,
        )


def _ending(admin: Admin) -> list[str]:
    found = admin.transactions.list(states=["PrepareCommit", "PrepareAbort"])
    return [each.transactional_id for each in found]


def _concerns(admin: Admin, transactional_id: str, topic: str) -> bool:
    """Whether a partition of the topic still misses its marker."""
    info = admin.transactions.describe(transactional_id)
    return info.state.startswith("Prepare") and any(each.topic == topic for each in info.partitions)


def committed_values(bootstrap: str, topic: str, partitions: int = 1) -> Counter[bytes]:
    """The number of committed records with each value, up to the last stable offset."""
    await_markers(bootstrap, topic)
    found: Counter[bytes] = Counter()
    consumer: Consumer[bytes, bytes]
    with Consumer(bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        every = [(topic, partition) for partition in range(partitions)]
        consumer.assign(every)
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records: list[Any] = consumer.poll(timeout_ms=200)
            found.update(record.value or b"" for record in records)
    return found
