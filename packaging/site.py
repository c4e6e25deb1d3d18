"""Build the documentation as a site, with Zensical: `make docs`.

The pages are those of `docs`, which also read well where they are, with the documents of the root under
`project`. What a page links to outside of `docs` comes along as a file. Beside each page lies its Markdown,
and `llms.txt` lists all of them. A warning of Zensical, as of a link that leads nowhere, fails the build.
The search needs a server, and no network: `python -m http.server --directory build/docs/site`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "build" / "docs" / "pages"
SITE: Final = ROOT / "build" / "docs" / "site"
CONFIG: Final = ROOT / "mkdocs.yml"
FROM_THE_ROOT: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
_PARTS: Final = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_WEB: Final = re.compile(r"[a-z][a-z0-9+.-]*:")
_FROM_ELSEWHERE: Final = re.compile(r'<script src="https://[^>]*></script>')
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)


def place(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the repository is in the site."""
    if path.parts[:1] == ("docs",):
        inside = PurePosixPath(*path.parts[1:])
        return inside / "README.md" if (ROOT / path).is_dir() else inside
    if str(path) in FROM_THE_ROOT:
        return PurePosixPath("project", "about.md" if path.name == "README.md" else path.name.lower())
    return PurePosixPath("files") / path


def rewritten(text: str, page: PurePosixPath, others: set[PurePosixPath]) -> str:
    """The text of a page with links as they are in the site; files that it needs are added to `others`."""
    here = place(page).parent

    def link(found: re.Match[str]) -> str:
        before, target, anchor, after = found.group(1), found.group(2), found.group(3) or "", found.group(4)
        if _WEB.match(target):
            return found.group()
        path = PurePosixPath(os.path.normpath(page.parent / target))
        if path.parts[:1] != ("docs",) and (ROOT / path).is_dir():
            return before[1:-2]  # a directory of the sources is nothing to look at
        there = place(path)
        if there.parts[0] == "files":
            others.add(path)
        return f"{before}{os.path.relpath(there, here)}{anchor}{after}"

    parts = _PARTS.split(text)
    return "".join(_LINK.sub(link, part) if at % 2 == 0 else part for at, part in enumerate(parts))


def stage() -> None:
    """Write the pages as Zensical takes them."""
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    pages = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    others: set[PurePosixPath] = set()
    for path in (PurePosixPath(each) for each in (*pages, *FROM_THE_ROOT)):
        into = PAGES / place(path)
        into.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            into.write_text(rewritten((ROOT / path).read_text(), path, others))
        else:
            shutil.copy(ROOT / path, into)
    for path in others:
        (PAGES / place(path)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, PAGES / place(path))


def sections(nav: list[Any], names: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each page of the navigation, with the name of its section."""
    for entry in nav:
        if isinstance(entry, str):
            yield " / ".join(names), entry
            continue
        ((name, inside),) = entry.items()
        if isinstance(inside, str):
            yield " / ".join(names), inside
        else:
            yield from sections(inside, (*names, name))


def first_sentence(text: str) -> str:
    """What a page is about: the first sentence after its title."""
    body = re.sub(
        r"<!--.*?-->|^```.*?^```", "", _TITLE.sub("", text, count=1), flags=re.DOTALL | re.MULTILINE
    )
    paragraph = next((each for each in body.split("\n\n") if re.match(r"\s*[A-Z`*\[]", each)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(".:")


def llms_txt(config: dict[str, Any]) -> str:
    """The pages for programs that read: one line each, with a link to its Markdown (llmstxt.org)."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    section = None
    for found, page in sections(config["nav"]):
        text = (PAGES / page).read_text()
        title = _TITLE.search(text)
        if found != section:
            lines += ["", f"## {found or 'Start'}", ""]
            section = found
        lines.append(f"- [{title.group(1) if title else page}]({page}): {first_sentence(text)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    stage()
    config = yaml.safe_load(CONFIG.read_text())
    listed = {page for _, page in sections(config["nav"])}
    pages = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    forgotten = {page for page in pages - listed if not page.startswith(("decisions/", "files/"))}
    if forgotten:
        print(f"not in the navigation of mkdocs.yml: {', '.join(sorted(forgotten))}", file=sys.stderr)
        return 1
    zensical = Path(sys.executable).with_name("zensical")
    command = [str(zensical), "build", "--clean", "--strict", "--config-file", str(CONFIG)]
    if status := subprocess.run(command, check=False, cwd=ROOT).returncode:
        return status
    for path in SITE.rglob("*.html"):  # no page asks a server of others for anything
        path.write_text(_FROM_ELSEWHERE.sub("", path.read_text()))
    for page in pages:
        (SITE / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PAGES / page, SITE / page)
    (SITE / "llms.txt").write_text(llms_txt(config))
    print(f"{len(pages)} pages: {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
