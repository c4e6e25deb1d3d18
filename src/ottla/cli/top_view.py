"""One output of `ottla top`: the document for programs, and the tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla.cli.output import Cell

Table: TypeAlias = tuple[str, Sequence[str], list[Sequence[Cell]]]
"""A title, the columns and the rows."""


@dataclass(frozen=True, slots=True)
class TopView:
    document: dict[str, Any]
    tables: list[Table]
    problems: list[str]
