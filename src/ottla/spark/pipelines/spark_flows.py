"""The flows of a pipeline inside Spark's JVM: their graph, and the queries that run them.

Spark's declarative pipelines run every stream until it has read what exists, and have no mode in which a
stream goes on. The parts are there, though: the graph that a run has resolved, and the planner that makes a
query of a flow, with the trigger as a parameter. Here both are used through the gateway of this process. So a
query that goes on has the same plan, the same checkpoint, the same table or sink and the same settings as
one of a run, and either continues where the other has stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipelines.flow_graph import FlowKind, FlowNode
from ottla.spark.pipelines.progress import PipelineProgress, readable_error, short_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_PACKAGE: Final = "org.apache.spark.sql.pipelines.graph"
_VIEWS: Final = "CompleteFlow"
_ONCE: Final = "AppendOnceFlow"
_INSIDE: Final = ("LocalRelation", "OneRowRelation", "Range", "CTERelationRef")
_STREAM: Final = "StreamingRelationV2"
_RUN_FAILED: Final = "Pipeline execution failed"
_POLL_SECONDS: Final = 0.05


class FlowNotSupported(Exception):
    """A flow, or a version of Spark, that has no query which goes on."""


class _Function:
    """Implements `scala.Function1` with a function of Python."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def apply(self, argument: Any) -> Any:
        return self._function(argument)

    class Java:
        implements: Final = ["scala.Function1"]


class SparkFlows:
    """The flows of the last run of a graph, or of one that was checked only. Use it from one thread.

    Raises FlowNotSupported if the run did not come to its flows.
    """

    def __init__(self, spark: Any, context: Any, graph: str, *, dry: bool = False) -> None:
        from py4j.protocol import Py4JError
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
        self._jvm = context._jvm
        self._as_java = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self._as_scala = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala
        try:
            service = self._object("org.apache.spark.sql.connect.service.SparkConnectService")
            user = spark.client._user_id or ""
            self._holder = service.getOrCreateIsolatedSession(user, spark.session_id)
            run = self._holder.getPipelineExecution(graph)
            self._run = run.get() if run.isDefined() else None
            self._graph = self._checked(graph) if dry else self._executed()
            self._flows = {
                short_name(flow.identifier().unquotedString()): flow
                for flow in self._as_java(self._graph.flows())
            }
            self._nodes = self._read_nodes()
        except (Py4JError, TypeError, AttributeError) as error:
            raise FlowNotSupported(f"this version of Spark has other internals ({error})") from None
        self._queries: dict[str, Any] = {}

    def _object(self, name: str) -> Any:
        """An object of Scala."""
        return getattr(getattr(self._jvm, f"{name}$"), "MODULE$")

    def _executed(self) -> Any:
        execution = None if self._run is None else self._run.pipelineExecution().graphExecution()
        if execution is None or not execution.isDefined():
            raise FlowNotSupported("the run has started no flow")
        return execution.get().graphForExecution()

    def _checked(self, graph: str) -> Any:
        registered = self._holder.dataflowGraphRegistry().getDataflowGraphOrThrow(graph)
        return self._in_session(lambda: registered.toDataflowGraph().resolve(False))

    def _in_session(self, work: Callable[[], Any]) -> Any:
        """Do something in the session of the graph: its settings, its functions and its current catalog."""
        outcome: list[Any] = []
        errors: list[BaseException] = []

        def apply(_: Any) -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # it would become a string on its way through Java
                errors.append(error)

        self._holder.withSession(_Function(apply))
        if errors:
            raise errors[0]
        return outcome[0]

    # The graph.

    def nodes(self) -> list[FlowNode]:
        """The flows as plain data."""
        return self._nodes

    def schema(self, name: str) -> StructType:
        """The columns of a flow."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self._flows[name].df().schema().json()))

    def _read_nodes(self) -> list[FlowNode]:
        temporary, sinks = self._names(self._graph.views()), self._names(self._graph.sinks())
        return [self._node(name, flow, temporary, sinks) for name, flow in self._flows.items()]

    def _names(self, elements: Any) -> set[str]:
        return {short_name(each.identifier().unquotedString()) for each in self._as_java(elements)}

    def _node(self, name: str, flow: Any, temporary: set[str], sinks: set[str]) -> FlowNode:
        target = short_name(flow.destinationIdentifier().unquotedString())
        kind = flow.getClass().getSimpleName()
        origin = flow.origin()
        file = origin.filePath().get() if origin.filePath().isDefined() else None
        line = int(origin.line().get()) if origin.line().isDefined() else None
        return FlowNode(
            name=name,
            target=target,
            inputs=tuple(sorted(short_name(each.unquotedString()) for each in self._as_java(flow.inputs()))),
            kind=FlowKind.TEMPORARY_VIEW
            if target in temporary
            else {_VIEWS: FlowKind.VIEW, _ONCE: FlowKind.ONCE}.get(kind, FlowKind.STREAM),
            into_topic=target in sinks,
            reads_outside=self._reads_outside(flow),
            file=file,
            line=line,
        )

    def _reads_outside(self, flow: Any) -> bool:
        """Whether it reads more than other flows: in a resolved graph those are local or in memory."""
        if self._as_java(flow.funcResult().usedExternalInputs()):
            return True
        leaves = self._as_java(flow.df().queryExecution().analyzed().collectLeaves())
        return not all(self._is_inside(leaf) for leaf in leaves)

    def _is_inside(self, leaf: Any) -> bool:
        kind = leaf.getClass().getSimpleName()
        return kind in _INSIDE or (kind == _STREAM and leaf.sourceName() == "memory")

    # Queries that go on.

    def start(self, name: str, trigger_ms: int) -> None:
        """Start the query of a flow. Raises FlowNotSupported, or RuntimeError with Spark's reason."""
        from py4j.protocol import Py4JError, Py4JJavaError

        trigger = getattr(self._jvm, "org.apache.spark.sql.streaming.Trigger").ProcessingTime(trigger_ms)

        def begin() -> Any:
            planner = getattr(self._jvm, f"{_PACKAGE}.FlowPlanner")(
                self._graph, self._run, _Function(lambda _: trigger)
            )
            execution = planner.plan(self._flows[name])
            if not execution.isStreaming():
                raise FlowNotSupported(f"flow {name} is not a stream")
            execution.executeAsync()
            return execution.getStreamingQuery()

        if self._run is None:
            raise FlowNotSupported("there was no run before")
        try:
            self._queries[name] = self._in_session(begin)
        except Py4JJavaError as error:
            said = self._readable(error.java_exception)
            if "UnsupportedOperationException" in error.java_exception.toString():
                raise FlowNotSupported(said) from None
            raise RuntimeError(said) from None
        except (Py4JError, TypeError) as error:
            raise FlowNotSupported(f"this version of Spark has other internals ({error})") from None

    def error(self, name: str) -> str | None:
        """Why the query of a flow has ended; None while it runs."""
        query = self._queries[name]
        if query.isActive():
            return None
        error = query.exception()
        if not error.isDefined():
            return "its query has ended"
        return self._readable(error.get().getCause() or error.get())

    def _readable(self, error: Any) -> str:
        """The part of a Java exception that users need; a traceback of Python is in one of its causes."""
        return readable_error(self._jvm.org.apache.spark.util.Utils.exceptionString(error))

    def stop(self, names: Iterable[str], patience_s: float) -> None:
        """Stop queries; what they are in the middle of may complete, for a while."""
        queries = [(name, self._queries.pop(name)) for name in list(names) if name in self._queries]
        deadline = monotonic() + patience_s
        for _, query in queries:
            with suppress(Exception):  # the JVM may be gone
                while query.isActive() and query.status().isTriggerActive() and monotonic() < deadline:
                    sleep(_POLL_SECONDS)
                query.stop()

    # Views.

    def refresh(
        self, tables: Iterable[str], progress: PipelineProgress, on_started: Callable[[], None]
    ) -> str | None:
        """Run the flows of some tables once, as a run that was asked for just these does. Returns why the run
        as a whole has failed, if it has; what the flows did is in `progress`.
        """
        failures: list[str] = []
        wanted = set(tables)
        chosen = self._jvm.java.util.HashSet()
        for table in self._as_java(self._graph.tables()):
            if short_name(table.identifier().unquotedString()) in wanted:
                chosen.add(table.identifier())
        some = getattr(self._jvm, f"{_PACKAGE}.SomeTables")(self._as_scala(chosen).toSet())
        none = self._object(f"{_PACKAGE}.NoTables")
        before: Any = self._run

        def on_event(event: Any) -> None:
            message = event.message()
            if " is STARTING" in message or " is RUNNING" in message:
                on_started()
            reason = self._reason(event)
            progress.on_message(message + reason)
            if _RUN_FAILED in message:
                failures.append(readable_error(reason) or message)

        def run() -> None:
            update = getattr(self._jvm, f"{_PACKAGE}.PipelineUpdateContextImpl")(
                before.unresolvedGraph(), _Function(on_event), some, none, before.storageRoot()
            )
            update.pipelineExecution().runPipeline()

        self._in_session(run)
        return failures[0] if failures else None

    def _reason(self, event: Any) -> str:
        if not event.error().isDefined():
            return ""
        causes = self._as_java(event.error().get().exceptions())
        return "".join(f"\n{cause.message()}" for cause in causes)
