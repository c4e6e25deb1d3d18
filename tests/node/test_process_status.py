"""What a node says of its process: on SIGUSR1 and SIGQUIT, and when it crashes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import came_true, wait_until

pytestmark = pytest.mark.slow


def started(directory: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ottla", "start", "--data-dir", str(directory), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def status_of(node: "subprocess.Popen[str]") -> dict[str, Any]:
    assert node.stdout is not None
    ready = node.stdout.readline()
    assert "is ready" in ready, ready
    return ask_for_status(node)


def ask_for_status(node: "subprocess.Popen[str]") -> dict[str, Any]:
    assert node.stdout is not None
    node.send_signal(signal.SIGUSR1)
    line = node.stdout.readline()
    label, _, text = line.partition(": ")
    assert label == "ottla status"
    status: dict[str, Any] = json.loads(text)
    return status


@pytest.mark.parametrize(("setting", "bound"), [("", 10.0), ("25", 25.0), ("0", None)])
def test_a_node_reports_its_process(tmp_path: Path, setting: str, bound: float | None) -> None:
    with started(tmp_path / "data", OTTLA_MAX_TURN_MS=setting) as node:
        try:
            status = status_of(node)
        finally:
            node.terminate()
            _, errors = node.communicate(timeout=60)
    assert node.returncode == 0, errors
    assert status["resident_bytes"] > 10_000_000
    assert status["open_files"] > 3
    assert status["tasks"]["controller tick"] == 1
    assert status["failing_tasks"] == {}
    assert status["storage"] == {
        "offline_directories": {},
        "offline_partitions": 0,
        "damaged_partitions": 0,
        "offline_reasons": {},
        "set_aside": [],
    }
    assert status["connection_memory"]["clients"]["limit"] > status["connection_memory"]["nodes"]["limit"] > 0
    if bound is None:
        assert status["loop"] is None
    else:
        assert status["loop"]["bound_ms"] == bound
        assert status["loop"]["looks"] > 0


def used_ticks(pid: int) -> int:
    """The processor time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def is_idle(pid: int) -> bool:
    before = used_ticks(pid)
    return not came_true(lambda: used_ticks(pid) != before, 0.3)


def test_a_crash_leaves_the_stacks_of_all_threads(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        assert node.stdout is not None
        assert "is ready" in node.stdout.readline()
        wait_until(lambda: is_idle(node.pid))  # the stack of a thread that runs may not be readable
        node.send_signal(signal.SIGSEGV)
        _, errors = node.communicate(timeout=60)
    assert node.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in errors
    assert "loop_watchdog.py" in errors
    assert "in run_node" in errors


def test_a_node_writes_its_stacks_when_it_is_asked_to(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        assert node.stdout is not None
        assert "is ready" in node.stdout.readline()
        node.send_signal(signal.SIGQUIT)
        # It goes on, and stops as usual.
        status = ask_for_status(node)
        node.terminate()
        _, errors = node.communicate(timeout=60)
    assert node.returncode == 0, errors
    assert status["open_files"] > 3
    assert "loop_watchdog.py" in errors
    assert "in run_node" in errors


def test_a_bound_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with started(tmp_path / "data", OTTLA_MAX_TURN_MS="soon") as node:
        _, errors = node.communicate(timeout=60)
    assert node.returncode == 1
    assert "OTTLA_MAX_TURN_MS=soon" in errors
