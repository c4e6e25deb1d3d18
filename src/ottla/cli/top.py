"""`ottla top`: what a cluster does, live in a terminal.

From the metrics of nodes (`--http`) it shows requests, latencies, replicas and processes; by Kafka's protocol
(`--bootstrap-server`), which works with any Kafka, the records and bytes of topics and the lag of groups. A
rate is the difference of two looks, so the first output comes after one interval.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from ottla.cli.commands import Option, command
from ottla.cli.node_http import DEFAULT_URL, Http, ask, checked_url
from ottla.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVERS, Json
from ottla.cli.output import drawn_table, print_json, print_json_line, print_line, print_table, printable
from ottla.cli.session import run
from ottla.cli.top_view import TopView

if TYPE_CHECKING:
    from rich.console import RenderableType

Look: TypeAlias = Callable[[], Awaitable[TopView]]

_LINES_PER_TABLE: Final = 4


@command(None, "top")
def app(
    bootstrap: Annotated[
        str | None,
        Option(
            "--bootstrap-server",
            "-b",
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT[,...]",
            help="Brokers of the cluster to look at by Kafka's protocol.",
        ),
    ] = None,
    http: Http = None,
    interval: Annotated[
        float, Option("--interval", metavar="SECONDS", min=0.1, max=3600.0, help="Between two looks.")
    ] = 2.0,
    rows: Annotated[
        int, Option("--rows", metavar="N", min=1, max=10_000, help="How many topics and groups to show.")
    ] = 20,
    once: Annotated[bool, Option("--once", help="Print once, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a cluster does, live.

    With --http the metrics of one or more nodes are shown; with --bootstrap-server any cluster is asked by
    Kafka's protocol. Without either it is the node of this machine: its metrics, if it answers HTTP at
    127.0.0.1:9644, or else the cluster at localhost:9092.
    """
    urls = [checked_url(url) for url in http or ()]
    run(_run(bootstrap, urls, interval, rows, once=once, as_json=as_json))


async def _run(
    bootstrap: str | None, urls: list[str], interval: float, rows: int, *, once: bool, as_json: bool
) -> None:
    if bootstrap is None and not urls:
        if await _answers(DEFAULT_URL):
            urls = [DEFAULT_URL]
        else:
            bootstrap = DEFAULT_BOOTSTRAP_SERVERS
    async with _look_at(bootstrap, urls, rows) as look, _output(once, as_json) as show:
        await look()
        while True:
            began = monotonic()
            await asyncio.sleep(interval)
            show(await look())
            if once:
                return
            # A look that took long does not make the next one come at once.
            interval = max(interval, (monotonic() - began - interval) * 2)


async def _answers(url: str) -> bool:
    from ottla.runtime.http import HttpError

    try:
        return (await ask(f"{url}/metrics")).status == 200
    except HttpError:
        return False


@asynccontextmanager
async def _look_at(bootstrap: str | None, urls: list[str], rows: int) -> AsyncIterator[Look]:
    looks: list[Look] = []
    if urls:
        from ottla.cli.top_metrics import MetricsTop

        looks.append(MetricsTop(urls, rows).look)
    if bootstrap is None:
        yield _together(looks)
        return
    from ottla.cli.session import open_admin
    from ottla.cli.top_protocol import ProtocolTop

    async with open_admin(bootstrap, 30.0) as admin:
        looks.append(ProtocolTop(admin, rows).look)
        yield _together(looks)


def _together(looks: list[Look]) -> Look:
    async def look() -> TopView:
        views = [await each() for each in looks]
        document: dict[str, Any] = {}
        for view in views:
            document |= view.document
        return TopView(
            document,
            [table for view in views for table in view.tables],
            [problem for view in views for problem in view.problems],
        )

    return look


@asynccontextmanager
async def _output(once: bool, as_json: bool) -> AsyncIterator[Callable[[TopView], None]]:
    if as_json:
        yield lambda view: (print_json if once else print_json_line)(view.document)
        return
    if once or not sys.stdout.isatty():
        yield _print
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, emoji=False, highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield lambda view: live.update(_drawn(view, console.size.height), refresh=True)


def _print(view: TopView) -> None:
    for problem in view.problems:
        print_line(f"! {problem}")
    for title, columns, rows in view.tables:
        print_line()
        print_line(title)
        print_table(columns, rows)
    sys.stdout.flush()


def _drawn(view: TopView, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(printable(f"! {problem}"), style="bold red") for problem in view.problems
    ]
    room = height - len(parts) - 1
    for title, columns, rows in view.tables:
        shown = rows[: max(room - _LINES_PER_TABLE, 1)]
        parts += [Text(title, style="bold"), drawn_table(columns, shown)]
        room -= len(shown) + _LINES_PER_TABLE
    parts.append(Text("Ctrl-C ends it", style="dim"))
    return Group(*parts)
