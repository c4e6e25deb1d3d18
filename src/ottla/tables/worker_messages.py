"""What a broker asks of the worker that keeps its tables, and the answers: JSON, and record batches."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict


class Configure(TypedDict):
    """Use this catalog (`CatalogSettings`) from now on."""

    op: Literal["configure"]
    catalog: dict[str, Any]


class Open(TypedDict):
    """Open a table by its settings (`TableSettings`), or make it. The answer is `Offsets`."""

    op: Literal["open"]
    topic: str
    table: dict[str, Any]
    now_ms: NotRequired[int]


class Append(TypedDict):
    """Take the record batches that come with it, which begin at an offset of a partition: `AppendAnswer`."""

    op: Literal["append"]
    topic: str
    partition: int
    offset: int
    # Producer id and first offset of each transaction that was aborted.
    aborted: list[tuple[int, int]]
    rebuild: bool
    now_ms: int


class Commit(TypedDict):
    """Commit what was taken; without rows only if `always`, as offsets that no row stands behind can wait.
    The answer is `CommitAnswer`.
    """

    op: Literal["commit"]
    topic: str
    always: bool
    # The partitions of which all records are taken that were there when the round began.
    complete: list[int]


class Maintain(TypedDict):
    """Merge small files and expire snapshots of a table that is open, by `MaintenanceSettings`."""

    op: Literal["maintain"]
    topic: str
    settings: dict[str, int]


WorkerRequest: TypeAlias = Configure | Open | Append | Commit | Maintain

Offsets: TypeAlias = dict[str, int]
"""By partition, as text: the offset that follows the last one in the table."""


class AppendAnswer(TypedDict, total=False):
    """With `rebuild`, nothing was taken, and the partition is wanted again from the start of its log."""

    rebuild: bool
    next: int
    full: bool


class CommitAnswer(TypedDict):
    rows: int
    files: int
    bytes: int
