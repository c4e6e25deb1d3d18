"""Why a table cannot be kept, and what changed under a commit."""

from __future__ import annotations


class TableError(Exception):
    """The table cannot be used as it is; the text says what to do."""


class MissedDeletes(Exception):
    """The log may have lost tombstones that the table has not seen: the partition has to be read again from
    its start.
    """


class OffsetsMoved(Exception):
    """Another broker has committed to the table meanwhile: read its offsets again and continue from there."""
