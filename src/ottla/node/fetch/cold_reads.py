"""Reading what is not in memory without blocking the event loop.

A handler reads with `may_wait=False` and collects what is missing. The pool loads that, and the handler reads
again: everything (`load_and_retry`), so that the response is made in one turn of the loop, of what is true
then, or only what was missing. Each round may find the next thing missing (an index, then the batch that it
points to), and memory may be short, so the rounds are limited and the last attempt waits for the disk. What
is in remote storage is missing in the same way, and is read while the event loop does other things; nothing
waits for it longer than `remote.fetch.max.wait.ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Final, TypeAlias, TypeVar

from ottla.node.fetch.remote_reads import RemoteAccess
from ottla.runtime.disk import NotInMemory
from ottla.runtime.pool import Pool

T = TypeVar("T")

Missing: TypeAlias = list[NotInMemory | RemoteAccess]
_ROUNDS: Final = 8


async def load_and_retry(pool: Pool, missing: Missing, attempt: Callable[[Missing | None], T]) -> T:
    """Load what an attempt found missing, and attempt again. An attempt adds what it misses to the list;
    given None it waits for the disk instead.
    """
    for may_miss in rounds():
        if not may_miss:
            break
        await load(pool, missing)
        missing = []
        result = attempt(missing)
        if not missing:
            return result
    return attempt(None)


def rounds() -> Iterator[bool]:
    """Return for each attempt whether it may find something missing, so that it has to be repeated."""
    return chain(repeat(True, _ROUNDS), (False,))


async def load(pool: Pool, missing: Missing) -> None:
    """Load what an attempt found missing."""
    cold = [each for each in missing if isinstance(each, NotInMemory)]
    if len(cold) < len(missing):
        await asyncio.gather(*(each.run() for each in missing if isinstance(each, RemoteAccess)))
    if cold:
        await pool.run(_load, cold)


def _load(missing: list[NotInMemory]) -> None:
    for each in missing:
        with contextlib.suppress(OSError):  # the next attempt meets the error again
            each.load()
