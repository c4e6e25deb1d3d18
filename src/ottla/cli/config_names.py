"""Check names of settings, and suggest what the user may have meant.

Brokers accept the removal of a setting that does not exist: there is nothing to remove. A user who mistypes a
name would believe that it is back at its default, so such a name is an error here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ottla.cli.errors import CliError, did_you_mean

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.configs import Config, ResourceType


async def describe_configs(
    admin: Admin, kind: ResourceType, name: str, named: Sequence[str] = (), *, documentation: bool = False
) -> dict[str, Config]:
    """The settings of a resource, with those of `named` that brokers show only to those who name them, as
    table.format of a topic that does not have it set.
    """
    from ottla.client.admin.configs import ResourceType

    configs = await admin.configs.describe(kind, name, documentation=documentation)
    if unlisted := [each for each in named if each not in configs]:
        if kind is ResourceType.TOPIC:
            # One of them may be what the user meant.
            from ottla.node.config.definitions.topic import OWN_TOPIC_SETTINGS

            unlisted += OWN_TOPIC_SETTINGS
        configs.update(await admin.configs.describe(kind, name, keys=unlisted, documentation=documentation))
    return configs


async def check_removed_names(admin: Admin, kind: ResourceType, name: str, removed: Sequence[str]) -> None:
    """Raise CliError for the first of `removed` that no resource of this kind has."""
    if removed:
        await _check_names(admin, kind, name, removed)


@asynccontextmanager
async def explain_unknown_names(
    admin: Admin, kind: ResourceType, name: str, named: Sequence[str]
) -> AsyncIterator[None]:
    """If the brokers refuse a change, check whether they know the settings, and raise CliError with a
    suggestion if not. A change that they accept is not checked: plugins have settings that no list contains.
    """
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        yield
    except KafkaError as error:
        if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            await _check_names(admin, kind, name, named)
        raise


async def _check_names(admin: Admin, kind: ResourceType, name: str, named: Sequence[str]) -> None:
    from ottla.client.admin.configs import ResourceType

    if kind not in (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP):
        return
    known = set(await describe_configs(admin, kind, name, named))
    if kind is ResourceType.BROKER and not name:
        # The default of all brokers lists only what is set; a broker lists all settings.
        broker = (await admin.cluster.describe()).brokers[0].node_id
        known.update(await admin.configs.describe(kind, str(broker)))
    for each in named:
        # Settings of one listener have its name as a prefix, and are not listed.
        if each not in known and not each.startswith("listener.name."):
            raise CliError(f"there is no setting {each}{did_you_mean(each, known)}")
