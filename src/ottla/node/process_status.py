"""The state of a node's process: memory, files, tasks, the turns of its event loop, garbage collections.

A running node prints it as one line of JSON for each SIGUSR1, as a Java virtual machine prints its threads
for SIGQUIT: `kill -USR1 PID`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass

from ottla.runtime import process
from ottla.runtime.garbage_collection import GarbageCollection
from ottla.runtime.loop_watchdog import LoopStatistics, LoopWatchdog
from ottla.runtime.tasks import TaskState, TaskSupervisor

__all__ = ["ProcessStatus", "process_status"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    resident_bytes: int
    open_files: int
    cpu_ms: int
    """The CPU time of the process so far."""
    tasks: dict[str, int]
    """The tasks of the event loop, by name; those without a name of their own together."""
    background_tasks: dict[str, str]
    """The supervised tasks, with their state; a name that several have, with the worst state of them."""
    failing_tasks: dict[str, str]
    """The supervised tasks that have failed or were restarted since the start, with their last error."""
    loop: LoopStatistics | None
    """The turns of the event loop; None without a watchdog."""
    full_collections: int
    longest_collection_ms: float

    def to_json(self) -> str:
        """One line of JSON."""
        import json

        return json.dumps(asdict(self))


def process_status(
    background: TaskSupervisor, watchdog: LoopWatchdog | None, collections: GarbageCollection
) -> ProcessStatus:
    """The state of this process, read on its event loop."""
    return ProcessStatus(
        resident_bytes=process.resident_bytes(),
        open_files=process.open_files(),
        cpu_ms=process.cpu_ns() // 1_000_000,
        tasks=dict(sorted(Counter(map(_name, asyncio.all_tasks())).items())),
        background_tasks={
            status.name: status.state.value
            for status in sorted(
                background.statuses(), key=lambda status: status.state is not TaskState.RUNNING
            )
        },
        failing_tasks={
            status.name: f"{status.state.value}, {status.restarts} errors, the last: {status.last_error}"
            for status in background.statuses()
            if status.restarts
        },
        loop=None if watchdog is None else watchdog.statistics(),
        full_collections=collections.full_collections,
        longest_collection_ms=collections.longest_ms,
    )


def _name(task: asyncio.Task[object]) -> str:
    """The name of a task; asyncio's own names are a number each, so the coroutine stands for them."""
    name = task.get_name()
    if not name.startswith("Task-"):
        return name
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", "a task without a name")
