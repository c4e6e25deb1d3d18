"""The output of `ottla cluster up` while it runs: live tables on a terminal, a line for each change
elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from ottla.cli.cluster_status import (
    ASK_SECONDS,
    ClusterStatus,
    clients_text,
    document,
    facts,
    metadata_store,
    nodes_table,
    partitions_text,
    quorum_text,
    read_status,
    topics_table,
)
from ottla.cli.output import drawn_table, print_json_line, print_line, printable
from ottla.protocol.errors import KafkaError
from ottla.testing.cluster_process import ProcessState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from ottla.client.admin import Admin
    from ottla.testing.cluster_plan import ClusterPlan
    from ottla.testing.cluster_process import NodeProcess

_SECONDS_BETWEEN_UPDATES: Final = 1.0
_LINES_AROUND_TOPICS: Final = 16
_WIDE_COLUMNS: Final = 136


async def watch(
    plan: ClusterPlan, processes: Sequence[NodeProcess], stop: asyncio.Event, *, as_json: bool = False
) -> None:
    """Show the cluster until `stop` is set, or no node of it is running."""
    async with _output(as_json) as show, _Watcher(plan, processes) as watcher:
        while True:
            status = await watcher.read_status()
            show(status)
            if stop.is_set() or all(node.state is ProcessState.DOWN for node in status.nodes):
                return
            try:
                await asyncio.wait_for(stop.wait(), _SECONDS_BETWEEN_UPDATES)
                return
            except TimeoutError:
                continue


class _Watcher:
    """Keeps a client connected between updates, and replaces it when no broker answers."""

    def __init__(self, plan: ClusterPlan, processes: Sequence[NodeProcess]) -> None:
        self._plan = plan
        self._processes = processes
        self._admin: Admin | None = None

    async def read_status(self) -> ClusterStatus:
        if self._admin is None:
            self._admin = await connect_admin(self._processes)
        status = await read_status(self._plan, self._processes, self._admin)
        if status.partitions is None or status.quorum is None:
            await self._close()
        return status

    async def _close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def __aenter__(self) -> _Watcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()


async def connect_admin(processes: Sequence[NodeProcess]) -> Admin | None:
    """A client that is connected to one of the running brokers; None if there is none."""
    from ottla.client.admin import Admin
    from ottla.testing.security import client_settings_in

    addresses = [
        process.plan.address
        for process in processes
        if process.plan.address is not None and process.state() is ProcessState.RUNNING
    ]
    if not addresses:
        return None
    timeout_ms = int(ASK_SECONDS * 1000)
    security = client_settings_in(processes[0].plan.directory.parent / "security")
    admin = Admin(
        {**security, "bootstrap.servers": ",".join(addresses)},
        client_id="ottla-cluster",
        request_timeout_ms=timeout_ms,
        default_api_timeout_ms=timeout_ms,
    )
    try:
        async with asyncio.timeout(ASK_SECONDS):
            return await admin.__aenter__()
    except (KafkaError, OSError, TimeoutError):
        await admin.close()
        return None


class _Show(Protocol):
    def __call__(self, status: ClusterStatus) -> None: ...


@asynccontextmanager
async def _output(as_json: bool) -> AsyncIterator[_Show]:
    if as_json:
        yield lambda status: print_json_line(document(status))
        return
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, emoji=False, highlight=False)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield _Tables(live)


class _Tables:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = monotonic()

    def __call__(self, status: ClusterStatus) -> None:
        self._live.update(self._render(status), refresh=True)

    def _render(self, status: ClusterStatus) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        width = max(len(name) for name, _ in facts(status))
        head = "\n".join(f"{name:<{width}}  {printable(str(value))}" for name, value in facts(status))
        room = max(self._live.console.size.height - _LINES_AROUND_TOPICS - len(status.nodes), 1)
        columns, rows = topics_table(status)
        hidden = len(rows) - room
        foot = f"{monotonic() - self._began:.0f} s; Ctrl-C stops the cluster"
        if hidden > 0:
            foot = f"{hidden} more topics; {foot}"
        parts: list[RenderableType] = [
            Text(head, style="" if status.is_healthy else "yellow"),
            drawn_table(*nodes_table(status, brief=self._live.console.size.width < _WIDE_COLUMNS)),
        ]
        if rows:
            parts.append(drawn_table(columns, rows[:room]))
        return Group(*parts, Text(foot, style="dim"))


class _Lines:
    """Prints one line for each change."""

    def __init__(self) -> None:
        self._printed: dict[str, str] = {}

    def __call__(self, status: ClusterStatus) -> None:
        for node in status.nodes:
            where = f", {node.address}" if node.address is not None else ""
            pid = f", process {node.pid}" if node.pid is not None else ""
            self._print_change(f"node {node.id}", f"{node.state}{where}{pid}")
        if status.command_config is not None:
            self._print_change("clients", clients_text(status))
        if status.quorum is not None or any(node.state is ProcessState.RUNNING for node in status.nodes):
            self._print_change(metadata_store(status), quorum_text(status))
        if status.partitions is not None:
            self._print_change("partitions", partitions_text(status))

    def _print_change(self, what: str, text: str) -> None:
        if self._printed.get(what) != text:
            self._printed[what] = text
            print_line(f"{what}: {text}", flush=True)
