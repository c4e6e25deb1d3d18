"""Combine the batches of a share partition's state with new ones (Kafka's `PersisterStateBatchCombiner`).

Where batches overlap, the higher delivery count wins, and of equal counts the higher delivery state: a
record's deliveries only grow, and a terminal state is higher than available. Batches below the start offset
are dropped. Invariant: the result is in the order of offsets, without overlaps, and neighbours with the same
count and state are one batch.

Combining costs as much as the batches that the new ones touch: those below and above are copied as a slice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ottla.coordinator.share.persister import UNINITIALIZED_START_OFFSET, PersisterStateBatch

_START_UNKNOWN: Final = UNINITIALIZED_START_OFFSET


def combine_state_batches(
    current: Sequence[PersisterStateBatch],
    new: Iterable[PersisterStateBatch],
    start_offset: int,
) -> Sequence[PersisterStateBatch]:
    """Combine batches that this function returned before with new ones, which may be in any order and may
    overlap.
    """
    current = _from_start(current, start_offset)
    lowest = start_offset if start_offset != _START_UNKNOWN else None
    clipped = [
        batch if lowest is None or batch.first_offset >= lowest else batch._replace(first_offset=lowest)
        for batch in new
        if batch.first_offset <= batch.last_offset and (lowest is None or batch.last_offset >= lowest)
    ]
    if not clipped:
        return current
    added: Sequence[PersisterStateBatch] = clipped
    if len(clipped) > 1:
        clipped.sort()
        added = _without_overlaps(clipped)
    if not current:
        return added
    # The window of batches that the new ones overlap or adjoin.
    low = bisect_left(current, added[0].first_offset - 1, key=_last_offset)
    high = bisect_right(current, added[-1].last_offset + 1, lo=low, key=_first_offset)
    combined = list(current)
    combined[low:high] = _merge(current[low:high], added)
    return combined


def ordered_state_batches(
    batches: Sequence[PersisterStateBatch], start_offset: int
) -> Sequence[PersisterStateBatch]:
    """The batches of a snapshot, which are in order already if a coordinator wrote it."""
    return batches if _are_disjoint(batches) else combine_state_batches((), batches, start_offset)


def _are_disjoint(batches: Sequence[PersisterStateBatch]) -> bool:
    """Whether batches are in the order of offsets and without overlaps."""
    return all(one[1] < following[0] for one, following in pairwise(batches))


def _from_start(batches: Sequence[PersisterStateBatch], start_offset: int) -> Sequence[PersisterStateBatch]:
    """The part of ordered batches at and above the start offset."""
    if start_offset == _START_UNKNOWN or not batches or batches[0].first_offset >= start_offset:
        return batches
    at = bisect_left(batches, start_offset, key=_last_offset)
    kept = list(batches[at:])
    if kept and kept[0].first_offset < start_offset:
        kept[0] = kept[0]._replace(first_offset=start_offset)
    return kept


def _without_overlaps(batches: Sequence[PersisterStateBatch]) -> Sequence[PersisterStateBatch]:
    """Combine batches in the order of their first offsets that may overlap."""
    if _are_disjoint(batches):
        return _merge(batches, ())
    middle = len(batches) // 2
    return _merge(_without_overlaps(batches[:middle]), _without_overlaps(batches[middle:]))


def _merge(
    left: Sequence[PersisterStateBatch], right: Sequence[PersisterStateBatch]
) -> list[PersisterStateBatch]:
    """Merge two ordered sequences, each without overlaps within."""
    out: list[PersisterStateBatch] = []
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts, None), next(rights, None)
    while a is not None and b is not None:
        if a.last_offset < b.first_offset:
            _append(out, a)
            a = next(lefts, None)
        elif b.last_offset < a.first_offset:
            _append(out, b)
            b = next(rights, None)
        elif a.first_offset < b.first_offset:
            _append(out, a._replace(last_offset=b.first_offset - 1))
            a = a._replace(first_offset=b.first_offset)
        elif b.first_offset < a.first_offset:
            _append(out, b._replace(last_offset=a.first_offset - 1))
            b = b._replace(first_offset=a.first_offset)
        else:
            last = min(a.last_offset, b.last_offset)
            winner = a if _priority(a) > _priority(b) else b
            _append(out, winner._replace(last_offset=last))
            a = a._replace(first_offset=last + 1) if a.last_offset > last else next(lefts, None)
            b = b._replace(first_offset=last + 1) if b.last_offset > last else next(rights, None)
    for rest, batches in ((a, lefts), (b, rights)):
        if rest is not None:
            _append(out, rest)
        for batch in batches:
            _append(out, batch)
    return out


def _append(out: list[PersisterStateBatch], batch: PersisterStateBatch) -> None:
    """Append a batch, as part of the last one if it continues that with the same count and state."""
    if out:
        last = out[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            out[-1] = last._replace(last_offset=batch.last_offset)
            return
    out.append(batch)


def _priority(batch: PersisterStateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


def _first_offset(batch: PersisterStateBatch) -> int:
    return batch.first_offset


def _last_offset(batch: PersisterStateBatch) -> int:
    return batch.last_offset
