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
# Fields of a metric.
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9


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


_Field: TypeAlias = tuple[int, int, int, int, int]
"""The number of a field, its wire type, its value if that is a varint, and where its bytes begin and end."""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise MalformedMessage(f"OTLP: a number at byte {at} is longer than ten bytes")
    raise MalformedMessage(f"OTLP: a number ends after byte {at}")


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message that is in `data[at:end]`. Most numbers in it are below 128."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
        wire_type = tag & 7
        value = 0
        begin = at
        if wire_type == _LENGTH:
            if at < end and data[at] < 0x80:
                begin = at + 1
                at = begin + data[at]
            else:
                size, begin = _varint(data, at, end)
                at = begin + size
        elif wire_type == _VARINT:
            value, at = _varint(data, at, end)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        else:
            raise MalformedMessage(f"OTLP: a field has wire type {wire_type}, which is not in use")
        if tag < 8 or at > end:
            raise MalformedMessage(f"OTLP: field {tag >> 3} at byte {begin} does not fit into its message")
        yield tag >> 3, wire_type, value, begin, at


def _text(data: bytes, begin: int, end: int) -> str:
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError:
        raise MalformedMessage(f"OTLP: the text at byte {begin} is not UTF-8") from None


def _any_value(data: bytes, at: int, end: int) -> str:
    """A value as text; of lists and maps, which no metric of a client has, nothing."""
    text = ""
    for number, wire_type, value, begin, stop in _fields(data, at, end):
        if number == 1 and wire_type == _LENGTH:
            text = _text(data, begin, stop)
        elif number == 2 and wire_type == _VARINT:
            text = "true" if value else "false"
        elif number == 3 and wire_type == _VARINT:
            text = str(value - (1 << 64) if value >> 63 else value)
        elif number == 4 and wire_type == _FIXED64:
            text = repr(_DOUBLE.unpack_from(data, begin)[0])
    return text


def _attribute(data: bytes, at: int, end: int) -> tuple[str, str]:
    key = value = ""
    for number, wire_type, _, begin, stop in _fields(data, at, end):
        if wire_type != _LENGTH:
            continue
        if number == 1:
            key = _text(data, begin, stop)
        elif number == 2:
            value = _any_value(data, begin, stop)
    return key, value


def _attributes(found: Sequence[tuple[str, str]]) -> Attributes:
    if len(found) > _MAX_ATTRIBUTES:
        raise MalformedMessage(f"OTLP: more than {_MAX_ATTRIBUTES} attributes")
    return tuple(found)


def _parts(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for number, wire_type, _, begin, stop in _fields(data, at, end):
        if number == wanted and wire_type == _LENGTH:
            yield begin, stop


def read_metrics(data: Buffer, max_points: int = MAX_POINTS) -> list[MetricPoint]:
    """Return the points of a `MetricsData` message. MalformedMessage if it is none, or has too many."""
    data = bytes(data)
    points: list[MetricPoint] = []
    for at, end in _parts(data, 0, len(data), 1):
        scopes: list[tuple[int, int]] = []
        attributes: list[tuple[str, str]] = []
        for number, wire_type, _, begin, stop in _fields(data, at, end):
            if wire_type != _LENGTH:
                continue
            if number == 1:
                attributes += [_attribute(data, *part) for part in _parts(data, begin, stop, 1)]
            elif number == 2:
                scopes.append((begin, stop))
        resource = _attributes(attributes)
        for scope in scopes:
            for metric in _parts(data, *scope, 2):
                _read_metric(data, *metric, resource, points)
                if len(points) > max_points:
                    raise MalformedMessage(f"OTLP: more than {max_points} data points")
    return points


class _Metric(NamedTuple):
    name: str
    kind: PointKind
    is_monotonic: bool
    resource: Attributes


def _read_metric(data: bytes, at: int, end: int, resource: Attributes, points: list[MetricPoint]) -> None:
    name, form, content = "", 0, (0, 0)
    for number, wire_type, _, begin, stop in _fields(data, at, end):
        if wire_type != _LENGTH:
            continue
        if number == 1:
            name = _text(data, begin, stop)
        elif number in (_GAUGE, _SUM, _HISTOGRAM):
            form, content = number, (begin, stop)
    if form == 0 or not name:
        return
    temporality, is_monotonic = _CUMULATIVE, form == _HISTOGRAM
    found: list[tuple[int, int]] = []
    for number, wire_type, value, begin, stop in _fields(data, *content):
        if number == 1 and wire_type == _LENGTH:
            found.append((begin, stop))
        elif number == 2 and wire_type == _VARINT:
            temporality = value
        elif number == 3 and wire_type == _VARINT:
            is_monotonic = bool(value)
    if form == _GAUGE:
        kind = PointKind.GAUGE
    else:
        kind = PointKind.DELTA_SUM if temporality == _DELTA else PointKind.CUMULATIVE_SUM
    read = _read_histogram_point if form == _HISTOGRAM else _read_number_point
    metric = _Metric(name, kind, is_monotonic, resource)
    for part in found:
        read(data, *part, metric, points)


def _read_number_point(data: bytes, at: int, end: int, metric: _Metric, points: list[MetricPoint]) -> None:
    value: float | None = None
    time_ns = start_ns = 0
    attributes: list[tuple[str, str]] = []
    for number, wire_type, _, begin, stop in _fields(data, at, end):
        if wire_type == _FIXED64:
            if number == 4:
                (value,) = _DOUBLE.unpack_from(data, begin)
            elif number == 6:
                (value,) = _INT64.unpack_from(data, begin)
            elif number == 3:
                (time_ns,) = _UINT64.unpack_from(data, begin)
            elif number == 2:
                (start_ns,) = _UINT64.unpack_from(data, begin)
        elif number == 7 and wire_type == _LENGTH:
            attributes.append(_attribute(data, begin, stop))
    if value is not None:
        name, kind, is_monotonic, resource = metric
        found = _attributes(attributes)
        points.append(MetricPoint(name, kind, value, found, resource, time_ns, start_ns, is_monotonic))


def _read_histogram_point(data: bytes, at: int, end: int, metric: _Metric, points: list[MetricPoint]) -> None:
    """A histogram is taken as two sums, of its values and of their number."""
    count = time_ns = start_ns = 0
    total: float | None = None
    attributes: list[tuple[str, str]] = []
    for number, wire_type, _, begin, stop in _fields(data, at, end):
        if wire_type == _FIXED64:
            if number == 4:
                (count,) = _UINT64.unpack_from(data, begin)
            elif number == 5:
                (total,) = _DOUBLE.unpack_from(data, begin)
            elif number == 3:
                (time_ns,) = _UINT64.unpack_from(data, begin)
            elif number == 2:
                (start_ns,) = _UINT64.unpack_from(data, begin)
        elif number == 9 and wire_type == _LENGTH:
            attributes.append(_attribute(data, begin, stop))
    name, kind, is_monotonic, resource = metric
    found = _attributes(attributes)
    points.append(MetricPoint(f"{name}.count", kind, count, found, resource, time_ns, start_ns, is_monotonic))
    if total is not None:
        points.append(MetricPoint(f"{name}.sum", kind, total, found, resource, time_ns, start_ns, False))


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
    data = bytes(data)
    extra = _write_attributes(1, attributes.items())
    out = []
    for at, end in _parts(data, 0, len(data), 1):
        resource, rest = b"", []
        for number, wire_type, _, begin, stop in _fields(data, at, end):
            if number == 1 and wire_type == _LENGTH:
                resource += data[begin:stop]
            elif wire_type == _LENGTH:
                rest.append(_part(number, data[begin:stop]))
        out.append(_part(1, _part(1, resource + extra) + b"".join(rest)))
    return b"".join(out)
