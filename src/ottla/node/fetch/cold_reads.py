"""Reading what is not in memory without blocking the event loop.

A handler reads with `may_wait=False` and collects what is missing. The pool loads that, and the handler reads
everything again, so a response is always made in one turn of the loop, of what is true then. Each round may
find the next thing missing (an index, then the batch that it points to), and memory may be short, so the
rounds are limited and the last attempt waits for the disk.
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
    """Load what an attempt found missing, and attempt again. An attempt adds what it misses to the list;
    given None it waits for the disk instead.
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
        with contextlib.suppress(OSError):  # the next attempt meets the error again
            each.load()
