"""Listen to the streaming queries and the batch writes of a run, in any session of the process.

Queries of a pipeline run in a session of Spark Connect's server that no Python object of ours holds. Their
events still pass over the one listener bus of the Spark context, so a listener there sees them. It is called
for every event of every kind, and ignores all others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ottla.spark.pipelines.progress import PipelineProgress

log = logging.getLogger(__name__)

_EVENTS: Final = "org.apache.spark.sql.streaming.StreamingQueryListener$"
_EXECUTION_END: Final = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd"
_WRITE_OF_A_VIEW: Final = "InsertIntoHadoopFsRelationCommand"
_INTERFACE: Final = "org.apache.spark.scheduler.SparkListenerInterface"


class _QueryListener:
    """Implements `SparkListenerInterface`: all methods exist, and only `onOtherEvent` does something."""

    def __init__(self, progress: PipelineProgress, as_java: Callable[[Any], Any]) -> None:
        self._progress = progress
        self._as_java = as_java
        self._names: dict[str, str] = {}
        self.is_over = False

    def onOtherEvent(self, event: Any) -> None:
        if self.is_over:
            return
        try:
            kind = event.getClass().getName()
            if kind.startswith(_EVENTS):
                self._query_event(kind.removeprefix(_EVENTS), event)
            elif kind == _EXECUTION_END and (execution := event.qe()) is not None:
                self._on_execution_end(execution)
        except Exception:  # Spark removes a listener that raises
            log.debug("an event of a query could not be read", exc_info=True)

    def _on_execution_end(self, execution: Any) -> None:
        """Take what was counted in the rows of a materialized view. Its flow has the name of its table."""
        written = execution.logical()
        if written.getClass().getSimpleName() != _WRITE_OF_A_VIEW or written.catalogTable().isEmpty():
            return
        found = {name: json.loads(row.json()) for name, row in self._counts(execution).items()}
        if found:
            self._progress.on_view_counts(written.catalogTable().get().identifier().unquotedString(), found)

    def _counts(self, execution: Any) -> dict[str, Any]:
        return dict(self._as_java(execution.observedMetrics()))

    def _query_event(self, kind: str, event: Any) -> None:
        if kind == "QueryStartedEvent":
            if name := event.name():
                self._names[str(event.runId())] = name
                self._progress.on_query_started(name)
        elif kind == "QueryProgressEvent":
            self._progress.on_query_progress(event.progress().json())
        elif kind == "QueryTerminatedEvent":
            name = self._names.pop(str(event.runId()), None)
            if name is not None:
                error = event.exception()
                self._progress.on_query_ended(name, error.get() if error.isDefined() else None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on"):
            return _ignore
        raise AttributeError(name)

    class Java:
        implements: Final = [_INTERFACE]


def _ignore(*_: Any) -> None:
    """Do nothing."""


@contextmanager
def listen_to_queries(context: Any, progress: PipelineProgress) -> Iterator[None]:
    """Keep `progress` up to date during the block. `context` is the Spark context of this process."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    listener = _QueryListener(progress, context._jvm.scala.jdk.javaapi.CollectionConverters.asJava)
    context._jsc.sc().addSparkListener(listener)
    try:
        yield
        # Events from before the end of the run may still be queued.
        context._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        # Java may see another proxy of it here than the one that was added, and keep that.
        listener.is_over = True
        context._jsc.sc().removeSparkListener(listener)
