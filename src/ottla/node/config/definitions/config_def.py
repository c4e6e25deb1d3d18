"""The definition of a setting: its name, type, default, allowed values, and whether it may change while the
node runs: Kafka's `ConfigDef`.

The modules beside this one define a `ConfigKey` for every name that Apache Kafka 4.3 knows. They are the one
source for parsing, for DescribeConfigs and for the documentation. Invariant: every default passes its own
key's validator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """The types of values, by their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """At which level a setting of brokers may change while they run."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigError(ValueError):
    """A setting cannot be used; the text names it, its value and what is allowed."""


class ConfigValidator(Protocol):
    """Which values of the right type are allowed."""

    def problem(self, value: Value) -> str | None:
        """Say why the value is not allowed; None if it is."""
        ...

    def __str__(self) -> str:
        """Describe the allowed values, for the documentation."""
        ...


class InRange(NamedTuple):
    min: int | float
    max: int | float | None = None

    def problem(self, value: Value) -> str | None:
        if value is None:
            return None
        assert isinstance(value, int | float), value
        if value < self.min:
            return f"Value must be at least {self.min}"
        if self.max is not None and value > self.max:
            return f"Value must be no more than {self.max}"
        return None

    def __str__(self) -> str:
        return f"[{self.min},...]" if self.max is None else f"[{self.min},...,{self.max}]"


class RangeOr(NamedTuple):
    """A range, or one value outside of it that has a meaning of its own."""

    range: InRange
    other: int

    def problem(self, value: Value) -> str | None:
        if value == self.other or self.range.problem(value) is None:
            return None
        return f"Value must be {self.range.min} to {self.range.max}, or {self.other}"

    def __str__(self) -> str:
        return f"{self.range} or {self.other}"


class ValidString(NamedTuple):
    values: tuple[str, ...]
    ignore_case: bool = False

    def problem(self, value: Value) -> str | None:
        if value is None:
            return f"String must be one of: {', '.join(self.values)}"
        text = str(value).upper() if self.ignore_case else str(value)
        if text in self.values:
            return None
        hint = " (case insensitive)" if self.ignore_case else ""
        return f"String must be one of{hint}: {', '.join(self.values)}"

    def __str__(self) -> str:
        hint = "(case insensitive) " if self.ignore_case else ""
        return f"{hint}[{', '.join(self.values)}]"


class ValidList(NamedTuple):
    """A list of the given names or, without any given, of any names. A repeated name counts once."""

    values: tuple[str, ...] = ()
    empty: bool = True

    def problem(self, value: Value) -> str | None:
        if value is None:
            return None
        assert isinstance(value, tuple), value
        if not value and not self.empty:
            return "List must not be empty"
        if "" in value:
            return "List must not contain empty items"
        for item in value:
            if self.values and item not in self.values:
                return f"String must be one of: {', '.join(self.values)}"
        return None

    def __str__(self) -> str:
        return f"[{', '.join(self.values)}]" if self.values else ("" if self.empty else "non-empty list")


class Matches(NamedTuple):
    """A text, or every item of a list, that a pattern describes; `allowed` says it in words."""

    pattern: str
    allowed: str

    def problem(self, value: Value) -> str | None:
        items: Iterable[str] = value if isinstance(value, tuple) else () if value is None else (str(value),)
        for item in items:
            if re.fullmatch(self.pattern, item) is None:
                return f"Must be {self.allowed}"
        return None

    def __str__(self) -> str:
        return self.allowed


# Short names, so that definitions stay readable.
BOOLEAN: Final = ConfigType.BOOLEAN
STRING: Final = ConfigType.STRING
INT: Final = ConfigType.INT
SHORT: Final = ConfigType.SHORT
LONG: Final = ConfigType.LONG
DOUBLE: Final = ConfigType.DOUBLE
LIST: Final = ConfigType.LIST
CLASS: Final = ConfigType.CLASS
PASSWORD: Final = ConfigType.PASSWORD
HIGH: Final = Importance.HIGH
MEDIUM: Final = Importance.MEDIUM
LOW: Final = Importance.LOW
PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_DOUBLE: Final = 1.7976931348623157e308
NON_EMPTY: Final = Matches(r"(?s).+", "a non-empty string")

_INTEGERS: Final = {ConfigType.INT: 31, ConfigType.SHORT: 15, ConfigType.LONG: 63}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
# What Java's Double.parseDouble takes, less the hexadecimal form.
_DOUBLE: Final = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?")


class ConfigKey(NamedTuple):
    name: str
    type: ConfigType
    default: Value
    importance: Importance
    doc: str
    check: ConfigValidator | None = None
    mode: UpdateMode = UpdateMode.READ_ONLY
    internal: bool = False
    synonyms: tuple[str, ...] = ()
    """For a topic or group name: the broker names that stand in for it when it is not set, nearest first."""

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str | None) -> Value:
        """Return the value of a text; ConfigError if it is not allowed."""
        value = None if text is None else self._convert(text)
        problem = self.check.problem(value) if self.check else None
        if problem is not None:
            raise self.error(self.show(value) if self.type is DOUBLE else text, problem)
        return value

    def _convert(self, text: str) -> Value:
        kind = self.type
        if kind is ConfigType.PASSWORD:
            return text
        text = text.strip()
        if kind is ConfigType.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise self.error(text, "Expected value to be either true or false")
            return lowered == "true"
        if kind in _INTEGERS:
            if _INTEGER.fullmatch(text) is None or not _fits(int(text), _INTEGERS[kind]):
                raise self.error(text, f"Not a number of type {kind.name}")
            return int(text)
        if kind is ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(text) is None:
                raise self.error(text, f"Not a number of type {kind.name}")
            return float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
        if kind is ConfigType.LIST:
            items = tuple(item.strip() for item in text.split(",")) if text else ()
            return tuple(dict.fromkeys(items)) if isinstance(self.check, ValidList) else items
        return text

    def error(self, text: str | None, problem: str) -> ConfigError:
        shown = "[hidden]" if self.sensitive else text
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {problem}")

    def show(self, value: Value) -> str | None:
        """Return the value as text, the way Kafka writes it; None if there is none or it is sensitive."""
        if value is None or self.sensitive:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return java_double(value)
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _fits(number: int, bits: int) -> bool:
    return -(1 << bits) <= number < 1 << bits


def java_double(value: float) -> str:
    """A double as Java's Double.toString writes it: 0.5, 1.0, 1.0E10."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if str(value).startswith("-") else "0.0"
    if 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    digits, _, exponent = f"{value!r}".partition("e")
    sign = "-" if digits.startswith("-") else ""
    digits = digits.lstrip("-")
    whole, _, fraction = digits.partition(".")
    power = int(exponent or 0)
    all_digits = (whole + (fraction if fraction != "0" else "")).lstrip("0")
    power += len(whole) - 1 if whole != "0" else -(len(fraction) - len(fraction.lstrip("0")) + 1)
    mantissa = all_digits.rstrip("0") or "0"
    return f"{sign}{mantissa[0]}.{mantissa[1:] or '0'}E{power}"


def key(
    name: str,
    type: ConfigType,
    default: Value,
    importance: Importance,
    doc: str,
    check: ConfigValidator | None = None,
    *,
    mode: UpdateMode = UpdateMode.READ_ONLY,
    internal: bool = False,
    synonyms: tuple[str, ...] = (),
) -> ConfigKey:
    """Define a setting."""
    return ConfigKey(name, type, default, importance, doc, check, mode, internal, synonyms)


def config_def(*rows: ConfigKey) -> dict[str, ConfigKey]:
    keys = {row.name: row for row in rows}
    assert len(keys) == len(rows), "a name is defined twice"
    return keys
