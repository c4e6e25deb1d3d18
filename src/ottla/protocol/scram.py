"""SCRAM (RFC 5802): Kafka's two mechanisms and the formulas that both sides, and the controller, share.

A broker stores `stored_key` and `server_key`, from which the password cannot be computed and with which alone
no client can log in. Like Kafka, this takes passwords as their UTF-8 bytes, without SASLprep.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum


class ScramMechanism(IntEnum):
    """The mechanisms, by their numbers in requests and in the metadata log."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """The name as SASL has it: `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @classmethod
    def of_name(cls, name: str) -> ScramMechanism | None:
        return _BY_NAME.get(name)

    @classmethod
    def of_type(cls, number: int) -> ScramMechanism | None:
        return _BY_TYPE.get(number)


_BY_NAME = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}
_BY_TYPE = {int(mechanism): mechanism for mechanism in ScramMechanism}

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
DEFAULT_ITERATIONS = 4096
SALT_BYTES = 17


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Derive the secret from which all keys follow (`Hi` of the RFC). It costs as much as the iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", mechanism.hash_name)


def server_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)


def stored_key(mechanism: ScramMechanism, key_of_client: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, key_of_client).digest()


def signature(mechanism: ScramMechanism, key: bytes, auth_message: bytes) -> bytes:
    """Sign the exchange with `stored_key`, for a client, or with `server_key`, for the server."""
    return hmac.digest(key, auth_message, mechanism.hash_name)


def exclusive_or(left: bytes, right: bytes) -> bytes:
    """Combine two values of the same length, bit by bit."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def salt_of(noise: bytes) -> bytes:
    """Write random bytes as a salt: digits and small letters, as Kafka's tools have them."""
    alphabet = b"0123456789abcdefghijklmnopqrstuvwxyz"
    number, out = int.from_bytes(noise, "big"), bytearray()
    while number:
        number, digit = divmod(number, len(alphabet))
        out.append(alphabet[digit])
    return bytes(out) or b"0"
