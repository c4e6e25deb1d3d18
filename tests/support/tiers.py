"""Which tests `make test` runs: a witness of everything, `pytest --witnesses`. Without it, all run."""

from __future__ import annotations

from typing import Final

import pytest

WITNESSES: Final = "(witness or not exhaustive)"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--witnesses", action="store_true", help="run what `make test` runs")


def choose(config: pytest.Config, expression: str) -> None:
    """Leave out what has not the marks of `expression`, in addition to what `-m` leaves out."""
    chosen = config.option.markexpr
    config.option.markexpr = f"({chosen}) and {expression}" if chosen else expression
