"""The options of typed records: which format keys and values have, and where its schema is.

The source and the sink share them. Of the registry's logins an option has only where they are: options are in
Spark's plans and its user interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

TYPED_OPTIONS: Final = (
    *(
        f"{column}{name}"
        for column in ("key", "value")
        for name in ("Format", "Schema", "SchemaFile", "SchemaVersion", "Subject", "Message")
    ),
    "schemaRegistry",
    "schemaRegistryTokenFile",
)
_MAX_FILE_BYTES: Final = 1024 * 1024


class RecordFormat(StrEnum):
    """How a key or value is written."""

    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """A schema registry. The token of a login is read from its file for each request, as tokens expire."""

    url: str
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What options say of the key or the value."""

    column: str
    format: RecordFormat
    registry: RegistryOptions | None
    text: str | None
    """The schema itself, if it was given or is in a file."""
    version: str
    """`latest`, or a number."""
    subject: str | None
    message: str | None

    def subject_of(self, topic: str | None) -> str:
        """The registry's subject, by the topic's name unless one was given."""
        if self.subject is not None:
            return self.subject
        if topic is None:
            raise ValueError(
                f"{self.column}Subject: say which subject of the registry has the schema; it is named after "
                "the topic only where the options name one topic"
            )
        return f"{topic}-{self.column}"


def format_options(given: Mapping[str, str], *, writing: bool = False) -> tuple[FormatOptions, ...]:
    """What options, by their names in small letters, say of keys and values; empty if both are bytes. A sink
    may take schemas from the columns.
    """
    url = given.get("schemaregistry", "").strip()
    token = given.get("schemaregistrytokenfile", "").strip() or None
    if token is not None and not url:
        raise ValueError("schemaRegistryTokenFile is for a schemaRegistry, which is not set")
    registry = RegistryOptions(url, token) if url else None
    if registry is not None:
        from ottla.schemas.registry_client import RegistryClient

        try:
            RegistryClient.of(registry.url)
        except ValueError as error:
            raise ValueError(f"schemaRegistry: {error}") from None
    found = [_format_options(given, column, registry, writing) for column in ("key", "value")]
    return tuple(each for each in found if each is not None)


def _format_options(
    given: Mapping[str, str], column: str, registry: RegistryOptions | None, writing: bool
) -> FormatOptions | None:
    name = given.get(f"{column}format", "").strip().lower()
    if name in ("", "binary"):
        for option in ("Schema", "SchemaFile", "SchemaVersion", "Subject", "Message"):
            if f"{column}{option}".lower() in given:
                raise ValueError(f"{column}{option} needs {column}Format, which says how it is written")
        return None
    try:
        format = RecordFormat(name)
    except ValueError:
        raise ValueError(
            f"{column}Format={name!r}: there are {', '.join(RecordFormat)}, and binary"
        ) from None
    text, file = given.get(f"{column}schema"), given.get(f"{column}schemafile")
    if text is not None and file is not None:
        raise ValueError(f"{column}Schema and {column}SchemaFile exclude each other")
    if file is not None:
        text = _file_text(f"{column}SchemaFile", file.strip())
    if format is RecordFormat.JSON and text is None and not writing:
        raise ValueError(
            f"{column}Format=json needs {column}Schema: the columns, as in `id long, name string`"
        )
    if text is None and registry is None and format is not RecordFormat.JSON:
        raise ValueError(
            f"{column}Format={format} needs a schema: {column}Schema, {column}SchemaFile, or schemaRegistry"
        )
    version = given.get(f"{column}schemaversion", "latest").strip().lower()
    if version != "latest" and not (version.isdecimal() and int(version) > 0):
        raise ValueError(f"{column}SchemaVersion={version!r} is neither latest nor a number above zero")
    if text is not None and f"{column}schemaversion" in given:
        raise ValueError(f"{column}SchemaVersion is for a schema of the registry; one is given")
    message = given.get(f"{column}message", "").strip() or None
    if message is not None and format is not RecordFormat.PROTOBUF:
        raise ValueError(f"{column}Message is for {column}Format=protobuf")
    return FormatOptions(
        column,
        format,
        None if format is RecordFormat.JSON else registry,
        text,
        version,
        given.get(f"{column}subject", "").strip() or None,
        message,
    )


def _file_text(option: str, file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{option}: {file}: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"{option}: {file} has more than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{option}: {file} is no text of UTF-8") from None
