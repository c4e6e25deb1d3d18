"""Starting one of several nodes: what it needs to know, and how it waits for the others."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.node_process import run_start

from ottla.log.directory.meta_properties import read_meta_properties
from ottla.runtime.disk import RealDisk
from ottla.testing.cluster_plan import free_ports

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
DEADLINE_S = 60


def arguments(directory: Path, ports: list[int], *more: str) -> list[str]:
    client, own, *others = ports
    voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in enumerate((own, *others), 1))
    settings = {
        "log.dirs": str(directory),
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{own}",
        "controller.quorum.voters": voters,
    }
    return [*(part for name, value in settings.items() for part in ("--set", f"{name}={value}")), *more]


@pytest.mark.slow
def test_one_of_several_nodes_does_not_make_up_a_cluster_of_its_own(tmp_path: Path) -> None:
    done = run_start(arguments(tmp_path / "data", free_ports(4)))
    assert done.returncode == 1
    assert "No `meta.properties` found in" in done.stderr
    assert "--cluster-id" in done.stderr
    assert read_meta_properties(RealDisk(), str(tmp_path / "data")) is None


@pytest.mark.slow
def test_a_node_that_waits_for_its_quorum_can_be_stopped(tmp_path: Path) -> None:
    ports = free_ports(4)
    command = [sys.executable, "-m", "ottla", "start"]
    command += arguments(tmp_path / "data", ports, "--set", f"cluster.id={CLUSTER_ID}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        try:
            _await_listener(ports[1], node)
            properties = read_meta_properties(RealDisk(), str(tmp_path / "data"))
            assert properties is not None
            assert properties.cluster_id == CLUSTER_ID
            node.send_signal(signal.SIGTERM)
            assert node.wait(DEADLINE_S) == 0
            assert node.stdout is not None
            assert node.stdout.read() == "", "it was never ready"
        finally:
            node.kill()


def _await_listener(port: int, node: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert node.poll() is None
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
