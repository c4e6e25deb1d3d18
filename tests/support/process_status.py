"""What nodes of a `LocalCluster` say of their processes: `ottla status:` lines, on SIGUSR1."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from ottla.testing.local_cluster import ClusterNode

_LABEL = b"ottla status: "
_DEADLINE_S = 60.0


def process_status(node: ClusterNode) -> dict[str, Any]:
    """The node's status, as it is now."""
    log_file = node.plan.log_file
    size = log_file.stat().st_size
    pid = node.pid
    assert pid is not None, f"node {node.id} is down"
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        with log_file.open("rb") as log:
            log.seek(size)
            for line in log.read().splitlines(keepends=True):
                if line.startswith(_LABEL) and line.endswith(b"\n"):
                    status: dict[str, Any] = json.loads(line[len(_LABEL) :])
                    return status
        assert time.monotonic() < deadline, f"node {node.id} does not answer SIGUSR1:\n{node.log()}"
        time.sleep(0.05)


def worst_turn(status: dict[str, Any]) -> str:
    """The longest turns of a node's event loop, and what held it."""
    loop = status["loop"]
    return (
        f"{loop['longest_cpu_ms']:.0f} ms of CPU ({loop['longest_cpu_culprit']}); "
        f"{loop['longest_ms']:.0f} ms by the clock ({loop['longest_culprit']}); "
        f"{loop['above_bound_cpu']} of {loop['above_bound']} above the bound by CPU time; {loop['histogram']}"
    )
