"""`--command-config`: settings of a client, such as those of TLS and SASL, from a properties file.

Every command that connects to a cluster has the option; `Command` adds it (see `commands`), and the clients
of a command are made with `connect_to`. As in Kafka's tools, a file may be that of another client: what only
producers or consumers know is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ottla.cli.errors import WrongUsage

VARIABLE: Final = "OTTLA_COMMAND_CONFIG"
NAME: Final = "--command-config"

_path: ContextVar[str | None] = ContextVar("command_config", default=None)


@contextmanager
def for_one_command(path: str | None) -> Iterator[None]:
    """Have the clients of this command take their settings from a file, and those of no later command."""
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


def use(path: str | None) -> None:
    """Replace the file for the rest of this command."""
    _path.set(path)


def given() -> str | None:
    """The file, if there is one."""
    return _path.get()


def connect_to(bootstrap: str) -> dict[str, str]:
    """The settings of a client: the servers, and what the file has for all kinds of clients."""
    return {**client_settings(), "bootstrap.servers": bootstrap}


def client_settings() -> dict[str, str]:
    """What the file has for all kinds of clients; empty without one."""
    path = _path.get()
    if path is None:
        return {}
    from ottla.spark.worker.client_config import read_client_config

    try:
        return read_client_config(path)
    except OSError as error:
        raise WrongUsage(f"{NAME} {path}: {error.strerror}") from None
    except ValueError as error:
        raise WrongUsage(f"{NAME} {path}: {error}") from None
