"""What a continuous run decides, the forms of plans, pictures of graphs and rows of tables: without Spark."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet
import pytest

from ottla.cli import pipeline_run
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.pipeline_results import check_query, show_pipeline, show_table
from ottla.cli.pipeline_run import show_progress
from ottla.spark.expectations import dead_letter_column
from ottla.spark.pipelines import continuous, flow_graph, lazy_plans
from ottla.spark.pipelines.continuous import (
    MAX_DELAY_SECONDS,
    OUTSIDE_SECONDS,
    VIEW_SECONDS,
    ContinuousFlows,
    Triggers,
)
from ottla.spark.pipelines.flow_graph import FlowKind, FlowNode, load_graph, save_graph
from ottla.spark.pipelines.graph_picture import as_dot, as_mermaid, as_svg, as_text
from ottla.spark.pipelines.progress import FlowState, PipelineProgress, readable_error
from ottla.spark.pipelines.project import Project, ProjectError
from ottla.spark.pipelines.run_record import record_run
from ottla.spark.pipelines.runner import eager_hint
from ottla.spark.pipelines.spark_flows import FlowNotSupported
from ottla.spark.pipelines.table_files import read_rows

ORDERS = FlowNode("orders", "orders", (), FlowKind.STREAM, reads_outside=True, dead_letters=("letters",))
ADA = FlowNode("ada", "ada", ("orders",), FlowKind.TEMPORARY_VIEW)
LARGE = FlowNode("find_large", "large", ("orders",), FlowKind.STREAM, into_topic=True)
TURNOVER = FlowNode("turnover", "turnover", ("ada",), FlowKind.VIEW)
BEST = FlowNode("best", "best", ("turnover",), FlowKind.VIEW)
PRICED = FlowNode("priced", "priced", ("orders", "best"), FlowKind.STREAM)
ALL = (ORDERS, ADA, LARGE, TURNOVER, BEST, PRICED)


@pytest.mark.parametrize("module", [continuous, flow_graph, lazy_plans], ids=lambda m: m.__name__)
def test_examples_in_the_documentation_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


class Queries:
    """Streams that run until the test lets them fail."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.starts: list[str] = []
        self.errors: dict[str, str] = {}
        self.refused: dict[str, Exception] = {}

    def start(self, name: str, trigger_ms: int) -> None:
        if name in self.refused:
            raise self.refused[name]
        self.starts.append(name)
        self.running[name] = trigger_ms

    def error(self, name: str) -> str | None:
        return self.errors.pop(name, None)

    def stop(self, names: Iterable[str], patience_s: float) -> None:
        for name in names:
            self.running.pop(name, None)


class Pipeline:
    """The supervision over such streams, and a clock."""

    def __init__(
        self, *nodes: FlowNode, settings: Mapping[str, str] | None = None, stale: Iterable[str] = ()
    ) -> None:
        self.queries = Queries()
        self.progress = PipelineProgress()
        self.computed: list[list[str]] = []
        self.failing: dict[str, str] = {}
        self.notes: list[str] = []
        self.now = 100.0
        self.flows = ContinuousFlows(
            nodes,
            self.queries,
            self.refresh,
            self.progress,
            Triggers(settings or {}),
            self.notes.append,
            stale=stale,
        )
        self.flows.start(self.now)

    def refresh(self, tables: Sequence[str]) -> Mapping[str, str]:
        self.computed.append(list(tables))
        for name in tables:
            if name not in self.failing:
                self.progress.on_computed(name)
        return {name: error for name, error in self.failing.items() if name in tables}

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.flows.step(self.now)

    def batch(self, name: str) -> None:
        self.progress.on_query_progress(
            json.dumps({"name": name, "numInputRows": 3, "durationMs": {"addBatch": 9}})
        )


class TestContinuousFlows:
    def test_each_stream_has_its_trigger(self) -> None:
        settings = {"ottla.trigger": "2 seconds", "ottla.trigger.find_large": "1 minute", "other": "x"}
        pipeline = Pipeline(*ALL, settings=settings)
        assert pipeline.queries.running == {"orders": 2_000, "find_large": 60_000, "priced": 2_000}
        assert Pipeline(ORDERS).queries.running == {"orders": 500}

    @pytest.mark.parametrize(
        ("name", "value", "complaint"),
        [
            ("ottla.trigger.ordres", "1 s", "no flow of this name; there are find_large, orders"),
            ("ottla.trigger", "often", "is not a time"),
            ("ottla.trigger", "2 fortnights", "is not a time"),
        ],
    )
    def test_a_trigger_that_makes_no_sense_is_refused(self, name: str, value: str, complaint: str) -> None:
        with pytest.raises(ProjectError, match=complaint):
            Pipeline(ORDERS, LARGE, settings={name: value})

    def test_a_flow_that_fails_starts_again_alone_and_later_each_time(self) -> None:
        pipeline = Pipeline(ORDERS, LARGE)
        for number, delay in enumerate((1, 2, 4)):
            pipeline.queries.starts.clear()
            pipeline.queries.errors["orders"] = "ValueError: no"
            pipeline.after(0)
            flow = pipeline.progress.flows["orders"]
            assert (flow.state, flow.restarts, flow.error) == (
                FlowState.RESTARTING,
                number + 1,
                "ValueError: no",
            )
            assert f"orders: failed, starts again in {delay} s: ValueError: no" in pipeline.notes
            pipeline.after(delay - 0.5)
            assert pipeline.queries.starts == []
            pipeline.after(0.5)
            assert pipeline.queries.starts == ["orders"]
            assert flow.state is FlowState.RUNNING
        assert pipeline.progress.flows["find_large"].restarts == 0

    def test_the_delay_has_an_end_and_a_healthy_flow_begins_with_a_short_one(self) -> None:
        pipeline = Pipeline(ORDERS)
        for _ in range(10):
            pipeline.queries.errors["orders"] = "x"
            pipeline.after(0)
            pipeline.after(MAX_DELAY_SECONDS)
        assert f"starts again in {MAX_DELAY_SECONDS:g} s" in pipeline.notes[-1]
        pipeline.after(1_000)
        pipeline.queries.errors["orders"] = "x"
        pipeline.after(0)
        assert "starts again in 1 s" in pipeline.notes[-1]

    def test_one_that_does_not_start_is_tried_again(self) -> None:
        pipeline = Pipeline(ORDERS)
        pipeline.queries.errors["orders"] = "gone"
        pipeline.queries.refused["orders"] = RuntimeError("no table")
        pipeline.after(0)
        pipeline.after(1)
        assert "starts again in 2 s: no table" in pipeline.notes[-1]
        del pipeline.queries.refused["orders"]
        pipeline.after(2)
        assert pipeline.progress.flows["orders"].state is FlowState.RUNNING

    def test_what_has_no_query_that_stays_open_runs_again_and_again(self) -> None:
        nodes = (ORDERS, FlowNode("merged", "merged", ("orders",), FlowKind.STREAM))
        queries = Queries()
        queries.refused["merged"] = FlowNotSupported("a merge")
        computed: list[Sequence[str]] = []
        notes: list[str] = []

        def refresh(tables: Sequence[str]) -> Mapping[str, str]:
            computed.append(tables)
            return {}

        flows = ContinuousFlows(nodes, queries, refresh, PipelineProgress(), Triggers({}), notes.append)
        flows.start(0)
        flows.step(VIEW_SECONDS)
        flows.step(VIEW_SECONDS + 1)
        assert (list(queries.running), computed) == (["orders"], [["merged"], ["merged"]])
        assert notes == [
            f"merged: runs again every {VIEW_SECONDS:g} s, as its query cannot stay open: a merge"
        ]

    def test_a_view_is_computed_when_a_batch_has_changed_its_inputs(self) -> None:
        pipeline = Pipeline(ORDERS, ADA, TURNOVER, LARGE)
        pipeline.after(1_000)
        pipeline.batch("find_large")
        pipeline.after(1_000)
        assert pipeline.computed == []
        pipeline.batch("orders")
        pipeline.after(0)
        assert pipeline.computed == [["turnover"]]
        pipeline.batch("orders")
        pipeline.after(VIEW_SECONDS - 1)
        assert len(pipeline.computed) == 1
        pipeline.after(1)
        assert len(pipeline.computed) == 2

    def test_views_on_views_are_computed_with_them_and_their_readers_start_again(self) -> None:
        pipeline = Pipeline(*ALL)
        pipeline.queries.starts.clear()
        pipeline.batch("orders")
        pipeline.after(VIEW_SECONDS)
        assert pipeline.computed == [["best", "turnover"]]
        pipeline.after(0)
        assert pipeline.queries.starts == ["priced"]
        assert sorted(pipeline.queries.running) == ["find_large", "orders", "priced"]
        pipeline.after(1_000)
        assert len(pipeline.computed) == 1

    def test_a_batch_during_the_computation_counts(self) -> None:
        pipeline = Pipeline(ORDERS, ADA, TURNOVER)
        original = pipeline.refresh

        def refresh(tables: Sequence[str]) -> Mapping[str, str]:
            pipeline.batch("orders")
            return original(tables)

        pipeline.flows._refresh = refresh
        pipeline.batch("orders")
        pipeline.after(VIEW_SECONDS)
        pipeline.flows._refresh = original
        pipeline.after(VIEW_SECONDS)
        assert pipeline.computed == [["turnover"], ["turnover"]]

    def test_a_view_that_fails_is_computed_again_later(self) -> None:
        pipeline = Pipeline(ORDERS, ADA, TURNOVER)
        pipeline.failing["turnover"] = "DIVIDE_BY_ZERO"
        pipeline.batch("orders")
        pipeline.after(VIEW_SECONDS)
        flow = pipeline.progress.flows["turnover"]
        assert (flow.state, flow.error) == (FlowState.RESTARTING, "DIVIDE_BY_ZERO")
        pipeline.failing.clear()
        pipeline.after(VIEW_SECONDS)
        assert flow.state is FlowState.RUNNING

    def test_a_view_that_the_first_run_has_not_computed_is_computed_at_once(self) -> None:
        pipeline = Pipeline(ORDERS, ADA, TURNOVER, stale={"turnover", "orders"})
        assert pipeline.computed == [["turnover"]]

    def test_a_view_of_something_outside_is_computed_at_intervals(self) -> None:
        pipeline = Pipeline(FlowNode("rates", "rates", (), FlowKind.VIEW, reads_outside=True))
        pipeline.after(OUTSIDE_SECONDS - 1)
        assert pipeline.computed == []
        pipeline.after(1)
        pipeline.after(OUTSIDE_SECONDS)
        assert len(pipeline.computed) == 2

    def test_the_end_stops_every_query(self) -> None:
        pipeline = Pipeline(*ALL)
        pipeline.flows.stop()
        assert pipeline.queries.running == {}
        assert {flow.state for flow in pipeline.progress.flows.values()} == {FlowState.STOPPED}

    def test_lines_tell_of_restarts(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = PipelineProgress()
        with show_progress(progress):
            progress.on_flow_restarting("orders", "ValueError: no")
            progress.on_flow_running("orders")
        assert capsys.readouterr().err.splitlines() == [
            "orders: restarting, 1 restart",
            "orders: running, 1 restart",
        ]

    def test_the_live_table_has_the_last_error(self) -> None:
        progress = PipelineProgress()
        progress.on_flow_running("orders")
        assert len(pipeline_run._table(progress, 1).columns) == 5
        progress.on_flow_restarting("orders", "ValueError: no")
        table = pipeline_run._table(progress, 1)
        assert list(table.columns[-1].cells) == ["ValueError: no"]


class TestLazyPlans:
    @staticmethod
    def table(name: str = "orders", plan_id: int = 1) -> Any:
        proto = pytest.importorskip("pyspark.sql.connect.proto")
        relation = proto.Relation()
        relation.common.plan_id = plan_id
        relation.read.named_table.unparsed_identifier = name
        relation.read.is_streaming = True
        return relation

    @staticmethod
    def over(inner: Any, kind: str, plan_id: int = 2, **fields: Any) -> Any:
        relation = type(inner)()
        relation.common.plan_id = plan_id
        getattr(relation, kind).input.CopyFrom(inner)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(getattr(relation, kind), name).extend(value)
            else:
                setattr(getattr(relation, kind), name, value)
        return relation

    def watermark(self, inner: Any, **fields: Any) -> Any:
        return self.over(inner, "with_watermark", event_time="at", delay_threshold="10 minutes", **fields)

    def test_drop_becomes_a_selection(self) -> None:
        lazy = lazy_plans.make_lazy(self.over(self.table(), "drop", column_names=["a", "b"]))
        assert lazy.project.expressions[0].expression_string.expression == "* EXCEPT (`a`, `b`)"
        assert lazy.project.input == self.table()
        assert lazy.common.plan_id == 2
        assert lazy_plans.eager_reads(lazy) == []

    def test_a_watermark_becomes_sql_and_columns_of_both_frames_are_found(self) -> None:
        lazy = lazy_plans.make_lazy(self.watermark(self.table("db.orders")))
        assert lazy.project.input.sql.query == (
            "SELECT * FROM STREAM(db.orders) WATERMARK `at` DELAY OF INTERVAL 10 MINUTE"
        )
        assert (lazy.common.plan_id, lazy.project.input.common.plan_id) == (2, 1)
        assert lazy_plans.eager_reads(lazy) == []

    def test_a_watermark_on_more_than_a_table_refers_to_it(self) -> None:
        filtered = self.over(self.table(), "filter", plan_id=2)
        lazy = lazy_plans.make_lazy(self.watermark(filtered, plan_id=3))
        inside = lazy.project.input.with_relations
        assert inside.references[0].subquery_alias.input == filtered
        assert inside.references[0].subquery_alias.alias in inside.root.sql.query

    def test_one_on_the_other(self) -> None:
        both = self.over(self.watermark(self.table()), "drop", plan_id=3, column_names=["a"])
        lazy = lazy_plans.make_lazy(both)
        assert lazy.project.input.project.input.WhichOneof("rel_type") == "sql"
        assert lazy_plans.eager_reads(lazy) == []

    def test_columns_are_added_once_all_is_defined(self) -> None:
        columns = self.over(self.table(), "with_columns")
        renamed = self.over(columns, "with_columns_renamed", plan_id=3)
        lazy = lazy_plans.make_lazy(renamed)
        waiting = lazy.with_columns_renamed.input.filter
        assert waiting.condition.expression_string.expression == f"session.{lazy_plans.DEFINED}"
        assert waiting.input.common.plan_id == 2
        assert waiting.input.with_columns.input.filter.input == self.table()
        assert lazy_plans.eager_reads(lazy) == []

    def test_the_topics_of_dead_letters_are_found(self) -> None:
        plan = self.over(self.table(), "project")
        letter = plan.project.expressions.add().alias
        letter.name.append(dead_letter_column("is an order"))
        topic = letter.expr.unresolved_function.arguments.add().unresolved_function.arguments.add().alias
        topic.name.append("topic")
        topic.expr.literal.string = "shop.dead-letters"
        other = plan.project.expressions.add().alias  # the topic of a row
        other.name.append("topic")
        other.expr.literal.string = "shop.orders"
        assert lazy_plans.dead_letter_topics(plan) == {"shop.dead-letters"}

    def test_tables_are_found_in_sql(self) -> None:
        query = type(self.table())()
        query.sql.query = "SELECT * FROM STREAM(db.orders) o JOIN `items` USING (item)"
        (found,) = lazy_plans.eager_reads(self.over(query, "corr"))
        assert found.tables == {"orders", "items"}
        assert lazy_plans.eager_reads(self.over(query, "sample")) == []

    def test_other_plans_stay_as_they_are(self) -> None:
        source = self.table()
        source.read.data_source.format = "ottla"
        for plan in (self.watermark(source), self.over(source, "drop", column_names=["a"]), self.table()):
            assert lazy_plans.make_lazy(plan) == plan
            assert lazy_plans.eager_reads(plan) == []

    def test_what_has_no_other_form_is_found_with_what_works(self) -> None:
        watermarked = lazy_plans.make_lazy(self.watermark(self.table()))
        (found,) = lazy_plans.eager_reads(self.over(watermarked, "drop_na", plan_id=3))
        assert found.tables == {"orders"}
        assert "`dropna` on orders" in eager_hint(found)
        assert 'where("a is not null")' in eager_hint(found)
        assert lazy_plans.eager_reads(lazy_plans.make_lazy(self.watermark(self.table(), plan_id=9))) == []


class TestPictures:
    def test_text(self) -> None:
        assert as_text(ALL).splitlines() == [
            "orders (streaming table, reads outside)",
            "├─ ada (temporary view)",
            "│  └─ turnover (materialized view)",
            "│     └─ best (materialized view)",
            "│        └─ priced (streaming table)",
            "├─ large (sink, flow find_large)",
            "└─ priced (streaming table), see above",
        ]

    def test_a_first_flow_is_named_if_its_target_has_another_name(self) -> None:
        copy = FlowNode("copy", "copies", (), FlowKind.STREAM, into_topic=True, reads_outside=True)
        assert as_text([copy]) == "copies (sink, flow copy, reads outside)"

    def test_dot_and_mermaid(self) -> None:
        dot = as_dot(ALL)
        assert '"orders" -> "large" [label="find_large"];' in dot
        assert '"outside" -> "orders";' in dot
        mermaid = as_mermaid(ALL).splitlines()
        assert mermaid[0] == "flowchart LR"
        assert "  n1 -- find_large --> n3" in mermaid

    def test_svg_has_a_box_for_each_dataset_and_none_over_another(self) -> None:
        root = ElementTree.fromstring(as_svg(ALL))
        boxes = root.findall("{http://www.w3.org/2000/svg}rect")
        assert len(boxes) == 7
        assert len({(box.get("x"), box.get("y")) for box in boxes}) == 7

    def test_a_graph_is_kept_between_runs(self, tmp_path: Path) -> None:
        assert load_graph(tmp_path) is None
        save_graph(ALL, tmp_path)
        assert load_graph(tmp_path) == list(ALL)
        (tmp_path / "graph.json").write_text('{"flows": [{"name": 1}]}')
        assert load_graph(tmp_path) is None


class TestRows:
    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        table = tmp_path / "spark-warehouse" / ".versions" / "1" / "orders"
        (table / "_spark_metadata").mkdir(parents=True)
        for number, name in enumerate(("part-0.parquet", "part-1.parquet", "part-2.parquet")):
            rows = pa.table({"number": [number * 2, number * 2 + 1], "raw": [b"a", b"\xff"]})
            pyarrow.parquet.write_table(rows, table / name)
        committed = [{"path": f"file://{table}/part-{number}.parquet"} for number in (0, 1)]
        lines = ["v1", *map(json.dumps, committed)]
        (table / "_spark_metadata" / "0").write_text("\n".join(lines))
        (tmp_path / "spark-warehouse" / "orders").symlink_to(".versions/1/orders")
        return Project(tmp_path / "spark-pipeline.yml", "shop", "file:///s", {})

    def test_rows_of_files_that_were_committed(self, project: Project) -> None:
        found = read_rows(project.directory / "spark-warehouse", "orders", 3)
        assert ([row["number"] for row in found.rows], found.total) == ([0, 1, 2], 4)
        assert found.columns == ["number", "raw"]

    def test_columns_are_those_of_all_files(self, project: Project) -> None:
        table = project.directory / "spark-warehouse" / "orders"
        for name, column in (("part-0.parquet", "first"), ("part-1.parquet", "second")):
            rows = pa.table(
                {"number": pa.array([1], pa.int32() if column == "first" else pa.int64()), column: [7]}
            )
            pyarrow.parquet.write_table(rows, table / name)
        found = read_rows(project.directory / "spark-warehouse", "orders", 9)
        assert found.columns == ["number", "first", "second"]
        assert [(row["first"], row["second"]) for row in found.rows] == [(7, None), (None, 7)]

    def test_they_are_printed(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        show_table(project, "orders", 2, as_json=True)
        said = capsys.readouterr()
        assert [json.loads(line)["number"] for line in said.out.splitlines()] == [0, 1]
        assert "2 of 4 rows" in said.err
        show_table(project, "default.orders", 9, as_json=False)
        assert capsys.readouterr().out.splitlines()[0].split() == ["NUMBER", "RAW"]

    def test_the_flows_and_the_last_runs_are_shown(
        self, project: Project, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(CliError, match="no run has begun yet"):
            show_pipeline(project, 20, as_json=False)
        project.state.mkdir()
        save_graph(ALL, project.state)
        progress = PipelineProgress()
        report = {"name": "find_large", "numInputRows": 5, "sink": {"numOutputRows": 2}}
        progress.on_query_progress(json.dumps(report))
        progress.on_message("Flow 'find_large' has COMPLETED.")
        with record_run(progress, project.state, "shop", mode="once"):
            pass
        with pytest.raises(OSError, match="full"), record_run(progress, project.state, "shop", mode="once"):
            raise OSError("the disk is full")
        show_pipeline(project, 20, as_json=False)
        shown = capsys.readouterr()
        assert shown.err.startswith("shop: failed, once, ")
        flow, _, _, newest, oldest = [line.split() for line in shown.out.splitlines()[1:]]
        assert flow[:5] == ["find_large", "large", "completed", "5", "2"]
        assert "failed" in newest
        assert newest[-4:] == ["the", "disk", "is", "full"]
        assert "completed" in oldest
        show_pipeline(project, 1, as_json=True)
        document = json.loads(capsys.readouterr().out)
        assert [run["state"] for run in document["runs"]] == ["failed"]
        assert document["flows"][0]["rowsOut"] == 2

    def test_a_table_that_does_not_exist_is_reported_with_those_that_do(self, project: Project) -> None:
        with pytest.raises(ProjectError, match="there is no table ordres; there are orders"):
            read_rows(project.directory / "spark-warehouse", "ordres", 1)
        with pytest.raises(ProjectError, match="no run has completed"):
            read_rows(project.directory / "elsewhere", "orders", 1)

    @pytest.mark.parametrize(
        "query", ["select 1", " -- x\nWITH a AS (SELECT 1) TABLE a", "SELECT 'insert into x'"]
    )
    def test_queries_are_accepted(self, query: str) -> None:
        check_query(query)

    @pytest.mark.parametrize("query", ["DROP TABLE a", "WITH a AS (SELECT 1) INSERT INTO b TABLE a", ""])
    def test_what_is_no_query_is_refused(self, query: str) -> None:
        with pytest.raises(WrongUsage, match="only queries"):
            check_query(query)


def test_a_failure_of_the_client_has_no_line_of_the_user() -> None:
    said = readable_error(
        "Traceback (most recent call last):\n"
        f'  File "{pipeline_run.__file__}", line 7, in send\n'
        "ottla.client.errors.KafkaError: topic shop.ordres does not exist\n"
    )
    assert said == "KafkaError: topic shop.ordres does not exist"


def test_a_failing_function_shows_the_line_of_the_user() -> None:
    said = readable_error(
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 1982, in main\n'
        "    process()\n"
        '  File "/home/ada/shop/transformations/orders.py", line 17, in cents\n'
        "    return int(text)\n"
        "           ^^^^^^^^^\n"
        "ValueError: invalid literal for int() with base 10: 'x'\n"
    )
    assert said == (
        "transformations/orders.py, line 17: ValueError: invalid literal for int() with base 10: 'x'"
    )
