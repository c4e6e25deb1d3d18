"""The state of a node's process: memory, files, tasks, the turns of its event loop, garbage collections, the
memory of its connections, and what of its storage is offline.

A running node prints it as one line of JSON for each SIGUSR1, as a Java virtual machine prints its threads
for SIGQUIT: `kill -USR1 PID`. `ottla cluster status` shows what matters of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Final

from ottla.node.network.memory_budget import MemoryBudget, MemoryUse
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime import process
from ottla.runtime.garbage_collection import GarbageCollection
from ottla.runtime.loop_watchdog import LoopStatistics, LoopWatchdog
from ottla.runtime.tasks import TaskState, TaskSupervisor

# Partitions whose reasons are reported; the others are only counted.
_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """What of a broker's storage does not serve."""

    offline_directories: dict[str, str] = field(default_factory=dict)
    """With the error of each."""
    offline_partitions: int = 0
    """Replicas that this broker should have and cannot use, also those in directories that are offline."""
    damaged_partitions: int = 0
    """Those of them whose logs are damaged."""
    offline_reasons: dict[str, str] = field(default_factory=dict)
    """The errors of some of these partitions."""
    set_aside: list[str] = field(default_factory=list)
    """The directories of damaged logs that were replaced, for the operator to remove."""

    @staticmethod
    def of(
        directories: dict[str, str],
        offline: Mapping[TopicPartition, KafkaError],
        damaged: Mapping[TopicPartition, KafkaError],
        set_aside: list[str],
    ) -> StorageStatus:
        every = {**offline, **damaged}
        return StorageStatus(
            offline_directories=directories,
            offline_partitions=len(every),
            damaged_partitions=len(damaged),
            offline_reasons={str(tp): error.message for tp, error in islice(every.items(), _REASONS)},
            set_aside=set_aside,
        )


@dataclass(frozen=True, slots=True)
class ProcessWatch:
    """What watches the process of a node that has one of its own."""

    loop: LoopWatchdog | None
    collections: GarbageCollection


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
    storage: StorageStatus
    connection_memory: dict[str, MemoryUse]
    """The budget of the memory for connections, in its two parts: `clients` and `nodes`."""
    loop: LoopStatistics | None
    """The turns of the event loop; None without a watchdog."""
    full_collections: int
    longest_collection_ms: float

    def to_json(self) -> str:
        """One line of JSON."""
        import json

        return json.dumps(asdict(self))


def process_status(
    background: TaskSupervisor,
    storage: StorageStatus,
    memory: MemoryBudget,
    watch: ProcessWatch,
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
        storage=storage,
        connection_memory={"clients": memory.clients.use(), "nodes": memory.nodes.use()},
        loop=None if watch.loop is None else watch.loop.statistics(),
        full_collections=watch.collections.full_collections,
        longest_collection_ms=watch.collections.longest_ms,
    )


def _name(task: asyncio.Task[object]) -> str:
    """The name of a task; asyncio's own names are a number each, so the coroutine stands for them."""
    name = task.get_name()
    if not name.startswith("Task-"):
        return name
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", "a task without a name")
