"""`ottla tokens`: delegation tokens, with which programs log in without the secrets of their owners."""

from __future__ import annotations

import base64
import binascii
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import WrongUsage
from ottla.cli.options import (
    COMMON,
    Common,
)
from ottla.cli.output import print_json, print_line, print_table, time_text
from ottla.cli.session import with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.tokens import DelegationTokenInfo

HELP: Final = "Create, renew, expire and list delegation tokens."
app = group("tokens", HELP)

Hmac = Annotated[
    str, Argument(metavar="HMAC", help="The token's HMAC in base64, or - to read it from standard input.")
]


@command(app, "create")
def create(
    renewers: Annotated[
        list[str] | None,
        Option("--renewer", "-r", metavar="PRINCIPAL", help="A principal that may renew it, User:name."),
    ] = None,
    owner: Annotated[
        str | None,
        Option("--owner", "-o", metavar="PRINCIPAL", help="For another principal than yourself, User:name."),
    ] = None,
    max_lifetime_ms: Annotated[
        int,
        Option(
            "--max-lifetime-ms",
            metavar="MS",
            help="The longest it can be renewed for; -1 is the most that brokers allow.",
        ),
    ] = -1,
    common: Common = COMMON,
) -> None:
    """Create a token, and print its id and its HMAC: a name and a password for SCRAM.

    Clients log in with them and the option tokenauth="true" of their login module.
    """
    for principal in (*(renewers or ()), *((owner,) if owner else ())):
        _check_principal(principal)

    async def work(admin: Admin) -> DelegationTokenInfo:
        return await admin.tokens.create(
            renewers=renewers or (), max_lifetime_ms=max_lifetime_ms, owner=owner
        )

    token = with_admin(common, work)
    if common.as_json:
        print_json(_members(token, with_hmac=True))
        return
    print_table(["", ""], list(_shown(token, with_hmac=True).items()))


@command(app, "renew")
def renew(
    hmac: Hmac,
    period_ms: Annotated[
        int, Option("--period-ms", metavar="MS", help="How long it is to last; -1 is the usual time.")
    ] = -1,
    common: Common = COMMON,
) -> None:
    """Renew a token of yours, or one that you may renew, within its longest life."""
    given = _hmac(hmac)

    async def work(admin: Admin) -> int:
        return await admin.tokens.renew(given, period_ms=period_ms)

    _print_end("renewed", with_admin(common, work), common.as_json)


@command(app, "expire")
def expire(
    hmac: Hmac,
    period_ms: Annotated[
        int, Option("--period-ms", metavar="MS", help="End it after this time; -1 is at once.")
    ] = -1,
    common: Common = COMMON,
) -> None:
    """End a token, now or later. Sessions that have logged in with it last until they would have ended."""
    given = _hmac(hmac)

    async def work(admin: Admin) -> int:
        return await admin.tokens.expire(given, period_ms=period_ms)

    _print_end(
        "expired" if period_ms < 0 else "changed",
        with_admin(common, work),
        common.as_json,
    )


@command(app, "list")
def list_tokens(
    owners: Annotated[
        list[str] | None,
        Option("--owner", "-o", metavar="PRINCIPAL", help="Only tokens that it owns or may renew."),
    ] = None,
    with_hmac: Annotated[bool, Option("--hmac", help="Show the HMACs too: they are passwords.")] = False,
    common: Common = COMMON,
) -> None:
    """List the tokens that you may see."""
    for owner in owners or ():
        _check_principal(owner)

    async def work(admin: Admin) -> list[DelegationTokenInfo]:
        return await admin.tokens.describe(*(owners or ()))

    found = with_admin(common, work)
    if common.as_json:
        print_json([_members(token, with_hmac=with_hmac) for token in found])
        return
    columns = ["token", "owner", "requester", "renewers", "issued", "expires", "longest"]
    rows = [list(_shown(token, with_hmac=with_hmac).values()) for token in found]
    print_table([*columns, *(["hmac"] if with_hmac else [])], rows)


def _print_end(verb: str, expires_at_ms: int, as_json: bool) -> None:
    if as_json:
        print_json({"expires_at_ms": expires_at_ms})
    else:
        print_line(f"{verb}: the token ends at {time_text(expires_at_ms)}")


def _members(token: DelegationTokenInfo, *, with_hmac: bool) -> dict[str, Any]:
    members: dict[str, Any] = {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_at_ms": token.issued_at_ms,
        "expires_at_ms": token.expires_at_ms,
        "max_timestamp_ms": token.max_timestamp_ms,
    }
    return members | ({"hmac": token.password} if with_hmac else {})


def _shown(token: DelegationTokenInfo, *, with_hmac: bool) -> dict[str, str]:
    shown = {
        "token id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": ", ".join(token.renewers) or "-",
        "issued": time_text(token.issued_at_ms) or "-",
        "expires": time_text(token.expires_at_ms) or "-",
        "longest": time_text(token.max_timestamp_ms) or "-",
    }
    return shown | ({"hmac": token.password} if with_hmac else {})


def _check_principal(text: str) -> None:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise WrongUsage(f"{text} is no principal; write it as User:{text or 'name'}")


def _hmac(text: str) -> bytes:
    if text == "-":
        text = sys.stdin.readline().strip()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise WrongUsage("the HMAC is not base64") from None
