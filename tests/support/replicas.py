"""The bytes that the replicas of a partition hold."""

from __future__ import annotations

from pathlib import Path

from ottla.testing.local_cluster import LocalCluster


def replicas_of(cluster: LocalCluster, topic: str, partition: int) -> dict[int, bytes]:
    """The whole log of a partition on each node that has it, all segments in a row.

    Each replica cuts its log into segments by itself; what they hold together is the same.
    """
    folders = {
        node.id: Path(node.data_dir) / f"{topic}-{partition}" for node in cluster.nodes if node.is_broker
    }
    return {
        number: b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))
        for number, folder in folders.items()
        if folder.exists()
    }
