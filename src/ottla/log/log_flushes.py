"""Making a log durable, and closing it.

A flush is a plan (`prepare`), its work (`run`, in any thread) and a note of what it achieved (`complete`);
see `ottla.log.flush`. A sync that fails takes the directory offline: what the disk has kept of the writes
before it nobody knows, and a second sync might succeed and say nothing of them.
"""

from __future__ import annotations

import logging
from functools import partial

from ottla.log.flush import FlushPlan, SyncFailed
from ottla.log.log_core import LogCore

_log = logging.getLogger(__name__)


def prepare(core: LogCore, upto: int | None, *, closing: bool = False) -> FlushPlan | None:
    core.check_usable()
    plan = core.local.prepare_flush(upto, closing=closing, force=core.epochs.dirty)
    if plan is None:
        return None
    if core.epochs.dirty:
        _keep_log_start(core)
        core.epochs.prepare(plan)
    plan.snapshots = core.producers.unsynced
    if plan.snapshots:
        plan.writes.append(partial(core.producers.sync_snapshots, plan.snapshots))
    return plan


def _keep_log_start(core: LogCore) -> None:
    """The leader epochs begin at the log start; in a file they must not begin above the durable one."""
    durable = core.directory.log_start(core.partition) or 0
    if core.local.names_synced:
        durable = max(durable, core.segments[0].base_offset)
    if core.log_start_offset > durable:
        with core.guard("noting the start of a log"):
            core.directory.set_log_starts({core.partition: core.log_start_offset})


def run(core: LogCore, plan: FlushPlan) -> None:
    with core.guard("flushing"):
        try:
            plan.run()
        except (SyncFailed, FileNotFoundError) as failed:
            error = failed.error if isinstance(failed, SyncFailed) else failed
            if isinstance(error, FileNotFoundError) and not core.disk.is_dir(plan.dir):
                _log.info("a flush of %s is abandoned, as its directory has gone", core.partition)
                plan.abandoned = True
                return
            if isinstance(failed, SyncFailed):
                core.directory.fail(f"syncing {core.partition} failed with {error}")
            raise error from None


def complete(core: LogCore, plan: FlushPlan) -> None:
    if plan.abandoned or not core.epochs.complete(plan):
        return
    if core.local.complete_flush(plan):
        core.producers.synced(plan.snapshots)
        core.last_flush_ms = core.directory.clock.wall_ms()


def flush(core: LogCore, upto: int | None = None, *, closing: bool = False) -> None:
    plan = prepare(core, upto, closing=closing)
    if plan is not None:
        run(core, plan)
        complete(core, plan)


def close(core: LogCore) -> None:
    core.check_usable()
    core.settle()
    if core.verified_end:
        core.producer_state()  # loaded if it was not, so that there is something to write
        with core.guard("closing"):
            core.producers.take_snapshot()
            core.active.seal()
    flush(core, closing=core.verified_end)
    release(core)


def release(core: LogCore) -> None:
    core.local.release()
    core.closed = True
