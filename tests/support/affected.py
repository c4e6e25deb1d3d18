"""Run only the modules of tests that a change can touch: `pytest --affected[=BASE]`.

A change is what differs from BASE, a commit. Without one that is where the branch left `origin/main`, and
where there is no such branch the last commit. Who uses a changed file is read from the sources
(`import_graph.py`); who reads files that are not Python is in `READERS`. A file that is unknown touches
everything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.import_graph import Graph, load_graph

ROOT: Final = Path(__file__).resolve().parents[2]
UPSTREAMS: Final = ("@{upstream}", "origin/main")
# The checks of the house read all texts, so every change touches them.
HOUSE: Final = "tests/house/"
# Files that are not Python -> the tests that read them beside those that name them, as paths begin.
READERS: Final = (
    (r"docs/spark/.*", ("tests/spark/test_recipes.py",)),
    (r"docs/.*|[^/]+\.md|LICENSE|Makefile|examples/.*\.md", ()),
    (r"\.gitignore|\.ci/.*|bench/.*|ecosystem/.*|docs/.*\.svg", ()),
    (r"dashboards/.*", ("tests/node/test_dashboards.py",)),
    (r"examples/.*", ("tests/guarantees/test_examples.py", "tests/spark/")),
    (
        r"packaging/.*",
        (
            "tests/cli/test_container.py",
            "tests/node/test_service_manager.py",
            "tests/packaging/test_check.py",
        ),
    ),
    (r"src/ottla/console/static/.*", ("tests/console/",)),
    (r"src/ottla/records/(_kernel\.(pyx|pyi|pxd)|kernel/.*\.px[id])", ()),  # in the graph as a module
    (r"tests/support/franz_go(_registry)?/.*", ("tests/node/", "tests/security/")),
    (r"tests/.*\.(java|pem)", ()),
)
_WORKER: Final = "affected"


@dataclass(frozen=True, slots=True)
class Selection:
    """The modules of tests to run, as paths below the project, and why."""

    modules: frozenset[str]
    of: int
    changed: int
    # The file that touches everything.
    unknown: str | None = None

    def __str__(self) -> str:
        if self.unknown is not None:
            return f"fast: all {self.of} modules, as {self.unknown} touches everything"
        files = f"{self.changed} changed file{'s' * (self.changed != 1)}"
        found = f"{len(self.modules)} of {self.of} modules"
        return f"fast: {found} are touched by {files} (all: make test-fast ALL=1)"


def select(graph: Graph, changed: Iterable[str]) -> Selection:
    """Find the modules of tests that a change of these files can touch."""
    changed = sorted(changed)
    modules = graph.test_modules
    nodes = []
    found: set[str] = set()
    for path in changed:
        readers: tuple[str, ...] | None = ()
        if not (path.endswith(".py") and path in graph.paths) or path.startswith("examples/"):
            readers = next((tests for pattern, tests in READERS if re.fullmatch(pattern, path)), None)
        if readers is None:
            return Selection(frozenset(modules), len(modules), len(changed), path)
        found |= {module for module in modules if module.startswith((HOUSE, *readers))}
        nodes += [graph.paths[path]] if path in graph.paths else []
    found |= graph.test_modules_touched_by(nodes)
    return Selection(frozenset(found), len(modules), len(changed))


def changed_files(base: str) -> list[str]:
    """The files that differ from a commit, and those that git does not know yet."""
    if not base:
        base = next((found for each in UPSTREAMS if (found := _merge_base(each))), "HEAD")
    return [
        *_git("diff", "--name-only", "--no-renames", "-z", base, "--"),
        *_git("ls-files", "--others", "--exclude-standard", "-z"),
    ]


def select_changed(base: str, cache: Path | None) -> Selection:
    changed = changed_files(base)
    files = {*_git("ls-files", "-z"), *changed}
    gone = [path for path in changed if path.endswith(".py") and not (ROOT / path).exists()]
    others = [path for path in files if not path.endswith(".py")]
    return select(load_graph(ROOT, others, gone, cache), changed)


def cache_of(config: pytest.Config) -> Path | None:
    """Where what files use is kept between runs."""
    cache = getattr(config, "cache", None)
    return None if cache is None else Path(cache.mkdir("affected")) / "uses.json"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"--affected needs git: {done.stderr.strip()}")
    return [path for path in done.stdout.split("\0") if path]


def _merge_base(commit: str) -> str:
    command = ["git", "merge-base", "HEAD", commit]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--affected",
        nargs="?",
        const="",
        metavar="BASE",
        help="run only modules that the change since BASE touches; BASE is where the branch left origin/main",
    )


class Affected:
    """A plugin that leaves other modules alone. What hands out tests to workers tells them which."""

    def __init__(self, config: pytest.Config) -> None:
        self._selection: Selection | None = None
        given = getattr(config, "workerinput", {}).get(_WORKER)
        if given is None:
            self._selection = select_changed(config.getoption("--affected"), cache_of(config))
            given = sorted(self._selection.modules)
        self._modules: Final = frozenset(given)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_WORKER] = sorted(self._modules)

    def pytest_report_header(self) -> str | None:
        return None if self._selection is None else str(self._selection)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
            return None
        inside = collection_path.is_relative_to(ROOT)
        return True if inside and collection_path.relative_to(ROOT).as_posix() not in self._modules else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # there is none that the change touches
