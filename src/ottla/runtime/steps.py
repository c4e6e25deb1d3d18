"""Bulk work of pure code, as a generator that yields after each item.

Pure rooms have neither clock nor loop, so they cannot give way by themselves. A function that touches many
partitions is written as a generator: it yields where it may be interrupted, and returns its result. Its
driver decides when to give way (`ottla.runtime.work_queue.in_turns`); `run_at_once` is for those that need
not, as a start in the pool or a test.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def run_at_once(steps: Steps[T]) -> T:
    """Run to the end and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
