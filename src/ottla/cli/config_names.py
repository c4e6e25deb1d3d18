"""Names of settings: those that a cluster does not know, and what may have been meant.

Brokers answer the removal of a setting that does not exist with success: nothing is there to remove. Whoever
mistyped a name would believe that it had gone back to its default, so such a name is an error here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ottla.cli.errors import CliError, did_you_mean

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.configs import ResourceType


async def check_removed(admin: Admin, kind: ResourceType, name: str, removed: Sequence[str]) -> None:
    """CliError names the first of `removed` that no resource of this kind has."""
    if removed:
        await _check(admin, kind, name, removed)


@asynccontextmanager
async def names_explained(
    admin: Admin, kind: ResourceType, name: str, named: Sequence[str]
) -> AsyncIterator[None]:
    """Where brokers refuse a change, look first whether they know the settings: CliError says what may have
    been meant. What they take is none of our business; plugins have settings that nobody lists.
    """
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        yield
    except KafkaError as error:
        if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            await _check(admin, kind, name, named)
        raise


async def _check(admin: Admin, kind: ResourceType, name: str, named: Sequence[str]) -> None:
    from ottla.client.admin.configs import ResourceType

    if kind not in (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP):
        return
    known = set(await admin.configs.describe(kind, name))
    if kind is ResourceType.BROKER and not name:
        # The default of all brokers lists only what has been set; a broker lists all that there is.
        broker = (await admin.cluster.describe()).brokers[0].node_id
        known.update(await admin.configs.describe(kind, str(broker)))
    for each in named:
        # Settings of one listener are named after it, and not listed.
        if each not in known and not each.startswith("listener.name."):
            raise CliError(f"there is no setting {each}{did_you_mean(each, known)}")
