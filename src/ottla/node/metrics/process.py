"""The process: memory, processor time, file descriptors, event loop, pool, garbage collections, tasks.

The first ones have the names that Prometheus' own clients use.
"""

from __future__ import annotations

from typing import Final

from ottla.node.http.listener import NodeHttp
from ottla.runtime import process
from ottla.runtime.garbage_collection import GarbageCollection
from ottla.runtime.loop_watchdog import LoopWatchdog
from ottla.runtime.metrics import MetricsText
from ottla.runtime.pool import Pool, ThreadPool
from ottla.runtime.tasks import TaskState, TaskSupervisor
from ottla.runtime.turns import Turns

# Background tasks with a series of their own.
_MOST_TASKS: Final = 200


class ProcessCollector:
    def __init__(
        self,
        started_ms: int,
        pool: Pool,
        tasks: TaskSupervisor,
        http: NodeHttp,
        watchdog: LoopWatchdog | None,
        collections: GarbageCollection | None,
    ) -> None:
        """`watchdog` and `collections` are those of a node with a process of its own."""
        self._started_ms: Final = started_ms
        self._pool: Final = pool
        self._tasks: Final = tasks
        self._http: Final = http
        self._watchdog: Final = watchdog
        self._collections: Final = collections

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        text.gauge("process_resident_memory_bytes", "Resident memory", process.resident_bytes())
        text.counter("process_cpu_seconds_total", "Processor time", process.cpu_ns() / 1e9)
        text.gauge("process_open_fds", "File descriptors in use", process.open_files())
        text.gauge("process_max_fds", "File descriptors that the process may have", process.open_file_limit())
        text.gauge("process_start_time_seconds", "When the node was started", self._started_ms / 1000)
        self._write_loop(text)
        self._write_pool(text)
        self._write_tasks(text)
        self._write_http(text)

    def _write_loop(self, text: MetricsText) -> None:
        watchdog, collections = self._watchdog, self._collections
        if watchdog is not None:
            text.histogram(
                "ottla_event_loop_wait_seconds",
                "Time that a new event waited for the event loop, where that was at work",
                "",
                watchdog.waits(),
            )
            text.gauge(
                "ottla_event_loop_longest_wait_seconds",
                "The longest of these times since the start",
                watchdog.longest_ms / 1000,
            )
            text.counter(
                "ottla_event_loop_blocked_seconds_total",
                "Time that the event loop waited for the disk, by the call of the disk",
                [((call,), seconds) for call, seconds in sorted(watchdog.blocked_seconds().items())],
                ("call",),
            )
        if collections is not None:
            text.counter(
                "ottla_garbage_collection_seconds_total",
                "Time of garbage collections",
                collections.total_ms / 1000,
            )
            text.counter(
                "ottla_garbage_collection_full_total",
                "Full garbage collections",
                collections.full_collections,
            )

    def _write_pool(self, text: MetricsText) -> None:
        pool = self._pool
        if not isinstance(pool, ThreadPool):
            return
        text.gauge("ottla_pool_threads", "Threads for calls that may block", pool.workers)
        text.gauge(
            "ottla_pool_calls",
            "Calls of the pool: accepted ones run or wait for a thread, others wait for a place",
            [(("accepted",), pool.accepted), (("waiting",), pool.waiting)],
            ("state",),
        )
        text.counter("ottla_pool_calls_total", "Calls that the pool has accepted", pool.calls)

    def _write_tasks(self, text: MetricsText) -> None:
        statuses = self._tasks.statuses()
        states: dict[TaskState, int] = {state: 0 for state in TaskState if state is not TaskState.ENDED}
        errors: dict[str, int] = {}
        down: dict[str, int] = {}
        for status in statuses:
            states[status.state] = states.get(status.state, 0) + 1
            if len(errors) < _MOST_TASKS or status.name in errors:
                errors[status.name] = errors.get(status.name, 0) + status.restarts
                is_down = int(status.state is not TaskState.RUNNING)
                down[status.name] = max(is_down, down.get(status.name, 0))
        text.gauge(
            "ottla_background_tasks",
            "Background tasks by their state",
            [((state.value,), count) for state, count in states.items()],
            ("state",),
        )
        text.counter(
            "ottla_background_task_errors_total",
            "Errors of background tasks; each was logged, and the task started again",
            [((name,), count) for name, count in errors.items()],
            ("task",),
        )
        text.gauge(
            "ottla_background_task_down",
            "1 while a background task does not run, after an error",
            [((name,), value) for name, value in down.items()],
            ("task",),
        )

    def _write_http(self, text: MetricsText) -> None:
        http = self._http
        text.gauge("ottla_http_connections", "Open connections of the HTTP listener", http.connections)
        text.counter("ottla_http_requests_total", "HTTP requests that were answered", http.requests)
        text.counter(
            "ottla_http_refused_total",
            "HTTP connections that were ended for a fault of their client, or for lack of room",
            http.refused,
        )
        text.counter(
            "ottla_http_refused_logins_total",
            "Logins that the HTTP listener refused",
            http.refused_logins,
        )
