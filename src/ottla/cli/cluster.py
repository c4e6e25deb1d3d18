"""`ottla cluster`: brokers, features, and the APIs that they speak; and clusters that run on this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli import cluster_local
from ottla.cli.declare import Option, command, group
from ottla.cli.errors import WrongUsage
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Json,
    Timeout,
    named_values,
)
from ottla.cli.output import print_json, print_pairs, print_table
from ottla.cli.session import with_admin
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.cluster import ClusterInfo, Feature

HELP: Final = "Run a cluster on this machine; describe any cluster's brokers, features and APIs."
# How long is waited for word of a quorum that may have no leader.
_CONTROLLER_SECONDS: Final = 3.0
app = group("cluster", HELP)
for each in cluster_local.COMMANDS:
    app.add_command(each)


@command(app, "describe")
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the cluster's id, its controller and its brokers."""

    async def work(admin: Admin) -> tuple[ClusterInfo, int | None]:
        info = await admin.cluster.describe()
        return info, await _controller(admin, info)

    info, controller = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json(
            {
                "cluster_id": info.cluster_id,
                "controller": controller,
                "brokers": [
                    {"id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in info.brokers
                ],
            }
        )
        return
    from ottla.runtime.address import Address

    print_pairs([("cluster", info.cluster_id), ("controller", controller)])
    print()
    print_table(
        ["broker", "address", "rack"],
        [(b.node_id, str(Address(b.host, b.port)), b.rack) for b in info.brokers],
    )


async def _controller(admin: Admin, info: ClusterInfo) -> int | None:
    """Who leads the quorum; None if nobody does. Where controllers are a quorum, brokers name any broker."""
    try:
        async with asyncio.timeout(_CONTROLLER_SECONDS):
            leader = (await admin.cluster.quorum()).leader_id
    except TimeoutError:
        return None
    except KafkaError as error:  # a Kafka from before quorums, or one that does not tell everybody
        return None if error.retriable else info.controller_id
    return leader if leader >= 0 else None


@command(app, "features")
def features(
    upgrade: Annotated[
        list[str] | None,
        Option("--set", metavar="FEATURE=LEVEL", help="Bring a feature to a level; may be repeated."),
    ] = None,
    downgrade: Annotated[
        bool, Option("--downgrade", help="Levels may go down where nothing is lost.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show or change feature levels, such as metadata.version."""
    levels: dict[str, int] = {}
    for name, level in named_values("--set", upgrade or ()).items():
        if not level.isdecimal():
            raise WrongUsage(f"--set {name}={level}: a level is a number")
        levels[name] = int(level)

    async def work(admin: Admin) -> dict[str, Feature]:
        from ottla.client.admin.cluster import UpgradeType

        if levels:
            kind = UpgradeType.SAFE_DOWNGRADE if downgrade else UpgradeType.UPGRADE
            await admin.cluster.update_features(levels, upgrade_type=kind, validate_only=dry_run)
        return await admin.cluster.features()

    found = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json(
            [
                {
                    "feature": name,
                    "level": f.finalized,
                    "min_supported": f.min_supported,
                    "max_supported": f.max_supported,
                }
                for name, f in found.items()
            ]
        )
    else:
        print_table(
            ["feature", "level", "supported"],
            [(name, f.finalized, f"{f.min_supported} to {f.max_supported}") for name, f in found.items()],
        )


@command(app, "apis")
def apis(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the APIs and versions that a broker announces."""

    async def work(admin: Admin) -> list[tuple[int, int, int]]:
        return await admin.cluster.api_versions()

    from ottla.protocol.api import API, api_name

    found = with_admin(bootstrap, timeout, work)
    if as_json:
        print_json([{"key": k, "name": api_name(k), "min": low, "max": high} for k, low, high in found])
        return
    print_table(
        ["key", "api", "versions", "spoken here"],
        [
            (
                key,
                api_name(key),
                f"{low} to {high}",
                f"{API[key].min_version} to {API[key].max_version}" if key in API else None,
            )
            for key, low, high in found
        ],
    )
