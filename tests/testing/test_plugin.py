"""The fixtures that the package brings to other projects' tests."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SUITE = """
import socket

seen = []

def check(node):
    socket.create_connection(("127.0.0.1", node.port)).close()
    seen.append(node.bootstrap_servers)

def test_one(ottla_node):
    check(ottla_node)

def test_two(ottla_node, ottla_fresh_node):
    check(ottla_node)
    check(ottla_fresh_node)
    assert seen[0] == seen[1] != seen[2]
"""


@pytest.mark.slow
def test_a_project_gets_a_node_by_naming_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(textwrap.dedent(SUITE))
    # Named here rather than found by its entry point, so that it also works where Ottla is not installed.
    plugin = ["-p", "no:ottla", "-p", "ottla.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
