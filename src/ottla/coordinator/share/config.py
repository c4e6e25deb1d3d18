"""The settings of the share coordinator, by Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    snapshot_update_records_per_snapshot: int = 500
    """How many updates of a share partition are written between two snapshots of its state."""
    prune_interval_ms: int = 300_000
    cold_partition_snapshot_interval_ms: int = 300_000
