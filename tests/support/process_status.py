"""What nodes of a `LocalCluster` say of their processes: `ottla status:` lines, on SIGUSR1."""

from __future__ import annotations

import time
from typing import Any

from ottla.testing.cluster_process import NodeProcess
from ottla.testing.local_cluster import ClusterNode

_DEADLINE_S = 60.0


def process_status(node: ClusterNode) -> dict[str, Any]:
    """The node's status, as it is now."""
    process = NodeProcess(node.plan)
    position = process.ask_status()
    assert position is not None, f"node {node.id} is not ready:\n{node.log()}"
    deadline = time.monotonic() + _DEADLINE_S
    while (status := process.read_status(position)) is None:
        assert time.monotonic() < deadline, f"node {node.id} does not answer SIGUSR1:\n{node.log()}"
        time.sleep(0.05)
    return status


def waits_for_syncs(status: dict[str, Any]) -> dict[str, float]:
    """How long a node's event loop was seen to wait for an fsync, in milliseconds; empty if it never was."""
    return {call: ms for call, ms in status["loop"]["blocked_ms"].items() if call in ("sync", "sync_dir")}


def worst_turn(status: dict[str, Any]) -> str:
    """The longest turns of a node's event loop, and what held it."""
    loop = status["loop"]
    return (
        f"{loop['longest_cpu_ms']:.0f} ms of CPU ({loop['longest_cpu_culprit']}); "
        f"{loop['longest_ms']:.0f} ms by the clock ({loop['longest_culprit']}); "
        f"{loop['longest_blocked_ms']:.0f} ms waiting for the disk ({loop['longest_blocked_culprit']}); "
        f"waits for the disk in all: {loop['blocked_ms']}; "
        f"{loop['above_bound_cpu']} of {loop['above_bound']} above the bound by CPU time; {loop['histogram']}"
    )
