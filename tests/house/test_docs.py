"""Documents do not point into the void, and every dependency says what it is for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import decision_index
from tests.support.rows import for_each

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def dead_links(document: Path, text: str, root: Path) -> Iterator[str]:
    """Relative links of a document to files or headings that do not exist, or that leave the repository."""
    for match in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.is_relative_to(root.resolve()) or not path.exists():
            yield f"{target}: no such file"
        elif anchor and path.suffix == ".md":
            content = text if path == document else path.read_text()
            if anchor not in anchors(content):
                yield f"{target}: no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 1
        unique = slug
        while unique in found:
            unique = f"{slug}-{number}"
            number += 1
        found.add(unique)
    return found


def requirements(pyproject: str) -> set[str]:
    """The names of everything that pyproject.toml asks for, in any extra or group."""
    data = tomllib.loads(pyproject)
    project = data["project"]
    wanted = [*data["build-system"]["requires"], *project.get("dependencies", [])]
    for some in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
        wanted += [requirement for each in some.values() for requirement in each]
    names = [match.group() for text in wanted if (match := _REQUIREMENT.match(text))]
    assert len(names) == len(wanted)
    return {normal(name) for name in names} - {normal(project["name"])}


def named(document: str) -> set[str]:
    """The packages in the first column of the tables of docs/dependencies.md."""
    cells = re.findall(r"^\|([^|]*)\|", document, re.MULTILINE)
    names = {name.strip(" `") for cell in cells for name in cell.split(",")}
    return {normal(name) for name in names if name.strip("-:") and name != "package"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"])
def test_the_repository_introduces_itself(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0


def test_the_readme_and_the_map_are_among_the_documents() -> None:
    assert {ROOT / "README.md", ROOT / "docs/architecture.md", ROOT / "docs/dependencies.md"} <= set(
        documents()
    )


@for_each("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert list(dead_links(document, document.read_text(), ROOT)) == []


def test_every_dependency_says_what_it_is_for() -> None:
    wanted = requirements((ROOT / "pyproject.toml").read_text())
    written = named((ROOT / "docs/dependencies.md").read_text())
    assert wanted - written == set(), "in pyproject.toml, but not in docs/dependencies.md"
    assert written - wanted == set(), "in docs/dependencies.md, but not in pyproject.toml"


class TestTheChecksThemselves:
    def links(self, text: str, tmp_path: Path) -> list[str]:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "page.md").write_text(text)
        (tmp_path / "docs" / "here.md").write_text("# One heading\n\n## Another `one`, with more!\n")
        return list(dead_links(tmp_path / "docs" / "page.md", text, tmp_path))

    @pytest.mark.parametrize(
        "text",
        [
            "[gone](gone.md)",
            "![picture](img/gone.png)",
            "[gone]: ../gone.md",
            "[outside](../../../etc/passwd)",
            "[heading](here.md#no-such-heading)",
            "# Top\n[heading](#bottom)",
        ],
    )
    def test_a_dead_link_is_found(self, text: str, tmp_path: Path) -> None:
        assert len(self.links(text, tmp_path)) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "[here](here.md)",
            "[heading](here.md#one-heading) [other](here.md#another-one-with-more)",
            "[up](../docs)",
            "[web](https://example.org/gone.md) [mail](mailto:a@example.org)",
            "# Top\n[heading](#top)",
            "```\n[in code](gone.md)\n```\nand `[inline](gone.md)`",
        ],
    )
    def test_a_good_link_is_left_alone(self, text: str, tmp_path: Path) -> None:
        assert self.links(text, tmp_path) == []

    def test_requirements_are_read_from_every_section(self) -> None:
        text = """
            [build-system]
            requires = ["Builder>=1"]
            [project]
            name = "ottla"
            dependencies = ["plain_name", "marked>=2; sys_platform != 'win32'"]
            [project.optional-dependencies]
            more = ["extra[fast]==1", "ottla[other]"]
            """
        assert requirements(text) == {"builder", "plain-name", "marked", "extra"}

    def test_names_are_read_from_the_first_column(self) -> None:
        text = "| package | why |\n|---|---|\n| `one`, Two_2 | because of three |\n"
        assert named(text) == {"one", "two-2"}


def test_decisions_have_an_index_and_numbers_of_their_own() -> None:
    assert decision_index.INDEX.read_text() == decision_index.render(), (
        "run `python -m tests.support.decision_index`"
    )
    numbers = [page.name[:4] for page in decision_index.DIRECTORY.glob("[0-9]*.md")]
    assert sorted(set(numbers)) == sorted(numbers)
