"""DescribeClientQuotas: the quotas of the entities that match a filter.

Each part of the filter is about one type of entities: a name, the default, or any. An entity matches that has
all of these types; with `strict` it may have no others. A filter without parts matches all.

Version 1 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.metadata.image.entities import QuotaEntity
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.client_quotas import ENTITY_TYPES, IP, MatchType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.runtime.steps import Steps


class _AnyName:
    """Matches each name of a type, and its default."""


_ANY_NAME: Final = _AnyName()
_Filter = dict[str, str | _AnyName | None]


def handle(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Awaitable[DescribeClientQuotasResponse]:
    context.require_of_cluster(AclOperation.DESCRIBE_CONFIGS)
    steps = _respond(context.image, _filter(request.components), strict=request.strict)
    return context.run_bulky(steps, len(context.image.client_quotas))


def _respond(image: MetadataImage, wanted: _Filter, *, strict: bool) -> Steps[DescribeClientQuotasResponse]:
    entries: list[EntryData] = []
    for entity, quotas in image.client_quotas.items():
        yield
        if _matches(entity, wanted, strict=strict):
            entries.append(
                EntryData(
                    entity=[EntityData(entity_type=type, entity_name=name) for type, name in entity],
                    values=[ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
    return DescribeClientQuotasResponse(entries=entries)


def failure_response(
    _request: DescribeClientQuotasRequest, code: int, message: str | None
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=int(code), error_message=message, entries=None)


def _filter(components: list[ComponentData]) -> _Filter:
    """The name that each type must have. INVALID_REQUEST and UNSUPPORTED_VERSION as in Kafka."""
    wanted: _Filter = {}
    for component in components:
        type, match = component.entity_type, component.match
        if not type:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if type in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {type} cannot appear more than once in the filter."
            )
        if type not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {type}")
        try:
            match_type = MatchType(component.match_type)
        except ValueError:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}"
            ) from None
        if match_type is MatchType.EXACT and match is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if match_type is not MatchType.EXACT and match is not None:
            name = "DEFAULT" if match_type is MatchType.DEFAULT else "SPECIFIED"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Request specified MATCH_TYPE_{name}, but also specified a match string.",
            )
        wanted[type] = _ANY_NAME if match_type is MatchType.ANY else match
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        )
    return wanted


def _matches(entity: QuotaEntity, wanted: _Filter, *, strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    names = dict(entity)
    return all(type in names and (name is _ANY_NAME or names[type] == name) for type, name in wanted.items())
