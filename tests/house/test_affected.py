"""A change runs the tests that it can touch, and the fast tier sees processes that tests start."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support import affected, fast, mutations
from tests.support.import_graph import Graph, load_graph, name_of
from tests.support.rows import for_each

ROOT = Path(__file__).parents[2]
# All code that loads what it does not name in the call, and how the graph knows what that is.
LOADERS = {
    "ottla": "its table of names, each asked for by name",
    "ottla.cli.app": "the package",
    "ottla.console.console": "the package",
    "ottla.node.api.routes": "the package",
    "ottla.node.coordinators.coordinators": "a table of names",
    "ottla.protocol.api": "the package",
    "ottla.spark.pipelines.testing.cases": "files of a user",
    "ottla.spark.worker.fork_server": "a list of names, and two modules of PySpark",
    "tests.kafka.scripts": "the package",
    "tests.node.test_routes": "the package",
    "tests.support.messages": "the packages",
    "tests.support.oracles": "kafka-python",
}
LOADS = frozenset(("import_module", "__import__", "spec_from_file_location", "run_module", "run_path"))

# Of a small project: what makes a test depend on `ottla.log.x`, and not on its neighbour.
SOURCES = {
    "src/ottla/__init__.py": (
        "if TYPE_CHECKING:\n    from ottla.log.x import X\n    from ottla.log.z import Other\n"
    ),
    "src/ottla/log/__init__.py": "",
    "src/ottla/log/x.py": "",
    "src/ottla/log/z.py": "",
    "src/ottla/node/y.py": "def load(): import_module('ottla.log.x')",
    "tests/__init__.py": "",
    "tests/support/logs.py": (
        "from ottla.log.x import X\n_kind = X\ndef make(): return _kind()\ndef other(): ...\n"
    ),
    "tests/log/conftest.py": (
        "from tests.support import logs\n"
        "@pytest.fixture\ndef log(): return logs.make()\n"
        "@pytest.fixture\ndef other(): return logs.other()\n"
    ),
}
TEST = "tests/log/test_it.py"


def write(root: Path, more: Mapping[str, str]) -> None:
    for path, source in {**SOURCES, **more}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)


class TestUses:
    def touched(self, root: Path, more: Mapping[str, str]) -> set[str]:
        write(root, more)
        return load_graph(root).test_modules_touched_by(["ottla.log.x"])

    @for_each(
        "source",
        [
            "from ottla.log.x import X",
            "from ottla.log import x",
            "import ottla.log.x as y",
            "def test_it():\n    from ottla.log.x import X",
            "if TYPE_CHECKING:\n    from ottla.log.x import X",
            "import_module('ottla.log.x')",
            "NAME = 'ottla.log.x'",
            "import_module(f'ottla.log.{name}')",
            "import ottla.log\nfor each in iter_modules(ottla.log.__path__): ...",
            "PROGRAM = '''\nfrom ottla.log import y, x\nprint(1)\n'''",
            "run([sys.executable, '-m', 'ottla.log.x'])",
            "from ottla.node import y",
            "from ottla import X",
            "import ottla\nottla.X()",
            "from tests.support.logs import make",
            "def test_it(log): ...",
            "request.getfixturevalue('log')",
            "pytestmark = usefixtures('log')",
            "ROOT.rglob('*.py')",
        ],
    )
    def test_a_use_is_found(self, source: str, tmp_path: Path) -> None:
        assert self.touched(tmp_path, {TEST: source}) == {TEST}

    @pytest.mark.parametrize(
        "source",
        [
            "from ottla.log import z",
            "from ottla import Other",
            "from tests.support.logs import other",
            "def test_it(other): ...",
            "'''Prose about `ottla.log.x`.'''",
        ],
    )
    def test_a_neighbour_is_no_use(self, source: str, tmp_path: Path) -> None:
        assert self.touched(tmp_path, {TEST: source}) == set()

    def test_what_pytest_runs_for_all_is_used_by_all(self, tmp_path: Path) -> None:
        hook = "from ottla.log.x import X\ndef pytest_configure(): X()\n"
        assert self.touched(tmp_path, {"tests/conftest.py": hook, TEST: ""}) == {TEST}

    def test_a_removed_module_touches_what_still_imports_it(self, tmp_path: Path) -> None:
        write(tmp_path, {TEST: "from ottla.log import gone"})
        graph = load_graph(tmp_path, gone=["src/ottla/log/gone.py"])
        assert affected.select(graph, ["src/ottla/log/gone.py"]).modules == {TEST}

    def test_what_a_file_uses_is_kept_until_it_changes(self, tmp_path: Path) -> None:
        cache = tmp_path / "cache.json"
        for source, found in (
            ("from ottla.log import x", {TEST}),
            ("from ottla.log import z # not x", set()),
        ):
            write(tmp_path, {TEST: source})
            for _ in range(2):
                graph = load_graph(tmp_path, cache=cache)
                assert graph.test_modules_touched_by(["ottla.log.x"]) == found


@pytest.fixture(scope="module")
def graph(pytestconfig: pytest.Config) -> Graph:
    """Of this repository."""
    files = [path for each in ("docs", "examples") for path in (ROOT / each).rglob("*.*")]
    others = [path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".py"]
    kernel = "src/ottla/records/_kernel.pyx"
    return load_graph(ROOT, [*others, kernel], cache=affected.cache_of(pytestconfig))


class TestChanges:
    LOG, NODE, CLI = "log/test_log_read", "node/test_lifecycle", "cli/test_topics"
    PROTOCOL = "protocol/test_api"

    @pytest.mark.parametrize(
        ("path", "touched", "left_alone"),
        [
            ("src/ottla/log/unified_log.py", {LOG, NODE, CLI}, {PROTOCOL, "runtime/test_disk"}),
            ("src/ottla/node/api/handlers/produce.py", {NODE, CLI}, {LOG, PROTOCOL}),
            ("src/ottla/cli/topics.py", {CLI}, {LOG, PROTOCOL, "node/test_share_sessions"}),
            ("src/ottla/protocol/messages/fetch.py", {PROTOCOL, NODE}, {LOG, "runtime/test_disk"}),
            ("src/ottla/tables/worker.py", {"tables/test_table_keeper"}, {LOG, PROTOCOL}),
            ("src/ottla/records/_kernel.pyx", {"records/test_validation", LOG}, {PROTOCOL}),
            ("tests/cli/conftest.py", {CLI}, {LOG, NODE, PROTOCOL}),
            ("docs/clients/guide.md", {"client/test_guide"}, {LOG, NODE, "client/test_producer"}),
            ("docs/storage.md", set(), {LOG, NODE, "client/test_guide"}),
            ("tests/log/test_crash.py", {"log/test_crash"}, {LOG}),
        ],
    )
    def test_a_change_touches_what_uses_it(
        self, path: str, touched: set[str], left_alone: set[str], graph: Graph
    ) -> None:
        modules = affected.select(graph, [path]).modules
        found = {module.removeprefix("tests/").removesuffix(".py") for module in modules}
        assert {f"tests/{each}.py" for each in touched | left_alone} <= set(graph.test_modules)
        assert touched | {"house/test_house"} <= found
        assert not left_alone & found

    @pytest.mark.parametrize("path", ["pyproject.toml", "src/ottla/new.json", "tests/conftest.py", "new.py"])
    def test_what_is_unknown_touches_everything(self, path: str, graph: Graph) -> None:
        assert affected.select(graph, [path]).modules == set(graph.test_modules)

    def test_no_change_touches_nothing(self, graph: Graph) -> None:
        assert affected.select(graph, []).modules == set()

    def test_the_nearest_tests_of_a_fault_come_first_and_all_that_are_touched_come(
        self, graph: Graph
    ) -> None:
        file = "src/ottla/log/segment/offset_index.py"
        first, *others = mutations.stages(graph, file, ("test", "all"))
        assert first.tier == "test"
        assert first.modules[0] == "tests/log/test_indexes.py"
        touched = graph.test_modules_touched_by([graph.paths[file]])
        run = {module for stage in (first, *others) for module in stage.modules}
        assert run == {module for module in touched if not module.startswith("tests/house/")}

    def test_all_code_that_loads_by_name_is_known(self) -> None:
        found = set()
        for root in ("src/ottla", "tests"):
            for path in (ROOT / root).rglob("*.py"):
                source = path.read_text()
                if any(each in source for each in LOADS) and loads_by_name(source):
                    found.add(name_of(path.relative_to(ROOT).as_posix()))
        assert found == set(LOADERS)


def loads_by_name(source: str) -> bool:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return any(
        ast.unparse(call.func).rpartition(".")[2] in LOADS and not isinstance(call.args[0], ast.Constant)
        for call in calls
    )


class TestTheFastTier:
    @pytest.mark.parametrize(
        ("marks", "is_left_out"),
        [
            ("pytestmark = pytest.mark.slow", True),
            ("pytestmark = [pytest.mark.kafka, pytest.mark.slow]", True),
            ("pytestmark = [\n    pytest.mark.spark,\n    pytest.mark.timeout(900),\n]", True),
            ("pytestmark = pytest.mark.timeout(9)\n\n@pytest.mark.slow\ndef test_it(): ...", False),
            ("@pytest.mark.slow\ndef test_it(): ...", False),
        ],
    )
    def test_a_module_that_is_left_out_is_not_imported(self, marks: str, is_left_out: bool) -> None:
        assert fast.is_left_out(f"import pytest\n\n{marks}\n") == is_left_out

    @pytest.mark.slow
    @pytest.mark.parametrize("way", ["subprocess", "fork", "spawn", "libuv", "none"])
    def test_a_process_that_is_started_is_seen(self, way: str) -> None:
        ways: dict[str, Callable[[], object]] = {
            "subprocess": lambda: subprocess.run(["true"], check=True),
            "fork": lambda: os.waitpid(os.fork() or os._exit(0), 0),
            "spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
            "libuv": lambda: uvloop.run(run_program()),
            "none": lambda: sum(range(1000)),
        }
        with fast.Processes().watched() as started:
            ways[way]()
        assert bool(started) == (way != "none")


async def run_program() -> None:
    await (await asyncio.create_subprocess_exec("true")).wait()
