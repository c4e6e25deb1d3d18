"""The blocks of code of the documentation, and how a page is walked through.

Each block of Python or console is run by a test, or a comment before it says why not:

    <!-- not run: needs a container engine -->
    <!-- run by tests/client/test_guide.py -->

A comment stands for the block that follows it or, as the first thing below the title of a page, for all its
blocks. What has no comment is walked through by `tests/docs/test_walks.py`: the commands of a page run one
after another, and print what the page shows. In what is shown, `…` stands for any text of a line, and a line
of it for any lines. With `<!-- numbers vary -->` before a block its numbers stand for any others. A block is
walked through though its page is not with `<!-- runs -->` before it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.command_line import CommandLine

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
RUNNABLE: Final = frozenset({"python", "console"})
DEADLINE_S: Final = 60.0
_BLOCK: Final = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!-- (not run|run by|numbers vary|runs)[: ] *([^>]*?) ?-->")
_CHANGING: Final = re.compile(
    r"ottla (topics (create|alter|delete)|produce|delete-records|configs alter|perf"
    r"|cluster (up|down|kill|start))"
)


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    why_not: str | None
    """Why no test runs it."""
    runs_in: str | None
    """The test that runs it."""
    numbers_vary: bool = False

    @property
    def is_walked(self) -> bool:
        return self.why_not is None and self.runs_in is None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that can run."""
    text = page.read_text()
    below_the_title = re.match(r"# .*\n\s*", text)
    first = _COMMENT.match(text, below_the_title.end()) if below_the_title else None
    for_all = [first] if first else []
    found_blocks = []
    for found in _BLOCK.finditer(text):
        if found[2] not in RUNNABLE:
            continue
        before = text[: found.start()].rstrip()
        own = [each for each in _COMMENT.finditer(before) if each.end() == len(before)]
        said = {each[1]: each[2] for each in (own or for_all)}
        line = text.count("\n", 0, found.start()) + 2
        found_blocks.append(
            Block(
                page,
                line,
                found[2],
                found[3],
                said.get("not run"),
                said.get("run by"),
                "numbers vary" in said,
            )
        )
    return found_blocks


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    shown: tuple[str, ...]


def commands(text: str) -> list[Command]:
    """The commands of a block of console, each with what it prints."""
    found: list[tuple[str, list[str]]] = []
    continues = False
    for line in text.splitlines():
        if continues:
            command, shown = found[-1]
            found[-1] = (f"{command}\n{line}", shown)
        elif line.startswith("$ "):
            found.append((re.sub(r"\s{2,}#.*", "", line[2:]), []))
        elif found:
            found[-1][1].append(line)
        continues = line.endswith("\\")
    return [Command(command.replace("\\\n", ""), tuple(shown)) for command, shown in found]


def fits(shown: str, printed: str, numbers_vary: bool = False) -> bool:
    """Whether a page shows what was printed; how wide columns are does not count."""
    if numbers_vary:
        shown, printed = (re.sub(r"\d[\d.,]*", "0", text) for text in (shown, printed))
    lines = []
    for line in shown.splitlines():
        words = " ".join(line.split())
        lines.append("(?:.*\n)*" if words == "…" else f"{re.escape(words).replace('…', '.*')}\n")
    tidy = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())
    return re.fullmatch("".join(lines), tidy) is not None


class CommandFailed(Exception):
    """A command of a page ended with an error; the text says which."""


@dataclass(slots=True)
class Walk:
    """Runs the blocks of a page: `ottla` in this process, the rest in a shell, both in `directory`.

    `replace` has what a page writes and what stands for it here, as the address of a node. A command that
    begins as a name of `instead` is not run; the function, if there is one, is called with it.
    """

    directory: Path
    servers: str
    replace: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Callable[[str], str] | None] = field(default_factory=dict)

    def block(self, block: Block) -> None:
        if block.language == "python":
            self.python(block)
            return
        for command in commands(block.text):
            self.command(command, block)

    def python(self, block: Block) -> None:
        code = self._here(block.text)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{block}: {done.stderr}"

    def command(self, command: Command, where: Block) -> None:
        shown = self._here("\n".join(command.shown))
        text = self._here(command.text)
        if any(text.startswith(name) and call is None for name, call in self.instead.items()):
            return
        deadline = time.monotonic() + DEADLINE_S
        while (wrong := self._mistake(text, shown, where)) is not None:
            # What one node has done another learns a moment later: a question is asked until the answer fits.
            if _CHANGING.search(text) or time.monotonic() > deadline:
                raise AssertionError(wrong)
            time.sleep(0.05)

    def _mistake(self, text: str, shown: str, where: Block) -> str | None:
        try:
            printed = self._run(text)
        except CommandFailed as error:
            return f"{where}: {error}"
        if shown and not fits(shown, printed, where.numbers_vary):
            return f"{where}: `{text}` prints\n{printed}\nand not\n{shown}"
        return None

    def _here(self, text: str) -> str:
        for written, real in self.replace.items():
            text = text.replace(written, real)
        return text

    def _run(self, text: str) -> str:
        for name, call in self.instead.items():
            if text.startswith(name) and call is not None:
                return call(text)
        printed = ""
        for part in text.split(" | "):
            if not part.startswith("ottla "):
                printed = self._shell(part, printed)
                continue
            words = self._shell(f"printf '%s\\0' {part.removeprefix('ottla ')}", "").split("\0")[:-1]
            ended = CommandLine(self.servers)(*words, stdin=printed)
            if ended.status:
                raise CommandFailed(f"`{part}` ended with {ended.status}: {ended.err}")
            printed = ended.out if part != text else ended.out + ended.err
        return printed

    def _shell(self, command: str, given: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            input=given,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if done.returncode:
            raise CommandFailed(f"`{command}` ended with {done.returncode}: {done.stderr}")
        return done.stdout
