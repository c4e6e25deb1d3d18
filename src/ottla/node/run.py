"""Runs a node as a process: its event loop, its signals, its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable

from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime import process
from ottla.runtime.address import Address
from ottla.runtime.loop import run
from ottla.runtime.runtime import Runtime

log = logging.getLogger(__name__)

__all__ = ["NodeFailed", "run_node"]


def run_node(config: NodeConfig, *, ready: Callable[[str, list[str]], None]) -> None:
    """Run a node until SIGTERM or SIGINT. `ready` is called once, with the addresses that it serves and the
    directories of its data.

    NodeFailed if it cannot start or has to give up.
    """
    run(_main(config, ready))


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


async def _main(config: NodeConfig, ready: Callable[[str, list[str]], None]) -> None:
    process.raise_open_file_limit()
    runtime = Runtime.real(pool_workers=config.number("background.threads"))
    node = Node(runtime, config)
    stop = asyncio.Event()
    undo = process.on_termination(lambda _signal: stop.set())
    try:
        if not await _start_unless_stopped(node, stop):
            return
        # The objects made so far stay: the garbage collector need not visit them again.
        gc.freeze()
        addresses = ", ".join(str(Address(at.host or "*", at.port)) for at in node.endpoints.for_operators())
        ready(addresses, node.data_directories())
        stopped = asyncio.ensure_future(stop.wait())
        failed = asyncio.ensure_future(node.wait_until_failed())
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        for future in (stopped, failed):
            future.cancel()
        if failed.done() and not failed.cancelled():
            raise NodeFailed(failed.result())
    finally:
        await node.stop()
        undo()
        runtime.close()
