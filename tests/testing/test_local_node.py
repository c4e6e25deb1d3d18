"""The throw-away node: there when the block begins, gone when it ends."""

import asyncio
import doctest
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import ottla
from ottla.client.blocking import Admin
from ottla.node.config.errors import NodeFailed
from ottla.runtime import process
from ottla.testing import local_node
from ottla.testing.local_node import LocalNode


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(60)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_serves_within_the_block_and_leaves_nothing_behind() -> None:
    with ottla.LocalNode() as node:
        port, data_dir = node.port, Path(node.data_dir)
        assert is_open(port)
        assert node.bootstrap_servers == f"127.0.0.1:{port}"
        assert (data_dir / "meta.properties").exists()
    assert not is_open(port)
    assert not data_dir.exists()


async def test_it_works_in_an_event_loop_too() -> None:
    async with LocalNode() as node:
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.close()
        await writer.wait_closed()
    assert not is_open(node._port)


def test_two_nodes_live_side_by_side() -> None:
    with LocalNode() as one, LocalNode() as other:
        assert one.port != other.port
        assert is_open(one.port)
        assert is_open(other.port)


def test_a_directory_that_was_given_is_kept(tmp_path: Path) -> None:
    with LocalNode(data_dir=str(tmp_path)):
        first = (tmp_path / "meta.properties").read_text()
    with LocalNode(data_dir=str(tmp_path)):
        assert (tmp_path / "meta.properties").read_text() == first


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with LocalNode(data_dir=str(tmp_path)), pytest.raises(NodeFailed, match="in use by another node"):
        LocalNode(data_dir=str(tmp_path)).start()
    with pytest.raises(ValueError, match=r"num\.partitions"):
        LocalNode({"num.partitions": 0}).start()


@pytest.mark.slow
def test_one_that_nobody_stops_leaves_nothing_behind() -> None:
    script = "from ottla import LocalNode; node = LocalNode().start(); print(node.data_dir)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_it_tells_where_it_is() -> None:
    node = LocalNode()
    assert repr(node) == "<LocalNode, not started>"
    with node:
        assert repr(node) == f"<LocalNode at {node.bootstrap_servers}, data in {node.data_dir}>"
    assert repr(node) == "<LocalNode, stopped>"


@pytest.mark.skipif(process.open_file_limit() <= 2048, reason="the process may have no more files than that")
def test_its_files_leave_the_numbers_that_select_knows_to_its_host() -> None:
    """PySpark waits with `select` for its calls to Python; with many partitions it would never return."""
    with LocalNode() as node, Admin(node.bootstrap_servers) as admin:
        admin.topics.create("many", partitions=20)
        files = {
            file.path: file.fd
            for file in psutil.Process().open_files()
            if file.path.startswith(node.data_dir) and file.path.endswith(".log")
        }
    assert len(files) > 20
    assert min(files.values()) >= 1024


def test_examples_in_the_documentation_hold() -> None:
    result = doctest.testmod(local_node)
    assert result.attempted > 0
    assert result.failed == 0


def test_it_is_used_once_and_only_after_its_start() -> None:
    node = LocalNode()
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = node.port
    with node, pytest.raises(RuntimeError, match="started already"):
        node.start()
    node.stop()
