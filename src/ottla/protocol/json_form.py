"""The JSON form of a message, as Kafka's tools print it and as the `quorum-state` file contains it.

Names are camel case; ids are base64url without padding, other bytes are base64; record batches appear by
their size only. A field is present if the version has it; a tagged field only if it differs from its default.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final, TypeVar

from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.names import parse_uuid, uuid_text
from ottla.protocol.schema import Field, Message, Struct, default_of

S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)

# Names whose camel case is irregular.
_IRREGULAR: Final = {"enable_2pc": "enable2Pc"}


def json_name(name: str) -> str:
    """
    >>> json_name("leader_epoch"), json_name("kraft_version")
    ('leaderEpoch', 'kRaftVersion')
    """
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    camel = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)
    return re.sub(r"^kraft", "kRaft", camel)


def to_json(value: Struct, version: int) -> dict[str, Any]:
    """Return the document for a message, or for a struct in it."""
    if isinstance(value, Message):
        value.check_version(version)
    return _struct_to_json(value, version)


def from_json(cls: type[M], data: dict[str, Any], version: int) -> M:
    """Return the message that `to_json` wrote; names that the version does not have are ignored."""
    cls.check_version(version)
    return _struct_from_json(cls, data, version)


def _struct_to_json(value: Struct, version: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in value.FIELDS:
        current = getattr(value, field.name)
        default = current == default_of(field)
        if not field.in_version(version):
            if not field.ignorable and not default:
                raise UnsupportedVersion(f"{type(value).__name__} v{version} has no {field.name}")
        elif field.kind == "records" and current is not None:
            made[json_name(field.name) + "SizeInBytes"] = len(current)
        elif field.tag is None or not default:
            made[json_name(field.name)] = _to_json(field, current, version)
    return made


def _to_json(field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.kind == "array":
        if field.struct is not None:
            return [_struct_to_json(item, version) for item in value]
        return [uuid_text(item) for item in value] if field.item == "uuid" else list(value)
    if field.struct is not None:
        return _struct_to_json(value, version)
    if field.kind == "uuid":
        return uuid_text(value)
    if field.kind == "bytes":
        return base64.b64encode(value).decode()
    return value


def _struct_from_json(cls: type[S], data: Any, version: int) -> S:
    if not isinstance(data, dict):
        raise MalformedMessage(f"{cls.__name__}: an object is needed, not {data!r}")
    made = cls()
    for field in cls.FIELDS:
        name = json_name(field.name)
        if not field.in_version(version) or field.kind == "records":
            continue
        if name in data:
            setattr(made, field.name, _from_json(field, data[name], version))
        elif field.tag is None:
            raise MalformedMessage(f"{cls.__name__}: {name} is missing")
    return made


_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "float64": (int, float),
    "string": str,
    "uuid": str,
    "bytes": str,
    "array": list,
    "struct": dict,
}


def _from_json(field: Field, value: Any, version: int) -> Any:
    if value is None:
        if field.nullable_in(version):
            return None
        raise MalformedMessage(f"{json_name(field.name)} must not be null")
    if not isinstance(value, _TYPES.get(field.kind, int)):
        raise MalformedMessage(f"{json_name(field.name)} cannot be {value!r}")
    if isinstance(value, list):
        if field.struct is not None:
            return [_struct_from_json(field.struct, item, version) for item in value]
        return [_plain_from_json(field.item or "", item) for item in value]
    if field.struct is not None:
        return _struct_from_json(field.struct, value, version)
    return _plain_from_json(field.kind, value)


def _plain_from_json(kind: str, value: Any) -> Any:
    try:
        if kind == "uuid":
            return parse_uuid(value)
        if kind == "bytes":
            return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise MalformedMessage(str(error)) from None
    return value
