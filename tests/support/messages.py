"""Random messages, made from the declarations, and the list of all messages there are."""

from __future__ import annotations

import importlib
import pkgutil
import random
from typing import Any, TypeVar

import ottla.protocol.messages
from ottla.protocol.api import API_BY_NAME
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Field, Message, Request, Struct

S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
NEWEST_ERROR = max(ErrorCode)
_LETTERS = "abcXYZ019-_. äß漢😀"


def api_messages() -> list[type[Message]]:
    """Every request and response, in the order of their modules' names."""
    found = []
    for module_info in pkgutil.iter_modules(ottla.protocol.messages.__path__):
        module = importlib.import_module(f"ottla.protocol.messages.{module_info.name}")
        found += messages_of(module)
    return found


def messages_of(module: Any) -> list[type[Message]]:
    """The messages that a module declares."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Message) and value.__module__ == module.__name__
    ]


RECORD_MODULES = (
    "consumer_offsets_records",
    "control_records",
    "headers",
    "metadata_records",
    "principal",
    "quorum_state",
    "remote_log_records",
    "share_state_records",
    "consumer_protocol",
    "transaction_state_records",
)


def all_messages() -> list[type[Message]]:
    """Every message there is: requests, responses, headers, and what internal topics and files hold."""
    modules = [importlib.import_module(f"ottla.protocol.{name}") for name in RECORD_MODULES]
    return api_messages() + [cls for module in modules for cls in messages_of(module)]


def request_of(api: str, **fields: Any) -> Request:
    """The request of an API with these fields; structs in it are given as dictionaries.

    >>> request_of("DescribeLogDirs", topics=[{"topic": "orders", "partitions": [0]}])
    DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic='orders', partitions=[0])])
    """
    return _with_structs(API_BY_NAME[api].request_class, fields)


def _with_structs(cls: type[S], fields: dict[str, Any]) -> S:
    structs = {field.name: field.struct for field in cls.FIELDS if field.struct is not None}
    values = dict(fields)
    for name in structs.keys() & fields.keys():
        value, struct = fields[name], structs[name]
        if isinstance(value, dict):
            values[name] = _with_structs(struct, value)
        elif value is not None:
            values[name] = [_with_structs(struct, each) for each in value]
    return cls(**values)


def structs_of(cls: type[Struct]) -> list[type[Struct]]:
    """A message and all structs in it."""
    inner = [
        struct for field in cls.FIELDS if field.struct is not None for struct in structs_of(field.struct)
    ]
    return [cls, *inner]


def versions_of(cls: type[Message]) -> range:
    return range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)


class MessageMaker:
    """Makes messages that a version can express: fields that it lacks keep their defaults.

    The values stay inside of what other implementations can hold: error codes exist, times have a date.
    """

    def __init__(
        self, seed: object, *, unknown_tags: bool = False, errors_below: int = NEWEST_ERROR + 1
    ) -> None:
        self.random = random.Random(repr(seed))
        self.errors = [code.value for code in ErrorCode if code < errors_below]
        self.unknown_tags = unknown_tags

    def make(self, cls: type[M], version: int) -> M:
        return self._struct(cls, version, cls.is_flexible(version))

    def _struct(self, cls: type[S], version: int, flexible: bool) -> S:
        made = cls()
        for field in cls.FIELDS:
            if field.in_version(version) and not (field.tag is not None and self.random.random() < 0.4):
                setattr(made, field.name, self._value(field, version, flexible))
        if self.unknown_tags and flexible and self.random.random() < 0.5:
            tags = self.random.sample(range(1000, 40000), self.random.randrange(1, 4))
            made.unknown_tags = {tag: self.random.randbytes(self.random.randrange(0, 200)) for tag in tags}
        return made

    def _value(self, field: Field, version: int, flexible: bool) -> Any:
        if field.nullable_in(version) and self.random.random() < 0.3:
            return None
        if field.kind == "struct":
            assert field.struct is not None
            return self._struct(field.struct, version, flexible)
        if field.kind == "array":
            return [
                self._item(field, version, flexible) for _ in range(self.random.choice((0, 1, 1, 2, 3, 5)))
            ]
        return self._plain(field.kind, field.name)

    def _item(self, field: Field, version: int, flexible: bool) -> Any:
        if field.struct is not None:
            return self._struct(field.struct, version, flexible)
        assert field.item is not None
        return self._plain(field.item, field.name)

    def _plain(self, kind: str, name: str) -> Any:
        if name.endswith("error_code"):
            return self.random.choice(self.errors)
        if kind == "int64" and name.endswith("_ms"):
            return self.random.randrange(0, 10**12)
        if kind in _INTEGERS:
            low, high = _INTEGERS[kind]
            return self.random.choice(
                (low, high, 0, self.random.randint(low, high), self.random.randint(0, 100))
            )
        if kind == "bool":
            return self.random.random() < 0.5
        if kind == "float64":
            return self.random.uniform(-1e9, 1e9)
        if kind == "uuid":
            return self.random.randbytes(16)
        size = self.random.choice((0, 1, 5, 20, 126, 127, 128, 300))
        if kind == "string":
            return "".join(self.random.choices(_LETTERS, k=size))
        return self.random.randbytes(size)
