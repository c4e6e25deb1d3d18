"""Every page is three clicks from the start page, and in the navigation; its blocks run, or say why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.docs.blocks import DOCS, ROOT, Block, blocks, pages

_LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")
_CREATED = re.compile(r"ottla topics create ([\w.-]+)")
_SENT = re.compile(r"""(?:send|send_nowait|send_arrow|write_topic)\((?:"[^"]*:\d+", )?"([\w.-]+)\"""")
ON_NODES_OF_THEIR_OWN = {DOCS / page for page in ("spark/guide.md", "tiered-storage.md")}
_CODE = re.compile(r"`([a-z_]+/[a-z_/]*(?:\.pyx?)?)`")


def links(page: Path) -> set[Path]:
    return {(page.parent / found).resolve() for found in _LINK.findall(page.read_text()) if ":" not in found}


def test_every_page_is_three_clicks_from_the_start() -> None:
    reached = edge = {DOCS / "index.md"}
    for _ in range(3):
        edge = {other for page in edge for other in links(page)} - reached
        reached = reached | edge
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []


def test_every_page_but_the_decisions_is_in_the_navigation_once() -> None:
    def listed(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        inside = nav if isinstance(nav, list) else nav.values()
        return [page for each in inside for page in listed(each)]

    entries = listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(set(entries)) == len(entries)
    own = {page for page in entries if not page.startswith("project/")}
    wanted = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert own == {page for page in wanted if not re.match(r"decisions/\d", page)}


@pytest.mark.parametrize("page", sorted((DOCS / "internals").glob("*.md")), ids=lambda page: page.stem)
def test_a_chapter_has_a_picture_and_names_code_that_exists(page: Path) -> None:
    text = page.read_text()
    if page.stem == "index":
        return
    assert "](../images/internals/" in text
    _, said, code = text.partition("**In the code:**")
    assert said
    named = _CODE.findall(code)
    assert named
    assert [each for each in named if not (ROOT / "src" / "ottla" / each).exists()] == []


def test_pages_make_topics_of_their_own() -> None:
    """A reader walks several pages on one node: none finds the topics of another one, with other records."""
    made: dict[str, set[str]] = {}
    for page in pages():
        text = "\n".join(block.text for block in blocks(page) if block.why_not is None)
        if page in ON_NODES_OF_THEIR_OWN or "ottla cluster up" in text:
            continue
        for found in (_CREATED.findall(text), _SENT.findall(text)):
            for topic in found:
                made.setdefault(topic, set()).add(page.relative_to(ROOT).as_posix())
    assert len(made) > 20
    assert {topic: sorted(where) for topic, where in made.items() if len(where) > 1} == {}


def test_every_block_runs_or_says_why_not() -> None:
    found: list[Block] = [block for page in pages() for block in blocks(page)]
    assert len(found) > 80
    for block in found:
        if block.runs_in is not None:
            assert (ROOT / block.runs_in).is_file(), f"{block}: there is no {block.runs_in}"
            assert block.page.name in (ROOT / block.runs_in).read_text(), (
                f"{block.runs_in} does not name {block}"
            )
    for page in pages():
        unnamed = re.findall(r"^```\n(?:\$ |ottla |python |import )", page.read_text(), re.MULTILINE)
        assert not unnamed, f"{page.relative_to(ROOT)} has commands in blocks without `console` or `python`"
