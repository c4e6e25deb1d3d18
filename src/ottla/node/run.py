"""Runs a node as a process: its event loop, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.http.listener import DEFAULT_HTTP_LISTENER
from ottla.node.node import MakeExtension, Node
from ottla.node.server.process_status import ProcessStatus, ProcessWatch, process_status
from ottla.runtime import process
from ottla.runtime.address import Address
from ottla.runtime.garbage_collection import GarbageCollection
from ottla.runtime.loop import run
from ottla.runtime.loop_watchdog import DEFAULT_BOUND_MS, LoopWatchdog
from ottla.runtime.runtime import Runtime
from ottla.runtime.service_manager import ServiceManager

log = logging.getLogger(__name__)

__all__ = ["NodeFailed", "run_node"]

# How long a turn of the event loop may take, in milliseconds, before the watchdog logs it; 0 for no watchdog.
MAX_TURN_MS: Final = "OTTLA_MAX_TURN_MS"
# Without that setting, what clients do not notice is no warning.
_WARN_MS: Final = 200.0
# How often the service manager hears of the node at least, and how long a start or a stop may then go on.
_MAX_NOTIFY_MS: Final = 5_000
_MORE_TIME_MS: Final = 30_000
# How often the node looks whether a complete garbage collection is due.
_GARBAGE_CHECK_MS: Final = 60_000


def run_node(
    config: NodeConfig,
    *,
    ready: Callable[[Node, str], None],
    report: Callable[[ProcessStatus], None],
    extensions: Sequence[MakeExtension] = (),
) -> None:
    """Run a node until SIGTERM or SIGINT. `ready` is called with the node once it serves, with its addresses;
    `report`, with the state of the process, for each SIGUSR1; `extensions` as `Node` has them.

    NodeFailed if it cannot start or has to give up.
    """
    run(_main(config, ready, report, extensions))


async def _start_unless_stopped(node: Node, stop: asyncio.Event) -> bool:
    """Start the node; False if it was asked to stop before it was ready, as when it waits for others of its
    quorum.
    """
    starting, stopped = asyncio.ensure_future(node.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _main(
    config: NodeConfig,
    ready: Callable[[Node, str], None],
    report: Callable[[ProcessStatus], None],
    extensions: Sequence[MakeExtension],
) -> None:
    process.write_stacks_on_crash()
    process.raise_open_file_limit()
    process.let_threads_switch_quickly()
    runtime = Runtime.real(pool_workers=config.number("background.threads"))
    collections = GarbageCollection()
    watch = ProcessWatch(_watchdog(collections), collections)
    node = Node(runtime, config, default_http=DEFAULT_HTTP_LISTENER, watch=watch, extensions=extensions)
    stop = asyncio.Event()
    undo = process.on_termination(lambda _signal: stop.set())
    with _watched_process(node, watch, report), _service_manager(node) as manager:
        try:
            if not await _start_unless_stopped(node, stop):
                return
            addresses = ", ".join(
                str(Address(at.host or "*", at.port)) for at in node.shared.endpoints.for_operators()
            )
            ready(node, addresses)
            manager.send_ready(f"serving at {addresses}")
            stopped = asyncio.ensure_future(stop.wait())
            failed = asyncio.ensure_future(node.wait_until_failed())
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            for future in (stopped, failed):
                future.cancel()
            if failed.done() and not failed.cancelled():
                raise NodeFailed(failed.result())
        except NodeFailed as failure:
            manager.send_status(str(failure))
            raise
        finally:
            manager.send_stopping()
            await node.stop()
            undo()
            if left := node.shared.stop_sequence.left_behind:
                # A thread may wait without end, as for a disk that does not answer, and keep the process.
                log.critical("the process ends without waiting for %s", ", ".join(left))
                process.halt(1)
            runtime.close()


@contextlib.contextmanager
def _watched_process(
    node: Node, watch: ProcessWatch, report: Callable[[ProcessStatus], None]
) -> Iterator[None]:
    """Keep garbage collections short, watch the turns of the event loop, and report both on SIGUSR1."""
    collections, tasks = watch.collections, node.shared.tasks
    collections.start()
    if watch.loop is not None:
        watch.loop.start()
    undo = process.on_status_request(
        lambda: report(process_status(tasks, node.storage_status(), node.shared.memory, watch))
    )

    async def collect_if_due() -> None:
        if collections.needs_complete:
            collections.collect_all()

    collecting = tasks.every(lambda: _GARBAGE_CHECK_MS, collect_if_due, "complete garbage collection")
    try:
        yield
    finally:
        collecting.cancel()
        undo()
        if watch.loop is not None:
            watch.loop.stop()
        collections.stop()


@contextlib.contextmanager
def _service_manager(node: Node) -> Iterator[ServiceManager]:
    """Let the service manager know what the node does, from its start to its end: a start that loads many
    logs gets the time that it takes, and a node whose event loop does not turn any more is restarted.
    """
    manager = ServiceManager(process.environment(), process.pid())
    if not manager.is_there:
        yield manager
        return

    async def notify() -> None:
        state = node.shared.state
        if not state.is_serving:
            manager.ask_for_time(_MORE_TIME_MS, state.phase)
        if state.failure is None:
            manager.send_alive()

    interval_ms = min(manager.watchdog_ms // 3 or _MAX_NOTIFY_MS, _MAX_NOTIFY_MS)
    notifying = node.shared.tasks.every(
        lambda: interval_ms, notify, "notification of the service manager", first_ms=0
    )
    try:
        yield manager
    finally:
        notifying.cancel()


def _watchdog(collections: GarbageCollection) -> LoopWatchdog | None:
    given = process.environment().get(MAX_TURN_MS, "")
    try:
        bound_ms = float(given) if given else DEFAULT_BOUND_MS
    except ValueError:
        raise NodeFailed(f"{MAX_TURN_MS}={given}: expected a number of milliseconds, or 0") from None
    warn_ms = 0.0 if given else _WARN_MS
    return LoopWatchdog(bound_ms, collections, warn_ms=warn_ms) if bound_ms > 0 else None
