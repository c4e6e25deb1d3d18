"""The map of the house shows what exists, and a Produce request crosses few of its files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import picture, ways
from tests.house.checks import FLOORS, load

ROOT = Path(__file__).parents[2]
MAX_FILES = 15
PLANNED = frozenset(("security/",))
_ROOMS = "|".join(FLOORS)
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w/]*(?:\.py)?)`")


@pytest.fixture(scope="module")
def measured() -> dict[str, set[str]]:
    """In a process of its own: profiling would see the threads of other tests."""
    program = "import json; from tests.house.ways import WAYS, run; "
    program += "print(json.dumps({way: sorted(files.ever) for way, files in run(WAYS).items()}))"
    return {way: set(files) for way, files in json.loads(_run(["-c", program])).items()}


def _run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_produce_request_crosses_few_files_of_a_node_alone() -> None:
    title, *files = _run(["-m", "tests.house.ways", "--alone", "a produce request"]).split("\n  ")
    assert title.startswith("a produce request: ")
    assert "log/unified_log.py" in files
    assert "node/api/handlers/produce.py" in files
    assert len(files) <= MAX_FILES, "\n".join(files)


@pytest.mark.slow
@pytest.mark.parametrize("way", ways.WAYS)
def test_a_way_has_the_files_that_the_page_lists(way: str, measured: dict[str, set[str]]) -> None:
    listed = ways.lists(ways.PAGE.read_text())[way]
    assert len(listed) > 10
    assert listed <= measured[way], "`python -m tests.house.ways --write` measures again"


def test_the_lists_of_a_page_are_read_as_they_are_written() -> None:
    page = "a\n<!-- files of a fetch -->\n<!-- end -->\nb\n"
    files = {"a fetch": {"log/unified_log.py", "log/segment/segment.py"}}
    assert ways.lists(ways.written(page, files)) == files
    assert ways.written(ways.written(page, files), files) == ways.written(page, files)


def test_the_picture_of_the_floors_is_that_of_the_code() -> None:
    shown = picture.drawn(picture.PAGE.read_text())
    assert shown == picture.picture(load(ROOT / "src/ottla")), "`python -m tests.house.picture` draws it"


def missing_paths(text: str, root: Path) -> list[str]:
    """The modules and packages that a page names and that do not exist."""
    return [
        path
        for path in _PATH.findall(text)
        if not (root / path).exists() and not (root / f"{path}.py").exists()
    ]


@pytest.mark.parametrize("page", ["architecture", "ways"])
def test_a_page_of_the_map_shows_paths_that_exist(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    assert len(_PATH.findall(text)) > 20
    assert set(missing_paths(text, ROOT / "src/ottla")) <= PLANNED


def test_a_path_that_is_gone_is_found() -> None:
    assert missing_paths("see `log/gone` and `log/`", ROOT / "src/ottla") == ["log/gone"]


def test_the_tree_of_the_map_names_modules_that_exist() -> None:
    page = (ROOT / "docs/modules.md").read_text()
    tree = page.split("```")[1]
    modules = {path.name for path in (ROOT / "src/ottla").rglob("*.py")}
    named = set(re.findall(r"\b\w+\.py\b", tree))
    assert len(named) > 50
    assert named <= modules, named - modules
