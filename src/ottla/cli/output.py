"""Print the output of commands: tables for people, JSON for programs.

On a terminal a table is drawn to fit it. Everywhere else it is plain columns that are never truncated, for
`grep` and `awk`. With `--json` a command prints one document, or one line for each record of an unbounded
output, and nothing else on stdout.

Names, messages and records are texts of others: `printable` escapes what in them would steer a terminal or
look like a further line. JSON has escapes of its own, and says exactly what there is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table

Cell: TypeAlias = str | int | float | bool | None

# Control characters, those that change the direction of text, other ends of lines, and halves of characters.
_STEERING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """A text as one line that does nothing to a terminal.

    >>> print(printable("caf\\u00e9\\n\\x1b[2J"))
    café\\n\\x1b[2J
    """
    return _STEERING.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(match[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def print_line(text: str = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line, which may have texts of others."""
    print(printable(text), file=file, flush=flush)


def print_text(text: str) -> None:
    """Print a text of several lines as it is, for a file; to a terminal with escapes in its lines."""
    if sys.stdout.isatty():
        for line in text.split("\n"):
            print_line(line)
    else:
        print(text)


def print_json(document: Any) -> None:
    """Print one indented document."""
    import json

    print(_safe_json(json.dumps(document, indent=2, ensure_ascii=False)))


def print_json_line(document: Any) -> None:
    """Print one document of many, in one line."""
    import json

    print(_safe_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"))))


def _safe_json(text: str) -> str:
    """The same JSON, with escapes in its texts for characters that steer a terminal."""
    return _STEERING.sub(lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table. Columns of numbers are aligned to the right; None is shown as a dash."""
    table = [list(row) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console

        Console(markup=False, emoji=False, highlight=False).print(drawn_table(columns, table))
    else:
        _print_columns(
            columns, [[_text(cell) for cell in row] for row in table], _right_aligned(columns, table)
        )


def drawn_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """A table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name, is_right in zip(columns, _right_aligned(columns, rows)):
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _right_aligned(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[bool]:
    return [
        bool(rows) and all(isinstance(row[n], int | float) or row[n] is None for row in rows)
        for n in range(len(columns))
    ]


def print_pairs(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print names and values, a line each."""
    shown = [(name, _text(value)) for name, value in pairs]
    width = max((len(printable(name)) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{printable(name):<{width}}  {value}".rstrip())


def note(text: str) -> None:
    """Print a remark for people, on stderr: stdout is for results."""
    print_line(text, file=sys.stderr)


def check_reader() -> None:
    """Raise BrokenPipeError if what reads the output has closed its pipe: a command that waits for something
    to print would not notice.
    """
    import select

    try:
        file = sys.stdout.fileno()
    except OSError:  # not a file of the operating system
        return
    pipe = select.poll()
    pipe.register(file, 0)  # errors are always reported
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in pipe.poll(0)):
        raise BrokenPipeError


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.1f}" if isinstance(cell, float) else printable(str(cell))


def _print_columns(columns: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
    header = [name.upper() for name in columns]
    widths = [max(len(line[n]) for line in [header, *rows]) for n in range(len(columns))]
    for line in [header, *rows]:
        parts = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right)
        ]
        print("  ".join(parts).rstrip())


def size_text(size_bytes: int | None) -> str | None:
    """
    >>> size_text(1536), size_text(12)
    ('1.5 KiB', '12 B')
    """
    if size_bytes is None:
        return None
    size = float(size_bytes)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def time_text(timestamp_ms: int | None) -> str | None:
    """A time in ISO 8601, UTC; None for no time.

    >>> time_text(0)
    '1970-01-01T00:00:00.000Z'
    """
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def ids_text(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))
