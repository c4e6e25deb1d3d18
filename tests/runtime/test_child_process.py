"""A child process for requests: it never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

HANGING = """
import os, time
from ottla.runtime.child_process import serve_requests

def answer(head, payload):
    with open(head["file"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(3600)

serve_requests(answer)
"""
PARENT = """
import asyncio, sys
from ottla.runtime.child_process import ChildProcess

asyncio.run(ChildProcess("hanging_child", timeout_seconds=3600).request({"file": sys.argv[1]}))
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_a_child_in_a_request_that_hangs_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "hanging_child.py").write_text(HANGING)
    file = tmp_path / "pid"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file)], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        wait_until(lambda: file.exists() and file.read_text() != "", "the child has no request", 60)
    finally:
        parent.kill()
        parent.wait()
    pid = int(file.read_text())
    try:
        wait_until(lambda: not is_running(pid), "the child outlives its parent", 60)
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
