"""What a release consists of says the same everywhere, and its workflows name what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import ottla

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert ottla.__version__ == project["version"] == citation["version"] == headings[0]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_the_makefile_has(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = workflow.read_text()
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= targets
    for path in re.findall(r"\bpackaging/[\w./-]+", text):
        assert (ROOT / path).exists(), path


def test_the_tested_pythons_are_those_that_get_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    wheels = re.search(r"^PYTHONS = \((.*)\)$", (ROOT / "packaging/wheels.py").read_text(), re.MULTILINE)
    assert wheels is not None
    assert named == tests["jobs"]["quick"]["strategy"]["matrix"]["python"] == re.findall(r"[\d.]+", wheels[1])
