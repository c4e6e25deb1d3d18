"""What Spark's Python workers cost beside their work.

A worker runs task after task, and after each of them Spark's daemon collects garbage, all generations: it
walks over everything that was ever imported, 10 to 30 ms of a core, more than a task of a small micro-batch
takes itself. What has survived the first task is there to stay, so it is taken out of the collector's sight.
Nothing else changes: it is freed as ever when nobody refers to it any more, and what later tasks leave behind
in cycles is collected.
"""

from __future__ import annotations

import gc

__all__ = ["begin_task"]

_tasks = 0


def begin_task() -> None:
    """To be called where Spark comes in. The second time in a process, right after its first collection."""
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
