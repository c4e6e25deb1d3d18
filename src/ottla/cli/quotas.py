"""`ottla quotas`: how much users, client ids and addresses may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    named_values,
)
from ottla.cli.output import print_json, print_line, print_table
from ottla.cli.session import with_admin
from ottla.protocol.client_quotas import CLIENT_ID, IP, QUOTAS_OF_CLIENTS, QUOTAS_OF_IPS, USER

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.quotas import EntityQuotas

HELP: Final = "List, set and remove quotas of users, client ids and addresses."
app = group("quotas", HELP)

User = Annotated[str | None, Option("--user", "-u", metavar="NAME", help="The quotas of a user.")]
DefaultUser = Annotated[
    bool, Option("--default-user", help="The quotas of each user without quotas of its own.")
]
ClientId = Annotated[
    str | None,
    Option("--client-id", "-c", metavar="ID", help="The quotas of a client id, or of it with this user."),
]
DefaultClientId = Annotated[
    bool, Option("--default-client-id", help="The quotas of each client id without quotas of its own.")
]
Ip = Annotated[str | None, Option("--ip", metavar="ADDRESS", help="The quotas of an address.")]
DefaultIp = Annotated[
    bool, Option("--default-ip", help="The quotas of each address without quotas of its own.")
]


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str | None]:
    """The entity that the options name; None is the default of its type."""
    named: dict[str, str | None] = {}
    for type, name, default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and default:
            raise WrongUsage(f"name one of --{type} and --default-{type}")
        if name is not None or default:
            named[type] = name
    if IP in named and len(named) > 1:
        raise WrongUsage("an address has quotas of its own, without a user or a client id")
    return named


def _required(entity: dict[str, str | None]) -> dict[str, str | None]:
    if not entity:
        raise WrongUsage("name a --user, a --client-id, both, or an --ip; or --default-user and so on")
    return entity


def _check_names(entity: dict[str, str | None], names: list[str]) -> None:
    known = QUOTAS_OF_IPS if IP in entity else QUOTAS_OF_CLIENTS
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(sorted(known))}"
            raise WrongUsage(f"there is no quota {name}{hint}")


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


@command(app, "list")
def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    strict: Annotated[
        bool, Option("--strict", help="Leave out those of a user or client id combined with another.")
    ] = False,
    common: Common = COMMON,
) -> None:
    """List quotas: all, or those of a user, client id or address."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)

    async def work(admin: Admin) -> list[EntityQuotas]:
        return await admin.quotas.describe(entity, strict=strict)

    found = with_admin(common, work)
    if common.as_json:
        print_json([{"entity": dict(each.entity), "quotas": dict(each.quotas)} for each in found])
    else:
        print_table(
            ["entity", "quota", "value"],
            [(each.text, key, _number(str(value))) for each in found for key, value in each.quotas.items()],
        )


@command(app, "set")
def set_quotas(
    quotas: Annotated[
        list[str], Argument(metavar="QUOTA=VALUE...", help="Such as producer_byte_rate=1048576.")
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    Quotas of users and client ids: producer_byte_rate and consumer_byte_rate in bytes per second,
    request_percentage of the time of a broker, controller_mutation_rate in partitions that are created or
    deleted per second. Of addresses: connection_creation_rate in connections per second.
    """
    entity = _required(_entity(user, default_user, client_id, default_client_id, ip, default_ip))
    given = named_values("quota", quotas)
    _check_names(entity, list(given))
    values: dict[str, float] = {}
    for name, text in given.items():
        try:
            values[name] = float(text)
        except ValueError:
            raise WrongUsage(f"{name}={text}: expected a number") from None
    _alter(common, entity, values, [], dry_run=dry_run)


@command(app, "remove")
def remove_quotas(
    quotas: Annotated[list[str] | None, Argument(metavar="[QUOTA]...", help="All if none is named.")] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Remove quotas of a user, a client id, both together, or an address: the next in order holds then."""
    entity = _required(_entity(user, default_user, client_id, default_client_id, ip, default_ip))
    _check_names(entity, quotas or [])
    _alter(common, entity, {}, quotas, dry_run=dry_run)


def _alter(
    common: Common,
    entity: dict[str, str | None],
    values: dict[str, float],
    remove: list[str] | None,
    *,
    dry_run: bool,
) -> None:
    """Set and remove quotas; with `remove` None, remove all that the entity has."""
    from ottla.client.admin.quotas import entity_text

    async def work(admin: Admin) -> list[str]:
        removed = remove
        if not values and not removed:
            found = await admin.quotas.describe(entity, strict=True)
            removed = [key for each in found for key in each.quotas]
            if not removed:
                raise CliError(f"{entity_text(entity)} has no quotas of its own")
        await admin.quotas.alter(entity, set=values, remove=removed or (), validate_only=dry_run)
        return removed or []

    removed = with_admin(common, work)
    if common.as_json:
        print_json({"entity": entity, "set": values, "removed": removed, "dry_run": dry_run})
        return
    changes = [f"{name}={_number(str(value))}" for name, value in values.items()]
    changes += [f"without {name}" for name in removed]
    print_line(f"{entity_text(entity)}: {', '.join(changes)}" + (" (nothing was changed)" if dry_run else ""))
