"""Reading what is not in memory without blocking the event loop.

A handler reads with `may_wait=False` and collects what is missing. The pool loads that, and the handler reads
again: everything (`load_and_retry`), so that the response is made in one turn of the loop, of what is true
then, or only what was missing. Each round may find the next thing missing (an index, then the batch that it
points to), and memory may be short, so the rounds are limited and the last attempt waits for the disk. What
is in remote storage is missing in the same way, and is read while the event loop does other things; nothing
waits for it longer than `remote.fetch.max.wait.ms`. So is a search that takes longer than a turn
(SearchTooLong), which goes on in a thread when it is the client's turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Final, Protocol, TypeAlias, TypeVar

from ottla.log.segment.timestamp_search import STEP_US, SearchTooLong, TimestampSearch
from ottla.node.fetch.remote_reads import RemoteAccess
from ottla.runtime.disk import NotInMemory
from ottla.runtime.pool import Pool

T = TypeVar("T")

MissingReads: TypeAlias = list[NotInMemory | RemoteAccess | SearchTooLong]


class RunHeavy(Protocol):
    """Does heavy work for a client (`ottla.runtime.heavy_work`)."""

    def __call__(self, cost_us: int, fn: Callable[[], None], *, memory_bytes: int) -> Awaitable[None]: ...


_ROUNDS: Final = 8


async def load_and_retry(
    pool: Pool,
    missing: MissingReads,
    attempt: Callable[[MissingReads | None], T],
    run_heavy: RunHeavy | None = None,
) -> T:
    """Load what an attempt found missing, and attempt again. An attempt adds what it misses to the list;
    given None it waits for the disk instead. `run_heavy` is needed where it searches.
    """
    for may_miss in rounds():
        if not may_miss:
            break
        await load(pool, missing, run_heavy)
        missing = []
        result = attempt(missing)
        if not missing:
            return result
    return attempt(None)


def rounds() -> Iterator[bool]:
    """Return for each attempt whether it may find something missing, so that it has to be repeated."""
    return chain(repeat(True, _ROUNDS), (False,))


async def load(pool: Pool, missing: MissingReads, run_heavy: RunHeavy | None = None) -> None:
    """Load what an attempt found missing."""
    cold = [each for each in missing if isinstance(each, NotInMemory)]
    if len(cold) < len(missing):
        await asyncio.gather(*(each.run() for each in missing if isinstance(each, RemoteAccess)))
    if cold:
        await pool.run(_load, cold)
    for each in missing:
        if isinstance(each, SearchTooLong):
            assert run_heavy is not None
            await _search(each.search, run_heavy)


async def _search(search: TimestampSearch, run_heavy: RunHeavy) -> None:
    """Search to the end, step by step: others have their turn in between."""
    while not search.is_done:
        cost_us = max(search.cost_us, STEP_US)
        await run_heavy(cost_us, partial(search.step, cost_us), memory_bytes=search.memory_bytes)


def _load(missing: list[NotInMemory]) -> None:
    for each in missing:
        with contextlib.suppress(OSError):  # the next attempt meets the error again
            each.load()
