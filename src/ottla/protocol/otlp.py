"""Metrics in OTLP's protobuf, as clients push them (KIP-714): a reader and a writer of its few messages.

A push is a `MetricsData` message: resources, each with scopes, each with metrics, each with data points. The
reader flattens it to points and knows gauges, sums and histograms; other kinds, and fields that it does not
know, are skipped, as protobuf demands. It trusts nothing: each length is checked against the message that
contains it, nesting is as deep as the format and no deeper, and the number of points is bounded.

`MetricsData` and the request of OTLP's own export service have the same bytes, and several of them one after
the other are one that has all their resources. `with_resource_attributes` relies on the first, and a
forwarder on both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.schema import Buffer

__all__ = [
    "Attributes",
    "MetricPoint",
    "PointKind",
    "read_metrics",
    "with_resource_attributes",
    "write_metrics",
]

Attributes: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order of the message."""

MAX_POINTS: Final = 20_000
"""The most data points of one push; a client of a thousand partitions pushes some four thousand."""
_MAX_ATTRIBUTES: Final = 64

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_INT64: Final = struct.Struct("<q")
_UINT64: Final = struct.Struct("<Q")

_DELTA, _CUMULATIVE = 1, 2


class PointKind(Enum):
    GAUGE = "gauge"
    DELTA_SUM = "delta sum"
    """What was added since the push before."""
    CUMULATIVE_SUM = "cumulative sum"
    """What was added since the client started."""


class MetricPoint(NamedTuple):
    """One number of a metric, and what it is about. `start_ns` is 0 where the message has none."""

    name: str
    kind: PointKind
    value: float
    attributes: Attributes = ()
    resource: Attributes = ()
    time_ns: int = 0
    start_ns: int = 0
    # A sum that only grows; of a gauge it means nothing.
    is_monotonic: bool = True


class _Field(NamedTuple):
    number: int
    wire_type: int
    # The number of a varint or of fixed bytes (their bits), 0 of a part.
    number_value: int
    # Where a part is: fields of `_LENGTH`, and those of fixed bytes.
    begin: int
    end: int


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end:
        byte = view[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise MalformedMessage(f"OTLP: a number at byte {at} is longer than ten bytes")
    raise MalformedMessage(f"OTLP: a number ends after byte {at}")


def _fields(view: memoryview, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message that is in `view[at:end]`."""
    while at < end:
        tag, at = _varint(view, at, end)
        number, wire_type = tag >> 3, tag & 7
        value = 0
        begin = at
        if wire_type == _LENGTH:
            size, begin = _varint(view, at, end)
            at = begin + size
        elif wire_type == _VARINT:
            value, at = _varint(view, at, end)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        else:
            raise MalformedMessage(f"OTLP: field {number} has wire type {wire_type}, which is not in use")
        if number == 0 or at > end:
            raise MalformedMessage(f"OTLP: field {number} at byte {begin} does not fit into its message")
        yield _Field(number, wire_type, value, begin, at)


def _text(view: memoryview, field: _Field) -> str:
    try:
        return str(view[field.begin : field.end], "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessage(f"OTLP: the text at byte {field.begin} is not UTF-8") from None


def _any_value(view: memoryview, at: int, end: int) -> str:
    """A value as text; of lists and maps, which no metric of a client has, nothing."""
    text = ""
    for field in _fields(view, at, end):
        if field.number == 1 and field.wire_type == _LENGTH:
            text = _text(view, field)
        elif field.number == 2 and field.wire_type == _VARINT:
            text = "true" if field.number_value else "false"
        elif field.number == 3 and field.wire_type == _VARINT:
            signed = field.number_value
            text = str(signed - (1 << 64) if signed >> 63 else signed)
        elif field.number == 4 and field.wire_type == _FIXED64:
            text = repr(_DOUBLE.unpack_from(view, field.begin)[0])
    return text


def _attribute(view: memoryview, at: int, end: int) -> tuple[str, str]:
    key = value = ""
    for field in _fields(view, at, end):
        if field.wire_type != _LENGTH:
            continue
        if field.number == 1:
            key = _text(view, field)
        elif field.number == 2:
            value = _any_value(view, field.begin, field.end)
    return key, value


def _attributes(found: Sequence[tuple[str, str]]) -> Attributes:
    if len(found) > _MAX_ATTRIBUTES:
        raise MalformedMessage(f"OTLP: more than {_MAX_ATTRIBUTES} attributes")
    return tuple(found)


def _parts(view: memoryview, at: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    for field in _fields(view, at, end):
        if field.number == number and field.wire_type == _LENGTH:
            yield field.begin, field.end


def read_metrics(data: Buffer, max_points: int = MAX_POINTS) -> list[MetricPoint]:
    """Return the points of a `MetricsData` message. MalformedMessage if it is none, or has too many."""
    view = memoryview(data).cast("B")
    points: list[MetricPoint] = []
    for begin, end in _parts(view, 0, len(view), 1):
        scopes: list[tuple[int, int]] = []
        attributes: list[tuple[str, str]] = []
        for field in _fields(view, begin, end):
            if field.wire_type != _LENGTH:
                continue
            if field.number == 1:
                attributes += [_attribute(view, *part) for part in _parts(view, field.begin, field.end, 1)]
            elif field.number == 2:
                scopes.append((field.begin, field.end))
        resource = _attributes(attributes)
        for scope in scopes:
            for metric in _parts(view, *scope, 2):
                _read_metric(view, *metric, resource, points)
                if len(points) > max_points:
                    raise MalformedMessage(f"OTLP: more than {max_points} data points")
    return points


def _read_metric(
    view: memoryview, at: int, end: int, resource: Attributes, points: list[MetricPoint]
) -> None:
    name, kind, data = "", 0, (0, 0)
    for field in _fields(view, at, end):
        if field.wire_type != _LENGTH:
            continue
        if field.number == 1:
            name = _text(view, field)
        elif field.number in (5, 7, 9):
            kind, data = field.number, (field.begin, field.end)
    if kind == 0 or not name:
        return
    temporality, is_monotonic = _CUMULATIVE, kind == 9
    found: list[tuple[int, int]] = []
    for field in _fields(view, *data):
        if field.number == 1 and field.wire_type == _LENGTH:
            found.append((field.begin, field.end))
        elif field.number == 2 and field.wire_type == _VARINT:
            temporality = field.number_value
        elif field.number == 3 and field.wire_type == _VARINT:
            is_monotonic = bool(field.number_value)
    if kind == 5:
        points_kind = PointKind.GAUGE
    else:
        points_kind = PointKind.DELTA_SUM if temporality == _DELTA else PointKind.CUMULATIVE_SUM
    read = _read_histogram_point if kind == 9 else _read_number_point
    template = MetricPoint(name, points_kind, 0.0, resource=resource, is_monotonic=is_monotonic)
    for part in found:
        read(view, *part, template, points)


def _read_number_point(
    view: memoryview, at: int, end: int, template: MetricPoint, points: list[MetricPoint]
) -> None:
    value: float | None = None
    time_ns = start_ns = 0
    attributes: list[tuple[str, str]] = []
    for field in _fields(view, at, end):
        if field.wire_type == _FIXED64:
            if field.number == 4:
                (value,) = _DOUBLE.unpack_from(view, field.begin)
            elif field.number == 6:
                (value,) = _INT64.unpack_from(view, field.begin)
            elif field.number == 3:
                (time_ns,) = _UINT64.unpack_from(view, field.begin)
            elif field.number == 2:
                (start_ns,) = _UINT64.unpack_from(view, field.begin)
        elif field.number == 7 and field.wire_type == _LENGTH:
            attributes.append(_attribute(view, field.begin, field.end))
    if value is not None:
        points.append(
            template._replace(
                value=value, attributes=_attributes(attributes), time_ns=time_ns, start_ns=start_ns
            )
        )


def _read_histogram_point(
    view: memoryview, at: int, end: int, template: MetricPoint, points: list[MetricPoint]
) -> None:
    """A histogram is taken as two sums, of its values and of their number."""
    count = time_ns = start_ns = 0
    total: float | None = None
    attributes: list[tuple[str, str]] = []
    for field in _fields(view, at, end):
        if field.wire_type == _FIXED64:
            if field.number == 4:
                (count,) = _UINT64.unpack_from(view, field.begin)
            elif field.number == 5:
                (total,) = _DOUBLE.unpack_from(view, field.begin)
            elif field.number == 3:
                (time_ns,) = _UINT64.unpack_from(view, field.begin)
            elif field.number == 2:
                (start_ns,) = _UINT64.unpack_from(view, field.begin)
        elif field.number == 9 and field.wire_type == _LENGTH:
            attributes.append(_attribute(view, field.begin, field.end))
    common = template._replace(attributes=_attributes(attributes), time_ns=time_ns, start_ns=start_ns)
    points.append(common._replace(name=f"{common.name}.count", value=count))
    if total is not None:
        points.append(common._replace(name=f"{common.name}.sum", value=total, is_monotonic=False))


# Writing


def _tag(number: int, wire_type: int) -> bytes:
    return _size(number << 3 | wire_type)


def _size(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _part(number: int, content: bytes) -> bytes:
    return _tag(number, _LENGTH) + _size(len(content)) + content


def _write_attributes(number: int, attributes: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(
        _part(number, _part(1, key.encode()) + _part(2, _part(1, value.encode())))
        for key, value in attributes
    )


def _write_point(point: MetricPoint) -> bytes:
    out = b""
    if point.start_ns:
        out += _tag(2, _FIXED64) + _UINT64.pack(point.start_ns)
    out += _tag(3, _FIXED64) + _UINT64.pack(point.time_ns)
    if isinstance(point.value, int):
        out += _tag(6, _FIXED64) + _INT64.pack(point.value)
    else:
        out += _tag(4, _FIXED64) + _DOUBLE.pack(point.value)
    return out + _write_attributes(7, point.attributes)


def write_metrics(resource: Mapping[str, str], points: Iterable[MetricPoint]) -> bytes:
    """Write a `MetricsData` message of one resource; points of one name and kind become one metric."""
    metrics: dict[tuple[str, PointKind, bool], list[bytes]] = {}
    for point in points:
        metrics.setdefault((point.name, point.kind, point.is_monotonic), []).append(
            _part(1, _write_point(point))
        )
    written = []
    for (name, kind, is_monotonic), data in metrics.items():
        content = b"".join(data)
        if kind is PointKind.GAUGE:
            written.append(_part(2, _part(1, name.encode()) + _part(5, content)))
            continue
        content += _tag(2, _VARINT) + _size(_DELTA if kind is PointKind.DELTA_SUM else _CUMULATIVE)
        content += _tag(3, _VARINT) + _size(int(is_monotonic))
        written.append(_part(2, _part(1, name.encode()) + _part(7, content)))
    attributes = _write_attributes(1, resource.items())
    return _part(1, _part(1, attributes) + _part(2, b"".join(written)))


def with_resource_attributes(data: Buffer, attributes: Mapping[str, str]) -> bytes:
    """Return the same `MetricsData` with more attributes on each of its resources."""
    view = memoryview(data).cast("B")
    extra = _write_attributes(1, attributes.items())
    out = []
    for begin, end in _parts(view, 0, len(view), 1):
        resource, rest = b"", []
        for field in _fields(view, begin, end):
            if field.number == 1 and field.wire_type == _LENGTH:
                resource += bytes(view[field.begin : field.end])
            elif field.wire_type == _LENGTH:
                rest.append(_part(field.number, bytes(view[field.begin : field.end])))
        out.append(_part(1, _part(1, resource + extra) + b"".join(rest)))
    return b"".join(out)
