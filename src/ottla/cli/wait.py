"""`ottla wait`: wait until a node or a cluster is ready, for scripts and CI.

Over HTTP a node says itself whether it is ready (`/health/ready`). By Kafka's protocol any cluster can be
asked, Apache Kafka's too: it is ready when a controller is active, enough brokers are there, every partition
has a leader and all its replicas are in sync. The exit status is 0 once all that were asked are ready, 1 if
one answers and is not ready in time, and 3 if one does not answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Option, command
from ottla.cli.errors import UNREACHABLE, CliError, WrongUsage
from ottla.cli.node_http import Http, ask, checked_url
from ottla.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVERS, Json
from ottla.cli.output import note, print_json, print_line
from ottla.cli.session import open_admin, run
from ottla.node.http.checks import CHECKS, IN_SYNC, PARTITIONS
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import TopicInfo

DEFAULT_SECONDS: Final = 60.0
_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 1.0
_EXAMPLES: Final = 3


class _Unready(Exception):
    """What was asked is not ready; the text says why. `is_silent` if it did not answer at all."""

    def __init__(self, problem: str, *, is_silent: bool = False) -> None:
        super().__init__(problem)
        self.is_silent = is_silent


@command(None, "wait")
def app(
    bootstrap: Annotated[
        str | None,
        Option(
            "--bootstrap-server",
            "-b",
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT[,...]",
            help=f"Brokers of the cluster to wait for; {DEFAULT_BOOTSTRAP_SERVERS} without --http.",
        ),
    ] = None,
    http: Http = None,
    timeout: Annotated[
        float, Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait; 0 asks once.")
    ] = DEFAULT_SECONDS,
    brokers: Annotated[
        int, Option("--brokers", metavar="N", min=1, help="How many brokers the cluster must have.")
    ] = 1,
    topics: Annotated[
        list[str] | None, Option("--topic", metavar="NAME", help="A topic that must exist; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None,
        Option("--skip", choices=CHECKS, help="A check that does not count; may be repeated."),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing while waiting.")] = False,
    as_json: Json = False,
) -> None:
    """Wait until a node or a cluster is ready.

    With --http a node is asked for its health; with --bootstrap-server a cluster is asked by Kafka's
    protocol, which works with any Kafka; with both, both must be ready. The exit status is 0 when they are,
    1 when they answer and are not ready in time, 3 when one does not answer.
    """
    skipped = frozenset(skip or ())
    asked: dict[str, Callable[[], Awaitable[None]]] = {}
    for url in map(checked_url, http or ()):
        asked[url] = _node(url, skipped)
    if bootstrap is None and not asked:
        bootstrap = DEFAULT_BOOTSTRAP_SERVERS
    if bootstrap is None and (topics or brokers > 1):
        raise WrongUsage("--brokers and --topic are about a cluster: give --bootstrap-server too")
    began = monotonic()
    run(_wait_for_all(asked, bootstrap, began + timeout, brokers, topics or (), skipped, quiet=quiet))
    waited_ms = int((monotonic() - began) * 1000)
    if as_json:
        print_json({"ready": [*asked, *([bootstrap] if bootstrap else [])], "waited_ms": waited_ms})
    elif not quiet:
        print_line(f"ready after {waited_ms} ms")


async def _wait_for_all(
    asked: dict[str, Callable[[], Awaitable[None]]],
    bootstrap: str | None,
    deadline: float,
    brokers: int,
    topics: Sequence[str],
    skip: Collection[str],
    *,
    quiet: bool,
) -> None:
    cluster = None if bootstrap is None else _Cluster(bootstrap, deadline, brokers, topics, skip)
    try:
        if cluster is not None and bootstrap is not None:
            asked = {**asked, bootstrap: cluster.check}
        for name, check in asked.items():
            await _wait_until_ready(name, check, deadline, quiet=quiet)
    finally:
        if cluster is not None:
            await cluster.close()


async def _wait_until_ready(
    name: str, check: Callable[[], Awaitable[None]], deadline: float, *, quiet: bool
) -> None:
    pause, noted = _FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            await check()
            return
        except _Unready as unready:
            left = deadline - monotonic()
            if left <= 0:
                status = {"status": UNREACHABLE} if unready.is_silent else {}
                raise CliError(f"{name} is not ready: {unready}", **status) from None
            if str(unready) != noted and not quiet:
                noted = str(unready)
                note(f"{name}: {noted}")
        await asyncio.sleep(min(pause, max(left, 0.0)))
        pause = min(pause * 1.5, _MAX_PAUSE_SECONDS)


# A node, over HTTP


def _node(url: str, skip: Collection[str]) -> Callable[[], Awaitable[None]]:
    page = f"{url}/health/ready" + (f"?skip={','.join(sorted(skip))}" if skip else "")

    async def check() -> None:
        from ottla.runtime.http import HttpError

        try:
            answer = await ask(page)
        except HttpError as error:
            raise _Unready(str(error), is_silent=True) from None
        if answer.status == 200:
            return
        if answer.status != 503:
            raise CliError(f"{url} is no HTTP listener of a node: it answers with status {answer.status}")
        try:
            document: Any = json.loads(answer.body)
            problems = [str(each) for each in document.get("problems", ())]
            status = str(document.get("status", "not ready"))
        except (ValueError, AttributeError):
            problems, status = [], "not ready"
        raise _Unready("; ".join(problems) or status)

    return check


# A cluster, by Kafka's protocol


class _Cluster:
    """Keeps its client between checks, and replaces it when no broker answers."""

    def __init__(
        self, bootstrap: str, deadline: float, brokers: int, topics: Sequence[str], skip: Collection[str]
    ) -> None:
        self._bootstrap = bootstrap
        self._deadline = deadline
        self._brokers = brokers
        self._topics = topics
        self._skip = skip
        self._admin: Admin | None = None

    async def check(self) -> None:
        from ottla.client.errors import AuthenticationFailed, BootstrapFailed, ConnectionFailed, NotKafka

        # One request must not outlast the time that is left by much: the cluster is asked again anyway.
        seconds = min(max(self._deadline - monotonic(), 1.0), 10.0)
        try:
            if self._admin is None:
                self._admin = await open_admin(self._bootstrap, seconds).__aenter__()
            problem = await self._problem(self._admin)
        except AuthenticationFailed:
            raise
        except KafkaError as error:
            await self.close()
            is_silent = isinstance(error, BootstrapFailed | ConnectionFailed | NotKafka)
            raise _Unready(error.message, is_silent=is_silent) from None
        if problem is not None:
            raise _Unready(problem)

    async def _problem(self, admin: Admin) -> str | None:
        cluster = await admin.cluster.describe()
        if cluster.controller_id < 0:
            return "no controller is active"
        if len(cluster.brokers) < self._brokers:
            return f"{len(cluster.brokers)} of {self._brokers} brokers are there"
        found = {topic.name: topic for topic in await admin.topics.list(include_internal=True)}
        if missing := [name for name in self._topics if name not in found]:
            return f"topic {missing[0]} does not exist"
        return _partitions_problem(list(found.values()), self._skip)

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


def _partitions_problem(topics: Sequence[TopicInfo], skip: Collection[str]) -> str | None:
    partitions = [(f"{topic.name}-{each.partition}", each) for topic in topics for each in topic.partitions]
    leaderless = [name for name, each in partitions if each.leader < 0]
    if leaderless and PARTITIONS not in skip:
        return f"{len(leaderless)} partitions have no leader: {_some(leaderless)}"
    behind = [name for name, each in partitions if len(each.isr) < len(each.replicas)]
    if behind and IN_SYNC not in skip:
        return f"{len(behind)} partitions have replicas that are not in sync: {_some(behind)}"
    return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (", ..." if len(names) > _EXAMPLES else "")
