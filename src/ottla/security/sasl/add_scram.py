"""The users that a cluster is formatted with: `--add-scram 'SCRAM-SHA-256=[name=alice,password=secret]'`.

They are read as `kafka-storage format` reads them. Messages name what is wrong and show no password.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from ottla.metadata.controller.scram import scram_credential
from ottla.metadata.image.entities import ScramUser
from ottla.metadata.records import MetadataRecord
from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import Random


def scram_records(arguments: Iterable[str], random: Random) -> list[MetadataRecord]:
    """The records of the users. ValueError says which argument cannot be read, without its passwords."""
    return [_record(argument, random) for argument in arguments]


def _record(argument: str, random: Random) -> MetadataRecord:
    name, equals, config = argument.strip().partition("=")
    if not equals:
        raise ValueError(
            "Failed to find equals sign in SCRAM argument; write MECHANISM=[name=...,password=...]"
        )
    mechanism = ScramMechanism.of_name(name)
    if mechanism is None:
        raise ValueError(f"The add-scram mechanism {name} is not supported.")
    if not config.startswith("["):
        raise ValueError("Expected configuration string to start with [")
    if not config.endswith("]"):
        raise ValueError("Expected configuration string to end with ]")
    parts = dict(_part(part) for part in config[1:-1].split(","))
    user = parts.pop("name", None)
    if user is None:
        raise ValueError("You must supply 'name' to add-scram")
    iterations = _iterations(parts.pop("iterations", None), mechanism)
    given_salt = _decoded(parts.pop("salt", None), "salt")
    password = parts.pop("password", None)
    given_salted = _decoded(parts.pop("saltedpassword", None), "saltedPassword")
    if parts:
        raise ValueError(f"Unknown SCRAM configurations: {', '.join(sorted(parts))}")
    salt = given_salt if given_salt is not None else scram.salt_of(random.randbytes(scram.SALT_BYTES))
    if password is not None:
        salted = scram.salted_password(mechanism, password, salt, iterations)
    elif given_salted is None:
        raise ValueError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    elif given_salt is None:
        raise ValueError("You must supply 'salt' with 'saltedpassword' to add-scram")
    else:
        salted = given_salted
    return scram_credential(mechanism, salt, salted, iterations).to_record(ScramUser(mechanism, user))


def _part(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("No equals sign found in a SCRAM component")
    if len(value) >= 2 and value.startswith('"') and value.endswith('"'):
        value = value[1:-1]
    return name, value


def _iterations(text: str | None, mechanism: ScramMechanism) -> int:
    if text is None:
        return scram.DEFAULT_ITERATIONS
    try:
        iterations = int(text)
    except ValueError:
        raise ValueError(f"Failed to parse iterations count: {text}") from None
    for is_wrong, sign, limit in (
        (iterations < scram.MIN_ITERATIONS, ">=", scram.MIN_ITERATIONS),
        (iterations > scram.MAX_ITERATIONS, "<=", scram.MAX_ITERATIONS),
    ):
        if is_wrong:
            raise ValueError(
                f"The 'iterations' value must be {sign} {limit} for add-scram using {mechanism.name}"
            )
    return iterations


def _decoded(text: str | None, what: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"Failed to decode given {what}") from None
