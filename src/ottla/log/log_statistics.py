"""What the logs of a node have done with the disk: flushes, cold reads, removals."""

from __future__ import annotations

from typing import Final

from ottla.runtime.metrics import Histogram

# From a tenth of a millisecond to ten seconds, in nanoseconds.
_BOUNDS_NS: Final = tuple(
    int(ms * 1e6)
    for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
)


class LogStatistics:
    """Belongs to the event loop."""

    __slots__ = ("cold_reads", "deleted_segments", "flushes")

    def __init__(self) -> None:
        # How long a flush took in its thread, and how long requests waited for records that were not in
        # memory, in nanoseconds.
        self.flushes: Final = Histogram(_BOUNDS_NS, scale=1e-9)
        self.cold_reads: Final = Histogram(_BOUNDS_NS, scale=1e-9)
        # Segments that retention has removed.
        self.deleted_segments = 0
