"""Reduce what a Spark Python worker spends on garbage collection.

A worker runs task after task, and after each of them Spark's daemon collects garbage of all generations: it
walks over every imported object, which takes 10 to 30 ms of a core, more than a task of a small micro-batch.
Objects that survive the first task stay for the life of the worker, so they are frozen: the collector skips
them. They are still freed when their last reference goes, and garbage in cycles that later tasks leave is
still collected.
"""

from __future__ import annotations

import gc

_tasks = 0


def begin_task() -> None:
    """Count a call from Spark; at the second one, right after the first collection, freeze what survived."""
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.freeze()
