"""The names of the checks that a ready node passes; `health` says what each of them is."""

from __future__ import annotations

from typing import Final

PARTITIONS: Final = "partitions"
IN_SYNC: Final = "in_sync"
CHECKS: Final = (*("started", "quorum", "caught_up", "registered", "storage", PARTITIONS, IN_SYNC, "tasks"),)
