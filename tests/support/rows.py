"""Rows of a table, or seeds, that one test goes through: `@for_each("cls", EVERY_MESSAGE)`.

It takes what `pytest.mark.parametrize` takes. A row costs pytest some milliseconds of processor: each worker
collects it, and reports of it are sent three times. Thousands of rows that take less than that are one test.
All of them run, a failure names its row, and `pytest --row NAME` runs those of that name alone.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

_only: list[str] = []


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--row", action="append", default=[], help="of tests with rows, run those of this name")


def choose(config: pytest.Config) -> None:
    _only[:] = config.getoption("--row")


def for_each(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Callable[[Any], str] | Sequence[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test that calls the decorated one with each row; each has a directory of its own as `tmp_path`,
    and each coroutine an event loop.
    """
    columns = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    named = list(_named(rows, len(columns), ids))
    assert named, f"no rows for {names}"

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        runs_in_loop = inspect.iscoroutinefunction(test)

        @wraps(test)
        def every_row(*arguments: Any, **fixtures: Any) -> None:
            failures = []
            for number, (name, values) in enumerate(_chosen(named)):
                if isinstance(fixtures.get("tmp_path"), Path):
                    own = fixtures["tmp_path"] / str(number)
                    own.mkdir()
                    given = {**fixtures, "tmp_path": own}
                else:
                    given = fixtures
                try:
                    returned = test(*arguments, **given, **dict(zip(columns, values, strict=True)))
                    if runs_in_loop:
                        asyncio.run(returned)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"in the row {name!r}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(named)} rows", failures)

        signature = inspect.signature(test)
        kept = [each for each in signature.parameters.values() if each.name not in columns]
        every_row.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return every_row

    return decorate


def _chosen(named: list[tuple[str, Sequence[Any]]]) -> list[tuple[str, Sequence[Any]]]:
    return [row for row in named if row[0] in _only] or named


def _named(
    rows: Iterable[Any], columns: int, ids: Callable[[Any], str] | Sequence[str] | None
) -> Iterator[tuple[str, Sequence[Any]]]:
    for number, row in enumerate(rows):
        if type(row) is type(pytest.param()):
            assert not row.marks, "a row with marks of its own is parametrized"
            values, name = row.values, str(row.id) if row.id else None
        else:
            values, name = (row,) if columns == 1 else row, None
        if isinstance(ids, Sequence):
            name = ids[number]
        yield name or "-".join(map(ids if callable(ids) else _name, values)), values


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
