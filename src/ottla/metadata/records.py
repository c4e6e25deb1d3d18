"""Encode metadata records in the version that a metadata.version allows.

The controller writes record objects; only here do they get a version. Invariant: a record is written in a
version that every node at the cluster's metadata.version can read.
"""

from __future__ import annotations

from typing import TypeAlias

from ottla.metadata.features import MetadataVersion
from ottla.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    encode_metadata_record,
)
from ottla.protocol.schema import Message

MetadataRecord: TypeAlias = Message


def record_version(record: MetadataRecord, version: MetadataVersion) -> int:
    """The version to write a record in; most have only one."""
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        return version.partition_record_version
    if isinstance(record, RegisterBrokerRecord):
        return version.register_broker_record_version
    if isinstance(record, BrokerRegistrationChangeRecord):  # the lowest that has the fields, as in Kafka
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    return 0


def encode_record(record: MetadataRecord, version: MetadataVersion) -> bytes:
    return encode_metadata_record(record, record_version(record, version))
