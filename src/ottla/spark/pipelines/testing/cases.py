"""The cases in a project's `tests/`: files of YAML, and functions in files of Python.

    tests/large_orders.yml        one case
    tests/test_orders.py          each function `test_...(pipeline)` is one

A case of YAML is a list of steps. Each sends records, has the pipeline run over them, and compares tables and
topics:

    steps:
      - send:
          shop.orders: orders.jsonl
      - send:
          shop.orders:
            - {value: {number: 9}, timestamp: 2026-01-31T13:00:00Z}
        expect:
          tables:
            turnover: [{item: tea, orders: 2}]
          topics:
            shop.large-orders: large.jsonl

With one step, `send` and `expect` may stand without `steps`. Rows are a list, or a file of JSON lines beside
the case. Records have the fields of `ottla consume --json`, so that its output can be a fixture.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ottla.spark.pipelines.project import Project, ProjectError

DIRECTORY: Final = "tests"
Rows = Sequence[Mapping[str, Any]]
_RECORD_FIELDS: Final = frozenset(
    ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
)
# Where a record was found, not what it is: `ottla consume --json` prints these, too.
_FIELDS_OF_PLACE: Final = frozenset(("topic", "offset", "time"))
_STEP: Final = frozenset(("send", "expect"))
_CASE: Final = _STEP | {"steps", "configuration", "description"}


class CasePipeline(Protocol):
    """The pipeline as a case sees it: it runs on a node, with tables and checkpoints, of this case only."""

    def send(self, topic: str, records: Rows) -> None:
        """Write records: `value`, and if wanted `key`, `headers`, `partition` and `timestamp`."""

    def run(self) -> None:
        """Run the pipeline once over all records that were sent."""

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table."""

    def topic(self, name: str) -> list[dict[str, Any]]:
        """The committed records of a topic; `value` and `key` are text."""

    def expect_table(self, name: str, rows: Rows) -> None:
        """Fail unless the table has these rows, in any order."""

    def expect_topic(self, name: str, records: Rows) -> None:
        """Fail unless the topic has these records, in any order."""


@dataclass(frozen=True, slots=True)
class PipelineCase:
    """One test. `configuration` overrides settings of the project; `play` sends, runs and compares."""

    name: str
    file: Path
    play: Callable[[CasePipeline], None]
    configuration: Mapping[str, str] = field(default_factory=dict)


def find_cases(project: Project) -> list[PipelineCase]:
    """All cases of a project, by file."""
    directory = project.directory / DIRECTORY
    found: list[PipelineCase] = []
    for file in sorted(directory.glob("*")) if directory.is_dir() else ():
        if file.suffix in (".yml", ".yaml"):
            found.append(_yaml_case(file))
        elif file.suffix == ".py" and file.name.startswith("test_"):
            found += _python_cases(file)
    names = [case.name for case in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ProjectError(f"{directory}: there are two cases with the name {twice}")
    return found


def choose_cases(cases: Sequence[PipelineCase], wanted: Sequence[str]) -> list[PipelineCase]:
    """The cases with these names, or patterns of names; all if none is given."""
    if not wanted:
        return list(cases)
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in cases):
            known = ", ".join(case.name for case in cases)
            raise ProjectError(f"there is no case {pattern}; known are {known}")
    return [case for case in cases if any(fnmatch.fnmatchcase(case.name, each) for each in wanted)]


# YAML.


def _yaml_case(file: Path) -> PipelineCase:
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        document = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise ProjectError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    _check_names(file, "the case", document, _CASE)
    if "steps" in document and _STEP & set(document):
        raise ProjectError(f"{file}: with `steps`, put `send` and `expect` into a step")
    steps = document["steps"] if "steps" in document else [{each: document.get(each) for each in _STEP}]
    if not isinstance(steps, list) or not steps:
        raise ProjectError(f"{file}: `steps` must be a list")
    parsed = [_Step.parse(file, each) for each in steps]
    configuration = document.get("configuration") or {}

    def play(pipeline: CasePipeline) -> None:
        for step in parsed:
            step.play(pipeline)

    return PipelineCase(
        file.stem, file, play, {str(name): str(value) for name, value in configuration.items()}
    )


@dataclass(frozen=True, slots=True)
class _Step:
    send: Mapping[str, Rows]
    tables: Mapping[str, Rows]
    topics: Mapping[str, Rows]

    @classmethod
    def parse(cls, file: Path, document: Any) -> _Step:
        _check_names(file, "a step", document, _STEP)
        expect = document.get("expect") or {}
        _check_names(file, "`expect`", expect, frozenset(("tables", "topics")))
        return cls(
            _named_rows(file, "send", document.get("send"), records=True),
            _named_rows(file, "tables", expect.get("tables"), records=False),
            _named_rows(file, "topics", expect.get("topics"), records=True),
        )

    def play(self, pipeline: CasePipeline) -> None:
        for topic, records in self.send.items():
            pipeline.send(topic, records)
        pipeline.run()
        for table, rows in self.tables.items():
            pipeline.expect_table(table, rows)
        for topic, records in self.topics.items():
            pipeline.expect_topic(topic, records)


def _check_names(file: Path, what: str, document: Any, known: frozenset[str]) -> None:
    if not isinstance(document, Mapping):
        raise ProjectError(f"{file}: {what} must be names and values")
    if unknown := sorted(set(map(str, document)) - known):
        raise ProjectError(f"{file}: {what} has {unknown[0]}; known are {', '.join(sorted(known))}")


def _named_rows(file: Path, what: str, document: Any, *, records: bool) -> dict[str, Rows]:
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ProjectError(f"{file}: `{what}` must have rows, or a file of them, for each name")
    return {
        str(name): _rows(file, f"{what}: {name}", rows, records=records) for name, rows in document.items()
    }


def _rows(file: Path, what: str, given: Any, *, records: bool) -> Rows:
    if isinstance(given, str):
        given = read_json_lines(file.parent / given)
    if given is None:
        given = []
    if not isinstance(given, list):
        raise ProjectError(f"{file}: {what}: expected a list of rows, or the name of a file with JSON lines")
    for row in given:
        if not isinstance(row, Mapping):
            raise ProjectError(f"{file}: {what}: {row!r} is not a row: expected names and values")
        if records and (problem := record_problem(row)):
            raise ProjectError(f"{file}: {what}: {problem}")
    return given


def record_problem(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a record; None if nothing is.

    >>> record_problem({"number": 1})
    'number is not a field of a record; the content goes into `value`: {value: {...}}'
    """
    unknown = sorted(set(map(str, record)) - _RECORD_FIELDS - _FIELDS_OF_PLACE)
    if unknown:
        return f"{unknown[0]} is not a field of a record; the content goes into `value`: {{value: {{...}}}}"
    return None


def read_json_lines(file: Path) -> list[Any]:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise ProjectError(f"{file}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise ProjectError(f"{file}, line {number}, is not JSON: {error}") from None
    return found


# Python.


def _python_cases(file: Path) -> list[PipelineCase]:
    spec = importlib.util.spec_from_file_location(f"ottla_pipeline_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProjectError(f"{file}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(file.parent))
    functions = [
        (name, each)
        for name, each in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(each) and each.__module__ == module.__name__
    ]
    for name, function in functions:
        if len(inspect.signature(function).parameters) != 1:
            raise ProjectError(f"{file}: {name} must have one parameter, the pipeline")
    return [PipelineCase(f"{file.stem}::{name}", file, function) for name, function in functions]
