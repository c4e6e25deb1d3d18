"""The reader and the writer of OTLP's metrics."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.otlp import (
    MetricPoint,
    PointKind,
    read_metrics,
    with_resource_attributes,
    write_metrics,
)

TIME_NS = 1_700_000_000_000_000_000


def part(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content


def text(value: str) -> bytes:
    return part(1, value.encode())


# A gauge of one integer as protobuf's own compiler writes it, field by field.
POINT = bytes((3 << 3 | 1,)) + struct.pack("<Q", TIME_NS) + bytes((6 << 3 | 1,)) + struct.pack("<q", -7)
ATTRIBUTE = part(7, text("node_id") + part(2, text("node-1")))
METRIC = part(2, text("a.b") + part(5, part(1, POINT + ATTRIBUTE)))
RESOURCE = part(1, part(1, text("group_id") + part(2, text("g"))))
MESSAGE = part(1, RESOURCE + part(2, METRIC))


def test_a_message_is_read_as_its_points() -> None:
    assert read_metrics(MESSAGE) == [
        MetricPoint(
            "a.b",
            PointKind.GAUGE,
            -7,
            (("node_id", "node-1"),),
            (("group_id", "g"),),
            TIME_NS,
            is_monotonic=False,
        )
    ]


def test_messages_one_after_the_other_are_one() -> None:
    assert read_metrics(MESSAGE + MESSAGE) == 2 * read_metrics(MESSAGE)


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = bytes((15 << 3, 1)) + bytes((14 << 3 | 1,)) + bytes(8) + bytes((13 << 3 | 5,)) + bytes(4)
    metric = part(2, text("a.b") + unknown + part(5, part(1, unknown + POINT)))
    assert [point.value for point in read_metrics(part(1, part(2, metric)) + unknown)] == [-7]


def test_a_histogram_is_its_sum_and_its_count() -> None:
    data = bytes((4 << 3 | 1,)) + struct.pack("<Q", 3) + bytes((5 << 3 | 1,)) + struct.pack("<d", 1.5)
    metric = part(2, text("h") + part(9, part(1, data) + bytes((2 << 3, 1))))
    points = read_metrics(part(1, part(2, metric)))
    assert [(p.name, p.kind, p.value) for p in points] == [
        ("h.count", PointKind.DELTA_SUM, 3),
        ("h.sum", PointKind.DELTA_SUM, 1.5),
    ]


@pytest.mark.parametrize("kind", list(PointKind))
@pytest.mark.parametrize("value", [3, -2, 0.5, math.inf])
def test_what_is_written_is_read(kind: PointKind, value: float) -> None:
    point = MetricPoint("a.b", kind, value, (("topic", "ø"),), (("group_id", "g"),), TIME_NS, TIME_NS - 5)
    (read,) = read_metrics(write_metrics({"group_id": "g"}, [point]))
    assert read == point._replace(is_monotonic=kind is not PointKind.GAUGE)


def test_attributes_are_added_to_each_resource() -> None:
    data = write_metrics({"group_id": "g"}, [MetricPoint("a", PointKind.GAUGE, 1)])
    for point in read_metrics(with_resource_attributes(data + data, {"client_id": "c"})):
        assert point.resource == (("group_id", "g"), ("client_id", "c"))
        assert point.value == 1


def test_a_long_message_is_written() -> None:
    points = [
        MetricPoint(f"metric.{number}", PointKind.GAUGE, number, (("partition", "x" * 200),))
        for number in range(300)
    ]
    assert [point.value for point in read_metrics(write_metrics({}, points))] == list(range(300))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # no length
        b"\x0a\x05ab",  # shorter than its length
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length of more than 64 bits
        b"\x0b",  # a wire type that is not in use
        b"\x00\x00",  # no field number
        part(1, part(2, part(2, part(1, b"\xff")))),  # a name that is no text
        part(1, part(1, part(1, b"\x0a\x09"))),  # an attribute that ends early
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_metrics(data)


def test_too_many_points_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="more than 2 data points"):
        read_metrics(MESSAGE * 3, max_points=2)


@given(st.binary(max_size=200), st.integers(0, len(MESSAGE)))
def test_any_bytes_are_read_or_refused(data: bytes, at: int) -> None:
    for message in (data, MESSAGE[:at] + data + MESSAGE[at:], MESSAGE[:at]):
        try:
            read_metrics(message)
            with_resource_attributes(message, {"a": "b"})
        except MalformedMessage:
            pass
