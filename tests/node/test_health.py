"""The health of nodes: what `/health/live` and `/health/ready` say while things go wrong and come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.cli.start import announce
from ottla.client.admin import Admin
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.http.checks import CHECKS
from ottla.node.node import Node
from ottla.records.builder import build_batch
from ottla.replication.replica_fetcher import ReplicaFetcher
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import ClusterPlan
from ottla.testing.local_node import LocalNode

ROLES = {1: "broker", 2: "broker", 3: "broker", 4: "controller"}


def get(url: str) -> tuple[int, dict[str, Any]]:
    """The status and the document of a page."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: bytes = answer.read()
        return text.decode()


class TestChecks:
    """The checks of nodes in virtual time."""

    @pytest.mark.slow
    def test_each_check_names_what_is_wrong(self) -> None:
        nodes = SimNodes(
            ROLES,
            seed=5,
            settings={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
        )

        async def problems(id: int, *skip: str) -> dict[str, str]:
            node = nodes.nodes[id]
            checks = await node.health().ready_problems(skip)
            return {name: problem for name, problem in checks.items() if problem is not None}

        async def until_problems(id: int, *names: str) -> dict[str, str]:
            for _ in range(12_000):
                found = await problems(id)
                if set(found) == set(names):
                    return found
                await asyncio.sleep(0.005)
            raise AssertionError(f"node {id} has the problems {found}, not {names}")

        async def life() -> None:
            # The quorum is not there yet: a node says for what it waits.
            nodes.boot(1)
            await nodes.until(lambda: 1 in nodes.nodes and nodes.nodes[1].quorum is not None)
            found = await until_problems(1, "started", "quorum")
            assert found["started"] == "waiting for an active controller"
            assert found["quorum"] == "the quorum has no leader; its voters are 4"
            nodes.boot(2, 3, 4)
            await nodes.ready()
            await nodes.create("orders", 1)
            for id in ROLES:
                assert await until_problems(id) == {}
            names = (await _checks(nodes.nodes[1])).keys()
            assert tuple(names) == CHECKS
            assert "storage" not in await _checks(nodes.nodes[4])

            # A broker is gone: its replicas are not in sync, and those of others are well.
            leader = nodes.partition("orders", by=4).leader
            follower, other = (id for id in (1, 2, 3) if id != leader)
            for one, two in ((leader, follower), (follower, leader), (other, follower), (follower, other)):
                nodes.world.fabric.cut(f"node{one}", f"node{two}")
            found = await until_problems(follower, "in_sync")
            assert found["in_sync"] == "1 replicas are not in sync with their leaders: orders-0"
            assert await problems(leader) == {}
            assert await problems(follower, "in_sync") == {}
            nodes.world.fabric.heal()
            await until_problems(follower)

            # The others end: the last one has no leader to follow.
            nodes.kill(leader, silently=True)
            nodes.kill(other, silently=True)
            await nodes.until(lambda: nodes.partition("orders", by=4).leader == follower)
            assert await until_problems(follower) == {}
            nodes.world.fabric.cut(f"node{follower}", "node4")
            nodes.world.fabric.cut("node4", f"node{follower}")
            found = await until_problems(follower, "registered")
            assert "no controller has answered a heartbeat" in found["registered"]
            nodes.world.fabric.heal()
            await until_problems(follower)

            # The controller has fenced it: it does not serve.
            nodes.broker(follower).lifecycle.fence_itself()
            found = await until_problems(follower, "registered", "partitions")
            assert found["registered"] == f"broker {follower} is fenced by the controller"
            assert found["partitions"] == "1 partitions have no leader: orders-0"
            nodes.broker(follower).lifecycle.stop_fencing_itself()
            await until_problems(follower)
            nodes.nodes[follower].shared.state.fail("all is lost")
            health = nodes.nodes[follower].health()
            assert health.live_problem() == "all is lost"

        async def _checks(node: Node) -> dict[str, str | None]:
            return await node.health().ready_problems()

        nodes.run(life())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as started:
        yield started


class TestOverHttp:
    def test_a_node_says_that_it_is_live_and_ready(self, node: LocalNode) -> None:
        assert node.http_url is not None
        status, live = get(f"{node.http_url}/health/live")
        assert (status, live["status"], live["problems"]) == (200, "live", [])
        status, ready = get(f"{node.http_url}/health/ready")
        assert (status, ready["status"], ready["node"]) == (200, "ready", 1)
        assert ready["roles"] == ["broker", "controller"]
        assert ready["checks"] == dict.fromkeys(CHECKS, "ok")
        assert ready["tasks"]["running"] > 10
        assert (ready["tasks"]["down"], ready["tasks"]["with_errors"]) == (0, [])

    def test_checks_can_be_skipped(self, node: LocalNode) -> None:
        _, ready = get(f"{node.http_url}/health/ready?skip=in_sync,tasks")
        assert set(CHECKS) - set(ready["checks"]) == {"in_sync", "tasks"}
        status, refused = get(f"{node.http_url}/health/ready?skip=luck")
        assert status == 400
        assert "'luck'" in refused["error"]

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl; apt-get install curl")
    def test_curl_has_the_exit_status_for_scripts(self, node: LocalNode) -> None:
        curl = ["curl", "-fsS", "-o", "/dev/null", "-m", "60"]
        assert subprocess.run([*curl, f"{node.http_url}/health/ready"], check=False).returncode == 0
        assert subprocess.run([*curl, "-I", f"{node.http_url}/health/ready"], check=False).returncode == 0
        failed = subprocess.run([*curl, f"{node.http_url}/health/nothing"], check=False, capture_output=True)
        assert failed.returncode == 22

    def test_a_page_of_another_site_gets_nothing(self, node: LocalNode) -> None:
        request = urllib.request.Request(f"{node.http_url}/health/ready", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        with refused.value:
            assert refused.value.code == 421


@contextlib.asynccontextmanager
async def running(directory: Path, *, brokers: int) -> AsyncIterator[list[Node]]:
    """Brokers and a controller, in this process."""
    plan = ClusterPlan.make(
        directory / "cluster",
        brokers=brokers,
        controllers=1,
        settings={"http.listener": "http://127.0.0.1:0"},
    )
    plan.write()
    runtime = Runtime.real(guest=True)
    nodes = [Node(runtime, NodeConfig(plan.properties(each))) for each in plan.nodes]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.stop()
        runtime.close()


async def get_ready(node: Node) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(get, f"{node.shared.http.url}/health/ready")


async def test_a_killed_fetcher_is_seen_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, brokers=2) as nodes:
        address = nodes[0].client_endpoints()[0]
        async with Admin(f"127.0.0.1:{address.port}") as admin:
            await admin.topics.create("orders", partitions=8, replication_factor=2)
        followed = await _until(nodes[1], lambda status, _: status == 200)
        assert followed["checks"]["in_sync"] == "ok"

        async def broken(self: ReplicaFetcher, *_: object) -> None:
            raise RuntimeError("the fetcher was killed")

        with monkeypatch.context() as patched:
            patched.setattr(ReplicaFetcher, "_fetch", broken)
            seen = await _until(
                nodes[1], lambda status, found: status == 503 and "tasks: " in " ".join(found["problems"])
            )
            assert seen["status"] == "not ready"
            (problem,) = [each for each in seen["problems"] if each.startswith("tasks: ")]
            assert "fetch from broker 1: backing off, RuntimeError: the fetcher was killed" in problem
            assert seen["tasks"]["down"] == 1
            await _until_text(nodes[1], 'ottla_background_task_down{task="fetch from broker 1"} 1\n')
        assert "fetch from broker 1 failed; it starts again in 100 ms" in caplog.text

        # It comes back by itself, and what had happened can still be seen.
        healthy = await _until(nodes[1], lambda status, _: status == 200)
        assert healthy["tasks"]["down"] == 0
        (task,) = healthy["tasks"]["with_errors"]
        assert (task["name"], task["state"]) == ("fetch from broker 1", "running")
        assert task["errors"] >= 1
        assert task["last_error"] == "RuntimeError: the fetcher was killed"
        text = await asyncio.to_thread(read, f"{nodes[1].shared.http.url}/metrics")
        assert 'ottla_background_task_down{task="fetch from broker 1"} 0\n' in text
        errors = f'ottla_background_task_errors_total{{task="fetch from broker 1"}} {task["errors"]}\n'
        assert errors in text
        assert nodes[0].broker is not None
        partition = next(each for each in nodes[0].broker.replicas if each.is_leader)
        now_ms = nodes[0].shared.runtime.clock.wall_ms()
        batch = build_batch([(now_ms, None, b"after it came back")])
        end = partition.append_records_to_leader(batch, now_ms=now_ms).last_offset + 1
        async with asyncio.timeout(60):
            while partition.log.high_watermark < end:  # noqa: ASYNC110 - the follower moves it
                await asyncio.sleep(0.01)

        # A node that stops is not ready any more, and says so to the end.
        nodes[1].shared.state.ready.clear()
        status, stopping = await get_ready(nodes[1])
        assert (status, list(stopping["checks"])) == (503, ["started", "quorum", "tasks"])


async def _until_text(node: Node, wanted: str) -> None:
    async with asyncio.timeout(60):
        while wanted not in await asyncio.to_thread(read, f"{node.shared.http.url}/metrics"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _until(node: Node, condition: Callable[[int, dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for the health of a node until it is as wanted."""
    async with asyncio.timeout(60):
        while True:
            status, document = await get_ready(node)
            if condition(status, document):
                return document
            await asyncio.sleep(0.01)


async def test_a_node_that_waits_for_its_quorum_is_live_and_not_ready(tmp_path: Path) -> None:
    plan = ClusterPlan.make(
        tmp_path / "cluster", brokers=1, controllers=3, settings={"http.listener": "http://127.0.0.1:0"}
    )
    plan.write()
    runtime = Runtime.real(guest=True)
    node = Node(runtime, NodeConfig(plan.properties(plan.nodes[0])))
    starting = asyncio.create_task(node.start())
    try:
        async with asyncio.timeout(60):
            while node.shared.http.url is None or node.quorum is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        wanted = "waiting for an active controller"
        waiting = await _until(
            node, lambda status, found: status == 503 and found["checks"].get("started") == wanted
        )
        assert waiting["checks"]["quorum"] == "the quorum has no leader; its voters are 2, 3, 4"
        status, live = await asyncio.to_thread(get, f"{node.shared.http.url}/health/live")
        assert (status, live["status"]) == (200, "live")
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await node.stop()
        runtime.close()


async def test_a_port_that_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address that a setting names is needed; the default one is not."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        runtime = Runtime.real(guest=True)
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        try:
            refused = Node(runtime, NodeConfig({**settings, "http.listener": url}))
            with pytest.raises(NodeFailed, match=r"http\.listener: cannot listen on 127\.0\.0\.1:"):
                await refused.start()
            await refused.stop()
            with caplog.at_level("INFO"):
                node = Node(runtime, NodeConfig(settings), default_http=url)
                await node.start()
            assert node.shared.http.url is None
            assert "there is no HTTP" in caplog.text
            announce(node, "here", 0)
            assert capsys.readouterr().out.endswith(f", no HTTP: {url.removeprefix('http://')} is taken\n")
            await node.stop()
            off = Node(runtime, NodeConfig({**settings, "http.listener": ""}), default_http=url)
            assert off.shared.http.url is None
        finally:
            runtime.close()
