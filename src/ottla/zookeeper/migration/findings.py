"""What an import has to say: what comes over, what does not, and what looks wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

# Findings of one kind that are listed in full; of more, their number is said.
MAX_LISTED = 20


@dataclass(slots=True)
class Findings:
    """Lines for an operator. With `problems` nothing is written."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    """What the new cluster does not have."""
    notes: list[str] = field(default_factory=list)

    def add_all(self, other: Findings) -> None:
        self.problems += other.problems
        self.warnings += other.warnings
        self.left_behind += other.left_behind
        self.notes += other.notes


def some_of(names: list[str]) -> str:
    """List names, the first of many.

    >>> some_of(["a", "b"])
    'a, b'
    """
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return ", ".join(names[:MAX_LISTED]) + f" and {len(names) - MAX_LISTED} others"
