"""What commands print of others' texts: a terminal does nothing of it, and no line is forged."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import ottla.cli
from ottla.cli import session
from ottla.cli.errors import CliError
from ottla.cli.formats import compile_format, make_formatter
from ottla.cli.output import (
    note,
    print_json,
    print_json_line,
    print_line,
    print_pairs,
    print_table,
    printable,
)
from ottla.records._kernel import ConsumerRecord

# Sets the title, clears the screen, begins a line, turns the direction of text, and has half of a character.
HOSTILE = "group\x1b]0;PWNED\x07\x1b[2J\nadmin  Stable\r\u202eabc\x9b31m\udcff\u2028x\x7f"
STEERING = [chr(code) for code in (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2028)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["terminal", "pipe"])
def stdout(request: pytest.FixtureRequest) -> io.StringIO:
    return Terminal() if request.param == "terminal" else io.StringIO()


def steering_in(text: str) -> list[str]:
    return [each for each in STEERING if each in text]


def test_a_table_has_a_row_for_each_row(stdout: io.StringIO) -> None:
    with redirect_stdout(stdout):
        print_table(["group", "state"], [[HOSTILE, "Empty"], ["another", "Stable"]])
    shown = stdout.getvalue()
    if isinstance(stdout, Terminal):
        shown = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    else:
        assert len(shown.splitlines()) == 3
    assert steering_in(shown) == []
    assert "\\x1b]0;PWNED" in shown.replace("\n", "")


def test_lines_and_pairs_are_one_line_each(stdout: io.StringIO) -> None:
    with redirect_stdout(stdout):
        print_line(HOSTILE)
        print_pairs([(HOSTILE, 1), ("state", HOSTILE)])
    assert len(stdout.getvalue().splitlines()) == 3
    assert steering_in(stdout.getvalue()) == []


def test_remarks_and_failures_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise CliError.of_all([HOSTILE, "another"])

    note(HOSTILE)
    assert session.exit_status_of(fail) == 1
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 3
    assert steering_in(shown) == []


def test_json_is_exact_and_safe(stdout: io.StringIO) -> None:
    text = HOSTILE.replace("\udcff", "")
    with redirect_stdout(stdout):
        print_json({"group": [text]})
    assert json.loads(stdout.getvalue()) == {"group": [text]}
    before = len(stdout.getvalue())
    with redirect_stdout(stdout):
        print_json_line({"group": text})
    assert json.loads(stdout.getvalue()[before:]) == {"group": text}
    assert steering_in(stdout.getvalue()) == []


def test_records_are_escaped_for_a_terminal_and_exact_elsewhere() -> None:
    data = b"a\n\x1b[2J"
    record: ConsumerRecord[bytes, bytes] = ConsumerRecord("t", 0, 7, 1, data, data, [("h\x1b", b"1")])
    text = make_formatter("text")
    exact = compile_format(r"%o %k %s %h\n", text, text)(record)
    assert exact == "7 a\n\x1b[2J a\n\x1b[2J h\x1b=1\n"
    escaped = compile_format(r"%o %k %s %h\n", text, text, printable)(record)
    assert escaped == "7 a\\n\\x1b[2J a\\n\\x1b[2J h\\x1b=1\n"


# What these print is their own text.
PRINTS = {
    "output.py",
    "app.py",
    "commands.py",
    "compatibility.py",
    "sim.py",
    "main.py",
    "pipeline_results.py",
}


def test_commands_print_by_the_module_that_escapes() -> None:
    for path in Path(ottla.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                assert path.name in PRINTS, f"{path.name}:{node.lineno}: use print_line"
