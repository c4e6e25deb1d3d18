"""`ottla users`: the users that log in with SCRAM."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean, unreadable
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    Yes,
)
from ottla.cli.output import print_json, print_line, print_table
from ottla.cli.session import confirm, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.users import UserCredentials

HELP: Final = "List, add and remove users that log in with SCRAM."
PASSWORD_VARIABLE: Final = "OTTLA_USER_PASSWORD"
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_MOST_BYTES: Final = 4096
app = group("users", HELP)


@command(app, "list")
def list_users(
    common: Common = COMMON,
) -> None:
    """List users, their mechanisms and the iterations of each."""

    async def work(admin: Admin) -> list[UserCredentials]:
        return await admin.users.list()

    _show(with_admin(common, work), common.as_json)


@command(app, "describe")
def describe(
    name: Annotated[str, Argument(help="The name of the user.")],
    common: Common = COMMON,
) -> None:
    """Show the mechanisms that a user can log in with."""

    async def work(admin: Admin) -> list[UserCredentials]:
        return [await _existing(admin, name)]

    _show(with_admin(common, work), common.as_json)


@command(app, "add")
def add(
    name: Annotated[str, Argument(help="The name of the user.")],
    mechanism: Annotated[
        str, Option("--mechanism", "-m", choices=MECHANISMS, help="How the user logs in.")
    ] = MECHANISMS[0],
    iterations: Annotated[
        int,
        Option(
            "--iterations", min=4096, max=16384, help="Rounds of hashing: with more, guessing takes longer."
        ),
    ] = 4096,
    password_file: Annotated[
        str | None,
        Option("--password-file", metavar="FILE", help="The file that has the password; - reads stdin."),
    ] = None,
    common: Common = COMMON,
) -> None:
    """Let a user log in with a password, or change the password of one that can.

    The password is read from --password-file, from the variable OTTLA_USER_PASSWORD, or asked for: it is no
    argument, as every process of the machine can see those. Passwords of the user's other mechanism stay.
    """
    password = _password(name, password_file)

    async def work(admin: Admin) -> bool:
        had_password = any(
            user.name == name and mechanism in user.mechanisms for user in await admin.users.list()
        )
        await admin.users.set_password(name, password, mechanism=mechanism, iterations=iterations)
        return had_password

    replaced = with_admin(common, work)
    if common.as_json:
        print_json({"user": name, "mechanism": mechanism, "iterations": iterations, "replaced": replaced})
    else:
        print_line(f"{name} can log in with {mechanism}{'; the password was replaced' * replaced}")


@command(app, "remove")
def remove(
    name: Annotated[str, Argument(help="The name of the user.")],
    mechanism: Annotated[
        str | None, Option("--mechanism", "-m", choices=MECHANISMS, help="Only this one; by default, all.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Remove the passwords of a user. Its connections stay until they end by themselves."""

    async def find(admin: Admin) -> list[str]:
        known = (await _existing(admin, name)).mechanisms
        if mechanism is not None and mechanism not in known:
            raise CliError(f"{name} does not log in with {mechanism}; it has {', '.join(known)}")
        return [mechanism] if mechanism is not None else list(known)

    async def work(admin: Admin) -> None:
        for each in removed:
            await admin.users.remove(name, mechanism=each)

    removed = with_admin(common, find)
    if not dry_run:
        confirm(f"Remove {', '.join(removed)} of {name}?", yes=yes)
        with_admin(common, work)
    if common.as_json:
        print_json({"user": name, "removed": removed, "dry_run": dry_run})
    else:
        print_line(f"{'would remove' if dry_run else 'removed'} {', '.join(removed)} of {name}")


async def _existing(admin: Admin, name: str) -> UserCredentials:
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        return await admin.users.describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.RESOURCE_NOT_FOUND:
            raise
    known = [user.name for user in await admin.users.list()]
    hint = did_you_mean(name, known) or "; `ottla users list` shows those that do"
    raise CliError(f"user {name} does not exist{hint}")


def _show(users: list[UserCredentials], as_json: bool) -> None:
    if as_json:
        print_json([{"user": user.name, "mechanisms": dict(user.mechanisms)} for user in users])
    else:
        print_table(
            ["user", "mechanism", "iterations"],
            [(user.name, name, iterations) for user in users for name, iterations in user.mechanisms.items()],
        )


def _password(name: str, file: str | None) -> str:
    if file is not None:
        password = _read(file)
    elif PASSWORD_VARIABLE in os.environ:
        password = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        from getpass import getpass

        password = getpass(f"Password of {name}: ")
        if getpass("Again: ") != password:
            raise CliError("the two passwords differ; nothing was changed")
    else:
        raise WrongUsage(f"no password: use --password-file, or set {PASSWORD_VARIABLE}")
    if not password:
        raise WrongUsage("the password is empty")
    return password


def _read(file: str) -> str:
    """The first line of a file, without its end."""
    try:
        if file == "-":
            text = sys.stdin.read(_MOST_BYTES)
        else:
            with open(file, encoding="utf-8") as opened:
                text = opened.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from None
    line, _, rest = text.partition("\n")
    if rest.strip():
        raise WrongUsage(f"--password-file {file}: it has more than one line")
    return line.rstrip("\r")
