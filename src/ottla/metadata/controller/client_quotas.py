"""ClientQuotaControlManager: the quotas of users, client ids and addresses.

An entity changes as a whole or not at all, whatever becomes of the others in the request. Only what changes a
quota is written, so a request that is repeated writes nothing.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from typing import Final

from ottla.metadata.controller.state import (
    NO_ERROR,
    ApiError,
    ControllerState,
    Decision,
    Result,
    check_record_count,
)
from ottla.metadata.image.entities import QuotaEntity
from ottla.metadata.image.image import quota_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.client_quotas import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    LARGEST_WHOLE,
    QUOTAS_OF_CLIENTS,
    QUOTAS_OF_IPS,
    USER,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    EntityData,
)
from ottla.runtime.steps import Steps

_MAX_FRACTION: Final = 1e-6
_MAX_INT: Final = 2**31 - 1


def alter_client_quotas(
    state: ControllerState, request: AlterClientQuotasRequest
) -> Decision[AlterClientQuotasResponse]:
    records: list[MetadataRecord] = []
    errors: dict[QuotaEntity, ApiError] = {}
    for entry in request.entries:
        yield
        entity = yield from _entity(entry)
        changes = {op.key: None if op.remove else op.value for op in entry.ops}
        if entity in errors or len(changes) < len(entry.ops):
            errors[entity] = _invalid(f"Ignoring duplicate entity {_text(entity)}")
            continue
        error = _check_entity(entity) or _check_values(entity, changes)
        if error is None:
            records += _records(state, entity, changes)
        errors[entity] = error or NO_ERROR
    check_record_count(records)
    response = AlterClientQuotasResponse()
    for entity, error in errors.items():
        yield
        response.entries.append(
            AlterClientQuotasResponseEntryData(
                error_code=int(error.code),
                error_message=error.message,
                entity=[EntityData(entity_type=type, entity_name=name) for type, name in entity],
            )
        )
    return Result([] if request.validate_only else records, response)


def _entity(entry: AlterClientQuotasRequestEntryData) -> Steps[QuotaEntity]:
    """The entity of an entry; of a type that is named twice the last name counts."""
    names: dict[str, str | None] = {}
    for part in entry.entity:
        names[part.entity_type] = part.entity_name
        yield
    return tuple(sorted(names.items()))


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _text(entity: QuotaEntity) -> str:
    names = ", ".join(f"{type}={'null' if name is None else name}" for type, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _check_entity(entity: QuotaEntity) -> ApiError | None:
    if not entity:
        return _invalid("Invalid empty client quota entity")
    for type, name in entity:
        if type not in ENTITY_TYPES:
            return _invalid(f"Unhandled client quota entity type: {type}")
        if name == "":
            return _invalid(f"Empty {type} not supported")
    names = dict(entity)
    if IP in names:
        if USER in names or CLIENT_ID in names:
            return _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        if names[IP] is not None and not _is_address(names[IP] or ""):
            return _invalid(f"{names[IP]} is not a valid IP or resolvable host.")
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_values(entity: QuotaEntity, changes: Mapping[str, float | None]) -> ApiError | None:
    """Check the quotas that are set. One that is removed need not even be known."""
    known = QUOTAS_OF_IPS if entity[0][0] == IP else QUOTAS_OF_CLIENTS
    for key, value in changes.items():
        if value is None:
            continue
        if key not in known:
            return _invalid(f"Invalid configuration key {key}")
        if math.isnan(value) or value <= 0:
            return _invalid(f"Quota {key} must be greater than 0")
        largest = LARGEST_WHOLE.get(key)
        if largest is None:
            continue
        if value > float(largest):
            kind = "an INT" if largest == _MAX_INT else "a LONG"
            return _invalid(f"Proposed value for {key} is too large for {kind}.")
        if value % 1 > _MAX_FRACTION:
            return _invalid(f"{key} cannot be a fractional value.")
    return None


def _records(
    state: ControllerState, entity: QuotaEntity, changes: Mapping[str, float | None]
) -> list[MetadataRecord]:
    current = state.image.client_quotas.get(entity, {})
    return [quota_record(entity, key, value) for key, value in changes.items() if current.get(key) != value]
