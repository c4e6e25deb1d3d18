"""The client settings of a whole run, as defaults of the options of its sources and sinks.

`ottla pipeline run --command-config FILE` sets two environment variables, which Spark's processes inherit:
the file, and the brokers that it is for. Secrets so stay out of plans, logs and command lines. A source or
sink of other brokers gets nothing from the file: its credentials are not for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

FILE: Final = "OTTLA_SPARK_CLIENT_CONFIG"
SERVERS: Final = "OTTLA_SPARK_CLIENT_CONFIG_SERVERS"
_GROUPS: Final = ("sasl.", "ssl.")
"""Settings that belong together: options with one of them take none of that kind from the file."""


def use_client_config(file: str, servers: str) -> None:
    """Have sources and sinks that name one of these brokers take their settings from a file."""
    os.environ[FILE] = os.path.abspath(file)
    os.environ[SERVERS] = servers


def with_client_config(given: Mapping[str, str]) -> dict[str, str]:
    """Add what the file of the run has to the settings of a client, where those say nothing."""
    file = os.environ.get(FILE)
    servers = _addresses(os.environ.get(SERVERS, ""))
    if file is None or servers.isdisjoint(_addresses(given.get("bootstrap.servers", ""))):
        return dict(given)
    try:
        defaults = read_client_config(file)
    except OSError as error:
        raise ValueError(
            f"bootstrap.servers: {file} has the client settings, and: {error.strerror}"
        ) from None
    own = tuple(prefix for prefix in _GROUPS if any(name.startswith(prefix) for name in given))
    return {**{name: value for name, value in defaults.items() if not name.startswith(own)}, **given}


def read_client_config(file: str) -> dict[str, str]:
    """What a properties file has for all kinds of clients, without the brokers. Raises OSError, and
    ValueError for a file that is none.
    """
    from ottla.client.settings import SHARED_SETTINGS, is_about_security
    from ottla.runtime.properties import parse_properties

    with open(file, encoding="utf-8") as opened:
        given = parse_properties(opened.read())
    return {
        name: value for name, value in given.items() if is_about_security(name) or name in SHARED_SETTINGS
    }


def _addresses(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())
