"""The parts of `ottla pipeline test`: cases, rows that differ, the report, the kill. No Spark is needed."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pyarrow as pa
import pytest

from ottla.cli.pipeline_run import expectation_texts
from ottla.client.blocking import Producer
from ottla.spark import expectations
from ottla.spark.expectations import ExpectationAction
from ottla.spark.pipelines.progress import PipelineProgress
from ottla.spark.pipelines.project import ProjectError, load_project
from ottla.spark.pipelines.template import write_project
from ottla.spark.pipelines.testing import cases, killed_run, pipeline_under_test, report, rows
from ottla.spark.pipelines.testing.case_runner import failure_text
from ottla.spark.pipelines.testing.cases import PipelineCase, choose_cases, find_cases
from ottla.spark.pipelines.testing.pipeline_under_test import PipelineUnderTest, UnexpectedRows
from ottla.spark.pipelines.testing.report import CaseOutcome, CaseResult, write_junit
from ottla.spark.pipelines.testing.rows import compare
from ottla.spark.pipelines.testing.stop_points import StopPoint
from ottla.spark.pipelines.testing.warm_run import CaseDirectories
from ottla.spark.sink.written_columns import rows_by_topic
from ottla.testing.local_node import LocalNode


@pytest.mark.parametrize("module", [rows, cases, report])
def test_examples_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


class Recorder:
    """Notes what a case does."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))


def new_project(directory: Path) -> Path:
    write_project(directory / "shop")
    return directory / "shop"


def cases_of(directory: Path) -> list[PipelineCase]:
    return find_cases(load_project(directory / "spark-pipeline.yml"))


class TestCases:
    def test_the_template_has_a_case(self, tmp_path: Path) -> None:
        (case,) = cases_of(new_project(tmp_path))
        recorder = Recorder()
        case.play(recorder)  # type: ignore[arg-type]
        assert [call[:2] for call in recorder.calls] == [
            ("send", "shop.orders"),
            ("run",),
            ("expect_table", "orders"),
            ("expect_table", "turnover"),
            ("expect_topic", "shop.large-orders"),
            ("send", "shop.orders"),
            ("run",),
            ("expect_table", "turnover"),
        ]
        assert recorder.calls[4][2] == [{"key": "ada", "value": {"number": 1, "item": "tea", "cents": 7250}}]

    def test_one_step_needs_no_list_of_steps(self, tmp_path: Path) -> None:
        project = new_project(tmp_path)
        (project / "tests" / "short.yml").write_text(
            "send: {a: [{value: x}]}\nexpect: {tables: {t: []}}\nconfiguration: {limit: 5}\n"
        )
        case = choose_cases(cases_of(project), ["short"])[0]
        recorder = Recorder()
        case.play(recorder)  # type: ignore[arg-type]
        assert recorder.calls == [("send", "a", [{"value": "x"}]), ("run",), ("expect_table", "t", [])]
        assert case.configuration == {"limit": "5"}

    def test_functions_of_python_are_cases(self, tmp_path: Path) -> None:
        project = new_project(tmp_path)
        (project / "tests" / "helpers.py").write_text("TOPIC = 'shop.orders'\n")
        (project / "tests" / "test_more.py").write_text(
            "from helpers import TOPIC\n\n"
            "def test_it(pipeline):\n    pipeline.send(TOPIC, [])\n    assert 1 == 2\n"
        )
        case = choose_cases(cases_of(project), ["test_more::*"])[0]
        assert case.name == "test_more::test_it"
        recorder = Recorder()
        with pytest.raises(AssertionError) as raised:
            case.play(recorder)  # type: ignore[arg-type]
        assert recorder.calls == [("send", "shop.orders", [])]
        said = failure_text(case, raised.value)  # type: ignore[arg-type]
        assert said.startswith("test_more.py, line 5: assert 1 == 2\nAssertionError")

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("sent: {}", "the case has sent; known are"),
            ("steps: []", "`steps` must be a list"),
            ("steps: [{send: {}}]\nexpect: {}", "into a step"),
            ("send: [1]", "`send` must have rows"),
            ("send: {a: 5}", "send: a: expected a list of rows"),
            ("send: {a: [{number: 1}]}", "number is not a field of a record; the content goes into `value`"),
            ("send: {a: gone.jsonl}", r"gone\.jsonl: No such file"),
            ("send: {a: bad.jsonl}", r"bad\.jsonl, line 2, is not JSON"),
            ("expect: {table: {}}", "`expect` has table; known are tables, topics"),
            ("{", "is not YAML"),
        ],
    )
    def test_a_case_that_is_wrong_names_file_and_place(
        self, tmp_path: Path, text: str, complaint: str
    ) -> None:
        project = new_project(tmp_path)
        (project / "tests" / "bad.jsonl").write_text('{"value": 1}\n{"value"\n')
        (project / "tests" / "wrong.yml").write_text(text)
        with pytest.raises(ProjectError, match=complaint):
            cases_of(project)

    def test_a_name_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ProjectError, match="there is no case smal; known are large_orders"):
            choose_cases(cases_of(new_project(tmp_path)), ["smal"])


class TestRows:
    def test_order_and_types_do_not_matter(self) -> None:
        actual = [{"a": 2, "b": None}, {"a": 1.0, "b": b"x"}]
        assert not compare(actual, [{"a": 1, "b": "x"}, {"a": 2.0000000000000004}])

    def test_a_row_that_is_there_twice_is_unexpected_once(self) -> None:
        difference = compare([{"a": 1}, {"a": 1}], [{"a": 1}])
        assert (difference.missing, difference.unexpected) == ((), ('{"a": 1}',))

    def test_many_rows_are_cut(self) -> None:
        text = compare([{"a": n} for n in range(50)], []).text()
        assert text.splitlines()[0] == "0 missing, 50 unexpected, of 50 rows that are there"
        assert text.splitlines()[-1] == "  + ... and 30 more"


@pytest.fixture(scope="module")
def pipeline() -> Iterator[PipelineUnderTest]:
    with LocalNode() as node:
        yield PipelineUnderTest(node.bootstrap_servers, lambda: None, lambda _: [])


class TestPipelineUnderTest:
    def test_records_come_back_with_their_time(self, pipeline: PipelineUnderTest) -> None:
        records = [
            {"value": {"n": 1}, "key": "k", "timestamp": "2026-01-31T12:00:00Z"},
            {"value_base64": "/w==", "headers": [{"key": "h", "value": "x"}], "timestamp": 5},
        ]
        pipeline.send("given", records)
        pipeline.expect_topic("given", records)
        with pytest.raises(UnexpectedRows, match=r"(?s)topic given: 1 missing, 1 unexpected.*- .*\+ "):
            pipeline.expect_topic("given", [records[0], {"value": "other", "timestamp": 5}])

    def test_a_topic_that_does_not_exist_is_no_empty_one(self, pipeline: PipelineUnderTest) -> None:
        with pytest.raises(UnexpectedRows, match="topic missing does not exist"):
            pipeline.expect_topic("missing", [])

    def test_a_transaction_that_stays_open_is_named(
        self, pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipeline.send("open", [{"value": "a"}])
        with Producer(pipeline.bootstrap_servers, transactional_id="t") as producer:
            producer.begin_transaction()
            producer.send("open", b"b")
            with monkeypatch.context() as patched:
                patched.setattr(pipeline_under_test, "READ_SECONDS", 1.0)
                with pytest.raises(UnexpectedRows, match="a transaction is open"):
                    pipeline.topic("open")
            producer.abort_transaction()
        assert [record["value"] for record in pipeline.topic("open")] == ["a"]


def test_the_report_is_what_a_ci_reads(tmp_path: Path) -> None:
    results = [
        CaseResult("a", tmp_path / "a.yml", 1.5, CaseOutcome.PASSED),
        CaseResult("a", tmp_path / "a.yml", 2.5, CaseOutcome.FAILED, "table t: <1>\n\x00", "killed at x"),
        CaseResult("b", tmp_path / "b.yml", 0.5, CaseOutcome.SKIPPED, "not reached"),
    ]
    write_junit(tmp_path / "deep" / "out.xml", "shop", results, 4.5)
    suite = ElementTree.parse(tmp_path / "deep" / "out.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    assert [case.get("name") for case in suite] == ["a", "a, killed at x", "b"]
    assert suite[1][0].get("message") == "table t: <1>"


@pytest.mark.slow
def test_a_kill_takes_the_whole_family() -> None:
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    child = f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True).wait()"
    with subprocess.Popen([sys.executable, "-c", child], start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not (family := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        killed_run._kill_family(process.pid)
    for each in family:
        assert not each.is_running() or each.status() == psutil.STATUS_ZOMBIE


def test_flows_into_sinks_are_found_by_their_checkpoints(tmp_path: Path) -> None:
    directories = CaseDirectories(tmp_path)
    root = directories.storage / "_checkpoints"
    (root / "large_orders" / "find_large_orders" / "0" / "offsets").mkdir(parents=True)
    (root / "spark_catalog" / "default" / "orders" / "orders" / "0" / "offsets").mkdir(parents=True)
    assert killed_run.flows_into_sinks(directories) == ["find_large_orders"]
    assert str(killed_run.Kill("f", StopPoint.ROWS_SENT)) == "killed at task-rows-sent of f"


class TestExpectations:
    def test_examples_hold(self) -> None:
        assert doctest.testmod(expectations).failed == 0

    def test_counts_of_batches_add_up(self) -> None:
        progress = PipelineProgress()
        for failed in (1, 2):
            metrics = {"ottla.expectation:dropped:a": {"rows": 5, "failed": failed}}
            progress.on_query_progress(json.dumps({"name": "f", "observedMetrics": metrics}))
        assert progress.flows["f"].expectations == {("a", ExpectationAction.DROP): (10, 3)}
        assert expectation_texts(progress.flows["f"]) == ["'a': 3 of 10 dropped"]

    def test_dead_letters_leave_the_batch(self) -> None:
        letter = {"topic": "dead", "key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}]}
        batch = pa.RecordBatch.from_pylist(
            [
                {"value": "a", "_dead_letter_1": None, "_dead_letter_2": None},
                {"value": "b", "_dead_letter_1": letter, "_dead_letter_2": letter},
                {"value": "c", "_dead_letter_1": None, "_dead_letter_2": {**letter, "topic": "other"}},
            ]
        )
        found = {topic: rows.to_pylist() for topic, rows in rows_by_topic(batch, ("value",), "good")}
        content = {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}]}
        assert found == {"dead": [content], "other": [content], "good": [{"value": "a"}]}

    @pytest.mark.parametrize("name", ["", "a:b"])
    def test_a_name_is_needed(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not a name for an expectation"):
            expectations.expect(name, "a > 0")
        with pytest.raises(ValueError, match="needs a topic"):
            expectations.expect_or_dead_letter("a", "a > 0", topic="")
