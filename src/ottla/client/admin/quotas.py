"""Client quotas: how much users, client ids and addresses may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from ottla.client.admin.requests import AdminRequests
from ottla.protocol.client_quotas import USER, MatchType
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.describe_client_quotas import (
    EntityData as DescribedEntity,
)


class AnyName(Enum):
    ANY = "any"


ANY_NAME: Final = AnyName.ANY
"""Matches each name of a type, and its default."""

EntityName: TypeAlias = str | None
"""The name of a user, client id or address; None for the default, which holds for those without a quota of
their own."""


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """The quotas of one entity; it is written as `{"user": "alice", "client-id": None}`."""

    entity: Mapping[str, EntityName]
    quotas: Mapping[str, float]

    @property
    def text(self) -> str:
        return entity_text(self.entity)


def entity_text(entity: Mapping[str, EntityName]) -> str:
    """
    >>> entity_text({"user": "alice", "client-id": None})
    'user alice, default client-id'
    """
    return ", ".join(f"default {type}" if name is None else f"{type} {name}" for type, name in entity.items())


class QuotasAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def describe(
        self, entities: Mapping[str, EntityName | AnyName] | None = None, *, strict: bool = False
    ) -> list[EntityQuotas]:
        """The quotas of the entities that have all of these types and names, and with `strict` no others; of
        all entities if none is named. The types are `user`, `client-id` and `ip`.
        """
        request = DescribeClientQuotasRequest(
            components=[_component(type, name) for type, name in (entities or {}).items()], strict=strict
        )
        answer = await self._requests.any(request, DescribeClientQuotasResponse)
        self._requests.raise_error(answer, "client quotas")
        found = [
            EntityQuotas(
                {part.entity_type: part.entity_name for part in sorted(entry.entity, key=_user_first)},
                {each.key: each.value for each in sorted(entry.values, key=lambda each: each.key)},
            )
            for entry in answer.entries or ()
        ]
        return sorted(found, key=lambda each: [(type, name or "") for type, name in each.entity.items()])

    async def alter(
        self,
        entity: Mapping[str, EntityName],
        *,
        set: Mapping[str, float] | None = None,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove quotas of one entity, all or none: `producer_byte_rate`, `consumer_byte_rate`,
        `request_percentage` and `controller_mutation_rate` of users and client ids,
        `connection_creation_rate` of addresses. INVALID_REQUEST if one cannot be.
        """
        ops = [OpData(key=key, value=value) for key, value in (set or {}).items()]
        ops += [OpData(key=key, remove=True) for key in remove]
        entry = AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type=type, entity_name=name) for type, name in entity.items()], ops=ops
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        answer = await self._requests.controller(
            request, AlterClientQuotasResponse, lambda r: (each.error_code for each in r.entries)
        )
        for result in answer.entries:
            self._requests.raise_error(result, entity_text(entity))


def _user_first(part: DescribedEntity) -> bool:
    return part.entity_type != USER


def _component(type: str, name: EntityName | AnyName) -> ComponentData:
    if name is AnyName.ANY:
        return ComponentData(entity_type=type, match_type=MatchType.ANY, match=None)
    match = MatchType.DEFAULT if name is None else MatchType.EXACT
    return ComponentData(entity_type=type, match_type=match, match=name)
