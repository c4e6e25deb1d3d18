"""Schemas by their ids, from a registry that answers as Confluent's does; and its wire format.

A message in that format begins with a zero byte and the id of its schema in four bytes; one of Protobuf has
then the place of its message in the file. Only the schema of an id is ever asked for, once: it never changes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ottla.runtime.clock import Clock
from ottla.runtime.http import HttpError
from ottla.runtime.pool import Pool
from ottla.schemas.errors import SchemaError
from ottla.schemas.registry_client import SCHEMA_NOT_FOUND, RegistryClient, RegistryRequestError, part
from ottla.schemas.schema import MessageSchema, make_schema

MAX_SCHEMAS: Final = 1_000
MAX_REFERENCES: Final = 50
# After a failure, the registry is not asked for that id again for so long.
_FAILURE_NS: Final = 30 * 1_000_000_000
_TIMEOUT_SECONDS: Final = 5.0
# The zero byte, and the id.
WIRE_HEAD: Final = 5


class WireFormat(NamedTuple):
    """The id of a schema, and where the data begin."""

    schema_id: int
    start: int


def parse_wire_format(data: bytes) -> WireFormat | None:
    """
    >>> parse_wire_format(bytes([0, 0, 0, 0, 7, 42]))
    WireFormat(schema_id=7, start=5)
    """
    if len(data) < WIRE_HEAD or data[0] != 0:
        return None
    return WireFormat(int.from_bytes(data[1:WIRE_HEAD], "big"), WIRE_HEAD)


def message_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The place of a Protobuf message in its file, and where its data begin. ValueError if there is none."""
    count, at = _zigzag(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= 20:
        raise ValueError("no place of a message")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise ValueError("no place of a message")


class NoSuchSchema(str):
    """Why there is no schema: the registry works, and does not know the id, or has a text for it that is no
    schema.
    """

    __slots__ = ()


def _parse(
    schema_id: int, document: dict[str, Any], references: tuple[str, ...]
) -> MessageSchema | NoSuchSchema:
    try:
        return make_schema(
            f"registry id {schema_id}",
            str(document.get("schemaType") or "AVRO"),
            str(document.get("schema") or ""),
            references=references,
        )
    except SchemaError as error:
        return NoSuchSchema(f"the schema {schema_id} of the registry cannot be used: {error}")


@dataclass(slots=True)
class SchemaRegistry:
    """`url` may have a user and a password, which are sent to it only."""

    url: str
    pool: Pool
    clock: Clock
    _client: RegistryClient = field(init=False)
    # The newest last; a text is the failure, which holds for a while.
    _found: OrderedDict[int, MessageSchema | tuple[str, int]] = field(default_factory=OrderedDict)
    _asking: dict[int, asyncio.Future[MessageSchema | str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._client = RegistryClient.of(self.url, timeout_seconds=_TIMEOUT_SECONDS)

    async def schema(self, schema_id: int) -> MessageSchema | str:
        """Return the schema, or why there is none."""
        found = self._found.get(schema_id)
        if isinstance(found, MessageSchema):
            self._found.move_to_end(schema_id)
            return found
        if found is not None and self.clock.monotonic_ns() < found[1]:
            return found[0]
        asking = self._asking.get(schema_id)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(schema_id))
            self._asking[schema_id] = asking
            asking.add_done_callback(lambda _: self._asking.pop(schema_id, None))
        return await asyncio.shield(asking)

    async def _ask(self, schema_id: int) -> MessageSchema | str:
        result: MessageSchema | str
        try:
            document = await self._get(f"/schemas/ids/{schema_id}")
            references = await self._references(document, set())
            result = await self.pool.run(_parse, schema_id, document, references)
        except RegistryRequestError as error:
            result = f"the schema {schema_id} of the registry cannot be used: it answers {error.status}"
            if error.code == SCHEMA_NOT_FOUND:
                result = NoSuchSchema(f"the registry has no schema {schema_id}")
        except (HttpError, SchemaError, ValueError) as error:
            result = f"the schema {schema_id} of the registry cannot be used: {error}"
        self._found[schema_id] = (
            result if isinstance(result, MessageSchema) else (result, self.clock.monotonic_ns() + _FAILURE_NS)
        )
        self._found.move_to_end(schema_id)
        while len(self._found) > MAX_SCHEMAS:
            self._found.popitem(last=False)
        return result

    async def _references(self, document: dict[str, Any], seen: set[tuple[str, str]]) -> tuple[str, ...]:
        """The texts of the schemas that a schema refers to, those that they need before them."""
        texts: list[str] = []
        listed = document.get("references") or []
        if not isinstance(listed, list) or any(not isinstance(each, dict) for each in listed):
            raise SchemaError("its references are no list of objects")
        for each in listed:
            key = (str(each.get("subject")), str(each.get("version")))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MAX_REFERENCES:
                raise SchemaError("it refers to too many others")
            other = await self._get(f"/subjects/{part(key[0])}/versions/{part(key[1])}")
            texts += await self._references(other, seen)
            texts.append(str(other.get("schema") or ""))
        return tuple(texts)

    async def _get(self, path: str) -> dict[str, Any]:
        document = await self.pool.run(self._client.call, "GET", path)
        if not isinstance(document, dict):
            raise SchemaError("the registry answers with no object")
        return document
