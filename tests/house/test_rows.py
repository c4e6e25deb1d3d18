"""One test with many rows: all of them run, and a failure names its row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.rows import for_each


def test_every_row_runs_and_each_that_fails_is_named() -> None:
    seen = []

    @for_each("number, is_even", [(1, False), pytest.param(2, False, id="two"), (3, True), (4, True)])
    def each(number: int, is_even: bool) -> None:
        seen.append(number)
        assert (number % 2 == 0) is is_even

    with pytest.raises(BaseExceptionGroup) as caught:
        each()
    assert seen == [1, 2, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in the row 'two'"],
        ["in the row '3-True'"],
    ]


def test_one_failure_is_raised_as_it_is_also_one_of_pytest() -> None:
    @for_each("error", [KeyError, ValueError])
    def each(error: type[Exception]) -> None:
        with pytest.raises(KeyError):
            raise error("other")

    with pytest.raises(ValueError, match="other") as caught:
        each()
    assert caught.value.__notes__ == ["in the row 'ValueError'"]

    @for_each("number", [1, 2])
    def nothing_raised(number: int) -> None:
        with pytest.raises(KeyError):
            assert number

    with pytest.raises(BaseExceptionGroup, match="2 of 2 rows"):
        nothing_raised()


@for_each("first", [1, 2])
@for_each("second", [1, 2])
async def test_rows_of_rows_have_a_directory_and_a_loop_of_their_own(
    first: int, second: int, tmp_path: Path
) -> None:
    (tmp_path / "mine alone").mkdir()
    assert len(asyncio.all_tasks()) == 1


def test_a_row_may_be_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @for_each("seed", range(9))
    def each(seed: int) -> None:
        seen.append(seed)

    monkeypatch.setattr(rows, "_only", ["7"])
    each()
    assert seen == [7]
