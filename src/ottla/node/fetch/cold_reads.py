"""Reading what is not in memory, without stopping the event loop for it.

A handler reads with `may_wait=False` and notes what it missed. If that was anything, it is loaded by the pool
and everything is read again: the answer is always made in one go, on the loop, from what is true then. Each
round may find the next thing missing (an index, then the batch that it leads to), and memory may be short, so
rounds are few and the last attempt waits for the disk like any other program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from ottla.runtime.disk import NotInMemory
from ottla.runtime.pool import Pool

T = TypeVar("T")

Missing: TypeAlias = list[NotInMemory]
_ROUNDS: Final = 8


async def load_and_retry(pool: Pool, missing: Missing, attempt: Callable[[Missing | None], T]) -> T:
    """Load what an attempt missed and try again. An attempt adds to the list what it misses; given None it
    has to wait for the disk instead.
    """
    for _ in range(_ROUNDS):
        await pool.run(_load, missing)
        missing = []
        result = attempt(missing)
        if not missing:
            return result
    return attempt(None)


def _load(missing: Missing) -> None:
    for each in missing:
        with contextlib.suppress(OSError):  # whoever reads it again is told
            each.load()
