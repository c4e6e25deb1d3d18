"""The pages of `docs/reference`, from the code: `python -m tests.support.reference_docs`.

A test compares the pages with the code, so neither can change alone.
"""

from __future__ import annotations

import ast
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ottla.cli.app import root
from ottla.cli.start import HELP as START
from ottla.protocol.errors import ErrorCode
from ottla.testing.local_node import LocalNode

ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = ROOT / "docs" / "reference"
_MADE: Final = "<!-- Made by `python -m tests.support.reference_docs`; do not edit. -->\n"
_COMMON: Final = ("--bootstrap-server", "--timeout", "--command-config", "--json", "--help")
_METRIC: Final = re.compile(r"(?:kafka|ottla|process|python)_[a-z0-9_]+")


def commands() -> str:
    """Every command with its options."""
    parts = [
        "# Commands\n",
        _MADE,
        "What each command takes; [the command line](../cli.md) says what they have in common, with\n"
        "examples. Commands that talk to a cluster take `-b, --bootstrap-server`, `--timeout`,\n"
        "`--command-config` and `--json`; all have `--help`.\n",
    ]
    top = root()
    context = click.Context(top, info_name="ottla")
    for name in top.list_commands(context):
        command = top.get_command(context, name)
        assert command is not None
        parts += _command(command, f"ottla {name}", context)
    return "\n".join(parts)


def _command(command: click.Command, name: str, above: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name.split()[-1], parent=above)
    yield f"{'##' if name.count(' ') == 1 else '###'} {name}\n"
    if name == "ottla start":  # which reads its options itself
        yield f"```text\n{START}```\n"
        return
    yield _help(command.help or "") + "\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inside = command.get_command(context, each)
            assert inside is not None
            yield from _command(inside, f"{name} {each}", context)
        return
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if arguments:
        yield f"`{name} [OPTIONS] {' '.join(each.make_metavar(context) for each in arguments)}`\n"
    lines = []
    options = [each for each in command.params if isinstance(each, click.Option)]
    for parameter in (*arguments, *options):
        record = parameter.get_help_record(context)
        if record is None or set(_COMMON) & set(parameter.opts):
            continue
        if record[1] or parameter in options:
            lines.append(f"- `{record[0]}` {_plain(record[1])}".rstrip())
    if lines:
        yield "\n".join(lines) + "\n"


def _help(text: str) -> str:
    """The help of a command. A paragraph that click leaves as it is, after a backspace, is a block."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        f"```text\n{each.lstrip(chr(8)).strip()}\n```" if each.lstrip().startswith("\b") else _plain(each)
        for each in paragraphs
    )


def _plain(text: str) -> str:
    text = re.sub(r"\s*\n\s*", " ", re.sub(r"\n\s*\n", "\0", text.replace("\b", "").strip())).replace(
        "\0", "\n\n"
    )
    return re.sub(r"(`[^`]*`)|([*_<|](?=\S))", lambda each: each[1] or f"\\{each[2]}", text)


def errors() -> str:
    """Kafka's error codes."""
    lines = [
        "# Errors\n",
        _MADE,
        "The codes that a broker answers with, and what is said where there is nothing better to say. A\n"
        "client repeats what is retriable. In Python each is a `KafkaError` with its `code`;\n"
        "[those of the clients](../clients/api.md#errors) have classes.\n",
        "| code | name | retriable | |",
        "|---:|---|---|---|",
    ]
    lines += [
        f"| {code.value} | `{code.name}` | {'yes' if code.retriable else ''} | {code.text} |"
        for code in ErrorCode
    ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """The metrics of a node: those that one shows, and those that the code names beside them."""
    families = {**_in_the_code(), **_of_a_node()}
    lines = [
        "# Metrics\n",
        _MADE,
        "What `/metrics` of a node has, as [operations](../operations.md#metrics) explains; some only\n"
        "appear when there is something to tell. Metrics that clients push are\n"
        "[telemetry](../telemetry.md).\n",
        "| metric | |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {_plain(text)} |" for name, text in sorted(families.items())]
    return "\n".join(lines) + "\n"


def _of_a_node() -> dict[str, str]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        answer = urllib.request.urlopen(f"{node.http_url}/metrics", timeout=30)
        return dict(re.findall(r"^# HELP (\S+) (.*)$", answer.read().decode(), re.MULTILINE))


def _in_the_code() -> dict[str, str]:
    """Calls whose first two arguments are the name of a metric and what it says."""
    found = {}
    for path in sorted((ROOT / "src" / "ottla").rglob("*.py")):
        text = path.read_text()
        if "metrics" not in path.as_posix() and "metrics" not in text:
            continue
        tree = ast.parse(text)
        names = dict(_constants(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) >= 2:
                name, meaning = (_text(each, names) for each in node.args[:2])
                if name is not None and meaning is not None and _METRIC.fullmatch(name):
                    found[name] = meaning
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for each in tree.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
            value = _text(each.value, {})
            if value is not None:
                yield each.target.id, value


def _text(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


PAGES: Final = {"commands.md": commands, "errors.md": errors, "metrics.md": metrics}


if __name__ == "__main__":
    for page, render in PAGES.items():
        (DIRECTORY / page).write_text(render())
