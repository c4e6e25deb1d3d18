"""Decode the records of Kafka's internal topics and control batches to plain values.

Metadata, committed offsets and groups, transactions, share groups' states and the records of tiered storage
are shown as by Kafka's own tools: the record's name, its version and its fields in camel case. A record that
cannot be decoded is shown with its error, which is never raised: a user who inspects a damaged log wants to
see the rest.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.protocol.errors import KafkaError
from ottla.protocol.json_form import to_json
from ottla.protocol.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from ottla.protocol.prefixed import read_prefix
from ottla.records.batch import Record
from ottla.records.control import EndTransactionMarker, parse_control_records

DECODABLE_TOPICS: Final = (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
)


def decode_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """`key` and `value` of a record of an internal topic; `error` in place of what cannot be read."""
    try:
        if topic == CLUSTER_METADATA_TOPIC:
            return _metadata(value)
        if topic == REMOTE_LOG_METADATA_TOPIC:
            return _remote(value)
        return _coordinator(topic, key, value)
    except KafkaError as error:
        return {"error": error.message}


def _metadata(value: bytes | None) -> dict[str, Any]:
    from ottla.protocol.metadata_records import decode_metadata_record

    if value is None:
        return {"value": None}
    record, version = decode_metadata_record(value)
    return {"value": _document(record, version)}


def _remote(value: bytes | None) -> dict[str, Any]:
    from ottla.protocol.remote_log_records import RECORD_TYPES

    if value is None:
        return {"value": None}
    record, version = RECORD_TYPES.decode(value)
    return {"value": _document(record, version)}


def _coordinator(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    if topic == CONSUMER_OFFSETS_TOPIC:
        from ottla.protocol.consumer_offsets_records import RECORDS
    elif topic == TRANSACTION_STATE_TOPIC:
        from ottla.protocol.transaction_state_records import RECORDS
    else:
        from ottla.protocol.share_state_records import RECORDS

    if key is None:
        return {"error": "the record has no key"}
    decoded_key, decoded_value = RECORDS.decode(key, value)
    return {
        "key": _document(decoded_key, 0),
        "value": _document(decoded_value, read_prefix(value))
        if decoded_value is not None and value is not None
        else None,
    }


def _document(record: Any, version: int) -> dict[str, Any]:
    return {"type": type(record).__name__, "version": version, "data": to_json(record, version)}


def decode_control(record: Record) -> dict[str, Any]:
    """The content of a control record."""
    try:
        (control,) = parse_control_records([record])
    except KafkaError as error:
        return {"error": error.message}
    found: dict[str, Any] = {"type": control.type.name}
    if isinstance(control.value, EndTransactionMarker):
        found["coordinatorEpoch"] = control.value.coordinator_epoch
    elif control.value is not None:
        found["data"] = to_json(control.value, control.value.version)
    return found
