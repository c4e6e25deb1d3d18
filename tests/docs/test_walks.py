"""What the pages show is what happens: commands run, on a node or on three, and print what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing.cluster_plan import ClusterPlan, free_ports, is_free
from ottla.testing.local_node import LocalNode
from tests.docs.blocks import ROOT, Walk, blocks, pages
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.slow

# Pages whose first command starts three nodes.
OF_A_CLUSTER = {
    page
    for page in pages()
    if "$ ottla cluster up --detach\n" in page.read_text() and any(block.is_walked for block in blocks(page))
}
OF_A_NODE = [
    page for page in pages() if page not in OF_A_CLUSTER and any(block.is_walked for block in blocks(page))
]


def first_of_free_ports(count: int) -> int:
    """The first of some free ports in a row, as `ottla cluster up` takes them."""
    while True:
        (first,) = free_ports(1)
        if all(is_free(first + more) for more in range(count)):
            return first


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    """A node as `ottla start` makes it, with its data in `ottla-data`."""
    directory = tmp_path
    settings = {"group.initial.rebalance.delay.ms": "0", "http.listener": "http://127.0.0.1:0"}
    with (
        LocalNode(settings, data_dir=str(directory / "ottla-data")) as node,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(directory)
        here = {
            "/home/you": str(directory),
            "127.0.0.1:9092": node.bootstrap_servers,
            "localhost:9092": node.bootstrap_servers,
            "http://127.0.0.1:9644": str(node.http_url),
        }
        yield Walk(directory, node.bootstrap_servers, here, {"ottla start": None, "pip install": None})


@pytest.mark.parametrize(
    "page",
    # Tables have a process of their own, which takes its time.
    [
        pytest.param(page, marks=[pytest.mark.exhaustive] if page.name == "tables.md" else [])
        for page in OF_A_NODE
    ],
    ids=name,
)
def test_a_page_shows_what_a_node_does(page: Path, walk: Walk) -> None:
    for block in blocks(page):
        if block.is_walked:
            walk.block(block)


@pytest.mark.parametrize("page", sorted(OF_A_CLUSTER), ids=name)
def test_a_page_shows_what_three_nodes_do(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "ottla-cluster"
    first = first_of_free_ports(6)
    here = {"/home/you": str(tmp_path)}
    here |= {f"{9092 + node}": f"{first + node}" for node in range(3)}
    servers = ",".join(f"127.0.0.1:{first + node}" for node in range(3))
    line = CommandLine(servers)

    def up(_: str) -> str:
        return line.ok("cluster", "up", "--detach", "--port", str(first)).out

    cluster = Walk(tmp_path, servers, here, {"ottla cluster up": up})
    try:
        for block in blocks(page):
            if block.is_walked:
                cluster.block(block)
    finally:
        if ClusterPlan.exists(str(home)):
            line("cluster", "down")
