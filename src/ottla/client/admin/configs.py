"""Configurations of topics, brokers, groups and client metrics: describe, alter, and list resources that have
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPICS_AT_ONCE = 500


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of a value, the strongest first."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Config:
    """The value of a setting and its source. `synonyms` are all sources that set it, the strongest first."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...]
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class ConfigsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def describe(
        self,
        resource_type: ResourceType,
        name: str,
        *,
        keys: Iterable[str] | None = None,
        documentation: bool = False,
    ) -> dict[str, Config]:
        """The settings of one resource by name. The settings of a broker are requested from that broker."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configuration_keys=None if keys is None else list(keys),
                )
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )
        if documentation and not await self._supports_documentation():
            request.include_documentation = False
        if self._asks_one_broker(resource_type, name):
            answer = await self._requests.node(int(name), request, DescribeConfigsResponse)
        else:
            answer = await self._requests.any(request, DescribeConfigsResponse)
        result = answer.results[0]
        self._requests.raise_error(result, f"{resource_type.name.lower()} {name!r}")
        return _configs(result)

    async def describe_topics(
        self, names: Iterable[str], *, keys: Iterable[str] | None = None, broker: int | None = None
    ) -> dict[str, dict[str, Config] | KafkaError]:
        """The settings of topics, many with each request, as any broker has them, or this one; the error
        where a topic has none, as when it was deleted meanwhile.
        """
        wanted = None if keys is None else list(keys)
        found: dict[str, dict[str, Config] | KafkaError] = {}
        every = list(names)
        for start in range(0, len(every), _TOPICS_AT_ONCE):
            resources = [
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=wanted
                )
                for name in every[start : start + _TOPICS_AT_ONCE]
            ]
            request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
            if broker is None:
                answer = await self._requests.any(request, DescribeConfigsResponse)
            else:
                answer = await self._requests.node(broker, request, DescribeConfigsResponse)
            for result in answer.results:
                name, code = result.resource_name, ErrorCode.of(result.error_code)
                found[name] = (
                    _configs(result)
                    if code is ErrorCode.NONE
                    else KafkaError(code, f"topic {name!r}: {result.error_message or code.text}")
                )
        return found

    async def alter(
        self,
        resource_type: ResourceType,
        name: str,
        *,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of one resource, all or none. An empty broker name means the default of all
        brokers.
        """
        changes = [
            *((key, _Operation.SET, value) for key, value in (set or {}).items()),
            *((key, _Operation.DELETE, None) for key in delete),
            *((key, _Operation.APPEND, value) for key, value in (append or {}).items()),
            *((key, _Operation.SUBTRACT, value) for key, value in (subtract or {}).items()),
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        AlterableConfig(name=key, config_operation=operation, value=value)
                        for key, operation, value in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        if self._asks_one_broker(resource_type, name):
            answer = await self._requests.node(int(name), request, IncrementalAlterConfigsResponse)
        else:
            answer = await self._requests.controller(
                request, IncrementalAlterConfigsResponse, lambda r: (x.error_code for x in r.responses)
            )
        self._requests.raise_error(answer.responses[0], f"{resource_type.name.lower()} {name!r}")

    async def resources(self, *types: ResourceType) -> list[tuple[ResourceType, str]]:
        """The resources that have a configuration of their own, of all types or of these."""
        connection = await self._requests.cluster.any_connection()
        request = ListConfigResourcesRequest(resource_types=list(types))
        if connection.version_for(ListConfigResourcesRequest) == 0:
            request.resource_types = []
        answer = await self._requests.any(request, ListConfigResourcesResponse)
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        return [(ResourceType(r.resource_type), r.resource_name) for r in answer.config_resources]

    @staticmethod
    def _asks_one_broker(resource_type: ResourceType, name: str) -> bool:
        return resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name != ""

    async def _supports_documentation(self) -> bool:
        connection = await self._requests.cluster.any_connection()
        return connection.version_for(DescribeConfigsRequest) >= 3


def _configs(result: DescribeConfigsResult) -> dict[str, Config]:
    return {
        entry.name: Config(
            entry.name,
            entry.value,
            _source(entry.config_source),
            entry.read_only,
            entry.is_sensitive,
            tuple((s.name, s.value, _source(s.source)) for s in entry.synonyms),
            entry.documentation,
        )
        for entry in result.configs
    }


def _source(value: int) -> ConfigSource:
    return ConfigSource(value) if value in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN
