"""Observe the steps of an exactly-once write.

The task and the driver call a listener at each step whose order matters. The default does nothing. Events of
the task are plain calls in the task's thread; events of the driver are coroutines on the sink's event loop.
The listener is pickled with the writer, so a subclass must be importable or picklable by value in Spark's
Python workers; `OttlaDataSource.sink_listener` returns the one to use.
"""

from __future__ import annotations

from ottla.spark.sink.decision_state import TaskTransaction


class SinkListener:
    """Does nothing; override what is of interest."""

    # In a task.

    def on_transaction_opened(self) -> None:
        """The task has a transaction, or has found its batch committed already."""

    def on_rows_sent(self) -> None:
        """All rows are handed to the producer; it is flushed next."""

    def on_transaction_prepared(self) -> None:
        """The transaction is flushed; its end is left to the driver."""

    # In the driver.

    async def on_commit_started(self) -> None:
        """All transactions of the batch are open; the decision is written next."""

    async def on_batch_decided(self) -> None:
        """The decision is in the log and valid; no transaction of it is committed yet."""

    async def on_transaction_committing(self, transaction: TaskTransaction) -> None:
        """The transaction is committed next. Transactions of a batch are committed concurrently."""

    async def on_transaction_committed(self, transaction: TaskTransaction) -> None:
        """The coordinator has answered the commit of this transaction."""

    async def on_batch_committed(self) -> None:
        """All transactions of the batch are committed; the driver cleans up next."""
