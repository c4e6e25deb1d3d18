"""Compare rows and records with what a test expects, in any order.

Values are compared in one form: a time as text in UTC, numbers by value (12 digits of a float), bytes as text
where they are UTF-8. Only what a test names is compared: a column that none of the expected rows has, and a
field of records that none of the expected records has, may have any value.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

MAX_ROWS_SHOWN: Final = 20
_DIGITS: Final = 12
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")


def canonical(value: Any) -> Any:
    """The form in which values are compared.

    >>> canonical(datetime(2026, 1, 31, 12, tzinfo=UTC)), canonical("2026-01-31T13:00:00+01:00")
    ('2026-01-31T12:00:00Z', '2026-01-31T12:00:00Z')
    >>> canonical(Decimal("72.50")), canonical(7.0), canonical(b"tea"), canonical({"a": (1, None)})
    (72.5, 7, 'tea', {'a': [1, None]})
    """
    if isinstance(value, Mapping):
        return {str(name): canonical(each) for name, each in value.items()}
    if isinstance(value, str):
        return _time_text(value) if _TIME.fullmatch(value) else value
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return _number(value)
    if isinstance(value, datetime):
        return _utc_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Iterable):
        return [canonical(each) for each in value]
    return str(value)


def _number(value: float | Decimal) -> float | str:
    if isinstance(value, int):
        return value
    number = float(f"{value:.{_DIGITS}g}")
    if number != number or number in (float("inf"), float("-inf")):
        return str(number)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _time_text(text: str) -> str:
    try:
        return _utc_text(datetime.fromisoformat(text))
    except ValueError:
        return text


def _utc_text(moment: datetime) -> str:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds") + "Z"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()


def record_bytes(record: Mapping[str, Any], name: str) -> bytes | None:
    """The bytes of `key` or `value` in a record as `ottla consume --json` prints it; a value that is not text
    is encoded as JSON.

    >>> record_bytes({"value": {"a": 1}}, "value"), record_bytes({"value_base64": "/w=="}, "value")
    (b'{"a":1}', b'\\xff')
    """
    if f"{name}_base64" in record:
        return base64.b64decode(record[f"{name}_base64"], validate=True)
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(_jsonable(value), ensure_ascii=False, separators=(",", ":")).encode()


def _jsonable(value: Any) -> Any:
    """YAML reads times as such; JSON has them as text."""
    if isinstance(value, Mapping):
        return {str(name): _jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    return canonical(value) if isinstance(value, date | datetime | time) else value


def timestamp_ms(value: Any) -> int:
    """The milliseconds of a record's timestamp: a number, or a time in ISO 8601; without a zone it is UTC.

    >>> timestamp_ms("2026-01-31T12:00:00Z"), timestamp_ms(1769860800000)
    (1769860800000, 1769860800000)
    """
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a time")
    if isinstance(value, int):
        return value
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Rows that are missing, and rows that were not expected; empty if the rows are those of the test."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    count: int

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected)

    def text(self) -> str:
        """The difference for people: `-` what is missing, `+` what was not expected."""
        lines = [
            f"{len(self.missing)} missing, {len(self.unexpected)} unexpected, of {self.count} rows that are "
            "there"
        ]
        for sign, rows in (("-", self.missing), ("+", self.unexpected)):
            lines += [f"  {sign} {row}" for row in rows[:MAX_ROWS_SHOWN]]
            if len(rows) > MAX_ROWS_SHOWN:
                lines.append(f"  {sign} ... and {len(rows) - MAX_ROWS_SHOWN} more")
        return "\n".join(lines)


def compare(actual: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> RowDifference:
    """Compare rows in any order, each as often as it occurs.

    >>> compare([{"a": 1, "b": 2}, {"a": 1, "b": 3}], [{"a": 1}, {"a": 2}]).text().splitlines()[1:]
    ['  - {"a": 2}', '  + {"a": 1}']
    """
    columns = {name for row in expected for name in row}
    wanted = Counter(_row_text(row, row) for row in expected)
    found = Counter(_row_text(row, columns if columns else row) for row in actual)
    return RowDifference(
        tuple(sorted((wanted - found).elements())), tuple(sorted((found - wanted).elements())), len(actual)
    )


def _row_text(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """A row as text. A column without a value is as one that is not there: files of JSON have no nulls."""
    kept = {name: canonical(row[name]) for name in sorted(columns) if row.get(name) is not None}
    return json.dumps(kept, ensure_ascii=False, sort_keys=True)
