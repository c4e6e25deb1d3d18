"""The pages themselves, without a browser: what they must not contain, that nothing is missing, contrast."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ottla
from tests.support.rows import for_each

STATIC = Path(ottla.__file__).parent / "console" / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
# What text needs to be read by most people, and what the lines of controls need (WCAG 2.2 AA).
TEXT_CONTRAST = 4.5
LINE_CONTRAST = 3.0


def short(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@for_each("script", SCRIPTS, ids=short)
def test_no_script_turns_text_into_markup_or_code(script: Path) -> None:
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc"
    )
    assert not re.findall(rf"{markup}|\beval\(|new Function", code_of(script))


def code_of(script: Path) -> str:
    return "\n".join(
        line for line in script.read_text().splitlines() if not line.lstrip().startswith(("//", "/*", "*"))
    )


@for_each("path", FILES, ids=short)
def test_no_file_names_another_host(path: Path) -> None:
    addresses = set(re.findall(r"https?://[^\s\"'`)]+|url\([^#)]*\)", path.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\bstyle=|\son\w+=", page)


@for_each("script", SCRIPTS, ids=short)
def test_imports_name_files_and_exports_that_exist(script: Path) -> None:
    for names, target in re.findall(r"import \{([^}]*)\} from \"([^\"]+)\"", script.read_text()):
        found = (script.parent / target).resolve()
        assert found.is_file(), target
        exports = set(re.findall(r"export (?:async )?(?:function|class|const) (\w+)", found.read_text()))
        wanted = {name.strip() for name in names.split(",") if name.strip()}
        assert wanted <= exports, f"{target} has no {wanted - exports}"
        used = re.sub(r"import \{[^}]*\} from .*", "", script.read_text())
        unused = {name for name in wanted if not re.search(rf"\b{name}\b", used)}
        assert not unused, f"imported, but not used: {unused}"


def test_every_page_of_the_list_has_a_module() -> None:
    app = (STATIC / "app.js").read_text()
    pages = re.search(r"const PAGES = \[\n(.*?)\n\];", app, re.DOTALL)
    details = re.search(r"const DETAILS = \{(.*)\}", app)
    assert pages is not None
    assert details is not None
    names = re.findall(r'^  \["([\w-]+)",', pages[1], re.MULTILINE) + re.findall(r"(\w+):", details[1])
    assert len(names) >= 15
    for name in names:
        assert "export async function page(view" in (STATIC / "pages" / f"{name}.js").read_text(), name


def test_all_of_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < 250_000


def colours(theme: str) -> dict[str, str]:
    css = (STATIC / "console.css").read_text()
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", css)[:2]
    values = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", light))
    if theme == "dark":
        values |= dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", dark))
    return values


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    colour = colours(theme)
    grounds = ["background", "panel", "raised"]
    pairs = [(text, ground) for text in ("text", "muted", "accent") for ground in grounds]
    pairs += [
        ("text", "accent-soft"),
        ("accent", "accent-soft"),
        ("muted", "accent-soft"),
        ("on-accent", "accent"),
    ]
    pairs += [(level, ground) for level in ("good", "warn", "bad") for ground in ("panel", f"{level}-soft")]
    pairs += [(f"series-{number}", "raised") for number in range(4)]  # the colours of JSON
    low = {pair: round(contrast(colour[pair[0]], colour[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < TEXT_CONTRAST} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_of_controls_and_charts_can_be_seen(theme: str) -> None:
    colour = colours(theme)
    names = ["control-line", *(f"series-{number}" for number in range(6))]
    low = {name: round(contrast(colour[name], colour["panel"]), 2) for name in names}
    assert {name: ratio for name, ratio in low.items() if ratio < LINE_CONTRAST} == {}
