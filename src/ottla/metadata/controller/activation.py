"""What a controller writes when it becomes active: on an empty log the bootstrap records, on any other log
the abort of a metadata transaction that its predecessor left open.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.metadata.controller.configs import MIN_INSYNC_REPLICAS
from ottla.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    MetadataVersion,
    bootstrap_levels,
    metadata_version,
)
from ottla.metadata.image.entities import CLUSTER_DEFAULT, config_record
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)


def bootstrap_records(version: MetadataVersion = LATEST_METADATA_VERSION) -> list[MetadataRecord]:
    """What formatting writes to ``bootstrap.checkpoint``."""
    return [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in bootstrap_levels(version).items()
    ]


def bootstrap_metadata_version(bootstrap: Sequence[MetadataRecord]) -> MetadataVersion:
    """The metadata.version that the bootstrap records set; ValueError if they set none that is known."""
    level = _bootstrap_level(bootstrap, METADATA_VERSION)
    if level is None:
        raise ValueError(f"the bootstrap records do not set {METADATA_VERSION}; format the directory again")
    return metadata_version(level)


def _bootstrap_level(bootstrap: Sequence[MetadataRecord], name: str) -> int | None:
    levels = [r.feature_level for r in bootstrap if isinstance(r, FeatureLevelRecord) and r.name == name]
    return levels[-1] if levels else None


def activation_records(
    image: MetadataImage,
    bootstrap: Sequence[MetadataRecord],
    *,
    transaction_open: bool,
    min_insync_replicas: int,
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    if transaction_open:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    if not image.is_empty:
        return records
    transactional = bootstrap_metadata_version(bootstrap).transactions
    if transactional:
        records.append(BeginTransactionRecord(name="Bootstrap records"))
    records += bootstrap
    if (_bootstrap_level(bootstrap, ELIGIBLE_LEADER_REPLICAS_VERSION) or 0) > 0:
        # Eligible leader replicas need one min.insync.replicas that all nodes agree on.
        records.append(config_record(CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, str(min_insync_replicas)))
    if transactional:
        records.append(EndTransactionRecord())
    return records
