"""The broker's part in changing settings, before the controller writes them to the metadata log.

The broker changes log levels itself, at once and until its next start. It checks settings of its own against
those that it runs with. The controller decides everything else. A resource that has an outcome here is not
forwarded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ottla.metadata.controller.configs import OpType
from ottla.metadata.controller.state import NO_ERROR, ApiError
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.api.context import ApiRequestContext
from ottla.node.config.definitions.config_def import ConfigType
from ottla.node.config.loggers import LOG4J_LEVELS, ROOT, logger_levels, set_level
from ottla.node.config.node_config import NodeConfig, broker_key, listener_base_name
from ottla.node.config.schema import check_broker_settings
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.steps import Steps
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

_NODE_ID: Final = re.compile(r"[+-]?\d{1,10}")


class Change(NamedTuple):
    name: str
    operation: int
    value: str | None

    def __repr__(self) -> str:
        """Leave out the value, which may be a password."""
        return f"Change(name={self.name!r}, operation={self.operation})"


_STORED: Final = (ConfigResourceType.TOPIC, ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP)


class NamedResource(Protocol):
    """A resource, as AlterConfigs and IncrementalAlterConfigs and their responses name it."""

    resource_type: int
    resource_name: str


A = TypeVar("A")
R = TypeVar("R", bound=NamedResource)


async def alter(
    context: ApiRequestContext,
    requested: Sequence[A],
    read: Callable[[A], tuple[ConfigResource, Iterable[Change]]],
    forward: Callable[[list[A]], Awaitable[list[R]]],
    respond: Callable[..., R],
    *,
    incremental: bool,
    validate_only: bool,
) -> list[R]:
    """Decide what the broker decides, forward the rest to the controller, and answer in order."""
    turns = Turns(context.services.node.runtime.clock)
    resources = []
    for each in requested:
        resource, named = read(each)
        changes: list[Change] = []
        resources.append((resource, changes))
        for change in named:
            changes.append(change)
            await turns.pause_if_due()
        await turns.pause_if_due()
    checks = _preprocess(context, resources, incremental=incremental, validate_only=validate_only)
    outcomes = await in_turns(checks, turns)
    for at, (resource, changes) in enumerate(resources):
        if outcomes[at] is None and resource.type == ConfigResourceType.BROKER:
            outcomes[at] = await _check_certificates(context, resource, changes, incremental=incremental)
    remaining = [each for each, outcome in zip(requested, outcomes) if outcome is None]
    decided = {(r.resource_type, r.resource_name): r for r in await forward(remaining)} if remaining else {}
    results = []
    for (resource, _), outcome in zip(resources, outcomes):
        results.append(
            decided[resource.type, resource.name]
            if outcome is None
            else respond(
                error_code=int(outcome.code),
                error_message=outcome.message,
                resource_type=int(resource.type),
                resource_name=resource.name,
            )
        )
        await turns.pause_if_due()
    return results


def parse_node_id(name: str) -> int | None:
    """The node that a resource of brokers names; None if it is no number of 32 bits."""
    if _NODE_ID.fullmatch(name) is None:
        return None
    number = int(name)
    return number if -(2**31) <= number < 2**31 else None


def _preprocess(
    context: ApiRequestContext,
    resources: Sequence[tuple[ConfigResource, Sequence[Change]]],
    *,
    incremental: bool,
    validate_only: bool,
) -> Steps[list[ApiError | None]]:
    """For each resource its outcome, or None where the controller decides."""
    counts = Counter(resource for resource, _ in resources)
    outcomes: list[ApiError | None] = []
    for resource, changes in resources:
        try:
            if counts[resource] > 1:
                raise _invalid("Each resource must appear at most once.")
            yield from _check_form(changes)
            if resource.type == ConfigResourceType.BROKER:
                if context.listener.kind is ListenerType.BROKER:
                    _check_broker(context, resource, changes, incremental=incremental)
                else:
                    _authorize_broker(context)
                outcomes.append(None)
            elif resource.type == ConfigResourceType.BROKER_LOGGER and incremental:
                _change_loggers(context, resource, changes, validate_only=validate_only)
                outcomes.append(NO_ERROR)
            elif resource.type in _STORED:
                outcomes.append(None)
            else:
                raise _invalid(f"Unknown resource type {int(resource.type)}: it has no configs.")
        except KafkaError as error:
            outcomes.append(ApiError.of(error))
        yield
    return outcomes


def _check_form(changes: Sequence[Change]) -> Steps[None]:
    names: set[str] = set()
    nulls: list[str] = []
    for change in changes:
        names.add(change.name)
        if change.value is None and change.operation != OpType.DELETE:
            nulls.append(change.name)
        yield
    if len(names) != len(changes):
        raise _invalid("Error due to duplicate config keys")
    if nulls:
        raise _invalid(f"Null value not supported for : {', '.join(nulls)}")


def _authorize_broker(context: ApiRequestContext) -> None:
    """Refuse clients that may not change brokers before their values are checked: the checks read files that
    the values name, and their errors tell what is there.
    """
    if not context.allowed(AclOperation.ALTER_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise KafkaError(error, error.text)


def _check_broker(
    context: ApiRequestContext, resource: ConfigResource, changes: Sequence[Change], *, incremental: bool
) -> None:
    if resource.name:
        node_id = parse_node_id(resource.name)
        if node_id is None:
            raise _invalid(f"Node id must be an integer, but it is: {resource.name}")
        if node_id != context.config.node_id:
            raise _invalid(
                f"Unexpected broker id, expected {context.config.node_id}, but received {resource.name}"
            )
    _authorize_broker(context)
    settings = _settings_after(context, resource, changes, incremental=incremental)
    check_broker_settings(context.config, settings, per_broker=bool(resource.name))


def _settings_after(
    context: ApiRequestContext, resource: ConfigResource, changes: Sequence[Change], *, incremental: bool
) -> dict[str, str]:
    if incremental:
        return _apply_changes(context.image.config(resource), changes)
    return {change.name: change.value or "" for change in changes}


async def _check_certificates(
    context: ApiRequestContext, resource: ConfigResource, changes: Sequence[Change], *, incremental: bool
) -> ApiError | None:
    """Check that the key material of a listener can be used in place of that in use, before it is."""
    if not resource.name or not any(listener_base_name(each.name).startswith("ssl.") for each in changes):
        return None
    from ottla.security.tls.errors import TlsError

    config = context.config
    settings = _settings_after(context, resource, changes, incremental=incremental)
    changed = NodeConfig(config.given, dynamic_default=config.dynamic_default, dynamic_broker=settings)
    try:
        await context.services.node.security.check_change(changed)
    except TlsError as error:
        message = f"Validation of dynamic config update of SSLFactory failed: {error}"
        return ApiError.of(_invalid(message))
    return None


def _apply_changes(current: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    settings = dict(current)
    for name, operation, value in changes:
        if operation == OpType.DELETE:
            settings.pop(name, None)
        elif operation == OpType.SET:
            settings[name] = value or ""
        elif operation in (OpType.APPEND, OpType.SUBTRACT):
            key = broker_key(name)
            if key is None or key.type is not ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {OpType(operation).name} to key {name} because its type is not LIST. Use SET.",
                )
            items = [item for item in settings.get(name, key.show(key.default) or "").split(",") if item]
            given = [item for item in (value or "").split(",") if item]
            if operation == OpType.APPEND:
                known = set(items)
                items += [item for item in given if item not in known]
            else:
                removed = set(given)
                items = [item for item in items if item not in removed]
            settings[name] = ",".join(items)
        else:
            raise _invalid(f"Unknown operation type {operation}")
    return settings


def _change_loggers(
    context: ApiRequestContext, resource: ConfigResource, changes: Sequence[Change], *, validate_only: bool
) -> None:
    required = AclOperation.ALTER_CONFIGS
    if context.listener.kind is ListenerType.CONTROLLER:
        required = AclOperation.CLUSTER_ACTION
    if not context.allowed(required, AclResourceType.CLUSTER, CLUSTER_NAME):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise KafkaError(error, error.text)
    own = context.config.node_id
    node_id = parse_node_id(resource.name)
    if node_id is None:
        raise _invalid(f"Node id must be an integer, but it is: {resource.name}")
    if node_id != own:
        raise _invalid(f"Unexpected node id. Expected {own}, but received {resource.name}")
    known = logger_levels()
    for name, operation, value in changes:
        if operation not in (OpType.SET, OpType.DELETE):
            raise _invalid(
                f"{OpType(operation).name} operation is not allowed for the BROKER_LOGGER resource"
                if operation in tuple(OpType)
                else f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"
            )
        if name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
        if operation == OpType.SET and (value or "").upper() not in LOG4J_LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(LOG4J_LEVELS))}",
            )
        if operation == OpType.DELETE and name == ROOT:
            raise _invalid(f"Removing the log level of the {ROOT} logger is not allowed")
    if not validate_only:
        for name, operation, value in changes:
            set_level(name, None if operation == OpType.DELETE else (value or "").upper())


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
