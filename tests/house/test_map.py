"""The map of the house shows what exists, and a Produce request crosses few of its files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.checks import FLOORS

ROOT = Path(__file__).parents[2]
MAX_FILES = 15
PLANNED = frozenset(("security/",))
_ROOMS = "|".join(FLOORS)
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w/]*(?:\.py)?)`")


@pytest.mark.slow
def test_a_produce_request_crosses_few_files() -> None:
    """In a process of its own: profiling would see the threads of other tests."""
    command = [sys.executable, "-m", "tests.house.request_path"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert "log/unified_log.py" in files
    assert "node/api/handlers/produce.py" in files
    assert len(files) <= MAX_FILES, "\n".join(files)


def missing_paths(text: str, root: Path) -> list[str]:
    """The modules and packages that a page names and that do not exist."""
    return [
        path
        for path in _PATH.findall(text)
        if not (root / path).exists() and not (root / f"{path}.py").exists()
    ]


def test_the_map_shows_paths_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert len(_PATH.findall(page)) > 30
    assert set(missing_paths(page, ROOT / "src/ottla")) <= PLANNED


def test_a_path_that_is_gone_is_found() -> None:
    assert missing_paths("see `log/gone` and `log/`", ROOT / "src/ottla") == ["log/gone"]


def test_the_tree_of_the_map_names_modules_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tree = page.split("```")[1]
    modules = {path.name for path in (ROOT / "src/ottla").rglob("*.py")}
    named = set(re.findall(r"\b\w+\.py\b", tree))
    assert len(named) > 50
    assert named <= modules, named - modules
