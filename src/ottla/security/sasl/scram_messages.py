"""The four messages of SCRAM (RFC 5802), read strictly: what does not fit the grammar is no message.

A client is not known yet when its messages are read, so they are short, and each character is looked at once
(possessive repeats).
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_NAME: Final = r"(?:[^=,\x00]++|=2C|=3D)++"
_VALUE: Final = r"[^,\x00]+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
# Only `n`, without channel binding: Kafka's protocol has none.
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST: Final = re.compile(
    rf"(?:m={_VALUE},)?r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64})){_EXTENSIONS}")

# A name, two nonces and a proof have some hundred.
MAX_MESSAGE_BYTES: Final = 8 * 1024


class ScramFormatError(ValueError):
    """The bytes are not the expected message. The text has none of them."""


@dataclass(frozen=True, slots=True)
class ClientFirst:
    # The part before `bare`, which the last message repeats.
    gs2_header: str
    bare: str
    authorization_id: str
    username: str
    nonce: str
    extensions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ServerFirst:
    text: str
    nonce: str
    salt: bytes
    iterations: int


@dataclass(frozen=True, slots=True)
class ClientFinal:
    unproved: str
    channel_binding: bytes
    nonce: str
    proof: bytes


def escaped(name: str) -> str:
    """A user's name as messages have it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _match(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    match = None
    if len(message) <= MAX_MESSAGE_BYTES:
        with suppress(UnicodeDecodeError):
            match = pattern.fullmatch(message.decode())
    if match is None:
        raise ScramFormatError(f"Invalid SCRAM {what} message format")
    return match


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramFormatError(f"Invalid SCRAM {what} message format") from None


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def parse_client_first(message: bytes) -> ClientFirst:
    match = _match(_CLIENT_FIRST, message, "client first")
    extensions = dict(part.partition("=")[::2] for part in match["extensions"].split(",") if part)
    return ClientFirst(
        match["gs2"],
        match["bare"],
        _unescaped(match["authzid"] or ""),
        _unescaped(match["name"]),
        match["nonce"],
        extensions,
    )


def parse_server_first(message: bytes) -> ServerFirst:
    match = _match(_SERVER_FIRST, message, "server first")
    salt = _decoded(match["salt"], "server first")
    return ServerFirst(match.string, match["nonce"], salt, int(match["iterations"]))


def parse_client_final(message: bytes) -> ClientFinal:
    match = _match(_CLIENT_FINAL, message, "client final")
    return ClientFinal(
        match["unproved"],
        _decoded(match["binding"], "client final"),
        match["nonce"],
        _decoded(match["proof"], "client final"),
    )


def parse_server_final(message: bytes) -> tuple[str | None, bytes]:
    """The server's error, if there is one, and its signature."""
    match = _match(_SERVER_FINAL, message, "server final")
    if match["error"] is not None:
        return match["error"], b""
    return None, _decoded(match["signature"], "server final")
