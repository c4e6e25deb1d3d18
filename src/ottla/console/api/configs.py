"""Settings of topics, brokers and groups, with their sources and defaults."""

from __future__ import annotations

from typing import Any, Final

from ottla.client.admin.configs import Config, ResourceType
from ottla.console.api_request import ApiRequest, bad_request
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.node.config.definitions.topic import TOPIC

# Broker settings that stand in for one of a topic in milliseconds.
_MS: Final = {".hours": 3_600_000, ".minutes": 60_000}


def _resource(request: ApiRequest) -> tuple[ResourceType, str]:
    if "topic" in request.params:
        return ResourceType.TOPIC, request.params["topic"]
    if "broker" in request.params:
        broker = request.params["broker"]
        if broker == "default":
            return ResourceType.BROKER, ""
        if not broker.isdecimal() or len(broker) > 9:
            raise bad_request("the id of a broker is a number")
        return ResourceType.BROKER, broker
    return ResourceType.GROUP, request.required("id")


async def describe_configs(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    kind, name = _resource(request)
    admin = await context.access.admin(name if kind is ResourceType.TOPIC else None)
    if kind is ResourceType.TOPIC:
        await admin.topics.describe(name)
    found = await admin.configs.describe(kind, name, documentation=True)
    return {"items": [_item(each, kind) for _, each in sorted(found.items())]}


def _default(config: Config, kind: ResourceType) -> str | None:
    """What holds once the strongest source is gone; None if that is not known."""
    if config.is_sensitive or config.is_default:
        return None if config.is_sensitive else config.value
    for name, value, source in config.synonyms:
        if source is not config.source and value is not None:
            factor = next((each for unit, each in _MS.items() if name.endswith(unit)), 1)
            return str(int(value) * factor) if factor > 1 and value.isdecimal() else value
    # Brokers do not name a default where only settings in other units have one.
    known = TOPIC.get(config.name) if kind is ResourceType.TOPIC else None
    return None if known is None else known.show(known.default)


def _item(config: Config, kind: ResourceType) -> dict[str, Any]:
    synonyms = [] if config.is_sensitive else list(config.synonyms)
    return {
        "name": config.name,
        "value": None if config.is_sensitive else config.value,
        "default": _default(config, kind),
        "source": config.source.name,
        "readOnly": config.is_read_only,
        "sensitive": config.is_sensitive,
        "documentation": config.documentation,
        "synonyms": [
            {"name": name, "value": value, "source": source.name} for name, value, source in synonyms
        ],
    }


async def alter_configs(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    kind, name = _resource(request)
    body = request.body()
    changes, removed = body.text_mapping("set"), body.texts("delete")
    if not changes and not removed:
        raise bad_request("nothing is to be changed: give set or delete")
    admin = await context.access.admin(name if kind is ResourceType.TOPIC else None)
    await admin.configs.alter(
        kind, name, set=changes, delete=removed, validate_only=body.flag("validateOnly")
    )
    return {}


_PATHS: Final = ("/api/topics/{topic}/config", "/api/brokers/{broker}/config", "/api/group/config")
ROUTES: Final = tuple(
    ConsoleRoute(method, path, handle)
    for path in _PATHS
    for method, handle in (("GET", describe_configs), ("POST", alter_configs))
)
