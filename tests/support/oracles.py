"""Two independent implementations of the protocol: kio, made from Kafka's own schemas, and kafka-python.

Both are bridged field by field, in the order of the declarations, so that names do not matter. kio gives some
fields types of its own (error codes, durations, times, UUIDs) and kafka-python makes sets of authorized
operations; they are turned into plain values and back.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import pkgutil
import types
import typing
import uuid
from functools import cache
from typing import Any, TypeVar

import kafka.protocol
from kafka.protocol.api_message import ApiMessage
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from ottla.protocol.schema import ZERO_UUID, Field, Message, Request, Struct, default_of

S = TypeVar("S", bound=Struct)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_class(cls: type[Message], version: int) -> Any:
    load = load_request_schema if issubclass(cls, Request) else load_response_schema
    return load(cls.API_KEY, version)


def kio_decode(cls: type[S], kio_cls: Any, data: bytes, version: int) -> S:
    """What kio reads from these bytes, as our message."""
    entity, size = entity_reader(kio_cls)(data, 0)
    assert size == len(data), f"kio read {size} of {len(data)} bytes"
    return _from_kio(cls, entity, version)


def kio_encode(message: Struct, kio_cls: Any, version: int) -> bytes:
    """The bytes that kio makes of our message."""
    out = io.BytesIO()
    entity_writer(kio_cls)(out, _to_kio(message, kio_cls, version))
    return out.getvalue()


def _pairs(cls: type[Struct], kio_cls: Any, version: int) -> list[tuple[Field, Any]]:
    ours = [field for field in cls.FIELDS if field.in_version(version)]
    theirs = dataclasses.fields(kio_cls)
    assert len(ours) == len(theirs), (
        f"{cls.__name__}: {[f.name for f in ours]} and {[f.name for f in theirs]}"
    )
    for field, kio_field in zip(ours, theirs):
        assert field.tag == kio_field.metadata.get("tag"), f"{cls.__name__}.{field.name}"
    return list(zip(ours, theirs))


def _from_kio(cls: type[S], entity: Any, version: int) -> S:
    made = cls()
    for field, kio_field in _pairs(cls, type(entity), version):
        setattr(made, field.name, _value_from_kio(field, getattr(entity, kio_field.name), version))
    return made


def _value_from_kio(field: Field, value: Any, version: int) -> Any:
    if isinstance(value, tuple):
        return [_value_from_kio(field, item, version) for item in value]
    if isinstance(value, KioErrorCode):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return value.bytes
    if value is None and (field.kind == "uuid" or field.item == "uuid") and not field.nullable_in(version):
        return ZERO_UUID
    if value is None and field.kind == "int64":
        return -1
    if field.struct is not None and value is not None:
        return _from_kio(field.struct, value, version)
    return value


def _to_kio(message: Struct, kio_cls: Any, version: int) -> Any:
    values = {
        kio_field.name: _value_to_kio(field, kio_field, getattr(message, field.name), version)
        for field, kio_field in _pairs(type(message), kio_cls, version)
    }
    return kio_cls(**values)


def _value_to_kio(field: Field, kio_field: Any, value: Any, version: int) -> Any:
    if isinstance(value, list):
        return tuple(_value_to_kio(field, kio_field, item, version) for item in value)
    if isinstance(value, Struct):
        return _to_kio(value, _entity_class(kio_field.type), version)
    kind = kio_field.metadata.get("kafka_type")
    if kind == "error_code":
        return KioErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return value * MILLISECOND
    if kind == "datetime_i64":
        return None if value == -1 else EPOCH + value * MILLISECOND
    if isinstance(value, bytes) and (field.kind == "uuid" or field.item == "uuid"):
        return None if value == ZERO_UUID else uuid.UUID(bytes=value)
    return value


def _entity_class(annotation: Any) -> Any:
    """The dataclass in `X`, `X | None` or `tuple[X, ...]`."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union, tuple):
        return _entity_class(typing.get_args(annotation)[0])
    return annotation


@cache
def kafka_python_classes() -> dict[str, Any]:
    """The messages that kafka-python has, by name."""
    found = {}
    for module_info in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in module_info.name or "generate" in module_info.name:
            continue
        names = vars(importlib.import_module(module_info.name))
        found.update(
            {
                name: value
                for name, value in names.items()
                if isinstance(value, type) and issubclass(value, ApiMessage) and value is not ApiMessage
            }
        )
    return found


def kafka_python_decode(cls: type[S], theirs: Any, data: bytes, version: int) -> S:
    """What kafka-python reads from these bytes, as our message."""
    return _from_kafka_python(cls, theirs.decode(data, version=version), version)


def kafka_python_recode(theirs: Any, data: bytes, version: int) -> bytes:
    """The bytes that kafka-python makes of what it read from these."""
    message = theirs.decode(data, version=version)
    message._header = None
    return bytes(message.encode(version=version))


def _from_kafka_python(cls: type[S], container: Any, version: int) -> S:
    made = cls()
    names = [field.name for field in container._struct._fields if field.for_version_q(version)]
    ours = [field for field in cls.FIELDS if field.in_version(version)]
    assert len(ours) == len(names), f"{cls.__name__}: {[f.name for f in ours]} and {names}"
    for field, name in zip(ours, names):
        setattr(made, field.name, _value_from_kafka_python(field, getattr(container, name), version))
    return made


def _value_from_kafka_python(field: Field, value: Any, version: int) -> Any:
    if isinstance(value, list | tuple):
        return [_value_from_kafka_python(field, item, version) for item in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, set):
        bits = sum(1 << bit for bit in value)
        return bits - (1 << 32) if bits >= 1 << 31 else bits
    if value is None and not field.nullable_in(version):
        return default_of(field)
    if field.struct is not None and value is not None:
        return _from_kafka_python(field.struct, value, version)
    return value
