"""Records in JSON, checked by a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ottla.client.serdes.objects import plain
from ottla.client.serdes.schema_serde import Decode, SchemaSerde
from ottla.client.serdes.schema_text import SchemaText
from ottla.schemas.errors import WrongData
from ottla.schemas.json_schema import JsonSchemaDocument
from ottla.schemas.parsed import SchemaReference, SchemaType


class JsonSchema(SchemaSerde):
    """Values are what JSON has, dataclasses or Pydantic models; they are checked when they are written and
    read. Without a schema, that of a Pydantic model given as `type` is written.

        JsonSchema("http://127.0.0.1:9644/schema-registry", type=Order)
    """

    FORMAT: ClassVar[SchemaType] = SchemaType.JSON

    def _own_schema(self) -> tuple[str | None, list[SchemaReference]]:
        if self._schema is None and hasattr(self._type, "model_json_schema"):
            return json.dumps(self._type.model_json_schema()), self._references
        return self._schema, self._references

    def _encoder(self, schema: SchemaText) -> tuple[Callable[[Any], bytes], str | None]:
        document = json.loads(schema.text)
        title = document.get("title") if isinstance(document, dict) else None
        return partial(_encoded, json_checker(schema)), title if isinstance(title, str) else None

    def _decoder(self, schema: SchemaText) -> Decode:
        return partial(self._decoded, json_checker(schema))

    def _decoded(self, checker: JsonSchemaDocument, data: bytes, _: tuple[int, ...]) -> Any:
        value = json.loads(data)
        _check(checker, value)
        return self._built(value)


def json_checker(schema: SchemaText) -> JsonSchemaDocument:
    return JsonSchemaDocument(schema.text, {name: each.text for name, each in schema.before()})


def _check(checker: JsonSchemaDocument, value: Any) -> None:
    problems = checker.problems(value)
    if problems:
        raise WrongData("; ".join(problems))


def _encoded(checker: JsonSchemaDocument, value: Any) -> bytes:
    found = plain(value)
    _check(checker, found)
    try:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise WrongData(str(error)) from None
