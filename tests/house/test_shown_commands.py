"""What the pages show and no test runs is at least possible: commands have the options that they are given,
and programs compile.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator

import click
import pytest

from ottla.cli.app import root
from tests.docs.blocks import Block, blocks, commands, pages

_CRON = re.compile(r"^```cron\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_in(line: str) -> Iterator[list[str]]:
    """The arguments of each command `ottla ...` in a line."""
    tokens = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    tokens.whitespace_split = True
    words: list[str] = []
    for token in (*tokens, "|"):
        if set(token) <= set("|&;<>"):
            ours = [
                at
                for at, word in enumerate(words)
                if word.endswith("bin/ottla") or (at == 0 and word == "ottla")
            ]
            if ours:
                yield words[ours[0] + 1 :]
            words = []
        else:
            words.append(token)


def check_command(words: list[str]) -> None:
    """Raise UsageError if the command line is not one of ours."""
    if words[0] == "start":
        return
    command: click.Command = root()
    context = command.make_context("ottla", list(words))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


def shown(language: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == language]


def test_commands_have_the_options_that_they_are_given() -> None:
    lines = [(str(block), command.text) for block in shown("console") for command in commands(block.text)]
    lines += [
        (page.name, line)
        for page in pages()
        for text in _CRON.findall(page.read_text())
        for line in text.splitlines()
    ]
    lines += [
        (str(block), line)
        for block in shown("python")
        for line in re.findall(r'bash_command="(.*)"', block.text)
    ]
    found = [(where, words) for where, line in lines for words in commands_in(line)]
    assert len(found) >= 150
    for where, words in found:
        try:
            check_command(words)
        except click.UsageError as error:
            pytest.fail(f"{where}: ottla {shlex.join(words)}: {error.format_message()}")
    with pytest.raises(click.UsageError):
        check_command(["pipeline", "run", "--continuos"])


def test_programs_compile() -> None:
    for block in shown("python"):
        compile(textwrap.dedent(block.text), str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
