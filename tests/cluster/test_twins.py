"""Two brokers with one id: the second does not get in, and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing.cluster_plan import ClusterPlan
from ottla.testing.local_cluster import LocalCluster


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_broker_whose_id_another_has_gives_up_and_names_it(tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    with LocalCluster(nodes=1, controllers=1, data_dir=home):
        settings = (
            f"cluster.id={ClusterPlan.read(home).cluster_id}",
            f"log.dirs={tmp_path / 'twin'}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "initial.broker.registration.timeout.ms=5000",
        )
        command = [sys.executable, "-m", "ottla", "start", str(home / "node-1" / "server.properties")]
        for setting in settings:
            command += ["--set", setting]
        twin = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert twin.returncode == 1
    assert "node.id 1: Another live broker uses this id" in twin.stderr
