"""What comes from others: exact versions, a bill of materials; and a way to report a fault."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def ran(*arguments: str, given: object = None) -> str:
    """What a script of `packaging` prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT / "packaging", input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return done.stdout


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / "packaging" / file).read_text().splitlines()
    found = [line.partition("==") for line in lines if not line.startswith("#")]
    assert all(name == normal(name) and equals and version for name, equals, version in found)
    return {name: version for name, _, version in found}


def of_the_project() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [*PROJECT["project"]["dependencies"], *(each for some in extras for each in some)]


@pytest.mark.parametrize(
    ("file", "requirements"),
    [
        ("constraints.txt", of_the_project()),
        ("constraints-dist.txt", PROJECT["dependency-groups"]["dist"]),
        ("constraints-docs.txt", PROJECT["dependency-groups"]["docs"]),
    ],
)
def test_tests_and_releases_use_exact_versions_that_are_allowed(file: str, requirements: list[str]) -> None:
    versions = pinned(file)
    for each in map(Requirement, requirements):
        if normal(each.name) != PROJECT["project"]["name"]:
            assert normal(each.name) in versions, f"{each.name} is not in {file}: make lock"
            assert versions[normal(each.name)] in each.specifier, f"{each} has another version: make lock"


def test_the_makefile_installs_those_versions_only() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    commands = [command for line in text.splitlines() for command in re.split("&&|[|]{2}", line)]
    installs = [each for each in commands if "pip install" in each and "--upgrade pip" not in each]
    unbounded = [each for each in installs if "--constraint packaging/constraints" not in each]
    assert len(installs) - len(unbounded) >= 3
    # Those of `make lock` are there to find newer ones; comments only speak of it.
    assert all("build/lock/" in each or each.startswith("#") for each in unbounded), unbounded


@pytest.mark.slow
def test_a_bill_of_materials_has_what_is_installed_and_nothing_twice() -> None:
    text = ran("sbom.py", "tables")
    assert text == ran("sbom.py", "tables")
    bill = json.loads(text)
    components = {normal(each["name"]): each for each in bill["components"]}
    assert len(components) == len(bill["components"])
    direct = [normal(Requirement(each).name) for each in PROJECT["project"]["dependencies"]]
    assert {*direct, "pyiceberg", "pyarrow", "sqlalchemy"} <= set(components)
    assert not {"pytest", "mypy", "pyspark"} & set(components)
    assert all(each["purl"].endswith(f"@{each['version']}") for each in components.values())
    references = {each["bom-ref"] for each in (*components.values(), bill["metadata"]["component"])}
    assert {each["ref"] for each in bill["dependencies"]} == references
    assert all(ref in references for each in bill["dependencies"] for ref in each["dependsOn"])
    (own,) = [
        each for each in bill["dependencies"] if each["ref"] == bill["metadata"]["component"]["bom-ref"]
    ]
    assert len(own["dependsOn"]) >= len(direct)


@pytest.mark.slow
def test_a_lock_for_images_has_the_hashes_of_pips_report() -> None:
    def entry(name: str, version: str, digest: str) -> dict[str, object]:
        return {
            "metadata": {"name": name, "version": version},
            "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
        }

    installed = [entry("Rich", "15.0.0", "ab"), entry("click", "8.5.1", "cd"), entry("ottla", "1", "ef")]
    lines = ran("lock.py", "requirements", given={"install": installed}).splitlines()
    assert lines[1:] == ["click==8.5.1 --hash=sha256:cd", "rich==15.0.0 --hash=sha256:ab"]


def test_an_image_has_those_versions_only() -> None:
    text = (ROOT / "packaging/image/Dockerfile").read_text()
    assert "packaging/constraints.txt" in text
    assert text.count("pip install") == text.count("--constraint") == 1


def test_every_dependency_says_why_it_is_there() -> None:
    document = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| *([\w, .-]*\w[\w, .-]*) *\|(.*)\|$", document, re.MULTILINE)
    assert len(rows) > 20
    for names, cells in rows:
        assert len(cells.replace("|", " ").split()) >= 2 or names == "package", f"{names}: why?"


def test_a_vulnerability_can_be_reported_in_private() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    for document in ("README.md", "docs/security.md", "CONTRIBUTING.md"):
        assert "SECURITY.md" in (ROOT / document).read_text(), document
