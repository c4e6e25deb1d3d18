"""Collections of cyclic garbage that stay short however many objects a node holds.

A full collection of CPython visits every container that it knows, about 30 for each partition, and holds
the process meanwhile: a quarter of a second with 10,000 partitions. What has survived one full collection
while the node grows is therefore frozen: later ones pass over it. Objects that are frozen still go when their
last reference does; only cycles among them stay. So what a node makes and drops all the time must not leave
cycles behind (`tests/node/test_garbage.py`), and a complete collection, which takes its time and is logged,
comes only after millions of objects have been frozen.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import Any, Final

_log = logging.getLogger(__name__)

# New containers, minus those that are gone, for a collection of the youngest; such collections for one of the
# next generation; those for a full one. A full one visits about 8,000 objects of a node that only grows.
_THRESHOLDS: Final = (700, 5, 1)
# A full collection that takes longer than this freezes its survivors.
_FREEZE_AFTER_MS: Final = 2.0
# Objects that are frozen before everything is collected once more.
_MAX_FROZEN: Final = 3_000_000


class GarbageCollection:
    """The collector of this process, from `start` to `stop`. Its figures are read from any thread."""

    def __init__(self, *, freeze_after_ms: float = _FREEZE_AFTER_MS, max_frozen: int = _MAX_FROZEN) -> None:
        self._freeze_after_ns: Final = int(freeze_after_ms * 1e6)
        self._max_frozen: Final = max_frozen
        self._before: tuple[int, int, int] | None = None
        self._start_ns = 0
        # Objects that were frozen since the last complete collection; those that have gone since are counted
        # until that many are reached.
        self.frozen = 0
        # Objects that were frozen right after it.
        self._kept = 0
        self.full_collections = 0
        self.longest_ms = 0.0
        # The time of all collections so far.
        self.total_ms = 0.0

    def start(self) -> None:
        """Freeze what there is, such as modules and classes, and take the collector over."""
        assert self._before is None, "started twice"
        gc.freeze()
        # CPython puts full collections off until the new survivors are a quarter of the old ones, which are
        # frozen and no longer count; a collection, of nothing, makes it count again from here.
        gc.collect()
        self._kept = gc.get_freeze_count()
        self._before = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        if self._before is not None:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None

    @property
    def needs_complete(self) -> bool:
        """So much is frozen that cycles among it could matter: `collect_all` is due at a quiet moment."""
        if self.frozen >= self._max_frozen:
            # Objects go from among the frozen ones with their last reference.
            self.frozen = max(gc.get_freeze_count() - self._kept, 0)
        return self.frozen >= self._max_frozen

    def collect_all(self) -> None:
        """Collect all garbage, what is frozen included; in one turn, which may be a long one."""
        began_ns = time.monotonic_ns()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        took_ms = (time.monotonic_ns() - began_ns) / 1e6
        _log.warning("a complete garbage collection found %d objects and took %.0f ms", found, took_ms)
        self.frozen = 0
        self._kept = gc.get_freeze_count()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._start_ns = time.monotonic_ns()
            return
        took_ns = time.monotonic_ns() - self._start_ns
        took_ms = took_ns / 1e6
        self.total_ms += took_ms
        self.longest_ms = max(self.longest_ms, took_ms)
        if info["generation"] == 2:
            self.full_collections += 1
            if took_ns >= self._freeze_after_ns:
                self.frozen += len(gc.get_objects())
                gc.freeze()
