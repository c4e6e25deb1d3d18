"""`ottla storage info` of a running node, which has no clean shutdown yet."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.runtime.disk import RealDisk
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


@pytest.mark.slow
def test_a_directory_in_use_says_by_whom_and_not_that_it_was_not_shut_down(
    offline: CommandLine, tmp_path: Path
) -> None:
    with LocalNode(data_dir=str(tmp_path)) as node:
        facts = offline.ok("storage", "info", str(tmp_path), "--json").json[0]
        assert facts["clean_shutdown"] is None
        assert facts["in_use_by"] is not None
        assert "uses it" in offline.ok("storage", "info", str(tmp_path)).out
        # Checking a lock must not release it.
        other = subprocess.run(
            [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert other.returncode != 0
        assert "in use by another node" in other.stderr
        assert node.port
    facts = offline.ok("storage", "info", str(tmp_path), "--json").json[0]
    assert facts["clean_shutdown"] is True
    assert facts["in_use_by"] is None


def test_it_only_reads(offline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalNode(data_dir=str(tmp_path)):
        pass
    real = os.open

    def read_only(path: str, flags: int, *more: int) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    assert offline.ok("storage", "info", str(tmp_path), "--json").json[0]["clean_shutdown"] is True


@pytest.mark.slow
def test_the_process_that_uses_it_is_named(offline: CommandLine) -> None:
    with LocalCluster(nodes=1) as cluster:
        (node,) = cluster.nodes
        data = next(Path(node.data_dir).rglob("meta.properties")).parent
        assert RealDisk().locked_by(str(data / ".lock")) == node.pid
        facts = offline.ok("storage", "info", str(data), "--json").json[0]
        assert facts["in_use_by"] == node.pid
        cluster.kill(node)
        facts = offline.ok("storage", "info", str(data), "--json").json[0]
        assert (facts["in_use_by"], facts["clean_shutdown"]) == (None, False)
